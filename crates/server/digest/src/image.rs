//! What planning reads of the volume: a small part of [`View`], so that plans can be
//! made and tested without a device.

use shale_format::inode::{Inode, slot_of};
use shale_format::xattr::Xattrs;
use shale_format::{DirKey, FileBlock, Ino, TierId};
use shale_volume::{Dirent, Mapping, Result, Run, View};

/// The volume as last committed. Everything under the client's leases stays as it
/// is while its log is digested; [`super::apply`] checks that it did.
pub trait Image {
    /// The inode `ino`; `None` if there is none.
    fn inode(&self, ino: Ino) -> Result<Option<Inode>>;
    /// Key group of `name` in any directory.
    fn key_group(&self, name: &[u8]) -> DirKey;
    /// The entries of the group in directory `dir`.
    fn collisions(&self, dir: &Inode, group: DirKey) -> Result<Vec<Dirent>>;
    /// The extended attributes of an inode.
    fn xattrs(&self, inode: &Inode) -> Result<Xattrs>;
    /// What lies at file block `fb`.
    fn map_block(&self, inode: &Inode, fb: FileBlock) -> Result<Mapping>;
    /// Whether what is new in these blocks of a file may be stored where they are.
    fn takes_stores(&self, run: Run) -> bool;
    /// Whether the volume has the block of the inode file that `ino` belongs in.
    fn has_slot(&self, ino: Ino) -> Result<bool>;
    /// Blocks of the volume's NVM tier.
    fn blocks(&self) -> u64;
}

impl Image for View {
    fn inode(&self, ino: Ino) -> Result<Option<Inode>> {
        View::inode(self, ino)
    }
    fn key_group(&self, name: &[u8]) -> DirKey {
        View::key_group(self, name)
    }
    fn collisions(&self, dir: &Inode, group: DirKey) -> Result<Vec<Dirent>> {
        View::collisions(self, dir, group)
    }
    fn xattrs(&self, inode: &Inode) -> Result<Xattrs> {
        View::xattrs(self, inode)
    }
    fn map_block(&self, inode: &Inode, fb: FileBlock) -> Result<Mapping> {
        View::map_block(self, inode, fb)
    }
    fn takes_stores(&self, run: Run) -> bool {
        run.addr.tier() == Some(TierId::Nvm)
    }
    fn has_slot(&self, ino: Ino) -> Result<bool> {
        let file = self.root()?.inode_file;
        let found = View::map_block(self, &file, slot_of(ino).0)?;
        Ok(matches!(found, Mapping::Data { .. }))
    }
    fn blocks(&self) -> u64 {
        self.superblock().tier[0].blocks
    }
}
