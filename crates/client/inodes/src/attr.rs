//! Attributes and times, in the terms of POSIX.

use shale_format::inode::{Inode, time};
use shale_format::record::{SetAttrBody, attr};

/// "Leave it as it is" for an owner or group, as in chown(2).
const NO_ID: u32 = u32::MAX;

/// A point in time since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds, negative before 1970.
    pub sec: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nsec: u32,
}

/// What `stat` tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// Inode number, never 0.
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
    /// Device number, in the kernel's 32-bit encoding (minor bits 0–7, major 8–19, the rest of minor 20–31).
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
    /// What `stat` tells of an inode that has `blocks` blocks of 4 KiB in use.
    pub fn of(inode: &Inode, blocks: u64) -> Self {
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
///
/// All may be `None`, with `kill_suidgid`: Linux sends that before a user without privilege
/// changes the content of a file that has one of these bits, and goes by the mode in the answer.
///
/// A change of `uid` or `gid` clears set-user-ID, and set-group-ID of a group-executable
/// file, unless `mode` is set too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits; a type in it is ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes. open(2) with `O_TRUNC` arrives as size 0.
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
pub fn without_set_id(mode: u32) -> u32 {
    let mode = mode & !0o4000;
    if mode & 0o010 != 0 {
        mode & !0o2000
    } else {
        mode
    }
}

/// The inode after `set`, and the record that says so; `valid` 0: nothing changes.
pub fn changed(old: &Inode, set: &SetAttr, now_ns: i64) -> (Inode, SetAttrBody) {
    let mut new = *old;
    let mut valid = 0;
    let (uid, gid) = (
        set.uid.filter(|&u| u != NO_ID),
        set.gid.filter(|&g| g != NO_ID),
    );
    if let Some(mode) = set.mode {
        new.mode = old.mode & !0o7777 | mode & 0o7777;
        valid |= attr::MODE;
    } else if (uid.is_some() || gid.is_some() || set.kill_suidgid) && !old.is_dir() {
        new.mode = without_set_id(old.mode);
        valid |= if new.mode != old.mode { attr::MODE } else { 0 };
    }
    if let Some(uid) = uid {
        new.uid = uid;
        valid |= attr::UID;
    }
    if let Some(gid) = gid {
        new.gid = gid;
        valid |= attr::GID;
    }
    for (which, bit, to) in [
        (time::ACCESS, attr::ATIME, set.atime),
        (time::MODIFY, attr::MTIME, set.mtime),
        (time::CHANGE, attr::CTIME, set.ctime.map(SetTime::At)),
    ] {
        if let Some(to) = to {
            set_time(&mut new, which, to, now_ns);
            valid |= bit;
        }
    }
    if valid != 0 && valid & attr::CTIME == 0 {
        new.set_time_ns(time::CHANGE, now_ns);
    }
    let body = SetAttrBody {
        valid,
        mode: new.mode & 0o7777,
        uid: new.uid,
        gid: new.gid,
        time_s: [new.time_s[0], new.time_s[1], new.time_s[2]],
        time_ns: [new.time_ns[0], new.time_ns[1], new.time_ns[2]],
        flags: 0,
    };
    (new, body)
}

fn set_time(inode: &mut Inode, which: usize, to: SetTime, now_ns: i64) {
    match to {
        SetTime::Now => inode.set_time_ns(which, now_ns),
        SetTime::At(Timestamp { sec, nsec }) => {
            inode.time_s[which] = sec;
            inode.time_ns[which] = nsec;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u32) -> Inode {
        Inode {
            ino: 20,
            mode,
            ..Inode::free()
        }
    }

    #[test]
    fn a_new_owner_takes_set_id_away_from_files_only() {
        let set = SetAttr {
            uid: Some(7),
            ..SetAttr::default()
        };
        let (new, body) = changed(&file(0o106_755), &set, 5);
        assert_eq!((new.mode, new.uid), (0o100_755, 7));
        assert_eq!(body.valid, attr::MODE | attr::UID);
        // Without group execution set-group-id means mandatory locking.
        assert_eq!(changed(&file(0o106_745), &set, 5).0.mode, 0o102_745);
        assert_eq!(changed(&file(0o046_755), &set, 5).0.mode, 0o046_755);
        let both = SetAttr {
            mode: Some(0o6711),
            ..set
        };
        assert_eq!(changed(&file(0o100_644), &both, 5).0.mode, 0o106_711);
    }

    #[test]
    fn change_time_is_now_unless_given() {
        let at = |sec| SetTime::At(Timestamp { sec, nsec: 9 });
        let set = SetAttr {
            atime: Some(at(-4)),
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        let (new, body) = changed(&file(0o100_644), &set, 3_000_000_001);
        assert_eq!((new.time_s[0], new.time_ns[0]), (-4, 9));
        assert_eq!((new.time_s[1], new.time_s[2], new.time_ns[2]), (3, 3, 1));
        assert_eq!(body.valid, attr::ATIME | attr::MTIME);
        let given = SetAttr {
            ctime: Some(Timestamp { sec: 8, nsec: 0 }),
            ..set
        };
        assert_eq!(changed(&file(0o100_644), &given, 3).0.time_s[2], 8);
        let nothing = SetAttr {
            uid: Some(NO_ID),
            ..SetAttr::default()
        };
        assert_eq!(changed(&file(0o104_755), &nothing, 3).1.valid, 0);
    }
}
