//! Any medium with a model of a slower one in front of it. Each constant names the paper it is from.
//!
//! | Model | Of what | Source |
//! | --- | --- | --- |
//! | [`BlockModel::strata_ssd`] | an SSD behind its own FTL | Strata Table 1 |
//! | [`BlockModel::strata_hdd`] | a disk: seek and transfer | Strata Table 1 |
//!
//! What waits is said by a [`Pace`]: nothing (a virtual clock is moved), or the thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::BlockDevice;
use crate::error::BlockError;
use crate::{BlockCounts, ModelCounts, TierDevice, Unit};
use shale_nvm::{LINE_BYTES, Model, Pace, Timing};

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

    /// The names that [`Self::named`] knows.
    pub const NAMES: [&str; 2] = ["flash", "disk"];

    /// A model by its name: `flash` is [`Self::strata_ssd`], `disk` [`Self::strata_hdd`].
    pub fn named(name: &str) -> Option<BlockModel> {
        let all = [Self::strata_ssd(), Self::strata_hdd()];
        all.into_iter().find(|model| model.name() == name)
    }

    /// What it is a model of, in a word.
    pub fn name(&self) -> &'static str {
        match self {
            BlockModel::None => "none",
            BlockModel::Nvm(_) => "nvm",
            BlockModel::Flash { .. } => Self::NAMES[0],
            BlockModel::Disk { .. } => Self::NAMES[1],
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

/// A medium slowed down to a model. Contents and durability are those of the medium, and a request
/// takes as long as the model says or as the medium does, whichever is longer. Discards and flushes
/// take no time of the model.
#[derive(Debug)]
pub struct Timed<M> {
    medium: M,
    model: BlockModel,
    nvm: Option<Arc<Timing>>,
    pace: Pace,
    queue: Mutex<Queue>,
    requests: AtomicU64,
    delayed_ns: AtomicU64,
    seeks: AtomicU64,
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
            requests: AtomicU64::new(0),
            delayed_ns: AtomicU64::new(0),
            seeks: AtomicU64::new(0),
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

    /// Gives a request its place in the queue: when the model has done it.
    fn end_ns(&self, offset: u64, bytes: u64, write: bool) -> u64 {
        let mut queue = self.queue.lock();
        let start_ns = queue.free_at_ns.max(self.pace.now_ns());
        match self.model {
            BlockModel::None | BlockModel::Nvm(_) => 0,
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
                queue.free_at_ns = start_ns + transfer_ns(bytes, rate);
                queue.free_at_ns + latency_ns
            }
            BlockModel::Disk {
                seek_ns,
                bytes_per_s,
            } => {
                let goes_on = queue.head == offset;
                self.seeks.fetch_add(u64::from(!goes_on), Ordering::Relaxed);
                let seek_ns = if goes_on { 0 } else { seek_ns };
                queue.head = offset + bytes;
                queue.free_at_ns = start_ns + seek_ns + transfer_ns(bytes, bytes_per_s);
                queue.free_at_ns
            }
        }
    }

    /// Has the medium do a request, and returns when the model would have done it too.
    fn request<R>(&self, offset: u64, bytes: u64, write: bool, medium: impl FnOnce() -> R) -> R {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(nvm) = &self.nvm {
            match write {
                true => nvm.write((bytes as usize).div_ceil(LINE_BYTES), bytes as usize),
                false => nvm.read(bytes as usize),
            }
            return medium();
        }
        let end_ns = self.end_ns(offset, bytes, write);
        let done = medium();
        let left_ns = end_ns.saturating_sub(self.pace.now_ns());
        if left_ns > 0 {
            self.delayed_ns.fetch_add(left_ns, Ordering::Relaxed);
            self.pace.wait_until_ns(end_ns);
        }
        done
    }

    /// Nanoseconds that requests waited for the model, over all threads.
    pub fn delayed_ns(&self) -> u64 {
        let nvm = self.nvm.as_ref().map_or(0, |nvm| nvm.delayed_ns());
        self.delayed_ns.load(Ordering::Relaxed) + nvm
    }
}

impl<M: BlockDevice> BlockDevice for Timed<M> {
    fn bytes(&self) -> u64 {
        self.medium.bytes()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        let bytes = into.len() as u64;
        self.request(offset, bytes, false, || self.medium.read(offset, into))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        let bytes = from.len() as u64;
        self.request(offset, bytes, true, || self.medium.write(offset, from))
    }

    fn write_durable(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        let bytes = from.len() as u64;
        self.request(offset, bytes, true, || {
            self.medium.write_durable(offset, from)
        })
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        self.medium.discard(offset, bytes)
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.medium.flush()
    }
}

impl<M: TierDevice> TierDevice for Timed<M> {
    fn counts(&self) -> BlockCounts {
        self.medium.counts()
    }

    fn access(&self) -> &'static str {
        self.medium.access()
    }

    fn name(&self) -> String {
        self.medium.name()
    }

    fn trouble(&self) -> Option<String> {
        self.medium.trouble()
    }

    fn unit(&self) -> Option<Unit> {
        self.medium.unit()
    }

    fn model(&self) -> Option<ModelCounts> {
        Some(ModelCounts {
            name: self.model.name(),
            requests: self.requests.load(Ordering::Relaxed),
            delayed_ns: self.delayed_ns(),
            seeks: self.seeks.load(Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileDevice;

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
        assert_eq!(nvm.delayed_ns(), 64 * 200);
        assert_eq!(nvm.medium().bytes(), nvm.bytes());
    }

    #[test]
    fn a_durable_write_is_one_request() {
        let medium = crate::MemoryBlocks::new("m", 1 << 20);
        let flash = Timed::new(medium, BlockModel::strata_ssd(), Pace::of_virtual_time());
        flash.write_durable(4_096, &[3; 4_096]).unwrap();
        let counts = flash.counts();
        assert_eq!((counts.written_bytes, counts.flushes), (4_096, 1));
        assert_eq!(flash.model().unwrap().requests, 1);
    }

    #[test]
    fn no_model_no_time() {
        let plain = timed(BlockModel::None);
        plain.write(0, &[1; 4_096]).unwrap();
        assert_eq!(plain.pace().now_ns(), 0);
    }

    /// Runs `requests` at once and says how many nanoseconds passed.
    fn at_once(device: &Timed<FileDevice>, requests: &[u64]) -> u64 {
        let begun = device.pace().now_ns();
        std::thread::scope(|scope| {
            for offset in requests {
                scope.spawn(|| device.read(*offset, &mut [0; 4_096]).unwrap());
            }
        });
        device.pace().now_ns() - begun
    }

    #[test]
    fn latencies_of_flash_overlap_and_seeks_of_a_disk_do_not() {
        let real = |model| {
            let medium = FileDevice::memory(64 << 20).unwrap();
            let clock = Arc::new(shale_sys::clock::SystemClock::new());
            Timed::new(medium, model, Pace::of_real_time(clock))
        };
        let offsets = [1 << 20, 9 << 20, 5 << 20, 33 << 20];
        let flash = real(BlockModel::Flash {
            latency_ns: 200_000_000,
            read_bytes_per_s: 1_000_000_000,
            write_bytes_per_s: 1_000_000_000,
        });
        let took = at_once(&flash, &offsets);
        assert!((200_000_000..700_000_000).contains(&took), "{took}");
        let disk = real(BlockModel::Disk {
            seek_ns: 30_000_000,
            bytes_per_s: 1_000_000_000,
        });
        let took = at_once(&disk, &offsets);
        assert!(took >= 120_000_000, "{took}");
        assert!(disk.delayed_ns() > 100_000_000, "{}", disk.delayed_ns());
    }

    #[test]
    fn models_have_names_and_say_what_they_did() {
        for name in BlockModel::NAMES {
            assert_eq!(BlockModel::named(name).map(|m| m.name()), Some(name));
        }
        assert_eq!(BlockModel::named("tape"), None);
        let medium = crate::MemoryBlocks::new("m", 1 << 20);
        let disk = Timed::new(medium, BlockModel::strata_hdd(), Pace::of_virtual_time());
        disk.write(4_096, &[1; 8_192]).unwrap();
        let counted = disk.model().unwrap();
        assert_eq!((counted.name, counted.requests), ("disk", 1));
        assert_eq!(counted.delayed_ns, 10_000_000 + 81_920);
        assert_eq!(disk.counts().written_bytes, 8_192);
    }
}
