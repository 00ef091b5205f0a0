//! A file system whose state outlives its process: the files of one directory of
//! another file system. Doing any of its operations twice changes nothing.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use shale_fuse::ROOT_INO;
use shale_fuse::node::{
    Attr, DirEntry, EntrySink, Errno, NodeFs, Request, Result, SetAttr, StatFs, Timestamp,
    WriteFlags,
};

pub struct DirectoryFs {
    root: PathBuf,
    /// Files by the inode numbers they have there, which a successor finds again.
    files: Mutex<HashMap<u64, Arc<File>>>,
    /// Gets which inode is read, before the answer.
    reads: Box<dyn Fn(u64) + Send + Sync>,
}

fn attr_of(file: &File) -> Result<Attr> {
    let meta = file.metadata()?;
    let time = |sec, nsec: i64| Timestamp {
        sec,
        nsec: nsec as u32,
    };
    Ok(Attr {
        ino: meta.ino(),
        size: meta.len(),
        blocks: meta.blocks(),
        mode: meta.mode(),
        nlink: meta.nlink() as u32,
        uid: meta.uid(),
        gid: meta.gid(),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        ..Attr::default()
    })
}

impl DirectoryFs {
    /// One that tells `reads` of each read, which may hold it up.
    pub fn new(root: &Path, reads: Box<dyn Fn(u64) + Send + Sync>) -> Self {
        let fs = Self {
            root: root.to_owned(),
            files: Mutex::default(),
            reads,
        };
        for entry in fs::read_dir(root).unwrap() {
            fs.open(entry.unwrap().file_name().as_bytes(), false)
                .unwrap();
        }
        fs
    }

    fn open(&self, name: &[u8], create: bool) -> Result<Attr> {
        let path = self.root.join(std::ffi::OsStr::from_bytes(name));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .truncate(false)
            .open(path)?;
        let attr = attr_of(&file)?;
        self.files
            .lock()
            .entry(attr.ino)
            .or_insert_with(|| Arc::new(file));
        Ok(attr)
    }

    fn file(&self, ino: u64) -> Result<Arc<File>> {
        self.files
            .lock()
            .get(&ino)
            .cloned()
            .ok_or(Errno(libc::ESTALE))
    }
}

impl NodeFs for DirectoryFs {
    fn lookup(&self, _: &Request, _: u64, name: &[u8]) -> Result<Attr> {
        self.open(name, false)
    }

    fn forget(&self, _: u64, _: u64) {}

    fn getattr(&self, _: &Request, ino: u64) -> Result<Attr> {
        if ino == ROOT_INO {
            return Ok(Attr {
                ino,
                mode: 0o40755,
                nlink: 2,
                ..Attr::default()
            });
        }
        attr_of(&*self.file(ino)?)
    }

    fn setattr(&self, request: &Request, ino: u64, set: &SetAttr) -> Result<Attr> {
        if let Some(size) = set.size {
            self.file(ino)?.set_len(size)?;
        }
        self.getattr(request, ino)
    }

    fn readlink(&self, _: &Request, _: u64) -> Result<Vec<u8>> {
        Err(Errno(libc::EINVAL))
    }

    fn mknod(&self, _: &Request, _: u64, _: &[u8], _: u32, _: u32) -> Result<Attr> {
        Err(Errno(libc::EPERM))
    }

    fn mkdir(&self, _: &Request, _: u64, _: &[u8], _: u32) -> Result<Attr> {
        Err(Errno(libc::EPERM))
    }

    fn symlink(&self, _: &Request, _: u64, _: &[u8], _: &[u8]) -> Result<Attr> {
        Err(Errno(libc::EPERM))
    }

    fn link(&self, _: &Request, _: u64, _: u64, _: &[u8]) -> Result<Attr> {
        Err(Errno(libc::EPERM))
    }

    fn unlink(&self, _: &Request, _: u64, name: &[u8]) -> Result<()> {
        match fs::remove_file(self.root.join(std::ffi::OsStr::from_bytes(name))) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn rmdir(&self, _: &Request, _: u64, _: &[u8]) -> Result<()> {
        Err(Errno(libc::EPERM))
    }

    fn rename(&self, _: &Request, _: (u64, &[u8]), _: (u64, &[u8]), _: u32) -> Result<()> {
        Err(Errno(libc::EPERM))
    }

    fn create(&self, _: &Request, _: u64, name: &[u8], _: u32, _: u32) -> Result<Attr> {
        self.open(name, true)
    }

    fn tmpfile(&self, _: &Request, _: u64, _: u32, _: u32) -> Result<Attr> {
        Err(Errno(libc::EOPNOTSUPP))
    }

    fn read(&self, _: &Request, ino: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        (self.reads)(ino);
        Ok(self.file(ino)?.read_at(into, offset)?)
    }

    fn write(
        &self,
        _: &Request,
        ino: u64,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
    ) -> Result<usize> {
        self.file(ino)?.write_all_at(data, offset)?;
        Ok(data.len())
    }

    fn readdir(
        &self,
        _: &Request,
        _: u64,
        cookie: u64,
        _: bool,
        sink: &mut EntrySink<'_>,
    ) -> Result<()> {
        let mut names: Vec<_> = fs::read_dir(&self.root)?
            .filter_map(|e| {
                e.ok()
                    .and_then(|e| Some((e.metadata().ok()?.ino(), e.file_name())))
            })
            .collect();
        // A file's inode number is a position that stays.
        names.sort();
        for (ino, name) in names.into_iter().filter(|(ino, _)| *ino > cookie) {
            let (name, kind) = (name.into_vec(), libc::DT_REG);
            if !sink(DirEntry {
                name: &name,
                ino,
                kind,
                cookie: ino,
                attr: None,
            }) {
                break;
            }
        }
        Ok(())
    }

    fn fsync(&self, _: &Request, _: u64, _: bool) -> Result<()> {
        Ok(())
    }

    fn fsyncdir(&self, _: &Request, _: u64, _: bool) -> Result<()> {
        Ok(())
    }

    fn syncfs(&self, _: &Request) -> Result<()> {
        Ok(())
    }

    fn statfs(&self, _: &Request) -> Result<StatFs> {
        Ok(StatFs::default())
    }
}
