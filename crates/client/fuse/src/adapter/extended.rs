//! Extended attributes and ioctls.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::Call;
use crate::backend::caller::{CAP_SYS_ADMIN, Privileges};
use crate::backend::node::{Errno, Ioctl, NodeFs, Result};
use shale_proto::mounts::{self, RangeCall};

use crate::serving::wire::{GetxattrIn, GetxattrOut, IoctlIn, IoctlOut, SetxattrIn};

/// `XFS_IOC_GOINGDOWN`, which ext4 and others share: `_IOR('X', 125, u32)`.
pub const IOC_SHUTDOWN: u32 = 0x8004_587d;
/// Its strongest form, in which nothing more is written.
const SHUTDOWN_WRITE_NOTHING: u32 = 2;

/// `FUSE_SETXATTR_ACL_KILL_SGID`: who sets the list may not keep set-group-ID.
const ACL_KILL_SGID: u32 = 1;

/// Names by which ACLs are reached. A kernel that was not asked to enforce them would
/// pass them through as plain attributes: they would be stored and mean nothing.
fn is_acl(name: &[u8]) -> bool {
    matches!(
        name,
        b"system.posix_acl_access" | b"system.posix_acl_default"
    )
}

/// The flags of a shutdown. The command is declared as one that only returns
/// data, so the kernel does not send along what the caller's pointer points at:
/// read it from the caller, who waits for our answer.
fn shutdown_flags(pid: u32, pointer: u64) -> Result<u32> {
    let mut word = [0; 4];
    File::open(format!("/proc/{pid}/mem"))
        .and_then(|memory| memory.read_exact_at(&mut word, pointer))
        .map_err(|error| {
            tracing::warn!(%error, pid, "flags of a shutdown cannot be read");
            Errno(libc::EFAULT)
        })?;
    match u32::from_ne_bytes(word) {
        flags @ 0..=SHUTDOWN_WRITE_NOTHING => Ok(flags),
        _ => Err(Errno(libc::EINVAL)),
    }
}

impl<F: NodeFs + ?Sized> Call<'_, F> {
    pub(super) fn setxattr(&mut self) -> Result<usize> {
        let (SetxattrIn { size, flags }, more) = self.body.setxattr(self.acls)?;
        let name = self.body.name()?;
        let value = self.body.bytes(size as usize)?;
        if self.is_served_acl(name)? {
            let kill_sgid = more & ACL_KILL_SGID != 0;
            let (request, ino) = (&self.request, self.ino);
            return self
                .fs
                .set_acl(request, ino, name, value, kill_sgid)
                .map(|()| 0);
        }
        if name == mounts::RANGE.as_bytes() {
            let call = RangeCall::from_bytes(value).ok_or(Errno(libc::EINVAL))?;
            return self
                .fs
                .fallocate(&self.request, self.ino, call.mode, call.offset, call.bytes)
                .map(|()| 0);
        }
        self.fs
            .setxattr(&self.request, self.ino, name, value, flags)
            .map(|()| 0)
    }

    pub(super) fn getxattr(&mut self) -> Result<usize> {
        let GetxattrIn { size, .. } = self.body.take()?;
        let name = self.body.name()?;
        let acl = self.is_served_acl(name)?;
        match self.fs.getxattr(&self.request, self.ino, name) {
            Ok(value) => self.put_sized(&value, size),
            // A file system that has none of these: with an error the kernel would let nobody in.
            Err(Errno(libc::EOPNOTSUPP)) if acl => Err(Errno(libc::ENODATA)),
            Err(e) => Err(e),
        }
    }

    pub(super) fn listxattr(&mut self) -> Result<usize> {
        let GetxattrIn { size, .. } = self.body.take()?;
        let names = self.fs.listxattr(&self.request, self.ino)?;
        self.put_sized(&names, size)
    }

    /// Whether the name is one of an ACL. Error: it is, and nobody would obey it.
    fn is_served_acl(&self, name: &[u8]) -> Result<bool> {
        match is_acl(name) {
            true if !self.acls => Err(Errno(libc::EOPNOTSUPP)),
            acl => Ok(acl),
        }
    }

    /// The bytes, or with no space for any their number.
    fn put_sized(&mut self, bytes: &[u8], capacity: u32) -> Result<usize> {
        if capacity == 0 {
            self.out.put(&GetxattrOut {
                size: bytes.len() as u32,
                padding: 0,
            })?;
        } else if bytes.len() > capacity as usize {
            return Err(Errno(libc::ERANGE));
        } else {
            self.out.put_bytes(bytes)?;
        }
        Ok(self.out.used())
    }

    pub(super) fn removexattr(&mut self) -> Result<usize> {
        let name = self.body.name()?;
        self.is_served_acl(name)?;
        self.fs
            .removexattr(&self.request, self.ino, name)
            .map(|()| 0)
    }

    pub(super) fn ioctl(&mut self) -> Result<usize> {
        let IoctlIn {
            cmd,
            arg,
            in_size,
            out_size,
            ..
        } = self.body.take()?;
        let input = self.body.bytes(in_size as usize)?;
        if cmd == IOC_SHUTDOWN {
            let caller = Privileges::of(self.request.pid);
            if !caller.is_some_and(|caller| caller.has(CAP_SYS_ADMIN)) {
                return Err(Errno(libc::EPERM));
            }
            let flags = shutdown_flags(self.request.pid, arg)?;
            self.fs.shutdown(&self.request, flags)?;
            self.out.put(&IoctlOut::default())?;
            return Ok(self.out.used());
        }
        // The result comes first but is known last.
        let head = size_of::<IoctlOut>();
        let buffer = self.out.buffer(head + out_size as usize)?;
        let output = &mut buffer[head..];
        let ioctl = Ioctl { cmd, arg, input };
        let (result, filled) = self.fs.ioctl(&self.request, self.ino, &ioctl, output)?;
        assert!(
            filled <= out_size as usize,
            "ioctl returned {filled} of {out_size} bytes"
        );
        self.out.put(&IoctlOut {
            result,
            ..IoctlOut::default()
        })?;
        self.out.commit(filled);
        Ok(self.out.used())
    }
}
