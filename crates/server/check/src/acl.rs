//! Access control lists: each is one, of an inode that can have it, and the mode says what the list says.

use shale_format::acl::{Acl, AclKind};
use shale_format::inode::Inode;
use shale_format::superblock::Superblock;
use shale_format::xattr::Xattrs;

/// What is wrong with the lists of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// This one cannot be: whatever it lets anybody do is unknown.
    List(String),
    /// The mode has other permission bits than the list.
    Mode { expected: u32, found: u32 },
}

/// Looks at the lists among the attributes of an inode.
pub(super) fn check(sb: &Superblock, inode: &Inode, attrs: &Xattrs) -> Result<(), Wrong> {
    let list = |why: String| Err(Wrong::List(why));
    for kind in AclKind::BOTH {
        let acl = match Acl::among(attrs, kind) {
            Ok(None) => continue,
            Err(e) => return list(e.to_string()),
            Ok(Some(acl)) => acl,
        };
        if !sb.has_posix_acls() {
            return list("a list in a volume that has none".to_owned());
        }
        if inode.is_symlink() || kind == AclKind::Default && !inode.is_dir() {
            return list(format!("a list of an inode with mode {:o}", inode.mode));
        }
        let (expected, is_all) = acl.as_mode();
        if kind == AclKind::Default {
            continue;
        }
        if is_all {
            return list("a list that says no more than a mode".to_owned());
        }
        let found = inode.mode & 0o777;
        if found != expected {
            return Err(Wrong::Mode { expected, found });
        }
    }
    Ok(())
}
