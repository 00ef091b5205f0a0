//! Owner, mode, times, extended attributes, access control lists and flags of a name that is there.
//!
//! In this order: the owner takes set-user-ID and capabilities away, the mode changes the access control list, and nothing can be
//! changed any more once a file is immutable.

use super::{Step, tried};
use crate::manifest::{Meta, Time};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Gid, IFlags, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::collections::BTreeMap;

/// Flags that forbid changes.
const FORBID: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND);
/// Flags that are restored: those that Shale has.
const KNOWN: IFlags = FORBID
    .union(IFlags::NODUMP)
    .union(IFlags::NOATIME)
    .union(IFlags::SYNC)
    .union(IFlags::DIRSYNC);
/// Flags of an inode of Shale, as chattr(1) numbers them.
const FLAGS: [(u32, IFlags); 6] = [
    (shale_libfs::inode_flag::IMMUTABLE, IFlags::IMMUTABLE),
    (shale_libfs::inode_flag::APPEND_ONLY, IFlags::APPEND),
    (shale_libfs::inode_flag::NO_DUMP, IFlags::NODUMP),
    (shale_libfs::inode_flag::NO_ATIME, IFlags::NOATIME),
    (shale_libfs::inode_flag::SYNC, IFlags::SYNC),
    (shale_libfs::inode_flag::DIR_SYNC, IFlags::DIRSYNC),
];

fn ioctl_flags(flags: u32) -> IFlags {
    let set = FLAGS.iter().filter(|(shale, _)| flags & shale != 0);
    set.fold(IFlags::empty(), |all, (_, flag)| all | *flag)
}

/// Whether nothing may get another name.
pub(super) fn forbids_links(meta: &Meta) -> bool {
    ioctl_flags(meta.flags).intersects(FORBID)
}

fn opened(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Takes the flags away that forbid changes, if there are any; a file system that has no flags has none.
pub(super) fn make_changeable(dir: BorrowedFd<'_>, name: &[u8]) {
    let Ok(file) = opened(dir, name) else { return };
    if let Ok(flags) = rustix::fs::ioctl_getflags(&file)
        && flags.intersects(FORBID)
    {
        // If that fails, so does what comes next, which is reported.
        let _ = rustix::fs::ioctl_setflags(&file, flags - FORBID);
    }
}

/// Sets the flags of a file or directory.
pub(super) fn set_flags(dir: BorrowedFd<'_>, name: &[u8], flags: u32) -> rustix::io::Result<()> {
    let wanted = ioctl_flags(flags);
    let file = opened(dir, name)?;
    let now = match rustix::fs::ioctl_getflags(&file) {
        Ok(now) => now,
        // Without flags there are none to take away.
        Err(_) if wanted.is_empty() => return Ok(()),
        Err(e) => return Err(e),
    };
    match now & KNOWN == wanted {
        true => Ok(()),
        false => rustix::fs::ioctl_setflags(&file, (now - KNOWN) | wanted),
    }
}

/// Device number of a special file.
pub(super) fn device(meta: &Meta) -> u64 {
    let major = (meta.rdev >> 8) & 0xfff;
    let minor = (meta.rdev & 0xff) | ((meta.rdev >> 12) & 0xf_ff00);
    rustix::fs::makedev(major as u32, minor as u32)
}

/// Whether an inode of the same volume is as it was.
pub(super) fn is_unchanged(stat: &Stat, meta: &Meta) -> bool {
    let time = |s: i64, ns: u64| -> Time { (s, ns as u32) };
    stat.st_ino == meta.ino
        && stat.st_size as u64 == meta.size
        && time(stat.st_mtime, stat.st_mtime_nsec) == meta.mtime
        && time(stat.st_ctime, stat.st_ctime_nsec) == meta.ctime
}

/// Makes everything but content equal.
pub(super) fn set_all(dir: BorrowedFd<'_>, name: &[u8], meta: &Meta) -> Step<()> {
    let kind = FileType::from_raw_mode(meta.mode);
    let is_link = kind == FileType::Symlink;
    let stat =
        rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(tried("look at it"))?;
    if (stat.st_uid, stat.st_gid) != (meta.uid, meta.gid) {
        let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
        rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(tried("set its owner"))?;
    }
    if !is_link {
        rustix::fs::chmodat(dir, name, Mode::from_raw_mode(meta.mode), AtFlags::empty())
            .map_err(tried("set its mode"))?;
    }
    set_xattrs(dir, name, meta)?;
    let time = |(s, ns): Time| Timespec {
        tv_sec: s,
        tv_nsec: ns.into(),
    };
    let times = Timestamps {
        last_access: time(meta.atime),
        last_modification: time(meta.mtime),
    };
    rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(tried("set its times"))?;
    match kind {
        FileType::RegularFile | FileType::Directory => {
            set_flags(dir, name, meta.flags).map_err(tried("set its flags"))
        }
        _ => Ok(()),
    }
}

/// A path for calls that know no directories: through the descriptor, and not through a symbolic link at its end.
fn path_below(dir: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    use rustix::fd::AsRawFd;
    let mut path = format!("/proc/self/fd/{}/", dir.as_fd().as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}

/// Attributes that are the system's, and not restored or removed.
fn is_the_systems(name: &[u8]) -> bool {
    name == b"security.selinux"
}

fn set_xattrs(dir: BorrowedFd<'_>, name: &[u8], meta: &Meta) -> Step<()> {
    let path = path_below(dir, name);
    let wanted: BTreeMap<&[u8], &[u8]> = meta
        .xattrs
        .iter()
        .map(|(name, value)| (&name[..], &value[..]))
        .collect();
    let there = match list(&path) {
        Ok(there) => there,
        Err(Errno::OPNOTSUPP) => Vec::new(),
        Err(e) => return Err(tried("list its attributes")(e)),
    };
    for name in there
        .split(|&b| b == 0)
        .filter(|n| !n.is_empty() && !is_the_systems(n))
    {
        if !wanted.contains_key(name) {
            rustix::fs::lremovexattr(&path[..], name).map_err(|e| of_attribute(name, e))?;
        }
    }
    for (name, value) in wanted.into_iter().filter(|(n, _)| !is_the_systems(n)) {
        let mut old = vec![0; value.len() + 1];
        let same = rustix::fs::lgetxattr(&path[..], name, &mut old[..]);
        if same.is_ok_and(|length| &old[..length] == value) {
            continue;
        }
        rustix::fs::lsetxattr(&path[..], name, value, XattrFlags::empty())
            .map_err(|e| of_attribute(name, e))?;
    }
    Ok(())
}

fn of_attribute(name: &[u8], e: Errno) -> String {
    format!("attribute {}: {e}", String::from_utf8_lossy(name))
}

fn list(path: &[u8]) -> rustix::io::Result<Vec<u8>> {
    // The most that the kernel gives.
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut names[..])?;
    names.truncate(length);
    Ok(names)
}
