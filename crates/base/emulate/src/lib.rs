//! Shale: media that few machines have, in files, with what a power cut takes from them.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`zoned`] | an open-channel SSD: raw flash in units, erase blocks and pages |
//! | [`ftl`] | a page-mapped translation layer, which makes a block device of it |
//! | [`FlashBlocks`] | raw flash as a device of a tier |
//! | [`host_managed`] | host-managed zones in a file |
//! | [`UnitTimes`] | the time that raw flash takes |
#![forbid(unsafe_code)]

mod flash;
pub mod ftl;
pub mod host_managed;
mod times;
pub mod zoned;

pub use flash::{FlashBlocks, FlashZones};
pub use ftl::Ftl;
pub use times::UnitTimes;
pub use zoned::Zoned;
