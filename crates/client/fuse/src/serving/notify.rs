//! Telling the kernel that what it cached is no longer true.
//!
//! A notification may wait for requests in progress: one about a name waits for
//! changes and listings of the same directory, one about data for reads of the
//! file and writes to its pages. So it has to come from a thread that serves no
//! request and holds no lock a request needs, and no answer may wait for a
//! notification without an end. The first half is asserted here. A process that is killed meanwhile
//! leaves nothing but the thread that waits: see [`crate::serving::senders`].

use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::kernel_cache::cache::KernelCache;
use crate::serving::senders::Senders;
use crate::serving::wire::{
    InvalEntryOut, InvalInodeOut, OutHeader, PruneOut, RetrieveOut, StoreOut, notification,
};

thread_local! {
    /// Whether this thread serves requests.
    static SERVING: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread as one that serves requests.
pub(crate) fn mark_serving() {
    SERVING.set(true);
}

/// Whether a notification failed because the mount is gone, or nobody has used it yet: then the kernel keeps nothing.
pub(crate) fn keeps_nothing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOTCONN))
}

/// Flag of a notification about a name: it is not detached.
const EXPIRE_ONLY: u32 = 1;

/// A range of a file's cached data to drop, with its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inval {
    /// Attributes only.
    Attributes,
    /// Attributes and all data.
    All,
    /// Attributes and data of this range, rounded outwards to pages.
    Range {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
}

/// Drops what the kernel cached of one mount. Costs 1 µs if nothing is cached,
/// up to 120 µs for a MiB of pages, and two changes of thread, some 15 µs.
///
/// Errors are those of write(2) on the device, such as `ENODEV` after unmounting;
/// that there was nothing to drop is none.
#[derive(Clone)]
pub struct Notifier {
    senders: Arc<Senders>,
    cache: Arc<KernelCache>,
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
}

impl Notifier {
    pub(crate) fn new(senders: Arc<Senders>, cache: Arc<KernelCache>) -> Self {
        Self { senders, cache }
    }

    /// Drops attributes, and the given data, of an inode that was changed by
    /// somebody else. Dirty pages of shared mappings are written back first.
    ///
    /// # Errors
    /// See [`Notifier`].
    ///
    /// # Panics
    /// On a thread that serves requests: it could wait for itself.
    pub fn inval_inode(&self, ino: u64, what: Inval) -> io::Result<()> {
        let (off, len) = match what {
            Inval::Attributes => (-1, 0),
            Inval::All => (0, 0),
            // A length of 0 would mean: to the end.
            Inval::Range { bytes: 0, .. } => (-1, 0),
            Inval::Range { offset, bytes } => (
                i64::try_from(offset).unwrap_or(i64::MAX),
                i64::try_from(bytes).unwrap_or(0),
            ),
        };
        let pages = off >= 0;
        if pages {
            self.cache.dropping(ino, what == Inval::All);
        }
        let body = InvalInodeOut { ino, off, len };
        let done = self.send(notification::INVAL_INODE, body.as_bytes());
        if pages {
            self.cache.dropped(ino);
        }
        done
    }

    /// Has the kernel know that a file is at least so long that `last` is the byte at `size` − 1.
    /// Waits for requests that read or write its page.
    ///
    /// # Errors
    /// See [`Notifier`].
    ///
    /// # Panics
    /// On a thread that serves requests: it could wait for itself.
    pub(crate) fn grow(&self, ino: u64, size: u64, last: u8) -> io::Result<()> {
        let offset = size - 1;
        let head = StoreOut {
            ino,
            offset,
            size: 1,
            padding: 0,
        };
        let mut body = Vec::with_capacity(size_of::<StoreOut>() + 1);
        body.extend_from_slice(head.as_bytes());
        body.push(last);
        self.send(notification::STORE, &body)?;
        // The byte may have been written meanwhile by somebody whose page this is.
        self.inval_inode(ino, Inval::Range { offset, bytes: 1 })
    }

    /// Has what the kernel keeps of a file from `offset` on sent as a request with the number `unique`. Waits for
    /// nobody.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub(crate) fn retrieve(
        &self,
        ino: u64,
        offset: u64,
        bytes: u32,
        unique: u64,
    ) -> io::Result<()> {
        let ask = RetrieveOut {
            unique,
            ino,
            offset,
            size: bytes,
            padding: 0,
        };
        self.at_once(notification::RETRIEVE, ask.as_bytes())
    }

    /// Drops a name, or that there was none: the next use asks again.
    ///
    /// # Errors
    /// See [`Notifier`].
    ///
    /// # Panics
    /// On a thread that serves requests: it could wait for itself.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        self.about_entry(parent, name, 0)
    }

    /// Has a name asked for again at its next use; unlike [`Self::inval_entry`] it stays
    /// where it is if it still stands for the same inode. Waits in the same way, also for
    /// a name that is not cached.
    ///
    /// # Errors
    /// See [`Notifier`].
    ///
    /// # Panics
    /// On a thread that serves requests: it could wait for itself.
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        self.about_entry(parent, name, EXPIRE_ONLY)
    }

    fn about_entry(&self, parent: u64, name: &[u8], flags: u32) -> io::Result<()> {
        let head = InvalEntryOut {
            parent,
            namelen: name.len() as u32,
            flags,
        };
        let mut body = Vec::with_capacity(size_of::<InvalEntryOut>() + name.len() + 1);
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(name);
        body.push(0);
        self.send(notification::INVAL_ENTRY, &body)
    }

    /// Has every cached name asked for again at its next use (Linux 6.16), for
    /// when so much has changed that naming it costs more.
    ///
    /// # Errors
    /// See [`Notifier`]; `EINVAL` from a kernel that does not know it.
    ///
    /// # Panics
    /// On a thread that serves requests.
    pub fn inc_epoch(&self) -> io::Result<()> {
        self.send(notification::INC_EPOCH, &[])
    }

    /// Has the kernel forget those of these inodes that no program uses: it keeps inodes with their names until memory is short, also those
    /// that somebody else has removed. May wait for their pages to be written.
    ///
    /// # Errors
    /// See [`Notifier`]; `EINVAL` from a kernel that does not know it (before Linux 6.18).
    ///
    /// # Panics
    /// On a thread that serves requests.
    pub fn prune(&self, inos: &[u64]) -> io::Result<()> {
        let head = PruneOut {
            count: inos.len() as u32,
            padding: 0,
            unused: 0,
        };
        self.send(
            notification::PRUNE,
            &[head.as_bytes(), inos.as_bytes()].concat(),
        )
    }

    /// Has the kernel send every unanswered request again, marked as such. Only
    /// for a process that answers none of them any more: [`FuseSession::adopt`]
    /// does it.
    ///
    /// [`FuseSession::adopt`]: crate::FuseSession::adopt
    ///
    /// # Errors
    /// See [`Notifier`]; `EINVAL` from a kernel that does not know it.
    ///
    /// # Panics
    /// On a thread that serves requests.
    pub fn resend(&self) -> io::Result<()> {
        assert_serves_nothing();
        self.at_once(notification::RESEND, &[])
    }

    /// Sends a notification that may wait for requests.
    fn send(&self, code: i32, body: &[u8]) -> io::Result<()> {
        assert_serves_nothing();
        match self.senders.send(message(code, body)) {
            // Neither the inode nor the name was cached.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        }
    }

    /// Sends one that waits for nobody.
    fn at_once(&self, code: i32, body: &[u8]) -> io::Result<()> {
        match self.senders.device().notify(&message(code, body)) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        }
    }
}

fn assert_serves_nothing() {
    assert!(
        !SERVING.get(),
        "notification from a thread that serves requests"
    );
}

fn message(code: i32, body: &[u8]) -> Vec<u8> {
    let bytes = size_of::<OutHeader>() + body.len();
    let header = OutHeader {
        len: bytes as u32,
        error: code,
        unique: 0,
    };
    let mut message = Vec::with_capacity(bytes);
    message.extend_from_slice(header.as_bytes());
    message.extend_from_slice(body);
    message
}
