//! A set of pages: one bit a page.

/// See the module.
#[derive(Clone)]
pub(super) struct PageSet {
    words: Vec<u64>,
}

impl PageSet {
    /// Empty, of pages below `pages`.
    pub(super) fn new(pages: u64) -> Self {
        Self {
            words: vec![0; pages.div_ceil(64) as usize],
        }
    }

    pub(super) fn insert(&mut self, page: u64) {
        self.words[(page / 64) as usize] |= 1 << (page % 64);
    }

    pub(super) fn remove(&mut self, page: u64) {
        self.words[(page / 64) as usize] &= !(1 << (page % 64));
    }

    pub(super) fn contains(&self, page: u64) -> bool {
        self.words[(page / 64) as usize] >> (page % 64) & 1 == 1
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// The first page of the set.
    pub(super) fn first(&self) -> Option<u64> {
        self.iter().next()
    }

    /// All, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        let words = self.words.iter().enumerate();
        words.flat_map(|(n, &word)| bits(word).map(move |bit| n as u64 * 64 + bit))
    }
}

/// The numbers of the bits that are set, ascending.
pub(super) fn bits(mut word: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| u64::from(word.trailing_zeros()))?;
        word &= word - 1;
        Some(bit)
    })
}
