//! How old what a buffered client has logged is, from looks at its log now and then.

use std::collections::VecDeque;

/// Looks that are remembered at most.
const LOOKS_MAX: usize = 64;

/// How far a log was published at some times, oldest first.
#[derive(Debug, Default)]
pub struct BufferAge {
    looks: VecDeque<(u64, u64)>,
}

impl BufferAge {
    /// The log is published up to `published` at `now_ns`. A look that found the log as it is now says nothing more.
    pub fn look(&mut self, now_ns: u64, published: u64) {
        if self
            .looks
            .back()
            .is_none_or(|&(_, before)| before < published)
        {
            if self.looks.len() == LOOKS_MAX {
                self.looks.pop_front();
            }
            self.looks.push_back((now_ns, published));
        }
    }

    /// Position before which all is at least as old as `age_ns`, as far as looks tell; forgets what is `done`, which needs no age any more.
    pub fn older_than(&mut self, now_ns: u64, age_ns: u64, done: u64) -> Option<u64> {
        while self.looks.front().is_some_and(|&(_, upto)| upto <= done) {
            self.looks.pop_front();
        }
        let old = |&&(at, _): &&(u64, u64)| now_ns.saturating_sub(at) >= age_ns;
        self.looks.iter().rev().find(old).map(|&(_, upto)| upto)
    }

    /// How old the oldest is of what is not `done`, in nanoseconds, at least; 0: nobody has looked since it was logged.
    pub fn oldest_ns(&self, now_ns: u64, done: u64) -> u64 {
        let mut waiting = self.looks.iter().filter(|&&(_, upto)| upto > done);
        waiting
            .next()
            .map_or(0, |&(at, _)| now_ns.saturating_sub(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_old_is_known_up_to_the_last_look_that_is_as_old() {
        let mut age = BufferAge::default();
        age.look(100, 64);
        age.look(200, 128);
        age.look(300, 128);
        age.look(400, 256);
        assert_eq!(age.older_than(400, 250, 0), Some(64));
        assert_eq!(age.older_than(450, 250, 0), Some(128));
        assert_eq!(age.oldest_ns(450, 0), 350);
        assert_eq!(age.oldest_ns(450, 64), 250);
        assert_eq!(age.older_than(450, 250, 128), None, "it is done");
        assert_eq!(age.oldest_ns(450, 256), 0);
        assert_eq!(age.older_than(1000, 250, 128), Some(256));
    }

    #[test]
    fn looks_do_not_grow_without_end() {
        let mut age = BufferAge::default();
        (1..1000).for_each(|n| age.look(n, n * 64));
        assert_eq!(age.looks.len(), LOOKS_MAX);
        assert_eq!(age.older_than(2000, 1, 0), Some(999 * 64));
    }
}
