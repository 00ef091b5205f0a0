//! Sizes, times and durability of open files.

use crate::calls::names;
use crate::calls::route::{Call, Route};
use crate::calls::vectors::{Access, Buffer};
use crate::client::{self, caller};
use core::sync::atomic::Ordering;
use rustix::fs::FallocateFlags;
use shale_fd::limits;
use shale_fd::mounts::{self, MNT_ID, MNT_ID_UNIQUE};
use shale_fd::report;
use shale_fd::table::Entry;
use shale_format::Ino;
use shale_format::limits::FILE_BYTES_MAX;
use shale_interpose::outcome::PASS;
use shale_interpose::probe;
use shale_interpose::raw::{self, Args, nr};
use shale_interpose::thread::Thread;
use shale_libfs::{Attr, Timestamp};
use shale_proto::mounts::{RANGE, RangeCall};
use std::os::fd::BorrowedFd;

/// Requests of `ioctl` to share the blocks of two files.
pub const FICLONE: u64 = 0x4004_9409;
/// See above.
pub const FICLONERANGE: u64 = 0x4020_940d;
const STATX_ATTR_MOUNT_ROOT: u32 = 0x2000;

/// Preferred size of input and output, as the mount says.
const IO_BYTES: u32 = 4096;

/// `fsync`, `fdatasync`, `sync_file_range`.
pub fn sync(thread: &Thread, fd: i32, index: u32, number: u32, args: &Args) -> i64 {
    let call = Call::new(thread, fd, index, number, args);
    let client = match call.route(false) {
        Route::Here(client, held) => {
            drop(held);
            client
        }
        other => return call.by_kernel(other),
    };
    report::fast(number);
    match client
        .session
        .fsync(&caller(), call.ino(), number != nr::FSYNC)
    {
        Ok(()) => 0,
        Err(e) => call.failed(client, None, e),
    }
}

/// `sync`, `syncfs`: the kernel's first, which writes back what was stored through mappings; then what all clients have logged, of
/// every mount or of the file's. Linux does not tell a mount like ours of either.
pub fn sync_all(number: u32, args: &Args) -> i64 {
    // SAFETY: the program's own call, made for it, which takes a descriptor at most.
    let result = unsafe { raw::syscall(number, args) };
    if number == nr::SYNC {
        client::harden_all_mounts();
        return result;
    }
    let mount = match result >= 0 {
        true => mounts::mount_of(args[0] as i32),
        false => None,
    };
    match mount.map(client::harden_all) {
        None | Some(Ok(())) => result,
        Some(Err(e)) => raw::fail(e.raw_os_error()),
    }
}

/// `ftruncate`, `fallocate`.
pub fn resize(thread: &Thread, fd: i32, index: u32, number: u32, args: &Args) -> i64 {
    let call = Call::new(thread, fd, index, number, args);
    let client = match call.route(false) {
        Route::Here(client, held) => {
            drop(held);
            client
        }
        other => return call.by_kernel(other),
    };
    let caller = caller();
    let result = if number == nr::FTRUNCATE {
        let size = args[1] as i64;
        if size < 0 || !call.writable() {
            return raw::fail(libc::EINVAL);
        }
        if size as u64 > limits::file_bytes() {
            return limits::exceeded();
        }
        let kept = || match call.description().is_placeholder() {
            true => u64::MAX,
            false => mounts::kept_size(fd),
        };
        let (session, size, kill) = (&client.session, size as u64, caller.uid != 0);
        session.truncate_beside_kernel(&caller, call.ino(), size, kill, &kept)
    } else {
        let (mode, offset, bytes) = (args[1] as u32, args[2] as i64, args[3] as i64);
        if offset < 0 || bytes <= 0 {
            return raw::fail(libc::EINVAL);
        }
        if !call.writable() {
            return raw::fail(libc::EBADF);
        }
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE as u32 != 0;
        if !keeps_size && (offset as u64).saturating_add(bytes as u64) > limits::file_bytes() {
            return limits::exceeded();
        }
        client
            .session
            .fallocate(&caller, call.ino(), mode, offset as u64, bytes as u64)
    };
    if result == Err(shale_libfs::BY_KERNEL) {
        report::passed(number, "left to the kernel");
        call.has_kernel_file();
        return match number == nr::FALLOCATE && RangeCall::is_needed(args[1] as u32) {
            true => by_mount(fd, args),
            false => call.in_kernel(),
        };
    }
    report::fast(number);
    match result {
        Ok(()) => 0,
        Err(e) => call.failed(client, None, e),
    }
}

/// `fallocate` of a mode that the kernel refuses for FUSE: for a file that is not served here now, but lies
/// on a mount, the mount does it. So a program gets one answer whether or not its file is mapped,
/// shared with FUSE clients, or not served yet.
pub fn shift(thread: &Thread, fd: i32, args: &Args) -> i64 {
    let result = match names::entry(fd) {
        Entry::File(index) => {
            let call = Call::new(thread, fd, index, nr::FALLOCATE, args);
            match call.route(false) {
                Route::Here(_, held) => {
                    drop(held);
                    return resize(thread, fd, index, nr::FALLOCATE, args);
                }
                Route::Kernel(_held) => by_mount(fd, args),
                Route::Pass | Route::Beside => by_mount(fd, args),
            }
        }
        Entry::Own => return raw::fail(libc::EBADF),
        Entry::Kernel => match mounts::place(fd) {
            Some(_) => by_mount(fd, args),
            None => return PASS,
        },
    };
    report::passed(nr::FALLOCATE, "done by the mount");
    result
}

/// See [`shift`].
fn by_mount(fd: i32, args: &Args) -> i64 {
    let (mode, offset, bytes) = (args[1] as u32, args[2] as i64, args[3] as i64);
    if offset < 0 || bytes <= 0 {
        return raw::fail(libc::EINVAL);
    }
    // SAFETY: asks for the flags of a descriptor.
    let flags = unsafe { raw::syscall(nr::FCNTL, &[fd as u64, libc::F_GETFL as u64, 0, 0, 0, 0]) };
    if flags < 0 || flags as i32 & libc::O_ACCMODE == libc::O_RDONLY {
        return raw::fail(libc::EBADF);
    }
    let call = RangeCall {
        mode,
        offset: offset as u64,
        bytes: bytes as u64,
    };
    // SAFETY: the program's descriptor, in a call about it.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    // The kernel takes the rights of a program before it hands on a change of content, which this is not to it. So it
    // is first asked for one that the mount refuses: there is no such place in a file.
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, punch, FILE_BYTES_MAX, 1) {
        Ok(()) | Err(rustix::io::Errno::FBIG) => {}
        Err(e) => return raw::fail(e.raw_os_error()),
    }
    // The attribute is never there: a mount of a version that does not know it changes nothing.
    let flags = rustix::fs::XattrFlags::REPLACE;
    let done = rustix::fs::fsetxattr(file, RANGE, &call.to_bytes(), flags);
    // The kernel keeps the size that it knows, until it is asked for.
    mounts::refresh_size(fd);
    match done {
        Ok(()) => 0,
        // Opened for writing by a user who may not write it any more.
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::NODATA) => raw::fail(libc::EOPNOTSUPP),
        Err(e) => raw::fail(e.raw_os_error()),
    }
}

/// `fstat`, and `newfstatat` and `statx` with an empty path.
pub fn stat(thread: &Thread, fd: i32, index: u32, number: u32, args: &Args) -> i64 {
    let call = Call::new(thread, fd, index, number, args);
    let (flags, into) = match number {
        nr::FSTAT => (libc::AT_EMPTY_PATH, args[1]),
        nr::NEWFSTATAT => (args[3] as i32, args[2]),
        _ => (args[2] as i32, args[4]),
    };
    // SAFETY: the path is read only if the program gave one.
    if flags & libc::AT_EMPTY_PATH == 0 || number != nr::FSTAT && !unsafe { is_empty_path(args[1]) }
    {
        return PASS;
    }
    let client = match call.route(false) {
        Route::Here(client, held) => {
            drop(held);
            client
        }
        other => return call.by_kernel(other),
    };
    let attr = match client.session.getattr(&caller(), call.ino()) {
        Ok(attr) => attr,
        Err(e) => return call.failed(client, None, e),
    };
    if number == nr::STATX {
        return statx(&call, &attr, into);
    }
    report::fast(number);
    let Some(mount) = mounts::get(call.description().mount.load(Ordering::Relaxed)) else {
        return PASS;
    };
    put_stat(&attr, mount.device, into)
}

/// Gives a program what it asked for with `stat` at an address.
pub fn put_stat(attr: &Attr, device: u64, into: u64) -> i64 {
    let status = status(attr, device);
    if let Err(result) = Buffer::check::<libc::stat>(into, Access::Write) {
        return result;
    }
    // SAFETY: the program gave space for a `stat` there.
    unsafe { (into as *mut libc::stat).write_unaligned(status) };
    0
}

/// What `statx` says of a file that concerns its mount.
pub struct Of {
    /// Device number, as in `stat`.
    pub device: u64,
    /// Number of the mount.
    pub mount: u64,
    /// Attributes that the kernel knows of any file.
    pub attributes_mask: u64,
}

/// Gives a program what it asked for with `statx` of this mask at an address.
pub fn put_statx(attr: &Attr, of: &Of, mask: u32, into: u64) -> i64 {
    if let Err(result) = Buffer::check::<libc::statx>(into, Access::Write) {
        return result;
    }
    // SAFETY: a `statx` is numbers only.
    let mut s: libc::statx = unsafe { core::mem::zeroed() };
    let number = match mask & MNT_ID_UNIQUE {
        0 => MNT_ID,
        _ => MNT_ID_UNIQUE,
    };
    s.stx_mask = number;
    s.stx_mnt_id = of.mount;
    s.stx_blksize = IO_BYTES;
    (s.stx_dev_major, s.stx_dev_minor) = (libc::major(of.device), libc::minor(of.device));
    (s.stx_rdev_major, s.stx_rdev_minor) = (libc::major(attr.rdev), libc::minor(attr.rdev));
    s.stx_attributes_mask = of.attributes_mask;
    if attr.ino == Ino::ROOT.0 {
        s.stx_attributes = u64::from(STATX_ATTR_MOUNT_ROOT);
    }
    fill_statx(&mut s, attr);
    // SAFETY: the program gave space for a `statx` there.
    unsafe { (into as *mut libc::statx).write_unaligned(s) };
    0
}

/// Whether the program gave an empty path. A null pointer counts as one (Linux 6.11).
///
/// # Safety
/// `path` is what the program gave for a path.
pub unsafe fn is_empty_path(path: u64) -> bool {
    // SAFETY: as above; it can be read.
    path == 0 || probe::readable(path, 1) == 1 && unsafe { (path as *const u8).read() } == 0
}

fn status(attr: &Attr, device: u64) -> libc::stat {
    // SAFETY: a `stat` is numbers only.
    let mut s: libc::stat = unsafe { core::mem::zeroed() };
    s.st_dev = device;
    s.st_ino = attr.ino;
    s.st_nlink = attr.nlink.into();
    s.st_mode = attr.mode;
    s.st_uid = attr.uid;
    s.st_gid = attr.gid;
    s.st_rdev = attr.rdev;
    s.st_size = attr.size as i64;
    s.st_blksize = IO_BYTES.into();
    s.st_blocks = attr.blocks as i64;
    (s.st_atime, s.st_atime_nsec) = (attr.atime.sec, attr.atime.nsec.into());
    (s.st_mtime, s.st_mtime_nsec) = (attr.mtime.sec, attr.mtime.nsec.into());
    (s.st_ctime, s.st_ctime_nsec) = (attr.ctime.sec, attr.ctime.nsec.into());
    s
}

/// The kernel fills in what concerns the mount. It is asked for nothing else, since for
/// the rest it would ask the daemon, and the lease would go there and come back.
fn statx(call: &Call<'_>, attr: &Attr, into: u64) -> i64 {
    let args = call.args;
    let flags = args[2] as i32 & !libc::AT_STATX_FORCE_SYNC | libc::AT_STATX_DONT_SYNC;
    let of_mount = args[3] as u32 & (MNT_ID | MNT_ID_UNIQUE) | libc::STATX_TYPE;
    let empty = c"".as_ptr() as u64;
    let passed = [args[0], empty, flags as u64, of_mount.into(), into, 0];
    // SAFETY: the program's own call, with the least effort.
    let result = unsafe { raw::syscall(nr::STATX, &passed) };
    if result < 0 {
        return result;
    }
    // SAFETY: the kernel has just written there.
    let s = unsafe { &mut *(into as *mut libc::statx) };
    if call.description().is_placeholder() {
        // Its descriptor is the mount's root.
        s.stx_attributes &= !u64::from(STATX_ATTR_MOUNT_ROOT);
    }
    fill_statx(s, attr);
    report::passed(nr::STATX, "half of it");
    result
}

/// What `statx` says of an inode.
fn fill_statx(s: &mut libc::statx, attr: &Attr) {
    let time = |t: Timestamp, s: &mut libc::statx_timestamp| {
        s.tv_sec = t.sec;
        s.tv_nsec = t.nsec;
    };
    s.stx_mask |= libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    s.stx_ino = attr.ino;
    s.stx_nlink = attr.nlink;
    s.stx_mode = attr.mode as u16;
    s.stx_uid = attr.uid;
    s.stx_gid = attr.gid;
    s.stx_size = attr.size;
    s.stx_blocks = attr.blocks;
    time(attr.atime, &mut s.stx_atime);
    time(attr.mtime, &mut s.stx_mtime);
    time(attr.ctime, &mut s.stx_ctime);
    time(attr.btime, &mut s.stx_btime);
}

/// `ioctl`: one request is about the offset.
pub fn ioctl(thread: &Thread, fd: i32, index: u32, args: &Args) -> i64 {
    if args[1] as u32 != libc::FIONREAD as u32 {
        report::passed(nr::IOCTL, "not served");
        return PASS;
    }
    let call = Call::new(thread, fd, index, nr::IOCTL, args);
    let (client, held) = match call.route(true) {
        Route::Here(client, held) => (client, held),
        other => return call.by_kernel(other),
    };
    let size = match client.session.getattr(&caller(), call.ino()) {
        Ok(attr) => attr.size,
        Err(e) => return call.failed(client, held, e),
    };
    if let Err(result) = Buffer::check::<i32>(args[2], Access::Write) {
        return result;
    }
    // Behind the end it is less than nothing.
    let left = size.wrapping_sub(call.description().offset.load(Ordering::Relaxed));
    // SAFETY: the program gave space for an `int` there.
    unsafe { (args[2] as *mut i32).write_unaligned(left as i32) };
    0
}
