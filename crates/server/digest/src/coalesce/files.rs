//! Records that change one inode: content, size, attributes. Each is checked against
//! what the records before left, then takes effect on the net.

use super::{At, Coalesced, NOBODY, Step, Stop, XattrDelta, bad, need};
use crate::access_policy::Operation;
use crate::content::{BLOCK, Content, Shift};
use shale_format::acl::{Acl, AclKind};
use shale_format::inode::Inode;
use shale_format::inode::flag::CHANGEABLE;
use shale_format::limits::{
    FILE_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_TOTAL_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};
use shale_format::record::{SetAttrBody, attr, flag};
use shale_format::xattr::{CAPABILITY, encoded_bytes};
use shale_format::{BlockAddr, Ino, LogPos};
use shale_sys::mutants;
use shale_volume::Run;

/// Bits of `fallocate(2)`.
mod mode {
    pub const KEEP_SIZE: u32 = 1;
    pub const PUNCH: u32 = 2;
    pub const COLLAPSE: u32 = 8;
    pub const ZERO: u32 = 16;
    pub const INSERT: u32 = 32;
}

/// Whether a `Fallocate` of this mode moves what lies behind the range: such a record
/// makes a chunk of its own.
pub(crate) fn shifts(mode: u32) -> bool {
    mode & (mode::COLLAPSE | mode::INSERT) != 0
}

fn range_end(offset: u64, bytes: u64) -> Step<u64> {
    match offset.checked_add(bytes) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(end),
        _ => bad("beyond the largest file"),
    }
}

/// What of a file's content a record changes.
#[derive(Clone, Copy)]
enum ContentChange {
    /// Blocks come, no byte changes.
    Adds,
    /// Bytes from this one on.
    From(u64),
    /// Anything.
    Any,
}

impl Coalesced<'_> {
    /// A regular file whose content the record may change.
    fn file(&mut self, at: &At, change: ContentChange) -> Step<Inode> {
        let i = self.inode(Ino(at.header.ino))?;
        need(i.is_file(), "not a regular file")?;
        let shifted = self.slot(Ino(i.ino))?.content.shift.is_some();
        need(!shifted, "a shift of a file's range stands alone")?;
        let adds = match change {
            ContentChange::Adds => true,
            ContentChange::From(offset) => offset >= i.size,
            ContentChange::Any => false,
        };
        self.may(at, &i, Operation::Content { adds })?;
        Ok(i)
    }

    /// Size and times after a change of content, and where to note the change itself.
    fn content(&mut self, at: &At, size: u64) -> Step<&mut Content> {
        let ino = Ino(at.header.ino);
        let (now, marks) = self.now(ino);
        if now.size <= size || marks.size == NOBODY {
            marks.size = at.index;
        }
        now.size = size;
        self.modified(ino, at);
        self.kill_set_id(ino, at);
        self.kill_capability(ino, at)?;
        Ok(&mut self.slot(ino)?.content)
    }

    /// Takes the capability from a file whose content is changed by a client that cannot be trusted to
    /// have taken it away.
    fn kill_capability(&mut self, ino: Ino, at: &At) -> Step<()> {
        let net = self.slot(ino)?;
        let none = net.xattrs.is_none() && net.continued().is_none_or(|b| b.xattr_addr == 0);
        if none || self.policy.keeps_set_id() {
            return Ok(());
        }
        self.load_xattrs(ino)?;
        if let Some(x) = self.slot(ino)?.xattrs.as_mut()
            && x.now.remove(CAPABILITY).is_some()
        {
            x.by.insert(CAPABILITY.to_vec(), at.index);
        }
        Ok(())
    }

    /// Has the extended attributes of an inode where changes of them are noted.
    fn load_xattrs(&mut self, ino: Ino) -> Step<()> {
        let image = self.image;
        let net = self.slot(ino)?;
        if net.xattrs.is_none() {
            let now = match net.continued() {
                Some(base) if !mutants::is_on("xattrs-lost") => image.xattrs(base)?,
                _ => Default::default(),
            };
            let by = Default::default();
            net.xattrs = Some(XattrDelta { now, by });
        }
        Ok(())
    }

    /// `Write`: the payload, which begins at `from` in the log.
    pub(crate) fn write(&mut self, at: &At, from: LogPos) -> Step<()> {
        let (offset, bytes) = (at.header.offset, u64::from(at.header.payload_bytes));
        let end = range_end(offset, bytes)?;
        let size = self.file(at, ContentChange::From(offset))?.size;
        need(bytes > 0, "a write of nothing")?;
        let size = size.max(end);
        self.content(at, size)?.write(offset, bytes, from, at.index);
        self.size_set_by(at, end);
        Ok(())
    }

    /// Notes that this record alone would give the file its size.
    fn size_set_by(&mut self, at: &At, end: u64) {
        let (now, marks) = self.now(Ino(at.header.ino));
        if end == now.size {
            marks.size = at.index;
        }
    }

    /// `Steal`: blocks that the client wrote become part of the file.
    pub(crate) fn steal(&mut self, at: &At, addr: BlockAddr, blocks: u32, end: u64) -> Step<()> {
        let offset = at.header.offset;
        let blocks = u64::from(blocks);
        need(
            offset.is_multiple_of(BLOCK) && blocks > 0,
            "not whole blocks",
        )?;
        let block_end = range_end(offset, blocks * BLOCK)?;
        need(end <= block_end, "the end is behind the last block")?;
        need(
            addr.tier() == Some(shale_format::TierId::Nvm)
                && addr
                    .index()
                    .checked_add(blocks)
                    .is_some_and(|e| e < 1 << 52),
            "no such blocks",
        )?;
        let size = self.file(at, ContentChange::From(offset))?.size;
        need(
            self.policy.granted_blocks(Run { addr, len: blocks })
                || mutants::is_on("grant-unchecked"),
            "the blocks were not granted",
        )?;
        let taken = addr.raw()..addr.raw() + blocks;
        need(
            self.stolen.within(taken.clone()).next().is_none(),
            "the blocks are used twice",
        )?;
        self.stolen.insert(taken, at.index);
        let size = size.max(end);
        self.content(at, size)?
            .steal(offset, blocks, addr, size, at.index);
        self.size_set_by(at, end);
        Ok(())
    }

    /// `Truncate`.
    pub(crate) fn truncate(&mut self, at: &At) -> Step<()> {
        let mut size = range_end(at.header.offset, 0)?;
        let old = self.file(at, ContentChange::Any)?.size;
        if mutants::is_on("truncate-longer") {
            size = size.min(old);
        }
        self.content(at, size)?.cut(old, size, at.index);
        self.now(Ino(at.header.ino)).1.size = at.index;
        Ok(())
    }

    /// `Fallocate`.
    pub(crate) fn fallocate(&mut self, at: &At, bytes: u64, how: u32) -> Step<()> {
        let offset = at.header.offset;
        need(bytes > 0, "an empty range")?;
        let end = range_end(offset, bytes)?;
        if shifts(how) {
            return self.shift(at, bytes, how);
        }
        let keep = how & mode::KEEP_SIZE != 0;
        let change = match how & !mode::KEEP_SIZE {
            0 => ContentChange::Adds,
            _ => ContentChange::Any,
        };
        let old = self.file(at, change)?.size;
        let size = if keep { old } else { old.max(end) };
        let range = offset..end;
        match how & !mode::KEEP_SIZE {
            0 => self.content(at, size)?.allocate(range, at.index),
            mode::PUNCH if keep => self.content(at, size)?.punch(range, at.index),
            mode::ZERO => {
                let content = self.content(at, size)?;
                content.zero(range.clone(), at.index);
                content.allocate(range, at.index);
            }
            _ => return bad("a mode of fallocate that does not exist"),
        }
        Ok(())
    }

    /// Takes a range out of a file or puts one in.
    fn shift(&mut self, at: &At, bytes: u64, how: u32) -> Step<()> {
        let offset = at.header.offset;
        need(
            offset.is_multiple_of(BLOCK) && bytes.is_multiple_of(BLOCK),
            "a shift of parts of blocks",
        )?;
        let old = self.file(at, ContentChange::Any)?.size;
        let size = match how {
            mode::COLLAPSE => {
                need(offset + bytes < old, "a range up to the end of the file")?;
                old - bytes
            }
            mode::INSERT => {
                need(offset < old, "a range behind the end of the file")?;
                range_end(old, bytes)?
            }
            _ => return bad("a mode of fallocate that does not exist"),
        };
        let content = self.content(at, size)?;
        need(content.is_empty(), "a shift of a file's range stands alone")?;
        content.shift = Some(Shift {
            at: offset / BLOCK,
            blocks: bytes / BLOCK,
            insert: how == mode::INSERT,
            by: at.index,
        });
        self.now(Ino(at.header.ino)).1.size = at.index;
        Ok(())
    }

    /// `SetAttr`: permission bits, owner, times; never the type.
    pub(crate) fn set_attr(&mut self, at: &At, body: &SetAttrBody) -> Step<()> {
        let ino = Ino(at.header.ino);
        let inode = self.inode(ino)?;
        need(
            body.valid & !attr::ALL == 0 && body.flags & !CHANGEABLE == 0,
            "an attribute that does not exist",
        )?;
        need(
            body.valid & attr::FLAGS == 0 || inode.is_file() || inode.is_dir(),
            "flags of what is neither file nor directory",
        )?;
        let times = [attr::ATIME, attr::MTIME, attr::CTIME];
        for (which, bit) in times.into_iter().enumerate() {
            need(
                body.valid & bit == 0 || body.time_ns[which] < 1_000_000_000,
                "a time with more than 999,999,999 ns",
            )?;
        }
        self.may(at, &inode, Operation::Attributes(body))?;
        self.changed(ino, at);
        if body.valid & attr::MODE != 0 {
            self.acl_follows(ino, body.mode, at)?;
        }
        let (now, marks) = self.now(ino);
        if body.valid & attr::MODE != 0 {
            now.mode = now.mode & !0o7777 | body.mode & 0o7777;
            marks.mode = at.index;
        }
        if body.valid & attr::UID != 0 {
            now.uid = body.uid;
            marks.uid = at.index;
        }
        if body.valid & attr::GID != 0 {
            now.gid = body.gid;
            marks.gid = at.index;
        }
        if body.valid & attr::FLAGS != 0 {
            now.flags = now.flags & !CHANGEABLE | body.flags;
            marks.flags = at.index;
        }
        for (which, bit) in times.into_iter().enumerate() {
            if body.valid & bit != 0 {
                now.time_s[which] = body.time_s[which];
                now.time_ns[which] = body.time_ns[which];
                marks.time[which] = at.index;
            }
        }
        if at.has(flag::KILL_SUID) {
            self.kill_set_id(ino, at);
        }
        Ok(())
    }

    /// Changes the access control list of an inode that gets this mode: the mask, without one the owning group,
    /// and owner and others.
    fn acl_follows(&mut self, ino: Ino, mode: u32, at: &At) -> Step<()> {
        let net = self.slot(ino)?;
        let none = net.xattrs.is_none() && net.continued().is_none_or(|b| b.xattr_addr == 0);
        if none || mutants::is_on("acl-without-mode") {
            return Ok(());
        }
        self.load_xattrs(ino)?;
        let name = AclKind::Access.name();
        if let Some(x) = self.slot(ino)?.xattrs.as_mut()
            && let Some(value) = x.now.get_mut(name)
        {
            let acl = Acl::decode(value).map_err(|e| Stop::Bad(e.to_string().into()))?;
            *value = acl.with_mode(mode).encode();
            x.by.insert(name.to_vec(), at.index);
        }
        Ok(())
    }

    /// Checks an access control list that an inode gets, and gives it the mode that goes with it.
    fn mode_follows(&mut self, inode: &Inode, kind: AclKind, value: &[u8], at: &At) -> Step<()> {
        let acl = Acl::decode(value).map_err(|e| Stop::Bad(e.to_string().into()))?;
        need(!inode.is_symlink(), "an access control list of a link")?;
        if kind == AclKind::Default {
            return need(inode.is_dir(), "a default list of what is no directory");
        }
        let (bits, is_all) = acl.as_mode();
        need(!is_all, "an access control list that is a mode")?;
        let policy = self.policy;
        let stranger = !policy.keeps_set_id() && !policy.is_in_group(inode.gid);
        let kept = if stranger { !0o2000 } else { !0 };
        let (now, marks) = self.now(Ino(inode.ino));
        now.mode = now.mode & !0o777 & kept | bits;
        marks.mode = at.index;
        Ok(())
    }

    /// `SetXattr` with a value, `RemoveXattr` without one.
    pub(crate) fn xattr(&mut self, at: &At, name: &[u8], value: Option<&[u8]>) -> Step<()> {
        let ino = Ino(at.header.ino);
        let inode = self.inode(ino)?;
        need(
            !name.is_empty() && name.len() <= XATTR_NAME_BYTES_MAX && !name.contains(&0),
            "no attribute may have this name",
        )?;
        need(
            value.is_none_or(|v| v.len() <= XATTR_VALUE_BYTES_MAX),
            "the value is too long",
        )?;
        let operation = match value {
            Some(_) => Operation::Xattr(name),
            None => Operation::RemoveXattr(name),
        };
        self.may(at, &inode, operation)?;
        if let (Some(kind), Some(value)) = (AclKind::of(name), value) {
            self.mode_follows(&inode, kind, value, at)?;
        }
        self.load_xattrs(ino)?;
        if let Some(x) = self.slot(ino)?.xattrs.as_mut() {
            match value {
                Some(v) => drop(x.now.insert(name.to_vec(), v.to_vec())),
                None => need(x.now.remove(name).is_some(), "there is no such attribute")?,
            }
            need(
                encoded_bytes(&x.now) <= XATTR_TOTAL_BYTES_MAX,
                "the attributes of the inode are too long together",
            )?;
            x.by.insert(name.to_vec(), at.index);
        }
        self.changed(ino, at);
        Ok(())
    }
}
