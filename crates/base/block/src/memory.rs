//! A device in memory that can lose what was not flushed, fail, and return old data: for tests.

use super::{BlockCounts, Counters, Did, IO_BYTES, TierDevice, check_range};
use crate::BlockDevice;
use crate::error::BlockError;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::sync::Arc;

/// What reads where something was discarded: as bad as a real device, not zeros.
pub const DISCARDED: u8 = 0xd5;

/// What was done to the device, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Bytes were written.
    Write {
        /// Where.
        at: u64,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// What was written before is durable.
    Flush,
    /// These bytes may read as anything.
    Discard {
        /// Where.
        at: u64,
        /// How many.
        bytes: u64,
    },
}

/// What a device is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Discard.
    Discard,
}

/// Gets each step before it happens.
type Observer = Box<dyn Fn(&Step) + Send + Sync>;
/// Asked before anything happens, with nothing locked; it may take its time, or refuse.
type Asked = Box<dyn Fn(Ask) -> Result<(), Errno> + Send + Sync>;

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    failing: bool,
    failing_writes: bool,
}

/// Blocks in memory.
pub struct MemoryBlocks {
    name: String,
    state: Mutex<State>,
    counters: Counters,
    observer: Option<Observer>,
    asked: Option<Asked>,
}

impl MemoryBlocks {
    /// Zeros.
    pub fn new(name: &str, bytes: u64) -> MemoryBlocks {
        Self::holding(name, vec![0; bytes as usize])
    }

    /// These contents.
    pub fn holding(name: &str, bytes: Vec<u8>) -> MemoryBlocks {
        assert!(bytes.len().is_multiple_of(IO_BYTES));
        MemoryBlocks {
            name: name.to_owned(),
            state: Mutex::new(State {
                bytes,
                ..State::default()
            }),
            counters: Counters::default(),
            observer: None,
            asked: None,
        }
    }

    /// Reports every step to `observer`.
    pub fn telling(mut self, observer: impl Fn(&Step) + Send + Sync + 'static) -> MemoryBlocks {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Asks `asked` before everything; what it refuses fails with its error.
    pub fn asking(
        mut self,
        asked: impl Fn(Ask) -> Result<(), Errno> + Send + Sync + 'static,
    ) -> MemoryBlocks {
        self.asked = Some(Box::new(asked));
        self
    }

    /// What is there.
    pub fn contents(&self) -> Vec<u8> {
        self.state.lock().bytes.clone()
    }

    /// Changes bytes behind everybody's back.
    pub fn spoil(&self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        self.state.lock().bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// From now on everything fails with EIO, or nothing.
    pub fn fail(&self, failing: bool) {
        self.state.lock().failing = failing;
    }

    /// From now on whatever changes it fails with EIO.
    pub fn fail_writes(&self) {
        self.state.lock().failing_writes = true;
    }

    fn act<T>(
        &self,
        did: Did,
        step: Option<&Step>,
        f: impl FnOnce(&mut Vec<u8>) -> T,
    ) -> Result<T, BlockError> {
        let ask = match did {
            Did::Read(_) => Ask::Read,
            Did::Wrote(_) => Ask::Write,
            Did::Flushed => Ask::Flush,
            Did::Discarded(_) => Ask::Discard,
        };
        let answer = self.asked.as_ref().map_or(Ok(()), |asked| asked(ask));
        let mut state = self.state.lock();
        let answer = match state.failing || state.failing_writes && step.is_some() {
            true => Err(Errno::IO),
            false => answer,
        };
        let result = match answer {
            Err(e) => Err(BlockError::os(&self.name, "use it", e)),
            Ok(()) => {
                if let (Some(observer), Some(step)) = (&self.observer, step) {
                    observer(step);
                }
                Ok(f(&mut state.bytes))
            }
        };
        self.counters.note(did, result)
    }
}

impl BlockDevice for MemoryBlocks {
    fn bytes(&self) -> u64 {
        self.state.lock().bytes.len() as u64
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        check_range(at, into.len() as u64, self.bytes());
        let range = at as usize..at as usize + into.len();
        let did = Did::Read(into.len() as u64);
        self.act(did, None, |all| into.copy_from_slice(&all[range]))
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        check_range(at, from.len() as u64, self.bytes());
        let range = at as usize..at as usize + from.len();
        let step = Step::Write {
            at,
            bytes: from.into(),
        };
        let did = Did::Wrote(from.len() as u64);
        self.act(did, Some(&step), |all| all[range].copy_from_slice(from))
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.act(Did::Flushed, Some(&Step::Flush), |_| ())
    }

    fn discard(&self, at: u64, bytes: u64) -> Result<(), BlockError> {
        check_range(at, bytes, self.bytes());
        let range = at as usize..(at + bytes) as usize;
        let step = Step::Discard { at, bytes };
        let did = Did::Discarded(bytes);
        self.act(did, Some(&step), |all| all[range].fill(DISCARDED))
    }
}

impl TierDevice for MemoryBlocks {
    fn counts(&self) -> BlockCounts {
        self.counters.snapshot()
    }

    fn access(&self) -> &'static str {
        "memory"
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
