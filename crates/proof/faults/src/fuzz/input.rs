//! The bytes of one input.

/// Takes an input apart.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of it is left.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Input(bytes)
    }

    /// The next `n` bytes; fewer at the end.
    pub(crate) fn take(&mut self, n: usize) -> &'a [u8] {
        let (now, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        now
    }

    /// The next number of so many bytes, lowest first; zeros behind the end.
    pub(crate) fn number(&mut self, bytes: usize) -> u64 {
        let mut word = [0; 8];
        let found = self.take(bytes);
        word[..found.len()].copy_from_slice(found);
        u64::from_le_bytes(word)
    }

    /// Whether nothing is left.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}
