//! Digesting a log up to a position, and why it can halt before it.

use super::client::{Client, Fate, Work};
use super::sync::let_pass;
use shale_format::LogPos;

/// Why a log is not digested any further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Halt {
    /// A record was refused; what follows does not count.
    Refused(String),
    /// The medium failed; the log is kept.
    Stuck(String),
    /// There is no space, although nobody else holds any: the log waits.
    Short(String),
}

impl std::fmt::Display for Halt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Halt::Refused(why) => write!(f, "its log was refused: {why}"),
            Halt::Stuck(why) => write!(f, "its log cannot be digested and is kept: {why}"),
            Halt::Short(why) => write!(f, "its log waits for space: {why}"),
        }
    }
}

/// Digests a log up to `target`, or to what its client has published if that is less, with `chunk`, which is given
/// from where and up to where. After each chunk those who wait to digest it look whether it has come as far
/// as they need: a client that goes on writing keeps nobody waiting here who needs no more than what is there.
///
/// # Errors
/// See [`Halt`].
pub(crate) fn digest_to(
    client: &Client,
    target: u64,
    mut chunk: impl FnMut(&mut Work, LogPos, LogPos) -> Result<(), Halt>,
) -> Result<(), Halt> {
    if client.digested() >= target {
        return Ok(());
    }
    let mut work = client.work.lock();
    loop {
        if let Some((_, why)) = &work.refused {
            return Err(Halt::Refused(why.clone()));
        }
        if let Fate::Stuck(why) = &*client.fate.lock() {
            return Err(Halt::Stuck(why.clone()));
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
