//! What tiering asks of the other services, as they give it.

use crate::coherence::lease_manager::LeaseManager;
use crate::coherence::reclaimer::Reclaimer;
use crate::connections::client::Client;
use crate::connections::clients::Clients;
use crate::connections::direct_mappings::Mappings;
use crate::connections::write_accounting::WriteAccounting;
use crate::hardening::checkpointer::Checkpointer;
use crate::space::{FreeSpace, SpaceCredits};
use crate::tiering::host::{self, Reading, ReadingClient};
use shale_format::inode::Inode;
use shale_format::{TierId, TxId};
use shale_proto::shared_pages::client_page::Read;
use shale_sys::Clock;
use shale_volume::{View, Volume};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Grace periods of a volume whose memory tier is staged: zones are erased only once a checkpoint does not lead to them any more.
pub(crate) struct CheckpointedGrace {
    pub(crate) reclaimer: Arc<Reclaimer>,
    pub(crate) checkpointer: Arc<Checkpointer>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl host::GracePeriods for CheckpointedGrace {
    fn read(&self) -> Reading<'_> {
        Reading::new(self.reclaimer.read())
    }

    fn request(&self) {
        self.reclaimer.request();
    }

    fn wait(&self, limit: Option<Duration>) {
        host::GracePeriods::wait(&*self.reclaimer, limit);
        let written = { &self.checkpointer }.write(false, &|| self.clock.monotonic_ns());
        if let Err(e) = written {
            tracing::error!("zones are not erased: no checkpoint: {e}");
        }
    }

    fn has_freed(&self) -> bool {
        self.reclaimer.has_freed()
    }
}

impl host::GracePeriods for Reclaimer {
    fn read(&self) -> Reading<'_> {
        Reading::new(Reclaimer::read(self))
    }

    fn request(&self) {
        Reclaimer::request(self);
    }

    fn wait(&self, limit: Option<Duration>) {
        match limit {
            Some(limit) => self.wait_grace_period_within(limit),
            // A client that does not move is cut off within one limit.
            None => self.wait_grace_period(),
        };
    }

    fn has_freed(&self) -> bool {
        Reclaimer::has_freed(self)
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
        let supply = self.reclaimer.released_space();
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

impl ReadingClient for Client {
    fn uses(&self, ino: u64) -> bool {
        self.client_page.uses(ino)
    }

    fn take_reads(&self) -> Vec<Read> {
        self.client_page.take_reads()
    }

    fn take_direct(&self) -> (u64, u64) {
        self.client_page.take_direct()
    }

    fn is_trusted(&self) -> bool {
        self.trusted()
    }

    fn may_read(&self, view: &View, inode: &Inode) -> bool {
        self.person.may_read(view, inode) || self.person.owns(inode)
    }
}

impl host::Clients for Clients {
    fn all(&self) -> Vec<Arc<dyn ReadingClient>> {
        let all = self.snapshot().into_iter();
        all.map(|client| client as Arc<dyn ReadingClient>).collect()
    }

    fn publish(&self, txid: TxId) {
        Clients::publish(self, txid);
    }
}

impl host::Leases for LeaseManager {
    fn downgrade(&self, inos: &mut dyn Iterator<Item = u64>) {
        LeaseManager::downgrade(self, inos);
    }

    fn any_exclusive(&self, inos: Range<u64>) -> bool {
        self.table().any_exclusive(inos)
    }
}

impl host::Accounts for WriteAccounting {
    fn add_moved(&self, files: &[(u64, u64)], to: TierId) {
        WriteAccounting::add_moved(self, files, to);
    }
}
