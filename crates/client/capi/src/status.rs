//! What `stat` and `statvfs` tell, as C has it.

use core::mem::MaybeUninit;
use shale_libfs::{Attr, StatFs};

/// What one should read and write at a time, as on the mount.
const IO_BYTES: i64 = 4096;

/// Attributes; `device` is that of the mount.
pub(crate) fn stat(attr: &Attr, device: u64) -> libc::stat {
    // SAFETY: numbers and padding, for which all zeros are valid.
    let mut status: libc::stat = unsafe { MaybeUninit::zeroed().assume_init() };
    status.st_dev = device;
    status.st_ino = attr.ino;
    status.st_mode = attr.mode;
    status.st_nlink = attr.nlink.into();
    status.st_uid = attr.uid;
    status.st_gid = attr.gid;
    status.st_rdev = attr.rdev;
    status.st_size = attr.size.cast_signed();
    status.st_blksize = IO_BYTES;
    status.st_blocks = attr.blocks.cast_signed();
    (status.st_atime, status.st_atime_nsec) = (attr.atime.sec, attr.atime.nsec.into());
    (status.st_mtime, status.st_mtime_nsec) = (attr.mtime.sec, attr.mtime.nsec.into());
    (status.st_ctime, status.st_ctime_nsec) = (attr.ctime.sec, attr.ctime.nsec.into());
    status
}

/// Sizes of the volume.
pub(crate) fn statvfs(sizes: &StatFs) -> libc::statvfs {
    // SAFETY: numbers and padding, for which all zeros are valid.
    let mut all: libc::statvfs = unsafe { MaybeUninit::zeroed().assume_init() };
    all.f_bsize = sizes.block_bytes.into();
    all.f_frsize = sizes.block_bytes.into();
    all.f_blocks = sizes.blocks;
    all.f_bfree = sizes.blocks_free;
    all.f_bavail = sizes.blocks_free;
    all.f_files = sizes.files;
    all.f_ffree = sizes.files_free;
    all.f_favail = sizes.files_free;
    all.f_namemax = sizes.name_bytes_max.into();
    all
}
