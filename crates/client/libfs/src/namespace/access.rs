//! Permissions, for callers that no kernel has checked: those of the path API.
//!
//! A caller is one user with its groups. The superuser may
//! do everything but execute what nobody may execute.

use shale_format::acl::{Acl, permits};
use shale_format::inode::Inode;
use shale_inodes::attr::{SetAttr, SetTime, without_set_id};
use shale_session::caller::Caller;
use shale_session::errno::{Errno, Result};

/// May read.
pub(crate) const READ: u32 = 4;
/// May write; in a directory: change entries.
pub(crate) const WRITE: u32 = 2;
/// May execute; in a directory: look names up.
pub(crate) const EXECUTE: u32 = 1;

/// Refuses with `EACCES` unless the caller has all the rights `want` on an inode with this list, which need not be
/// had where it does not matter ([`crate::namespace::acl::may_access`]).
pub(crate) fn may(caller: &Caller, inode: &Inode, acl: Option<&Acl>, want: u32) -> Result<()> {
    let allowed = if caller.uid == 0 {
        let executable = inode.is_dir() || inode.mode & 0o111 != 0;
        want & EXECUTE == 0 || executable
    } else {
        permits(inode, acl, caller.uid, &|gid| caller.is_in(gid), want)
    };
    if allowed { Ok(()) } else { Err(Errno::ACCESS) }
}

/// Whether the caller is the owner or the superuser.
pub(crate) fn owns(caller: &Caller, inode: &Inode) -> bool {
    caller.uid == 0 || caller.uid == inode.uid
}

/// Refuses with `EPERM` to take the name of `child` out of `dir`, whose entries the caller may change, where the
/// sticky bit keeps it.
pub(crate) fn may_take_from(caller: &Caller, dir: &Inode, child: &Inode) -> Result<()> {
    let kept = dir.mode & libc::S_ISVTX != 0 && !owns(caller, dir) && !owns(caller, child);
    if kept { Err(Errno::PERM) } else { Ok(()) }
}

/// What may be set of what the caller asks for: errors as chmod(2), chown(2) and
/// utimensat(2) have them; set-group-id of a foreign group is left out.
pub(crate) fn may_set(
    caller: &Caller,
    inode: &Inode,
    acl: Option<&Acl>,
    set: &SetAttr,
) -> Result<SetAttr> {
    let mut set = *set;
    if caller.uid == 0 {
        return Ok(set);
    }
    let owner = owns(caller, inode);
    let foreign_uid = set.uid.is_some_and(|u| u != u32::MAX && u != inode.uid);
    let foreign_gid = set
        .gid
        .is_some_and(|g| g != u32::MAX && g != inode.gid && !caller.is_in(g));
    let loses = set.kill_suidgid && !inode.is_dir() && without_set_id(inode.mode) != inode.mode;
    let ids = set.uid.is_some() || set.gid.is_some() || loses;
    if foreign_uid || foreign_gid || ids && !owner {
        return Err(Errno::PERM);
    }
    if let Some(mode) = &mut set.mode {
        if !owner {
            return Err(Errno::PERM);
        }
        if !caller.is_in(set.gid.filter(|&g| g != u32::MAX).unwrap_or(inode.gid)) {
            *mode &= !libc::S_ISGID;
        }
    }
    let times = [set.atime, set.mtime];
    if !owner && times.iter().flatten().count() > 0 {
        if times != [Some(SetTime::Now); 2] {
            return Err(Errno::PERM);
        }
        may(caller, inode, acl, WRITE)?;
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_inodes::attr::Timestamp;

    fn inode(mode: u32, uid: u32, gid: u32) -> Inode {
        Inode {
            mode,
            uid,
            gid,
            ..Inode::free()
        }
    }

    fn caller(uid: u32, gid: u32) -> Caller {
        Caller {
            uid,
            gid,
            ..Caller::default()
        }
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let file = inode(0o100_074, 5, 6);
        assert!(
            may(&caller(5, 6), &file, None, READ).is_err(),
            "the owner has no right at all"
        );
        assert!(may(&caller(7, 6), &file, None, READ | WRITE | EXECUTE).is_ok());
        assert!(may(&caller(7, 7), &file, None, READ).is_ok());
        assert!(may(&caller(7, 7), &file, None, WRITE).is_err());
        assert!(may(&caller(0, 0), &file, None, READ | WRITE | EXECUTE).is_ok());
        assert!(may(&caller(0, 0), &inode(0o100_666, 5, 6), None, EXECUTE).is_err());
        assert!(may(&caller(0, 0), &inode(0o040_000, 5, 6), None, EXECUTE).is_ok());
    }

    #[test]
    fn sticky_directories_keep_foreign_files() {
        let dir = inode(0o041_777, 1, 1);
        let file = inode(0o100_644, 5, 5);
        assert_eq!(may_take_from(&caller(6, 6), &dir, &file), Err(Errno::PERM));
        for uid in [0, 1, 5] {
            assert_eq!(may_take_from(&caller(uid, 9), &dir, &file), Ok(()));
        }
    }

    #[test]
    fn only_owners_set_attributes() {
        let file = inode(0o100_644, 5, 6);
        let mode = SetAttr {
            mode: Some(0o2755),
            ..SetAttr::default()
        };
        assert_eq!(may_set(&caller(7, 6), &file, None, &mode), Err(Errno::PERM));
        assert_eq!(may_set(&caller(5, 6), &file, None, &mode), Ok(mode));
        assert_eq!(
            may_set(&caller(5, 9), &file, None, &mode).unwrap().mode,
            Some(0o755)
        );
        let gid = SetAttr {
            gid: Some(9),
            ..SetAttr::default()
        };
        assert!(may_set(&caller(5, 9), &file, None, &gid).is_ok());
        assert!(may_set(&caller(5, 6), &file, None, &gid).is_err());
        let now = SetAttr {
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        assert_eq!(
            may_set(&caller(7, 7), &file, None, &now),
            Err(Errno::ACCESS)
        );
        assert!(may_set(&caller(7, 7), &inode(0o100_666, 5, 6), None, &now).is_ok());
        let at = SetAttr {
            atime: Some(SetTime::At(Timestamp::default())),
            ..now
        };
        assert_eq!(
            may_set(&caller(7, 7), &inode(0o100_666, 5, 6), None, &at),
            Err(Errno::PERM)
        );
    }
}
