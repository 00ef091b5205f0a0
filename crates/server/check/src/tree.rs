//! Walks the nodes of one tree, in key order, and checks each.
//!
//! A node is entered only once, and only by the inode whose number it holds, so that no
//! damage makes the walk endless: there are as many steps as children of nodes.
//! Memory: the children of one node a level.

use super::block_refs::{Claimed, Claims, Owner, Part};
use super::media::{Block, Media};
use super::report::{Findings, Object};
use shale_format::extent::ExtentRoot;
use shale_format::limits::{BLOCK_BYTES, TREE_LEVELS_MAX};
use shale_format::tree::{self, CHILDREN_MAX, ChildEntry, NodeHeader, TreeKind};
use shale_format::{BlockAddr, FormatError, Ino, TierId};
use std::ops::Range;
use zerocopy::FromBytes;

/// What a tree should be.
pub(super) struct Tree<'a> {
    pub(super) root: &'a ExtentRoot,
    pub(super) owner: Ino,
    pub(super) kind: TreeKind,
    /// No node can be newer than the last batch.
    pub(super) txid: u64,
    /// Its leaves may lie below NVM.
    pub(super) may_lie_below: bool,
}

/// A leaf whose checksum, place and owner are right.
pub(super) struct Leaf<'a> {
    pub(super) block: &'a Block,
    pub(super) header: NodeHeader,
    /// Its block; where that is below NVM, with its tier.
    pub(super) at: u64,
    /// Keys that its parents leave it.
    pub(super) keys: Range<u64>,
}

/// What a walk came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Walked {
    pub(super) nodes: u64,
    /// Of these, those in ssd and hdd.
    pub(super) below: [u64; 2],
    /// Something could not be entered: counts of what is in the tree mean nothing.
    pub(super) broken: bool,
}

/// A node that is still to be looked at.
pub(super) struct Open {
    pub(super) addr: BlockAddr,
    pub(super) level: u16,
    pub(super) keys: Range<u64>,
}

/// Entry `i` of the array behind a node's header.
pub(super) fn entry<E: FromBytes>(block: &Block, i: usize) -> Option<E> {
    let at = NodeHeader::BYTES + i * size_of::<E>();
    E::read_from_bytes(block.get(at..at + size_of::<E>())?).ok()
}

/// Walks a tree and calls `leaf` with every leaf.
pub(super) fn walk(
    media: &Media,
    claims: &mut Claims,
    findings: &mut Findings,
    tree: &Tree<'_>,
    leaf: &mut dyn FnMut(&Leaf<'_>, &mut Claims, &mut Findings),
) -> Walked {
    let owner = Owner {
        ino: tree.owner.0,
        part: Part::Node,
    };
    let object = owner.object();
    let mut walked = Walked::default();
    if tree.root.level > TREE_LEVELS_MAX {
        let levels = (format!("{TREE_LEVELS_MAX} or less"), tree.root.level);
        findings.error(object, None, "tree too deep", levels);
        walked.broken = true;
        return walked;
    }
    let mut open = vec![Open {
        addr: BlockAddr::from_raw(tree.root.addr),
        level: tree.root.level,
        keys: 0..u64::MAX,
    }];
    let mut block = [0; BLOCK_BYTES];
    while let Some(at) = open.pop() {
        let header = match claims.claim(at.addr, 1, owner, findings) {
            Claimed::Outside => None,
            Claimed::Twice if claims.gave_up() => None,
            _ => load(media, findings, tree, &at, &mut block),
        };
        let header = header.filter(|_| claims.enter(at.addr));
        let Some(header) = header else {
            walked.broken = true;
            continue;
        };
        walked.nodes += 1;
        let tier = at.addr.tier().map_or(0, |t| t as usize);
        if let Some(n) = tier.checked_sub(1) {
            walked.below[n] += 1;
        }
        if at.level == 0 {
            let found = Leaf {
                block: &block,
                header,
                at: at.addr.raw(),
                keys: at.keys,
            };
            leaf(&found, claims, findings);
        } else {
            children(&block, &header, &at, &mut open, |keys, end| {
                let what = "keys of an inner node out of order";
                findings.error(object, Some(at.addr.index()), what, (keys, end));
            });
        }
    }
    walked
}

/// Reads the block of a node; `false`: it is not there, and that is reported.
fn read(
    media: &Media,
    findings: &mut Findings,
    tree: &Tree<'_>,
    at: &Open,
    block: &mut Block,
) -> bool {
    let object = Object::of(tree.owner.0);
    let (what, why) = match at.addr.tier() {
        Some(TierId::Nvm) if media.load(at.addr.index(), block) => return true,
        Some(TierId::Nvm) => ("tree node outside of its tier", String::new()),
        _ if at.level > 0 || !tree.may_lie_below => ("tree node in a tier below", String::new()),
        _ => match media.read_below(at.addr, block) {
            Ok(()) => return true,
            Err(why) => {
                let what = match tree.kind {
                    TreeKind::Entries => "entries of a directory that cannot be read",
                    TreeKind::Extents => "extents of a file that cannot be read",
                };
                (what, format!(": {why}"))
            }
        },
    };
    let found = format!("{:?}{why}", at.addr);
    findings.error(object, None, what, ("", found));
    false
}

/// Reads and checks a node.
fn load(
    media: &Media,
    findings: &mut Findings,
    tree: &Tree<'_>,
    at: &Open,
    block: &mut Block,
) -> Option<NodeHeader> {
    let (number, object) = (at.addr.index(), Object::of(tree.owner.0));
    if !read(media, findings, tree, at, block) {
        return None;
    }
    let header = match tree::check(block, at.addr, tree.owner, tree.kind) {
        Ok(header) => header,
        Err(FormatError::Field {
            field: "owner",
            found,
            ..
        }) => {
            let what = "tree node belongs to another inode";
            findings.error(object, Some(number), what, (tree.owner.0, found));
            return None;
        }
        Err(FormatError::Field {
            field: "kind",
            found,
            ..
        }) => {
            let what = "tree node of the wrong kind";
            findings.error(object, Some(number), what, (tree.kind as u16, found));
            return None;
        }
        Err(e) => {
            findings.undecodable(object, Some(number), &e);
            return None;
        }
    };
    if header.txid > tree.txid {
        let what = "tree node of a batch that never was";
        findings.error(
            object,
            Some(number),
            what,
            (format!("{} or less", tree.txid), header.txid),
        );
    }
    if header.level != at.level {
        let what = "tree node of the wrong level";
        findings.error(object, Some(number), what, (at.level, header.level));
        return None;
    }
    let most = if at.level > 0 {
        CHILDREN_MAX
    } else {
        usize::from(u16::MAX)
    };
    if header.count == 0 || usize::from(header.count) > most {
        let what = "number of entries in a tree node";
        findings.error(object, Some(number), what, ("1 or more", header.count));
        return None;
    }
    Some(header)
}

/// Puts the children of an inner node on the stack, the first one on top; tells `odd` of
/// each whose keys are out of order, by the range they may be in and the end they say.
pub(super) fn children(
    block: &Block,
    header: &NodeHeader,
    at: &Open,
    open: &mut Vec<Open>,
    mut odd: impl FnMut(String, u64),
) {
    let all: Vec<ChildEntry> = (0..usize::from(header.count))
        .filter_map(|i| entry(block, i))
        .collect();
    let first = open.len();
    let mut start = at.keys.start;
    for (i, child) in all.iter().enumerate() {
        let end = all.get(i + 1).map_or(at.keys.end, |next| next.key);
        if end <= start && i + 1 < all.len() || end > at.keys.end {
            odd(format!("{start} to {}", at.keys.end), end);
        }
        let end = end.clamp(start, at.keys.end);
        open.push(Open {
            addr: BlockAddr::from_raw(child.addr),
            level: at.level - 1,
            keys: start..end,
        });
        start = end;
    }
    open[first..].reverse();
}
