//! Shale: block devices: image files and block devices below NVM.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`BlockDevice`], [`FileDevice`] | what can be read, written, discarded and flushed by byte range; files |
//! | [`TierDevice`], [`BlockFile`] | a device of whole blocks; a file or a block device as one |
//! | [`host_managed`], [`ManagedBlocks`] | host-managed zoned block devices, the kernel's; as a device of a tier |
//! | [`zones`], [`labels`] | what media that are written in order have in common: zones behind an area for labels |
//! | [`Timed`] | a device with a model of a slower one in front of it |
//! | [`MemoryBlocks`], [`AbsentBlocks`] | a device of tests; one that is not there |
//! | [`ReadOnlyBlocks`] | one that is looked at, without its lock |
//!
//! All I/O is in whole blocks of 4 KiB. What was written is durable after [`BlockDevice::flush`];
//! before that any part of it may survive a power cut, sector by sector. Nothing is cached
//! here: direct I/O through io_uring, several requests at once; where the kernel refuses io_uring,
//! `pread` and `pwrite`; where the file system refuses direct I/O, its page cache.
//!
//! A device is locked (`flock`) while it is open, but for [`ReadOnlyBlocks`]. Requests in flight keep the file open, and so
//! the lock, after a killed process has gone: who opens the device next finds none of them.

mod block_device;
mod buffer;
mod error;
mod file;
pub mod host_managed;
pub mod labels;
mod managed;
mod memory;
mod missing_device;
mod read_only;
mod reader;
mod ring;
mod timed;
mod unit;
pub mod zones;

pub use block_device::{BlockDevice, FileDevice};
pub use buffer::Buffer;
pub use error::BlockError;
pub use file::BlockFile;
pub(crate) use file::{in_use, lock, trouble_of};
pub use managed::{ManagedBlocks, ManagedShape};
pub use memory::{Ask, DISCARDED, MemoryBlocks, Step};
pub use missing_device::AbsentBlocks;
pub use read_only::ReadOnlyBlocks;
pub use reader::BlockReader;
pub use timed::{BlockModel, Timed};
pub use unit::{UNIT_DEFAULT, Unit, lcm};

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Unit of all I/O, and its alignment.
pub const IO_BYTES: usize = 4096;

/// A device of whole blocks: ranges are multiples of [`IO_BYTES`], else it panics. Several threads
/// may use it.
pub trait TierDevice: BlockDevice {
    /// What was done so far.
    fn counts(&self) -> BlockCounts;

    /// How it is accessed, in words.
    fn access(&self) -> &'static str;

    /// What it is, for messages.
    fn name(&self) -> String;

    /// What is wrong with it as a whole, if anything is: it was cut, or its name leads nowhere.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// The model of a slower medium in front of it, if there is one.
    fn model(&self) -> Option<ModelCounts> {
        None
    }

    /// Bytes that the medium writes at once. A flush ends the unit that is begun: the zone goes on
    /// at the next one, and what lies between holds nothing.
    fn write_unit(&self) -> u64 {
        IO_BYTES as u64
    }

    /// What its medium is best written or erased in, where it is known.
    fn unit(&self) -> Option<Unit> {
        None
    }

    /// How far the zone of `bytes` bytes at `at` is written as the medium has it, in bytes: it can
    /// be written from there on and nowhere else, before a discard of the whole zone. A power cut may
    /// leave more than was flushed. `None`: it can be written anywhere.
    fn zone_written(&self, at: u64, bytes: u64) -> Option<u64> {
        let _ = (at, bytes);
        None
    }

    /// Whether the zone of `bytes` bytes at `at` has worn out: it is never written or erased again, and may
    /// still be read. A write or a flush that finds that out fails with an error which says so
    /// ([`BlockError::is_worn_out`]), and all else goes on.
    fn zone_worn(&self, at: u64, bytes: u64) -> bool {
        let _ = (at, bytes);
        false
    }

    /// A descriptor by which another process can read the device ([`BlockReader`]), byte for byte as this value does, and
    /// can do nothing else to it. `None`: it is read through this value alone.
    ///
    /// # Errors
    /// It cannot be opened once more.
    fn reader(&self) -> Option<Result<OwnedFd, BlockError>> {
        None
    }

    /// What the flash has done that it is, where that is emulated.
    fn flash(&self) -> Option<FlashWork> {
        None
    }
}

/// What emulated flash has done since it was opened, in its own units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashWork {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages programmed.
    pub pages_programmed: u64,
    /// Pages read.
    pub pages_read: u64,
    /// Erase blocks erased.
    pub blocks_erased: u64,
    /// Attempts to program what was not the next page of its erase block; all refused.
    pub out_of_order: u64,
    /// Reads of torn pages and of erase blocks that are half erased; all refused.
    pub unreadable: u64,
    /// Time of its model, in nanoseconds.
    pub device_ns: u64,
}

/// A model of a slower medium, and what it has done since the device was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelCounts {
    /// Its name, as [`BlockModel::name`].
    pub name: &'static str,
    /// Requests that it was asked about.
    pub requests: u64,
    /// Nanoseconds that they waited for it, over all threads.
    pub delayed_ns: u64,
    /// Requests that did not go on where the last one ended, of a disk.
    pub seeks: u64,
}

/// What was done to a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes discarded.
    pub discarded_bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// Counters behind [`BlockCounts`].
#[derive(Default)]
pub(crate) struct Counters {
    read: AtomicU64,
    written: AtomicU64,
    flushes: AtomicU64,
    discarded: AtomicU64,
    errors: AtomicU64,
}

/// Which counter.
#[derive(Clone, Copy)]
pub(crate) enum Did {
    Read(u64),
    Wrote(u64),
    Flushed,
    Discarded(u64),
}

impl Counters {
    /// Counts what was done, or that it failed.
    pub(crate) fn note<T>(&self, did: Did, result: Result<T, BlockError>) -> Result<T, BlockError> {
        let (counter, by) = match (&result, did) {
            (Err(_), _) => (&self.errors, 1),
            (_, Did::Read(n)) => (&self.read, n),
            (_, Did::Wrote(n)) => (&self.written, n),
            (_, Did::Flushed) => (&self.flushes, 1),
            (_, Did::Discarded(n)) => (&self.discarded, n),
        };
        counter.fetch_add(by, Ordering::Relaxed);
        result
    }

    pub(crate) fn snapshot(&self) -> BlockCounts {
        let of = |c: &AtomicU64| c.load(Ordering::Relaxed);
        BlockCounts {
            read_bytes: of(&self.read),
            written_bytes: of(&self.written),
            flushes: of(&self.flushes),
            discarded_bytes: of(&self.discarded),
            errors: of(&self.errors),
        }
    }
}

/// A range of whole blocks within a device; anything else is the caller's mistake.
pub(crate) fn check_range(at: u64, bytes: u64, of: u64) {
    let whole = at.is_multiple_of(IO_BYTES as u64) && bytes.is_multiple_of(IO_BYTES as u64);
    assert!(whole, "{bytes} bytes at {at} are not whole blocks");
    assert!(
        at.checked_add(bytes).is_some_and(|end| end <= of),
        "{bytes} bytes at {at} of a device of {of}"
    );
}

#[cfg(test)]
mod tests;
