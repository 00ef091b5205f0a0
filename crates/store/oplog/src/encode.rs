//! Records of each operation, ready to be appended. Nothing here allocates: names
//! and data are borrowed until the log has copied them.
//!
//! The caller fills in what is not part of the operation itself through
//! [`Part::header`]: `time_ns`, `request`, `lease`, `reserve` and flags.

use shale_format::limits::{
    NAME_BYTES_MAX, RECORD_BYTES_MAX, SYMLINK_BYTES_MAX, XATTR_NAME_BYTES_MAX,
    XATTR_VALUE_BYTES_MAX,
};
use shale_format::record::{
    CreateBody, FallocateBody, Kind, LinkBody, RecordHeader, RenameBody, SetAttrBody, StealBody,
    XattrBody,
};
use shale_format::{Ino, LogPos};
use shale_nvm::MappedRegion;
use zerocopy::{Immutable, IntoBytes};

/// Bytes of the longest body.
pub const BODY_BYTES_MAX: usize = SetAttrBody::BYTES;
/// Most bytes of data in one `Write` record.
pub const WRITE_BYTES_MAX: usize = RECORD_BYTES_MAX - RecordHeader::BYTES;

const _: () = assert!(CreateBody::BYTES <= BODY_BYTES_MAX && RenameBody::BYTES <= BODY_BYTES_MAX);

/// One record on its way into the log.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Header; the log fills in `crc`, `pos` and the flags `MORE` and `FENCED`.
    pub header: RecordHeader,
    pub(crate) body: [u8; BODY_BYTES_MAX],
    /// The payload is the one followed by the other.
    pub(crate) payload: [&'a [u8]; 2],
    /// Data of a steal that is written together with the record.
    pub(crate) stolen: Option<Stolen<'a>>,
}

/// Data that goes to blocks of the volume, and where.
#[derive(Clone, Copy)]
pub(crate) struct Stolen<'a> {
    pub(crate) to: &'a MappedRegion,
    pub(crate) at: usize,
    pub(crate) data: &'a [u8],
}

impl std::fmt::Debug for Stolen<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes to {}", self.data.len(), self.at)
    }
}

impl<'a> Part<'a> {
    /// A record with this body and the two slices, one behind the other, as its payload.
    ///
    /// # Panics
    /// If it is above the limits of a record.
    #[inline]
    pub fn new(
        kind: Kind,
        ino: u64,
        offset: u64,
        body: &(impl IntoBytes + Immutable + ?Sized),
        payload: [&'a [u8]; 2],
    ) -> Self {
        let from = body.as_bytes();
        let mut body = [0; BODY_BYTES_MAX];
        body[..from.len()].copy_from_slice(from);
        let bytes = payload[0].len() + payload[1].len();
        Self {
            header: RecordHeader::new(kind, ino, offset, from.len(), bytes),
            body,
            payload,
            stolen: None,
        }
    }

    /// Sets bits of [`shale_format::record::flag`].
    #[inline]
    pub fn flags(mut self, bits: u8) -> Self {
        self.header.flags |= bits;
        self
    }

    /// Bytes that the record fills in the log: what a permit must be for.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.header.bytes.into()
    }

    /// Position of the first byte of the payload, once the record is appended.
    #[inline]
    pub fn payload_at(&self) -> LogPos {
        payload_at(&self.header)
    }
}

/// Position of the first byte of a record's payload.
#[inline]
pub fn payload_at(header: &RecordHeader) -> LogPos {
    LogPos(header.pos + RecordHeader::BYTES as u64 + u64::from(header.body_bytes))
}

fn checked(what: &str, bytes: &[u8], limit: usize) -> u16 {
    assert!(
        bytes.len() <= limit,
        "{what} of {} bytes, expected at most {limit}",
        bytes.len()
    );
    bytes.len() as u16
}

/// Makes inode `ino` and its name in `dir` ([`Ino::NONE`] and no name: a file without
/// one). `target`: of a symbolic link, else empty. Lengths in `body` are filled in.
#[inline]
pub fn create<'a>(
    dir: Ino,
    ino: Ino,
    body: CreateBody,
    name: &'a [u8],
    target: &'a [u8],
) -> Part<'a> {
    let body = CreateBody {
        name_bytes: checked("name", name, NAME_BYTES_MAX),
        target_bytes: checked("link target", target, SYMLINK_BYTES_MAX),
        reserved: [0; 11],
        ..body
    };
    Part::new(Kind::Create, dir.0, ino.0, &body, [name, target])
}

fn name_body(kind: u8, twin: u8, name: &[u8]) -> LinkBody {
    LinkBody {
        name_bytes: checked("name", name, NAME_BYTES_MAX),
        twin,
        kind,
        reserved: [0; 4],
    }
}

/// Adds a name of `ino` to `dir`. `kind`: as in `d_type`; `twin`: number among names with the same hash.
#[inline]
pub fn link(dir: Ino, ino: Ino, kind: u8, twin: u8, name: &[u8]) -> Part<'_> {
    let body = name_body(kind, twin, name);
    Part::new(Kind::Link, dir.0, ino.0, &body, [name, &[]])
}

/// Removes a name of `ino` from `dir`. Flags: `FREE_NOW`, `DIRECTORY`.
#[inline]
pub fn unlink(dir: Ino, ino: Ino, kind: u8, twin: u8, name: &[u8]) -> Part<'_> {
    let body = name_body(kind, twin, name);
    Part::new(Kind::Unlink, dir.0, ino.0, &body, [name, &[]])
}

/// Moves `ino` from name `old` of `dir` to `new` of `body.new_parent`. Lengths in
/// `body` are filled in. Flags: `FREE_NOW` (for the replaced inode), `DIRECTORY`.
#[inline]
pub fn rename<'a>(dir: Ino, ino: Ino, body: RenameBody, old: &'a [u8], new: &'a [u8]) -> Part<'a> {
    let body = RenameBody {
        old_bytes: checked("old name", old, NAME_BYTES_MAX),
        new_bytes: checked("new name", new, NAME_BYTES_MAX),
        reserved: [0; 4],
        ..body
    };
    Part::new(Kind::Rename, dir.0, ino.0, &body, [old, new])
}

/// Writes `data` (at most [`WRITE_BYTES_MAX`] bytes) at byte `offset`. Flag: `KILL_SUID`.
#[inline]
pub fn write(ino: Ino, offset: u64, data: &[u8]) -> Part<'_> {
    Part::new(Kind::Write, ino.0, offset, &[0u8; 0], [data, &[]])
}

/// Links full blocks that the caller wrote itself at byte `offset`, a multiple of 4096.
///
/// The blocks were written with non-temporal copies **by the thread that appends the
/// record** and need no fence of their own: `body.data_crc` (CRC-32C of their bytes)
/// makes the record invalid unless they are durable, and the append's one fence makes
/// both durable. A caller that fenced them already sets the flag `FENCED` instead.
#[inline]
pub fn steal(ino: Ino, offset: u64, body: StealBody) -> Part<'static> {
    Part::new(Kind::Steal, ino.0, offset, &body, [&[], &[]])
}

/// As [`steal`], for blocks that are not written yet: the append writes `data` to byte
/// `at` of `to`, and its checksum into the record, once the record has its place. So
/// the copy is not held up by what an append does before, and one fence covers both.
#[inline]
pub fn steal_data<'a>(
    ino: Ino,
    offset: u64,
    body: StealBody,
    (to, at): (&'a MappedRegion, usize),
    data: &'a [u8],
) -> Part<'a> {
    Part {
        stolen: Some(Stolen { to, at, data }),
        ..Part::new(Kind::Steal, ino.0, offset, &body, [&[], &[]])
    }
}

/// Sets the size in bytes. Flag: `KILL_SUID`.
#[inline]
pub fn truncate(ino: Ino, size: u64) -> Part<'static> {
    Part::new(Kind::Truncate, ino.0, size, &[0u8; 0], [&[], &[]])
}

/// Sets owner, mode, times or flags.
#[inline]
pub fn set_attr(ino: Ino, body: SetAttrBody) -> Part<'static> {
    Part::new(Kind::SetAttr, ino.0, 0, &body, [&[], &[]])
}

/// Sets an extended attribute.
#[inline]
pub fn set_xattr<'a>(ino: Ino, name: &'a [u8], value: &'a [u8]) -> Part<'a> {
    assert!(
        value.len() <= XATTR_VALUE_BYTES_MAX,
        "value of {} bytes, expected at most {XATTR_VALUE_BYTES_MAX}",
        value.len()
    );
    let body = XattrBody {
        value_bytes: value.len() as u32,
        name_bytes: checked("attribute name", name, XATTR_NAME_BYTES_MAX),
        reserved: 0,
    };
    Part::new(Kind::SetXattr, ino.0, 0, &body, [name, value])
}

/// Removes an extended attribute.
#[inline]
pub fn remove_xattr(ino: Ino, name: &[u8]) -> Part<'_> {
    let body = XattrBody {
        value_bytes: 0,
        name_bytes: checked("attribute name", name, XATTR_NAME_BYTES_MAX),
        reserved: 0,
    };
    Part::new(Kind::RemoveXattr, ino.0, 0, &body, [name, &[]])
}

/// Allocates, punches, zeroes, collapses or inserts `bytes` bytes from `offset`;
/// `mode` as in `fallocate(2)`. Flag: `KILL_SUID`.
#[inline]
pub fn fallocate(ino: Ino, offset: u64, bytes: u64, mode: u32) -> Part<'static> {
    let body = FallocateBody {
        bytes,
        mode,
        reserved: 0,
    };
    Part::new(Kind::Fallocate, ino.0, offset, &body, [&[], &[]])
}

/// Frees an inode without names whose last user has gone.
#[inline]
pub fn free(ino: Ino) -> Part<'static> {
    Part::new(Kind::Free, ino.0, 0, &[0u8; 0], [&[], &[]])
}
