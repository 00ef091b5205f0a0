//! What was served where, for `SHALE_REPORT=FILE`: one line of JSON for each process and
//! program image, added to the file when it ends.
//!
//! `fast`: calls served here, by name. `kernel`: calls left to the kernel, by name and
//! reason. `materialised`: files that were opened here, without the kernel, and then by the kernel, by reason. `bypassed`: none is even looked at; that line is there from the start.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use parking_lot::Mutex;
use shale_interpose::raw::{NR_END, nr};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

static ON: AtomicBool = AtomicBool::new(false);
static FAST: [AtomicU64; NR_END] = [const { AtomicU64::new(0) }; NR_END];
static OPENED: AtomicU64 = AtomicU64::new(0);
static ATTACHED: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static BYPASSED: AtomicBool = AtomicBool::new(false);
static KERNEL: Mutex<BTreeMap<(u32, &'static str), u64>> = Mutex::new(BTreeMap::new());
static MATERIALISED: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());
static REFUSED: Mutex<Vec<i32>> = Mutex::new(Vec::new());
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static FILE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Call sites of libc that were rewritten.
static SITES: AtomicU64 = AtomicU64::new(0);
/// Whether that was all of them.
static ALL_SITES: AtomicBool = AtomicBool::new(false);

/// A failed `exec` was reported as the end of this program image.
static GOES_ON: AtomicBool = AtomicBool::new(false);

/// Takes settings from the environment.
pub fn configure() {
    if let Some(file) = std::env::var_os("SHALE_REPORT") {
        *FILE.lock() = Some(file.into());
        ON.store(true, Ordering::Relaxed);
    }
}

/// Whether there is one.
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// So many call sites were rewritten, all of them or not.
pub fn rewritten(sites: u64, all: bool) {
    SITES.store(sites, Ordering::Relaxed);
    ALL_SITES.store(all, Ordering::Relaxed);
}

/// A call was served here.
#[inline(always)]
pub fn fast(number: u32) {
    if ON.load(Ordering::Relaxed) {
        FAST[number as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// A file that was opened here was opened by the kernel after all.
pub fn materialised(why: &'static str) {
    if ON.load(Ordering::Relaxed) {
        *MATERIALISED.lock().entry(why).or_default() += 1;
    }
}

/// A call was left to the kernel.
pub fn passed(number: u32, reason: &'static str) {
    if ON.load(Ordering::Relaxed) {
        *KERNEL.lock().entry((number, reason)).or_default() += 1;
    }
}

/// A file of ours was opened.
pub fn opened() {
    OPENED.fetch_add(1, Ordering::Relaxed);
}

/// The process became a client.
pub fn attached() {
    ATTACHED.fetch_add(1, Ordering::Relaxed);
}

/// The process could not become a client.
pub fn attach_failed(errno: i32) {
    if ON.load(Ordering::Relaxed) {
        REFUSED.lock().push(errno);
    }
}

/// Nothing is served any more, since this library panicked.
pub fn panicked(why: &str) {
    if ON.load(Ordering::Relaxed) {
        PANICS.lock().push(why.to_owned());
    }
}

/// A daemon went away.
pub fn lost() {
    LOST.fetch_add(1, Ordering::Relaxed);
}

/// Nothing is served in this program image: says so now, and nothing later.
pub fn bypassed() {
    BYPASSED.store(true, Ordering::Relaxed);
    at_exit();
    ON.store(false, Ordering::Relaxed);
}

/// In a child: nothing has happened yet.
pub fn begin_again() {
    GOES_ON.store(false, Ordering::Relaxed);
    // SAFETY: the only thread of this process is here.
    unsafe {
        if KERNEL.is_locked() {
            KERNEL.force_unlock();
        }
        if MATERIALISED.is_locked() {
            MATERIALISED.force_unlock();
        }
        if FILE.is_locked() {
            FILE.force_unlock();
        }
        if REFUSED.is_locked() {
            REFUSED.force_unlock();
        }
        if PANICS.is_locked() {
            PANICS.force_unlock();
        }
    }
    if !ON.load(Ordering::Relaxed) {
        return;
    }
    KERNEL.lock().clear();
    MATERIALISED.lock().clear();
    REFUSED.lock().clear();
    PANICS.lock().clear();
    for count in FAST.iter().chain([&OPENED, &ATTACHED, &LOST]) {
        count.store(0, Ordering::Relaxed);
    }
}

/// The program image did not end after all: `exec` failed.
pub fn goes_on() {
    GOES_ON.store(true, Ordering::Relaxed);
}

/// Nothing is served any more, and nothing may be written at the end: writes the line now.
pub fn end() {
    at_exit();
    ON.store(false, Ordering::Relaxed);
}

/// The process, or its program image, ends: writes the line and counts from 0. The thread is inside of the library.
pub fn at_exit() {
    if !ON.load(Ordering::Relaxed) {
        return;
    }
    let file = FILE.lock().clone();
    if let Some(file) = file {
        let opened = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file);
        // There is nobody to tell that the report cannot be written.
        let _ = opened.and_then(|mut f| f.write_all(line().as_bytes()));
    }
    begin_again();
}

fn line() -> String {
    let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let fast: BTreeMap<String, u64> = FAST
        .iter()
        .enumerate()
        .map(|(number, count)| (name(number as u32), count.load(Ordering::Relaxed)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let mut kernel: BTreeMap<String, BTreeMap<&str, u64>> = BTreeMap::new();
    for (&(number, reason), &count) in KERNEL.lock().iter() {
        *kernel
            .entry(name(number))
            .or_default()
            .entry(reason)
            .or_default() += count;
    }
    let value = serde_json::json!({
        "pid": std::process::id(),
        "goes_on": GOES_ON.load(Ordering::Relaxed),
        "program": program.to_string_lossy(),
        "files_opened": OPENED.load(Ordering::Relaxed),
        "attached": ATTACHED.load(Ordering::Relaxed),
        "sessions_lost": LOST.load(Ordering::Relaxed),
        "attach_errnos": *REFUSED.lock(),
        "panics": *PANICS.lock(),
        "bypassed": BYPASSED.load(Ordering::Relaxed),
        "sites": SITES.load(Ordering::Relaxed),
        "all_sites": ALL_SITES.load(Ordering::Relaxed),
        "fast": fast,
        "kernel": kernel,
        "materialised": *MATERIALISED.lock(),
    });
    format!("{value}\n")
}

/// Calls as the report names them.
const NAMES: [(u32, &str); 82] = [
    (nr::GETDENTS64, "getdents64"),
    (nr::OPEN, "open"),
    (nr::CREAT, "creat"),
    (nr::OPENAT, "openat"),
    (nr::STAT, "stat"),
    (nr::LSTAT, "lstat"),
    (nr::ACCESS, "access"),
    (nr::FACCESSAT, "faccessat"),
    (nr::FACCESSAT2, "faccessat2"),
    (nr::RENAME, "rename"),
    (nr::RENAMEAT, "renameat"),
    (nr::RENAMEAT2, "renameat2"),
    (nr::MKDIR, "mkdir"),
    (nr::MKDIRAT, "mkdirat"),
    (nr::RMDIR, "rmdir"),
    (nr::UNLINK, "unlink"),
    (nr::UNLINKAT, "unlinkat"),
    (nr::LINK, "link"),
    (nr::LINKAT, "linkat"),
    (nr::SYMLINK, "symlink"),
    (nr::SYMLINKAT, "symlinkat"),
    (nr::READLINK, "readlink"),
    (nr::READLINKAT, "readlinkat"),
    (nr::CHMOD, "chmod"),
    (nr::FCHMOD, "fchmod"),
    (nr::FCHMODAT, "fchmodat"),
    (nr::CHOWN, "chown"),
    (nr::LCHOWN, "lchown"),
    (nr::FCHOWN, "fchown"),
    (nr::FCHOWNAT, "fchownat"),
    (nr::UTIMENSAT, "utimensat"),
    (nr::TRUNCATE, "truncate"),
    (nr::SETXATTR, "setxattr"),
    (nr::LSETXATTR, "lsetxattr"),
    (nr::FSETXATTR, "fsetxattr"),
    (nr::GETXATTR, "getxattr"),
    (nr::LGETXATTR, "lgetxattr"),
    (nr::FGETXATTR, "fgetxattr"),
    (nr::LISTXATTR, "listxattr"),
    (nr::LLISTXATTR, "llistxattr"),
    (nr::FLISTXATTR, "flistxattr"),
    (nr::REMOVEXATTR, "removexattr"),
    (nr::LREMOVEXATTR, "lremovexattr"),
    (nr::FREMOVEXATTR, "fremovexattr"),
    (nr::FADVISE, "fadvise64"),
    (nr::STATFS, "statfs"),
    (nr::FSTATFS, "fstatfs"),
    (nr::MMAP, "mmap"),
    (nr::READ, "read"),
    (nr::WRITE, "write"),
    (nr::FSTAT, "fstat"),
    (nr::LSEEK, "lseek"),
    (nr::IOCTL, "ioctl"),
    (nr::PREAD, "pread64"),
    (nr::PWRITE, "pwrite64"),
    (nr::READV, "readv"),
    (nr::WRITEV, "writev"),
    (nr::SENDFILE, "sendfile"),
    (nr::SENDMSG, "sendmsg"),
    (nr::FCNTL, "fcntl"),
    (nr::FSYNC, "fsync"),
    (nr::FDATASYNC, "fdatasync"),
    (nr::FTRUNCATE, "ftruncate"),
    (nr::NEWFSTATAT, "newfstatat"),
    (nr::SPLICE, "splice"),
    (nr::SYNC_FILE_RANGE, "sync_file_range"),
    (nr::FALLOCATE, "fallocate"),
    (nr::PREADV, "preadv"),
    (nr::PWRITEV, "pwritev"),
    (nr::COPY_FILE_RANGE, "copy_file_range"),
    (nr::PREADV2, "preadv2"),
    (nr::PWRITEV2, "pwritev2"),
    (nr::STATX, "statx"),
    (nr::IO_URING_SETUP, "io_uring_setup"),
    (nr::DUP, "dup"),
    (nr::CLOSE, "close"),
    (nr::CLOSE_RANGE, "close_range"),
    (nr::CLONE, "clone"),
    (nr::CLONE3, "clone3"),
    (nr::UNSHARE, "unshare"),
    (nr::PRCTL, "prctl"),
    (nr::SECCOMP, "seccomp"),
];

fn name(number: u32) -> String {
    let known = NAMES.iter().find(|(n, _)| *n == number);
    known.map_or_else(|| format!("call {number}"), |(_, name)| (*name).to_owned())
}
