//! Records as operations: every length and number is checked, nothing is borrowed.
//!
//! Whether the operation makes sense (does the inode exist, may this client change
//! it) is for the code that applies it.

use crate::encode::payload_at;
use crate::error::OplogError;
use crate::scan::Record;
use shale_format::limits::{
    BLOCK_BYTES, FILE_BYTES_MAX, NAME_BYTES_MAX, SYMLINK_BYTES_MAX, XATTR_NAME_BYTES_MAX,
    XATTR_VALUE_BYTES_MAX,
};
use shale_format::record::{
    CreateBody, FallocateBody, Kind, LinkBody, RecordHeader, RenameBody, SetAttrBody, StealBody,
    XattrBody, attr, flag,
};
use shale_format::{BlockAddr, Ino, LogPos, inode};
use zerocopy::FromBytes;

/// An owned name, value or link target.
pub type Bytes = Box<[u8]>;

/// One operation. Times, request and lease are in the record's header.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the fields are those of the bodies in shale_format::record"
)]
pub enum Op {
    /// Makes an inode and its first name. `dir` is `NONE` and `name` empty for a file without one.
    Create {
        dir: Ino,
        ino: Ino,
        body: CreateBody,
        name: Bytes,
        target: Bytes,
    },
    /// Adds a name.
    Link {
        dir: Ino,
        ino: Ino,
        kind: u8,
        twin: u8,
        name: Bytes,
    },
    /// Removes a name. `free_now`: an inode that loses its last name is freed at once.
    Unlink {
        dir: Ino,
        ino: Ino,
        kind: u8,
        twin: u8,
        name: Bytes,
        free_now: bool,
        directory: bool,
    },
    /// Moves a name to `body.new_parent`. `free_now` speaks of the replaced inode.
    Rename {
        dir: Ino,
        ino: Ino,
        body: RenameBody,
        old: Bytes,
        new: Bytes,
        free_now: bool,
        directory: bool,
    },
    /// Writes `len` bytes at `offset`; they are in the log at `at`.
    Write {
        ino: Ino,
        offset: u64,
        len: u32,
        at: LogPos,
        kill_suid: bool,
    },
    /// Links `blocks` blocks from `addr` at `offset`; the file is at least `end` bytes
    /// long afterwards.
    Steal {
        ino: Ino,
        offset: u64,
        addr: BlockAddr,
        blocks: u32,
        end: u64,
        kill_suid: bool,
    },
    /// Sets the size.
    Truncate {
        ino: Ino,
        size: u64,
        kill_suid: bool,
    },
    /// Sets owner, mode or times.
    SetAttr { ino: Ino, body: SetAttrBody },
    /// Sets an extended attribute.
    SetXattr { ino: Ino, name: Bytes, value: Bytes },
    /// Removes an extended attribute.
    RemoveXattr { ino: Ino, name: Bytes },
    /// Allocates, punches, zeroes, collapses or inserts; `mode` as in `fallocate(2)`.
    Fallocate {
        ino: Ino,
        offset: u64,
        bytes: u64,
        mode: u32,
        kill_suid: bool,
    },
    /// Frees an inode without names.
    Free { ino: Ino },
}

/// What is looked at while one record is decoded.
struct Decoder<'r> {
    header: &'r RecordHeader,
    kind: Kind,
    body: &'r [u8],
    payload: &'r [u8],
}

impl Op {
    /// The operation of a valid record.
    ///
    /// # Errors
    /// What in it cannot be: the record was made by a faulty or hostile client.
    pub fn decode(record: &Record) -> Result<Op, OplogError> {
        let d = Decoder {
            header: &record.header,
            kind: record.kind(),
            body: record.body(),
            payload: record.payload(),
        };
        match d.kind {
            Kind::Pad => Err(d.field("kind", Kind::Pad as u64)),
            Kind::Create => d.create(),
            Kind::Link | Kind::Unlink => d.link(),
            Kind::Rename => d.rename(),
            Kind::Write => d.write(),
            Kind::Steal => d.steal(),
            Kind::Truncate => d.truncate(),
            Kind::SetAttr => d.set_attr(),
            Kind::SetXattr | Kind::RemoveXattr => d.xattr(),
            Kind::Fallocate => d.fallocate(),
            Kind::Free => {
                d.no_body()?;
                let ino = d.user("ino", d.header.ino)?;
                Ok(Op::Free { ino })
            }
        }
    }

    /// The inode whose data or attributes it changes; for names, the one that is named.
    pub fn ino(&self) -> Ino {
        match *self {
            Op::Create { ino, .. }
            | Op::Link { ino, .. }
            | Op::Unlink { ino, .. }
            | Op::Rename { ino, .. }
            | Op::Write { ino, .. }
            | Op::Steal { ino, .. }
            | Op::Truncate { ino, .. }
            | Op::SetAttr { ino, .. }
            | Op::SetXattr { ino, .. }
            | Op::RemoveXattr { ino, .. }
            | Op::Fallocate { ino, .. }
            | Op::Free { ino } => ino,
        }
    }
}

impl Decoder<'_> {
    fn pos(&self) -> LogPos {
        LogPos(self.header.pos)
    }

    fn has(&self, bits: u8) -> bool {
        self.header.flags & bits != 0
    }

    fn field(&self, field: &'static str, found: u64) -> OplogError {
        OplogError::Field {
            pos: self.pos(),
            kind: self.kind,
            field,
            found,
        }
    }

    /// The body, whose length must be that of `T`.
    fn body<T: FromBytes>(&self) -> Result<T, OplogError> {
        T::read_from_bytes(self.body).map_err(|_| OplogError::Body {
            pos: self.pos(),
            kind: self.kind,
            expected: size_of::<T>(),
            found: self.body.len(),
        })
    }

    fn no_body(&self) -> Result<(), OplogError> {
        self.body::<[u8; 0]>()?;
        self.split(0, 0).map(|_| ())
    }

    /// Cuts the payload in two parts, which fill it.
    fn split(&self, first: usize, second: usize) -> Result<(&[u8], &[u8]), OplogError> {
        if first + second != self.payload.len() {
            return Err(OplogError::Payload {
                pos: self.pos(),
                kind: self.kind,
                expected: (first + second) as u64,
                found: self.payload.len() as u64,
            });
        }
        Ok(self.payload.split_at(first))
    }

    fn user(&self, field: &'static str, ino: u64) -> Result<Ino, OplogError> {
        let ino = Ino(ino);
        if ino.is_user() {
            Ok(ino)
        } else {
            Err(self.field(field, ino.0))
        }
    }

    /// A name that a directory can hold.
    fn name(&self, field: &'static str, name: &[u8]) -> Result<Bytes, OplogError> {
        let legal = (1..=NAME_BYTES_MAX).contains(&name.len())
            && name != b"."
            && name != b".."
            && !name.iter().any(|&b| b == 0 || b == b'/');
        self.named(legal, field, name)
    }

    fn named(&self, legal: bool, field: &'static str, name: &[u8]) -> Result<Bytes, OplogError> {
        if legal {
            return Ok(name.into());
        }
        let shown = &name[..name.len().min(NAME_BYTES_MAX)];
        Err(OplogError::Name {
            pos: self.pos(),
            kind: self.kind,
            field,
            found: String::from_utf8_lossy(shown).into_owned(),
        })
    }

    /// Checks that [`offset`, `offset + bytes`) fits a file.
    fn range(&self, offset: u64, bytes: u64) -> Result<(), OplogError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= FILE_BYTES_MAX => Ok(()),
            _ => Err(self.field("offset", offset)),
        }
    }

    fn create(&self) -> Result<Op, OplogError> {
        let body: CreateBody = self.body()?;
        let (name, target) = self.split(body.name_bytes.into(), body.target_bytes.into())?;
        if target.len() > SYMLINK_BYTES_MAX || target.contains(&0) {
            return Err(self.field("target_bytes", body.target_bytes.into()));
        }
        let ino = self.user("ino", self.header.offset)?;
        let (dir, name) = if self.header.ino == 0 && name.is_empty() {
            (Ino::NONE, Bytes::default())
        } else {
            let dir = self.user("directory", self.header.ino)?;
            (dir, self.name("name", name)?)
        };
        Ok(Op::Create {
            dir,
            ino,
            body,
            name,
            target: target.into(),
        })
    }

    fn link(&self) -> Result<Op, OplogError> {
        let body: LinkBody = self.body()?;
        let (name, _) = self.split(body.name_bytes.into(), 0)?;
        let name = self.name("name", name)?;
        let dir = self.user("directory", self.header.ino)?;
        let ino = self.user("ino", self.header.offset)?;
        let (kind, twin) = (body.kind, body.twin);
        Ok(match self.kind {
            Kind::Link => Op::Link {
                dir,
                ino,
                kind,
                twin,
                name,
            },
            _ => Op::Unlink {
                dir,
                ino,
                kind,
                twin,
                name,
                free_now: self.has(flag::FREE_NOW),
                directory: self.has(flag::DIRECTORY),
            },
        })
    }

    fn rename(&self) -> Result<Op, OplogError> {
        const EXCHANGE: u32 = 2;
        let body: RenameBody = self.body()?;
        let (old, new) = self.split(body.old_bytes.into(), body.new_bytes.into())?;
        let (old, new) = (self.name("old name", old)?, self.name("new name", new)?);
        self.user("new_parent", body.new_parent)?;
        if body.replaced != 0 {
            self.user("replaced", body.replaced)?;
        }
        let legal = body.flags == 0 || (body.flags == EXCHANGE && body.replaced != 0);
        if !legal {
            return Err(self.field("flags", body.flags.into()));
        }
        Ok(Op::Rename {
            dir: self.user("directory", self.header.ino)?,
            ino: self.user("ino", self.header.offset)?,
            body,
            old,
            new,
            free_now: self.has(flag::FREE_NOW),
            directory: self.has(flag::DIRECTORY),
        })
    }

    fn write(&self) -> Result<Op, OplogError> {
        self.body::<[u8; 0]>()?;
        let (offset, len) = (self.header.offset, self.header.payload_bytes);
        self.range(offset, len.into())?;
        if len == 0 {
            return Err(self.field("payload_bytes", 0));
        }
        Ok(Op::Write {
            ino: self.user("ino", self.header.ino)?,
            offset,
            len,
            at: payload_at(self.header),
            kill_suid: self.has(flag::KILL_SUID),
        })
    }

    fn steal(&self) -> Result<Op, OplogError> {
        let body: StealBody = self.body()?;
        self.split(0, 0)?;
        let (offset, bytes) = (
            self.header.offset,
            u64::from(body.blocks) * BLOCK_BYTES as u64,
        );
        self.range(offset, bytes)?;
        if !offset.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(self.field("offset", offset));
        }
        if body.blocks == 0 {
            return Err(self.field("blocks", 0));
        }
        if body.end > offset + bytes {
            return Err(self.field("end", body.end));
        }
        let addr = BlockAddr::from_raw(body.addr);
        if addr.tier().is_none() || addr.is_none() {
            return Err(self.field("addr", body.addr));
        }
        Ok(Op::Steal {
            ino: self.user("ino", self.header.ino)?,
            offset,
            addr,
            blocks: body.blocks,
            end: body.end,
            kill_suid: self.has(flag::KILL_SUID),
        })
    }

    fn truncate(&self) -> Result<Op, OplogError> {
        self.no_body()?;
        self.range(self.header.offset, 0)?;
        Ok(Op::Truncate {
            ino: self.user("ino", self.header.ino)?,
            size: self.header.offset,
            kill_suid: self.has(flag::KILL_SUID),
        })
    }

    fn set_attr(&self) -> Result<Op, OplogError> {
        const NS_PER_S: u32 = 1_000_000_000;
        let body: SetAttrBody = self.body()?;
        self.split(0, 0)?;
        if body.valid & !attr::ALL != 0 {
            return Err(self.field("valid", body.valid.into()));
        }
        if let Some(&ns) = body.time_ns.iter().find(|&&ns| ns >= NS_PER_S) {
            return Err(self.field("time_ns", ns.into()));
        }
        if body.flags & !inode::flag::CHANGEABLE != 0 {
            return Err(self.field("flags", body.flags.into()));
        }
        Ok(Op::SetAttr {
            ino: self.user("ino", self.header.ino)?,
            body,
        })
    }

    fn xattr(&self) -> Result<Op, OplogError> {
        let body: XattrBody = self.body()?;
        let value_bytes = body.value_bytes as usize;
        let (name, value) = self.split(body.name_bytes.into(), value_bytes)?;
        let legal = (1..=XATTR_NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0);
        let name = self.named(legal, "attribute name", name)?;
        if value_bytes > XATTR_VALUE_BYTES_MAX
            || (self.kind == Kind::RemoveXattr && value_bytes != 0)
        {
            return Err(self.field("value_bytes", value_bytes as u64));
        }
        let ino = self.user("ino", self.header.ino)?;
        Ok(match self.kind {
            Kind::SetXattr => Op::SetXattr {
                ino,
                name,
                value: value.into(),
            },
            _ => Op::RemoveXattr { ino, name },
        })
    }

    fn fallocate(&self) -> Result<Op, OplogError> {
        /// Keep size, punch, collapse, zero, insert.
        const MODES: u32 = 1 | 2 | 8 | 16 | 32;
        let body: FallocateBody = self.body()?;
        self.split(0, 0)?;
        self.range(self.header.offset, body.bytes)?;
        if body.mode & !MODES != 0 {
            return Err(self.field("mode", body.mode.into()));
        }
        if body.bytes == 0 {
            return Err(self.field("bytes", 0));
        }
        Ok(Op::Fallocate {
            ino: self.user("ino", self.header.ino)?,
            offset: self.header.offset,
            bytes: body.bytes,
            mode: body.mode,
            kill_suid: self.has(flag::KILL_SUID),
        })
    }
}
