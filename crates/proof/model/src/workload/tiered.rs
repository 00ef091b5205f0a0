//! Operations on files that are large for small lower tiers: the number makes the operation.

use shale_libfs::OFlags;

use super::alphabet::OPEN;
use crate::{Act, FileAct, Fill};
use shale_bench::chance::Chance;

const BLOCK: u64 = 4096;
/// Blocks of a file at most, but for one that is appended to.
const FILE_BLOCKS: u64 = 96;
/// Most blocks of a write.
const WRITE_BLOCKS: u64 = 64;
/// `fallocate`: punch a hole, keep the size.
const PUNCH: u32 = 3;
/// `fallocate`: zeros.
const ZEROS: u32 = 16;

fn path(chance: &mut Chance) -> Vec<u8> {
    match chance.below(5) {
        0 => OPEN[chance.below(OPEN.len() as u64) as usize]
            .0
            .as_bytes()
            .to_vec(),
        n => format!("t{n}").into_bytes(),
    }
}

/// Operation number `item`.
pub fn act(item: usize) -> Act {
    let chance = &mut Chance::new(item as u64);
    let slot = chance.below(OPEN.len() as u64) as usize;
    let at = chance.below(FILE_BLOCKS);
    let some = 1 + chance.below(WRITE_BLOCKS.min(FILE_BLOCKS - at));
    let seed = chance.below(256) as u8;
    let write = |at, len: u64| {
        let len = len as usize;
        Act::File(slot, FileAct::Write(at, Fill { seed, len }))
    };
    match chance.below(40) {
        0..6 => Act::Open(slot, path(chance), OFlags::RDWR | OFlags::CREATE, 0o644),
        6..16 => write(at * BLOCK, some * BLOCK),
        16..20 => write(at * BLOCK, some.min(4) * BLOCK),
        20..24 => write(at * BLOCK + chance.below(BLOCK), 1 + chance.below(9_000)),
        24..29 => Act::File(slot, FileAct::Read(at * BLOCK, (some * BLOCK) as usize)),
        29..31 => Act::File(slot, FileAct::Truncate(at * BLOCK + chance.below(BLOCK))),
        31 => Act::File(slot, FileAct::Allocate(PUNCH, at * BLOCK, some * BLOCK)),
        32 => Act::File(
            slot,
            FileAct::Allocate(ZEROS, at * BLOCK + 100, some * BLOCK),
        ),
        33..35 => Act::Unlink(path(chance)),
        35 => Act::Rename(path(chance), path(chance), 0),
        36 => Act::Link(path(chance), path(chance)),
        37 => Act::Truncate(path(chance), at * BLOCK),
        38 => Act::File(slot, FileAct::Close),
        _ => Act::File(slot, FileAct::Sync),
    }
}
