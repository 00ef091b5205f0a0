//! The media of a volume: medium 0 is the segment file, medium `1 + slot` a log. Each has pages.

use shale_format::limits::LOG_BYTES_MIN;
use shale_format::log::{RING_AT, file_name};

/// Identity of the volume.
pub(crate) const UUID: [u8; 16] = *b"crash explorer 1";
/// Bytes of a page, the unit in which a place is put back.
pub const PAGE_BYTES: usize = 4096;
/// Logs that a place has space for: one per client, and one for the look afterwards.
pub const LOGS: usize = 4;
/// The segment file.
pub(crate) const SEGMENT: &str = "seg-0000";
/// Bytes of a log file.
pub(crate) const LOG_FILE_BYTES: usize = RING_AT + LOG_BYTES_MIN as usize;

/// A page of a medium as one number.
pub(crate) fn page_number(medium: usize, page: usize) -> u64 {
    (medium as u64) << 32 | page as u64
}

/// Medium and page of such a number.
pub(crate) fn page_of(number: u64) -> (usize, usize) {
    (
        (number >> 32) as usize,
        (number & u64::from(u32::MAX)) as usize,
    )
}

/// Medium 0 is the segment file, medium `1 + slot` a log.
pub fn medium_name(medium: usize) -> String {
    match medium {
        0 => SEGMENT.to_owned(),
        n => file_name(n as u32 - 1),
    }
}

/// Hash of a page with its number.
pub(crate) fn page_hash(number: u64, page: &[u8; PAGE_BYTES]) -> u128 {
    const A: u64 = 0x9e37_79b9_7f4a_7c15;
    const B: u64 = 0xc2b2_ae3d_27d4_eb4f;
    let (mut a, mut b) = (number ^ A, number.rotate_left(32) ^ B);
    for &word in page.as_chunks().0 {
        let word = u64::from_le_bytes(word);
        a = (a ^ word).wrapping_mul(B).rotate_left(29);
        b = (b.rotate_left(31) ^ word).wrapping_mul(A) ^ (b >> 33);
    }
    u128::from(a ^ a >> 31) << 64 | u128::from(b ^ b >> 29)
}
