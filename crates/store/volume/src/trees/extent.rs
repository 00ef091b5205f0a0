//! Extents by themselves: the one in a root, parts, neighbours that are joined, some put among others.

use crate::error::{Result, VolumeError};
use crate::trees::node::is_legal;
use shale_allocation::Run;
use shale_format::extent::{Extent, ExtentRoot, root_kind};
use shale_format::tree::NODE_BODY_BYTES;
use shale_format::{BlockAddr, FileBlock, Ino};
use std::ops::Range;

/// Extents that fit a leaf.
const EXTENTS_MAX: usize = NODE_BODY_BYTES / Extent::BYTES;

/// The extent in a direct root.
pub(crate) fn direct(root: &ExtentRoot) -> Extent {
    Extent {
        file_block: root.file_block,
        addr: root.addr,
        len: root.len,
        flags: root.flags.into(),
    }
}

/// The root that one extent is.
pub(crate) fn direct_root(e: &Extent) -> ExtentRoot {
    ExtentRoot {
        addr: e.addr,
        file_block: e.file_block,
        len: e.len,
        kind: root_kind::DIRECT,
        flags: e.flags as u8,
        level: 0,
    }
}

/// The part of an extent inside `range`.
pub(crate) fn clip(e: &Extent, range: &Range<u64>) -> Option<Extent> {
    let start = e.file_block.max(range.start);
    let end = e.end().0.min(range.end);
    (start < end).then(|| Extent {
        file_block: start,
        addr: e.addr_of(FileBlock(start)).raw(),
        len: (end - start) as u32,
        flags: e.flags,
    })
}

/// Both as one extent, if they adjoin.
pub(crate) fn joined(a: &Extent, b: &Extent) -> Option<Extent> {
    let fits = a.end() == b.start()
        && a.flags == b.flags
        && BlockAddr::from_raw(a.addr).plus(a.len.into()).raw() == b.addr;
    let len = a.len.checked_add(b.len)?;
    fits.then_some(Extent { len, ..*a })
}

/// The blocks of an extent.
pub(crate) fn run(e: &Extent) -> Run {
    Run {
        addr: BlockAddr::from_raw(e.addr),
        len: e.len.into(),
    }
}

/// The error of a range that cannot be changed so.
pub(crate) fn bad_range(range: &Range<u64>, why: &'static str) -> VolumeError {
    VolumeError::BadRange {
        from: range.start,
        to: range.end,
        why,
    }
}

/// A leaf's extents, and ascending ones that are put among them.
pub(crate) struct Merge<'a> {
    old: &'a [Extent],
    /// What is left of the old one that was cut.
    cut: Option<Extent>,
    merged: Vec<Extent>,
}

impl<'a> Merge<'a> {
    pub(crate) fn new(old: &'a [Extent]) -> Self {
        Merge {
            old,
            cut: None,
            merged: Vec::with_capacity(EXTENTS_MAX),
        }
    }

    /// Whether one more fits the leaf, however it cuts what is there.
    pub(crate) fn has_space(&self) -> bool {
        self.merged.len() + self.old.len() + usize::from(self.cut.is_some()) + 2 <= EXTENTS_MAX
    }

    /// The next old one.
    fn next(&mut self) -> Option<Extent> {
        self.cut.take().or_else(|| {
            let (first, rest) = self.old.split_first()?;
            self.old = rest;
            Some(*first)
        })
    }

    /// Puts `e` in; it lies behind all those before it.
    pub(crate) fn add(&mut self, e: &Extent) {
        let range = e.file_block..e.end().0;
        while let Some(old) = self.next() {
            if old.file_block >= range.end {
                self.cut = Some(old);
                break;
            }
            if let Some(left) = clip(&old, &(0..range.start)) {
                self.push(left);
            }
            self.cut = clip(&old, &(range.end..u64::MAX));
            if self.cut.is_some() {
                break;
            }
        }
        self.push(*e);
    }

    fn push(&mut self, e: Extent) {
        match self.merged.last_mut() {
            Some(last) => match joined(last, &e) {
                Some(both) => *last = both,
                None => self.merged.push(e),
            },
            None => self.merged.push(e),
        }
    }

    /// All of them.
    pub(crate) fn finish(mut self) -> Vec<Extent> {
        if let Some(cut) = self.cut.take() {
            self.push(cut);
        }
        if let Some((first, rest)) = self.old.split_first() {
            self.push(*first);
            self.merged.extend_from_slice(rest);
        }
        self.merged
    }
}

/// Checks an extent that came from an inode's root.
pub(crate) fn check_direct(e: &Extent, owner: Ino) -> Result<()> {
    if is_legal(e) {
        return Ok(());
    }
    Err(VolumeError::Damaged {
        what: "direct extent of inode",
        at: owner.0,
        expected: 1,
        found: e.len.into(),
    })
}
