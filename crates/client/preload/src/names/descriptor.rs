//! Calls about a placeholder that other files leave to the kernel, and that need not have it opened.

use crate::calls::attributes;
use crate::calls::vectors::{Access, Buffer, CALL_BYTES_MAX};
use crate::client;
use crate::names::kernel::asks_about_itself;
use crate::names::mapping;
use crate::names::open::{keeps_open, placeholder_of};
use crate::names::paths::{fail, given, set_times};
use crate::names::{place, state, user, xattrs};
use core::sync::atomic::Ordering;
use shale_fd::description::{self, OffsetGuard, mode};
use shale_fd::limits;
use shale_fd::mounts;
use shale_fd::placeholder;
use shale_fd::report;
use shale_fd::table::{self, Entry};
use shale_interpose::raw::{self, Args, nr};
use shale_interpose::thread;
use shale_libfs::{Errno, SetAttr};

/// Numbers of these calls, but for those that are looked at anyway.
pub const CALLS: [u32; 6] = [
    nr::FCHMOD,
    nr::FCHOWN,
    nr::UTIMENSAT,
    nr::FADVISE,
    nr::GETDENTS64,
    nr::FSTATFS,
];

/// Serves such a call; `None`: it is about no placeholder, or needs the kernel's file.
pub fn serve(number: u32, args: &Args) -> Option<i64> {
    let fd = match number {
        nr::MMAP => args[4] as i32,
        nr::CHMOD | nr::FCHMODAT => return mode_by_link(number, args),
        nr::COPY_FILE_RANGE => args[2] as i32,
        _ => args[0] as i32,
    };
    let index = placeholder_of(fd)?;
    let result = match number {
        nr::NEWFSTATAT => stat(index, args),
        nr::FSTATFS => state::known().map(|named| named.statfs(args[1])),
        _ if description::get(index).is_path_only() => None,
        nr::MMAP => mapping::map(index, args),
        nr::FCHMOD => set(index, |set| set.mode = Some(args[1] as u32)),
        nr::FCHOWN => set(index, |set| {
            (set.uid, set.gid) = (given(args[1] as u32), given(args[2] as u32));
            set.kill_suidgid = true;
        }),
        // `futimens`: no path.
        nr::UTIMENSAT if args[1] == 0 && args[3] == 0 => {
            // SAFETY: the program gave two times there, or nothing.
            let [atime, mtime] = unsafe { set_times(args[2]) }?;
            set(index, |set| (set.atime, set.mtime) = (atime, mtime))
        }
        nr::FADVISE => advice(args),
        nr::FCNTL if args[1] as i32 == libc::F_GETFL => {
            placeholder::with(index, |open| i64::from(open.flags))
        }
        nr::IOCTL => ioctl(args),
        nr::COPY_FILE_RANGE => copy(args),
        nr::GETDENTS64 => list(index, args),
        nr::FSETXATTR | nr::FGETXATTR | nr::FLISTXATTR | nr::FREMOVEXATTR => {
            attribute(index, number, args)
        }
        _ => None,
    };
    result.inspect(|_| report::fast(number))
}

/// A call about extended attributes.
fn attribute(index: u32, number: u32, args: &Args) -> Option<i64> {
    let asked = xattrs::Asked::of(number, args)?;
    let file = placeholder::file(index)?;
    match asked.done(&xattrs::Of::Open(&file))? {
        Ok(result) => Some(result),
        Err(e) => refusal(e),
    }
}

fn set(index: u32, what: impl FnOnce(&mut SetAttr)) -> Option<i64> {
    let mut set = SetAttr::default();
    what(&mut set);
    let closes = |mode| !user::is_root() && !keeps_open(libc::O_RDWR, mode);
    // The kernel makes that call, and opens the file before.
    if set.mode.is_some_and(closes) {
        return None;
    }
    match placeholder::file(index)?.set_attributes_beside_kernel(&set) {
        Ok(()) => Some(0),
        Err(e) => refusal(e),
    }
}

/// `chmod` of a descriptor by its name in `/proc`: so libc changes the mode of what may be no symbolic link (fchmodat(3)).
fn mode_by_link(number: u32, args: &Args) -> Option<i64> {
    let (path, mode) = match number {
        nr::CHMOD => (args[0], args[1]),
        _ => (args[1], args[2]),
    };
    // SAFETY: the program's own call.
    let path = unsafe { place::path(path) }?;
    let digits = path.strip_prefix(b"/proc/self/fd/")?;
    let fd: i32 = core::str::from_utf8(digits).ok()?.parse().ok()?;
    let index = placeholder_of(fd)?;
    set(index, |set| set.mode = Some(mode as u32)).inspect(|_| report::fast(number))
}

/// `newfstatat` with an empty path, of what was opened with `O_PATH`: all others know how to be asked.
fn stat(index: u32, args: &Args) -> Option<i64> {
    let d = description::get(index);
    if !d.is_path_only() || !asks_about_itself(nr::NEWFSTATAT, args) || placeholder::any_lost() {
        return None;
    }
    let attr = placeholder::file(index)?.stat().ok()?;
    let device = mounts::get(d.mount.load(Ordering::Relaxed))?.device;
    Some(attributes::put_stat(&attr, device, args[2]))
}

/// One file of a copy: its description, held, and the byte at which the copy begins there.
struct Side {
    index: u32,
    held: OffsetGuard,
    at: u64,
    /// Where the program keeps that byte; 0: it is the description's offset.
    place: u64,
}

impl Side {
    /// `None`: it is no placeholder, or the kernel says what is wrong.
    fn new(fd: u64, place: u64) -> Option<Self> {
        let index = placeholder_of(fd as i32)?;
        let d = description::get(index);
        let held = d.lock(thread::tid());
        let is_bad = place != 0 && Buffer::check::<u64>(place, Access::Write).is_err();
        if placeholder_of(fd as i32) != Some(index) || is_bad {
            return None;
        }
        let at = match place {
            0 => d.offset.load(Ordering::Relaxed),
            // SAFETY: the program gave an offset there.
            _ => unsafe { (place as *const u64).read_unaligned() },
        };
        let side = Self {
            index,
            held,
            at,
            place,
        };
        i64::try_from(at).is_ok().then_some(side)
    }

    fn ino(&self) -> u64 {
        description::get(self.index).ino.load(Ordering::Relaxed)
    }

    fn mount(&self) -> u32 {
        description::get(self.index).mount.load(Ordering::Relaxed)
    }

    fn flags(&self) -> i32 {
        description::get(self.index).flags.load(Ordering::Relaxed) as i32
    }

    /// So many bytes were copied.
    fn moved(self, bytes: u64) {
        let at = self.at + bytes;
        match self.place {
            // Nobody else moves it: it is a placeholder's, and held.
            0 => description::get(self.index)
                .offset
                .store(at, Ordering::Relaxed),
            // SAFETY: as in `new`.
            place => unsafe { (place as *mut u64).write_unaligned(at) },
        }
        drop(self.held);
    }
}

/// `copy_file_range` between two placeholders.
fn copy(args: &Args) -> Option<i64> {
    let (from, to) = (args[0], args[2]);
    let Some(first) = placeholder_of(from as i32) else {
        return copy_from_kernel(args);
    };
    let second = placeholder_of(to as i32)?;
    if first == second || args[5] != 0 || placeholder::any_lost() {
        return None;
    }
    // Two that copy back and forth at once lock in the same order.
    let (from, to) = match first < second {
        true => {
            let from = Side::new(from, args[1])?;
            (from, Side::new(to, args[3])?)
        }
        false => {
            let to = Side::new(to, args[3])?;
            (Side::new(from, args[1])?, to)
        }
    };
    let access = |side: &Side| side.flags() & libc::O_ACCMODE;
    let refused = access(&from) == libc::O_WRONLY
        || access(&to) == libc::O_RDONLY
        || to.flags() & libc::O_APPEND != 0;
    let bytes = args[4].min(CALL_BYTES_MAX as u64);
    if refused || from.ino() == to.ino() || to.at + bytes > limits::file_bytes() {
        return None;
    }
    let client = client::current(description::get(first).mount.load(Ordering::Relaxed))?;
    let (source, target) = ((from.ino(), from.at), (to.ino(), to.at));
    let caller = user::caller(&client.session);
    match client
        .session
        .copy_file_range(&caller, source, target, bytes)
    {
        Ok(copied) => {
            from.moved(copied);
            to.moved(copied);
            Some(copied as i64)
        }
        Err(e) => refusal(e),
    }
}

/// Bytes that one call copies at most from a file of the kernel's.
const COPY_BYTES: usize = 64 << 10;

/// Whether a file lies on a file system in user space.
fn is_on_fuse(fd: i32) -> Option<bool> {
    const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
    // SAFETY: numbers, for which zeros do; the kernel fills them in.
    let mut status: libc::statfs = unsafe { core::mem::zeroed() };
    let args = [fd as u64, (&raw mut status) as u64, 0, 0, 0, 0];
    // SAFETY: as above.
    let done = unsafe { raw::syscall(nr::FSTATFS, &args) };
    (done == 0).then_some(status.f_type == FUSE_SUPER_MAGIC)
}

/// `copy_file_range` from a file that the kernel has open to a placeholder.
fn copy_from_kernel(args: &Args) -> Option<i64> {
    let (fd, own_offset) = (args[0] as i32, args[1] == 0);
    if let Entry::File(index) = table::get(fd)
        && description::get(index).mode.load(Ordering::Relaxed) == mode::FAST
    {
        return None;
    }
    let status = mounts::statx(fd, libc::AT_STATX_DONT_SYNC, libc::STATX_TYPE)?;
    if u32::from(status.stx_mode) & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let to = Side::new(args[2], args[3])?;
    let bytes = args[4].min(COPY_BYTES as u64);
    let flags = to.flags();
    let refused = flags & libc::O_ACCMODE == libc::O_RDONLY || flags & libc::O_APPEND != 0;
    let bad = args[5] != 0 || (1..4096).contains(&args[1]);
    let source = raw::fcntl(fd, libc::F_GETFL, 0) as i32;
    let unreadable = source & (libc::O_ACCMODE | libc::O_PATH) & !libc::O_RDWR != 0;
    if bad
        || refused
        || unreadable
        || to.at + bytes > limits::file_bytes()
        || placeholder::any_lost()
    {
        return None;
    }
    if !own_offset && Buffer::check::<u64>(args[1], Access::Write).is_err() {
        return None;
    }
    let seek = |to: u64, whence: i32| {
        // SAFETY: three numbers; no memory is touched.
        unsafe { raw::syscall(nr::LSEEK, &[fd as u64, to, whence as u64, 0, 0, 0]) }
    };
    let from = match own_offset {
        true => u64::try_from(seek(0, libc::SEEK_CUR)).ok()?,
        // SAFETY: the program gave an offset there.
        false => unsafe { (args[1] as *const u64).read_unaligned() },
    };
    match mounts::place(fd) {
        Some(place) if place.mount != to.mount() || place.ino == to.ino() => return None,
        Some(_) => {}
        None if is_on_fuse(fd)? => return None,
        None => return Some(raw::fail(libc::EXDEV)),
    }
    let mut content = Vec::new();
    content.try_reserve_exact(bytes as usize).ok()?;
    let read = [fd as u64, content.as_mut_ptr() as u64, bytes, from, 0, 0];
    // SAFETY: there is space for so many bytes.
    let got = usize::try_from(unsafe { raw::syscall(nr::PREAD, &read) }).ok()?;
    // SAFETY: the kernel has stored so many.
    unsafe { content.set_len(got) };
    let written = match got {
        0 => 0,
        _ => match placeholder::file(to.index)?.pwrite(to.at, &content) {
            Ok(written) => written as u64,
            Err(e) => return refusal(e),
        },
    };
    to.moved(written);
    match own_offset {
        true => drop(seek(from + written, libc::SEEK_SET)),
        // SAFETY: as above.
        false => unsafe { (args[1] as *mut u64).write_unaligned(from + written) },
    }
    Some(written as i64)
}

/// What a call returns that was refused; `None`: the kernel does it, or says what is wrong.
fn refusal(e: Errno) -> Option<i64> {
    let by_kernel = [shale_libfs::BY_KERNEL, shale_libfs::MEDIATED, Errno::IO];
    (!by_kernel.contains(&e)).then(|| fail(e))
}

/// Bytes of entries that one call gives at most.
const LIST_BYTES: usize = 64 << 10;
/// Bytes of an entry before its name: inode, position, length, type.
const ENTRY_BYTES: usize = 19;

/// `getdents64` of a directory.
fn list(index: u32, args: &Args) -> Option<i64> {
    let d = description::get(index);
    let held = d.lock(thread::tid());
    if placeholder_of(args[0] as i32) != Some(index) || placeholder::any_lost() {
        return None;
    }
    if !d.is_directory() {
        return Some(raw::fail(libc::ENOTDIR));
    }
    let into = match Buffer::of(args[1], (args[2] as u32).into(), Access::Write) {
        Ok(buffer) => buffer,
        Err(result) => return Some(result),
    };
    let client = client::current(d.mount.load(Ordering::Relaxed))?;
    let space = into.len().min(LIST_BYTES);
    let (mut entries, mut full) = (Vec::with_capacity(space), false);
    let mut position = d.offset.load(Ordering::Relaxed);
    let ino = d.ino.load(Ordering::Relaxed);
    let caller = user::caller(&client.session);
    // Into memory of the library's: the program's may be mapped from the volume.
    let session = &client.session;
    let listed = session.readdir(&caller, ino, position, false, &mut |entry| {
        let bytes = (ENTRY_BYTES + entry.name.len() + 1).next_multiple_of(8);
        full = entries.len() + bytes > space;
        if full {
            return false;
        }
        let end = entries.len() + bytes;
        entries.extend_from_slice(&entry.ino.to_ne_bytes());
        entries.extend_from_slice(&entry.cookie.to_ne_bytes());
        entries.extend_from_slice(&(bytes as u16).to_ne_bytes());
        entries.push(entry.kind);
        entries.extend_from_slice(entry.name);
        entries.resize(end, 0);
        position = entry.cookie;
        true
    });
    match listed {
        Err(e) => return refusal(e),
        // Not even one entry finds space.
        Ok(()) if full && entries.is_empty() => return Some(raw::fail(libc::EINVAL)),
        Ok(()) => {}
    }
    // SAFETY: the program gave the buffer for this call.
    let space = unsafe { into.space() };
    space[..entries.len()].copy_from_slice(&entries);
    d.offset.store(position, Ordering::Relaxed);
    drop(held);
    Some(entries.len() as i64)
}

/// Advice about how a file will be read is taken and not needed. What is none is `EINVAL`.
fn advice(args: &Args) -> Option<i64> {
    let known = (libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&(args[3] as i32));
    let result = match known && args[2] as i64 >= 0 {
        true => 0,
        false => raw::fail(libc::EINVAL),
    };
    Some(result)
}

/// What every file of a mount says to two requests that programs make of any file: whether it is a terminal, and to
/// share its blocks with another one.
fn ioctl(args: &Args) -> Option<i64> {
    match args[1] {
        libc::TCGETS => Some(raw::fail(libc::ENOTTY)),
        attributes::FICLONE | attributes::FICLONERANGE => Some(raw::fail(libc::EOPNOTSUPP)),
        _ => None,
    }
}
