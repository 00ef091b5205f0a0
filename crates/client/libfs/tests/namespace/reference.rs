//! The same operations on a volume and on a directory of the kernel's own memory file
//! system: results and errors have to be the same.

use rustix::fs::{self as sys, AtFlags, CWD, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use shale_libfs::{Attr, File, SetTime, Timestamp, Tree};
use std::collections::BTreeMap;
use std::fs::File as KernelFile;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub type Outcome = Result<Said, Errno>;

/// What an operation tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Done,
    Bytes(Vec<u8>),
    Number(u64),
    Stat(Stat),
    Names(Vec<(Vec<u8>, u8)>),
}

/// The attributes that both sides have to agree on; a directory's size is each side's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    mode: u32,
    nlink: u64,
    owner: (u32, u32),
    size: Option<u64>,
    rdev: u64,
}

/// One operation.
#[derive(Clone, Debug)]
pub enum Act {
    Mkdir(Vec<u8>, u32),
    Socket(Vec<u8>, u32),
    Symlink(Vec<u8>, Vec<u8>),
    Link(Vec<u8>, Vec<u8>),
    Unlink(Vec<u8>),
    Rmdir(Vec<u8>),
    Rename(Vec<u8>, Vec<u8>, u32),
    Stat(Vec<u8>, bool),
    Readlink(Vec<u8>),
    Chmod(Vec<u8>, u32),
    Chown(Vec<u8>, Option<u32>, Option<u32>, bool),
    Utimens(Vec<u8>, i64),
    Times(Vec<u8>),
    Truncate(Vec<u8>, u64),
    List(Vec<u8>),
    SetXattr(Vec<u8>, Vec<u8>, Vec<u8>, u32),
    GetXattr(Vec<u8>, Vec<u8>),
    RemoveXattr(Vec<u8>, Vec<u8>),
    /// Opens into a slot, whose handle is closed before.
    Open(usize, Vec<u8>, OFlags, u32),
    Close(usize),
    Read(usize, u64, usize),
    Write(usize, u64, Vec<u8>),
    Fstat(usize),
    LinkHandle(usize, Vec<u8>),
}

pub const SLOTS: usize = 6;

/// One side of the comparison.
pub trait Side {
    fn act(&mut self, act: &Act) -> Outcome;
}

/// The side of this project.
pub struct Ours {
    pub tree: Tree,
    pub session: std::sync::Arc<shale_libfs::Session>,
    pub open: [Option<File>; SLOTS],
}

fn ours(a: &Attr) -> Said {
    let dir = a.mode & libc::S_IFMT == libc::S_IFDIR;
    Said::Stat(Stat {
        mode: a.mode,
        nlink: a.nlink.into(),
        owner: (a.uid, a.gid),
        size: (!dir).then_some(a.size),
        rdev: a.rdev,
    })
}

fn done(r: Result<(), Errno>) -> Outcome {
    r.map(|()| Said::Done)
}

impl Ours {
    fn handle(&self, slot: usize) -> Result<&File, Errno> {
        self.open[slot].as_ref().ok_or(Errno::BADF)
    }

    fn xattr(&self, act: &Act) -> Outcome {
        let t = &self.tree;
        match act {
            Act::SetXattr(p, n, v, flags) => done(t.setxattr(p, n, v, *flags, true)),
            Act::GetXattr(p, n) => t.getxattr(p, n, true).map(Said::Bytes),
            Act::RemoveXattr(p, n) => done(t.removexattr(p, n, true)),
            other => unreachable!("{other:?}"),
        }
    }

    fn file(&mut self, act: &Act) -> Outcome {
        match act {
            Act::Open(slot, p, flags, mode) => {
                self.open[*slot] = None;
                self.open[*slot] = Some(self.tree.open(p, *flags, *mode)?);
                Ok(Said::Done)
            }
            Act::Close(slot) => {
                self.open[*slot] = None;
                Ok(Said::Done)
            }
            Act::Read(slot, at, bytes) => {
                let mut into = vec![0; *bytes];
                let n = self.handle(*slot)?.pread(*at, &mut into)?;
                into.truncate(n);
                Ok(Said::Bytes(into))
            }
            Act::Write(slot, at, data) => self
                .handle(*slot)?
                .pwrite(*at, data)
                .map(|n| Said::Number(n as u64)),
            Act::Fstat(slot) => Ok(ours(&self.handle(*slot)?.stat()?)),
            Act::LinkHandle(slot, p) => done(self.handle(*slot)?.link_at(p)),
            other => unreachable!("{other:?}"),
        }
    }
}

impl Side for Ours {
    fn act(&mut self, act: &Act) -> Outcome {
        let t = &self.tree;
        match act {
            Act::Mkdir(p, mode) => done(t.mkdir(p, *mode)),
            Act::Socket(p, mode) => done(t.mknod(p, libc::S_IFSOCK | mode, 0)),
            Act::Symlink(to, p) => done(t.symlink(to, p)),
            Act::Link(old, new) => done(t.link(old, new)),
            Act::Unlink(p) => done(t.unlink(p)),
            Act::Rmdir(p) => done(t.rmdir(p)),
            Act::Rename(old, new, flags) => done(t.rename(old, new, *flags)),
            Act::Stat(p, true) => t.stat(p).map(|a| ours(&a)),
            Act::Stat(p, false) => t.lstat(p).map(|a| ours(&a)),
            Act::Readlink(p) => t.readlink(p).map(Said::Bytes),
            Act::Chmod(p, mode) => done(t.chmod(p, *mode)),
            Act::Chown(p, uid, gid, follow) => done(t.chown(p, *uid, *gid, *follow)),
            Act::Utimens(p, at) => {
                let time = |sec| Some(SetTime::At(Timestamp { sec, nsec: 5 }));
                done(t.utimens(p, time(*at), time(-at), true))
            }
            Act::Times(p) => t.stat(p).map(|a| Said::Number((a.mtime.sec < 0) as u64)),
            Act::Truncate(p, size) => done(t.truncate(p, *size)),
            Act::List(p) => {
                let entries: Result<Vec<_>, _> = t.read_dir(p)?.collect();
                let mut names: Vec<_> = entries?.into_iter().map(|e| (e.name, e.kind)).collect();
                names.sort();
                Ok(Said::Names(names))
            }
            Act::SetXattr(..) | Act::GetXattr(..) | Act::RemoveXattr(..) => self.xattr(act),
            _ => self.file(act),
        }
    }
}

/// The kernel's side.
pub struct Kernel {
    pub root: PathBuf,
    /// User and group that operations are done as; only the superuser may change them.
    pub who: (u32, u32),
    pub open: [Option<KernelFile>; SLOTS],
}

fn theirs(s: &sys::Stat) -> Said {
    let dir = s.st_mode & libc::S_IFMT == libc::S_IFDIR;
    Said::Stat(Stat {
        mode: s.st_mode,
        nlink: s.st_nlink,
        owner: (s.st_uid, s.st_gid),
        size: (!dir).then_some(s.st_size as u64),
        rdev: s.st_rdev,
    })
}

impl Kernel {
    fn at(&self, path: &[u8]) -> PathBuf {
        let mut whole = self.root.clone().into_os_string().into_vec();
        if !path.is_empty() {
            whole.push(b'/');
            whole.extend_from_slice(path);
            return PathBuf::from(std::ffi::OsString::from_vec(whole));
        }
        PathBuf::new()
    }

    fn handle(&self, slot: usize) -> Result<&KernelFile, Errno> {
        self.open[slot].as_ref().ok_or(Errno::BADF)
    }

    fn xattr(&self, act: &Act) -> Outcome {
        use std::ffi::OsStr;
        match act {
            Act::SetXattr(p, n, v, flags) => {
                let flags = XattrFlags::from_bits_retain(*flags);
                done(sys::setxattr(self.at(p), OsStr::from_bytes(n), v, flags))
            }
            Act::GetXattr(p, n) => {
                let mut into = vec![0u8; 70_000];
                let n = sys::getxattr(self.at(p), OsStr::from_bytes(n), &mut into[..])?;
                into.truncate(n);
                Ok(Said::Bytes(into))
            }
            Act::RemoveXattr(p, n) => done(sys::removexattr(self.at(p), OsStr::from_bytes(n))),
            other => unreachable!("{other:?}"),
        }
    }

    fn file(&mut self, act: &Act) -> Outcome {
        match act {
            Act::Open(slot, p, flags, mode) => {
                self.open[*slot] = None;
                let fd = sys::open(
                    self.at(p),
                    *flags | OFlags::CLOEXEC,
                    Mode::from_bits_retain(*mode),
                )?;
                self.open[*slot] = Some(fd.into());
                Ok(Said::Done)
            }
            Act::Close(slot) => {
                self.open[*slot] = None;
                Ok(Said::Done)
            }
            Act::Read(slot, at, bytes) => {
                let mut into = vec![0; *bytes];
                let n = self.handle(*slot)?.read_at(&mut into, *at).map_err(errno)?;
                into.truncate(n);
                Ok(Said::Bytes(into))
            }
            Act::Write(slot, at, data) => {
                let n = self.handle(*slot)?.write_at(data, *at).map_err(errno)?;
                Ok(Said::Number(n as u64))
            }
            Act::Fstat(slot) => Ok(theirs(&sys::fstat(self.handle(*slot)?)?)),
            Act::LinkHandle(slot, p) => {
                let fd = self.handle(*slot)?.as_fd();
                done(sys::linkat(fd, "", CWD, self.at(p), AtFlags::EMPTY_PATH))
            }
            other => unreachable!("{other:?}"),
        }
    }

    fn list(&self, p: &[u8]) -> Outcome {
        let fd = sys::open(
            self.at(p),
            OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
        )?;
        let mut names = Vec::new();
        for e in sys::Dir::new(fd)? {
            let e = e?;
            let name = e.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push((name, kind_of(e.file_type())));
            }
        }
        names.sort();
        Ok(Said::Names(names))
    }
}

fn kind_of(t: sys::FileType) -> u8 {
    (t.as_raw_mode() >> 12) as u8
}

/// The identity of this thread while it lives.
struct Identity;

impl Identity {
    fn take((uid, gid): (u32, u32)) -> Option<Self> {
        (uid != 0).then(|| {
            identity(uid, gid);
            Self
        })
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        identity(0, 0);
    }
}

fn identity(uid: u32, gid: u32) {
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let (uid, gid) = (sys::Uid::from_raw(uid), sys::Gid::from_raw(gid));
    if uid.is_root() {
        set_thread_res_uid(None, uid, None).expect("the superuser again");
    }
    set_thread_groups(&[]).expect("no further groups");
    set_thread_res_gid(None, gid, None).expect("another group");
    set_thread_res_uid(None, uid, None).expect("another user");
}

fn errno(e: std::io::Error) -> Errno {
    Errno::from_io_error(&e).expect("an error of the kernel")
}

fn time(sec: i64) -> sys::Timespec {
    sys::Timespec {
        tv_sec: sec,
        tv_nsec: 5,
    }
}

impl Side for Kernel {
    fn act(&mut self, act: &Act) -> Outcome {
        let _identity = Identity::take(self.who);
        let bits = Mode::from_bits_retain;
        match act {
            Act::Mkdir(p, mode) => done(sys::mkdir(self.at(p), bits(*mode))),
            Act::Socket(p, mode) => done(sys::mknodat(
                CWD,
                self.at(p),
                sys::FileType::Socket,
                bits(*mode),
                0,
            )),
            Act::Symlink(to, p) => done(sys::symlink(
                Path::new(std::ffi::OsStr::from_bytes(to)),
                self.at(p),
            )),
            Act::Link(old, new) => done(sys::link(self.at(old), self.at(new))),
            Act::Unlink(p) => done(sys::unlink(self.at(p))),
            Act::Rmdir(p) => done(sys::rmdir(self.at(p))),
            Act::Rename(old, new, flags) => {
                let flags = RenameFlags::from_bits_retain(*flags);
                done(sys::renameat_with(
                    CWD,
                    self.at(old),
                    CWD,
                    self.at(new),
                    flags,
                ))
            }
            Act::Stat(p, true) => sys::stat(self.at(p)).map(|s| theirs(&s)),
            Act::Stat(p, false) => sys::lstat(self.at(p)).map(|s| theirs(&s)),
            Act::Readlink(p) => {
                sys::readlink(self.at(p), Vec::new()).map(|c| Said::Bytes(c.into_bytes()))
            }
            Act::Chmod(p, mode) => done(sys::chmod(self.at(p), bits(*mode))),
            Act::Chown(p, uid, gid, follow) => {
                let flags = if *follow {
                    AtFlags::empty()
                } else {
                    AtFlags::SYMLINK_NOFOLLOW
                };
                let (uid, gid) = (uid.map(sys::Uid::from_raw), gid.map(sys::Gid::from_raw));
                done(sys::chownat(CWD, self.at(p), uid, gid, flags))
            }
            Act::Utimens(p, at) => {
                let times = sys::Timestamps {
                    last_access: time(*at),
                    last_modification: time(-at),
                };
                done(sys::utimensat(CWD, self.at(p), &times, AtFlags::empty()))
            }
            Act::Times(p) => sys::stat(self.at(p)).map(|s| Said::Number((s.st_mtime < 0) as u64)),
            Act::Truncate(p, size) => {
                let path = std::ffi::CString::new(self.at(p).into_os_string().into_vec());
                truncate(&path.expect("no zero bytes"), *size)
            }
            Act::List(p) => self.list(p),
            Act::SetXattr(..) | Act::GetXattr(..) | Act::RemoveXattr(..) => self.xattr(act),
            _ => self.file(act),
        }
    }
}

/// truncate(2) needs no descriptor, but rustix has only ftruncate: the errors of
/// opening for writing are the same for what a path can name here.
fn truncate(path: &std::ffi::CStr, size: u64) -> Outcome {
    let stat = sys::stat(path)?;
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFDIR => return Err(Errno::ISDIR),
        libc::S_IFREG => {}
        _ => return Err(Errno::INVAL),
    }
    let fd = sys::open(path, OFlags::WRONLY, Mode::empty())?;
    done(sys::ftruncate(fd, size))
}

/// Everything below a directory: attributes, targets, contents by path.
pub fn everything(side: &mut dyn Side, slot: usize) -> BTreeMap<Vec<u8>, Vec<Outcome>> {
    let mut all = BTreeMap::new();
    let mut dirs = vec![b".".to_vec()];
    while let Some(dir) = dirs.pop() {
        let Ok(Said::Names(names)) = side.act(&Act::List(dir.clone())) else {
            panic!("{} cannot be listed", String::from_utf8_lossy(&dir));
        };
        for (name, kind) in names {
            let path = [&dir[..], b"/", &name[..]].concat();
            let mut facts = vec![side.act(&Act::Stat(path.clone(), false))];
            match kind {
                4 => dirs.push(path.clone()),
                10 => facts.push(side.act(&Act::Readlink(path.clone()))),
                8 => {
                    facts.push(side.act(&Act::Open(slot, path.clone(), OFlags::RDONLY, 0)));
                    facts.push(side.act(&Act::Read(slot, 0, 1 << 16)));
                    facts.push(side.act(&Act::Close(slot)));
                }
                _ => {}
            }
            facts.push(side.act(&Act::GetXattr(path.clone(), b"user.a".to_vec())));
            all.insert(path, facts);
        }
    }
    all
}
