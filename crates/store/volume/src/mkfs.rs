//! Making a volume.
//!
//! Both superblocks are wiped first and written last, so a power cut in between
//! leaves no volume rather than half of one.

use crate::bitmap::words_with;
use crate::error::{Result, VolumeError};
use crate::media::NvmRegion;
use shale_format::bitmap::{self, WORDS_PER_BLOCK};
use shale_format::device_table::{DEVICE_TABLE_COPIES, DevicePlace, DeviceTable};
use shale_format::extent::{ExtentRoot, root_kind};
use shale_format::inode::{Inode, slot_of, time};
use shale_format::limits::{BLOCK_BYTES, DEVICES_MAX, INODE_BYTES, NVM_BYTES_MIN};
use shale_format::superblock::{
    DeviceEntry, LOG_TABLE_BLOCK, LOG_TABLE_BLOCKS, LowerTables, ROOT_BLOCK, ROOT_MAGIC, RootBlock,
    SUPER_BLOCK, SUPER_MAGIC, Superblock, TierTable,
};
use shale_format::zone::{ZONES_PER_BLOCK, ZoneEntry};
use shale_format::{BlockAddr, Durability, Ino, version};
use shale_nvm::Map;
use shale_sys::mutants;
use std::sync::Arc;
use zerocopy::FromZeros;

/// Tables, those of lower tiers with them, take at most this part of the NVM tier.
pub(crate) const TABLES_PART: u64 = 2;

/// The journal's part of the tier.
const JOURNAL_PART: u64 = 64;
/// Least and most blocks of the journal.
const JOURNAL_BLOCKS: std::ops::RangeInclusive<u64> = 256..=16384;
/// Bits of a mode that are permissions.
const MODE_BITS: u32 = 0o7777;
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;

/// Properties of a new volume.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Keys of the name hash; random, so that nobody can make names that collide.
    pub hash_seed: [u64; 2],
    /// Time of making, ns since 1970.
    pub created_ns: i64,
    /// Durability policy.
    pub durability: Durability,
    /// Owner of the volume and of its root directory.
    pub owner_uid: u32,
    /// Group of the root directory.
    pub owner_gid: u32,
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// Bytes of a client's update log unless it asks otherwise.
    pub log_bytes: u64,
    /// Flash tier; all zeros: none.
    pub ssd: TierTable,
    /// Disk tier; all zeros: none.
    pub hdd: TierTable,
    /// Blocks of the devices of ssd and hdd where their zones begin; 0: behind the label area.
    pub starts: [[u32; DEVICES_MAX]; 2],
}

impl Default for MkfsOptions {
    /// A strict volume on NVM alone, owned by root, without identity or seed.
    fn default() -> Self {
        MkfsOptions {
            uuid: [0; 16],
            hash_seed: [0; 2],
            created_ns: 0,
            durability: Durability::Strict,
            owner_uid: 0,
            owner_gid: 0,
            root_mode: 0o755,
            log_bytes: shale_format::limits::LOG_BYTES_DEFAULT,
            ssd: TierTable::new_zeroed(),
            hdd: TierTable::new_zeroed(),
            starts: [[0; DEVICES_MAX]; 2],
        }
    }
}

/// How the tier is divided, and the devices below it.
fn superblock(blocks: u64, options: &MkfsOptions) -> Result<(Superblock, DeviceTable)> {
    let journal_block = LOG_TABLE_BLOCK + LOG_TABLE_BLOCKS;
    let journal_blocks =
        (blocks / JOURNAL_PART).clamp(*JOURNAL_BLOCKS.start(), *JOURNAL_BLOCKS.end());
    let bitmap_block = journal_block + journal_blocks;
    let bitmap_blocks = bitmap::blocks_for(blocks);
    let mut nvm = TierTable {
        blocks,
        devices: 1,
        ..TierTable::new_zeroed()
    };
    nvm.device[0] = DeviceEntry {
        uuid: options.uuid,
        blocks,
        zone_blocks: 1,
        kind: 0,
    };
    let tier = [nvm, options.ssd, options.hdd];
    let (table, data_block) = new_table(bitmap_block + bitmap_blocks, &tier, &options.starts)?;
    let in_use = tier.iter().rposition(|t| t.blocks > 0).map_or(1, |n| n + 1);
    let tiers = match table.devices {
        [0, 0] => version::TIERS_LATER,
        _ => version::LOWER_TIERS,
    };
    let starts = match options
        .starts
        .as_flattened()
        .iter()
        .all(|&start| start == 0)
    {
        true => 0,
        false => version::ZONES_START,
    };
    let sb = Superblock {
        magic: SUPER_MAGIC,
        crc: 0,
        version: version::VERSION,
        compatible: 0,
        ro_compatible: 0,
        incompatible: version::DEVICE_TABLE | tiers | starts,
        generation: 1,
        uuid: options.uuid,
        created_ns: options.created_ns,
        hash_seed: options.hash_seed,
        journal_block,
        journal_blocks,
        bitmap_block,
        bitmap_blocks,
        data_block,
        durability: options.durability as u8,
        tier_count: in_use as u8,
        reserved0: [0; 2],
        owner_uid: options.owner_uid,
        log_bytes: options.log_bytes,
        tier,
        lower: [LowerTables::new_zeroed(); 2],
    };
    Ok((sb, table))
}

/// The devices of a new volume, with their tables one behind the other, and the block behind them.
fn new_table(
    at: u64,
    tier: &[TierTable],
    starts: &[[u32; DEVICES_MAX]; 2],
) -> Result<(DeviceTable, u64)> {
    let mut table = DeviceTable::empty();
    let mut end = at + DEVICE_TABLE_COPIES;
    for (n, tier) in tier[1..].iter().enumerate() {
        let devices = &tier.device[..tier.devices as usize];
        for (entry, &start) in devices.iter().zip(&starts[n]) {
            let place = table.add(n, entry, (start, end));
            let place =
                place.ok_or_else(|| VolumeError::Lower("more than a tier can have".to_owned()))?;
            end = place.tables().end_block;
        }
    }
    Ok((table, end))
}

fn directory(ino: Ino, mode: u32, options: &MkfsOptions) -> Inode {
    let mut dir = Inode::free();
    dir.ino = ino.0;
    dir.mode = DIRECTORY | (mode & MODE_BITS);
    dir.uid = options.owner_uid;
    dir.gid = options.owner_gid;
    dir.nlink = 2;
    dir.parent = Ino::ROOT.0;
    dir.generation = 1;
    for which in [time::ACCESS, time::MODIFY, time::CHANGE, time::BIRTH] {
        dir.set_time_ns(which, options.created_ns);
    }
    dir
}

/// The inode file with its first block mapped to `block`.
fn inode_file(block: u64) -> Inode {
    let mut file = Inode::free();
    file.mode = FILE;
    file.nlink = 1;
    file.size = BLOCK_BYTES as u64;
    file.blocks = 1;
    file.root[0] = ExtentRoot {
        addr: BlockAddr::nvm(block).raw(),
        file_block: 0,
        len: 1,
        kind: root_kind::DIRECT,
        flags: 0,
        level: 0,
    };
    file
}

/// How a tier of `bytes` bytes is divided. What could not be opened again is refused.
pub(crate) fn plan(bytes: u64, options: &MkfsOptions) -> Result<(Superblock, DeviceTable)> {
    if bytes < NVM_BYTES_MIN {
        return Err(VolumeError::TierSize {
            expected: NVM_BYTES_MIN,
            found: bytes,
        });
    }
    let blocks = bytes / BLOCK_BYTES as u64;
    let (sb, table) = superblock(blocks, options)?;
    if sb.data_block > blocks / TABLES_PART {
        return Err(VolumeError::TierSize {
            expected: sb.data_block * TABLES_PART * BLOCK_BYTES as u64,
            found: bytes,
        });
    }
    Superblock::decode(&sb.encode(), SUPER_BLOCK)?;
    Ok((sb, table))
}

/// Writes an empty volume to the whole mapping.
pub(crate) fn mkfs(map: &Arc<Map>, options: &MkfsOptions) -> Result<()> {
    let bytes = map.bytes() as u64;
    // Before anything is lost.
    let (sb, table) = plan(bytes, options)?;
    let blocks = bytes / BLOCK_BYTES as u64;
    let media = NvmRegion::new(Arc::clone(map), blocks);
    let zeros = [0; BLOCK_BYTES];
    let supers = [SUPER_BLOCK, sb.second_block()];
    for block in supers.into_iter().filter(|_| !mutants::is_on("mkfs-wipe")) {
        media.write(BlockAddr::nvm(block), 0, &zeros)?;
    }
    media.fence();
    for n in 0..LOG_TABLE_BLOCKS {
        media.write(BlockAddr::nvm(LOG_TABLE_BLOCK + n), 0, &zeros)?;
    }
    media.write(BlockAddr::nvm(sb.journal_block), 0, &zeros)?;
    write_bitmap(&media, &sb)?;
    write_lower(&media, &sb, &table)?;
    write_inodes(&media, &sb, options)?;
    if !mutants::is_on("mkfs-fence") {
        media.fence();
    }
    for block in supers {
        if mutants::is_on("mkfs-second") && block != SUPER_BLOCK {
            break;
        }
        media.write(BlockAddr::nvm(block), 0, &sb.encode())?;
        media.fence();
    }
    Ok(())
}

/// Fixed areas, the inode file's first block and what is behind the end are in use.
fn write_bitmap(media: &NvmRegion, sb: &Superblock) -> Result<()> {
    let used = [(0, sb.data_block + 1), (sb.second_block(), 1)];
    let words = words_with(sb.tier[0].blocks, &used);
    for (n, words) in (0..).zip(words.chunks_exact(WORDS_PER_BLOCK)) {
        let addr = BlockAddr::nvm(sb.bitmap_block + n);
        let mut bits = [0; WORDS_PER_BLOCK];
        bits.copy_from_slice(words);
        media.write(addr, 0, &bitmap::encode(addr, 0, &bits)[..])?;
    }
    Ok(())
}

/// The device table, and the tables of the tiers below: all zones empty.
fn write_lower(media: &NvmRegion, sb: &Superblock, table: &DeviceTable) -> Result<()> {
    for place in table.of(0).iter().chain(table.of(1)) {
        write_tables(media, place)?;
    }
    for copy in 0..DEVICE_TABLE_COPIES {
        let at = sb.device_table_block() + copy;
        media.write(BlockAddr::nvm(at), 0, &table.encode(at))?;
    }
    Ok(())
}

/// Tables of a new device. Checksums mean nothing before a block is written.
pub(crate) fn write_tables(media: &NvmRegion, place: &DevicePlace) -> Result<()> {
    let tables = place.tables();
    let entry = ZoneEntry::empty().encode();
    let block: Vec<u8> = entry.repeat(ZONES_PER_BLOCK as usize);
    for block_at in tables.zone_block..tables.bitmap_block {
        media.write(BlockAddr::nvm(block_at), 0, &block)?;
    }
    let words = words_with(place.blocks, &[]);
    for (n, words) in (0..).zip(words.chunks_exact(WORDS_PER_BLOCK)) {
        let addr = BlockAddr::nvm(tables.bitmap_block + n);
        let mut bits = [0; WORDS_PER_BLOCK];
        bits.copy_from_slice(words);
        media.write(addr, 0, &bitmap::encode(addr, 0, &bits)[..])?;
    }
    Ok(())
}

fn write_inodes(media: &NvmRegion, sb: &Superblock, options: &MkfsOptions) -> Result<()> {
    let dirs = [
        directory(Ino::ROOT, options.root_mode, options),
        directory(Ino::ORPHANS, 0o700, options),
    ];
    let mut block = [0; BLOCK_BYTES];
    for dir in &dirs {
        let at = slot_of(Ino(dir.ino)).1;
        block[at..at + INODE_BYTES].copy_from_slice(&dir.encode());
    }
    media.write(BlockAddr::nvm(sb.data_block), 0, &block)?;
    let root = RootBlock {
        magic: ROOT_MAGIC,
        crc: 0,
        reserved0: 0,
        txid: 0,
        used_blocks: [1, 0, 0],
        inodes: dirs.len() as u64,
        leaves_below: [0; 2],
        extent_leaves_below: [0; 2],
        reserved1: [0; 168],
        inode_file: inode_file(sb.data_block),
    };
    media.write(BlockAddr::nvm(ROOT_BLOCK), 0, &root.encode())
}
