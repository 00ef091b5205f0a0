//! POSIX access control lists, as Linux has them: their bytes in the attributes `system.posix_acl_access` and
//! `system.posix_acl_default` (version 2 of the kernel's format), which lists are valid, whom one lets do what, and how
//! list and mode follow each other. Pure: what is here is decided from bytes and numbers alone.
//!
//! The list that decides about an inode says of owner, mask (without one: owning group) and others what its mode says, for
//! a change of one is a change of the other. A list that says no more than a mode is not stored.

use crate::files::inode::Inode;
use crate::files::xattr::Xattrs;
use crate::limits::ACL_BYTES_MAX;

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The number in an entry that names nobody.
const NO_ID: u32 = u32::MAX;
/// May read, write and execute.
const ALL: u32 = 7;
/// Permission bits of a mode.
const PERMISSIONS: u32 = 0o777;

/// Which of the two lists of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclKind {
    /// It decides who may do what.
    Access,
    /// Of a directory: what is made in it gets its own from it.
    Default,
}

impl AclKind {
    /// Both.
    pub const BOTH: [AclKind; 2] = [AclKind::Access, AclKind::Default];

    /// The attribute that holds it.
    pub fn name(self) -> &'static [u8] {
        match self {
            AclKind::Access => b"system.posix_acl_access",
            AclKind::Default => b"system.posix_acl_default",
        }
    }

    /// The list that the attribute `name` holds.
    pub fn of(name: &[u8]) -> Option<Self> {
        Self::BOTH.into_iter().find(|kind| kind.name() == name)
    }
}

/// Whom an entry is about, in the order in which entries stand in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// The owner.
    Owner,
    /// This user.
    User(u32),
    /// The owning group.
    OwningGroup,
    /// This group.
    Group(u32),
    /// Nobody: what named users and all groups may at most.
    Mask,
    /// Everybody else.
    Other,
}

impl Who {
    fn from_words(tag: u16, id: u32) -> Option<Self> {
        let named = |who: Self| (id != NO_ID).then_some(who);
        match tag {
            0x01 => Some(Who::Owner),
            0x02 => named(Who::User(id)),
            0x04 => Some(Who::OwningGroup),
            0x08 => named(Who::Group(id)),
            0x10 => Some(Who::Mask),
            0x20 => Some(Who::Other),
            _ => None,
        }
    }

    fn words(self) -> (u16, u32) {
        match self {
            Who::Owner => (0x01, NO_ID),
            Who::User(id) => (0x02, id),
            Who::OwningGroup => (0x04, NO_ID),
            Who::Group(id) => (0x08, id),
            Who::Mask => (0x10, NO_ID),
            Who::Other => (0x20, NO_ID),
        }
    }
}

/// One entry: 4 read, 2 write, 1 execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// Whom it is about.
    pub who: Who,
    /// What they may.
    pub may: u16,
}

/// Why bytes are no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// Another version of the format (`EOPNOTSUPP`).
    #[error("version {found} of an access control list, expected {VERSION}")]
    Version {
        /// The version.
        found: u32,
    },
    /// Bytes that cannot be entries (`EINVAL`).
    #[error("{bytes} bytes that are no access control list")]
    Bytes {
        /// How many.
        bytes: usize,
    },
    /// Longer than the kernel takes (`E2BIG`).
    #[error("an access control list of {bytes} bytes, at most {ACL_BYTES_MAX}")]
    Long {
        /// How many.
        bytes: usize,
    },
    /// Entries that do not make a list: their order, one that is missing, one too many (`EINVAL`).
    #[error("an access control list whose entries are not in order or not complete")]
    Entries,
}

/// A list. It is what was read: [`Self::is_valid`] says whether it makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// A list of these entries.
    pub fn new(entries: Vec<AclEntry>) -> Self {
        Self { entries }
    }

    /// Reads the value of an attribute; `None`: no entry, which is the same as no list.
    ///
    /// # Errors
    /// What cannot be read, as the kernel's `posix_acl_from_xattr`. Whether the list is valid is not asked.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, AclError> {
        let none = AclError::Bytes { bytes: bytes.len() };
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.len() > ACL_BYTES_MAX {
            return Err(AclError::Long { bytes: bytes.len() });
        }
        let (version, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(none)?;
        let found = u32::from_le_bytes(*version);
        if found != VERSION {
            return Err(AclError::Version { found });
        }
        let (entries, left) = rest.as_chunks::<ENTRY_BYTES>();
        if !left.is_empty() {
            return Err(none);
        }
        let entry = |e: &[u8; ENTRY_BYTES]| {
            let tag = u16::from_le_bytes([e[0], e[1]]);
            let may = u16::from_le_bytes([e[2], e[3]]);
            let who = Who::from_words(tag, u32::from_le_bytes([e[4], e[5], e[6], e[7]]))?;
            Some(AclEntry { who, may })
        };
        let entries: Option<Vec<_>> = entries.iter().map(entry).collect();
        let entries = entries.ok_or(none)?;
        Ok((!entries.is_empty()).then_some(Self { entries }))
    }

    /// Reads what is stored: a valid list.
    ///
    /// # Errors
    /// Anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, AclError> {
        let none = AclError::Bytes { bytes: bytes.len() };
        let acl = Self::parse(bytes)?.ok_or(none)?;
        match acl.is_valid() {
            true => Ok(acl),
            false => Err(AclError::Entries),
        }
    }

    /// The list of this kind among the attributes of an inode.
    ///
    /// # Errors
    /// What is there is none.
    pub fn among(attrs: &Xattrs, kind: AclKind) -> Result<Option<Self>, AclError> {
        attrs.get(kind.name()).map(|v| Self::decode(v)).transpose()
    }

    /// As the value of an attribute.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            let (tag, id) = entry.who.words();
            bytes.extend(tag.to_le_bytes());
            bytes.extend(entry.may.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// Its entries.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// Whether it is a list, as the kernel's `posix_acl_valid`: entries in order of their kinds, exactly one for owner, owning
    /// group and others, at most one mask, which there is if a user or group is named. Which user or group comes
    /// first, and whether one comes twice, is no matter.
    pub fn is_valid(&self) -> bool {
        let rank = |who: Who| match who {
            Who::Owner => 0,
            Who::User(_) => 1,
            Who::OwningGroup => 2,
            Who::Group(_) => 3,
            Who::Mask => 4,
            Who::Other => 5,
        };
        let ranks: Vec<usize> = self.entries.iter().map(|e| rank(e.who)).collect();
        let mut count = [0usize; 6];
        ranks.iter().for_each(|&r| count[r] += 1);
        let named = count[1] + count[3] > 0;
        self.entries.iter().all(|e| u32::from(e.may) & !ALL == 0)
            && ranks.is_sorted()
            && [count[0], count[2], count[5]] == [1; 3]
            && count[4] <= 1
            && (!named || count[4] == 1)
    }

    /// The permission bits of a mode that says the same of owner, mask (without one: owning group) and others; and
    /// whether that is all that the list says, so that it need not be stored.
    pub fn as_mode(&self) -> (u32, bool) {
        let mut mode = 0;
        let mut is_all = true;
        for entry in &self.entries {
            let may = u32::from(entry.may) & ALL;
            match entry.who {
                Who::Owner => mode |= may << 6,
                Who::OwningGroup => mode |= may << 3,
                Who::Other => mode |= may,
                Who::Mask => {
                    mode = mode & !0o070 | may << 3;
                    is_all = false;
                }
                Who::User(_) | Who::Group(_) => is_all = false,
            }
        }
        (mode, is_all)
    }

    /// The entry that the group bits of the mode speak of: the mask, without one the owning group's.
    fn group_bits(&self) -> Option<usize> {
        let of = |who| self.entries.iter().position(|e| e.who == who);
        of(Who::Mask).or_else(|| of(Who::OwningGroup))
    }

    /// The list after a `chmod` to this mode.
    pub fn with_mode(&self, mode: u32) -> Self {
        let mut new = self.clone();
        let group = self.group_bits();
        for (n, entry) in new.entries.iter_mut().enumerate() {
            let shift = match entry.who {
                Who::Owner => 6,
                Who::Other => 0,
                _ if Some(n) == group => 3,
                _ => continue,
            };
            entry.may = (mode >> shift & ALL) as u16;
        }
        new
    }

    /// What an inode that a call makes with this mode in a directory with this default list gets: its mode, and its own
    /// list if that says more. (The umask is no matter then.)
    pub fn inherited(&self, mode: u32) -> (u32, Option<Self>) {
        let (most, _) = self.as_mode();
        let mode = mode & (most | !PERMISSIONS);
        let own = self.with_mode(mode);
        let (_, is_all) = own.as_mode();
        (mode, (!is_all).then_some(own))
    }

    /// Whether it lets a user do all of `want`, who is not the owner.
    fn lets(&self, uid: u32, gid: u32, is_in: &dyn Fn(u32) -> bool, want: u32) -> bool {
        let may = |e: &AclEntry| u32::from(e.may) & want == want;
        let mask = self.entries.iter().find(|e| e.who == Who::Mask);
        let masked = |e: &AclEntry| may(e) && mask.is_none_or(may);
        let mut in_one = false;
        for entry in &self.entries {
            let group = match entry.who {
                Who::User(id) if id == uid => return masked(entry),
                Who::OwningGroup => gid,
                Who::Group(id) => id,
                Who::Other => return !in_one && may(entry),
                _ => continue,
            };
            if is_in(group) {
                if may(entry) {
                    return masked(entry);
                }
                in_one = true;
            }
        }
        false
    }
}

/// Whether the list of an inode matters to what this user may do: not to its owner, and to nobody where the mode's group
/// bits, which are the mask, allow nothing (the kernel looks at the mode alone then).
pub fn matters(inode: &Inode, uid: u32) -> bool {
    uid != inode.uid && inode.mode & 0o070 != 0
}

/// Whether POSIX lets a user without privileges do all of `want` (4 read, 2 write, 1 execute) with an inode, as the kernel's
/// `acl_permission_check`. `acl`: its list, which need not be had where it does not [matter](matters).
pub fn permits(
    inode: &Inode,
    acl: Option<&Acl>,
    uid: u32,
    is_in: &dyn Fn(u32) -> bool,
    want: u32,
) -> bool {
    let want = want & ALL;
    if let Some(acl) = acl.filter(|_| matters(inode, uid)) {
        return acl.lets(uid, inode.gid, is_in, want);
    }
    let class = if uid == inode.uid {
        6
    } else if is_in(inode.gid) {
        3
    } else {
        0
    };
    inode.mode >> class & want == want
}

#[cfg(test)]
mod tests;
