//! Any medium with a model of a slower one in front of it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::nvm::{Model, Timing};
use super::pace::Pace;
use crate::block_device::BlockDevice;
use crate::error::DeviceError;
use crate::isa::LINE_BYTES;

/// How slow a block device is, as data.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum BlockModel {
    /// As fast as what is behind it.
    #[default]
    None,
    /// NVM as a block device, for file systems that need one (HiNFS §5.1 does the same).
    /// Always waits in real time.
    Nvm(Model),
    /// Flash behind an FTL: requests overlap in latency and share the bandwidth.
    Flash {
        /// From a request to its answer, in nanoseconds.
        latency_ns: u64,
        /// Bandwidth of reads in bytes per second.
        read_bytes_per_s: u64,
        /// Bandwidth of writes in bytes per second.
        write_bytes_per_s: u64,
    },
    /// One head: what does not go on where the last request ended costs a seek, and one
    /// request is served after the other.
    Disk {
        /// Seek and half a turn, in nanoseconds.
        seek_ns: u64,
        /// Bandwidth in bytes per second.
        bytes_per_s: u64,
    },
}

impl BlockModel {
    /// Strata Table 1: 10 µs; 2.2 GB/s reads, 0.9 GB/s writes.
    pub const fn strata_ssd() -> BlockModel {
        BlockModel::Flash {
            latency_ns: 10_000,
            read_bytes_per_s: 2_200_000_000,
            write_bytes_per_s: 900_000_000,
        }
    }

    /// Strata Table 1: 10 ms; 0.1 GB/s.
    pub const fn strata_hdd() -> BlockModel {
        BlockModel::Disk {
            seek_ns: 10_000_000,
            bytes_per_s: 100_000_000,
        }
    }
}

/// What a device is busy with.
#[derive(Debug, Default)]
struct Queue {
    free_at_ns: u64,
    /// Where the last request ended.
    head: u64,
}

/// A medium slowed down to a model. Contents and durability are those of the medium.
#[derive(Debug)]
pub struct Timed<M> {
    medium: M,
    model: BlockModel,
    nvm: Option<Arc<Timing>>,
    pace: Pace,
    queue: Mutex<Queue>,
}

fn transfer_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s)) as u64
}

impl<M: BlockDevice> Timed<M> {
    /// Puts `model` in front of `medium`; waiting is `pace`'s.
    ///
    /// # Panics
    /// If a bandwidth is 0, or as [`Timing::new`].
    pub fn new(medium: M, model: BlockModel, pace: Pace) -> Self {
        let nvm = match model {
            BlockModel::Nvm(nvm) => Some(Timing::new(nvm)),
            BlockModel::Flash {
                read_bytes_per_s,
                write_bytes_per_s,
                ..
            } => {
                assert!(read_bytes_per_s > 0 && write_bytes_per_s > 0);
                None
            }
            BlockModel::Disk { bytes_per_s, .. } => {
                assert!(bytes_per_s > 0);
                None
            }
            BlockModel::None => None,
        };
        Timed {
            medium,
            model,
            nvm,
            pace,
            queue: Mutex::default(),
        }
    }

    /// What is behind the model.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// The clock of the model.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Waits for as long as a request would take.
    fn charge(&self, offset: u64, bytes: u64, write: bool) {
        let until_ns = match self.model {
            BlockModel::None => return,
            BlockModel::Nvm(_) => {
                let nvm = self.nvm.iter();
                nvm.for_each(|timing| match write {
                    true => timing.write((bytes as usize).div_ceil(LINE_BYTES), bytes as usize),
                    false => timing.read(bytes as usize),
                });
                return;
            }
            BlockModel::Flash {
                latency_ns,
                read_bytes_per_s,
                write_bytes_per_s,
            } => {
                let rate = if write {
                    write_bytes_per_s
                } else {
                    read_bytes_per_s
                };
                let mut queue = self.queue.lock();
                let start_ns = queue.free_at_ns.max(self.pace.now_ns());
                queue.free_at_ns = start_ns + transfer_ns(bytes, rate);
                queue.free_at_ns + latency_ns
            }
            BlockModel::Disk {
                seek_ns,
                bytes_per_s,
            } => {
                let mut queue = self.queue.lock();
                let start_ns = queue.free_at_ns.max(self.pace.now_ns());
                let seek_ns = if queue.head == offset { 0 } else { seek_ns };
                queue.head = offset + bytes;
                queue.free_at_ns = start_ns + seek_ns + transfer_ns(bytes, bytes_per_s);
                queue.free_at_ns
            }
        };
        self.pace.wait_until_ns(until_ns);
    }
}

impl<M: BlockDevice> BlockDevice for Timed<M> {
    fn bytes(&self) -> u64 {
        self.medium.bytes()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.charge(offset, into.len() as u64, false);
        self.medium.read(offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.charge(offset, from.len() as u64, true);
        self.medium.write(offset, from)
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.medium.discard(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.medium.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_device::FileDevice;

    fn timed(model: BlockModel) -> Timed<FileDevice> {
        let medium = FileDevice::memory(64 << 20).unwrap();
        Timed::new(medium, model, Pace::of_virtual_time())
    }

    #[test]
    fn a_disk_seeks_where_requests_do_not_adjoin() {
        let disk = timed(BlockModel::strata_hdd());
        disk.write(0, &[1; 1_000_000]).unwrap();
        assert_eq!(disk.pace().now_ns(), 10_000_000, "the head stands at 0");
        disk.write(1_000_000, &[1; 1_000_000]).unwrap();
        assert_eq!(disk.pace().now_ns(), 20_000_000);
        disk.read(0, &mut [0; 1_000]).unwrap();
        assert_eq!(disk.pace().now_ns(), 30_010_000);
    }

    #[test]
    fn flash_has_latency_and_two_bandwidths() {
        let flash = timed(BlockModel::strata_ssd());
        flash.read(4_096, &mut [0; 2_200]).unwrap();
        assert_eq!(flash.pace().now_ns(), 11_000);
        flash.write(0, &[0; 900]).unwrap();
        assert_eq!(flash.pace().now_ns(), 22_000);
        flash.flush().unwrap();
        flash.discard(0, 4_096).unwrap();
        assert_eq!(flash.pace().now_ns(), 22_000);
    }

    #[test]
    fn nvm_as_a_block_device_is_charged_by_line() {
        let nvm = timed(BlockModel::Nvm(Model::hinfs()));
        nvm.write(0, &[1; 4_096]).unwrap();
        let mut found = [0; 4_096];
        nvm.read(0, &mut found).unwrap();
        assert_eq!(found, [1; 4_096]);
        assert_eq!(nvm.nvm.as_ref().unwrap().delayed_ns(), 64 * 200);
        assert_eq!(nvm.medium().bytes(), nvm.bytes());
    }

    #[test]
    fn no_model_no_time() {
        let plain = timed(BlockModel::None);
        plain.write(0, &[1; 4_096]).unwrap();
        assert_eq!(plain.pace().now_ns(), 0);
    }
}
