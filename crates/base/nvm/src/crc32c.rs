//! CRC-32C (Castagnoli), as a state that goes from run to run.
//!
//! A state is the register of the CRC *before* the final complement. A checksum over
//! several runs starts with [`START`], hands the state from run to run, and ends with
//! [`finish`]. `finish(update(START, bytes))` is what RFC 3720 calls the CRC-32C of
//! `bytes`; `finish(update(update(START, a), b))` is that of `a` followed by `b`. A
//! finished checksum is taken up again with [`resume`].
//!
//! What is here is for short runs in memory of our own. Runs that go to NVM at the same
//! time are the business of [`crate::MappedRegion::copy_nt_crc32c`].

use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

use crate::isa::isa;

/// The state before the first byte.
pub const START: u32 = !0;

/// The polynomial, its bits in the order of the register: lowest is highest power.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The state after `bytes`. Meant for runs below some hundred bytes (about 3 bytes a cycle).
#[inline]
pub fn update(state: u32, bytes: &[u8]) -> u32 {
    // SAFETY: the variant was chosen by what the CPU has.
    unsafe { (isa().update)(state, bytes) }
}

/// The checksum that a state stands for.
#[inline(always)]
pub const fn finish(state: u32) -> u32 {
    !state
}

/// The state that a finished checksum stands for.
#[inline(always)]
pub const fn resume(checksum: u32) -> u32 {
    !checksum
}

/// x to the `power` modulo the polynomial, in the order of the register.
pub(crate) const fn power_of_x(power: u32) -> u32 {
    let mut value = 1 << 31;
    let mut step = 0;
    while step < power {
        value = times_x(value);
        step += 1;
    }
    value
}

const fn times_x(value: u32) -> u32 {
    (value >> 1) ^ (POLYNOMIAL & (value & 1).wrapping_neg())
}

/// `TABLES[n][b]`: byte `b` carried over `n` more bytes.
static TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut table = 0;
        while table < 8 {
            let mut bit = 0;
            while bit < 8 {
                value = times_x(value);
                bit += 1;
            }
            tables[table][byte] = value;
            table += 1;
        }
        byte += 1;
    }
    tables
};

/// The state after the 8 bytes of `word`, without help of the CPU.
#[inline]
pub(crate) fn word_portable(state: u32, word: u64) -> u32 {
    let bytes = (word ^ u64::from(state)).to_le_bytes();
    let mut next = 0;
    for (byte, table) in bytes.into_iter().zip(TABLES.iter().rev()) {
        next ^= table[usize::from(byte)];
    }
    next
}

/// [`update`] without help of the CPU.
///
/// # Safety
/// None needed; unsafe to be of the type of the other variant.
pub(crate) unsafe fn update_portable(mut state: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state = word_portable(state, u64::from_le_bytes(*word));
    }
    for byte in rest {
        state = (state >> 8) ^ TABLES[0][usize::from(state as u8 ^ byte)];
    }
    state
}

/// [`update`] with the instruction made for it.
///
/// # Safety
/// The CPU has SSE 4.2.
#[target_feature(enable = "sse4.2")]
pub(crate) unsafe fn update_sse42(state: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut wide = u64::from(state);
    for word in words {
        wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
    }
    let mut state = wide as u32;
    for byte in rest {
        state = _mm_crc32_u8(state, *byte);
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crc_fast::{CrcAlgorithm, checksum};

    #[test]
    fn checksums_are_castagnoli_and_compose() {
        let source: Vec<u8> = (0..300_u32).map(|n| (n * n / 8) as u8).collect();
        for size in 0..=source.len() {
            let run = &source[..size];
            let expected = checksum(CrcAlgorithm::Crc32Iscsi, run) as u32;
            assert_eq!(finish(update(START, run)), expected, "{size} bytes");
            // SAFETY: it needs nothing.
            let state = unsafe { update_portable(START, run) };
            assert_eq!(finish(state), expected, "{size} bytes without help");
            let (front, back) = run.split_at(size / 3);
            let resumed = resume(finish(update(START, front)));
            assert_eq!(finish(update(resumed, back)), expected);
        }
        assert_eq!(finish(update(START, b"123456789")), 0xe306_9283);
    }
}
