//! What the tests of an area have in common.

mod areas;
mod cut_device;
mod dirty;
mod lives;
mod stale;
mod wiped;

use super::*;
use shale_format::staged::PlacedEntry;
use shale_format::{BlockAddr, LogPos, TierId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Pages of the memory tier.
const PAGES: u64 = 40;
const LAYOUT: AreaLayout = AreaLayout {
    memory_bytes: PAGES * PAGE_BYTES as u64,
    staging_bytes: STAGING_BYTES_MIN,
};
/// Byte at which the area begins.
const AT: u64 = 3 * PAGE_BYTES as u64;
const DEVICE_BYTES: u64 = 3 << 19;
const UUID: [u8; 16] = [5; 16];

/// Pages of a memory tier that are not zeros.
type Memory = BTreeMap<u64, [u8; PAGE_BYTES]>;

fn piece(slot: u32, from: u64, bytes: Vec<u8>) -> StagedPiece {
    StagedPiece {
        log: LogIdentity {
            slot,
            uid: slot + 1000,
            salt: from ^ 0x5a17,
            ring_bytes: 16 << 20,
            connection: 3,
        },
        from: LogPos(from),
        bytes,
        placed: Vec::new(),
    }
}

/// The same piece, of which these ranges lie elsewhere: bytes behind its beginning, and how many.
fn with_placed(mut piece: StagedPiece, ranges: &[(u64, u64)]) -> StagedPiece {
    for (n, &(from, bytes)) in (1..).zip(ranges) {
        let addr = BlockAddr::new(TierId::Ssd, n * 100);
        let entry = PlacedEntry::new(piece.from.0 + from, bytes, (addr, n as u32), 7);
        piece.bytes[from as usize..][..bytes as usize].fill(0);
        piece.placed.push(entry);
    }
    piece
}

/// Appends pieces without the bytes that lie elsewhere.
fn append_pieces(area: &StagedArea, pieces: &[StagedPiece]) -> Result<BatchNumber> {
    let inline = |piece: &StagedPiece| {
        let mut bytes = Vec::new();
        let mut at = piece.from.0;
        for one in &piece.placed {
            bytes.extend_from_slice(
                &piece.bytes[(at - piece.from.0) as usize..][..(one.from - at) as usize],
            );
            at = one.end();
        }
        bytes.extend_from_slice(&piece.bytes[(at - piece.from.0) as usize..]);
        bytes
    };
    let inline: Vec<Vec<u8>> = pieces.iter().map(inline).collect();
    let borrowed = pieces.iter().zip(&inline).map(|(piece, bytes)| Piece {
        log: piece.log,
        from: piece.from,
        bytes,
        placed: &piece.placed,
    });
    area.append(&borrowed.collect::<Vec<_>>())
}

fn batches_of(area: &StagedArea) -> Vec<Batch> {
    let mut batches = Vec::new();
    let done = area.for_each_batch(&mut |batch| {
        batches.push(batch);
        ControlFlow::Continue(())
    });
    done.unwrap();
    batches
}

/// The image, without pages of zeros.
fn image_of(area: &StagedArea) -> Memory {
    let (mut memory, mut behind) = (Memory::new(), 0);
    let done = area.read_image(&mut |at, bytes| {
        assert!(at >= behind && bytes.len() <= 1 << 20, "{at}");
        behind = at + bytes.len() as u64;
        for (n, page) in (at / PAGE_BYTES as u64..).zip(bytes.as_chunks::<PAGE_BYTES>().0) {
            memory.insert(n, *page);
        }
    });
    done.unwrap();
    memory.retain(|_, page| *page != [0; PAGE_BYTES]);
    memory
}
