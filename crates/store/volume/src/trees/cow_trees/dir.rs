//! Directories: changes of their entries.
//!
//! Entries lie in one tree by key, names in its leaves. A directory without entries
//! has no node. `size` of the inode is the number of entries.

use super::CowTrees;
use crate::error::{Result, VolumeError};
use crate::trees::node::Dirent;
use crate::trees::roots::entries_root;
use shale_format::extent::root_kind;
use shale_format::inode::Inode;
use shale_format::limits::NAME_BYTES_MAX;
use shale_format::{DirKey, FormatError, Ino};

fn no_entry(dir: &Inode, key: DirKey) -> VolumeError {
    VolumeError::NoEntry {
        dir: Ino(dir.ino),
        key,
    }
}

impl CowTrees {
    /// The entry with this key.
    pub(crate) fn dir_get(&self, dir: &Inode, key: DirKey) -> Result<Option<Dirent>> {
        let (items, _) = self.leaf::<Dirent>(entries_root(dir), Ino(dir.ino), key.0)?;
        let found = items.binary_search_by_key(&key, |e| e.key).ok();
        Ok(found.map(|i| items[i].clone()))
    }

    /// All entries of the group that `group` is in.
    pub(crate) fn dir_collisions(&self, dir: &Inode, group: DirKey) -> Result<Vec<Dirent>> {
        let first = group.group_start().0;
        let end = first + DirKey::COLLISIONS;
        let mut found = Vec::new();
        let mut key = first;
        while key < end {
            let (items, keys) = self.leaf::<Dirent>(entries_root(dir), Ino(dir.ino), key)?;
            let in_group = |e: &&Dirent| (first..end).contains(&e.key.0);
            found.extend(items.iter().filter(in_group).cloned());
            key = keys.end;
        }
        Ok(found)
    }

    /// See [`crate::Txn::dir_insert`].
    pub(crate) fn dir_insert(&mut self, dir: &mut Inode, entry: Dirent) -> Result<()> {
        if entry.name.len() > NAME_BYTES_MAX {
            return Err(VolumeError::Format(FormatError::Name {
                bytes: entry.name.len(),
                why: "too long",
            }));
        }
        if self.dir_get(dir, entry.key)?.is_some() {
            return Err(VolumeError::Exists {
                dir: Ino(dir.ino),
                key: entry.key,
            });
        }
        self.insert(&mut dir.root[0], Ino(dir.ino), entry)?;
        dir.size += 1;
        Ok(())
    }

    /// See [`crate::Txn::dir_remove`].
    pub(crate) fn dir_remove(
        &mut self,
        dir: &mut Inode,
        key: DirKey,
        name: &[u8],
    ) -> Result<Dirent> {
        let old = self.dir_get(dir, key)?.filter(|e| e.name == name);
        let old = old.ok_or_else(|| no_entry(dir, key))?;
        let owner = Ino(dir.ino);
        self.remove::<Dirent>(&mut dir.root[0], owner, key.0)?;
        dir.size = dir.size.saturating_sub(1);
        Ok(old)
    }

    /// See [`crate::Txn::dir_replace`].
    pub(crate) fn dir_replace(
        &mut self,
        dir: &mut Inode,
        key: DirKey,
        ino: Ino,
        kind: u8,
    ) -> Result<Dirent> {
        let old = self.dir_get(dir, key)?.ok_or_else(|| no_entry(dir, key))?;
        let new = Dirent {
            ino,
            kind,
            ..old.clone()
        };
        self.insert(&mut dir.root[0], Ino(dir.ino), new)?;
        Ok(old)
    }

    /// Frees the nodes of a directory that is removed, whatever is left in it.
    pub(crate) fn dir_clear(&mut self, dir: &mut Inode) -> Result<()> {
        if dir.root[0].kind != root_kind::EMPTY {
            self.clear::<Dirent>(&mut dir.root[0], Ino(dir.ino))?;
        }
        dir.size = 0;
        Ok(())
    }
}
