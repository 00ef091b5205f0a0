//! Power cuts: what they could leave, whether it is recovered, and to what.
//!
//! | Folder or file | What it does |
//! | --- | --- |
//! | [`volume`] | the volume that every workload begins with, on NVM and lower tiers; places that hold it; nothing is stored that is not recorded (`shadow`); threads held up at random (`unrest`) |
//! | [`recording`] | runs a workload and notes every store, flush and fence: clients in turns, at the same time on one tree (`clients`, `orders`), over power cuts and unmounts (`legs`); the mount, whose requests are sent again (`mount`); logs that have gone around (`turned`) |
//! | [`images`] | the images that a cut could leave |
//! | [`recovery`] | recovers one image and looks at everything: tree, `fsck`, databases, bits that flip (`rot`); cuts while a volume is made (`mkfs`) |
//! | [`explore`] | all cuts of a workload; cuts in recovery, in long runs, under a mount that survives its daemon |
//! | [`workloads`] | which workloads there are (`sequences`), many of them, in threads; failures made small; all small workloads in parts (`whole`) |
//!
//! A state is an image that is unlike all others: media are compared unit by unit of 8 bytes.
#![forbid(unsafe_code)]

pub mod explore;
pub mod images;
pub mod recording;
pub mod recovery;
pub mod staged;
pub mod volume;
pub mod workloads;
pub mod wrong;

#[cfg(test)]
mod tests;
