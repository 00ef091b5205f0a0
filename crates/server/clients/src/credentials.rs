//! Who a process is, and what POSIX permission says of its changes.

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, User, getgrouplist};
use shale_digest::{Change, Operation};
use shale_format::acl::{Acl, AclKind, matters, permits};
use shale_format::dirent::kind_of_mode;
use shale_format::inode::flag::{APPEND_ONLY, IMMUTABLE};
use shale_format::inode::{Inode, time};
use shale_format::record::{SetAttrBody, attr};
use shale_format::xattr::CAPABILITY;
use shale_sys::mutants;
use shale_volume::View;
use std::ffi::CString;

const ROOT_UID: u32 = 0;
const S_ISVTX: u32 = 0o1000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o010;
/// Right to change entries of a directory: write and search.
const ENTRIES: u32 = 3;
const WRITE: u32 = 2;
const READ: u32 = 4;
/// Types that only root makes: character and block devices.
const DEVICES: [u8; 2] = [CHARACTER_DEVICE, 6];
const CHARACTER_DEVICE: u8 = 2;

/// Who a process is, for POSIX permission.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// User.
    pub uid: u32,
    /// All groups, the first one among them.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// Whether it may do everything.
    pub fn is_root(&self) -> bool {
        self.uid == ROOT_UID
    }

    fn has(&self, inode: &Inode, acl: Option<&Acl>, rights: u32) -> bool {
        let is_in = |gid| self.groups.contains(&gid);
        self.is_root() || permits(inode, acl, self.uid, &is_in, rights)
    }

    /// Whether the access control list of an inode matters to what it may do.
    pub fn asks_acl(&self, inode: &Inode) -> bool {
        !self.is_root() && matters(inode, self.uid)
    }

    /// The access control list of an inode, if it matters. Error: there is none to be had.
    fn acl_of(&self, view: &View, inode: &Inode) -> Result<Option<Acl>, ()> {
        if !self.asks_acl(inode) || inode.xattr_addr == 0 {
            return Ok(None);
        }
        let attrs = view.xattrs(inode).map_err(|e| tracing::error!("{e}"))?;
        let acl = Acl::among(&attrs, AclKind::Access);
        acl.map_err(|e| tracing::error!(ino = inode.ino, "{e}"))
    }

    /// Whether it may do so with an inode of the volume. Not, if what decides cannot be read.
    fn has_of(&self, view: &View, inode: &Inode, rights: u32) -> bool {
        let acl = self.acl_of(view, inode);
        acl.is_ok_and(|acl| self.has(inode, acl.as_ref(), rights))
    }

    /// As the volume has the inode.
    pub fn may_write(&self, view: &View, inode: &Inode) -> bool {
        self.has_of(view, inode, WRITE)
    }

    /// As the volume has the inode.
    pub fn may_read(&self, view: &View, inode: &Inode) -> bool {
        self.has_of(view, inode, READ)
    }

    /// Whether it may change what only an owner may.
    pub fn owns(&self, inode: &Inode) -> bool {
        self.is_root() || self.uid == inode.uid
    }

    /// Whether it is a member of a group.
    pub fn is_in(&self, gid: u32) -> bool {
        self.is_root() || self.groups.contains(&gid)
    }

    /// Those of its groups that it is known to be in when its log is recovered: its process has gone by then.
    pub fn groups_at_recovery(&self) -> Vec<u32> {
        let known = groups_of_user(self.uid);
        let groups = self.groups.iter().filter(|gid| known.contains(gid));
        groups.copied().collect()
    }

    /// What POSIX says to a change; `opened`: whether it may have the file open for writing
    /// since before its mode was what it is.
    pub fn may_change(
        &self,
        change: &Change<'_>,
        opened: impl FnOnce() -> bool,
    ) -> Result<(), &'static str> {
        let (inode, acl) = (change.inode, change.acl);
        if !mutants::is_on("flags-unchecked") {
            flags_allow(change)?;
        }
        let need = |holds: bool, why| if holds { Ok(()) } else { Err(why) };
        match change.operation {
            // A change of content takes the capabilities away.
            Operation::Content { .. } | Operation::RemoveXattr(CAPABILITY) => need(
                self.has(inode, acl, WRITE)
                    || self.owns(inode)
                    || opened()
                    || mutants::is_on("permission-unchecked"),
                "no permission to write the file",
            ),
            Operation::Attributes(body) => self.may_set(inode, acl, body),
            Operation::Xattr(name) | Operation::RemoveXattr(name) => {
                self.may_set_xattr(inode, acl, name)
            }
            Operation::AddEntry { .. } => need(
                self.has(inode, acl, ENTRIES),
                "no permission to write the directory",
            ),
            Operation::RemoveEntry { child } => {
                need(
                    self.has(inode, acl, ENTRIES),
                    "no permission to write the directory",
                )?;
                let sticky = inode.mode & S_ISVTX != 0;
                need(
                    !sticky
                        || self.owns(inode)
                        || self.owns(child)
                        || mutants::is_on("sticky-unchecked"),
                    "a sticky directory's entry of another user",
                )
            }
            // Its entry for the parent changes.
            Operation::Name { moves: true } => need(
                self.has(inode, acl, WRITE),
                "no permission to write the directory that moves",
            ),
            Operation::Make { parent } => self.may_make(inode, parent),
            Operation::Name { moves: false } | Operation::Free => Ok(()),
        }
    }

    /// Whether it may make an inode with this owner, group, type and mode.
    fn may_make(&self, inode: &Inode, parent: Option<&Inode>) -> Result<(), &'static str> {
        if self.is_root() {
            return Ok(());
        }
        if inode.uid != self.uid {
            return Err("made for another user");
        }
        let inherits = parent.is_none_or(|p| p.mode & S_ISGID != 0 && p.gid == inode.gid);
        if !self.is_in(inode.gid) && !inherits {
            return Err("made for a group that the user is not in");
        }
        let runs_as_group = inode.mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
        if runs_as_group && !inode.is_dir() && !self.is_in(inode.gid) {
            return Err("set-group-id of a group that the user is not in");
        }
        // A whiteout is nobody's device.
        let whiteout = kind_of_mode(inode.mode) == CHARACTER_DEVICE && inode.rdev == 0;
        if DEVICES.contains(&kind_of_mode(inode.mode)) && !whiteout {
            return Err("a device made by another user than root");
        }
        Ok(())
    }

    /// Whether it may change what `body` says.
    fn may_set(
        &self,
        inode: &Inode,
        acl: Option<&Acl>,
        body: &SetAttrBody,
    ) -> Result<(), &'static str> {
        if self.is_root() {
            return Ok(());
        }
        if body.valid & attr::UID != 0 && body.uid != inode.uid {
            return Err("owner changed by another user than root");
        }
        let gid = match body.valid & attr::GID {
            0 => inode.gid,
            _ => body.gid,
        };
        if gid != inode.gid && !(self.owns(inode) && self.is_in(gid)) {
            return Err("group changed to one the user is not in");
        }
        if body.valid & attr::MODE != 0 {
            self.may_set_mode(inode, body.mode & 0o7777, gid)?;
        }
        if body.valid & attr::CTIME != 0 {
            let which = time::CHANGE;
            let same = body.time_s[which] == inode.time_s[which]
                && body.time_ns[which] == inode.time_ns[which];
            if !same {
                return Err("change time set");
            }
        }
        // That somebody has read it is noted for anybody who may read it, and changes nothing else.
        let read = body.valid & !(attr::ATIME | attr::CTIME) == 0;
        let times = attr::ATIME | attr::MTIME;
        let may_write = || self.has(inode, acl, WRITE);
        if body.valid & times != 0 && !read && !self.owns(inode) && !may_write() {
            return Err("times changed without permission");
        }
        Ok(())
    }

    fn may_set_mode(&self, inode: &Inode, mode: u32, gid: u32) -> Result<(), &'static str> {
        if !self.owns(inode) {
            // Taking set-user-id and set-group-id away is what every writer does.
            let stripped = inode.mode & 0o7777 & !0o6000;
            if mode & !0o6000 != stripped || mode & !inode.mode & 0o6000 != 0 {
                return Err("mode changed by another user than the owner");
            }
        }
        let new = mode & S_ISGID != 0 && (inode.mode & S_ISGID == 0 || gid != inode.gid);
        if new && !self.is_in(gid) {
            return Err("set-group-id of a group that the user is not in");
        }
        Ok(())
    }

    fn may_set_xattr(
        &self,
        inode: &Inode,
        acl: Option<&Acl>,
        name: &[u8],
    ) -> Result<(), &'static str> {
        if AclKind::of(name).is_some() {
            let owns = self.owns(inode) || mutants::is_on("acl-of-others");
            return match owns {
                true => Ok(()),
                false => Err("an access control list set by another user than the owner"),
            };
        }
        let own = |prefix: &[u8]| name.starts_with(prefix) && !self.is_root();
        if own(b"trusted.") || own(b"security.") || own(b"system.") {
            return Err("an attribute that only root sets");
        }
        match self.owns(inode) || self.has(inode, acl, WRITE) {
            true => Ok(()),
            false => Err("no permission to change its attributes"),
        }
    }
}

/// What the flags of the inodes say to a change (ioctl_iflags(2)): to everybody, root too.
fn flags_allow(change: &Change<'_>) -> Result<(), &'static str> {
    const FIXED: u32 = IMMUTABLE | APPEND_ONLY;
    let inode = change.inode;
    let without = |inode: &Inode, flags: u32| match inode.flags & flags {
        0 => Ok(()),
        _ => Err("an immutable or append-only inode"),
    };
    match change.operation {
        // Appending, and names that are added.
        Operation::Content { adds: true } | Operation::AddEntry { fresh: true, .. } => {
            without(inode, IMMUTABLE)
        }
        Operation::AddEntry { child, .. } => {
            without(inode, IMMUTABLE)?;
            without(child, FIXED)
        }
        // Appending takes the capabilities away, too.
        Operation::RemoveXattr(CAPABILITY) => without(inode, IMMUTABLE),
        Operation::Content { adds: false } | Operation::Xattr(_) | Operation::RemoveXattr(_) => {
            without(inode, FIXED)
        }
        Operation::RemoveEntry { child } => {
            without(inode, FIXED)?;
            without(child, FIXED)
        }
        Operation::Attributes(body) => {
            // The kernel knows who may; a client changes them through the mount.
            if body.valid & attr::FLAGS != 0 {
                return Err("flags set by another client than the mount");
            }
            match body.valid & !(attr::ATIME | attr::MTIME | attr::CTIME) {
                // A user who may read it may have that noted.
                0 if is_access(inode, body) => Ok(()),
                0 => without(inode, IMMUTABLE),
                _ => without(inode, FIXED),
            }
        }
        Operation::Name { .. } => without(inode, FIXED),
        // A removed one had no name to lose any more.
        Operation::Make { .. } | Operation::Free => Ok(()),
    }
}

/// Whether a record notes an access and nothing else.
fn is_access(inode: &Inode, body: &SetAttrBody) -> bool {
    let which = time::CHANGE;
    body.valid == attr::ATIME | attr::CTIME
        && body.time_s[which] == inode.time_s[which]
        && body.time_ns[which] == inode.time_ns[which]
}

/// The groups of a user, as the name service of this machine knows them: at recovery its process has gone. None of a
/// user that is not known.
pub fn groups_of_user(uid: u32) -> Vec<u32> {
    let groups = User::from_uid(Uid::from_raw(uid)).and_then(|user| {
        let Some(user) = user else {
            return Ok(Vec::new());
        };
        let name = CString::new(user.name).map_err(|_| Errno::EINVAL)?;
        getgrouplist(&name, user.gid)
    });
    match groups {
        Ok(groups) => groups.into_iter().map(Gid::as_raw).collect(),
        Err(e) => {
            tracing::warn!("groups of user {uid}: {e}; its log is digested as if it had none");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::acl::{AclEntry, Who};

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
        let ann = Credentials {
            uid: 1000,
            groups: vec![50, 60],
        };
        assert!(ann.has(&inode(0o040_200, 1000, 1), None, WRITE));
        assert!(
            !ann.has(&inode(0o040_022, 1000, 50), None, WRITE),
            "the owner's class alone counts"
        );
        assert!(ann.has(&inode(0o040_020, 1, 60), None, WRITE));
        assert!(
            ann.has(&inode(0o100_004, 1, 1), None, READ)
                && ann.has(&inode(0o100_040, 1, 50), None, READ)
        );
        assert!(
            !ann.has(&inode(0o100_044, 1000, 50), None, READ)
                && !ann.has(&inode(0o100_733, 1, 1), None, READ)
        );
        assert!(!ann.has(&inode(0o040_770, 1, 1), None, WRITE));
        let root = Credentials::default();
        assert!(root.has(&inode(0o040_000, 1, 1), None, WRITE));
    }

    #[test]
    fn a_list_decides_before_the_mode() {
        let entry = |(who, may)| AclEntry { who, may };
        let list = |user, mask| {
            let all = [
                (Who::Owner, 6),
                (Who::User(1000), user),
                (Who::OwningGroup, 6),
                (Who::Group(60), 6),
                (Who::Mask, mask),
                (Who::Other, 6),
            ];
            Acl::new(all.map(entry).to_vec())
        };
        let person = |uid, groups: &[u32]| Credentials {
            uid,
            groups: groups.to_vec(),
        };
        let (ann, bob) = (person(1000, &[50]), person(1001, &[60]));
        let file = inode(0o100_666, 1, 50);
        let may = |p: &Credentials, acl: &Acl| p.has(&file, Some(acl), WRITE);
        assert!(may(&ann, &list(6, 6)) && may(&bob, &list(6, 6)));
        assert!(!may(&ann, &list(4, 6)), "her group and others may");
        assert!(!may(&ann, &list(6, 4)) && !may(&bob, &list(6, 4)), "masked");
        assert!(may(&person(0, &[]), &list(0, 4)));
        assert!(!ann.asks_acl(&inode(0o100_606, 1, 50)) && ann.asks_acl(&file));
        assert!(!ann.asks_acl(&inode(0o100_666, 1000, 50)));
        // Everything that needs a right asks so.
        let forbids = list(4, 6);
        let refused = |inode: &Inode, operation| {
            let change = Change {
                operation,
                inode,
                acl: Some(&forbids),
                lease: 1,
            };
            ann.may_change(&change, || false).is_err()
        };
        let mut times = set(attr::MTIME);
        times.time_s[time::MODIFY] = 5;
        let (dir, child) = (inode(0o040_777, 1, 50), inode(0o100_644, 1, 1));
        for operation in [
            Operation::Content { adds: true },
            Operation::Attributes(&times),
            Operation::Xattr(b"user.a"),
        ] {
            assert!(refused(&file, operation), "{operation:?}");
        }
        for operation in [
            Operation::AddEntry {
                child: &child,
                fresh: true,
            },
            Operation::RemoveEntry { child: &child },
            Operation::Name { moves: true },
        ] {
            assert!(refused(&dir, operation), "{operation:?}");
        }
    }

    #[test]
    fn lists_are_set_by_owners() {
        let ann = Credentials {
            uid: 1000,
            groups: vec![50],
        };
        for kind in AclKind::BOTH {
            let may = |p: &Credentials, uid| {
                p.may_set_xattr(&inode(0o040_777, uid, 50), None, kind.name())
                    .is_ok()
            };
            assert!(may(&ann, 1000) && !may(&ann, 1) && may(&Credentials::default(), 1));
        }
        let other = b"system.posix_acl_other";
        assert!(
            ann.may_set_xattr(&inode(0o040_777, 1000, 50), None, other)
                .is_err()
        );
    }

    #[test]
    fn owners_groups_and_modes_change_by_rule() {
        let ann = Credentials {
            uid: 1000,
            groups: vec![50],
        };
        let own = inode(0o100_644, 1000, 9);
        let mut chown = set(attr::UID);
        chown.uid = 0;
        assert!(ann.may_set(&own, None, &chown).is_err(), "chown to root");
        let mut chgrp = set(attr::GID);
        chgrp.gid = 50;
        assert!(ann.may_set(&own, None, &chgrp).is_ok());
        chgrp.gid = 51;
        assert!(ann.may_set(&own, None, &chgrp).is_err());
        let mut setgid = set(attr::MODE);
        setgid.mode = 0o2755;
        assert!(
            ann.may_set(&own, None, &setgid).is_err(),
            "group 9 is not his"
        );
        let mut read = set(attr::ATIME | attr::CTIME);
        assert!(ann.may_set(&inode(0o100_444, 0, 0), None, &read).is_ok());
        read.time_s[time::CHANGE] = 5;
        assert!(ann.may_set(&inode(0o100_444, 0, 0), None, &read).is_err());
        let other = inode(0o104_777, 1, 1);
        let mut chmod = set(attr::MODE);
        chmod.mode = 0o777;
        assert!(
            ann.may_set(&other, None, &chmod).is_ok(),
            "set-id goes with a write"
        );
        chmod.mode = 0o6777;
        assert!(
            ann.may_set(&other, None, &chmod).is_err(),
            "set-id never comes"
        );
        chmod.mode = 0o700;
        assert!(ann.may_set(&other, None, &chmod).is_err());
        assert!(Credentials::default().may_set(&other, None, &chmod).is_ok());
    }

    #[test]
    fn who_makes_an_inode_makes_it_for_himself() {
        let ann = Credentials {
            uid: 1000,
            groups: vec![50],
        };
        let may = |mode, uid, gid, parent: Option<&Inode>| {
            ann.may_make(&inode(mode, uid, gid), parent).is_ok()
        };
        let plain = inode(0o040_777, 0, 7);
        let setgid = inode(0o042_777, 0, 7);
        assert!(may(0o104_755, 1000, 50, Some(&plain)), "its own");
        assert!(!may(0o104_755, 0, 50, Some(&plain)), "as root");
        assert!(!may(0o100_644, 1000, 7, Some(&plain)), "another group");
        assert!(may(0o100_644, 1000, 7, Some(&setgid)));
        assert!(may(0o042_755, 1000, 7, Some(&setgid)));
        assert!(!may(0o102_755, 1000, 7, Some(&setgid)));
        assert!(!may(0o100_644, 0, 50, None));
        let device = |rdev| Inode {
            rdev,
            ..inode(0o020_644, 1000, 50)
        };
        assert!(ann.may_make(&device(0x103), None).is_err(), "a device");
        assert!(ann.may_make(&device(0), None).is_ok(), "a whiteout");
        assert!(
            Credentials::default()
                .may_make(&inode(0o060_644, 5, 5), None)
                .is_ok()
        );
    }

    #[test]
    fn groups_are_those_that_the_machine_tells() {
        for uid in [0, 1, 65_534] {
            let id = std::process::Command::new("id");
            let said = { id }.args(["-G", &uid.to_string()]).output().unwrap();
            let said = String::from_utf8(said.stdout).unwrap();
            let mut said: Vec<u32> = said
                .split_whitespace()
                .map(|g| g.parse().unwrap())
                .collect();
            let mut groups = groups_of_user(uid);
            said.sort_unstable();
            groups.sort_unstable();
            assert!(!groups.is_empty(), "{uid}");
            assert_eq!(groups, said, "{uid}");
        }
        assert!(groups_of_user(u32::MAX - 7).is_empty());
    }
}
