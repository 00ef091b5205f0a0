//! Extended attributes: one run of blocks, written anew with each change.

use crate::error::{Result, VolumeError};
use crate::media::Media;
use crate::space::Run;
use crate::tree::Draft;
use shale_format::inode::Inode;
use shale_format::limits::{BLOCK_BYTES, XATTR_TOTAL_BYTES_MAX};
use shale_format::xattr::{self, XattrHeader, Xattrs};
use shale_format::{BlockAddr, Ino};

/// The blocks that hold the attributes of an inode.
pub(crate) fn run_of(inode: &Inode) -> Option<Run> {
    let blocks = (inode.xattr_bytes as usize).div_ceil(BLOCK_BYTES);
    (blocks > 0).then(|| Run {
        addr: BlockAddr::from_raw(inode.xattr_addr),
        len: blocks as u64,
    })
}

/// Reads the attributes of an inode.
pub(crate) fn load(media: &Media, inode: &Inode) -> Result<Xattrs> {
    let bytes = inode.xattr_bytes as usize;
    if bytes == 0 {
        return Ok(Xattrs::new());
    }
    if bytes > XATTR_TOTAL_BYTES_MAX + XattrHeader::BYTES {
        return Err(too_long(inode, bytes));
    }
    let addr = BlockAddr::from_raw(inode.xattr_addr);
    let mut buffer = vec![0; bytes];
    media.load(addr, 0, &mut buffer)?;
    Ok(xattr::decode(&buffer, Ino(inode.ino), addr)?)
}

fn too_long(inode: &Inode, bytes: usize) -> VolumeError {
    VolumeError::Damaged {
        what: "bytes of extended attributes of inode",
        at: inode.ino,
        expected: XATTR_TOTAL_BYTES_MAX as u64,
        found: bytes as u64,
    }
}

impl Draft {
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
        if let Some(old) = run_of(inode) {
            self.free(old)?;
        }
        inode.xattr_addr = 0;
        inode.xattr_bytes = bytes as u32;
        if bytes == 0 {
            return Ok(());
        }
        let run = self
            .space
            .allocate_run(bytes.div_ceil(BLOCK_BYTES) as u64)?;
        self.keep(run);
        self.mark(run)?;
        // Nothing refers to the run before the commit, whose first fence covers this.
        let encoded = xattr::encode(attrs, Ino(inode.ino), run.addr);
        self.media.write(run.addr, 0, &encoded)?;
        inode.xattr_addr = run.addr.raw();
        Ok(())
    }
}
