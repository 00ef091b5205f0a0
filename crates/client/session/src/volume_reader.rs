//! Reading: the volume's structure and content wherever it lies, and what this client's own log holds.
//!
//! Owns the view of the volume, the cache of blocks of lower tiers, and the notes of what was read. It changes nothing that
//! outlives the process. All but [`VolumeReader::get_missing`] is done inside the read section.

use crate::access_sampling::AccessSampling;
use crate::errno::{Errno, MissingBlocks, Result, Stop, final_errno};
use crate::lower_tiers::lower_blocks::LowerBlocks;
use shale_format::inode::{Inode, slot_of};
use shale_format::limits::INODE_BYTES;
use shale_format::xattr::Xattrs;
use shale_format::{BlockAddr, Ino, LogPos};
use shale_nvm::{Map, counters};
use shale_oplog::Log;
use shale_volume::{FoundInode, View, VolumeError};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// See the module.
pub struct VolumeReader {
    view: View,
    nvm: Arc<Map>,
    log: Arc<Log>,
    lower: LowerBlocks,
    sampling: AccessSampling,
}

impl VolumeReader {
    pub(crate) fn new(
        view: View,
        nvm: Arc<Map>,
        log: Arc<Log>,
        lower: LowerBlocks,
        sampling: AccessSampling,
    ) -> Self {
        Self {
            view,
            nvm,
            log,
            lower,
            sampling,
        }
    }

    /// The volume's structure.
    #[inline(always)]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// What was read, for the daemon to know what is hot.
    #[inline(always)]
    pub fn sampling(&self) -> &AccessSampling {
        &self.sampling
    }

    /// Device counters of the NVM tier, as this process moved bytes.
    pub fn counts(&self) -> counters::Snapshot {
        self.nvm.counts()
    }

    /// The inode as the volume has it, wherever it lies.
    pub fn inode(&self, ino: u64) -> std::result::Result<Option<Inode>, Stop> {
        let (addr, len) = match self.view.find_inode(Ino(ino))? {
            FoundInode::None => return Ok(None),
            FoundInode::Here(inode) => return Ok(Some(inode)),
            FoundInode::Below { addr, len } => (addr, len),
        };
        let generation = self.view.generation(addr)?;
        let Some(block) = self.lower.find(addr, generation) else {
            return Err(MissingBlocks::of_structure(addr, generation, len).into());
        };
        self.sampling.note_inode(Ino(ino));
        let at = slot_of(Ino(ino)).1;
        let slot = &block?[at..at + INODE_BYTES];
        let inode = Inode::decode(slot, Ino(ino)).map_err(VolumeError::from)?;
        Ok((!inode.is_free()).then_some(inode))
    }

    /// The extended attributes that the volume has of an inode.
    pub fn xattrs(&self, inode: &Inode) -> std::result::Result<Xattrs, Stop> {
        match inode.xattr_addr {
            0 => Ok(Xattrs::new()),
            _ => Ok(self.view.xattrs(inode)?),
        }
    }

    /// Bytes of the NVM tier from byte `at` on; `false`: there is a memory error in them.
    #[inline(always)]
    pub fn load(&self, at: usize, into: &mut [u8]) -> bool {
        self.nvm.load(at, into);
        self.nvm.lost(at, into.len()).is_none()
    }

    /// Bytes of the NVM tier that are likely to be read next.
    #[inline(always)]
    pub fn expect_read(&self, at: usize, bytes: usize) {
        self.nvm.expect_read(at, bytes);
    }

    /// Bytes of a record's payload in this client's log.
    #[inline(always)]
    pub fn load_logged(&self, at: LogPos, into: &mut [u8]) {
        self.log.read(at, 0, into);
    }

    /// Bytes of a file that lie in blocks of lower tiers, see [`LowerBlocks::load`].
    pub fn load_lower(
        &self,
        from: (BlockAddr, u64, u64),
        offset: u64,
        read_to: &AtomicU64,
        into: &mut [u8],
    ) -> std::result::Result<(), Stop> {
        self.lower.load(&self.view, from, offset, read_to, into)
    }

    /// Gets blocks that a call lacked. Outside of the read section and locks.
    pub fn get_missing(&self, missing: MissingBlocks) -> Result<()> {
        self.lower.get(&self.view, missing)
    }

    /// Gets what loading an inode outside of a run lacked, so that it may be tried once more. Outside
    /// of the read section.
    pub fn get_lacking(&self, stop: Stop) -> Result<()> {
        match stop {
            Stop::Blocks(missing) => self.get_missing(missing),
            other => Err(final_errno(other)),
        }
    }
}

/// Bytes that cannot be read are `EIO`.
#[inline]
pub fn whole(is_whole: bool) -> std::result::Result<(), Stop> {
    match is_whole {
        true => Ok(()),
        false => Err(Errno::IO.into()),
    }
}
