//! Attributes, extended attributes, access control lists and flags of inodes, and making them durable.

use super::Session;
use crate::inodes::flags;
use crate::namespace::attributes::{self, StatFs};
use crate::namespace::{acl, xattrs};
use shale_format::LogPos;
use shale_format::acl::AclKind;
use shale_inodes::attr::{Attr, SetAttr};
use shale_session::caller::Caller;
use shale_session::errno::Result;
use shale_session::log::client_log::Promise;

impl Session {
    /// Attributes of an inode. Errors: `ENOENT`.
    pub fn getattr(&self, caller: &Caller, ino: u64) -> Result<Attr> {
        attributes::getattr(&self.calls, caller, ino)
    }

    /// Changes attributes and gives the new ones. A change of owner or group takes
    /// set-user-id away, and set-group-id of a group-executable file, unless `mode` is
    /// given too. A new size and other attributes are two transactions, the size first;
    /// everything else is one. Errors: `ENOENT`, `EINVAL` for a time that is none; for a
    /// size those of [`Session::truncate`].
    pub fn setattr(&self, caller: &Caller, ino: u64, set: &SetAttr) -> Result<Attr> {
        attributes::setattr(&self.calls, &self.names.paths, caller, ino, set)
    }

    /// Target of a symbolic link. Errors: `EINVAL` for anything else.
    pub fn readlink(&self, caller: &Caller, ino: u64) -> Result<Vec<u8>> {
        attributes::readlink(&self.calls, caller, ino)
    }

    /// Makes an inode durable: a file's content, a directory's entries. Returns when all records about it
    /// are hardened; what the volume has of it is so already. Under `ordered` it returns at once: the client's calls are hardened in their
    /// order. `EIO`: the client is not served any more.
    pub fn fsync(&self, caller: &Caller, ino: u64, _data_only: bool) -> Result<()> {
        attributes::fsync(&self.calls, caller, ino, _data_only)
    }

    /// Of a session that hardens later: position in its log up to which records have to be hardened before a call that was just done may be
    /// answered ([`Self::wait_hardened`]); `None`: it may be answered now. `EIO`: nothing can be hardened any more.
    pub fn to_harden(&self, promise: Promise) -> Result<Option<u64>> {
        Ok(self.calls.to_harden(promise)?.map(|upto| upto.0))
    }

    /// Returns when the records before `upto` survive a power cut. `EIO`: the device that they are staged on has failed.
    pub fn wait_hardened(&self, upto: u64) -> Result<()> {
        self.calls.wait_hardened(LogPos(upto))
    }

    /// Makes everything durable that any client of the volume has done, as syncfs(2) does of other file systems, under every
    /// policy; see [`Self::fsync`]. `EIO`: the device that logs are staged on has failed.
    pub fn sync_all(&self) -> Result<()> {
        attributes::sync_all(&self.calls)
    }

    /// Sizes of the file system. Brings what is logged into the volume first.
    pub fn statfs(&self) -> Result<StatFs> {
        attributes::statfs(&self.calls)
    }

    /// Sets an extended attribute. Errors: `EEXIST`, `ENODATA` (see the flags), `ERANGE`
    /// for a name, `E2BIG` for a value that is too long, `ENOSPC` when all attributes of
    /// the inode together are, `EOPNOTSUPP` for a name space that does not exist, `EPERM`
    /// for `user.` on anything but files and directories, `EINVAL` for other flags.
    pub fn setxattr(
        &self,
        caller: &Caller,
        ino: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<()> {
        xattrs::setxattr(
            &self.calls,
            &self.names.paths,
            caller,
            ino,
            name,
            value,
            flags,
        )
    }

    /// Value of an extended attribute. Errors: `ENODATA` if there is none, `EOPNOTSUPP`,
    /// `ERANGE` for a name that is too long.
    pub fn getxattr(&self, caller: &Caller, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        xattrs::getxattr(&self.calls, caller, ino, name)
    }

    /// Names of all extended attributes, each ended by a zero byte; those of `trusted.`
    /// for the superuser only.
    pub fn listxattr(&self, caller: &Caller, ino: u64) -> Result<Vec<u8>> {
        xattrs::listxattr(&self.calls, caller, ino)
    }

    /// Removes an extended attribute. Errors: `ENODATA` if there is none, `EPERM`,
    /// `EOPNOTSUPP`, `ERANGE` as [`Self::setxattr`]. Needs no free space, unless so much
    /// is left that it still fills as many blocks, and more than one.
    pub fn removexattr(&self, caller: &Caller, ino: u64, name: &[u8]) -> Result<()> {
        xattrs::removexattr(&self.calls, &self.names.paths, caller, ino, name)
    }

    /// Sets an access control list, which is an attribute's value; one without entries removes it. Who may do that has
    /// been decided before. The mode's permission bits follow the list that decides, in one
    /// transaction; one that says no more than a mode is not kept. `kill_sgid`: set-group-id goes; `None`: if the caller is not in the
    /// group, as far as libfs knows. Errors: `EINVAL` for what is no list, `EOPNOTSUPP` for another version and on symbolic
    /// links, `E2BIG` above 511 entries, `EACCES` for a default list of what is no directory, `ENOSPC`, `EPERM`.
    pub fn set_acl(
        &self,
        caller: &Caller,
        ino: u64,
        kind: AclKind,
        value: &[u8],
        kill_sgid: Option<bool>,
    ) -> Result<()> {
        acl::set_acl(
            &self.calls,
            &self.names.paths,
            caller,
            ino,
            kind,
            value,
            kill_sgid,
        )
    }

    /// Whether the list of an inode lets the caller write, who is in these groups; `None`: there is none that matters.
    pub fn acl_lets_write(
        &self,
        caller: &Caller,
        ino: u64,
        is_in: &dyn Fn(u32) -> bool,
    ) -> Result<Option<bool>> {
        acl::acl_lets_write(&self.calls, caller, ino, is_in)
    }

    /// Flags of a file or directory, of [`CHANGEABLE`]. Errors: `ENOTTY` for anything else.
    pub fn inode_flags(&self, caller: &Caller, ino: u64) -> Result<u32> {
        flags::inode_flags(&self.calls, caller, ino)
    }

    /// Sets the flags of a file or directory, in one transaction. Who may do that has been decided before: the
    /// owner, and for immutable and append-only callers with `CAP_LINUX_IMMUTABLE`. Errors: `ENOTTY` for
    /// anything else, `EOPNOTSUPP` for flags that are not of [`CHANGEABLE`], `EPERM` for others of what is and stays
    /// immutable.
    pub fn set_inode_flags(&self, caller: &Caller, ino: u64, flags: u32) -> Result<()> {
        flags::set_inode_flags(&self.calls, caller, ino, flags)
    }
}
