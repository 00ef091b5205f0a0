//! A file or a block device.

use super::ring::{Direction, PART_DONE, RING_BYTES, Ring};
use super::{BlockCounts, Buffer, Counters, Did, IO_BYTES, TierDevice, Unit, check_range};
use crate::BlockDevice;
use crate::error::BlockError;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, fallocate, fdatasync, flock};
use rustix::io::{Errno, ReadWriteFlags};
use shale_sys::{failpoints, private};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long requests of a process that has just died may keep the lock.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Rings that are kept when nobody uses them.
const RINGS_KEPT: usize = 4;
/// Most bytes of one durable write: several requests and a flush are faster beyond.
const DURABLE_BYTES_MAX: usize = 1 << 20;
/// `BLKDISCARD` of `linux/fs.h`.
const BLKDISCARD: u32 = 0x1277;
/// `BLKGETSIZE64` of `linux/fs.h`.
const BLKGETSIZE64: u32 = 0x8008_1272;

/// An image file or a block device, open for direct I/O.
pub struct BlockFile {
    path: PathBuf,
    fd: OwnedFd,
    bytes: u64,
    is_device: bool,
    direct: bool,
    uring: bool,
    /// Writes are one request each, sent by one thread: nobody may change their order.
    in_order: bool,
    rings: Mutex<Vec<Ring>>,
    counters: Counters,
    /// A flush or a durable write failed: nothing that was written before it can be believed, ever.
    poisoned: AtomicBool,
    /// The kernel has refused a write that is durable on return: such writes are followed by a flush.
    no_durable_writes: AtomicBool,
    unit: Option<Unit>,
}

impl BlockFile {
    /// Makes an image file of `bytes` bytes, or takes what is there: a device, or a file
    /// at least as long. Without contents.
    ///
    /// # Errors
    /// It cannot be made, or is too short.
    pub fn create(path: &Path, bytes: u64) -> Result<(), BlockError> {
        let failed = |tried: &str, e: std::io::Error| BlockError::os(path, tried, e);
        if path.exists() {
            return Ok(());
        }
        let file = private::create_new(path).map_err(|e| failed("make it", e))?;
        file.set_len(bytes)
            .and_then(|()| file.sync_all())
            .map_err(|e| failed("set its length", e))?;
        let dir = path.parent().filter(|d| !d.as_os_str().is_empty());
        std::fs::File::open(dir.unwrap_or(Path::new(".")))
            .and_then(|dir| dir.sync_all())
            .map_err(|e| failed("make its name durable", e))
    }

    /// Opens and locks a file or device of at least `bytes` bytes. A file that other users may open is closed to them.
    ///
    /// # Errors
    /// It is missing, too short, in use, or another user's and open to others.
    pub fn open(path: &Path, bytes: u64) -> Result<BlockFile, BlockError> {
        let failed = |tried: &str, e: Errno| BlockError::os(path, tried, e);
        failpoints::io().map_err(|e| failed("open it", e))?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let (fd, direct) = match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
            Err(Errno::INVAL) => (rustix::fs::open(path, flags, Mode::empty()), false),
            other => (other, true),
        };
        let fd = fd.map_err(|e| failed("open it for reading and writing", e))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed("read its attributes", e))?;
        let is_device = stat.st_mode & libc::S_IFMT == libc::S_IFBLK;
        let found = match is_device {
            true => device_bytes(&fd).map_err(|e| failed("read its size", e))?,
            false => stat.st_size as u64,
        };
        if found < bytes {
            return Err(BlockError::Short {
                path: path.to_path_buf(),
                expected: bytes,
                found,
            });
        }
        private::close_to_others(&fd, path)?;
        lock(&fd).map_err(|e| failed(&in_use(&fd), e))?;
        let mut file = BlockFile {
            path: path.to_path_buf(),
            fd,
            bytes: found,
            is_device,
            direct,
            uring: false,
            in_order: false,
            rings: Mutex::default(),
            counters: Counters::default(),
            poisoned: AtomicBool::new(false),
            no_durable_writes: AtomicBool::new(false),
            unit: None,
        };
        match Ring::new() {
            Ok(ring) => {
                file.uring = true;
                file.rings.lock().push(ring);
            }
            Err(e) => tracing::info!("{}: no io_uring ({e}): pread, pwrite", path.display()),
        }
        if !direct {
            tracing::warn!(
                "{}: its file system has no direct I/O: through the page cache",
                path.display()
            );
        }
        Ok(file)
    }

    /// The same file, of which is known what its medium is best written in.
    #[must_use]
    pub fn with_unit(self, unit: Unit) -> BlockFile {
        BlockFile {
            unit: Some(unit),
            ..self
        }
    }

    /// Opens and locks a device whose zones are written in order: one write is one call, past the
    /// page cache, and the kernel keeps the order of its parts.
    ///
    /// # Errors
    /// As [`BlockFile::open`]; there is no direct I/O.
    pub(crate) fn open_in_order(path: &Path) -> Result<BlockFile, BlockError> {
        let file = Self::open(path, 0)?;
        match file.direct {
            true => Ok(BlockFile {
                in_order: true,
                ..file
            }),
            false => Err(file.failed("write it past the page cache", Errno::INVAL)),
        }
    }

    /// Its descriptor, for calls of its own.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn failed(&self, tried: &str, e: Errno) -> BlockError {
        BlockError::os(&self.path, tried, e)
    }

    /// Calls `f` with a ring that nobody else uses.
    fn with_ring<T>(&self, f: impl FnOnce(&mut Ring) -> Result<T, Errno>) -> Result<T, Errno> {
        let kept = self.rings.lock().pop();
        let mut ring = match kept {
            Some(ring) => ring,
            None => Ring::new().map_err(|_| Errno::NOMEM)?,
        };
        let result = f(&mut ring);
        let mut rings = self.rings.lock();
        if rings.len() < RINGS_KEPT && !ring.buffer().is_empty() {
            rings.push(ring);
        }
        result
    }

    fn read_all(&self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        let mut at = at;
        for part in into.chunks_mut(RING_BYTES) {
            if self.uring {
                self.with_ring(|ring| {
                    ring.transfer(Direction::Read, self.fd.as_raw_fd(), at, part.len())?;
                    part.copy_from_slice(&ring.buffer()[..part.len()]);
                    Ok(())
                })?;
            } else {
                self.plain(Direction::Read, at, part)?;
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    /// By plain calls, through memory that direct I/O accepts.
    fn plain(&self, way: Direction, at: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let mut buffer = Buffer::new(bytes.len());
        let memory = buffer.bytes();
        match way {
            Direction::Read => {
                read_all(&self.fd, at, memory)?;
                bytes.copy_from_slice(memory);
                Ok(())
            }
            Direction::Write => {
                memory.copy_from_slice(bytes);
                let bytes = memory.len();
                in_parts(bytes, |done| {
                    rustix::io::pwrite(&self.fd, &memory[done..], at + done as u64)
                })
            }
        }
    }

    fn write_all(&self, at: u64, from: &[u8]) -> Result<(), Errno> {
        let mut at = at;
        for part in from.chunks(RING_BYTES) {
            if self.uring && !self.in_order {
                let done = self.with_ring(|ring| {
                    ring.buffer()[..part.len()].copy_from_slice(part);
                    ring.transfer(Direction::Write, self.fd.as_raw_fd(), at, part.len())
                });
                match done {
                    // As where the file system below has become full in its middle: plain calls learn why.
                    Err(PART_DONE) => self.plain(Direction::Write, at, &mut part.to_vec())?,
                    done => done?,
                }
            } else {
                self.plain(Direction::Write, at, &mut part.to_vec())?;
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    /// One write that is durable when the call returns (`RWF_DSYNC`). `None`: it is not for this range, or the
    /// kernel has none, and nothing was written.
    fn write_through(&self, at: u64, from: &[u8]) -> Option<Result<(), Errno>> {
        let fits = self.direct && !self.in_order && (1..=DURABLE_BYTES_MAX).contains(&from.len());
        if !fits || self.no_durable_writes.load(Ordering::Relaxed) {
            return None;
        }
        let mut buffer = None;
        let memory: &[u8] = match from.as_ptr().addr().is_multiple_of(IO_BYTES) {
            true => from,
            false => {
                let copy = buffer.insert(Buffer::new(from.len())).bytes();
                copy.copy_from_slice(from);
                copy
            }
        };
        let done = in_parts(memory.len(), |done| {
            let rest = [IoSlice::new(&memory[done..])];
            let at = at + done as u64;
            rustix::io::pwritev2(&self.fd, &rest, at, ReadWriteFlags::DSYNC)
        });
        if let Err(Errno::OPNOTSUPP | Errno::INVAL) = done {
            self.no_durable_writes.store(true, Ordering::Relaxed);
            return None;
        }
        Some(done)
    }

    fn discard_range(&self, at: u64, bytes: u64) -> Result<(), Errno> {
        if self.is_device {
            let range = [at, bytes];
            // SAFETY: BLKDISCARD reads two u64 from the pointer, which is valid for the call.
            let done = unsafe {
                libc::ioctl(
                    self.fd.as_raw_fd(),
                    libc::c_ulong::from(BLKDISCARD),
                    range.as_ptr(),
                )
            };
            return match done {
                0 => Ok(()),
                _ => Err(last_error()),
            };
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.fd, flags, at, bytes)
    }
}

/// Reads all of `into`, which is memory that direct I/O accepts.
pub(super) fn read_all(fd: &OwnedFd, at: u64, into: &mut [u8]) -> Result<(), Errno> {
    in_parts(into.len(), |done| {
        rustix::io::pread(fd, &mut into[done..], at + done as u64)
    })
}

/// Goes on behind what a call has done until `bytes` bytes are.
fn in_parts(
    bytes: usize,
    mut call: impl FnMut(usize) -> Result<usize, Errno>,
) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes {
        match call(done) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn last_error() -> Errno {
    let e = std::io::Error::last_os_error();
    Errno::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EIO))
}

fn device_bytes(fd: &OwnedFd) -> Result<u64, Errno> {
    let mut bytes = 0u64;
    // SAFETY: BLKGETSIZE64 writes one u64 to the pointer, which is valid for the call.
    let done = unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::c_ulong::from(BLKGETSIZE64),
            &raw mut bytes,
        )
    };
    match done {
        0 => Ok(bytes),
        _ => Err(last_error()),
    }
}

/// What was tried of a file that is locked: names the process that has it, where that is known.
pub(crate) fn in_use(fd: impl AsFd) -> String {
    let holder = private::lock_holder(fd);
    let holder = holder.map_or("another process".to_owned(), |pid| format!("process {pid}"));
    format!("lock it: {holder} uses it")
}

/// Takes the lock; requests of a process that died are waited for.
pub(crate) fn lock(fd: impl AsFd) -> Result<(), Errno> {
    let begun = Instant::now();
    loop {
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if begun.elapsed() < LOCK_WAIT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

impl BlockDevice for BlockFile {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        check_range(at, into.len() as u64, self.bytes);
        let done = self.read_all(at, into);
        let tried = || format!("read {} bytes at {at}", into.len());
        let done = done.map_err(|e| self.failed(&tried(), e));
        self.counters.note(Did::Read(into.len() as u64), done)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        check_range(at, from.len() as u64, self.bytes);
        let done = match self.poisoned.load(Ordering::Acquire) {
            true => Err(Errno::IO),
            false => self.write_all(at, from),
        };
        let tried = || format!("write {} bytes at {at}", from.len());
        let done = done.map_err(|e| self.failed(&tried(), e));
        self.counters.note(Did::Wrote(from.len() as u64), done)
    }

    fn write_durable(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        check_range(at, from.len() as u64, self.bytes);
        let done = match self.poisoned.load(Ordering::Acquire) {
            true => Err(Errno::IO),
            false => self
                .write_through(at, from)
                .unwrap_or_else(|| self.write_all(at, from).and_then(|()| fdatasync(&self.fd))),
        };
        if done.is_err() {
            self.poisoned.store(true, Ordering::Release);
        }
        let tried = || format!("write {} bytes at {at} durably", from.len());
        let done = done.map_err(|e| self.failed(&tried(), e));
        let done = self.counters.note(Did::Wrote(from.len() as u64), done);
        done.and_then(|()| self.counters.note(Did::Flushed, Ok(())))
    }

    fn flush(&self) -> Result<(), BlockError> {
        let done = match self.poisoned.load(Ordering::Acquire) {
            true => Err(Errno::IO),
            false => fdatasync(&self.fd),
        };
        if done.is_err() {
            self.poisoned.store(true, Ordering::Release);
        }
        let done = done.map_err(|e| self.failed("flush it", e));
        self.counters.note(Did::Flushed, done)
    }

    fn discard(&self, at: u64, bytes: u64) -> Result<(), BlockError> {
        check_range(at, bytes, self.bytes);
        let done = match self.discard_range(at, bytes) {
            // Only advice.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            other => other.map_err(|e| self.failed("discard", e)),
        };
        self.counters.note(Did::Discarded(bytes), done)
    }
}

impl TierDevice for BlockFile {
    fn counts(&self) -> BlockCounts {
        self.counters.snapshot()
    }

    fn access(&self) -> &'static str {
        match (self.direct, self.uring) {
            (true, true) => "direct, io_uring",
            (true, false) => "direct",
            (false, true) => "page cache, io_uring",
            (false, false) => "page cache",
        }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn reader(&self) -> Option<Result<OwnedFd, BlockError>> {
        // Whatever has its name by now: this is the same file, opened for reading.
        let link = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let direct = if self.direct {
            OFlags::DIRECT
        } else {
            OFlags::empty()
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | direct;
        let opened = rustix::fs::open(link, flags, Mode::empty());
        Some(opened.map_err(|e| self.failed("open it for reading", e)))
    }

    fn unit(&self) -> Option<Unit> {
        self.unit.clone()
    }

    fn trouble(&self) -> Option<String> {
        if self.poisoned.load(Ordering::Acquire) {
            return Some(format!("{}: a flush failed", self.path.display()));
        }
        let bytes = if self.is_device { 0 } else { self.bytes };
        trouble_of(&self.fd, &self.path, bytes)
    }
}

/// What is wrong with an open file of at least `bytes` bytes that is to be found at `path`.
pub(crate) fn trouble_of(fd: impl AsFd, path: &Path, bytes: u64) -> Option<String> {
    let shown = path.display();
    let mine = rustix::fs::fstat(fd).ok()?;
    if (mine.st_size as u64) < bytes {
        let found = mine.st_size;
        return Some(format!("{shown}: it was cut to {found} of {bytes} bytes"));
    }
    match rustix::fs::stat(path) {
        Ok(there) if (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino) => None,
        Ok(_) => Some(format!("{shown}: another file has its name now")),
        Err(e) => Some(format!("{shown}: its name leads nowhere any more: {e}")),
    }
}
