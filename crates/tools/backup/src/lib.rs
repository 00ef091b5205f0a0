//! Backups of a volume: `shale backup` and `shale restore`.
//!
//! A backup is the state of one moment. Before that moment most of it is copied while programs go on ([`take`]), then the
//! daemon freezes the volume ([`shale_libfs::Session::freeze`]), and what has changed meanwhile is read again.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`manifest`] | what a backup says of each file, and how that is written |
//! | [`store`] | the directory that backups are in: which are complete, where content lies |
//! | [`source`] | a volume to be read, mounted or not |
//! | [`take`] | taking a backup |
//! | [`restore`] | making a tree equal to one |
//! | [`verify`] | reading all of one |
//! | [`verbs`] | the two verbs of the `shale` program |
#![forbid(unsafe_code)]

pub mod error;
pub mod manifest;
pub mod restore;
pub mod source;
pub mod store;
pub mod take;
pub mod verbs;
pub mod verify;

pub use error::{BackupError, Result};
