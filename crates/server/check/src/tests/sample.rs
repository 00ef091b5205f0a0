//! A volume with everything in it, and tools that damage it and take the damage back.

use crate::{CheckOptions, LogFile, Report, check};
use shale_format::acl::{Acl, AclEntry, AclKind, Who};
use shale_format::bitmap::{self, WORDS_PER_BLOCK};
use shale_format::dirent::{DirentEntry, kind_of_mode};
use shale_format::extent::{Extent, UNWRITTEN};
use shale_format::inode::{Inode, flag, slot_of};
use shale_format::limits::{BLOCK_BYTES, INODE_BYTES, LOG_BYTES_MIN};
use shale_format::superblock::{ROOT_BLOCK, RootBlock, Superblock};
use shale_format::tree::{self, NodeHeader};
use shale_format::xattr::{self, Xattrs};
use shale_format::{BlockAddr, DirKey, FileBlock, Ino, TierId, version};
use shale_nvm::Map;
use shale_volume::{Mapping, MkfsOptions, Txn, View, Volume};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

pub const BYTES: usize = 32 << 20;
pub const DIR: u64 = 20;
pub const SUB: u64 = 21;
pub const DEEP: u64 = 22;
pub const BIG: u64 = 23;
pub const EMPTY: u64 = 24;
pub const FRAGMENTED: u64 = 40;
pub const DIRECT: u64 = 41;
pub const SPARSE: u64 = 42;
pub const LINK: u64 = 43;
pub const PIPE: u64 = 44;
pub const DEVICE: u64 = 45;
pub const ATTRIBUTED: u64 = 46;
pub const SECOND_FRAGMENTED: u64 = 47;
pub const SEVERAL: u64 = 48;
/// It has an access control list.
pub const LISTED: u64 = 49;
pub const ORPHAN: u64 = 50;
pub const ORPHAN_DIR: u64 = 51;
/// Files of the big directory; each has [`NAMES_EACH`] names.
pub const MANY: std::ops::Range<u64> = 100..130;
pub const NAMES_EACH: u64 = 14;

pub fn options() -> MkfsOptions {
    MkfsOptions {
        uuid: [7; 16],
        hash_seed: [11, 13],
        created_ns: 1_000_000_007,
        log_bytes: LOG_BYTES_MIN,
        ..MkfsOptions::default()
    }
}

fn inode(ino: u64, mode: u32, nlink: u32) -> Inode {
    Inode {
        ino,
        mode,
        nlink,
        generation: 1,
        ..Inode::free()
    }
}

/// Adds a name; of a directory, also the link and the parent.
fn name(txn: &mut Txn<'_>, view: &View, dir: u64, ino: u64, name: &str) {
    let mut parent = txn.inode(Ino(dir)).unwrap().unwrap();
    let mut child = txn.inode(Ino(ino)).unwrap().unwrap();
    let key = view.key_group(name.as_bytes());
    let kind = kind_of_mode(child.mode);
    txn.dir_insert(&mut parent, key, Ino(ino), kind, name.as_bytes())
        .unwrap();
    if child.is_dir() {
        parent.nlink += 1;
        child.parent = dir;
        txn.put_inode(&child).unwrap();
    }
    txn.put_inode(&parent).unwrap();
}

/// Maps `len` new blocks from file block `fb` on and fills them.
fn fill(volume: &Volume, txn: &mut Txn<'_>, inode: &mut Inode, fb: u64, len: u64, flags: u32) {
    let mut at = fb;
    for run in volume.allocate(len, None).unwrap() {
        if flags == 0 {
            let bytes = vec![0x5a; run.len as usize * BLOCK_BYTES];
            volume.write_at(run.addr, 0, &bytes).unwrap();
        }
        let extent = Extent {
            file_block: at,
            addr: run.addr.raw(),
            len: run.len as u32,
            flags,
        };
        txn.extent_insert(inode, TierId::Nvm, extent).unwrap();
        at += run.len;
    }
}

/// Sets the size of a file of one extent, and makes what is behind it in its last block zeros.
fn cut(volume: &Volume, inode: &mut Inode, size: u64) {
    inode.size = size;
    let (block, used) = (size / BLOCK_BYTES as u64, size % BLOCK_BYTES as u64);
    let addr = BlockAddr::from_raw(inode.root[0].addr).plus(block);
    let zeros = vec![0; BLOCK_BYTES - used as usize];
    volume.write_at(addr, used, &zeros).unwrap();
}

fn directories(volume: &Volume) {
    let view = volume.view();
    let mut txn = volume.begin();
    for ino in [DIR, SUB, DEEP, BIG, EMPTY] {
        txn.put_inode(&inode(ino, 0o040_755, 2)).unwrap();
    }
    for (dir, ino, text) in [
        (1, DIR, "dir"),
        (DIR, SUB, "sub"),
        (SUB, DEEP, "deep"),
        (1, BIG, "big"),
        (DIR, EMPTY, "empty"),
    ] {
        name(&mut txn, &view, dir, ino, text);
    }
    for ino in MANY {
        txn.put_inode(&inode(ino, 0o100_600, NAMES_EACH as u32))
            .unwrap();
        for n in 0..NAMES_EACH {
            let text = format!("a name of some length, number {ino}-{n}");
            name(&mut txn, &view, BIG, ino, &text);
        }
    }
    txn.commit().unwrap();
}

fn files(volume: &Volume) {
    let view = volume.view();
    let mut txn = volume.begin();
    let mut all = Vec::new();
    for ino in [FRAGMENTED, SECOND_FRAGMENTED] {
        let mut f = inode(ino, 0o100_644, 1);
        for n in 0..400 {
            fill(volume, &mut txn, &mut f, n * 2, 1, 0);
        }
        f.size = 799 * BLOCK_BYTES as u64;
        all.push((f, "fragmented"));
    }
    all[1].1 = "fragmented too";
    let mut f = inode(DIRECT, 0o100_644, 1);
    fill(volume, &mut txn, &mut f, 0, 10, 0);
    cut(volume, &mut f, 10 * BLOCK_BYTES as u64 - 100);
    all.push((f, "direct"));
    let mut f = inode(SPARSE, 0o100_644, 1);
    fill(volume, &mut txn, &mut f, 100, 2, 0);
    fill(volume, &mut txn, &mut f, 200, 20, UNWRITTEN);
    f.size = 210 * BLOCK_BYTES as u64 + 1;
    all.push((f, "sparse"));
    let mut f = inode(LINK, 0o120_777, 1);
    fill(volume, &mut txn, &mut f, 0, 1, 0);
    cut(volume, &mut f, 17);
    all.push((f, "link"));
    all.push((inode(PIPE, 0o010_644, 1), "pipe"));
    all.push((inode(DEVICE, 0o020_644, 1), "device"));
    let mut f = inode(ATTRIBUTED, 0o100_644, 1);
    let attrs = Xattrs::from([
        (b"user.a".to_vec(), vec![1; 5000]),
        (b"user.b".to_vec(), vec![]),
    ]);
    txn.set_xattrs(&mut f, &attrs).unwrap();
    all.push((f, "attributed"));
    all.push((inode(SEVERAL, 0o100_644, 3), "one"));
    let mut f = inode(LISTED, 0o100_664, 1);
    let attrs = Xattrs::from([(AclKind::Access.name().to_vec(), list(6).encode())]);
    txn.set_xattrs(&mut f, &attrs).unwrap();
    all.push((f, "listed"));
    for (f, text) in all {
        txn.put_inode(&f).unwrap();
        name(&mut txn, &view, DEEP, f.ino, text);
    }
    name(&mut txn, &view, DIR, SEVERAL, "two");
    name(&mut txn, &view, 1, SEVERAL, "three");
    txn.commit().unwrap();
}

/// An access control list with this mask.
pub fn list(mask: u16) -> Acl {
    let entry = |(who, may)| AclEntry { who, may };
    let all = [
        (Who::Owner, 6),
        (Who::User(1000), 7),
        (Who::OwningGroup, 4),
        (Who::Mask, mask),
        (Who::Other, 4),
    ];
    Acl::new(all.map(entry).to_vec())
}

fn orphans(volume: &Volume) {
    let mut txn = volume.begin();
    let mut dir = txn.inode(Ino::ORPHANS).unwrap().unwrap();
    for (ino, mode) in [(ORPHAN, 0o100_600), (ORPHAN_DIR, 0o040_700)] {
        let mut f = inode(ino, mode, 0);
        f.flags = flag::ORPHAN;
        if ino == ORPHAN {
            fill(volume, &mut txn, &mut f, 0, 3, 0);
            f.size = 3 * BLOCK_BYTES as u64;
        } else {
            f.parent = DIR;
        }
        txn.put_inode(&f).unwrap();
        txn.dir_insert(&mut dir, DirKey(ino), Ino(ino), kind_of_mode(mode), b"")
            .unwrap();
    }
    txn.put_inode(&dir).unwrap();
    txn.commit().unwrap();
}

/// The volume, and what to put back.
pub struct Sample {
    pub map: Arc<Map>,
    pub logs: Vec<LogFile>,
    undo: RefCell<Vec<(usize, Vec<u8>)>>,
}

/// One entry of a directory leaf: its index, the entry and its name.
pub type Named = (usize, DirentEntry, Vec<u8>);

impl Sample {
    /// The volume as three transactions leave it, the last one still in the journal.
    pub fn journalled() -> Sample {
        let map = Arc::new(Map::anonymous(BYTES).unwrap());
        let volume = Volume::create(Arc::clone(&map), &options()).unwrap();
        directories(&volume);
        files(&volume);
        orphans(&volume);
        let sample = Sample {
            map,
            logs: Vec::new(),
            undo: RefCell::default(),
        };
        // As before the first list was set.
        for block in sample.sb().copies() {
            sample.edit_super(block, |sb| sb.incompatible |= version::POSIX_ACLS);
        }
        sample.undo.borrow_mut().clear();
        sample
    }

    /// As [`Self::journalled`], but without a batch in the journal: it would heal.
    pub fn new() -> Sample {
        let sample = Self::journalled();
        let at = sample.sb().journal_block as usize * BLOCK_BYTES;
        sample.map.store(at, &[0; 64]);
        sample
    }

    pub fn view(&self) -> View {
        View::open(Arc::clone(&self.map)).unwrap().0
    }

    pub fn sb(&self) -> Superblock {
        *self.view().superblock()
    }

    pub fn check(&self) -> Report {
        check(
            Arc::clone(&self.map),
            &self.logs,
            &CheckOptions::default(),
            &mut |_| (),
        )
    }

    /// Stores bytes that [`Self::put_back`] takes back.
    pub fn store(&self, at: usize, bytes: &[u8]) {
        let mut old = vec![0; bytes.len()];
        self.map.load(at, &mut old);
        self.undo.borrow_mut().push((at, old));
        self.map.store(at, bytes);
    }

    pub fn put_back(&self) {
        for (at, old) in self.undo.borrow_mut().drain(..).rev() {
            self.map.store(at, &old);
        }
    }

    pub fn block(&self, block: u64) -> [u8; BLOCK_BYTES] {
        self.map.load_array(block as usize * BLOCK_BYTES)
    }

    /// Byte of the slot of an inode.
    pub fn slot(&self, ino: u64) -> usize {
        let view = self.view();
        let (fb, byte) = slot_of(Ino(ino));
        match view
            .map_block(&view.root().unwrap().inode_file, fb)
            .unwrap()
        {
            Mapping::Data { addr, .. } => addr.byte() as usize + byte,
            other => panic!("{other:?}"),
        }
    }

    pub fn inode(&self, ino: u64) -> Inode {
        let bytes: [u8; INODE_BYTES] = self.map.load_array(self.slot(ino));
        Inode::decode(&bytes, Ino(ino)).unwrap()
    }

    /// Changes an inode; its checksum fits.
    pub fn edit(&self, ino: u64, f: impl FnOnce(&mut Inode)) {
        let mut inode = self.inode(ino);
        f(&mut inode);
        self.store(self.slot(ino), &inode.encode());
    }

    /// Changes the attributes of an inode, of which one block is enough; their checksum fits.
    pub fn edit_xattrs(&self, ino: u64, f: impl FnOnce(&mut Xattrs)) {
        let inode = self.inode(ino);
        let mut attrs = self.view().xattrs(&inode).unwrap();
        f(&mut attrs);
        let addr = BlockAddr::from_raw(inode.xattr_addr);
        let bytes = xattr::encode(&attrs, Ino(ino), addr);
        assert!(bytes.len() <= BLOCK_BYTES);
        self.store(addr.byte() as usize, &bytes);
        self.edit(ino, |i| i.xattr_bytes = bytes.len() as u32);
    }

    pub fn edit_root(&self, f: impl FnOnce(&mut RootBlock)) {
        let mut root = self.view().root().unwrap();
        f(&mut root);
        self.store(ROOT_BLOCK as usize * BLOCK_BYTES, &root.encode());
    }

    pub fn edit_super(&self, block: u64, f: impl FnOnce(&mut Superblock)) {
        let (mut sb, _) = Superblock::decode(&self.block(block), block).unwrap();
        f(&mut sb);
        self.store(block as usize * BLOCK_BYTES, &sb.encode());
    }

    pub fn edit_bitmap(&self, f: impl FnOnce(&mut [u64; WORDS_PER_BLOCK])) {
        let addr = BlockAddr::nvm(self.sb().bitmap_block);
        let mut words = bitmap::decode(&self.block(addr.index()), addr).unwrap();
        f(&mut words);
        self.store(addr.byte() as usize, &bitmap::encode(addr, 1, &words)[..]);
    }

    /// Blocks of the tree nodes of an inode at a level, in key order.
    pub fn nodes(&self, inode: &Inode, level: u16) -> Vec<u64> {
        let mut found = Vec::new();
        let _ = self.view().nodes(inode, &mut |at, _| {
            if at.level == level {
                found.push(at.addr.index());
            }
            ControlFlow::Continue(())
        });
        assert!(!found.is_empty());
        found
    }

    /// Changes a tree node; its checksum fits.
    pub fn edit_node(&self, block: u64, f: impl FnOnce(&mut [u8; BLOCK_BYTES])) {
        let mut node = self.block(block);
        f(&mut node);
        tree::seal(&mut node);
        self.store(block as usize * BLOCK_BYTES, &node);
    }

    pub fn header(&self, block: u64) -> NodeHeader {
        NodeHeader::read_from_prefix(&self.block(block)[..])
            .unwrap()
            .0
    }

    pub fn edit_header(&self, block: u64, f: impl FnOnce(&mut NodeHeader)) {
        self.edit_node(block, |node| {
            let mut h = NodeHeader::read_from_prefix(&node[..]).unwrap().0;
            f(&mut h);
            node[..64].copy_from_slice(h.as_bytes());
        });
    }

    /// Changes item `i` of a node.
    pub fn edit_item<T>(&self, block: u64, i: usize, f: impl FnOnce(&mut T))
    where
        T: FromBytes + IntoBytes + zerocopy::Immutable,
    {
        self.edit_node(block, |node| {
            let at = 64 + i * size_of::<T>();
            let mut item = T::read_from_bytes(&node[at..at + size_of::<T>()]).unwrap();
            f(&mut item);
            node[at..at + size_of::<T>()].copy_from_slice(item.as_bytes());
        });
    }

    /// Leaf and place of the entry of a directory that has this name (`None`: the first).
    pub fn entry(&self, dir: u64, name: Option<&str>) -> (u64, Named) {
        for leaf in self.nodes(&self.inode(dir), 0) {
            let node = self.block(leaf);
            for i in 0..self.header(leaf).count as usize {
                let at = 64 + i * DirentEntry::BYTES;
                let e = DirentEntry::read_from_bytes(&node[at..at + DirentEntry::BYTES]).unwrap();
                let (from, bytes) = (e.name_at as usize, e.name_bytes as usize);
                let found = &node[from..from + bytes];
                if name.is_none_or(|n| n.as_bytes() == found) {
                    return (leaf, (i, e, found.to_vec()));
                }
            }
        }
        panic!("no entry {name:?} in {dir}");
    }

    pub fn edit_entry(&self, dir: u64, name: Option<&str>, f: impl FnOnce(&mut DirentEntry)) {
        let (leaf, (i, _, _)) = self.entry(dir, name);
        self.edit_item(leaf, i, f);
    }

    /// First block of a file.
    pub fn data(&self, ino: u64) -> BlockAddr {
        match self
            .view()
            .map_block(&self.inode(ino), FileBlock(0))
            .unwrap()
        {
            Mapping::Data { addr, .. } => addr,
            other => panic!("{other:?}"),
        }
    }

    /// A block that nothing uses.
    pub fn free_block(&self) -> u64 {
        let used = self.view().used_runs().unwrap();
        let data = self.sb().data_block;
        let gap = used.windows(2).find(|w| {
            let end = w[0].addr.index() + w[0].len;
            end > data && end < w[1].addr.index()
        });
        gap.map(|w| w[0].addr.index() + w[0].len).unwrap()
    }

    /// Blocks that hold structure: superblocks to bitmap, inode file, nodes, attributes.
    pub fn structure(&self) -> Vec<u64> {
        let (view, sb) = (self.view(), self.sb());
        let mut blocks = vec![
            0,
            1,
            2,
            sb.journal_block,
            sb.bitmap_block,
            sb.second_block(),
        ];
        let file = view.root().unwrap().inode_file;
        view.extents(&file, FileBlock(0), &mut |e| {
            blocks.extend((0..u64::from(e.len)).map(|n| BlockAddr::from_raw(e.addr).index() + n));
            ControlFlow::Continue(())
        })
        .unwrap();
        view.inodes(&mut |_, inode| {
            let inode = inode.unwrap();
            let _ = view.nodes(&inode, &mut |at, _| {
                blocks.push(at.addr.index());
                ControlFlow::Continue(())
            });
            let attributes = view.xattr_runs(&inode).unwrap();
            blocks.extend(attributes.iter().map(|r| r.addr.index()));
            ControlFlow::Continue(())
        })
        .unwrap();
        blocks
    }
}

/// The same sequence of numbers everywhere.
pub struct Seeded(pub u64);

impl Seeded {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
