//! Extended attributes, read: one run of blocks; single blocks and a list of them where no run was free that is long
//! enough.

use crate::error::{Result, VolumeError};
use crate::media::{Block, NvmRegion};
use shale_allocation::Run;
use shale_format::inode::Inode;
use shale_format::limits::{BLOCK_BYTES, XATTR_TOTAL_BYTES_MAX};
use shale_format::xattr::{self, XattrHeader, Xattrs};
use shale_format::{BlockAddr, Ino};

/// Where the attributes of an inode lie.
#[derive(Default)]
pub(crate) struct Place {
    /// Their blocks in order.
    pub(crate) blocks: Vec<BlockAddr>,
    /// The block with the list of those.
    pub(crate) list: Option<BlockAddr>,
}

impl Place {
    fn of(media: &NvmRegion, inode: &Inode) -> Result<Place> {
        let bytes = inode.xattr_length();
        if bytes > XATTR_TOTAL_BYTES_MAX + XattrHeader::BYTES {
            return Err(too_long(inode, bytes));
        }
        let blocks = bytes.div_ceil(BLOCK_BYTES);
        let addr = BlockAddr::from_raw(inode.xattr_addr);
        if !inode.xattr_scattered() {
            return Ok(Place {
                blocks: (0..blocks as u64).map(|n| addr.plus(n)).collect(),
                list: None,
            });
        }
        let mut block: Block = [0; BLOCK_BYTES];
        media.load_block(addr, &mut block)?;
        let named = xattr::decode_list(&block, Ino(inode.ino), addr)?;
        if named.len() != blocks {
            return Err(VolumeError::Damaged {
                what: "number of blocks of extended attributes of inode",
                at: inode.ino,
                expected: blocks as u64,
                found: named.len() as u64,
            });
        }
        Ok(Place {
            blocks: named,
            list: Some(addr),
        })
    }

    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for &addr in self.list.iter().chain(&self.blocks) {
            match runs.last_mut() {
                Some(last) if last.addr.plus(last.len) == addr => last.len += 1,
                _ => runs.push(Run { addr, len: 1 }),
            }
        }
        runs
    }
}

/// The blocks that hold the attributes of an inode, a list of them included.
pub(crate) fn runs_of(media: &NvmRegion, inode: &Inode) -> Result<Vec<Run>> {
    Ok(Place::of(media, inode)?.runs())
}

/// Reads the attributes of an inode.
pub(crate) fn load(media: &NvmRegion, inode: &Inode) -> Result<Xattrs> {
    let bytes = inode.xattr_length();
    if bytes == 0 {
        return Ok(Xattrs::new());
    }
    let place = Place::of(media, inode)?;
    let mut buffer = vec![0; bytes];
    for (&addr, part) in place.blocks.iter().zip(buffer.chunks_mut(BLOCK_BYTES)) {
        media.load(addr, 0, part)?;
    }
    Ok(xattr::decode(&buffer, Ino(inode.ino), place.blocks[0])?)
}

/// The error of attributes that are longer than there can be.
pub(crate) fn too_long(inode: &Inode, bytes: usize) -> VolumeError {
    VolumeError::Damaged {
        what: "bytes of extended attributes of inode",
        at: inode.ino,
        expected: XATTR_TOTAL_BYTES_MAX as u64,
        found: bytes as u64,
    }
}
