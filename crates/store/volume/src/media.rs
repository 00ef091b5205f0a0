//! Access to the NVM tier by block address.
//!
//! Invariant: an address from the medium is checked before it becomes an offset,
//! so a damaged address is an error here and never a panic in the mapping.

use crate::error::{Result, VolumeError};
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, TierId};
use shale_nvm::{Map, Path};
use std::sync::Arc;

/// Bytes of one block.
pub(crate) type Block = [u8; BLOCK_BYTES];

/// Whether a block lies in the NVM tier.
pub(crate) fn is_in_nvm(addr: BlockAddr) -> bool {
    addr.tier() == Some(TierId::Nvm)
}

/// The mapping, and how many of its blocks belong to the volume.
#[derive(Clone)]
pub(crate) struct NvmRegion {
    map: Arc<Map>,
    blocks: u64,
}

impl NvmRegion {
    pub(crate) fn new(map: Arc<Map>, blocks: u64) -> Self {
        NvmRegion { map, blocks }
    }

    pub(crate) fn map(&self) -> &Arc<Map> {
        &self.map
    }

    fn structure(&self) -> &shale_nvm::MappedRegion {
        self.map.on(Path::Structure)
    }

    /// Byte offset in the mapping of `bytes` bytes that begin `byte` bytes behind `addr`.
    fn offset(&self, addr: BlockAddr, byte: u64, bytes: usize) -> Result<usize> {
        let end = byte.checked_add(bytes as u64);
        let last = end.map(|e| e.div_ceil(BLOCK_BYTES as u64));
        let inside = is_in_nvm(addr)
            && last.is_some_and(|n| n <= self.blocks && addr.index() <= self.blocks - n);
        if !inside {
            return Err(VolumeError::BadRun {
                first: addr.raw(),
                last: addr.raw().saturating_add(last.unwrap_or(u64::MAX)),
                why: "outside the NVM tier",
            });
        }
        Ok((addr.byte() + byte) as usize)
    }

    /// After an access: whether all of it reached the medium, or came from it.
    #[inline(always)]
    fn whole(&self, at: usize, bytes: usize) -> Result<()> {
        match self.map.lost(at, bytes) {
            None => Ok(()),
            Some(page) => Err(VolumeError::Unreadable {
                block: (page / BLOCK_BYTES) as u64,
            }),
        }
    }

    /// Copies out one block of structure.
    pub(crate) fn load_block(&self, addr: BlockAddr, into: &mut Block) -> Result<()> {
        let at = self.offset(addr, 0, BLOCK_BYTES)?;
        self.structure().load(at, into);
        self.whole(at, into.len())
    }

    /// Copies out structure.
    pub(crate) fn load(&self, addr: BlockAddr, byte: u64, into: &mut [u8]) -> Result<()> {
        let at = self.offset(addr, byte, into.len())?;
        self.structure().load(at, into);
        self.whole(at, into.len())
    }

    /// Copies out file data.
    pub(crate) fn load_data(&self, addr: BlockAddr, byte: u64, into: &mut [u8]) -> Result<()> {
        let at = self.offset(addr, byte, into.len())?;
        self.map.on(Path::Data).load(at, into);
        self.whole(at, into.len())
    }

    /// Writes structure past the caches; durable after [`NvmRegion::fence`].
    pub(crate) fn write(&self, addr: BlockAddr, byte: u64, from: &[u8]) -> Result<()> {
        let at = self.offset(addr, byte, from.len())?;
        self.structure().copy_nt(at, from);
        self.whole(at, from.len())
    }

    /// Writes file data past the caches; durable after a fence of the same thread.
    pub(crate) fn write_data(&self, addr: BlockAddr, byte: u64, from: &[u8]) -> Result<()> {
        let at = self.offset(addr, byte, from.len())?;
        self.map.on(Path::Data).copy_nt(at, from);
        self.whole(at, from.len())
    }

    /// Writes to the journal; durable after [`NvmRegion::fence`].
    pub(crate) fn write_journal(&self, addr: BlockAddr, byte: u64, from: &[u8]) -> Result<()> {
        let at = self.offset(addr, byte, from.len())?;
        self.map.on(Path::Journal).copy_nt(at, from);
        self.whole(at, from.len())
    }

    /// Waits until everything this thread wrote is durable.
    pub(crate) fn fence(&self) {
        self.structure().fence();
    }
}
