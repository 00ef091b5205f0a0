//! The persistence domain: what makes bytes durable, and how far a log is durable (DESIGN §1).
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`domain`] | what it takes until bytes survive a power cut |
//! | [`position`] | the two watermarks of a log |
//! | [`staged`] | the area of a device that a volume without NVM survives a power cut by |
//!
//! A record is *published* when it is complete and every reader of the log sees it, and *hardened* when it
//! survives a power cut. `tail ≤ digested ≤ published ≤ reserved`, and `hardened ≤ published`.
#![forbid(unsafe_code)]

pub mod domain;
pub mod position;
pub mod staged;

pub use domain::Domain;
pub use position::{Hardened, Published};
