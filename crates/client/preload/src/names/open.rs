//! Files and directories that are opened in the process.

use crate::calls::{descriptors, names as opened};
use crate::names::place;
use crate::names::spawn;
use crate::names::state::Named;
use crate::names::user;
use crate::names::worth::Use;
use core::sync::atomic::Ordering;
use shale_fd::description::{self, Description};
use shale_fd::locked;
use shale_fd::placeholder::{self, OpenFile, OpenedBy};
use shale_fd::report;
use shale_fd::table;
use shale_interpose::outcome::FD_END;
use shale_interpose::raw::{self, Args, nr};
use shale_libfs::{Errno, File, OFlags};
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Flags of `open` that are served; with any other one the kernel opens.
const SERVED: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_CLOEXEC
    | libc::O_NOFOLLOW
    | libc::O_NONBLOCK
    | libc::O_NOCTTY
    | libc::O_SYNC
    | libc::O_DIRECTORY
    | LARGE;
/// `O_LARGEFILE`, as the kernel has it.
const LARGE: i32 = 0o100_000;
/// Flags that matter with `O_PATH` (open(2)).
const WITH_PATH: i32 = libc::O_PATH | libc::O_CLOEXEC | libc::O_DIRECTORY | libc::O_NOFOLLOW;

/// Numbers of the calls that open by a path.
pub const CALLS: [u32; 4] = [nr::OPEN, nr::CREAT, nr::OPENAT, nr::OPENAT2];

/// What a call that opens asks for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    number: u32,
    dir: i32,
    path: u64,
    flags: i32,
    mode: u32,
}

impl Asked {
    /// `None`: the call opens nothing by a path.
    pub fn of(number: u32, args: &Args) -> Option<Self> {
        let asked = |dir: i32, path: u64, flags: i32, mode: u64| {
            let path_only = flags & libc::O_PATH != 0;
            Some(Self {
                number,
                dir,
                path,
                flags: if path_only { flags & WITH_PATH } else { flags },
                mode: mode as u32,
            })
        };
        let create = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        match number {
            nr::OPEN => asked(libc::AT_FDCWD, args[0], args[1] as i32, args[2]),
            nr::CREAT => asked(libc::AT_FDCWD, args[0], create, args[1]),
            nr::OPENAT => asked(args[0] as i32, args[1], args[2] as i32, args[3]),
            _ => None,
        }
    }

    fn is_served(&self) -> bool {
        if self.is_path_only() {
            return true;
        }
        let access = self.flags & libc::O_ACCMODE;
        let cuts_unwritten = self.flags & libc::O_TRUNC != 0 && access == libc::O_RDONLY;
        self.flags & !SERVED == 0 && access != libc::O_ACCMODE && !cuts_unwritten
    }

    /// Whether it makes a file that is not there.
    pub fn creates(&self) -> bool {
        self.has(libc::O_CREAT)
    }

    /// Whether the kernel may have to open the file again and would refuse that to a user who is not root: it finds directories by their handle
    /// only, and a new file may have a mode by which not even its owner may open it so.
    fn is_roots(&self) -> bool {
        let access = self.flags & libc::O_ACCMODE;
        let closed = !keeps_open(access, self.mode & !user::umask());
        self.is_path_only() || self.has(libc::O_DIRECTORY) || self.creates() && closed
    }

    fn is_path_only(&self) -> bool {
        self.flags & libc::O_PATH != 0
    }

    fn has(&self, flag: i32) -> bool {
        self.flags & flag == flag
    }

    /// Flags as `F_GETFL` shows them.
    fn kept(&self) -> i32 {
        let gone = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY | libc::O_CLOEXEC;
        self.flags & !gone | LARGE
    }
}

/// Opens a file, if it can be done here.
pub fn open(named: &'static Named, asked: &Asked) -> Option<i64> {
    if !asked.is_served() || !user::is_root() && asked.is_roots() {
        return None;
    }
    // SAFETY: the program's own call.
    let path = unsafe { place::path(asked.path) }?;
    let what = if asked.creates() { Use::Make } else { Use::Ask };
    let place = place::place(named, asked.dir, path, what)?;
    let client = place.client(named)?;
    // After that: who makes a child meanwhile sees that names are served, or this sees the child.
    if !spawn::may_open() {
        return None;
    }
    // What is made needs a descriptor for certain.
    let mut number = Number(None);
    if asked.has(libc::O_CREAT) {
        number = Number::new(named, asked).ok()?;
    }
    let tree = place.tree(&client.session);
    let flags = OFlags::from_bits_retain((asked.flags & !libc::O_NONBLOCK) as u32);
    let file = match tree.open(place.path, flags, asked.mode) {
        Ok(file) => {
            if asked.creates() {
                place.made(asked.number, client);
            }
            file
        }
        // A device, a FIFO, a socket.
        Err(Errno::NXIO) => return None,
        Err(e) => return named.failed(client, asked.number, e),
    };
    if !user::is_root() && !is_own(&file) {
        return None;
    }
    let directory = match file.is_regular() {
        true => None,
        false => {
            let attr = file.stat().ok()?;
            // With `O_PATH` anything is opened.
            let is_dir = attr.mode & libc::S_IFMT == libc::S_IFDIR;
            is_dir.then_some(())?;
            Some(attr.generation)
        }
    };
    if number.0.is_none() {
        number = Number::new(named, asked).ok()?;
    }
    let path = OpenedBy {
        dir: asked.dir,
        start: place.start,
        path: path.into(),
    };
    let open = OpenFile {
        file: Arc::new(file),
        flags: asked.kept(),
        path,
        root: &named.root,
        directory,
    };
    let ino = open.file.ino();
    let fd = enter(named, number, open)?;
    // What is new nobody has locked.
    if !asked.has(libc::O_EXCL) && locked::may_be(ino) {
        descriptors::close(fd as i32);
        raw::close(fd as i32);
        report::passed(asked.number, "it may be locked");
        return None;
    }
    report::fast(asked.number);
    Some(fd)
}

/// Whether a file of this mode can be opened by its owner for this access.
pub fn keeps_open(access: i32, mode: u32) -> bool {
    let needed = match access {
        libc::O_RDONLY => libc::S_IRUSR,
        libc::O_WRONLY => libc::S_IWUSR,
        _ => libc::S_IRUSR | libc::S_IWUSR,
    };
    mode & needed == needed
}

/// Whether it is a regular file that the user of the process owns: nobody else but root can keep it from being opened again.
fn is_own(file: &File) -> bool {
    let uid = user::uid();
    file.is_regular() && file.stat().is_ok_and(|attr| attr.uid == uid)
}

/// A descriptor that nothing is entered for yet. It is closed if that never happens.
struct Number(Option<i32>);

impl Number {
    /// The lowest one that is free.
    fn new(named: &Named, asked: &Asked) -> Result<Self, i64> {
        let command = match asked.has(libc::O_CLOEXEC) {
            true => libc::F_DUPFD_CLOEXEC,
            false => libc::F_DUPFD,
        };
        let fd = raw::fcntl(named.placeholder.as_raw_fd(), command, 0);
        let number = Self(i32::try_from(fd).ok().filter(|&fd| fd >= 0));
        match number.0 {
            None => Err(fd),
            // Only the kernel can serve it.
            Some(fd) if fd as usize >= FD_END => Err(raw::fail(libc::EMFILE)),
            Some(_) => Ok(number),
        }
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            raw::close(fd);
        }
    }
}

/// Makes a descriptor the placeholder of a file.
fn enter(named: &'static Named, mut number: Number, open: OpenFile) -> Option<i64> {
    let fd = number.0?;
    // What closed it may have escaped.
    table::remove(fd);
    let (ino, flags) = (open.file.ino(), open.flags);
    let directory = open.directory.is_some();
    let path_only = flags & libc::O_PATH != 0;
    let fill = |index, d: &Description| {
        d.ino.store(ino, Ordering::Relaxed);
        d.mount.store(named.mount, Ordering::Release);
        placeholder::note(index, open);
        d.mark_placeholder(directory, path_only);
    };
    opened::enter_filled(fd, flags, fill)?;
    number.0 = None;
    report::opened();
    Some(fd.into())
}

/// Index of a placeholder's description.
pub fn placeholder_of(fd: i32) -> Option<u32> {
    match table::get(fd) {
        table::Entry::File(index) if description::get(index).is_placeholder() => Some(index),
        _ => None,
    }
}
