//! Space in NVM for what comes back, once others may go that came back before.

use super::Tiering;
use crate::recent_promotions::RecentPromotions;
use shale_volume::{Result, VolumeError};
use std::thread;
use std::time::{Duration, Instant};

impl Tiering {
    /// Takes space in NVM; again, within `most`, when something may go that had come back for others.
    ///
    /// # Errors
    /// What `take` says at last.
    pub fn once_others_went<T>(&self, most: Duration, take: impl Fn() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let (inodes, leaves) = (&self.inodes, &self.leaves);
        loop {
            let ends = [&inodes.promoted, &leaves.promoted].map(RecentPromotions::next_end);
            match (take(), ends.into_iter().flatten().min()) {
                (Err(VolumeError::NoSpace { .. }), Some(end)) if end < begun + most => {
                    thread::sleep(end.saturating_duration_since(Instant::now()));
                }
                (taken, _) => {
                    self.counts.wait(begun.elapsed());
                    return taken;
                }
            }
        }
    }
}
