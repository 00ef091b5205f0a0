//! A volume on a stage: made, filled by a workload, damaged, served, checked, repaired.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shale_check::{CheckOptions, RepairReport, Report, check_volume_dir, repair_volume_dir};
use shale_daemon::{Daemon, DaemonConfig};
use shale_format::limits::{LOG_BYTES_MIN, NVM_BYTES_MIN, SEGMENT_BYTES};
use shale_format::{DirKey, Durability, Ino};
use shale_libfs::{Caller, Recent, Session, SessionOptions};
use shale_nvm::{Access, Map};
use shale_pool::VolumeFile;
use shale_pool::buffer_dir;
use shale_pool::nvm_dir::{make_nvm, segment_name, segment_sizes};
use shale_pool::volume_file::{FORMAT, NvmEntry, uuid_text};
use shale_proto::{Channel, InProcess};
use shale_sys::SystemClock;
use shale_volume::{MkfsOptions, View, Volume};
use tempfile::TempDir;

use crate::volume::load::Load;
use shale_bench::BenchError;
use shale_bench::Result;
use shale_bench::scratch::os_error;
use shale_model::compare::shown;
use shale_model::{Act, FileAct, Memory, Shale, Side, Snapshot};

/// Something of Shale's that is wrong, in words.
pub type Wrong = String;
/// What a look at Shale gives.
pub type Checked<T> = std::result::Result<T, Wrong>;

const UUID: [u8; 16] = *b"fault injection1";
/// Slots of open files that workloads use.
const SLOTS: usize = shale_model::act::SLOTS;

/// Name of the file beside the NVM directory that says with which durability policy the volume was made, as a volume file does; there is none:
/// strict.
const POLICY: &str = "durability";

/// A directory with a volume.
pub struct Stage {
    dir: TempDir,
    bytes: u64,
    uuid: [u8; 16],
}

impl Stage {
    /// A directory in `dir` with an empty volume whose NVM tier has `bytes` bytes.
    ///
    /// # Errors
    /// No space.
    pub fn new(dir: &Path, bytes: u64, uuid: [u8; 16]) -> Result<Stage> {
        Stage::with_policy(dir, (bytes, uuid), Durability::Strict)
    }

    /// The same with this durability policy.
    fn with_policy(
        dir: &Path,
        (bytes, uuid): (u64, [u8; 16]),
        durability: Durability,
    ) -> Result<Stage> {
        let dir = tempfile::Builder::new()
            .prefix("shale-faults-")
            .tempdir_in(dir)
            .map_err(BenchError::file(dir, "make a directory in"))?;
        let stage = Stage { dir, bytes, uuid };
        let nvm = stage.nvm();
        std::fs::create_dir(&nvm).map_err(BenchError::file(&nvm, "make"))?;
        let said = nvm.with_file_name(POLICY);
        std::fs::write(&said, durability.name()).map_err(BenchError::file(&said, "write"))?;
        let map = Arc::new(make_nvm(&nvm, bytes, &Default::default())?);
        let options = MkfsOptions {
            uuid,
            hash_seed: [0x5eed, 0xca11],
            root_mode: 0o755,
            log_bytes: LOG_BYTES_MIN,
            durability,
            owner_uid: rustix::process::geteuid().as_raw(),
            ..MkfsOptions::default()
        };
        Volume::create(map, &options).map_err(|e| BenchError::Program {
            program: "mkfs".to_owned(),
            found: e.to_string(),
        })?;
        Ok(stage)
    }

    /// The smallest volume there is.
    ///
    /// # Errors
    /// No space.
    pub fn small(dir: &Path) -> Result<Stage> {
        Stage::new(dir, NVM_BYTES_MIN, UUID)
    }

    /// The smallest volume there is, whose clients are buffered unless they ask for something else.
    ///
    /// # Errors
    /// No space.
    pub fn buffered(dir: &Path) -> Result<Stage> {
        Stage::with_policy(dir, (NVM_BYTES_MIN, UUID), Durability::Buffered)
    }

    /// Everything of it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The NVM directory.
    pub fn nvm(&self) -> PathBuf {
        self.dir.path().join("nvm")
    }

    /// Where the logs of buffered clients are in memory.
    pub fn buffer_dir(&self) -> PathBuf {
        self.config().volume.buffer_dir()
    }

    /// The file of segment `n`.
    pub fn segment(&self, n: usize) -> PathBuf {
        self.nvm().join(segment_name(n))
    }

    /// How a daemon serves it.
    pub fn config(&self) -> DaemonConfig {
        config(&self.nvm(), self.bytes, &self.uuid)
    }

    /// All segments, one behind the other.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn image(&self) -> Result<Vec<u8>> {
        let mut image = Vec::with_capacity(self.bytes as usize);
        for n in 0..segment_sizes(self.bytes).len() {
            let path = self.segment(n);
            image.extend(std::fs::read(&path).map_err(BenchError::file(&path, "read"))?);
        }
        Ok(image)
    }

    /// Puts an image into the segments, whatever became of them, and removes logs.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn put(&self, image: &[u8]) -> Result<()> {
        let nvm = self.nvm();
        buffer_dir::remove_all(&self.buffer_dir())?;
        let list = std::fs::read_dir(&nvm).map_err(BenchError::file(&nvm, "list"))?;
        for entry in list.flatten() {
            if !entry.file_name().to_string_lossy().starts_with("seg-") {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        for (n, part) in image.chunks(SEGMENT_BYTES as usize).enumerate() {
            let path = self.segment(n);
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path);
            file.and_then(|file| {
                file.set_len(part.len() as u64)?;
                file.write_all_at(part, 0)
            })
            .map_err(BenchError::file(&path, "write"))?;
        }
        Ok(())
    }

    /// Writes over some bytes of the tier.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn store(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let path = self.segment((at / SEGMENT_BYTES) as usize);
        let file = File::options().write(true).open(&path);
        file.and_then(|file| file.write_all_at(bytes, at % SEGMENT_BYTES))
            .map_err(BenchError::file(&path, "write"))
    }

    /// A reader of the volume.
    ///
    /// # Errors
    /// It is damaged.
    pub fn view(&self) -> Result<View> {
        let count = segment_sizes(self.bytes).len();
        let paths: Vec<PathBuf> = (0..count).map(|n| self.segment(n)).collect();
        let map = Map::open_files(&paths, Access::ReadOnly)?;
        View::open(Arc::new(map))
            .map(|(view, _)| view)
            .map_err(|e| BenchError::Program {
                program: "the volume".to_owned(),
                found: e.to_string(),
            })
    }

    /// What `fsck` says.
    ///
    /// # Errors
    /// It could not look.
    pub fn fsck(&self) -> Checked<Report> {
        self.fsck_with(&CheckOptions::default())
    }

    /// The same with these options.
    ///
    /// # Errors
    /// It could not look.
    pub fn fsck_with(&self, options: &CheckOptions) -> Checked<Report> {
        caught(|| {
            check_volume_dir(&self.nvm(), options, &mut |_| ()).map_err(|e| format!("fsck: {e}"))
        })
    }

    /// What `fsck --repair` says.
    ///
    /// # Errors
    /// It could not.
    pub fn repair(&self) -> Checked<RepairReport> {
        self.repair_with(&CheckOptions::default())
    }

    /// The same with these options.
    ///
    /// # Errors
    /// It could not.
    pub fn repair_with(&self, options: &CheckOptions) -> Checked<RepairReport> {
        caught(|| {
            repair_volume_dir(&self.nvm(), &uuid_text(&self.uuid), options, &mut |_| ())
                .map_err(|e| format!("repair: {e}"))
        })
    }

    /// Starts a daemon.
    ///
    /// # Errors
    /// It refuses.
    pub fn start(&self) -> Checked<Arc<Daemon>> {
        self.start_with(self.config())
    }

    /// Starts a daemon that runs so.
    ///
    /// # Errors
    /// It refuses.
    pub fn start_with(&self, config: DaemonConfig) -> Checked<Arc<Daemon>> {
        caught(|| {
            let start = || Daemon::start(config.clone(), Arc::new(SystemClock::new()));
            shale_powercut::volume::sessions::once_free(start).map_err(|e| format!("start: {e}"))
        })
    }
}

/// A panic is something wrong like any other.
///
/// # Errors
/// What `f` says, or its panic.
pub fn caught<T>(f: impl FnOnce() -> Checked<T>) -> Checked<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// Makes this process a client.
///
/// # Errors
/// The daemon refuses.
pub fn attach(channel: Arc<dyn Channel>) -> Checked<Arc<Session>> {
    let clock = Arc::new(SystemClock::new());
    let (recent, options) = (Recent::default(), SessionOptions::default());
    Session::attach(channel, clock, recent, options).map_err(|e| format!("attach: {}", os_error(e)))
}

/// A client in the daemon's process.
///
/// # Errors
/// The daemon refuses.
pub fn attach_to(daemon: &Daemon) -> Checked<Arc<Session>> {
    attach(Arc::new(InProcess(daemon.attach_in_process(0))))
}

/// The volume's paths, as the superuser.
pub fn side(session: &Arc<Session>) -> Shale {
    Shale::new(session.tree(Caller::default()))
}

/// Closes all files of a side.
pub fn close_all(side: &mut dyn Side) {
    for slot in 0..SLOTS {
        // One that is not open is closed.
        let _ = side.act(&Act::File(slot, FileAct::Close));
    }
}

/// Does an operation on the model and on a side; they have to agree.
///
/// # Errors
/// They do not.
pub fn both(model: &mut Memory, side: &mut dyn Side, act: &Act) -> Checked<()> {
    let (should, did) = (model.act(act), side.act(act));
    if should == did {
        return Ok(());
    }
    let (should, did) = (shown(&should), shown(&did));
    Err(format!("{act:?}: expected {should}, found {did}"))
}

/// The tree of a side.
///
/// # Errors
/// A walk of it fails.
pub fn tree(side: &mut dyn Side) -> Checked<Snapshot> {
    Snapshot::of(side).map_err(|e| format!("the walk: {e}"))
}

/// A volume that a workload has filled, unmounted in order.
pub struct Filled {
    /// The workload.
    pub load: Load,
    /// The NVM tier.
    pub image: Vec<u8>,
    /// What the volume was like at half of the operations.
    pub older: Vec<u8>,
    /// The tree.
    pub tree: Snapshot,
    /// Inode of each path.
    pub inos: BTreeMap<Vec<u8>, u64>,
}

impl Filled {
    /// Does `acts` operations of a workload on a new volume.
    ///
    /// # Errors
    /// The outer error: what is around could not do it; the inner one: Shale is wrong.
    pub fn make(dir: &Path, load: Load, seed: u64, acts: usize) -> Result<Checked<Filled>> {
        let stage = Stage::small(dir)?;
        let mut model = Memory::new(0o755);
        let mut stream = load.acts(seed);
        let mut older = Vec::new();
        for half in 0..2 {
            let some = stream.by_ref().take(acts / 2);
            if let Err(wrong) = do_all(&stage, &mut model, some) {
                return Ok(Err(wrong));
            }
            if half == 0 {
                older = stage.image()?;
            }
        }
        close_all(&mut model);
        let inos = inos(&stage.view()?).map_err(|found| BenchError::Program {
            program: "the volume".to_owned(),
            found,
        })?;
        Ok(tree(&mut model).and_then(|tree| {
            Ok(Filled {
                load,
                image: stage.image().map_err(|e| e.to_string())?,
                older,
                tree,
                inos,
            })
        }))
    }

    /// Paths that lead to an inode, and all paths below them.
    pub fn reach(&self, ino: u64) -> Vec<Vec<u8>> {
        let own: Vec<&Vec<u8>> = self
            .inos
            .iter()
            .filter(|i| *i.1 == ino)
            .map(|i| i.0)
            .collect();
        let is_below = |path: &[u8]| {
            own.iter().any(|top| {
                let rest = path.strip_prefix(&top[..]);
                rest.is_some_and(|rest| rest.is_empty() || top.is_empty() || rest[0] == b'/')
            })
        };
        let all = self.inos.keys();
        all.filter(|path| is_below(path)).cloned().collect()
    }
}

/// Serves the volume, does operations, and unmounts it. All files are closed at the end.
fn do_all(stage: &Stage, model: &mut Memory, acts: impl Iterator<Item = Act>) -> Checked<()> {
    let daemon = stage.start()?;
    let session = attach_to(&daemon)?;
    let mut shale = side(&session);
    for act in acts {
        both(model, &mut shale, &act)?;
    }
    close_all(&mut shale);
    close_all(model);
    drop(shale);
    session.detach().map_err(|e| format!("detach: {e}"))?;
    daemon.shutdown().map_err(|e| format!("shutdown: {e}"))
}

/// The inode of each path.
pub(crate) fn inos(view: &View) -> Checked<BTreeMap<Vec<u8>, u64>> {
    let mut all = BTreeMap::new();
    let mut left = vec![(Vec::new(), Ino::ROOT)];
    while let Some((path, ino)) = left.pop() {
        let inode = view.inode(ino).map_err(|e| e.to_string())?;
        let inode = inode.ok_or_else(|| format!("inode {} is missing", ino.0))?;
        if inode.is_dir() {
            view.entries(&inode, DirKey(0), &mut |entry| {
                let below = match path.is_empty() {
                    true => entry.name,
                    false => [&path[..], b"/", &entry.name].concat(),
                };
                left.push((below, entry.ino));
                ControlFlow::Continue(())
            })
            .map_err(|e| e.to_string())?;
        }
        all.insert(path, ino.0);
    }
    Ok(all)
}

/// Does `acts` operations of a workload on the volume and unmounts it; gives the tree.
///
/// # Errors
/// Shale is wrong.
pub fn fill(stage: &Stage, load: Load, seed: u64, acts: usize) -> Checked<Snapshot> {
    let mut model = Memory::new(0o755);
    do_all(stage, &mut model, load.acts(seed).take(acts))?;
    tree(&mut model)
}

/// How a daemon serves a small stage's volume in this NVM directory.
pub fn config_of(nvm: &Path) -> DaemonConfig {
    config(nvm, NVM_BYTES_MIN, &UUID)
}

fn config(nvm: &Path, bytes: u64, uuid: &[u8; 16]) -> DaemonConfig {
    let policy = std::fs::read_to_string(nvm.with_file_name(POLICY));
    let policy = policy.unwrap_or_else(|_| Durability::Strict.name().to_owned());
    let volume = VolumeFile {
        format: FORMAT,
        name: "faults".to_owned(),
        uuid: uuid_text(uuid),
        durability: policy,
        log_bytes: LOG_BYTES_MIN,
        client_log_bytes: None,
        buffer_dir: Some(nvm.with_file_name("buffer")),
        buffering: None,
        buffer_bytes: None,
        staged: None,
        nvm: vec![NvmEntry::new(nvm.to_path_buf(), bytes)],
        migrate_at_percent: None,
        digest_at_percent: None,
        write_back_at_percent: None,
        next_mount: None,
        trusted_uids: Vec::new(),
        ssd: vec![],
        hdd: vec![],
    };
    DaemonConfig {
        digest_threads: 1,
        ..DaemonConfig::new(volume)
    }
}
