//! Extended attributes, of files by path and of placeholders: those of users, and access control lists to be read. All others
//! (capabilities and labels, which the kernel makes or changes itself; attributes that need a capability; lists that are set, which the
//! kernel keeps) are the kernel's.

use crate::calls::vectors::{Access, Buffer};
use shale_format::acl::AclKind;
use shale_format::limits::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use shale_interpose::probe;
use shale_interpose::raw::{Args, nr};
use shale_libfs::{Errno, File, Tree, XATTR_CREATE, XATTR_REPLACE};

/// Numbers of the calls about extended attributes by a path.
pub const CALLS: [u32; 8] = [
    nr::SETXATTR,
    nr::LSETXATTR,
    nr::GETXATTR,
    nr::LGETXATTR,
    nr::LISTXATTR,
    nr::LLISTXATTR,
    nr::REMOVEXATTR,
    nr::LREMOVEXATTR,
];

/// Names of all attributes of a file together, as the kernel gives them, bytes at most.
const LIST_BYTES_MAX: usize = 64 << 10;

/// What a call asks for.
pub struct Asked(What);

enum What {
    /// To set one.
    Set {
        name: Vec<u8>,
        value: Vec<u8>,
        flags: u32,
    },
    /// The value of one, into memory of the program's of so many bytes.
    Get { name: Vec<u8>, into: Space },
    /// The names of all.
    List { into: Space },
    /// To remove one.
    Remove { name: Vec<u8> },
}

/// Memory that the program gave for an answer.
struct Space {
    at: u64,
    /// 0: the program asks how many are needed.
    bytes: u64,
}

/// What has the attributes.
pub enum Of<'a> {
    /// What a path leads to.
    Path {
        /// Where it begins.
        tree: &'a Tree,
        /// The path.
        path: &'a [u8],
        /// A symbolic link at its end is followed.
        follow: bool,
    },
    /// A placeholder.
    Open(&'a File),
}

/// Whether a call that sets an attribute sets an access control list, and with it the mode.
pub fn sets_list(args: &Args) -> bool {
    name(args[1]).is_some_and(|name| AclKind::of(&name).is_some())
}

/// Whether a call with a path follows a symbolic link at its end.
pub fn follows(number: u32) -> bool {
    let links = [
        nr::LSETXATTR,
        nr::LGETXATTR,
        nr::LLISTXATTR,
        nr::LREMOVEXATTR,
    ];
    !links.contains(&number)
}

impl Asked {
    /// Of a call with a path or a descriptor. `None`: it is the kernel's, or the kernel says what is wrong with it.
    pub fn of(number: u32, a: &Args) -> Option<Self> {
        let into = |at, bytes| Space { at, bytes };
        Some(Self(match number {
            nr::SETXATTR | nr::LSETXATTR | nr::FSETXATTR => What::Set {
                name: users(a[1])?,
                value: value(a[2], a[3])?,
                flags: flags(a[4])?,
            },
            nr::GETXATTR | nr::LGETXATTR | nr::FGETXATTR => {
                let name = name(a[1])?;
                if !is_users(&name) && AclKind::of(&name).is_none() {
                    return None;
                }
                let into = into(a[2], a[3]);
                What::Get { name, into }
            }
            nr::LISTXATTR | nr::LLISTXATTR | nr::FLISTXATTR => What::List {
                into: into(a[1], a[2]),
            },
            nr::REMOVEXATTR | nr::LREMOVEXATTR | nr::FREMOVEXATTR => {
                What::Remove { name: users(a[1])? }
            }
            _ => return None,
        }))
    }

    /// Does it. `None`: it is the kernel's.
    pub fn done(&self, of: &Of<'_>) -> Option<Result<i64, Errno>> {
        let nothing = |done: Result<(), Errno>| done.map(|()| 0);
        Some(match &self.0 {
            What::Set { name, value, flags } => nothing(of.set(name, value, *flags)),
            What::Remove { name } => nothing(of.remove(name)),
            What::Get { name, into } => match of.get(name) {
                Err(Errno::NODATA) if AclKind::of(name).is_some() && of.may_be_link() => {
                    return None;
                }
                found => found.and_then(|value| into.put(&value)),
            },
            What::List { into } => match of.list() {
                Ok(names) if names.len() > LIST_BYTES_MAX => return None,
                found => found.and_then(|names| into.put(&names)),
            },
        })
    }
}

impl Of<'_> {
    fn set(&self, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        match *self {
            Self::Path { tree, path, follow } => tree.setxattr(path, name, value, flags, follow),
            Self::Open(file) => file.setxattr(name, value, flags),
        }
    }

    fn get(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        match *self {
            Self::Path { tree, path, follow } => tree.getxattr(path, name, follow),
            Self::Open(file) => file.getxattr(name),
        }
    }

    fn list(&self) -> Result<Vec<u8>, Errno> {
        match *self {
            Self::Path { tree, path, follow } => tree.listxattr(path, follow),
            Self::Open(file) => file.listxattr(),
        }
    }

    fn remove(&self, name: &[u8]) -> Result<(), Errno> {
        match *self {
            Self::Path { tree, path, follow } => tree.removexattr(path, name, follow),
            Self::Open(file) => file.removexattr(name),
        }
    }

    /// Whether it may be a symbolic link, which can have no access control list.
    fn may_be_link(&self) -> bool {
        let Self::Path { tree, path, follow } = *self else {
            return false;
        };
        let is_link = |mode: u32| mode & libc::S_IFMT == libc::S_IFLNK;
        !follow && tree.lstat(path).map_or(true, |attr| is_link(attr.mode))
    }
}

impl Space {
    /// Gives the program an answer; its bytes.
    fn put(&self, answer: &[u8]) -> Result<i64, Errno> {
        let bytes = answer.len() as u64;
        if self.bytes != 0 && bytes > self.bytes {
            return Err(Errno::RANGE);
        }
        if self.bytes != 0 && bytes != 0 {
            let buffer = Buffer::of(self.at, bytes, Access::Write).map_err(|_| Errno::FAULT)?;
            // SAFETY: the program gave the memory for this call.
            unsafe { buffer.space() }.copy_from_slice(answer);
        }
        Ok(bytes as i64)
    }
}

/// The name of an attribute at an address.
fn name(at: u64) -> Option<Vec<u8>> {
    // SAFETY: a string of the program's, as it says.
    let name = unsafe { probe::string(at, XATTR_NAME_BYTES_MAX + 1) }?.to_bytes();
    (!name.is_empty()).then(|| name.to_vec())
}

fn is_users(name: &[u8]) -> bool {
    name.strip_prefix(b"user.")
        .is_some_and(|rest| !rest.is_empty())
}

/// The name of an attribute that every user may set.
fn users(at: u64) -> Option<Vec<u8>> {
    name(at).filter(|name| is_users(name))
}

/// The value of an attribute. A copy: it may lie in a mapping of a file of the volume.
fn value(at: u64, bytes: u64) -> Option<Vec<u8>> {
    if bytes > XATTR_VALUE_BYTES_MAX as u64 {
        return None;
    }
    let buffer = Buffer::of(at, bytes, Access::Read).ok()?;
    // SAFETY: the program gave it for this call.
    let value = unsafe { buffer.data() };
    (value.len() as u64 == bytes).then(|| value.to_vec())
}

fn flags(given: u64) -> Option<u32> {
    let flags = given as u32;
    [0, XATTR_CREATE, XATTR_REPLACE]
        .contains(&flags)
        .then_some(flags)
}
