//! Rates for `status`: how fast bytes move recently.

use super::Observer;
use crate::rate_sampler::{RateStatus, Sample};

impl Observer<'_> {
    fn sample(&self) -> Sample {
        let stats = *self.of.digests.totals().stats.lock();
        let moved = self.of.tiering.counts();
        Sample {
            ns: self.of.clock.monotonic_ns() - self.of.started_ns,
            logged: stats.bytes_logged,
            digested: stats.bytes_digested,
            moved: moved.moved_bytes(),
        }
    }

    /// Notes the counters, if it is time to.
    pub(crate) fn note_rates(&self) {
        self.of.rates.add(self.sample());
    }

    pub(crate) fn rate_status(&self) -> RateStatus {
        self.of.rates.until(self.sample())
    }
}
