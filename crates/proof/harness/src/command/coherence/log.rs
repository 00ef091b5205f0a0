//! The log of one worker: a line when a call begins, a line when it has returned.
//!
//! Each line is one `write` to a file outside of the volume, so a worker that is killed
//! loses none; its last call then has a begin and no end, and may have happened or not.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use nix::time::{ClockId, clock_gettime};

/// A call that has not returned ends here.
pub const NEVER: u64 = u64::MAX;

/// Nanoseconds of CLOCK_MONOTONIC, which all processes share.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs()
}

/// Writes one worker's log.
pub struct Log {
    file: File,
    begun: u64,
}

impl Log {
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(path)?;
        file.write_all(format!("pid {}\n", std::process::id()).as_bytes())?;
        Ok(Self { file, begun: 0 })
    }

    /// Notes that `what` begins, does it, and notes what it gave.
    pub fn call(&mut self, what: &str, act: impl FnOnce() -> String) -> io::Result<String> {
        self.begun = now();
        self.file
            .write_all(format!("B {} {what}\n", self.begun).as_bytes())?;
        let gave = act();
        self.file
            .write_all(format!("E {} {gave}\n", now()).as_bytes())?;
        Ok(gave)
    }
}

/// A call as the log tells it.
#[derive(Clone, Debug)]
pub struct Call {
    pub start: u64,
    pub end: u64,
    /// Whether the worker is a client itself; else the kernel's mount served it.
    pub client: bool,
    pub worker: String,
    pub what: Vec<String>,
    /// Empty for a call that has not returned.
    pub gave: Vec<String>,
}

impl Call {
    pub fn number(&self, at: usize) -> u64 {
        self.what.get(at).and_then(|w| w.parse().ok()).unwrap_or(0)
    }

    pub fn text(&self, at: usize) -> &str {
        self.what.get(at).map_or("", String::as_str)
    }

    pub fn result(&self) -> &str {
        self.gave.first().map_or("", String::as_str)
    }

    pub fn returned(&self) -> bool {
        self.end != NEVER
    }

    /// The number that it gave, 0 if it gave none.
    pub fn number_given(&self) -> u64 {
        self.result().parse().unwrap_or(0)
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, gave) = (self.what.join(" "), self.gave.join(" "));
        let end = if self.returned() { self.end } else { 0 };
        write!(
            out,
            "{} {}..{end} {what} -> {gave}",
            self.worker, self.start
        )
    }
}

/// The calls of one log. A line cut short by a kill is left out.
pub fn read(path: &Path) -> io::Result<Vec<Call>> {
    let worker = path.file_name().unwrap_or_default().to_string_lossy();
    let mut calls: Vec<Call> = Vec::new();
    for line in std::fs::read_to_string(path)?.lines() {
        let mut words = line.split(' ').filter(|w| !w.is_empty()).map(str::to_owned);
        let (Some(kind), Some(time)) = (words.next(), words.next()) else {
            continue;
        };
        let Ok(time) = time.parse() else { continue };
        match (kind.as_str(), calls.last_mut()) {
            ("B", _) => calls.push(Call {
                start: time,
                end: NEVER,
                client: worker.contains("run"),
                worker: worker.clone().into_owned(),
                what: words.collect(),
                gave: Vec::new(),
            }),
            ("E", Some(call)) if !call.returned() => {
                call.end = time;
                call.gave = words.collect();
            }
            _ => {}
        }
    }
    Ok(calls)
}
