//! Requests that look names up, make, move and remove them.

use super::attributes::entry_out;
use super::{Call, Validity};
use crate::backend::node::{Attr, Errno, NodeFs, Result};
use std::time::Duration;

use crate::serving::wire::{
    CreateIn, EntryOut, LinkIn, MkdirIn, MknodIn, OpenOut, Rename2In, RenameIn,
};

impl<F: NodeFs + ?Sized> Call<'_, F> {
    /// How long names and attributes are valid: the former if they are `kept`.
    fn validity_of(&self, kept: bool) -> Validity {
        let mut validity = self.validity;
        if !kept {
            validity.entry = Duration::ZERO;
            validity.negative = Duration::ZERO;
        }
        validity
    }

    /// How long the name and the attributes of what was made in the directory are valid.
    fn validity_of_made(&self) -> Validity {
        let mut validity = self.validity;
        if !self.fs.keeps_changed() {
            validity.attr = Duration::ZERO;
        }
        validity
    }

    /// What was made.
    fn put_entry(&mut self, attr: &Attr) -> Result<usize> {
        self.out.put(&entry_out(attr, &self.validity_of_made()))?;
        Ok(self.out.used())
    }

    pub(super) fn lookup(&mut self) -> Result<usize> {
        let name = self.body.name()?;
        let found = self.fs.lookup(&self.request, self.ino, name);
        let validity = self.validity_of(self.fs.keeps_name(self.ino, name));
        match found {
            Ok(attr) => {
                self.out.put(&entry_out(&attr, &validity))?;
                Ok(self.out.used())
            }
            Err(Errno(libc::ENOENT)) => {
                let validity = validity.negative;
                if validity.is_zero() {
                    return Err(Errno(libc::ENOENT));
                }
                // Inode 0 with a validity is a name that does not exist, remembered.
                self.out.put(&EntryOut {
                    entry_valid: validity.as_secs(),
                    entry_valid_nsec: validity.subsec_nanos(),
                    ..EntryOut::default()
                })?;
                Ok(self.out.used())
            }
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn readlink(&mut self) -> Result<usize> {
        let target = self.fs.readlink(&self.request, self.ino)?;
        self.out.put_bytes(&target)?;
        Ok(self.out.used())
    }

    pub(super) fn symlink(&mut self) -> Result<usize> {
        let name = self.body.name()?;
        let target = self.body.name()?;
        let attr = self.fs.symlink(&self.request, self.ino, name, target)?;
        self.put_entry(&attr)
    }

    pub(super) fn mknod(&mut self) -> Result<usize> {
        let MknodIn {
            mode, rdev, umask, ..
        } = self.body.take()?;
        let name = self.body.name()?;
        self.request.umask = umask;
        let attr = self.fs.mknod(&self.request, self.ino, name, mode, rdev)?;
        self.put_entry(&attr)
    }

    pub(super) fn mkdir(&mut self) -> Result<usize> {
        let MkdirIn { mode, umask } = self.body.take()?;
        let name = self.body.name()?;
        self.request.umask = umask;
        let attr = self.fs.mkdir(&self.request, self.ino, name, mode)?;
        self.put_entry(&attr)
    }

    pub(super) fn unlink(&mut self) -> Result<usize> {
        let name = self.body.name()?;
        self.fs.unlink(&self.request, self.ino, name).map(|()| 0)
    }

    pub(super) fn rmdir(&mut self) -> Result<usize> {
        let name = self.body.name()?;
        self.fs.rmdir(&self.request, self.ino, name).map(|()| 0)
    }

    pub(super) fn rename(&mut self) -> Result<usize> {
        let RenameIn { newdir } = self.body.take()?;
        self.rename_to(newdir, 0)
    }

    pub(super) fn rename2(&mut self) -> Result<usize> {
        let Rename2In { newdir, flags, .. } = self.body.take()?;
        self.rename_to(newdir, flags)
    }

    fn rename_to(&mut self, newdir: u64, flags: u32) -> Result<usize> {
        let name = self.body.name()?;
        let newname = self.body.name()?;
        self.fs
            .rename(&self.request, (self.ino, name), (newdir, newname), flags)
            .map(|()| 0)
    }

    pub(super) fn link(&mut self) -> Result<usize> {
        let LinkIn { oldnodeid } = self.body.take()?;
        let name = self.body.name()?;
        let attr = self.fs.link(&self.request, oldnodeid, self.ino, name)?;
        self.put_entry(&attr)
    }

    pub(super) fn create(&mut self) -> Result<usize> {
        let CreateIn {
            flags, mode, umask, ..
        } = self.body.take()?;
        let name = self.body.name()?;
        self.request.umask = umask;
        let attr = self.fs.create(&self.request, self.ino, name, mode, flags)?;
        self.put_opened(&attr)
    }

    pub(super) fn tmpfile(&mut self) -> Result<usize> {
        // A placeholder for the name follows.
        let CreateIn {
            flags, mode, umask, ..
        } = self.body.take()?;
        self.request.umask = umask;
        let attr = self.fs.tmpfile(&self.request, self.ino, mode, flags)?;
        self.put_opened(&attr)
    }

    /// An entry and a file opened with no handle. No `FOPEN_KEEP_CACHE`: if the file
    /// existed and was truncated, pages of old must go; a new file has none.
    fn put_opened(&mut self, attr: &Attr) -> Result<usize> {
        self.put_entry(attr)?;
        self.out.put(&OpenOut::default())?;
        Ok(self.out.used())
    }
}
