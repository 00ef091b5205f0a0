//! Where each structure of a volume lies.

use std::ops::ControlFlow;

use shale_format::inode::{Inode, slot_of};
use shale_format::limits::{BLOCK_BYTES, INODE_BYTES, LOG_SLOTS};
use shale_format::log::LogSlot;
use shale_format::superblock::{LOG_TABLE_BLOCK, ROOT_BLOCK, RootBlock, Superblock};
use shale_format::{FileBlock, Ino, TierId};
use shale_volume::{Mapping, View};

use crate::volume::stage::Checked;

/// A kind of structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub enum Kind {
    /// The first superblock.
    First,
    /// The second superblock.
    Second,
    /// The root block.
    Root,
    /// A slot of the log table.
    LogSlot,
    /// A block of the bitmap.
    Bitmap,
    /// The slot of an inode.
    Inode,
    /// A node of a file's extents.
    Extents,
    /// A node of a directory's entries.
    Entries,
    /// Extended attributes.
    Attributes,
    /// The target of a symbolic link.
    Target,
}

/// One structure.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Of which kind.
    pub kind: Kind,
    /// First byte in the tier.
    pub at: u64,
    /// Bytes that its checksum covers.
    pub bytes: u64,
    /// Whose it is; 0: the volume's.
    pub ino: u64,
}

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Part {
    /// Its bytes in an image.
    pub fn of<'i>(&self, image: &'i [u8]) -> &'i [u8] {
        &image[self.at as usize..][..self.bytes as usize]
    }

    /// The start must be refused while it is damaged: there is no second copy, and without it no
    /// block can be given out. What the refusal has to name.
    pub fn refused_as(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Root => Some("root block"),
            Kind::LogSlot => Some("log slot"),
            Kind::Bitmap => Some("bitmap"),
            // Every removal of an open file needs it.
            Kind::Inode if self.ino == Ino::ORPHANS.0 => Some("inode at 2"),
            _ => None,
        }
    }
}

/// All structures of a volume.
///
/// # Errors
/// It is damaged.
pub fn parts(view: &View) -> Checked<Vec<Part>> {
    let sb = view.superblock();
    let part = |kind, at, bytes: usize| Part {
        kind,
        at,
        bytes: bytes as u64,
        ino: 0,
    };
    let mut parts = vec![
        part(Kind::First, 0, Superblock::BYTES),
        part(Kind::Second, sb.second_block() * BLOCK, Superblock::BYTES),
        part(Kind::Root, ROOT_BLOCK * BLOCK, RootBlock::BYTES),
    ];
    for n in [0, LOG_SLOTS as usize / 2, LOG_SLOTS as usize - 1] {
        let at = LOG_TABLE_BLOCK * BLOCK + (n * LogSlot::BYTES) as u64;
        parts.push(part(Kind::LogSlot, at, LogSlot::BYTES));
    }
    for n in 0..sb.bitmap_blocks {
        parts.push(part(
            Kind::Bitmap,
            (sb.bitmap_block + n) * BLOCK,
            BLOCK_BYTES,
        ));
    }
    let root = view.root().map_err(|e| e.to_string())?;
    let mut inodes = Vec::new();
    view.inodes(&mut |_, inode| {
        inodes.extend(inode.ok());
        ControlFlow::Continue(())
    })
    .map_err(|e| e.to_string())?;
    for inode in &inodes {
        if let Ok(Mapping::Data { addr, .. }) =
            view.map_block(&root.inode_file, slot_of(Ino(inode.ino)).0)
        {
            parts.push(Part {
                kind: Kind::Inode,
                at: addr.byte() + slot_of(Ino(inode.ino)).1 as u64,
                bytes: INODE_BYTES as u64,
                ino: inode.ino,
            });
        }
        parts.extend(of_inode(view, inode)?);
    }
    Ok(parts)
}

fn of_inode(view: &View, inode: &Inode) -> Checked<Vec<Part>> {
    let mut parts = Vec::new();
    let kind = match inode.is_dir() {
        true => Kind::Entries,
        false => Kind::Extents,
    };
    let mut add = |kind, at, bytes| {
        parts.push(Part {
            kind,
            at,
            bytes,
            ino: inode.ino,
        });
    };
    let _ = view.nodes(inode, &mut |node, _| {
        if node.addr.tier() == Some(TierId::Nvm) {
            add(kind, node.addr.byte(), BLOCK);
        }
        ControlFlow::Continue(())
    });
    if inode.is_symlink()
        && let Ok(Mapping::Data { addr, .. }) = view.map_block(inode, FileBlock(0))
        && addr.tier() == Some(TierId::Nvm)
    {
        add(Kind::Target, addr.byte(), inode.size);
    }
    let runs = view.xattr_runs(inode).map_err(|e| e.to_string())?;
    if let Some(run) = runs.first() {
        // What follows the attributes in their last block counts for nothing.
        let bytes = (inode.xattr_length() as u64).min(run.len * BLOCK);
        add(Kind::Attributes, run.addr.byte(), bytes);
    }
    Ok(parts)
}
