//! Where the path of a call leads to: the directory of the volume in which it begins, and the rest of it.

use crate::calls::vectors::USER_END;
use crate::client::{self, Client};
use crate::names::setting;
use crate::names::state::{self, Named};
use crate::names::user;
use crate::names::worth::{self, Start, Use};
use core::ffi::CStr;
use core::sync::atomic::Ordering;
use parking_lot::Mutex;
use shale_fd::description;
use shale_fd::mounts::{self, MNT_ID_UNIQUE};
use shale_fd::report;
use shale_fd::table::{self, Entry};
use shale_format::Ino;
use shale_interpose::probe;
use shale_interpose::raw::{self, nr};
use shale_libfs::{Session, Tree};
use shale_proto::mounts::USED;
use std::sync::Arc;

/// Longest path that a call may give, with its zero byte.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// The process's working directory, if it was asked for since it changed.
static WORKING: Mutex<Option<Working>> = Mutex::new(None);

#[derive(Clone, Copy)]
struct Working {
    /// Its inode on the mount; 0: it lies elsewhere.
    ino: u64,
    known_as: Start,
    /// Where it lies above the mount: bytes of the mount's path that lead there, with a slash behind them; 0: it does not.
    above: usize,
}

/// A path on the mount.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Directory in which it begins without a slash at its beginning.
    pub start: u64,
    /// The same directory, as [`worth`] knows it.
    pub known_as: Start,
    /// The path; with a slash at its beginning it begins at the volume's root. Not empty.
    pub path: &'a [u8],
    /// Leases may be asked for there.
    pub takes: bool,
    /// The kernel has that directory: it is the working directory, or the kernel has opened it.
    pub is_kernels: bool,
}

impl Place<'_> {
    /// The client that serves it, if there is one, or there can be one and that is worth it.
    pub fn client(&self, named: &Named) -> Option<&'static Client> {
        let client = match self.takes {
            true => {
                if !state::is_code_known() {
                    return None;
                }
                setting::begin_serving();
                client::get_now(named.mount)
            }
            // What is served here lies below a directory that was taken before.
            false => client::current(named.mount),
        }?;
        user::is_judged_alike(&client.session).then_some(client)
    }

    /// Call `number` of this process has made a name there, by `client`.
    pub fn made(&self, number: u32, client: &Client) {
        if worth::made(self.known_as, self.path, client.newly_taken()) {
            report::passed(number, worth::LEFT);
        }
    }

    /// The tree in which the path is to be looked up.
    pub fn tree(&self, session: &Arc<Session>) -> Tree {
        let tree = session.tree(user::caller(session));
        let tree = tree.mounted_at(self.start, self.takes);
        tree.with_start_of_kernel(self.is_kernels)
    }
}

/// The path at an address that a call gives; `None`: the kernel says what is wrong with it.
///
/// # Safety
/// `at` is what the program gave for a path.
pub unsafe fn path<'a>(at: u64) -> Option<&'a [u8]> {
    if !(4096..USER_END).contains(&at) {
        return None;
    }
    // SAFETY: a string of the program's, as it says.
    let path = unsafe { probe::string(at, PATH_MAX) }?.to_bytes();
    (!path.is_empty()).then_some(path)
}

/// Where a path leads that a call gives with a descriptor of a directory, and whether that use of it may take leases; `None`: not to
/// the mount, as far as is known here.
pub fn place<'a>(named: &Named, dir: i32, asked: &'a [u8], what: Use) -> Option<Place<'a>> {
    let (start, known_as, path) = start_of(named, dir, asked)?;
    let mut takes = worth::may_take(named.mount, known_as, path, what);
    // Once this process is a client the daemon says so.
    let is_first = setting::is_by_time() && what.makes() && !client::is_attached(named.mount);
    if takes && is_first && is_used_by_others(dir, asked) {
        worth::leave(core::iter::once((known_as, path)));
        takes = false;
    }
    Some(Place {
        start,
        known_as,
        path,
        takes,
        is_kernels: dir == libc::AT_FDCWD || table::get(dir) == Entry::Kernel,
    })
}

/// Whether other processes list the directory of a path, that a call gives with a descriptor of a directory, through the mount. Asks the
/// mount.
#[cold]
pub fn is_used_by_others(dir: i32, path: &[u8]) -> bool {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |n| n + 1);
    let parent = match path[..end].iter().rposition(|&b| b == b'/') {
        Some(at) => &path[..=at],
        None => b"./",
    };
    let parent = match parent.starts_with(b"/") || dir == libc::AT_FDCWD {
        true => parent.to_vec(),
        false => [format!("/proc/self/fd/{dir}/").as_bytes(), parent].concat(),
    };
    rustix::fs::getxattr(&*parent, USED, &mut [0u8; 1][..]).is_ok()
}

/// Whether a call about a path is the mount's without a look, since its directory is left to it.
pub fn is_left(named: &Named, dir: i32, path: &[u8]) -> bool {
    worth::any_left()
        && start_of(named, dir, path).is_some_and(|(_, start, path)| worth::is_left(start, path))
}

/// The directory in which a path begins, also as [`worth`] knows it, and the path there.
fn start_of<'a>(named: &Named, dir: i32, path: &'a [u8]) -> Option<(u64, Start, &'a [u8])> {
    let root = Ino::ROOT.0;
    if path.starts_with(b"/") {
        return Some((root, Start::of(root), behind(path, &named.path)?));
    }
    let start = match dir {
        libc::AT_FDCWD => {
            let working = working(named);
            return match working.ino {
                0 if working.above == 0 => None,
                // No link is on the way from there: so the kernel has it.
                0 => Some((
                    root,
                    Start::of(root),
                    behind(path, &named.path[working.above..])?,
                )),
                ino => Some((ino, working.known_as, path)),
            };
        }
        dir => match table::get(dir) {
            Entry::Kernel => directory(named, dir)?,
            // It was opened here, and is listed by its placeholder.
            Entry::File(index) if description::get(index).is_directory() => {
                description::get(index).ino.load(Ordering::Relaxed)
            }
            _ => return None,
        },
    };
    Some((start, Start::of(start), path))
}

/// What of a path leads on from the root of the mount, that begins with the path to there, as the kernel has it.
fn behind<'a>(path: &'a [u8], to_mount: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(to_mount)?;
    match rest.first() {
        None => Some(b"/"),
        Some(b'/') => Some(rest),
        Some(_) => None,
    }
}

/// The working directory, and whether it lies on the mount or above it.
fn working(named: &Named) -> Working {
    let mut known = WORKING.lock();
    match *known {
        Some(working) => working,
        // Under the lock: who changes it forgets what was found before.
        None => {
            let mut space = [0u8; PATH_MAX];
            let path = path_of_working(&mut space);
            let ino = directory(named, libc::AT_FDCWD).unwrap_or(0);
            let below = path.and_then(|path| behind(path, &named.path));
            let known_as = below.map(|path| Start::of(Ino::ROOT.0).below(path));
            let above = path.filter(|_| ino == 0).map_or(0, |path| {
                let end = path.strip_suffix(b"/").unwrap_or(path).len();
                let leads = named.path.starts_with(path) && named.path.get(end) == Some(&b'/');
                if leads && is_root(named, end + 1) {
                    end + 1
                } else {
                    0
                }
            });
            *known.insert(Working {
                ino,
                known_as: known_as.unwrap_or(Start::of(ino)),
                above,
            })
        }
    }
}

/// Whether what follows in the mount's path leads from the working directory to the mount: something else may have been mounted over both.
fn is_root(named: &Named, from: usize) -> bool {
    let path = CStr::from_bytes_with_nul(&named.root.as_bytes_with_nul()[from..]);
    let mask = libc::STATX_INO | MNT_ID_UNIQUE;
    let status = path
        .ok()
        .and_then(|path| mounts::statx_at(libc::AT_FDCWD, path, libc::AT_STATX_DONT_SYNC, mask));
    status.is_some_and(|status| status.stx_mnt_id == named.id && status.stx_ino == Ino::ROOT.0)
}

/// The path of the working directory; `None`: the kernel knows none.
#[cold]
fn path_of_working(path: &mut [u8; PATH_MAX]) -> Option<&[u8]> {
    let args = [path.as_mut_ptr() as u64, PATH_MAX as u64, 0, 0, 0, 0];
    // SAFETY: it writes at most so many bytes there.
    let bytes = unsafe { raw::syscall(nr::GETCWD, &args) };
    // With the zero byte. Where it is out of reach, it begins with no slash (getcwd(2)).
    let path = path.get(..usize::try_from(bytes).ok()?.checked_sub(1)?)?;
    path.starts_with(b"/").then_some(path)
}

/// The inode of the working directory, if it was asked for and lies on the mount.
pub fn known_working() -> Option<u64> {
    let working = *WORKING.lock();
    working.map(|w| w.ino).filter(|&ino| ino != 0)
}

/// The name that a call gave is gone: has the kernel look it up, so that what it knows by that name has none any more (getcwd(2)).
pub fn tell_kernel(dir: i32, path: u64) {
    let args = [dir as u64, path, libc::F_OK as u64, 0, 0, 0];
    // SAFETY: the program's own path. What the kernel says of it is known.
    let _ = unsafe { raw::syscall(nr::FACCESSAT, &args) };
}

/// The working directory has changed.
pub fn forget_working() {
    *WORKING.lock() = None;
}

/// In a child, which may change it by itself.
pub fn begin_again() {
    // SAFETY: the child has one thread, this one, so nobody else can hold or take the lock.
    unsafe {
        if WORKING.is_locked() {
            WORKING.force_unlock();
        }
    }
    forget_working();
}

/// The inode of a directory, if it lies on the mount.
fn directory(named: &Named, dir: i32) -> Option<u64> {
    let mask = libc::STATX_TYPE | libc::STATX_INO | MNT_ID_UNIQUE;
    let status = mounts::statx(dir, libc::AT_STATX_DONT_SYNC, mask)?;
    let is_dir = u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFDIR;
    (is_dir && status.stx_mnt_id == named.id).then_some(status.stx_ino)
}

/// Whether a path of the kernel's names a descriptor of this process.
pub fn is_of_descriptor(path: &[u8]) -> bool {
    let proc = path.starts_with(b"/proc/") && path.windows(3).any(|w| w == b"/fd");
    proc || path.starts_with(b"/dev/fd") || path.starts_with(b"/dev/std")
}
