//! Looks at every state that a power cut in a workload could leave.
//!
//! For each workload: run it and note what it stores; at each fence, and whenever a step
//! has returned, choose what survives; recover each image that was not seen before; check the
//! volume, and that its tree is one that the model had after a number of steps between those
//! that had returned and those that had begun. Then the same with cuts while recovery runs:
//! whatever it had done, doing it again has to give the same tree.

mod long_runs;
mod recovery_cuts;
mod requests;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use shale_record::BlockRules;

use crate::images::{ALL_SUBSETS, Caches, Cutter, Image};
use crate::recording::record::run;
use crate::recording::run::Run;
use crate::recording::track::{Parts, parts};
use crate::recovery::check::{self, Recovered};
use crate::recovery::databases;
use crate::recovery::{mkfs, rot};
use crate::volume::base::Base;
use crate::volume::place::Place;
use shale_bench::Result;
use shale_bench::chance::Chance;
use shale_model::Snapshot;
use shale_model::workload::words::Workload;

/// How closely to look.
#[derive(Debug, Clone, Copy)]
pub struct Depth {
    /// Images at one point at most, where there are more than that.
    pub images_per_cut: usize,
    /// All subsets of what is uncertain where they are no more than so many.
    pub all_subsets: usize,
    /// Recover every so manieth new image once more with cuts in between; 0: none.
    pub again_every: u64,
    /// Images at one point of a recovery at most.
    pub images_per_cut_again: usize,
    /// Serve every so manieth new recovered volume, fill and empty it; 0: none.
    pub live_every: u64,
    /// Flip bits in every so manieth new recovered volume; 0: none.
    pub flip_every: u64,
    /// What survives unfenced.
    pub caches: Caches,
    /// What survives of devices below NVM.
    pub devices: BlockRules,
}

impl Depth {
    /// How closely huge writes are looked at: there is more in each image.
    pub const HUGE: Depth = Depth {
        images_per_cut: 24,
        flip_every: 0,
        ..Depth::TIERS
    };

    /// How closely runs with lower tiers are looked at: each step, with several states of the
    /// devices at each cut.
    pub const TIERS: Depth = Depth {
        images_per_cut: 8,
        all_subsets: 16,
        again_every: 128,
        images_per_cut_again: 6,
        live_every: 512,
        flip_every: 0,
        caches: Caches::Volatile,
        devices: BlockRules { flush_lies: false },
    };
}

impl Default for Depth {
    fn default() -> Self {
        Depth {
            images_per_cut: 160,
            all_subsets: ALL_SUBSETS,
            again_every: 64,
            images_per_cut_again: 6,
            live_every: 64,
            flip_every: 64,
            caches: Caches::Volatile,
            devices: BlockRules::default(),
        }
    }
}

/// Something wrong, and how to see it again.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Failure {
    /// The workload, as words.
    pub workload: String,
    /// Events before the cut; none: the workload itself went wrong.
    pub event: Option<usize>,
    /// Steps that had returned and steps that had begun, of each track.
    pub windows: Vec<(usize, usize)>,
    /// Which units survived (`1`), of those that were uncertain.
    pub survivors: Option<String>,
    /// What is wrong.
    pub wrong: String,
}

/// What was looked at.
#[derive(Debug, Default, serde::Serialize)]
pub struct Counts {
    /// Workloads run.
    pub workloads: AtomicU64,
    /// Points at which power was cut.
    pub cuts: AtomicU64,
    /// Images, equal ones counted again.
    pub images: AtomicU64,
    /// Different images recovered.
    pub states: AtomicU64,
    /// Of these, cut in a recovery.
    pub states_again: AtomicU64,
    /// Of these, cut in a recovery of what a cut in a recovery had left.
    pub states_third: AtomicU64,
    /// Different recovered volumes, each checked in full.
    pub volumes: AtomicU64,
    /// Of these, served, filled and emptied.
    pub lived_on: AtomicU64,
    /// Recovered databases that were opened by their program.
    pub databases: AtomicU64,
    /// Of these, damaged bit by bit.
    pub flipped: AtomicU64,
    /// Steps of long runs.
    pub steps: AtomicU64,
    /// Power cuts, unmounts and deaths of clients in long runs, after which they went on.
    pub faults: AtomicU64,
}

/// Counts one.
pub(crate) fn add(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed)
}

const SHARDS: usize = 64;

/// What all threads of an exploration know.
#[derive(Debug)]
pub struct Known {
    /// The tree that each image recovers to.
    images: Vec<Mutex<HashMap<u128, Parts>>>,
    /// Recovered volumes that were checked, and the tree of each.
    volumes: Vec<Mutex<HashMap<u128, Parts>>>,
    /// How many transactions the database in each tree has.
    databases: Mutex<HashMap<Parts, u64>>,
    /// What was looked at.
    pub counts: Counts,
}

impl Default for Known {
    fn default() -> Self {
        Known {
            images: (0..SHARDS).map(|_| Mutex::default()).collect(),
            volumes: (0..SHARDS).map(|_| Mutex::default()).collect(),
            databases: Mutex::default(),
            counts: Counts::default(),
        }
    }
}

impl Known {
    pub(crate) fn image(&self, hash: u128) -> &Mutex<HashMap<u128, Parts>> {
        &self.images[hash as usize % SHARDS]
    }

    /// Hashes of all images that were recovered.
    pub fn images(&self) -> Vec<u128> {
        let hashes = |images: &Mutex<HashMap<u128, Parts>>| -> Vec<u128> {
            images.lock().keys().copied().collect()
        };
        self.images.iter().flat_map(hashes).collect()
    }

    /// Hashes of all volumes that came out.
    pub fn volumes(&self) -> Vec<u128> {
        let hashes = |volumes: &Mutex<HashMap<u128, Parts>>| -> Vec<u128> {
            volumes.lock().keys().copied().collect()
        };
        self.volumes.iter().flat_map(hashes).collect()
    }

    fn volume(&self, hash: u128) -> &Mutex<HashMap<u128, Parts>> {
        &self.volumes[hash as usize % SHARDS]
    }
}

/// One explorer: places of its own, knowledge shared.
pub struct Explorer {
    pub(crate) base: Arc<Base>,
    pub(crate) depth: Depth,
    pub(crate) known: Arc<Known>,
    /// Where workloads run.
    pub(crate) stage: Place,
    /// Where images are recovered.
    pub(crate) ward: Place,
    dir: PathBuf,
    /// The program that opens databases is here.
    open_databases: bool,
}

pub(crate) type Found<T> = std::result::Result<T, String>;

impl Explorer {
    /// Makes its places in `dir` (on tmpfs).
    ///
    /// # Errors
    /// No space.
    pub fn new(
        dir: &std::path::Path,
        base: Arc<Base>,
        depth: Depth,
        known: Arc<Known>,
    ) -> Result<Self> {
        Ok(Explorer {
            stage: Place::new(dir, &base)?,
            ward: Place::new(dir, &base)?,
            dir: dir.to_path_buf(),
            open_databases: databases::can_be_opened(),
            base,
            depth,
            known,
        })
    }

    /// Runs a workload and looks at all its cuts. `stop` ends the look early.
    ///
    /// # Errors
    /// The outer error: it could not be looked at. The inner one: what is wrong.
    pub fn explore(
        &mut self,
        workload: &Workload,
        seed: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<std::result::Result<(), Box<Failure>>> {
        let failure = |wrong| Failure {
            workload: workload.to_string(),
            event: None,
            windows: Vec::new(),
            survivors: None,
            wrong,
        };
        add(&self.known.counts.workloads);
        if workload.mkfs {
            let found = self.explore_mkfs(seed)?;
            return Ok(found.map_err(|wrong| Box::new(failure(wrong))));
        }
        if workload.run {
            return self.explore_run(workload, seed, stop);
        }
        if workload.requests {
            return self.explore_requests(workload, seed, stop);
        }
        let run = match run(&mut self.stage, &self.base, workload)? {
            Ok(run) => run,
            Err(wrong) => return Ok(Err(Box::new(failure(wrong)))),
        };
        let base = Arc::clone(&self.base);
        let mut cutter = Cutter::new(
            &run.events,
            &base.segment,
            Image::default(),
            self.depth.caches,
        );
        let returns: HashSet<usize> = run
            .tracks
            .iter()
            .flat_map(|t| &t.steps)
            .map(|s| s.1)
            .collect();
        loop {
            let point = cutter.before_fence() || returns.contains(&cutter.at());
            if point
                && !stop()
                && let Err(found) = self.look_at(&run, &cutter, seed)?
            {
                let (survivors, wrong) = *found;
                return Ok(Err(Box::new(Failure {
                    event: Some(cutter.at()),
                    windows: run.windows(cutter.at()),
                    survivors: Some(survivors),
                    ..failure(wrong)
                })));
            }
            if !cutter.step() {
                return Ok(Ok(()));
            }
        }
    }

    /// Cuts power while a volume is made.
    fn explore_mkfs(&mut self, seed: u64) -> Result<Found<()>> {
        let base = Arc::clone(&self.base);
        let events = match mkfs::record(&mut self.stage, &base)? {
            Ok(events) => events,
            Err(wrong) => return Ok(Err(wrong)),
        };
        let image = Image::default();
        let mut seen = HashSet::new();
        let mut cutter = Cutter::new(&events, &base.segment, image, self.depth.caches);
        loop {
            let done = cutter.at() == events.len();
            if cutter.before_fence() || done {
                add(&self.known.counts.cuts);
                let cut = cutter.cut();
                let mut chance = Chance::new(seed ^ (cutter.at() as u64) << 20);
                for mut mask in cut.masks(
                    self.depth.images_per_cut,
                    self.depth.all_subsets,
                    &mut chance,
                ) {
                    add(&self.known.counts.images);
                    if seen.insert((cut.hash(&mut mask), done)) {
                        add(&self.known.counts.states);
                    }
                    let image = cut.image(&mask);
                    if let Err(wrong) = mkfs::look_at(&mut self.ward, &base, &image, done)? {
                        return Ok(Err(format!("cut at event {}: {wrong}", cutter.at())));
                    }
                }
            }
            if !cutter.step() {
                return Ok(Ok(()));
            }
        }
    }

    /// Looks at what a cut right now could leave.
    pub(crate) fn look_at(
        &mut self,
        run: &Run,
        cutter: &Cutter<'_>,
        seed: u64,
    ) -> Result<std::result::Result<(), Box<(String, String)>>> {
        add(&self.known.counts.cuts);
        let windows = run.windows(cutter.at());
        let cut = cutter.cut();
        let mut chance = Chance::new(seed ^ (cutter.at() as u64) << 20);
        for mut mask in cut.masks(
            self.depth.images_per_cut,
            self.depth.all_subsets,
            &mut chance,
        ) {
            add(&self.known.counts.images);
            let hash = cut.hash(&mut mask);
            let known = self.known.image(hash).lock().get(&hash).copied();
            let wrong = match known {
                Some(tree)
                    if run.is_right(&windows, &tree)
                        && self.has_transactions(run, &windows, &tree) =>
                {
                    continue;
                }
                _ => self.look_at_image(run, &windows, &cut.image(&mask), seed)?,
            };
            if let Err(wrong) = wrong {
                let bits = mask.iter().map(|&alive| if alive { '1' } else { '0' });
                return Ok(Err(Box::new((bits.collect(), wrong))));
            }
        }
        Ok(Ok(()))
    }

    /// Whether a tree is known to have all transactions that had been answered.
    fn has_transactions(&self, run: &Run, windows: &[(usize, usize)], tree: &Parts) -> bool {
        let known = || self.known.databases.lock().get(tree).copied();
        let answered = run.answered(windows);
        !self.open_databases || answered.is_none_or(|n| known().is_some_and(|found| found >= n))
    }

    /// Has the program of `run` open what it wrote, unless that was done.
    fn open_database(
        &self,
        run: &Run,
        windows: &[(usize, usize)],
        tree: &Snapshot,
    ) -> Result<Found<()>> {
        let Some(answered) = run.answered(windows).filter(|_| self.open_databases) else {
            return Ok(Ok(()));
        };
        let of = parts(tree);
        let known = self.known.databases.lock().get(&of).copied();
        let found = match known {
            Some(found) => found,
            None => {
                add(&self.known.counts.databases);
                match databases::transactions(tree, &self.dir)? {
                    Ok(found) => found,
                    Err(wrong) => return Ok(Err(wrong)),
                }
            }
        };
        self.known.databases.lock().insert(of, found);
        match found >= answered {
            true => Ok(Ok(())),
            false => Ok(Err(format!(
                "{answered} transactions were answered, {found} are there"
            ))),
        }
    }

    /// Recovers an image that was not seen before, and looks at what came out.
    fn look_at_image(
        &mut self,
        run: &Run,
        windows: &[(usize, usize)],
        image: &Image,
        seed: u64,
    ) -> Result<Found<()>> {
        let recovered = match self.recover(run, image, 1)? {
            Ok(recovered) => recovered,
            Err(wrong) => return Ok(Err(wrong)),
        };
        if is_chosen(image.hash, self.depth.again_every, seed)
            && let Err(wrong) = self.cut_recovery(run, image, &recovered, (2, seed))?
        {
            return Ok(Err(wrong));
        }
        let right = run.is_right(windows, &recovered.parts);
        if right && run.program.is_none() {
            return Ok(Ok(()));
        }
        let tree = match recovered.tree {
            Some(tree) => tree,
            None => match self.tree_of(run, image)? {
                Ok(tree) => tree,
                Err(wrong) => return Ok(Err(wrong)),
            },
        };
        match right {
            true => self.open_database(run, windows, &tree),
            false => Ok(Err(wrong_tree(run, windows, &tree))),
        }
    }

    /// The tree that an image is recovered to.
    pub(crate) fn tree_of(&mut self, run: &Run, image: &Image) -> Result<Found<Snapshot>> {
        let base = Arc::clone(&self.base);
        let done = check::recover(&mut self.ward, &base, image, run.logs, &|_| None)?;
        self.ward.reset(&base)?;
        Ok(done.map(|recovered| recovered.tree.unwrap_or_default()))
    }

    /// Recovers one image, checks the volume if it is a new one, and cleans up. `failures`: that
    /// often power had failed; all but the first time in a recovery.
    pub(crate) fn recover(
        &mut self,
        run: &Run,
        image: &Image,
        failures: u64,
    ) -> Result<Found<Recovered>> {
        let base = Arc::clone(&self.base);
        let knows = Arc::clone(&self.known);
        let known = |volume| knows.volume(volume).lock().get(&volume).copied();
        let done = check::recover(&mut self.ward, &base, image, run.logs, &known)?;
        let done = match done {
            Ok(recovered) => {
                let volume = recovered.volume;
                let checked = match &recovered.tree {
                    Some(tree) => self.check_volume(volume, tree)?,
                    None => Ok(()),
                };
                knows.volume(volume).lock().insert(volume, recovered.parts);
                checked.map(|()| recovered)
            }
            Err(wrong) => Err(wrong),
        };
        if let Ok(recovered) = &done {
            let known = self.known.image(image.hash).lock();
            let before = { known }.insert(image.hash, recovered.parts);
            if before.is_none() {
                add(&self.known.counts.states);
                if failures > 1 {
                    add(&self.known.counts.states_again);
                }
                if failures > 2 {
                    add(&self.known.counts.states_third);
                }
            }
        }
        self.ward.reset(&base)?;
        Ok(done)
    }

    fn check_volume(&mut self, volume: u128, tree: &Snapshot) -> Result<Found<()>> {
        add(&self.known.counts.volumes);
        if let Err(wrong) = check::fsck(&self.ward) {
            return Ok(Err(wrong));
        }
        if is_chosen(volume, self.depth.flip_every, 1) {
            add(&self.known.counts.flipped);
            let mut chance = Chance::new(volume as u64);
            let found = rot::flip_bits(&self.ward, tree, &mut chance);
            if let Err(wrong) = found {
                return Ok(Err(wrong));
            }
        }
        if !is_chosen(volume, self.depth.live_every, 0) {
            return Ok(Ok(()));
        }
        add(&self.known.counts.lived_on);
        let base = Arc::clone(&self.base);
        check::live_on(&mut self.ward, &base, tree)
    }
}

/// Whether this is one in `every`: always the same ones, whatever else was looked at.
pub(crate) fn is_chosen(hash: u128, every: u64, seed: u64) -> bool {
    every > 0 && (Chance::new(hash as u64 ^ seed).next_u64() >> 8).is_multiple_of(every)
}

fn wrong_tree(run: &Run, windows: &[(usize, usize)], found: &Snapshot) -> String {
    if let Some(orders) = &run.orders {
        return orders.explain(windows, found);
    }
    if let Some(losses) = &run.losses {
        return losses.explain(windows, found);
    }
    let tree = parts(found);
    let mut lines = Vec::new();
    for (track, &(returned, begun)) in run.tracks.iter().zip(windows) {
        if (returned..=begun).any(|k| track.is_after(k, &tree)) {
            continue;
        }
        let mut steps = 0..track.trees.len();
        lines.push(match steps.find(|&k| track.is_after(k, &tree)) {
            Some(k) => format!("the tree is that after {k} steps, expected {returned} to {begun}"),
            None => {
                let right = (returned..=begun).map(|k| (k, Arc::clone(&track.trees[k])));
                check::explain(found, &right.collect::<Vec<_>>())
            }
        });
    }
    lines.join("; ")
}
