//! Files that are mapped through the mount: shared, or privately where that cannot be
//! [direct](crate::calls::direct).
//!
//! Pages of a mapping are the kernel's, read and written back through the mount. It does not
//! ask for a file's size at a page fault, so it has to be the one who changes it: a file
//! that this process has mapped once is left to the kernel from then on, with all its
//! descriptors here.
//!
//! A buffer may lie in such a mapping. To touch it can be a call to the daemon, which may
//! have to wait until nobody is inside the read section: so nobody touches it there, and the bytes
//! take a way around ([`may_fault`]). Ranges are noted and never forgotten: what was a
//! mapping and is other memory now only costs a copy.

use crate::calls::direct;
use crate::fd::description::{self, mode};
use crate::fd::table::{self, Entry};
use crate::hook::raw::{self, Args, nr};
use crate::hook::trampolines::PASS;
use crate::report;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

/// Ranges that are noted apart; beyond that every buffer counts as mapped.
const RANGES: usize = 64;

/// Mapped addresses: first, end.
static RANGE: [[AtomicU64; 2]; RANGES] = [const { [const { AtomicU64::new(0) }; 2] }; RANGES];
/// How many there are; more than [`RANGES`]: too many.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static NOTING: Mutex<()> = Mutex::new(());

/// Files that were mapped: mount and inode number.
static MAPPED: Mutex<BTreeSet<(u32, u64)>> = Mutex::new(BTreeSet::new());
static ANY: AtomicBool = AtomicBool::new(false);

/// As [`is_mapped`], without waiting for anybody; `None`: one would have to. For threads that no fork waits for.
pub fn is_mapped_quickly(mount: u32, ino: u64) -> Option<bool> {
    if !ANY.load(Ordering::Relaxed) {
        return Some(false);
    }
    Some(MAPPED.try_lock()?.contains(&(mount, ino)))
}

/// Whether a file was mapped by this process.
pub fn is_mapped(mount: u32, ino: u64) -> bool {
    ANY.load(Ordering::Relaxed) && MAPPED.lock().contains(&(mount, ino))
}

/// Whether memory may be a mapped file of a mount.
#[inline]
pub fn may_fault(at: u64, bytes: usize) -> bool {
    COUNT.load(Ordering::Acquire) != 0 && overlaps(at, bytes as u64)
}

#[cold]
fn overlaps(at: u64, bytes: u64) -> bool {
    let count = COUNT.load(Ordering::Acquire);
    let hit = |range: &[AtomicU64; 2]| {
        let [first, end] = [0, 1].map(|side| range[side].load(Ordering::Relaxed));
        at < end && first < at.saturating_add(bytes)
    };
    count > RANGES || RANGE[..count].iter().any(hit)
}

/// Notes that memory is a mapped file of a mount.
pub fn note(at: u64, bytes: u64) {
    let _one = NOTING.lock();
    let (count, end) = (COUNT.load(Ordering::Relaxed), at.saturating_add(bytes));
    let known = RANGE[..count.min(RANGES)].iter().find(|range| {
        let [first, last] = [0, 1].map(|side| range[side].load(Ordering::Relaxed));
        at <= last && first <= end
    });
    match (known, RANGE.get(count)) {
        (Some(range), _) => {
            range[0].fetch_min(at, Ordering::Release);
            range[1].fetch_max(end, Ordering::Release);
        }
        (None, Some(range)) => {
            range[0].store(at, Ordering::Relaxed);
            range[1].store(end, Ordering::Relaxed);
            COUNT.store(count + 1, Ordering::Release);
        }
        (None, None) => COUNT.store(RANGES + 1, Ordering::Release),
    }
}

/// Notes what of a mount's files this process has mapped already, its own program for one.
pub fn note_present(device: u64) {
    let text = std::fs::read("/proc/self/maps").unwrap_or_default();
    let wanted = format!("{:02x}:{:02x}", libc::major(device), libc::minor(device));
    for line in text.split(|&b| b == b'\n') {
        let mut fields = line.split(|&b| b == b' ');
        let range = fields.next().and_then(|f| core::str::from_utf8(f).ok());
        let range = range.and_then(|r| r.split_once('-'));
        if let Some((first, end)) = range
            && fields.nth(2) == Some(wanted.as_bytes())
            && let (Ok(first), Ok(end)) =
                (u64::from_str_radix(first, 16), u64::from_str_radix(end, 16))
        {
            note(first, end.saturating_sub(first));
        }
    }
}

/// In a child: nobody else is noting.
pub fn begin_again() {
    // SAFETY: the only thread of this process is here.
    unsafe {
        if NOTING.is_locked() {
            NOTING.force_unlock();
        }
        if MAPPED.is_locked() {
            MAPPED.force_unlock();
        }
    }
}

/// `mremap`.
pub fn remap(args: &Args) -> i64 {
    if direct::any() && direct::meets(args[0], args[1]) {
        return direct::remap(args);
    }
    if !may_fault(args[0], args[1] as usize) {
        return PASS;
    }
    // SAFETY: the program's own call.
    let at = unsafe { raw::syscall(nr::MREMAP, args) };
    if at >= 0 {
        note(at as u64, args[2]);
    }
    at
}

/// Whether memory is to be a file's, and what is stored there, too. Also of a descriptor that this
/// library does not know, by inheritance or `/proc`: the same file may be open under one that it does.
pub fn is_shared(args: &Args) -> bool {
    let flags = args[3] as i32;
    let kind = flags & libc::MAP_TYPE;
    let shared = kind == libc::MAP_SHARED || kind == libc::MAP_SHARED_VALIDATE;
    shared && flags & libc::MAP_ANONYMOUS == 0
}

/// The file of a descriptor, if it lies on a mount: mount and inode number.
pub fn file_of(fd: i32) -> Option<(u32, u64)> {
    match table::get(fd) {
        Entry::File(index) => {
            let d = description::get(index);
            let mount = d.mount.load(Ordering::Relaxed);
            Some((mount, d.ino.load(Ordering::Relaxed)))
        }
        Entry::Own => None,
        Entry::Kernel => crate::mounts::place(fd).map(|place| (place.mount, place.ino)),
    }
}

/// `mmap`.
pub fn map(args: &Args) -> i64 {
    let fd = args[4] as i32;
    if let Some(result) = direct::map(args) {
        return result;
    }
    let Some(file) = file_of(fd) else {
        return PASS;
    };
    if MAPPED.lock().insert(file) {
        ANY.store(true, Ordering::Relaxed);
    }
    report::passed(nr::MMAP, "mapped through the mount");
    // It may have been made longer here. What others do to a file that is with the mount, the mount knows.
    let served = match table::get(fd) {
        Entry::File(index) => description::get(index).was_served(),
        _ => false,
    };
    if served || crate::client::is_attached(file.0) {
        crate::mounts::refresh_size(fd);
    }
    let tid = crate::thread::this().tid.load(Ordering::Relaxed);
    table::for_each(0, u32::MAX, |fd, entry| {
        let Entry::File(index) = entry else { return };
        let d = description::get(index);
        if (
            d.mount.load(Ordering::Relaxed),
            d.ino.load(Ordering::Relaxed),
        ) != file
        {
            return;
        }
        let held = d.lock(tid);
        d.not_before_ns.store(i64::MAX, Ordering::Relaxed);
        d.use_pages(fd);
        if d.mode.load(Ordering::Relaxed) == mode::FAST {
            d.to_kernel(fd, mode::KERNEL);
        }
        drop(held);
    });
    if is_shared(args) && args[2] as i32 & libc::PROT_WRITE != 0 {
        // SAFETY: the program's descriptor, in a call about it.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        // A process that may not read the file may not map it, either; there is no such attribute.
        let _ = rustix::fs::fgetxattr(file, shale_proto::mounts::MAPPED, &mut [0u8; 1][..]);
    }
    // SAFETY: the program's own call.
    let at = unsafe { raw::syscall(nr::MMAP, args) };
    if at >= 0 {
        if direct::any() {
            direct::gone(at as u64, args[1]);
        }
        note(at as u64, args[1]);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_ranges_join_and_overflow_to_the_safe_side() {
        assert!(!may_fault(0x1000, 0x1000));
        note(0x10_000, 0x1000);
        note(0x11_000, 0x1000);
        assert_eq!(COUNT.load(Ordering::Relaxed), 1);
        assert!(may_fault(0x11_fff, 1) && may_fault(0, 0x10_001));
        assert!(!may_fault(0x12_000, 5) && !may_fault(0, 0x10_000));
        for i in 1..RANGES as u64 {
            note(i << 32, 1);
        }
        assert!(!may_fault(0x12_000, 5));
        note(1 << 60, 1);
        assert!(may_fault(0x12_000, 5), "too many to be distinguished");
        COUNT.store(0, Ordering::Relaxed);
        use std::os::unix::fs::MetadataExt;
        let own = std::fs::metadata("/proc/self/exe").unwrap();
        let code = note_present as *const () as u64;
        assert!(!may_fault(code, 1));
        note_present(own.dev());
        assert!(may_fault(code, 1));
    }
}
