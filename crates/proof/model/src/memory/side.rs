//! The model's operations by name.

use rustix::io::Errno;

use super::{DIR, LINK, Memory, Result, SOCKET};
use crate::act::{Act, Outcome, Said, Side};

impl Side for Memory {
    fn act(&mut self, act: &Act) -> Outcome {
        match act {
            Act::Mkdir(path, mode) => drop(self.make_at(path, DIR | mode)?),
            Act::Socket(path, mode) => drop(self.make_at(path, SOCKET | mode)?),
            Act::Symlink(target, path) => {
                let ino = self.make_at(path, LINK | 0o777)?;
                self.at_mut(ino).data = target.clone();
            }
            Act::Link(old, new) => {
                let ino = self.walk(old, false)?.ino()?;
                let place = self.vacant(new)?;
                self.link(ino, &place)?;
            }
            Act::Unlink(path) => self.remove(path, false)?,
            Act::Rmdir(path) => self.remove(path, true)?,
            Act::Rename(old, new, flags) => self.rename(old, new, *flags)?,
            Act::Stat(path, follow) => {
                let ino = self.walk(path, *follow)?.ino()?;
                return Ok(Said::Stat(self.at(ino).stat()));
            }
            Act::Readlink(path) => {
                let inode = self.at(self.walk(path, false)?.ino()?);
                let data = inode.data.clone();
                return if inode.is(LINK) {
                    Ok(Said::Bytes(data))
                } else {
                    Err(Errno::INVAL)
                };
            }
            Act::List(path) => {
                let inode = self.at(self.walk(path, true)?.ino()?);
                if !inode.is(DIR) {
                    return Err(Errno::NOTDIR);
                }
                let kind = |ino: &u64| (self.at(*ino).mode >> 12) as u8;
                let names = inode
                    .entries
                    .iter()
                    .map(|(name, ino)| (name.clone(), kind(ino)));
                return Ok(Said::Names(names.collect()));
            }
            Act::Chmod(path, mode) => {
                let ino = self.walk(path, true)?.ino()?;
                self.at_mut(ino).chmod(mode & 0o7777)?;
            }
            Act::Chown(path, uid, gid, follow) => self.chown(path, *uid, *gid, *follow)?,
            Act::Truncate(path, size) => self.truncate(path, *size)?,
            Act::SetXattr(path, name, fill, flags) => {
                self.set_xattr(path, name, Some(fill.value(name)), *flags)?;
            }
            Act::RemoveXattr(path, name) => self.set_xattr(path, name, None, 0)?,
            Act::GetXattr(path, name) => {
                let inode = self.at(self.walk(path, true)?.ino()?);
                let value = inode.xattrs.get(name).ok_or(Errno::NODATA)?;
                return Ok(Said::Bytes(value.clone()));
            }
            Act::Open(slot, path, flags, mode) => self.open(*slot, path, *flags, *mode)?,
            Act::File(slot, act) => return self.file(*slot, act),
        }
        Ok(Said::Done)
    }

    fn xattr_names(&mut self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let inode = self.at(self.walk(path, false)?.ino()?);
        Ok(inode.xattrs.keys().cloned().collect())
    }

    fn identity(&mut self, path: &[u8]) -> Result<u64> {
        self.walk(path, false)?.ino()
    }
}
