//! Shale: which media make a volume.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`volume_file`] | VOLUME.toml: the media of a volume, by name |
//! | [`nvm_dir`] | the NVM directory: segment files, the lock |
//! | [`buffer_dir`] | the directory in memory of the logs of buffered clients |
//! | [`staged`] | a volume without NVM: its memory tier, and the area from which it is made again |
//! | [`labels`] | which segment is which, and how often the volume was started |
//! | [`devices`] | devices below NVM: labels, zones, what is written on a new one |
//! | [`device_kind`] | kinds of devices below NVM |
//! | [`device_probe`] | what kind of device a path names, and opening it |
//! | [`device_assembly`] | all devices of a volume, found and compared with its device table |
//! | [`growth`] | an NVM directory that gets more segments, between mounts |
//! | [`nvm_move`] | an NVM directory that goes to another file system, between mounts |
//! | `nvm_target` | a directory that NVM is copied to: prepared, noted, cleared |
//! | [`mkfs`] | making a volume |
//! | [`host_space`] | what a volume takes of the file systems that it lies on |
//! | [`scan`] | volumes found by what is on their media, and their volume files made again |
//! | [`mod@random`] | random bytes: identities, salts, hash keys |
#![forbid(unsafe_code)]

pub mod buffer_dir;
pub mod device_assembly;
pub mod device_kind;
pub mod device_probe;
pub mod devices;
pub mod error;
pub mod growth;
pub mod host_space;
pub mod labels;
pub mod mkfs;
pub mod nvm_dir;
pub mod nvm_move;
mod nvm_target;
pub mod random;
pub mod scan;
pub mod staged;
#[cfg(test)]
mod test_device;
pub mod volume_file;

pub use device_kind::DeviceKind;
pub use devices::{Divided, LowerTiers};
pub use error::{PoolError, Result};
pub use mkfs::{Made, MakeOptions, StagedSizes, make_volume};
pub use nvm_dir::{NvmLock, open_nvm};
pub use volume_file::VolumeFile;
