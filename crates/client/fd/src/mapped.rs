//! Which files this process has mapped through a mount, and where in memory they are.
//!
//! A buffer may lie in such a mapping. To touch it can be a call to the daemon, which may
//! have to wait until nobody is inside the read section: so nobody touches it there, and the bytes
//! take a way around ([`may_fault`]). Ranges are noted and never forgotten: what was a
//! mapping and is other memory now only costs a copy. Before this process becomes a client of a mount nothing of this
//! matters, and private mappings are not noted, but for those of a description by which a child or parent serves its file: the kernel knows
//! which there are then ([`note_present`]).

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use parking_lot::Mutex;
use shale_sys::kernel_text;
use std::collections::BTreeSet;

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
/// See [`leave_unnoted`].
static UNNOTED: AtomicBool = AtomicBool::new(false);

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

/// A file may have been mapped of which nothing is noted here.
pub fn leave_unnoted() {
    if !UNNOTED.load(Ordering::Relaxed) {
        UNNOTED.store(true, Ordering::Relaxed);
    }
}

/// Notes what of a mount's files this process has mapped already, its own program for one. `false`: the kernel does not
/// say, and there may be some.
pub fn note_present(mount: u32, device: u64) -> bool {
    let Ok(text) = kernel_text::read_string("/proc/self/maps") else {
        return !UNNOTED.load(Ordering::Relaxed);
    };
    let wanted = format!("{:02x}:{:02x}", libc::major(device), libc::minor(device));
    // first-end rights offset device inode path
    for line in text.lines() {
        let mut fields = line.split(' ');
        let range = fields.next().and_then(|range| range.split_once('-'));
        if let Some((first, end)) = range
            && fields.nth(2) == Some(&wanted)
            && let (Ok(first), Ok(end)) =
                (u64::from_str_radix(first, 16), u64::from_str_radix(end, 16))
            && let Some(Ok(ino)) = fields.next().map(str::parse)
        {
            note(first, end.saturating_sub(first));
            note_file((mount, ino));
        }
    }
    true
}

/// Notes that a file was mapped: mount and inode number.
pub fn note_file(file: (u32, u64)) {
    if MAPPED.lock().insert(file) {
        ANY.store(true, Ordering::Relaxed);
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
        assert!(!may_fault(code, 1) && !is_mapped(3, own.ino()));
        assert!(note_present(3, own.dev()));
        assert!(may_fault(code, 1) && is_mapped(3, own.ino()) && !is_mapped(2, own.ino()));
    }
}
