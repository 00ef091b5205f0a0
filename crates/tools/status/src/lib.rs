//! What a daemon says of itself (`shale status --json`), in words and as a picture. Pure: it asks nobody and prints nothing.
//!
//! | Module | What it does |
//! | --- | --- |
//! | [`fields`] | reads fields of the answer |
//! | [`staging`] | the first tier, the staging area and the write buffer in words |
//! | [`screen`], [`draw`](mod@draw) | what `shale top` shows, and how it looks |
#![forbid(unsafe_code)]

pub mod draw;
pub mod fields;
pub mod screen;
pub mod staging;
