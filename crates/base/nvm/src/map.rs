//! A mapping as callers hold it: how it is made, what it is, and its views.

use std::fmt;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags};
use rustix::mm::Advice;

use crate::counters::{Counters, Path, Snapshot};
use crate::error::NvmError;
use crate::instrumentation::{Hooks, Recorder};
use crate::mapping::{Access, Mapping, Piece, path_of};
use crate::view::MappedRegion;
use crate::{Model, Timing};
use shale_sys::failpoints;
use shale_sys::protect::ProtectionKey;

/// What the views of one mapping have in common.
pub(crate) struct Shared {
    pub(crate) mapping: Mapping,
    pub(crate) counters: Counters,
}

/// NVM mapped into this process.
///
/// Dereferences to the [`MappedRegion`] of its default path. `Send` and `Sync`; share it in
/// an `Arc`, or clone a view.
pub struct Map {
    views: [MappedRegion; Path::ALL.len()],
    path: Path,
    shared: Arc<Shared>,
}

/// How to make a [`Map`]: default path, recorder, timing model.
#[derive(Clone, Default)]
pub struct MapOptions {
    path: Option<Path>,
    recorder: Option<Arc<dyn Recorder>>,
    timing: Option<Arc<Timing>>,
    key: Option<ProtectionKey>,
    volatile: bool,
}

impl MapOptions {
    /// Counts for [`Path::Data`], neither recorded nor timed.
    pub fn new() -> Self {
        MapOptions::default()
    }

    /// Sets the path that the map itself counts for.
    pub fn path(mut self, path: Path) -> Self {
        self.path = Some(path);
        self
    }

    /// What is writable can be reached only by threads that have opened this key.
    pub fn protect(mut self, key: Option<ProtectionKey>) -> Self {
        self.key = key;
        self
    }

    /// It is memory that nobody expects to survive a power cut: what is stored past the cache elsewhere goes through it, and nothing is
    /// written back.
    pub fn volatile(mut self) -> Self {
        self.volatile = true;
        self
    }

    /// Attaches a recorder.
    pub fn recorder(mut self, recorder: Arc<dyn Recorder>) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Attaches a timing model of its own.
    pub fn model(self, model: Model) -> Self {
        self.timing(Timing::new(model))
    }

    /// Attaches the model that all mappings of the process with the same name share; `None`, or a name that is none: no model.
    pub fn named_model(self, name: Option<&str>) -> Self {
        match name.and_then(Model::named) {
            Some(model) => self.timing(Timing::of_process(model)),
            None => self,
        }
    }

    /// Attaches a model that other mappings of the same medium share.
    pub fn timing(mut self, timing: Arc<Timing>) -> Self {
        self.timing = (timing.model() != Model::None).then_some(timing);
        self
    }

    /// Creates a file of `bytes` zeros, readable and writable by its owner, and maps it.
    ///
    /// All space is allocated at once, so that no store runs into a full file system
    /// (which would be SIGBUS). When this returns the file and its name survive a
    /// power cut, as far as the file system does.
    ///
    /// # Errors
    /// The file exists already, or there is no space. A file half made is removed.
    pub fn create_file(&self, path: &FilePath, bytes: usize) -> Result<Map, NvmError> {
        self.create_files(&[(path.to_path_buf(), bytes)])
    }

    /// Creates several files as [`MapOptions::create_file`] does, and maps them side by side.
    ///
    /// # Errors
    /// As for one file; files made before the failure stay.
    pub fn create_files(&self, files: &[(PathBuf, usize)]) -> Result<Map, NvmError> {
        let mut pieces = Vec::with_capacity(files.len());
        for (path, bytes) in files {
            pieces.push(Piece {
                fd: create(path, *bytes)?,
                bytes: *bytes,
            });
        }
        self.open(pieces, Access::ReadWrite)
    }

    /// Opens files and maps each in its whole length, side by side.
    ///
    /// # Errors
    /// A file that cannot be opened or mapped, or whose length is no multiple of a page.
    pub fn open_files<P: AsRef<FilePath>>(
        &self,
        paths: &[P],
        access: Access,
    ) -> Result<Map, NvmError> {
        let mut pieces = Vec::with_capacity(paths.len());
        for path in paths {
            pieces.push(open_whole(path.as_ref(), access)?);
        }
        self.open(pieces, access)
    }

    /// Maps descriptors side by side.
    ///
    /// # Errors
    /// A file shorter than its piece, a piece that is not a multiple of a page
    /// (except the last), or what the kernel says.
    pub fn open(&self, pieces: Vec<Piece>, access: Access) -> Result<Map, NvmError> {
        let mapping = Mapping::new(pieces, access, self.key)?;
        let hooked = self.recorder.is_some() || self.timing.is_some();
        let hooks = hooked.then(|| {
            Arc::new(Hooks {
                recorder: self.recorder.clone(),
                timing: self.timing.clone(),
            })
        });
        let shared = Arc::new(Shared {
            mapping,
            counters: Counters::new(),
        });
        let isa = match self.volatile {
            true => crate::isa::volatile(),
            false => crate::isa::isa(),
        };
        let view = |path| MappedRegion::new(&shared, path, (access, isa), hooks.clone());
        let views = Path::ALL.map(view);
        if let Some(recorder) = &self.recorder {
            let view = &views[0];
            recorder.attached(view.bytes(), &|into| view.peek(0, into));
        }
        Ok(Map {
            views,
            path: self.path.unwrap_or(Path::Data),
            shared,
        })
    }

    /// Maps a device such as `/dev/dax0.0` in its whole length.
    ///
    /// # Errors
    /// As [`MapOptions::open_files`].
    pub fn open_device(&self, path: &FilePath, access: Access) -> Result<Map, NvmError> {
        self.open_files(&[path], access)
    }

    /// Maps `bytes` of memory that has no name. For tests and for what need not survive.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn anonymous(&self, bytes: usize) -> Result<Map, NvmError> {
        let fd = failpoints::io()
            .and_then(|()| rustix::fs::memfd_create("shale", MemfdFlags::CLOEXEC))
            .map_err(|e| NvmError::os("shale", "create a memory file", e))?;
        let sized = failpoints::io().and_then(|()| rustix::fs::ftruncate(&fd, bytes as u64));
        sized.map_err(|e| {
            NvmError::os(
                path_of(fd.as_fd()),
                format!("make it {bytes} bytes long"),
                e,
            )
        })?;
        self.open(vec![Piece { fd, bytes }], Access::ReadWrite)
    }
}

impl Map {
    /// [`MapOptions::create_file`] without options.
    ///
    /// # Errors
    /// As there.
    pub fn create_file(path: &FilePath, bytes: usize) -> Result<Map, NvmError> {
        MapOptions::new().create_file(path, bytes)
    }

    /// [`MapOptions::open_files`] without options.
    ///
    /// # Errors
    /// As there.
    pub fn open_files<P: AsRef<FilePath>>(paths: &[P], access: Access) -> Result<Map, NvmError> {
        MapOptions::new().open_files(paths, access)
    }

    /// [`MapOptions::open`] without options.
    ///
    /// # Errors
    /// As there.
    pub fn open(pieces: Vec<Piece>, access: Access) -> Result<Map, NvmError> {
        MapOptions::new().open(pieces, access)
    }

    /// [`MapOptions::open_device`] without options.
    ///
    /// # Errors
    /// As there.
    pub fn open_device(path: &FilePath, access: Access) -> Result<Map, NvmError> {
        MapOptions::new().open_device(path, access)
    }

    /// [`MapOptions::anonymous`] without options.
    ///
    /// # Errors
    /// As there.
    pub fn anonymous(bytes: usize) -> Result<Map, NvmError> {
        MapOptions::new().anonymous(bytes)
    }

    /// The view whose accesses are counted for `path`. Costs nothing.
    #[inline(always)]
    pub fn on(&self, path: Path) -> &MappedRegion {
        &self.views[path as usize]
    }

    /// Whether every piece is NVM that is mapped directly (DAX): what was flushed and fenced
    /// survives a power cut. Otherwise it is tmpfs or a page cache.
    pub fn is_dax(&self) -> bool {
        self.shared.mapping.is_dax()
    }

    /// Whether the kernel took the advice to use huge pages. It may still not have any.
    pub fn huge_pages(&self) -> bool {
        self.shared.mapping.huge_pages()
    }

    /// Bytes that huge pages back at this moment. Slow: reads `/proc/self/smaps`.
    pub fn huge_page_bytes(&self) -> usize {
        self.shared.mapping.huge_page_bytes()
    }

    /// The files, in order, as they were given; the daemon passes them to clients.
    pub fn fds(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.shared.mapping.fds()
    }

    /// Offset and length in bytes of each piece, in order.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = (usize, usize)> {
        self.shared.mapping.ranges()
    }

    /// A new read-only descriptor of piece `index`: a process that holds only this
    /// cannot map it writable.
    ///
    /// # Errors
    /// What the kernel says to opening the file again.
    pub fn read_only_fd(&self, index: usize) -> Result<OwnedFd, NvmError> {
        self.shared.mapping.read_only_fd(index)
    }

    /// Maps a range of bytes, whole pages within one piece, writable from `fd`, a read-write
    /// descriptor of the piece's file. Loads by other threads go on meanwhile.
    ///
    /// # Errors
    /// Another file, or a descriptor that does not allow it; then nothing changed.
    ///
    /// # Panics
    /// If the range is not within one piece.
    pub fn remap_writable(&self, range: Range<usize>, fd: impl AsFd) -> Result<(), NvmError> {
        self.shared
            .mapping
            .replace(range, Some(fd.as_fd()), Access::ReadWrite)
    }

    /// Whether every page that a range of bytes touches may be stored to.
    pub fn is_writable(&self, range: Range<usize>) -> bool {
        self.shared.mapping.is_writable(range.start, range.len())
    }

    /// Takes back [`Map::remap_writable`]: the range is mapped read-only from the
    /// file the map was opened with. The caller has made sure that nobody is storing to it.
    ///
    /// # Errors
    /// What the kernel says; the range then counts as read-only.
    ///
    /// # Panics
    /// If the range is not within one piece, or the whole map was opened read-write.
    pub fn remap_read_only(&self, range: Range<usize>) -> Result<(), NvmError> {
        assert!(
            self.views[0].access() == Access::ReadOnly,
            "a map opened read-write has no read-only pieces"
        );
        self.shared.mapping.replace(range, None, Access::ReadOnly)
    }

    /// Makes every page present, so that the first access to each costs no page fault
    /// (about 0.5 µs each otherwise).
    ///
    /// # Errors
    /// What the kernel says, in particular that memory is exhausted.
    pub fn populate(&self) -> Result<(), NvmError> {
        let advice = match self.views[0].access() {
            Access::ReadOnly => Advice::LinuxPopulateRead,
            Access::ReadWrite => Advice::LinuxPopulateWrite,
        };
        self.shared.mapping.advise(advice).map_err(|e| {
            let first = self.fds().next().map_or_else(PathBuf::new, path_of);
            NvmError::os(first, "make all pages present", e)
        })
    }

    /// Makes the pages of a range that is mapped writable present, as far as the kernel
    /// likes to: a store then costs no page fault. Changes nothing else.
    ///
    /// # Panics
    /// If the range is not inside the mapping, or not writable.
    pub fn expect_stores(&self, offset: usize, bytes: usize) {
        self.views[0].check_store(offset, bytes);
        // A page that is not present is faulted in by the store.
        let _ = self
            .shared
            .mapping
            .advise_range(offset, bytes, Advice::LinuxPopulateWrite);
    }

    /// Makes memory that stands for NVM what NVM is from the start: present everywhere, and
    /// in no cache. (The system clears a page when it is first touched, through the cache,
    /// and stores past the cache into such lines are slow once.) Some 0.2 s a gigabyte.
    /// Does nothing to real NVM. The content must not matter yet: it may become zeros.
    ///
    /// # Errors
    /// As [`Map::populate`].
    pub fn prepare(&self) -> Result<(), NvmError> {
        if !self.is_dax() {
            self.populate()?;
            self.views[0].raw_clear();
        }
        Ok(())
    }

    /// The first byte of the first page of a range that could not be read or written (a memory
    /// error, or a file that became shorter): what was loaded from it is zeros, what was stored
    /// to it is gone. To be asked after the access. `None`: all is well.
    #[inline(always)]
    pub fn lost(&self, offset: usize, bytes: usize) -> Option<usize> {
        self.shared.mapping.lost().has(offset, bytes)
    }

    /// Whether any page could not be read or written so far.
    #[inline(always)]
    pub fn any_lost(&self) -> bool {
        self.shared.mapping.lost().any()
    }

    /// All counts so far.
    pub fn counts(&self) -> Snapshot {
        self.shared.counters.snapshot()
    }

    /// The instructions in use, as in "avx512+clwb".
    pub fn instructions(&self) -> &'static str {
        crate::isa::isa().name
    }
}

impl Deref for Map {
    type Target = MappedRegion;

    #[inline(always)]
    fn deref(&self) -> &MappedRegion {
        self.on(self.path)
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("mapping", &self.shared.mapping)
            .field("path", &self.path)
            .finish()
    }
}

/// Creates a file with all its space, durably; removes it again on failure.
fn create(path: &FilePath, bytes: usize) -> Result<OwnedFd, NvmError> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = failpoints::io()
        .and_then(|()| rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR))
        .map_err(|e| NvmError::os(path, "create it", e))?;
    let made = allocate_named(path, &fd, bytes);
    if made.is_err() {
        // The first failure is the one to report.
        let _ = rustix::fs::unlink(path);
    }
    made.map(|()| fd)
}

/// Allocates a new file's space; space and name then survive a power cut, as far as the file
/// system does.
fn allocate_named(path: &FilePath, fd: &OwnedFd, bytes: usize) -> Result<(), NvmError> {
    allocate(path, fd, bytes)?;
    sync_directory(path)
}

/// Allocates and syncs the space of a new file at or in `path`.
pub(crate) fn allocate(path: &FilePath, fd: &OwnedFd, bytes: usize) -> Result<(), NvmError> {
    if bytes > 0 {
        failpoints::io()
            .and_then(|()| rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, bytes as u64))
            .map_err(|e| NvmError::os(path, format!("allocate {bytes} bytes"), e))?;
    }
    failpoints::io()
        .and_then(|()| rustix::fs::fsync(fd))
        .map_err(|e| NvmError::os(path, "sync it", e))
}

/// Has the name `path` survive a power cut.
pub(crate) fn sync_directory(path: &FilePath) -> Result<(), NvmError> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => FilePath::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(parent, flags, Mode::empty())
        .and_then(rustix::fs::fsync)
        .map_err(|e| NvmError::os(parent, "sync the directory", e))
}

fn open_whole(path: &FilePath, access: Access) -> Result<Piece, NvmError> {
    let flags = match access {
        Access::ReadOnly => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    let fd = failpoints::io()
        .and_then(|()| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()))
        .map_err(|e| NvmError::os(path, "open it", e))?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| NvmError::os(path, "read its attributes", e))?;
    let bytes = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::CharacterDevice => device_bytes(path, stat.st_rdev)?,
        _ => stat.st_size as usize,
    };
    Ok(Piece { fd, bytes })
}

/// The length of a `/dev/dax` device, which only sysfs knows.
fn device_bytes(path: &FilePath, device: u64) -> Result<usize, NvmError> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let size = format!("/sys/dev/char/{major}:{minor}/size");
    std::fs::read_to_string(&size)
        .and_then(|text| text.trim().parse().map_err(std::io::Error::other))
        .map_err(|e| NvmError::os(path, format!("read its length from {size}"), e))
}
