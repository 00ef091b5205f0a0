//! Calls about paths, but for those that open.

use crate::calls::attributes::{self, Of};
use crate::calls::vectors::{Access, Buffer};
use crate::client::Client;
use crate::names::place::{self, Place};
use crate::names::state::Named;
use crate::names::worth::Use;
use crate::names::{kernel, open, user, xattrs};
use shale_fd::limits;
use shale_fd::placeholder;
use shale_fd::report;
use shale_interpose::raw::{self, Args, nr};
use shale_libfs::{Errno, SetTime, Timestamp, Tree};

/// Numbers of the calls that are served here.
pub const CALLS: [u32; 29] = [
    nr::STAT,
    nr::LSTAT,
    nr::NEWFSTATAT,
    nr::STATX,
    nr::ACCESS,
    nr::FACCESSAT,
    nr::FACCESSAT2,
    nr::RENAME,
    nr::RENAMEAT,
    nr::RENAMEAT2,
    nr::MKDIR,
    nr::MKDIRAT,
    nr::RMDIR,
    nr::UNLINK,
    nr::UNLINKAT,
    nr::LINK,
    nr::LINKAT,
    nr::SYMLINK,
    nr::SYMLINKAT,
    nr::READLINK,
    nr::READLINKAT,
    nr::CHMOD,
    nr::FCHMODAT,
    nr::CHOWN,
    nr::LCHOWN,
    nr::FCHOWNAT,
    nr::UTIMENSAT,
    nr::TRUNCATE,
    nr::STATFS,
];

const HERE: i32 = libc::AT_FDCWD;
/// Calls whose first argument is a descriptor of a directory, and the second a path.
const AT: [u32; 16] = [
    nr::NEWFSTATAT,
    nr::STATX,
    nr::OPENAT,
    nr::OPENAT2,
    nr::MKDIRAT,
    nr::MKNODAT,
    nr::UNLINKAT,
    nr::READLINKAT,
    nr::FACCESSAT,
    nr::FACCESSAT2,
    nr::FCHMODAT,
    nr::FCHMODAT2,
    nr::FCHOWNAT,
    nr::FUTIMESAT,
    nr::UTIMENSAT,
    nr::NAME_TO_HANDLE_AT,
];

/// What to do with a path.
enum Act {
    Stat { follow: bool, into: u64 },
    Statx { follow: bool, mask: u32, into: u64 },
    Access { want: u32 },
    Mkdir { mode: u32 },
    Remove { directory: bool },
    Readlink { into: u64, bytes: u64 },
    Chmod { mode: u32 },
    Chown { uid: u32, gid: u32, follow: bool },
    Times { times: u64, follow: bool },
    Truncate { size: i64 },
    Statfs { into: u64 },
    Attribute { asked: xattrs::Asked, follow: bool },
}

/// Serves a call about a path, if it can be.
pub fn serve(named: &'static Named, number: u32, args: &Args) -> Option<i64> {
    let (client, done) = match of_two(named, number, args) {
        Some(done) => done,
        None => {
            let (dir, path, act) = of_one(number, args)?;
            let what = Use::of(number, args);
            // SAFETY: the program's own call.
            let place = place::place(named, dir, unsafe { place::path(path) }?, what)?;
            let client = place.client(named)?;
            let working = act.removes_working(client, &place);
            let done = act.on(named, client, &place)?;
            if working && done.is_ok() {
                place::tell_kernel(dir, path);
            }
            if done.is_ok() && what.makes() {
                place.made(number, client);
            }
            (client, done)
        }
    };
    match done {
        Ok(result) => {
            report::fast(number);
            Some(result)
        }
        Err(e) => named.failed(client, number, e),
    }
}

/// A call with one path: descriptor of a directory, path, and what to do. `None`: with flags that are the kernel's, or another call.
fn of_one(number: u32, a: &Args) -> Option<(i32, u64, Act)> {
    let dir = a[0] as i32;
    let link = |flags: u64| follows(flags as i32, 0);
    Some(match number {
        nr::STAT | nr::LSTAT => {
            let follow = number == nr::STAT;
            (HERE, a[0], Act::Stat { follow, into: a[1] })
        }
        nr::NEWFSTATAT => {
            let follow = follows(a[3] as i32, libc::AT_NO_AUTOMOUNT)?;
            (dir, a[1], Act::Stat { follow, into: a[2] })
        }
        nr::STATX => {
            let sync = libc::AT_STATX_FORCE_SYNC | libc::AT_STATX_DONT_SYNC;
            let follow = follows(a[2] as i32, libc::AT_NO_AUTOMOUNT | sync)?;
            let (mask, into) = (a[3] as u32, a[4]);
            (dir, a[1], Act::Statx { follow, mask, into })
        }
        nr::ACCESS => (HERE, a[0], Act::Access { want: a[1] as u32 }),
        nr::FACCESSAT => (dir, a[1], Act::Access { want: a[2] as u32 }),
        nr::FACCESSAT2 if a[3] as i32 & !libc::AT_EACCESS == 0 => {
            (dir, a[1], Act::Access { want: a[2] as u32 })
        }
        nr::MKDIR => (HERE, a[0], Act::Mkdir { mode: a[1] as u32 }),
        nr::MKDIRAT => (dir, a[1], Act::Mkdir { mode: a[2] as u32 }),
        nr::RMDIR => (HERE, a[0], Act::Remove { directory: true }),
        nr::UNLINK => (HERE, a[0], Act::Remove { directory: false }),
        nr::UNLINKAT if a[2] as i32 & !libc::AT_REMOVEDIR == 0 => {
            let directory = a[2] as i32 != 0;
            (dir, a[1], Act::Remove { directory })
        }
        nr::READLINK => {
            let (into, bytes) = (a[1], a[2]);
            (HERE, a[0], Act::Readlink { into, bytes })
        }
        nr::READLINKAT => {
            let (into, bytes) = (a[2], a[3]);
            (dir, a[1], Act::Readlink { into, bytes })
        }
        nr::CHMOD => (HERE, a[0], Act::Chmod { mode: a[1] as u32 }),
        nr::FCHMODAT => (dir, a[1], Act::Chmod { mode: a[2] as u32 }),
        nr::CHOWN | nr::LCHOWN => {
            let (uid, gid, follow) = (a[1] as u32, a[2] as u32, number == nr::CHOWN);
            (HERE, a[0], Act::Chown { uid, gid, follow })
        }
        nr::FCHOWNAT => {
            let (uid, gid, follow) = (a[2] as u32, a[3] as u32, link(a[4])?);
            (dir, a[1], Act::Chown { uid, gid, follow })
        }
        nr::UTIMENSAT => {
            let (times, follow) = (a[2], link(a[3])?);
            (dir, a[1], Act::Times { times, follow })
        }
        nr::TRUNCATE => (HERE, a[0], Act::Truncate { size: a[1] as i64 }),
        nr::STATFS => (HERE, a[0], Act::Statfs { into: a[1] }),
        _ if xattrs::CALLS.contains(&number) => {
            let (asked, follow) = (xattrs::Asked::of(number, a)?, xattrs::follows(number));
            (HERE, a[0], Act::Attribute { asked, follow })
        }
        _ => return None,
    })
}

/// Whether a symbolic link at the end is followed; `None`: there are other flags than that and `known`.
fn follows(flags: i32, known: i32) -> Option<bool> {
    let link = libc::AT_SYMLINK_NOFOLLOW;
    (flags & !(link | known) == 0).then_some(flags & link == 0)
}

type Done = Result<i64, Errno>;

impl Act {
    /// Whether this is to remove the working directory.
    fn removes_working(&self, client: &Client, place: &Place<'_>) -> bool {
        let Self::Remove { directory: true } = self else {
            return false;
        };
        let working = place::known_working();
        working.is_some_and(|ino| {
            let found = place.tree(&client.session).lstat(place.path);
            found.is_ok_and(|attr| attr.ino == ino)
        })
    }

    /// `None`: it is the kernel's to do.
    fn on(self, named: &Named, client: &Client, place: &Place<'_>) -> Option<Done> {
        let (tree, path) = (place.tree(&client.session), place.path);
        let nothing = |done: Result<(), Errno>| Some(done.map(|()| 0));
        match self {
            Self::Stat { follow, into } => Some(
                attr(&tree, path, follow).map(|a| attributes::put_stat(&a, named.device, into)),
            ),
            Self::Statx { follow, mask, into } => Some(attr(&tree, path, follow).map(|attr| {
                let of = Of {
                    device: named.device,
                    mount: named.number_in(mask),
                    attributes_mask: named.attributes_mask,
                };
                attributes::put_statx(&attr, &of, mask, into)
            })),
            // What may not be started from the mount is not known by its mode.
            Self::Access { want } if want & libc::X_OK as u32 != 0 && named.no_exec => None,
            Self::Access { want } => nothing(tree.access(path, want)),
            Self::Mkdir { mode } => nothing(tree.mkdir(path, mode)),
            Self::Remove { directory } => remove(&tree, path, directory),
            Self::Readlink { into, bytes } => Some(readlink(&tree, path, into, bytes)),
            Self::Chmod { mode } => {
                if !user::is_root() && !open::keeps_open(libc::O_RDWR, mode) {
                    keep_open(&tree, path, true, "is closed to its owner");
                }
                nothing(tree.chmod(path, mode))
            }
            Self::Chown { uid, gid, follow } => {
                nothing(tree.chown(path, given(uid), given(gid), follow))
            }
            Self::Times { times, follow } => {
                // SAFETY: the program gave two times there, or nothing.
                let [atime, mtime] = unsafe { set_times(times) }?;
                nothing(tree.utimens(path, atime, mtime, follow))
            }
            Self::Truncate { size } if size < 0 => Some(Err(Errno::INVAL)),
            Self::Truncate { size } if size as u64 > limits::file_bytes() => {
                Some(Ok(limits::exceeded()))
            }
            Self::Truncate { size } => nothing(tree.truncate(path, size as u64)),
            Self::Statfs { into } => Some(attr(&tree, path, true).map(|_| named.statfs(into))),
            Self::Attribute { asked, follow } => {
                let tree = &tree;
                asked.done(&xattrs::Of::Path { tree, path, follow })
            }
        }
    }
}

fn attr(tree: &Tree, path: &[u8], follow: bool) -> Result<shale_libfs::Attr, Errno> {
    match follow {
        true => tree.stat(path),
        false => tree.lstat(path),
    }
}

/// An owner or group of which -1 leaves the one that there is.
pub fn given(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

/// Times of `utimensat`: of access and change. `None`: the kernel says what is wrong with them.
///
/// # Safety
/// `at` is null, or what the program gave for two times.
pub unsafe fn set_times(at: u64) -> Option<[Option<SetTime>; 2]> {
    if at == 0 {
        return Some([Some(SetTime::Now); 2]);
    }
    Buffer::check::<[libc::timespec; 2]>(at, Access::Read).ok()?;
    // SAFETY: the caller's promise.
    let given = unsafe { (at as *const [libc::timespec; 2]).read_unaligned() };
    let one = |t: &libc::timespec| match t.tv_nsec {
        libc::UTIME_OMIT => Some(None),
        libc::UTIME_NOW => Some(Some(SetTime::Now)),
        nsec @ 0..1_000_000_000 => Some(Some(SetTime::At(Timestamp {
            sec: t.tv_sec,
            nsec: nsec as u32,
        }))),
        _ => None,
    };
    Some([one(&given[0])?, one(&given[1])?])
}

/// Removes a name. A file that is open by a placeholder has to be the kernel's before it loses its names: should the session be lost, its
/// number would find it no more.
fn remove(tree: &Tree, path: &[u8], directory: bool) -> Option<Done> {
    keep_open(tree, path, false, "loses its name");
    let removed = match directory {
        true => tree.rmdir(path),
        false => tree.unlink(path),
    };
    Some(removed.map(|()| 0))
}

/// The file at a path may become one that the kernel cannot open any more.
fn keep_open(tree: &Tree, path: &[u8], follow: bool, why: &'static str) {
    if placeholder::any()
        && let Ok(found) = attr(tree, path, follow)
        && placeholder::has(found.ino)
    {
        placeholder::materialise_inode(found.ino, why);
    }
}

fn readlink(tree: &Tree, path: &[u8], into: u64, bytes: u64) -> Done {
    if bytes as i32 <= 0 {
        return Err(Errno::INVAL);
    }
    let target = tree.readlink(path)?;
    let bytes = target.len().min(bytes as i32 as usize);
    match Buffer::of(into, bytes as u64, Access::Write) {
        Ok(buffer) => {
            // SAFETY: the program gave the buffer for this call.
            unsafe { buffer.space() }.copy_from_slice(&target[..bytes]);
            Ok(bytes as i64)
        }
        Err(result) => Ok(result),
    }
}

/// A call with two paths, and the client that has made it. `None`: it is another one, or the kernel's.
fn of_two(named: &Named, number: u32, a: &Args) -> Option<(&'static Client, Done)> {
    let (from, to, flags) = match number {
        nr::RENAME | nr::LINK => ((HERE, a[0]), (HERE, a[1]), 0),
        nr::RENAMEAT => ((a[0] as i32, a[1]), (a[2] as i32, a[3]), 0),
        nr::RENAMEAT2 | nr::LINKAT => ((a[0] as i32, a[1]), (a[2] as i32, a[3]), a[4] as u32),
        nr::SYMLINK => return symlink(named, a[0], (HERE, a[1])),
        nr::SYMLINKAT => return symlink(named, a[0], (a[1] as i32, a[2])),
        _ => return None,
    };
    // SAFETY: the program's own call.
    let (from_path, to_path) = unsafe { (place::path(from.1)?, place::path(to.1)?) };
    let mut from = place::place(named, from.0, from_path, Use::Ask)?;
    let to = place::place(named, to.0, to_path, Use::Make)?;
    // What a lease is worth at one end it is at both.
    from.takes |= to.takes;
    let client = from.client(named)?;
    let (old, new) = (from.tree(&client.session), to.tree(&client.session));
    let done = match number {
        nr::LINK | nr::LINKAT if flags != 0 => return None,
        nr::LINK | nr::LINKAT => old.link_into(from.path, &new, to.path),
        _ => {
            keep_open(&new, to.path, false, "loses its name");
            old.rename_into(from.path, &new, to.path, flags)
        }
    };
    if done.is_ok() {
        to.made(number, client);
    }
    Some((client, done.map(|()| 0)))
}

fn symlink(named: &Named, target: u64, at: (i32, u64)) -> Option<(&'static Client, Done)> {
    // SAFETY: the program's own call.
    let (target, path) = unsafe { (place::path(target)?, place::path(at.1)?) };
    let place = place::place(named, at.0, path, Use::Make)?;
    let client = place.client(named)?;
    let made = place.tree(&client.session).symlink(target, place.path);
    if made.is_ok() {
        place.made(nr::SYMLINK, client);
    }
    Some((client, made.map(|()| 0)))
}

/// The paths that a call gives; `None`: it is none about paths.
pub fn given_to<'a>(number: u32, a: &Args) -> Option<[Option<&'a [u8]>; 2]> {
    let (first, second) = match number {
        nr::RENAME | nr::LINK | nr::SYMLINK => (a[0], a[1]),
        nr::RENAMEAT | nr::RENAMEAT2 | nr::LINKAT => (a[1], a[3]),
        nr::SYMLINKAT => (a[0], a[2]),
        // Of a socket the path lies behind the family.
        nr::BIND | nr::CONNECT => (
            a[1].saturating_add(size_of::<libc::sa_family_t>() as u64),
            0,
        ),
        nr::INOTIFY_ADD_WATCH => (a[1], 0),
        nr::FANOTIFY_MARK => (a[4], 0),
        _ if AT.contains(&number) => (a[1], 0),
        _ if CALLS.contains(&number) || open::CALLS.contains(&number) => (a[0], 0),
        _ if xattrs::CALLS.contains(&number) => (a[0], 0),
        _ if kernel::BY_PATH.contains(&number) => (a[0], 0),
        _ => return None,
    };
    // SAFETY: the program's own call.
    Some(unsafe { [place::path(first), place::path(second)] })
}

/// Whether a call is about two paths.
pub fn have_two(number: u32) -> bool {
    matches!(
        number,
        nr::RENAME | nr::RENAMEAT | nr::RENAMEAT2 | nr::LINK | nr::LINKAT
    )
}

/// Where the paths of a call lead; no leases are asked for on them.
pub fn places<'a>(named: &Named, number: u32, a: &Args) -> [Option<Place<'a>>; 2] {
    let of = |(dir, path): (i32, &'a [u8])| place::place(named, dir, path, Use::Ask);
    asked(number, a).map(|asked| asked.and_then(of))
}

/// The paths of a call, each with the descriptor of a directory; the first one only of a call with two.
pub fn asked<'a>(number: u32, a: &Args) -> [Option<(i32, &'a [u8])>; 2] {
    let first = match number {
        nr::RENAME | nr::LINK => Some((HERE, a[0])),
        nr::RENAMEAT | nr::RENAMEAT2 | nr::LINKAT => Some((a[0] as i32, a[1])),
        _ => None,
    };
    // SAFETY: the program's own call.
    let first = first.and_then(|(dir, path)| Some((dir, unsafe { place::path(path) }?)));
    [first, target(number, a)]
}

/// What a call is about: descriptor of a directory, and path. Of two paths the one that is made.
pub fn target<'a>(number: u32, a: &Args) -> Option<(i32, &'a [u8])> {
    let [first, second] = given_to(number, a)?;
    let (dir, path) = match number {
        nr::RENAME | nr::LINK | nr::SYMLINK => (HERE, second),
        nr::RENAMEAT | nr::RENAMEAT2 | nr::LINKAT => (a[2] as i32, second),
        nr::SYMLINKAT => (a[1] as i32, second),
        number if AT.contains(&number) => (a[0] as i32, first),
        _ => (HERE, first),
    };
    Some((dir, path?))
}

/// The error of a call, as the kernel returns it.
pub fn fail(e: Errno) -> i64 {
    raw::fail(e.raw_os_error())
}
