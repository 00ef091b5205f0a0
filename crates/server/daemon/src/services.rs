//! The services of a running daemon, and what is known of it since its start.
//!
//! Lock order: the log table's (`attach`), then a client's `work`, then the volume's transaction, then those of
//! [`Clients`], then a client's `grants` and `client_state`, then the leaves (credits,
//! leases, queue, reclaimer). None is held while calls are waited for.

use crate::config::DaemonConfig;
use crate::connections::attach::{self, AttachService};
use crate::connections::completed_requests::RequestsOfLastDaemon;
use crate::connections::direct_mappings::{DirectMappings, Mappings};
use crate::connections::limits::RateLimits;
use crate::connections::write_accounting::WriteAccounting;
use crate::device_manager::DeviceManager;
use crate::digest_scheduler::{self, DigestScheduler};
use crate::error::Result;
use crate::opening::{Opened, OpenedArea};
use crate::rate_sampler::Sampler;
use crate::reservations::SpaceReservations;
use crate::scrub::Scrubber;
use crate::tiering::{self, Tiering};
use crate::tiering_host::{AttachedClients, CheckpointedGrace, Grace, HeldLeases, NvmSpace};
use crate::volume_freeze::{self, VolumeFreeze};
use shale_clients::barrier::Barrier;
use shale_clients::clients::{Clients, LEFT_LOGS};
use shale_clients::space_credits::SpaceCredits;
use shale_coherence::digest_queue::Queue;
use shale_coherence::fence::Fence;
use shale_coherence::grace::GracePeriods;
use shale_coherence::lease_manager::LeaseManager;
use shale_coherence::lease_table::LeaseTable;
use shale_coherence::lease_trimmer::LeaseTrimmer;
use shale_coherence::readers::LocalReaders;
use shale_coherence::reclaimer::Reclaimer;
use shale_digest::Digester;
use shale_format::inode::Inode;
use shale_format::{Durability, Ino, ORDERED_AGE};
use shale_hardening::Staged;
use shale_hardening::checkpointer::Checkpointer;
use shale_hardening::hardener::Hardener;
use shale_nvm::Map;
use shale_persist::Domain;
use shale_recovery::recover::RecoveryReport;
use shale_sys::heap::Trimmer;
use shale_sys::{Clock, StopFlag};
use shale_volume::Volume;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What a daemon is made of. Services have no reference to it: each knows those that it was given.
pub(crate) struct Services {
    pub(crate) config: DaemonConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started_ns: u64,
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
    pub(crate) attach: Arc<AttachService>,
    pub(crate) credits: Arc<SpaceCredits>,
    pub(crate) digests: Arc<DigestScheduler>,
    /// Ends the thread that writes back what buffered clients have logged.
    pub(crate) write_back: StopFlag,
    pub(crate) rates: Sampler,
    pub(crate) heap: Trimmer,
    pub(crate) accounts: Arc<WriteAccounting>,
    pub(crate) limits: Arc<RateLimits>,
    pub(crate) mappings: Arc<Mappings>,
    pub(crate) tiering: Arc<Tiering>,
    pub(crate) recovery: RecoveryReport,
    pub(crate) kept: RequestsOfLastDaemon,
    pub(crate) space: SpaceReservations,
    pub(crate) direct: DirectMappings,
    pub(crate) devices: DeviceManager,
    pub(crate) scrubber: Scrubber,
    pub(crate) freeze: Arc<VolumeFreeze>,
}

/// A volume that is open, and nobody's yet.
struct OpenedVolume {
    volume: Arc<Volume>,
    map: Arc<Map>,
    digester: Digester,
    readers: LocalReaders,
    mappings: Mappings,
    staged: Option<OpenedArea>,
}

/// The services that know nothing of leases and tiers. Each knows those before it.
struct Base {
    volume: Arc<Volume>,
    clients: Arc<Clients>,
    queue: Arc<Queue>,
    fence: Arc<Fence>,
    grace: Arc<GracePeriods>,
    reclaimer: Arc<Reclaimer>,
    accounts: Arc<WriteAccounting>,
    mappings: Arc<Mappings>,
    credits: Arc<SpaceCredits>,
    digester: Arc<Digester>,
    clock: Arc<dyn Clock>,
    map: Arc<Map>,
    nvm_dir: PathBuf,
    staged: Option<Staged>,
}

impl Base {
    fn new(
        config: &DaemonConfig,
        clock: Arc<dyn Clock>,
        barrier: Barrier,
        opened: OpenedVolume,
    ) -> Self {
        let OpenedVolume {
            volume,
            map,
            digester,
            readers,
            mappings,
            staged,
        } = opened;
        let clients: Arc<Clients> = Arc::default();
        let queue: Arc<Queue> = Arc::default();
        let fence = Arc::new(Fence::new(barrier, clients.clone(), queue.clone()));
        let limit = config.client_stall_timeout;
        let grace = GracePeriods::new(barrier, clients.clone(), fence.clone(), limit);
        let grace = Arc::new(grace);
        let credits: Arc<SpaceCredits> = Arc::default();
        let staged = staged.map(|OpenedArea { area, dirty }| {
            let hardener = Arc::new(Hardener::new(
                area.clone(),
                clients.clone(),
                volume.clone(),
                clock.clone(),
            ));
            let (volume, map, credits) = (volume.clone(), map.clone(), credits.clone());
            let checkpointer =
                Checkpointer::new(area, volume, map, dirty, hardener.clone(), credits);
            Staged {
                hardener,
                checkpointer: Arc::new(checkpointer),
                stop: Arc::default(),
            }
        });
        let reclaimer = Reclaimer::new(volume.clone(), clients.clone(), grace.clone(), readers);
        Self {
            accounts: Arc::new(WriteAccounting::new(clients.clone())),
            volume,
            clients,
            queue,
            fence,
            grace,
            reclaimer: Arc::new(reclaimer),
            mappings: Arc::new(mappings),
            credits,
            digester: Arc::new(digester),
            clock,
            map,
            nvm_dir: config.volume.nvm_dir().to_path_buf(),
            staged,
        }
    }

    /// Leases, tiers and digests, which need each other: the first two ask for digests.
    fn digests(&self, config: &DaemonConfig, table: LeaseTable) -> Arc<DigestScheduler> {
        let (clients, grace) = (self.clients.clone(), self.grace.clone());
        Arc::new_cyclic(|digests: &Weak<DigestScheduler>| {
            let leases = LeaseManager::new(table, clients, grace, digests.clone());
            let leases = Arc::new(leases);
            let tiering = Arc::new(Tiering::new(tiering::Parts {
                volume: self.volume.clone(),
                clock: self.clock.clone(),
                clients: Arc::new(AttachedClients(self.clients.clone())),
                grace: self.grace_periods(),
                leases: Arc::new(HeldLeases(leases.clone())),
                digester: self.digester.clone(),
                space: Arc::new(NvmSpace {
                    volume: self.volume.clone(),
                    reclaimer: self.reclaimer.clone(),
                    credits: self.credits.clone(),
                    mappings: self.mappings.clone(),
                }),
                accounts: self.accounts.clone(),
                logs: digests.clone(),
                settings: tiering::Settings {
                    migrate_at_percent: config.volume.migrate_at_percent,
                    is_staged: self.staged.is_some(),
                    direct_placement_min_bytes: config.direct_placement_min_bytes,
                    places_large_runs_below: config.places_large_runs_below
                        && self.staged.is_some(),
                },
                speed: config.speed,
            }));
            DigestScheduler::new(digest_scheduler::Parts {
                volume: self.volume.clone(),
                clients: self.clients.clone(),
                queue: self.queue.clone(),
                fence: self.fence.clone(),
                digester: self.digester.clone(),
                reclaimer: self.reclaimer.clone(),
                leases,
                tiering,
                credits: self.credits.clone(),
                accounts: self.accounts.clone(),
                digest_at_percent: config.digest_percents(&config.volume),
                staged: self.staged.clone(),
                clock: self.clock.clone(),
            })
        })
    }

    /// What frees space for tiering: where the memory tier is staged, a checkpoint after a grace period.
    fn grace_periods(&self) -> Arc<dyn tiering::host::GracePeriods> {
        match &self.staged {
            None => Arc::new(Grace(self.reclaimer.clone())),
            Some(staged) => Arc::new(CheckpointedGrace {
                grace: Grace(self.reclaimer.clone()),
                checkpointer: staged.checkpointer.clone(),
                clock: self.clock.clone(),
            }),
        }
    }

    fn attach(
        &self,
        config: &DaemonConfig,
        digests: &Arc<DigestScheduler>,
        limits: &Arc<RateLimits>,
    ) -> AttachService {
        let parts = attach::Parts {
            clock: self.clock.clone(),
            volume: self.volume.clone(),
            nvm_dir: self.nvm_dir.clone(),
            clients: self.clients.clone(),
            digests: digests.clone(),
            leases: digests.leases().clone(),
            tiering: digests.tiering().clone(),
            credits: self.credits.clone(),
            accounts: self.accounts.clone(),
            limits: limits.clone(),
        };
        AttachService::new(parts, attach_settings(config, self.staged.as_ref()))
    }

    fn freeze(&self, digests: &Arc<DigestScheduler>, logs_left: u64) -> Arc<VolumeFreeze> {
        VolumeFreeze::new(volume_freeze::Parts {
            clients: self.clients.clone(),
            grace: self.grace.clone(),
            digests: digests.clone(),
            clock: self.clock.clone(),
            logs_left,
        })
    }

    fn reservations(&self, tiering: &Arc<Tiering>) -> SpaceReservations {
        SpaceReservations {
            clock: self.clock.clone(),
            volume: self.volume.clone(),
            clients: self.clients.clone(),
            queue: self.queue.clone(),
            credits: self.credits.clone(),
            reclaimer: self.reclaimer.clone(),
            tiering: tiering.clone(),
        }
    }

    fn direct_mappings(&self) -> DirectMappings {
        DirectMappings {
            mappings: self.mappings.clone(),
            volume: self.volume.clone(),
            map: self.map.clone(),
            nvm_dir: self.nvm_dir.clone(),
            reclaimer: self.reclaimer.clone(),
        }
    }

    fn scrubber(&self, tiering: &Arc<Tiering>) -> Scrubber {
        Scrubber {
            volume: self.volume.clone(),
            clients: self.clients.clone(),
            reclaimer: self.reclaimer.clone(),
            tiering: tiering.clone(),
        }
    }
}

impl Services {
    /// Whether the memory tier and logs lie in shared memory, and are staged.
    pub(crate) fn is_staged(&self) -> bool {
        self.config.volume.is_staged()
    }

    /// How old what is published may become before it is hardened, where nobody waits for it.
    pub(crate) fn harden_every(&self) -> Duration {
        let policy = Durability::from_number(self.volume.superblock().durability);
        match policy.unwrap_or_default() {
            Durability::Strict | Durability::Ordered => ORDERED_AGE,
            Durability::Buffered => Duration::from_secs(5),
        }
    }

    /// The inode with this number in the volume.
    pub(crate) fn inode(&self, ino: u64) -> Result<Option<Inode>> {
        let _reader = self.reclaimer.read();
        Ok(self.volume.view().inode(Ino(ino))?)
    }

    /// Whether there is an inode with this number, in the volume or perhaps in the log of a client.
    pub(crate) fn is_there(&self, ino: u64) -> Result<bool> {
        Ok(self.leases.table().knows(ino) || self.inode(ino)?.is_some())
    }

    /// What makes its records durable.
    pub(crate) fn domain(&self) -> Domain {
        match self.is_staged() {
            true => Domain::Staged,
            false => Domain::of(&self.map),
        }
    }

    /// Builds them on an open volume. Its threads do not run yet.
    pub(crate) fn new(
        config: DaemonConfig,
        clock: Arc<dyn Clock>,
        barrier: Barrier,
        opened: Opened,
    ) -> Self {
        let (recovered, starts) = (opened.recovered, opened.starts);
        let volume = OpenedVolume {
            volume: opened.volume,
            map: opened.map,
            digester: opened.digester,
            readers: opened.readers,
            mappings: opened.mappings,
            staged: opened.staged,
        };
        let base = Base::new(&config, clock, barrier, volume);
        base.credits.hold_for_logs(recovered.left.reserve_bytes);
        let table = LeaseTable::new(base.clock.clone(), config.leases_max);
        table.give_new(LEFT_LOGS, &recovered.left.inos);
        let digests = base.digests(&config, table);
        let (leases, tiering) = (digests.leases().clone(), digests.tiering().clone());
        let limits = Arc::new(RateLimits::new(base.clock.clone(), base.clients.clone()));
        let attach = Arc::new(base.attach(&config, &digests, &limits));
        let (clock, clients) = (base.clock.clone(), base.clients.clone());
        let devices = DeviceManager {
            volume: base.volume.clone(),
            clients: base.clients.clone(),
            reclaimer: base.reclaimer.clone(),
            digests: digests.clone(),
            tiering: tiering.clone(),
            credits: base.credits.clone(),
            volume_path: config.volume_path.clone(),
            area_device: { &config.volume.staged }
                .as_ref()
                .map(|staged| staged.device.clone()),
            logs_left: recovered.report.logs_left,
            label_count: starts,
        };
        Services {
            started_ns: base.clock.monotonic_ns(),
            name: config.volume.name.clone(),
            space: base.reservations(&tiering),
            direct: base.direct_mappings(),
            devices,
            scrubber: base.scrubber(&tiering),
            freeze: base.freeze(&digests, recovered.report.logs_left as u64),
            kept: RequestsOfLastDaemon::new(clock, clients, attach.clone(), recovered.kept),
            trimmer: LeaseTrimmer::default(),
            attach,
            write_back: StopFlag::default(),
            rates: Sampler::default(),
            heap: Trimmer::default(),
            limits,
            leases,
            tiering,
            digests,
            recovery: recovered.report,
            config,
            volume: base.volume,
            map: base.map,
            nvm_dir: base.nvm_dir,
            digester: base.digester,
            queue: base.queue,
            fence: base.fence,
            grace: base.grace,
            reclaimer: base.reclaimer,
            credits: base.credits,
            accounts: base.accounts,
            clients: base.clients,
            clock: base.clock,
            mappings: base.mappings,
        }
    }
}

fn attach_settings(config: &DaemonConfig, staged: Option<&Staged>) -> attach::Settings {
    attach::Settings {
        of_new_clients: (&config.volume).into(),
        buffer_dir: (!config.volume.is_staged()).then(|| config.volume.buffer_dir()),
        staged_ring_bytes_max: staged.map(|staged| staged.hardener.ring_bytes_max()),
        log_map: config.log_map.clone(),
        fixed_logs: config.fixed_logs,
        connection: config.connection,
        connection_continues: config.connection_continues,
    }
}
