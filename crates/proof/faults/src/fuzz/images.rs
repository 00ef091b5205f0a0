//! A whole volume in which structure was changed, with checksums that fit or not: opened, walked,
//! checked, repaired. Repaired is whole, or it was said that it cannot be.
//!
//! A change is: which kind of structure (one byte; the highest bit of the first change's: the
//! volume is served first, see [`super::served`]), which one of it (two), where in it (two; the
//! highest bit: the checksum stays wrong), how many bytes (one), the bytes.

use std::ops::{ControlFlow, Range};

use parking_lot::Mutex;
use shale_check::{CheckOptions, Severity, check, repair};
use shale_format::bitmap::{self, BITMAP_MAGIC, BitmapHeader, WORDS_PER_BLOCK};
use shale_format::inode::Inode;
use shale_format::limits::{BLOCK_BYTES, INODE_BYTES};
use shale_format::log::LogSlot;
use shale_format::superblock::{LOG_TABLE_BLOCK, ROOT_MAGIC, RootBlock, SUPER_MAGIC, Superblock};
use shale_format::tree::{self, NODE_MAGIC};
use shale_format::{BlockAddr, DirKey, FileBlock};
use shale_nvm::Map;
use shale_volume::{View, Volume};
use zerocopy::FromBytes;

use super::input::Input;
use super::served::serve;
use super::users_volume::dir;
use shale_bench::Result;
use shale_powercut::recovery::rot::structure;
use shale_powercut::volume::base::{Base, More};
use shale_powercut::volume::place::Place;

/// Changes of one input.
pub(crate) const CHANGES_MAX: usize = 16;
/// Bytes of one change.
pub(crate) const BYTES_MAX: u64 = 64;
/// The checksum stays as it was.
const STALE: u64 = 1 << 15;
/// The volume is served before it is repaired.
const SERVED: u8 = 1 << 7;
/// Extents, nodes or entries of one inode that are looked at.
const LOOKS_MAX: usize = 20_000;

struct Stage {
    base: std::sync::Arc<Base>,
    place: Place,
    /// Bytes of structure, by kind.
    parts: Vec<Vec<Range<usize>>>,
}

impl Stage {
    fn new() -> Result<Stage> {
        let dir = &dir();
        let base = Base::make(dir, More::Large)?;
        let place = Place::new(dir, &base)?;
        let (view, _) = View::open(place.segment.clone()).expect("a whole volume");
        let parts = structure(&view).expect("a whole volume");
        Ok(Stage { base, place, parts })
    }

    fn change(&mut self, input: &mut Input<'_>) {
        if let Some((at, bytes)) = change(&self.place.segment, &self.parts, input) {
            self.put(at, &bytes[..]);
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.place.touch(0, at);
        self.place.segment.store(at, bytes);
    }

    /// Looks at the volume in every way, then repairs it.
    fn use_it(&mut self, served: bool) -> Result<()> {
        let open = View::open(self.place.segment.clone());
        if let Ok((view, _)) = &open {
            walk(&view.clone().of_quiet_volume());
        }
        let options = CheckOptions::default();
        let mut before = check(self.place.segment.clone(), &[], &options, &mut |_| ());
        if served {
            serve(&self.place, before.clean());
            before = check(self.place.segment.clone(), &[], &options, &mut |_| ());
        }
        // What repair writes is not recorded: all pages may differ afterwards.
        if before.clean() {
            // It may have to be recovered; that is done to what it will be.
            let _ = Volume::open(self.place.segment.clone());
        } else if let Ok(done) = repair(&self.place.segment, &[], &options, &mut |_| ()) {
            assert!(done.clean(), "repaired, but {}", done.after);
            let again = check(self.place.segment.clone(), &[], &options, &mut |_| ());
            assert!(again.clean(), "checked again: {again}");
            let (view, _) = View::open(self.place.segment.clone()).expect("a repaired volume");
            walk(&view);
        }
        self.place.reset(&self.base)?;
        self.restore();
        Ok(())
    }

    fn restore(&mut self) {
        let mut page = [0; BLOCK_BYTES];
        for at in (0..self.base.segment.len()).step_by(BLOCK_BYTES) {
            self.place.segment.load(at, &mut page);
            let right = &self.base.segment[at..at + BLOCK_BYTES];
            if page[..] != *right {
                self.place.segment.store(at, right);
            }
        }
    }
}

/// The next change of a volume whose bytes of structure, by kind, are `parts`: a block, and where.
pub(crate) fn change(
    map: &Map,
    parts: &[Vec<Range<usize>>],
    input: &mut Input<'_>,
) -> Option<(usize, Box<[u8; BLOCK_BYTES]>)> {
    let kind = (input.number(1) as u8 & !SERVED) as usize % parts.len();
    let (which, place) = (input.number(2) as usize, input.number(2));
    let bytes = input.number(1) % BYTES_MAX;
    let bytes = input.take(bytes as usize);
    let ranges = &parts[kind];
    if ranges.is_empty() || bytes.is_empty() {
        return None;
    }
    let range = ranges[which % ranges.len()].clone();
    let at = range.start + (place & !STALE) as usize % range.len();
    let block = at / BLOCK_BYTES * BLOCK_BYTES;
    let end = range.end.min(block + BLOCK_BYTES);
    let bytes = &bytes[..bytes.len().min(end - at)];
    let mut whole = Box::new([0; BLOCK_BYTES]);
    map.load(block, &mut whole[..]);
    // Its magic number tells what it was, whatever becomes of it.
    let was = whole.clone();
    whole[at % BLOCK_BYTES..][..bytes.len()].copy_from_slice(bytes);
    if place & STALE == 0 {
        seal(&was, &mut whole, block / BLOCK_BYTES);
    }
    Some((block, whole))
}

/// Sets the checksums of what `was` in a block.
fn seal(was: &[u8; BLOCK_BYTES], block: &mut [u8; BLOCK_BYTES], number: usize) {
    let magic = u64::from_le_bytes(std::array::from_fn(|n| was[n]));
    if magic as u32 == NODE_MAGIC {
        return tree::seal(block);
    }
    match magic {
        SUPER_MAGIC => {
            let (raw, _) = Superblock::read_from_prefix(&block[..]).expect("a whole block");
            block[..Superblock::BYTES].copy_from_slice(&raw.encode());
        }
        ROOT_MAGIC => {
            let (raw, _) = RootBlock::read_from_prefix(&block[..]).expect("a whole block");
            block[..RootBlock::BYTES].copy_from_slice(&raw.encode());
        }
        BITMAP_MAGIC => {
            let (header, _) = BitmapHeader::read_from_prefix(&block[..]).expect("a whole block");
            let words = <[u64; WORDS_PER_BLOCK]>::read_from_bytes(&block[BitmapHeader::BYTES..]);
            let addr = BlockAddr::from_raw(header.addr);
            let words = words.expect("as many as there are");
            block.copy_from_slice(&bitmap::encode(addr, header.txid, &words)[..]);
        }
        _ if number as u64 == LOG_TABLE_BLOCK => slots(block, |slot| {
            let (raw, _) = LogSlot::read_from_prefix(slot).expect("a whole slot");
            raw.encode()
        }),
        _ => slots(block, |slot| {
            let (raw, _) = Inode::read_from_prefix(slot).expect("a whole slot");
            raw.encode()
        }),
    }
}

/// Seals each slot that holds something.
fn slots<const BYTES: usize>(block: &mut [u8; BLOCK_BYTES], seal: impl Fn(&[u8]) -> [u8; BYTES]) {
    for slot in block.chunks_mut(BYTES) {
        if slot.iter().any(|&byte| byte != 0) {
            let sealed = seal(slot);
            slot.copy_from_slice(&sealed);
        }
    }
}

const _: () = assert!(INODE_BYTES == Inode::BYTES);

/// Reads everything that can be reached; an error is as good as what it is about.
fn walk(view: &View) {
    let mut inodes = Vec::new();
    let _ = view.inodes(&mut |_, inode| {
        inodes.extend(inode.ok());
        ControlFlow::Continue(())
    });
    for inode in inodes {
        let mut looks = 0;
        let mut more = || {
            looks += 1;
            match looks < LOOKS_MAX {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        let _ = view.nodes(&inode, &mut |_, _| more());
        let _ = (view.xattrs(&inode), view.xattr_runs(&inode));
        if inode.is_dir() {
            let _ = view.entries(&inode, DirKey(0), &mut |_| more());
            let _ = view.lookup(&inode, b"f");
            let _ = view.collisions(&inode, view.key_group(b"x"));
        } else {
            let _ = view.extents(&inode, FileBlock(0), &mut |_| more());
            for block in [0, 1, 7, 250, u64::MAX - 1] {
                let _ = view.map_block(&inode, FileBlock(block));
            }
        }
    }
}

/// What is wrong with the volume at a place. That it waits for recovery is not.
pub(super) fn findings(place: &Place) -> Vec<String> {
    let options = CheckOptions::default();
    let report = check(place.segment.clone(), &[], &options, &mut |_| ());
    let wrong = report
        .findings
        .iter()
        .filter(|f| f.severity != Severity::Info);
    wrong
        .map(|f| {
            let (expected, found) = (&f.expected, &f.found);
            format!(
                "{}: {}: expected {expected}, found {found}",
                f.object, f.what
            )
        })
        .collect()
}

static STAGE: Mutex<Option<Stage>> = Mutex::new(None);

/// Changes a volume and uses it.
///
/// # Panics
/// If anything does, or a repaired volume is not whole.
pub fn run(data: &[u8]) {
    let mut stage = STAGE.lock();
    let stage = stage.get_or_insert_with(|| Stage::new().expect("a volume in /dev/shm"));
    let mut input = Input::new(data);
    for _ in 0..CHANGES_MAX {
        if input.is_over() {
            break;
        }
        stage.change(&mut input);
    }
    let served = data.first().is_some_and(|kind| kind & SERVED != 0);
    stage.use_it(served).expect("a place in /dev/shm");
}

/// Removes the volume.
pub fn finish() {
    *STAGE.lock() = None;
}

/// One change of each kind of structure, with right and with wrong checksums.
#[cfg(test)]
pub(super) fn seeds() -> Vec<(String, Vec<u8>)> {
    let one = |kind: u8, stale: u8, served: u8| {
        let change = [kind | served, 1, 0, 24, stale, 4, 0xff, 0, 1, 0x80];
        let served = if served == 0 { "" } else { "-served" };
        (format!("kind-{kind}-{stale}{served}"), change.to_vec())
    };
    let both = |kind| [one(kind, 0, 0), one(kind, 0x80, 0), one(kind, 0, SERVED)];
    let mut all: Vec<_> = (0..9).flat_map(both).collect();
    // One byte becomes what it was, behind the last structure's checksum: nothing is damaged.
    all.push(("whole-served".to_owned(), vec![SERVED]));
    all
}
