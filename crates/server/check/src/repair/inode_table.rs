//! The inodes: through the inode file, and where the way there is lost, by looking at
//! every block of NVM, and below it at every one in use.

use super::trees::{Pass, extents_of};
use super::{KeptInode, Repair};
use shale_format::bitmap::{self, BITS_PER_BLOCK, WORDS_PER_BLOCK};
use shale_format::extent::{Extent, ExtentRoot, root_kind};
use shale_format::inode::{Inode, time};
use shale_format::limits::{BLOCK_BYTES, INODE_BYTES, INODES_PER_BLOCK};
use shale_format::tree::TreeKind;
use shale_format::{BlockAddr, Ino, TierId};
use std::collections::BTreeMap;

const S_IFDIR: u32 = 0o040_000;
/// Blocks of the inode file that there can be.
const SLOT_BLOCKS_MAX: u64 = (Ino::MAX.0 + 1) / INODES_PER_BLOCK;

impl Repair {
    /// Finds the blocks of the inode file, then reads all slots.
    pub(super) fn find_slots(&mut self) {
        let file = self.root.inode_file;
        if !self.read_inode_file(&file) {
            self.slots_changed = true;
            self.look_for_slots();
            let what = "way to the inodes rebuilt";
            self.note_part("inode file", what, false);
        }
        let blocks: Vec<(u64, u64)> = self.slots.iter().map(|(&fb, &at)| (fb, at)).collect();
        for (fb, at) in blocks {
            self.read_slots(fb, at);
        }
        for (ino, mode) in [(Ino::ROOT, 0o755), (Ino::ORPHANS, 0o700)] {
            if self.kept(ino).is_none_or(|k| !k.inode.is_dir()) {
                self.make_directory(ino, mode);
            }
        }
    }

    /// Whether all of the inode file could be read.
    fn read_inode_file(&mut self, file: &Inode) -> bool {
        let mut whole = file.is_file() && file.ino == 0;
        let mut all: Vec<Extent> = Vec::new();
        for (tier, root) in TierId::ALL.into_iter().zip(&file.root) {
            let mut here = Vec::new();
            match root.kind {
                root_kind::EMPTY => {}
                root_kind::DIRECT => here.push(direct(root)),
                root_kind::TREE => {
                    let mut leaf =
                        |block: &_, header: &_, _: &_| here.extend(extents_of(block, header));
                    let kind = TreeKind::Extents;
                    let walked = self.walk(root, Ino(0), kind, Pass::Claim, &mut leaf);
                    whole &= walked.is_whole(root);
                }
                _ => whole = false,
            }
            let mine = |e: &Extent| BlockAddr::from_raw(e.addr).tier() == Some(tier);
            whole &= here.iter().all(mine);
            all.extend(here.into_iter().filter(mine));
        }
        all.sort_by_key(|e| e.file_block);
        let mut end = 0;
        for e in &all {
            let addr = BlockAddr::from_raw(e.addr);
            let last = e.file_block.checked_add(e.len.into());
            let legal = e.len > 0
                && !e.is_unwritten()
                && self.space.is_inside(addr, e.len.into())
                && last.is_some_and(|last| last <= SLOT_BLOCKS_MAX)
                && e.file_block >= end;
            if !legal {
                whole = false;
                continue;
            }
            end = e.end().0;
            for n in 0..u64::from(e.len) {
                let at = addr.plus(n);
                let claimed = match at.tier() {
                    Some(TierId::Nvm) => self.space.claim(at.index()),
                    _ => self.space.claim_below(at, 1),
                };
                match claimed {
                    true => drop(self.slots.insert(e.file_block + n, at.raw())),
                    false => whole = false,
                }
            }
        }
        let size = end * BLOCK_BYTES as u64;
        whole && file.size >= size && file.blocks == self.slots.len() as u64
    }

    /// Looks at every block that nobody has for slots of inodes. A block of the inode file that
    /// is not used any more looks like one; where the bitmap can be read it tells them apart,
    /// and of two the newer one counts.
    fn look_for_slots(&mut self) {
        let mut block = [0; BLOCK_BYTES];
        let mut found: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let mut bitmap = Bitmap::default();
        for at in self.space.data() {
            let unused = self.space.is_claimed(at) || bitmap.is_free(self, at);
            if unused || !self.media.load(at, &mut block) {
                continue;
            }
            let Some((fb, txid)) = looks_like_slots(&block) else {
                continue;
            };
            let newer = found.get(&fb).is_none_or(|&(_, other)| txid > other);
            if newer && !self.slots.contains_key(&fb) {
                found.insert(fb, (at, txid));
            }
        }
        let known = |fb: u64, txid| {
            let other = found.get(&fb).map(|&(_, other)| other);
            self.slots.contains_key(&fb) || other.is_some_and(|other| other >= txid)
        };
        let mut below: BTreeMap<u64, (BlockAddr, u64)> = BTreeMap::new();
        self.media.each_below(&mut |addr, block| {
            let Some((fb, txid)) = looks_like_slots(block) else {
                return;
            };
            let newer = below.get(&fb).is_none_or(|&(_, other)| txid > other);
            if newer && !known(fb, txid) {
                below.insert(fb, (addr, txid));
            }
        });
        for (fb, (at, _)) in found {
            if !below.contains_key(&fb) && self.space.claim(at) {
                self.slots.insert(fb, at);
            }
        }
        for (fb, (addr, _)) in below {
            if self.space.claim_below(addr, 1) {
                self.slots.insert(fb, addr.raw());
            }
        }
    }

    fn read_slots(&mut self, fb: u64, at: u64) {
        let mut block = [0; BLOCK_BYTES];
        if !self.media.load(at, &mut block) {
            let addr = BlockAddr::from_raw(at);
            if addr.tier() != Some(TierId::Nvm) {
                self.read_unsure_slots(fb, addr, &mut block);
            }
            return;
        }
        let (mut used, mut rewrite) = (false, false);
        for (n, bytes) in (0..).zip(block.chunks_exact(INODE_BYTES)) {
            let ino = Ino(fb * INODES_PER_BLOCK + n);
            match Inode::decode(bytes, ino) {
                Ok(inode) if inode.is_free() => rewrite |= bytes.iter().any(|&b| b != 0),
                Ok(inode) if ino.is_user() || ino == Ino::ORPHANS => {
                    used = true;
                    self.keep_inode(inode);
                }
                Ok(_) => {
                    rewrite = true;
                    self.note_inode(ino.0, "an inode with a number that none may have", true);
                }
                Err(e) => {
                    rewrite = true;
                    self.note_inode(ino.0, format!("the inode cannot be read: {e}"), true);
                }
            }
        }
        if rewrite || !used {
            // Rewritten with what is kept in it; without anything it is a hole.
            self.slots_changed = true;
            self.slots.insert(fb, 0);
        }
    }

    /// The same of a block below NVM that is not what its checksum says, or has none any more: each inode
    /// has a checksum of its own. What is kept goes to NVM.
    fn read_unsure_slots(&mut self, fb: u64, addr: BlockAddr, block: &mut [u8; BLOCK_BYTES]) {
        self.slots_changed = true;
        self.slots.insert(fb, 0);
        let mut kept = 0;
        if self.media.load_unsure(addr, block) {
            for (n, bytes) in (0..).zip(block.chunks_exact(INODE_BYTES)) {
                let ino = Ino(fb * INODES_PER_BLOCK + n);
                let inode = Inode::decode(bytes, ino).ok();
                if let Some(inode) = inode.filter(|i| !i.is_free() && ino.is_user()) {
                    kept += 1;
                    self.keep_inode(inode);
                }
            }
        }
        let (first, last) = (fb * INODES_PER_BLOCK, (fb + 1) * INODES_PER_BLOCK - 1);
        let what = format!(
            "the block below NVM with inodes {first} to {last} is damaged: {kept} of them are kept"
        );
        self.note_part("inode file", what, true);
    }

    fn keep_inode(&mut self, inode: Inode) {
        let sane = self.see_txid(inode.txid);
        if !sane {
            self.note_inode(inode.ino, "number of its batch set", false);
        }
        let kept = KeptInode {
            inode,
            changed: !sane,
            extents: None,
            entries: None,
            place: None,
            count: 0,
            listed: false,
        };
        self.inodes.insert(inode.ino, kept);
    }

    /// A new, empty directory at a number.
    pub(super) fn make_directory(&mut self, ino: Ino, mode: u32) {
        let mut inode = Inode::free();
        inode.ino = ino.0;
        inode.mode = S_IFDIR | mode;
        inode.uid = self.sb.owner_uid;
        inode.nlink = 2;
        inode.generation = 1;
        inode.parent = Ino::ROOT.0;
        for which in [time::ACCESS, time::MODIFY, time::CHANGE, time::BIRTH] {
            inode.set_time_ns(which, self.sb.created_ns);
        }
        self.keep_inode(inode);
        if let Some(kept) = self.inodes.get_mut(&ino.0) {
            kept.changed = true;
        }
        self.note_inode(ino.0, "directory rebuilt", false);
    }
}

/// The block of the bitmap that was looked at last: its number, and its words if it is whole.
#[derive(Default)]
struct Bitmap(Option<(u64, Option<Box<[u64; WORDS_PER_BLOCK]>>)>);

impl Bitmap {
    /// Whether the bitmap can be read there and says that a block is free.
    fn is_free(&mut self, repair: &Repair, at: u64) -> bool {
        let (n, bit) = (at / BITS_PER_BLOCK, at % BITS_PER_BLOCK);
        if self.0.as_ref().is_none_or(|(known, _)| *known != n) {
            let addr = BlockAddr::nvm(repair.sb.bitmap_block + n);
            let mut block = [0; BLOCK_BYTES];
            let words = match repair.media.load(addr.index(), &mut block) {
                true => bitmap::decode(&block, addr).ok(),
                false => None,
            };
            self.0 = Some((n, words));
        }
        let words = self.0.as_ref().and_then(|(_, words)| words.as_ref());
        words.is_some_and(|w| w[(bit / 64) as usize] >> (bit % 64) & 1 == 0)
    }
}

/// The extent in a direct root.
pub(super) fn direct(root: &ExtentRoot) -> Extent {
    Extent {
        file_block: root.file_block,
        addr: root.addr,
        len: root.len,
        flags: root.flags.into(),
    }
}

/// If a block has inodes whose numbers fit their places: which block of the inode file it
/// is, and the newest batch that wrote one of them.
fn looks_like_slots(block: &[u8; BLOCK_BYTES]) -> Option<(u64, u64)> {
    let mut found: Option<(u64, u64)> = None;
    for (n, bytes) in (0..).zip(block.chunks_exact(INODE_BYTES)) {
        let (number, _) = bytes.split_first_chunk::<8>()?;
        let ino = u64::from_le_bytes(*number);
        if ino == 0 || ino > Ino::MAX.0 || ino % INODES_PER_BLOCK != n {
            continue;
        }
        let Ok(inode) = Inode::decode(bytes, Ino(ino)) else {
            continue;
        };
        let fb = ino / INODES_PER_BLOCK;
        match &mut found {
            Some((known, _)) if *known != fb => return None,
            Some((_, txid)) => *txid = inode.txid.max(*txid),
            None => found = Some((fb, inode.txid)),
        }
    }
    found
}
