//! Digesting a log up to a position, and why it can halt before it.

use super::client::{Client, ClientState, Work};
use super::sync::{MutexGuard, let_pass};
use shale_format::LogPos;

/// Why a log is not digested any further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DigestStop {
    /// A record was refused; what follows does not count.
    Rejected(String),
    /// The medium failed; the log is kept.
    MediaError(String),
    /// There is no space, although nobody else holds any: the log waits.
    NoSpace(String),
}

impl std::fmt::Display for DigestStop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DigestStop::Rejected(why) => write!(f, "its log was refused: {why}"),
            DigestStop::MediaError(why) => {
                write!(f, "its log cannot be digested and is kept: {why}")
            }
            DigestStop::NoSpace(why) => write!(f, "its log waits for space: {why}"),
        }
    }
}

/// The right to digest a log, up to `target` or to what its client has published if that is less. After each chunk
/// those who wait for it look whether the log has come as far as they need: a client that goes on writing keeps
/// nobody waiting here who needs no more than what is there.
pub struct DigestTurn<'a> {
    client: &'a Client,
    target: u64,
    /// What the chunk before this one was given.
    last: Option<(LogPos, LogPos)>,
    /// Where the digest of that log stands; held.
    pub work: MutexGuard<'a, Work>,
}

impl<'a> DigestTurn<'a> {
    /// Waits for the right; `None`: the log is digested as far already.
    pub fn wait(client: &'a Client, target: u64) -> Option<Self> {
        (client.digested() < target).then(|| Self {
            client,
            target,
            last: None,
            work: client.work.lock(),
        })
    }

    /// From where and up to where the next chunk goes; `None`: no further.
    ///
    /// # Errors
    /// See [`DigestStop`].
    pub fn next_chunk(&mut self) -> Result<Option<(LogPos, LogPos)>, DigestStop> {
        if let Some((from, limit)) = self.last.take() {
            let digested = LogPos(self.client.digested());
            assert!(
                (from..=limit).contains(&digested),
                "a chunk from {from:?} to {limit:?} has left the log digested to {digested:?}"
            );
            let_pass(&mut self.work);
        }
        if let Some((_, why)) = &self.work.refused {
            return Err(DigestStop::Rejected(why.clone()));
        }
        if let ClientState::Stuck(why) = &*self.client.client_state.lock() {
            return Err(DigestStop::MediaError(why.clone()));
        }
        let (from, limit) = (self.client.digested(), self.client.published().pos());
        if from >= self.target.min(limit.0) {
            return Ok(None);
        }
        self.last = Some((LogPos(from), limit));
        Ok(self.last)
    }
}
