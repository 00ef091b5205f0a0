//! A directory of a file system of the kernel's (tmpfs, ext4).

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::{self as sys, AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use super::acl;
use super::act::{Act, FileAct, Outcome, SLOTS, Said, Side, Stat};

const VALUE_BYTES: usize = 70_000;

/// A directory, and the files opened in it.
pub struct Kernel {
    root: PathBuf,
    open: [Option<File>; SLOTS],
}

fn stat(s: &sys::Stat) -> Said {
    let dir = FileType::from_raw_mode(s.st_mode) == FileType::Directory;
    Said::Stat(Stat {
        mode: s.st_mode,
        nlink: s.st_nlink as u32,
        uid: s.st_uid,
        gid: s.st_gid,
        size: if dir { 0 } else { s.st_size as u64 },
    })
}

fn errno(e: std::io::Error) -> Errno {
    Errno::from_io_error(&e).unwrap_or(Errno::IO)
}

impl Kernel {
    /// Everything below `root`, which should be empty.
    pub fn new(root: PathBuf) -> Self {
        Kernel {
            root,
            open: Default::default(),
        }
    }

    fn at(&self, path: &[u8]) -> PathBuf {
        self.root.join(OsStr::from_bytes(path))
    }

    fn file(&mut self, slot: usize, act: &FileAct) -> Outcome {
        if *act == FileAct::Close {
            self.open[slot] = None;
            return Ok(Said::Done);
        }
        let mut file = self.open[slot].as_ref().ok_or(Errno::BADF)?;
        match act {
            FileAct::Close | FileAct::Sync => {}
            FileAct::Read(at, len) => {
                let mut into = vec![0; *len];
                let n = file.read_at(&mut into, *at).map_err(errno)?;
                into.truncate(n);
                return Ok(Said::Bytes(into));
            }
            FileAct::Write(at, fill) => {
                let n = file.write_at(&fill.bytes(), *at).map_err(errno)?;
                return Ok(Said::Count(n));
            }
            FileAct::WriteBytes(at, bytes) => {
                let n = file.write_at(bytes, *at).map_err(errno)?;
                return Ok(Said::Count(n));
            }
            FileAct::WriteNext(fill) => {
                let n = std::io::Write::write(&mut file, &fill.bytes()).map_err(errno)?;
                return Ok(Said::Count(n));
            }
            FileAct::Truncate(size) => sys::ftruncate(file, *size)?,
            FileAct::Allocate(mode, at, len) => {
                sys::fallocate(
                    file,
                    sys::FallocateFlags::from_bits_retain(*mode),
                    *at,
                    *len,
                )?;
            }
            FileAct::Stat => return Ok(stat(&sys::fstat(file)?)),
            FileAct::Link(path) => {
                sys::linkat(file.as_fd(), "", CWD, self.at(path), AtFlags::EMPTY_PATH)?;
            }
        }
        Ok(Said::Done)
    }

    fn list(&self, path: &[u8]) -> Outcome {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = sys::open(self.at(path), flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in sys::Dir::new(fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push((name, (entry.file_type().as_raw_mode() >> 12) as u8));
            }
        }
        names.sort();
        Ok(Said::Names(names))
    }

    /// truncate(2) needs no descriptor, but rustix has only ftruncate.
    fn truncate(&self, path: &[u8], size: u64) -> Outcome {
        match FileType::from_raw_mode(sys::stat(self.at(path))?.st_mode) {
            FileType::Directory => return Err(Errno::ISDIR),
            FileType::RegularFile => {}
            _ => return Err(Errno::INVAL),
        }
        let fd = sys::open(self.at(path), OFlags::WRONLY, Mode::empty())?;
        sys::ftruncate(fd, size).map(|()| Said::Done)
    }

    fn open(&mut self, slot: usize, path: &[u8], flags: OFlags, mode: u32) -> Outcome {
        self.open[slot] = None;
        let mode = Mode::from_bits_retain(mode);
        let fd = sys::open(self.at(path), flags | OFlags::CLOEXEC, mode)?;
        self.open[slot] = Some(fd.into());
        Ok(Said::Done)
    }
}

impl Side for Kernel {
    fn act(&mut self, act: &Act) -> Outcome {
        let bits = Mode::from_bits_retain;
        match act {
            Act::Mkdir(p, mode) => sys::mkdir(self.at(p), bits(*mode))?,
            Act::Socket(p, mode) => {
                sys::mknodat(CWD, self.at(p), FileType::Socket, bits(*mode), 0)?;
            }
            Act::Symlink(to, p) => sys::symlink(OsStr::from_bytes(to), self.at(p))?,
            Act::Link(old, new) => sys::link(self.at(old), self.at(new))?,
            Act::Unlink(p) => sys::unlink(self.at(p))?,
            Act::Rmdir(p) => sys::rmdir(self.at(p))?,
            Act::Rename(old, new, flags) => {
                let flags = RenameFlags::from_bits_retain(*flags);
                sys::renameat_with(CWD, self.at(old), CWD, self.at(new), flags)?;
            }
            Act::Stat(p, true) => return Ok(stat(&sys::stat(self.at(p))?)),
            Act::Stat(p, false) => return Ok(stat(&sys::lstat(self.at(p))?)),
            Act::Readlink(p) => {
                let target = sys::readlink(self.at(p), Vec::new())?;
                return Ok(Said::Bytes(target.into_bytes()));
            }
            Act::List(p) => return self.list(p),
            Act::Chmod(p, mode) => sys::chmod(self.at(p), bits(*mode))?,
            Act::Chown(p, uid, gid, follow) => {
                let flags = match follow {
                    true => AtFlags::empty(),
                    false => AtFlags::SYMLINK_NOFOLLOW,
                };
                let (uid, gid) = (uid.map(sys::Uid::from_raw), gid.map(sys::Gid::from_raw));
                sys::chownat(CWD, self.at(p), uid, gid, flags)?;
            }
            Act::Truncate(p, size) => return self.truncate(p, *size),
            Act::SetXattr(p, name, fill, flags) => {
                let flags = XattrFlags::from_bits_retain(*flags);
                sys::setxattr(
                    self.at(p),
                    OsStr::from_bytes(name),
                    &fill.value(name),
                    flags,
                )?;
            }
            Act::GetXattr(p, name) => {
                let mut into = vec![0; VALUE_BYTES];
                let n = sys::getxattr(self.at(p), OsStr::from_bytes(name), &mut into[..])?;
                into.truncate(n);
                return Ok(Said::Bytes(into));
            }
            Act::RemoveXattr(p, name) => sys::removexattr(self.at(p), OsStr::from_bytes(name))?,
            Act::Open(slot, p, flags, mode) => return self.open(*slot, p, *flags, *mode),
            Act::File(slot, act) => return self.file(*slot, act),
        }
        Ok(Said::Done)
    }

    fn xattr_names(&mut self, path: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
        let mut into = vec![0; VALUE_BYTES];
        let n = sys::llistxattr(self.at(path), &mut into[..])?;
        let mut names: Vec<Vec<u8>> = into[..n]
            .split(|&b| b == 0)
            .filter(|name| name.starts_with(b"user.") || acl::is_acl(name))
            .map(<[u8]>::to_vec)
            .collect();
        names.sort();
        Ok(names)
    }

    fn identity(&mut self, path: &[u8]) -> Result<u64, Errno> {
        Ok(sys::lstat(self.at(path))?.st_ino)
    }
}
