//! Writes above 1 MiB, and what meets them: the number makes the operation.

use super::alphabet::OPEN;
use crate::{Act, FileAct, Fill};
use shale_bench::chance::Chance;

const BLOCK: u64 = 4096;
/// Bytes of the largest record of data: a write above it has several.
const PIECE_BYTES: usize = 1 << 20;
/// Most bytes that a write has besides.
const MORE_BYTES: u64 = 384 << 10;
/// Blocks of the file before which a write begins.
const BEGIN_BLOCKS: u64 = 24;
/// `fallocate`: punch a hole, keep the size.
const PUNCH: u32 = 3;

/// Operation number `item`.
pub fn act(item: usize) -> Act {
    let chance = &mut Chance::new(item as u64);
    let slot = chance.below(OPEN.len() as u64) as usize;
    let at = chance.below(BEGIN_BLOCKS) * BLOCK;
    let within = chance.below(BLOCK);
    let seed = chance.below(256) as u8;
    let more = chance.below(MORE_BYTES) as usize;
    let write = |at, len| Act::File(slot, FileAct::Write(at, Fill { seed, len }));
    match chance.below(16) {
        0..3 => write(0, PIECE_BYTES + more / 4096 * 4096 + 4096),
        3..5 => write(at, PIECE_BYTES + more / 4096 * 4096 + 4096),
        5..8 => write(at + within, PIECE_BYTES + more),
        8..11 => {
            let len = PIECE_BYTES + more + 1;
            Act::File(slot, FileAct::WriteNext(Fill { seed, len }))
        }
        11..13 => write(at + within, 1 + more / 40),
        13 => Act::File(slot, FileAct::Truncate(at + within)),
        14 => Act::File(
            slot,
            FileAct::Allocate(PUNCH, at, (PIECE_BYTES + more) as u64),
        ),
        _ => Act::File(slot, FileAct::Read(at, PIECE_BYTES + more)),
    }
}

/// Whether an operation writes more than one record of data.
pub fn is_huge(act: &Act) -> bool {
    match act {
        Act::File(_, FileAct::Write(_, fill) | FileAct::WriteNext(fill)) => fill.len > PIECE_BYTES,
        _ => false,
    }
}
