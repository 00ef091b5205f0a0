//! Descriptors that come, go, and are duplicated. The kernel does it; the table follows.

use crate::calls::vectors::{Access, Buffer};
use crate::names::setting;
use crate::pays;
use core::sync::atomic::Ordering;
use shale_fd::description::{self, Description};
use shale_fd::locked;
use shale_fd::placeholder;
use shale_fd::report;
use shale_fd::table::{self, Entry};
use shale_interpose::outcome::PASS;
use shale_interpose::raw::{self, Args, nr};

/// Before the kernel closes a descriptor: afterwards the number may be another's. The kernel gets the
/// offset of the last one: a child that came about without our knowing may go on there.
fn leave(fd: i32) {
    if let Entry::File(index) = table::get(fd)
        && description::users(index) == 1
    {
        let d = description::get(index);
        if !d.is_placeholder() && d.mode.load(Ordering::Acquire) == description::mode::FAST {
            let offset = d.offset.load(Ordering::Relaxed);
            raw::lseek(fd, offset as i64, libc::SEEK_SET);
        }
    }
}

/// `close`.
pub fn close(fd: i32) -> i64 {
    take_out(fd, || table::remove(fd));
    PASS
}

/// A descriptor is about to be another file, or none: `gone` takes it out of the table.
fn take_out(fd: i32, gone: impl FnOnce()) {
    leave(fd);
    let placeholder = match table::get(fd) {
        Entry::File(index) if description::get(index).is_placeholder() => {
            Some((index, description::generation(index)))
        }
        _ => None,
    };
    gone();
    if let Some((index, generation)) = placeholder {
        placeholder::descriptor_gone(index, generation);
    }
}

/// Makes one more descriptor of a description.
fn add(index: u32, make: impl FnOnce() -> i64) -> i64 {
    let d = description::get(index);
    // The kernel opens a file in the place of all placeholders that there are: none comes about meanwhile.
    let held = d.is_placeholder().then(|| d.lock(raw::gettid()));
    let fd = make();
    let entered = fd < 0 || {
        description::add_user(index);
        table::enter(fd as i32, index)
    };
    drop(held);
    if !entered {
        too_high(fd as i32, index);
    }
    fd
}

/// A number that the table has no space for: only the kernel can serve it, so it has to
/// serve all that share the offset.
fn too_high(fd: i32, index: u32) {
    let d = description::get(index);
    let held = d.lock(raw::gettid());
    d.to_kernel(fd, description::mode::HANDED_OVER);
    drop(held);
    description::drop_user(index);
}

/// `dup`.
pub fn dup(index: u32, number: u32, args: &Args) -> i64 {
    // SAFETY: no pointers.
    add(index, || unsafe { raw::syscall(number, args) })
}

/// `dup2`, `dup3`.
pub fn dup_to(number: u32, args: &Args) -> i64 {
    let (old, new) = (args[0] as i32, args[1] as i32);
    let entry = table::get(old);
    if entry == Entry::Own || table::get(new) == Entry::Own {
        return raw::fail(libc::EBADF);
    }
    if entry == Entry::Kernel && table::get(new) == Entry::Kernel {
        return PASS;
    }
    // SAFETY: no pointers.
    let replace = || unsafe { raw::syscall(number, args) };
    if old == new {
        return replace();
    }
    let mut fd = 0;
    take_out(new, || {
        fd = match entry {
            Entry::File(index) => add(index, replace),
            _ => replace(),
        };
        if fd >= 0 && !matches!(entry, Entry::File(_)) {
            table::remove(new);
        }
    });
    fd
}

/// Commands of `fcntl` about a `struct flock`.
const LOCKS: [i32; 6] = [
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
];

/// Locks can begin at the offset or at the end of the file (`lockf` always begins at the offset):
/// has the kernel know what it is about to use.
fn resolve_origin(fd: i32, index: u32, at: u64) {
    if Buffer::check::<libc::flock>(at, Access::Read).is_err() {
        return;
    }
    // SAFETY: the program gave a `struct flock` there, which the kernel is about to read, too.
    let lock = unsafe { (at as *const libc::flock).read_unaligned() };
    match i32::from(lock.l_whence) {
        libc::SEEK_CUR => {
            let d = description::get(index);
            let held = d.lock(raw::gettid());
            if d.mode.load(Ordering::Relaxed) == description::mode::FAST {
                raw::lseek(fd, d.offset.load(Ordering::Relaxed) as i64, libc::SEEK_SET);
            }
            drop(held);
        }
        libc::SEEK_END if description::get(index).was_served() => {
            shale_fd::mounts::refresh_size(fd);
        }
        _ => {}
    }
}

/// `fcntl`.
pub fn fcntl(index: u32, number: u32, args: &Args) -> i64 {
    match args[1] as i32 {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => dup(index, number, args),
        libc::F_SETFL => {
            // SAFETY: the argument of this command is a number.
            let result = unsafe { raw::syscall(number, args) };
            if result >= 0 {
                // Whether the kernel uses its pages is what the program says.
                description::get(index)
                    .past_pages
                    .store(0, Ordering::Relaxed);
                let append = args[2] as u32 & libc::O_APPEND as u32;
                let flags = &description::get(index).flags;
                // Two that set flags at once leave one of both, as in the kernel.
                let kept = flags.load(Ordering::Relaxed) & !(libc::O_APPEND as u32);
                flags.store(kept | append, Ordering::Relaxed);
            }
            result
        }
        libc::F_GETFL if description::get(index).past_pages.load(Ordering::Relaxed) != 0 => {
            raw::fcntl(args[0] as i32, libc::F_GETFL, 0) & !i64::from(libc::O_DIRECT)
        }
        libc::F_GETFD | libc::F_SETFD | libc::F_GETFL => PASS,
        command => {
            if LOCKS.contains(&command) {
                resolve_origin(args[0] as i32, index, args[2]);
                let d = description::get(index);
                if may_be_lost(args) {
                    let ino = d.ino.load(Ordering::Relaxed);
                    locked::note(ino);
                    if placeholder::any() {
                        placeholder::materialise_inode(ino, "it is locked");
                    }
                }
                return lock(d, args);
            }
            report::passed(nr::FCNTL, "leases and the like are the kernel's");
            PASS
        }
    }
}

/// Whether a command asks for a lock that this process loses when it closes any descriptor of the file, and there may be placeholders.
fn may_be_lost(args: &Args) -> bool {
    setting::are_wanted() && [libc::F_SETLK, libc::F_SETLKW].contains(&(args[1] as i32))
}

/// A command about a lock, which is the kernel's to do; `None`: it is another command, or more has to be done for it.
pub fn lock_if_asked(d: &Description, args: &Args) -> Option<i64> {
    if !LOCKS.contains(&(args[1] as i32)) {
        return None;
    }
    if may_be_lost(args) {
        if !d.is_placed() {
            return None;
        }
        // Before it is asked whether there may be placeholders: who serves the first name looks afterwards.
        locked::note(d.ino.load(Ordering::Relaxed));
        if setting::have_served() {
            return None;
        }
    }
    Some(lock(d, args))
}

fn lock(d: &Description, args: &Args) -> i64 {
    pays::locked(d);
    report::passed(nr::FCNTL, "locks are the kernel's");
    match args[1] as i32 {
        // A thread that waits for a lock can be cancelled: at libc's own instruction.
        libc::F_SETLKW | libc::F_OFD_SETLKW => PASS,
        // SAFETY: the program's own call, made for it. Not passed: by way of the exported symbol it would come by here
        // once more.
        _ => unsafe { raw::syscall(nr::FCNTL, args) },
    }
}

/// `close_range`, around the library's own descriptors.
pub fn close_range(args: &Args) -> i64 {
    let (first, last, flags) = (args[0] as u32, args[1] as u32, args[2] as u32);
    if first > last {
        return raw::fail(libc::EINVAL);
    }
    let mut own = Vec::new();
    table::for_each(first, last, |fd, entry| match entry {
        Entry::Own => own.push(fd as u32),
        Entry::File(_) if flags & libc::CLOSE_RANGE_CLOEXEC == 0 => {
            take_out(fd, || table::remove(fd));
        }
        _ => {}
    });
    let mut from = first;
    for fd in own.into_iter().map(Some).chain([None]) {
        let to = fd.map_or(last, |fd| fd.wrapping_sub(1));
        if fd.is_none_or(|fd| fd > from) && from <= to {
            let result = raw::close_range(from, to, flags);
            if result < 0 {
                return result;
            }
        }
        match fd {
            Some(fd) if fd == last => return 0,
            Some(fd) => from = fd + 1,
            None => {}
        }
    }
    0
}
