//! What tiering asks of the rest of the daemon: clients, leases, grace periods, space, accounts.
//!
//! The services implement these (`tiering_host`); tiering knows none of them.

use shale_format::inode::Inode;
use shale_format::{TierId, TxId};
use shale_proto::shared_pages::client_page::Read;
use shale_volume::View;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Whatever ends a read when it is dropped.
trait Guard {}

impl<T> Guard for T {}

/// While it is there nothing that is freed is used again.
pub struct Reading<'a> {
    _guard: Box<dyn Guard + 'a>,
}

impl<'a> Reading<'a> {
    /// It lasts as long as `guard`.
    pub fn new(guard: impl Sized + 'a) -> Self {
        let _guard = Box::new(guard);
        Self { _guard }
    }
}

/// When what was freed is free.
pub trait GracePeriods: Send + Sync {
    /// Begins to read the volume: what is freed from now on stays as it is until the reader is dropped.
    fn read(&self) -> Reading<'_>;
    /// Asks for a grace period that begins after this call.
    fn request(&self);
    /// Asks for one and waits until it has ended, at most `limit`, else as long as that can take.
    fn wait(&self, limit: Option<Duration>);
    /// Whether one would free something.
    fn has_freed(&self) -> bool;
}

/// Space of NVM that nobody has credit for.
pub trait NvmSpace: Send + Sync {
    /// Bytes that could be given out by a caller that waits until all that is free is released.
    fn available_once_released(&self) -> u64;
    /// Calls `f` with the bytes that could be given out: nobody is given space meanwhile.
    fn with_available(&self, f: &mut dyn FnMut(u64));
    /// Frees what programs had mapped and have no more.
    fn free_unmapped(&self);
}

/// An attached client, as far as tiering reads its page.
pub trait ReadingClient: Send + Sync {
    /// Whether it has an inode open.
    fn uses(&self, ino: u64) -> bool;
    /// Takes the pieces that it says it has read.
    fn take_reads(&self) -> Vec<Read>;
    /// Takes how many blocks it says it has read from devices by itself, and in how many reads.
    fn take_direct(&self) -> (u64, u64);
    /// Whether what it says needs no check: it is the daemon's own code.
    fn is_trusted(&self) -> bool;
    /// Whether its user may read an inode, or owns it.
    fn may_read(&self, view: &View, inode: &Inode) -> bool;
}

/// The attached clients.
pub trait Clients: Send + Sync {
    /// All of them now.
    fn all(&self) -> Vec<Arc<dyn ReadingClient>>;
    /// Tells them that a transaction was committed.
    fn publish(&self, txid: TxId);
}

/// Who may change what.
pub trait Leases: Send + Sync {
    /// Has leases to change these inodes become shared: what was done under them is in the volume then. Who still changes
    /// something keeps them.
    fn downgrade(&self, inos: &mut dyn Iterator<Item = u64>);
    /// Whether somebody may change one of these inodes.
    fn any_exclusive(&self, inos: Range<u64>) -> bool;
}

/// Whose bytes went to which tier.
pub trait Accounts: Send + Sync {
    /// Blocks of these inodes were written to a tier: inodes with their blocks.
    fn add_moved(&self, files: &[(u64, u64)], to: TierId);
}
