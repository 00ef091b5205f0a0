//! The file system behind the mount: libfs, as one more client of the daemon.
//!
//! Only words are changed here. What the kernel's request number is for, and why
//! [`NodeFs::answered`] matters, stands in `libfs::Caller`.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use shale_libfs::{AclKind, Caller, LeaseMode, Session};
use shale_proto::mounts;
use shale_proto::open_name::{self, TokenOwner};

use crate::backend::convert::{caller, errno};
use crate::backend::groups;
use crate::backend::inode_flags::Wish;
use crate::backend::node::{
    Attr, DirEntry, EntrySink, Errno, FilePosition, Ioctl, NodeFs, Promise, ROOT_INO, Request,
    Result, SetAttr, StatFs, WriteFlags,
};
use crate::kernel_cache::cache::KernelCache;
use crate::kernel_cache::invalidate;
use crate::kernel_cache::size::Rights;
use crate::kernel_cache::users::is_thread;
use crate::serving::notify::{Inval, Notifier, keeps_nothing};
use crate::serving::session::FuseSession;
use crate::serving::transport;

/// A libfs session, served by FUSE.
pub struct ShaleFs {
    session: Arc<Session>,
    cache: Arc<KernelCache>,
    /// Name of the mount, for who asks one of its files.
    name: String,
    /// To who drops pages that the kernel filled in the wrong place.
    misplaced: OnceLock<Sender<u64>>,
    stop: OnceLock<Stop>,
    by_number: OnceLock<ByNumber>,
}

/// What it takes to find files by number.
struct ByNumber {
    /// Who may find an inode with a token.
    owner_of: Box<dyn Fn(u128, u64) -> Option<TokenOwner> + Send + Sync>,
    /// To who drops the names of what was found.
    found: Sender<Vec<u8>>,
}

/// What a shutdown needs.
struct Stop {
    notifier: Notifier,
    others: Box<dyn Fn() + Send + Sync>,
}

impl ShaleFs {
    /// Serves `session`, which must have been attached with `kernel_references`, on `mount`.
    /// `number`: that of the mount, see [`mounts`].
    pub fn new(session: Arc<Session>, number: u64, mount: &FuseSession) -> Self {
        let cache = mount.kernel_cache();
        session.serve_kernel(cache.continues());
        Self {
            session,
            cache,
            name: mounts::name_of(number),
            misplaced: OnceLock::new(),
            stop: OnceLock::new(),
            by_number: OnceLock::new(),
        }
    }

    /// From now on has the kernel drop pages that it filled in the wrong place: it puts what
    /// is appended where it takes the end for, before it asks. Call it once.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn drop_misplaced(&self, notifier: Notifier) -> io::Result<()> {
        let (misplaced, found) = channel();
        thread::Builder::new()
            .name("misplaced".to_owned())
            .spawn(move || drop_pages(&notifier, &found))?;
        let _ = self.misplaced.set(misplaced);
        Ok(())
    }

    /// From now on the volume can be shut down: `stop_others` has all other clients served no more, for good, and
    /// returns when they are. Call it once.
    pub fn can_shut_down(
        &self,
        notifier: Notifier,
        stop_others: impl Fn() + Send + Sync + 'static,
    ) {
        let _ = self.stop.set(Stop {
            notifier,
            others: Box::new(stop_others),
        });
    }

    /// From now on clients' processes can open files by inode number ([`open_name`]): `owner_of` tells who may with a token and a number,
    /// each of which may be any. Call it once.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn can_open_by_number(
        &self,
        notifier: Notifier,
        owner_of: impl Fn(u128, u64) -> Option<TokenOwner> + Send + Sync + 'static,
    ) -> io::Result<()> {
        let (found, names) = channel();
        thread::Builder::new()
            .name("open-names".to_owned())
            .spawn(move || drop_names(&notifier, &names))?;
        let _ = self.by_number.set(ByNumber {
            owner_of: Box::new(owner_of),
            found,
        });
        Ok(())
    }

    /// Finds the file that `name` in directory `parent` stands for by its number, if it does for this caller.
    fn lookup_by_number(
        &self,
        request: &Request,
        parent: u64,
        name: &[u8],
    ) -> Option<Result<Attr>> {
        let (token, ino) = number_in(parent, name)?;
        let by_number = self.by_number.get()?;
        let owner = (by_number.owner_of)(token, ino)?;
        is_own(request, &owner).then(|| {
            let found = self.session.lookup_file(&caller(request), ino);
            let found = self.noted(request, found.map_err(errno)?);
            // Nobody listens only when the mount is gone.
            let _ = by_number.found.send(name.to_vec());
            Ok(found)
        })
    }

    /// Has the kernel drop everything that it keeps of `ino`. Gives what
    /// [`Self::used_since`] is asked with. Waits for requests: not from a thread that serves
    /// them, nor with anything held that one could wait for.
    pub fn drop_cached(&self, notifier: &Notifier, ino: u64) -> u64 {
        let seen = self.session.uses_of(ino);
        // It keeps nothing, and a call that is about to tell it something is a use.
        if !self.session.kernel_refers_to(ino) {
            return seen;
        }
        // The front end has the lease, or nearly: what is not there has no size.
        let attr = self.session.getattr(&Caller::default(), ino);
        let (size, rights) = attr.map_or_else(
            |_| Default::default(),
            |attr| {
                let rights = Rights {
                    uid: attr.uid,
                    gid: attr.gid,
                    mode: attr.mode,
                };
                (attr.size, rights)
            },
        );
        self.cache.size_leaves(ino, size, rights);
        let seen = self.session.uses_of(ino);
        match invalidate::inode(&self.cache, notifier, ino) {
            Err(e) if keeps_nothing(&e) => {}
            Err(error) => tracing::error!(ino, %error, "the kernel keeps what it has"),
            Ok(()) => {}
        }
        seen
    }

    /// Whether the kernel may have cached something of `ino` since
    /// [`Self::drop_cached`], which gave `seen`, began.
    pub fn used_since(&self, ino: u64, seen: u64) -> bool {
        self.session.uses_of(ino) != seen
    }

    /// Whether the kernel may hold back what a program writes to `ino` by a shared mapping.
    pub fn holds_back(&self, ino: u64) -> bool {
        self.cache.is_mapped_writable(ino)
    }

    /// For how long FUSE clients, other than the processes `besides`, should keep
    /// `ino`: they read or wrote it a moment ago, or tried to.
    pub fn used_for(&self, ino: u64, besides: &[i32]) -> Option<Duration> {
        self.cache.in_use_besides(ino, besides)
    }

    /// How long ago a process other than `pid` asked last for anything about `ino` by way of the
    /// mount; `None`: none that lives.
    pub fn used_by_others(&self, ino: u64, pid: i32) -> Option<Duration> {
        self.cache.others(ino, pid)
    }

    /// Whether processes other than `besides` asked for anything about `ino` through the mount recently,
    /// or append to it.
    pub fn shared_with(&self, ino: u64, besides: &[i32]) -> bool {
        self.cache.is_shared(ino, besides)
    }

    /// A request is about `ino`; about its contents, through the kernel's pages. Noted before
    /// it is served, so under no lease that is given to a client later.
    fn note(&self, request: &Request, ino: u64, contents: bool) -> bool {
        self.cache.uses(ino, request.pid, contents)
    }

    /// Notes a name that is about to be made, or to go, by way of the kernel. Names are what a directory contains.
    fn changes_name(&self, request: &Request, dir: u64, name: &[u8]) {
        self.note(request, dir, true);
        self.cache.caches_name(dir, name);
    }

    /// Notes who looked a file up. Its number is known only now, so it is asked about again: by
    /// now a client may have it that did not learn of this one.
    fn noted(&self, request: &Request, found: Attr) -> Attr {
        let file = found.mode & libc::S_IFMT == libc::S_IFREG;
        if !file || !self.note(request, found.ino, false) || self.cache.is_alone() {
            return found;
        }
        let again = self.session.getattr(&caller(request), found.ino);
        again.unwrap_or(found)
    }

    /// Notes who made a file.
    fn noted_new(&self, request: &Request, new: Attr) -> Attr {
        self.cache.is_new(new.ino);
        self.noted(request, new)
    }

    /// Whether the kernel may have references to `ino`.
    pub fn in_use(&self, ino: u64) -> bool {
        self.session.kernel_refers_to(ino)
    }

    /// So many clients are attached besides this one.
    pub fn set_others(&self, count: usize) {
        self.cache.set_others(count);
    }
}

/// Token and inode number, if `name` in directory `parent` may stand for an inode by its number.
fn number_in(parent: u64, name: &[u8]) -> Option<(u128, u64)> {
    match parent {
        ROOT_INO => open_name::parse(name),
        _ => None,
    }
}

/// Whether a process of the token's owner asks.
fn is_own(request: &Request, owner: &TokenOwner) -> bool {
    request.uid == owner.uid || is_thread(request.pid, owner.pid)
}

/// Ends with the file system that tells of pages. A notification waits for the pages of the
/// request that returned them, so it reaches them right after they were filled: if the thread runs
/// at once then, before the kernel has the new size, so that nobody can have read them.
fn drop_pages(notifier: &Notifier, found: &Receiver<u64>) {
    if let Err(error) = transport::run_at_once() {
        tracing::debug!(%error, "misplaced pages are dropped with ordinary priority");
    }
    for ino in found {
        match notifier.inval_inode(ino, Inval::All) {
            Err(e) if keeps_nothing(&e) => return,
            Err(error) => tracing::error!(ino, %error, "the kernel keeps misplaced pages"),
            Ok(()) => {}
        }
    }
}

/// Ends with the file system that tells of names. A name whose validity has ended keeps its inode in the kernel all the same, for as long as
/// there is memory, also one that has lost its last name. A notification waits for the lookup that found it; what was
/// opened by then stays open.
fn drop_names(notifier: &Notifier, found: &Receiver<Vec<u8>>) {
    for name in found {
        match notifier.inval_entry(ROOT_INO, &name) {
            Err(e) if keeps_nothing(&e) => return,
            Err(error) => {
                tracing::error!(%error, "the kernel keeps a file that was opened by its number")
            }
            Ok(()) => {}
        }
    }
}

impl NodeFs for ShaleFs {
    fn keeps_name(&self, dir: u64, name: &[u8]) -> bool {
        number_in(dir, name).is_none() && self.cache.keeps_name(dir, name)
    }

    fn keeps_changed(&self) -> bool {
        self.cache.is_alone()
    }

    fn lookup(&self, request: &Request, parent: u64, name: &[u8]) -> Result<Attr> {
        if let Some(found) = self.lookup_by_number(request, parent, name) {
            return found;
        }
        // By number, for a file handle: the kernel keeps no name of it.
        if !matches!(name, b"." | b"..") {
            self.cache.caches_name(parent, name);
        }
        let found = self.session.lookup(&caller(request), parent, name);
        let found = found.map_err(errno)?;
        Ok(self.noted(request, found))
    }

    /// An inode with a name is found again by its number, so only the end of one
    /// without a name matters; its last reference is what the kernel gives back here.
    fn forget(&self, ino: u64, count: u64) {
        if !self.session.unrefer(ino, count) {
            return;
        }
        self.cache.forget(ino);
        if let Err(error) = self.session.forget(ino) {
            tracing::error!(ino, %error, "an inode without a name could not be freed");
        }
    }

    fn getattr(&self, request: &Request, ino: u64) -> Result<Attr> {
        // Of an open file: somebody reads beyond the end that the kernel knows.
        self.note(request, ino, request.opened);
        self.session.getattr(&caller(request), ino).map_err(errno)
    }

    fn setattr(&self, request: &Request, ino: u64, set: &SetAttr) -> Result<Attr> {
        self.note(request, ino, false);
        let caller = caller(request);
        let old = || self.session.getattr(&caller, ino).map_err(errno);
        let lets = |is_in: &dyn Fn(u32) -> bool| {
            let lets = self.session.acl_lets_write(&caller, ino, is_in);
            lets.map_err(errno)
        };
        let (before, set) = groups::changes(request, set, old, lets)?;
        if let Some(before) = before {
            // Not a part of the request: done once more after a crash it changes nothing.
            let caller = Caller {
                request: 0,
                ..caller
            };
            self.session.setattr(&caller, ino, &before).map_err(errno)?;
        }
        self.session.setattr(&caller, ino, &set).map_err(errno)
    }

    fn readlink(&self, request: &Request, ino: u64) -> Result<Vec<u8>> {
        self.session.readlink(&caller(request), ino).map_err(errno)
    }

    fn mknod(
        &self,
        request: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        self.changes_name(request, parent, name);
        self.session
            .mknod(&caller(request), parent, name, mode, rdev.into())
            .map_err(errno)
    }

    fn mkdir(&self, request: &Request, parent: u64, name: &[u8], mode: u32) -> Result<Attr> {
        self.changes_name(request, parent, name);
        self.session
            .mkdir(&caller(request), parent, name, mode)
            .map_err(errno)
    }

    fn symlink(&self, request: &Request, parent: u64, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.changes_name(request, parent, name);
        self.session
            .symlink(&caller(request), parent, name, target)
            .map_err(errno)
    }

    fn link(&self, request: &Request, ino: u64, parent: u64, name: &[u8]) -> Result<Attr> {
        self.changes_name(request, parent, name);
        self.session
            .link(&caller(request), ino, parent, name)
            .map_err(errno)
    }

    fn unlink(&self, request: &Request, parent: u64, name: &[u8]) -> Result<()> {
        self.note(request, parent, true);
        self.session
            .unlink(&caller(request), parent, name)
            .map_err(errno)
    }

    fn rmdir(&self, request: &Request, parent: u64, name: &[u8]) -> Result<()> {
        self.note(request, parent, true);
        self.session
            .rmdir(&caller(request), parent, name)
            .map_err(errno)
    }

    fn rename(
        &self,
        request: &Request,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Result<()> {
        // What the kernel keeps of the one name it keeps of the other from now on.
        self.changes_name(request, from.0, from.1);
        self.changes_name(request, to.0, to.1);
        self.session
            .rename(&caller(request), from, to, flags)
            .map_err(errno)
    }

    fn create(
        &self,
        request: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Result<Attr> {
        self.changes_name(request, parent, name);
        self.session
            .create(&caller(request), parent, name, mode, flags)
            .map(|new| self.noted_new(request, new))
            .map_err(errno)
    }

    fn tmpfile(&self, request: &Request, parent: u64, mode: u32, flags: u32) -> Result<Attr> {
        self.session
            .tmpfile(&caller(request), parent, mode, flags)
            .map(|new| self.noted_new(request, new))
            .map_err(errno)
    }

    fn read(&self, request: &Request, ino: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.note(request, ino, !request.direct);
        if self.cache.is_mapped_writable(ino) {
            // A program may change the pages without a word: nobody else may read meanwhile.
            self.session
                .lease(ino, LeaseMode::Exclusive)
                .map_err(errno)?;
        }
        self.session
            .read(&caller(request), ino, offset, into)
            .map_err(errno)
    }

    fn write(
        &self,
        request: &Request,
        ino: u64,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        self.note(request, ino, !request.direct);
        if request.from_cache {
            self.cache.maps_writable(ino);
        }
        let append = flags.append;
        if append {
            self.cache.appends(ino, request.pid);
        }
        let caller = caller(request);
        let written = self.session.write_at(&caller, ino, offset, data, flags);
        let (mut written, mut end) = match written.map_err(errno) {
            Err(Errno(libc::ENOSPC)) if request.from_cache => (0, offset),
            other => other?,
        };
        if request.from_cache && written < data.len() {
            // As much as fits was written, or nothing.
            let rest = &data[written..];
            let pages = self.session.write_pages(&caller, ino, end, rest, flags);
            let (more, at) = pages.or_else(|e| {
                if written > 0 {
                    Ok((0, end))
                } else {
                    Err(errno(e))
                }
            })?;
            (written, end) = (written + more, at);
        }
        if append
            && end != offset + written as u64
            && let Some(misplaced) = self.misplaced.get()
        {
            // Nobody listens only when the mount is gone.
            let _ = misplaced.send(ino);
        }
        Ok(written)
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: u64,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        self.note(request, ino, false);
        self.session
            .fallocate(&caller(request), ino, mode, offset, length)
            .map_err(errno)
    }

    fn lseek(&self, request: &Request, ino: u64, offset: u64, whence: u32) -> Result<u64> {
        self.note(request, ino, false);
        self.session
            .lseek(&caller(request), ino, offset, whence)
            .map_err(errno)
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: FilePosition,
        to: FilePosition,
        length: u64,
    ) -> Result<u64> {
        self.note(request, from.ino, false);
        self.note(request, to.ino, false);
        self.session
            .copy_file_range(
                &caller(request),
                (from.ino, from.offset),
                (to.ino, to.offset),
                length,
            )
            .map_err(errno)
    }

    fn readdir(
        &self,
        request: &Request,
        ino: u64,
        cookie: u64,
        plus: bool,
        sink: &mut EntrySink<'_>,
    ) -> Result<()> {
        self.note(request, ino, true);
        self.cache.lists(ino);
        let mut noted = |entry: DirEntry<'_>| {
            if plus {
                self.cache.caches_name(ino, entry.name);
            }
            sink(entry)
        };
        self.session
            .readdir(&caller(request), ino, cookie, plus, &mut noted)
            .map_err(errno)
    }

    fn needs_no_fsync(&self) -> bool {
        self.session.needs_no_fsync()
    }

    fn to_be_durable(&self, promise: Promise) -> Result<Option<u64>> {
        self.session.to_harden(promise).map_err(errno)
    }

    fn wait_durable(&self, upto: u64) -> Result<()> {
        self.session.wait_hardened(upto).map_err(errno)
    }

    fn fsync(&self, request: &Request, ino: u64, datasync: bool) -> Result<()> {
        self.session
            .fsync(&caller(request), ino, datasync)
            .map_err(errno)
    }

    fn fsyncdir(&self, request: &Request, ino: u64, datasync: bool) -> Result<()> {
        self.fsync(request, ino, datasync)
    }

    fn syncfs(&self, _request: &Request) -> Result<()> {
        self.session.sync_all().map_err(errno)
    }

    fn statfs(&self, _request: &Request) -> Result<StatFs> {
        self.session.statfs().map_err(errno)
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<()> {
        self.session
            .setxattr(&caller(request), ino, name, value, flags)
            .map_err(errno)
    }

    fn set_acl(
        &self,
        request: &Request,
        ino: u64,
        name: &[u8],
        value: &[u8],
        kill_sgid: bool,
    ) -> Result<()> {
        let kind = AclKind::of(name).ok_or(Errno(libc::EOPNOTSUPP))?;
        self.session
            .set_acl(&caller(request), ino, kind, value, Some(kill_sgid))
            .map_err(errno)
    }

    fn getxattr(&self, request: &Request, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        if name == mounts::NUMBER.as_bytes() {
            return Ok(self.name.clone().into_bytes());
        }
        if name == mounts::USED.as_bytes() {
            let used = self.cache.in_use_besides(ino, &[request.pid as i32]);
            return used.map(|_| Vec::new()).ok_or(Errno(libc::ENODATA));
        }
        if name == mounts::MAPPED.as_bytes() {
            self.cache.maps_writable(ino);
            self.session
                .lease(ino, LeaseMode::Exclusive)
                .map_err(errno)?;
        }
        self.session
            .getxattr(&caller(request), ino, name)
            .map_err(errno)
    }

    fn listxattr(&self, request: &Request, ino: u64) -> Result<Vec<u8>> {
        self.session.listxattr(&caller(request), ino).map_err(errno)
    }

    fn removexattr(&self, request: &Request, ino: u64, name: &[u8]) -> Result<()> {
        self.session
            .removexattr(&caller(request), ino, name)
            .map_err(errno)
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: u64,
        ioctl: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<(i32, usize)> {
        let wish = Wish::of(ioctl)?;
        self.note(request, ino, false);
        let filled = wish.serve(&self.session, &caller(request), ino, output)?;
        Ok((0, filled))
    }

    fn shutdown(&self, _request: &Request, flags: u32) -> Result<()> {
        let stop = self.stop.get().ok_or(Errno(libc::ENOTTY))?;
        if flags == 0 {
            // What programs have stored in mappings is written.
            self.drop_all_cached();
        }
        (stop.others)();
        Ok(())
    }

    fn drop_all_cached(&self) {
        if let Some(stop) = self.stop.get() {
            let all = self.session.kernel_references();
            invalidate::everything(&stop.notifier, &all);
        }
    }

    fn last_byte(&self, ino: u64, size: u64) -> Option<u8> {
        let at = size.checked_sub(1)?;
        let mut byte = [0];
        let read = self.session.read(&Caller::default(), ino, at, &mut byte);
        (read == Ok(1)).then_some(byte[0])
    }

    fn answered(&self, unique: u64) {
        self.session.answered(unique);
    }

    fn resent_are_read(&self) {
        self.session.resent_are_read();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_for_its_user_and_its_process() {
        let own = std::process::id();
        let owner = TokenOwner {
            uid: 1000,
            pid: own.cast_signed(),
        };
        let by = |uid, tid| {
            let request = Request {
                unique: 1,
                uid,
                gid: 1000,
                pid: tid,
                umask: 0,
                direct: false,
                opened: false,
                from_cache: false,
            };
            is_own(&request, &owner)
        };
        assert!(by(1000, 1), "another process of the user");
        assert!(by(0, own), "the process has changed its user");
        let thread = || rustix::thread::gettid().as_raw_pid().cast_unsigned();
        let ended = std::thread::spawn(thread).join().unwrap();
        // Who has joined a thread goes on a moment before the kernel has forgotten it.
        while std::path::Path::new(&format!("/proc/self/task/{ended}")).exists() {
            std::thread::yield_now();
        }
        assert!(!by(0, ended), "a thread that has ended is nobody's");
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(by(0, thread()), "so has one of its threads"));
        });
        for (uid, tid) in [(0, 1), (65534, 1), (1001, 0)] {
            assert!(!by(uid, tid), "{uid} {tid}");
        }
    }

    #[test]
    fn names_stand_for_inodes_in_the_root_alone() {
        let name = open_name::name_of(5, 77);
        assert_eq!(number_in(ROOT_INO, &name), Some((5, 77)));
        assert_eq!(number_in(2, &name), None);
        assert_eq!(number_in(ROOT_INO, b"file"), None);
    }
}
