//! Changes of files that bypass the kernel's page cache, if there may be pages: see [`super::pages`].
//!
//! Dropping pages waits for the requests that fill them. So it is done by threads that take none
//! from the kernel, and the write and its answer after it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;

use crate::adapter::{Adapter, Answer, IOC_SHUTDOWN, ioctl_of};
use crate::backend::node::{NodeFs, Result};
use crate::kernel_cache::cache::KernelCache;
use crate::serving::notify::{Inval, Notifier, keeps_nothing};
use crate::serving::wire::{InHeader, opcode};

/// Threads that do writes.
pub(crate) const DEFERRED_THREADS: usize = 2;
/// Times that pages are dropped and filled again before a write is done all the same: then they are
/// dropped once more after it.
const TRIES: u32 = 64;

/// A request before which pages of a file have to go.
pub(crate) struct Write {
    pub(crate) header: InHeader,
    message: Vec<u8>,
    ino: u64,
    what: Inval,
}

/// To who does writes.
#[derive(Clone)]
pub(crate) struct DeferredWrites(Sender<Write>);

/// Where they come from.
#[derive(Clone)]
pub(crate) struct Queue(Arc<Mutex<Receiver<Write>>>);

impl DeferredWrites {
    pub(crate) fn new() -> (Self, Queue) {
        let (sender, receiver) = channel();
        (Self(sender), Queue(Arc::new(Mutex::new(receiver))))
    }

    /// Has a request served that changes `what` of `ino`. `false`: nobody does that.
    pub(crate) fn write(&self, header: &InHeader, message: &[u8], ino: u64, what: Inval) -> bool {
        let write = Write {
            header: *header,
            message: message.to_vec(),
            ino,
            what,
        };
        self.0.send(write).is_ok()
    }
}

impl Queue {
    /// The next one; `None`: none will come.
    pub(crate) fn next(&self) -> Option<Write> {
        self.0.lock().recv().ok()
    }
}

impl Write {
    /// Drops the pages and serves the request. `out` is where the payload of the reply goes.
    pub(crate) fn serve<F: NodeFs + ?Sized>(
        &self,
        adapter: &Adapter<F>,
        cache: &KernelCache,
        notifier: &Notifier,
        out: &mut [u8],
    ) -> Answer {
        let ino = self.ino;
        let mut tries = 0;
        let last = loop {
            let last = cache.last_fill(ino);
            self.drop_pages(notifier);
            tries += 1;
            if cache.bypass(ino, last, tries == TRIES) {
                break last;
            }
        };
        let answer = adapter.handle(&self.header, &self.message, out);
        // What else changes bypassing the kernel's page cache it asks about by itself.
        let attributes = matches!(self.header.opcode, opcode::SETXATTR | opcode::IOCTL);
        if cache.end_bypass(ino, last) || attributes {
            self.drop_pages(notifier);
        }
        answer
    }

    /// See [`Adapter::to_be_durable`].
    pub(crate) fn to_be_durable<F: NodeFs + ?Sized>(
        &self,
        adapter: &Adapter<F>,
    ) -> Result<Option<u64>> {
        adapter.to_be_durable(&self.header, &self.message)
    }

    /// Whether it shuts the file system down.
    pub(crate) fn is_shutdown(&self) -> bool {
        ioctl_of(&self.header, &self.message) == Some(IOC_SHUTDOWN)
    }

    fn drop_pages(&self, notifier: &Notifier) {
        let ino = self.ino;
        match notifier.inval_inode(ino, self.what) {
            Err(e) if keeps_nothing(&e) => {}
            Err(error) => tracing::error!(ino, %error, "the kernel keeps old pages"),
            Ok(()) => {}
        }
    }
}
