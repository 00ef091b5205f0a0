//! What inodes hold: fields, attributes, blocks.
//!
//! First every tree node and attribute is claimed, then every block of data: data that
//! lies where structure is gives way, and of two files that name a block the second one
//! gets a copy.

use super::inode_table::direct;
use super::trees::{Pass, Walked, extents_of};
use super::{KeptInode, Repair};
use crate::acl::{self, Wrong};
use crate::inode::kind;
use shale_format::dirent::kind_of_mode;
use shale_format::extent::{Extent, ExtentRoot, UNWRITTEN, root_kind};
use shale_format::inode::{Inode, flag};
use shale_format::limits::{BLOCK_BYTES, FILE_BYTES_MAX, SYMLINK_BYTES_MAX, XATTR_TOTAL_BYTES_MAX};
use shale_format::tree::TreeKind;
use shale_format::xattr::{self, XattrHeader};
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use std::ops::Range;

const S_IFREG: u32 = 0o100_000;
const MODE_MAX: u32 = 0o177_777;
const NS_MAX: u32 = 999_999_999;
/// File block behind the last one that a file can have.
const BLOCK_END: u64 = FILE_BYTES_MAX / BLOCK_BYTES as u64;

/// The extended attributes of one inode.
#[derive(Default)]
pub(super) struct Attributes {
    /// Their blocks.
    pub(super) runs: Vec<(BlockAddr, u64)>,
    /// What is wrong with its access control lists.
    wrong: Option<Wrong>,
}

/// The extents of one inode as they are read.
#[derive(Default)]
struct Found {
    tiers: [Vec<Extent>; 3],
    /// Not what is on the medium.
    altered: bool,
    /// Parts that another one had before.
    shared: Vec<Extent>,
    /// The last block of the file, if not all is zeros in it behind the end.
    tail: Option<Extent>,
    /// File blocks whose data is lost.
    lost: Vec<Range<u64>>,
}

impl Repair {
    /// Reads fields, attributes and blocks of all inodes.
    pub(super) fn read_content(&mut self) {
        let all: Vec<u64> = self.inodes.keys().copied().collect();
        for &ino in &all {
            self.mend_fields(ino);
            self.claim_structure(ino);
        }
        for ino in all {
            self.claim_data(ino);
        }
    }

    /// Changes an inode and notes it.
    fn mend(&mut self, ino: u64, what: &str, lost: bool, f: impl FnOnce(&mut Inode)) {
        if let Some(kept) = self.inodes.get_mut(&ino) {
            f(&mut kept.inode);
            kept.changed = true;
            self.note_inode(ino, what, lost);
        }
    }

    fn inode_of(&self, ino: u64) -> Option<Inode> {
        self.inodes.get(&ino).map(|k| k.inode)
    }

    fn mend_fields(&mut self, ino: u64) {
        let Some(inode) = self.inode_of(ino) else {
            return;
        };
        if inode.mode > MODE_MAX {
            self.mend(ino, "mode set right", false, |i| i.mode &= MODE_MAX);
        }
        if !kind::ALL.contains(&kind_of_mode(inode.mode)) {
            self.mend(ino, "made a regular file: its type was none", false, |i| {
                i.mode = S_IFREG | i.mode & 0o7777 & !0o6000;
                i.rdev = 0;
            });
        }
        if inode.time_ns.iter().any(|&ns| ns > NS_MAX) {
            self.mend(ino, "times set right", false, |i| {
                i.time_ns = i.time_ns.map(|ns| ns.min(NS_MAX));
            });
        }
        let known = flag::ALL & !flag::CHANGEABLE | self.sb.inode_flags();
        if inode.flags & !known != 0 {
            self.mend(ino, "unknown flags taken away", false, |i| i.flags &= known);
        }
        let Some(inode) = self.inode_of(ino) else {
            return;
        };
        let most = match kind_of_mode(inode.mode) {
            kind::FILE => FILE_BYTES_MAX,
            kind::SYMLINK | kind::DIRECTORY => u64::MAX,
            _ => 0,
        };
        if inode.size > most {
            self.mend(ino, "size set right", false, |i| i.size = most);
        }
        if !inode.is_dir() && inode.parent != 0 {
            self.mend(ino, "parent taken away", false, |i| i.parent = 0);
        }
        let below = inode.root[1..].iter().any(|r| r.kind != root_kind::EMPTY);
        if inode.is_dir() && (below || inode.blocks != 0) {
            self.mend(ino, "blocks taken away from a directory", false, |i| {
                i.root[1..].fill(ExtentRoot::EMPTY);
                i.blocks = 0;
            });
        }
        let kind_of_root = inode.root[0].kind;
        if inode.is_dir() && ![root_kind::EMPTY, root_kind::TREE].contains(&kind_of_root) {
            self.mend(ino, "the way to its entries", true, |i| {
                i.root[0] = ExtentRoot::EMPTY;
            });
        }
    }

    /// Claims nodes and attributes.
    fn claim_structure(&mut self, ino: u64) {
        let Some(inode) = self.inode_of(ino) else {
            return;
        };
        match self.read_xattrs(&inode, true) {
            None => self.mend(ino, "extended attributes", true, |i| {
                (i.xattr_addr, i.xattr_bytes) = (0, 0);
            }),
            Some(Attributes {
                wrong: Some(Wrong::List(why)),
                ..
            }) => {
                let what = format!("extended attributes and rights of groups: {why}");
                self.mend(ino, &what, true, |i| {
                    (i.xattr_addr, i.xattr_bytes) = (0, 0);
                    // They spoke of everybody that the list named, not of the group.
                    i.mode &= !0o070;
                });
            }
            Some(Attributes {
                wrong: Some(Wrong::Mode { expected, .. }),
                ..
            }) => {
                let what = "mode set as its access control list says";
                self.mend(ino, what, false, |i| i.mode = i.mode & !0o777 | expected);
            }
            Some(_) => {}
        }
        let kind = match inode.is_dir() {
            true => TreeKind::Entries,
            false if inode.has_content() => TreeKind::Extents,
            false => return,
        };
        for root in inode.root.iter().filter(|r| r.kind == root_kind::TREE) {
            let walked = self.walk(root, Ino(ino), kind, Pass::Claim, &mut |_, _, _| ());
            if inode.is_dir() && !walked.is_whole(root) {
                self.broken_dir(ino, &walked);
            }
        }
    }

    fn broken_dir(&mut self, ino: u64, walked: &Walked) {
        // What is left is put in when entries are read.
        if let Some(kept) = self.inodes.get_mut(&ino) {
            kept.entries = Some(Vec::new());
        }
        match walked.lost.len() {
            0 => self.note_inode(ino, "tree of its entries rewritten", false),
            n => self.note_inode(
                ino,
                format!("entries in {n} nodes that cannot be read"),
                true,
            ),
        }
    }

    /// An inode's attributes; `None`: they cannot be read.
    pub(super) fn read_xattrs(&mut self, inode: &Inode, claim: bool) -> Option<Attributes> {
        let bytes = inode.xattr_length();
        let addr = BlockAddr::from_raw(inode.xattr_addr);
        if inode.xattr_bytes == 0 && addr.is_none() {
            return Some(Attributes::default());
        }
        if bytes == 0 || addr.is_none() || bytes > XATTR_TOTAL_BYTES_MAX + XattrHeader::BYTES {
            return None;
        }
        let blocks = bytes.div_ceil(BLOCK_BYTES);
        let mut runs = vec![(addr, blocks as u64)];
        let mut places: Vec<BlockAddr> = (0..blocks as u64).map(|n| addr.plus(n)).collect();
        if inode.xattr_scattered() {
            let mut list = [0; BLOCK_BYTES];
            let there = self.space.is_inside(addr, 1) && self.media.load(addr.index(), &mut list);
            let named = xattr::decode_list(&list, Ino(inode.ino), addr).ok();
            places = named.filter(|n| there && n.len() == blocks)?;
            runs = vec![(addr, 1)];
            runs.extend(places.iter().map(|&p| (p, 1)));
        }
        let mut buffer = vec![0; bytes];
        for (&place, part) in places.iter().zip(buffer.chunks_mut(BLOCK_BYTES)) {
            let nvm = place.tier() == Some(TierId::Nvm) && self.space.is_inside(place, 1);
            if !nvm || !self.media.load_run(place.index(), part) {
                return None;
            }
        }
        let attrs = xattr::decode(&buffer, Ino(inode.ino), places[0]).ok()?;
        if xattr::encoded_bytes(&attrs) != bytes {
            return None;
        }
        let wrong = acl::check(&self.sb, inode, &attrs).err();
        let goes = matches!(wrong, Some(Wrong::List(_)));
        let free = !claim
            || goes
            || runs
                .iter()
                .all(|&(addr, len)| self.space.claim_run(addr, len));
        free.then_some(Attributes { runs, wrong })
    }

    /// Claims the blocks of data of a file or link.
    fn claim_data(&mut self, ino: u64) {
        let Some(inode) = self.inode_of(ino).filter(|i| !i.is_dir()) else {
            return;
        };
        let mut found = Found::default();
        if inode.has_content() {
            for tier in TierId::ALL {
                self.read_extents(&inode, tier, &mut found);
            }
        } else if inode.root.iter().any(|r| r.kind != root_kind::EMPTY) {
            found.altered = true;
            self.note_inode(ino, "blocks of an inode that has no content", true);
        }
        let begins = |e: &Extent| e.file_block == 0 && !e.is_unwritten();
        let copied = found.shared.iter().chain(&found.tail);
        let target = found.tiers.iter().flatten().chain(copied);
        let legal = (1..=SYMLINK_BYTES_MAX as u64).contains(&inode.size);
        if inode.is_symlink() && !(legal && target.into_iter().any(begins)) {
            self.inodes.remove(&ino);
            self.forget_slot(ino);
            self.note_inode(ino, "a symbolic link without its target", true);
            return;
        }
        if inode.is_symlink()
            && let Some(damaged) = self.damaged_target(&inode, &found)
        {
            self.inodes.remove(&ino);
            self.forget_slot(ino);
            let damaged = damaged.escape_ascii();
            let what = format!("a symbolic link whose target is damaged: it reads \"{damaged}\"");
            self.note_inode(ino, what, true);
            return;
        }
        self.resolve_content(&inode, found);
    }

    /// The target of a symbolic link, where it is in NVM and not what was written.
    fn damaged_target(&self, inode: &Inode, found: &Found) -> Option<Vec<u8>> {
        let in_nvm = found.tiers[TierId::Nvm as usize].iter();
        let mut copied = in_nvm.chain(&found.shared).chain(&found.tail);
        let first = copied.find(|e| e.file_block == 0)?;
        let mut target = vec![0; inode.size as usize];
        let at = BlockAddr::from_raw(first.addr).index();
        let read = self.media.load_run(at, &mut target);
        let bad = read && inode.check_target(&target).is_err();
        bad.then_some(target)
    }

    /// The slot of an inode that is given up is rewritten.
    fn forget_slot(&mut self, ino: u64) {
        self.slots_changed = true;
        self.slots
            .insert(ino / shale_format::limits::INODES_PER_BLOCK, 0);
    }

    fn resolve_content(&mut self, inode: &Inode, found: Found) {
        let eof = FileBlock::at_or_after(inode.size).0;
        let notes = self.notes.len();
        for lost in found.lost.iter().filter(|l| l.start < l.end.min(eof)) {
            let (first, last) = (lost.start, lost.end.min(eof) - 1);
            let what = format!("file blocks {first} to {last}: they read as zeros");
            self.note_inode(inode.ino, what, true);
        }
        let blocks = found.tiers.iter().flatten().map(|e| u64::from(e.len)).sum();
        if !found.altered && blocks == inode.blocks {
            return;
        }
        if found.altered && self.notes.len() == notes {
            self.note_inode(inode.ino, "extents rewritten", false);
        } else if !found.altered {
            self.note_inode(inode.ino, "count of blocks set right", false);
        }
        for part in &found.shared {
            self.shared.push((inode.ino, *part));
        }
        self.tails.extend(found.tail.map(|tail| (inode.ino, tail)));
        if let Some(kept) = self.inodes.get_mut(&inode.ino) {
            kept.changed = true;
            kept.inode.blocks = blocks;
            kept.extents = found.altered.then_some(found.tiers);
        }
    }

    /// The extents in one root, as far as they can be read, with the keys of their leaf.
    fn extents_in(
        &mut self,
        inode: &Inode,
        root: &ExtentRoot,
        found: &mut Found,
    ) -> Vec<(Extent, bool)> {
        let mut all = Vec::new();
        match root.kind {
            root_kind::EMPTY => {}
            root_kind::DIRECT => all.push((direct(root), true)),
            root_kind::TREE => {
                let mut leaf = |block: &_, header: &_, keys: &Range<u64>| {
                    all.extend(extents_of(block, header).map(|e| {
                        let end = e.file_block.saturating_add(e.len.into());
                        (e, e.file_block >= keys.start && end <= keys.end)
                    }));
                };
                let (owner, kind) = (Ino(inode.ino), TreeKind::Extents);
                let walked = self.walk(root, owner, kind, Pass::Again, &mut leaf);
                found.altered |= !walked.is_whole(root);
                found.lost.extend(walked.lost);
            }
            _ => {
                found.altered = true;
                found.lost.push(0..u64::MAX);
            }
        }
        all
    }

    fn read_extents(&mut self, inode: &Inode, tier: TierId, found: &mut Found) {
        let root = inode.root[tier as usize];
        let mut end = 0;
        for (mut e, in_keys) in self.extents_in(inode, &root, found) {
            let addr = BlockAddr::from_raw(e.addr);
            found.altered |= e.flags & !UNWRITTEN != 0 || !in_keys;
            e.flags &= UNWRITTEN;
            if e.file_block < BLOCK_END && u64::from(e.len) > BLOCK_END - e.file_block {
                e.len = (BLOCK_END - e.file_block) as u32;
                found.altered = true;
            }
            let last = e.file_block.checked_add(e.len.into());
            let legal = e.len > 0
                && last.is_some_and(|last| last <= BLOCK_END)
                && e.file_block >= end
                && addr.tier() == Some(tier)
                && self.space.is_inside(addr, e.len.into())
                && (tier == TierId::Nvm || self.space.claim_below(addr, e.len.into()));
            if !legal {
                found.altered = true;
                found.lost.push(e.file_block..last.unwrap_or(u64::MAX));
                continue;
            }
            end = e.end().0;
            if tier == TierId::Nvm {
                self.claim_extent(&e, inode.size, found);
            } else {
                found.tiers[tier as usize].push(e);
            }
        }
    }

    /// Takes an extent of a file of `size` bytes in: what lies behind the end has to be zeros.
    fn claim_extent(&mut self, e: &Extent, size: u64, found: &mut Found) {
        let eof = FileBlock::at_or_after(size).0;
        let mut e = *e;
        if e.end().0 > eof && !e.is_unwritten() && self.has_data_behind(&e, eof) {
            found.altered = true;
            let len = eof.saturating_sub(e.file_block);
            if len == 0 {
                return;
            }
            e.len = len as u32;
        }
        if !self.has_data_in_tail(&e, size) {
            return self.claim_part(&e, found);
        }
        // That block is copied without it.
        found.altered = true;
        let part = |from: u64, to: u64| Extent {
            file_block: from,
            addr: e.addr_of(FileBlock(from)).raw(),
            len: (to - from) as u32,
            flags: e.flags,
        };
        let last = size / BLOCK_BYTES as u64;
        found.tail = Some(part(last, last + 1));
        for (from, to) in [(e.file_block, last), (last + 1, e.end().0)] {
            if from < to {
                self.claim_part(&part(from, to), found);
            }
        }
    }

    /// Takes an extent in as far as its blocks are nobody else's.
    fn claim_part(&mut self, e: &Extent, found: &mut Found) {
        let e = *e;
        let len = u64::from(e.len);
        let addr = BlockAddr::from_raw(e.addr);
        if self.space.claim_run(addr, len) {
            found.tiers[0].push(e);
            return;
        }
        found.altered = true;
        for n in 0..len {
            let one = Extent {
                file_block: e.file_block + n,
                addr: addr.plus(n).raw(),
                len: 1,
                flags: e.flags,
            };
            let block = addr.index() + n;
            if self.space.claim(block) {
                push(&mut found.tiers[0], one);
            } else if e.is_unwritten() {
                // It reads as zeros without a block, too.
            } else if self.space.is_node(BlockAddr::nvm(block)) || self.too_much_shared(found) {
                found.lost.push(one.file_block..one.file_block + 1);
            } else {
                push(&mut found.shared, one);
            }
        }
    }

    /// Whether so much has two owners that no more of it is copied.
    fn too_much_shared(&self, found: &Found) -> bool {
        let data = self.space.data();
        (self.shared.len() + found.shared.len()) as u64 > data.end - data.start
    }

    /// Whether there is anything but zeros behind the end of the file.
    fn has_data_behind(&self, e: &Extent, eof: u64) -> bool {
        let mut block = [0; BLOCK_BYTES];
        let first = e.file_block.max(eof);
        (first..e.end().0).any(|fb| {
            let at = e.addr_of(FileBlock(fb)).index();
            self.media.load(at, &mut block) && block.iter().any(|&b| b != 0)
        })
    }

    /// Whether there is anything but zeros behind the end of the file in its last block.
    fn has_data_in_tail(&self, e: &Extent, size: u64) -> bool {
        let used = (size % BLOCK_BYTES as u64) as usize;
        let last = size / BLOCK_BYTES as u64;
        if used == 0 || e.is_unwritten() || !(e.file_block..e.end().0).contains(&last) {
            return false;
        }
        let mut block = [0; BLOCK_BYTES];
        let at = e.addr_of(FileBlock(last)).index();
        self.media.load(at, &mut block) && block[used..].iter().any(|&b| b != 0)
    }

    /// Gives those who share blocks with others copies of their own, and files whose last block
    /// holds something behind the end a copy without it.
    pub(super) fn copy_shared(
        &mut self,
        rebuild: &shale_volume::Rebuild,
    ) -> shale_pool::error::Result<()> {
        let tails = std::mem::take(&mut self.tails);
        for (ino, tail) in &tails {
            let end = self
                .inode_of(*ino)
                .map_or(0, |i| i.size % BLOCK_BYTES as u64);
            if self.copy_part(rebuild, (*ino, *tail), end as usize)? > 0 {
                let what = "bytes behind the end of the file made zeros";
                self.note_inode(*ino, what, false);
            }
        }
        for (ino, part) in std::mem::take(&mut self.shared) {
            let copied = self.copy_part(rebuild, (ino, part), BLOCK_BYTES)?;
            let what = format!("{copied} blocks copied that another one has, too");
            self.note_inode(ino, what, false);
        }
        Ok(())
    }

    /// Copies the blocks of an extent, of each the first `bytes` bytes; how many there was
    /// space for.
    fn copy_part(
        &mut self,
        rebuild: &shale_volume::Rebuild,
        (ino, part): (u64, Extent),
        bytes: usize,
    ) -> shale_pool::error::Result<u64> {
        let mut copied = 0;
        for n in 0..u64::from(part.len) {
            let Some(to) = self.space.take() else {
                let what = format!("file block {}: no space for a copy", part.file_block + n);
                self.note_inode(ino, what, true);
                continue;
            };
            rebuild.copy(BlockAddr::from_raw(part.addr).plus(n), to, bytes)?;
            let one = Extent {
                file_block: part.file_block + n,
                addr: to.raw(),
                len: 1,
                flags: 0,
            };
            copied += 1;
            if let Some(KeptInode {
                inode,
                extents: Some(tiers),
                ..
            }) = self.inodes.get_mut(&ino)
            {
                tiers[0].push(one);
                inode.blocks += 1;
            }
        }
        Ok(copied)
    }
}

/// Adds an extent, joined with the last one if they adjoin.
pub(super) fn push(all: &mut Vec<Extent>, e: Extent) {
    if let Some(last) = all.last_mut()
        && last.end() == e.start()
        && last.flags == e.flags
        && BlockAddr::from_raw(last.addr).plus(last.len.into()).raw() == e.addr
        && let Some(len) = last.len.checked_add(e.len)
    {
        last.len = len;
        return;
    }
    all.push(e);
}
