//! The instructions that move bytes to NVM, chosen once by what the CPU has.
//!
//! Invariants: `stream` and `zero` write whole lines of 64 bytes with non-temporal
//! stores and nothing else; `flush` writes whole lines back; none of them fences.
//! The vector variants clobber vector registers as any function call may.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_setzero_si128, _mm_stream_si64,
    _mm_stream_si128, _mm256_loadu_si256, _mm256_setzero_si256, _mm256_stream_si256,
    _mm512_loadu_si512, _mm512_setzero_si512, _mm512_stream_si512,
};
use std::ffi::c_void;
use std::sync::OnceLock;

use crate::copy_crc::{
    StreamSummed, stream_summed_avx2, stream_summed_avx512, stream_summed_pclmul,
    stream_summed_portable,
};
use crate::crc32c::{update_portable, update_sse42};

/// Bytes that are copied and summed at a time in memory: they stay in the first cache.
const COPIED_BYTES: usize = 4096;
/// Bytes in a cache line, the unit of flushing.
pub const LINE_BYTES: usize = 64;
/// Words of 8 bytes in a cache line.
pub const LINE_WORDS: usize = LINE_BYTES / 8;

/// Copies `lines` lines from anywhere to a line boundary, past the cache.
type Stream = unsafe fn(to: *mut u8, from: *const u8, lines: usize);
/// Writes `lines` lines of zeros at a line boundary, past the cache.
type Zero = unsafe fn(to: *mut u8, lines: usize);
/// Starts the write-back of `lines` lines at a line boundary.
type Flush = unsafe fn(first: *const u8, lines: usize);
/// `memcpy`. It is called through a pointer the compiler cannot see through: the
/// mapping may change under the copy, so the access must not become one of Rust's own.
type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

/// The state of a CRC-32C after bytes in memory of ours.
type Update = unsafe fn(state: u32, bytes: &[u8]) -> u32;

/// The chosen instructions.
#[derive(Clone, Copy)]
pub(crate) struct Isa {
    pub(crate) stream: Stream,
    pub(crate) stream_summed: StreamSummed,
    pub(crate) update: Update,
    pub(crate) zero: Zero,
    pub(crate) flush: Flush,
    pub(crate) copy: Copy,
    /// Names of the variants, for reports.
    pub(crate) name: &'static str,
}

/// The best the CPU has.
#[inline]
pub(crate) fn isa() -> &'static Isa {
    static CHOSEN: OnceLock<Isa> = OnceLock::new();
    CHOSEN.get_or_init(choose)
}

/// For memory that nobody expects to survive a power cut: ordinary copies, which leave the lines in the cache for who reads them
/// next, and no write-back.
#[inline]
pub(crate) fn volatile() -> &'static Isa {
    static CHOSEN: OnceLock<Isa> = OnceLock::new();
    CHOSEN.get_or_init(|| Isa {
        stream: copy_lines,
        stream_summed: copy_lines_summed,
        zero: clear_lines,
        flush: |_, _| (),
        name: "volatile",
        ..*isa()
    })
}

/// # Safety
/// `lines` lines from `to` are mapped writable and from `from` readable; the two do not overlap.
unsafe fn copy_lines(to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: the caller's promise.
    unsafe { (isa().copy)(to.cast(), from.cast(), lines * LINE_BYTES) };
}

/// What is stored and what is summed are the same bytes, whatever another thread does to the source meanwhile: both come from a copy.
///
/// # Safety
/// As [`copy_lines`].
unsafe fn copy_lines_summed(to: *mut u8, from: *const u8, lines: usize, mut state: u32) -> u32 {
    let mut copied = [0; COPIED_BYTES];
    for at in (0..lines * LINE_BYTES).step_by(COPIED_BYTES) {
        let part = &mut copied[..COPIED_BYTES.min(lines * LINE_BYTES - at)];
        // SAFETY: the caller's promise, of a part of its ranges; `update` is what the processor has.
        unsafe {
            (isa().copy)(part.as_mut_ptr().cast(), from.add(at).cast(), part.len());
            state = (isa().update)(state, part);
            (isa().copy)(to.add(at).cast(), part.as_ptr().cast(), part.len());
        }
    }
    state
}

/// # Safety
/// `lines` lines from `to` are mapped writable.
unsafe fn clear_lines(to: *mut u8, lines: usize) {
    const NOTHING: [u8; LINE_BYTES] = [0; LINE_BYTES];
    for line in 0..lines {
        // SAFETY: the caller's promise.
        unsafe { copy_lines(to.add(line * LINE_BYTES), NOTHING.as_ptr(), 1) };
    }
}

fn choose() -> Isa {
    let (flush, flush_name): (Flush, usize) = match flush_support() {
        (true, _) => (flush_clwb, 0),
        (false, true) => (flush_clflushopt, 1),
        (false, false) => (flush_clflush, 2),
    };
    let (stream, zero, names): (Stream, Zero, [&'static str; 3]) =
        if is_x86_feature_detected!("avx512f") {
            (
                stream_avx512,
                zero_avx512,
                ["avx512+clwb", "avx512+clflushopt", "avx512+clflush"],
            )
        } else if is_x86_feature_detected!("avx2") {
            (
                stream_avx2,
                zero_avx2,
                ["avx2+clwb", "avx2+clflushopt", "avx2+clflush"],
            )
        } else {
            (
                stream_sse2,
                zero_sse2,
                ["sse2+clwb", "sse2+clflushopt", "sse2+clflush"],
            )
        };
    let (stream_summed, update) = summing();
    Isa {
        stream,
        stream_summed,
        update,
        zero,
        flush,
        copy: libc::memcpy,
        name: names[flush_name],
    }
}

/// Stores a line past the cache, word by word: for one that was just put together, which
/// could not be loaded at once before its words have left the store buffer.
///
/// # Safety
/// `to` is a line boundary of which the line is mapped writable.
#[inline(always)]
pub(crate) unsafe fn stream_words(to: *mut u8, line: &[u64; LINE_WORDS]) {
    for (index, word) in line.iter().enumerate() {
        // SAFETY: the caller's promise; every x86-64 has the instruction.
        unsafe { _mm_stream_si64(to.cast::<i64>().add(index), word.cast_signed()) };
    }
}

fn summing() -> (StreamSummed, Update) {
    let crc = is_x86_feature_detected!("sse4.2");
    let wide = is_x86_feature_detected!("vpclmulqdq");
    if crc && wide && is_x86_feature_detected!("avx512f") {
        (stream_summed_avx512, update_sse42)
    } else if crc && wide && is_x86_feature_detected!("avx2") {
        (stream_summed_avx2, update_sse42)
    } else if crc && is_x86_feature_detected!("pclmulqdq") {
        (stream_summed_pclmul, update_sse42)
    } else {
        (stream_summed_portable, update_portable)
    }
}

/// Whether the CPU has (CLWB, CLFLUSHOPT); the standard library does not tell.
fn flush_support() -> (bool, bool) {
    if std::arch::x86_64::__cpuid(0).eax < 7 {
        return (false, false);
    }
    let leaf = std::arch::x86_64::__cpuid_count(7, 0);
    (leaf.ebx & (1 << 24) != 0, leaf.ebx & (1 << 23) != 0)
}

/// Orders all earlier flushes and non-temporal stores of this thread before what follows.
#[inline(always)]
pub(crate) fn fence() {
    // SAFETY: SFENCE touches no memory. Without `nomem` it is a barrier to the
    // compiler as well.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}

macro_rules! flush_with {
    ($name:ident, $instruction:literal) => {
        /// # Safety
        /// `first` is a line boundary and `lines` lines from there are mapped.
        unsafe fn $name(first: *const u8, lines: usize) {
            for line in 0..lines {
                // SAFETY: the line is mapped by the caller's promise; writing it back
                // changes no value.
                unsafe {
                    asm!(concat!($instruction, " [{}]"), in(reg) first.add(line * LINE_BYTES),
                         options(nostack, preserves_flags));
                }
            }
        }
    };
}

flush_with!(flush_clwb, "clwb");
flush_with!(flush_clflushopt, "clflushopt");
flush_with!(flush_clflush, "clflush");

macro_rules! stream_with {
    ($stream:ident, $zero:ident, $feature:literal, $vector:ty, $load:ident, $store:ident, $none:ident) => {
        /// # Safety
        /// The CPU has the feature; `to` is a line boundary with `lines` lines mapped
        /// writable; `from` has as many bytes readable; the two do not overlap.
        #[target_feature(enable = $feature)]
        unsafe fn $stream(to: *mut u8, from: *const u8, lines: usize) {
            const PER_LINE: usize = LINE_BYTES / size_of::<$vector>();
            let (to, from) = (to.cast::<$vector>(), from.cast::<$vector>());
            for index in 0..lines * PER_LINE {
                // SAFETY: index stays inside both ranges the caller promised; `to` is
                // aligned to 64, the load needs no alignment.
                unsafe { $store(to.add(index), $load(from.add(index))) };
            }
        }

        /// # Safety
        /// The CPU has the feature; `to` is a line boundary with `lines` lines mapped
        /// writable.
        #[target_feature(enable = $feature)]
        unsafe fn $zero(to: *mut u8, lines: usize) {
            const PER_LINE: usize = LINE_BYTES / size_of::<$vector>();
            let to = to.cast::<$vector>();
            for index in 0..lines * PER_LINE {
                // SAFETY: index stays inside the range the caller promised, aligned to 64.
                unsafe { $store(to.add(index), $none()) };
            }
        }
    };
}

stream_with!(
    stream_avx512,
    zero_avx512,
    "avx512f",
    __m512i,
    _mm512_loadu_si512,
    _mm512_stream_si512,
    _mm512_setzero_si512
);
stream_with!(
    stream_avx2,
    zero_avx2,
    "avx2",
    __m256i,
    _mm256_loadu_si256,
    _mm256_stream_si256,
    _mm256_setzero_si256
);
stream_with!(
    stream_sse2,
    zero_sse2,
    "sse2",
    __m128i,
    _mm_loadu_si128,
    _mm_stream_si128,
    _mm_setzero_si128
);

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Lines([u8; 4 * LINE_BYTES]);

    fn streams_and_zeroes(stream: Stream, zero: Zero) {
        let source: Vec<u8> = (0..=255).cycle().take(LINE_BYTES * 4 + 7).collect();
        for skew in 0..7 {
            let mut target = Lines([0xee; 4 * LINE_BYTES]);
            let to = target.0.as_mut_ptr();
            // SAFETY: both ranges hold the lines named, the target is aligned, and the
            // caller checked the CPU.
            unsafe {
                stream(to.add(LINE_BYTES), source.as_ptr().add(skew), 2);
                fence();
            }
            assert_eq!(target.0[..64], [0xee; 64]);
            assert_eq!(target.0[64..192], source[skew..skew + 128]);
            assert_eq!(target.0[192..], [0xee; 64]);
            // SAFETY: as above.
            unsafe {
                zero(target.0.as_mut_ptr().add(LINE_BYTES), 2);
                fence();
            }
            assert_eq!(target.0[64..192], [0; 128]);
            assert_eq!(target.0[192..], [0xee; 64]);
        }
    }

    #[test]
    fn memory_is_copied_cleared_and_summed_likewise() {
        streams_and_zeroes(volatile().stream, volatile().zero);
        let source: Vec<u8> = (0..=250).cycle().take(LINE_BYTES * 100).collect();
        let mut copies = [vec![0_u8; 101 * LINE_BYTES], vec![0; 101 * LINE_BYTES]];
        let sums = [isa().stream_summed, volatile().stream_summed].map(|summed| {
            let [copy, other] = &mut copies;
            let at = copy.as_ptr().align_offset(LINE_BYTES);
            // SAFETY: 100 lines fit behind the line boundary, and the source has as many.
            let sum = unsafe { summed(copy.as_mut_ptr().add(at), source.as_ptr(), 100, 7) };
            fence();
            assert!(copy[at..at + source.len()] == source);
            std::mem::swap(copy, other);
            sum
        });
        assert_eq!(sums[0], sums[1]);
    }

    #[test]
    fn every_variant_the_cpu_has_copies_and_clears() {
        streams_and_zeroes(stream_sse2, zero_sse2);
        if is_x86_feature_detected!("avx2") {
            streams_and_zeroes(stream_avx2, zero_avx2);
        }
        if is_x86_feature_detected!("avx512f") {
            streams_and_zeroes(stream_avx512, zero_avx512);
        }
    }

    #[test]
    fn flushing_changes_nothing() {
        let target = Lines([0x5a; 4 * LINE_BYTES]);
        let (clwb, clflushopt) = flush_support();
        let mut variants: Vec<Flush> = vec![flush_clflush];
        if clwb {
            variants.push(flush_clwb);
        }
        if clflushopt {
            variants.push(flush_clflushopt);
        }
        for flush in variants {
            // SAFETY: four lines, aligned.
            unsafe { flush(target.0.as_ptr(), 4) };
            fence();
            assert_eq!(target.0, [0x5a; 4 * LINE_BYTES]);
        }
    }
}
