//! Inodes: their fields, their blocks, their attributes.

use super::Checker;
use super::acl::{self, Wrong};
use super::block_refs::{Claimed, Claims, Owner, Part};
use super::media::Media;
use super::report::{Findings, Object, Severity};
use super::tree::{self, Leaf, Tree, Walked};
use shale_format::dirent::kind_of_mode;
use shale_format::extent::{Extent, ExtentRoot, UNWRITTEN, root_kind};
use shale_format::inode::{Inode, flag};
use shale_format::limits::{
    BLOCK_BYTES, FILE_BYTES_MAX, LINKS_MAX, SYMLINK_BYTES_MAX, XATTR_TOTAL_BYTES_MAX,
};
use shale_format::tree::TreeKind;
use shale_format::xattr::{self, XattrHeader, Xattrs};
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_volume::{VolumeError, check_target};

const NS_PER_S: u32 = 1_000_000_000;
/// File block behind the last one that a file can have.
const BLOCK_END: u64 = FILE_BYTES_MAX / BLOCK_BYTES as u64;

/// Types as in `d_type`.
pub(crate) mod kind {
    pub const DIRECTORY: u8 = 4;
    pub const FILE: u8 = 8;
    pub const SYMLINK: u8 = 10;
    /// Pipe, character device, directory, block device, file, link, socket.
    pub const ALL: [u8; 7] = [1, 2, DIRECTORY, 6, FILE, SYMLINK, 12];
}

/// What the extents of an inode come to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mapped {
    pub(super) blocks: u64,
    pub(super) extents: u64,
    pub(super) nodes: u64,
    /// Behind the last file block that is mapped.
    pub(super) end: u64,
    pub(super) broken: bool,
    /// Where file block 0 is, if it holds data.
    pub(super) first: Option<BlockAddr>,
    /// Of the nodes, leaves in ssd and hdd.
    pub(super) below: [u64; 2],
}

impl Mapped {
    fn add(&mut self, walked: &Walked) {
        self.nodes += walked.nodes;
        self.broken |= walked.broken;
        let counts = self.below.iter_mut().zip(walked.below);
        counts.for_each(|(count, n)| *count += n);
    }
}

/// One inode whose extents are walked.
struct Walk<'a> {
    media: &'a Media,
    ino: u64,
    /// Bytes of the file.
    size: u64,
    /// File block behind the last one with bytes of the file.
    eof: u64,
    /// File block behind the last one that there can be.
    limit: u64,
    tier: TierId,
    /// Behind the last extent.
    end: u64,
    mapped: Mapped,
}

impl Walk<'_> {
    fn extent(
        &mut self,
        e: &Extent,
        at: Option<u64>,
        keys: &std::ops::Range<u64>,
        claims: &mut Claims,
        findings: &mut Findings,
    ) -> Claimed {
        let owner = Owner {
            ino: self.ino,
            part: Part::Data,
        };
        let object = owner.object();
        let addr = BlockAddr::from_raw(e.addr);
        let (Some(end), true) = (e.file_block.checked_add(e.len.into()), e.len > 0) else {
            let len = format!("{} from file block {}", e.len, e.file_block);
            findings.error(object, at, "extent of no length", ("1 or more blocks", len));
            return Claimed::Outside;
        };
        if e.flags & !UNWRITTEN != 0 {
            findings.error(object, at, "extent with unknown flags", ("0 or 1", e.flags));
        }
        if addr.tier() != Some(self.tier) {
            let tiers = (format!("{:?}", self.tier), format!("{addr:?}"));
            findings.error(object, at, "extent in the tree of another tier", tiers);
        }
        if end > self.limit {
            findings.error(
                object,
                at,
                "extent beyond the largest file",
                (self.limit, end),
            );
        }
        if e.file_block < self.end {
            let what = "extents overlap or are out of order";
            findings.error(
                object,
                at,
                what,
                (format!("{} or more", self.end), e.file_block),
            );
        } else if e.file_block < keys.start || end > keys.end {
            let what = "extent outside the keys of its node";
            let range = format!("{} to {}", keys.start, keys.end);
            findings.error(object, at, what, (range, e.file_block));
        }
        self.end = self.end.max(end);
        self.mapped.end = self.mapped.end.max(end);
        self.mapped.extents += 1;
        self.mapped.blocks = self.mapped.blocks.saturating_add(e.len.into());
        if e.file_block == 0 && !e.is_unwritten() {
            self.mapped.first = self.mapped.first.or(Some(addr));
        }
        let claimed = claims.claim(addr, e.len.into(), owner, findings);
        if claimed == Claimed::Whole && end > self.eof && !e.is_unwritten() {
            self.beyond(e, addr, object, findings);
        }
        if claimed == Claimed::Whole && !e.is_unwritten() {
            self.rest(e, addr, object, findings);
        }
        claimed
    }

    /// Bytes of the last block behind the end of the file are zeros: a call that makes the file
    /// longer relies on it.
    fn rest(&self, e: &Extent, addr: BlockAddr, object: Object, findings: &mut Findings) {
        let used = (self.size % BLOCK_BYTES as u64) as usize;
        let last = self.size / BLOCK_BYTES as u64;
        let inside = (e.file_block..e.end().0).contains(&last);
        if findings.quiet || addr.tier() != Some(TierId::Nvm) || used == 0 || !inside {
            return;
        }
        let at = addr.index() + (last - e.file_block);
        let mut block = [0; BLOCK_BYTES];
        if !self.media.load(at, &mut block) {
            return;
        }
        if let Some(n) = block[used..].iter().position(|&b| b != 0) {
            let what = "data behind the end of the file";
            let byte = last * BLOCK_BYTES as u64 + (used + n) as u64;
            let expected = format!("zeros from byte {}", self.size);
            findings.error(object, Some(at), what, (expected, format!("byte {byte}")));
        }
    }

    /// Blocks behind the end of the file that read as zeros are harmless. Anything else
    /// would come to light when the file grows.
    fn beyond(&self, e: &Extent, addr: BlockAddr, object: Object, findings: &mut Findings) {
        if findings.quiet || addr.tier() != Some(TierId::Nvm) {
            return;
        }
        let mut block = [0; BLOCK_BYTES];
        for fb in e.file_block.max(self.eof)..e.end().0 {
            let at = addr.index() + (fb - e.file_block);
            if self.media.load(at, &mut block) && block.iter().any(|&b| b != 0) {
                let what = "data behind the end of the file";
                let expected = format!("fewer than {} blocks", self.eof);
                findings.error(
                    object,
                    Some(at),
                    what,
                    (expected, format!("file block {fb}")),
                );
                return;
            }
        }
    }
}

/// Walks the extents of an inode in all tiers and calls `each` with those that are
/// in order and whose blocks are its own. Its leaves may lie below NVM, or may not.
pub(super) fn extents(
    media: &Media,
    claims: &mut Claims,
    findings: &mut Findings,
    (inode, txid, may_lie_below): (&Inode, u64, bool),
    each: &mut dyn FnMut(&Extent),
) -> Mapped {
    let limit = match inode.ino {
        0 => (Ino::MAX.0 + 1) / shale_format::limits::INODES_PER_BLOCK,
        _ => BLOCK_END,
    };
    let mut walk = Walk {
        media,
        ino: inode.ino,
        size: inode.size,
        eof: FileBlock::at_or_after(inode.size).0,
        limit,
        tier: TierId::Nvm,
        end: 0,
        mapped: Mapped::default(),
    };
    for (tier, root) in TierId::ALL.into_iter().zip(&inode.root) {
        (walk.tier, walk.end) = (tier, 0);
        let mut one = |e: &Extent, at, keys: &_, claims: &mut Claims, findings: &mut Findings| {
            let in_order = e.file_block >= walk.end;
            let claimed = walk.extent(e, at, keys, claims, findings);
            if in_order && claimed == Claimed::Whole {
                each(e);
            }
        };
        let walked = match root.kind {
            root_kind::EMPTY => Walked::default(),
            root_kind::DIRECT => {
                one(&direct(root), None, &(0..u64::MAX), claims, findings);
                Walked::default()
            }
            root_kind::TREE => {
                let tree = Tree {
                    root,
                    owner: Ino(inode.ino),
                    kind: TreeKind::Extents,
                    txid,
                    may_lie_below,
                };
                let mut leaf = |leaf: &Leaf<'_>, claims: &mut Claims, findings: &mut Findings| {
                    for i in 0..usize::from(leaf.header.count) {
                        if let Some(e) = tree::entry::<Extent>(leaf.block, i) {
                            one(&e, Some(leaf.at), &leaf.keys, claims, findings);
                        }
                    }
                };
                let walked = tree::walk(media, claims, findings, &tree, &mut leaf);
                check_root(root, &walked, Object::of(inode.ino), findings);
                walked
            }
            other => {
                let object = Object::of(inode.ino);
                findings.error(object, None, "kind of an extent root", ("0, 1 or 2", other));
                Walked {
                    broken: true,
                    ..Walked::default()
                }
            }
        };
        walk.mapped.add(&walked);
    }
    walk.mapped
}

/// The extent in a direct root.
fn direct(root: &ExtentRoot) -> Extent {
    Extent {
        file_block: root.file_block,
        addr: root.addr,
        len: root.len,
        flags: root.flags.into(),
    }
}

/// The root of a tree counts its nodes, and those below NVM.
pub(super) fn check_root(
    root: &ExtentRoot,
    walked: &Walked,
    object: Object,
    findings: &mut Findings,
) {
    if !walked.broken {
        findings.equal(object, "count of tree nodes", walked.nodes, root.file_block);
        let below: u64 = walked.below.iter().sum();
        findings.equal(
            object,
            "count of leaves below NVM",
            below,
            u64::from(root.len),
        );
    }
}

impl Object {
    /// What has this inode number.
    pub(super) fn of(ino: u64) -> Object {
        Owner {
            ino,
            part: Part::Data,
        }
        .object()
    }
}

impl Checker<'_> {
    /// Checks an inode in use and all that it refers to.
    pub(super) fn check_inode(&mut self, inode: &Inode) {
        let object = Object::Inode(inode.ino);
        self.check_fields(inode);
        self.check_xattrs(inode);
        if inode.is_dir() {
            self.check_dir(inode);
            return;
        }
        let mapped = extents(
            &self.media,
            &mut self.claims,
            &mut self.findings,
            (inode, self.root.txid, self.sb.has_extents_below()),
            &mut |_| (),
        );
        self.totals.extents += mapped.extents;
        self.totals.nodes += mapped.nodes;
        if !self.findings.quiet {
            let counts = self.extent_leaves_below.iter_mut().zip(mapped.below);
            counts.for_each(|(count, n)| *count += n);
        }
        self.extents_missing |= mapped.broken;
        let f = &mut self.findings;
        if !mapped.broken {
            f.equal(object, "count of blocks", mapped.blocks, inode.blocks);
        }
        if !inode.has_content() && mapped.extents > 0 {
            f.error(
                object,
                None,
                "blocks of an inode that has no content",
                (0, mapped.blocks),
            );
        }
        match mapped.first {
            _ if !inode.is_symlink() => {}
            Some(addr) => self.check_target(inode, addr),
            None if mapped.broken => {}
            None => f.error(object, None, "symbolic link without its target", ("", "")),
        }
    }

    /// The target of a symbolic link, in NVM: one below has the checksum of its block, which `scrub` verifies.
    fn check_target(&mut self, inode: &Inode, addr: BlockAddr) {
        let mut block = [0; BLOCK_BYTES];
        let in_nvm = addr.tier() == Some(TierId::Nvm);
        let target = block.get_mut(..inode.size as usize);
        let Some(target) = target.filter(|_| in_nvm && !self.findings.quiet) else {
            return;
        };
        if !self.media.load_run(addr.index(), target) {
            return;
        }
        if let Err(VolumeError::Format(e)) = check_target(inode, target) {
            let object = Object::Inode(inode.ino);
            self.findings.undecodable(object, Some(addr.index()), &e);
        }
    }

    fn check_fields(&mut self, inode: &Inode) {
        let (f, object) = (&mut self.findings, Object::Inode(inode.ino));
        if !kind::ALL.contains(&kind_of_mode(inode.mode)) || inode.mode > 0o177_777 {
            f.error(
                object,
                None,
                "type of an inode",
                ("", format!("mode {:o}", inode.mode)),
            );
        }
        if (inode.ino == Ino::ROOT.0 || inode.ino == Ino::ORPHANS.0) && !inode.is_dir() {
            let found = format!("mode {:o}", inode.mode);
            f.error(object, None, "type of an inode", ("a directory", found));
        }
        if inode.time_ns.iter().any(|&ns| ns >= NS_PER_S) {
            let found = format!("{:?}", inode.time_ns);
            f.error(
                object,
                None,
                "nanoseconds of a time",
                ("0 to 999999999", found),
            );
        }
        if inode.txid > self.root.txid {
            let what = "inode of a batch that never was";
            f.error(
                object,
                None,
                what,
                (format!("{} or less", self.root.txid), inode.txid),
            );
        }
        if inode.flags & !flag::ALL != 0 {
            f.error(
                object,
                None,
                "unknown flags of an inode",
                ("0 to 127", inode.flags),
            );
        }
        if inode.flags & flag::CHANGEABLE != 0 && !self.sb.has_inode_flags() {
            let what = "inode with flags in a volume that has none";
            f.error(object, None, what, (0, inode.flags & flag::CHANGEABLE));
        }
        let sizes = match kind_of_mode(inode.mode) {
            kind::FILE => 0..=FILE_BYTES_MAX,
            kind::SYMLINK => 1..=SYMLINK_BYTES_MAX as u64,
            kind::DIRECTORY => 0..=u64::MAX,
            _ => 0..=0,
        };
        if !sizes.contains(&inode.size) {
            let range = format!("{} to {}", sizes.start(), sizes.end());
            f.error(object, None, "size of an inode", (range, inode.size));
        }
        if !inode.is_dir() && inode.nlink > LINKS_MAX {
            let what = "more names than an inode can have";
            f.note(
                Severity::Warning,
                object,
                None,
                what,
                (LINKS_MAX, inode.nlink),
            );
        }
        if !inode.is_dir() {
            f.equal(object, "parent of what is no directory", 0, inode.parent);
        }
    }

    fn check_xattrs(&mut self, inode: &Inode) {
        let object = Object::Inode(inode.ino);
        let bytes = inode.xattr_length();
        let addr = BlockAddr::from_raw(inode.xattr_addr);
        if (bytes == 0) != addr.is_none() {
            let what = "extended attributes with a place and no bytes, or bytes and no place";
            self.findings.error(
                object,
                None,
                what,
                ("", format!("{bytes} bytes at {addr:?}")),
            );
            return;
        }
        if bytes == 0 {
            return;
        }
        if bytes > XATTR_TOTAL_BYTES_MAX + XattrHeader::BYTES {
            let what = "bytes of extended attributes";
            self.findings
                .error(object, None, what, (XATTR_TOTAL_BYTES_MAX, bytes));
            return;
        }
        let (places, part_bytes) = match inode.xattr_scattered() {
            false => (vec![addr], bytes),
            true => {
                let blocks = bytes.div_ceil(BLOCK_BYTES);
                let listed = self.listed_xattrs(inode, addr, blocks);
                (listed.unwrap_or_default(), BLOCK_BYTES)
            }
        };
        let mut buffer = vec![0; bytes];
        let mut whole = !places.is_empty();
        for (&place, part) in places.iter().zip(buffer.chunks_mut(part_bytes)) {
            whole &= self.claim_xattrs(inode, place, part);
        }
        if !whole || self.findings.quiet {
            return;
        }
        match xattr::decode(&buffer, Ino(inode.ino), places[0]) {
            Err(e) => {
                let at = Some(places[0].index());
                self.findings.undecodable(object, at, &e);
            }
            Ok(attrs) => {
                let what = "bytes of extended attributes";
                let found = xattr::encoded_bytes(&attrs);
                self.findings.equal(object, what, bytes, found);
                self.check_acls(inode, &attrs);
            }
        }
    }

    fn check_acls(&mut self, inode: &Inode, attrs: &Xattrs) {
        let (f, object) = (&mut self.findings, Object::Inode(inode.ino));
        match acl::check(&self.sb, inode, attrs) {
            Ok(()) => {}
            Err(Wrong::List(why)) => f.error(object, None, "access control list", ("", why)),
            Err(Wrong::Mode { expected, found }) => {
                let what = "mode beside an access control list";
                let modes = (format!("{expected:o}"), format!("{found:o}"));
                f.error(object, None, what, modes);
            }
        }
    }

    /// The blocks that the list at `addr` names.
    fn listed_xattrs(
        &mut self,
        inode: &Inode,
        addr: BlockAddr,
        blocks: usize,
    ) -> Option<Vec<BlockAddr>> {
        let object = Object::Inode(inode.ino);
        let mut block = [0; BLOCK_BYTES];
        if !self.claim_xattrs(inode, addr, &mut block) {
            return None;
        }
        match xattr::decode_list(&block, Ino(inode.ino), addr) {
            Ok(places) if places.len() == blocks => Some(places),
            Ok(places) => {
                let what = "blocks in a list of extended attributes";
                self.findings.equal(object, what, blocks, places.len());
                None
            }
            Err(e) => {
                self.findings.undecodable(object, Some(addr.index()), &e);
                None
            }
        }
    }

    /// Claims a run of blocks of extended attributes and reads what of it counts; `false`:
    /// there is nothing to look at.
    fn claim_xattrs(&mut self, inode: &Inode, addr: BlockAddr, into: &mut [u8]) -> bool {
        let owner = Owner {
            ino: inode.ino,
            part: Part::Xattrs,
        };
        let blocks = into.len().div_ceil(BLOCK_BYTES) as u64;
        let claimed = self.claims.claim(addr, blocks, owner, &mut self.findings);
        if claimed == Claimed::Outside {
            return false;
        }
        let found = addr.tier() == Some(TierId::Nvm) && self.media.load_run(addr.index(), into);
        if !found && !self.findings.quiet {
            self.findings.error(
                Object::Inode(inode.ino),
                Some(addr.index()),
                "extended attributes in a tier below",
                ("nvm", format!("{addr:?}")),
            );
        }
        found
    }
}
