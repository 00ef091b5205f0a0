//! Looking names up, making, moving, removing and listing them, by inode number; and the tree by path.

use super::Session;
use crate::namespace::list::DirEntry;
use crate::namespace::path::Tree;
use crate::namespace::unlink_link::Swept;
use crate::namespace::{create_lookup, list, rename, unlink_link};
use shale_inodes::attr::Attr;
use shale_session::caller::Caller;
use shale_session::errno::Result;
use std::sync::Arc;

impl Session {
    /// Attributes of what `name` in directory `parent` names. `.` and `..` are known; they find
    /// inodes by number, for file handles: `parent` may be any number, and for `.` need not be a
    /// directory's. An inode without a name is not found so, as on ext4.
    /// Errors: `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`.
    pub fn lookup(&self, caller: &Caller, parent: u64, name: &[u8]) -> Result<Attr> {
        create_lookup::lookup(&self.calls, caller, parent, name)
    }

    /// Attributes of the regular file with this number, also of one that has no name any more. `ENOENT`: there is none.
    pub fn lookup_file(&self, caller: &Caller, ino: u64) -> Result<Attr> {
        create_lookup::lookup_file(&self.calls, caller, ino)
    }

    /// Makes a node of the type in `mode`; type 0 is a regular file. Errors: `EEXIST`,
    /// `ENOENT` (also when the directory was removed), `ENOTDIR`, `ENAMETOOLONG`,
    /// `EINVAL`, `ENOSPC`. Durable as the volume's policy says, like all that follow.
    pub fn mknod(
        &self,
        caller: &Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<Attr> {
        create_lookup::mknod(&self.calls, caller, parent, name, mode, rdev)
    }

    /// Makes a directory. Errors: as [`Self::mknod`], `EMLINK`.
    pub fn mkdir(&self, caller: &Caller, parent: u64, name: &[u8], mode: u32) -> Result<Attr> {
        create_lookup::mkdir(&self.calls, caller, parent, name, mode)
    }

    /// Makes a symbolic link. Errors: as [`Self::mknod`]; `ENOENT` for an empty target,
    /// `ENAMETOOLONG` above 4095 bytes.
    pub fn symlink(
        &self,
        caller: &Caller,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attr> {
        create_lookup::symlink(&self.calls, caller, parent, name, target)
    }

    /// Makes a regular file, as `open` with `O_CREAT` and `flags`. If the name exists,
    /// `O_EXCL` is `EEXIST`; else the inode is returned, truncated for `O_TRUNC`.
    pub fn create(
        &self,
        caller: &Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Result<Attr> {
        create_lookup::create(&self.calls, caller, parent, name, mode, flags)
    }

    /// Makes a regular file without a name in the file system of directory `parent`.
    /// With `O_EXCL` in `flags` it can never get one. It lives until
    /// [`Self::forget`] or its last handle; a power cut ends it.
    pub fn tmpfile(&self, caller: &Caller, parent: u64, mode: u32, flags: u32) -> Result<Attr> {
        create_lookup::tmpfile(&self.calls, caller, parent, mode, flags)
    }

    /// Moves the name `from.1` of directory `from.0` to the name `to.1` of directory
    /// `to.0`, in one atomic step. What had the new name is removed, or with
    /// [`RENAME_EXCHANGE`] gets the old one. With [`RENAME_WHITEOUT`] a character device with number 0 is
    /// made that has the old name, in the same step. Two names of one inode stay as they are.
    ///
    /// Errors: `ENOENT`, `EEXIST` ([`RENAME_NOREPLACE`]), `EISDIR`, `ENOTDIR`,
    /// `ENOTEMPTY`, `EINVAL` (a directory would be below itself; other flags),
    /// `EMLINK`, `ENAMETOOLONG` (also for a directory that would move to more than
    /// [`DEPTH_MAX`] directories below the root), `ENOSPC`.
    pub fn rename(
        &self,
        caller: &Caller,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Result<()> {
        rename::rename(&self.calls, &self.names, caller, from, to, flags)
    }

    /// Gives inode `ino` the name `name` in directory `parent`. Errors: `EEXIST`,
    /// `EPERM` for a directory, `ENOENT` if the inode or directory was removed,
    /// `EMLINK`, `ENOTDIR`, `ENAMETOOLONG`, `ENOSPC`.
    pub fn link(&self, caller: &Caller, ino: u64, parent: u64, name: &[u8]) -> Result<Attr> {
        unlink_link::link(&self.calls, caller, ino, parent, name)
    }

    /// Removes the name of something that is no directory. Errors: `ENOENT`, `EISDIR`,
    /// `ENOTDIR`, `ENAMETOOLONG`. Needs no free space.
    pub fn unlink(&self, caller: &Caller, parent: u64, name: &[u8]) -> Result<()> {
        unlink_link::unlink(&self.calls, &self.names.paths, caller, parent, name)
    }

    /// Removes an empty directory. Errors: `ENOTEMPTY`, `ENOTDIR`, `ENOENT`,
    /// `ENAMETOOLONG`; `EINVAL` for `.`. Needs no free space.
    pub fn rmdir(&self, caller: &Caller, parent: u64, name: &[u8]) -> Result<()> {
        unlink_link::rmdir(&self.calls, &self.names.paths, caller, parent, name)
    }

    /// The kernel has no reference to inode `ino` any more: an inode without names is
    /// freed, unless another client has it open. May be called for any inode number.
    pub fn forget(&self, ino: u64) -> Result<()> {
        unlink_link::forget(&self.calls, ino)
    }

    /// Frees inodes without names whose users have all gone without freeing them: killed,
    /// or too many to be distinguished. Only those that the volume knows and that nobody
    /// holds a lease on, at most [`SWEEP_MAX`] of them. Gives what became of them.
    ///
    /// # Errors
    /// Those of the medium.
    pub fn sweep_orphans(&self) -> Result<Swept> {
        unlink_link::sweep_orphans(&self.calls, &self.services().kernel)
    }

    /// Calls `sink` with the entries of a directory behind `cookie` (0: from the start,
    /// with `.` and `..`) until it says `false` or there are no more. An entry that is
    /// neither made nor removed meanwhile is delivered exactly once. With `plus`
    /// attributes come along where they are at hand. Errors: `ENOTDIR`, `ENOENT` when
    /// the directory was removed.
    pub fn readdir(
        &self,
        caller: &Caller,
        ino: u64,
        cookie: u64,
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        list::readdir(
            &self.calls,
            &self.services().kernel,
            caller,
            ino,
            cookie,
            plus,
            sink,
        )
    }

    /// The tree as `caller` may see and change it.
    pub fn tree(self: &Arc<Self>, caller: Caller) -> Tree {
        Tree::new(self.clone(), caller)
    }
}
