//! Entries of one directory as they are now: the log's changes over the volume's tree.
//!
//! A change in memory decides about its key; keys without a change are as the tree has
//! them. The caller holds the directory's lock.

use crate::node::NodeState;
use shale_format::DirKey;
use shale_format::limits::NAME_BYTES_MAX;
use shale_session::errno::{Errno, Stop};
use shale_session::volume_reader::VolumeReader;

/// An entry that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundDirent {
    /// Its place in the directory.
    pub key: DirKey,
    /// The inode it names.
    pub ino: u64,
    /// Type of the inode, as in `d_type`.
    pub kind: u8,
}

/// `d_type` of a directory.
pub const KIND_DIR: u8 = 4;
/// `d_type` of a symbolic link.
pub const KIND_SYMLINK: u8 = 10;

impl FoundDirent {
    /// Whether it names a directory.
    #[inline]
    pub fn is_dir(&self) -> bool {
        self.kind == KIND_DIR
    }
}

/// The entry or the place of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The name is there.
    Taken(FoundDirent),
    /// It is not; an entry for it would get this key.
    Vacant(DirKey),
}

/// The entry `name` of a directory.
///
/// # Errors
/// The volume cannot be read.
pub fn find(
    volume: &VolumeReader,
    dir: &NodeState,
    name: &[u8],
) -> std::result::Result<Option<FoundDirent>, Stop> {
    let view = volume.view();
    for (key, e) in dir.dir.group(view.key_group(name)) {
        if *e.name == *name {
            return Ok(Some(FoundDirent {
                key,
                ino: e.ino,
                kind: e.kind,
            }));
        }
    }
    if !dir.in_volume {
        return Ok(None);
    }
    volume.sampling().note_directory(&dir.inode);
    let old = view
        .lookup(&dir.inode, name)?
        .filter(|d| !dir.dir.is_changed(d.key));
    Ok(old.map(|d| FoundDirent {
        key: d.key,
        ino: d.ino.0,
        kind: d.kind,
    }))
}

/// The entry `name` of a directory, or the lowest key that is free for it.
///
/// # Errors
/// `ENOSPC` if all names with this hash that can be distinguished are there; the volume cannot be read.
pub fn slot(
    volume: &VolumeReader,
    dir: &NodeState,
    name: &[u8],
) -> std::result::Result<Slot, Stop> {
    let view = volume.view();
    let group = view.key_group(name);
    let mut taken = 0u64;
    for (key, e) in dir.dir.group(group) {
        if *e.name == *name {
            return Ok(Slot::Taken(FoundDirent {
                key,
                ino: e.ino,
                kind: e.kind,
            }));
        }
        taken |= 1 << key.twin();
    }
    if dir.in_volume {
        for d in view.collisions(&dir.inode, group)? {
            if !dir.dir.is_changed(d.key) {
                if d.name == name {
                    return Ok(Slot::Taken(FoundDirent {
                        key: d.key,
                        ino: d.ino.0,
                        kind: d.kind,
                    }));
                }
                taken |= 1 << d.key.twin();
            }
        }
    }
    match taken.trailing_ones() as u64 {
        DirKey::COLLISIONS.. => Err(Errno::NOSPC.into()),
        free => Ok(Slot::Vacant(group.with_twin(free as u8))),
    }
}

/// Refuses a name that is too long to be looked for.
///
/// # Errors
/// `ENAMETOOLONG`.
pub fn check_length(name: &[u8]) -> std::result::Result<(), Errno> {
    if name.len() > NAME_BYTES_MAX {
        Err(Errno::NAMETOOLONG)
    } else {
        Ok(())
    }
}

/// Refuses a name that no new entry can have.
///
/// # Errors
/// `ENOENT`, `EEXIST` and `EINVAL` as open(2) has them; `ENAMETOOLONG`.
pub fn check_new(name: &[u8]) -> std::result::Result<(), Errno> {
    check_length(name)?;
    match name {
        [] => Err(Errno::NOENT),
        b"." | b".." => Err(Errno::EXIST),
        n if n.iter().any(|&b| b == b'/' || b == 0) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_made() {
        for (name, errno) in [
            (&b""[..], Errno::NOENT),
            (b".", Errno::EXIST),
            (b"..", Errno::EXIST),
            (b"a/b", Errno::INVAL),
            (b"a\0", Errno::INVAL),
            (&[b'x'; 256], Errno::NAMETOOLONG),
        ] {
            assert_eq!(check_new(name), Err(errno));
        }
        assert_eq!(check_new(&[0xff; 255]), Ok(()));
        assert_eq!(check_new(b"..."), Ok(()));
    }
}
