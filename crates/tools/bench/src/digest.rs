//! How fast a log is digested, and how long a writer waits that is faster than the digest.
//!
//! For each load a volume of its own, with its daemon and one client in this process. First *digest
//! alone*: the client logs so little that nothing is digested meanwhile, then all of it is waited for;
//! the processor time of that is counted, which other programs on the machine hardly change. Then
//! *full log*: a small log and a client that writes as fast as it can, so that it fills; each call
//! is timed. Both again with each transaction digested by itself (Strata, §3.3): what is saved by digesting many together, of which
//! some overwrite or remove what others made.

use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use shale_libfs::{Errno, File, OFlags, Tree};
use shale_nvm::Path as For;

use crate::BenchError;
use crate::Result;
use crate::chance::Chance;
use crate::scratch::{Scratch, ScratchOptions, os_error};
use crate::timer::histogram;

const BLOCK: u64 = 4096;
/// Bytes written at once while the file is made.
const FILL_BYTES: u64 = 1 << 20;
const NAME: &[u8] = b"/data";
/// Bytes of one write of [`Load::Mail`].
const MAIL_BYTES: u64 = 16 << 10;
/// Files that [`Load::Mail`] leaves.
const MAILS: u64 = 64;

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Whole blocks of 4 KiB of a file, in any order.
    Random4k,
    /// 128 bytes anywhere in a file.
    Random128,
    /// 4 KiB at the end of a file, which is begun again when it is as large as said.
    Append4k,
    /// As a mail server: a file is made, 16 KiB are written to it and 16 more, and the oldest of 64 is removed.
    Mail,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 4] = [Load::Random4k, Load::Random128, Load::Append4k, Load::Mail];

    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Load::Random4k => "random-4k",
            Load::Random128 => "random-128",
            Load::Append4k => "append-4k",
            Load::Mail => "mail",
        }
    }

    /// Calls of a round, of which so many were asked for: of large ones fewer.
    fn calls(self, asked: u64) -> u64 {
        match self {
            Load::Mail => (asked / 32).max(1),
            _ => asked,
        }
    }

    /// Bytes of a log that takes about so many of its calls.
    fn logged(self, calls: u64) -> u64 {
        match self {
            Load::Mail => calls * (2 * MAIL_BYTES + 1024),
            _ => calls * 256,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Load::Random4k | Load::Append4k => BLOCK as usize,
            Load::Random128 => 128,
            Load::Mail => MAIL_BYTES as usize,
        }
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of the volume's NVM. Where blocks are short digest begins early: then the file and what is written
    /// in a round are to be smaller.
    pub nvm_bytes: u64,
    /// Calls of a round of *digest alone*.
    pub calls: u64,
    /// Rounds of it that count, after one that does not.
    pub rounds: u32,
    /// Bytes of the log that fills.
    pub log_bytes: u64,
    /// How long it is written to; 0: not at all.
    pub seconds: f64,
    /// Seed of offsets.
    pub seed: u64,
    /// Each transaction is digested by itself.
    pub apart: bool,
}

/// A volume for a measurement.
fn scratch(dir: &Path, options: &Options, log_bytes: u64) -> Result<Scratch> {
    let size = ScratchOptions {
        nvm_bytes: options.nvm_bytes,
        log_bytes,
    };
    Scratch::with(dir, size, |config| {
        if options.apart {
            config.digest_bounds.records_max = 1;
        }
    })
}

/// Digest alone: median of the rounds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Alone {
    /// Records digested in a second.
    pub records_per_s: f64,
    /// Processor time of this process for one record.
    pub cpu_ns_per_record: f64,
    /// Bytes that the daemon wrote to NVM for one record.
    pub nvm_bytes_per_record: f64,
}

/// With a full log.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Full {
    /// Calls in a second.
    pub calls_per_s: f64,
    /// Records digested in a second.
    pub records_per_s: f64,
    /// Half of the calls took no longer.
    pub p50_us: f64,
    /// Of 1,000 calls 999 took no longer.
    pub p999_us: f64,
    /// The longest call.
    pub longest_ms: f64,
    /// Calls that took longer than 20 ms. A machine that is shared stops any program for longer now and then.
    pub above_20ms: u64,
    /// Part of the time that the client paused because the log filled.
    pub paused: f64,
    /// Calls that found the log full and waited.
    pub stops: u64,
}

/// What was measured of one load.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Report {
    /// The load.
    pub load: Load,
    /// Digest alone.
    pub alone: Alone,
    /// With a full log, if that was asked for.
    pub full: Option<Full>,
}

fn failed(what: &'static str) -> impl FnOnce(Errno) -> BenchError {
    move |errno| BenchError::call("libfs", what)(os_error(errno))
}

/// The client's file, and with [`Load::Mail`] the directory above it.
struct Writer {
    load: Load,
    tree: Tree,
    file: File,
    bytes: u64,
    end: u64,
    chance: Chance,
    data: Vec<u8>,
}

impl Writer {
    fn new(scratch: &Scratch, load: Load, options: &Options) -> Result<Self> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let tree = scratch.tree();
        let file = tree.open(NAME, flags, 0o644).map_err(failed("create"))?;
        let writer = Writer {
            load,
            tree,
            file,
            bytes: options.file_bytes / FILL_BYTES * FILL_BYTES,
            end: 0,
            chance: Chance::new(options.seed),
            data: vec![0x5a; load.bytes()],
        };
        if matches!(load, Load::Random4k | Load::Random128) {
            let some = vec![0x3c; FILL_BYTES as usize];
            for n in 0..writer.bytes / FILL_BYTES {
                let written = writer.file.pwrite(n * FILL_BYTES, &some);
                written.map_err(failed("fill the file"))?;
                // Not so far ahead that blocks are short.
                if n % 16 == 15 {
                    scratch.flush();
                }
            }
        }
        scratch.flush();
        Ok(writer)
    }

    fn deliver(&mut self) -> Result<()> {
        let name = |n: u64| format!("/mail{n}").into_bytes();
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let mail = self.tree.open(&name(self.end), flags, 0o600);
        let mail = mail.map_err(failed("create"))?;
        for at in [0, MAIL_BYTES] {
            mail.pwrite(at, &self.data).map_err(failed("write"))?;
        }
        drop(mail);
        if let Some(oldest) = self.end.checked_sub(MAILS) {
            self.tree.unlink(&name(oldest)).map_err(failed("unlink"))?;
        }
        self.end += 1;
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        if self.load == Load::Mail {
            return self.deliver();
        }
        let bytes = self.data.len() as u64;
        let at = match self.load {
            Load::Random4k => self.chance.below(self.bytes / BLOCK) * BLOCK,
            Load::Random128 => self.chance.below(self.bytes - bytes),
            Load::Append4k if self.end + bytes > self.bytes => {
                self.file.truncate(0).map_err(failed("truncate"))?;
                self.end = bytes;
                0
            }
            Load::Append4k | Load::Mail => {
                self.end += bytes;
                self.end - bytes
            }
        };
        self.data[0] = self.data[0].wrapping_add(1);
        let written = self.file.pwrite(at, &self.data).map_err(failed("write"))?;
        match written == self.data.len() {
            true => Ok(()),
            false => Err(BenchError::Wrong {
                target: "libfs".to_owned(),
                what: "write",
                expected: bytes,
                found: written as u64,
            }),
        }
    }
}

/// Processor time of all threads of this process.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Bytes that the daemon wrote to NVM.
fn nvm_bytes(scratch: &Scratch) -> u64 {
    let counts = scratch.daemon().map().counts();
    let paths = For::ALL.into_iter().filter(|path| *path != For::Control);
    paths.map(|path| counts.path(path).bytes_stored).sum()
}

fn records(scratch: &Scratch) -> u64 {
    scratch.status().digest.stats.records
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(0.0)
}

fn alone(dir: &Path, load: Load, options: &Options) -> Result<Alone> {
    let calls = load.calls(options.calls);
    // Not 30% of it are filled in a round.
    let log_bytes = (load.logged(calls) * 4).next_power_of_two().max(16 << 20);
    let scratch = scratch(dir, options, log_bytes)?;
    let mut writer = Writer::new(&scratch, load, options)?;
    let (mut speeds, mut cpu, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=options.rounds {
        for _ in 0..calls {
            writer.write()?;
        }
        let before = (records(&scratch), nvm_bytes(&scratch), cpu_ns());
        let begun = Instant::now();
        scratch.flush();
        let seconds = begun.elapsed().as_secs_f64();
        let spent = cpu_ns() - before.2;
        let done = (records(&scratch) - before.0) as f64;
        // Blocks were short, and it began before.
        let whole = done >= calls as f64 / 2.0;
        if round > 0 && whole {
            speeds.push(done / seconds);
            cpu.push(spent / done);
            bytes.push((nvm_bytes(&scratch) - before.1) as f64 / done);
        }
    }
    if cpu.is_empty() {
        return Err(BenchError::Wrong {
            target: "digest alone (take more NVM, or fewer calls)".to_owned(),
            what: "rounds with most records left to digest",
            expected: options.rounds.into(),
            found: 0,
        });
    }
    Ok(Alone {
        records_per_s: median(speeds),
        cpu_ns_per_record: median(cpu),
        nvm_bytes_per_record: median(bytes),
    })
}

fn full(dir: &Path, load: Load, options: &Options) -> Result<Full> {
    let scratch = scratch(dir, options, options.log_bytes)?;
    let mut writer = Writer::new(&scratch, load, options)?;
    let mut times: Histogram<u64> = histogram();
    let length = Duration::from_secs_f64(options.seconds);
    let (before, begun) = (records(&scratch), Instant::now());
    let mut last = begun;
    while last - begun < length {
        writer.write()?;
        let now = Instant::now();
        times.saturating_record((now - last).as_nanos() as u64);
        last = now;
    }
    let waits = scratch.session().waits();
    let calls = times.len() as f64 / (last - begun).as_secs_f64();
    let at_end = records(&scratch);
    let digested = (at_end - before) as f64 / (last - begun).as_secs_f64();
    Ok(Full {
        calls_per_s: calls,
        records_per_s: digested,
        p50_us: times.value_at_quantile(0.5) as f64 / 1e3,
        p999_us: times.value_at_quantile(0.999) as f64 / 1e3,
        longest_ms: times.max() as f64 / 1e6,
        above_20ms: times.len() - times.count_between(0, 20_000_000),
        paused: waits.paused_ns as f64 / (last - begun).as_nanos() as f64,
        stops: waits.stops,
    })
}

/// Measures one load on volumes in `dir`.
///
/// # Errors
/// No space, or what daemon and client say.
pub fn run(dir: &Path, load: Load, options: &Options) -> Result<Report> {
    Ok(Report {
        load,
        alone: alone(dir, load, options)?,
        full: match options.seconds > 0.0 {
            true => Some(full(dir, load, options)?),
            false => None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_load_is_digested_and_counted() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let options = Options {
            file_bytes: 4 << 20,
            nvm_bytes: 64 << 20,
            calls: 500,
            rounds: 1,
            log_bytes: shale_format::limits::LOG_BYTES_MIN,
            seconds: 0.05,
            seed: 1,
            apart: false,
        };
        for (load, apart) in Load::ALL
            .map(|load| (load, false))
            .into_iter()
            .chain([(Load::Mail, true)])
        {
            let options = Options {
                apart,
                ..options.clone()
            };
            let report = run(dir.path(), load, &options).unwrap();
            assert!(report.alone.records_per_s > 0.0, "{load:?}");
            let least = match load {
                Load::Random128 => 100.0,
                _ => 1.0,
            };
            assert!(report.alone.nvm_bytes_per_record > least, "{load:?}");
            let full = report.full.unwrap();
            assert!(full.longest_ms * 1e3 >= full.p50_us && full.calls_per_s > 0.0);
        }
    }
}
