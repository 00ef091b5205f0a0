//! Blocks of a volume, in whatever tier they lie: what reads trees and inode slots needs no more than this.

use crate::error::{Result, VolumeError};
use crate::lower_tiers::lower::Lower;
use crate::media::{Block, NvmRegion, is_in_nvm};
use crate::reading::patience::Patience;
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, TierId};
use std::sync::Arc;

/// Leaves below NVM that a process without devices has been given.
pub trait BlockSource: Send + Sync {
    /// The block that lay at `addr` when its zone had been erased `generation` times; `None`: it has
    /// to be got first.
    ///
    /// # Errors
    /// It could not be read.
    fn block(&self, addr: BlockAddr, generation: u32) -> Option<Result<Arc<[u8; BLOCK_BYTES]>>>;
}

/// The NVM tier, the devices of the lower tiers, and what of them was given to a process without devices. Clones are
/// cheap.
#[derive(Clone)]
pub(crate) struct BlockReader {
    pub(crate) media: NvmRegion,
    pub(crate) lower: Option<Arc<Lower>>,
    pub(crate) given: Option<Arc<dyn BlockSource>>,
    /// How long what changes in place is waited for.
    pub(crate) patience: Arc<Patience>,
}

impl BlockReader {
    /// The lower tiers.
    pub(crate) fn below(&self) -> Result<&Lower> {
        let lower = self.lower.as_deref();
        lower.ok_or_else(|| VolumeError::Lower("the volume has NVM only".to_owned()))
    }

    /// How often the zone of a block below NVM was erased.
    pub(crate) fn generation(&self, addr: BlockAddr) -> Result<u32> {
        self.below()?.generation(addr)
    }

    /// Reads file data from byte `byte` behind the start of block `addr`.
    pub(crate) fn read_at(&self, addr: BlockAddr, byte: u64, into: &mut [u8]) -> Result<()> {
        match &self.lower {
            Some(lower) if addr.tier() != Some(TierId::Nvm) => lower.read_at(addr, byte, into),
            _ => self.media.load_data(addr, byte, into),
        }
    }

    /// Reads a block that should be a node of a tree of this kind, at this level. `following`: leaves from there on
    /// that follow one another.
    pub(crate) fn load_node(
        &self,
        addr: BlockAddr,
        level: u16,
        following: u64,
        into: &mut Block,
    ) -> Result<()> {
        let Some(lower) = self
            .lower
            .as_ref()
            .filter(|_| !is_in_nvm(addr) && level == 0)
        else {
            return self.media.load_block(addr, into);
        };
        let Some(given) = &self.given else {
            return lower.read_leaf(addr, into);
        };
        let generation = self.generation(addr)?;
        match given.block(addr, generation) {
            Some(block) => *into = *block?,
            None => {
                return Err(VolumeError::Lacking {
                    addr,
                    generation,
                    blocks: following,
                });
            }
        }
        Ok(())
    }
}
