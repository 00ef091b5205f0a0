//! Copy-on-write B+-trees, as a transaction changes them.
//!
//! A node of the volume is never changed: the first change copies it to a new block
//! in memory, and frees the old one; later changes of the transaction work on the
//! copy. Committing writes the copies.
//!
//! Invariants of a tree, also between operations: no node is empty; the items below
//! child *i* lie in `key(i) .. key(i+1)` whole, their ends included (the first
//! child's key counts as 0). So one descent finds the only item that can cover a key.

mod blocks;
mod dir;
mod extents;
mod leaves;
mod xattrs;

use crate::bitmap::Bits;
use crate::error::{Result, VolumeError};
use crate::lower_tiers::txn_lower::LowerTxn;
use crate::media::NvmRegion;
use crate::reading::block_reader::BlockReader;
use crate::trees::demoted::Demoted;
use crate::trees::node::{Dirent, Item, Node, check_bounds, child_index};
use crate::trees::roots::{bad_level, bad_root, top, tree_root};
use shale_allocation::{Allocator, Run};
use shale_format::extent::{Extent, ExtentRoot, root_kind};
use shale_format::limits::TREE_LEVELS_MAX;
use shale_format::tree::{ChildEntry, NODE_BODY_BYTES};
use shale_format::{BlockAddr, Ino};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A node with less than this is merged with a neighbour where they fit one node.
pub(crate) const SPARSE_BYTES: usize = NODE_BODY_BYTES / 4;
/// The same for the directory of orphans, for which nobody reserves space when a name
/// goes: two neighbours hold at least this together, so it never has more than four times
/// the leaves that its entries need.
const SPARSE_ORPHANS_BYTES: usize = NODE_BODY_BYTES / 2;
/// Most that a merged node may have, so that it is not split again at once.
const MERGED_BYTES_MAX: usize = NODE_BODY_BYTES * 3 / 4;
/// Blocks for nodes are taken in batches of this many.
const POOL_BLOCKS: u64 = 32;
/// Journal bytes that one new node can need in the bitmap.
const NODE_JOURNAL_BYTES: u64 = 24;

/// Journal bytes kept for the entries of the zones that a transaction links blocks of.
const ZONES_JOURNAL_BYTES: u64 = 4096;

/// New nodes by address, with the inode that each belongs to.
pub(crate) type NewNodes<T> = HashMap<BlockAddr, (Ino, Node<T>)>;

/// Where the new nodes of a kind are kept.
pub(crate) trait TreeItem: Item {
    /// For reading.
    fn new_nodes(draft: &CowTrees) -> &NewNodes<Self>;
    /// For changing.
    fn new_nodes_mut(draft: &mut CowTrees) -> &mut NewNodes<Self>;
}

impl TreeItem for Extent {
    fn new_nodes(draft: &CowTrees) -> &NewNodes<Self> {
        &draft.extents
    }
    fn new_nodes_mut(draft: &mut CowTrees) -> &mut NewNodes<Self> {
        &mut draft.extents
    }
}

impl TreeItem for Dirent {
    fn new_nodes(draft: &CowTrees) -> &NewNodes<Self> {
        &draft.entries
    }
    fn new_nodes_mut(draft: &mut CowTrees) -> &mut NewNodes<Self> {
        &mut draft.entries
    }
}

/// What a transaction has changed so far, in memory only.
pub(crate) struct CowTrees {
    pub(crate) media: NvmRegion,
    blocks: BlockReader,
    pub(crate) space: Arc<Allocator>,
    pub(crate) bits: Bits,
    /// The same of the tiers below, and their zones.
    pub(crate) lower: [Option<LowerTxn>; 2],
    extents: NewNodes<Extent>,
    entries: NewNodes<Dirent>,
    /// Blocks taken for nodes and not in use.
    pool: Vec<BlockAddr>,
    /// Everything taken by the transaction itself: free again if it is dropped.
    pub(crate) taken: Vec<Run>,
    /// Nodes that the operation in progress added to its tree, less those it removed.
    grown: i64,
    /// Nodes that the transaction added, less those it removed, which are not counted by
    /// [`crate::Txn::limit_growth`].
    uncounted: i64,
    /// Leaves below NVM, more or less than before.
    pub(crate) demoted: Demoted,
}

/// A subtree after an insertion.
struct Grown {
    addr: BlockAddr,
    split: Option<ChildEntry>,
}

/// A subtree after a removal.
struct Shrunk {
    /// `None`: nothing is left.
    addr: Option<BlockAddr>,
    bytes: usize,
}

impl CowTrees {
    pub(crate) fn new(
        blocks: BlockReader,
        space: Arc<Allocator>,
        bits: Bits,
        lower: [Option<LowerTxn>; 2],
    ) -> Self {
        CowTrees {
            media: blocks.media.clone(),
            blocks,
            space,
            bits,
            lower,
            extents: HashMap::new(),
            entries: HashMap::new(),
            pool: Vec::new(),
            taken: Vec::new(),
            grown: 0,
            uncounted: 0,
            demoted: Demoted::default(),
        }
    }

    /// Nodes that the transaction added and that need no reserved space.
    pub(crate) fn uncounted(&self) -> u64 {
        self.uncounted.max(0) as u64
    }

    /// Remembers blocks that the transaction took for itself.
    pub(crate) fn keep(&mut self, run: Run) {
        self.taken.push(run);
    }

    /// Upper bound of the journal bytes that trees and bitmap need.
    pub(crate) fn journal_bytes(&self) -> u64 {
        let nodes = (self.extents.len() + self.entries.len()) as u64;
        let lower = self.lower.iter().flatten();
        let below: u64 = lower
            .map(|l| l.bits.journal_bytes() + ZONES_JOURNAL_BYTES)
            .sum();
        self.bits.journal_bytes() + nodes * NODE_JOURNAL_BYTES + below
    }

    /// Marks the blocks of new nodes used: the last step before the bitmap is journalled.
    pub(crate) fn close(&mut self) -> Result<()> {
        let extents = self.extents.keys();
        let nodes: Vec<BlockAddr> = extents.chain(self.entries.keys()).copied().collect();
        for addr in nodes {
            self.bits.mark(Run { addr, len: 1 })?;
        }
        Ok(())
    }

    /// Writes the new nodes.
    pub(crate) fn write(&self, txid: u64) -> Result<()> {
        fn all<T: Item>(media: &NvmRegion, nodes: &NewNodes<T>, txid: u64) -> Result<()> {
            for (&addr, (owner, node)) in nodes {
                media.write(addr, 0, &node.encode(addr, *owner, txid))?;
            }
            Ok(())
        }
        all(&self.media, &self.extents, txid)?;
        all(&self.media, &self.entries, txid)
    }

    /// Forgets everything after a commit.
    pub(crate) fn committed(&mut self) {
        for addr in std::mem::take(&mut self.pool) {
            self.space.give_back(Run { addr, len: 1 });
        }
        self.taken.clear();
        self.extents.clear();
        self.entries.clear();
        self.uncounted = 0;
        self.demoted = Demoted::default();
        self.bits.apply_committed();
        for lower in self.lower.iter_mut().flatten() {
            lower.bits.apply_committed();
        }
    }

    /// Forgets everything; what the transaction took is free again.
    pub(crate) fn dropped(&mut self) {
        for run in std::mem::take(&mut self.taken) {
            self.space.give_back(run);
        }
        self.pool.clear();
        self.extents.clear();
        self.entries.clear();
        self.uncounted = 0;
        self.demoted = Demoted::default();
        self.bits.reset();
        for lower in self.lower.iter_mut().flatten() {
            lower.bits.reset();
        }
    }

    /// A block for a new node.
    fn new_addr(&mut self) -> Result<BlockAddr> {
        if let Some(addr) = self.pool.pop() {
            return Ok(addr);
        }
        let run = self.space.allocate_top(POOL_BLOCKS)?;
        self.keep(run);
        self.pool.extend((0..run.len).map(|n| run.addr.plus(n)));
        self.new_addr()
    }

    /// The node at `addr`, of the transaction or of the volume.
    pub(crate) fn node<T: TreeItem>(
        &self,
        addr: BlockAddr,
        owner: Ino,
        level: u16,
    ) -> Result<Cow<'_, Node<T>>> {
        match T::new_nodes(self).get(&addr) {
            Some((_, node)) if node.level() == level => Ok(Cow::Borrowed(node)),
            _ => Ok(Cow::Owned(Node::load(&self.blocks, addr, owner, level)?)),
        }
    }

    /// Takes a node out to be changed and put back with [`CowTrees::put`] at the new address.
    pub(crate) fn open<T: TreeItem>(
        &mut self,
        addr: BlockAddr,
        owner: Ino,
        level: u16,
    ) -> Result<(BlockAddr, Node<T>)> {
        if let Some((_, node)) = T::new_nodes_mut(self).remove(&addr) {
            if node.level() != level {
                return Err(bad_level(addr, owner));
            }
            return Ok((addr, node));
        }
        let node = Node::load(&self.blocks, addr, owner, level)?;
        self.free(Run { addr, len: 1 })?;
        // What comes back is no growth that somebody has reserved space for.
        self.uncounted += i64::from(self.demoted.left(T::KIND, addr));
        Ok((self.new_addr()?, node))
    }

    pub(crate) fn put<T: TreeItem>(&mut self, addr: BlockAddr, owner: Ino, node: Node<T>) {
        T::new_nodes_mut(self).insert(addr, (owner, node));
    }

    fn add<T: TreeItem>(&mut self, owner: Ino, node: Node<T>) -> Result<BlockAddr> {
        let addr = self.new_addr()?;
        self.uncounted += i64::from(is_uncounted(owner, node.level()));
        self.put(addr, owner, node);
        self.grown += 1;
        Ok(addr)
    }

    /// Removes a node from its tree.
    fn discard<T: TreeItem>(&mut self, addr: BlockAddr, owner: Ino, level: u16) -> Result<()> {
        self.grown -= 1;
        self.uncounted -= i64::from(is_uncounted(owner, level));
        if T::new_nodes_mut(self).remove(&addr).is_some() {
            self.pool.push(addr);
            return Ok(());
        }
        self.demoted.left(T::KIND, addr);
        self.free(Run { addr, len: 1 })
    }

    /// Adds to a root's counts of nodes what the operation changed.
    pub(crate) fn count(&mut self, root: &mut ExtentRoot) {
        let (grown, demoted) = (std::mem::take(&mut self.grown), self.demoted.of_tree());
        if root.kind != root_kind::EMPTY {
            root.file_block = root.file_block.saturating_add_signed(grown);
            root.len = root.len.saturating_add_signed(demoted);
        }
    }

    /// The leaf that `key` belongs to, and the keys that it tells everything about.
    pub(crate) fn leaf<T: TreeItem>(
        &self,
        root: &ExtentRoot,
        owner: Ino,
        key: u64,
    ) -> Result<(Cow<'_, [T]>, Range<u64>)> {
        let mut keys = 0..u64::MAX;
        if root.kind == root_kind::EMPTY {
            return Ok((Cow::Borrowed(&[]), keys));
        }
        let (mut addr, mut level) = top(root, owner)?;
        loop {
            let children = match self.node::<T>(addr, owner, level)? {
                Cow::Borrowed(Node::Leaf(items)) => return Ok((Cow::Borrowed(items), keys)),
                Cow::Owned(Node::Leaf(items)) => {
                    check_bounds(&items, &keys, addr)?;
                    return Ok((Cow::Owned(items), keys));
                }
                Cow::Borrowed(Node::Inner(_, c)) => Cow::Borrowed(c),
                Cow::Owned(Node::Inner(_, c)) => Cow::Owned(c),
            };
            let i = child_index(&children, key);
            if i > 0 {
                keys.start = children[i].key;
            }
            if let Some(next) = children.get(i + 1) {
                keys.end = next.key;
            }
            addr = BlockAddr::from_raw(children[i].addr);
            level -= 1;
        }
    }

    /// Puts an item in the place of the one with the same key, or adds it. Nothing
    /// else may overlap it.
    pub(crate) fn insert<T: TreeItem>(
        &mut self,
        root: &mut ExtentRoot,
        owner: Ino,
        item: T,
    ) -> Result<()> {
        if root.kind == root_kind::EMPTY {
            let addr = self.add(owner, Node::Leaf(vec![item]))?;
            *root = tree_root(addr, 0);
            self.count(root);
            return Ok(());
        }
        let (addr, level) = top(root, owner)?;
        let grown = self.insert_below(addr, level, owner, item, true)?;
        root.addr = grown.addr.raw();
        if let Some(right) = grown.split {
            if level >= TREE_LEVELS_MAX {
                return Err(bad_root(root, owner));
            }
            let left = ChildEntry {
                key: 0,
                addr: grown.addr.raw(),
            };
            let addr = self.add::<T>(owner, Node::Inner(level + 1, vec![left, right]))?;
            root.addr = addr.raw();
            root.level = level + 1;
        }
        self.count(root);
        Ok(())
    }

    fn insert_below<T: TreeItem>(
        &mut self,
        addr: BlockAddr,
        level: u16,
        owner: Ino,
        item: T,
        last: bool,
    ) -> Result<Grown> {
        let (addr, mut node) = self.open::<T>(addr, owner, level)?;
        let mut at_end = last;
        match &mut node {
            Node::Leaf(items) => match items.binary_search_by_key(&item.key(), Item::key) {
                Ok(i) => {
                    items[i] = item;
                    at_end = false;
                }
                Err(i) => {
                    at_end &= i == items.len();
                    items.insert(i, item);
                }
            },
            Node::Inner(_, children) => {
                let i = child_index(children, item.key());
                at_end &= i + 1 == children.len();
                let end = item.end();
                let below = BlockAddr::from_raw(children[i].addr);
                let grown = self.insert_below(below, level - 1, owner, item, at_end)?;
                children[i].addr = grown.addr.raw();
                // The right neighbour holds nothing below the item's end: keep its
                // key above, so that one descent finds the item.
                if let Some(next) = children.get_mut(i + 1) {
                    next.key = next.key.max(end);
                }
                if let Some(right) = grown.split {
                    children.insert(i + 1, right);
                }
            }
        }
        let split = if node.is_overfull() {
            let (key, right) = node.split(at_end);
            let addr = self.add(owner, right)?.raw();
            Some(ChildEntry { key, addr })
        } else {
            None
        };
        self.put(addr, owner, node);
        Ok(Grown { addr, split })
    }

    /// Has `change` change the items of the leaf that `key` belongs to, which it is given with the keys that the
    /// leaf tells everything about. Afterwards the leaf is not empty, fits its block, and holds nothing
    /// outside of these keys.
    pub(crate) fn change_leaf<T: TreeItem, R>(
        &mut self,
        root: &mut ExtentRoot,
        owner: Ino,
        key: u64,
        change: impl FnOnce(&mut Self, &mut Vec<T>, &Range<u64>) -> Result<R>,
    ) -> Result<R> {
        let (addr, level) = top(root, owner)?;
        let (addr, done) = self.change_below((addr, level), owner, key, 0..u64::MAX, change)?;
        root.addr = addr.raw();
        self.count(root);
        Ok(done)
    }

    fn change_below<T: TreeItem, R>(
        &mut self,
        (addr, level): (BlockAddr, u16),
        owner: Ino,
        key: u64,
        mut keys: Range<u64>,
        change: impl FnOnce(&mut Self, &mut Vec<T>, &Range<u64>) -> Result<R>,
    ) -> Result<(BlockAddr, R)> {
        let (addr, mut node) = self.open::<T>(addr, owner, level)?;
        let done = match &mut node {
            Node::Leaf(items) => {
                check_bounds(items, &keys, addr)?;
                change(self, items, &keys)?
            }
            Node::Inner(_, children) => {
                let i = child_index(children, key);
                if i > 0 {
                    keys.start = children[i].key;
                }
                if let Some(next) = children.get(i + 1) {
                    keys.end = next.key;
                }
                let below = (BlockAddr::from_raw(children[i].addr), level - 1);
                let (below, done) = self.change_below(below, owner, key, keys, change)?;
                children[i].addr = below.raw();
                done
            }
        };
        debug_assert!(!node.is_overfull() && node.bytes() > 0);
        self.put(addr, owner, node);
        Ok((addr, done))
    }

    /// Removes the item with this key, which has to be there.
    pub(crate) fn remove<T: TreeItem>(
        &mut self,
        root: &mut ExtentRoot,
        owner: Ino,
        key: u64,
    ) -> Result<()> {
        let (addr, level) = top(root, owner)?;
        let left = self.remove_below::<T>(addr, level, owner, key)?;
        match left.addr {
            None => *root = ExtentRoot::EMPTY,
            Some(addr) => {
                root.addr = addr.raw();
                self.lower::<T>(root, owner)?;
            }
        }
        self.count(root);
        Ok(())
    }

    /// Takes away top nodes that have a single child.
    fn lower<T: TreeItem>(&mut self, root: &mut ExtentRoot, owner: Ino) -> Result<()> {
        while root.level > 0 {
            let addr = BlockAddr::from_raw(root.addr);
            let only = match &*self.node::<T>(addr, owner, root.level)? {
                Node::Inner(_, children) if children.len() == 1 => children[0].addr,
                _ => break,
            };
            self.discard::<T>(addr, owner, root.level)?;
            root.addr = only;
            root.level -= 1;
        }
        Ok(())
    }

    fn remove_below<T: TreeItem>(
        &mut self,
        addr: BlockAddr,
        level: u16,
        owner: Ino,
        key: u64,
    ) -> Result<Shrunk> {
        let (addr, mut node) = self.open::<T>(addr, owner, level)?;
        let is_empty = match &mut node {
            Node::Leaf(items) => {
                items.retain(|item| item.key() != key);
                items.is_empty()
            }
            Node::Inner(_, children) => {
                let i = child_index(children, key);
                let below = BlockAddr::from_raw(children[i].addr);
                let left = self.remove_below::<T>(below, level - 1, owner, key)?;
                match left.addr {
                    None => drop(children.remove(i)),
                    Some(below) => {
                        children[i].addr = below.raw();
                        let sparse = match owner {
                            Ino::ORPHANS => SPARSE_ORPHANS_BYTES,
                            _ => SPARSE_BYTES,
                        };
                        if left.bytes < sparse {
                            self.merge::<T>(children, i, level - 1, owner, left.bytes)?;
                        }
                    }
                }
                children.is_empty()
            }
        };
        let bytes = node.bytes();
        self.put(addr, owner, node);
        if is_empty {
            self.discard::<T>(addr, owner, level)?;
            return Ok(Shrunk {
                addr: None,
                bytes: 0,
            });
        }
        Ok(Shrunk {
            addr: Some(addr),
            bytes,
        })
    }

    /// Joins child `i`, which has `bytes`, with a neighbour if both fit one node.
    fn merge<T: TreeItem>(
        &mut self,
        children: &mut Vec<ChildEntry>,
        i: usize,
        level: u16,
        owner: Ino,
        bytes: usize,
    ) -> Result<()> {
        for (left, right) in [(i, i + 1), (i.wrapping_sub(1), i)] {
            let (Some(l), Some(r)) = (children.get(left), children.get(right)) else {
                continue;
            };
            let separator = r.key;
            let (l, r) = (BlockAddr::from_raw(l.addr), BlockAddr::from_raw(r.addr));
            let neighbour = if left == i { r } else { l };
            let neighbour = match self.node::<T>(neighbour, owner, level) {
                Ok(node) => node.bytes(),
                // Where one below NVM cannot be read, what is beside it can change all the same.
                Err(VolumeError::BadBlock { .. } | VolumeError::Lower(_)) => continue,
                Err(e) => return Err(e),
            };
            if neighbour + bytes > MERGED_BYTES_MAX {
                continue;
            }
            let tail = self.node::<T>(r, owner, level)?.into_owned();
            self.discard::<T>(r, owner, level)?;
            let (addr, mut node) = self.open::<T>(l, owner, level)?;
            match (&mut node, tail) {
                (Node::Leaf(items), Node::Leaf(tail)) => items.extend(tail),
                (Node::Inner(_, items), Node::Inner(_, mut tail)) => {
                    tail[0].key = separator;
                    items.extend(tail);
                }
                _ => return Err(bad_level(l, owner)),
            }
            self.put(addr, owner, node);
            children[left].addr = addr.raw();
            children.remove(right);
            return Ok(());
        }
        Ok(())
    }

    /// Frees all nodes of a tree, not what its items name.
    pub(crate) fn clear<T: TreeItem>(&mut self, root: &mut ExtentRoot, owner: Ino) -> Result<()> {
        let (addr, level) = top(root, owner)?;
        self.clear_below::<T>(addr, level, owner)?;
        *root = ExtentRoot::EMPTY;
        self.count(root);
        Ok(())
    }

    fn clear_below<T: TreeItem>(&mut self, addr: BlockAddr, level: u16, owner: Ino) -> Result<()> {
        if level > 0 {
            let children = match &*self.node::<T>(addr, owner, level)? {
                Node::Inner(_, children) => children.clone(),
                Node::Leaf(_) => return Err(bad_level(addr, owner)),
            };
            for c in children {
                self.clear_below::<T>(BlockAddr::from_raw(c.addr), level - 1, owner)?;
            }
        }
        self.discard::<T>(addr, owner, level)
    }
}

/// Whether a node is none of those that [`crate::Txn::limit_growth`] counts.
fn is_uncounted(owner: Ino, level: u16) -> bool {
    level > 0 || owner == Ino::NONE || owner == Ino::ORPHANS
}
