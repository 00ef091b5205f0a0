//! What the FUSE adapter asks of a file system.
//!
//! Nothing here is FUSE's: a file system that implements [`NodeFs`] could be
//! served by another protocol. Three rules come from the way it is used.
//!
//! * **Counts.** Every [`Attr`] that `lookup`, `mknod`, `mkdir`, `symlink`,
//!   `link`, `create` and `tmpfile` return, and every one that `readdir` delivers
//!   (unless the entry was refused, or is `.` or `..`), gives the caller one
//!   reference on the inode; [`NodeFs::forget`] returns them. There is no message
//!   for open and close: **an unlinked file's last use ends with its last
//!   reference**. After a takeover counts may come back too high; tolerate it.
//! * **Requests may come twice.** If the serving process is killed, the next one
//!   receives what was not answered again, with the same [`Request::unique`].
//!   To do it once is the file system's work. `forget` alone may get lost.
//! * **Permissions are checked before.** The caller's identity is there to own
//!   what is created, not to be judged. What remains for the file system: clear
//!   set-user-ID and set-group-ID where a method says so, and let new
//!   nodes inherit the group and the set-group-ID bit of a directory that has it.
//!
//! Returning `ENOSYS` makes the caller take the whole operation for missing until
//! the mount ends; it may then stop asking. Any other error concerns one call.

pub use shale_libfs::{Attr, DirEntry, Promise, SetAttr, SetTime, StatFs, Timestamp, WriteFlags};

/// Inode number of the root directory.
pub const ROOT_INO: u64 = 1;

/// An error number of errno(3), positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(
    /// The number, 1 to 511. Anything else reaches the program as `EIO`.
    pub i32,
);

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Result of a call.
pub type Result<T> = std::result::Result<T, Errno>;

/// Who asks, and which request this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Names this request for the life of the mount; the same number returns if
    /// the request has to be sent again after a crash.
    pub unique: u64,
    /// User id the call is made with. Not valid with [`Self::from_cache`].
    pub uid: u32,
    /// Group id the call is made with.
    pub gid: u32,
    /// Thread id of the caller, 0 if it is in another pid namespace.
    pub pid: u32,
    /// File mode creation mask. Only set for calls that create something, which
    /// have to apply it themselves.
    pub umask: u32,
    /// The kernel reads or writes past its pages (`O_DIRECT`).
    pub direct: bool,
    /// It asks for attributes because an open file is read or written, not for a program.
    pub opened: bool,
    /// A write of dirty pages of a mapping: the user and group ids are not the writer's, and the pages have their place.
    pub from_cache: bool,
}

/// Takes directory entries; `false` says that this one found no space: it was not
/// taken, its reference was not either, and no more should follow. A cookie has to stay valid,
/// and mean the same place, whatever is created or removed meanwhile, and after a restart.
pub type EntrySink<'a> = dyn FnMut(DirEntry<'_>) -> bool + 'a;

/// An ioctl(2) that only moves bytes the command number tells the size of.
#[derive(Clone, Copy, Debug)]
pub struct Ioctl<'a> {
    /// The command.
    pub cmd: u32,
    /// The third argument as it is: a pointer in the caller, or a number.
    pub arg: u64,
    /// Bytes the caller hands in.
    pub input: &'a [u8],
}

/// A source or target of [`NodeFs::copy_file_range`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePosition {
    /// Inode number.
    pub ino: u64,
    /// Offset in bytes.
    pub offset: u64,
}

/// A file system addressed by inode numbers. See the module for the rules.
///
/// Methods are called from several threads at once. Names hold no `/` and no
/// zero byte, but may be longer than the file system allows (`ENAMETOOLONG`).
pub trait NodeFs: Send + Sync {
    /// Whether the caller may cache the answer now about a name of directory `dir` that it looked up, be it that there is none. What it
    /// lists and makes it may.
    fn keeps_name(&self, _dir: u64, _name: &[u8]) -> bool {
        true
    }

    /// Whether the caller may keep attributes that come as the answer to a change. It
    /// takes them as they are, even if it has been asked meanwhile to drop all.
    fn keeps_changed(&self) -> bool {
        true
    }

    /// Finds a name. `ENOENT` is remembered by the caller like any other answer.
    ///
    /// `.` and `..` are asked for to open an inode by a file handle: `parent` is then any number,
    /// taken from outside, which need not name an inode, and for `.` need not name a directory.
    /// `ENOENT` says that there is no such inode, or that it has no name any more. Whether it is
    /// the one that the handle was made for the caller tells by its generation.
    fn lookup(&self, request: &Request, parent: u64, name: &[u8]) -> Result<Attr>;

    /// Gives back `count` references on an inode.
    fn forget(&self, ino: u64, count: u64);

    /// Attributes of an inode.
    fn getattr(&self, request: &Request, ino: u64) -> Result<Attr>;

    /// Changes attributes, all or none; returns the new ones.
    fn setattr(&self, request: &Request, ino: u64, set: &SetAttr) -> Result<Attr>;

    /// Target of a symbolic link.
    fn readlink(&self, request: &Request, ino: u64) -> Result<Vec<u8>>;

    /// Makes a node of the type in `mode` (regular files too). `rdev` as in [`Attr`].
    fn mknod(
        &self,
        request: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Attr>;

    /// Makes a directory.
    fn mkdir(&self, request: &Request, parent: u64, name: &[u8], mode: u32) -> Result<Attr>;

    /// Makes a symbolic link to `target`.
    fn symlink(&self, request: &Request, parent: u64, name: &[u8], target: &[u8]) -> Result<Attr>;

    /// Gives an inode (possibly one of [`tmpfile`](Self::tmpfile)) another name.
    fn link(&self, request: &Request, ino: u64, parent: u64, name: &[u8]) -> Result<Attr>;

    /// Removes a name that is not a directory's.
    fn unlink(&self, request: &Request, parent: u64, name: &[u8]) -> Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, request: &Request, parent: u64, name: &[u8]) -> Result<()>;

    /// Moves a name. `flags` are those of renameat2(2): `RENAME_NOREPLACE`,
    /// `RENAME_EXCHANGE`, `RENAME_WHITEOUT`; `EINVAL` for what is not supported.
    fn rename(
        &self,
        request: &Request,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Result<()>;

    /// Makes a regular file, as open(2) with `O_CREAT`. `flags` are those of open:
    /// if the name exists, `O_EXCL` is `EEXIST`, and otherwise the file is
    /// returned, truncated for `O_TRUNC`: nothing else will truncate it.
    fn create(
        &self,
        request: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Result<Attr>;

    /// Makes a regular file without a name. `O_EXCL` in `flags` says that it
    /// will never get one.
    fn tmpfile(&self, request: &Request, parent: u64, mode: u32, flags: u32) -> Result<Attr>;

    /// Reads into `into`; returns the bytes read, fewer only at the end of the file.
    fn read(&self, request: &Request, ino: u64, offset: u64, into: &mut [u8]) -> Result<usize>;

    /// Writes; returns the bytes written, which are durable as the policy of the
    /// volume says. At most 1 MiB.
    fn write(
        &self,
        request: &Request,
        ino: u64,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize>;

    /// As fallocate(2), with its `mode`. Clears set-user-ID and set-group-ID as a
    /// write by a user without privilege does: nobody asks for it separately.
    fn fallocate(
        &self,
        request: &Request,
        ino: u64,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let _ = (request, ino, mode, offset, length);
        Err(Errno(libc::EOPNOTSUPP))
    }

    /// As lseek(2) for `SEEK_DATA` (3) and `SEEK_HOLE` (4). With `ENOSYS` the
    /// caller takes files for free of holes.
    fn lseek(&self, request: &Request, ino: u64, offset: u64, whence: u32) -> Result<u64> {
        let _ = (request, ino, offset, whence);
        Err(Errno(libc::ENOSYS))
    }

    /// As copy_file_range(2); returns the bytes copied. With `ENOSYS` the caller
    /// copies by reading and writing. Clears set-user-ID as `fallocate` does.
    fn copy_file_range(
        &self,
        request: &Request,
        from: FilePosition,
        to: FilePosition,
        length: u64,
    ) -> Result<u64> {
        let _ = (request, from, to, length);
        Err(Errno(libc::ENOSYS))
    }

    /// Lists a directory from `cookie` (0: from the start), `.` and `..` included,
    /// until `sink` refuses. With `plus` attributes should come along; each of
    /// them counts as a reference once the sink took it.
    fn readdir(
        &self,
        request: &Request,
        ino: u64,
        cookie: u64,
        plus: bool,
        sink: &mut EntrySink<'_>,
    ) -> Result<()>;

    /// Whether fsync(2) has nothing to do, for as long as the mount lives. Then the
    /// kernel learns that it need not ask for [`Self::fsync`] and [`Self::fsyncdir`].
    fn needs_no_fsync(&self) -> bool {
        false
    }

    /// A request that promises something was done: what [`Self::wait_durable`] has to be called with before it is answered. `None`: it can be
    /// answered now. Must not wait. Calls that make something durable may leave the waiting to that.
    fn to_be_durable(&self, promise: Promise) -> Result<Option<u64>> {
        let _ = promise;
        Ok(None)
    }

    /// Returns when that is durable. Called without order, by several threads.
    fn wait_durable(&self, upto: u64) -> Result<()> {
        let _ = upto;
        Ok(())
    }

    /// Makes a file durable: data, size, and without `datasync` all attributes.
    fn fsync(&self, request: &Request, ino: u64, datasync: bool) -> Result<()>;

    /// Makes a directory's entries durable.
    fn fsyncdir(&self, request: &Request, ino: u64, datasync: bool) -> Result<()>;

    /// Makes everything durable. Linux 6.18 does not pass sync(2) and syncfs(2) on to FUSE
    /// mounts of this kind: until a later one does, nobody calls this.
    fn syncfs(&self, request: &Request) -> Result<()>;

    /// Sizes of the file system.
    fn statfs(&self, request: &Request) -> Result<StatFs>;

    /// Sets an extended attribute; `flags` are `XATTR_CREATE`, `XATTR_REPLACE` or 0.
    /// ACL names go to [`Self::set_acl`].
    fn setxattr(
        &self,
        request: &Request,
        ino: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<()> {
        let _ = (request, ino, name, value, flags);
        Err(Errno(libc::EOPNOTSUPP))
    }

    /// Sets the access control list that the attribute `name` holds (`system.posix_acl_access` or
    /// `system.posix_acl_default`); the kernel has decided that the caller may, and that it is one. The mode
    /// follows. `kill_sgid`: set-group-ID goes, too.
    fn set_acl(
        &self,
        request: &Request,
        ino: u64,
        name: &[u8],
        value: &[u8],
        kill_sgid: bool,
    ) -> Result<()> {
        let _ = (request, ino, name, value, kill_sgid);
        Err(Errno(libc::EOPNOTSUPP))
    }

    /// Value of an extended attribute, `ENODATA` if there is none. Also of ACLs.
    fn getxattr(&self, request: &Request, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        let _ = (request, ino, name);
        Err(Errno(libc::EOPNOTSUPP))
    }

    /// Names of all extended attributes, each ended by a zero byte.
    fn listxattr(&self, request: &Request, ino: u64) -> Result<Vec<u8>> {
        let _ = (request, ino);
        Err(Errno(libc::EOPNOTSUPP))
    }

    /// Removes an extended attribute, `ENODATA` if there is none.
    fn removexattr(&self, request: &Request, ino: u64, name: &[u8]) -> Result<()> {
        let _ = (request, ino, name);
        Err(Errno(libc::EOPNOTSUPP))
    }

    /// Any ioctl but that of [`shutdown`](Self::shutdown). Fills `output`, which is
    /// as long as the caller has space, from its start; returns the result of the
    /// call and the number of bytes filled.
    fn ioctl(
        &self,
        request: &Request,
        ino: u64,
        ioctl: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<(i32, usize)> {
        let _ = (request, ino, ioctl, output);
        Err(Errno(libc::ENOTTY))
    }

    /// `XFS_IOC_GOINGDOWN`: behave from now on as if the power had been cut. Flags:
    /// 0 write everything first, 1 write the log first, 2 write nothing. The caller has `CAP_SYS_ADMIN`. What
    /// it is asked afterwards it need not answer: its server gives `EIO` to everybody from then on, until the mount ends.
    fn shutdown(&self, request: &Request, flags: u32) -> Result<()> {
        let _ = (request, flags);
        Err(Errno(libc::ENOTTY))
    }

    /// After [`shutdown`](Self::shutdown), when nothing is served any more: has the caller drop what it keeps.
    fn drop_all_cached(&self) {}

    /// The byte at `size` − 1, with which the kernel learns a size that it may know too small; `None`: nothing of the
    /// file can be read there.
    fn last_byte(&self, ino: u64, size: u64) -> Option<u8> {
        let _ = (ino, size);
        None
    }

    /// The answer to request `unique` has reached the kernel: it will not be sent again.
    fn answered(&self, unique: u64) {
        let _ = unique;
    }

    /// A request has come that the kernel sends for the first time: all those that it sent again after a crash have been read.
    fn resent_are_read(&self) {}

    /// The mount is gone; no call follows. Not called when a daemon stops or dies.
    fn destroy(&self) {}
}
