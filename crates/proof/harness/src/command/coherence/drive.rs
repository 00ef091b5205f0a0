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
use super::names;
use super::names::dirs::AGE_NS;
use super::plant::LIES;
use super::work::{Worker, prepare};

/// The daemon waits 5 s for a client that stands still in a call; the rest is for a busy machine.
pub const LIMIT_MS: u64 = 12_000;
/// Contradictions that are printed.
const SHOWN: usize = 20;
/// The worker for names, beside this program.
const WORKER: &str = "shale-coherence-worker";
/// What clients report about themselves; beside the logs.
const SERVED: &str = "served.report";
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
    /// Half of all calls make, move, remove, list and open names in a few directories; of four clients three serve all names
    /// in the process, and one those that pay
    #[arg(long)]
    names: bool,
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
    begun: u64,
    until: u64,
    started: u64,
    killed: u32,
    stopped: u32,
}

impl Drive<'_> {
    fn start(&mut self, client: bool, until: u64) -> io::Result<Running> {
        let mut program = std::env::current_exe()?;
        if self.options.names {
            program.set_file_name(WORKER);
        }
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
                if self.options.names {
                    command.env("SHALE_REPORT", self.options.logs.join(SERVED));
                    if !self.started.is_multiple_of(4) {
                        command.env("SHALE_NAMES", "1");
                    }
                }
                command
            }
            _ => Command::new(program),
        };
        if !self.options.names {
            command.args(["coherence", "work"]);
        }
        command
            .arg(&self.dir)
            .arg(self.options.logs.join(&name))
            .args([self.options.seed, self.started, until].map(|n| n.to_string()))
            .stdin(Stdio::null());
        if self.options.names {
            let ages = names::dirs::ages(self.options.seconds);
            command.args([self.begun, ages, client.into()].map(|n| n.to_string()));
        } else if self.options.rests && !client {
            command.arg("--rests");
        }
        self.started += 1;
        Ok(Running {
            child: command.spawn()?,
            name,
            client,
        })
    }

    /// Kills and stops clients until shortly before the end of those.
    fn disturb(&mut self, workers: &mut [Running], until: u64) -> io::Result<()> {
        let mut chance = Chance::new(self.options.seed ^ 0x5709 ^ self.started);
        let stops = format!("all-{}.stops", self.started);
        let mut stops = Log::create(&self.options.logs.join(stops))?;
        let clients: Vec<usize> = (0..workers.len())
            .filter(|&at| workers[at].client)
            .collect();
        while now() + self.quiet_ns() < until && !clients.is_empty() {
            std::thread::sleep(Duration::from_millis(20 + chance.below(400)));
            let at = clients[chance.below(clients.len() as u64) as usize];
            let kill = chance.below(3) == 0;
            // Mostly shorter than the daemon waits; one in eight longer, or fewer where clients end after a while.
            let long = if self.options.names { 24 } else { 8 };
            let most = if chance.below(long) == 0 { 7_000 } else { 700 };
            let pause = Duration::from_millis(chance.below(most));
            let Some(process) = Pid::from_raw(workers[at].child.id() as i32) else {
                continue;
            };
            if chance.below(3) > 0 || !kill {
                self.stopped += 1;
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
                self.killed += 1;
                workers[at].child.kill()?;
                workers[at].child.wait()?;
                workers[at] = self.start(true, until)?;
            }
        }
        Ok(())
    }

    /// So long before its end a client is left alone: it may be stopped as long as that.
    fn quiet_ns(&self) -> u64 {
        match self.options.names {
            true => SECOND / 2,
            false => 2 * SECOND,
        }
    }

    /// When clients end that begin now: with names, others go on after a while.
    fn end_of_clients(&self) -> u64 {
        let ends = match self.options.names {
            true => self.begun + (now() - self.begun + AGE_NS / 4).next_multiple_of(AGE_NS),
            false => self.until,
        };
        ends.min(self.until)
    }

    /// Lets all workers work until the end; whether none of them failed.
    fn work(&mut self) -> io::Result<bool> {
        let mut good = true;
        let mut others = Vec::new();
        for _ in self.options.clients..self.options.workers {
            others.push(self.start(false, self.until)?);
        }
        while now() < self.until {
            let until = self.end_of_clients();
            let mut clients = Vec::new();
            for _ in 0..self.options.clients.min(self.options.workers) {
                clients.push(self.start(true, until)?);
            }
            if self.options.disturb {
                self.disturb(&mut clients, until)?;
            }
            if clients.is_empty() {
                break;
            }
            good &= have_ended(&mut clients)?;
        }
        Ok(have_ended(&mut others)? && good)
    }
}

/// Waits for workers; whether none of them failed.
fn have_ended(workers: &mut [Running]) -> io::Result<bool> {
    let mut good = true;
    for worker in workers {
        let ended = worker.child.wait()?;
        if !ended.success() {
            println!("FAILED  {} ended with {ended}", worker.name);
            good = false;
        }
    }
    Ok(good)
}

/// Starts workers, waits, judges. Prints one line for each check that failed and the counts.
pub fn drive(options: &Options) -> io::Result<bool> {
    std::fs::create_dir(&options.logs)?;
    let dir = options.dir.join(format!("coherence-{}", options.seed));
    std::fs::create_dir(&dir)?;
    prepare(&dir)?;
    if options.names {
        names::dirs::prepare(&dir, options.seconds)?;
    }
    let begun = now();
    let mut drive = Drive {
        options,
        dir,
        begun,
        until: begun + options.seconds * SECOND,
        started: 0,
        killed: 0,
        stopped: 0,
    };
    let mut good = drive.work()?;
    for client in [false, true] {
        good &= drive.start(client, 0)?.child.wait()?.success();
    }
    if options.disturb {
        println!("{} clients killed, {} stopped", drive.killed, drive.stopped);
    }
    if options.names && options.shale.is_some() && options.clients > 0 {
        good &= served(&options.logs.join(SERVED))?;
    }
    Ok(report(&options.logs, options.limit_ms)? && good)
}

/// Whether clients have served names themselves, by what those say that were not killed.
fn served(file: &Path) -> io::Result<bool> {
    // Calls about paths that make, open, move, remove or list, by what the kernel calls them.
    const CALLS: [&str; 12] = [
        "open",
        "openat",
        "mkdir",
        "mkdirat",
        "rename",
        "renameat",
        "renameat2",
        "link",
        "linkat",
        "unlink",
        "rmdir",
        "unlinkat",
    ];
    let text = std::fs::read_to_string(file)?;
    let (mut here, mut kernel, mut materialised) = (0, 0, 0);
    let mut why: BTreeMap<String, u64> = BTreeMap::new();
    for line in text.lines() {
        let said: serde_json::Value = serde_json::from_str(line)?;
        let count = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
        here += CALLS.iter().map(|c| count(&said["fast"][*c])).sum::<u64>();
        for reasons in CALLS.iter().filter_map(|c| said["kernel"][*c].as_object()) {
            for (reason, times) in reasons {
                kernel += count(times);
                *why.entry(reason.clone()).or_default() += count(times);
            }
        }
        let files = said["materialised"].as_object().into_iter().flatten();
        materialised += files.map(|(_, times)| count(times)).sum::<u64>();
    }
    println!(
        "{here} calls on names served in {} processes, {materialised} files materialised, \
         {kernel} left to the kernel: {why:?}",
        text.lines().count()
    );
    if here == 0 {
        println!("FAILED  no client has served a name");
    }
    Ok(here > 0)
}

/// Judges the logs of a directory, and the checker by lies it has to find.
pub fn report(logs: &Path, limit_ms: u64) -> io::Result<bool> {
    let (mut calls, mut stops) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(logs)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "report") {
            continue;
        }
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
    for &(what, lie) in LIES.iter().skip(calls.len() % LIES.len()).take(1) {
        let mut changed = calls.clone();
        if lie(&mut changed) && check::judge(&changed, &stops, u64::MAX).wrong.is_empty() {
            missed.push(what);
        }
    }
    if calls.iter().any(names::is_of_names) {
        let of_names = calls.iter().filter(|c| names::is_of_names(c)).count();
        let (unseen, planted) = names::plant::missed(&calls);
        println!("{of_names} calls on names; {planted} lies about them planted");
        missed.extend(unseen);
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
