//! Extended attributes: one run of blocks, rewritten with each change; single blocks
//! and a list of them where no run is free that is long enough.

use crate::allocation::space::Run;
use crate::error::{Result, VolumeError};
use crate::media::{Block, NvmRegion};
use crate::trees::tree::CowTrees;
use shale_format::inode::{Inode, XATTR_SCATTERED};
use shale_format::limits::{BLOCK_BYTES, XATTR_TOTAL_BYTES_MAX};
use shale_format::xattr::{self, XattrHeader, Xattrs};
use shale_format::{BlockAddr, Ino};

/// Where the attributes of an inode lie.
#[derive(Default)]
struct Place {
    /// Their blocks in order.
    blocks: Vec<BlockAddr>,
    /// The block with the list of those.
    list: Option<BlockAddr>,
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

fn too_long(inode: &Inode, bytes: usize) -> VolumeError {
    VolumeError::Damaged {
        what: "bytes of extended attributes of inode",
        at: inode.ino,
        expected: XATTR_TOTAL_BYTES_MAX as u64,
        found: bytes as u64,
    }
}

impl CowTrees {
    /// See [`crate::Txn::set_xattrs`].
    pub(crate) fn set_xattrs(&mut self, inode: &mut Inode, attrs: &Xattrs) -> Result<()> {
        let bytes = if attrs.is_empty() {
            0
        } else {
            xattr::encoded_bytes(attrs)
        };
        if bytes > XATTR_TOTAL_BYTES_MAX + XattrHeader::BYTES {
            return Err(too_long(inode, bytes));
        }
        for old in runs_of(&self.media, inode)? {
            self.free(old)?;
        }
        inode.xattr_addr = 0;
        inode.xattr_bytes = bytes as u32;
        if bytes == 0 {
            return Ok(());
        }
        let owner = Ino(inode.ino);
        let place = self.xattr_place(bytes.div_ceil(BLOCK_BYTES) as u64)?;
        // Nothing refers to the blocks before the commit, whose first fence covers this.
        let encoded = xattr::encode(attrs, owner, place.blocks[0]);
        for (&addr, part) in place.blocks.iter().zip(encoded.chunks(BLOCK_BYTES)) {
            self.media.write(addr, 0, part)?;
        }
        inode.xattr_addr = place.blocks[0].raw();
        if let Some(list) = place.list {
            let named = xattr::encode_list(&place.blocks, owner, list);
            self.media.write(list, 0, &named)?;
            inode.xattr_addr = list.raw();
            inode.xattr_bytes |= XATTR_SCATTERED;
        }
        Ok(())
    }

    /// Takes blocks for attributes: one run, else single blocks and one for their list.
    fn xattr_place(&mut self, blocks: u64) -> Result<Place> {
        let (runs, listed) = match self.space.allocate_run(blocks) {
            Ok(run) => (vec![run], false),
            Err(VolumeError::NoSpace { .. }) if blocks > 1 => {
                (self.space.allocate(blocks + 1, None)?, true)
            }
            Err(e) => return Err(e),
        };
        let mut addrs = Vec::with_capacity(blocks as usize + 1);
        for run in runs {
            self.keep(run);
            self.mark(run)?;
            addrs.extend((0..run.len).map(|n| run.addr.plus(n)));
        }
        let list = if listed { addrs.pop() } else { None };
        Ok(Place {
            blocks: addrs,
            list,
        })
    }
}
