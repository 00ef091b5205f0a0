//! An inode of the model: mode, content, entries, extended attributes, and what ACLs have to do with its mode.

use std::collections::BTreeMap;

use rustix::io::Errno;

use crate::acl;
use crate::act::Stat;

pub const DIR: u32 = 0o040_000;
pub const FILE: u32 = 0o100_000;
pub const SOCKET: u32 = 0o140_000;
pub const LINK: u32 = 0o120_000;
pub const KIND: u32 = 0o170_000;
/// A character device, whose number is 0.
pub const WHITEOUT: u32 = 0o020_000;
pub const SET_UID: u32 = 0o4000;
pub const SET_GID: u32 = 0o2000;

/// What it is, and all that is in it.
#[derive(Debug, Clone, Default, Hash)]
pub struct Inode {
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Content of a file, target of a symbolic link.
    pub data: Vec<u8>,
    pub entries: BTreeMap<Vec<u8>, u64>,
    pub parent: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Made without a name, and may get one.
    pub linkable: bool,
}

impl Inode {
    pub fn is(&self, kind: u32) -> bool {
        self.mode & KIND == kind
    }

    /// What a mode that is set changes in the list.
    pub fn chmod(&mut self, mode: u32) -> Result<(), Errno> {
        self.mode = self.mode & KIND | mode;
        match self.xattrs.get_mut(acl::ACCESS) {
            Some(list) => acl::chmod(list, mode),
            None => Ok(()),
        }
    }

    pub fn set_acl(&mut self, name: &[u8], list: Option<Vec<u8>>) -> Result<(), Errno> {
        let Some(list) = list else {
            self.xattrs.remove(name);
            return Ok(());
        };
        if name == acl::DEFAULT && !self.is(DIR) {
            return Err(Errno::ACCESS);
        }
        if name == acl::ACCESS {
            self.mode = self.mode & !0o777 | acl::mode_of(&list)?;
            if acl::is_mode(&list) {
                self.xattrs.remove(name);
                return Ok(());
            }
        }
        self.xattrs.insert(name.to_vec(), list);
        Ok(())
    }

    /// What it has from the directory in which it is made.
    pub fn inherit(&mut self, default: Option<Vec<u8>>) -> Result<(), Errno> {
        let Some(mut list) = default.filter(|_| !self.is(LINK)) else {
            return Ok(());
        };
        if self.is(DIR) {
            self.xattrs.insert(acl::DEFAULT.to_vec(), list.clone());
        }
        self.mode &= acl::mode_of(&list)? | !0o777;
        if !acl::is_mode(&list) {
            acl::chmod(&mut list, self.mode)?;
            self.xattrs.insert(acl::ACCESS.to_vec(), list);
        }
        Ok(())
    }

    pub fn stat(&self) -> Stat {
        Stat {
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            size: if self.is(DIR) {
                0
            } else {
                self.data.len() as u64
            },
        }
    }
}
