//! What planning reads of the volume: a small part of [`View`], so that plans can be
//! made and tested without a device.

use shale_format::inode::Inode;
use shale_format::xattr::Xattrs;
use shale_format::{DirKey, FileBlock, Ino};
use shale_volume::{Dirent, Mapping, Result, View};

/// The volume as last committed. Everything under the client's leases stays as it
/// is while its log is digested; [`super::apply`] checks that it did.
pub trait Image {
    /// The inode `ino`; `None` if there is none.
    fn inode(&self, ino: Ino) -> Result<Option<Inode>>;
    /// Key group of `name` in any directory.
    fn key_group(&self, name: &[u8]) -> DirKey;
    /// The entries of the group in directory `dir`.
    fn twins(&self, dir: &Inode, group: DirKey) -> Result<Vec<Dirent>>;
    /// The extended attributes of an inode.
    fn xattrs(&self, inode: &Inode) -> Result<Xattrs>;
    /// What lies at file block `fb`.
    fn map_block(&self, inode: &Inode, fb: FileBlock) -> Result<Mapping>;
}

impl Image for View {
    fn inode(&self, ino: Ino) -> Result<Option<Inode>> {
        View::inode(self, ino)
    }
    fn key_group(&self, name: &[u8]) -> DirKey {
        View::key_group(self, name)
    }
    fn twins(&self, dir: &Inode, group: DirKey) -> Result<Vec<Dirent>> {
        View::twins(self, dir, group)
    }
    fn xattrs(&self, inode: &Inode) -> Result<Xattrs> {
        View::xattrs(self, inode)
    }
    fn map_block(&self, inode: &Inode, fb: FileBlock) -> Result<Mapping> {
        View::map_block(self, inode, fb)
    }
}
