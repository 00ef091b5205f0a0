//! Extended attributes: written whole with each change.

use super::CowTrees;
use crate::error::Result;
use crate::trees::xattr::{Place, runs_of, too_long};
use shale_allocation::AllocationError;
use shale_format::Ino;
use shale_format::inode::{Inode, XATTR_SCATTERED};
use shale_format::limits::{BLOCK_BYTES, XATTR_TOTAL_BYTES_MAX};
use shale_format::xattr::{self, XattrHeader, Xattrs};

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
            Err(AllocationError::NoSpace { .. }) if blocks > 1 => {
                (self.space.allocate(blocks + 1, None)?, true)
            }
            Err(e) => return Err(e.into()),
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
