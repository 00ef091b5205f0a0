//! Hunting a mistake about names: programs on a mount and clients on the same directories.
//!
//! All programs have to be built with the feature, into one directory:
//! `cargo build -p shale-cli -p shale-preload -p shale-harness --features shale-harness/mutants`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{Fate, fate};
use crate::mutants::Mutant;
use shale_bench::{BenchError, Result};
use shale_powercut::workloads::campaign::Options;

/// What all programs take the mutant from.
const MUTANT: &str = "SHALE_MUTANT";
/// One run of the workers; its clients are others in each.
const SECONDS: &str = "15";

/// A volume that is mounted for one run.
struct Mounted {
    shale: PathBuf,
    place: tempfile::TempDir,
}

fn failed(what: &str) -> impl Fn(std::io::Error) -> BenchError {
    let program = what.to_owned();
    move |error| BenchError::Program {
        program: program.clone(),
        found: error.to_string(),
    }
}

fn text(output: &Output) -> String {
    let both = [&*output.stdout, &*output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

impl Mounted {
    fn at(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// `shale WORDS`, with the mutant in it; `Err`: what it said when it failed.
    fn shale(&self, mutant: Mutant, words: &[&Path]) -> Result<std::result::Result<(), String>> {
        let mut command = Command::new("timeout");
        command.arg("60").arg(&self.shale).args(words);
        let output = command
            .env(MUTANT, mutant.name)
            .stdin(Stdio::null())
            .output();
        let output = output.map_err(failed("shale"))?;
        Ok(match output.status.success() {
            true => Ok(()),
            false => Err(format!("{}: {}", words[0].display(), text(&output))),
        })
    }

    /// Makes and mounts a volume, has workers on it, and looks at what they say and what they have left.
    fn run(&self, mutant: Mutant, seed: u64) -> Result<std::result::Result<(), String>> {
        let (volume, mount) = (self.at("VOLUME.toml"), self.at("mount"));
        for dir in ["nvm", "mount"] {
            std::fs::create_dir(self.at(dir)).map_err(failed("a directory of a volume"))?;
        }
        let nvm = PathBuf::from(format!("{}:256M", self.at("nvm").display()));
        let made = [Path::new("mkfs"), &volume, Path::new("--nvm"), &nvm];
        let ready = match self.shale(mutant, &made)? {
            Ok(()) => self.shale(mutant, &[Path::new("mount"), &volume, &mount])?,
            wrong => wrong,
        };
        if ready.is_err() {
            return Ok(ready);
        }
        let mut drive = Command::new("timeout");
        drive.arg("120");
        drive.arg(std::env::current_exe().map_err(failed("this program"))?);
        drive.args(["coherence", "drive", "--names", "--seconds", SECONDS]);
        drive
            .arg("--seed")
            .arg(seed.to_string())
            .arg("--shale")
            .arg(&self.shale);
        drive
            .arg("--logs")
            .arg(self.at("logs"))
            .arg(&mount)
            .env(MUTANT, mutant.name);
        let driven = drive.output().map_err(failed("coherence drive"))?;
        let left = match self.shale(mutant, &[Path::new("umount"), &mount])? {
            Ok(()) => self.shale(mutant, &[Path::new("fsck"), &volume])?,
            wrong => wrong,
        };
        Ok(match driven.status.success() {
            true => left,
            false => {
                let said = text(&driven);
                let first = said.lines().find(|line| line.starts_with("FAILED"));
                Err(first.unwrap_or("coherence drive failed").to_owned())
            }
        })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Where it was unmounted this fails.
        let mut detach = Command::new("fusermount3");
        detach
            .arg("-uzq")
            .arg(self.at("mount"))
            .stderr(Stdio::null());
        let _ = detach.status();
    }
}

/// Workers on names see it, or what they leave behind does not pass `fsck`.
pub fn hunt(options: &Options, limit: Duration, mutant: Mutant) -> Result<Fate> {
    let begun = Instant::now();
    let own = std::env::current_exe().map_err(failed("this program"))?;
    let (mut runs, mut found) = (0, None);
    while found.is_none() && begun.elapsed() < limit {
        let seed = options.seed + runs;
        let place = tempfile::Builder::new()
            .prefix("shale-mutant")
            .tempdir_in(&options.dir);
        let mounted = Mounted {
            shale: own.with_file_name("shale"),
            place: place.map_err(failed("a volume"))?,
        };
        runs += 1;
        if let Err(wrong) = mounted.run(mutant, seed)? {
            let wrong = wrong.lines().next().unwrap_or_default().to_owned();
            found = Some((format!("names {seed}"), format!("names: {wrong}")));
        }
    }
    Ok(fate(mutant, begun, runs, found))
}
