//! Things by key and by when they were used last: what caches of blocks are made of.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Things that are kept until others have been used more recently. Its owner says how many there may be
/// ([`Lru::pop`]).
#[derive(Debug)]
pub struct Lru<K, V> {
    held: HashMap<K, (V, i64)>,
    order: BTreeMap<i64, K>,
}

impl<K, V> Default for Lru<K, V> {
    fn default() -> Self {
        Self {
            held: HashMap::new(),
            order: BTreeMap::new(),
        }
    }
}

impl<K: Copy + Eq + Hash, V> Lru<K, V> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// One of them; this is no use.
    pub fn get(&self, key: K) -> Option<&V> {
        self.held.get(&key).map(|(value, _)| value)
    }

    fn next_stamp(&self) -> i64 {
        self.order.last_key_value().map_or(0, |(&last, _)| last + 1)
    }

    /// Puts one in that was used now.
    pub fn put(&mut self, key: K, value: V) {
        self.put_at(self.next_stamp(), key, value);
    }

    /// Puts one in that goes first.
    pub fn put_first(&mut self, key: K, value: V) {
        let first = self.order.first_key_value();
        self.put_at(first.map_or(0, |(&first, _)| first - 1), key, value);
    }

    fn put_at(&mut self, stamp: i64, key: K, value: V) {
        if let Some((_, old)) = self.held.insert(key, (value, stamp)) {
            self.order.remove(&old);
        }
        self.order.insert(stamp, key);
    }

    /// Takes one out.
    pub fn take(&mut self, key: K) -> Option<V> {
        let (value, stamp) = self.held.remove(&key)?;
        self.order.remove(&stamp);
        Some(value)
    }

    /// It was used now.
    pub fn used(&mut self, key: K) {
        let now = self.next_stamp();
        if let Some((_, stamp)) = self.held.get_mut(&key) {
            self.order.remove(&std::mem::replace(stamp, now));
            self.order.insert(now, key);
        }
    }

    /// The one that was not used for longest goes.
    pub fn pop(&mut self) {
        if let Some((_, key)) = self.order.pop_first() {
            self.held.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_was_not_used_for_longest_goes_first() {
        let mut lru = Lru::default();
        for key in 0..4 {
            lru.put(key, key * 10);
        }
        lru.put(1, 11);
        lru.used(0);
        lru.used(7);
        lru.put_first(9, 90);
        let mut gone = Vec::new();
        while !lru.is_empty() {
            let before: Vec<i32> = (0..10).filter(|&k| lru.get(k).is_some()).collect();
            lru.pop();
            assert_eq!(
                (lru.len(), lru.order.len()),
                (before.len() - 1, before.len() - 1)
            );
            gone.extend(before.into_iter().filter(|&k| lru.get(k).is_none()));
        }
        assert_eq!(gone, [9, 2, 3, 1, 0]);
        lru.put(1, 12);
        assert_eq!(
            (lru.take(1), lru.take(1), lru.order.len()),
            (Some(12), None, 0)
        );
    }
}
