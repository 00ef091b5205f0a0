//! Requests about the content of files and directories. Data is read directly
//! into the reply and written directly from the request.

use super::Call;
use super::attributes::entry_out;
use super::extended::IOC_SHUTDOWN;
use super::message::{Body, Payload};
use super::promise::is_sync;
use crate::backend::inode_flags;
use crate::backend::node::{DirEntry, Errno, FilePosition, NodeFs, Result, WriteFlags};
use crate::serving::wire::{
    CopyFileRangeIn, CopyFileRangeOut, Dirent, EntryOut, FallocateIn, FsyncIn, InHeader, IoctlIn,
    LseekIn, LseekOut, ReadIn, SetxattrIn, WriteIn, WriteOut, opcode,
};
use shale_proto::mounts::{self, RangeCall};

/// Bits of `WriteIn::write_flags`.
mod write_flag {
    pub const CACHE: u32 = 1 << 0;
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// Bit of `FsyncIn::fsync_flags`: data only.
const FSYNC_FDATASYNC: u32 = 1;

/// Adds one entry to a listing of at most `size` bytes; `false` if it does not fit.
fn put_dirent(
    out: &mut Payload<'_>,
    size: usize,
    entry: &DirEntry<'_>,
    plus: Option<EntryOut>,
) -> Result<bool> {
    let head = size_of::<Dirent>() + plus.map_or(0, |_| size_of::<EntryOut>());
    if out.used() + (head + entry.name.len()).next_multiple_of(8) > size {
        return Ok(false);
    }
    if let Some(plus) = plus {
        out.put(&plus)?;
    }
    out.put(&Dirent {
        ino: entry.ino,
        off: entry.cookie,
        namelen: entry.name.len() as u32,
        kind: entry.kind.into(),
    })?;
    out.put_bytes(entry.name)?;
    out.pad()?;
    Ok(true)
}

/// What a request does to the kernel's pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheEffect {
    /// Nothing that matters here.
    Leaves,
    /// The kernel puts what is read there.
    Fills {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// The kernel has put there what is to be written, and may have let go of the pages.
    Stored {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// The file changes past them: they must be gone before.
    Passes {
        /// The file.
        ino: u64,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
        /// The kernel does not know that attributes change: it has to be notified after it.
        tells: bool,
    },
}

/// Bytes from `offset` on.
fn to_the_end(offset: u64) -> u64 {
    i64::MAX as u64 - offset.min(i64::MAX as u64)
}

impl CacheEffect {
    /// What the message of a request says; what is malformed is found out when it is served. `acls`: the kernel obeys
    /// access control lists.
    pub(super) fn of(header: &InHeader, message: &[u8], acls: bool) -> Self {
        let mut body = Body::of(header, message);
        Self::of_kind(header, &mut body, acls).unwrap_or(Self::Leaves)
    }

    fn of_kind(header: &InHeader, body: &mut Body<'_>, acls: bool) -> Result<Self> {
        let direct = |flags: u32| flags.cast_signed() & libc::O_DIRECT != 0;
        let passes = |ino, offset, bytes| Self::Passes {
            ino,
            offset,
            bytes,
            tells: false,
        };
        let tells = |ino, offset| Self::Passes {
            ino,
            offset,
            bytes: to_the_end(offset),
            tells: true,
        };
        Ok(match header.opcode {
            opcode::READ => {
                let read: ReadIn = body.take()?;
                match direct(read.flags) {
                    true => Self::Leaves,
                    false => Self::Fills {
                        offset: read.offset,
                        bytes: read.size.into(),
                    },
                }
            }
            opcode::WRITE => {
                let write: WriteIn = body.take()?;
                let (offset, bytes) = (write.offset, write.size.into());
                // From a mapping: its pages are not dropped before the answer.
                match write.write_flags & write_flag::CACHE != 0 {
                    true => Self::Leaves,
                    false if direct(write.flags) => passes(header.nodeid, offset, bytes),
                    false => Self::Stored { offset, bytes },
                }
            }
            // What is behind the range may move.
            opcode::FALLOCATE => {
                let offset = body.take::<FallocateIn>()?.offset;
                passes(header.nodeid, offset, to_the_end(offset))
            }
            // What programs have stored in mappings is written before the file is made immutable.
            opcode::IOCTL => match body.take::<IoctlIn>()?.cmd {
                IOC_SHUTDOWN => tells(header.nodeid, 0),
                cmd if inode_flags::changes(cmd) => tells(header.nodeid, 0),
                _ => Self::Leaves,
            },
            opcode::SETXATTR => {
                let (SetxattrIn { size, .. }, _) = body.setxattr(acls)?;
                match body.name()? == mounts::RANGE.as_bytes() {
                    true => match RangeCall::from_bytes(body.bytes(size as usize)?) {
                        Some(call) => tells(header.nodeid, call.offset),
                        None => Self::Leaves,
                    },
                    false => Self::Leaves,
                }
            }
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                let range: CopyFileRangeIn = body.take()?;
                passes(range.nodeid_out, range.off_out, range.len)
            }
            _ => Self::Leaves,
        })
    }
}

/// The command, if it is an ioctl.
pub fn ioctl_of(header: &InHeader, message: &[u8]) -> Option<u32> {
    let is_one = header.opcode == opcode::IOCTL;
    let ioctl = is_one.then(|| Body::of(header, message).take::<IoctlIn>().ok());
    Some(ioctl??.cmd)
}

impl<F: NodeFs + ?Sized> Call<'_, F> {
    pub(super) fn read(&mut self) -> Result<usize> {
        let ReadIn {
            offset,
            size,
            flags,
            ..
        } = self.body.take()?;
        self.request.direct = flags.cast_signed() & libc::O_DIRECT != 0;
        let into = self.out.buffer(size as usize)?;
        let found = self.fs.read(&self.request, self.ino, offset, into)?;
        assert!(
            found <= size as usize,
            "read returned {found} of {size} bytes"
        );
        self.out.commit(found);
        Ok(self.out.used())
    }

    pub(super) fn write(&mut self) -> Result<usize> {
        let WriteIn {
            offset,
            size,
            write_flags,
            flags,
            ..
        } = self.body.take()?;
        let data = self.body.bytes(size as usize)?;
        let open = flags.cast_signed();
        self.request.direct = open & libc::O_DIRECT != 0;
        let from_cache = write_flags & write_flag::CACHE != 0;
        self.request.from_cache = from_cache;
        let how = WriteFlags {
            kill_suidgid: write_flags & write_flag::KILL_SUIDGID != 0,
            append: open & libc::O_APPEND != 0 && !from_cache,
            sync: is_sync(flags),
        };
        let written = self.fs.write(&self.request, self.ino, offset, data, how)?;
        assert!(
            written <= data.len(),
            "write returned {written} of {size} bytes"
        );
        self.out.put(&WriteOut {
            size: written as u32,
            padding: 0,
        })?;
        Ok(self.out.used())
    }

    pub(super) fn readdir(&mut self, plus: bool) -> Result<usize> {
        let ReadIn { offset, size, .. } = self.body.take()?;
        let validity = self.validity;
        let out = &mut self.out;
        let mut failed = Ok(());
        self.fs
            .readdir(&self.request, self.ino, offset, plus, &mut |entry| {
                // An entry without inode tells the kernel to look the name up when it needs to.
                // The kernel counts no reference for the two names every directory has.
                let dots = matches!(entry.name, b"." | b"..");
                let attributes = plus.then(|| match entry.attr {
                    Some(attr) if !dots => entry_out(&attr, &validity),
                    _ => EntryOut::default(),
                });
                put_dirent(out, size as usize, &entry, attributes).unwrap_or_else(|errno| {
                    failed = Err(errno);
                    false
                })
            })?;
        failed?;
        Ok(self.out.used())
    }

    /// Where it has nothing to do (every call is durable when it returns, or in its order by itself) `ENOSYS` has the
    /// kernel answer fsync(2) by itself from now on: it still sends what was stored through
    /// mappings, and still reports errors of that, before it asks.
    pub(super) fn fsync(&mut self, directory: bool) -> Result<usize> {
        if self.fs.needs_no_fsync() {
            return Err(Errno(libc::ENOSYS));
        }
        let FsyncIn { fsync_flags, .. } = self.body.take()?;
        let datasync = fsync_flags & FSYNC_FDATASYNC != 0;
        if directory {
            self.fs.fsyncdir(&self.request, self.ino, datasync)?;
        } else {
            self.fs.fsync(&self.request, self.ino, datasync)?;
        }
        Ok(0)
    }

    pub(super) fn fallocate(&mut self) -> Result<usize> {
        let FallocateIn {
            offset,
            length,
            mode,
            ..
        } = self.body.take()?;
        self.fs
            .fallocate(&self.request, self.ino, mode, offset, length)
            .map(|()| 0)
    }

    pub(super) fn lseek(&mut self) -> Result<usize> {
        let LseekIn { offset, whence, .. } = self.body.take()?;
        let offset = self.fs.lseek(&self.request, self.ino, offset, whence)?;
        self.out.put(&LseekOut { offset })?;
        Ok(self.out.used())
    }

    pub(super) fn copy_file_range(&mut self, wide: bool) -> Result<usize> {
        let range: CopyFileRangeIn = self.body.take()?;
        if range.flags != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // The older form cannot report more; a short copy is always allowed.
        let length = if wide {
            range.len
        } else {
            range.len.min(1 << 30)
        };
        let from = FilePosition {
            ino: self.ino,
            offset: range.off_in,
        };
        let to = FilePosition {
            ino: range.nodeid_out,
            offset: range.off_out,
        };
        let bytes_copied = self.fs.copy_file_range(&self.request, from, to, length)?;
        assert!(
            bytes_copied <= length,
            "copied {bytes_copied} of {length} bytes"
        );
        if wide {
            self.out.put(&CopyFileRangeOut { bytes_copied })?;
        } else {
            self.out.put(&WriteOut {
                size: bytes_copied as u32,
                padding: 0,
            })?;
        }
        Ok(self.out.used())
    }
}
