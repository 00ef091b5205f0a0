//! The operations that model, kernel and Shale all understand, and what they answer.
//!
//! Paths are bytes without a slash at the ends. Open files live in slots, so that an
//! operation is plain data: it can be listed, repeated and left out.

use super::acl;
use rustix::io::Errno;
use shale_libfs::OFlags;

/// Slots for open files of one client.
pub const SLOTS: usize = 6;

/// What an operation answers.
pub type Outcome = Result<Said, Errno>;

/// What an operation that went well tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// Nothing more.
    Done,
    /// Bytes read.
    Bytes(Vec<u8>),
    /// How many bytes were written.
    Count(usize),
    /// Attributes.
    Stat(Stat),
    /// Names and file types (as in `d_type`), sorted.
    Names(Vec<(Vec<u8>, u8)>),
}

/// The attributes on which all have to agree. A directory's size is everybody's own: 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stat {
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
}

/// Bytes to be written: `len` of them, none zero, another sequence for each `seed`. Above 1 MiB most of
/// them are zeros, so that millions of states can be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Chooses the bytes.
    pub seed: u8,
    /// How many.
    pub len: usize,
}

/// Most bytes without zeros among them.
const FULL_BYTES: usize = 1 << 20;
/// With zeros, there is a line without in so many bytes.
const SPARSE_BYTES: usize = 4096;
const LINE_BYTES: usize = 64;

impl Fill {
    /// The bytes. Neighbours differ, and so do blocks, so that any shift is seen.
    pub fn bytes(self) -> Vec<u8> {
        let seed = usize::from(self.seed);
        let byte = |n: usize| (n.wrapping_mul(7) ^ (n >> 8).wrapping_mul(13) ^ (seed * 31)) % 251;
        let is_zero = |n: usize| self.len > FULL_BYTES && n % SPARSE_BYTES >= LINE_BYTES;
        let filled = |n| if is_zero(n) { 0 } else { byte(n) as u8 + 1 };
        (0..self.len).map(filled).collect()
    }

    /// The bytes as the value of an attribute: of an access control list a list that the seed chooses.
    pub fn value(self, name: &[u8]) -> Vec<u8> {
        match acl::is_acl(name) {
            true => acl::list(self.seed),
            false => self.bytes(),
        }
    }
}

/// What is done to an open file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileAct {
    /// `close`.
    Close,
    /// `pread` of so many bytes at an offset.
    Read(u64, usize),
    /// `pwrite` at an offset.
    Write(u64, Fill),
    /// `pwrite` of these bytes at an offset.
    WriteBytes(u64, Vec<u8>),
    /// `write` at the file's own offset.
    WriteNext(Fill),
    /// `ftruncate`.
    Truncate(u64),
    /// `fallocate` with mode, offset, length.
    Allocate(u32, u64, u64),
    /// `fstat`.
    Stat,
    /// `linkat` of the descriptor.
    Link(Vec<u8>),
    /// `fsync`.
    Sync,
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// `mkdir`.
    Mkdir(Vec<u8>, u32),
    /// `mknod` of a socket.
    Socket(Vec<u8>, u32),
    /// `symlink`: target, name.
    Symlink(Vec<u8>, Vec<u8>),
    /// `link`: old, new.
    Link(Vec<u8>, Vec<u8>),
    /// `unlink`.
    Unlink(Vec<u8>),
    /// `rmdir`.
    Rmdir(Vec<u8>),
    /// `renameat2`: old, new, flags.
    Rename(Vec<u8>, Vec<u8>, u32),
    /// `stat`, or `lstat` where false.
    Stat(Vec<u8>, bool),
    /// `readlink`.
    Readlink(Vec<u8>),
    /// Names of a directory.
    List(Vec<u8>),
    /// `chmod`.
    Chmod(Vec<u8>, u32),
    /// `chown`: owner, group, whether a symbolic link is followed.
    Chown(Vec<u8>, Option<u32>, Option<u32>, bool),
    /// `truncate`.
    Truncate(Vec<u8>, u64),
    /// `setxattr`: file, name, value, flags.
    SetXattr(Vec<u8>, Vec<u8>, Fill, u32),
    /// `getxattr`.
    GetXattr(Vec<u8>, Vec<u8>),
    /// `removexattr`.
    RemoveXattr(Vec<u8>, Vec<u8>),
    /// `open` into a slot, whose file is closed before.
    Open(usize, Vec<u8>, OFlags, u32),
    /// Something with the file in a slot.
    File(usize, FileAct),
}

/// One that does operations: the model, a directory of the kernel's, a volume.
pub trait Side {
    /// Does one.
    fn act(&mut self, act: &Act) -> Outcome;

    /// Names of the extended attributes of what `path` itself is (no symbolic link), sorted.
    fn xattr_names(&mut self, path: &[u8]) -> Result<Vec<Vec<u8>>, Errno>;

    /// A number that two paths share if and only if they are one file.
    fn identity(&mut self, path: &[u8]) -> Result<u64, Errno>;
}
