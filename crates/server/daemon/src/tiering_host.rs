//! What tiering asks of the other services, as they give it.

use crate::connections::direct_mappings::Mappings;
use crate::connections::write_accounting::WriteAccounting;
use crate::tiering::host::{self, Reading, ReadingClient};
use shale_clients::client::Client;
use shale_clients::clients::Clients;
use shale_clients::space_credits::{FreeSpace, SpaceCredits};
use shale_coherence::lease_manager::LeaseManager;
use shale_coherence::reclaimer::Reclaimer;
use shale_format::inode::Inode;
use shale_format::{TierId, TxId};
use shale_hardening::checkpointer::Checkpointer;
use shale_proto::shared_pages::client_page::Read;
use shale_sys::Clock;
use shale_volume::{View, Volume};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Grace periods of a volume whose memory tier is staged: zones are erased only once a checkpoint does not lead to them any more.
pub(crate) struct CheckpointedGrace {
    pub(crate) grace: Grace,
    pub(crate) checkpointer: Arc<Checkpointer>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl host::GracePeriods for CheckpointedGrace {
    fn read(&self) -> Reading<'_> {
        self.grace.read()
    }

    fn request(&self) {
        self.grace.request();
    }

    fn wait(&self, limit: Option<Duration>) {
        self.grace.wait(limit);
        let written = { &self.checkpointer }.write(false, &|| self.clock.monotonic_ns());
        if let Err(e) = written {
            tracing::error!("zones are not erased: no checkpoint: {e}");
        }
    }

    fn has_freed(&self) -> bool {
        self.grace.has_freed()
    }
}

/// Grace periods of a volume whose memory tier is NVM.
pub(crate) struct Grace(pub(crate) Arc<Reclaimer>);

impl host::GracePeriods for Grace {
    fn read(&self) -> Reading<'_> {
        Reading::new(self.0.read())
    }

    fn request(&self) {
        self.0.request();
    }

    fn wait(&self, limit: Option<Duration>) {
        match limit {
            Some(limit) => self.0.wait_grace_period_within(limit),
            // A client that does not move is cut off within one limit.
            None => self.0.wait_grace_period(),
        };
    }

    fn has_freed(&self) -> bool {
        self.0.has_freed()
    }
}

/// Credit, freed blocks and mappings, which together are the space of NVM.
pub(crate) struct NvmSpace {
    pub(crate) volume: Arc<Volume>,
    pub(crate) reclaimer: Arc<Reclaimer>,
    pub(crate) credits: Arc<SpaceCredits>,
    pub(crate) mappings: Arc<Mappings>,
}

impl host::NvmSpace for NvmSpace {
    fn available_once_released(&self) -> u64 {
        let supply = { &self.reclaimer }
            .with_deferred(|deferred| FreeSpace::once_released(&self.volume, deferred));
        self.credits.available(&supply)
    }

    fn with_available(&self, f: &mut dyn FnMut(u64)) {
        self.credits
            .with_available(|| FreeSpace::of(&self.volume), f);
    }

    fn free_unmapped(&self) {
        self.mappings.look(&self.volume);
    }
}

/// One attached client.
pub(crate) struct Attached(pub(crate) Arc<Client>);

impl ReadingClient for Attached {
    fn uses(&self, ino: u64) -> bool {
        self.0.client_page.uses(ino)
    }

    fn take_reads(&self) -> Vec<Read> {
        self.0.client_page.take_reads()
    }

    fn take_direct(&self) -> (u64, u64) {
        self.0.client_page.take_direct()
    }

    fn is_trusted(&self) -> bool {
        self.0.trusted()
    }

    fn may_read(&self, view: &View, inode: &Inode) -> bool {
        self.0.person.may_read(view, inode) || self.0.person.owns(inode)
    }
}

/// All attached clients.
pub(crate) struct AttachedClients(pub(crate) Arc<Clients>);

impl host::Clients for AttachedClients {
    fn all(&self) -> Vec<Arc<dyn ReadingClient>> {
        let all = self.0.snapshot().into_iter();
        all.map(|client| Arc::new(Attached(client)) as Arc<dyn ReadingClient>)
            .collect()
    }

    fn publish(&self, txid: TxId) {
        self.0.publish(txid);
    }
}

/// Leases that clients hold.
pub(crate) struct HeldLeases(pub(crate) Arc<LeaseManager>);

impl host::Leases for HeldLeases {
    fn downgrade(&self, inos: &mut dyn Iterator<Item = u64>) {
        self.0.downgrade(inos);
    }

    fn any_exclusive(&self, inos: Range<u64>) -> bool {
        self.0.table().any_exclusive(inos)
    }
}

impl host::Accounts for WriteAccounting {
    fn add_moved(&self, files: &[(u64, u64)], to: TierId) {
        WriteAccounting::add_moved(self, files, to);
    }
}
