//! The kernel's calls for zoned block devices (`linux/blkzoned.h`), and what `/sys` says of one.

use super::report::{HEADER_BYTES, ReportHeader};
use super::{HostManaged, SECTOR};
use crate::BlockDevice;
use crate::error::BlockError;
use crate::{BlockFile, IO_BYTES};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use zerocopy::FromBytes;

/// `_IOWR(0x12, 130, struct blk_zone_report)`.
const BLKREPORTZONE: u32 = 0xc010_1282;
/// `_IOW(0x12, 131, struct blk_zone_range)`.
const BLKRESETZONE: u32 = 0x4010_1283;
/// `_IOR(0x12, 132, __u32)`.
const BLKGETZONESZ: u32 = 0x8004_1284;
/// `_IOW(0x12, 136, struct blk_zone_range)`.
const BLKFINISHZONE: u32 = 0x4010_1288;

fn answer(done: libc::c_int) -> Result<(), Errno> {
    match done {
        0 => Ok(()),
        _ => {
            let e = std::io::Error::last_os_error();
            Err(Errno::from_raw_os_error(
                e.raw_os_error().unwrap_or(libc::EIO),
            ))
        }
    }
}

/// Sectors of a zone. Kernels without zones and devices that have none say 0, or that they do
/// not know the question.
fn zone_sectors(fd: BorrowedFd<'_>) -> Result<u32, Errno> {
    let mut sectors = 0u32;
    let request = libc::c_ulong::from(BLKGETZONESZ);
    // SAFETY: BLKGETZONESZ writes one u32 to the pointer, which is valid for the call.
    match answer(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut sectors) }) {
        Ok(()) => Ok(sectors),
        Err(Errno::NOTTY | Errno::INVAL) => Ok(0),
        Err(e) => Err(e),
    }
}

/// Resets or finishes (`request`) the zones of a range.
fn manage(fd: BorrowedFd<'_>, request: u32, at: u64, bytes: u64) -> Result<(), Errno> {
    let range = [at / SECTOR, bytes / SECTOR];
    let request = libc::c_ulong::from(request);
    // SAFETY: BLKRESETZONE and BLKFINISHZONE read a struct blk_zone_range, two u64, from the pointer, which
    // is valid for the call.
    answer(unsafe { libc::ioctl(fd.as_raw_fd(), request, range.as_ptr()) })
}

/// Fills a report; `into` is a multiple of 8 bytes long and says how many zones fit into it.
fn report(fd: BorrowedFd<'_>, into: &mut [u64]) -> Result<(), Errno> {
    let request = libc::c_ulong::from(BLKREPORTZONE);
    // SAFETY: BLKREPORTZONE reads a struct blk_zone_report from the pointer, which is aligned for it, and
    // writes that and at most nr_zones struct blk_zone behind it; the caller has checked that they fit.
    answer(unsafe { libc::ioctl(fd.as_raw_fd(), request, into.as_mut_ptr()) })
}

/// What the kernel says of a device's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Queue {
    /// `zoned`; `None`: the kernel has no such word.
    host_managed: Option<bool>,
    /// `max_active_zones`; 0: no limit.
    max_active: u64,
    /// `zone_write_granularity` in bytes; 0: not said.
    granularity: u64,
}

impl Queue {
    /// Reads the directory `queue` of a device.
    fn read(dir: &Path) -> Queue {
        let word = |name: &str| {
            let text = std::fs::read_to_string(dir.join(name)).ok()?;
            Some(text.trim().to_owned())
        };
        let number = |name| word(name).and_then(|text| text.parse().ok()).unwrap_or(0);
        Queue {
            host_managed: word("zoned").map(|kind| kind == "host-managed"),
            max_active: number("max_active_zones"),
            granularity: number("zone_write_granularity"),
        }
    }

    /// That of an open device; of a partition, that of the device it is on.
    fn of(fd: BorrowedFd<'_>) -> Result<Queue, Errno> {
        let device = rustix::fs::fstat(fd)?.st_rdev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let dir = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let own = dir.join("queue");
        Ok(Queue::read(&match own.exists() {
            true => own,
            false => dir.join("../queue"),
        }))
    }

    /// Bytes of a zone, if zones of `sectors` sectors are ones that only the host may manage: those of
    /// "host-aware" devices can be written anywhere.
    fn zone_bytes(&self, sectors: u32) -> Option<u64> {
        let managed = self.host_managed.unwrap_or(true) && sectors > 0;
        managed.then(|| u64::from(sectors) * SECTOR)
    }

    /// Why the device cannot be written in blocks of ours.
    fn unfit(&self) -> Option<String> {
        let fits = self.granularity == 0 || (IO_BYTES as u64).is_multiple_of(self.granularity);
        (!fits).then(|| {
            let unit = self.granularity;
            format!("it is written in units of {unit} bytes, expected {IO_BYTES} or less")
        })
    }
}

/// A host-managed device of the kernel's.
pub struct KernelZones {
    file: BlockFile,
    path: PathBuf,
    zone_bytes: u64,
    max_active: u64,
}

impl KernelZones {
    /// Bytes of the zones of the device at `path`; `None`: it can be written anywhere.
    ///
    /// # Errors
    /// It cannot be opened to look.
    pub fn zone_bytes_at(path: &Path) -> Result<Option<u64>, BlockError> {
        let file = std::fs::File::open(path);
        let file = file.map_err(|e| BlockError::os(path, "open it", e))?;
        let failed = |e| BlockError::os(path, "ask for the size of its zones", e);
        let sectors = zone_sectors(file.as_fd()).map_err(failed)?;
        let queue = Queue::of(file.as_fd()).map_err(failed)?;
        Ok(queue.zone_bytes(sectors))
    }

    /// Opens and locks a device.
    ///
    /// # Errors
    /// It is none; it is in use; its units of writing are larger than 4 KiB.
    pub fn open(path: &Path) -> Result<KernelZones, BlockError> {
        let refuse = |why: String| BlockError::Unfit {
            path: path.to_owned(),
            why,
        };
        let file = BlockFile::open_in_order(path)?;
        let failed = |e| BlockError::os(path, "ask for the size of its zones", e);
        let sectors = zone_sectors(file.fd()).map_err(failed)?;
        let queue = Queue::of(file.fd()).map_err(failed)?;
        if let Some(why) = queue.unfit() {
            return Err(refuse(why));
        }
        let Some(zone_bytes) = queue.zone_bytes(sectors) else {
            return Err(refuse(
                "it is no host-managed device: it can be written anywhere".to_owned(),
            ));
        };
        Ok(KernelZones {
            file,
            path: path.to_owned(),
            zone_bytes,
            max_active: queue.max_active,
        })
    }
}

impl BlockDevice for KernelZones {
    fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        self.file.read(at, into)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        self.file.write(at, from)
    }

    fn discard(&self, at: u64, bytes: u64) -> Result<(), BlockError> {
        let done = manage(self.file.fd(), BLKRESETZONE, at, bytes);
        done.map_err(|e| BlockError::os(&self.path, format!("reset the zone at byte {at}"), e))
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.file.flush()
    }
}

impl HostManaged for KernelZones {
    fn path(&self) -> &Path {
        &self.path
    }

    fn zone_bytes(&self) -> u64 {
        self.zone_bytes
    }

    fn max_active(&self) -> u64 {
        self.max_active
    }

    fn report(&self, into: &mut [u8]) -> Result<(), BlockError> {
        let capacity = (into.len() - HEADER_BYTES) / super::report::ZONE_BYTES;
        let header = ReportHeader::read_from_prefix(into).map(|(header, _)| header);
        let asked = header.map_or(usize::MAX, |header| header.nr_zones as usize);
        assert!(
            asked <= capacity,
            "{asked} zones in a buffer for {capacity}"
        );
        let mut words: Vec<u64> = into
            .as_chunks()
            .0
            .iter()
            .map(|word| u64::from_ne_bytes(*word))
            .collect();
        let done = report(self.file.fd(), &mut words);
        done.map_err(|e| BlockError::os(&self.path, "have its zones reported", e))?;
        for (bytes, word) in into.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_ne_bytes();
        }
        Ok(())
    }

    fn finish(&self, at: u64) -> Result<(), BlockError> {
        let done = manage(self.file.fd(), BLKFINISHZONE, at, self.zone_bytes);
        done.map_err(|e| BlockError::os(&self.path, format!("finish the zone at byte {at}"), e))
    }

    fn access(&self) -> &'static str {
        "direct, in order"
    }

    fn trouble(&self) -> Option<String> {
        crate::TierDevice::trouble(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_numbered_as_the_kernel_has_them() {
        let number =
            |way: u32, bytes: usize, n: u32| way << 30 | (bytes as u32) << 16 | 0x12 << 8 | n;
        let (read, write, range) = (2, 1, 16);
        assert_eq!(BLKREPORTZONE, number(read | write, HEADER_BYTES, 130));
        assert_eq!(BLKRESETZONE, number(write, range, 131));
        assert_eq!(BLKGETZONESZ, number(read, 4, 132));
        assert_eq!(BLKFINISHZONE, number(write, range, 136));
    }

    #[test]
    fn a_queue_is_what_its_files_say() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let queue = || Queue::read(dir.path());
        // A kernel that says nothing of zones: the size of the zones decides.
        assert_eq!(queue().zone_bytes(0), None);
        assert_eq!(queue().zone_bytes(524_288), Some(256 << 20));
        assert!(queue().unfit().is_none());
        for (word, expected) in [
            ("none", None),
            ("host-aware", None),
            ("host-managed", Some(4096)),
        ] {
            write("zoned", &format!("{word}\n"));
            assert_eq!(queue().zone_bytes(8), expected, "{word}");
        }
        write("max_active_zones", "14\n");
        assert_eq!(queue().max_active, 14);
        for (unit, fits) in [("512", true), ("4096", true), ("16384", false)] {
            write("zone_write_granularity", unit);
            assert_eq!(queue().unfit().is_none(), fits, "{unit}");
        }
    }

    #[test]
    fn a_file_has_no_zones() {
        let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        assert_eq!(zone_sectors(file.as_file().as_fd()), Ok(0));
        let said = KernelZones::open(file.path()).err().unwrap().to_string();
        assert!(said.contains("written anywhere"), "{said}");
        // What the kernel says of calls about zones to a file.
        let mut words = vec![0; (HEADER_BYTES + 64) / 8];
        words[1] = 1;
        let fd = file.as_file().as_fd();
        assert_eq!(report(fd, &mut words), Err(Errno::NOTTY));
        assert_eq!(manage(fd, BLKRESETZONE, 0, 1 << 20), Err(Errno::NOTTY));
    }
}
