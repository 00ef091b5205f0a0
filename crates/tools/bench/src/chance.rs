//! Seeded numbers: the same seed gives the same workload on every machine.

/// A stream of numbers (SplitMix64).
#[derive(Debug, Clone)]
pub struct Chance {
    state: u64,
}

impl Chance {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Chance { state: seed }
    }

    /// The next number, any of 2^64.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut n = self.state;
        n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    }

    /// The next number below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below 0");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Puts `items` in another order, any of them equally likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    /// `bytes` bytes that do not compress.
    pub fn bytes(&mut self, bytes: usize) -> Vec<u8> {
        let mut filled = Vec::with_capacity(bytes + 8);
        while filled.len() < bytes {
            filled.extend_from_slice(&self.next_u64().to_le_bytes());
        }
        filled.truncate(bytes);
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_within_bounds() {
        let (mut a, mut b) = (Chance::new(7), Chance::new(7));
        let mut seen = [false; 10];
        for _ in 0..1_000 {
            let n = a.below(10);
            assert_eq!(n, b.below(10));
            seen[n as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
        assert_ne!(Chance::new(8).next_u64(), Chance::new(7).next_u64());
        assert_eq!(a.bytes(13).len(), 13);
    }
}
