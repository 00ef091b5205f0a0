//! A volume through LibFS's own paths and handles.

use rustix::io::Errno;
use shale_libfs::{Attr, File, OFlags, Tree};

use super::act::{Act, FileAct, Outcome, SLOTS, Said, Side, Stat};

const DIR: u32 = 0o040_000;
const KIND: u32 = 0o170_000;
const SOCKET: u32 = 0o140_000;

/// A client of a volume, and the files it has open.
pub struct Shale {
    open: [Option<File>; SLOTS],
    tree: Tree,
}

/// What attributes say.
pub fn stat(a: &Attr) -> Said {
    Said::Stat(Stat {
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        size: if a.mode & KIND == DIR { 0 } else { a.size },
    })
}

impl Shale {
    /// As the caller of `tree`, who should be the superuser.
    pub fn new(tree: Tree) -> Self {
        Shale {
            open: Default::default(),
            tree,
        }
    }

    fn file(&mut self, slot: usize, act: &FileAct) -> Outcome {
        if *act == FileAct::Close {
            self.open[slot] = None;
            return Ok(Said::Done);
        }
        let file = self.open[slot].as_ref().ok_or(Errno::BADF)?;
        match act {
            FileAct::Close => {}
            FileAct::Read(at, len) => {
                let mut into = vec![0; *len];
                let n = file.pread(*at, &mut into)?;
                into.truncate(n);
                return Ok(Said::Bytes(into));
            }
            FileAct::Write(at, fill) => return file.pwrite(*at, &fill.bytes()).map(Said::Count),
            FileAct::WriteBytes(at, bytes) => return file.pwrite(*at, bytes).map(Said::Count),
            FileAct::WriteNext(fill) => return file.write(&fill.bytes()).map(Said::Count),
            FileAct::Truncate(size) => file.truncate(*size)?,
            FileAct::Allocate(mode, at, len) => file.fallocate(*mode, *at, *len)?,
            FileAct::Stat => return Ok(stat(&file.stat()?)),
            FileAct::Link(path) => file.link_at(path)?,
            FileAct::Sync => file.sync(false)?,
        }
        Ok(Said::Done)
    }

    fn list(&self, path: &[u8]) -> Outcome {
        let entries: Result<Vec<_>, _> = self.tree.read_dir(path)?.collect();
        let mut names: Vec<_> = entries?.into_iter().map(|e| (e.name, e.kind)).collect();
        names.sort();
        Ok(Said::Names(names))
    }

    fn open(&mut self, slot: usize, path: &[u8], flags: OFlags, mode: u32) -> Outcome {
        self.open[slot] = None;
        self.open[slot] = Some(self.tree.open(path, flags, mode)?);
        Ok(Said::Done)
    }
}

impl Side for Shale {
    fn act(&mut self, act: &Act) -> Outcome {
        let t = &self.tree;
        match act {
            Act::Mkdir(p, mode) => t.mkdir(p, *mode)?,
            Act::Socket(p, mode) => t.mknod(p, SOCKET | mode, 0)?,
            Act::Symlink(to, p) => t.symlink(to, p)?,
            Act::Link(old, new) => t.link(old, new)?,
            Act::Unlink(p) => t.unlink(p)?,
            Act::Rmdir(p) => t.rmdir(p)?,
            Act::Rename(old, new, flags) => t.rename(old, new, *flags)?,
            Act::Stat(p, true) => return Ok(stat(&t.stat(p)?)),
            Act::Stat(p, false) => return Ok(stat(&t.lstat(p)?)),
            Act::Readlink(p) => return t.readlink(p).map(Said::Bytes),
            Act::List(p) => return self.list(p),
            Act::Chmod(p, mode) => t.chmod(p, *mode)?,
            Act::Chown(p, uid, gid, follow) => t.chown(p, *uid, *gid, *follow)?,
            Act::Truncate(p, size) => t.truncate(p, *size)?,
            Act::SetXattr(p, name, fill, flags) => {
                t.setxattr(p, name, &fill.value(name), *flags, true)?;
            }
            Act::GetXattr(p, name) => return t.getxattr(p, name, true).map(Said::Bytes),
            Act::RemoveXattr(p, name) => t.removexattr(p, name, true)?,
            Act::Open(slot, p, flags, mode) => return self.open(*slot, p, *flags, *mode),
            Act::File(slot, act) => return self.file(*slot, act),
        }
        Ok(Said::Done)
    }

    fn xattr_names(&mut self, path: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
        let mut names: Vec<Vec<u8>> = self
            .tree
            .listxattr(path, false)?
            .split(|&b| b == 0)
            .filter(|name| !name.is_empty())
            .map(<[u8]>::to_vec)
            .collect();
        names.sort();
        Ok(names)
    }

    fn identity(&mut self, path: &[u8]) -> Result<u64, Errno> {
        Ok(self.tree.lstat(path)?.ino)
    }
}
