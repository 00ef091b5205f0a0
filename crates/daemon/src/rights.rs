//! What a client's records may do, as the daemon knows it: numbers and blocks granted,
//! leases held, POSIX permission (TESTING §7).
//!
//! The in-process client is the FUSE front end: the kernel has checked permissions, and
//! the daemon is its own code. A client over the socket runs as the volume's owner or
//! root: it must hold the lease, and for what POSIX decides at each call (names, modes,
//! owners) its user must have the right. Content is not checked against permission bits:
//! a descriptor opened before a `chmod` writes on, legally.

use crate::client::Client;
use crate::digest::{Act, Authority, Change};
use crate::lease::Leases;
use parking_lot::Mutex;
use shale_format::Ino;
use shale_format::inode::Inode;
use shale_format::record::{SetAttrBody, attr};
use shale_proto::LeaseMode;
use shale_volume::Run;
use std::collections::HashSet;

const ROOT_UID: u32 = 0;
const S_ISVTX: u32 = 0o1000;

/// Who a process is, for POSIX permission.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Person {
    pub(crate) uid: u32,
    pub(crate) groups: Vec<u32>,
}

impl Person {
    fn may_write(&self, inode: &Inode) -> bool {
        let class = if self.uid == inode.uid {
            6
        } else if self.groups.contains(&inode.gid) {
            3
        } else {
            0
        };
        self.uid == ROOT_UID || inode.mode >> class & 2 != 0
    }

    fn owns(&self, inode: &Inode) -> bool {
        self.uid == ROOT_UID || self.uid == inode.uid
    }

    /// Whether it may change what `body` says of an inode it may write to.
    fn may_set(&self, inode: &Inode, body: &SetAttrBody) -> Result<(), &'static str> {
        if self.uid == ROOT_UID {
            return Ok(());
        }
        if body.valid & attr::UID != 0 && body.uid != inode.uid {
            return Err("owner changed by another user than root");
        }
        let new_group = body.valid & attr::GID != 0 && body.gid != inode.gid;
        if new_group && !(self.owns(inode) && self.groups.contains(&body.gid)) {
            return Err("group changed to one the user is not in");
        }
        if body.valid & attr::MODE != 0 && !self.owns(inode) {
            // Taking set-user-id and set-group-id away is what every writer does.
            let stripped = inode.mode & 0o7777 & !0o6000;
            if body.mode & 0o7777 & !0o6000 != stripped || body.mode & !inode.mode & 0o6000 != 0 {
                return Err("mode changed by another user than the owner");
            }
        }
        let times = attr::ATIME | attr::MTIME;
        if body.valid & times != 0 && !self.owns(inode) && !self.may_write(inode) {
            return Err("times changed without permission");
        }
        Ok(())
    }
}

/// Rights of one client during one call of the digester.
pub(crate) struct Rights<'a> {
    client: &'a Client,
    leases: &'a Leases,
    /// Numbers that the digester asked about and that are granted.
    asked_inos: Mutex<HashSet<u64>>,
}

impl<'a> Rights<'a> {
    pub(crate) fn new(client: &'a Client, leases: &'a Leases) -> Self {
        Self {
            client,
            leases,
            asked_inos: Mutex::default(),
        }
    }

    /// Granted numbers that the digester met in records.
    pub(crate) fn asked_inos(self) -> HashSet<u64> {
        self.asked_inos.into_inner()
    }
}

impl Authority for Rights<'_> {
    fn granted_inode(&self, ino: Ino) -> bool {
        let granted = self.client.grants.lock().inos.contains(&ino.0);
        if granted {
            self.asked_inos.lock().insert(ino.0);
        }
        granted
    }

    fn granted_blocks(&self, run: Run) -> bool {
        self.client.may_steal && self.client.grants.lock().blocks.contains(run)
    }

    fn may_change(&self, change: &Change<'_>) -> Result<(), &'static str> {
        if self.client.trusted() {
            return Ok(());
        }
        let inode = change.inode;
        let held = self.leases.mode(self.client.id, inode.ino);
        if held != Some(LeaseMode::Exclusive) {
            return Err("no lease to write it");
        }
        let person = &self.client.person;
        match change.act {
            Act::Content | Act::Free => Ok(()),
            Act::Attributes(body) => person.may_set(inode, body),
            Act::Xattr(_) if person.owns(inode) || person.may_write(inode) => Ok(()),
            Act::Xattr(_) => Err("no permission to change its attributes"),
            Act::AddEntry { .. } if person.may_write(inode) => Ok(()),
            Act::AddEntry { .. } => Err("no permission to write the directory"),
            Act::RemoveEntry { child } => {
                if !person.may_write(inode) {
                    return Err("no permission to write the directory");
                }
                let sticky = inode.mode & S_ISVTX != 0;
                if sticky && !person.owns(inode) && !person.owns(child) {
                    return Err("a sticky directory's entry of another user");
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(mode: u32, uid: u32, gid: u32) -> Inode {
        Inode {
            mode,
            uid,
            gid,
            ..Inode::free()
        }
    }

    fn set(valid: u32) -> SetAttrBody {
        SetAttrBody {
            valid,
            ..zerocopy::FromZeros::new_zeroed()
        }
    }

    #[test]
    fn permission_is_by_class() {
        let ann = Person {
            uid: 1000,
            groups: vec![50, 60],
        };
        assert!(ann.may_write(&inode(0o040_200, 1000, 1)));
        assert!(
            !ann.may_write(&inode(0o040_022, 1000, 50)),
            "the owner's class alone counts"
        );
        assert!(ann.may_write(&inode(0o040_020, 1, 60)));
        assert!(!ann.may_write(&inode(0o040_770, 1, 1)));
        let root = Person::default();
        assert!(root.may_write(&inode(0o040_000, 1, 1)));
    }

    #[test]
    fn owners_groups_and_modes_change_by_rule() {
        let ann = Person {
            uid: 1000,
            groups: vec![50],
        };
        let own = inode(0o100_644, 1000, 9);
        let mut chown = set(attr::UID);
        chown.uid = 0;
        assert!(ann.may_set(&own, &chown).is_err(), "chown to root");
        let mut chgrp = set(attr::GID);
        chgrp.gid = 50;
        assert!(ann.may_set(&own, &chgrp).is_ok());
        chgrp.gid = 51;
        assert!(ann.may_set(&own, &chgrp).is_err());
        let other = inode(0o104_777, 1, 1);
        let mut chmod = set(attr::MODE);
        chmod.mode = 0o777;
        assert!(
            ann.may_set(&other, &chmod).is_ok(),
            "set-id goes with a write"
        );
        chmod.mode = 0o6777;
        assert!(ann.may_set(&other, &chmod).is_err(), "set-id never comes");
        chmod.mode = 0o700;
        assert!(ann.may_set(&other, &chmod).is_err());
        assert!(Person::default().may_set(&other, &chmod).is_ok());
    }
}
