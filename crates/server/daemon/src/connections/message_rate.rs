//! How often the log mentions what others can cause as often as they like: connections that send garbage.

use parking_lot::Mutex;

/// Messages in one window.
const MESSAGES_MAX: u32 = 10;
/// A window, in nanoseconds.
const WINDOW_NS: u64 = 10_000_000_000;

#[derive(Default)]
struct State {
    begun_ns: u64,
    logged: u32,
    suppressed: u64,
}

/// Counts messages of one kind, and lets so many through.
#[derive(Default)]
pub(crate) struct MessageRate(Mutex<State>);

impl MessageRate {
    /// Whether one more is logged at this time: with the number of those before it that were not.
    pub(crate) fn admit(&self, now_ns: u64) -> Option<u64> {
        let mut state = self.0.lock();
        if now_ns.saturating_sub(state.begun_ns) >= WINDOW_NS {
            (state.begun_ns, state.logged) = (now_ns, 0);
        }
        if state.logged >= MESSAGES_MAX {
            state.suppressed += 1;
            return None;
        }
        state.logged += 1;
        Some(std::mem::take(&mut state.suppressed))
    }

    /// Writes a message into the log, if it is within the limit.
    pub(crate) fn warn(&self, now_ns: u64, message: std::fmt::Arguments<'_>) {
        match self.admit(now_ns) {
            None => {}
            Some(0) => tracing::warn!("{message}"),
            Some(suppressed) => {
                tracing::warn!("{message} ({suppressed} more of this kind were not logged)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_reported_and_the_rest_is_counted() {
        let rate = MessageRate::default();
        let admitted = |now| {
            (0..1000)
                .filter_map(|_| rate.admit(now))
                .collect::<Vec<_>>()
        };
        assert_eq!(admitted(0), [0; MESSAGES_MAX as usize]);
        assert!(admitted(WINDOW_NS - 1).is_empty());
        let next = admitted(WINDOW_NS);
        let suppressed = 2000 - u64::from(MESSAGES_MAX);
        assert_eq!((next[0], next.len() as u32), (suppressed, MESSAGES_MAX));
        assert!(next[1..].iter().all(|n| *n == 0));
    }
}
