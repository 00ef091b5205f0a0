//! A mail server's calls, like Filebench's varmail: every mail is made, written in
//! parts, synced, read, appended to, synced, read again and removed. Some mails are under
//! way at a time, each at another step.
//!
//! What is removed before it is digested never reaches the volume: the report shows how
//! many records were skipped (Strata §5.2: 86%).

use std::fmt;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::files::{DigestCounts, Files};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_bench::chance::Chance;

/// How much mail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VarmailOptions {
    /// Mails in all.
    pub files: u64,
    /// Mails under way at a time.
    pub live_max: usize,
    /// Bytes that are appended between two syncs.
    pub append_bytes: usize,
    /// Calls in which they are appended, of random lengths.
    pub parts: usize,
    /// Of order and lengths.
    pub seed: u64,
}

impl Default for VarmailOptions {
    fn default() -> Self {
        VarmailOptions {
            files: 10_000,
            live_max: 64,
            append_bytes: 16 << 10,
            parts: 4,
            seed: 1,
        }
    }
}

/// What a run found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VarmailReport {
    /// What it ran on.
    pub target: String,
    /// The mail.
    pub options: VarmailOptions,
    /// Steps done: create and write, read, append, read, remove.
    pub steps: u64,
    /// Calls made.
    pub calls: u64,
    /// Seconds until the last call returned.
    pub seconds: f64,
    /// The same, and until all work put off was done.
    pub seconds_flushed: f64,
    /// Calls in each second of [`VarmailReport::seconds`].
    pub calls_per_second: f64,
    /// What digest did, where there is one.
    pub digest: Option<DigestCounts>,
}

impl fmt::Display for VarmailReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "varmail  {:<16} {} mails, {} under way: {:.0} calls/s, {:.3} s ({:.3} s settled)",
            self.target,
            self.options.files,
            self.options.live_max,
            self.calls_per_second,
            self.seconds,
            self.seconds_flushed
        )?;
        match &self.digest {
            None => Ok(()),
            Some(digest) => write!(
                f,
                "; digest skipped {} of {} records ({:.1}%), {} of {} data bytes reached the volume",
                digest.skipped,
                digest.records,
                100.0 * digest.skip_ratio(),
                digest.digested_bytes,
                digest.payload_bytes
            ),
        }
    }
}

/// A mail and the next step of it.
struct Mail {
    name: String,
    step: u32,
    bytes: u64,
}

struct Run<'f> {
    files: &'f mut dyn Files,
    options: &'f VarmailOptions,
    chance: Chance,
    data: Vec<u8>,
    part: Vec<u8>,
    calls: u64,
}

/// Runs the workload. All files are removed again.
///
/// # Errors
/// A call that fails, or a file that has not the bytes that were written to it.
pub fn varmail(files: &mut dyn Files, options: &VarmailOptions) -> Result<VarmailReport> {
    files.flush()?;
    let before = files.digest_counts();
    let mut chance = Chance::new(options.seed);
    let data = chance.bytes(options.append_bytes);
    let mut run = Run {
        files,
        options,
        chance,
        part: vec![0; options.append_bytes],
        data,
        calls: 0,
    };
    let start = Instant::now();
    let steps = run.all()?;
    let seconds = start.elapsed().as_secs_f64();
    let calls = run.calls;
    files.flush()?;
    let seconds_flushed = start.elapsed().as_secs_f64();
    let digest = match (before, files.digest_counts()) {
        (Some(before), Some(after)) => Some(after - before),
        _ => None,
    };
    Ok(VarmailReport {
        target: files.name().to_owned(),
        options: options.clone(),
        steps,
        calls,
        seconds,
        seconds_flushed,
        calls_per_second: calls as f64 / seconds.max(1e-9),
        digest,
    })
}

impl Run<'_> {
    fn all(&mut self) -> Result<u64> {
        let mut live: Vec<Mail> = Vec::new();
        let (mut made, mut steps) = (0, 0);
        while made < self.options.files || !live.is_empty() {
            while live.len() < self.options.live_max.max(1) && made < self.options.files {
                live.push(Mail {
                    name: format!("mail{made:08}"),
                    step: 0,
                    bytes: 0,
                });
                made += 1;
            }
            let which = self.chance.below(live.len() as u64) as usize;
            steps += 1;
            if self.step(&mut live[which])? {
                live.swap_remove(which);
            }
        }
        Ok(steps)
    }

    /// Does the next step of a mail; true when it is gone.
    fn step(&mut self, mail: &mut Mail) -> Result<bool> {
        match mail.step {
            0 | 2 => self.append(mail)?,
            1 | 3 => self.read(mail)?,
            _ => {
                self.files.unlink(&mail.name)?;
                self.calls += 1;
                return Ok(true);
            }
        }
        mail.step += 1;
        Ok(false)
    }

    fn append(&mut self, mail: &mut Mail) -> Result<()> {
        let file = match mail.step {
            0 => self.files.create(&mail.name)?,
            _ => self.files.open(&mail.name)?,
        };
        let mut rest = self.data.len();
        for part in (1..=self.options.parts.max(1)).rev() {
            let bytes = match part {
                1 => rest,
                _ => self.chance.below(rest as u64 + 1) as usize,
            };
            let from = self.data.len() - rest;
            if bytes > 0 {
                self.files.append(file, &self.data[from..from + bytes])?;
                self.calls += 1;
            }
            rest -= bytes;
        }
        self.files.sync(file)?;
        self.files.close(file);
        self.calls += 3;
        mail.bytes += self.data.len() as u64;
        Ok(())
    }

    fn read(&mut self, mail: &Mail) -> Result<()> {
        let file = self.files.open(&mail.name)?;
        let found = self.files.read_whole(file, &mut self.part)?;
        self.files.close(file);
        // Reads in parts, and one that finds the end.
        self.calls += 3 + mail.bytes.div_ceil(self.part.len().max(1) as u64);
        match found == mail.bytes {
            true => Ok(()),
            false => Err(BenchError::Wrong {
                target: self.files.name().to_owned(),
                what: "bytes of a mail",
                expected: mail.bytes,
                found,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{DirectFiles, Directory};
    use shale_bench::scratch::ScratchOptions;

    fn small() -> VarmailOptions {
        VarmailOptions {
            files: 300,
            live_max: 16,
            ..VarmailOptions::default()
        }
    }

    #[test]
    fn a_directory_sees_every_mail_come_and_go() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let report = varmail(&mut Directory::new("tmpfs", dir.path()), &small()).unwrap();
        assert_eq!(report.steps, 300 * 5);
        assert!(report.digest.is_none() && report.calls > 300 * 15);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn most_records_never_reach_the_volume() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let options = ScratchOptions {
            nvm_bytes: 64 << 20,
            log_bytes: 16 << 20,
        };
        let mut files = DirectFiles::new(dir.path(), options).unwrap();
        let report = varmail(&mut files, &small()).unwrap();
        let digest = report.digest.unwrap();
        assert!(digest.records >= 300 * 4, "{digest:?}");
        assert!(digest.skip_ratio() >= 0.8, "{report}");
    }

    #[test]
    fn the_same_seed_makes_the_same_calls() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut files = Directory::new("tmpfs", dir.path());
        let options = VarmailOptions {
            files: 50,
            ..small()
        };
        let calls: Vec<u64> = (0..2)
            .map(|_| varmail(&mut files, &options).unwrap().calls)
            .collect();
        assert_eq!(calls[0], calls[1]);
    }
}
