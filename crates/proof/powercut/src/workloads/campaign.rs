//! Many workloads in several threads, within limits; what was found made small.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::explore::explorer::{Counts, Depth, Explorer, Failure, Known};
use crate::volume::base::{Base, More};
use crate::workloads::minimise::minimise;
use crate::workloads::sequences::Kind;
use shale_bench::BenchError;
use shale_bench::Result;
use shale_format::Durability;
use shale_model::workload::words::Workload;

/// What to look at, and how long.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory on tmpfs for volumes.
    pub dir: PathBuf,
    /// Kinds of workloads, and how many of each; they take turns.
    pub kinds: Vec<(Kind, u64)>,
    /// Only this workload.
    pub only: Option<Workload>,
    /// Begin with trees of two levels.
    pub large: bool,
    /// Begin with a volume that is nearly full.
    pub full: bool,
    /// The volume's policy: with `Buffered`, calls before an fsync or a digest are durable, with `Ordered` those before a digest. Of one client,
    /// or several that take turns.
    pub policy: Durability,
    /// Seed of everything.
    pub seed: u64,
    /// This is shard `.0` of `.1`.
    pub shard: (u64, u64),
    /// Kinds one after the other, each in order, and shards of workloads that follow one another.
    pub in_order: bool,
    /// Threads.
    pub threads: usize,
    /// Ends after so long.
    pub time_limit: Duration,
    /// Ends after so many states.
    pub states_max: u64,
    /// Ends after so many failures.
    pub failures_max: usize,
    /// Makes workloads that fail smaller.
    pub minimise: bool,
    /// The deliberate mistake that is switched on meanwhile (feature `mutants`).
    pub mutant: Option<&'static str>,
    /// How closely to look.
    pub depth: Depth,
}

impl Options {
    fn more(&self) -> More {
        let threads = match &self.only {
            Some(workload) => workload.threads,
            None => self.kinds.iter().any(|kind| kind.0 == Kind::Threads),
        };
        let tiers = match &self.only {
            Some(workload) => workload.tiers,
            None => self.kinds.iter().any(|kind| kind.0 == Kind::Tiers),
        };
        match (threads, self.large) {
            _ if tiers => More::Tiers,
            (true, _) => More::Twin,
            (false, _) if self.full => More::Full,
            (false, true) => More::Large,
            (false, false) => More::Nothing,
        }
    }
}

/// What came out.
#[derive(Debug, serde::Serialize)]
pub struct Summary {
    /// Seed of everything.
    pub seed: u64,
    /// Shard, of how many.
    pub shard: (u64, u64),
    /// Seconds it took.
    pub seconds: f64,
    /// Different images recovered and checked.
    pub states: u64,
    /// Of these in a second.
    pub states_per_second: f64,
    /// Workloads of each kind that were run.
    pub workloads: Vec<(&'static str, u64)>,
    /// Whether all that was asked for was looked at.
    pub complete: bool,
    /// All counts.
    pub counts: Counts,
    /// What is wrong.
    pub failures: Vec<Failure>,
    /// What was met.
    #[serde(skip)]
    pub known: Known,
}

/// The list that threads take workloads from.
struct List {
    kinds: Vec<(Kind, u64)>,
    /// How many of each kind were given out.
    given: Mutex<Vec<u64>>,
    shard: (u64, u64),
    in_order: bool,
    seed: u64,
    done: Vec<AtomicU64>,
}

impl List {
    /// First number of a kind in this shard, in order.
    fn first(&self, kind: usize) -> u64 {
        self.kinds[kind].1 * self.shard.0 / self.shard.1
    }

    /// Number behind the last one.
    fn end(&self, kind: usize) -> u64 {
        self.kinds[kind].1 * (self.shard.0 + 1) / self.shard.1
    }

    /// The kinds take turns in proportion to their counts, so that each has had its part
    /// whenever time is up.
    fn take(&self) -> Option<(usize, Workload)> {
        let mut given = self.given.lock();
        if self.in_order {
            let (kind, number) = (0..self.kinds.len()).find_map(|kind| {
                let number = self.first(kind) + given[kind];
                (number < self.end(kind)).then_some((kind, number))
            })?;
            given[kind] += 1;
            return Some((kind, self.kinds[kind].0.in_order(number, self.seed)));
        }
        loop {
            let left = (0..self.kinds.len()).filter(|&kind| given[kind] < self.kinds[kind].1);
            let part = |kind: &usize| given[*kind] as f64 / self.kinds[*kind].1 as f64;
            let kind = left.min_by(|a, b| part(a).total_cmp(&part(b)))?;
            let number = given[kind];
            given[kind] += 1;
            if number % self.shard.1 == self.shard.0 {
                return Some((kind, self.kinds[kind].0.workload(number, self.seed)));
            }
        }
    }
}

/// What all threads share.
struct Campaign<'o> {
    options: &'o Options,
    base: Arc<Base>,
    known: Arc<Known>,
    list: List,
    begin: Instant,
    over: AtomicBool,
    failures: Mutex<Vec<Failure>>,
    errors: Mutex<Vec<BenchError>>,
}

impl Campaign<'_> {
    fn is_over(&self) -> bool {
        let states = self.known.counts.states.load(Ordering::Relaxed);
        let over = self.over.load(Ordering::Relaxed)
            || states >= self.options.states_max
            || self.begin.elapsed() >= self.options.time_limit
            || self.failures.lock().len() >= self.options.failures_max;
        if over {
            self.over.store(true, Ordering::Relaxed);
        }
        over
    }

    fn work(&self) -> Result<()> {
        let new = |known| {
            let options = self.options;
            Explorer::new(&options.dir, self.base.clone(), options.depth, known)
        };
        let mut explorer = new(self.known.clone())?;
        while !self.is_over() {
            let Some((kind, workload)) = self.list.take() else {
                return Ok(());
            };
            let seed = self.options.seed;
            let found = explorer.explore(&workload, seed, &|| self.is_over())?;
            if let Some(done) = self.list.done.get(kind) {
                done.fetch_add(1, Ordering::Relaxed);
            }
            if let Err(failure) = found {
                let small = match self.options.minimise {
                    true => minimise(&mut |known| new(known), *failure, seed, self.begin)?,
                    false => *failure,
                };
                let mut failures = self.failures.lock();
                if !failures.iter().any(|f| f.workload == small.workload) {
                    failures.push(small);
                }
            }
        }
        Ok(())
    }

    fn only(&self, workload: &Workload) -> Result<()> {
        let options = self.options;
        let known = self.known.clone();
        let mut explorer = Explorer::new(&options.dir, self.base.clone(), options.depth, known)?;
        if let Err(failure) = explorer.explore(workload, options.seed, &|| self.is_over())? {
            self.failures.lock().push(*failure);
        }
        Ok(())
    }
}

/// A mutant that is switched on until this is dropped.
pub struct Switched;

fn switch(mutant: Option<&'static str>) {
    #[cfg(feature = "mutants")]
    shale_sys::mutants::switch_on(mutant);
    let _ = mutant;
}

impl Switched {
    /// `threads`: those of one client run at the same time.
    pub fn on(mutant: Option<&'static str>, threads: bool) -> Switched {
        switch(mutant);
        #[cfg(feature = "mutants")]
        shale_sys::mutants::hold_between(threads.then_some(crate::volume::unrest::hold_between));
        let _ = threads;
        Switched
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        switch(None);
        #[cfg(feature = "mutants")]
        shale_sys::mutants::hold_between(None);
    }
}

/// Looks at workloads. `progress` hears of counts and failures several times a second.
///
/// # Errors
/// It could not be done; what Shale did wrong is in the summary.
pub fn run(options: &Options, progress: &(dyn Fn(&Counts, usize) + Sync)) -> Result<Summary> {
    let campaign = Campaign {
        options,
        base: Base::make_with(&options.dir, options.more(), options.policy)?,
        known: Arc::default(),
        list: List {
            done: options.kinds.iter().map(|_| AtomicU64::new(0)).collect(),
            kinds: options.kinds.clone(),
            given: Mutex::new(vec![0; options.kinds.len()]),
            shard: options.shard,
            in_order: options.in_order,
            seed: options.seed,
        },
        begin: Instant::now(),
        over: AtomicBool::new(false),
        failures: Mutex::default(),
        errors: Mutex::default(),
    };
    let switched = Switched::on(options.mutant, options.more() == More::Twin);
    let threads = if options.only.is_some() {
        1
    } else {
        options.threads.max(1)
    };
    std::thread::scope(|scope| {
        let work = || {
            let done = match &options.only {
                Some(workload) => campaign.only(workload),
                None => campaign.work(),
            };
            if let Err(error) = done {
                campaign.over.store(true, Ordering::Relaxed);
                campaign.errors.lock().push(error);
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        while !workers.iter().all(|worker| worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            progress(&campaign.known.counts, campaign.failures.lock().len());
        }
    });
    drop(switched);
    if let Some(error) = campaign.errors.into_inner().pop() {
        return Err(error);
    }
    let seconds = campaign.begin.elapsed().as_secs_f64();
    let states = campaign.known.counts.states.load(Ordering::Relaxed);
    let done = options.kinds.iter().zip(&campaign.list.done);
    let mut known = Arc::into_inner(campaign.known).unwrap_or_default();
    Ok(Summary {
        seed: options.seed,
        shard: options.shard,
        seconds,
        states,
        states_per_second: states as f64 / seconds,
        workloads: done
            .map(|(k, n)| (k.0.name(), n.load(Ordering::Relaxed)))
            .collect(),
        complete: !campaign.over.load(Ordering::Relaxed),
        counts: std::mem::take(&mut known.counts),
        failures: campaign.failures.into_inner(),
        known,
    })
}
