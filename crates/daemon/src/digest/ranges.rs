//! A map from ranges of a file to values: what digest knows about bytes and blocks.
//!
//! Ranges never overlap and are never empty; a later insertion cuts what was there.

use std::collections::BTreeMap;
use std::ops::Range;

/// A value that belongs to a range and can be asked for its part further on.
pub trait Advance: Clone {
    /// The value for the part of the range that begins `by` units later.
    fn advance(&self, by: u64) -> Self;
}

/// Disjoint ranges in ascending order, each with a value.
#[derive(Clone, Debug)]
pub struct Ranges<T> {
    map: BTreeMap<u64, (u64, T)>,
    /// No range goes on behind it: what comes there (appends) meets none.
    behind: u64,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self {
            map: BTreeMap::new(),
            behind: 0,
        }
    }
}

impl<T: Advance> Ranges<T> {
    /// Gives `range` the value, whatever was there. An empty range changes nothing.
    pub fn insert(&mut self, range: Range<u64>, value: T) {
        if range.start < range.end {
            self.remove(range.clone());
            self.map.insert(range.start, (range.end, value));
            self.behind = self.behind.max(range.end);
        }
    }

    /// Takes away every value in `range`.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.start >= range.end.min(self.behind) {
            return;
        }
        if let Some((&start, &(end, ref value))) = self.map.range(..range.start).next_back()
            && end > range.start
        {
            let value = value.clone();
            let behind = (end > range.end).then(|| value.advance(range.end - start));
            self.map.insert(start, (range.start, value));
            if let Some(v) = behind {
                self.map.insert(range.end, (end, v));
                return;
            }
        }
        while let Some((&start, &(end, ref value))) = self.map.range(range.clone()).next() {
            let behind = (end > range.end).then(|| value.advance(range.end - start));
            self.map.remove(&start);
            if let Some(v) = behind {
                self.map.insert(range.end, (end, v));
            }
        }
    }

    /// All ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &T)> {
        self.map.iter().map(|(&s, (e, v))| (s..*e, v))
    }

    /// The ranges that touch `range`, cut to it, in ascending order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, T)> {
        let met = (range.start < self.behind).then_some(&self.map);
        let before = met
            .and_then(|map| map.range(..range.start).next_back())
            .filter(|(_, (end, _))| *end > range.start);
        let inside = met.map(|map| map.range(range.start..range.end.max(range.start)));
        before
            .into_iter()
            .chain(inside.into_iter().flatten())
            .map(move |(&s, (e, v))| {
                let start = s.max(range.start);
                (start..(*e).min(range.end), v.advance(start - s))
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
        self.map.is_empty()
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
        let mut seed = 7u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        let mut r = Ranges::default();
        let mut model = [None; 64];
        for step in 0..5_000u64 {
            let (a, b) = (next(65), next(65));
            let range = a.min(b)..a.max(b);
            if next(3) == 0 {
                r.remove(range.clone());
                model[range.start as usize..range.end as usize].fill(None);
            } else {
                r.insert(range.clone(), From(step * 1_000));
                for i in range.clone() {
                    model[i as usize] = Some(step * 1_000 + i - range.start);
                }
            }
            let mut seen = [None; 64];
            for (part, v) in r.within(0..64) {
                for i in part.clone() {
                    assert!(seen[i as usize].is_none());
                    seen[i as usize] = Some(v.0 + i - part.start);
                }
            }
            assert_eq!(seen, model);
        }
    }
}
