//! What keeps a file system in use: other mounts of it (bind mounts, in whatever mount namespace) and
//! processes with files of it open, mapped, or as their directory.
//!
//! The file system itself is not asked: it may be the one that does not answer. Files are known by their
//! device number, which the kernel has; so those of a mount that has lost its name are found, too. Other
//! users' processes are seen by root alone.

use crate::failure::Result;
use crate::mount_table::{self, Mount};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use shale_sys::printable;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Most that are named.
const NAMED_MAX: usize = 5;

/// Something that keeps a file system in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Another mount of it. `seen_by`: a process in whose mount namespace it is, if that is not ours.
    Mount {
        /// Where.
        place: PathBuf,
        /// Number and name of that process.
        seen_by: Option<(u32, String)>,
    },
    /// A process.
    Process {
        /// Number.
        pid: u32,
        /// Name.
        name: String,
        /// What it has of it: `file`, `directory`, `program`, `mapping`.
        what: &'static str,
        /// Its path as the kernel tells it.
        path: PathBuf,
    },
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Holder::Mount {
                place,
                seen_by: None,
            } => write!(f, "the mount on {}", place.display()),
            Holder::Mount {
                place,
                seen_by: Some((pid, name)),
            } => write!(
                f,
                "the mount on {} in the mount namespace of process {pid} ({name})",
                place.display()
            ),
            Holder::Process {
                pid,
                name,
                what,
                path,
            } => write!(f, "process {pid} ({name}; {what} {})", path.display()),
        }
    }
}

/// Names holders in one line, the first of them; `None`: there is none.
pub fn name(holders: &[Holder]) -> Option<String> {
    let named: Vec<String> = holders
        .iter()
        .take(NAMED_MAX)
        .map(ToString::to_string)
        .collect();
    let more = match holders.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!named.is_empty()).then(|| named.join(", ") + &more)
}

/// All holders of the file system with this device number ("major:minor"), but its mount on `except`
/// in our namespace, and but these processes and our own.
pub fn of(device: &str, except: Option<&Path>, not: &[u32]) -> Vec<Holder> {
    let mut holders = mounts_of(device, except);
    holders.extend(processes_of(device, not));
    holders
}

/// Mounts of a file system, in every mount namespace that is seen, but the one on `except` in ours.
pub fn mounts_of(device: &str, except: Option<&Path>) -> Vec<Holder> {
    let mut seen = BTreeSet::new();
    seen.extend(fs::read_link("/proc/self/ns/mnt"));
    let on_device = |table: Result<Vec<Mount>>, seen_by: Option<(u32, String)>| {
        let mounts = table.unwrap_or_default().into_iter();
        let mounts = mounts.filter(|m| m.device == device);
        mounts.map(move |m| Holder::Mount {
            place: m.mountpoint,
            seen_by: seen_by.clone(),
        })
    };
    let mut found: Vec<Holder> = on_device(mount_table::all(), None).collect();
    found.retain(|m| !matches!(m, Holder::Mount { place, .. } if Some(&**place) == except));
    for pid in pids() {
        let namespace = fs::read_link(format!("/proc/{pid}/ns/mnt"));
        if namespace.is_ok_and(|namespace| seen.insert(namespace)) {
            let theirs = mount_table::of_process(pid);
            found.extend(on_device(theirs, Some((pid, name_of(pid)))));
        }
    }
    found
}

/// Processes with something of a file system, but these and our own; of each the first thing found.
fn processes_of(device: &str, not: &[u32]) -> Vec<Holder> {
    let Some(device) = parse(device) else {
        return Vec::new();
    };
    let us = std::process::id();
    let others = pids().filter(|pid| *pid != us && !not.contains(pid));
    let of = |pid| Some((pid, held_by(pid, device)?));
    let found = others.filter_map(of);
    found
        .map(|(pid, (what, path))| Holder::Process {
            pid,
            name: name_of(pid),
            what,
            path,
        })
        .collect()
}

fn held_by(pid: u32, device: (u32, u32)) -> Option<(&'static str, PathBuf)> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let links = [
        ("directory", "cwd"),
        ("directory", "root"),
        ("program", "exe"),
    ];
    for (what, link) in links {
        let link = process.join(link);
        if is_on(&link, device) {
            return Some((what, fs::read_link(&link).unwrap_or_default()));
        }
    }
    let open = fs::read_dir(process.join("fd"));
    for fd in open.into_iter().flatten().flatten() {
        if is_on(&fd.path(), device) {
            return Some(("file", fs::read_link(fd.path()).unwrap_or_default()));
        }
    }
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let mapped = String::from_utf8_lossy(&maps);
    let path = mapped.lines().find_map(|line| mapping(line, device))?;
    Some(("mapping", path))
}

/// Whether what a link of `/proc` leads to is on a device. The file system is not asked for it.
fn is_on(link: &Path, device: (u32, u32)) -> bool {
    let cached = AtFlags::STATX_DONT_SYNC;
    let stat = statx(CWD, link, cached, StatxFlags::TYPE);
    stat.is_ok_and(|s| (s.stx_dev_major, s.stx_dev_minor) == device)
}

/// The path in a line of `/proc/PID/maps`, if it is on the device.
fn mapping(line: &str, device: (u32, u32)) -> Option<PathBuf> {
    let mut fields = line.splitn(6, ' ');
    let (major, minor) = fields.nth(3)?.split_once(':')?;
    let number = |hex| u32::from_str_radix(hex, 16).ok();
    let path = fields.nth(1)?.trim_start();
    (Some(device) == number(major).zip(number(minor)) && !path.is_empty()).then(|| path.into())
}

fn parse(device: &str) -> Option<(u32, u32)> {
    let (major, minor) = device.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn pids() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn name_of(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    printable::name(name.unwrap_or_default().trim()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_known_by_its_device() {
        let line = "7f00-7f10 r--p 00000000 00:2a 17                         /m/a file";
        assert_eq!(mapping(line, (0, 42)), Some(PathBuf::from("/m/a file")));
        assert_eq!(mapping(line, (0, 41)), None);
        assert_eq!(mapping("7f00-7f10 rw-p 00000000 00:00 0", (0, 0)), None);
        assert_eq!(mapping("", (0, 0)), None);
    }

    #[test]
    fn a_process_is_named_by_what_it_has_open() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let place = dir.path().join("held");
        let file = fs::File::create(&place).unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdin(std::process::Stdio::from(file))
            .spawn()
            .unwrap();
        let shm = statx(CWD, &place, AtFlags::empty(), StatxFlags::TYPE).unwrap();
        let held = held_by(child.id(), (shm.stx_dev_major, shm.stx_dev_minor));
        let not = processes_of("4095:77", &[]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(held, Some(("file", place)));
        assert_eq!(not, Vec::new());
    }

    #[test]
    fn holders_in_one_line() {
        let mount = |n: u32| Holder::Mount {
            place: format!("/m{n}").into(),
            seen_by: (n > 0).then(|| (n, "sh".to_owned())),
        };
        assert_eq!(name(&[]), None);
        assert_eq!(name(&[mount(0)]).unwrap(), "the mount on /m0");
        let all: Vec<Holder> = (0..7).map(mount).collect();
        let named = name(&all).unwrap();
        assert!(
            named.ends_with("in the mount namespace of process 4 (sh) and 2 more"),
            "{named}"
        );
    }
}
