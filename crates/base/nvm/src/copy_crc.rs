//! Copies of whole lines past the cache that checksum what they store, in one pass.
//!
//! Invariant: each byte of the source is loaded **once**, into a register which is both
//! stored and checksummed. A source that changes meanwhile, under another thread of a
//! caller, so never yields a checksum other than that of the bytes stored. The
//! loads are assembly, since the compiler may split or repeat a load of its own.
//!
//! The vector variants fold: a CRC is the remainder of a polynomial, and a block may be
//! moved `d` bytes onto a later one by multiplying it with x^(8d) modulo the
//! polynomial, without carries ("Fast CRC Computation for Generic Polynomials Using
//! PCLMULQDQ Instruction", Gopal et al., 2009). The last 16 bytes are left to the CRC
//! instruction.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi32_si128,
    _mm_cvtsi128_si64, _mm_extract_epi64, _mm_set_epi64x, _mm_stream_si64, _mm_stream_si128,
    _mm_xor_si128, _mm256_broadcastsi128_si256, _mm256_clmulepi64_epi128, _mm256_extracti128_si256,
    _mm256_stream_si256, _mm256_xor_si256, _mm256_zextsi128_si256, _mm512_broadcast_i32x4,
    _mm512_castsi512_si128, _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_set_epi64,
    _mm512_stream_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

use crate::LINE_BYTES;
use crate::crc32c::{power_of_x, word_portable};

/// Copies `lines` lines from anywhere to a line boundary, past the cache; returns the
/// state of the CRC after them.
pub(crate) type StreamSummed =
    unsafe fn(to: *mut u8, from: *const u8, lines: usize, state: u32) -> u32;

/// What 16 bytes are multiplied with to be moved `bytes` bytes on: their first and their
/// second half.
///
/// A word of 64 bits in the order of the register holds x^63 in its lowest bit, and a
/// constant of 32 bits in such a word is itself times x^32. A product of two words is in
/// 128 bits itself times x. So what a product adds is x^33, and the first half is
/// worth x^64 more than the second.
const fn fold_by(bytes: u32) -> [i64; 2] {
    let bits = 8 * bytes;
    [
        power_of_x(bits + 64 - 33) as i64,
        power_of_x(bits - 33) as i64,
    ]
}

const LINE: u32 = LINE_BYTES as u32;
const BY_16: [i64; 2] = fold_by(16);
const BY_32: [i64; 2] = fold_by(32);
const BY_48: [i64; 2] = fold_by(48);
const BY_1_LINE: [i64; 2] = fold_by(LINE);
const BY_2_LINES: [i64; 2] = fold_by(2 * LINE);
const BY_3_LINES: [i64; 2] = fold_by(3 * LINE);
const BY_4_LINES: [i64; 2] = fold_by(4 * LINE);

/// Below this many lines, 4 sums side by side cost more than they save.
const WIDE_LINES_MIN: usize = 8;

#[inline(always)]
fn pair(halves: [i64; 2]) -> __m128i {
    // SAFETY: every x86-64 has SSE2.
    unsafe { _mm_set_epi64x(halves[1], halves[0]) }
}

/// The state of a CRC that started at 0 after these 16 bytes.
#[inline]
#[target_feature(enable = "sse4.2")]
fn remainder(bytes: __m128i) -> u32 {
    let first = _mm_crc32_u64(0, _mm_cvtsi128_si64(bytes) as u64);
    _mm_crc32_u64(first, _mm_extract_epi64::<1>(bytes) as u64) as u32
}

/// Loads one line, stores it past the cache and returns it.
///
/// # Safety
/// `to` is a line boundary of which the line is mapped writable; `from` is readable for a
/// line.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn pass_512(to: *mut u8, from: *const u8) -> __m512i {
    let line: __m512i;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("vmovdqu64 {line}, [{from}]", line = out(zmm_reg) line, from = in(reg) from,
             options(nostack, preserves_flags, readonly));
        _mm512_stream_si512(to.cast(), line);
    }
    line
}

/// `sum` moved on by what `by` says, onto `next`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold_512(sum: __m512i, by: __m512i, next: __m512i) -> __m512i {
    const XOR_OF_THREE: i32 = 0x96;
    let first = _mm512_clmulepi64_epi128::<0x00>(sum, by);
    let second = _mm512_clmulepi64_epi128::<0x11>(sum, by);
    _mm512_ternarylogic_epi64::<XOR_OF_THREE>(first, second, next)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn four_times(halves: [i64; 2]) -> __m512i {
    _mm512_broadcast_i32x4(pair(halves))
}

/// The state after the line that all before were folded onto.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
fn remainder_512(sum: __m512i) -> u32 {
    let by = _mm512_set_epi64(
        0, 0, BY_16[1], BY_16[0], BY_32[1], BY_32[0], BY_48[1], BY_48[0],
    );
    let last = _mm512_zextsi128_si512(_mm512_extracti32x4_epi32::<3>(sum));
    let moved = fold_512(sum, by, last);
    let front = _mm_xor_si128(
        _mm512_castsi512_si128(moved),
        _mm512_extracti32x4_epi32::<1>(moved),
    );
    remainder(_mm_xor_si128(front, _mm512_extracti32x4_epi32::<2>(moved)))
}

/// # Safety
/// The CPU has the features; `to` is a line boundary with `lines` lines mapped writable;
/// `from` has as many bytes readable; the two do not overlap.
#[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
pub(crate) unsafe fn stream_summed_avx512(
    to: *mut u8,
    from: *const u8,
    lines: usize,
    state: u32,
) -> u32 {
    if lines == 0 {
        return state;
    }
    // SAFETY: every caller below stays below `lines`.
    let pass = |line: usize| unsafe {
        let at = line * LINE_BYTES;
        pass_512(to.add(at), from.add(at))
    };
    let seed = _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32));
    let mut sum = _mm512_xor_si512(pass(0), seed);
    let mut done = 1;
    if lines >= WIDE_LINES_MIN {
        let by = four_times(BY_4_LINES);
        let mut sums = [sum, pass(1), pass(2), pass(3)];
        done = 4;
        while lines - done >= 4 {
            for (index, sum) in sums.iter_mut().enumerate() {
                *sum = fold_512(*sum, by, pass(done + index));
            }
            done += 4;
        }
        sum = fold_512(sums[0], four_times(BY_3_LINES), sums[3]);
        sum = fold_512(sums[1], four_times(BY_2_LINES), sum);
        sum = fold_512(sums[2], four_times(BY_1_LINE), sum);
    }
    let by = four_times(BY_1_LINE);
    while done < lines {
        sum = fold_512(sum, by, pass(done));
        done += 1;
    }
    remainder_512(sum)
}

/// Loads half a line, stores it past the cache and returns it.
///
/// # Safety
/// `to` is a multiple of 32 and mapped writable, `from` readable, for 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pass_256(to: *mut u8, from: *const u8) -> __m256i {
    let half: __m256i;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("vmovdqu {half}, [{from}]", half = out(ymm_reg) half, from = in(reg) from,
             options(nostack, preserves_flags, readonly));
        _mm256_stream_si256(to.cast(), half);
    }
    half
}

/// `sum` moved on by what `by` says, onto `next`.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn fold_256(sum: __m256i, by: __m256i, next: __m256i) -> __m256i {
    let first = _mm256_clmulepi64_epi128::<0x00>(sum, by);
    let second = _mm256_clmulepi64_epi128::<0x11>(sum, by);
    _mm256_xor_si256(_mm256_xor_si256(first, second), next)
}

/// # Safety
/// As [`stream_summed_avx512`].
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.2")]
pub(crate) unsafe fn stream_summed_avx2(
    to: *mut u8,
    from: *const u8,
    lines: usize,
    state: u32,
) -> u32 {
    if lines == 0 {
        return state;
    }
    let pass = |line: usize, half: usize| {
        let at = line * LINE_BYTES + half * size_of::<__m256i>();
        // SAFETY: every caller below stays below `lines`.
        unsafe { pass_256(to.add(at), from.add(at)) }
    };
    let seed = _mm256_zextsi128_si256(_mm_cvtsi32_si128(state as i32));
    let mut front = _mm256_xor_si256(pass(0, 0), seed);
    let mut back = pass(0, 1);
    let by = _mm256_broadcastsi128_si256(pair(BY_1_LINE));
    for line in 1..lines {
        front = fold_256(front, by, pass(line, 0));
        back = fold_256(back, by, pass(line, 1));
    }
    remainder_of_quarters([
        _mm256_extracti128_si256::<0>(front),
        _mm256_extracti128_si256::<1>(front),
        _mm256_extracti128_si256::<0>(back),
        _mm256_extracti128_si256::<1>(back),
    ])
}

/// Loads 16 bytes, stores them past the cache and returns them.
///
/// # Safety
/// `to` is a multiple of 16 and mapped writable, `from` readable, for 16 bytes.
#[inline(always)]
unsafe fn pass_128(to: *mut u8, from: *const u8) -> __m128i {
    let bytes: __m128i;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("movdqu {bytes}, [{from}]", bytes = out(xmm_reg) bytes, from = in(reg) from,
             options(nostack, preserves_flags, readonly));
        _mm_stream_si128(to.cast(), bytes);
    }
    bytes
}

/// `sum` moved on by what `by` says, onto `next`.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn fold_128(sum: __m128i, by: __m128i, next: __m128i) -> __m128i {
    let first = _mm_clmulepi64_si128::<0x00>(sum, by);
    let second = _mm_clmulepi64_si128::<0x11>(sum, by);
    _mm_xor_si128(_mm_xor_si128(first, second), next)
}

/// The state after the line that all before were folded onto, a quarter of it in each.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.2")]
fn remainder_of_quarters(sums: [__m128i; 4]) -> u32 {
    let sum = fold_128(sums[0], pair(BY_48), sums[3]);
    let sum = fold_128(sums[1], pair(BY_32), sum);
    remainder(fold_128(sums[2], pair(BY_16), sum))
}

/// # Safety
/// As [`stream_summed_avx512`].
#[target_feature(enable = "pclmulqdq,sse4.2")]
pub(crate) unsafe fn stream_summed_pclmul(
    to: *mut u8,
    from: *const u8,
    lines: usize,
    state: u32,
) -> u32 {
    if lines == 0 {
        return state;
    }
    let pass = |line: usize| {
        std::array::from_fn::<__m128i, 4, _>(|quarter| {
            let at = line * LINE_BYTES + quarter * size_of::<__m128i>();
            // SAFETY: every caller below stays below `lines`.
            unsafe { pass_128(to.add(at), from.add(at)) }
        })
    };
    let mut sums = pass(0);
    sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128(state as i32));
    let by = pair(BY_1_LINE);
    for line in 1..lines {
        for (sum, next) in sums.iter_mut().zip(pass(line)) {
            *sum = fold_128(*sum, by, next);
        }
    }
    remainder_of_quarters(sums)
}

/// # Safety
/// As [`stream_summed_avx512`].
pub(crate) unsafe fn stream_summed_portable(
    to: *mut u8,
    from: *const u8,
    lines: usize,
    mut state: u32,
) -> u32 {
    for at in (0..lines * LINE_BYTES).step_by(size_of::<u64>()) {
        let word: u64;
        // SAFETY: `at` stays inside both ranges the caller promised; every x86-64 has SSE2.
        unsafe {
            asm!("mov {word}, [{from}]", word = out(reg) word, from = in(reg) from.add(at),
                 options(nostack, preserves_flags, readonly));
            _mm_stream_si64(to.add(at).cast(), word as i64);
        }
        state = word_portable(state, word);
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc32c::{START, finish};
    use crate::isa::fence;
    use crc_fast::{CrcAlgorithm, checksum};

    const LINES_MAX: usize = 41;
    #[repr(align(64))]
    struct Lines([u8; (LINES_MAX + 1) * LINE_BYTES]);

    fn copies_and_sums(variant: StreamSummed) {
        let source: Vec<u8> = (0..(LINES_MAX + 2) * LINE_BYTES)
            .map(|n| (n * n / 7 + n) as u8)
            .collect();
        for lines in 0..=LINES_MAX {
            let bytes = lines * LINE_BYTES;
            for skew in [0, 1, 8, 17, 63] {
                let mut target = Lines([0xee; _]);
                let from = &source[skew..];
                // SAFETY: both ranges hold the lines, the target is aligned, and the
                // caller checked the CPU.
                let state = unsafe { variant(target.0.as_mut_ptr(), from.as_ptr(), lines, START) };
                fence();
                assert_eq!(target.0[..bytes], from[..bytes]);
                assert!(target.0[bytes..].iter().all(|&byte| byte == 0xee));
                let expected = checksum(CrcAlgorithm::Crc32Iscsi, &from[..bytes]) as u32;
                assert_eq!(finish(state), expected, "{lines} lines, skew {skew}");
            }
            // A state that is not the first.
            let mut target = Lines([0; _]);
            let (front, back) = source.split_at(LINE_BYTES);
            // SAFETY: as above.
            let state = unsafe {
                let state = variant(target.0.as_mut_ptr(), front.as_ptr(), 1, START);
                variant(target.0.as_mut_ptr(), back.as_ptr(), lines, state)
            };
            let whole = &source[..LINE_BYTES + bytes];
            let expected = checksum(CrcAlgorithm::Crc32Iscsi, whole) as u32;
            assert_eq!(finish(state), expected, "1 + {lines} lines");
        }
    }

    #[test]
    fn every_variant_the_cpu_has_copies_and_sums() {
        copies_and_sums(stream_summed_portable);
        if is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.2") {
            copies_and_sums(stream_summed_pclmul);
        }
        if is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx2") {
            copies_and_sums(stream_summed_avx2);
        }
        if is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx512f") {
            copies_and_sums(stream_summed_avx512);
        }
    }
}
