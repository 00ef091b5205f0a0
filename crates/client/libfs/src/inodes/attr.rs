//! Attributes, times and callers, in the terms of POSIX.

use shale_format::inode::{Inode, time};

/// Who calls, and for which request of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process or thread.
    pub pid: u32,
    /// Mode bits to take away from what is created.
    pub umask: u32,
    /// Request of the kernel that the call answers; 0: none. A request that was
    /// done before a crash is not done again.
    pub request: u64,
}

/// A point in time since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds, negative before 1970.
    pub sec: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nsec: u32,
}

/// What `stat` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: u64,
    /// Differs between two inodes that had the same number.
    pub generation: u32,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes in use.
    pub blocks: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
}

/// Bytes that a directory shows as its size for each entry.
const DIR_ENTRY_BYTES: u64 = 32;

impl Attr {
    pub(crate) fn of(inode: &Inode, blocks: u64) -> Self {
        let at = |which: usize| Timestamp {
            sec: inode.time_s[which],
            nsec: inode.time_ns[which],
        };
        let size = if inode.is_dir() {
            // Whatever a damaged inode says.
            inode.size.saturating_mul(DIR_ENTRY_BYTES)
        } else {
            inode.size
        };
        Self {
            ino: inode.ino,
            generation: inode.generation,
            size,
            blocks: blocks.saturating_mul(8),
            mode: inode.mode,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            atime: at(time::ACCESS),
            mtime: at(time::MODIFY),
            ctime: at(time::CHANGE),
            btime: at(time::BIRTH),
        }
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The file system's current time.
    Now,
    /// This time.
    At(Timestamp),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits; a type in it is ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode.
    pub ctime: Option<Timestamp>,
    /// Take away set-user-id, and set-group-id of a group-executable file.
    pub kill_suidgid: bool,
}

/// The mode that is left after a write by somebody without privilege who is in the file's group.
pub(crate) fn without_set_id(mode: u32) -> u32 {
    let mode = mode & !0o4000;
    if mode & 0o010 != 0 {
        mode & !0o2000
    } else {
        mode
    }
}
