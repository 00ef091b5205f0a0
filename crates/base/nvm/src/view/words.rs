//! Words in mapped memory that several threads or processes use at once.
//!
//! Invariant: offsets are aligned to the word, so that each access is atomic, towards
//! other processes and towards a power cut.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::MappedRegion;
use crate::counters::Count;

macro_rules! words {
    ($word:ty, $atomic:ty, $at:ident, $load:ident, $store:ident, $swap:ident, $add:ident, $exchange:ident) => {
        impl MappedRegion {
            #[inline(always)]
            #[track_caller]
            fn $at(&self, offset: usize) -> &$atomic {
                const BYTES: usize = size_of::<$word>();
                self.check(offset, BYTES);
                assert!(offset % BYTES == 0, "word of {BYTES} bytes at {offset}");
                // SAFETY: in range and aligned (checked above, the base is page-aligned),
                // alive as long as `self`, and shared memory is accessed atomically.
                unsafe { <$atomic>::from_ptr(self.base.add(offset).cast()) }
            }

            /// Loads an aligned word; what was stored before it by the thread that stored it is
            /// visible then (acquire).
            #[inline]
            #[track_caller]
            pub fn $load(&self, offset: usize) -> $word {
                let value = self.$at(offset).load(Ordering::Acquire);
                self.local()
                    .add(self.path, Count::BytesLoaded, size_of::<$word>());
                if let Some(hooks) = &self.hooks {
                    hooks.delay_read(size_of::<$word>());
                }
                value
            }

            /// Stores an aligned word through the cache, after all earlier stores
            /// (release). Atomic towards a power cut, but certain to survive one only
            /// after flush and fence. Between this and a load of *another* word the
            /// processor may reorder: Dekker-like protocols need more.
            #[inline]
            #[track_caller]
            pub fn $store(&self, offset: usize, value: $word) {
                self.check_store(offset, size_of::<$word>());
                let word = self.$at(offset);
                self.local()
                    .add(self.path, Count::BytesStored, size_of::<$word>());
                match &self.hooks {
                    None => word.store(value, Ordering::Release),
                    Some(hooks) => self.recorded_word(
                        hooks,
                        offset,
                        &mut || {
                            word.store(value, Ordering::Release);
                            Some(u64::from(value))
                        },
                        size_of::<$word>(),
                    ),
                }
            }

            /// Stores an aligned word and returns the one before, in one atomic step.
            /// Survives a power cut as a plain store does.
            #[inline]
            #[track_caller]
            pub fn $swap(&self, offset: usize, value: $word) -> $word {
                self.update(offset, size_of::<$word>(), |view| {
                    let old = view.$at(offset).swap(value, Ordering::AcqRel);
                    (old, Some(u64::from(value)))
                })
            }

            /// Adds to an aligned word, wrapping, and returns the one before, in one
            /// atomic step. Survives a power cut as a plain store does.
            #[inline]
            #[track_caller]
            pub fn $add(&self, offset: usize, amount: $word) -> $word {
                self.update(offset, size_of::<$word>(), |view| {
                    let old = view.$at(offset).fetch_add(amount, Ordering::AcqRel);
                    (old, Some(u64::from(old.wrapping_add(amount))))
                })
            }

            /// Stores `new` if the aligned word is `current`, in one atomic step.
            /// Survives a power cut as a plain store does.
            ///
            /// # Errors
            /// The word that was found instead; nothing was stored.
            #[inline]
            #[track_caller]
            pub fn $exchange(
                &self,
                offset: usize,
                current: $word,
                new: $word,
            ) -> Result<$word, $word> {
                self.update(offset, size_of::<$word>(), |view| {
                    let found = view.$at(offset).compare_exchange(
                        current,
                        new,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    );
                    (found, found.is_ok().then_some(u64::from(new)))
                })
            }
        }
    };
}

words!(
    u64,
    AtomicU64,
    word_u64,
    load_u64,
    store_u64,
    swap_u64,
    fetch_add_u64,
    compare_exchange_u64
);
words!(
    u32,
    AtomicU32,
    word_u32,
    load_u32,
    store_u32,
    swap_u32,
    fetch_add_u32,
    compare_exchange_u32
);

impl MappedRegion {
    /// Runs a read-modify-write that says what it returned and what it left stored.
    #[inline(always)]
    #[track_caller]
    fn update<T>(
        &self,
        offset: usize,
        bytes: usize,
        step: impl Fn(&MappedRegion) -> (T, Option<u64>),
    ) -> T {
        self.check_store(offset, bytes);
        let local = self.local();
        local.add(self.path, Count::BytesLoaded, bytes);
        let Some(hooks) = &self.hooks else {
            let (result, stored) = step(self);
            if stored.is_some() {
                local.add(self.path, Count::BytesStored, bytes);
            }
            return result;
        };
        let mut result = None;
        self.recorded_word(
            hooks,
            offset,
            &mut || {
                let (value, stored) = step(self);
                result = Some(value);
                if stored.is_some() {
                    local.add(self.path, Count::BytesStored, bytes);
                }
                stored
            },
            bytes,
        );
        hooks.delay_read(bytes);
        result.expect("a recorder runs the access it is given")
    }
}
