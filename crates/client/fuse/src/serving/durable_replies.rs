//! Answers that wait until what they promise survives a power cut.
//!
//! A request that promises that (fsync, a write with `O_SYNC`, every change on a `strict` volume without NVM) has been served, and its answer
//! waits for the device. A thread that takes requests waits by itself only while another one takes them, which saves a wake-up.
//! Else the answer goes here: however many programs wait, requests are taken, and one commit serves all of them
//! (StageFS §3.2, group commit).
//!
//! If the process is killed, the kernel sends a request whose answer was held back to the next one, as any other.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;

use crate::backend::node::{NodeFs, Result};
use crate::serving::wire::{InHeader, OutHeader};

/// Threads that wait and answer: while one answers those that a commit has served, the other waits for the next commit.
pub(crate) const DURABLE_THREADS: usize = 2;

/// A reply that is complete but for the promise.
pub(crate) struct DurableReply {
    pub(crate) header: InHeader,
    pub(crate) payload: Vec<u8>,
    /// For [`NodeFs::wait_durable`](crate::backend::node::NodeFs::wait_durable).
    pub(crate) upto: u64,
}

/// To who waits and answers.
#[derive(Clone)]
pub(crate) struct DurableReplies(Sender<DurableReply>);

/// Where they come from.
#[derive(Clone)]
pub(crate) struct DurableQueue(Arc<Mutex<Receiver<DurableReply>>>);

impl DurableReplies {
    pub(crate) fn new() -> (Self, DurableQueue) {
        let (sender, receiver) = channel();
        (Self(sender), DurableQueue(Arc::new(Mutex::new(receiver))))
    }

    /// Keeps the promise of a reply that is complete otherwise: [`NodeFs::to_be_durable`] gave `promise`. Gives what to answer now, an error
    /// or the bytes of the payload; `None`: it is answered once it is durable. `waits`: waits for that here.
    pub(crate) fn keep<F: NodeFs + ?Sized>(
        &self,
        fs: &F,
        promise: Result<Option<u64>>,
        (header, payload): (&InHeader, &[u8]),
        waits: bool,
    ) -> Option<Result<usize>> {
        let upto = match promise {
            Ok(Some(upto)) => upto,
            Ok(None) => return Some(Ok(payload.len())),
            Err(errno) => return Some(Err(errno)),
        };
        let held = || DurableReply {
            header: *header,
            payload: payload.to_vec(),
            upto,
        };
        if !waits && self.0.send(held()).is_ok() {
            return None;
        }
        Some(fs.wait_durable(upto).map(|()| payload.len()))
    }
}

impl DurableQueue {
    /// The next one; `None`: none will come.
    pub(crate) fn next(&self) -> Option<DurableReply> {
        self.0.lock().recv().ok()
    }
}

impl DurableReply {
    /// Puts the payload where it goes in a reply. Gives its size.
    pub(crate) fn fill(&self, buf: &mut [u8]) -> usize {
        let bytes = self.payload.len();
        buf[size_of::<OutHeader>()..][..bytes].copy_from_slice(&self.payload);
        bytes
    }
}
