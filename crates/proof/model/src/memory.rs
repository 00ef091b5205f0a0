//! A file system in memory that is small enough to be right by looking at it.
//!
//! It knows the superuser only: permissions are not its business. Times are left out. A
//! file's content is a plain vector; an inode lives as long as it has a name or a slot.

use std::collections::BTreeMap;

use rustix::io::Errno;
use shale_libfs::{OFlags, RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};

use super::acl;
use super::act::{FileAct, Outcome, SLOTS, Said};

mod inode;
mod side;

use inode::{DIR, FILE, Inode, KIND, LINK, SET_GID, SET_UID, SOCKET, WHITEOUT};

const NAME_MAX: usize = 255;
const LINKS_FOLLOWED: usize = 40;
const BLOCK: u64 = 4096;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

type Result<T> = std::result::Result<T, Errno>;

#[derive(Debug, Clone, Hash)]
struct Open {
    ino: u64,
    flags: OFlags,
    offset: u64,
}

impl Open {
    fn writes(&self) -> bool {
        matches!(self.flags & OFlags::ACCMODE, OFlags::WRONLY | OFlags::RDWR)
    }

    fn reads(&self) -> bool {
        matches!(self.flags & OFlags::ACCMODE, OFlags::RDONLY | OFlags::RDWR)
    }
}

/// Where a path leads.
struct Place {
    dir: u64,
    name: Vec<u8>,
    found: Option<u64>,
}

impl Place {
    fn ino(&self) -> Result<u64> {
        self.found.ok_or(Errno::NOENT)
    }
}

/// A file system in memory.
#[derive(Debug, Clone, Hash)]
pub struct Memory {
    inodes: BTreeMap<u64, Inode>,
    next: u64,
    slots: Vec<Option<Open>>,
    client: usize,
}

const ROOT: u64 = 1;

impl Memory {
    /// An empty root directory with this mode, owned by the superuser.
    pub fn new(root_mode: u32) -> Self {
        let root = Inode {
            mode: DIR | root_mode,
            nlink: 2,
            parent: ROOT,
            ..Inode::default()
        };
        Memory {
            inodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT + 1,
            slots: Vec::new(),
            client: 0,
        }
    }

    /// Who does the next operations: each client has slots of its own.
    pub fn set_client(&mut self, client: usize) {
        self.client = client;
    }

    fn at(&self, ino: u64) -> &Inode {
        &self.inodes[&ino]
    }

    fn at_mut(&mut self, ino: u64) -> &mut Inode {
        self.inodes.get_mut(&ino).expect("an inode that exists")
    }

    fn walk(&self, path: &[u8], follow: bool) -> Result<Place> {
        self.walk_from(ROOT, path, follow, &mut 0)
    }

    fn walk_from(&self, from: u64, path: &[u8], follow: bool, links: &mut usize) -> Result<Place> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        let from = if path[0] == b'/' { ROOT } else { from };
        let parts: Vec<&[u8]> = path
            .split(|&b| b == b'/')
            .filter(|part| !part.is_empty() && *part != b".")
            .collect();
        let mut place = Place {
            dir: from,
            name: Vec::new(),
            found: Some(from),
        };
        for (n, part) in parts.iter().enumerate() {
            let dir = place.ino()?;
            if !self.at(dir).is(DIR) {
                return Err(Errno::NOTDIR);
            }
            if part.len() > NAME_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            if *part == b".." {
                place.found = Some(self.at(dir).parent);
                continue;
            }
            let found = self.at(dir).entries.get(*part).copied();
            place = Place {
                dir,
                name: part.to_vec(),
                found,
            };
            let last = n + 1 == parts.len();
            if let Some(ino) = found
                && self.at(ino).is(LINK)
                && (!last || follow)
            {
                *links += 1;
                if *links > LINKS_FOLLOWED {
                    return Err(Errno::LOOP);
                }
                place = self.walk_from(dir, &self.at(ino).data, true, links)?;
            }
        }
        Ok(place)
    }

    fn vacant(&self, path: &[u8]) -> Result<Place> {
        let place = self.walk(path, false)?;
        match place.found {
            Some(_) => Err(Errno::EXIST),
            None => Ok(place),
        }
    }

    /// Makes an inode that belongs where `dir` is, without a name.
    fn make(&mut self, dir: u64, mode: u32) -> u64 {
        let ino = self.next;
        self.next += 1;
        let above = self.at(dir);
        let inherits = above.mode & SET_GID != 0;
        let gid = if inherits { above.gid } else { 0 };
        let is_dir = mode & KIND == DIR;
        let default = above.xattrs.get(acl::DEFAULT).cloned();
        let mut inode = Inode {
            mode: mode | if inherits && is_dir { SET_GID } else { 0 },
            nlink: if is_dir { 2 } else { 1 },
            gid,
            parent: dir,
            ..Inode::default()
        };
        // A whiteout has no list: nobody may do anything with it anyway.
        let default = default.filter(|_| mode != WHITEOUT);
        inode.inherit(default).expect("a list that was set");
        self.inodes.insert(ino, inode);
        ino
    }

    fn make_at(&mut self, path: &[u8], mode: u32) -> Result<u64> {
        let place = self.vacant(path)?;
        let ino = self.make(place.dir, mode);
        self.enter(&place, ino);
        Ok(ino)
    }

    /// Sets an entry; counts of parents follow, those of the inode itself do not.
    fn enter(&mut self, place: &Place, ino: u64) {
        let is_dir = self.at(ino).is(DIR);
        self.at_mut(ino).parent = place.dir;
        let dir = self.at_mut(place.dir);
        dir.nlink += u32::from(is_dir);
        dir.entries.insert(place.name.clone(), ino);
    }

    /// Takes an entry away; counts of parents follow, those of the inode itself do not.
    fn leave(&mut self, place: &Place, ino: u64) {
        let is_dir = self.at(ino).is(DIR);
        let dir = self.at_mut(place.dir);
        dir.nlink -= u32::from(is_dir);
        dir.entries.remove(&place.name);
    }

    /// One name less; a directory's last.
    fn drop_name(&mut self, ino: u64) {
        let inode = self.at_mut(ino);
        inode.nlink -= if inode.is(DIR) { 2 } else { 1 };
        self.forget(ino);
    }

    /// An inode without name and slot is gone.
    fn forget(&mut self, ino: u64) {
        let used = self.slots.iter().flatten().any(|open| open.ino == ino);
        if !used && self.at(ino).nlink == 0 {
            self.inodes.remove(&ino);
        }
    }

    fn is_above(&self, ino: u64, mut below: u64) -> bool {
        while below != ROOT {
            below = self.at(below).parent;
            if below == ino {
                return true;
            }
        }
        false
    }

    fn rename(&mut self, old: &[u8], new: &[u8], flags: u32) -> Result<()> {
        let exchange = flags == RENAME_EXCHANGE;
        let (old, new) = (self.walk(old, false)?, self.walk(new, false)?);
        let source = old.ino()?;
        match new.found {
            Some(_) if flags & RENAME_NOREPLACE != 0 => return Err(Errno::EXIST),
            None if exchange => return Err(Errno::NOENT),
            _ => {}
        }
        if source == new.dir || self.is_above(source, new.dir) {
            return Err(Errno::INVAL);
        }
        let Some(target) = new.found else {
            self.leave(&old, source);
            self.enter(&new, source);
            self.white_out(&old, flags);
            return Ok(());
        };
        if target == old.dir || self.is_above(target, old.dir) {
            return Err(if exchange {
                Errno::INVAL
            } else {
                Errno::NOTEMPTY
            });
        }
        if source == target {
            return Ok(());
        }
        if !exchange {
            match (self.at(source).is(DIR), self.at(target).is(DIR)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                _ => {}
            }
            if !self.at(target).entries.is_empty() {
                return Err(Errno::NOTEMPTY);
            }
        }
        self.leave(&old, source);
        self.leave(&new, target);
        self.enter(&new, source);
        if exchange {
            self.enter(&old, target);
        } else {
            self.drop_name(target);
        }
        self.white_out(&old, flags);
        Ok(())
    }

    /// What a rename leaves under the old name.
    fn white_out(&mut self, old: &Place, flags: u32) {
        if flags & RENAME_WHITEOUT != 0 {
            let ino = self.make(old.dir, WHITEOUT);
            self.enter(old, ino);
        }
    }

    fn chown(
        &mut self,
        path: &[u8],
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> Result<()> {
        let ino = self.walk(path, follow)?.ino()?;
        let inode = self.at_mut(ino);
        inode.uid = uid.unwrap_or(inode.uid);
        inode.gid = gid.unwrap_or(inode.gid);
        if !inode.is(DIR) {
            inode.mode &= !SET_UID;
            if inode.mode & 0o010 != 0 {
                inode.mode &= !SET_GID;
            }
        }
        Ok(())
    }

    fn resize(&mut self, ino: u64, size: u64) {
        self.at_mut(ino).data.resize(size as usize, 0);
    }

    fn truncate(&mut self, path: &[u8], size: u64) -> Result<()> {
        let ino = self.walk(path, true)?.ino()?;
        match self.at(ino).mode & KIND {
            FILE => {
                self.resize(ino, size);
                Ok(())
            }
            DIR => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    fn set_xattr(
        &mut self,
        path: &[u8],
        name: &[u8],
        value: Option<Vec<u8>>,
        flags: u32,
    ) -> Result<()> {
        let ino = self.walk(path, true)?.ino()?;
        let inode = self.at_mut(ino);
        if acl::is_acl(name) {
            return inode.set_acl(name, value);
        }
        if !inode.is(FILE) && !inode.is(DIR) {
            return Err(Errno::PERM);
        }
        let exists = inode.xattrs.contains_key(name);
        match value {
            Some(_) if exists && flags == XATTR_CREATE => Err(Errno::EXIST),
            Some(_) if !exists && flags == XATTR_REPLACE => Err(Errno::NODATA),
            None if !exists => Err(Errno::NODATA),
            Some(value) => {
                inode.xattrs.insert(name.to_vec(), value);
                Ok(())
            }
            None => {
                inode.xattrs.remove(name);
                Ok(())
            }
        }
    }

    fn slot(&mut self, slot: usize) -> &mut Option<Open> {
        let slot = self.client * SLOTS + slot;
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        &mut self.slots[slot]
    }

    fn close(&mut self, slot: usize) {
        if let Some(open) = self.slot(slot).take() {
            self.forget(open.ino);
        }
    }

    fn open(&mut self, slot: usize, path: &[u8], flags: OFlags, mode: u32) -> Result<()> {
        self.close(slot);
        let mut open = Open {
            ino: 0,
            flags,
            offset: 0,
        };
        open.ino = self.find_to_open(path, flags, mode, &open)?;
        if flags.contains(OFlags::TRUNC) {
            self.resize(open.ino, 0);
        }
        *self.slot(slot) = Some(open);
        Ok(())
    }

    fn find_to_open(&mut self, path: &[u8], flags: OFlags, mode: u32, open: &Open) -> Result<u64> {
        if flags.contains(OFlags::TMPFILE) {
            let dir = self.walk(path, true)?.ino()?;
            if !self.at(dir).is(DIR) {
                return Err(Errno::NOTDIR);
            }
            let ino = self.make(dir, FILE | mode);
            let inode = self.at_mut(ino);
            inode.nlink = 0;
            inode.linkable = !flags.contains(OFlags::EXCL);
            return Ok(ino);
        }
        let create = flags.contains(OFlags::CREATE);
        let exclusive = create && flags.contains(OFlags::EXCL);
        let place = self.walk(path, !exclusive && !flags.contains(OFlags::NOFOLLOW))?;
        let Some(ino) = place.found else {
            if !create {
                return Err(Errno::NOENT);
            }
            let ino = self.make(place.dir, FILE | mode);
            self.enter(&place, ino);
            return Ok(ino);
        };
        if exclusive {
            return Err(Errno::EXIST);
        }
        match self.at(ino).mode & KIND {
            FILE if flags.contains(OFlags::DIRECTORY) => Err(Errno::NOTDIR),
            FILE => Ok(ino),
            DIR if create || open.writes() => Err(Errno::ISDIR),
            DIR => Ok(ino),
            LINK => Err(Errno::LOOP),
            _ if flags.contains(OFlags::DIRECTORY) => Err(Errno::NOTDIR),
            _ => Err(Errno::NXIO),
        }
    }

    fn file(&mut self, slot: usize, act: &FileAct) -> Outcome {
        if *act == FileAct::Close {
            self.close(slot);
            return Ok(Said::Done);
        }
        let open = self.slot(slot).clone().ok_or(Errno::BADF)?;
        let ino = open.ino;
        match act {
            FileAct::Close => {}
            FileAct::Read(at, len) => return self.read(&open, *at, *len),
            FileAct::Write(at, fill) => {
                self.write(&open, *at, &fill.bytes())?;
                return Ok(Said::Count(fill.len));
            }
            FileAct::WriteBytes(at, bytes) => {
                self.write(&open, *at, bytes)?;
                return Ok(Said::Count(bytes.len()));
            }
            FileAct::WriteNext(fill) => {
                let end = self.write(&open, open.offset, &fill.bytes())?;
                if let Some(open) = self.slot(slot) {
                    open.offset = end;
                }
                return Ok(Said::Count(fill.len));
            }
            FileAct::Truncate(_) if !open.writes() => return Err(Errno::INVAL),
            FileAct::Truncate(size) => self.resize(ino, *size),
            FileAct::Allocate(..) if !open.writes() => return Err(Errno::BADF),
            FileAct::Allocate(mode, at, len) => self.allocate(ino, *mode, *at, *len)?,
            FileAct::Stat => return Ok(Said::Stat(self.at(ino).stat())),
            FileAct::Link(path) => {
                let place = self.vacant(path)?;
                self.link(ino, &place)?;
            }
            FileAct::Sync => {}
        }
        Ok(Said::Done)
    }

    fn read(&self, open: &Open, at: u64, len: usize) -> Outcome {
        let inode = self.at(open.ino);
        if !open.reads() {
            return Err(Errno::BADF);
        }
        if inode.is(DIR) {
            return Err(Errno::ISDIR);
        }
        let data = inode.data.get(at as usize..).unwrap_or_default();
        Ok(Said::Bytes(data[..data.len().min(len)].to_vec()))
    }

    /// Gives the offset behind what was written.
    fn write(&mut self, open: &Open, at: u64, bytes: &[u8]) -> Result<u64> {
        if !open.writes() {
            return Err(Errno::BADF);
        }
        let data = &mut self.at_mut(open.ino).data;
        if bytes.is_empty() {
            return Ok(at);
        }
        let append = open.flags.contains(OFlags::APPEND);
        let at = if append { data.len() } else { at as usize };
        let end = at + bytes.len();
        data.resize(data.len().max(end), 0);
        data[at..end].copy_from_slice(bytes);
        Ok(end as u64)
    }

    fn allocate(&mut self, ino: u64, mode: u32, at: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let keep = mode & 1 != 0;
        let data = &mut self.at_mut(ino).data;
        let size = data.len() as u64;
        let end = at + len;
        let shifts = matches!(mode, 8 | 32);
        if shifts && !(at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK)) {
            return Err(Errno::INVAL);
        }
        match mode & !1 {
            0 => {}
            2 if keep => zero(data, at, end),
            16 => zero(data, at, end),
            8 if end >= size => return Err(Errno::INVAL),
            8 => drop(data.drain(at as usize..end as usize)),
            32 if at >= size => return Err(Errno::INVAL),
            32 => drop(data.splice(at as usize..at as usize, vec![0; len as usize])),
            _ => return Err(Errno::OPNOTSUPP),
        }
        if matches!(mode, 0 | 16) && end > size {
            data.resize(end as usize, 0);
        }
        Ok(())
    }

    fn link(&mut self, ino: u64, place: &Place) -> Result<()> {
        let inode = self.at_mut(ino);
        if inode.is(DIR) {
            return Err(Errno::PERM);
        }
        if inode.nlink == 0 && !inode.linkable {
            return Err(Errno::NOENT);
        }
        inode.nlink += 1;
        // A file made without a name may get its first one, once.
        inode.linkable = false;
        self.enter(place, ino);
        Ok(())
    }

    fn remove(&mut self, path: &[u8], dir: bool) -> Result<()> {
        let place = self.walk(path, false)?;
        let ino = place.ino()?;
        let inode = self.at(ino);
        match (inode.is(DIR), dir) {
            (true, false) => return Err(Errno::ISDIR),
            (false, true) => return Err(Errno::NOTDIR),
            _ if !inode.entries.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.leave(&place, ino);
        self.drop_name(ino);
        Ok(())
    }
}

fn zero(data: &mut [u8], at: u64, end: u64) {
    let size = data.len();
    data[size.min(at as usize)..size.min(end as usize)].fill(0);
}
