//! Trees, as far as they can be read.
//!
//! A node is believed if its checksum, place, owner, kind and level are right and nobody
//! had its block before. What is below one that is not is lost; what is beside it stays.

use super::Repair;
use crate::media::Block;
use crate::tree::{Open, children, entry};
use shale_format::dirent::DirentEntry;
use shale_format::extent::{Extent, ExtentRoot};
use shale_format::limits::{BLOCK_BYTES, TREE_LEVELS_MAX};
use shale_format::tree::{self, NodeHeader, TreeKind};
use shale_format::{BlockAddr, DirKey, Ino, TierId};
use shale_volume::Dirent;
use std::collections::HashSet;
use std::ops::Range;

/// How nodes are met.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// For the first time: they are claimed.
    Claim,
    /// Again: those are read that were claimed.
    Again,
}

/// What a walk came to.
#[derive(Default)]
pub(super) struct Walked {
    /// Blocks of the nodes that were read.
    pub(super) nodes: Vec<BlockAddr>,
    /// Keys below nodes that could not be read.
    pub(super) lost: Vec<Range<u64>>,
    /// A node is not as it should be, but was read.
    pub(super) odd: bool,
}

impl Walked {
    /// Whether the tree can stay as it is.
    pub(super) fn is_whole(&self, root: &ExtentRoot) -> bool {
        let all = self.nodes.len() as u64 == root.file_block;
        let below = self.below().count() as u64 == u64::from(root.len);
        self.lost.is_empty() && !self.odd && all && below
    }

    /// Leaves below NVM.
    pub(super) fn below(&self) -> impl Iterator<Item = &BlockAddr> {
        let below = |addr: &&BlockAddr| addr.tier() != Some(TierId::Nvm);
        self.nodes.iter().filter(below)
    }
}

impl Repair {
    /// Reads a tree and calls `leaf` with each leaf and the keys it may have.
    pub(super) fn walk(
        &mut self,
        root: &ExtentRoot,
        owner: Ino,
        kind: TreeKind,
        pass: Pass,
        leaf: &mut dyn FnMut(&Block, &NodeHeader, &Range<u64>),
    ) -> Walked {
        let mut walked = Walked::default();
        if root.level > TREE_LEVELS_MAX {
            walked.lost.push(0..u64::MAX);
            return walked;
        }
        let mut open = vec![Open {
            addr: BlockAddr::from_raw(root.addr),
            level: root.level,
            keys: 0..u64::MAX,
        }];
        let (mut block, mut met) = ([0; BLOCK_BYTES], HashSet::new());
        while let Some(at) = open.pop() {
            let found = self.load_node(&at, owner, kind, &mut block);
            let found = found.filter(|_| match pass {
                Pass::Claim => self.space.claim_node(at.addr),
                Pass::Again => self.space.is_node(at.addr) && met.insert(at.addr),
            });
            let Some((header, sure)) = found else {
                walked.lost.push(at.keys);
                continue;
            };
            walked.nodes.push(at.addr);
            walked.odd |= !sure;
            if at.level == 0 {
                leaf(&block, &header, &at.keys);
            } else {
                children(&block, &header, &at, &mut open, |_, _| walked.odd = true);
            }
        }
        walked
    }

    /// Reads a node; and tells whether others will be able to read it where it is. A leaf below NVM whose
    /// checksum there does not fit has one of its own.
    fn load_node(
        &mut self,
        at: &Open,
        owner: Ino,
        kind: TreeKind,
        block: &mut Block,
    ) -> Option<(NodeHeader, bool)> {
        let here = at.addr.tier() == Some(TierId::Nvm);
        let may = here || (at.level == 0 && owner != Ino::NONE);
        if !may || !self.space.is_inside(at.addr, 1) {
            return None;
        }
        let sure = self.media.load(at.addr.raw(), block);
        if !sure && (here || !self.media.load_unsure(at.addr, block)) {
            return None;
        }
        let header = tree::check(block, at.addr, owner, kind).ok()?;
        let sane = header.level == at.level && header.count > 0;
        let said = match kind {
            TreeKind::Entries => self.sb.has_directories_below(),
            TreeKind::Extents => self.sb.has_extents_below(),
        };
        let sure = sure && (here || said);
        (sane && self.see_txid(header.txid)).then_some((header, sure))
    }
}

/// The extents of a leaf.
pub(super) fn extents_of(block: &Block, header: &NodeHeader) -> impl Iterator<Item = Extent> {
    (0..usize::from(header.count)).filter_map(|i| entry::<Extent>(block, i))
}

/// The entries of a leaf, each with whether its key is one that the leaf may have. `None`: its
/// name is not in the leaf.
pub(super) fn entries_of(
    block: &Block,
    header: &NodeHeader,
    keys: &Range<u64>,
) -> Vec<Option<(Dirent, bool)>> {
    let count = usize::from(header.count);
    let entries_end = NodeHeader::BYTES + count * DirentEntry::BYTES;
    let one = |i| {
        let e = entry::<DirentEntry>(block, i)?;
        let (at, bytes) = (usize::from(e.name_at), usize::from(e.name_bytes));
        let legal = at >= entries_end && at >= usize::from(header.heap);
        let name = block.get(at..at + bytes).filter(|_| legal)?;
        let entry = Dirent {
            key: DirKey(e.key),
            ino: Ino(e.ino),
            kind: e.kind,
            name: name.to_vec(),
        };
        Some((entry, keys.contains(&e.key)))
    };
    (0..count).map(one).collect()
}
