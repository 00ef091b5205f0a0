//! When a daemon is started again after others have died, and when no more.

use std::time::Duration;

/// A daemon that served less than this has died of what it serves, or of the volume.
const SHORT: Duration = Duration::from_secs(1);
/// Restarts without a pause after daemons that died that soon.
const AT_ONCE: u32 = 3;
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Daemons in a row that did not come to serve, after which the mount is given up:
/// about 5 s. Programs then see an error instead of waiting for ever.
const FAILED_STARTS_MAX: u32 = 11;
/// Daemons in a row that served less than [`SHORT`]: about 3 minutes.
const SHORT_LIVES_MAX: u32 = 50;

/// Daemons that died one soon after the other.
#[derive(Debug, Default)]
pub struct Deaths {
    /// Without having served.
    failed_starts: u32,
    /// Having served less than [`SHORT`], or not at all.
    short_lives: u32,
}

impl Deaths {
    /// Notes one more. Gives the pause before the next start; `None`: enough.
    /// `served`: how long ago it had started, if it came to serve.
    pub fn add(&mut self, served: Option<Duration>) -> Option<Duration> {
        let long = served.is_some_and(|lived| lived >= SHORT);
        self.failed_starts = match served {
            Some(_) => 0,
            None => self.failed_starts + 1,
        };
        self.short_lives = if long { 0 } else { self.short_lives + 1 };
        if self.failed_starts >= FAILED_STARTS_MAX || self.short_lives >= SHORT_LIVES_MAX {
            return None;
        }
        let in_a_row = self.failed_starts.max(self.short_lives);
        let Some(doublings) = in_a_row.checked_sub(AT_ONCE + 1) else {
            return Some(Duration::ZERO);
        };
        Some((Duration::from_millis(20) * (1 << doublings.min(16))).min(PAUSE_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_cannot_start_is_given_up_after_seconds() {
        let mut deaths = Deaths::default();
        let mut waited = Duration::ZERO;
        let mut starts = 1;
        while let Some(pause) = deaths.add(None) {
            waited += pause;
            starts += 1;
        }
        assert_eq!(starts, FAILED_STARTS_MAX);
        assert!((2..30).contains(&waited.as_secs()), "{waited:?}");
    }

    #[test]
    fn one_that_has_served_is_followed_at_once() {
        let mut deaths = Deaths::default();
        for _ in 0..1000 {
            assert_eq!(deaths.add(Some(SHORT)), Some(Duration::ZERO));
        }
        let starts = (0..)
            .take_while(|_| deaths.add(Some(Duration::ZERO)).is_some())
            .count();
        assert_eq!(starts as u32, SHORT_LIVES_MAX - 1);
        assert_eq!(deaths.add(Some(SHORT)), Some(Duration::ZERO));
        assert_eq!((deaths.short_lives, deaths.failed_starts), (0, 0));
    }
}
