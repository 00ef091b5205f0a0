//! Extended attributes of one inode: one checksummed run of blocks, rewritten
//! whenever one of them changes. Where no run is free that is long enough they lie in
//! single blocks, which a list in one more block names: a full volume whose free
//! blocks are scattered still takes what it has space for.

use crate::checksum::crc32c_parts;
use crate::checksummed::{self, Sealed, sealed};
use crate::layout::layout;
use crate::limits::{
    BLOCK_BYTES, XATTR_NAME_BYTES_MAX, XATTR_TOTAL_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};
use crate::{BlockAddr, FormatError, Ino};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

/// First bytes of a run of extended attributes: "SHALEXAT".
pub const XATTR_MAGIC: u64 = u64::from_le_bytes(*b"SHALEXAT");
/// First bytes of a list of the blocks of extended attributes: "SHALEXLI".
pub const XATTR_LIST_MAGIC: u64 = u64::from_le_bytes(*b"SHALEXLI");
/// Most blocks that the extended attributes of one inode fill.
pub const XATTR_BLOCKS_MAX: usize =
    (XATTR_TOTAL_BYTES_MAX + XattrHeader::BYTES).div_ceil(BLOCK_BYTES);

const _: () = assert!(
    XattrList::BYTES + XATTR_BLOCKS_MAX * size_of::<u64>() <= BLOCK_BYTES,
    "a list fits one block"
);

/// Attribute that says what a program may do beyond its user's rights. It does not outlive a change
/// of the program's content or owner.
pub const CAPABILITY: &[u8] = b"security.capability";

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

layout! {
    /// Header of a list of the blocks of scattered extended attributes; their addresses follow
    pub struct XattrList: 32 {
        /// "SHALEXLI"
        pub magic: u64,
        /// address of this block
        pub addr: u64,
        /// inode
        pub owner: u64,
        /// number of blocks
        pub count: u32,
        /// CRC-32C of header and addresses with this field 0
        pub crc: u32,
    }
}

sealed!(XattrHeader, "extended attributes", XATTR_MAGIC);
sealed!(
    XattrList,
    "list of extended attribute blocks",
    XATTR_LIST_MAGIC
);

/// The list at `addr` of the blocks that hold the attributes of `owner`. Panics above
/// [`XATTR_BLOCKS_MAX`] blocks.
pub fn encode_list(blocks: &[BlockAddr], owner: Ino, addr: BlockAddr) -> Vec<u8> {
    assert!(blocks.len() <= XATTR_BLOCKS_MAX);
    let rest: Vec<u8> = blocks.iter().flat_map(|b| b.raw().to_le_bytes()).collect();
    let mut h = XattrList {
        magic: XATTR_LIST_MAGIC,
        addr: addr.raw(),
        owner: owner.0,
        count: blocks.len() as u32,
        crc: 0,
    };
    h.crc = crc32c_parts(&[h.as_bytes(), &rest]);
    [h.as_bytes(), &rest].concat()
}

/// Reads the list found at `addr`, which should name the blocks of `owner`'s attributes.
pub fn decode_list(
    block: &[u8; BLOCK_BYTES],
    owner: Ino,
    addr: BlockAddr,
) -> Result<Vec<BlockAddr>, FormatError> {
    let at = addr.index();
    let field = |field, found| FormatError::Field {
        what: XattrList::WHAT,
        at,
        field,
        found,
    };
    let (h, rest) = checksummed::read::<XattrList>(&block[..], at)?;
    let count = h.count as usize;
    if count == 0 || count > XATTR_BLOCKS_MAX {
        return Err(field("count", h.count.into()));
    }
    let rest = &rest[..count * size_of::<u64>()];
    checksummed::verify(&h, rest, at)?;
    if h.addr != addr.raw() {
        return Err(FormatError::Misplaced {
            what: XattrList::WHAT,
            at,
            found: BlockAddr::from_raw(h.addr).index(),
        });
    }
    if h.owner != owner.0 {
        return Err(field("owner", h.owner));
    }
    let (addresses, _) = rest.as_chunks();
    let addresses = addresses.iter().map(|&raw| u64::from_le_bytes(raw));
    Ok(addresses.map(BlockAddr::from_raw).collect())
}

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
    let (h, rest) = checksummed::read::<XattrHeader>(bytes, at)?;
    let length = h.bytes as usize;
    if length > XATTR_TOTAL_BYTES_MAX {
        return Err(field("bytes", h.bytes.into()));
    }
    let rest = rest
        .get(..length)
        .ok_or_else(|| short(length + XattrHeader::BYTES))?;
    checksummed::verify(&h, rest, at)?;
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

    #[test]
    fn a_list_round_trips_and_shows_damage() {
        let blocks: Vec<BlockAddr> = (0..XATTR_BLOCKS_MAX as u64)
            .map(|n| BlockAddr::nvm(700 + 3 * n))
            .collect();
        let addr = BlockAddr::nvm(90);
        let mut block = [0; BLOCK_BYTES];
        let bytes = encode_list(&blocks, Ino(20), addr);
        block[..bytes.len()].copy_from_slice(&bytes);
        assert_eq!(decode_list(&block, Ino(20), addr).unwrap(), blocks);
        assert!(decode_list(&block, Ino(21), addr).is_err());
        assert!(decode_list(&block, Ino(20), addr.plus(1)).is_err());
        for at in [0, 9, 17, 24, 28, 40, bytes.len() - 1] {
            let mut bad = block;
            bad[at] ^= 0x40;
            assert!(decode_list(&bad, Ino(20), addr).is_err(), "byte {at}");
        }
    }
}
