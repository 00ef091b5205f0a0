//! Placeholders: descriptors of files that were opened in this process, without the kernel.
//!
//! The program's descriptor is one of the mount's root, opened with `O_PATH`: a read or write that escapes this library would get
//! `EBADF` and never wrong data (but `fstat` the root's attributes, so there are placeholders only where no call is known to escape,
//! [`shale_interpose::executable`]). Its description is in [`mode::FAST`](crate::description::mode::FAST) from the start. As soon as the
//! kernel is needed (a mapping, a child, a lock, a call that is not served), the file is opened through the mount, and
//! that descriptor takes the place of every one of the description: it is *materialised*. From then on it is as any other.
//!
//! A directory is opened so, too, and listed here, and what is opened with `O_PATH`, which is a file or directory by its name only.
//! Materialised, their descriptors are the kernel's for good.
//!
//! A placeholder never leaves its process: before a child is made all are materialised. Invariant: a description with
//! [`is_placeholder`](crate::description::Description::is_placeholder) has an entry in `OPEN`, and all its users are descriptors of this process.

use crate::description;
use crate::limits;
use crate::report;
use crate::table;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use parking_lot::Mutex;
use shale_interpose::raw::{self, nr};
use shale_libfs::File;
use shale_sys::mutants;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Flags of `open` that a file has when the kernel opens it later.
const LATER: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_SYNC
    | libc::O_NONBLOCK
    | libc::O_DIRECTORY
    | libc::O_PATH;

/// A file that this process has opened without the kernel.
pub struct OpenFile {
    /// What the inode is kept by.
    pub file: Arc<File>,
    /// Flags of `open`.
    pub flags: i32,
    /// Path by which it was opened.
    pub path: OpenedBy,
    /// Absolute path of the mount's root.
    pub root: &'static CStr,
    /// Of a directory: what differs between two inodes that had the same number.
    pub directory: Option<u32>,
}

/// Has the kernel open an inode whatever names it has: a regular file by its number, as long as the session lasts, a directory,
/// which can have one name only in the kernel, by a handle.
fn by_number(root: &CStr, file: &File, directory: Option<u32>, flags: i32) -> Option<i32> {
    match directory {
        Some(generation) => by_handle(root, flags, file.ino(), generation),
        None => {
            let path = [root.to_bytes(), b"/", &*file.kernel_name()].concat();
            opened_as(&CString::new(path).ok()?, flags, file.ino())
        }
    }
}

/// Path by which a file was opened.
#[derive(Clone)]
pub struct OpenedBy {
    /// Directory in which the path begins, if it does not begin at the root: its descriptor then, or `AT_FDCWD`.
    pub dir: i32,
    /// The inode of that directory.
    pub start: u64,
    /// The path, without a zero byte.
    pub path: Vec<u8>,
}

impl OpenedBy {
    /// The same path from the root on, if the directory is still the one that it was; `None`: nobody knows its path.
    fn absolute(&self) -> Option<CString> {
        if self.path.starts_with(b"/") {
            return CString::new(&*self.path).ok();
        }
        let asked = crate::mounts::statx(self.dir, libc::AT_STATX_DONT_SYNC, libc::STATX_INO);
        asked.filter(|status| status.stx_ino == self.start)?;
        let link = match self.dir {
            libc::AT_FDCWD => "/proc/self/cwd".to_owned(),
            fd => format!("/proc/self/fd/{fd}"),
        };
        let dir = std::fs::read_link(link).ok()?;
        CString::new([dir.as_os_str().as_bytes(), b"/", &self.path].concat()).ok()
    }
}

/// Files by description and its generation. A leaf among the locks.
static OPEN: Mutex<Option<HashMap<(u32, u32), OpenFile>>> = Mutex::new(None);
/// How many there are.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Some belong to a session that is lost.
static LOST: AtomicBool = AtomicBool::new(false);

/// Whether there are any.
#[inline]
pub fn any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Whether placeholders may belong to a session that is lost: they have to be materialised before they are served.
#[inline]
pub fn any_lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

/// The session that they belong to is lost.
pub fn lose() {
    LOST.store(any(), Ordering::Release);
}

/// Notes the file of a description that was just taken. It is marked by the caller.
pub fn note(index: u32, open: OpenFile) {
    let key = (index, description::generation(index));
    let old = OPEN.lock().get_or_insert_default().insert(key, open);
    assert!(old.is_none(), "a description is taken once a generation");
    COUNT.fetch_add(1, Ordering::Relaxed);
}

fn take(index: u32, generation: u32) -> Option<OpenFile> {
    let taken = OPEN.lock().as_mut()?.remove(&(index, generation))?;
    if COUNT.fetch_sub(1, Ordering::Relaxed) == 1 {
        LOST.store(false, Ordering::Relaxed);
    }
    Some(taken)
}

/// Calls `f` with the file of a placeholder; `None`: the description is none (any more).
pub fn with<T>(index: u32, f: impl FnOnce(&OpenFile) -> T) -> Option<T> {
    let open = OPEN.lock();
    let key = (index, description::generation(index));
    open.as_ref()?.get(&key).map(f)
}

/// The file of a placeholder.
pub fn file(index: u32) -> Option<Arc<File>> {
    with(index, |open| open.file.clone())
}

/// Whether an inode is open by a placeholder.
pub fn has(ino: u64) -> bool {
    any() && {
        let open = OPEN.lock();
        let mut all = open.iter().flat_map(HashMap::values);
        all.any(|open| open.file.ino() == ino)
    }
}

/// A descriptor of the description that had this generation has left the table. If it was the last, the file is closed.
pub fn descriptor_gone(index: u32, generation: u32) {
    let gone = description::users(index) == 0 || description::generation(index) != generation;
    if gone {
        // Closed outside of the lock: it may write a record.
        drop(take(index, generation));
    }
}

/// Has the kernel open the file of a placeholder, in the place of all its descriptors. `why` is for the report. Whether the
/// description is none any more. Its lock is held, or nobody else uses it.
///
/// A failure (`EMFILE`, a file without names whose session is lost) leaves the placeholder, on which the kernel's calls are `EBADF`.
pub fn materialise(index: u32, why: &'static str) -> bool {
    let d = description::get(index);
    if !d.is_placeholder() {
        return true;
    }
    let generation = description::generation(index);
    let copied = with(index, |open| {
        let (file, path) = (open.file.clone(), open.path.clone());
        (file, open.flags & LATER, path, open.root, open.directory)
    });
    let Some((file, flags, path, root, directory)) = copied else {
        return false;
    };
    // Not under the lock: the mount waits for calls of other threads.
    let by_path = path
        .absolute()
        .and_then(|path| opened_as(&path, flags, file.ino()));
    let found = by_path.or_else(|| by_number(root, &file, directory, flags));
    drop(file);
    let Some(file) = found else {
        report::passed(nr::OPEN, "not to be opened by the kernel");
        return false;
    };
    let for_good = d.is_directory() || d.is_path_only();
    if for_good {
        // How far it was listed. The kernel's positions are the volume's.
        raw::lseek(
            file,
            d.offset.load(Ordering::Relaxed) as i64,
            libc::SEEK_SET,
        );
    }
    table::for_each_file(|fd, of| {
        if of == index {
            let closes = raw::fcntl(fd, libc::F_GETFD, 0) as i32 & libc::FD_CLOEXEC != 0;
            raw::dup3(file, fd, if closes { libc::O_CLOEXEC } else { 0 });
            if for_good {
                // All others are the kernel's.
                table::remove_of(fd, index);
            }
        }
    });
    // Behind that: who finds no placeholder calls the kernel. Who takes the description of a directory, which is free now, waits for the lock.
    d.materialised();
    raw::close(file);
    report::materialised(why);
    drop(take(index, generation));
    true
}

/// As [`materialise`], of every one, each under its lock. Whether none is left.
pub fn materialise_all(why: &'static str) -> bool {
    let mut all = true;
    if any() {
        table::for_each_file(|_, index| {
            let d = description::get(index);
            if d.is_placeholder() {
                let held = d.lock(raw::gettid());
                all &= materialise(index, why);
                drop(held);
            }
        });
    }
    all
}

/// As [`materialise_all`], of those of one inode.
pub fn materialise_inode(ino: u64, why: &'static str) {
    table::for_each_file(|_, index| {
        let d = description::get(index);
        if d.is_placeholder() && d.ino.load(Ordering::Relaxed) == ino {
            let held = d.lock(raw::gettid());
            materialise(index, why);
            drop(held);
        }
    });
}

/// The kernel's descriptor of the file at `path`, if that is inode `ino`.
fn opened_as(path: &CString, flags: i32, ino: u64) -> Option<i32> {
    let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let args = [path.as_ptr() as u64, flags as u64, 0, 0, 0, 0];
    // SAFETY: a path that ends with a zero byte.
    let open = || unsafe { raw::syscall(nr::OPEN, &args) } as i32;
    let fd = match open() {
        // The program may have as many descriptors as it is allowed to: this one is gone in a moment.
        no if i64::from(no) == raw::fail(libc::EMFILE) => limits::above_number(open)?,
        fd => fd,
    };
    if fd < 0 {
        return None;
    }
    match crate::mounts::statx(fd, libc::AT_STATX_DONT_SYNC, libc::STATX_INO) {
        Some(status) if status.stx_ino == ino || mutants::is_on("materialise-by-path") => Some(fd),
        _ => {
            raw::close(fd);
            None
        }
    }
}

/// The kernel's descriptor of a directory, by the handle that it would give for it (`FILEID_INO64_GEN` of FUSE).
fn by_handle(root: &CStr, flags: i32, ino: u64, generation: u32) -> Option<i32> {
    const ROOT_FLAGS: i32 = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    const BYTES: u32 = 12;
    const KIND: u32 = 0x81;
    let handle = [BYTES, KIND, (ino >> 32) as u32, ino as u32, generation];
    let root_args = [root.as_ptr() as u64, ROOT_FLAGS as u64, 0, 0, 0, 0];
    // SAFETY: a path that ends with a zero byte.
    let root = unsafe { raw::syscall(nr::OPEN, &root_args) } as i32;
    if root < 0 {
        return None;
    }
    let flags = (flags | libc::O_CLOEXEC) as u64;
    let args = [root as u64, handle.as_ptr() as u64, flags, 0, 0, 0];
    // SAFETY: a handle of as many bytes as it says.
    let fd = unsafe { raw::syscall(nr::OPEN_BY_HANDLE_AT, &args) } as i32;
    raw::close(root);
    (fd >= 0).then_some(fd)
}

/// In a child, which has no placeholders: forgets what was copied.
pub fn forget_all() {
    // SAFETY: the child has one thread, this one, so nobody else can hold or take the lock.
    unsafe {
        if OPEN.is_locked() {
            OPEN.force_unlock();
        }
    }
    // They are its parent's.
    core::mem::forget(OPEN.lock().take());
    COUNT.store(0, Ordering::Relaxed);
    LOST.store(false, Ordering::Relaxed);
}
