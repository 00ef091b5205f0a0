//! What a daemon (`shale status --json`) and programs under `shale run` say of themselves, in words and as a picture. Pure: it asks nobody and prints nothing.
//!
//! | Module | What it does |
//! | --- | --- |
//! | [`fields`] | reads fields of the answer |
//! | [`staging`] | the first tier, the staging area and the write buffer in words |
//! | [`run_report`] | what the processes under `shale run --report` did, added up |
//! | [`screen`], [`draw`](mod@draw) | what `shale top` shows, and how it looks |
#![forbid(unsafe_code)]

pub mod draw;
pub mod fields;
pub mod run_report;
pub mod screen;
pub mod staging;
