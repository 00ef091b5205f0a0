//! Changes of a staged persistence area, checksums made to fit or not: it is opened or refused; what was opened is
//! read, goes on, and holds what was appended.

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use shale_block::MemoryBlocks;
use shale_format::limits::LOG_BYTES_MIN;
use shale_format::staged::{AreaHeader, BatchHeader, PlacedEntry};
use shale_format::{BlockAddr, LogPos, TierId};
use shale_persist::staged::{AreaLayout, Batch, LogIdentity, PAGE_BYTES, Piece, StagedArea};
use zerocopy::FromBytes;

use super::input::Input;

const PAGES: u64 = 40;
const LAYOUT: AreaLayout = AreaLayout {
    memory_bytes: PAGES * PAGE_BYTES as u64,
    staging_bytes: 1 << 20,
};
const UUID: [u8; 16] = [5; 16];
/// Byte at which the ring begins.
const RING_AT: usize = 2 * PAGE_BYTES;
/// Most changes of one input.
const CHANGES_MAX: usize = 32;

fn log() -> LogIdentity {
    LogIdentity {
        slot: 7,
        uid: 1000,
        salt: 0x5a17,
        ring_bytes: LOG_BYTES_MIN,
        connection: 1,
    }
}

fn append(area: &StagedArea, bytes: &[u8]) -> Option<Batch> {
    let from = LogPos(640);
    let piece = Piece {
        log: log(),
        from,
        bytes,
        placed: &[],
    };
    let half = bytes.len() as u64 / 2;
    // In the middle as many bytes again lie elsewhere.
    let addr = BlockAddr::new(TierId::Ssd, 9);
    let placed = [PlacedEntry::new(from.0 + half, 1 + 2 * half, (addr, 17), 5)];
    let with_placed = Piece {
        placed: &placed,
        ..piece
    };
    let appended = area.append(&[piece, with_placed]);
    appended
        .ok()
        .map(|_| batches(area).pop().expect("it was appended"))
}

fn batches(area: &StagedArea) -> Vec<Batch> {
    let mut batches = Vec::new();
    let _ = area.for_each_batch(&mut |batch| {
        batches.push(batch);
        ControlFlow::Continue(())
    });
    batches
}

fn checkpoint(area: &StagedArea, dirty: &[u64], keep: u64) {
    let pages = area.pages_to_copy(dirty);
    let mut copies = pages.iter().map(|page| (*page, &[3; PAGE_BYTES]));
    let next = area.next_batch();
    let staged = batches(area);
    let kept = staged.len().saturating_sub(keep as usize);
    let kept = staged.get(kept).map_or(next, |batch| batch.number);
    let done = area.write_checkpoint(&mut copies, 1, kept, false);
    done.expect("the device takes everything");
}

/// An area with three checkpoints and some batches.
fn base() -> &'static [u8] {
    static BASE: OnceLock<Vec<u8>> = OnceLock::new();
    BASE.get_or_init(|| {
        let device = Arc::new(MemoryBlocks::new("staged", LAYOUT.bytes()));
        let area = StagedArea::make(device.clone(), 0, LAYOUT, UUID);
        let area = area.expect("memory takes everything");
        for n in 0..3 {
            append(&area, &[n; 5000]);
            checkpoint(&area, &[u64::from(n), 7], 2);
            append(&area, &[n; 100]);
        }
        device.contents()
    })
}

fn change(bytes: &mut [u8], at: usize, with: &[u8]) {
    let end = bytes.len().min(at + with.len());
    if at < end {
        bytes[at..end].copy_from_slice(&with[..end - at]);
    }
}

/// Changes of headers and of batches; their checksums fit afterwards. And of anything else.
fn change_all(bytes: &mut [u8], input: &mut Input<'_>) {
    for _ in 0..CHANGES_MAX {
        if input.is_over() {
            break;
        }
        let kind = input.number(1);
        let with_bytes = 1 + (kind / 4) as usize % 16;
        match kind % 4 {
            0 => {
                let at = input.number(1) as usize % 2 * PAGE_BYTES;
                let field = input.number(1) as usize % AreaHeader::BYTES;
                change(bytes, at + field, input.take(with_bytes));
                if let Ok((raw, _)) = AreaHeader::read_from_prefix(&bytes[at..]) {
                    change(bytes, at, &raw.encode());
                }
            }
            1 => {
                let pages = LAYOUT.staging_bytes / PAGE_BYTES as u64;
                let at = RING_AT + (input.number(1) % pages) as usize * PAGE_BYTES;
                let field = input.number(2) as usize % 1024;
                change(bytes, at + field, input.take(with_bytes));
                let end = RING_AT + LAYOUT.staging_bytes as usize;
                if let Ok((raw, _)) = BatchHeader::read_from_prefix(&bytes[at..]) {
                    let end = end.min(at.saturating_add(raw.bytes as usize));
                    let rest = end.max(at + BatchHeader::BYTES);
                    let head = raw.encode(&bytes[at + BatchHeader::BYTES..rest]);
                    change(bytes, at, &head);
                }
            }
            2 => {
                // A batch once more, elsewhere.
                let from = RING_AT + input.number(1) as usize % 64 * PAGE_BYTES;
                let to = RING_AT + input.number(1) as usize % 64 * PAGE_BYTES;
                bytes.copy_within(from..from + 4 * PAGE_BYTES, to);
            }
            _ => {
                let at = input.number(3) as usize % bytes.len();
                change(bytes, at, input.take(with_bytes));
            }
        }
    }
}

/// Takes changes.
///
/// # Panics
/// If the area does, or forgets what it promised.
pub fn run(data: &[u8]) {
    let mut bytes = base().to_vec();
    change_all(&mut bytes, &mut Input::new(data));
    let device = Arc::new(MemoryBlocks::holding("staged", bytes));
    let Ok(area) = StagedArea::open(device.clone(), 0, LAYOUT, UUID) else {
        return;
    };
    let _ = area.read_image(&mut |_, _| {});
    let mut found = batches(&area);
    // Pieces that cannot be: there is a batch that cannot be read.
    let all_read = area.for_each_batch(&mut |_| ControlFlow::Continue(()));
    if all_read.is_err() {
        return;
    }
    found.extend(append(&area, &[9; 70_000]));
    let reopened = |device: &MemoryBlocks| {
        let device = MemoryBlocks::holding("again", device.contents());
        let area = StagedArea::open(Arc::new(device), 0, LAYOUT, UUID);
        area.expect("it was opened before")
    };
    assert_eq!(batches(&reopened(&device)), found);
    area.compare(&mut |page, into| into.fill(page as u8));
    checkpoint(&area, &[1], 1);
    let again = reopened(&device);
    assert_eq!(again.last_checkpoint(), area.last_checkpoint());
    assert_eq!(batches(&again), batches(&area));
    let mut read = 0;
    let done = again.read_image(&mut |_, bytes| read += bytes.len());
    assert!(done.is_ok() && read >= PAGE_BYTES, "{done:?}");
}

/// Inputs to begin with: a field of each header, of a batch, a batch copied, a page changed.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("nothing", vec![3]),
        ("replay", vec![28, 1, 72, 9, 0, 0, 0, 0, 0, 0, 0]),
        ("number", vec![29, 0, 16, 0, 4, 0, 0, 0, 0, 0, 0, 0]),
        ("copied", vec![2, 1, 9, 2, 0, 3]),
        ("pages", vec![7, 0, 32, 17, 1, 2, 3, 0, 64, 18, 5]),
    ]
}
