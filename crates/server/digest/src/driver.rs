//! Digesting a log chunk by chunk, and what is done where a chunk fails: the same while the volume is used and at
//! recovery.
//!
//! A chunk that finds too few free blocks waits until what others freed is free, then runs alone; one that a commit of
//! another log overtook is planned again; a block that cannot be read is given up, once. What is left is an error
//! of the log, and the caller's to judge.

use super::{ChunkDone, DigestError};

/// Times a chunk is tried again that may work later.
const TRIES: u32 = 8;

/// A log that is digested.
pub trait Chunks {
    /// Digests the next chunk. `alone`: while no other chunk holds blocks that it has not committed
    /// ([`crate::Digester::chunk_alone`]).
    ///
    /// # Errors
    /// As there; then nothing has changed.
    fn chunk(&mut self, alone: bool) -> Result<ChunkDone, DigestError>;
    /// A chunk is in the volume. Whether there is to be another.
    fn done(&mut self, chunk: ChunkDone) -> bool;
    /// Whether a chunk that failed so is to be tried again at once, since its data goes elsewhere now.
    fn goes_elsewhere(&mut self, _error: &DigestError) -> bool {
        false
    }
    /// Waits until what was freed is free.
    fn wait(&mut self);
    /// Gives up the block that a chunk could not read ([`crate::Digester::give_up`]); `false`: something else is wrong.
    fn give_up(&mut self, error: &DigestError) -> bool;
}

/// Digests chunk after chunk until the log has enough.
///
/// # Errors
/// The first of a chunk that trying again does not help.
pub fn digest_chunks(log: &mut dyn Chunks) -> Result<(), DigestError> {
    let (mut tries, mut alone) = (0, false);
    loop {
        match log.chunk(alone) {
            Ok(done) => {
                if !log.done(done) {
                    return Ok(());
                }
                (tries, alone) = (0, false);
            }
            Err(e) if log.goes_elsewhere(&e) => {}
            Err(e) if e.passes_with_time() && tries < TRIES => {
                alone |= e.is_short();
                tries += 1;
                log.wait();
            }
            Err(e) if log.give_up(&e) => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::{BlockAddr, FileBlock, Ino, LogPos};
    use shale_volume::VolumeError;
    use std::collections::VecDeque;

    type Try = Result<LogPos, DigestError>;

    /// Gives one result after the other, and notes what was asked.
    struct Script {
        tries: VecDeque<Try>,
        asked: String,
        below: bool,
        given_up: bool,
    }

    impl Chunks for Script {
        fn chunk(&mut self, alone: bool) -> Result<ChunkDone, DigestError> {
            self.asked.push(if alone { 'a' } else { 't' });
            let upto = self.tries.pop_front().expect("no more is asked")?;
            Ok(ChunkDone {
                upto,
                ..ChunkDone::default()
            })
        }
        fn done(&mut self, chunk: ChunkDone) -> bool {
            self.asked.push('.');
            chunk.upto < LogPos(2)
        }
        fn goes_elsewhere(&mut self, error: &DigestError) -> bool {
            let lower = matches!(error, DigestError::Volume(VolumeError::Lower(_)));
            lower && std::mem::take(&mut self.below)
        }
        fn wait(&mut self) {
            self.asked.push('w');
        }
        fn give_up(&mut self, error: &DigestError) -> bool {
            let poisoned = matches!(error, DigestError::Poisoned { .. });
            poisoned && !std::mem::replace(&mut self.given_up, true)
        }
    }

    fn run(tries: impl IntoIterator<Item = Try>) -> (String, Result<(), DigestError>) {
        let mut script = Script {
            tries: tries.into_iter().collect(),
            asked: String::new(),
            below: true,
            given_up: false,
        };
        let result = digest_chunks(&mut script);
        assert!(script.tries.is_empty(), "stopped after {}", script.asked);
        (script.asked, result)
    }

    fn short() -> Try {
        let (wanted, free) = (1, 0);
        Err(VolumeError::NoSpace { wanted, free }.into())
    }

    fn moved() -> Try {
        Err(DigestError::Moved { ino: Ino(7) })
    }

    fn lower() -> Try {
        Err(VolumeError::Lower("it fails".to_owned()).into())
    }

    fn poisoned() -> Try {
        Err(DigestError::Poisoned {
            ino: Ino(7),
            at: FileBlock(0),
            addr: BlockAddr::NONE,
            why: VolumeError::Lower("torn".to_owned()),
        })
    }

    #[test]
    fn a_chunk_that_is_short_runs_alone_and_the_next_does_not() {
        let (asked, result) = run([short(), Ok(LogPos(1)), moved(), Ok(LogPos(2))]);
        assert_eq!(asked, "twa.twt.");
        assert!(result.is_ok());
    }

    #[test]
    fn what_passes_with_time_is_tried_so_often_and_no_more() {
        let all = 1 + TRIES as usize;
        let (asked, result) = run((0..all).map(|_| short()));
        assert_eq!(asked.matches('w').count(), TRIES as usize);
        assert!(result.is_err_and(|e| e.is_short()));
        // With each chunk that is done they begin again.
        let some = |n| (0..n).map(|_| moved());
        let (_, result) = run(some(TRIES)
            .chain([Ok(LogPos(1))])
            .chain(some(TRIES))
            .chain([Ok(LogPos(2))]));
        assert!(result.is_ok());
    }

    #[test]
    fn a_block_is_given_up_once_and_data_goes_elsewhere_without_a_wait() {
        let (asked, result) = run([lower(), poisoned(), Ok(LogPos(2))]);
        assert_eq!(asked, "ttt.");
        assert!(result.is_ok());
        let (_, result) = run([poisoned(), poisoned()]);
        assert!(matches!(result, Err(DigestError::Poisoned { .. })));
        let (_, result) = run([lower(), lower()]);
        assert!(matches!(result, Err(DigestError::Volume(_))));
    }
}
