//! The address range: reserve, map each piece into its place, unmap.
//!
//! Invariants: pieces lie side by side in `base..base+bytes` without gaps, inside one
//! reservation that belongs to this value alone; `writable` says which pages may be stored to.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::error::NvmError;
use crate::guard::{Guard, Lost};
use crate::writable::WritablePages;
use shale_sys::failpoints;
use shale_sys::protect::ProtectionKey;

/// Pieces must be a multiple of this to lie side by side.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Mappings start at a multiple of this so that huge pages fit, and `/dev/dax` needs it.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What a mapping may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store panics before the MMU would stop it.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// One file to be mapped.
#[derive(Debug)]
pub struct Piece {
    /// The file, opened for what the mapping is to allow.
    pub fd: OwnedFd,
    /// How much of it to map from its start, in bytes. All pieces but the last need a
    /// multiple of 4096.
    pub bytes: usize,
}

/// A piece in its place.
#[derive(Debug)]
struct Mapped {
    fd: OwnedFd,
    offset: usize,
    bytes: usize,
}

/// All pieces in one address range.
pub(crate) struct Mapping {
    reservation: *mut c_void,
    reserved_bytes: usize,
    base: *mut u8,
    bytes: usize,
    pieces: Vec<Mapped>,
    /// Which pages may be stored to.
    writable: WritablePages,
    /// Every piece is mapped directly, in step with its metadata (`MAP_SYNC`).
    is_dax: bool,
    huge_pages: bool,
    /// What is writable has this key.
    key: Option<ProtectionKey>,
    /// Part of the reservation may be somebody else's by now: it is never unmapped.
    has_hole: AtomicBool,
    /// Dropped by hand before the range is unmapped.
    guard: ManuallyDrop<Guard>,
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapping")
            .field("base", &self.base)
            .field("bytes", &self.bytes)
            .field("pieces", &self.pieces)
            .finish_non_exhaustive()
    }
}

// SAFETY: the pointers are an address range that is valid until drop and that no
// thread owns; all state that changes is atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// The path of an open file, for messages.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> PathBuf {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    std::fs::read_link(&link).unwrap_or_else(|_| PathBuf::from(link))
}

/// The pages that a range of bytes touches.
#[inline]
fn pages_of(range: &Range<usize>) -> Range<usize> {
    range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES)
}

impl Mapping {
    pub(crate) fn new(
        pieces: Vec<Piece>,
        access: Access,
        key: Option<ProtectionKey>,
    ) -> Result<Mapping, NvmError> {
        if pieces.is_empty() {
            return Err(NvmError::NoPieces);
        }
        let last = pieces.len() - 1;
        let (mut bytes, mut devices) = (0, Vec::with_capacity(pieces.len()));
        for (index, piece) in pieces.iter().enumerate() {
            devices.push(check_length(piece, index == last)?);
            bytes += piece.bytes;
        }
        let pieces = match <[Piece; 1]>::try_from(pieces) {
            Ok([piece]) if bytes < HUGE_PAGE_BYTES => return Mapping::small(piece, access, key),
            Ok(one) => Vec::from(one),
            Err(many) => many,
        };
        let mut mapping = Mapping::reserve(bytes, pieces[0].fd.as_fd(), key)?;
        let (mut offset, mut tried) = (0, None);
        for (piece, device) in pieces.into_iter().zip(devices) {
            let range = offset..offset + piece.bytes;
            // What one file of a file system can do, the others can.
            let known = tried
                .filter(|&(on, _)| on == device)
                .map(|(_, flags)| flags);
            let flags = match known {
                Some(flags) => flags,
                None => what_it_can(piece.fd.as_fd(), piece.bytes, access)?,
            };
            tried = Some((device, flags));
            mapping.is_dax &= flags == SYNC;
            mapping.place(range.clone(), piece.fd.as_fd(), 0, (access, flags))?;
            mapping.pieces.push(Mapped {
                fd: piece.fd,
                offset,
                bytes: piece.bytes,
            });
            offset = range.end;
            mapping.is_placed(&range, access);
        }
        mapping.huge_pages = mapping.advise(Advice::LinuxHugepage).is_ok();
        Ok(mapping)
    }

    /// A piece that needs no place in particular, in which no huge page fits.
    fn small(
        piece: Piece,
        access: Access,
        key: Option<ProtectionKey>,
    ) -> Result<Mapping, NvmError> {
        let (fd, bytes) = (piece.fd.as_fd(), piece.bytes);
        let (address, flags) = map_anywhere(fd, bytes, access)?;
        let whole = (address, bytes.next_multiple_of(PAGE_BYTES));
        let mut mapping = Mapping::of(whole, (address.cast(), bytes), key);
        mapping.is_dax = flags == SYNC;
        mapping
            .protect(0, bytes, access)
            .map_err(|e| not_mapped(fd, bytes, access, e))?;
        mapping.is_placed(&(0..bytes), access);
        mapping.pieces.push(Mapped {
            fd: piece.fd,
            offset: 0,
            bytes,
        });
        Ok(mapping)
    }

    /// Notes that a piece is there.
    fn is_placed(&mut self, range: &Range<usize>, access: Access) {
        if access == Access::ReadWrite {
            let pages = pages_of(range);
            self.writable.allow(&pages, true);
            self.writable.mapped().set(&pages, true);
        }
    }

    fn reserve(
        bytes: usize,
        first: BorrowedFd<'_>,
        key: Option<ProtectionKey>,
    ) -> Result<Mapping, NvmError> {
        let reserved_bytes = bytes.next_multiple_of(PAGE_BYTES) + HUGE_PAGE_BYTES;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address the kernel chooses disturbs nothing.
        let reservation =
            unsafe { mmap_anonymous(ptr::null_mut(), reserved_bytes, ProtFlags::empty(), flags) }
                .map_err(|e| {
                NvmError::os(
                    path_of(first),
                    format!("reserve {reserved_bytes} bytes of addresses"),
                    e,
                )
            })?;
        let base = reservation
            .cast::<u8>()
            .map_addr(|address| address.next_multiple_of(HUGE_PAGE_BYTES));
        Ok(Mapping::of(
            (reservation, reserved_bytes),
            (base, bytes),
            key,
        ))
    }

    /// The mapping `bytes` long at `base`, which lies in an address range that is this value's alone.
    fn of(
        (reservation, reserved_bytes): (*mut c_void, usize),
        (base, bytes): (*mut u8, usize),
        key: Option<ProtectionKey>,
    ) -> Mapping {
        Mapping {
            reservation,
            reserved_bytes,
            base,
            bytes,
            pieces: Vec::new(),
            writable: WritablePages::none(bytes.div_ceil(PAGE_BYTES)),
            is_dax: true,
            huge_pages: false,
            key,
            has_hole: AtomicBool::new(false),
            guard: ManuallyDrop::new(Guard::new(base, bytes)),
        }
    }

    /// Maps a file, from byte `from` on, over its part of the reservation, with flags that it [can](what_it_can).
    fn place(
        &self,
        range: Range<usize>,
        fd: BorrowedFd<'_>,
        from: usize,
        (access, flags): (Access, MapFlags),
    ) -> Result<(), NvmError> {
        let (offset, bytes) = (range.start, range.len());
        let failed = |e| not_mapped(fd, bytes, access, e);
        assert!(offset + bytes <= self.bytes && offset.is_multiple_of(PAGE_BYTES));
        // SAFETY: the range lies inside our own reservation (asserted above, and the
        // reservation is longer than `bytes` by the alignment), so nothing of others is replaced.
        let mapped = unsafe {
            mmap(
                self.base.add(offset).cast(),
                bytes,
                protection(access),
                flags | MapFlags::FIXED,
                fd,
                from as u64,
            )
        };
        if let Err(e) = mapped {
            // A call that fails may leave a hole where the reservation was, which somebody else's mapping can be in by now.
            self.has_hole.store(true, Ordering::Relaxed);
            return Err(failed(e));
        }
        self.protect(offset, bytes, access).map_err(failed)
    }

    /// Gives what was just mapped, for this access, its key.
    fn protect(&self, offset: usize, bytes: usize, access: Access) -> rustix::io::Result<()> {
        match (self.key, access) {
            // SAFETY: mapped by this value, readable and writable.
            (Some(key), Access::ReadWrite) => unsafe {
                key.protect(self.base.wrapping_add(offset), bytes)
            },
            _ => Ok(()),
        }
    }

    /// Gives the kernel advice on all pieces.
    pub(crate) fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        self.advise_range(0, self.bytes, advice)
    }

    /// Gives the kernel advice on the pages that a range touches.
    ///
    /// # Panics
    /// If it is not inside the mapping.
    pub(crate) fn advise_range(
        &self,
        offset: usize,
        bytes: usize,
        advice: Advice,
    ) -> rustix::io::Result<()> {
        assert!(bytes <= self.bytes && offset <= self.bytes - bytes);
        let first = offset / PAGE_BYTES * PAGE_BYTES;
        let end = (offset + bytes).next_multiple_of(PAGE_BYTES);
        // SAFETY: the range is in our own mapping; the advices used here change no contents.
        unsafe { madvise(self.base.wrapping_add(first).cast(), end - first, advice) }
    }

    /// Maps a range of whole pages within one piece again from `fd`, or from the piece's own file
    /// where that is `None`. Once there are many writable runs, the kernel's mapping changes for more or for
    /// fewer pages than these (see [`crate::writable`]); which may be stored to is exact.
    pub(crate) fn replace(
        &self,
        range: Range<usize>,
        fd: Option<BorrowedFd<'_>>,
        access: Access,
    ) -> Result<(), NvmError> {
        let after = self.pieces.partition_point(|p| p.offset <= range.start);
        let piece = &self.pieces[after.checked_sub(1).expect("inside the map")];
        assert!(
            range.end <= piece.offset + piece.bytes,
            "a range of one piece"
        );
        let fd = fd.unwrap_or_else(|| piece.fd.as_fd());
        let (expected, found) = (identity(piece.fd.as_fd())?, identity(fd)?);
        if expected != found {
            return Err(NvmError::OtherFile {
                path: path_of(fd),
                expected,
                found,
            });
        }
        let pages = pages_of(&range);
        let mut mapped = self.writable.mapped();
        let wide = match access {
            Access::ReadOnly => {
                self.writable.allow(&pages, false);
                if !mapped.may_close(&pages) {
                    return Ok(());
                }
                pages.clone()
            }
            Access::ReadWrite => {
                // A last page that the piece ends in is mapped whole.
                mapped.widened(
                    &pages,
                    &pages_of(&(piece.offset..piece.offset + piece.bytes)),
                )
            }
        };
        let end = (wide.end * PAGE_BYTES).min(piece.offset + piece.bytes);
        let bytes = wide.start * PAGE_BYTES..end;
        let flags = what_it_can(fd, bytes.len(), access)?;
        let from = bytes.start - piece.offset;
        self.place(bytes.clone(), fd, from, (access, flags))?;
        mapped.set(&wide, access == Access::ReadWrite);
        match access {
            Access::ReadWrite => self.writable.allow(&pages, true),
            // As what is beside it, or the kernel keeps it as a range of its own.
            Access::ReadOnly if self.huge_pages => {
                let _ = self.advise_range(bytes.start, bytes.len(), Advice::LinuxHugepage);
            }
            Access::ReadOnly => {}
        }
        Ok(())
    }

    /// Whether every page that `offset..offset+bytes` touches may be stored to.
    pub(crate) fn is_writable(&self, offset: usize, bytes: usize) -> bool {
        self.writable
            .is_allowed(&pages_of(&(offset..offset + bytes)))
    }

    /// Bytes of the range that huge pages back now.
    pub(crate) fn huge_page_bytes(&self) -> usize {
        let Ok(maps) = std::fs::read_to_string("/proc/self/smaps") else {
            return 0;
        };
        let range = self.base.addr()..self.base.addr() + self.bytes;
        let mut inside = false;
        let mut kib = 0;
        for line in maps.lines() {
            let mut words = line.split_ascii_whitespace();
            let Some(first) = words.next() else { continue };
            if let Some((start, _)) = first.split_once('-') {
                inside = usize::from_str_radix(start, 16).is_ok_and(|s| range.contains(&s));
            } else if inside && matches!(first, "ShmemPmdMapped:" | "FilePmdMapped:") {
                kib += words.next().and_then(|n| n.parse().ok()).unwrap_or(0);
            }
        }
        kib * 1024
    }

    /// Pages that cannot be read any more.
    #[inline(always)]
    pub(crate) fn lost(&self) -> &Lost {
        self.guard.lost()
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_dax(&self) -> bool {
        self.is_dax
    }

    pub(crate) fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    pub(crate) fn fds(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.pieces.iter().map(|piece| piece.fd.as_fd())
    }

    /// Offset and length of each piece, in bytes.
    pub(crate) fn ranges(&self) -> impl ExactSizeIterator<Item = (usize, usize)> {
        self.pieces.iter().map(|piece| (piece.offset, piece.bytes))
    }

    /// A new descriptor of piece `index` that cannot be mapped writable.
    pub(crate) fn read_only_fd(&self, index: usize) -> Result<OwnedFd, NvmError> {
        let fd = self.pieces[index].fd.as_fd();
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        failpoints::io()
            .and_then(|()| rustix::fs::open(&link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))
            .map_err(|e| NvmError::os(path_of(fd), "open it again read-only", e))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        unsafe { ManuallyDrop::drop(&mut self.guard) };
        if self.has_hole.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: the reservation is ours, pieces included, and views hold this value
        // alive, so nobody uses the range any more.
        let unmapped = unsafe { munmap(self.reservation, self.reserved_bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Flags of a mapping that stays in step with its file's metadata: DAX.
const SYNC: MapFlags = MapFlags::SHARED_VALIDATE.union(MapFlags::SYNC);

fn protection(access: Access) -> ProtFlags {
    match access {
        Access::ReadOnly => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    }
}

fn not_mapped(fd: BorrowedFd<'_>, bytes: usize, access: Access, e: rustix::io::Errno) -> NvmError {
    let name = match access {
        Access::ReadOnly => "read-only",
        Access::ReadWrite => "read-write",
    };
    NvmError::os(path_of(fd), format!("map {bytes} bytes {name}"), e)
}

/// The flags with which a file can be mapped, found out where there is nothing: a call that fails over the reservation may
/// leave a hole there.
fn what_it_can(fd: BorrowedFd<'_>, bytes: usize, access: Access) -> Result<MapFlags, NvmError> {
    let (address, flags) = map_anywhere(fd, bytes, access)?;
    // SAFETY: mapped just now, and nobody else's.
    unsafe { munmap(address, bytes) }.map_err(|e| not_mapped(fd, bytes, access, e))?;
    Ok(flags)
}

/// Maps a file from its begin where the kernel chooses, in step with its metadata if it can be; gives the flags with which it can.
fn map_anywhere(
    fd: BorrowedFd<'_>,
    bytes: usize,
    access: Access,
) -> Result<(*mut c_void, MapFlags), NvmError> {
    let map = |flags| {
        // SAFETY: a new mapping at an address the kernel chooses disturbs nothing.
        unsafe { mmap(ptr::null_mut(), bytes, protection(access), flags, fd, 0) }
    };
    if let Ok(address) = map(SYNC) {
        return Ok((address, SYNC));
    }
    let address = failpoints::io().and_then(|()| map(MapFlags::SHARED));
    let address = address.map_err(|e| not_mapped(fd, bytes, access, e))?;
    Ok((address, MapFlags::SHARED))
}

/// Checks that a file is long enough; gives the device that it lies on, and the one that it is.
fn check_length(piece: &Piece, last: bool) -> Result<(u64, u64), NvmError> {
    let path = || path_of(piece.fd.as_fd());
    if piece.bytes == 0 || (!last && !piece.bytes.is_multiple_of(PAGE_BYTES)) {
        return Err(NvmError::PieceLength {
            path: path(),
            expected: PAGE_BYTES,
            found: piece.bytes,
        });
    }
    let stat = fstat(&piece.fd).map_err(|e| NvmError::os(path(), "read its attributes", e))?;
    // A character device has no length; the kernel checks the mapping instead.
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && (stat.st_size as u64) < piece.bytes as u64
    {
        return Err(NvmError::Short {
            path: path(),
            expected: piece.bytes as u64,
            found: stat.st_size as u64,
        });
    }
    Ok((stat.st_dev, stat.st_rdev))
}

fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64), NvmError> {
    let stat = fstat(fd).map_err(|e| NvmError::os(path_of(fd), "read its attributes", e))?;
    Ok((stat.st_dev, stat.st_ino))
}
