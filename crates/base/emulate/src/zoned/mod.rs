//! An open-channel SSD as StageFS has it (§5.1.1): raw flash, no translation, no memory of
//! its own. 16 units work side by side; each has erase blocks of 2 MiB, of 256 pages of 8 KiB.
//!
//! * Pages of a block are programmed in order, each once. Anything else is refused with the
//!   block, the page and the page that is expected, and counted.
//! * A page has [`OOB_BYTES`] bytes of metadata of its own, programmed with it.
//! * Erased pages read as ones, metadata too.
//! * A block goes bad on request ([`Zoned::wear_out`]): from then on to program or erase it fails
//!   and changes nothing, and what it holds is read.
//! * Counted: pages read, programmed, moved; blocks erased; attempts out of order.
//! * Time as in [`UnitTimes`], on a virtual clock or waited for ([`Pace`]).
//!
//! # What survives
//!
//! The end of the process: everything that a call returned from, if the image is a file.
//!
//! A power cut of the modelled device ([`Zoned::cut_power`]): commands go to their unit's queue
//! and return; [`Zoned::flush`] returns when all are done. A unit works through its queue in
//! order, and units know nothing of each other. So of the commands behind the last flush each
//! unit has done the first ones, any number of them; the next one it may have been in the
//! middle of; the rest did not happen.
//!
//! * A page it was programming is *torn*: it counts as programmed, and reading it says
//!   [`BlockError::TornPage`], since its error-correcting code does not fit.
//! * A block it was erasing is *half erased*: its pages cannot be read or programmed before
//!   it is erased again.
//!
//! A power cut of the machine that runs the emulator: nothing is promised, the image is not synced.
//!
//! Lock order: `state` is taken alone. Nobody sleeps under it.

mod behaviour;
mod device;
mod geometry;
mod image;
mod units;

pub use behaviour::{Behaviour, FlashCounts, Purpose};
pub use device::Zoned;
pub use geometry::{EraseBlock, Geometry, OOB_BYTES, PageAt};
pub use image::is_image;
