//! Words by which processes tell each other how far they are.
//!
//! Nothing in them has to survive a power cut, so accesses are neither counted nor
//! recorded nor delayed: each is the one instruction that it looks like. Control pages
//! are used through this, also in the shortest calls.
//!
//! Invariant: offsets are aligned to the word, so that each access is atomic towards
//! other processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::map::Map;
use crate::mapping::Access;

/// The words of one mapping.
///
/// An offset that is not inside the mapping or not aligned panics, and so does a store
/// to a mapping that was opened read-only.
pub struct SharedWords {
    base: *mut u8,
    bytes: usize,
    writable: bool,
    _map: Arc<Map>,
}

// SAFETY: `base` points into the mapping that `_map` keeps alive; that may be used from
// any thread, and all that can be done through this are atomic operations.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}
// An access that panics does so before anything is touched.
impl std::panic::UnwindSafe for SharedWords {}
impl std::panic::RefUnwindSafe for SharedWords {}

impl SharedWords {
    /// The words of `map`.
    ///
    /// # Panics
    /// If it is shorter than a word.
    pub fn new(map: Arc<Map>) -> Self {
        assert!(map.bytes() >= size_of::<u64>(), "a mapping without words");
        SharedWords {
            base: map.base,
            bytes: map.bytes(),
            writable: map.access() == Access::ReadWrite,
            _map: map,
        }
    }

    #[inline(always)]
    #[track_caller]
    fn address(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(
            offset <= self.bytes - bytes && offset.is_multiple_of(bytes),
            "no word of {bytes} bytes at {offset}"
        );
        self.base.wrapping_add(offset)
    }

    #[inline(always)]
    #[track_caller]
    fn u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: in range and aligned (checked, the base is page-aligned), alive as long
        // as `self`, and shared memory is accessed atomically.
        unsafe { AtomicU64::from_ptr(self.address(offset, size_of::<u64>()).cast()) }
    }

    /// Loads a word; what was stored before it by the thread that stored it is visible (acquire).
    #[inline(always)]
    #[track_caller]
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.u64(offset).load(Ordering::Acquire)
    }

    /// As [`Self::load_u64`], for a word of 4 bytes.
    #[inline(always)]
    #[track_caller]
    pub fn load_u32(&self, offset: usize) -> u32 {
        let at = self.address(offset, size_of::<u32>());
        // SAFETY: as in `u64`.
        unsafe { AtomicU32::from_ptr(at.cast()) }.load(Ordering::Acquire)
    }

    /// Stores a word after all earlier stores (release). The processor may still put a
    /// later load of another word before it.
    #[inline(always)]
    #[track_caller]
    pub fn store_u64(&self, offset: usize, value: u64) {
        assert!(self.writable, "store into a read-only mapping");
        self.u64(offset).store(value, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MapOptions;

    #[test]
    fn words_are_those_of_the_map() {
        let map = Arc::new(MapOptions::new().anonymous(4096).unwrap());
        let words = SharedWords::new(map.clone());
        words.store_u64(8, 7 << 32 | 5);
        assert_eq!(map.load_u64(8), words.load_u64(8));
        map.store_u64(4088, u64::MAX);
        assert_eq!(words.load_u64(4088), u64::MAX);
        assert_eq!((words.load_u32(8), words.load_u32(12)), (5, 7));
    }

    #[test]
    fn what_is_no_word_panics() {
        let words = SharedWords::new(Arc::new(MapOptions::new().anonymous(4096).unwrap()));
        for offset in [4, 4092, 4096, usize::MAX - 7] {
            let load = std::panic::catch_unwind(|| words.load_u64(offset));
            assert!(load.is_err(), "at {offset}");
        }
    }
}
