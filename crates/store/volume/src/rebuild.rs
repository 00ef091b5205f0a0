//! Writing structure again, for repair: beside what is there, and then all at once.
//!
//! New tree nodes and blocks of the inode file go to blocks that nothing refers to.
//! Root block, bitmap and log slots change through the journal, in one batch: a crash
//! anywhere leaves the volume as it was, damaged, or repaired.
//!
//! What is to be written, and which blocks may be taken, the caller has found out; nothing
//! of what is on the medium is believed here.

use crate::bitmap::words_with;
use crate::error::{Result, VolumeError};
use crate::lower_tiers::lower::device_table;
use crate::media::NvmRegion;
use crate::transaction::journal::{self, Batch};
use crate::transaction::txn::device_batch;
use crate::trees::extent::direct_root;
use crate::trees::node::{Dirent, Item, Node};
use shale_format::bitmap::{self, WORDS_PER_BLOCK};
use shale_format::device_table::{DevicePlace, DeviceTable};
use shale_format::extent::{Extent, ExtentRoot, root_kind};
use shale_format::inode::{Inode, slot_of};
use shale_format::limits::{BLOCK_BYTES, INODE_BYTES};
use shale_format::log::LogSlot;
use shale_format::superblock::{LOG_TABLE_BLOCK, ROOT_BLOCK, RootBlock, SUPER_BLOCK, Superblock};
use shale_format::tree::{CHILDREN_MAX, ChildEntry, NODE_BODY_BYTES};
use shale_format::zone::ZoneEntry;
use shale_format::{BlockAddr, Ino, TxId, version};
use shale_nvm::Map;
use std::sync::Arc;

/// Gives a block that nothing refers to; `None`: there is none left.
pub type Free<'a> = dyn FnMut() -> Option<BlockAddr> + 'a;

/// A volume whose structure is rewritten.
pub struct Rebuild {
    media: NvmRegion,
    sb: Superblock,
    /// `None`: the volume has NVM only.
    devices: Option<DeviceTable>,
    txid: TxId,
}

impl Rebuild {
    /// Begins. A whole batch that waits in the journal is written in place first; a damaged
    /// one is left for [`Rebuild::commit`] to overwrite. `sb`: the newest valid superblock.
    ///
    /// # Errors
    /// The mapping is shorter than the tier.
    pub fn begin(map: Arc<Map>, sb: &Superblock) -> Result<Rebuild> {
        let blocks = (map.bytes() / BLOCK_BYTES) as u64;
        if sb.tier[0].blocks > blocks {
            return Err(VolumeError::TierSize {
                expected: sb.tier[0].blocks * BLOCK_BYTES as u64,
                found: map.bytes() as u64,
            });
        }
        let media = NvmRegion::new(map, sb.tier[0].blocks);
        // A batch that cannot be applied is part of the damage.
        let _ = journal::replay(&media, sb);
        let devices = match sb.can_have_tiers() {
            true => Some(device_table(&media, sb)?),
            false => None,
        };
        let mut sb = *sb;
        if devices.as_ref().is_some_and(DeviceTable::has_starts) {
            sb.incompatible |= version::ZONES_START;
        }
        Ok(Rebuild {
            media,
            devices,
            sb,
            txid: TxId(0),
        })
    }

    /// Number of the transaction that everything written from now on belongs to: above
    /// every other one that the volume tells of.
    pub fn set_txid(&mut self, txid: TxId) {
        self.txid = txid;
    }

    /// Writes both superblocks.
    ///
    /// # Errors
    /// Outside the mapping.
    pub fn superblocks(&self) -> Result<()> {
        for block in [SUPER_BLOCK, self.sb.second_block()] {
            self.media
                .write(BlockAddr::nvm(block), 0, &self.sb.encode())?;
            self.media.fence();
        }
        Ok(())
    }

    /// Copies the first `bytes` bytes of a block of data; the rest becomes zeros.
    ///
    /// # Errors
    /// Outside the tier.
    pub fn copy(&self, from: BlockAddr, to: BlockAddr, bytes: usize) -> Result<()> {
        let mut block = [0; BLOCK_BYTES];
        self.media.load_block(from, &mut block)?;
        block[bytes.min(BLOCK_BYTES)..].fill(0);
        self.media.write(to, 0, &block)
    }

    /// Writes the tree of extents, ascending and not overlapping; gives its root.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn extents(&self, owner: Ino, all: &[Extent], free: &mut Free<'_>) -> Result<ExtentRoot> {
        match all {
            [] => Ok(ExtentRoot::EMPTY),
            [e] => Ok(direct_root(e)),
            _ => self.tree(owner, all, free),
        }
    }

    /// Writes the tree of a directory's entries, ascending by key; gives its root.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn entries(&self, owner: Ino, all: &[Dirent], free: &mut Free<'_>) -> Result<ExtentRoot> {
        match all {
            [] => Ok(ExtentRoot::EMPTY),
            _ => self.tree(owner, all, free),
        }
    }

    fn tree<T: Item>(&self, owner: Ino, all: &[T], free: &mut Free<'_>) -> Result<ExtentRoot> {
        let mut nodes = 0;
        let mut put = |node: Node<T>| {
            let addr = free().ok_or(VolumeError::NoSpace { wanted: 1, free: 0 })?;
            nodes += 1;
            let block = node.encode(addr, owner, self.txid.0);
            self.media.write(addr, 0, &block).map(|()| addr)
        };
        let mut below: Vec<ChildEntry> = Vec::new();
        let mut rest = all;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|item| {
                bytes += item.bytes();
                bytes <= NODE_BODY_BYTES
            });
            let (some, others) = rest.split_at(fits.count().max(1));
            let key = some[0].key();
            let addr = put(Node::Leaf(some.to_vec()))?.raw();
            below.push(ChildEntry { key, addr });
            rest = others;
        }
        let mut level = 0;
        while below.len() > 1 {
            level += 1;
            let mut above = Vec::new();
            for some in below.chunks(CHILDREN_MAX) {
                let addr = put(Node::Inner(level, some.to_vec()))?.raw();
                let key = some[0].key;
                above.push(ChildEntry { key, addr });
            }
            below = above;
        }
        Ok(ExtentRoot {
            addr: below[0].addr,
            file_block: nodes,
            kind: root_kind::TREE,
            level,
            ..ExtentRoot::EMPTY
        })
    }

    /// Writes a block of the inode file with these inodes, which all belong in it; the
    /// other slots are free.
    ///
    /// # Errors
    /// Outside the tier.
    pub fn inode_block<'i>(
        &self,
        addr: BlockAddr,
        inodes: impl IntoIterator<Item = &'i Inode>,
    ) -> Result<()> {
        let mut block = [0; BLOCK_BYTES];
        for inode in inodes {
            let at = slot_of(Ino(inode.ino)).1;
            block[at..at + INODE_BYTES].copy_from_slice(&inode.encode());
        }
        self.media.write(addr, 0, &block)
    }

    /// Makes it all the volume: the root block (its count of used blocks and its number are
    /// set here), a bitmap in which the runs `used` of the data area are in use, and
    /// these log slots free.
    ///
    /// # Errors
    /// `JournalFull`, or outside the tier: then nothing has changed.
    pub fn commit(
        self,
        mut root: RootBlock,
        used: &[(u64, u64)],
        below: &[Vec<(u64, u64)>; 2],
        free_slots: &[u32],
    ) -> Result<()> {
        let (sb, mut batch) = (&self.sb, Batch::default());
        root.txid = self.txid.0;
        root.used_blocks[0] = used.iter().map(|&(_, len)| len).sum();
        batch.push(BlockAddr::nvm(ROOT_BLOCK).byte(), &root.encode());
        let slot = LogSlot::BYTES as u64;
        for &n in free_slots {
            let at = BlockAddr::nvm(LOG_TABLE_BLOCK).byte() + u64::from(n) * slot;
            batch.push(at, &[0; LogSlot::BYTES]);
        }
        let all = [&sb.fixed()[..], used].concat();
        let words = words_with(sb.tier[0].blocks, &all);
        for (n, words) in (0..).zip(words.chunks_exact(WORDS_PER_BLOCK)) {
            let addr = BlockAddr::nvm(sb.bitmap_block + n);
            let mut bits = [0; WORDS_PER_BLOCK];
            bits.copy_from_slice(words);
            batch.push(addr.byte(), &bitmap::encode(addr, self.txid.0, &bits)[..]);
        }
        if let Some(table) = &self.devices {
            for (n, used) in below.iter().enumerate() {
                for place in table.of(n) {
                    self.lower_tables(place, used, &mut batch)?;
                }
            }
            if sb.has_device_table() {
                device_batch(sb, table, self.txid, &mut batch);
            }
        }
        journal::commit(&self.media, sb, self.txid, &batch)
    }

    /// Bitmap and zones of a device below NVM. A zone whose entry cannot be read counts as full:
    /// its blocks can be looked at by nobody, since nobody knows how often it was erased.
    fn lower_tables(
        &self,
        place: &DevicePlace,
        used: &[(u64, u64)],
        batch: &mut Batch,
    ) -> Result<()> {
        let tables = place.tables();
        let (start, end) = (place.first, place.end());
        let mine = used.iter().map(|r| (r.0.max(start), (r.0 + r.1).min(end)));
        let mine = mine.filter(|r| r.0 < r.1);
        let used: Vec<(u64, u64)> = mine.map(|r| (r.0 - start, r.1 - r.0)).collect();
        let words = words_with(place.blocks, &used);
        for (at, words) in (0..).zip(words.chunks_exact(WORDS_PER_BLOCK)) {
            let addr = BlockAddr::nvm(tables.bitmap_block + at);
            let mut bits = [0; WORDS_PER_BLOCK];
            bits.copy_from_slice(words);
            batch.push(addr.byte(), &bitmap::encode(addr, self.txid.0, &bits)[..]);
        }
        let blocks = u64::from(place.zone_blocks);
        for zone in 0..place.zones() {
            let (first, end) = (zone * blocks, (zone + 1) * blocks);
            let at = zone * ZoneEntry::BYTES as u64;
            let mut bytes = [0; ZoneEntry::BYTES];
            let table = BlockAddr::nvm(tables.zone_block);
            self.media.load(table, at, &mut bytes)?;
            let found = ZoneEntry::decode(&bytes, zone);
            let last = used.iter().rev().find(|r| r.0 < end && r.0 + r.1 > first);
            let last = last.map_or(0, |r| (r.0 + r.1).min(end) - first);
            let mended = match found {
                Ok(e) if u64::from(e.written) >= last && e.written <= place.zone_blocks => e,
                Ok(e) => ZoneEntry {
                    written: last as u32,
                    ..e
                },
                Err(_) => ZoneEntry {
                    written: place.zone_blocks,
                    ..ZoneEntry::empty()
                },
            };
            batch.push(table.byte() + at, &mended.encode());
        }
        Ok(())
    }
}
