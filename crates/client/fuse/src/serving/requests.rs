//! How many requests of each kind the kernel has sent since this process began to serve.
//!
//! A request costs two wake-ups, which is most of what a call through the mount costs: counts
//! of them compare versions on any machine, where times do not.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::serving::wire::opcode;

/// Codes from here on are counted together, as `OTHER`.
const CODES: usize = 64;
/// What kinds without a name are counted under.
const OTHER: &str = "OTHER";

/// Requests by kind. Counting is one relaxed addition; a snapshot is not of one moment.
pub struct RequestCounts([AtomicU64; CODES]);

impl Default for RequestCounts {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; CODES])
    }
}

impl std::fmt::Debug for RequestCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.snapshot()).finish()
    }
}

impl RequestCounts {
    /// Counts one request.
    pub(crate) fn note(&self, kind: u32) {
        let code = usize::try_from(kind).map_or(0, |code| if code < CODES { code } else { 0 });
        self.0[code].fetch_add(1, Ordering::Relaxed);
    }

    /// The kinds that were asked for at least once, by name in upper case as in `fuse.h` without
    /// `FUSE_`, with how often since this process began to serve.
    #[must_use]
    pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
        let mut other = 0;
        let mut counts = Vec::new();
        for (code, count) in self.0.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            let named = opcode::NAMED.iter().find(|(c, _)| *c as usize == code);
            match named {
                _ if count == 0 => {}
                Some((_, name)) => counts.push((*name, count)),
                None => other += count,
            }
        }
        if other > 0 {
            counts.push((OTHER, other));
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_under_its_name() {
        let counts = RequestCounts::default();
        for kind in [opcode::LOOKUP, opcode::WRITE, opcode::WRITE, 4096, 63] {
            counts.note(kind);
        }
        assert_eq!(counts.snapshot(), [("LOOKUP", 1), ("WRITE", 2), (OTHER, 2)]);
    }

    #[test]
    fn every_named_kind_has_a_place() {
        assert!(
            opcode::NAMED
                .iter()
                .all(|(code, _)| (*code as usize) < CODES)
        );
    }
}
