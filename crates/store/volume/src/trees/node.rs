//! Nodes of the trees: decoded for writers, searched in place for readers.
//!
//! A node is taken apart only after [`tree::check`] found it whole. Beyond that
//! everything is checked again here (a whole node may still be a wrong one):
//! no damage leads to a panic or to an endless walk.

use crate::error::{Result, VolumeError};
use crate::media::Block;
use crate::reading::block_reader::BlockReader;
use shale_format::dirent::DirentEntry;
use shale_format::extent::{Extent, ExtentRoot, root_kind};
use shale_format::limits::{BLOCK_BYTES, NAME_BYTES_MAX, TREE_LEVELS_MAX};
use shale_format::tree::{self, CHILDREN_MAX, ChildEntry, NODE_BODY_BYTES, NodeHeader, TreeKind};
use shale_format::{BlockAddr, DirKey, FormatError, Ino, TierId};
use shale_sys::mutants;
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

const WHAT: &str = "tree node";

/// One directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirent {
    /// Key in the directory's tree, and cookie of `readdir`.
    pub key: DirKey,
    /// Inode that it names.
    pub ino: Ino,
    /// Type of the inode, as in `d_type`.
    pub kind: u8,
    /// Name; empty in the directory of orphans.
    pub name: Vec<u8>,
}

/// One directory entry, in the block that it was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirentRef<'b> {
    /// As [`Dirent::key`].
    pub key: DirKey,
    /// As [`Dirent::ino`].
    pub ino: Ino,
    /// As [`Dirent::kind`].
    pub kind: u8,
    /// As [`Dirent::name`].
    pub name: &'b [u8],
}

impl<'b> DirentRef<'b> {
    /// Entry `i` of a leaf; `None` if it is no legal one.
    fn read(block: &'b Block, header: &NodeHeader, i: usize) -> Option<Self> {
        let e = entry::<DirentEntry>(block, i)?;
        Some(Self {
            key: DirKey(e.key),
            ino: Ino(e.ino),
            kind: e.kind,
            name: name_of(block, header, &e)?,
        })
    }

    /// The same, outside of the block.
    pub fn to_owned(self) -> Dirent {
        Dirent {
            key: self.key,
            ino: self.ino,
            kind: self.kind,
            name: self.name.to_vec(),
        }
    }
}

/// What a leaf holds. Items ascend by key and do not overlap.
pub(crate) trait Item: Clone {
    /// Kind of the trees.
    const KIND: TreeKind;
    /// First key that the item covers.
    fn key(&self) -> u64;
    /// First key behind the item.
    fn end(&self) -> u64;
    /// Bytes that it fills in a leaf.
    fn bytes(&self) -> usize;
    /// Item `i` of a leaf; `None` if it is no legal one.
    fn read(block: &Block, header: &NodeHeader, i: usize) -> Option<Self>;
    /// Writes the items of a leaf; gives `NodeHeader::heap`.
    fn write(items: &[Self], block: &mut Block) -> u16;
}

/// A node, decoded.
#[derive(Clone, Debug)]
pub(crate) enum Node<T> {
    /// Level above the leaves, children.
    Inner(u16, Vec<ChildEntry>),
    /// Items.
    Leaf(Vec<T>),
}

/// Entry `i` of an array behind a node's header.
fn entry<E: FromBytes>(block: &Block, i: usize) -> Option<E> {
    let bytes = size_of::<E>();
    let at = NodeHeader::BYTES + i * bytes;
    E::read_from_bytes(block.get(at..at + bytes)?).ok()
}

fn field(at: BlockAddr, field: &'static str, found: u64) -> VolumeError {
    VolumeError::Format(FormatError::Field {
        what: WHAT,
        at: at.index(),
        field,
        found,
    })
}

impl Item for Extent {
    const KIND: TreeKind = TreeKind::Extents;

    fn key(&self) -> u64 {
        self.file_block
    }

    fn end(&self) -> u64 {
        self.file_block.saturating_add(u64::from(self.len))
    }

    fn bytes(&self) -> usize {
        Extent::BYTES
    }

    fn read(block: &Block, _: &NodeHeader, i: usize) -> Option<Self> {
        entry::<Extent>(block, i).filter(is_legal)
    }

    fn write(items: &[Self], block: &mut Block) -> u16 {
        let at = NodeHeader::BYTES;
        let bytes = items.as_bytes();
        block[at..at + bytes.len()].copy_from_slice(bytes);
        0
    }
}

/// Whether an extent from the medium can be used: not empty, in a tier, no overflow.
pub(crate) fn is_legal(e: &Extent) -> bool {
    let addr = BlockAddr::from_raw(e.addr);
    e.len > 0
        && addr.tier().is_some()
        && !addr.is_none()
        && addr
            .index()
            .checked_add(u64::from(e.len))
            .is_some_and(|n| n >> 56 == 0)
        && e.file_block.checked_add(u64::from(e.len)).is_some()
}

impl Item for Dirent {
    const KIND: TreeKind = TreeKind::Entries;

    fn key(&self) -> u64 {
        self.key.0
    }

    fn end(&self) -> u64 {
        self.key.0.saturating_add(1)
    }

    fn bytes(&self) -> usize {
        DirentEntry::BYTES + self.name.len()
    }

    fn read(block: &Block, header: &NodeHeader, i: usize) -> Option<Self> {
        DirentRef::read(block, header, i).map(DirentRef::to_owned)
    }

    fn write(items: &[Self], block: &mut Block) -> u16 {
        let mut heap = BLOCK_BYTES;
        for (i, item) in items.iter().enumerate() {
            heap -= item.name.len();
            block[heap..heap + item.name.len()].copy_from_slice(&item.name);
            let e = DirentEntry {
                key: item.key.0,
                ino: item.ino.0,
                name_at: heap as u16,
                name_bytes: item.name.len() as u16,
                kind: item.kind,
                reserved: [0; 3],
            };
            let at = NodeHeader::BYTES + i * DirentEntry::BYTES;
            block[at..at + DirentEntry::BYTES].copy_from_slice(e.as_bytes());
        }
        heap as u16
    }
}

/// The name of an entry, if it lies in the block's heap.
fn name_of<'b>(block: &'b Block, header: &NodeHeader, e: &DirentEntry) -> Option<&'b [u8]> {
    let (at, bytes) = (e.name_at as usize, e.name_bytes as usize);
    let entries_end = NodeHeader::BYTES + header.count as usize * DirentEntry::BYTES;
    if at < entries_end || at < header.heap as usize || bytes > NAME_BYTES_MAX {
        return None;
    }
    block.get(at..at + bytes)
}

impl<T: Item> Node<T> {
    /// Level above the leaves.
    pub(crate) fn level(&self) -> u16 {
        match self {
            Node::Inner(level, _) => *level,
            Node::Leaf(_) => 0,
        }
    }

    /// Bytes in use behind the header.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Node::Inner(_, children) => children.len() * ChildEntry::BYTES,
            Node::Leaf(items) => items.iter().map(Item::bytes).sum(),
        }
    }

    /// Whether it has to be split before it can be written.
    pub(crate) fn is_overfull(&self) -> bool {
        self.bytes() > NODE_BODY_BYTES
    }

    /// Splits an overfull node: key and node of its right part. At the end of a tree nearly all
    /// stays left, so that what is written in order fills its nodes.
    pub(crate) fn split(&mut self, at_end: bool) -> (u64, Node<T>) {
        match self {
            Node::Leaf(items) => {
                let mut n = items.len() - 1;
                if !at_end {
                    let total: usize = items.iter().map(Item::bytes).sum();
                    let mut bytes = 0;
                    let mut before = |item: &T| {
                        bytes += item.bytes();
                        bytes <= total / 2
                    };
                    n = items.iter().take_while(|&item| before(item)).count();
                }
                let right = items.split_off(n.max(1));
                (right[0].key(), Node::Leaf(right))
            }
            Node::Inner(level, children) => {
                let n = match at_end {
                    true => CHILDREN_MAX - 1,
                    false => children.len() / 2,
                };
                let right = children.split_off(n);
                (right[0].key, Node::Inner(*level, right))
            }
        }
    }

    /// The node of `owner` at `addr`, which has to be at `level`.
    pub(crate) fn load(
        blocks: &BlockReader,
        addr: BlockAddr,
        owner: Ino,
        level: u16,
    ) -> Result<Self> {
        let mut block = [0; BLOCK_BYTES];
        blocks.load_node(addr, level, 1, &mut block)?;
        let header = check(&block, addr, owner, T::KIND, level)?;
        let count = header.count as usize;
        if level > 0 {
            let children: Vec<ChildEntry> = (0..count).filter_map(|i| entry(&block, i)).collect();
            if children.windows(2).skip(1).any(|w| w[0].key >= w[1].key) {
                return Err(field(addr, "key order", 0));
            }
            return Ok(Node::Inner(level, children));
        }
        Ok(Node::Leaf(leaf_items(&block, &header, addr)?))
    }

    /// The block to be written at `addr`.
    pub(crate) fn encode(&self, addr: BlockAddr, owner: Ino, txid: u64) -> Block {
        let mut block = [0; BLOCK_BYTES];
        let (count, heap) = match self {
            Node::Inner(_, children) => {
                let bytes = children.as_bytes();
                block[NodeHeader::BYTES..NodeHeader::BYTES + bytes.len()].copy_from_slice(bytes);
                (children.len(), 0)
            }
            Node::Leaf(items) => (items.len(), T::write(items, &mut block)),
        };
        let header = NodeHeader {
            magic: tree::NODE_MAGIC,
            crc: 0,
            addr: addr.raw(),
            owner: owner.0,
            txid,
            kind: T::KIND as u16,
            level: self.level(),
            count: count as u16,
            heap,
            reserved: [0; 24],
        };
        block[..NodeHeader::BYTES].copy_from_slice(header.as_bytes());
        tree::seal(&mut block);
        block
    }
}

/// Checks a node and that it is at `level` and not empty.
fn check(
    block: &Block,
    addr: BlockAddr,
    owner: Ino,
    kind: TreeKind,
    level: u16,
) -> Result<NodeHeader> {
    let mut header = tree::check(block, addr, owner, kind);
    if mutants::is_on("node-checksum") {
        header = tree::check(&sealed_again(*block), addr, owner, kind);
    }
    let header = header?;
    if header.level != level {
        return Err(field(addr, "level", header.level.into()));
    }
    if header.count == 0 || (level > 0 && header.count as usize > CHILDREN_MAX) {
        return Err(field(addr, "count", header.count.into()));
    }
    Ok(header)
}

/// What is there, with a checksum that fits.
fn sealed_again(mut block: Block) -> Block {
    tree::seal(&mut block);
    block
}

/// All items of a leaf, checked for order.
pub(crate) fn leaf_items<T: Item>(
    block: &Block,
    header: &NodeHeader,
    addr: BlockAddr,
) -> Result<Vec<T>> {
    let mut items = Vec::with_capacity(header.count as usize + 1);
    let mut end = 0;
    for i in 0..header.count as usize {
        let item = T::read(block, header, i).ok_or_else(|| field(addr, "entry", i as u64))?;
        if item.key() < end {
            return Err(field(addr, "key order", item.key()));
        }
        end = item.end();
        items.push(item);
    }
    Ok(items)
}

/// Checks that the items of a leaf lie in the keys that its parents give it.
pub(crate) fn check_bounds<T: Item>(items: &[T], keys: &Range<u64>, addr: BlockAddr) -> Result<()> {
    let outside = |item: &&T| item.key() < keys.start || item.end() > keys.end;
    match items
        .first()
        .filter(outside)
        .or(items.last().filter(outside))
    {
        Some(item) => Err(field(addr, "key outside its bounds", item.key())),
        None => Ok(()),
    }
}

/// Index of the child below which `key` belongs.
pub(crate) fn child_index(children: &[ChildEntry], key: u64) -> usize {
    children.partition_point(|c| c.key <= key).max(1) - 1
}

/// A leaf found by a reader, in its block.
pub(crate) struct Leaf {
    pub(crate) block: Block,
    pub(crate) header: NodeHeader,
    pub(crate) addr: BlockAddr,
    /// Keys that it tells everything about.
    pub(crate) keys: Range<u64>,
}

impl Leaf {
    /// The leaf of the tree below `root` that `key` belongs to. The tree is not empty.
    pub(crate) fn find(
        blocks: &BlockReader,
        root: &ExtentRoot,
        owner: Ino,
        kind: TreeKind,
        key: u64,
    ) -> Result<Leaf> {
        let mut addr = BlockAddr::from_raw(root.addr);
        if root.kind != root_kind::TREE || root.level > TREE_LEVELS_MAX {
            return Err(field(addr, "root", root.kind.into()));
        }
        let mut block = [0; BLOCK_BYTES];
        let mut keys = 0..u64::MAX;
        let mut level = root.level;
        let mut following = 1;
        loop {
            blocks.load_node(addr, level, following, &mut block)?;
            let header = check(&block, addr, owner, kind, level)?;
            if level == 0 {
                return Ok(Leaf {
                    block,
                    header,
                    addr,
                    keys,
                });
            }
            let count = header.count as usize;
            let i = partition(1..count, |i| child(&block, i).key <= key) - 1;
            if i > 0 {
                keys.start = child(&block, i).key;
            }
            if i + 1 < count {
                keys.end = child(&block, i + 1).key;
            }
            addr = BlockAddr::from_raw(child(&block, i).addr);
            let next = |n: &usize| child(&block, i + n).addr == addr.plus(*n as u64).raw();
            following = match addr.tier() {
                Some(TierId::Nvm) => 1,
                _ => 1 + (1..count - i).take_while(next).count() as u64,
            };
            level -= 1;
        }
    }

    /// Number of items whose key is at most `key`.
    fn upto(&self, item_bytes: usize, key: u64) -> usize {
        let key_at = |i: usize| {
            let at = NodeHeader::BYTES + i * item_bytes;
            self.block
                .get(at..at + 8)
                .and_then(|b| b.try_into().ok())
                .map_or(u64::MAX, u64::from_le_bytes)
        };
        partition(0..self.header.count as usize, |i| key_at(i) <= key)
    }

    /// The extent that begins at or before file block `key`, and the first behind it.
    pub(crate) fn extents_around(&self, key: u64) -> Result<(Option<Extent>, Option<Extent>)> {
        let n = self.upto(Extent::BYTES, key);
        let at = |i: usize| match i < self.header.count as usize {
            true => Extent::read(&self.block, &self.header, i)
                .map(Some)
                .ok_or_else(|| field(self.addr, "entry", i as u64)),
            false => Ok(None),
        };
        let before = if n > 0 { at(n - 1)? } else { None };
        Ok((before, at(n)?))
    }

    /// The entry of `group` in this leaf that has `name`.
    pub(crate) fn entry_named(&self, group: DirKey, name: &[u8]) -> Result<Option<Dirent>> {
        let end = group.0.saturating_add(DirKey::COLLISIONS);
        let first = self.upto(DirentEntry::BYTES, group.0.saturating_sub(1));
        for i in first..self.header.count as usize {
            let bad = || field(self.addr, "entry", i as u64);
            let e = entry::<DirentEntry>(&self.block, i).ok_or_else(bad)?;
            if e.key >= end {
                break;
            }
            if name_of(&self.block, &self.header, &e).ok_or_else(bad)? == name {
                return Ok(Dirent::read(&self.block, &self.header, i));
            }
        }
        Ok(None)
    }

    /// All items.
    pub(crate) fn items<T: Item>(&self) -> Result<Vec<T>> {
        let items = leaf_items(&self.block, &self.header, self.addr)?;
        check_bounds(&items, &self.keys, self.addr)?;
        Ok(items)
    }

    /// The entries whose key is `from` or above, in key order. One that is none, or lies elsewhere than its key says, ends that.
    pub(crate) fn entries_from(&self, from: u64) -> impl Iterator<Item = Result<DirentRef<'_>>> {
        let first = match from {
            0 => 0,
            _ => self.upto(DirentEntry::BYTES, from - 1),
        };
        let mut least = self.keys.start.max(from);
        let mut failed = false;
        (first..self.header.count as usize).map_while(move |i| {
            if failed {
                return None;
            }
            let read = DirentRef::read(&self.block, &self.header, i);
            let checked = match read.ok_or_else(|| field(self.addr, "entry", i as u64)) {
                Ok(e) if e.key.0 < least => Err(field(self.addr, "key order", e.key.0)),
                Ok(e) if e.key.0 >= self.keys.end => {
                    Err(field(self.addr, "key outside its bounds", e.key.0))
                }
                other => other,
            };
            least = least.max(checked.as_ref().map_or(0, |e| e.key.0.saturating_add(1)));
            failed = checked.is_err();
            Some(checked)
        })
    }
}

fn child(block: &Block, i: usize) -> ChildEntry {
    entry(block, i).unwrap_or(ChildEntry {
        key: u64::MAX,
        addr: BlockAddr::new(TierId::Hdd, 0).raw(),
    })
}

/// First index of `range` for which `before` is false; `before` holds for a first part.
fn partition(range: Range<usize>, before: impl Fn(usize) -> bool) -> usize {
    let Range { mut start, mut end } = range;
    while start < end {
        let middle = start + (end - start) / 2;
        if before(middle) {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    start
}
