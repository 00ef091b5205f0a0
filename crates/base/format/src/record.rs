//! Records of the update log: one operation each (Strata §3.2, DESIGN §5).
//!
//! A record is a 64-byte header, a body that depends on its kind, names or data,
//! and zeros up to a multiple of 64 bytes. It names inodes and offsets, never
//! "the next" anything, so replaying it twice changes nothing. Its checksum is
//! salted by the log and covers its own position, so a record left from an
//! earlier turn of the ring, or from another log, is never taken for a new one.

use crate::checksum::crc32c_parts;
use crate::layout::layout;
use crate::limits::{RECORD_ALIGN, RECORD_BYTES_MAX};
use zerocopy::{FromBytes, IntoBytes};

/// What a record does. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Fills the ring up to its end.
    Pad = 1,
    /// Makes an inode and its first name. `ino`: directory (0 for `O_TMPFILE`); `offset`: the new inode.
    Create = 2,
    /// Adds a name. `ino`: directory; `offset`: the inode.
    Link = 3,
    /// Removes a name (file or empty directory). `ino`: directory; `offset`: the inode.
    Unlink = 4,
    /// Moves a name. `ino`: source directory; `offset`: the inode that moves.
    Rename = 5,
    /// Writes `payload_bytes` bytes at `offset`.
    Write = 6,
    /// Links full blocks that the client wrote itself at `offset` (a multiple of 4096).
    Steal = 7,
    /// Sets the size to `offset`.
    Truncate = 8,
    /// Sets owner, mode or times.
    SetAttr = 9,
    /// Sets an extended attribute.
    SetXattr = 10,
    /// Removes an extended attribute.
    RemoveXattr = 11,
    /// Allocates, punches, zeroes, collapses or inserts a range from `offset`.
    Fallocate = 12,
    /// Frees an inode without names whose last user has gone.
    Free = 13,
}

impl Kind {
    /// The kind with this persisted number.
    pub fn from_number(n: u8) -> Option<Self> {
        use Kind::*;
        [
            Pad,
            Create,
            Link,
            Unlink,
            Rename,
            Write,
            Steal,
            Truncate,
            SetAttr,
            SetXattr,
            RemoveXattr,
            Fallocate,
            Free,
        ]
        .into_iter()
        .find(|&k| k as u8 == n)
    }
}

/// Bits of [`RecordHeader::flags`].
pub mod flag {
    /// The transaction goes on in the next record of the log.
    pub const MORE: u8 = 1;
    /// The checksum covers header and body, not the data behind them: a fence
    /// made the data durable before the header was written.
    pub const FENCED: u8 = 2;
    /// The operation takes away set-user-id and set-group-id (a write by another user).
    pub const KILL_SUID: u8 = 4;
    /// Unlink, Rename: the inode that loses its last name has no user left and is freed at once.
    pub const FREE_NOW: u8 = 8;
    /// Unlink: the name is one of a directory. Rename: a directory moves.
    pub const DIRECTORY: u8 = 16;
    /// All of them; a record with another one is from a program that this one does not know.
    pub const KNOWN: u8 = MORE | FENCED | KILL_SUID | FREE_NOW | DIRECTORY;
}

layout! {
    /// Header of a record
    pub struct RecordHeader: 64 {
        /// CRC-32C over the log's salt and the record with this field 0
        pub crc: u32,
        /// bytes of the whole record, a multiple of 64
        pub bytes: u32,
        /// what the record does
        pub kind: u8,
        /// 1 more, 2 fenced, 4 kill set-id, 8 free now, 16 directory
        pub flags: u8,
        /// bytes of the body behind the header, before names or data
        pub body_bytes: u16,
        /// bytes of names or data behind the body
        pub payload_bytes: u32,
        /// position of the record in the log
        pub pos: u64,
        /// inode
        pub ino: u64,
        /// offset in the file, or the second inode
        pub offset: u64,
        /// time of the operation, ns since 1970
        pub time_ns: i64,
        /// request of the kernel that it answers; 0: none
        pub request: u64,
        /// generation of the lease that it was made under
        pub lease: u32,
        /// net bytes of the volume reserved for it, in units of 64
        pub reserve: u32,
    }
}

layout! {
    /// Body of `Create`; behind it the name, then the target of a symbolic link
    pub struct CreateBody: 40 {
        /// type and permission bits
        pub mode: u32,
        /// owner
        pub uid: u32,
        /// group
        pub gid: u32,
        /// generation of the inode
        pub generation: u32,
        /// device number
        pub rdev: u64,
        /// bytes of the name
        pub name_bytes: u16,
        /// bytes of the link target
        pub target_bytes: u16,
        /// number among names with the same hash
        pub twin: u8,
        /// 0
        pub reserved: [u8; 11],
    }
}

layout! {
    /// Body of `Link` and `Unlink`; behind it the name
    pub struct LinkBody: 8 {
        /// bytes of the name
        pub name_bytes: u16,
        /// number among names with the same hash
        pub twin: u8,
        /// type of the inode, as in `d_type`
        pub kind: u8,
        /// 0
        pub reserved: [u8; 4],
    }
}

layout! {
    /// Body of `Rename`; behind it the old name, then the new one
    pub struct RenameBody: 32 {
        /// directory of the new name
        pub new_parent: u64,
        /// inode that had the new name; 0: none
        pub replaced: u64,
        /// `RENAME_EXCHANGE` (2) or 0; `NOREPLACE` is decided before
        pub flags: u32,
        /// bytes of the old name
        pub old_bytes: u16,
        /// bytes of the new name
        pub new_bytes: u16,
        /// number of the old name among names with the same hash
        pub old_twin: u8,
        /// number of the new name among names with the same hash
        pub new_twin: u8,
        /// type of the inode that moves, as in `d_type`
        pub kind: u8,
        /// type of the inode that had the new name
        pub replaced_kind: u8,
        /// 0
        pub reserved: [u8; 4],
    }
}

layout! {
    /// Body of `Steal`
    pub struct StealBody: 24 {
        /// first of the blocks, which follow one another
        pub addr: u64,
        /// blocks
        pub blocks: u32,
        /// CRC-32C of the blocks' bytes; unused with flag 2
        pub data_crc: u32,
        /// the file is at least this long afterwards
        pub end: u64,
    }
}

layout! {
    /// Body of `SetAttr`
    pub struct SetAttrBody: 56 {
        /// which: 1 mode, 2 uid, 4 gid, 8 access time, 16 modify time, 32 change time, 64 flags
        pub valid: u32,
        /// permission bits
        pub mode: u32,
        /// owner
        pub uid: u32,
        /// group
        pub gid: u32,
        /// access, modify, change: seconds
        pub time_s: [i64; 3],
        /// access, modify, change: nanoseconds
        pub time_ns: [u32; 3],
        /// flags of the inode that users change: bits 3 to 8, as there
        pub flags: u32,
    }
}

/// Bits of [`SetAttrBody::valid`].
pub mod attr {
    /// Permission bits.
    pub const MODE: u32 = 1;
    /// Owner.
    pub const UID: u32 = 2;
    /// Group.
    pub const GID: u32 = 4;
    /// Access time.
    pub const ATIME: u32 = 8;
    /// Modify time.
    pub const MTIME: u32 = 16;
    /// Change time; without it the change time is the record's.
    pub const CTIME: u32 = 32;
    /// Flags of the inode that users change.
    pub const FLAGS: u32 = 64;
    /// All of them.
    pub const ALL: u32 = MODE | UID | GID | ATIME | MTIME | CTIME | FLAGS;
}

layout! {
    /// Body of `SetXattr` and `RemoveXattr`; behind it the name, then the value
    pub struct XattrBody: 8 {
        /// bytes of the value
        pub value_bytes: u32,
        /// bytes of the name
        pub name_bytes: u16,
        /// 0
        pub reserved: u16,
    }
}

layout! {
    /// Body of `Fallocate`
    pub struct FallocateBody: 16 {
        /// bytes
        pub bytes: u64,
        /// as in `fallocate(2)`: 1 keep size, 2 punch, 8 collapse, 16 zero, 32 insert
        pub mode: u32,
        /// 0
        pub reserved: u32,
    }
}

/// Bytes of a whole record with this body and payload.
pub fn record_bytes(body_bytes: usize, payload_bytes: usize) -> usize {
    (RecordHeader::BYTES + body_bytes + payload_bytes).next_multiple_of(RECORD_ALIGN)
}

impl RecordHeader {
    /// A header with lengths set; the log fills in `crc` and `pos`.
    pub fn new(kind: Kind, ino: u64, offset: u64, body_bytes: usize, payload_bytes: usize) -> Self {
        let bytes = record_bytes(body_bytes, payload_bytes);
        assert!(
            bytes <= RECORD_BYTES_MAX,
            "a record of {bytes} bytes is above the limit"
        );
        Self {
            crc: 0,
            bytes: bytes as u32,
            kind: kind as u8,
            flags: 0,
            body_bytes: body_bytes as u16,
            payload_bytes: payload_bytes as u32,
            pos: 0,
            ino,
            offset,
            time_ns: 0,
            request: 0,
            lease: 0,
            reserve: 0,
        }
    }

    /// The header as the 8 words that are in the log, lowest byte first. Made of the fields
    /// without a detour over memory, from which a processor could not read words at once
    /// that were stored in pieces.
    #[inline]
    pub fn words(&self) -> [u64; Self::BYTES / 8] {
        let lengths = u64::from(self.body_bytes) << 16 | u64::from(self.payload_bytes) << 32;
        [
            u64::from(self.crc) | u64::from(self.bytes) << 32,
            u64::from(self.kind) | u64::from(self.flags) << 8 | lengths,
            self.pos,
            self.ino,
            self.offset,
            self.time_ns.cast_unsigned(),
            self.request,
            u64::from(self.lease) | u64::from(self.reserve) << 32,
        ]
    }

    /// The checksum of a record: over salt, header, body and (unless fenced) payload.
    /// The padding behind the payload is not covered.
    pub fn checksum(&self, salt: u64, body: &[u8], payload: &[u8]) -> u32 {
        let zeroed = Self { crc: 0, ..*self };
        let payload = if self.flags & flag::FENCED != 0 {
            &[]
        } else {
            payload
        };
        crc32c_parts(&[&salt.to_le_bytes(), zeroed.as_bytes(), body, payload])
    }

    /// Reads a header found at `pos` and checks everything that does not need the
    /// bytes behind it; `ring_left` is what is left of the ring from there.
    /// `None`: the log ends here.
    pub fn decode(bytes: &[u8], pos: u64, ring_left: usize) -> Option<Self> {
        let (h, _) = Self::read_from_prefix(bytes).ok()?;
        let total = h.bytes as usize;
        let kind = Kind::from_number(h.kind)?;
        let limit = if kind == Kind::Pad {
            ring_left
        } else {
            RECORD_BYTES_MAX.min(ring_left)
        };
        let needed = if kind == Kind::Pad {
            RecordHeader::BYTES
        } else {
            RecordHeader::BYTES
                .checked_add(h.body_bytes as usize)?
                .checked_add(h.payload_bytes as usize)?
        };
        let whole = h.pos == pos
            && h.flags & !flag::KNOWN == 0
            && total >= RecordHeader::BYTES
            && total <= limit
            && total.is_multiple_of(RECORD_ALIGN)
            && needed <= total;
        whole.then_some(h)
    }

    /// The kind; only for headers that [`Self::decode`] gave.
    pub fn kind(&self) -> Kind {
        Kind::from_number(self.kind).unwrap_or(Kind::Pad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_write_fills_192_bytes() {
        assert_eq!(record_bytes(0, 128), 192);
    }

    #[test]
    fn foreign_and_stale_headers_end_the_log() {
        let mut h = RecordHeader::new(Kind::Write, 20, 5, 0, 100);
        h.pos = 640;
        assert!(RecordHeader::decode(h.as_bytes(), 640, 4096).is_some());
        assert!(
            RecordHeader::decode(h.as_bytes(), 704, 4096).is_none(),
            "stale position"
        );
        assert!(
            RecordHeader::decode(h.as_bytes(), 640, 128).is_none(),
            "past the end"
        );
        let long = RecordHeader {
            payload_bytes: u32::MAX,
            ..h
        };
        assert!(
            RecordHeader::decode(long.as_bytes(), 640, 4096).is_none(),
            "payload above the record"
        );
        let flags = RecordHeader { flags: 32, ..h };
        assert!(RecordHeader::decode(flags.as_bytes(), 640, 4096).is_none());
        let unknown = RecordHeader { kind: 99, ..h };
        assert!(RecordHeader::decode(unknown.as_bytes(), 640, 4096).is_none());
    }

    #[test]
    fn checksum_is_salted_and_covers_the_payload_unless_fenced() {
        let mut h = RecordHeader::new(Kind::Write, 20, 5, 0, 3);
        assert_ne!(h.checksum(1, &[], b"abc"), h.checksum(2, &[], b"abc"));
        assert_ne!(h.checksum(1, &[], b"abc"), h.checksum(1, &[], b"abd"));
        h.flags = flag::FENCED;
        assert_eq!(h.checksum(1, &[], b"abc"), h.checksum(1, &[], b"abd"));
    }
}
