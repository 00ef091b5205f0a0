//! A larger NVM tier, on the mapping of it.
//!
//! Blocks keep their addresses. The bitmap has to be larger, and what stood behind it goes with it: bitmap, device table and the second
//! superblock are written behind the old end, where the old tier has nothing. Then the first superblock is written,
//! and with it the tier is the larger one; a power cut leaves it as it was, as it is to be, or torn. Where it is torn the second
//! superblock at the new end is whole, and so is the other one at the old end: either tier is what it was.

use crate::error::{PoolError, Result};
use shale_format::BlockAddr;
use shale_format::bitmap::{self, BITS_PER_BLOCK, WORDS_PER_BLOCK};
use shale_format::device_table::{DEVICE_TABLE_COPIES, DeviceTable};
use shale_format::limits::{BLOCK_BYTES, TIER_BLOCKS_MAX};
use shale_format::superblock::{SUPER_BLOCK, Superblock};
use shale_format::version::{Access, NVM_GROWN};
use shale_nvm::{Map, MappedRegion, Path as CountPath};
use shale_sys::failpoints;
use shale_volume::{Volume, VolumeError};
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The tier as it is, opened by nobody: what of it a larger one needs.
#[derive(Debug)]
pub struct OldTier {
    /// The newest superblock.
    pub superblock: Superblock,
    /// Runs of blocks that are in use, ascending.
    used: Vec<Range<u64>>,
    table: DeviceTable,
    /// The last batch.
    txid: u64,
}

impl OldTier {
    /// Reads it from a mapping of just its size. What waits in the journal is in place then.
    ///
    /// # Errors
    /// It cannot be opened, or its first superblock is damaged: by that one it is found which size the tier has.
    pub fn read(map: &Arc<Map>) -> Result<OldTier> {
        let volume = Volume::open(Arc::clone(map))?;
        superblock_at(map, SUPER_BLOCK)?;
        let (view, superblock) = (volume.view(), *volume.superblock());
        let runs = view.used_runs()?.into_iter();
        let runs = runs.map(|run| run.addr.index()..run.addr.index() + run.len);
        Ok(OldTier {
            used: runs.collect(),
            table: view.device_table()?,
            txid: view.root()?.txid,
            superblock,
        })
    }

    /// Its superblock when it has `bytes` bytes.
    ///
    /// # Errors
    /// As [`grown`].
    pub fn superblock_of(&self, bytes: u64) -> std::result::Result<Superblock, String> {
        grown(&self.superblock, bytes)
    }

    /// Has it take all of `map`, at the beginning of which it lies. `new`: what [`grown`] gave for that.
    ///
    /// # Errors
    /// The medium fails.
    pub fn grow(&self, map: &Map, new: &Superblock) -> Result<()> {
        let words = self.words(new);
        for (n, words) in (0..).zip(words.chunks_exact(WORDS_PER_BLOCK)) {
            let addr = BlockAddr::nvm(new.bitmap_block + n);
            let mut bits = [0; WORDS_PER_BLOCK];
            bits.copy_from_slice(words);
            let block = bitmap::encode(addr, self.txid, &bits);
            write(map, addr.index(), &block[..])?;
        }
        for copy in 0..DEVICE_TABLE_COPIES {
            let at = new.device_table_block() + copy;
            write(map, at, &self.table.encode(at))?;
        }
        structure(map).fence();
        failpoints::reach("grow-tables");
        write(map, new.second_block(), &new.encode())?;
        structure(map).fence();
        failpoints::reach("grow-second");
        write(map, SUPER_BLOCK, &new.encode())?;
        structure(map).fence();
        failpoints::reach("grow-first");
        Ok(())
    }

    /// The bits of the new bitmap: what was in use is; what the old tier had behind its data is free.
    fn words(&self, new: &Superblock) -> Vec<u64> {
        let mut words = vec![0u64; (new.bitmap_blocks as usize) * WORDS_PER_BLOCK];
        let mut set = |run: Range<u64>| {
            for block in run {
                words[(block / 64) as usize] |= 1 << (block % 64);
            }
        };
        let data = self.superblock.data();
        for run in &self.used {
            set(run.start.max(data.start)..run.end.min(data.end));
        }
        set(0..new.data().start);
        set(new.data().end..new.bitmap_blocks * BITS_PER_BLOCK);
        words
    }
}

/// A superblock when its NVM has `bytes` bytes.
///
/// # Errors
/// It cannot grow, or not to this size; the sentence says why, and what is least.
pub fn grown(superblock: &Superblock, bytes: u64) -> std::result::Result<Superblock, String> {
    let (was, blocks) = (superblock.tier[0].blocks, bytes / BLOCK);
    if !superblock.has_device_table() {
        let why = "the volume was made up to 22 November 2026, without a device table: its NVM stays as it is";
        return Err(why.to_owned());
    }
    if blocks > TIER_BLOCKS_MAX {
        return Err(format!("NVM has {} bytes at most", TIER_BLOCKS_MAX * BLOCK));
    }
    if blocks < was + behind(blocks) {
        let least = was + behind(was + behind(was));
        return Err(format!(
            "NVM has {} bytes, and {} are the least that it can grow to; it does not shrink",
            was * BLOCK,
            least * BLOCK
        ));
    }
    let mut new = *superblock;
    new.tier[0].blocks = blocks;
    new.tier[0].device[0].blocks = blocks;
    new.incompatible |= NVM_GROWN;
    new.bitmap_blocks = bitmap::blocks_for(blocks);
    new.bitmap_block = blocks - behind(blocks);
    new.generation += 1;
    Ok(new)
}

/// Blocks at the end of a tier of so many that has grown: bitmap, device table, second superblock.
fn behind(blocks: u64) -> u64 {
    bitmap::blocks_for(blocks) + DEVICE_TABLE_COPIES + 1
}

fn structure(map: &Map) -> &MappedRegion {
    map.on(CountPath::Structure)
}

/// Writes at a block, past the caches; durable after a fence.
fn write(map: &Map, block: u64, bytes: &[u8]) -> Result<()> {
    let at = (block * BLOCK) as usize;
    structure(map).copy_nt(at, bytes);
    readable(map, at, bytes.len())
}

fn readable(map: &Map, at: usize, bytes: usize) -> Result<()> {
    match map.lost(at, bytes) {
        None => Ok(()),
        Some(page) => {
            let block = page as u64 / BLOCK;
            Err(PoolError::Volume(VolumeError::Unreadable { block }))
        }
    }
}

/// A copy of the superblock.
///
/// # Errors
/// It is damaged, or of a volume that this program may not write.
pub fn superblock_at(map: &Map, block: u64) -> Result<Superblock> {
    let at = (block * BLOCK) as usize;
    let mut bytes = [0; Superblock::BYTES];
    structure(map).load(at, &mut bytes);
    readable(map, at, bytes.len())?;
    match Superblock::decode(&bytes, block).map_err(VolumeError::from)? {
        (superblock, Access::ReadWrite) => Ok(superblock),
        _ => Err(VolumeError::ReadOnly.into()),
    }
}

/// Writes the first superblock from the second one at the end of `map`, if that is one of a tier that has all of `map`: growing
/// was cut short when the first one was being written.
///
/// # Errors
/// It is none.
pub fn write_first(map: &Map) -> Result<Superblock> {
    let last = map.bytes() as u64 / BLOCK - 1;
    let new = superblock_at(map, last)?;
    if new.second_block() != last {
        let error = VolumeError::TierSize {
            expected: new.tier[0].blocks * BLOCK,
            found: map.bytes() as u64,
        };
        return Err(error.into());
    }
    write(map, SUPER_BLOCK, &new.encode())?;
    structure(map).fence();
    Ok(new)
}
