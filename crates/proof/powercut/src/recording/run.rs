//! A workload that has run: what it stored, and what may be found afterwards.

use shale_model::workload::programs::Program;
use shale_record::Recorded;

use crate::recording::losses::Losses;
use crate::recording::orders::Orders;
use crate::recording::track::{Parts, Track};

/// A workload that has run.
pub struct Run {
    /// What happened to the media, from the first client's attaching on.
    pub events: Vec<Recorded>,
    /// Steps that follow one another.
    pub tracks: Vec<Track>,
    /// Logs that existed.
    pub logs: usize,
    /// Clients at the same time on one tree: what may come of their calls. Then the tracks tell
    /// when steps were done, not to what end.
    pub orders: Option<Orders>,
    /// Buffered clients that took turns: what each of them may have lost. Of these, too, the tracks tell when.
    pub losses: Option<Losses>,
    /// A program whose operations the steps are, from the first on.
    pub program: Option<Program>,
    /// Which steps are operations.
    pub(crate) items: Vec<bool>,
}

impl Run {
    /// [`Track::window`] of each track.
    pub fn windows(&self, event: usize) -> Vec<(usize, usize)> {
        self.tracks
            .iter()
            .map(|track| track.window(event))
            .collect()
    }

    /// Transactions that a program had answered, if this is one.
    pub fn answered(&self, windows: &[(usize, usize)]) -> Option<u64> {
        let returned = windows.first()?.0;
        let done = self.items.get(..returned)?.iter().filter(|&&item| item);
        self.program.map(|program| program.answered(done.count()))
    }

    /// Whether a tree is right for these windows.
    pub fn is_right(&self, windows: &[(usize, usize)], tree: &Parts) -> bool {
        if let Some(orders) = &self.orders {
            return orders.is_right(windows, tree);
        }
        if let Some(losses) = &self.losses {
            return losses.is_right(windows, tree);
        }
        let mut tracks = self.tracks.iter().zip(windows);
        tracks.all(|(track, &(from, to))| (from..=to).any(|k| track.is_after(k, tree)))
    }
}
