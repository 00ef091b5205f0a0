//! Reading, writing and changing what files hold, by inode number.

use super::Session;
use crate::inodes::inode_handle::{self, InodeHandle};
use crate::io::direct::{self, DirectMap};
use crate::io::handle::File;
use crate::io::write::{WriteAccess, WriteFlags};
use crate::io::{read, truncate_fallocate, write};
use rustix::fs::OFlags;
use shale_session::caller::Caller;
use shale_session::errno::Result;
use std::sync::Arc;

impl Session {
    /// What a write is given.
    #[inline(always)]
    pub(crate) fn to_write<'s>(&'s self, caller: &'s Caller) -> WriteAccess<'s> {
        WriteAccess {
            calls: &self.calls,
            space: &self.services().space,
            caller,
        }
    }

    /// Reads from byte `offset` on; fewer bytes only at the end of the file.
    pub fn read(&self, caller: &Caller, ino: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        read::read(&self.calls, caller, ino, offset, into)
    }

    /// Writes at `offset`; durable on return with the strict policy. Returns the
    /// bytes written: all of them, or those before a piece that failed.
    pub fn write(
        &self,
        caller: &Caller,
        ino: u64,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        write::write(&self.to_write(caller), ino, offset, data, flags)
    }

    /// As [`Self::write`]; also tells where the write ended, which an appending
    /// caller needs to know.
    pub fn write_at(
        &self,
        caller: &Caller,
        ino: u64,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<(usize, u64)> {
        write::write_at(&self.to_write(caller), ino, offset, data, flags)
    }

    /// Writes pages that a program has changed in a shared mapping, and whose writing has failed for want of space: nobody waits for it whom an
    /// error would reach before other stores are lost. Each page on its own, with the last space that there is. For the mount. As
    /// [`Self::write_at`]; errors: `ENOSPC`, if that is used up, too.
    pub fn write_pages(
        &self,
        caller: &Caller,
        ino: u64,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<(usize, u64)> {
        write::write_pages(&self.to_write(caller), ino, offset, data, flags)
    }

    /// As [`Session::read`].
    pub fn read_found(
        &self,
        caller: &Caller,
        found: &mut InodeHandle,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        inode_handle::read_found(&self.calls, caller, found, offset, into)
    }

    /// As [`Session::write_at`]; `at` is where to begin, then where the write ended.
    pub fn write_handle(
        &self,
        caller: &Caller,
        found: &mut InodeHandle,
        at: &mut u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        inode_handle::write_handle(&self.to_write(caller), found, at, data, flags)
    }

    /// Sets the size. What is cut off is gone; what is added reads as zeros.
    pub fn truncate(&self, caller: &Caller, ino: u64, size: u64, kill_suidgid: bool) -> Result<()> {
        truncate_fallocate::truncate(&self.calls, caller, ino, size, kill_suidgid)
    }

    /// As [`Self::truncate`]. `kept` tells what the kernel takes for the size; it may be asked under
    /// the lease, so it must not wait. Errors: [`BY_KERNEL`] if that is too large then, for others.
    pub fn truncate_beside_kernel(
        &self,
        caller: &Caller,
        ino: u64,
        size: u64,
        kill_suidgid: bool,
        kept: &dyn Fn() -> u64,
    ) -> Result<()> {
        truncate_fallocate::truncate_beside_kernel(
            &self.calls,
            caller,
            ino,
            size,
            kill_suidgid,
            kept,
        )
    }

    /// As `fallocate(2)`, every mode that ext4 has.
    pub fn fallocate(
        &self,
        caller: &Caller,
        ino: u64,
        mode: u32,
        offset: u64,
        bytes: u64,
    ) -> Result<()> {
        truncate_fallocate::fallocate(&self.calls, caller, ino, mode, offset, bytes)
    }

    /// As `lseek` with [`SEEK_DATA`] or [`SEEK_HOLE`].
    pub fn lseek(&self, caller: &Caller, ino: u64, offset: u64, whence: u32) -> Result<u64> {
        truncate_fallocate::lseek(&self.calls, caller, ino, offset, whence)
    }

    /// As `copy_file_range(2)`; returns the bytes copied, 0 at the end of the source. A copy
    /// that a crash cut off is gone on with where it ended.
    pub fn copy_file_range(
        &self,
        caller: &Caller,
        from: (u64, u64),
        to: (u64, u64),
        bytes: u64,
    ) -> Result<u64> {
        truncate_fallocate::copy_file_range(&self.to_write(caller), from, to, bytes)
    }

    /// Bytes `offset` to `offset + bytes` of a file, to be mapped. `offset` is a multiple of 4 KiB.
    /// `None`: they cannot be mapped directly from NVM: a part of them is a hole, lies in a
    /// slower tier or behind the end, or too much is mapped already. Everything written
    /// before by anybody is in it, nothing written later.
    ///
    /// # Errors
    /// As for a read; no descriptors are left.
    pub fn map_direct(
        &self,
        caller: &Caller,
        ino: u64,
        offset: u64,
        bytes: u64,
    ) -> Result<Option<DirectMap>> {
        direct::map_direct(
            &self.calls,
            &self.services().daemon,
            caller,
            ino,
            offset,
            bytes,
        )
    }

    /// Opens the file at `path` as open(2) does. Known flags: access modes, `CREATE`,
    /// `EXCL`, `TRUNC`, `APPEND`, `NOFOLLOW`, `DIRECTORY`, `TMPFILE`, `PATH`, `SYNC`, `DSYNC`; others are
    /// taken and ignored. `mode` is for a file that is made.
    ///
    /// Errors: those of open(2); `ENXIO` for device nodes, FIFOs and sockets, which
    /// only a kernel can open.
    pub fn open(
        self: &Arc<Self>,
        caller: &Caller,
        path: &[u8],
        flags: OFlags,
        mode: u32,
    ) -> Result<File> {
        self.tree(*caller).open(path, flags, mode)
    }
}
