//! A block device as the one file of a mount, so that the kernel can put a loop device over it.
//!
//! A hole that is punched is a discard, `fsync` a flush. Nothing else can be changed.

use std::sync::Arc;

use shale_block::{BlockDevice, BlockError};
use shale_fuse::node::{Attr, DirEntry, EntrySink, Request, Result, SetAttr, StatFs, WriteFlags};
use shale_fuse::{Errno, NodeFs, ROOT_INO};

/// Name of the file.
pub(super) const NAME: &str = "flash";
const FILE_INO: u64 = 2;
const BLOCK_BYTES: u32 = 4096;
const READ_ONLY: Errno = Errno(libc::EROFS);

/// The file system of one file.
pub(super) struct Exported<D> {
    device: Arc<D>,
}

fn errno(error: &BlockError) -> Errno {
    eprintln!("shale-harness: {error}");
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

impl<D: BlockDevice> Exported<D> {
    pub fn new(device: Arc<D>) -> Self {
        Exported { device }
    }

    fn attr(&self, ino: u64) -> Result<Attr> {
        let (mode, nlink, size) = match ino {
            ROOT_INO => (libc::S_IFDIR | 0o755, 2, 0),
            FILE_INO => (libc::S_IFREG | 0o600, 1, self.device.bytes()),
            _ => return Err(Errno(libc::ENOENT)),
        };
        Ok(Attr {
            ino,
            size,
            blocks: size / 512,
            mode,
            nlink,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            ..Attr::default()
        })
    }

    /// Bytes of a range that are on the device.
    fn inside(&self, ino: u64, offset: u64, bytes: u64) -> Result<u64> {
        if ino != FILE_INO {
            return Err(Errno(libc::EISDIR));
        }
        Ok(bytes.min(self.device.bytes().saturating_sub(offset)))
    }
}

impl<D: BlockDevice> NodeFs for Exported<D> {
    fn lookup(&self, _: &Request, parent: u64, name: &[u8]) -> Result<Attr> {
        match (parent, name) {
            (ROOT_INO, name) if name == NAME.as_bytes() => self.attr(FILE_INO),
            _ => Err(Errno(libc::ENOENT)),
        }
    }

    fn forget(&self, _: u64, _: u64) {}

    fn getattr(&self, _: &Request, ino: u64) -> Result<Attr> {
        self.attr(ino)
    }

    fn setattr(&self, _: &Request, ino: u64, set: &SetAttr) -> Result<Attr> {
        match *set == SetAttr::default() {
            true => self.attr(ino),
            false => Err(READ_ONLY),
        }
    }

    fn readlink(&self, _: &Request, _: u64) -> Result<Vec<u8>> {
        Err(Errno(libc::EINVAL))
    }

    fn mknod(&self, _: &Request, _: u64, _: &[u8], _: u32, _: u32) -> Result<Attr> {
        Err(READ_ONLY)
    }

    fn mkdir(&self, _: &Request, _: u64, _: &[u8], _: u32) -> Result<Attr> {
        Err(READ_ONLY)
    }

    fn symlink(&self, _: &Request, _: u64, _: &[u8], _: &[u8]) -> Result<Attr> {
        Err(READ_ONLY)
    }

    fn link(&self, _: &Request, _: u64, _: u64, _: &[u8]) -> Result<Attr> {
        Err(READ_ONLY)
    }

    fn unlink(&self, _: &Request, _: u64, _: &[u8]) -> Result<()> {
        Err(READ_ONLY)
    }

    fn rmdir(&self, _: &Request, _: u64, _: &[u8]) -> Result<()> {
        Err(READ_ONLY)
    }

    fn rename(&self, _: &Request, _: (u64, &[u8]), _: (u64, &[u8]), _: u32) -> Result<()> {
        Err(READ_ONLY)
    }

    fn create(&self, _: &Request, _: u64, _: &[u8], _: u32, _: u32) -> Result<Attr> {
        Err(READ_ONLY)
    }

    fn tmpfile(&self, _: &Request, _: u64, _: u32, _: u32) -> Result<Attr> {
        Err(READ_ONLY)
    }

    fn read(&self, _: &Request, ino: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        let bytes = self.inside(ino, offset, into.len() as u64)? as usize;
        let read = self.device.read(offset, &mut into[..bytes]);
        read.map(|()| bytes).map_err(|e| errno(&e))
    }

    fn write(
        &self,
        _: &Request,
        ino: u64,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
    ) -> Result<usize> {
        let bytes = self.inside(ino, offset, data.len() as u64)? as usize;
        if bytes == 0 && !data.is_empty() {
            return Err(Errno(libc::ENOSPC));
        }
        let written = self.device.write(offset, &data[..bytes]);
        written.map(|()| bytes).map_err(|e| errno(&e))
    }

    fn fallocate(&self, _: &Request, ino: u64, mode: u32, offset: u64, length: u64) -> Result<()> {
        let mode = mode.cast_signed() & !libc::FALLOC_FL_KEEP_SIZE;
        if mode != libc::FALLOC_FL_PUNCH_HOLE && mode != libc::FALLOC_FL_ZERO_RANGE {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let bytes = self.inside(ino, offset, length)?;
        let done = self.device.discard(offset, bytes);
        done.map_err(|e| errno(&e))
    }

    fn readdir(
        &self,
        _: &Request,
        ino: u64,
        cookie: u64,
        _: bool,
        sink: &mut EntrySink<'_>,
    ) -> Result<()> {
        if ino != ROOT_INO {
            return Err(Errno(libc::ENOTDIR));
        }
        let entries = [
            (".", ROOT_INO, libc::DT_DIR),
            ("..", ROOT_INO, libc::DT_DIR),
            (NAME, FILE_INO, libc::DT_REG),
        ];
        for (cookie, (name, ino, kind)) in (1..).zip(entries).skip(cookie as usize) {
            let entry = DirEntry {
                name: name.as_bytes(),
                ino,
                kind,
                cookie,
                attr: None,
            };
            if !sink(entry) {
                break;
            }
        }
        Ok(())
    }

    fn fsync(&self, _: &Request, _: u64, _: bool) -> Result<()> {
        self.device.flush().map_err(|e| errno(&e))
    }

    fn fsyncdir(&self, _: &Request, _: u64, _: bool) -> Result<()> {
        Ok(())
    }

    fn syncfs(&self, request: &Request) -> Result<()> {
        self.fsync(request, FILE_INO, false)
    }

    fn statfs(&self, _: &Request) -> Result<StatFs> {
        Ok(StatFs {
            blocks: self.device.bytes() / u64::from(BLOCK_BYTES),
            block_bytes: BLOCK_BYTES,
            name_bytes_max: 255,
            files: 2,
            ..StatFs::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_block::FileDevice;

    const REQUEST: Request = Request {
        unique: 1,
        uid: 0,
        gid: 0,
        pid: 0,
        umask: 0,
        direct: false,
        opened: false,
        from_cache: false,
    };

    #[test]
    fn it_is_one_file_as_long_as_the_device() {
        let device = FileDevice::memory(16_384).unwrap();
        let exported = Exported::new(Arc::new(device));
        let attr = exported.lookup(&REQUEST, ROOT_INO, b"flash").unwrap();
        assert_eq!((attr.ino, attr.size), (FILE_INO, 16_384));
        let mut names = Vec::new();
        let mut sink = |entry: DirEntry<'_>| {
            names.push(entry.name.to_vec());
            true
        };
        exported
            .readdir(&REQUEST, ROOT_INO, 1, false, &mut sink)
            .unwrap();
        assert_eq!(names, [b"..".to_vec(), b"flash".to_vec()]);
        assert_eq!(
            exported.unlink(&REQUEST, ROOT_INO, b"flash"),
            Err(READ_ONLY)
        );
    }

    #[test]
    fn writes_holes_and_the_end() {
        let exported = Exported::new(Arc::new(FileDevice::memory(16_384).unwrap()));
        let write =
            |at, data: &[u8]| exported.write(&REQUEST, FILE_INO, at, data, WriteFlags::default());
        assert_eq!(write(12_288, &[7; 8_192]), Ok(4_096));
        assert_eq!(write(16_384, &[7]), Err(Errno(libc::ENOSPC)));
        let punch = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE).cast_unsigned();
        exported
            .fallocate(&REQUEST, FILE_INO, punch, 12_288, 512)
            .unwrap();
        let mut found = [1; 8_192];
        assert_eq!(
            exported.read(&REQUEST, FILE_INO, 12_288, &mut found),
            Ok(4_096)
        );
        assert_eq!((found[511], found[512]), (0, 7));
        assert_eq!(exported.fsync(&REQUEST, FILE_INO, true), Ok(()));
        assert!(exported.fallocate(&REQUEST, FILE_INO, 0, 0, 512).is_err());
    }
}
