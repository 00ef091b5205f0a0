//! Directory entries in the leaves of a directory's tree.
//!
//! A leaf is slotted: entries ascend by key behind the header, names grow down
//! from the end of the block.

use crate::FormatError;
use crate::layout::layout;
use crate::limits::NAME_BYTES_MAX;

layout! {
    /// One directory entry; its name lies in the same block
    pub struct DirentEntry: 24 {
        /// key: hash of the name and number among equals
        pub key: u64,
        /// inode
        pub ino: u64,
        /// byte offset of the name in the block
        pub name_at: u16,
        /// bytes of the name
        pub name_bytes: u16,
        /// type of the inode, as in `d_type` (4 directory, 8 file, 10 link …)
        pub kind: u8,
        /// 0
        pub reserved: [u8; 3],
    }
}

/// Type of an inode as directory entries tell it: the `d_type` of `getdents`.
pub fn kind_of_mode(mode: u32) -> u8 {
    ((mode & 0o170_000) >> 12) as u8
}

/// Whether a name may stand in a directory: 1 to 255 bytes, without `/` and NUL,
/// neither `.` nor `..`. Any other bytes are legal, also invalid UTF-8.
pub fn check_name(name: &[u8]) -> Result<(), FormatError> {
    let why = match name {
        [] => "empty",
        b"." | b".." => "reserved",
        n if n.len() > NAME_BYTES_MAX => "too long",
        n if n.iter().any(|&b| b == b'/' || b == 0) => "it contains '/' or NUL",
        _ => return Ok(()),
    };
    Err(FormatError::Name {
        bytes: name.len(),
        why,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        for good in [&b"a"[..], b"...", b"\xff\xfe", &[b'x'; 255]] {
            assert!(check_name(good).is_ok(), "{good:?}");
        }
    }
}
