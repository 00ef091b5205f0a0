//! Who is attached, and what is published to all of them: the epoch of the volume's structure, whether there are lower
//! tiers, how the volume is mounted.
//!
//! Lock order: `published`, then `attached`, then what belongs to one client.

use crate::client::Client;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use shale_format::TxId;
use shale_proto::shared_pages::mount_flag;
use shale_sys::mutants;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A client that was cut off or left, for `status`.
#[derive(Clone, Debug)]
pub struct DetachedClient {
    /// Its number.
    pub client: u32,
    /// Its process.
    pub pid: i32,
    /// Why it is gone, for people to read.
    pub why: String,
}

/// Number of no client: leases and credit under it are for logs that recovery could not digest.
pub const LEFT_LOGS: u32 = 0;
/// Departed clients that `status` remembers.
const DETACHED_MAX: usize = 16;

/// What every client's page says.
#[derive(Debug, Default)]
struct Published {
    /// Structure epoch, and the transaction that clients of that epoch see.
    epoch: u64,
    txid: TxId,
    /// How the volume is mounted.
    mount: u64,
    /// [`mount_flag::HARDENING_FAILED`], or nothing.
    failed: u64,
    /// [`mount_flag::FROZEN`], or nothing.
    frozen: u64,
    /// The client that reads what is frozen.
    reader: Option<u32>,
}

impl Published {
    /// The word that a client sees.
    fn flags(&self, client: &Client) -> u64 {
        let reads = match self.reader == Some(client.id) {
            true => mount_flag::READS_FROZEN,
            false => 0,
        };
        self.mount | self.failed | self.frozen | reads
    }
}

/// Paths of directories that clients looked up by themselves since the start: the kernel's look-ups on the mount are requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// Known from a walk before (Strata §3.1).
    pub known: u64,
    /// Walked.
    pub walked: u64,
}

impl PathCounts {
    /// Adds what a client has counted since it was asked last. It may have counted anything.
    fn take_from(&mut self, client: &Client) {
        let (known, walked) = client.client_page.take_paths();
        self.known = self.known.wrapping_add(known);
        self.walked = self.walked.wrapping_add(walked);
    }
}

/// The clients of a daemon.
pub struct Clients {
    attached: RwLock<BTreeMap<u32, Arc<Client>>>,
    published: Mutex<Published>,
    detached: Mutex<Vec<DetachedClient>>,
    next: AtomicU32,
    closing: AtomicBool,
    /// A leaf among the locks.
    paths: Mutex<PathCounts>,
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            attached: RwLock::default(),
            published: Mutex::default(),
            detached: Mutex::default(),
            next: AtomicU32::new(LEFT_LOGS + 1),
            closing: AtomicBool::new(false),
            paths: Mutex::default(),
        }
    }
}

impl Clients {
    /// All attached clients.
    pub fn snapshot(&self) -> Vec<Arc<Client>> {
        self.attached.read().values().cloned().collect()
    }

    /// One of them.
    pub fn get(&self, id: u32) -> Option<Arc<Client>> {
        self.attached.read().get(&id).cloned()
    }

    /// The client that is served and has this token ([`shale_proto::open_name`]).
    pub fn of_token(&self, open_token: u128) -> Option<Arc<Client>> {
        let attached = self.attached.read();
        let any = mutants::is_on("open-token-unchecked");
        let has =
            |client: &&Arc<Client>| (client.open_token == open_token || any) && client.served();
        attached.values().find(has).cloned()
    }

    /// Whether one of them is such. Nobody comes or goes meanwhile.
    pub fn any(&self, is_such: impl Fn(&Arc<Client>) -> bool) -> bool {
        self.attached.read().values().any(is_such)
    }

    /// All of them, by number. Nobody comes or goes before this is dropped.
    pub fn attached(&self) -> RwLockReadGuard<'_, BTreeMap<u32, Arc<Client>>> {
        self.attached.read()
    }

    /// The number that the next client will have.
    pub fn next_number(&self) -> u32 {
        self.next.load(Ordering::Acquire)
    }

    /// Takes that number.
    pub fn take_number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::AcqRel)
    }

    /// Adds a client. From here on it hears of every epoch, and of tiers that come and go.
    pub fn add(&self, client: &Arc<Client>, is_tiered: impl FnOnce() -> bool) {
        let published = self.published.lock();
        client.daemon_page.set_epoch(published.epoch);
        client.daemon_page.set_tiers(is_tiered());
        client.daemon_page.set_mount(published.flags(client));
        let before = self.attached.write().insert(client.id, client.clone());
        assert!(before.is_none(), "number {} was taken twice", client.id);
    }

    /// Takes a client out of the list; `last` is done before anybody else sees that it is gone.
    pub fn remove(&self, client: &Client, last: impl FnOnce()) {
        let mut attached = self.attached.write();
        attached.remove(&client.id);
        self.paths.lock().take_from(client);
        last();
    }

    /// Paths that all clients have looked up, also those that have left.
    pub fn path_counts(&self) -> PathCounts {
        let attached = self.attached.read();
        let mut paths = self.paths.lock();
        attached.values().for_each(|client| paths.take_from(client));
        *paths
    }

    /// Tells all clients that the volume's structure is another one since `txid`. One
    /// at a time, so that the word in a page never goes back.
    pub fn publish(&self, txid: TxId) {
        let mut published = self.published.lock();
        published.epoch += u64::from(!mutants::is_on("epoch-kept"));
        published.txid = published.txid.max(txid);
        for client in self.attached.read().values() {
            client.daemon_page.set_epoch(published.epoch);
        }
    }

    /// Newest transaction whose epoch every client's page has.
    pub fn published(&self) -> TxId {
        self.published.lock().txid
    }

    /// Tells all clients whether there are lower tiers.
    pub fn tell_tiers(&self, is_tiered: impl FnOnce() -> bool) {
        let _published = self.published.lock();
        let is_tiered = is_tiered();
        for client in self.attached.read().values() {
            client.daemon_page.set_tiers(is_tiered);
        }
    }

    /// Tells all clients how the volume is mounted (bits of [`shale_proto::shared_pages::mount_flag`]).
    pub fn tell_mount(&self, flags: u64) {
        let mut published = self.published.lock();
        published.mount = flags;
        for client in self.attached.read().values() {
            client.daemon_page.set_mount(published.flags(client));
        }
    }

    /// Tells all clients, and those to come, that nothing can be hardened any more.
    pub fn tell_hardening_failed(&self) {
        let mut published = self.published.lock();
        published.failed = mount_flag::HARDENING_FAILED;
        for client in self.attached.read().values() {
            client.daemon_page.set_mount(published.flags(client));
        }
    }

    /// Has all clients, and those to come, wait before they change something, or go on. `reader`: the client that reads meanwhile,
    /// once nothing changes any more.
    pub fn tell_frozen(&self, frozen: bool, reader: Option<u32>) {
        let mut published = self.published.lock();
        published.frozen = if frozen { mount_flag::FROZEN } else { 0 };
        published.reader = reader;
        for client in self.attached.read().values() {
            client.daemon_page.set_mount(published.flags(client));
        }
    }

    /// Notes for `status` that a client is gone, and why.
    pub fn note_detached(&self, client: &Client, why: String) {
        let mut detached = self.detached.lock();
        if detached.len() == DETACHED_MAX {
            detached.remove(0);
        }
        detached.push(DetachedClient {
            client: client.id,
            pid: client.pid,
            why,
        });
    }

    /// Those that are gone, oldest first.
    pub fn detached(&self) -> Vec<DetachedClient> {
        self.detached.lock().clone()
    }

    /// The volume is being unmounted: nobody attaches any more.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Whether it is.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}
