//! What all threads of the daemon share, and the few steps that change who is attached.
//!
//! Lock order: `attach`, then a client's `work`, then the volume's transaction, then `epoch`, then
//! `clients`, then a client's `grants` and `fate`, then the leaves (credits,
//! leases, queue, release). None is held while gates are passed.

use crate::accounts::Accounts;
use crate::barrier::Barrier;
use crate::client::{Client, Reach};
use crate::daemon::DaemonConfig;
use crate::digestion::{Queue, Totals};
use crate::error::{DaemonError, Result};
use crate::gate::OwnReaders;
use crate::halt::Halt;
use crate::lease::{LeaseHook, Leases};
use crate::limits::LimitBook;
use crate::lower_read::BadBlocks;
use crate::mappings::Mappings;
use crate::migrate::Migration;
use crate::rates::Sampler;
use crate::recover::{Kept, RecoveryReport};
use crate::release::Release;
use crate::space::Credits;
use crate::spare::Spare;
use crate::trim::Trim;
use parking_lot::{Mutex, RwLock};
use shale_device::{Clock, Map, failpoints, mutants};
use shale_digest::Digester;
use shale_format::TxId;
use shale_format::log::LogSlot;
use shale_pool::nvm_dir::remove;
use shale_volume::{Run, Volume};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A client that was cut off or left, for `status`.
#[derive(Clone, Debug)]
pub(crate) struct Departed {
    pub(crate) client: u32,
    pub(crate) pid: i32,
    pub(crate) why: String,
}

/// Structure epoch, and the transaction that clients of that epoch see.
#[derive(Debug, Default)]
pub(crate) struct Epoch {
    number: u64,
    txid: TxId,
    /// How the volume is mounted, as every client has been told.
    mount: u64,
}

/// State of a running daemon.
pub(crate) struct Shared {
    pub(crate) config: DaemonConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started_ns: u64,
    /// The count on the labels of devices.
    pub(crate) label_count: u64,
    pub(crate) name: String,
    pub(crate) volume: Arc<Volume>,
    pub(crate) map: Arc<Map>,
    pub(crate) nvm_dir: PathBuf,
    pub(crate) digester: Digester,
    pub(crate) barrier: Barrier,
    pub(crate) readers: OwnReaders,
    pub(crate) clients: RwLock<BTreeMap<u32, Arc<Client>>>,
    pub(crate) next_client: AtomicU32,
    /// Serialises what is done with log slots and their files.
    pub(crate) attach: Mutex<()>,
    pub(crate) spare: Spare,
    pub(crate) epoch: Mutex<Epoch>,
    pub(crate) leases: Leases,
    pub(crate) trim: Trim,
    pub(crate) credits: Credits,
    pub(crate) queue: Queue,
    pub(crate) release: Release,
    /// Stolen blocks that no file needs: given back after the next pass of the gates.
    pub(crate) idle_blocks: Mutex<Vec<Run>>,
    pub(crate) hook: RwLock<Option<Arc<dyn LeaseHook>>>,
    pub(crate) totals: Totals,
    pub(crate) rates: Sampler,
    pub(crate) accounts: Accounts,
    pub(crate) limits: LimitBook,
    pub(crate) bad_blocks: BadBlocks,
    pub(crate) mappings: Mappings,
    pub(crate) migration: Migration,
    pub(crate) departed: Mutex<Vec<Departed>>,
    pub(crate) recovery: RecoveryReport,
    pub(crate) kept: Mutex<Kept>,
    pub(crate) closing: AtomicBool,
    /// No client but the front end is served, for good.
    pub(crate) down: AtomicBool,
}

/// Departed clients that `status` remembers.
const DEPARTED_MAX: usize = 16;

impl Shared {
    /// All attached clients.
    pub(crate) fn clients(&self) -> Vec<Arc<Client>> {
        self.clients.read().values().cloned().collect()
    }

    /// One of them.
    pub(crate) fn client(&self, id: u32) -> Option<Arc<Client>> {
        self.clients.read().get(&id).cloned()
    }

    /// Adds a client. From here on it hears of every epoch, and of tiers that come and go.
    pub(crate) fn register(&self, client: &Arc<Client>) {
        let epoch = self.epoch.lock();
        client.daemon_page.set_epoch(epoch.number);
        client.daemon_page.set_tiers(self.is_tiered());
        client.daemon_page.set_mount(epoch.mount);
        self.clients.write().insert(client.id, client.clone());
    }

    /// Tells all clients that the volume's structure is another one since `txid`. One
    /// at a time, so that the word in a page never goes back.
    pub(crate) fn publish(&self, txid: TxId) {
        let mut epoch = self.epoch.lock();
        epoch.number += u64::from(!mutants::is_on("epoch-kept"));
        epoch.txid = epoch.txid.max(txid);
        for client in self.clients.read().values() {
            client.daemon_page.set_epoch(epoch.number);
        }
    }

    /// Tells all clients whether there are tiers below NVM.
    pub(crate) fn tell_tiers(&self) {
        let _epoch = self.epoch.lock();
        let tiers = self.is_tiered();
        for client in self.clients.read().values() {
            client.daemon_page.set_tiers(tiers);
        }
    }

    /// Tells all clients how the volume is mounted.
    pub(crate) fn tell_mount(&self, flags: u64) {
        let mut epoch = self.epoch.lock();
        epoch.mount = flags;
        for client in self.clients.read().values() {
            client.daemon_page.set_mount(flags);
        }
    }

    /// Newest transaction whose epoch every client has been told.
    pub(crate) fn published(&self) -> TxId {
        self.epoch.lock().txid
    }

    /// Notes for `status` that a client is gone, and why.
    pub(crate) fn remember(&self, client: &Client, why: String) {
        let mut departed = self.departed.lock();
        if departed.len() == DEPARTED_MAX {
            departed.remove(0);
        }
        departed.push(Departed {
            client: client.id,
            pid: client.pid,
            why,
        });
    }

    /// The client has gone, or asks to leave: its log is digested up to what it
    /// committed, everything it held is free, its slot and log are no more.
    ///
    /// A log that cannot be digested now is kept, with its slot; the next start tries again.
    pub(crate) fn retire(self: &Arc<Self>, client: &Arc<Client>) -> std::result::Result<(), Halt> {
        if client.leaving.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let digested = self.digest_to(client, u64::MAX);
        if let Err(halt @ (Halt::Stuck(_) | Halt::Short(_))) = &digested {
            // Its records may name granted blocks and numbers, their room is spoken for, and
            // nobody may change what they change before they are digested: so it keeps
            // everything, leases too, until the next start.
            self.remember(client, halt.to_string());
            return digested;
        }
        self.take_report(client);
        self.unregister(client);
        self.leases.release_all(client.id);
        self.tell_others();
        client.grants.lock().give_back(&self.volume);
        self.credits.close(client.id);
        if client.reach == Reach::Socket {
            tracing::info!(client = client.id, pid = client.pid, "client left");
        }
        match self.free_log(client.slot, &client.log_path) {
            Ok(()) if client.reach == Reach::Socket => {
                crate::left_log::empty(client.log_fd.as_fd(), client.ring_bytes);
            }
            Ok(()) => {}
            // Everything is in the volume; the next start frees the slot.
            Err(e) => tracing::error!(client = client.id, "cannot free its log: {e}"),
        }
        digested
    }

    /// Frees a slot of the log table, then removes its file. Nobody may attach in
    /// between: the file of a new client in that slot has the same name.
    pub(crate) fn free_log(&self, slot: u32, path: &Path) -> Result<()> {
        let _nobody_attaches = self.attach.lock();
        self.set_slot(slot, &zerocopy::FromZeros::new_zeroed())?;
        failpoints::reach("log-freed");
        Ok(remove(path)?)
    }

    /// Sets a slot of the log table, durably.
    pub(crate) fn set_slot(&self, slot: u32, to: &LogSlot) -> Result<()> {
        let mut txn = self.volume.begin();
        txn.set_log_slot(slot, to)?;
        txn.commit()?;
        Ok(())
    }

    /// Refuses new work while the volume is being unmounted.
    pub(crate) fn check_open(&self) -> Result<()> {
        match self.closing.load(Ordering::Acquire) {
            true => Err(DaemonError::Closing),
            false => Ok(()),
        }
    }
}
