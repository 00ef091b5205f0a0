//! Bits that flip in the structure of a recovered volume: `fsck` has to find each, and no
//! reader may take what was damaged for whole.
//!
//! One bit at a time, of every kind of structure that the volume has: superblocks, root block,
//! log table, bitmap, inodes, nodes of trees, extended attributes, targets of links. Data of files has no
//! checksum on this tier. Nothing is left changed.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use shale_format::limits::{BLOCK_BYTES, INODE_BYTES, LOG_SLOTS};
use shale_format::log::LogSlot;
use shale_format::superblock::{LOG_TABLE_BLOCK, ROOT_BLOCK, RootBlock, SUPER_BLOCK, Superblock};
use shale_format::{FileBlock, Ino, TierId};
use shale_nvm::Map;
use shale_volume::{Inode, Mapping, Run, View, VolumeError};

use crate::recovery::check::{fsck, tree};
use crate::volume::place::Place;
use crate::wrong::Wrong;
use shale_bench::chance::Chance;
use shale_model::Snapshot;

/// Bytes that are looked at for one that is not 0.
const TRIES: usize = 64;

/// Bytes of the media that hold structure of one kind.
struct Part {
    kind: &'static str,
    bytes: Vec<Range<usize>>,
}

/// Flips one bit of each kind of structure at `place`, whose tree is `right`.
///
/// # Errors
/// What was not found, or taken for whole.
pub fn flip_bits(place: &Place, right: &Snapshot, chance: &mut Chance) -> Result<(), Wrong> {
    let cannot = |e: VolumeError| format!("bit rot: the whole volume: {e}");
    let whole = Seen::of(&place.segment, right).map_err(cannot)?;
    let (view, _) = View::open(place.segment.clone()).map_err(cannot)?;
    for part in parts(&view).map_err(cannot)? {
        // Any byte; and one that says something.
        let any = chosen(&part.bytes, chance);
        let full = (0..TRIES).find_map(|_| {
            let byte = chosen(&part.bytes, chance)?;
            (place.segment.load_array::<1>(byte) != [0]).then_some(byte)
        });
        for byte in any.into_iter().chain(full) {
            let bit = 1 << chance.below(8);
            let flip = || {
                let [found] = place.segment.load_array(byte);
                place.segment.store(byte, &[found ^ bit]);
            };
            flip();
            let found = fsck(place);
            let taken = Seen::of(&place.segment, right).map(|seen| seen.difference(&whole));
            flip();
            let kind = part.kind;
            if found.is_ok() {
                return Err(format!("bit rot: byte {byte}, {kind}: fsck finds nothing"));
            }
            if let Ok(Some(what)) = taken {
                let read = "is read wrongly";
                return Err(format!("bit rot: byte {byte}, {kind}: {what} {read}"));
            }
        }
    }
    Ok(())
}

/// Any byte, each range as likely as another.
fn chosen(ranges: &[Range<usize>], chance: &mut Chance) -> Option<usize> {
    let n = ranges.len() as u64;
    let range = ranges.get(chance.below(n.max(1)) as usize)?;
    Some(range.start + chance.below(range.len().max(1) as u64) as usize)
}

/// Bytes of the structure of a volume, by kind.
///
/// # Errors
/// The volume cannot be read.
pub fn structure(view: &View) -> Result<Vec<Vec<Range<usize>>>, VolumeError> {
    Ok(parts(view)?.into_iter().map(|part| part.bytes).collect())
}

/// Where a volume has structure, by kind.
fn parts(view: &View) -> Result<Vec<Part>, VolumeError> {
    let sb = view.superblock();
    let at = |block: u64, bytes: usize| {
        let start = block as usize * BLOCK_BYTES;
        start..start + bytes
    };
    let runs = |runs: Vec<Run>| -> Vec<Range<usize>> {
        let bytes = |r: &Run| at(r.addr.index(), r.len as usize * BLOCK_BYTES);
        runs.iter().map(bytes).collect()
    };
    let (mut slots, mut nodes, mut attributes) = (Vec::new(), Vec::new(), Vec::new());
    let mut targets = Vec::new();
    let file = view.root()?.inode_file;
    view.extents(&file, FileBlock(0), &mut |e| {
        let blocks = e.start().0..e.end().0;
        slots.extend(blocks.map(|fb| at(e.addr_of(FileBlock(fb)).index(), BLOCK_BYTES)));
        ControlFlow::Continue(())
    })?;
    let mut used = Vec::new();
    let mut inodes = vec![file];
    view.inodes(&mut |ino, inode| {
        let block = ino.0 as usize % (BLOCK_BYTES / INODE_BYTES) * INODE_BYTES;
        used.push((ino, block));
        inodes.extend(inode.ok());
        ControlFlow::Continue(())
    })?;
    for inode in &inodes {
        let _ = view.nodes(inode, &mut |node, _| {
            if node.addr.tier() == Some(TierId::Nvm) {
                nodes.push(at(node.addr.index(), BLOCK_BYTES));
            }
            ControlFlow::Continue(())
        });
        if inode.is_symlink()
            && let Mapping::Data { addr, .. } = view.map_block(inode, FileBlock(0))?
            && addr.tier() == Some(TierId::Nvm)
        {
            let first = addr.byte() as usize;
            targets.push(first..first + inode.size as usize);
        }
        if !inode.xattr_scattered() && inode.xattr_length() > 0 {
            let first = runs(view.xattr_runs(inode)?)[0].start;
            attributes.push(first..first + inode.xattr_length());
        }
    }
    let table = at(LOG_TABLE_BLOCK, LOG_SLOTS as usize * LogSlot::BYTES);
    let bitmap = at(sb.bitmap_block, sb.bitmap_blocks as usize * BLOCK_BYTES);
    let part = |kind, bytes| Part { kind, bytes };
    Ok(vec![
        part("first superblock", vec![at(SUPER_BLOCK, Superblock::BYTES)]),
        part(
            "second superblock",
            vec![at(sb.second_block(), Superblock::BYTES)],
        ),
        part("root block", vec![at(ROOT_BLOCK, RootBlock::BYTES)]),
        part("log table", vec![table]),
        part("bitmap", vec![bitmap]),
        part("inode in use", in_use(view, &used)?),
        part("inode file", slots),
        part("tree node", nodes),
        part("extended attributes", attributes),
        part("target of a symbolic link", targets),
    ])
}

/// Slots of inodes that there are; `used`: with their places in their blocks.
fn in_use(view: &View, used: &[(Ino, usize)]) -> Result<Vec<Range<usize>>, VolumeError> {
    let file = view.root()?.inode_file;
    let mut found = Vec::new();
    for &(ino, byte) in used {
        let block = FileBlock(ino.0 * INODE_BYTES as u64 / BLOCK_BYTES as u64);
        if let Mapping::Data { addr, .. } = view.map_block(&file, block)? {
            let start = addr.byte() as usize + byte;
            found.push(start..start + INODE_BYTES);
        }
    }
    Ok(found)
}

/// What a reader of the volume sees; an error is nothing seen.
struct Seen {
    superblock: Superblock,
    root: Option<RootBlock>,
    slots: Vec<Option<LogSlot>>,
    used: Option<Vec<Run>>,
    inodes: Vec<Option<Inode>>,
    tree: Option<Snapshot>,
}

impl Seen {
    fn of(map: &Arc<Map>, right: &Snapshot) -> Result<Seen, VolumeError> {
        // Nobody writes here: what does not fit its checksum is damaged.
        let view = View::open(map.clone())?.0.of_quiet_volume();
        let inos = right.paths.len() as u64 + 32;
        let root = view.root().ok();
        // Without it there is nothing, and each look would wait for a writer.
        let inodes = root.iter().flat_map(|_| 1..inos);
        let inodes = inodes.map(|n| view.inode(Ino(n)).ok().flatten());
        Ok(Seen {
            superblock: *view.superblock(),
            slots: (0..LOG_SLOTS).map(|n| view.log_slot(n).ok()).collect(),
            used: view.used_runs().ok(),
            inodes: inodes.collect(),
            tree: root.and_then(|_| tree(&view).ok()),
            root,
        })
    }

    /// What is seen here and is not so.
    fn difference(&self, whole: &Seen) -> Option<&'static str> {
        fn other<T: PartialEq>(found: &Option<T>, right: &Option<T>) -> bool {
            found.is_some() && found != right
        }
        let bytes = |s: &Option<LogSlot>| s.as_ref().map(LogSlot::encode);
        let root = |r: &Option<RootBlock>| r.as_ref().map(RootBlock::encode);
        let inode = |i: &Option<Inode>| i.as_ref().map(Inode::encode);
        let mut slots = self.slots.iter().zip(&whole.slots);
        let mut inodes = self.inodes.iter().zip(&whole.inodes);
        let differs = [
            (
                self.superblock.encode() != whole.superblock.encode(),
                "the superblock",
            ),
            (
                other(&root(&self.root), &root(&whole.root)),
                "the root block",
            ),
            (
                slots.any(|(a, b)| other(&bytes(a), &bytes(b))),
                "the log table",
            ),
            (other(&self.used, &whole.used), "the bitmap"),
            (inodes.any(|(a, b)| other(&inode(a), &inode(b))), "an inode"),
            (other(&self.tree, &whole.tree), "the tree"),
        ];
        differs.into_iter().find(|d| d.0).map(|d| d.1)
    }
}
