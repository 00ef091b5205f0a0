//! GETATTR, SETATTR, STATX, STATFS, and attributes in the form of the wire.

use std::time::Duration;

use super::{Call, Validity};
use crate::backend::node::{Attr, NodeFs, ROOT_INO, Result, SetAttr, SetTime, Timestamp};
use crate::serving::wire::{
    AttrOut, AttrWire, EntryOut, GetattrIn, SetattrIn, StatfsOut, Statx, StatxOut, SxTime,
};

/// Bit of `GetattrIn::getattr_flags`: with a file handle.
const GETATTR_FH: u32 = 1;

/// Bits of `SetattrIn::valid`.
mod valid {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
    /// Whatever is set; the other bits say how.
    pub const SETS: u32 = MODE | UID | GID | SIZE | ATIME | MTIME | ATIME_NOW | MTIME_NOW | CTIME;
}

/// Preferred size of input and output, in bytes.
const IO_BYTES: u32 = 4096;

/// Attributes on the wire. Device numbers are kept as the kernel encodes them in 32 bits.
pub fn attr_wire(attr: &Attr) -> AttrWire {
    AttrWire {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.sec,
        mtime: attr.mtime.sec,
        ctime: attr.ctime.sec,
        atimensec: attr.atime.nsec,
        mtimensec: attr.mtime.nsec,
        ctimensec: attr.ctime.nsec,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev as u32,
        blksize: IO_BYTES,
        flags: 0,
    }
}

/// A name's answer on the wire. The kernel made the root by itself, with generation 0.
pub fn entry_out(attr: &Attr, validity: &Validity) -> EntryOut {
    let is_root = attr.ino == ROOT_INO;
    let attr_valid = attr_validity(attr, validity.attr);
    EntryOut {
        nodeid: attr.ino,
        generation: if is_root { 0 } else { attr.generation.into() },
        entry_valid: validity.entry.as_secs(),
        entry_valid_nsec: validity.entry.subsec_nanos(),
        attr_valid: attr_valid.as_secs(),
        attr_valid_nsec: attr_valid.subsec_nanos(),
        attr: attr_wire(attr),
    }
}

fn sx_time(time: Timestamp) -> SxTime {
    SxTime {
        tv_sec: time.sec,
        tv_nsec: time.nsec,
        reserved: 0,
    }
}

/// Major and minor number of the kernel's 32-bit encoding.
fn device_numbers(rdev: u32) -> (u32, u32) {
    (
        (rdev & 0xf_ff00) >> 8,
        (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00),
    )
}

fn set_attr(set: &SetattrIn) -> SetAttr {
    let has = |bit: u32| set.valid & bit != 0;
    let time = |bit: u32, now: u32, sec: i64, nsec: u32| match (has(now), has(bit)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::At(Timestamp { sec, nsec })),
        (false, false) => None,
    };
    SetAttr {
        mode: has(valid::MODE).then_some(set.mode),
        uid: has(valid::UID).then_some(set.uid),
        gid: has(valid::GID).then_some(set.gid),
        size: has(valid::SIZE).then_some(set.size),
        atime: time(valid::ATIME, valid::ATIME_NOW, set.atime, set.atimensec),
        mtime: time(valid::MTIME, valid::MTIME_NOW, set.mtime, set.mtimensec),
        ctime: has(valid::CTIME).then_some(Timestamp {
            sec: set.ctime,
            nsec: set.ctimensec,
        }),
        // The kernel asks for nothing at all before somebody without privilege changes the content
        // of a file that has such a bit as far as it knows, and takes its mode from the answer: an
        // answer that still has the bit would leave it to work with the new content. (Also for
        // `chown` that leaves owner and group, which takes them away too.)
        kill_suidgid: has(valid::KILL_SUIDGID) || set.valid & valid::SETS == 0,
    }
}

/// How long attributes are valid. Those of a program with set-user-ID or set-group-ID are asked for
/// again at each use: should the bit go by another way than by a request of this kernel, the kernel
/// must not give its rights to a process that runs the new content.
fn attr_validity(attr: &Attr, usual: Duration) -> Duration {
    const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
    let program = attr.mode & libc::S_IFMT == libc::S_IFREG && attr.mode & SET_ID != 0;
    if program { Duration::ZERO } else { usual }
}

impl<F: NodeFs + ?Sized> Call<'_, F> {
    fn put_attr(&mut self, attr: &Attr, validity: Duration) -> Result<usize> {
        let validity = attr_validity(attr, validity);
        self.out.put(&AttrOut {
            attr_valid: validity.as_secs(),
            attr_valid_nsec: validity.subsec_nanos(),
            dummy: 0,
            attr: attr_wire(attr),
        })?;
        Ok(self.out.used())
    }

    pub(super) fn getattr(&mut self) -> Result<usize> {
        let GetattrIn { getattr_flags, .. } = self.body.take()?;
        self.request.opened = getattr_flags & GETATTR_FH != 0;
        let attr = self.fs.getattr(&self.request, self.ino)?;
        let validity = self.validity.attr;
        self.put_attr(&attr, validity)
    }

    pub(super) fn setattr(&mut self) -> Result<usize> {
        let set = set_attr(&self.body.take::<SetattrIn>()?);
        let attr = self.fs.setattr(&self.request, self.ino, &set)?;
        let kept = self.fs.keeps_changed();
        let validity = if kept {
            self.validity.attr
        } else {
            Duration::ZERO
        };
        self.put_attr(&attr, validity)
    }

    /// Asked only for the time of creation.
    pub(super) fn statx(&mut self) -> Result<usize> {
        let attr = self.fs.getattr(&self.request, self.ino)?;
        let (rdev_major, rdev_minor) = device_numbers(attr.rdev as u32);
        let stat = Statx {
            mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
            blksize: IO_BYTES,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: attr.mode as u16,
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            atime: sx_time(attr.atime),
            btime: sx_time(attr.btime),
            ctime: sx_time(attr.ctime),
            mtime: sx_time(attr.mtime),
            rdev_major,
            rdev_minor,
            ..Statx::default()
        };
        let validity = attr_validity(&attr, self.validity.attr);
        self.out.put(&StatxOut {
            attr_valid: validity.as_secs(),
            attr_valid_nsec: validity.subsec_nanos(),
            stat,
            ..StatxOut::default()
        })?;
        Ok(self.out.used())
    }

    pub(super) fn statfs(&mut self) -> Result<usize> {
        let stat = self.fs.statfs(&self.request)?;
        self.out.put(&StatfsOut {
            blocks: stat.blocks,
            bfree: stat.blocks_free,
            bavail: stat.blocks_free,
            files: stat.files,
            ffree: stat.files_free,
            bsize: stat.block_bytes,
            namelen: stat.name_bytes_max,
            frsize: stat.block_bytes,
            ..StatfsOut::default()
        })?;
        Ok(self.out.used())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_agree_with_libc() {
        for (major, minor) in [(8, 1), (259, 0x1_2345), (0xfff, 0xf_ffff), (0, 0)] {
            let encoded = (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
            assert_eq!(device_numbers(encoded), (major, minor));
        }
    }

    #[test]
    fn times_to_set() {
        let set = set_attr(&SetattrIn {
            valid: valid::ATIME | valid::ATIME_NOW | valid::MTIME | valid::SIZE,
            mtime: -3,
            mtimensec: 5,
            size: 9,
            mode: 0o777,
            ..SetattrIn::default()
        });
        assert_eq!(set.atime, Some(SetTime::Now));
        assert_eq!(set.mtime, Some(SetTime::At(Timestamp { sec: -3, nsec: 5 })));
        assert_eq!(
            (set.size, set.mode, set.uid, set.kill_suidgid),
            (Some(9), None, None, false)
        );
    }
}
