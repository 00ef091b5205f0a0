//! The descriptors of a program: which of them are files of a Shale mount, and the open file descriptions that they share with
//! other descriptors and processes (open(2), "Open file descriptions").
//!
//! The kernel has the descriptors. Where the library serves a file, its offset is in a [`description`] and the kernel's means nothing;
//! before the kernel needs it, it is handed over.
//!
//! | Module | What it knows |
//! | --- | --- |
//! | [`table`] | which descriptors are ours |
//! | [`description`] | offset, flags and users of what they are open on, shared by a family of processes |
//! | [`placeholder`] | files that were opened without the kernel |
//! | [`locked`] | which files may be locked by this process |
//! | [`inherited`], [`transfer`] | what children and receivers of messages get |
//! | [`mapped`] | which files are mapped, and where |
//! | [`recent`] | inodes that a thread has used recently |
//! | [`mounts`] | which mount a descriptor lies on |
//! | [`own`], [`limits`] | descriptors of the library itself; limits of the process |
//! | [`report`], [`warning`] | counts for `SHALE_REPORT`; lines to the user |

pub mod description;
pub mod inherited;
pub mod limits;
pub mod locked;
pub mod mapped;
pub mod mounts;
pub mod own;
pub mod placeholder;
pub mod recent;
pub mod report;
pub mod table;
pub mod transfer;
pub mod warning;
