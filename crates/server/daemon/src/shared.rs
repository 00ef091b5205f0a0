//! What all threads of the daemon share, and the few steps that change who is attached.
//!
//! Lock order: `attach`, then a client's `work`, then the volume's transaction, then those of
//! [`Clients`], then a client's `grants` and `fate`, then the leaves (credits,
//! leases, queue, reclaimer). None is held while calls are waited for.

use crate::accounts::Accounts;
use crate::client::{Client, Reach};
use crate::clients::Clients;
use crate::coherence::fence::Fence;
use crate::coherence::grace::GracePeriods;
use crate::coherence::lease_manager::LeaseManager;
use crate::coherence::lease_trimmer::LeaseTrimmer;
use crate::coherence::reclaimer::Reclaimer;
use crate::daemon::DaemonConfig;
use crate::digest_scheduler::{DigestScheduler, Queue};
use crate::error::{DaemonError, Result};
use crate::halt::Halt;
use crate::limits::RateLimits;
use crate::mappings::Mappings;
use crate::rates::Sampler;
use crate::recover::{Kept, RecoveryReport};
use crate::space::Credits;
use crate::spare::Spare;
use crate::tiering::Tiering;
use parking_lot::Mutex;
use shale_digest::Digester;
use shale_format::log::LogSlot;
use shale_nvm::Map;
use shale_pool::nvm_dir::remove;
use shale_sys::{Clock, failpoints};
use shale_volume::Volume;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    pub(crate) digester: Arc<Digester>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) fence: Arc<Fence>,
    pub(crate) grace: Arc<GracePeriods>,
    pub(crate) reclaimer: Arc<Reclaimer>,
    pub(crate) leases: Arc<LeaseManager>,
    pub(crate) trimmer: LeaseTrimmer,
    /// Serialises what is done with log slots and their files.
    pub(crate) attach: Mutex<()>,
    pub(crate) spare: Spare,
    pub(crate) credits: Arc<Credits>,
    pub(crate) digests: Arc<DigestScheduler>,
    pub(crate) rates: Sampler,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) limits: RateLimits,
    pub(crate) mappings: Arc<Mappings>,
    pub(crate) tiering: Arc<Tiering>,
    pub(crate) recovery: RecoveryReport,
    pub(crate) kept: Mutex<Kept>,
    /// No client but the front end is served, for good.
    pub(crate) down: AtomicBool,
}

impl Shared {
    /// The client has gone, or asks to leave: its log is digested up to what it
    /// committed, everything it held is free, its slot and log are no more.
    ///
    /// A log that cannot be digested now is kept, with its slot; the next start tries again.
    pub(crate) fn retire(self: &Arc<Self>, client: &Arc<Client>) -> std::result::Result<(), Halt> {
        if client.leaving.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let digested = self.digests.digest_to(client, u64::MAX);
        if let Err(halt @ (Halt::Stuck(_) | Halt::Short(_))) = &digested {
            // Its records may name granted blocks and numbers, their room is spoken for, and
            // nobody may change what they change before they are digested: so it keeps
            // everything, leases too, until the next start.
            self.clients.note_departed(client, halt.to_string());
            return digested;
        }
        self.tiering.take_report(client);
        self.accounts.remove(client);
        self.leases.table().release_all(client.id);
        self.leases.tell_others();
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
        match self.clients.is_closing() {
            true => Err(DaemonError::Closing),
            false => Ok(()),
        }
    }

    /// What is done now and then: by the first digest thread.
    pub(crate) fn housekeeping(&self) {
        if self.leases.table().are_many() {
            self.trimmer.ask();
        }
        self.mappings.look(&self.volume);
        self.note_rates();
        self.forget_old_requests();
    }
}
