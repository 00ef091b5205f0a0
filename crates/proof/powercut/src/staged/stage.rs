//! A volume without NVM on a device in memory that records what is written: made, mounted, restored.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use shale_bench::{BenchError, Result};
use shale_block::{Ask, MemoryBlocks, Step, TierDevice};
use shale_check::{Below, CheckOptions, Severity, check};
use shale_daemon::tiering::{DIRECT_PLACEMENT_MIN_BYTES, MIGRATE_AT_PERCENT, Speed};
use shale_daemon::{Daemon, DaemonConfig};
use shale_format::Durability;
use shale_format::limits::{BLOCK_BYTES, LOG_BYTES_MIN, NVM_BYTES_MIN};
use shale_libfs::{Promise, Session, SessionOptions};
use shale_model::{Shale, Snapshot};
use shale_pool::volume_file::DeviceFile;
use shale_pool::{DeviceKind, LowerTiers, MakeOptions, StagedSizes, VolumeFile, make_volume};
use shale_proto::InProcess;
use shale_record::Noted;
use shale_volume::LowerDevices;
use tempfile::TempDir;

use crate::recovery::check::caught;
use crate::volume::sessions::{clock, once_free};
use crate::wrong::Checked;

/// Bytes of the flash device: zones, a small staging area that is full soon, two images of the smallest memory tier.
pub(crate) const DEVICE_BYTES: u64 = 128 << 20;
const STAGING_BYTES: u64 = 32 << 20;
/// Zones are small, so that some are without live blocks soon.
const ZONE_BYTES: u64 = 1 << 20;

/// A device that is recorded.
pub(crate) struct Recorded {
    pub(crate) device: Arc<MemoryBlocks>,
    pub(crate) noted: Arc<Mutex<Vec<Noted>>>,
    count: Arc<AtomicUsize>,
}

impl Recorded {
    pub(crate) fn new(contents: Vec<u8>) -> Self {
        Self::asking(contents, |_| Ok(()))
    }

    /// Whose device asks `answer` before everything: what it refuses fails, and is no step.
    pub(crate) fn asking(
        contents: Vec<u8>,
        answer: impl Fn(Ask) -> std::result::Result<(), Errno> + Send + Sync + 'static,
    ) -> Self {
        let noted: Arc<Mutex<Vec<Noted>>> = Arc::default();
        let count: Arc<AtomicUsize> = Arc::default();
        let (to, counted) = (noted.clone(), count.clone());
        let device = MemoryBlocks::holding("ssd", contents).telling(move |step: &Step| {
            let mut noted = to.lock();
            noted.push(Noted {
                event: 0,
                device: 0,
                step: step.clone(),
            });
            counted.store(noted.len(), Ordering::Release);
        });
        let device = Arc::new(device.asking(answer));
        Self {
            device,
            noted,
            count,
        }
    }

    pub(crate) fn steps(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }
}

/// A volume on a device in memory.
pub(crate) struct Stage {
    dir: TempDir,
    file: VolumeFile,
    direct_min_bytes: u64,
    fills_memory_first: bool,
}

impl Stage {
    /// Makes it. Gives what its device holds, too.
    pub(crate) fn new(
        dir: &Path,
        policy: Durability,
        device_bytes: u64,
    ) -> Result<(Stage, Vec<u8>)> {
        let dir = tempfile::Builder::new()
            .prefix("shale-staged-")
            .tempdir_in(dir)
            .map_err(BenchError::file(dir, "make a directory in"))?;
        let image = dir.path().join("ssd.img");
        let options = MakeOptions {
            file: dir.path().join("VOLUME.toml"),
            name: "staged".to_owned(),
            nvm: None,
            staged: StagedSizes {
                memory_bytes: Some(NVM_BYTES_MIN),
                staging_bytes: Some(STAGING_BYTES),
            },
            lower: LowerTiers {
                ssd: vec![DeviceFile {
                    path: image.clone(),
                    size_bytes: device_bytes,
                    zone_bytes: Some(ZONE_BYTES),
                    model: None,
                    kind: DeviceKind::Conventional,
                    overprovision_percent: None,
                }],
                hdd: Vec::new(),
            },
            log_bytes: LOG_BYTES_MIN,
            durability: policy,
            owner_uid: 0,
            owner_gid: 0,
            root_mode: 0o755,
            trusted_uids: Vec::new(),
            force: false,
        };
        make_volume(&options, &*clock())?;
        let contents = std::fs::read(&image).map_err(BenchError::file(&image, "read"))?;
        std::fs::remove_file(&image).map_err(BenchError::file(&image, "remove"))?;
        let file = VolumeFile::load(&options.file)?;
        let stage = Stage {
            dir,
            file,
            direct_min_bytes: DIRECT_PLACEMENT_MIN_BYTES,
            fills_memory_first: false,
        };
        Ok((stage, contents))
    }

    /// Digests place every whole block on flash, not only large runs.
    pub(crate) fn place_all_below(&mut self) {
        self.direct_min_bytes = BLOCK_BYTES as u64;
    }

    /// Digests place large runs on flash only while the memory tier is full.
    pub(crate) fn fill_memory_first(&mut self) {
        self.fills_memory_first = true;
    }

    /// A daemon's settings, for a machine with this memory: each power cut needs another one.
    pub(crate) fn config(&self, memory: u32, device: &Arc<MemoryBlocks>) -> DaemonConfig {
        let mut file = self.file.clone();
        if self.fills_memory_first {
            file.migrate_at_percent = Some(MIGRATE_AT_PERCENT);
        }
        if let Some(staged) = &mut file.staged {
            staged.memory_dir = self.dir.path().join(format!("memory-{memory}"));
        }
        DaemonConfig {
            digest_threads: 1,
            direct_placement_min_bytes: self.direct_min_bytes,
            places_large_runs_below: !self.fills_memory_first,
            speed: Speed {
                paused: true,
                limit: 0,
            },
            lower: Some(LowerDevices {
                ssd: vec![device.clone() as Arc<dyn TierDevice>],
                hdd: Vec::new(),
            }),
            ..DaemonConfig::new(file)
        }
    }

    /// Starts the daemon of the first machine.
    pub(crate) fn start(&self, recorded: &Recorded) -> Checked<Arc<Daemon>> {
        let config = self.config(0, &recorded.device);
        once_free(|| Daemon::start(config.clone(), clock())).map_err(|e| e.to_string())
    }

    /// What is left in the memory of a machine goes.
    pub(crate) fn lose(&self, memory: u32) {
        let _ = std::fs::remove_dir_all(self.dir.path().join(format!("memory-{memory}")));
    }
}

pub(crate) fn side_of(daemon: &Daemon) -> Checked<Shale> {
    Client::of(daemon, false).map(|client| client.side)
}

/// A client, and its paths.
pub(crate) struct Client {
    session: Arc<Session>,
    pub(crate) side: Shale,
}

impl Client {
    /// Attaches it. `hardens_later`: as the mount does.
    pub(crate) fn of(daemon: &Daemon, hardens_later: bool) -> Checked<Self> {
        let channel = Arc::new(InProcess(daemon.attach_in_process(0)));
        let options = SessionOptions {
            hardens_later,
            ..SessionOptions::default()
        };
        let session = Session::attach(channel, clock(), Default::default(), options);
        let session = session.map_err(|e| format!("attach: {e}"))?;
        let side = crate::volume::sessions::side(&session);
        Ok(Self { session, side })
    }

    /// Makes everything durable that any client has done.
    pub(crate) fn sync_all(&self) -> Checked<()> {
        let synced = self.session.sync_all();
        synced.map_err(|e| format!("sync: {e}"))
    }

    /// What the mount does between an operation and its answer.
    pub(crate) fn keep(&self, promise: Promise) -> Checked<()> {
        let upto = self.session.to_harden(promise);
        let kept = upto.and_then(|upto| upto.map_or(Ok(()), |u| self.session.wait_hardened(u)));
        kept.map_err(|e| format!("{promise:?} is not durable: {e}"))
    }
}

/// Restores what a device holds, and looks at everything. Gives the tree, the steps of the restore, the batches it digested.
pub(crate) fn restore(
    stage: &Stage,
    memory: u32,
    contents: Vec<u8>,
) -> Checked<(Snapshot, Vec<Noted>, u64)> {
    let recorded = Recorded::new(contents);
    let config = stage.config(memory, &recorded.device);
    let restored = caught(|| {
        let daemon = once_free(|| Daemon::start(config.clone(), clock()))
            .map_err(|e| format!("the restore: {e}"))?;
        let steps = recorded.steps();
        let report = daemon.recovery().clone();
        if !report.problems.is_empty() || report.logs_refused > 0 || report.logs_left > 0 {
            return Err(format!("the restore: {}", report.problems.join("; ")));
        }
        let mut side = side_of(&daemon)?;
        let tree = Snapshot::of(&mut side).map_err(|e| format!("the recovered tree: {e}"))?;
        drop(side);
        daemon.quiesce();
        fsck(&daemon, &recorded)?;
        let mut noted = std::mem::take(&mut *recorded.noted.lock());
        noted.truncate(steps);
        Ok((tree, noted, report.batches))
    });
    stage.lose(memory);
    restored
}

fn fsck(daemon: &Daemon, recorded: &Recorded) -> Checked<()> {
    let view = daemon.volume().view();
    let table = view.device_table().map_err(|e| e.to_string())?;
    let devices: BTreeMap<[u8; 16], Arc<dyn TierDevice>> = table
        .of(0)
        .iter()
        .map(|place| (place.uuid, recorded.device.clone() as Arc<dyn TierDevice>))
        .collect();
    let options = CheckOptions {
        below: Below::open(devices.into_iter().collect()),
        ..CheckOptions::default()
    };
    let report = check(daemon.map().clone(), &[], &options, &mut |_| ());
    let bad = report.findings.iter();
    let bad: Vec<String> = bad
        .filter(|f| f.severity != Severity::Info)
        .map(|f| format!("{}: {}", f.object, f.what))
        .collect();
    match bad.is_empty() && report.complete {
        true => Ok(()),
        false => Err(format!("fsck: {}", bad.join("; "))),
    }
}
