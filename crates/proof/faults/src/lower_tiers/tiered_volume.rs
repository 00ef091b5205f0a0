//! A volume with flash and disk below NVM, on media that do as the test says: fail, forget, rot.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;
use shale_block::{Ask, MemoryBlocks, TierDevice};
use shale_check::{CheckOptions, RepairReport, Report};
use shale_daemon::{Daemon, DaemonConfig};
use shale_format::limits::{BLOCK_BYTES, LABEL_AREA_BYTES, LOG_BYTES_MIN};
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_libfs::{OFlags, Session};
use shale_nvm::{Access, Map};
use shale_volume::{LowerDevices, MkfsOptions, View, Volume};

use crate::trial::Trial;
use crate::volume::sight::Sight;
use crate::volume::stage::{Checked, Stage, attach_to, both, close_all, inos, side, tree};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_model::{Act, FileAct, Fill, Memory, Shale, Side, Snapshot};
use shale_powercut::volume::lower_tiers::{device, for_check, with_tiers};

/// Operations of the workload.
const ACTS: usize = 400;
/// Bytes of a large file.
pub(crate) const LARGE_BYTES: usize = 32 * BLOCK_BYTES;
const SLOT: usize = 4;
/// Lower tiers, as they are called.
pub(crate) const NAMES: [&str; 2] = ["ssd", "hdd"];

/// What fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) device: usize,
    pub(crate) ask: Ask,
    /// So many go well before.
    pub(crate) after: u64,
    /// All later ones, too.
    pub(crate) ever: bool,
}

#[derive(Default)]
struct Plan {
    failure: Option<Failure>,
    failed: u64,
    /// What each device held at its last flush.
    flushed: [Vec<u8>; 2],
}

impl Plan {
    /// Whether it may be. A flush that fails loses everything since the last one.
    fn ask(&mut self, n: usize, ask: Ask, device: &MemoryBlocks) -> std::result::Result<(), Errno> {
        let answer = self.answer(n, ask);
        match (ask, answer) {
            (Ask::Flush, Ok(())) => self.flushed[n] = device.contents(),
            (Ask::Flush, Err(_)) => device.spoil(0, &self.flushed[n]),
            _ => {}
        }
        answer
    }

    fn answer(&mut self, device: usize, ask: Ask) -> std::result::Result<(), Errno> {
        let Some(failure) = &mut self.failure else {
            return Ok(());
        };
        if (failure.device, failure.ask) != (device, ask) {
            return Ok(());
        }
        if failure.after > 0 {
            failure.after -= 1;
            return Ok(());
        }
        self.failed += 1;
        if !failure.ever {
            self.failure = None;
        }
        Err(Errno::IO)
    }
}

/// A block below NVM that a file has.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) path: Vec<u8>,
    pub(crate) addr: BlockAddr,
}

impl Live {
    /// Which device.
    pub(crate) fn device(&self) -> usize {
        usize::from(self.addr.tier() == Some(TierId::Hdd))
    }

    /// Where on it.
    pub(crate) fn byte(&self) -> u64 {
        LABEL_AREA_BYTES + self.addr.index() * BLOCK_BYTES as u64
    }
}

/// A volume that a workload has filled, most of it below NVM.
pub(crate) struct Tiered {
    pub(crate) stage: Stage,
    pub(crate) devices: [Arc<MemoryBlocks>; 2],
    plan: Arc<Mutex<Plan>>,
    pub(crate) tree: Snapshot,
    pub(crate) image: Vec<u8>,
    pub(crate) contents: Vec<Vec<u8>>,
}

pub(crate) fn program(e: impl std::fmt::Display) -> BenchError {
    BenchError::Program {
        program: "the volume".to_owned(),
        found: e.to_string(),
    }
}

/// A large file rebuilt.
pub(crate) fn large(name: &str, seed: u8) -> Vec<Act> {
    let flags = OFlags::RDWR | OFlags::CREATE;
    let fill = Fill {
        seed,
        len: LARGE_BYTES,
    };
    vec![
        Act::Open(SLOT, name.as_bytes().to_vec(), flags, 0o600),
        Act::File(SLOT, FileAct::Write(0, fill)),
        Act::File(SLOT, FileAct::Close),
    ]
}

impl Tiered {
    /// Does the trial's workload on a new volume, makes some large files, and moves everything down.
    pub(crate) fn new(trial: &Trial<'_>) -> Result<Checked<Tiered>> {
        let stage = trial.stage()?;
        let plan: Arc<Mutex<Plan>> = Arc::default();
        let devices = [0, 1].map(|n| {
            let plan = Arc::clone(&plan);
            Arc::new_cyclic(|this: &Weak<MemoryBlocks>| {
                let this = Weak::clone(this);
                device(n).asking(move |ask| match this.upgrade() {
                    Some(device) => plan.lock().ask(n, ask, &device),
                    None => Ok(()),
                })
            })
        });
        let mut tiered = Tiered {
            stage,
            devices,
            plan,
            tree: Snapshot::default(),
            image: Vec::new(),
            contents: Vec::new(),
        };
        tiered.mkfs()?;
        let filled = tiered.fill(trial);
        Ok(filled.and_then(|tree| {
            tiered.tree = tree;
            tiered.keep().map_err(|e| e.to_string())?;
            let below = tiered.live()?;
            let both = [0, 1].map(|n| below.iter().filter(|b| b.device() == n).count());
            match both.contains(&0) {
                true => Err(format!("not on both tiers: {both:?} blocks")),
                false => Ok(tiered),
            }
        }))
    }

    /// What is there now is what is restored later.
    pub(crate) fn keep(&mut self) -> Result<()> {
        let journal = self.stage.view()?.superblock().journal_block as usize * BLOCK_BYTES;
        self.image = self.stage.image()?;
        // A later batch lies there: the last one is not put in its place once more.
        self.image[journal..journal + 64].fill(0);
        self.contents = self.devices.iter().map(|d| d.contents()).collect();
        Ok(())
    }

    fn mkfs(&self) -> Result<()> {
        let options = MkfsOptions {
            uuid: self.config().volume.uuid_bytes(),
            hash_seed: [0x5eed, 0xca11],
            root_mode: 0o755,
            log_bytes: LOG_BYTES_MIN,
            owner_uid: rustix::process::geteuid().as_raw(),
            ..MkfsOptions::default()
        };
        let map = Map::open_files(&[self.stage.segment(0)], Access::ReadWrite)?;
        let made = Volume::create_with(Arc::new(map), &with_tiers(options), &self.lower());
        made.map(drop).map_err(program)
    }

    fn fill(&self, trial: &Trial<'_>) -> Checked<Snapshot> {
        let mut model = Memory::new(0o755);
        let acts: Vec<Act> = trial
            .filled
            .load
            .acts(trial.options.seed)
            .take(ACTS)
            .collect();
        self.serve(|daemon, shale, _| {
            for act in &acts {
                both(&mut model, shale, act)?;
            }
            close_all(shale);
            close_all(&mut model);
            for n in 0..12_u8 {
                for act in large(&format!("large-{n}"), n) {
                    both(&mut model, shale, &act)?;
                }
                if n % 4 == 3 {
                    down(daemon)?;
                }
            }
            tree(&mut model)
        })
    }

    fn lower(&self) -> LowerDevices {
        let [ssd, hdd] = self.devices.clone();
        LowerDevices {
            ssd: vec![ssd as Arc<dyn TierDevice>],
            hdd: vec![hdd],
        }
    }

    /// How a daemon serves it.
    pub(crate) fn config(&self) -> DaemonConfig {
        let mut config = self.stage.config();
        config.lower = Some(self.lower());
        config
    }

    fn check_options(&self) -> CheckOptions {
        let [ssd, hdd] = self.devices.clone();
        CheckOptions {
            below: for_check([ssd, hdd]),
            ..CheckOptions::default()
        }
    }

    /// What `fsck` says, which has the devices.
    pub(crate) fn fsck(&self) -> Checked<Report> {
        self.stage.fsck_with(&self.check_options())
    }

    /// What `fsck --repair` says, which has them, too.
    pub(crate) fn repair(&self) -> Checked<RepairReport> {
        self.stage.repair_with(&self.check_options())
    }

    /// Everything is as it was at first, and nothing fails.
    pub(crate) fn restore(&self) -> Result<()> {
        self.fail(None);
        self.plan.lock().flushed = std::array::from_fn(|n| self.contents[n].clone());
        self.stage.put(&self.image)?;
        for (device, bytes) in self.devices.iter().zip(&self.contents) {
            device.spoil(0, bytes);
        }
        Ok(())
    }

    /// From now on this fails. Gives how often the last failure happened.
    pub(crate) fn fail(&self, failure: Option<Failure>) -> u64 {
        let mut plan = self.plan.lock();
        plan.failure = failure;
        std::mem::take(&mut plan.failed)
    }

    /// Serves it for a while, and unmounts it.
    pub(crate) fn serve<T>(
        &self,
        act: impl FnOnce(&Arc<Daemon>, &mut Shale, &Arc<Session>) -> Checked<T>,
    ) -> Checked<T> {
        let daemon = self.stage.start_with(self.config())?;
        let session = attach_to(&daemon)?;
        let mut shale = side(&session);
        let done = act(&daemon, &mut shale, &session);
        close_all(&mut shale);
        drop(shale);
        let detached = session.detach().map_err(|e| format!("detach: {e}"));
        let stopped = daemon.shutdown().map_err(|e| format!("shutdown: {e}"));
        let done = done?;
        detached.and(stopped).map(|()| done)
    }

    /// Blocks below NVM, and whose they are.
    pub(crate) fn live(&self) -> Checked<Vec<Live>> {
        live(&self.stage.view().map_err(|e| e.to_string())?)
    }

    /// Everything is as `tree` says, now and after an unmount; `fsck` finds nothing.
    pub(crate) fn is_whole(&self, tree: &Snapshot) -> Checked<()> {
        let report = self.fsck()?;
        if !report.clean() {
            return Err(format!("fsck:\n{report}"));
        }
        self.serve(|_, shale, _| Sight::of(shale, tree).within(&[]))
    }
}

/// Blocks below NVM, and whose they are; of a file with several names the first.
fn live(view: &View) -> Checked<Vec<Live>> {
    let mut names: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for (path, ino) in inos(view)? {
        names.entry(ino).or_insert(path);
    }
    let mut all = Vec::new();
    for (ino, path) in names {
        let inode = view.inode(Ino(ino)).map_err(|e| e.to_string())?;
        let Some(inode) = inode.filter(|inode| inode.is_file() || inode.is_symlink()) else {
            continue;
        };
        view.extents(&inode, FileBlock(0), &mut |extent| {
            let first = BlockAddr::from_raw(extent.addr);
            if first.tier() != Some(TierId::Nvm) && !extent.is_unwritten() {
                for n in 0..u64::from(extent.len) {
                    let (path, addr) = (path.clone(), first.plus(n));
                    all.push(Live { path, addr });
                }
            }
            ControlFlow::Continue(())
        })
        .map_err(|e| e.to_string())?;
    }
    Ok(all)
}

/// Moves everything out of NVM, as far as there is space. Gives the bytes.
pub(crate) fn down(daemon: &Daemon) -> Checked<u64> {
    daemon.quiesce();
    let moved = daemon.migrate(None).map_err(|e| format!("migration: {e}"));
    daemon.quiesce();
    moved
}

/// Makes another large file on both sides.
pub(crate) fn make(model: &mut Vec<(String, u8)>, shale: &mut dyn Side, name: &str) -> Checked<()> {
    let seed = 40 + model.len() as u8;
    for act in large(name, seed) {
        shale.act(&act).map_err(|e| format!("{act:?}: {e}"))?;
    }
    model.push((name.to_owned(), seed));
    Ok(())
}

/// Large files are as they were made.
pub(crate) fn compare(model: &[(String, u8)], shale: &mut dyn Side) -> Checked<()> {
    for (name, seed) in model {
        let path = name.as_bytes().to_vec();
        let open = Act::Open(SLOT, path, OFlags::RDONLY, 0);
        shale.act(&open).map_err(|e| format!("{name}: open: {e}"))?;
        let read = shale.act(&Act::File(SLOT, FileAct::Read(0, LARGE_BYTES + 1)));
        let _ = shale.act(&Act::File(SLOT, FileAct::Close));
        let fill = Fill {
            seed: *seed,
            len: LARGE_BYTES,
        };
        match read {
            Ok(shale_model::Said::Bytes(bytes)) if bytes == fill.bytes() => {}
            Ok(_) => return Err(format!("{name}: content differs")),
            Err(e) => return Err(format!("{name}: read: {e}")),
        }
    }
    Ok(())
}
