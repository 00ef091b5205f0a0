//! The volume that every workload begins with, and directories that hold it.
//!
//! Made once, with fixed identity, keys, salts and times: the same workload stores the same
//! bytes each time. A [`Place`] is a directory with the volume's files, mapped; what was
//! changed in it is put back page by page.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shale_daemon::tiering::Speed;
use shale_daemon::{Daemon, DaemonConfig, DaemonError, FixedLogs};
use shale_format::limits::{BLOCK_BYTES, LOG_BYTES_MIN, NVM_BYTES_MIN};
use shale_format::log::{RING_AT, file_name};
use shale_libfs::{Caller, Recent, Session, SessionMaps, SessionOptions};
use shale_nvm::{Access, Map, MapOptions};
use shale_pool::PoolError;
use shale_pool::VolumeFile;
use shale_pool::volume_file::{FORMAT, NvmEntry, uuid_text};
use shale_proto::InProcess;
use shale_record::{Action, Noted, Recorded, Recording};
use shale_sys::Clock;
use shale_volume::{MkfsOptions, View, Volume, VolumeError};
use tempfile::TempDir;

use super::below::{self, Below, Contents};
use super::images::{Ground, Mix};
use super::unrest::{Restless, Unrest};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_bench::scratch::os_error;
use shale_model::workload::alphabet;
use shale_model::{Act, FileAct, Memory, Shale, Side, Snapshot};

/// Bytes of a page, the unit in which a place is put back.
pub const PAGE_BYTES: usize = 4096;
/// Logs that a place has space for: one per client, and one for the look afterwards.
pub const LOGS: usize = 4;
/// Times that a lock is tried, a millisecond apart.
const LOCK_TRIES: u32 = 1_000;
/// Time at which everything happens, ns since 1970.
const NOW_NS: i64 = 1_700_000_000_000_000_000;
const UUID: [u8; 16] = *b"crash explorer 1";
const HASH_SEED: [u64; 2] = [0x5eed, 0xca11];
const SALT_SEED: u64 = 0x5a17_0000_0000;
/// Bytes before its end at which a log that wraps begins.
const BEFORE_END: u64 = 448;
const SEGMENT: &str = "seg-0000";
/// What free blocks are filled with.
const POISON: u8 = 0xa5;
const LOG_FILE_BYTES: usize = RING_AT + LOG_BYTES_MIN as usize;

/// The volume before a workload.
pub struct Base {
    /// Contents of the NVM tier.
    pub segment: Vec<u8>,
    /// The model of it.
    pub model: Memory,
    /// Its tree.
    pub tree: Snapshot,
    /// Blocks in use when all names are gone.
    pub empty_blocks: u64,
    /// Some operations may find no space.
    pub full: bool,
    /// What logs hold; one that is not there is zeros. Only while a run is looked at.
    pub logs: Vec<Vec<u8>>,
    /// What the lower tiers hold, if there are any.
    pub below: Option<Contents>,
    /// Equal for equal bases only.
    pub id: u128,
}

/// What there is besides the small tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum More {
    /// Nothing.
    Nothing,
    /// A file and a directory with trees of two levels.
    Large,
    /// The same tree once more, for a second thread.
    Twin,
    /// A file that has nearly all blocks: some operations find no space.
    Full,
    /// Lower tiers.
    Tiers,
}

/// The time of day stands still, so that the same calls store the same; leases are held for a time.
struct Hours {
    since: Instant,
}

impl Clock for Hours {
    fn realtime_ns(&self) -> i64 {
        NOW_NS
    }

    fn monotonic_ns(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }
}

/// A clock that always shows the same time of day.
pub fn clock() -> Arc<dyn Clock> {
    let since = Instant::now();
    Arc::new(Hours { since })
}

/// Starts or recovers with `start`. The lock of a place that was just left may live on for a
/// moment in a child of this process that another test is starting: then once more.
///
/// # Errors
/// What `start` says.
pub fn once_free<T>(start: impl Fn() -> shale_daemon::Result<T>) -> shale_daemon::Result<T> {
    let mut tries = 0;
    loop {
        match start() {
            Err(DaemonError::Pool(PoolError::InUse { .. })) if tries < LOCK_TRIES => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

/// A client in this process, as the superuser.
///
/// # Errors
/// The daemon refuses.
pub fn attach(daemon: &Daemon, maps: &SessionMaps, log_all: bool) -> Result<Arc<Session>> {
    let channel = Arc::new(InProcess(daemon.attach_in_process(0)));
    let options = SessionOptions {
        log_all,
        ..SessionOptions::default()
    };
    Session::attach_mapped(channel, clock(), Recent::default(), options, maps)
        .map_err(|e| BenchError::call("libfs", "attach")(os_error(e)))
}

/// The volume's paths, as the superuser.
pub fn side(session: &Arc<Session>) -> Shale {
    Shale::new(session.tree(Caller::default()))
}

impl Base {
    /// Makes it in a directory in `dir` (on tmpfs), which is removed again. `more`: what
    /// there is besides the small tree.
    ///
    /// # Errors
    /// No space; what daemon and client say.
    pub fn make(dir: &Path, more: More) -> Result<Arc<Base>> {
        let tiered = more == More::Tiers;
        let place = Place::empty(dir, tiered)?;
        let failed = |program: &str, e: &dyn std::fmt::Display| BenchError::Program {
            program: program.to_owned(),
            found: e.to_string(),
        };
        let options = match tiered {
            true => below::with_tiers(mkfs_options()),
            false => mkfs_options(),
        };
        let lower = place
            .below
            .as_ref()
            .map_or_else(Default::default, Below::lower);
        let empty = Volume::create_with(place.segment.clone(), &options, &lower)
            .map_err(|e| failed("mkfs", &e))?;
        let empty_blocks = empty.space().used;
        drop(empty);
        let daemon = once_free(|| Daemon::start(place.config(false, 0), clock()))?;
        let session = attach(&daemon, &SessionMaps::default(), false)?;
        let mut shale = side(&session);
        let mut model = Memory::new(0o755);
        let more_is_full = more == More::Full;
        let more = match more {
            More::Nothing => Vec::new(),
            More::Large => alphabet::large_tree(),
            More::Twin => alphabet::twin_tree(),
            More::Full | More::Tiers => Vec::new(),
        };
        let nearly_full = more_is_full.then_some(&session);
        for act in alphabet::tree().into_iter().chain(more) {
            let (should, did) = (model.act(&act), shale.act(&act));
            if should.is_err() || should != did {
                let found = format!("{act:?}: expected {should:?}, found {did:?}");
                return Err(BenchError::Program {
                    program: "the tree".to_owned(),
                    found,
                });
            }
        }
        if let Some(session) = nearly_full {
            take_nearly_all(&daemon, session, &mut shale, &mut model)?;
        }
        drop(shale);
        session
            .detach()
            .map_err(|e| BenchError::call("libfs", "detach")(os_error(e)))?;
        daemon.shutdown()?;
        poison(&place.segment).map_err(|e| failed("the volume", &e))?;
        let mut segment = vec![0; NVM_BYTES_MIN as usize];
        place.segment.load(0, &mut segment);
        let tree = Snapshot::of(&mut model).map_err(|e| failed("the model", &e))?;
        Ok(Arc::new(Base {
            segment,
            model,
            tree,
            empty_blocks,
            full: more_is_full,
            logs: Vec::new(),
            below: place.below.as_ref().map(Below::contents),
            id: 0,
        }))
    }

    /// What images are differences to.
    pub fn ground(&self) -> Ground<'_> {
        Ground {
            segment: &self.segment,
            logs: &self.logs,
        }
    }

    /// The same, which can be changed.
    pub fn moving(&self) -> Base {
        Base {
            segment: self.segment.clone(),
            model: self.model.clone(),
            tree: self.tree.clone(),
            logs: vec![vec![0; LOG_FILE_BYTES]; LOGS],
            below: self.below.clone(),
            ..*self
        }
    }

    /// A page of a medium.
    pub fn page_mut(&mut self, medium: usize, page: usize) -> &mut [u8] {
        let at = page * PAGE_BYTES;
        match medium {
            0 => &mut self.segment[at..at + PAGE_BYTES],
            n => &mut self.logs[n - 1][at..at + PAGE_BYTES],
        }
    }
}

/// Blocks that are left free in a volume that is nearly full.
const LEFT_BLOCKS: u64 = 12;

/// Makes an empty file that all free blocks but [`LEFT_BLOCKS`] are allocated to.
fn take_nearly_all(
    daemon: &Daemon,
    session: &Arc<Session>,
    shale: &mut Shale,
    model: &mut Memory,
) -> Result<()> {
    const KEEP_SIZE: u32 = 1;
    let slot = shale_model::snapshot::WALK_SLOT;
    let space = |session: &Session| {
        let _ = session.digest();
        daemon.quiesce();
        session
            .space()
            .map_err(|e| BenchError::call("libfs", "statfs")(os_error(e)))
    };
    let flags = shale_libfs::OFlags::RDWR | shale_libfs::OFlags::CREATE;
    let open = Act::Open(slot, b"ballast".to_vec(), flags, 0o600);
    let _ = (model.act(&open), shale.act(&open));
    let mut end = 0;
    let mut most = u64::MAX;
    loop {
        let more = space(session)?.free.saturating_sub(LEFT_BLOCKS).min(most);
        if more < 2 {
            break;
        }
        let bytes = more * PAGE_BYTES as u64;
        // The size stays as it is, so for the model nothing happens.
        match shale.act(&Act::File(slot, FileAct::Allocate(KEEP_SIZE, end, bytes))) {
            Ok(_) => end += bytes,
            // Space that is kept for nodes counts as free.
            Err(_) => most = more / 2,
        }
    }
    let close = Act::File(slot, FileAct::Close);
    let _ = (model.act(&close), shale.act(&close));
    Ok(())
}

/// Of the volume that every workload begins with.
pub fn mkfs_options() -> MkfsOptions {
    MkfsOptions {
        uuid: UUID,
        hash_seed: HASH_SEED,
        created_ns: NOW_NS,
        root_mode: 0o755,
        log_bytes: LOG_BYTES_MIN,
        ..MkfsOptions::default()
    }
}

/// Fills free blocks: what is read from one of them is seen.
fn poison(segment: &Arc<Map>) -> std::result::Result<(), VolumeError> {
    let (view, _) = View::open(segment.clone())?;
    let mut at = view.superblock().data_block;
    let end = view.superblock().second_block();
    for run in view.used_runs()? {
        for block in at..run.addr.index().min(end) {
            segment.store(block as usize * BLOCK_BYTES, &[POISON; BLOCK_BYTES]);
        }
        at = at.max(run.addr.index() + run.len);
    }
    Ok(())
}

/// A directory with the volume's files.
pub struct Place {
    dir: TempDir,
    /// The segment file.
    pub segment: Arc<Map>,
    /// The same, as daemons see it: what they store is recorded.
    watched: Arc<Map>,
    logs: Vec<(PathBuf, Map)>,
    /// Pages that may differ from the base, as numbers.
    touched: HashSet<u64, BuildHasherDefault<Mix>>,
    /// What daemon and clients do here.
    pub recording: Arc<Recording>,
    /// Makes threads meet in places where they hardly do.
    pub unrest: Arc<Unrest>,
    /// Devices of lower tiers, if the volume has them.
    pub below: Option<Below>,
}

/// A page of a medium as one number.
fn page_number(medium: usize, page: usize) -> u64 {
    (medium as u64) << 32 | page as u64
}

/// Medium and page of such a number.
fn page_of(number: u64) -> (usize, usize) {
    (
        (number >> 32) as usize,
        (number & u64::from(u32::MAX)) as usize,
    )
}

/// Medium 0 is the segment file, medium `1 + slot` a log.
pub fn medium_name(medium: usize) -> String {
    match medium {
        0 => SEGMENT.to_owned(),
        n => file_name(n as u32 - 1),
    }
}

impl Place {
    fn empty(dir: &Path, tiered: bool) -> Result<Place> {
        let dir = tempfile::Builder::new()
            .prefix("shale-crash-")
            .tempdir_in(dir)
            .map_err(BenchError::file(dir, "make a directory in"))?;
        let nvm = dir.path().join("nvm");
        std::fs::create_dir(&nvm).map_err(BenchError::file(&nvm, "make"))?;
        let segment = map_file(&nvm.join(SEGMENT), NVM_BYTES_MIN as usize)?;
        let mut logs = Vec::new();
        for slot in 0..LOGS {
            let path = dir.path().join(format!("spare-{slot}"));
            let map = map_file(&path, LOG_FILE_BYTES)?;
            logs.push((path, map));
        }
        let recording = Recording::events_only();
        for medium in 0..=LOGS {
            recording.medium(&medium_name(medium));
        }
        let unrest = Arc::default();
        let watched =
            recorded(&recording, &unrest, 0).open_files(&[nvm.join(SEGMENT)], Access::ReadWrite)?;
        Ok(Place {
            dir,
            segment: Arc::new(segment),
            watched: Arc::new(watched),
            logs,
            touched: HashSet::default(),
            below: tiered.then(|| Below::new(&recording)),
            recording,
            unrest,
        })
    }

    /// A directory in `dir` with the base in it and no logs.
    ///
    /// # Errors
    /// No space.
    pub fn new(dir: &Path, base: &Base) -> Result<Place> {
        let place = Place::empty(dir, base.below.is_some())?;
        place.segment.store(0, &base.segment);
        place.put_below(base);
        Ok(place)
    }

    /// The NVM directory.
    pub fn nvm_dir(&self) -> PathBuf {
        self.dir.path().join("nvm")
    }

    /// How a daemon runs here: every store is recorded, nothing happens by itself.
    ///
    /// `wraps`: logs begin shortly before the ends of their rings; `turns`: that often they
    /// have gone around before.
    pub fn config(&self, wraps: bool, turns: u64) -> DaemonConfig {
        let volume = VolumeFile {
            format: FORMAT,
            name: "crash".to_owned(),
            uuid: uuid_text(&UUID),
            durability: "strict".to_owned(),
            log_bytes: LOG_BYTES_MIN,
            client_log_bytes: None,
            nvm: vec![NvmEntry {
                dir: self.nvm_dir(),
                size_bytes: NVM_BYTES_MIN,
            }],
            // NVM is full from the first block on, so new data is placed directly on a lower tier.
            migrate_at_percent: Some(0),
            trusted_uids: Vec::new(),
            ssd: vec![],
            hdd: vec![],
        };
        let (recording, unrest) = (self.recording.clone(), self.unrest.clone());
        DaemonConfig {
            digest_threads: 1,
            direct_placement_min_bytes: BLOCK_BYTES as u64,
            speed: Speed {
                paused: true,
                limit: 0,
            },
            mapped: Some(self.watched.clone()),
            lower: self.below.as_ref().map(Below::lower),
            log_map: Arc::new(move |slot| recorded(&recording, &unrest, 1 + slot as usize)),
            fixed_logs: Some(FixedLogs {
                salt: SALT_SEED,
                start: match wraps {
                    true => LOG_BYTES_MIN - BEFORE_END,
                    false => 0,
                } + turns * LOG_BYTES_MIN,
                there: false,
            }),
            ..DaemonConfig::new(volume)
        }
    }

    /// The same, and logs that [`Place::link_logs`] put there are taken. `daemons` were here before.
    pub fn config_with_logs(&self, wraps: bool, turns: u64, daemons: u64) -> DaemonConfig {
        let mut config = self.config(wraps, turns);
        if let Some(fixed) = &mut config.fixed_logs {
            fixed.there = true;
            // Salts of two daemons are never the same.
            fixed.salt += daemons << 16;
        }
        config
    }

    /// How client number `client`, which will get the log of slot `client`, maps what it is
    /// handed.
    pub fn maps(&self, client: usize) -> SessionMaps {
        SessionMaps {
            nvm: recorded(&self.recording, &self.unrest, 0),
            log: recorded(&self.recording, &self.unrest, 1 + client),
            ..SessionMaps::default()
        }
    }

    /// The mapping of a medium: of the segment file, or of the spare file that
    /// [`Place::link_logs`] makes a log.
    pub fn map(&self, medium: usize) -> &Map {
        match medium {
            0 => &self.segment,
            n => &self.logs[n - 1].1,
        }
    }

    /// Notes that a page may differ from the base.
    pub fn touch(&mut self, medium: usize, offset: usize) {
        self.touched
            .insert(page_number(medium, offset / PAGE_BYTES));
    }

    /// Notes what events stored to.
    pub fn touch_all(&mut self, events: &[Recorded]) {
        for event in events {
            if let Action::Store { offset, bytes, .. } = &event.action {
                for page in offset / PAGE_BYTES..=(offset + bytes.len() - 1) / PAGE_BYTES {
                    self.touched.insert(page_number(event.medium, page));
                }
            }
        }
    }

    /// Pages that may differ from the base, as medium and number.
    pub fn touched(&self) -> impl Iterator<Item = (usize, usize)> {
        self.touched.iter().map(|&number| page_of(number))
    }

    /// Gives the first `logs` spare files the names of logs.
    ///
    /// # Errors
    /// What the file system says.
    pub fn link_logs(&self, logs: usize) -> Result<()> {
        for (slot, (spare, _)) in self.logs.iter().enumerate().take(logs) {
            let path = self.nvm_dir().join(file_name(slot as u32));
            match std::fs::hard_link(spare, &path) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(BenchError::file(path, "link")(e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Names of files other than segment and lock.
    ///
    /// # Errors
    /// What the file system says.
    pub fn other_files(&self) -> Result<Vec<String>> {
        let dir = self.nvm_dir();
        let entries = std::fs::read_dir(&dir).map_err(BenchError::file(&dir, "list"))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(BenchError::file(&dir, "list"))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != SEGMENT && name != "lock" {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// What devices below NVM were reported since the last time, `before` events after which those of the
    /// recording were counted again.
    pub fn take_reported(&self, before: usize) -> Vec<Noted> {
        let noted = self.below.as_ref().map_or(Vec::new(), Below::take_reported);
        let later = |noted: Noted| Noted {
            event: noted.event + before,
            ..noted
        };
        noted.into_iter().map(later).collect()
    }

    /// Has the lower tiers hold what the base says.
    pub fn put_below(&self, base: &Base) {
        if let (Some(below), Some(contents)) = (&self.below, &base.below) {
            below.put(contents);
        }
    }

    /// Puts the base back and removes logs.
    ///
    /// # Errors
    /// What the file system says.
    pub fn reset(&mut self, base: &Base) -> Result<()> {
        self.touch_all(&self.recording.take_events());
        let changed = |below: &Below| !below.take_reported().is_empty();
        if self.below.as_ref().is_some_and(changed) {
            self.put_below(base);
        }
        for name in self.other_files()? {
            let path = self.nvm_dir().join(name);
            std::fs::remove_file(&path).map_err(BenchError::file(&path, "remove"))?;
        }
        for (medium, page) in std::mem::take(&mut self.touched).into_iter().map(page_of) {
            let at = page * PAGE_BYTES;
            match medium {
                0 => self.segment.store(at, &base.segment[at..at + PAGE_BYTES]),
                n => {
                    let before = base.logs.get(n - 1).map(|log| &log[at..at + PAGE_BYTES]);
                    let zeros = &[0; PAGE_BYTES][..];
                    self.logs[n - 1].1.store(at, before.unwrap_or(zeros));
                }
            }
        }
        Ok(())
    }
}

fn recorded(recording: &Arc<Recording>, unrest: &Arc<Unrest>, medium: usize) -> MapOptions {
    MapOptions::new().recorder(Arc::new(Restless {
        medium: recording.medium(&medium_name(medium)),
        unrest: unrest.clone(),
    }))
}

/// A sparse file of zeros, mapped.
fn map_file(path: &Path, bytes: usize) -> Result<Map> {
    let failed = |e| BenchError::file(path, "make")(e);
    let file = std::fs::File::create_new(path).map_err(failed)?;
    file.set_len(bytes as u64)
        .map_err(BenchError::file(path, "make"))?;
    Ok(Map::open_files(&[path], Access::ReadWrite)?)
}
