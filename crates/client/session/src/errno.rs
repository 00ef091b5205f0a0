//! What callers get: errno is decided here and nowhere else.

pub use rustix::io::Errno;

use shale_format::BlockAddr;
use shale_nvm::NvmError;
use shale_oplog::OplogError;
use shale_proto::{LeaseMode, ProtoError, Reply};
use shale_volume::VolumeError;

/// What a call gets that is to be done through the mount
/// ([`crate::options::SessionOptions::yields`]). No other call fails with it.
pub const MEDIATED: Errno = Errno::REMOTE;

/// What a call gets that the kernel has to do, this once: it would make a file shorter than the
/// kernel takes it for, while others use it through the mount; or it would take set-user-ID,
/// set-group-ID or a capability from a program, which the kernel must know before the content
/// changes. Of calls of sessions with [`crate::options::SessionOptions::yields`] only.
pub const BY_KERNEL: Errno = Errno::REMOTEIO;

/// Result of a file system call.
pub type Result<T> = std::result::Result<T, Errno>;

/// Why an operation has to stop before it changed anything. All but [`Stop::Errno`]
/// are resolved outside of locks and the read section, and then the operation restarts.
#[derive(Debug)]
pub enum Stop {
    /// Final: the caller gets it.
    Errno(Errno),
    /// A lease of this mode on this inode is needed first.
    Lease(u64, LeaseMode),
    /// The file may become longer here only if nobody uses it through the mount.
    Grow(u64),
    /// This many bytes of space in the volume are needed first.
    NeedSpace(u64),
    /// So many bytes of the log are needed, more than the call was given space for.
    Log(u64),
    /// Inode numbers for this directory are needed first.
    Inodes(u64),
    /// Blocks below NVM are needed first.
    Blocks(MissingBlocks),
    /// The change takes rights from this file that a record of content cannot take away: these
    /// mode bits, and a capability if it has one. They have to go before.
    Rights(u64, u32),
    /// What was looked up has changed meanwhile.
    Again,
    /// The volume is frozen: nothing may be changed for a moment.
    Frozen,
}

/// Blocks below NVM that a call lacks.
#[derive(Clone, Copy, Debug)]
pub struct MissingBlocks {
    /// The first.
    pub addr: BlockAddr,
    /// How often its zone was erased.
    pub generation: u32,
    /// How many.
    pub blocks: u64,
}

/// Blocks of inodes, and leaves of a tree, that a call gets at once: a listing asks for the next ones.
const AHEAD_OF_STRUCTURE: u64 = 16;

impl MissingBlocks {
    pub(crate) fn new(addr: BlockAddr, generation: u32, blocks: u64) -> Self {
        Self {
            addr,
            generation,
            blocks,
        }
    }

    /// A block of inodes or of a tree, which `len` others of its kind follow.
    pub(crate) fn of_structure(addr: BlockAddr, generation: u32, len: u64) -> Self {
        Self::new(addr, generation, len.min(AHEAD_OF_STRUCTURE))
    }
}

impl From<MissingBlocks> for Stop {
    fn from(missing: MissingBlocks) -> Self {
        Stop::Blocks(missing)
    }
}

impl From<Errno> for Stop {
    fn from(e: Errno) -> Self {
        Stop::Errno(e)
    }
}

impl From<VolumeError> for Stop {
    fn from(e: VolumeError) -> Self {
        match e {
            VolumeError::Lacking {
                addr,
                generation,
                blocks,
            } => MissingBlocks::of_structure(addr, generation, blocks).into(),
            _ => Stop::Errno(volume(&e)),
        }
    }
}

/// What a caller gets for what cannot be resolved where it stopped.
#[inline]
pub fn final_errno(stop: Stop) -> Errno {
    match stop {
        Stop::Errno(e) => e,
        _ => Errno::IO,
    }
}

/// A damaged or unreadable volume is EIO; the log says what and where.
pub(crate) fn volume(e: &VolumeError) -> Errno {
    match e {
        VolumeError::NoSpace { .. } => Errno::NOSPC,
        other => {
            tracing::error!("volume: {other}");
            Errno::IO
        }
    }
}

/// A device that fails is EIO; memory that there is not, to map or to read it, is ENOMEM.
pub(crate) fn device(e: &NvmError) -> Errno {
    tracing::error!("device: {e}");
    match e.raw_os_error() {
        Some(libc::ENOMEM) => Errno::NOMEM,
        _ => Errno::IO,
    }
}

/// A daemon that cannot be asked is EIO.
pub(crate) fn proto(e: &ProtoError) -> Errno {
    tracing::error!("{e}");
    Errno::IO
}

/// A log that cannot be used is EIO.
pub(crate) fn log(e: &OplogError) -> Errno {
    tracing::error!("update log: {e}");
    Errno::IO
}

/// What the daemon refuses, as its errno.
pub(crate) fn refusal(reply: &Reply) -> Errno {
    match reply {
        Reply::Refused { errno, why } => {
            tracing::error!("attach refused: {why}");
            Errno::from_raw_os_error(*errno)
        }
        _ => Errno::PROTO,
    }
}
