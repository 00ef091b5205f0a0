//! A map from ranges of a file to values: what digest knows about bytes and blocks.
//!
//! Ranges never overlap and are never empty; a later insertion cuts what was there.

use std::ops::Range;

/// A value that belongs to a range and can be asked for its part further on.
pub trait Advance: Clone {
    /// The value for the part of the range that begins `by` units later.
    fn advance(&self, by: u64) -> Self;
}

/// Most entries of a chunk: what an insertion moves stays within a few lines of the caches.
const CHUNK: usize = 64;

#[derive(Clone, Debug)]
struct Entry<T> {
    start: u64,
    end: u64,
    value: T,
}

/// Disjoint ranges in ascending order, each with a value.
///
/// Sorted entries in chunks of a bounded size, none of them empty: to find one takes a search in a dense array
/// of the chunks' first offsets and one within a chunk, where a tree of maps misses the caches at each level.
#[derive(Clone, Debug)]
pub struct Ranges<T> {
    chunks: Vec<Vec<Entry<T>>>,
    /// Where the first entry of each chunk begins.
    firsts: Vec<u64>,
    /// No range goes on behind it: what comes there (appends) meets none.
    behind: u64,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            firsts: Vec::new(),
            behind: 0,
        }
    }
}

impl<T: Advance> Ranges<T> {
    /// Gives `range` the value, whatever was there. An empty range changes nothing.
    pub fn insert(&mut self, range: Range<u64>, value: T) {
        let Range { start, end } = range;
        if start >= end {
            return;
        }
        let entry = Entry { start, end, value };
        if start >= self.behind {
            self.behind = end;
            return self.push(entry);
        }
        self.behind = self.behind.max(end);
        let (mut chunk, mut i) = self.first_behind(start);
        let old = self.chunks.get_mut(chunk).and_then(|c| c.get_mut(i));
        let next = match old {
            // The same range once more is frequent.
            Some(old) if old.start == start && old.end == end => {
                *old = entry;
                return;
            }
            Some(old) => Some(old.start),
            None => self.firsts.get(chunk + 1).copied(),
        };
        if next.is_some_and(|next| next < end) {
            self.remove(start..end);
            (chunk, i) = self.first_behind(start);
        }
        self.put(chunk, i, entry);
    }

    /// Takes away every value in `range`.
    pub fn remove(&mut self, range: Range<u64>) {
        let Range { start, end } = range;
        if start >= end.min(self.behind) {
            return;
        }
        let (mut chunk, mut i) = self.first_behind(start);
        if let Some(old) = self.chunks.get_mut(chunk).and_then(|c| c.get_mut(i))
            && old.start < start
        {
            let right = (old.end > end).then(|| old.part(end, old.end));
            old.end = start;
            if let Some(right) = right {
                return self.put(chunk, i + 1, right);
            }
            i += 1;
        }
        while let Some(entries) = self.chunks.get_mut(chunk) {
            let gone = entries[i..].partition_point(|e| e.end <= end);
            entries.drain(i..i + gone);
            let cut = entries.get_mut(i);
            if let Some(old) = cut {
                if old.start < end {
                    *old = old.part(end, old.end);
                }
                self.firsts[chunk] = self.chunks[chunk][0].start;
                return;
            }
            match entries.first() {
                Some(first) => {
                    self.firsts[chunk] = first.start;
                    chunk += 1;
                }
                None => {
                    self.chunks.remove(chunk);
                    self.firsts.remove(chunk);
                }
            }
            i = 0;
        }
    }

    /// All ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &T)> {
        let entries = self.chunks.iter().flatten();
        entries.map(|e| (e.start..e.end, &e.value))
    }

    /// The ranges that touch `range`, cut to it, in ascending order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, T)> {
        let (chunk, i) = match range.start < self.behind {
            true => self.first_behind(range.start),
            false => (self.chunks.len(), 0),
        };
        let mut chunks = self.chunks[chunk..].iter();
        let first = chunks.next().map_or(&[][..], |c| &c[i..]);
        first
            .iter()
            .chain(chunks.flatten())
            .take_while(move |e| e.start < range.end)
            .map(move |e| {
                let start = e.start.max(range.start);
                (
                    start..e.end.min(range.end),
                    e.value.advance(start - e.start),
                )
            })
    }

    /// The parts of `range` that no range touches, in ascending order.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (r, _) in self.within(range.clone()) {
            if r.start > at {
                gaps.push(at..r.start);
            }
            at = r.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Chunk and index of the first entry that ends behind `at`; behind all entries of a chunk
    /// where the next one has it, or where there is none.
    fn first_behind(&self, at: u64) -> (usize, usize) {
        let upto = self.firsts.partition_point(|&first| first <= at);
        let chunk = upto.saturating_sub(1);
        let entries = self.chunks.get(chunk).map_or(&[][..], |c| c);
        (chunk, entries.partition_point(|e| e.end <= at))
    }

    /// Adds an entry behind all others.
    fn push(&mut self, entry: Entry<T>) {
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK => last.push(entry),
            _ => {
                self.firsts.push(entry.start);
                // Most files of a chunk have one range, and there are many files.
                let first = self.chunks.is_empty();
                let mut chunk = Vec::with_capacity(if first { 1 } else { CHUNK });
                chunk.push(entry);
                self.chunks.push(chunk);
            }
        }
    }

    /// Puts an entry at its place.
    fn put(&mut self, chunk: usize, i: usize, entry: Entry<T>) {
        let Some(entries) = self.chunks.get_mut(chunk) else {
            return self.push(entry);
        };
        if i == 0 {
            self.firsts[chunk] = entry.start;
        }
        entries.insert(i, entry);
        if entries.len() > CHUNK {
            let right = entries.split_off(CHUNK / 2);
            self.firsts.insert(chunk + 1, right[0].start);
            self.chunks.insert(chunk + 1, right);
        }
    }
}

impl<T: Advance> Entry<T> {
    /// What of it lies in `start..end`, which is a part of it.
    fn part(&self, start: u64, end: u64) -> Self {
        Entry {
            start,
            end,
            value: self.value.advance(start - self.start),
        }
    }
}

impl Advance for u32 {
    fn advance(&self, _: u64) -> Self {
        *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct From(u64);
    impl Advance for From {
        fn advance(&self, by: u64) -> Self {
            From(self.0 + by)
        }
    }

    fn list(r: &Ranges<From>) -> Vec<(u64, u64, u64)> {
        r.iter().map(|(r, v)| (r.start, r.end, v.0)).collect()
    }

    #[test]
    fn insertion_in_the_middle_splits_and_advances() {
        let mut r = Ranges::default();
        r.insert(10..20, From(100));
        r.insert(13..15, From(500));
        assert_eq!(list(&r), [(10, 13, 100), (13, 15, 500), (15, 20, 105)]);
        r.insert(0..30, From(0));
        assert_eq!(list(&r), [(0, 30, 0)]);
        r.remove(5..6);
        assert_eq!(list(&r), [(0, 5, 0), (6, 30, 6)]);
        assert_eq!(r.gaps(3..40), [5..6, 30..40]);
    }

    #[test]
    fn agrees_with_an_array() {
        // Whole array at a time, and so little that there are many chunks.
        for (len, longest) in [(64, 64), (4096, 5), (2048, 300)] {
            agrees(len, longest);
        }
    }

    fn agrees(len: u64, longest: u64) {
        let mut seed = 7u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        let mut r = Ranges::default();
        let mut model = vec![None; len as usize];
        for step in 0..5_000u64 {
            let from = next(len + 1);
            let range = from..(from + next(longest + 1)).min(len);
            if next(3) == 0 {
                r.remove(range.clone());
                model[range.start as usize..range.end as usize].fill(None);
            } else {
                r.insert(range.clone(), From(step * 1_000));
                for i in range.clone() {
                    model[i as usize] = Some(step * 1_000 + i - range.start);
                }
            }
            let firsts = r.chunks.iter().map(|c| c[0].start);
            assert!(firsts.eq(r.firsts.iter().copied()), "chunks are found");
            assert!(r.chunks.iter().all(|c| c.len() <= CHUNK));
            let asked = match step % 50 {
                0 => 0..len,
                _ => range.start.saturating_sub(2)..(range.end + 2).min(len),
            };
            let mut seen = vec![None; len as usize];
            for (part, v) in r.within(asked.clone()) {
                for i in part.clone() {
                    assert!(seen[i as usize].is_none());
                    seen[i as usize] = Some(v.0 + i - part.start);
                }
            }
            let asked = asked.start as usize..asked.end as usize;
            assert_eq!(seen[asked.clone()], model[asked]);
        }
    }
}
