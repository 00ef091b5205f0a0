//! A file system in memory, small but POSIX: what the adapter is tried with.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use shale_fuse::ROOT_INO;
use shale_fuse::node::{
    Attr, DirEntry, EntrySink, Errno, FilePosition, NodeFs, Promise, Request, Result, SetAttr,
    SetTime, StatFs, Timestamp, WriteFlags,
};

use crate::slow_device::SlowDevice;

#[derive(Default)]
struct Node {
    attr: Attr,
    refs: u64,
    parent: u64,
    data: Vec<u8>,
    /// Entries by cookie, which are never used twice.
    entries: BTreeMap<u64, (Vec<u8>, u64)>,
    names: HashMap<Vec<u8>, u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Node {
    fn is_dir(&self) -> bool {
        self.attr.mode & libc::S_IFMT == libc::S_IFDIR
    }
}

#[derive(Default)]
struct Tree {
    nodes: HashMap<u64, Node>,
    last_ino: u64,
    last_cookie: u64,
}

/// The file system, with counts of what it was asked.
#[derive(Default)]
pub struct MemoryFs {
    tree: Mutex<Tree>,
    pub lookups: AtomicU64,
    pub getattrs: AtomicU64,
    pub reads: AtomicU64,
    pub readdirs: AtomicU64,
    pub copies: AtomicU64,
    pub shutdown_flags: AtomicU32,
    pub destroyed: AtomicU64,
    /// Writes wait while it is held.
    pub latch: Mutex<()>,
    /// Writes that came.
    pub writes: AtomicU64,
    /// Answers that promise something wait for it, if there is a device to wait for.
    pub device: Option<SlowDevice>,
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp {
        sec: since.as_secs() as i64,
        nsec: since.subsec_nanos(),
    }
}

fn errno<T>(number: i32) -> Result<T> {
    Err(Errno(number))
}

impl Tree {
    fn node(&mut self, ino: u64) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Errno(libc::ESTALE))
    }

    fn find(&mut self, parent: u64, name: &[u8]) -> Result<u64> {
        let dir = self.node(parent)?;
        let cookie = dir.names.get(name).ok_or(Errno(libc::ENOENT))?;
        Ok(dir.entries[cookie].1)
    }

    fn add_name(&mut self, parent: u64, name: &[u8], ino: u64) -> Result<()> {
        self.last_cookie += 1;
        let cookie = self.last_cookie;
        let dir = self.node(parent)?;
        dir.entries.insert(cookie, (name.to_vec(), ino));
        dir.names.insert(name.to_vec(), cookie);
        dir.attr.mtime = now();
        dir.attr.ctime = dir.attr.mtime;
        if self.node(ino)?.is_dir() {
            self.node(ino)?.parent = parent;
            self.node(parent)?.attr.nlink += 1;
        }
        Ok(())
    }

    fn drop_name(&mut self, parent: u64, name: &[u8]) -> Result<u64> {
        let dir = self.node(parent)?;
        let cookie = dir.names.remove(name).ok_or(Errno(libc::ENOENT))?;
        let (_, ino) = dir.entries.remove(&cookie).unwrap();
        dir.attr.mtime = now();
        if self.node(ino)?.is_dir() {
            self.node(parent)?.attr.nlink -= 1;
        }
        Ok(ino)
    }

    fn unref_name(&mut self, ino: u64) -> Result<()> {
        let node = self.node(ino)?;
        node.attr.nlink = if node.is_dir() {
            0
        } else {
            node.attr.nlink - 1
        };
        node.attr.ctime = now();
        self.free_if_unused(ino);
        Ok(())
    }

    fn free_if_unused(&mut self, ino: u64) {
        if self
            .nodes
            .get(&ino)
            .is_some_and(|n| n.attr.nlink == 0 && n.refs == 0)
        {
            self.nodes.remove(&ino);
        }
    }

    fn make(&mut self, request: &Request, parent: u64, mode: u32, nlink: u32) -> Result<u64> {
        self.node(parent)?;
        self.last_ino += 1;
        let ino = self.last_ino;
        let at = now();
        let attr = Attr {
            ino,
            mode: mode & !request.umask,
            nlink,
            uid: request.uid,
            gid: request.gid,
            atime: at,
            mtime: at,
            ctime: at,
            btime: at,
            ..Attr::default()
        };
        self.nodes.insert(
            ino,
            Node {
                attr,
                parent,
                ..Node::default()
            },
        );
        Ok(ino)
    }

    fn make_named(
        &mut self,
        request: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
    ) -> Result<Attr> {
        if name.len() > 255 {
            return errno(libc::ENAMETOOLONG);
        }
        if self.find(parent, name).is_ok() {
            return errno(libc::EEXIST);
        }
        let nlink = if mode & libc::S_IFMT == libc::S_IFDIR {
            2
        } else {
            1
        };
        let ino = self.make(request, parent, mode, nlink)?;
        self.add_name(parent, name, ino)?;
        self.reference(ino)
    }

    fn reference(&mut self, ino: u64) -> Result<Attr> {
        let node = self.node(ino)?;
        node.refs += 1;
        Ok(node.attr)
    }

    fn resize(&mut self, ino: u64, size: u64) -> Result<()> {
        let node = self.node(ino)?;
        node.data.resize(size as usize, 0);
        node.attr.size = size;
        node.attr.blocks = size.div_ceil(512);
        node.attr.mtime = now();
        node.attr.ctime = node.attr.mtime;
        Ok(())
    }
}

impl MemoryFs {
    pub fn new(device: Option<SlowDevice>) -> Arc<Self> {
        let fs = Self {
            device,
            ..Self::default()
        };
        {
            let mut tree = fs.tree.lock();
            let attr = Attr {
                ino: ROOT_INO,
                mode: 0o40755,
                nlink: 2,
                ..Attr::default()
            };
            let root = Node {
                attr,
                parent: ROOT_INO,
                refs: 1,
                ..Node::default()
            };
            tree.nodes.insert(ROOT_INO, root);
            tree.last_ino = ROOT_INO;
        }
        Arc::new(fs)
    }

    /// Number of inodes there are.
    pub fn inodes(&self) -> usize {
        self.tree.lock().nodes.len()
    }

    /// Replaces a file's content behind the kernel's back.
    pub fn overwrite(&self, ino: u64, data: &[u8]) {
        let mut tree = self.tree.lock();
        tree.resize(ino, data.len() as u64).unwrap();
        tree.node(ino).unwrap().data.copy_from_slice(data);
    }

    /// Renames within the root directory behind the kernel's back.
    pub fn rename_hidden(&self, old: &[u8], new: &[u8]) {
        let mut tree = self.tree.lock();
        let ino = tree.drop_name(ROOT_INO, old).unwrap();
        tree.add_name(ROOT_INO, new, ino).unwrap();
    }
}

impl NodeFs for MemoryFs {
    fn lookup(&self, _: &Request, parent: u64, name: &[u8]) -> Result<Attr> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let mut tree = self.tree.lock();
        let ino = tree.find(parent, name)?;
        tree.reference(ino)
    }

    fn forget(&self, ino: u64, count: u64) {
        let mut tree = self.tree.lock();
        if let Ok(node) = tree.node(ino) {
            node.refs = node.refs.saturating_sub(count);
        }
        if ino != ROOT_INO {
            tree.free_if_unused(ino);
        }
    }

    fn getattr(&self, _: &Request, ino: u64) -> Result<Attr> {
        self.getattrs.fetch_add(1, Ordering::Relaxed);
        Ok(self.tree.lock().node(ino)?.attr)
    }

    fn setattr(&self, _: &Request, ino: u64, set: &SetAttr) -> Result<Attr> {
        let mut tree = self.tree.lock();
        if let Some(size) = set.size {
            tree.resize(ino, size)?;
        }
        let attr = &mut tree.node(ino)?.attr;
        if let Some(mode) = set.mode {
            attr.mode = attr.mode & libc::S_IFMT | mode & 0o7777;
        }
        if set.kill_suidgid {
            attr.mode &= !libc::S_ISUID;
        }
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        for (field, time) in [(&mut attr.atime, set.atime), (&mut attr.mtime, set.mtime)] {
            match time {
                Some(SetTime::Now) => *field = now(),
                Some(SetTime::At(at)) => *field = at,
                None => {}
            }
        }
        attr.ctime = now();
        Ok(*attr)
    }

    fn readlink(&self, _: &Request, ino: u64) -> Result<Vec<u8>> {
        Ok(self.tree.lock().node(ino)?.data.clone())
    }

    fn mknod(
        &self,
        request: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let mut tree = self.tree.lock();
        let attr = tree.make_named(request, parent, name, mode)?;
        let rdev = rdev.into();
        tree.node(attr.ino)?.attr.rdev = rdev;
        Ok(Attr { rdev, ..attr })
    }

    fn mkdir(&self, request: &Request, parent: u64, name: &[u8], mode: u32) -> Result<Attr> {
        self.tree
            .lock()
            .make_named(request, parent, name, mode | libc::S_IFDIR)
    }

    fn symlink(&self, request: &Request, parent: u64, name: &[u8], target: &[u8]) -> Result<Attr> {
        let mut tree = self.tree.lock();
        let attr = tree.make_named(request, parent, name, libc::S_IFLNK | 0o777)?;
        tree.resize(attr.ino, target.len() as u64)?;
        let node = tree.node(attr.ino)?;
        node.data.copy_from_slice(target);
        Ok(node.attr)
    }

    fn link(&self, _: &Request, ino: u64, parent: u64, name: &[u8]) -> Result<Attr> {
        let mut tree = self.tree.lock();
        if tree.find(parent, name).is_ok() {
            return errno(libc::EEXIST);
        }
        tree.node(ino)?.attr.nlink += 1;
        tree.add_name(parent, name, ino)?;
        tree.reference(ino)
    }

    fn unlink(&self, _: &Request, parent: u64, name: &[u8]) -> Result<()> {
        let mut tree = self.tree.lock();
        let ino = tree.drop_name(parent, name)?;
        tree.unref_name(ino)
    }

    fn rmdir(&self, _: &Request, parent: u64, name: &[u8]) -> Result<()> {
        let mut tree = self.tree.lock();
        let ino = tree.find(parent, name)?;
        if !tree.node(ino)?.entries.is_empty() {
            return errno(libc::ENOTEMPTY);
        }
        tree.drop_name(parent, name)?;
        tree.unref_name(ino)
    }

    fn rename(&self, _: &Request, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<()> {
        let mut tree = self.tree.lock();
        let ino = tree.find(from.0, from.1)?;
        let replaced = tree.find(to.0, to.1).ok();
        match (flags, replaced) {
            (libc::RENAME_NOREPLACE, Some(_)) => return errno(libc::EEXIST),
            (libc::RENAME_EXCHANGE, None) => return errno(libc::ENOENT),
            (libc::RENAME_EXCHANGE, Some(other)) => {
                tree.drop_name(from.0, from.1)?;
                tree.drop_name(to.0, to.1)?;
                tree.add_name(from.0, from.1, other)?;
            }
            (0, Some(other)) => {
                tree.drop_name(from.0, from.1)?;
                tree.drop_name(to.0, to.1)?;
                tree.unref_name(other)?;
            }
            (0 | libc::RENAME_NOREPLACE, None) => {
                tree.drop_name(from.0, from.1)?;
            }
            _ => return errno(libc::EINVAL),
        }
        tree.add_name(to.0, to.1, ino)
    }

    fn create(
        &self,
        request: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Result<Attr> {
        let mut tree = self.tree.lock();
        let Ok(ino) = tree.find(parent, name) else {
            return tree.make_named(request, parent, name, mode);
        };
        if flags & libc::O_EXCL as u32 != 0 {
            return errno(libc::EEXIST);
        }
        if flags & libc::O_TRUNC as u32 != 0 {
            tree.resize(ino, 0)?;
        }
        tree.reference(ino)
    }

    fn tmpfile(&self, request: &Request, parent: u64, mode: u32, _: u32) -> Result<Attr> {
        let mut tree = self.tree.lock();
        let ino = tree.make(request, parent, mode, 0)?;
        tree.reference(ino)
    }

    fn read(&self, _: &Request, ino: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let mut tree = self.tree.lock();
        let rest = tree
            .node(ino)?
            .data
            .get(offset as usize..)
            .unwrap_or_default();
        let bytes = rest.len().min(into.len());
        into[..bytes].copy_from_slice(&rest[..bytes]);
        Ok(bytes)
    }

    fn write(
        &self,
        _: &Request,
        ino: u64,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        drop(self.latch.lock());
        let mut tree = self.tree.lock();
        let end = offset + data.len() as u64;
        let size = tree.node(ino)?.attr.size;
        tree.resize(ino, size.max(end))?;
        let node = tree.node(ino)?;
        node.data[offset as usize..end as usize].copy_from_slice(data);
        if flags.kill_suidgid {
            node.attr.mode &= !libc::S_ISUID;
        }
        Ok(data.len())
    }

    fn fallocate(&self, _: &Request, ino: u64, mode: u32, offset: u64, length: u64) -> Result<()> {
        let mut tree = self.tree.lock();
        let size = tree.node(ino)?.attr.size;
        if mode == (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32 {
            let end = size.min(offset + length) as usize;
            tree.node(ino)?.data[offset as usize..end].fill(0);
            return Ok(());
        }
        if mode != 0 {
            return errno(libc::EOPNOTSUPP);
        }
        tree.resize(ino, size.max(offset + length))
    }

    /// Holes are runs of whole zero blocks of 4 KiB.
    fn lseek(&self, _: &Request, ino: u64, offset: u64, whence: u32) -> Result<u64> {
        let mut tree = self.tree.lock();
        let node = tree.node(ino)?;
        let (size, data) = (node.attr.size, whence == libc::SEEK_DATA as u32);
        let mut at = offset;
        while at < size {
            let block_end = (at / 4096 + 1) * 4096;
            let block = &node.data[(at & !4095) as usize..block_end.min(size) as usize];
            if block.iter().any(|&b| b != 0) == data {
                return Ok(at);
            }
            at = block_end;
        }
        if data || offset >= size {
            errno(libc::ENXIO)
        } else {
            Ok(size)
        }
    }

    fn copy_file_range(
        &self,
        _: &Request,
        from: FilePosition,
        to: FilePosition,
        length: u64,
    ) -> Result<u64> {
        self.copies.fetch_add(1, Ordering::Relaxed);
        let mut tree = self.tree.lock();
        let source = &tree.node(from.ino)?.data;
        let rest = source.get(from.offset as usize..).unwrap_or_default();
        let data = rest[..rest.len().min(length as usize)].to_vec();
        let (start, end) = (to.offset as usize, to.offset as usize + data.len());
        let size = tree.node(to.ino)?.attr.size;
        tree.resize(to.ino, size.max(end as u64))?;
        tree.node(to.ino)?.data[start..end].copy_from_slice(&data);
        Ok(data.len() as u64)
    }

    fn readdir(
        &self,
        _: &Request,
        ino: u64,
        cookie: u64,
        plus: bool,
        sink: &mut EntrySink<'_>,
    ) -> Result<()> {
        self.readdirs.fetch_add(1, Ordering::Relaxed);
        let mut tree = self.tree.lock();
        let parent = tree.node(ino)?.parent;
        let dots = [(1, (b".".to_vec(), ino)), (2, (b"..".to_vec(), parent))];
        // Cookies 1 and 2 are the dots', the entries' follow.
        let entries: Vec<_> = dots
            .into_iter()
            .chain(
                tree.node(ino)?
                    .entries
                    .iter()
                    .map(|(c, e)| (c + 2, e.clone())),
            )
            .filter(|(at, _)| *at > cookie)
            .collect();
        for (at, (name, ino)) in entries {
            let attr = tree.node(ino)?.attr;
            let counted = plus && name != b"." && name != b"..";
            let taken = sink(DirEntry {
                name: &name,
                ino,
                kind: (attr.mode >> 12) as u8,
                cookie: at,
                attr: counted.then_some(attr),
            });
            if !taken {
                break;
            }
            if counted {
                tree.reference(ino)?;
            }
        }
        Ok(())
    }

    fn to_be_durable(&self, promise: Promise) -> Result<Option<u64>> {
        let device = self.device.as_ref();
        Ok(device.and_then(|device| device.promise(promise)))
    }

    fn wait_durable(&self, upto: u64) -> Result<()> {
        self.device
            .as_ref()
            .map_or(Ok(()), |device| device.wait(upto))
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
        Ok(StatFs {
            blocks: 1000,
            blocks_free: 600,
            files: 99,
            files_free: 88,
            block_bytes: 4096,
            name_bytes_max: 255,
        })
    }

    fn setxattr(&self, _: &Request, ino: u64, name: &[u8], value: &[u8], _: u32) -> Result<()> {
        self.tree
            .lock()
            .node(ino)?
            .xattrs
            .insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    fn getxattr(&self, _: &Request, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        self.tree
            .lock()
            .node(ino)?
            .xattrs
            .get(name)
            .cloned()
            .ok_or(Errno(libc::ENODATA))
    }

    fn listxattr(&self, _: &Request, ino: u64) -> Result<Vec<u8>> {
        let mut tree = self.tree.lock();
        let names = tree.node(ino)?.xattrs.keys();
        Ok(names
            .flat_map(|name| name.iter().copied().chain([0]))
            .collect())
    }

    fn removexattr(&self, _: &Request, ino: u64, name: &[u8]) -> Result<()> {
        let removed = self.tree.lock().node(ino)?.xattrs.remove(name);
        removed.map(|_| ()).ok_or(Errno(libc::ENODATA))
    }

    fn shutdown(&self, _: &Request, flags: u32) -> Result<()> {
        self.shutdown_flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn destroy(&self) {
        self.destroyed.fetch_add(1, Ordering::Relaxed);
    }
}
