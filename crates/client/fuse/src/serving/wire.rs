//! The messages of `/dev/fuse` as structs: those of `linux/fuse.h`, protocol 7.45,
//! that this crate reads or writes. Native byte order, sizes asserted.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub const PROTOCOL_MAJOR: u32 = 7;
/// Minor version these structs are written from.
pub const PROTOCOL_MINOR: u32 = 45;
/// Oldest minor version accepted (Linux 5.4): since then the layouts here hold.
pub const PROTOCOL_MINOR_MIN: u32 = 31;

/// Set in `unique` of a request that is sent a second time.
pub const UNIQUE_RESENT: u64 = 1 << 63;

/// Declares a message struct with its size in bytes.
macro_rules! message {
    ($(#[$doc:meta])* $name:ident, $size:literal { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        pub struct $name { $(pub $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}

/// Kinds of requests.
pub mod opcode {
    /// Defines each code, and the table that names them.
    macro_rules! opcodes {
        ($($name:ident = $number:literal,)*) => {
            $(pub const $name: u32 = $number;)*
            /// Every kind of request that is served or answered by name, with its name.
            pub const NAMED: &[(u32, &str)] = &[$(($name, stringify!($name)),)*];
        };
    }

    opcodes! {
        LOOKUP = 1,
        FORGET = 2,
        GETATTR = 3,
        SETATTR = 4,
        READLINK = 5,
        SYMLINK = 6,
        MKNOD = 8,
        MKDIR = 9,
        UNLINK = 10,
        RMDIR = 11,
        RENAME = 12,
        LINK = 13,
        READ = 15,
        WRITE = 16,
        STATFS = 17,
        RELEASE = 18,
        FSYNC = 20,
        SETXATTR = 21,
        GETXATTR = 22,
        LISTXATTR = 23,
        REMOVEXATTR = 24,
        INIT = 26,
        OPENDIR = 27,
        READDIR = 28,
        RELEASEDIR = 29,
        FSYNCDIR = 30,
        CREATE = 35,
        INTERRUPT = 36,
        DESTROY = 38,
        IOCTL = 39,
        NOTIFY_REPLY = 41,
        BATCH_FORGET = 42,
        FALLOCATE = 43,
        READDIRPLUS = 44,
        RENAME2 = 45,
        LSEEK = 46,
        COPY_FILE_RANGE = 47,
        SYNCFS = 50,
        TMPFILE = 51,
        STATX = 52,
        COPY_FILE_RANGE_64 = 53,
    }
}

/// Codes of notifications.
pub mod notification {
    /// Drop cached attributes and a range of cached data.
    pub const INVAL_INODE: i32 = 2;
    /// Drop a cached name.
    pub const INVAL_ENTRY: i32 = 3;
    /// Keep a range of data, and the size if the file is shorter.
    pub const STORE: i32 = 4;
    /// Send what is kept of a range of data, as a request.
    pub const RETRIEVE: i32 = 5;
    /// Send unanswered requests again.
    pub const RESEND: i32 = 7;
    /// Ask again for every cached name at its next use.
    pub const INC_EPOCH: i32 = 8;
    /// Forget inodes that nobody uses (Linux 6.18).
    pub const PRUNE: i32 = 9;
}

message! {
    /// Before every request.
    InHeader, 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
}
message! {
    /// Before every reply and notification.
    OutHeader, 16 { len: u32, error: i32, unique: u64 }
}
message! {
    /// The first request.
    InitIn, 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
}
message! {
    /// Its answer.
    InitOut, 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
}
message! {
    /// Attributes.
    AttrWire, 88 {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32,
        uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
}
message! {
    /// A name's inode, with how long name and attributes hold.
    EntryOut, 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: AttrWire,
    }
}
message! {
    /// Attributes, with how long they hold.
    AttrOut, 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: AttrWire }
}
message! {
    /// Which attributes are asked for, and why.
    GetattrIn, 16 { getattr_flags: u32, dummy: u32, fh: u64 }
}
message! {
    /// Number of references returned.
    ForgetIn, 8 { nlookup: u64 }
}
message! {
    /// Number of `ForgetOne` that follow.
    BatchForgetIn, 8 { count: u32, dummy: u32 }
}
message! {
    /// One inode's returned references.
    ForgetOne, 16 { nodeid: u64, nlookup: u64 }
}
message! {
    /// Attributes to set, those in `valid`.
    SetattrIn, 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
}
message! {
    /// Before the name.
    MknodIn, 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
}
message! {
    /// Before the name.
    MkdirIn, 8 { mode: u32, umask: u32 }
}
message! {
    /// Before the two names.
    RenameIn, 8 { newdir: u64 }
}
message! {
    /// Before the two names.
    Rename2In, 16 { newdir: u64, flags: u32, padding: u32 }
}
message! {
    /// Before the name.
    LinkIn, 8 { oldnodeid: u64 }
}
message! {
    /// Before the name; of CREATE and TMPFILE.
    CreateIn, 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
}
message! {
    /// After the entry, of CREATE and TMPFILE.
    OpenOut, 16 { fh: u64, open_flags: u32, backing_id: i32 }
}
message! {
    /// Of READ, READDIR and READDIRPLUS.
    ReadIn, 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
}
message! {
    /// Before the data.
    WriteIn, 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
}
message! {
    /// Bytes written or copied.
    WriteOut, 8 { size: u32, padding: u32 }
}
message! {
    /// Sizes of the file system.
    StatfsOut, 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
}
message! {
    /// Of FSYNC and FSYNCDIR.
    FsyncIn, 16 { fh: u64, fsync_flags: u32, padding: u32 }
}
message! {
    /// Before name and value.
    SetxattrIn, 8 { size: u32, flags: u32 }
}
message! {
    /// Behind it, if that was negotiated.
    SetxattrExt, 8 { setxattr_flags: u32, padding: u32 }
}
message! {
    /// Space for the value; of LISTXATTR too.
    GetxattrIn, 8 { size: u32, padding: u32 }
}
message! {
    /// Size of the value, when asked with no space.
    GetxattrOut, 8 { size: u32, padding: u32 }
}
message! {
    /// Before the input bytes.
    IoctlIn, 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
}
message! {
    /// Before the output bytes.
    IoctlOut, 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
}
message! {
    /// Range to allocate, free, or zero.
    FallocateIn, 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
}
message! {
    /// Where to look for data or a hole.
    LseekIn, 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
}
message! {
    /// Where it is.
    LseekOut, 8 { offset: u64 }
}
message! {
    /// Of COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn, 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
}
message! {
    /// Bytes copied, of COPY_FILE_RANGE_64.
    CopyFileRangeOut, 8 { bytes_copied: u64 }
}
message! {
    /// Seconds and nanoseconds.
    SxTime, 16 { tv_sec: i64, tv_nsec: u32, reserved: i32 }
}
message! {
    /// Attributes as statx(2) has them.
    Statx, 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32,
        mode: u16, spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
}
message! {
    /// The answer to STATX.
    StatxOut, 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
}
message! {
    /// Before a directory entry's name, which is padded to 8 bytes.
    Dirent, 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
}
message! {
    /// Range of data to drop; offset −1 drops attributes only, length ≤ 0 means to the end.
    InvalInodeOut, 24 { ino: u64, off: i64, len: i64 }
}
message! {
    /// Before data to keep.
    StoreOut, 24 { ino: u64, offset: u64, size: u32, padding: u32 }
}
message! {
    /// Range of data to send; `unique` comes with it.
    RetrieveOut, 32 { unique: u64, ino: u64, offset: u64, size: u32, padding: u32 }
}
message! {
    /// Before data that was asked for.
    RetrieveIn, 40 { unused: u64, offset: u64, size: u32, padding: u32, more: [u64; 2] }
}
message! {
    /// Before the numbers of inodes to forget.
    PruneOut, 16 { count: u32, padding: u32, unused: u64 }
}
message! {
    /// Before the name to drop and its zero byte.
    InvalEntryOut, 16 { parent: u64, namelen: u32, flags: u32 }
}
