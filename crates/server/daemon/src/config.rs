//! How a daemon is started.

use crate::digest_scheduler::write_back::{WRITE_BACK_AGE, WRITE_BACK_EVERY};
use crate::error::Result;
use crate::tiering::{DIRECT_PLACEMENT_MIN_BYTES, Speed};
use shale_digest::Bounds;
use shale_format::ORDERED_AGE;
use shale_nvm::{Map, MapOptions};
use shale_pool::growth;
use shale_pool::volume_file::VolumeFile;
use shale_volume::LowerDevices;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How a daemon runs.
#[derive(Clone)]
pub struct DaemonConfig {
    /// The volume.
    pub volume: VolumeFile,
    /// Where its file is, to be written when devices come and go; `None`: they do not.
    pub volume_path: Option<PathBuf>,
    /// Threads that digest; 0: one per processor.
    pub digest_threads: usize,
    /// Percentage of a log at which its digest begins, unless the volume file says.
    pub digest_at_percent: u32,
    /// How much of a log is digested together, while the volume is used.
    pub digest_bounds: Bounds,
    /// The same of the log in memory of a buffered client, which is its write buffer.
    pub write_back_at_percent: u32,
    /// Bytes of a run of new data from which on it is placed directly on a lower tier while NVM is full.
    pub direct_placement_min_bytes: u64,
    /// On a volume without NVM such runs always go below the memory tier; `false`: only while it is full, as with NVM.
    pub places_large_runs_below: bool,
    /// How fast migration is at first.
    pub speed: Speed,
    /// Inodes of which leases are known while nobody needs them: beyond that the ones go that were
    /// asked for least recently.
    pub leases_max: usize,
    /// When what buffered clients have logged is written back, where nobody waits for it.
    pub write_back: WriteBackTimes,
    /// How long a client may stay inside one call while others wait for it.
    pub client_stall_timeout: Duration,
    /// Number of the FUSE connection that this daemon serves: logs of the same
    /// connection, left by a daemon that was killed, tell which requests were done.
    /// `None`: a fresh mount, or none.
    pub connection: Option<u64>,
    /// The connection goes on: it was served before by a daemon that was killed.
    /// Then orphans stay, since the kernel may still use them.
    pub connection_continues: bool,
    /// Without devices below NVM that are not there: what they hold cannot be read.
    pub degraded: bool,
    /// The volume's media are to be changed first as its file says for the next mount.
    pub is_next_mount: bool,
    /// Process that starts this one again; only shown.
    pub supervisor_pid: Option<u32>,
    /// How the NVM tier is mapped (recorder, timing model).
    pub map: MapOptions,
    /// The NVM tier, if it is mapped already: for many daemons on one volume, one after the other.
    pub mapped: Option<Arc<Map>>,
    /// The devices of lower tiers, if they are open already; their labels are not looked at.
    pub lower: Option<LowerDevices>,
    /// How the log of a slot is mapped (recorder, timing model).
    pub log_map: LogMap,
    /// Logs that a test can make again just so. Never for a volume that is to be kept.
    pub fixed_logs: Option<FixedLogs>,
}

/// When what buffered clients have logged is written back, where nobody waits for it.
#[derive(Clone, Copy, Debug)]
pub struct WriteBackTimes {
    /// How often their logs are looked at.
    pub every: Duration,
    /// How old what is logged may become.
    pub age: Duration,
    /// How often all is written back that ordered clients have logged, which is how old it may become.
    pub ordered: Duration,
}

impl Default for WriteBackTimes {
    fn default() -> Self {
        Self {
            every: WRITE_BACK_EVERY,
            age: WRITE_BACK_AGE,
            ordered: ORDERED_AGE,
        }
    }
}

/// What is otherwise random or 0 about a new log.
#[derive(Clone, Copy, Debug)]
pub struct FixedLogs {
    /// Salts are counted from here on.
    pub salt: u64,
    /// Position of the first record, a multiple of 64 that is less than the ring has bytes: a
    /// log that begins near the end of its ring soon meets it.
    pub start: u64,
    /// A file that has a new log's name and length is taken as it is, with what it holds: the
    /// space of logs is made once for many daemons.
    pub there: bool,
}

/// How the log of a slot is mapped.
pub type LogMap = Arc<dyn Fn(u32) -> MapOptions + Send + Sync>;

/// Most bytes that the logs in memory of all buffered clients take together, unless the volume file says.
pub const BUFFER_BYTES: u64 = 4 << 30;

/// Percentage of a log at which its digest begins, if nothing is said.
pub const DIGEST_AT_PERCENT: u32 = 30;
/// The same of a write buffer.
pub const WRITE_BACK_AT_PERCENT: u32 = 70;

/// About 100 bytes each.
const LEASES_MAX: usize = 1 << 16;

impl DaemonConfig {
    /// The defaults for a volume: a thread per processor, digest from 30%, 5 s.
    pub fn new(volume: VolumeFile) -> Self {
        let model = volume.nvm_model().map(|(name, _)| name.to_owned());
        let map = MapOptions::new().named_model(model.as_deref());
        let log = map.clone();
        Self {
            volume,
            volume_path: None,
            digest_threads: 0,
            digest_at_percent: DIGEST_AT_PERCENT,
            digest_bounds: Bounds::default(),
            write_back_at_percent: WRITE_BACK_AT_PERCENT,
            direct_placement_min_bytes: DIRECT_PLACEMENT_MIN_BYTES,
            places_large_runs_below: true,
            speed: Speed::default(),
            leases_max: LEASES_MAX,
            write_back: WriteBackTimes::default(),
            client_stall_timeout: Duration::from_secs(5),
            connection: None,
            connection_continues: false,
            degraded: false,
            is_next_mount: false,
            supervisor_pid: None,
            map,
            mapped: None,
            lower: None,
            log_map: Arc::new(move |_| log.clone()),
            fixed_logs: None,
        }
    }

    /// With the volume as it is after its NVM was growing when somebody was killed.
    pub(crate) fn resolved(mut self) -> Result<Self> {
        let path = self.volume_path.as_deref();
        let resolved = match self.mapped {
            None => growth::resolve(&self.volume, path)?,
            Some(_) => None,
        };
        if let Some(resolved) = resolved {
            let what = if resolved.is_grown {
                "finished"
            } else {
                "taken back"
            };
            tracing::info!(
                "growing NVM was cut short, and was {what}: {} bytes",
                resolved.bytes
            );
            for nvm in &mut self.volume.nvm {
                nvm.size_bytes = resolved.bytes;
            }
        }
        Ok(self)
    }

    /// With the volume as this mount has made it.
    pub(crate) fn changed_by_mount(mut self) -> Self {
        if self.is_next_mount {
            self.volume = self.volume.with_next_mount();
        }
        self
    }

    /// Percentages of a log at which its digest begins, as a volume file has them: of one whose records are durable, and of a
    /// write buffer.
    pub(crate) fn digest_percents(&self, file: &VolumeFile) -> (u32, u32) {
        let durable = file.digest_at_percent.unwrap_or(self.digest_at_percent);
        let buffer = file.write_back_at_percent;
        (durable, buffer.unwrap_or(self.write_back_at_percent))
    }

    pub(crate) fn threads(&self) -> usize {
        // To ask takes a while: files of the control group are read.
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        match self.digest_threads {
            0 => processors(),
            1 => 1,
            n => n.min(processors().max(1)),
        }
    }
}
