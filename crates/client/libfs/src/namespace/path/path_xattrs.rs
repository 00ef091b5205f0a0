//! Extended attributes by path, with the permissions that xattr(7) asks for.

use crate::client::call::CallContext;
use crate::namespace::access::{READ, WRITE, may, owns};
use crate::namespace::acl::deciding_acl;
use crate::namespace::path::Tree;
use crate::namespace::walk::{Origin, walk};
use crate::namespace::xattrs::{
    getxattr_where, listxattr_where, removexattr_where, setxattr_where,
};
use shale_format::acl::{Acl, AclKind};
use shale_format::inode::Inode;
use shale_session::caller::Caller;
use shale_session::errno::{Errno, Result, Stop};

impl Tree {
    /// Sets an extended attribute; `follow`: of what a symbolic link names. Errors: as
    /// [`crate::Session::setxattr`] and of the walk; `EPERM` and `EACCES`.
    pub fn setxattr(
        &self,
        path: &[u8],
        name: &[u8],
        value: &[u8],
        flags: u32,
        follow: bool,
    ) -> Result<()> {
        let place =
            |op: &CallContext<'_>| permitted_xattr(op, self.from(), path, name, WRITE, follow);
        let (calls, paths) = (self.calls(), self.paths());
        setxattr_where(calls, paths, &self.caller, name, value, flags, place)
    }

    /// Value of an extended attribute. Errors: `ENODATA` if there is none that the
    /// caller may see.
    pub fn getxattr(&self, path: &[u8], name: &[u8], follow: bool) -> Result<Vec<u8>> {
        let place =
            |op: &CallContext<'_>| permitted_xattr(op, self.from(), path, name, READ, follow);
        getxattr_where(self.calls(), &self.caller, name, place)
    }

    /// Removes an extended attribute. Errors: as [`Self::setxattr`].
    pub fn removexattr(&self, path: &[u8], name: &[u8], follow: bool) -> Result<()> {
        let place =
            |op: &CallContext<'_>| permitted_xattr(op, self.from(), path, name, WRITE, follow);
        removexattr_where(self.calls(), self.paths(), &self.caller, name, place)
    }

    /// Names of all extended attributes, each ended by a zero byte.
    pub fn listxattr(&self, path: &[u8], follow: bool) -> Result<Vec<u8>> {
        let place = |op: &CallContext<'_>| Ok(walk(op, self.from(), path, follow)?.ino()?);
        listxattr_where(self.calls(), &self.caller, place)
    }
}

/// The inode that `path` leads to, if the caller may read or write its attribute `name`.
fn permitted_xattr(
    op: &CallContext<'_>,
    from: Origin<'_>,
    path: &[u8],
    name: &[u8],
    want: u32,
    follow: bool,
) -> std::result::Result<u64, Stop> {
    permitted_of(op, walk(op, from, path, follow)?.ino()?, name, want)
}

/// This inode, if the caller may read or write its attribute `name`.
pub(crate) fn permitted_of(
    op: &CallContext<'_>,
    ino: u64,
    name: &[u8],
    want: u32,
) -> std::result::Result<u64, Stop> {
    let node = op.node(ino)?;
    let state = op.read(&node)?;
    let acl = deciding_acl(op, &state)?;
    permitted(op.caller, &state.inode, acl.as_ref(), name, want)?;
    Ok(ino)
}

/// Whether the caller may read or write the attribute `name` of an inode. `security.`
/// and `system.` attributes are read by anybody and written by the superuser, access control lists by the owner, too.
fn permitted(
    caller: &Caller,
    inode: &Inode,
    acl: Option<&Acl>,
    name: &[u8],
    want: u32,
) -> Result<()> {
    if let Some(kind) = AclKind::of(name) {
        // That no list can be set on something is decided before who asks matters.
        let none = inode.is_symlink() || kind == AclKind::Default && !inode.is_dir();
        let barred = want == WRITE && !none && !owns(caller, inode);
        return if barred { Err(Errno::PERM) } else { Ok(()) };
    }
    let hidden = if want == WRITE {
        Errno::PERM
    } else {
        Errno::NODATA
    };
    if name.starts_with(b"trusted.") {
        return if caller.uid == 0 { Ok(()) } else { Err(hidden) };
    }
    if name.starts_with(b"security.") || name.starts_with(b"system.") {
        let barred = want == WRITE && caller.uid != 0;
        return if barred { Err(Errno::PERM) } else { Ok(()) };
    }
    if !name.starts_with(b"user.") {
        return may(caller, inode, acl, want);
    }
    if !inode.is_file() && !inode.is_dir() {
        return Err(hidden);
    }
    let sticky = inode.is_dir() && inode.mode & libc::S_ISVTX != 0;
    if sticky && want == WRITE && !owns(caller, inode) {
        return Err(Errno::PERM);
    }
    may(caller, inode, acl, want)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_spaces_have_their_own_rules() {
        let inode = |mode| Inode {
            mode,
            uid: 5,
            ..Inode::free()
        };
        let (file, link, sticky) = (inode(0o100_644), inode(0o120_777), inode(0o041_777));
        let ann = Caller {
            uid: 7,
            ..Caller::default()
        };
        let root = Caller::default();
        assert_eq!(permitted(&ann, &file, None, b"user.a", READ), Ok(()));
        assert_eq!(
            permitted(&ann, &file, None, b"user.a", WRITE),
            Err(Errno::ACCESS)
        );
        assert_eq!(
            permitted(&root, &link, None, b"user.a", WRITE),
            Err(Errno::PERM)
        );
        assert_eq!(
            permitted(&root, &link, None, b"user.a", READ),
            Err(Errno::NODATA)
        );
        assert_eq!(
            permitted(&ann, &sticky, None, b"user.a", WRITE),
            Err(Errno::PERM)
        );
        assert_eq!(
            permitted(&ann, &file, None, b"trusted.a", READ),
            Err(Errno::NODATA)
        );
        assert_eq!(permitted(&root, &file, None, b"trusted.a", WRITE), Ok(()));
        assert_eq!(permitted(&ann, &file, None, b"security.a", READ), Ok(()));
        assert_eq!(
            permitted(&ann, &file, None, b"security.a", WRITE),
            Err(Errno::PERM)
        );
        let owner = Caller { uid: 5, ..ann };
        let (access, default) = (AclKind::Access.name(), AclKind::Default.name());
        for (caller, inode, name, may) in [
            (&owner, &file, access, Ok(())),
            (&owner, &sticky, default, Ok(())),
            (&root, &file, access, Ok(())),
            (&ann, &file, access, Err(Errno::PERM)),
            (&ann, &sticky, default, Err(Errno::PERM)),
        ] {
            assert_eq!(permitted(caller, inode, None, name, WRITE), may);
            assert_eq!(permitted(caller, inode, None, name, READ), Ok(()));
        }
    }
}
