//! The volume as one chunk reads it: what its records name is read ahead, and what was found is remembered.

use super::dirent_prefetch::CollisionPrefetch;
use super::image::Image;
use super::item::Item;
use shale_format::inode::{Inode, slot_of};
use shale_format::limits::INODE_BYTES;
use shale_format::xattr::Xattrs;
use shale_format::{BlockAddr, DirKey, FileBlock, Ino, TierId};
use shale_volume::{Dirent, KeptLeaf, Mapping, Result, Run, View};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;

/// The volume for one plan: the root block is read once, and where the inode file's
/// blocks are is remembered. Other clients' commits meanwhile do not move the slots of
/// inodes that are under this client's leases.
pub(crate) struct ChunkImage<'a> {
    view: View,
    takes_stores: &'a dyn Fn(Run) -> bool,
    file: OnceCell<Inode>,
    /// Runs of the inode file: end, and address of the first block or a hole.
    runs: RefCell<BTreeMap<u64, (u64, Option<BlockAddr>)>>,
    collisions: RefCell<CollisionPrefetch>,
    leaf: RefCell<KeptLeaf>,
}

impl<'a> ChunkImage<'a> {
    /// For a plan of these records, whose names it looks up. `takes_stores`: which blocks may be changed where they are.
    pub fn new(view: View, items: &[Item], takes_stores: &'a dyn Fn(Run) -> bool) -> Self {
        let image = Self {
            view,
            takes_stores,
            file: OnceCell::new(),
            runs: RefCell::default(),
            collisions: RefCell::default(),
            leaf: RefCell::default(),
        };
        // What cannot be read here is read again when a record asks for it: records
        // before that one can be digested.
        let collisions = CollisionPrefetch::read(&image.view, &image, items).unwrap_or_default();
        image.collisions.replace(collisions);
        image
    }

    /// Where a block of the inode file is; `None`: a hole.
    fn block(&self, fb: FileBlock) -> Result<Option<BlockAddr>> {
        let known = |runs: &BTreeMap<u64, (u64, Option<BlockAddr>)>| {
            let (&start, &(end, addr)) = runs.range(..=fb.0).next_back()?;
            (fb.0 < end).then(|| addr.map(|a| a.plus(fb.0 - start)))
        };
        if let Some(addr) = known(&self.runs.borrow()) {
            return Ok(addr);
        }
        let file = match self.file.get() {
            Some(file) => file,
            None => {
                let file = self.view.root()?.inode_file;
                self.file.get_or_init(|| file)
            }
        };
        let (addr, len) = match self.view.map_block(file, fb)? {
            Mapping::Data { addr, len } => (Some(addr), len),
            Mapping::Unwritten { len, .. } | Mapping::Hole { len } => (None, len),
        };
        let end = fb.0.saturating_add(len);
        self.runs.borrow_mut().insert(fb.0, (end, addr));
        Ok(addr)
    }
}

impl Image for ChunkImage<'_> {
    fn inode(&self, ino: Ino) -> Result<Option<Inode>> {
        if ino == Ino::NONE || ino > Ino::MAX {
            return Ok(None);
        }
        let (fb, byte) = slot_of(ino);
        let Some(addr) = self.block(fb)? else {
            return Ok(None);
        };
        let mut bytes = [0; INODE_BYTES];
        if addr.tier() != Some(TierId::Nvm) {
            return self.view.inode(ino);
        }
        self.view.read_at(addr, byte as u64, &mut bytes)?;
        match Inode::decode(&bytes, ino) {
            Ok(inode) => Ok((!inode.is_free()).then_some(inode)),
            // Someone else's, just being changed, or the block has gone: the view
            // reads again, and says what is damaged.
            Err(_) => self.view.inode(ino),
        }
    }
    fn key_group(&self, name: &[u8]) -> DirKey {
        self.view.key_group(name)
    }
    fn collisions(&self, dir: &Inode, group: DirKey) -> Result<Vec<Dirent>> {
        match self.collisions.borrow_mut().take(dir, group) {
            Some(known) => Ok(known),
            None => self.view.collisions(dir, group),
        }
    }
    fn xattrs(&self, inode: &Inode) -> Result<Xattrs> {
        self.view.xattrs(inode)
    }
    fn map_block(&self, inode: &Inode, fb: FileBlock) -> Result<Mapping> {
        self.view
            .map_block_near(inode, fb, &mut self.leaf.borrow_mut())
    }
    fn takes_stores(&self, run: Run) -> bool {
        (self.takes_stores)(run)
    }
    fn has_slot(&self, ino: Ino) -> Result<bool> {
        Ok(self.block(slot_of(ino).0)?.is_some())
    }
    fn blocks(&self) -> u64 {
        Image::blocks(&self.view)
    }
}
