//! Inodes in memory: what this client knows about one inode, and the cache of them.
//!
//! The state in memory is the truth for attributes and, through the overlays, for
//! everything that the log holds and the volume does not have yet. Roots of trees
//! are copies of the volume's and valid in the epoch in which they were loaded: a
//! state that is older than the epoch of the call is refreshed before it is used.
//!
//! Lock order: nodes by ascending inode number; then leaves; then the cache's shards.

use crate::dir::DirState;
use crate::extent_hint::ExtentHint;
use crate::unwritten_ranges::UnwrittenRanges;
use parking_lot::{Mutex, RwLock};
use shale_format::acl::AclKind;
use shale_format::inode::Inode;
use shale_format::xattr::Xattrs;
use shale_format::{FileBlock, LogPos};
use shale_oplog::Overlay;
use shale_session::errno::{Errno, Stop};
use shale_session::lease::{LeasedInode, LeasedInodes, OtherUsers};
use shale_session::lease_word::LeaseWord;
use shale_session::volume_reader::VolumeReader;
use shale_sys::biased_rwlock;
use shale_volume::{LeafCover, Mapping, View};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// What is known about one inode.
pub struct NodeState {
    /// Attributes as of now; roots and block addresses as of `epoch`.
    pub inode: Inode,
    /// Epoch in which the roots were loaded.
    pub epoch: u64,
    /// The volume has the inode, so the roots mean something.
    pub in_volume: bool,
    /// Position behind the newest record about this inode.
    pub newest: LogPos,
    /// Content that is newer in the log.
    pub overlay: Overlay,
    /// 4 KiB blocks in use, those still in the log included.
    pub blocks: u64,
    /// Blocks without data that the volume does not know of yet.
    pub allocated: UnwrittenRanges,
    /// Entries that are newer in the log.
    pub dir: DirState,
    /// Extended attributes as of now, once loaded.
    pub xattrs: Option<Xattrs>,
    /// No name is left; the inode lives on for its users.
    pub orphan: bool,
    /// Without a name it can never get one again (`O_TMPFILE` with `O_EXCL`, or its last
    /// name was removed).
    pub no_link: bool,
    /// Freed: there is no such inode any more.
    pub dead: bool,
    /// Blocks are being collapsed or inserted: only the volume can tell the content,
    /// and does not yet. Calls wait.
    pub shifting: bool,
}

impl NodeState {
    /// State of an inode that was just made.
    pub fn fresh(inode: Inode, epoch: u64) -> Self {
        Self {
            inode,
            epoch,
            in_volume: false,
            newest: LogPos(0),
            overlay: Overlay::new(),
            blocks: 0,
            allocated: UnwrittenRanges::default(),
            dir: DirState::default(),
            xattrs: Some(Xattrs::new()),
            orphan: false,
            no_link: false,
            dead: false,
            shifting: false,
        }
    }

    /// State of an inode as the volume has it.
    pub fn loaded(inode: Inode, epoch: u64) -> Self {
        let orphan = inode.flags & shale_format::inode::flag::ORPHAN != 0;
        let blocks = inode.blocks;
        Self {
            blocks,
            in_volume: true,
            xattrs: None,
            orphan,
            ..Self::fresh(inode, epoch)
        }
    }

    /// Drops what the volume has by now and takes its roots.
    fn refresh(&mut self, volume: &VolumeReader, epoch: u64, digested: LogPos) -> Result<(), Stop> {
        if let Some(new) = volume
            .inode(self.inode.ino)?
            .filter(|i| i.generation == self.inode.generation)
        {
            self.inode.root = new.root;
            self.inode.xattr_addr = new.xattr_addr;
            self.inode.xattr_bytes = new.xattr_bytes;
            self.in_volume = true;
            if self.newest <= digested {
                self.blocks = new.blocks;
            }
        }
        self.overlay.purge_below(digested);
        self.allocated.purge_below(digested);
        self.dir.purge_below(digested);
        self.epoch = epoch;
        Ok(())
    }

    /// Notes the access control list that a change of the mode has made.
    pub fn note_acl(&mut self, value: Option<Vec<u8>>) {
        if let (Some(attrs), Some(value)) = (&mut self.xattrs, value) {
            attrs.insert(AclKind::Access.name().to_vec(), value);
        }
    }

    /// Notes that the log now holds a record about this inode that ends at `end`.
    #[inline]
    pub fn touched(&mut self, end: LogPos) {
        self.newest = self.newest.max(end);
    }
}

/// Decoded leaves of a file's extent trees, as of the state's epoch.
#[derive(Default)]
struct Leaves {
    by_start: BTreeMap<u64, LeafCover>,
}

/// More leaves than this of one file are not kept (about 170 extents each).
const LEAVES_MAX: usize = 4096;

impl Leaves {
    /// What lies at file block `fb` in the volume.
    fn map(&mut self, view: &View, inode: &Inode, fb: FileBlock) -> Result<Mapping, Stop> {
        if let Some(found) = self.cached(fb) {
            return Ok(found);
        }
        if self.by_start.len() >= LEAVES_MAX {
            self.by_start.clear();
        }
        let leaf = view.leaf_of(inode, fb)?;
        let found = mapping_in(&leaf, fb);
        self.by_start.insert(leaf.range.start.0, leaf);
        Ok(found)
    }

    fn cached(&self, fb: FileBlock) -> Option<Mapping> {
        let (_, leaf) = self.by_start.range(..=fb.0).next_back()?;
        leaf.range.contains(&fb).then(|| mapping_in(leaf, fb))
    }
}

/// Answers from a leaf that covers `fb`.
fn mapping_in(leaf: &LeafCover, fb: FileBlock) -> Mapping {
    let next = leaf.extents.partition_point(|e| e.end() <= fb);
    match leaf.extents.get(next) {
        Some(e) if e.start() <= fb => {
            let (addr, len) = (e.addr_of(fb), e.end().0 - fb.0);
            if e.is_unwritten() {
                Mapping::Unwritten { addr, len }
            } else {
                Mapping::Data { addr, len }
            }
        }
        Some(e) => Mapping::Hole {
            len: e.start().0 - fb.0,
        },
        None => Mapping::Hole {
            len: leaf.range.end.0.saturating_sub(fb.0).max(1),
        },
    }
}

/// One inode in memory.
pub struct Node {
    /// Its number.
    pub ino: u64,
    /// What is known about it.
    pub state: biased_rwlock::RwLock<NodeState>,
    /// Decoded extents; cleared with every refresh.
    leaves: Mutex<Leaves>,
    /// Of these, the run of blocks that was asked for last.
    extent_hint: ExtentHint,
    /// From this file block on the volume has nothing, as far as the leaves tell: what is
    /// appended need not look there. Changes back to `u64::MAX` with every refresh.
    nothing_from: AtomicU64,
    /// Where the last read of blocks below NVM ended: one that goes on there is sequential.
    pub read_to: AtomicU64,
    /// Open handles of this process.
    pub handles: AtomicU32,
    /// The lease on it.
    pub lease: LeaseWord,
    /// Under an exclusive lease: another client may have it open.
    pub used_elsewhere: AtomicBool,
    /// Under an exclusive lease: other processes use it through the mount.
    pub watched: AtomicBool,
    /// The kernel is to make it longer: others use it through the mount. Of an exclusive lease.
    pub shared: AtomicBool,
    /// Daemon's lease word, plus 2^32, when an access could not be noted because others
    /// have the inode too.
    pub access_refused: AtomicU64,
}

impl Node {
    /// An inode in this state, without a lease.
    pub fn new(ino: u64, state: NodeState) -> Arc<Self> {
        Arc::new(Self {
            ino,
            state: biased_rwlock::RwLock::new(state),
            leaves: Mutex::default(),
            extent_hint: ExtentHint::default(),
            nothing_from: AtomicU64::new(u64::MAX),
            read_to: AtomicU64::new(0),
            handles: AtomicU32::new(0),
            lease: LeaseWord::default(),
            used_elsewhere: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            access_refused: AtomicU64::new(0),
        })
    }

    /// An inode as the volume has it.
    ///
    /// # Errors
    /// `ENOENT` if there is none; the volume cannot be read.
    pub fn load(volume: &VolumeReader, ino: u64, epoch: u64) -> Result<Arc<Self>, Stop> {
        let inode = volume.inode(ino)?.ok_or(Errno::NOENT)?;
        Ok(Self::new(ino, NodeState::loaded(inode, epoch)))
    }

    /// Brings the state up to the epoch of a call, if it is older: what the log has up to `digested` is in the volume.
    ///
    /// # Errors
    /// The volume cannot be read; the state is as before.
    pub fn refresh(&self, volume: &VolumeReader, epoch: u64, digested: LogPos) -> Result<(), Stop> {
        let mut state = self.state.write();
        if state.epoch < epoch {
            state.refresh(volume, epoch, digested)?;
            self.forget_leaves();
        }
        Ok(())
    }

    /// Replaces everything by what the volume says: the lease was elsewhere meanwhile.
    ///
    /// # Errors
    /// The volume cannot be read; the state is as before.
    pub fn reload(&self, volume: &VolumeReader, epoch: u64) -> Result<(), Stop> {
        let mut state = self.state.write();
        match volume.inode(self.ino)? {
            Some(inode) => {
                let same = state.inode.generation == inode.generation;
                let named = !state.orphan && !state.no_link;
                let old = same && (state.no_link || named);
                *state = NodeState::loaded(inode, epoch);
                // It had a name, or once had lost its last one: it gets none again.
                state.no_link = old && state.orphan;
            }
            None => state.dead = true,
        }
        self.forget_leaves();
        Ok(())
    }

    /// The volume's roots are others now. The caller has the state locked for writing.
    fn forget_leaves(&self) {
        let mut leaves = self.leaves.lock();
        *leaves = Leaves::default();
        self.extent_hint.forget();
        drop(leaves);
        self.nothing_from.store(u64::MAX, Ordering::Relaxed);
    }

    /// What lies at file block `fb` in the volume, the log not considered. `state` is this node's, locked by the caller.
    ///
    /// # Errors
    /// The volume cannot be read.
    pub fn map_block(
        &self,
        volume: &VolumeReader,
        state: &NodeState,
        fb: FileBlock,
    ) -> Result<Mapping, Stop> {
        const NOTHING: Mapping = Mapping::Hole {
            len: u64::MAX / 8192,
        };
        if !state.in_volume || fb.0 >= self.nothing_from.load(Ordering::Relaxed) {
            return Ok(NOTHING);
        }
        if let Some((addr, len)) = self.extent_hint.get(fb) {
            return Ok(Mapping::Data { addr, len });
        }
        let mut leaves = self.leaves.lock();
        let found = leaves.map(volume.view(), &state.inode, fb)?;
        if let Mapping::Data { addr, len } = found {
            self.extent_hint.note(fb, addr, len);
        }
        drop(leaves);
        if matches!(found, Mapping::Hole { len } if len >= u64::MAX - fb.0) {
            self.nothing_from.fetch_min(fb.0, Ordering::Relaxed);
        }
        Ok(found)
    }
}

impl LeasedInode for Node {
    #[inline(always)]
    fn number(&self) -> u64 {
        self.ino
    }

    #[inline(always)]
    fn lease(&self) -> &LeaseWord {
        &self.lease
    }

    fn reload(&self, volume: &VolumeReader, epoch: u64) -> Result<(), Stop> {
        Node::reload(self, volume, epoch)
    }

    fn is_freed(&self) -> bool {
        self.state.read().dead
    }

    fn note_others(&self, others: &OtherUsers) {
        let release = Ordering::Release;
        self.used_elsewhere.store(others.used_elsewhere, release);
        self.watched.store(others.watched, release);
        self.shared.store(others.shared, release);
        if let Some(word) = others.held_by_others {
            let refused = u64::from(word) | 1 << 32;
            self.access_refused.store(refused, Ordering::Relaxed);
        }
    }
}

const SHARDS: usize = 64;
/// A shard above this many nodes drops those that the volume knows and nobody uses.
const SHARD_NODES_MAX: usize = 1024;

/// Every inode in memory by number.
pub struct Nodes {
    shards: [RwLock<Shard>; SHARDS],
    /// Inodes that were freed here, about in the order of the log, with the ends of the records that did it:
    /// once those are digested nothing is left that could take them for alive.
    dead: Mutex<VecDeque<(LogPos, Arc<Node>)>>,
}

/// The inodes of which the number has one hash.
struct Shard {
    nodes: HashMap<u64, Arc<Node>>,
    /// With so many it is looked for nodes to drop: twice what was left the last time, so
    /// that looking costs each added node little, also when none can be dropped.
    shrink_at: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            nodes: HashMap::new(),
            shrink_at: SHARD_NODES_MAX,
        }
    }
}

impl Shard {
    /// Makes space for one more: drops nodes of which the volume knows everything and that
    /// nobody uses, if there are many.
    fn make_space(&mut self, digested: LogPos) {
        if self.nodes.len() < self.shrink_at {
            return;
        }
        let mut spare = self.nodes.len().saturating_sub(SHARD_NODES_MAX / 2);
        self.nodes.retain(|_, node| {
            let droppable = spare > 0
                && Arc::strong_count(node) == 1
                && node.handles.load(Ordering::Relaxed) == 0
                && node.state.try_read().is_some_and(|s| s.newest <= digested);
            spare -= usize::from(droppable);
            !droppable
        });
        self.shrink_at = SHARD_NODES_MAX.max(2 * self.nodes.len());
    }
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| RwLock::default()),
            dead: Mutex::default(),
        }
    }
}

impl Nodes {
    /// An inode was freed by a record that ends at `end`: it goes from memory when that is digested.
    /// Removes those of which that is so.
    pub fn bury(&self, node: &Arc<Node>, end: LogPos, digested: LogPos) {
        let mut dead = self.dead.lock();
        dead.push_back((end, node.clone()));
        while dead.front().is_some_and(|(end, _)| *end <= digested) {
            if let Some((_, node)) = dead.pop_front() {
                self.remove(&node);
                // Who still has the node looks the inode up again.
                node.lease.clear();
            }
        }
    }

    /// Number of inodes in memory.
    #[cfg(test)]
    fn count(&self) -> usize {
        let nodes = |s: &RwLock<Shard>| s.read().nodes.len();
        self.shards.iter().map(nodes).sum()
    }

    fn shard(&self, ino: u64) -> &RwLock<Shard> {
        &self.shards[(ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SHARDS]
    }

    /// The node, if it is in memory.
    pub fn get(&self, ino: u64) -> Option<Arc<Node>> {
        self.shard(ino).read().nodes.get(&ino).cloned()
    }

    /// Adds a node unless another thread was faster; gives the one that is there.
    pub fn add(&self, node: Arc<Node>, digested: LogPos) -> Arc<Node> {
        let mut shard = self.shard(node.ino).write();
        shard.make_space(digested);
        shard.nodes.entry(node.ino).or_insert(node).clone()
    }

    /// Puts a node for an inode that was just made in the place of any old one.
    pub fn replace(&self, node: Arc<Node>, digested: LogPos) {
        let mut shard = self.shard(node.ino).write();
        shard.make_space(digested);
        shard.nodes.insert(node.ino, node);
    }

    /// Removes a node whose inode is no more, unless another one has its place.
    pub fn remove(&self, node: &Node) {
        let mut shard = self.shard(node.ino).write();
        let there = shard.nodes.get(&node.ino);
        if there.is_some_and(|n| std::ptr::eq(&**n, node)) {
            shard.nodes.remove(&node.ino);
        }
    }
}

impl LeasedInodes for Nodes {
    type Inode = Node;

    fn get(&self, ino: u64) -> Option<Arc<Node>> {
        Nodes::get(self, ino)
    }

    fn load(volume: &VolumeReader, ino: u64, epoch: u64) -> Result<Arc<Node>, Stop> {
        Node::load(volume, ino, epoch)
    }

    fn add(&self, node: Arc<Node>, digested: LogPos) -> Arc<Node> {
        Nodes::add(self, node, digested)
    }

    fn remove(&self, node: &Node) {
        Nodes::remove(self, node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::extent::{Extent, UNWRITTEN};

    /// What was freed goes when its record is digested, and not before; a new inode of its number stays.
    #[test]
    fn inodes_that_are_no_more_go_from_memory() {
        let nodes = Nodes::default();
        let made = |ino| {
            let node = Node::new(ino, NodeState::fresh(Inode::free(), 0));
            nodes.replace(node.clone(), LogPos(0));
            node
        };
        for ino in 100..1100 {
            let node = made(ino);
            node.lease.set(7, shale_proto::LeaseMode::Exclusive);
            nodes.bury(&node, LogPos(ino), LogPos(ino - 10));
            assert!(nodes.get(ino).is_some(), "the volume may have it still");
            assert_eq!(node.lease.was_set(), nodes.get(ino).is_some());
        }
        assert_eq!(nodes.count(), 10);
        let again = made(1095);
        nodes.bury(&made(5000), LogPos(5000), LogPos(4999));
        assert!(nodes.get(1095).is_some_and(|n| Arc::ptr_eq(&n, &again)));
        assert_eq!(nodes.count(), 2);
    }

    #[test]
    fn a_leaf_answers_for_its_range() {
        let extent = |file_block, addr, len, flags| Extent {
            file_block,
            addr,
            len,
            flags,
        };
        let leaf = LeafCover {
            extents: vec![extent(2, 100, 3, 0), extent(8, 300, 1, UNWRITTEN)],
            range: FileBlock(0)..FileBlock(20),
        };
        let at = |fb| mapping_in(&leaf, FileBlock(fb));
        assert_eq!(at(0), Mapping::Hole { len: 2 });
        assert!(matches!(at(3), Mapping::Data { len: 2, addr } if addr.index() == 101));
        assert_eq!(at(5), Mapping::Hole { len: 3 });
        assert!(matches!(at(8), Mapping::Unwritten { len: 1, .. }));
        assert_eq!(at(9), Mapping::Hole { len: 11 });
    }
}
