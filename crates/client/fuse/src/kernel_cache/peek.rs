//! Looking at what the kernel keeps of pages, without waiting for their locks.
//!
//! A notification asks for the bytes, and the kernel sends them as one more request, which any thread that
//! serves may get. It gives what there is up to the first page that is missing, or the end of the file that it
//! knows; it does not say whether a page is being filled.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use zerocopy::FromBytes;

use crate::serving::notify::Notifier;
use crate::serving::wire::{InHeader, RetrieveIn};

/// Who looks waits so long at most: everybody who could bring the bytes may be busy.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// Looks that are on their way.
#[derive(Default)]
pub(crate) struct Peeks {
    waiting: Mutex<HashMap<u64, SyncSender<Vec<u8>>>>,
    next: AtomicU64,
}

impl Peeks {
    /// What the kernel keeps from `offset` on of `ino`: `bytes` bytes, or fewer if a page is missing or the
    /// file ends. `None`: it did not say in time.
    pub(crate) fn look(
        &self,
        notifier: &Notifier,
        ino: u64,
        offset: u64,
        bytes: u32,
    ) -> Option<Vec<u8>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = sync_channel(1);
        self.waiting.lock().insert(number, sender);
        let asked = notifier.retrieve(ino, offset, bytes, number);
        let replies = asked
            .ok()
            .and_then(|()| receiver.recv_timeout(WAIT_MAX).ok());
        self.waiting.lock().remove(&number);
        replies
    }

    /// The kernel has answered: the whole message. An answer for a process before this one is for nobody.
    pub(crate) fn answered(&self, header: &InHeader, message: &[u8]) {
        let body = message.get(size_of::<InHeader>()..).unwrap_or_default();
        let Ok((head, data)) = RetrieveIn::read_from_prefix(body) else {
            tracing::error!(?header, "malformed NOTIFY_REPLY");
            return;
        };
        let data = &data[..data.len().min(head.size as usize)];
        if let Some(sender) = self.waiting.lock().remove(&header.unique) {
            // Nobody waits any more: it took too long.
            let _ = sender.try_send(data.to_vec());
        }
    }
}
