//! A volume without NVM: its memory tier in shared memory, and the area of an SSD from which that is made again.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`area`] | the area of a volume, on its device |
//! | [`memory_tier`] | the directory in shared memory: found, or made from the area; removed |
//! | [`pages`] | pages of a memory tier, for checkpoints that are made of all of it |
//! | [`copy`] | the memory tier of a volume that is not mounted, for a check and a repair |
//! | [`area_place`] | where the area of a volume that has NVM can be |
//! | `resize` | an SSD that gets more zones, or fewer |
//! | [`to_nvm`] | a volume without NVM that gets NVM |
//! | [`from_nvm`] | a volume with NVM that goes on without |
//!
//! The memory tier is what an NVM directory is for a volume with NVM. After a power cut it is gone, after its daemon was killed
//! it is there, and an old one may be there when the device was used on another machine meanwhile. So the label of the
//! device tells how often the volume was started, as those of segments do ([`crate::labels`]; shared memory has extended attributes
//! from Linux 6.6 on, and without them none is believed): what is older than the device is made again.
//!
//! A mount, in this order: [`restore`], [`device_assembly::start`](crate::device_assembly::start), [`open_area`] on the device that it gives, replay of
//! the batches if the memory tier was made again, recovery, a checkpoint, [`finish_restore`]. After the last checkpoint of an unmount:
//! [`remove_memory`].

pub mod area;
pub mod area_place;
pub mod copy;
pub mod from_nvm;
pub mod memory_tier;
pub mod pages;
mod resize;
pub mod to_nvm;

pub use area::{layout, open_area};
pub use copy::{Found, StagedCopy, examine};
pub use memory_tier::{Restored, finish_restore, remove_memory, restore, restore_from};

#[cfg(test)]
mod switch_tests;
#[cfg(test)]
mod tests;
