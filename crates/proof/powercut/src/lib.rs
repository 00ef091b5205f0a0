//! Power cuts: what they could leave, whether it is recovered, and to what.
//!
//! | Module | What it does |
//! | --- | --- |
//! | [`base`] | the volume that every workload begins with |
//! | [`below`] | lower tiers of a place, and what a cut leaves of them |
//! | [`record`] | runs a workload and notes every store, flush and fence |
//! | [`mount`], [`once`] | a mount that survives its daemon: requests sent again |
//! | [`clients`], [`orders`] | clients at the same time on one tree: every order that is right |
//! | [`unrest`] | threads held up at random |
//! | [`shadow`] | nothing was stored that was not recorded |
//! | [`turned`] | logs that have gone around |
//! | [`images`] | the images that a cut could leave |
//! | [`check`] | recovers one image and looks at everything |
//! | [`databases`] | recovered databases, opened by their program |
//! | [`rot`] | bits that flip in a recovered volume |
//! | [`mkfs`] | cuts while a volume is made |
//! | [`explore`], [`again`] | all cuts of a workload; cuts in recovery |
//! | [`runs`], [`legs`] | long runs that go on after faults |
//! | [`sequences`] | which workloads there are |
//! | [`campaign`], [`minimise`] | many of them, in threads; failures made small |
//! | [`whole`] | all small workloads, in parts |
//!
//! A state is an image that is unlike all others: media are compared unit by unit of 8 bytes.
#![forbid(unsafe_code)]

pub mod again;
pub mod base;
pub mod below;
pub mod campaign;
pub mod check;
pub mod clients;
pub mod databases;
pub mod explore;
pub mod images;
pub mod legs;
pub mod minimise;
pub mod mkfs;
pub mod mount;
pub mod once;
pub mod orders;
pub mod record;
pub mod rot;
pub mod runs;
pub mod sequences;
pub mod shadow;
pub mod turned;
pub mod unrest;
pub mod whole;

#[cfg(test)]
mod tests;
