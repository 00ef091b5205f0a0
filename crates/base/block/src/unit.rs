//! The unit that a medium is erased or written in best, found where the kernel tells of it.
//!
//! A zone that begins or ends within such a unit makes the medium read, erase and write the rest of it again. A
//! partition may begin anywhere, and the units count from where the disk begins.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Unit of a medium that does not tell: what partitioning programs use.
pub const UNIT_DEFAULT: u64 = 1 << 20;
/// Largest unit that is believed; zones of SMR disks that can be written anywhere have 256 MiB.
const UNIT_MAX: u64 = 1 << 30;
/// Unit in which the kernel counts.
const SECTOR: u64 = 512;
/// A unit that says nothing: all I/O is in multiples of it anyway.
const PAGE: u64 = super::IO_BYTES as u64;

/// What is best written as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Bytes, a multiple of 4 KiB.
    pub bytes: u64,
    /// Who said so, in words.
    pub from: String,
    /// Bytes of the disk before the first one of the device.
    pub before: u64,
}

impl Unit {
    /// What somebody said.
    pub fn said(bytes: u64, by: &str) -> Unit {
        Unit {
            bytes,
            from: by.to_owned(),
            before: 0,
        }
    }

    /// That of the block device at a path, or of the one below the file system on which the file there is or is to be.
    pub fn of(path: &Path) -> Unit {
        Self::found(path, Path::new("/sys"))
    }

    fn found(path: &Path, sys: &Path) -> Unit {
        let device = |number: u64| {
            let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
            let dir = sys.join(format!("dev/block/{major}:{minor}"));
            dir.canonicalize().ok()
        };
        let there = std::fs::metadata(path);
        if let Ok(found) = &there
            && found.file_type().is_block_device()
        {
            let unknown = || Unit::said(UNIT_DEFAULT, "the default: the device is not in /sys");
            return device(found.rdev()).map_or_else(unknown, |dir| Disk::of(&dir).unit(true));
        }
        let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let there = there.or_else(|_| std::fs::metadata(parent.unwrap_or(Path::new("."))));
        let below = there.ok().and_then(|found| {
            device(found.dev()).or_else(|| device(source_of(found.dev(), &mounts())?))
        });
        let unknown = || Unit::said(UNIT_DEFAULT, "the default: its file system is on no device");
        below.map_or_else(unknown, |dir| Disk::of(&dir).unit(false))
    }

    /// The first byte of the device from `least` on at which a multiple of `bytes` of the disk begins, as far as whole blocks
    /// of 4 KiB can be there.
    pub fn first_multiple(&self, bytes: u64, least: u64) -> u64 {
        let before = self.before / PAGE * PAGE;
        (least + before).next_multiple_of(bytes) - before
    }
}

fn mounts() -> String {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

/// The device that a file system without a device number of its own is mounted from.
fn source_of(number: u64, mounts: &str) -> Option<u64> {
    let shown = format!(
        "{}:{}",
        rustix::fs::major(number),
        rustix::fs::minor(number)
    );
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some(&shown))?;
    let source = line.split_once(" - ")?.1.split(' ').nth(1)?;
    let found = std::fs::metadata(source).ok()?;
    found.file_type().is_block_device().then(|| found.rdev())
}

/// What the kernel says of a disk or of a partition of one.
struct Disk {
    name: String,
    /// Bytes before a partition.
    before: u64,
    /// Units that it tells of, in bytes, with where that stands.
    units: Vec<(u64, &'static str)>,
}

impl Disk {
    /// `dir`: the device's in sysfs, no symbolic link.
    fn of(dir: &Path) -> Disk {
        let number = |path: PathBuf| -> Option<u64> {
            std::fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        let is_partition = dir.join("partition").exists();
        let disk = match (is_partition, dir.parent()) {
            (true, Some(disk)) => disk,
            _ => dir,
        };
        let start = number(dir.join("start")).filter(|_| is_partition);
        let shift = number(disk.join("alignment_offset")).unwrap_or(0);
        let queue = |name: &str| number(disk.join("queue").join(name)).unwrap_or(0);
        let physical = queue("physical_block_size");
        let whole = |bytes: u64| bytes.is_multiple_of(physical.max(SECTOR));
        let discards = queue("discard_max_bytes") > 0;
        let counters = [
            (
                queue("chunk_sectors").saturating_mul(SECTOR),
                "chunk_sectors",
            ),
            (queue("optimal_io_size"), "optimal_io_size"),
            (
                queue("discard_granularity") * u64::from(discards),
                "discard_granularity",
            ),
            (physical, "physical_block_size"),
        ];
        let counters = counters
            .into_iter()
            .filter(|&(bytes, _)| bytes > PAGE && bytes <= UNIT_MAX)
            .filter(|&(bytes, _)| bytes.is_multiple_of(PAGE) && whole(bytes));
        Disk {
            name: disk
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            before: (start.unwrap_or(0) * SECTOR).saturating_sub(shift),
            units: counters.collect(),
        }
    }

    /// The least common multiple of its units, as far as that is no nonsense. `whole`: the device itself and no
    /// file on it, whose blocks lie anywhere.
    fn unit(&self, whole: bool) -> Unit {
        let (mut bytes, mut names) = (1, Vec::new());
        for &(unit, name) in &self.units {
            let both = lcm(bytes, unit);
            if both != bytes && both <= UNIT_MAX {
                bytes = both;
                names.push(name);
            }
        }
        let (bytes, from) = match names.is_empty() {
            true => (
                UNIT_DEFAULT,
                format!("the default: {} tells none", self.name),
            ),
            false => (bytes, format!("{} of {}", names.join(", "), self.name)),
        };
        Unit {
            bytes,
            from,
            before: if whole { self.before } else { 0 },
        }
    }
}

/// Least common multiple of two numbers that are not 0.
pub fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk as sysfs shows it.
    fn disk(values: &[(&str, u64)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, value) in values {
            let path = dir.path().join("sdx").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{value}\n")).unwrap();
        }
        dir
    }

    fn unit(dir: &tempfile::TempDir, name: &str) -> Unit {
        let dir = dir.path().join(name).canonicalize().unwrap();
        Disk::of(&dir).unit(true)
    }

    #[test]
    fn what_a_disk_tells_is_its_unit() {
        for (values, bytes, from) in [
            (
                &[("optimal_io_size", 3 << 19), ("chunk_sectors", 1024)][..],
                3 << 19,
                "chunk_sectors, optimal_io_size of sdx",
            ),
            (
                &[
                    ("discard_granularity", 2 << 20),
                    ("discard_max_bytes", 1 << 30),
                ],
                2 << 20,
                "discard_granularity of sdx",
            ),
            // It takes no discards.
            (
                &[("discard_granularity", 2 << 20)],
                1 << 20,
                "the default: sdx tells none",
            ),
            // A page says nothing.
            (
                &[("physical_block_size", 4096)],
                1 << 20,
                "the default: sdx tells none",
            ),
            (
                &[("physical_block_size", 16384)],
                16384,
                "physical_block_size of sdx",
            ),
            // What USB bridges tell is no multiple of a block.
            (
                &[("optimal_io_size", 33_553_920)],
                1 << 20,
                "the default: sdx tells none",
            ),
            (
                &[("optimal_io_size", 1 << 40)],
                1 << 20,
                "the default: sdx tells none",
            ),
        ] {
            let values: Vec<_> = values
                .iter()
                .map(|(name, value)| (format!("queue/{name}"), *value))
                .collect();
            let values: Vec<_> = values.iter().map(|(n, v)| (n.as_str(), *v)).collect();
            let found = unit(&disk(&values), "sdx");
            assert_eq!((found.bytes, &*found.from), (bytes, from), "{values:?}");
        }
    }

    #[test]
    fn units_of_a_partition_count_from_the_disk() {
        let dir = disk(&[
            ("queue/optimal_io_size", 1 << 20),
            ("sdx1/partition", 1),
            ("sdx1/start", 2048 + 8),
            ("sdx2/partition", 2),
            ("sdx2/start", 63),
        ]);
        let first = unit(&dir, "sdx/sdx1");
        assert_eq!((first.bytes, first.before), (1 << 20, (1 << 20) + 4096));
        let at = first.first_multiple(4 << 20, 1 << 20);
        assert_eq!((at + first.before) % (4 << 20), 0);
        assert_eq!(at, (4 << 20) - (1 << 20) - 4096);
        let second = unit(&dir, "sdx/sdx2");
        assert!(
            !second.before.is_multiple_of(PAGE),
            "no block begins where a unit does"
        );
        assert!(second.first_multiple(4 << 20, 1 << 20).is_multiple_of(4096));
        assert_eq!(unit(&dir, "sdx").before, 0);
    }

    #[test]
    fn a_file_is_found_where_its_file_system_is() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let unit = Unit::of(&dir.path().join("not-yet.img"));
        assert_eq!(
            unit,
            Unit::said(UNIT_DEFAULT, "the default: its file system is on no device")
        );
        let mounts = "22 27 0:21 / /proc rw - proc proc rw\n\
                      30 27 0:40 / /b rw,relatime shared:1 - btrfs /dev/null rw\n";
        let number = rustix::fs::makedev(0, 40);
        // The source is there, and no block device.
        assert_eq!(source_of(number, mounts), None);
        assert_eq!(source_of(rustix::fs::makedev(0, 41), mounts), None);
    }
}
