//! Memory of a library in somebody's process, apart from the program's: a global allocator for it.
//!
//! A program may call `write` in a signal handler that interrupted `malloc`, may fork
//! while another thread is in `malloc`, or bring an allocator of its own that opens
//! files: so nothing here may go through it, nor through libc. Blocks come in size classes with a free
//! list each; what is larger than a class, or aligned to more, is mapped and unmapped by itself.
//!
//! Some is kept for when the kernel has no more (a limit on the program's memory, mostly): the call that
//! finds out ends as if there were more, since much of what is below it cannot be undone half-way; those
//! after it are refused (`ENOMEM`) until as much can be kept again. A program that serves calls asks
//! [`Memory::is_short`] before each.
//!
//! Invariants: a signal handler never calls in while its thread holds one of the locks, so spinning cannot
//! wait for itself. What a lock guards is right after each single store to it, so that a child in which
//! the locks are freed ([`Memory::unlock_all`]) can go on with what its parent's threads left.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::fmt;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Sizes are multiples of this, and blocks are aligned to it.
const GRAIN_BYTES: usize = 16;
/// Larger requests are mapped by themselves.
const CLASS_BYTES_MAX: usize = 64 << 10;
/// Four classes for each doubling from 64 bytes on, after 16, 32, 48.
const CLASSES: usize = 44;
/// Taken from the kernel at a time.
const REGION_BYTES: usize = 1 << 20;
/// Kept for when there is no more: more than a call needs.
const RESERVE_BYTES: usize = 2 << 20;
/// Mappings are multiples of this.
const PAGE_BYTES: usize = 4096;

/// A free block holds the address of the next.
type Link = Option<NonNull<FreeBlock>>;

struct FreeBlock {
    next: Link,
}

/// One size class, or the region that new blocks are cut from.
struct Locked<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through `with` only, by one thread at a time.
unsafe impl<T> Sync for Locked<T> {}

impl<T> Locked<T> {
    const fn new(value: T) -> Self {
        Self {
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut spins = 0u32;
        while self
            .taken
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            spins += 1;
            if spins > 100 {
                rustix::thread::sched_yield();
            }
            core::hint::spin_loop();
        }
        // SAFETY: `taken` was ours to set, so no other reference exists.
        let result = f(unsafe { &mut *self.value.get() });
        self.taken.store(false, Ordering::Release);
        result
    }
}

struct Region {
    at: usize,
    end: usize,
}

impl Region {
    const NONE: Self = Self { at: 0, end: 0 };

    /// A new one; none if the kernel has no more memory.
    fn map(bytes: usize) -> Option<Self> {
        let at = map(bytes) as usize;
        let end = at + bytes;
        (at != 0).then_some(Self { at, end })
    }

    /// Becomes `new`; at no moment are there bytes in it that are neither's.
    fn replace(&mut self, new: Self) -> Self {
        let old = Self { ..*self };
        self.end = 0;
        compiler_fence(Ordering::SeqCst);
        self.at = new.at;
        compiler_fence(Ordering::SeqCst);
        self.end = new.end;
        old
    }

    /// Gives back the whole pages of which nothing was cut.
    fn unmap(self) {
        let at = self.at.next_multiple_of(PAGE_BYTES);
        if at != 0 && at < self.end {
            // SAFETY: the region's own mapping, and nobody was given a byte of these pages.
            let _ = unsafe { munmap(at as *mut _, self.end - at) };
        }
    }

    fn cut(&mut self, bytes: usize, align: usize) -> Option<*mut u8> {
        let at = self.at.next_multiple_of(align);
        if at == 0 || self.end.saturating_sub(at) < bytes {
            return None;
        }
        self.at = at + bytes;
        Some(at as *mut u8)
    }
}

/// The allocator.
pub struct Memory {
    classes: [Locked<Link>; CLASSES],
    region: Locked<Region>,
    reserve: Locked<Region>,
    /// Some of the reserve was taken.
    short: AtomicBool,
}

impl Memory {
    /// An allocator that has taken nothing yet.
    pub const fn new() -> Self {
        Self {
            classes: [const { Locked::new(None) }; CLASSES],
            region: Locked::new(Region::NONE),
            reserve: Locked::new(Region::NONE),
            short: AtomicBool::new(false),
        }
    }

    /// Keeps some for when there is no more, unless all of that is kept. `false`: there is none to be kept.
    pub fn keep_reserve(&self) -> bool {
        let kept = self.reserve.with(|reserve| reserve.end != 0);
        if kept && !self.short.load(Ordering::Acquire) {
            return true;
        }
        let Some(reserve) = Region::map(RESERVE_BYTES) else {
            return false;
        };
        self.reserve.with(|old| old.replace(reserve)).unmap();
        self.short.store(false, Ordering::Release);
        true
    }

    /// Whether there is none left for another call. Where there is, as much as ever is kept when
    /// this returns.
    #[inline(always)]
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire) && !self.recovers()
    }

    #[cold]
    fn recovers(&self) -> bool {
        self.keep_reserve()
    }

    /// Frees all locks: in a child, whose other threads do not exist.
    pub fn unlock_all(&self) {
        for class in &self.classes {
            class.taken.store(false, Ordering::Release);
        }
        self.region.taken.store(false, Ordering::Release);
        self.reserve.taken.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("short", &self.short)
            .finish_non_exhaustive()
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

/// Number of the class for `bytes`, and its block size.
fn class_of(bytes: usize) -> (usize, usize) {
    if bytes <= 64 {
        let grains = bytes.div_ceil(GRAIN_BYTES).max(1);
        return (grains - 1, grains * GRAIN_BYTES);
    }
    let doubling = (bytes - 1).ilog2() as usize;
    let step = 1usize << (doubling - 2);
    let quarter = (bytes - 1 - (1 << doubling)) / step;
    (
        4 + (doubling - 6) * 4 + quarter,
        (1 << doubling) + (quarter + 1) * step,
    )
}

/// A mapping of its own; null if the kernel has no more memory.
fn map(bytes: usize) -> *mut u8 {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping where the kernel chooses disturbs nothing.
    let at = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags) };
    at.map_or(ptr::null_mut(), |at| at.cast())
}

impl Memory {
    fn cut(&self, bytes: usize) -> *mut u8 {
        let cut = self.region.with(|region| {
            if region.end.saturating_sub(region.at) < bytes {
                region.replace(Region::map(REGION_BYTES)?);
            }
            region.cut(bytes, GRAIN_BYTES)
        });
        cut.unwrap_or_else(|| self.cut_reserve(bytes, GRAIN_BYTES))
    }

    /// Null: there is none left.
    #[cold]
    fn cut_reserve(&self, bytes: usize, align: usize) -> *mut u8 {
        self.short.store(true, Ordering::Release);
        let cut = self.reserve.with(|reserve| reserve.cut(bytes, align));
        cut.unwrap_or(ptr::null_mut())
    }

    /// A mapping of its own, perhaps a part of the reserve's, which can be unmapped likewise.
    fn map_apart(&self, bytes: usize) -> *mut u8 {
        let at = map(bytes);
        match at.is_null() {
            true => self.cut_reserve(bytes.next_multiple_of(PAGE_BYTES), PAGE_BYTES),
            false => at,
        }
    }
}

fn own_mapping(layout: &Layout) -> bool {
    layout.size() > CLASS_BYTES_MAX || layout.align() > GRAIN_BYTES
}

// SAFETY: a block is on one free list or with one owner; blocks of one class have its
// size, a multiple of 16, and are cut one behind the other from page-aligned regions.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if own_mapping(&layout) {
            // Pages are aligned to 4096 and nothing here asks for more.
            return if layout.align() > PAGE_BYTES {
                ptr::null_mut()
            } else {
                self.map_apart(layout.size())
            };
        }
        let (class, bytes) = class_of(layout.size());
        let popped = self.classes[class].with(|list| {
            let first = (*list)?;
            // SAFETY: a block on the list is free and starts with its link.
            *list = unsafe { first.as_ref() }.next;
            Some(first)
        });
        match popped {
            Some(block) => block.as_ptr().cast(),
            None => self.cut(bytes),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's own.
        let at = unsafe { self.alloc(layout) };
        // The kernel gives pages with zeros in them, and nobody had these before.
        if !at.is_null() && !own_mapping(&layout) {
            // SAFETY: a block of at least this size, just taken.
            unsafe { at.write_bytes(0, layout.size()) };
        }
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if own_mapping(&layout) {
            // SAFETY: the mapping was made by `alloc` with this size and is given back whole.
            let _ = unsafe { munmap(at.cast(), layout.size()) };
            return;
        }
        let (class, _) = class_of(layout.size());
        self.classes[class].with(|list| {
            let block = at.cast::<FreeBlock>();
            // SAFETY: the caller gives the block back; it has at least 16 bytes, aligned to 16.
            unsafe { block.write(FreeBlock { next: *list }) };
            *list = NonNull::new(block);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_fit_and_rise() {
        let mut last = (0, 0);
        for bytes in 1..=CLASS_BYTES_MAX {
            let (class, size) = class_of(bytes);
            assert!(
                size >= bytes && size.is_multiple_of(GRAIN_BYTES) && class < CLASSES,
                "{bytes}"
            );
            assert!(
                size <= bytes.max(64) * 5 / 4 + GRAIN_BYTES,
                "{bytes}: {size}"
            );
            assert!(
                class == last.0 && size == last.1 || class > last.0 || bytes == 1,
                "{bytes}"
            );
            last = (class, size);
        }
        assert_eq!(last.0, CLASSES - 1);
    }

    #[test]
    fn blocks_are_apart_and_used_again() {
        let memory = Memory::new();
        let layout = Layout::from_size_align(100, 8).unwrap();
        // SAFETY: blocks are given back once with their layout and not used afterwards.
        unsafe {
            let (a, b) = (memory.alloc(layout), memory.alloc(layout));
            assert!(a.align_offset(16) == 0 && a.addr().abs_diff(b.addr()) >= 100);
            a.write_bytes(1, 100);
            b.write_bytes(2, 100);
            assert_eq!(a.add(99).read(), 1);
            memory.dealloc(a, layout);
            assert_eq!(memory.alloc(layout), a);
            let line = Layout::from_size_align(100, 64).unwrap();
            let c = memory.alloc(line);
            assert_eq!(c.align_offset(64), 0);
            memory.dealloc(c, line);
            let large = Layout::from_size_align(1 << 20, 8).unwrap();
            let d = memory.alloc(large);
            d.add((1 << 20) - 1).write(7);
            memory.dealloc(d, large);
            for layout in [layout, large] {
                let used = memory.alloc(layout);
                used.write_bytes(3, layout.size());
                memory.dealloc(used, layout);
                let e = memory.alloc_zeroed(layout);
                let bytes = core::slice::from_raw_parts(e, layout.size());
                assert!(bytes.iter().all(|&b| b == 0));
                memory.dealloc(e, layout);
            }
        }
    }

    #[test]
    fn the_reserve_is_taken_and_kept_again() {
        let memory = Memory::new();
        let small = || memory.cut_reserve(64 << 10, GRAIN_BYTES);
        assert!(small().is_null() && memory.keep_reserve() && !memory.is_short());
        let first = small();
        assert!(!first.is_null() && memory.short.load(Ordering::Relaxed));
        let page = memory.cut_reserve(5_000_usize.next_multiple_of(PAGE_BYTES), PAGE_BYTES);
        assert_eq!(page.align_offset(PAGE_BYTES), 0);
        assert_eq!(page.addr() - first.addr(), 64 << 10);
        let more = (0..).take_while(|_| !small().is_null()).count();
        assert!(more < RESERVE_BYTES / (64 << 10), "{more}");
        assert!(!memory.is_short(), "there is memory");
        assert!(!small().is_null());
    }
}
