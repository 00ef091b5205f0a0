//! The blocks of an inode: its extents, and what they come to.

use super::block_refs::{Claimed, Claims, Owner, Part};
use super::media::Media;
use super::report::{Findings, Object};
use super::tree::{self, Leaf, Tree, Walked};
use shale_format::extent::{Extent, ExtentRoot, UNWRITTEN, root_kind};
use shale_format::inode::Inode;
use shale_format::limits::{BLOCK_BYTES, FILE_BYTES_MAX};
use shale_format::tree::TreeKind;
use shale_format::{BlockAddr, FileBlock, Ino, TierId};

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
