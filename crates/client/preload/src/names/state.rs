//! Whether names are served in this process now.

use crate::client::{self, Client};
use crate::names::setting::{self, after, are_wanted};
use crate::names::spawn;
use crate::names::user;
use crate::names::worth;
use core::ptr;
use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering,
};
use parking_lot::Mutex;
use shale_fd::mounts::{self, MNT_ID, MNT_ID_UNIQUE};
use shale_fd::report;
use shale_interpose::clock;
use shale_interpose::executable;
use shale_interpose::inside::READY;
use shale_interpose::raw::{self, nr};
use shale_interpose::thread::Thread;
use shale_libfs::Errno;
use shale_sys::kernel_text;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Such calls so far; once on a mount.
static CALLS: AtomicU32 = AtomicU32::new(0);
/// Names are not served (any more), for good.
static OFF: AtomicBool = AtomicBool::new(false);
/// The mount whose names are served, if it is known.
static NAMED: AtomicPtr<Named> = AtomicPtr::new(ptr::null_mut());
static LOOKING: Mutex<()> = Mutex::new(());
/// Not before this time are names served, ns; 0: now.
static AGAIN_NS: AtomicI64 = AtomicI64::new(0);
/// When the table of mounts was asked about last, ns.
static LOOKED_NS: AtomicI64 = AtomicI64::new(0);

/// After so long it is seen that somebody has mounted something below, ns.
const LOOK_NS: i64 = 1_000_000_000;
/// Where no mount was found, after so many calls it is looked for again.
const LOOK_CALLS: u32 = 256;
/// Served calls whose time is looked at together, and how long each may take, ns: about what it takes by way of the mount.
const CALLS_LOOKED_AT: u64 = 64;
const CALL_NS: u64 = 150_000;
/// One call counts for no more, ns: a directory of which the kernel knows many names is taken from it once.
const CALL_NS_MAX: u64 = 1_000_000;
/// Where they take longer (others want the same leases in turn), names are the mount's for so long, ns, and twice as long
/// each time.
const AWAY_NS: i64 = 1_000_000_000;
const DOUBLINGS_MAX: u32 = 6;
/// Whether the code of the process was looked at, and nothing was loaded since.
static CODE: AtomicU8 = AtomicU8::new(code::UNKNOWN);

/// What is known of the code.
mod code {
    /// Nothing, or something was loaded.
    pub const UNKNOWN: u8 = 0;
    /// A thread looks at it.
    pub const LOOKED_AT: u8 = 1;
    /// It was looked at.
    pub const KNOWN: u8 = 2;
}
static SERVED: AtomicU64 = AtomicU64::new(0);
static SERVED_NS: AtomicU64 = AtomicU64::new(0);
static TIMES_AWAY: AtomicU32 = AtomicU32::new(0);

/// The kernel's table of mounts.
const TABLE: &str = "/proc/self/mountinfo";
/// Why names are the kernel's in many programs.
const NOT_ALL_CALLS: &str = "not all system calls of the program come by here";

/// A mount whose names are served.
pub struct Named {
    /// Its number in this process family.
    pub mount: u32,
    /// Its unique number in the kernel.
    pub id: u64,
    /// Its number in the kernel's table, which is used again.
    pub plain_id: u64,
    /// Device number, as in `stat`.
    pub device: u64,
    /// Attributes that the kernel knows of any file, as `statx` says it.
    pub attributes_mask: u64,
    /// Absolute path of its root, without links and without a slash at its end.
    pub path: Vec<u8>,
    /// The same, for the kernel.
    pub root: CString,
    /// The root, opened with `O_PATH`: what placeholders are copies of.
    pub placeholder: OwnedFd,
    /// The kernel starts no programs from it.
    pub no_exec: bool,
    /// The kernel's table of mounts; it says when it changes.
    table: OwnedFd,
}

/// Names are the kernel's from now on, for good.
pub fn end(why: &'static str) {
    if are_wanted() && !OFF.swap(true, Ordering::AcqRel) {
        report::passed(nr::OPEN, why);
    }
}

/// Whether they are.
pub fn are_over() -> bool {
    OFF.load(Ordering::Relaxed)
}

/// In a child: it has made no calls yet.
pub fn begin_again() {
    CALLS.store(0, Ordering::Relaxed);
    // Another thread of the parent may have looked at it.
    if CODE.load(Ordering::Relaxed) == code::LOOKED_AT {
        CODE.store(code::UNKNOWN, Ordering::Relaxed);
    }
    worth::begin_again();
    setting::begin_again();
    // SAFETY: the child has one thread, this one, so nobody else can hold or take the lock.
    unsafe {
        if LOOKING.is_locked() {
            LOOKING.force_unlock();
        }
    }
    // Its descriptor is closed in a child, as all of the library's.
    NAMED.store(ptr::null_mut(), Ordering::Release);
}

/// The mount whose names are served now; `None`: all of them are the kernel's. `path` is what the call is about, from descriptor
/// `dir` on.
pub fn named(dir: i32, path: &[u8]) -> Option<&'static Named> {
    if OFF.load(Ordering::Relaxed) || !READY.load(Ordering::Relaxed) {
        return None;
    }
    let again = AGAIN_NS.load(Ordering::Relaxed);
    if again != 0 {
        if clock::now_ns() < again {
            return None;
        }
        AGAIN_NS.store(0, Ordering::Relaxed);
    }
    let named = known();
    match named {
        // Before that nothing is served.
        Some(named) if client::is_attached(named.mount) && !is_code_known() => None,
        Some(named) => named.still_as_it_was().then_some(named),
        None => begin(dir, path),
    }
}

/// Whether all code of the process is known, and makes no system call that does not come by here; if it does, names are the kernel's for
/// good. Takes a millisecond for some megabytes of code that was not looked at; while another thread does that, it is not known.
pub fn is_code_known() -> bool {
    let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
    match CODE.compare_exchange(code::UNKNOWN, code::LOOKED_AT, order, failed) {
        Err(code::KNOWN) => !are_over(),
        Err(_) => false,
        Ok(_) => {
            if !executable::every_call_comes_by_here() {
                end(NOT_ALL_CALLS);
            }
            // Unless something was loaded meanwhile.
            let known = CODE.compare_exchange(code::LOOKED_AT, code::KNOWN, order, failed);
            known.is_ok() && !are_over()
        }
    }
}

/// The mount whose names are served or may come to be, if it is known already.
pub fn known() -> Option<&'static Named> {
    // SAFETY: from a box that is never freed.
    unsafe { NAMED.load(Ordering::Acquire).as_ref() }
}

/// Begins to serve names, when that is worth it, or enough calls were made.
#[cold]
fn begin(dir: i32, path: &[u8]) -> Option<&'static Named> {
    let enough = match setting::is_by_time() {
        true => worth::is_worth_looking(),
        false => CALLS.fetch_add(1, Ordering::Relaxed) >= after(),
    };
    if !enough {
        return None;
    }
    let _one = LOOKING.try_lock()?;
    let named = match Named::find(dir, path) {
        Ok(named) => named,
        Err(None) => {
            // Looked for again after as many calls, and no fewer than a few.
            let before = after().min(LOOK_CALLS);
            CALLS.store(after() - before, Ordering::Relaxed);
            worth::was_not_found();
            return None;
        }
        Err(Some(why)) => {
            end(why);
            return None;
        }
    };
    let named: &'static Named = Box::leak(Box::new(named));
    NAMED.store(ptr::from_ref(named).cast_mut(), Ordering::Release);
    Some(named)
}

/// Begins to measure a call that is served here.
pub fn begin_call(thread: &Thread) -> u64 {
    thread.asked.store(0, Ordering::Relaxed);
    clock::exact_ns()
}

/// Ends it: gives the inode that it asked for a lease on last, and how long it took then, ns; 0: none. Calls that ask for leases and take
/// as long as on the mount do not pay: names are the mount's for a while.
pub fn end_call(thread: &Thread, begun: u64) -> (u64, u64) {
    let asked = thread.asked.swap(0, Ordering::Relaxed);
    // What a call waits for without a lease it would wait for on the mount, too: a processor, or space.
    let took = match asked {
        0 => 0,
        _ => clock::exact_ns() - begun,
    };
    note_time(took.min(CALL_NS_MAX));
    (asked, took)
}

fn note_time(took: u64) {
    let all = SERVED_NS.fetch_add(took, Ordering::Relaxed) + took;
    if !(SERVED.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(CALLS_LOOKED_AT) {
        return;
    }
    SERVED_NS.store(0, Ordering::Relaxed);
    if all > CALLS_LOOKED_AT * CALL_NS {
        let times = TIMES_AWAY
            .fetch_add(1, Ordering::Relaxed)
            .min(DOUBLINGS_MAX);
        AGAIN_NS.store(clock::now_ns() + (AWAY_NS << times), Ordering::Relaxed);
        report::passed(nr::OPEN, "names do not pay for a while");
    }
}

/// Whether the daemon has said of an inode that it is mediated, and that is a directory, as far as is known here.
pub fn is_mediated_directory(named: &Named, ino: u64) -> bool {
    let client = client::current(named.mount);
    client.is_some_and(|client| {
        client.link.mediated_until(ino) != 0 && client.session.is_directory(ino) != Some(false)
    })
}

/// Libraries are about to be loaded: their code is looked at before names are served again.
pub fn look_at_code_again() {
    CODE.store(code::UNKNOWN, Ordering::Release);
}

/// The directory in which the mount lies that is served, and whether there is one.
pub fn may_be_on_mount(path: &[u8]) -> bool {
    match known() {
        _ if !path.starts_with(b"/") => true,
        Some(named) => path.starts_with(&named.path),
        None => !mounts::surely_elsewhere(path),
    }
}

impl Named {
    /// The number of the mount that `statx` with this mask shows.
    pub fn number_in(&self, mask: u32) -> u64 {
        match mask & MNT_ID_UNIQUE {
            0 => self.plain_id,
            _ => self.id,
        }
    }

    /// `fstatfs` of the mount's root: what the kernel says of the mount, it says of all of its files.
    pub fn statfs(&self, into: u64) -> i64 {
        let root = self.placeholder.as_raw_fd();
        let args = [root as u64, into, 0, 0, 0, 0];
        // SAFETY: the program's own call, but for the file that it names.
        unsafe { raw::syscall(nr::FSTATFS, &args) }
    }

    /// The result of a call that failed. `None`: the kernel makes it.
    pub fn failed(&self, client: &'static Client, number: u32, e: Errno) -> Option<i64> {
        let why = match e {
            shale_libfs::MEDIATED => "mediated",
            shale_libfs::BY_KERNEL => "left to the kernel",
            _ if (e == Errno::IO || client.link.is_broken())
                && client::set_aside_if_lost(self.mount, client) =>
            {
                "session lost"
            }
            _ => return Some(raw::fail(e.raw_os_error())),
        };
        report::passed(number, why);
        None
    }

    /// Whether nothing was mounted or unmounted since; looked at once a second, and always once this process has made children. If something was, names are the kernel's from
    /// now on.
    fn still_as_it_was(&self) -> bool {
        let now = clock::now_ns();
        let looked = LOOKED_NS.load(Ordering::Relaxed);
        if now - looked < LOOK_NS && !spawn::ever() {
            return true;
        }
        LOOKED_NS.store(now, Ordering::Relaxed);
        let changed = has_changed(self.table.as_raw_fd());
        if changed && read_table().is_none_or(|table| !self.is_alone_in(&table)) {
            end("something was mounted on the mount, or it was unmounted");
            return false;
        }
        true
    }

    /// Whether the table of mounts has this mount, as it was, and nothing below it.
    fn is_alone_in(&self, table: &[u8]) -> bool {
        let lines = || lines_of(table);
        let below = |path: &[u8]| {
            let rest = path.strip_prefix(&*self.path);
            rest.is_some_and(|rest| rest.starts_with(b"/"))
        };
        let own = lines().filter(|line| line.path == self.path).count();
        own == 1 && !lines().any(|line| below(&line.path))
    }

    /// The mount whose names this process may serve: the one on which `path` lies.
    ///
    /// # Errors
    /// Why there can be none, ever; `None`: there is none now, or the path lies elsewhere.
    fn find(dir: i32, path: &[u8]) -> Result<Self, Option<&'static str>> {
        LOOKED_NS.store(clock::now_ns(), Ordering::Relaxed);
        let status = kernel_text::read_string("/proc/self/status").map_err(|_| None)?;
        user::find(&status)?;
        // Opened before it is read: the kernel says of this file whether the table has changed since.
        let file = std::fs::File::open(TABLE).map_err(|_| None)?;
        let table = kernel_text::rest_of(&file).map_err(|_| None)?;
        let path = absolute(dir, path).ok_or(None)?;
        let mut lines = lines_of(&table);
        let line = lines.find(|line| line.is_shale && line.is_plain && line.holds(&path));
        let line = line.ok_or(None)?;
        Self::of(&line, shale_fd::own::hide(file.into()))
            .filter(|named| named.is_alone_in(&table))
            .ok_or(None)
    }

    fn of(line: &Line, table: OwnedFd) -> Option<Self> {
        let root = CString::new(&*line.path).ok()?;
        let dir = open_root(&root, true)?;
        let dir = dir.as_raw_fd();
        let mount = mounts::mount_of(dir)?;
        let asked = |mask| mounts::statx(dir, libc::AT_STATX_DONT_SYNC, mask);
        Some(Self {
            mount,
            id: asked(MNT_ID_UNIQUE)?.stx_mnt_id,
            plain_id: asked(MNT_ID)?.stx_mnt_id,
            device: mounts::get(mount)?.device,
            attributes_mask: asked(0)?.stx_attributes_mask,
            path: line.path.clone(),
            placeholder: shale_fd::own::hide(open_root(&root, false)?),
            root,
            no_exec: line.no_exec,
            table,
        })
    }
}

/// A descriptor of the root of a mount. `to_ask`: one that attributes can be read of, for the library itself.
fn open_root(root: &CString, to_ask: bool) -> Option<OwnedFd> {
    let flags = match to_ask {
        true => libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC,
        false => libc::O_PATH | libc::O_CLOEXEC,
    };
    let args = [root.as_ptr() as u64, flags as u64, 0, 0, 0, 0];
    // SAFETY: a path that ends with a zero byte.
    let fd = unsafe { raw::syscall(nr::OPEN, &args) };
    // SAFETY: made just now, and nobody else's.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Whether the kernel has changed the table of mounts since this was asked last.
fn has_changed(table: i32) -> bool {
    const POLL: u32 = 7;
    let mut asked = libc::pollfd {
        fd: table,
        events: libc::POLLPRI,
        revents: 0,
    };
    let args = [(&raw mut asked) as u64, 1, 0, 0, 0, 0];
    // SAFETY: one entry, which the kernel fills in; it does not wait.
    let got = unsafe { raw::syscall(POLL, &args) };
    got != 0
}

/// A path from the root on, of one that begins at descriptor `dir`.
fn absolute(dir: i32, path: &[u8]) -> Option<Vec<u8>> {
    if path.starts_with(b"/") {
        return Some(path.into());
    }
    let dir = match dir {
        libc::AT_FDCWD => std::env::current_dir(),
        dir => std::fs::read_link(format!("/proc/self/fd/{dir}")),
    };
    let dir = dir.ok()?;
    let dir = dir.as_os_str().as_bytes();
    let dir = dir.strip_suffix(b"/").unwrap_or(dir);
    Some([dir, b"/", path].concat())
}

fn read_table() -> Option<Vec<u8>> {
    kernel_text::read(TABLE).ok()
}

/// One line of the table of mounts.
struct Line {
    path: Vec<u8>,
    is_shale: bool,
    /// The whole tree, for reading and writing.
    is_plain: bool,
    no_exec: bool,
}

impl Line {
    /// Whether a path leads to this mount, if nothing else is mounted below.
    fn holds(&self, path: &[u8]) -> bool {
        let rest = path.strip_prefix(&*self.path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    }
}

fn lines_of(table: &[u8]) -> impl Iterator<Item = Line> {
    table.split(|&b| b == b'\n').filter_map(|line| {
        let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
        let dash = fields.iter().position(|&f| f == b"-")?;
        let has = |field: &[u8], word: &[u8]| field.split(|&b| b == b',').any(|w| w == word);
        let (root, options) = (*fields.get(3)?, *fields.get(5)?);
        Some(Line {
            path: unescaped(fields.get(4)?),
            is_shale: fields.get(dash + 1) == Some(&&b"fuse.shale"[..]),
            is_plain: root == b"/" && has(options, b"rw") && !has(fields.get(dash + 3)?, b"ro"),
            no_exec: has(options, b"noexec"),
        })
    })
}

/// A path of the table, in which four characters are written as octal numbers.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let (mut path, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((&first, behind)) = rest.split_first() {
        let number = behind.get(..3).filter(|_| first == b'\\');
        let number = number.and_then(|n| u8::from_str_radix(std::str::from_utf8(n).ok()?, 8).ok());
        path.push(number.unwrap_or(first));
        rest = &behind[if number.is_some() { 3 } else { 0 }..];
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 0:21 / / rw,relatime - ext4 /dev/vda rw\n\
        30 22 0:40 / /mnt/a\\040b rw,nosuid,noexec - fuse.shale shale rw,user_id=0\n\
        31 22 0:41 / /mnt/r ro - fuse.shale shale rw\n\
        32 22 0:41 /sub /mnt/s rw - fuse.shale shale rw\n";

    #[test]
    fn a_mount_is_found_by_its_line() {
        let lines: Vec<Line> = lines_of(TABLE).collect();
        assert_eq!(lines.len(), 4);
        let plain: Vec<bool> = lines.iter().map(|l| l.is_shale && l.is_plain).collect();
        assert_eq!(plain, [false, true, false, false]);
        assert_eq!(lines[1].path, b"/mnt/a b");
        assert!(lines[1].no_exec && !lines[2].no_exec);
    }
}
