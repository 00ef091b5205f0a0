//! The state of a volume as `shale status`, `df`, `top` and the metrics show it.
//!
//! Owns nothing: reads the counters of the services when a request asks. Counters are in memory and begin at 0 with
//! each daemon.

pub(crate) mod flash;
mod old_keys;
mod rates;
pub(crate) mod tiers;

use crate::connections::limits::Limits;
use crate::digest_scheduler::write_back::BufferStatus;
use crate::rate_sampler::RateStatus;
use crate::services::Services;
use crate::tiering::BadBlock;
use serde::Serialize;
use shale_clients::client::{ClientState, Transport};
use shale_clients::space_credits::FreeSpace;
use shale_clients::tally::Written;
use shale_digest::DigestStats;
use shale_format::Durability;
use shale_format::limits::BLOCK_BYTES;
use shale_hardening::checkpointer::StagedStatus;
use shale_nvm::{Path, PathCounts, Timing};
use shale_persist::Domain;
use shale_pool::host_space::NvmHost;
use shale_pool::volume_file::uuid_text;
use shale_recovery::recover::RecoveryReport;
use shale_sys::heap;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use tiers::{MigrationStatus, TierStatus};

/// Inodes whose leases move most that are shown.
const CONTENDED_MAX: usize = 8;
/// What fits a message, with space to spare.
const TEXT_BYTES_MAX: usize = 60 << 10;

/// Everything `status` tells. The JSON of it is an interface: keys are not renamed.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Name of the volume.
    pub name: String,
    /// Identity of the volume.
    pub uuid: String,
    /// `strict`, `buffered` or `ordered`.
    pub durability: &'static str,
    /// Process that serves it.
    pub daemon_pid: u32,
    /// Process that starts that one again.
    pub supervisor_pid: Option<u32>,
    /// Seconds since the daemon started.
    pub uptime_s: u64,
    /// Memory that the daemon's own structures take: caches, plans of digests, leases.
    pub heap_used_bytes: u64,
    /// Memory that was freed and is kept for what comes next.
    pub heap_free_bytes: u64,
    /// It was shut down: it serves nobody until it is unmounted.
    pub shut_down: bool,
    /// The NVM directory.
    pub nvm_dir: String,
    /// `dax`: survives a power cut; `emulated`: survives processes only.
    pub persistence: &'static str,
    /// The file system of the NVM directory, and what is to be had of it yet; none where it cannot be looked at.
    pub nvm_host: Option<NvmHost>,
    /// Whether the kernel took the advice to use huge pages.
    pub huge_pages: bool,
    /// The model that slows NVM down, if one was asked for.
    pub nvm_model: Option<NvmModelStatus>,
    /// Instructions used to write NVM.
    pub instructions: &'static str,
    /// Space of the NVM tier.
    pub space: SpaceStatus,
    /// Lower tiers.
    pub tiers: Vec<TierStatus>,
    /// What moves between tiers, if there are several.
    pub migration: Option<MigrationStatus>,
    /// Blocks below NVM that could not be read; the first of them.
    pub bad_blocks: Vec<BadBlock>,
    /// How many there are.
    pub bad_block_count: u64,
    /// Bytes of the log file that is kept ready for the next client, beside those of the
    /// clients; 0: none is ready.
    pub pooled_log_bytes: u64,
    /// Number of attached clients.
    pub client_count: usize,
    /// Attached clients; not all of them if there are very many.
    pub clients: Vec<ClientStatus>,
    /// What was written for clients that have left, and moved of files whose writer is not known.
    pub written_by_others: Written,
    /// How fast clients may write.
    pub limits: Limits,
    /// Clients that were cut off, or whose log is kept; the last ones.
    pub detached_clients: Vec<DetachedClientStatus>,
    /// Leases that went from one client to another.
    pub leases: LeaseStatus,
    /// Paths of directories that clients looked up in their own process since the start.
    pub paths: LookupStatus,
    /// What digests did since the start.
    pub digest: DigestStatus,
    /// How fast it goes recently.
    pub rates: RateStatus,
    /// What went to the volume's blocks in NVM through the daemon, by path. Logs are other files, each with its own client's
    /// mapping: what went there is in `written` of `clients`, and in `written_by_others`.
    pub device: Vec<PathStatus>,
    /// Requests that the kernel has sent to the mount since the daemon started, by kind. Those
    /// that it answers from its caches are not counted.
    pub mount_requests: BTreeMap<&'static str, u64>,
    /// Staging area and checkpoints; none: the volume has NVM.
    pub staged: Option<StagedStatus>,
    /// The write buffer of buffered clients on a volume with NVM; none: there is none.
    pub buffer: Option<BufferStatus>,
    /// What the last start recovered.
    pub recovery: RecoveryReport,
}

/// A model that slows NVM down.
#[derive(Clone, Debug, Serialize)]
pub struct NvmModelStatus {
    /// Its name in VOLUME.toml.
    pub name: String,
    /// By how many nanoseconds it slowed down daemon and mount, all threads together; clients of other processes have their own.
    pub delayed_ns: u64,
}

/// Bytes of the NVM tier.
#[derive(Clone, Debug, Serialize)]
pub struct SpaceStatus {
    /// For files, directories and their structure.
    pub total_bytes: u64,
    /// In use by what is digested.
    pub used_bytes: u64,
    /// What could be reserved now.
    pub available_bytes: u64,
    /// Freed, and waiting for clients to leave calls they are inside of.
    pub pending_bytes: u64,
    /// Freed, and mapped by programs still.
    pub pinned_bytes: u64,
    /// What programs have mapped directly from NVM.
    pub mapped_bytes: u64,
    /// In so many mappings.
    pub mappings: usize,
    /// Granted to clients and not linked yet.
    pub granted_bytes: u64,
    /// Set aside for records not digested yet, and idle credit.
    pub credit_bytes: u64,
    /// Kept back: for copy-on-write, and for each inode's entry when it loses its last name.
    pub reserve_bytes: u64,
    /// Bytes of logs that are not digested yet.
    pub dirty_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// One client.
#[derive(Clone, Debug, Serialize)]
pub struct ClientStatus {
    /// Name of its durability policy.
    pub durability: &'static str,
    /// Its number.
    pub client: u32,
    /// Its slot in the log table.
    pub slot: u32,
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// `mount` or `direct`.
    pub kind: &'static str,
    /// `served`, `evicted: …` or `stuck: …`.
    pub state: String,
    /// Bytes of its ring.
    pub log_bytes: u64,
    /// Bytes of the ring that it keeps.
    pub log_used_bytes: u64,
    /// Records before this position are complete and can be digested.
    pub published: u64,
    /// Records before this position survive a power cut.
    pub hardened: u64,
    /// As [`Self::published`]: its name in releases before 0.2.
    pub committed: u64,
    /// Records before this position are in the volume.
    pub digested: u64,
    /// Records digested.
    pub records: u64,
    /// Leases it holds.
    pub leases: u64,
    /// Its credit in bytes.
    pub credit_bytes: u64,
    /// Granted blocks that it has not used, in bytes.
    pub granted_bytes: u64,
    /// Its process as the kernel names it; `mount`.
    pub name: String,
    /// What was written for it, to each tier.
    pub written: Written,
    /// Bytes a second that it may write; 0: no limit is set.
    pub limit_bytes_per_s: u64,
    /// Milliseconds that it had to wait because of that.
    pub limited_ms: u64,
}

/// A client that is not served any more.
#[derive(Clone, Debug, Serialize)]
pub struct DetachedClientStatus {
    /// Its number.
    pub client: u32,
    /// Its process.
    pub pid: i32,
    /// What happened.
    pub why: String,
}

/// Leases that were taken from somebody.
#[derive(Clone, Debug, Serialize)]
pub struct LeaseStatus {
    /// Inodes of which something is known.
    pub known: usize,
    /// With more than this those go that were asked for least recently.
    pub most: usize,
    /// Times since the start.
    pub moves: u64,
    /// Inodes whose leases were taken most often while somebody has one.
    pub contended_inodes: Vec<ContendedInode>,
}

/// Paths of directories that clients looked up in their own process. What the kernel looks up on the mount are requests (`LOOKUP`).
#[derive(Clone, Debug, Serialize)]
pub struct LookupStatus {
    /// Known whole from a walk before.
    pub known: u64,
    /// Walked name by name.
    pub walked: u64,
}

/// An inode that several clients want.
#[derive(Clone, Debug, Serialize)]
pub struct ContendedInode {
    /// Its number.
    pub ino: u64,
    /// Times its lease was taken from somebody.
    pub moves: u32,
}

/// Digests since the start.
#[derive(Clone, Debug, Serialize)]
pub struct DigestStatus {
    /// Counts.
    #[serde(flatten)]
    pub stats: DigestStats,
    /// Part of the records that was skipped, 0 to 1.
    pub skipped_ratio: f64,
    /// Chunks.
    pub chunks: u64,
    /// Records refused.
    pub refused: u64,
    /// The last error, if there was one.
    pub last_error: Option<String>,
}

/// Paths of the daemon's mapping of the volume; the others are of mappings of logs and of pages.
const VOLUME_PATHS: [Path; 3] = [Path::Data, Path::Structure, Path::Journal];

/// Device counts of one path.
#[derive(Clone, Debug, Serialize)]
pub struct PathStatus {
    /// On whose behalf.
    pub path: &'static str,
    /// Bytes stored.
    pub bytes_stored: u64,
    /// Of these, non-temporally.
    pub bytes_streamed: u64,
    /// Cache lines flushed.
    pub lines_flushed: u64,
    /// Fences.
    pub fences: u64,
    /// Bytes loaded.
    pub bytes_loaded: u64,
}

impl PathStatus {
    fn new(path: Path, counts: PathCounts) -> Self {
        let path = match path {
            Path::Log => "log",
            Path::Data => "data",
            Path::Structure => "structure",
            Path::Journal => "journal",
            Path::Control => "control",
        };
        Self {
            path,
            bytes_stored: counts.bytes_stored,
            bytes_streamed: counts.bytes_streamed,
            lines_flushed: counts.lines_flushed,
            fences: counts.fences,
            bytes_loaded: counts.bytes_loaded,
        }
    }
}

/// Tells the state of a daemon; asks every service, and changes none.
pub(crate) struct Observer<'s> {
    of: &'s Services,
}

impl<'s> Observer<'s> {
    pub(crate) fn new(of: &'s Services) -> Self {
        Self { of }
    }

    /// Where the NVM lies. Real NVM is not looked at: it may have many files, and is nothing but itself.
    fn nvm_host(&self) -> Option<NvmHost> {
        let emulated = self.of.domain() == Domain::Emulated;
        let log = self.of.attach.client_ring_bytes(0);
        emulated
            .then(|| NvmHost::look(&self.of.nvm_dir, log).ok())
            .flatten()
    }

    /// The state now.
    pub(crate) fn status(&self) -> Status {
        let superblock = self.of.volume.superblock();
        let durability = Durability::from_number(superblock.durability).unwrap_or_default();
        let counts = self.of.map.counts();
        // Locks are taken one by one: within the expression below they would add up.
        let stats = *self.of.digests.totals().stats.lock();
        let last_error = self.of.digests.totals().last_error.lock().clone();
        let detached = self.of.clients.detached();
        let (client_count, clients) = self.client_statuses();
        let paths = self.of.clients.path_counts();
        let (moves, contended) = self.of.leases.table().moves(CONTENDED_MAX);
        let contended = contended.into_iter();
        let heap = heap::usage();
        Status {
            name: self.of.name.clone(),
            uuid: uuid_text(&superblock.uuid),
            durability: durability.name(),
            daemon_pid: std::process::id(),
            supervisor_pid: self.of.config.supervisor_pid,
            uptime_s: (self.of.clock.monotonic_ns() - self.of.started_ns) / 1_000_000_000,
            heap_used_bytes: heap.used_bytes,
            heap_free_bytes: heap.free_bytes,
            nvm_dir: self.of.nvm_dir.display().to_string(),
            persistence: self.of.domain().name(),
            nvm_host: self.nvm_host(),
            huge_pages: self.of.map.huge_pages(),
            nvm_model: self.nvm_model(),
            instructions: self.of.map.instructions(),
            space: self.space_status(),
            tiers: self.tier_statuses(),
            migration: self.migration_status(),
            bad_blocks: self.of.tiering.bad_blocks.list(&self.of.volume),
            bad_block_count: self.of.tiering.bad_blocks.all(),
            pooled_log_bytes: self.of.attach.spare.bytes(),
            client_count,
            clients,
            written_by_others: self.of.accounts.of_others(),
            limits: self.of.limits.now(),
            detached_clients: detached
                .into_iter()
                .map(|d| DetachedClientStatus {
                    client: d.client,
                    pid: d.pid,
                    why: d.why,
                })
                .collect(),
            leases: LeaseStatus {
                known: self.of.leases.table().known(),
                most: self.of.config.leases_max,
                moves,
                contended_inodes: contended
                    .map(|(ino, moves)| ContendedInode { ino, moves })
                    .collect(),
            },
            paths: LookupStatus {
                known: paths.known,
                walked: paths.walked,
            },
            digest: DigestStatus {
                stats,
                skipped_ratio: stats.skipped_ratio(),
                chunks: self.of.digests.totals().chunks.load(Ordering::Relaxed),
                refused: self.of.digests.totals().refused.load(Ordering::Relaxed),
                last_error,
            },
            rates: self.rate_status(),
            device: VOLUME_PATHS
                .map(|path| PathStatus::new(path, counts.path(path)))
                .to_vec(),
            mount_requests: self.mount_requests(),
            shut_down: self.of.attach.is_shut_down(),
            staged: self.of.digests.staged_status(),
            buffer: {
                let bound = self.of.attach.buffer_bound();
                self.of.digests.buffer_status(bound)
            },
            recovery: self.of.recovery.clone(),
        }
    }

    /// The state as JSON.
    fn mount_requests(&self) -> BTreeMap<&'static str, u64> {
        let hook = self.of.leases.hook();
        hook.map(|hook| hook.requests().into_iter().collect())
            .unwrap_or_default()
    }

    pub(crate) fn text(&self) -> String {
        let mut status = self.status();
        loop {
            let text = serde_json::to_value(&status).map(|mut value| {
                old_keys::add(&mut value);
                value.to_string()
            });
            let text = text.unwrap_or_else(|e| format!("{{\"error\":\"status: {e}\"}}"));
            if text.len() <= TEXT_BYTES_MAX || status.clients.is_empty() {
                return text;
            }
            // A message has a limit; the count says that there are more.
            status.clients.truncate(status.clients.len() / 2);
        }
    }

    fn nvm_model(&self) -> Option<NvmModelStatus> {
        let (name, model) = self.of.config.volume.nvm_model()?;
        Some(NvmModelStatus {
            name: name.to_owned(),
            delayed_ns: Timing::of_process(model).delayed_ns(),
        })
    }

    fn space_status(&self) -> SpaceStatus {
        let block = BLOCK_BYTES as u64;
        let supply = FreeSpace::of(&self.of.volume);
        let blocks = &supply.blocks;
        SpaceStatus {
            total_bytes: blocks.total * block,
            used_bytes: blocks.used * block,
            available_bytes: self.of.credits.available(&supply),
            pending_bytes: blocks.pending * block,
            pinned_bytes: blocks.waiting * block,
            mapped_bytes: self.of.volume.held_blocks() * block,
            mappings: self.of.mappings.count(),
            granted_bytes: blocks.taken * block,
            credit_bytes: self.of.credits.outstanding(),
            reserve_bytes: supply.kept_back(),
            dirty_bytes: self.of.clients.snapshot().iter().map(|c| c.backlog()).sum(),
            inodes: supply.inodes,
        }
    }

    fn client_statuses(&self) -> (usize, Vec<ClientStatus>) {
        let leases = self.of.leases.table().counts();
        let status = |client: &shale_clients::client::Client| {
            let (published, digested) = (client.published(), client.digested());
            let published = published.pos().0;
            let hardened = match self.of.is_staged() {
                true => client.hardened(),
                false => client.copied(),
            };
            let client_state = client.client_state.lock().clone();
            let granted = client.grants.lock().blocks.blocks();
            ClientStatus {
                durability: client.policy.name(),
                client: client.id,
                slot: client.slot,
                pid: client.pid,
                uid: client.person.uid,
                kind: match client.transport {
                    Transport::InProcess => "mount",
                    Transport::Socket => "direct",
                },
                state: match client_state {
                    ClientState::Served => "served".to_owned(),
                    ClientState::Evicted(why) => format!("evicted: {why}"),
                    ClientState::Stuck(why) => format!("stuck: {why}"),
                },
                log_bytes: client.ring_bytes,
                log_used_bytes: published
                    .saturating_sub(client.tail())
                    .min(client.ring_bytes),
                published,
                hardened,
                committed: published,
                digested,
                records: client.records.load(Ordering::Relaxed),
                leases: leases.get(&client.id).copied().unwrap_or(0),
                credit_bytes: self.of.credits.of(client.id),
                granted_bytes: granted * BLOCK_BYTES as u64,
                name: client.name.clone(),
                written: client.written(),
                limit_bytes_per_s: client.rate(),
                limited_ms: client.waited_ns() / 1_000_000,
            }
        };
        let clients = self.of.clients.snapshot();
        (clients.len(), clients.iter().map(|c| status(c)).collect())
    }
}
