//! Finding an inode: in NVM, or in a block of the inode file that lies below.
//!
//! A reader that has no devices gets the block's address, and asks the daemon for it. What lies below never
//! changes in place; a reader that meets a block which has moved meanwhile looks again.

use crate::error::{Result, VolumeError};
use crate::media::is_in_nvm;
use crate::reading::view::{Mapping, View};
use crate::trees::inode::{load_slot, load_slot_anywhere};
use shale_format::inode::{Inode, slot_of};
use shale_format::limits::{BLOCK_BYTES, INODE_BYTES, INODES_PER_BLOCK, SYMLINK_BYTES_MAX};
use shale_format::{BlockAddr, FileBlock, FormatError, Ino};
use shale_sys::mutants;

/// An inode, or where it is to be read.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "given by value, once")]
pub enum FoundInode {
    /// There is none.
    None,
    /// In NVM.
    Here(Inode),
    /// In this block below NVM, with 15 others.
    Below {
        /// The block.
        addr: BlockAddr,
        /// Blocks of the inode file from there on that follow one another.
        len: u64,
    },
}

/// Checks what was read of the target of a symbolic link.
///
/// # Errors
/// It is not what was written.
pub fn check_target(inode: &Inode, target: &[u8]) -> Result<()> {
    match mutants::is_on("target-checksum") {
        true => Ok(()),
        false => Ok(inode.check_target(target)?),
    }
}

impl View {
    /// The inode `ino`; `None` if there is none. Where it lies below NVM this process must have the
    /// devices.
    ///
    /// # Errors
    /// Damaged slot, tree or root block; a block below NVM that cannot be read.
    pub fn inode(&self, ino: Ino) -> Result<Option<Inode>> {
        loop {
            let addr = match self.find_inode(ino)? {
                FoundInode::None => return Ok(None),
                FoundInode::Here(inode) => return Ok(Some(inode)),
                FoundInode::Below { addr, .. } => addr,
            };
            let generation = self.generation(addr)?;
            match load_slot_anywhere(self.blocks(), addr, ino) {
                Ok(inode) => return Ok((!inode.is_free()).then_some(inode)),
                // It has moved meanwhile, and its zone may be erased.
                Err(e) => match self.find_inode(ino)? {
                    FoundInode::Below { addr: now, .. }
                        if now == addr && self.generation(addr)? == generation =>
                    {
                        return Err(e);
                    }
                    _ => continue,
                },
            }
        }
    }

    /// The inodes in one block of the inode file. A block below NVM is read once.
    ///
    /// # Errors
    /// As [`View::inode`], of any of them.
    pub fn inodes_of(&self, fb: FileBlock) -> Result<Vec<Inode>> {
        let inos = || (fb.0 * INODES_PER_BLOCK..(fb.0 + 1) * INODES_PER_BLOCK).map(Ino);
        loop {
            let (addr, all) = self.until_whole(|| {
                let file = self.root_at_once()?.inode_file;
                let Mapping::Data { addr, .. } = self.map_block(&file, fb)? else {
                    return Ok((BlockAddr::NONE, Vec::new()));
                };
                let here = inos().filter(|_| is_in_nvm(addr));
                let all: Result<Vec<Inode>> =
                    here.map(|i| load_slot(self.media(), addr, i)).collect();
                Ok((addr, all?))
            })?;
            let all = match addr.is_none() || is_in_nvm(addr) {
                true => all,
                false => match self.slots_below(addr, inos()) {
                    // It has moved meanwhile, and its zone may be erased.
                    Err(_) if self.inode_block(fb)? != Some(addr) => continue,
                    read => read?,
                },
            };
            return Ok(all.into_iter().filter(|i| !i.is_free()).collect());
        }
    }

    fn slots_below(&self, addr: BlockAddr, inos: impl Iterator<Item = Ino>) -> Result<Vec<Inode>> {
        let mut block = [0; BLOCK_BYTES];
        self.read_at(addr, 0, &mut block)?;
        let slots = block.chunks_exact(INODE_BYTES).zip(inos);
        let all = slots.map(|(bytes, ino)| Inode::decode(bytes, ino));
        Ok(all.collect::<std::result::Result<_, FormatError>>()?)
    }

    /// Where a block of the inode file lies; `None`: it is a hole.
    fn inode_block(&self, fb: FileBlock) -> Result<Option<BlockAddr>> {
        let mapped = self.until_whole(|| self.map_block(&self.root_at_once()?.inode_file, fb))?;
        Ok(match mapped {
            Mapping::Data { addr, .. } => Some(addr),
            Mapping::Unwritten { .. } | Mapping::Hole { .. } => None,
        })
    }

    /// The inode `ino`, or where below NVM it is.
    ///
    /// # Errors
    /// Damaged slot, tree or root block.
    pub fn find_inode(&self, ino: Ino) -> Result<FoundInode> {
        if ino == Ino::NONE || ino > Ino::MAX {
            return Ok(FoundInode::None);
        }
        self.until_whole(|| {
            let file = self.root_at_once()?.inode_file;
            let (addr, len) = match self.map_block(&file, slot_of(ino).0)? {
                Mapping::Data { addr, len } => (addr, len),
                Mapping::Unwritten { .. } | Mapping::Hole { .. } => return Ok(FoundInode::None),
            };
            if !is_in_nvm(addr) {
                return Ok(FoundInode::Below { addr, len });
            }
            let inode = load_slot(self.media(), addr, ino)?;
            Ok(match inode.is_free() {
                true => FoundInode::None,
                false => FoundInode::Here(inode),
            })
        })
    }

    /// Target of a symbolic link, verified.
    ///
    /// # Errors
    /// It is not what was written, its length is none that a target has, or the blocks cannot be read.
    pub fn link_target(&self, inode: &Inode) -> Result<Vec<u8>> {
        const BYTES_MAX: u64 = SYMLINK_BYTES_MAX as u64;
        let mapping = self.map_block(inode, FileBlock(0))?;
        let (Mapping::Data { addr, .. }, 1..=BYTES_MAX) = (mapping, inode.size) else {
            return Err(VolumeError::Damaged {
                what: "length of the target of symbolic link",
                at: inode.ino,
                expected: BYTES_MAX,
                found: inode.size,
            });
        };
        let mut target = vec![0; inode.size as usize];
        self.read_at(addr, 0, &mut target)?;
        check_target(inode, &target)?;
        Ok(target)
    }

    /// The slot of `ino` in the inode-file block at `addr`, free or not.
    pub(crate) fn slot(
        &self,
        addr: BlockAddr,
        ino: Ino,
    ) -> Result<std::result::Result<Inode, FormatError>> {
        match self.until_whole(|| load_slot_anywhere(self.blocks(), addr, ino)) {
            Ok(inode) => Ok(Ok(inode)),
            Err(VolumeError::Format(e)) => Ok(Err(e)),
            Err(e) => Err(e),
        }
    }
}
