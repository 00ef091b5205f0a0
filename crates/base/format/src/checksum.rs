//! Checksums: CRC-32C everywhere, keyed SipHash for names.

use crc_fast::{CrcAlgorithm, Digest};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// CRC-32C (Castagnoli) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C over several pieces as if they were one.
pub fn crc32c_parts(parts: &[&[u8]]) -> u32 {
    let mut d = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for p in parts {
        d.update(p);
    }
    d.finalize() as u32
}

/// CRC-32C of bytes that come piece by piece.
#[derive(Clone, Copy)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// Of nothing yet.
    #[inline]
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Goes on with `bytes`.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of everything so far.
    #[inline]
    pub fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

/// The hash of a name in directories of the volume with this seed. Keyed, so
/// that nobody can make names that collide.
pub fn name_hash(seed: [u64; 2], name: &[u8]) -> u64 {
    let mut h = SipHasher13::new_with_keys(seed[0], seed[1]);
    h.write(name);
    h.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_is_castagnoli_and_parts_join() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_parts(&[b"1234", b"", b"56789"]), 0xe306_9283);
        let mut crc = Crc32c::new();
        crc.update(b"1234");
        crc.update(b"56789");
        assert_eq!(crc.finish(), 0xe306_9283);
    }

    #[test]
    fn name_hash_depends_on_seed() {
        assert_ne!(name_hash([1, 2], b"a"), name_hash([1, 3], b"a"));
        assert_eq!(name_hash([1, 2], b"a"), name_hash([1, 2], b"a"));
    }
}
