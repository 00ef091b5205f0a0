//! What a volume takes of the machine that it lies on: of the file systems below it, and of memory.

use crate::devices::{LOWER, NAMES};
use crate::error::{PoolError, Result};
use crate::nvm_dir::volume_files;
use crate::volume_file::DeviceFile;
use serde::Serialize;
use shale_format::TierId;
use shale_format::log::RING_AT;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a block as `stat` counts them.
const STAT_BLOCK: u64 = 512;
/// Logs of programs under `shale run` that are counted for a new volume: one, and the next one that is kept ready.
const CLIENT_LOGS: u64 = 2;
/// File systems by their numbers in `linux/magic.h`. Those of the first two are memory.
const KINDS: [(i64, &str); 10] = [
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x794c_7630, "overlay"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "zfs"),
    (0x6969, "nfs"),
    (0x6573_5546, "fuse"),
];
const MEMORY_KINDS: usize = 2;

/// The file system that something lies on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostSpace {
    /// Its device number.
    #[serde(skip)]
    device: u64,
    /// What it is called, as in "ext4".
    pub kind: String,
    /// Bytes that this user can still have of it.
    pub free_bytes: u64,
    /// It is memory: what it takes the machine has less.
    pub is_memory: bool,
}

impl HostSpace {
    /// Of the file system of a path that exists.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(path: &Path) -> Result<HostSpace> {
        let failed = |e: std::io::Error| PoolError::file(path, "look at its file system", e);
        let space = rustix::fs::statvfs(path).map_err(|e| failed(e.into()))?;
        let found = rustix::fs::statfs(path).map_err(|e| failed(e.into()))?;
        let place = KINDS.iter().position(|(magic, _)| *magic == found.f_type);
        let free = match rustix::process::geteuid().is_root() {
            true => space.f_bfree,
            false => space.f_bavail,
        };
        Ok(HostSpace {
            device: path.metadata().map_err(failed)?.dev(),
            kind: match place {
                Some(n) => KINDS[n].1.to_owned(),
                None => format!("file system {:#x}", found.f_type),
            },
            free_bytes: free.saturating_mul(space.f_frsize),
            is_memory: place.is_some_and(|n| n < MEMORY_KINDS),
        })
    }
}

/// Bytes of memory that programs can still have: of the machine, and of the control group of this process. `None`: nobody tells.
pub fn free_memory() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| available(&text));
    let number = |path: PathBuf| {
        std::fs::read_to_string(path)
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    let group = std::fs::read_to_string("/proc/self/cgroup").ok();
    let group = group
        .as_deref()
        .and_then(|text| text.lines().find_map(|l| l.strip_prefix("0::/")));
    let group = group.and_then(|group| {
        let dir = Path::new("/sys/fs/cgroup").join(group);
        let (most, used) = (
            number(dir.join("memory.max"))?,
            number(dir.join("memory.current"))?,
        );
        Some(most.saturating_sub(used))
    });
    machine.into_iter().chain(group).min()
}

/// Bytes of memory of the machine. `None`: nobody tells.
pub(crate) fn machine_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    line_of(&meminfo, "MemTotal:")
}

/// What `/proc/meminfo` says is available, in bytes.
fn available(meminfo: &str) -> Option<u64> {
    line_of(meminfo, "MemAvailable:")
}

/// What a line of `/proc/meminfo` says, in bytes.
fn line_of(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// Bytes for people.
pub fn shown(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        None => format!("{bytes} bytes"),
        Some((shift, unit)) => {
            let whole = bytes as f64 / (1u64 << shift) as f64;
            let decimals = usize::from(whole < 100.0 && !bytes.is_multiple_of(1 << shift));
            format!("{whole:.decimals$} {unit}")
        }
    }
}

/// What the directory of a volume's memory tier takes in all: of NVM, or of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NvmNeed {
    /// The volume.
    pub volume_bytes: u64,
    /// The log of the mount.
    pub mount_log_bytes: u64,
    /// Logs of programs under `shale run`: of one, and one that is kept ready. Each more takes half of this.
    pub client_logs_bytes: u64,
    /// It is shared memory, in the place of NVM.
    #[serde(skip)]
    pub is_staged: bool,
}

impl NvmNeed {
    /// Of a volume of so many bytes, with logs of these sizes.
    pub fn new(volume_bytes: u64, log_bytes: u64, client_log_bytes: u64) -> NvmNeed {
        NvmNeed {
            volume_bytes,
            mount_log_bytes: log_file_bytes(log_bytes),
            client_logs_bytes: CLIENT_LOGS * log_file_bytes(client_log_bytes),
            is_staged: false,
        }
    }

    /// The same of a volume without NVM.
    #[must_use]
    pub fn staged(self) -> NvmNeed {
        NvmNeed {
            is_staged: true,
            ..self
        }
    }

    /// All of it.
    pub fn bytes(&self) -> u64 {
        let logs = self.mount_log_bytes + self.client_logs_bytes;
        self.volume_bytes.saturating_add(logs)
    }

    /// In words.
    pub fn text(&self) -> String {
        format!(
            "{} in all ({} of {}, {} for the log of the mount, {} for those of programs under shale run)",
            shown(self.bytes()),
            shown(self.volume_bytes),
            if self.is_staged {
                "the memory tier"
            } else {
                "NVM"
            },
            shown(self.mount_log_bytes),
            shown(self.client_logs_bytes)
        )
    }
}

/// Bytes of the file of a log.
pub fn log_file_bytes(log_bytes: u64) -> u64 {
    RING_AT as u64 + log_bytes
}

/// Bytes that the files of a volume in a directory take.
pub(crate) fn taken_bytes(dir: &Path) -> Result<u64> {
    let files = volume_files(dir)?;
    Ok(files.iter().map(|name| allocated(&dir.join(name))).sum())
}

fn allocated(path: &Path) -> u64 {
    let found = path.symlink_metadata();
    found.map_or(0, |found| found.blocks() * STAT_BLOCK)
}

/// What is left of file systems while a new volume is planned.
struct Left(Vec<HostSpace>);

impl Left {
    /// Takes so many bytes where `path` lies, which exists. `Err`: what there was.
    fn take(&mut self, path: &Path, bytes: u64) -> Result<std::result::Result<(), HostSpace>> {
        let found = HostSpace::of(path)?;
        let place = self.0.iter().position(|s| s.device == found.device);
        let place = place.unwrap_or_else(|| {
            self.0.push(found);
            self.0.len() - 1
        });
        let space = &mut self.0[place];
        if space.free_bytes < bytes {
            return Ok(Err(space.clone()));
        }
        space.free_bytes -= bytes;
        Ok(Ok(()))
    }
}

fn no_space(path: &Path, why: String) -> PoolError {
    PoolError::NoSpace {
        path: path.to_path_buf(),
        why,
    }
}

/// Refuses a volume that takes more than there is, of a file system or of memory. `dir`: the NVM directory; `at`: what
/// of it exists.
pub(crate) fn check_space(
    (dir, at): (&Path, &Path),
    need: &NvmNeed,
    tiers: [&Vec<DeviceFile>; 2],
) -> Result<()> {
    let taken = taken_bytes(dir)?;
    let more = need.bytes().saturating_sub(taken);
    let host = HostSpace::of(at)?;
    if let (true, Some(free)) = (host.is_memory, free_memory())
        && more > free
    {
        let (text, kind, free) = (need.text(), &host.kind, shown(free));
        let why = format!(
            "the volume takes {text}, which is memory there ({kind}), and {free} of memory are free: when it is full the machine has none left"
        );
        return Err(no_space(dir, why));
    }
    let mut left = Left(Vec::new());
    if let Err(space) = left.take(at, more)? {
        let (kind, free) = (&space.kind, shown(space.free_bytes.saturating_add(taken)));
        let why = format!(
            "the volume takes {}, and {free} are free there ({kind})",
            need.text()
        );
        return Err(no_space(dir, why));
    }
    for (tier, device) in devices(tiers) {
        check_image(tier, device, &mut left)?;
    }
    Ok(())
}

/// Refuses an image that is larger than what its file system has left.
pub fn check_new_image(tier: TierId, device: &DeviceFile) -> Result<()> {
    check_image(NAMES[tier as usize - 1], device, &mut Left(Vec::new()))
}

fn devices(tiers: [&Vec<DeviceFile>; 2]) -> impl Iterator<Item = (&'static str, &DeviceFile)> {
    let named = LOWER.into_iter().zip(NAMES).zip(tiers);
    named.flat_map(|((_, name), devices)| devices.iter().map(move |d| (name, d)))
}

fn check_image(tier: &str, device: &DeviceFile, left: &mut Left) -> Result<()> {
    let path = &device.path;
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let (at, there) = match path.metadata() {
        // The space of a device is its own.
        Ok(found) if !found.is_file() => return Ok(()),
        Ok(found) => (path.as_path(), found.blocks() * STAT_BLOCK),
        Err(_) => (parent.unwrap_or(Path::new(".")), 0),
    };
    if let Err(space) = left.take(at, device.size_bytes.saturating_sub(there))? {
        let (kind, free) = (&space.kind, shown(space.free_bytes.saturating_add(there)));
        let size = shown(device.size_bytes);
        let why = format!(
            "{tier}: an image of {size}, and {free} are free there ({kind}): it could not be filled"
        );
        return Err(no_space(path, why));
    }
    Ok(())
}

/// Where the NVM of a mounted volume lies, and what of it is still to be had.
#[derive(Clone, Debug, Serialize)]
pub struct NvmHost {
    /// The file system of the NVM directory.
    #[serde(flatten)]
    pub space: HostSpace,
    /// Bytes of the volume, and of the log of one more program, that are not allocated yet.
    pub rest_bytes: u64,
    /// Bytes of memory that are free; none where the directory is not memory.
    pub free_memory_bytes: Option<u64>,
    /// What keeps the rest from being had, if anything does.
    pub short: Option<String>,
}

impl NvmHost {
    /// Of a volume whose NVM directory is `dir`, `client_log_bytes` the log of one more program.
    ///
    /// # Errors
    /// The directory is gone.
    pub fn look(dir: &Path, client_log_bytes: u64) -> Result<NvmHost> {
        let space = HostSpace::of(dir)?;
        let files = volume_files(dir)?;
        let holes = files.iter().filter_map(|name| {
            let found = dir.join(name).symlink_metadata().ok()?;
            Some(found.len().saturating_sub(found.blocks() * STAT_BLOCK))
        });
        let rest_bytes = holes.sum::<u64>() + log_file_bytes(client_log_bytes);
        let free_memory_bytes = space.is_memory.then(free_memory).flatten();
        Ok(NvmHost {
            short: short(&space, rest_bytes, free_memory_bytes),
            space,
            rest_bytes,
            free_memory_bytes,
        })
    }
}

fn short(space: &HostSpace, rest: u64, memory: Option<u64>) -> Option<String> {
    let (kind, wanted) = (&space.kind, shown(rest));
    if let Some(free) = memory.filter(|free| *free < rest) {
        let free = shown(free);
        return Some(format!(
            "{wanted} of the volume and of a program's log are not in memory yet ({kind}), and {free} of memory are free: \
             end other programs, or move the volume"
        ));
    }
    (space.free_bytes < rest).then(|| {
        let free = shown(space.free_bytes);
        format!("{wanted} of the volume and of a program's log are not allocated yet ({kind}), and {free} are free there")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_named_with_numbers() {
        let space = |free_bytes, is_memory| HostSpace {
            device: 1,
            kind: "tmpfs".to_owned(),
            free_bytes,
            is_memory,
        };
        let gib = 1u64 << 30;
        assert_eq!(short(&space(2 * gib, true), gib, Some(gib)), None);
        let said = short(&space(9 * gib, true), 2 * gib, Some(gib)).unwrap();
        assert!(
            said.contains("2 GiB of the volume") && said.contains("1 GiB of memory"),
            "{said}"
        );
        let said = short(&space(gib / 2, false), gib, None).unwrap();
        assert!(
            said.contains("1 GiB") && said.contains("512 MiB are free"),
            "{said}"
        );
        assert_eq!(
            available("MemFree: 1 kB\nMemAvailable:    3 kB\n"),
            Some(3072)
        );
        assert!(free_memory().is_some());
    }

    #[test]
    fn holes_of_a_copy_are_what_is_still_to_be_had() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = std::fs::File::create(dir.path().join("seg-0000")).unwrap();
        file.set_len(1 << 50).unwrap();
        let host = NvmHost::look(dir.path(), 0).unwrap();
        assert!(host.space.is_memory && host.rest_bytes >= 1 << 50);
        let short = host.short.unwrap();
        assert!(
            short.contains("1024 TiB") && short.contains("of memory are free"),
            "{short}"
        );
    }
}
