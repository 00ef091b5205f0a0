//! Digesting a log up to a position, and why it can halt before it.

use super::client::{Client, ClientState, Work};
use super::sync::let_pass;
use shale_format::LogPos;

/// Why a log is not digested any further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DigestStop {
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

/// Digests a log up to `target`, or to what its client has published if that is less, with `chunk`, which is given
/// from where and up to where. After each chunk those who wait to digest it look whether it has come as far
/// as they need: a client that goes on writing keeps nobody waiting here who needs no more than what is there.
///
/// # Errors
/// See [`DigestStop`].
pub(crate) fn digest_to(
    client: &Client,
    target: u64,
    mut chunk: impl FnMut(&mut Work, LogPos, LogPos) -> Result<(), DigestStop>,
) -> Result<(), DigestStop> {
    if client.digested() >= target {
        return Ok(());
    }
    let mut work = client.work.lock();
    loop {
        if let Some((_, why)) = &work.refused {
            return Err(DigestStop::Rejected(why.clone()));
        }
        if let ClientState::Stuck(why) = &*client.client_state.lock() {
            return Err(DigestStop::MediaError(why.clone()));
        }
        let (from, limit) = (client.digested(), client.published().pos().0);
        if from >= target.min(limit) {
            return Ok(());
        }
        chunk(&mut work, LogPos(from), LogPos(limit))?;
        assert!(
            (from..=limit).contains(&client.digested()),
            "a chunk from {from} to {limit} has left the log digested to {}",
            client.digested()
        );
        let_pass(&mut work);
    }
}
