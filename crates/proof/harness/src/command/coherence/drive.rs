//! Starts workers, disturbs them, waits for them and has their logs judged.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use shale_bench::chance::Chance;

use super::check;
use super::log::{Log, now, read};
use super::plant::LIES;
use super::work::{Worker, prepare};

/// The daemon waits 5 s for a client that stands still in a call; the rest is for a busy machine.
pub const LIMIT_MS: u64 = 12_000;
/// Contradictions that are printed.
const SHOWN: usize = 20;
const SECOND: u64 = 1_000_000_000;

/// Arguments of `drive`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A new directory is made here
    dir: PathBuf,
    /// Where logs go; a new directory, not on the volume
    #[arg(long)]
    logs: PathBuf,
    /// The program whose `run` makes workers clients; without it all go through the mount
    #[arg(long)]
    shale: Option<PathBuf>,
    /// Workers
    #[arg(long, default_value_t = 8)]
    workers: u64,
    /// So many of the workers are clients
    #[arg(long, default_value_t = 4)]
    clients: u64,
    /// Of the random calls and disturbances
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Workers on the mount rest for half of the time, all at once, so that files go
    /// back and forth between the kernel and clients that go past it
    #[arg(long)]
    rests: bool,
    /// Kill and stop clients
    #[arg(long)]
    disturb: bool,
    /// The longest that a call may take
    #[arg(long, default_value_t = LIMIT_MS)]
    limit_ms: u64,
}

/// Arguments of `work`.
#[derive(Debug, clap::Args)]
pub struct WorkerOptions {
    dir: PathBuf,
    log: PathBuf,
    seed: u64,
    number: u64,
    /// CLOCK_MONOTONIC in nanoseconds; 0: look at everything once
    until: u64,
    /// Rest now and then
    #[arg(long)]
    rests: bool,
}

/// One worker's life.
pub fn work(options: &WorkerOptions) -> io::Result<bool> {
    let log = Log::create(&options.log)?;
    let mut worker = Worker::new(options.dir.clone(), log, options.seed, options.number);
    if options.until == 0 {
        worker.finish()?;
    } else {
        worker.run(options.until, options.rests)?;
    }
    Ok(true)
}

struct Running {
    child: Child,
    name: String,
    client: bool,
}

struct Drive<'o> {
    options: &'o Options,
    dir: PathBuf,
    until: u64,
    started: u64,
}

impl Drive<'_> {
    fn start(&mut self, client: bool, until: u64) -> io::Result<Running> {
        let program = std::env::current_exe()?;
        let client = client && self.options.shale.is_some();
        let kind = if client { "run" } else { "mount" };
        let name = format!("{kind}-{}.log", self.started);
        let mut command = match &self.options.shale {
            Some(shale) if client => {
                let mut command = Command::new(shale);
                // At once a client, not only after many calls.
                command
                    .env("SHALE_WARM_CALLS", "0")
                    .args(["run", "--"])
                    .arg(program);
                command
            }
            _ => Command::new(program),
        };
        command
            .args(["coherence", "work"])
            .arg(&self.dir)
            .arg(self.options.logs.join(&name))
            .args([self.options.seed, self.started, until].map(|n| n.to_string()))
            .stdin(Stdio::null());
        if self.options.rests && !client {
            command.arg("--rests");
        }
        self.started += 1;
        Ok(Running {
            child: command.spawn()?,
            name,
            client,
        })
    }

    /// Kills and stops clients until shortly before the end.
    fn disturb(&mut self, workers: &mut [Running]) -> io::Result<(u32, u32)> {
        let mut chance = Chance::new(self.options.seed ^ 0x5709);
        let mut stops = Log::create(&self.options.logs.join("all.stops"))?;
        let (mut killed, mut stopped) = (0, 0);
        let clients: Vec<usize> = (0..workers.len())
            .filter(|&at| workers[at].client)
            .collect();
        while now() + 2 * SECOND < self.until && !clients.is_empty() {
            std::thread::sleep(Duration::from_millis(20 + chance.below(400)));
            let at = clients[chance.below(clients.len() as u64) as usize];
            let kill = chance.below(3) == 0;
            // Mostly shorter than the daemon waits; one in eight longer.
            let most = if chance.below(8) == 0 { 7_000 } else { 700 };
            let pause = Duration::from_millis(chance.below(most));
            let Some(process) = Pid::from_raw(workers[at].child.id() as i32) else {
                continue;
            };
            if chance.below(3) > 0 || !kill {
                stopped += 1;
                let name = workers[at].name.clone();
                stops.call(&format!("stop {name}"), || {
                    let done = kill_process(process, Signal::STOP);
                    std::thread::sleep(pause);
                    let again = if kill {
                        Ok(())
                    } else {
                        kill_process(process, Signal::CONT)
                    };
                    format!("{done:?} {again:?}")
                })?;
            }
            if kill {
                killed += 1;
                workers[at].child.kill()?;
                workers[at].child.wait()?;
                workers[at] = self.start(true, self.until)?;
            }
        }
        Ok((killed, stopped))
    }
}

/// Starts workers, waits, judges. Prints one line for each check that failed and the counts.
pub fn drive(options: &Options) -> io::Result<bool> {
    std::fs::create_dir(&options.logs)?;
    let dir = options.dir.join(format!("coherence-{}", options.seed));
    std::fs::create_dir(&dir)?;
    prepare(&dir)?;
    let mut drive = Drive {
        options,
        dir,
        until: now() + options.seconds * SECOND,
        started: 0,
    };
    let until = drive.until;
    let mut workers = Vec::new();
    for number in 0..options.workers {
        workers.push(drive.start(number < options.clients, until)?);
    }
    let (killed, stopped) = if options.disturb {
        drive.disturb(&mut workers)?
    } else {
        (0, 0)
    };
    let mut good = true;
    for worker in &mut workers {
        let ended = worker.child.wait()?;
        if !ended.success() {
            println!("FAILED  {} ended with {ended}", worker.name);
            good = false;
        }
    }
    for client in [false, true] {
        good &= drive.start(client, 0)?.child.wait()?.success();
    }
    if options.disturb {
        println!("{killed} clients killed, {stopped} stopped");
    }
    Ok(report(&options.logs, options.limit_ms)? && good)
}

/// Judges the logs of a directory, and the checker by lies it has to find.
pub fn report(logs: &Path, limit_ms: u64) -> io::Result<bool> {
    let (mut calls, mut stops) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(logs)? {
        let path = entry?.path();
        let all = if path.extension().is_some_and(|e| e == "stops") {
            &mut stops
        } else {
            &mut calls
        };
        all.extend(read(&path)?);
    }
    let verdict = check::judge(&calls, &stops, limit_ms * 1_000_000);
    for wrong in verdict.wrong.iter().take(SHOWN) {
        println!("FAILED  {wrong}");
    }
    let mut kinds = BTreeMap::new();
    for wrong in &verdict.wrong {
        let first = wrong.lines().next().unwrap_or_default();
        let (about, how) = first.split_once(": ").unwrap_or((first, ""));
        let file = about.split(' ').next().unwrap_or_default();
        *kinds.entry(format!("{file}: {how}")).or_insert(0) += 1;
    }
    for (kind, count) in kinds {
        println!("        {count} times {kind}");
    }
    let mut missed = Vec::new();
    // One lie in each run: judging a log takes seconds.
    for (what, lie) in LIES.iter().skip(calls.len() % LIES.len()).take(1) {
        let mut changed = calls.clone();
        if lie(&mut changed) && check::judge(&changed, &stops, u64::MAX).wrong.is_empty() {
            missed.push(what);
        }
    }
    let by_clients = calls.iter().filter(|c| c.client).count();
    println!(
        "{} calls ({by_clients} of clients), {} observations judged, longest call {} ms, \
         {} wrong; lies not found: {missed:?}",
        verdict.calls,
        verdict.observations,
        verdict.longest_ns / 1_000_000,
        verdict.wrong.len(),
    );
    Ok(verdict.wrong.is_empty() && missed.is_empty())
}
