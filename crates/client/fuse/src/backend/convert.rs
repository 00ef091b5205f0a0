//! Words of libfs in place of those of the front end, and back.

use shale_libfs::Caller;

use crate::backend::node::{Attr, Errno, Request, SetAttr, SetTime, Timestamp, WriteFlags};

/// Preferred size of input and output, in bytes.
pub const IO_BYTES: u32 = 4096;

pub fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid,
        gid: request.gid,
        pid: request.pid,
        umask: request.umask,
        request: request.unique,
    }
}

/// What comes from dirty pages has its place already.
pub fn write_flags(flags: WriteFlags) -> shale_libfs::WriteFlags {
    shale_libfs::WriteFlags {
        kill_suidgid: flags.kill_suidgid,
        append: flags.append && !flags.from_cache,
        sync: flags.sync,
    }
}

pub fn errno(error: shale_libfs::Errno) -> Errno {
    Errno(error.raw_os_error())
}

pub fn timestamp(t: shale_libfs::Timestamp) -> Timestamp {
    Timestamp {
        sec: t.sec,
        nsec: t.nsec,
    }
}

pub fn time(t: SetTime) -> shale_libfs::SetTime {
    match t {
        SetTime::Now => shale_libfs::SetTime::Now,
        SetTime::Set(t) => shale_libfs::SetTime::At(shale_libfs::Timestamp {
            sec: t.sec,
            nsec: t.nsec,
        }),
    }
}

/// Device numbers are kept as the kernel encodes them in 32 bits.
pub fn attr(a: shale_libfs::Attr) -> Attr {
    Attr {
        ino: a.ino,
        generation: a.generation.into(),
        size: a.size,
        blocks: a.blocks,
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev as u32,
        atime: timestamp(a.atime),
        mtime: timestamp(a.mtime),
        ctime: timestamp(a.ctime),
        btime: Some(timestamp(a.btime)),
        blksize: IO_BYTES,
    }
}

pub fn set_attr(set: &SetAttr) -> shale_libfs::SetAttr {
    shale_libfs::SetAttr {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(time),
        mtime: set.mtime.map(time),
        ctime: set.ctime.map(|t| shale_libfs::Timestamp {
            sec: t.sec,
            nsec: t.nsec,
        }),
        kill_suidgid: set.kill_suidgid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_of_a_write_arrives() {
        let all = WriteFlags {
            kill_suidgid: true,
            append: true,
            sync: true,
            from_cache: false,
        };
        let arrived = shale_libfs::WriteFlags {
            kill_suidgid: true,
            append: true,
            sync: true,
        };
        assert_eq!(write_flags(all), arrived);
        let none = WriteFlags::default();
        assert_eq!(write_flags(none), shale_libfs::WriteFlags::default());
        let written_back = WriteFlags {
            from_cache: true,
            ..all
        };
        assert!(!write_flags(written_back).append);
    }
}
