//! Shale: the recording device: what a workload did to NVM, and what a power cut could leave.
//!
//! 1. A [`Recording`] gives out one [`Medium`] per device; attach it to every mapping of
//!    that device with [`shale_nvm::MapOptions::recorder`].
//! 2. The workload runs, marking what it is doing with [`set_operation`]. After each
//!    operation [`Medium::verify_shadow`] finds any store that went past the recorder.
//! 3. [`Recording::script`] freezes what happened. A [`Replay`] steps through it and
//!    [`Replay::cut`] lists what is uncertain if power fails right there; a [`Choice`]
//!    of what survives gives an image to recover from.
//!
//! ```
//! use std::sync::Arc;
//! use shale_nvm::MapOptions;
//! use shale_record::{Choice, MediaRules, Recording};
//!
//! let recording = Recording::new();
//! let medium = recording.medium("nvm");
//! let map = MapOptions::new().recorder(medium.clone()).anonymous(4096)?;
//! map.copy_nt(0, &[7; 64]);
//! let unfenced = recording.event_count();
//! map.fence();
//!
//! assert!(medium.verify_shadow(&map).is_none());
//! let script = recording.script();
//! let rules = MediaRules::default();
//! let lost = script.crash_image(unfenced, medium.index(), &rules, &Choice::None);
//! let kept = script.crash_image(unfenced + 1, medium.index(), &rules, &Choice::None);
//! assert_eq!((lost[0], kept[0]), (0, 7));
//! # Ok::<(), shale_nvm::NvmError>(())
//! ```
//!
//! Block devices next to it: [`BlockTape`] and [`BlockReplay`]; a device for real programs, whose cache a power cut empties:
//! [`WriteCache`].
//!
//! A mapping whose stores are never meant to reach a medium (a control page) should not
//! be recorded: everything in it would stay uncertain for ever.
#![forbid(unsafe_code)]

mod blocks;
mod cut;
mod record;
mod replay;
mod write_cache;

pub use blocks::{BlockReplay, BlockRules, BlockTape, Noted};
pub use cut::{Choice, Cut, CutEffect, MediaRules, Unit};
pub use record::{
    Action, Difference, Medium, Recorded, Recording, Script, operation, set_operation,
};
pub use replay::Replay;
pub use write_cache::{CacheCounts, Emptied, WriteCache};

#[cfg(test)]
mod tests;
