//! Extended attributes of one inode: one checksummed run of blocks, written anew
//! whenever one of them changes.

use crate::checksum::crc32c_parts;
use crate::layout::layout;
use crate::limits::{XATTR_NAME_BYTES_MAX, XATTR_TOTAL_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use crate::sealed::{self, Sealed, sealed};
use crate::{BlockAddr, FormatError, Ino};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

/// First bytes of a run of extended attributes: "SHALEXAT".
pub const XATTR_MAGIC: u64 = u64::from_le_bytes(*b"SHALEXAT");

/// The attributes of an inode by name.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

layout! {
    /// Header of the extended attributes of an inode
    pub struct XattrHeader: 40 {
        /// "SHALEXAT"
        pub magic: u64,
        /// address of the first block
        pub addr: u64,
        /// inode
        pub owner: u64,
        /// bytes behind the header
        pub bytes: u32,
        /// number of attributes
        pub count: u32,
        /// CRC-32C of header and rest with this field 0
        pub crc: u32,
        /// 0
        pub reserved: u32,
    }
}

layout! {
    /// One attribute: name and value follow
    pub struct XattrEntry: 8 {
        /// bytes of the value
        pub value_bytes: u32,
        /// bytes of the name
        pub name_bytes: u16,
        /// 0
        pub reserved: u16,
    }
}

sealed!(XattrHeader, "extended attributes", XATTR_MAGIC);

/// Bytes that `attrs` fill when encoded.
pub fn encoded_bytes(attrs: &Xattrs) -> usize {
    XattrHeader::BYTES
        + attrs
            .iter()
            .map(|(n, v)| XattrEntry::BYTES + n.len() + v.len())
            .sum::<usize>()
}

/// The attributes of `owner` as they are written at `addr`.
pub fn encode(attrs: &Xattrs, owner: Ino, addr: BlockAddr) -> Vec<u8> {
    let mut rest = Vec::with_capacity(encoded_bytes(attrs));
    for (name, value) in attrs {
        let e = XattrEntry {
            value_bytes: value.len() as u32,
            name_bytes: name.len() as u16,
            reserved: 0,
        };
        rest.extend_from_slice(e.as_bytes());
        rest.extend_from_slice(name);
        rest.extend_from_slice(value);
    }
    let mut h = XattrHeader {
        magic: XATTR_MAGIC,
        addr: addr.raw(),
        owner: owner.0,
        bytes: rest.len() as u32,
        count: attrs.len() as u32,
        crc: 0,
        reserved: 0,
    };
    h.crc = crc32c_parts(&[h.as_bytes(), &rest]);
    let mut out = h.as_bytes().to_vec();
    out.append(&mut rest);
    out
}

/// Reads the attributes of `owner` from the bytes found at `addr`.
pub fn decode(bytes: &[u8], owner: Ino, addr: BlockAddr) -> Result<Xattrs, FormatError> {
    const WHAT: &str = XattrHeader::WHAT;
    let at = addr.index();
    let short = |expected| FormatError::Short {
        what: WHAT,
        expected,
        found: bytes.len(),
    };
    let field = |field, found| FormatError::Field {
        what: WHAT,
        at,
        field,
        found,
    };
    let (h, rest) = sealed::read::<XattrHeader>(bytes, at)?;
    let length = h.bytes as usize;
    if length > XATTR_TOTAL_BYTES_MAX {
        return Err(field("bytes", h.bytes.into()));
    }
    let rest = rest
        .get(..length)
        .ok_or_else(|| short(length + XattrHeader::BYTES))?;
    sealed::verify(&h, rest, at)?;
    if h.addr != addr.raw() {
        return Err(FormatError::Misplaced {
            what: WHAT,
            at,
            found: BlockAddr::from_raw(h.addr).index(),
        });
    }
    if h.owner != owner.0 {
        return Err(field("owner", h.owner));
    }
    let mut attrs = Xattrs::new();
    let mut left = rest;
    for _ in 0..h.count {
        let (e, tail) =
            XattrEntry::read_from_prefix(left).map_err(|_| field("count", h.count.into()))?;
        let (n, v) = (e.name_bytes as usize, e.value_bytes as usize);
        if n == 0 || n > XATTR_NAME_BYTES_MAX || v > XATTR_VALUE_BYTES_MAX || tail.len() < n + v {
            return Err(field("value_bytes", e.value_bytes.into()));
        }
        attrs.insert(tail[..n].to_vec(), tail[n..n + v].to_vec());
        left = &tail[n + v..];
    }
    Ok(attrs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_damage() {
        let mut a = Xattrs::new();
        a.insert(b"user.x".to_vec(), vec![]);
        a.insert(b"user.y".to_vec(), vec![7; 5000]);
        let addr = BlockAddr::nvm(100);
        let mut bytes = encode(&a, Ino(20), addr);
        assert_eq!(bytes.len(), encoded_bytes(&a));
        bytes.resize(8192, 0xee);
        assert_eq!(decode(&bytes, Ino(20), addr).unwrap(), a);
        assert!(decode(&bytes, Ino(21), addr).is_err());
        assert!(decode(&bytes, Ino(20), addr.plus(1)).is_err());
        bytes[300] ^= 1;
        assert!(decode(&bytes, Ino(20), addr).is_err());
    }
}
