//! What a load runs on, made for each measurement and taken away after it.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shale_format::{Buffering, Durability};
use shale_pool::volume_file::VolumeFile;

use super::child;
use super::loads::{Found, Limit, LoadOptions};
use super::options::{NO_MODEL, PolicyOptions, Way};
use super::report::Cell;
use crate::programs::run;
use crate::tiers::device::Counters;
use crate::{BenchError, Result};

/// What a load runs on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// A volume of this policy.
    Shale(Way, String),
    /// Memory, without any durability.
    Tmpfs,
    /// ext4 on a block device as slow as the model.
    Ext4,
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            System::Shale(way, policy) => format!("{} {policy}", way.name()),
            System::Tmpfs => "tmpfs".to_owned(),
            System::Ext4 => "ext4".to_owned(),
        };
        f.pad(&name)
    }
}

/// What its devices counted for a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Bytes that reached the medium: NVM, or ext4's device.
    pub medium_bytes: u64,
    /// Requests: of the kernel to the mount, or to ext4's device (0 without a model).
    pub requests: u64,
}

impl Counts {
    fn of(status: &Value) -> Counts {
        Counts {
            medium_bytes: nvm_bytes(status),
            requests: requests(status),
        }
    }

    fn since(self, earlier: Counts) -> Counts {
        Counts {
            medium_bytes: self.medium_bytes.saturating_sub(earlier.medium_bytes),
            requests: self.requests.saturating_sub(earlier.requests),
        }
    }
}

/// One turn of a system.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What the load did.
    pub found: Found,
    /// What the devices counted from when its files were made until everything it did was on the medium; `None`: they do not
    /// count.
    pub counts: Option<Counts>,
    /// Of the blocks that the mount's Buffer Benefit Model has decided about more than once: of how many the next fsync found the
    /// same, and the opposite (HiNFS Figure 4). `None`: of none, or nothing is buffered.
    pub decided: Option<(u64, u64)>,
}

/// Measures a load on a new one of these systems.
pub(crate) fn measure(
    system: &System,
    cell: &Cell,
    place: &Path,
    options: &PolicyOptions,
) -> Result<Measured> {
    let load_options = LoadOptions {
        threads: cell.threads,
        limit: Limit::Seconds(options.seconds),
        files: options.files,
        io_bytes: cell.io_bytes,
        sync_percent: options.sync_percent,
        seed: options.seed,
    };
    let program = &options.program;
    let on = |way: Way, root: &Path, between: &mut dyn FnMut() -> Result<()>| {
        let dir = root.join("load");
        child::load(program, way, cell.load, &dir, &load_options, between)
    };
    match system {
        System::Tmpfs => {
            let dir = place.join("tmpfs");
            let found = on(Way::Mount, &dir, &mut || Ok(()));
            let removed = std::fs::remove_dir_all(&dir);
            let found = found?;
            removed.map_err(BenchError::file(dir, "remove"))?;
            Ok(Measured {
                found,
                counts: None,
                decided: None,
            })
        }
        System::Ext4 => {
            let mut ext4 = Ext4::make(place, &cell.model, options)?;
            let mut before = Counts::default();
            let root = ext4.mount.clone();
            let found = on(Way::Mount, &root, &mut || {
                before = ext4.counts()?;
                Ok(())
            })?;
            let counts = ext4.counts()?.since(before);
            ext4.end()?;
            Ok(Measured {
                found,
                counts: Some(counts),
                decided: None,
            })
        }
        System::Shale(way, policy) => {
            let volume = Volume::make(place, policy, cell, options)?;
            let mut before = Counts::default();
            let found = on(*way, &volume.mount, &mut || {
                before = Counts::of(&volume.status_when_digested()?);
                Ok(())
            })?;
            let status = volume.status_when_digested()?;
            let counts = Counts::of(&status).since(before);
            volume.end()?;
            Ok(Measured {
                found,
                counts: Some(counts),
                decided: decided(&status),
            })
        }
    }
}

/// Durability of a policy, and which blocks are buffered, if it says so: `buffered-lazy` is the buffered policy without its model.
fn parts_of(policy: &str) -> (&str, Option<&str>) {
    match policy.split_once('-') {
        Some((durability, buffering)) => (durability, Some(buffering)),
        None => (policy, None),
    }
}

/// Whether there is such a policy: the name of a durability, of `buffered` also with what is buffered behind it (`-lazy`, `-eager`, `-model`).
pub fn is_policy(policy: &str) -> bool {
    match parts_of(policy) {
        (durability, None) => durability.parse::<Durability>().is_ok(),
        (durability, Some(buffering)) => {
            durability.parse() == Ok(Durability::Buffered) && buffering.parse::<Buffering>().is_ok()
        }
    }
}

/// A mounted volume.
struct Volume {
    program: PathBuf,
    dir: PathBuf,
    mount: PathBuf,
    mounted: bool,
}

impl Volume {
    fn make(place: &Path, policy: &str, cell: &Cell, options: &PolicyOptions) -> Result<Self> {
        let dir = place.join("volume");
        let (file, mount) = (dir.join("volume.toml"), dir.join("mount"));
        std::fs::create_dir_all(&mount).map_err(BenchError::file(&mount, "make"))?;
        let mut volume = Volume {
            program: options.program.clone(),
            dir,
            mount,
            mounted: false,
        };
        let mut mkfs = volume.shale("mkfs");
        mkfs.arg(&file);
        let nvm = volume.dir.join("nvm");
        mkfs.args([
            "--nvm",
            &format!("{}:{}", nvm.display(), options.volume_bytes),
        ]);
        mkfs.args(["--log-bytes", &cell.log_bytes.to_string()]);
        let (durability, buffering) = parts_of(policy);
        mkfs.args(["--durability", durability]);
        if cell.model != NO_MODEL {
            mkfs.args(["--model", &format!("nvm={}", cell.model)]);
        }
        run(&mut mkfs)?;
        if let Some(buffering) = buffering {
            let set = |_: &Path, file: &mut VolumeFile| {
                file.buffering = Some(buffering.to_owned());
            };
            VolumeFile::edit(&file, set)?;
        }
        // A mount that fails half-way is taken away too.
        volume.mounted = true;
        run(volume.shale("mount").args([&file, &volume.mount]))?;
        Ok(volume)
    }

    fn shale(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(verb);
        command
    }

    /// Its status, when everything that was logged is in the volume.
    fn status_when_digested(&self) -> Result<Value> {
        run(self.shale("digest").arg(&self.mount))?;
        let said = run(self.shale("status").arg(&self.mount).arg("--json"))?;
        serde_json::from_str(&said).map_err(|error| BenchError::Program {
            program: "shale status".to_owned(),
            found: error.to_string(),
        })
    }

    fn end(mut self) -> Result<()> {
        self.unmount()
    }

    fn unmount(&mut self) -> Result<()> {
        if std::mem::take(&mut self.mounted) {
            run(self.shale("umount").arg(&self.mount))?;
        }
        std::fs::remove_dir_all(&self.dir).map_err(BenchError::file(&self.dir, "remove"))
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // After `end` there is nothing; after an error the keeper does what this cannot.
        if self.dir.exists() {
            let _ = self.unmount();
        }
    }
}

/// Bytes that reached NVM since the daemon started: blocks and structure by its counts, and the logs of clients.
fn nvm_bytes(status: &Value) -> u64 {
    let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or(0);
    let list = |name: &str| status[name].as_array().cloned().unwrap_or_default();
    let stored = list("device")
        .iter()
        .map(|path| number(path, "bytes_stored"))
        .sum::<u64>();
    let clients = list("clients");
    let accounts = clients.iter().map(|client| &client["written"]);
    let logged = accounts
        .chain([&status["written_by_others"]])
        // What digests wrote is in both.
        .map(|account| number(account, "nvm_bytes").saturating_sub(number(account, "copied_bytes")))
        .sum::<u64>();
    stored + logged
}

/// See [`Measured::decided`].
fn decided(status: &Value) -> Option<(u64, u64)> {
    let number = |name: &str| status["buffer"][name].as_u64().unwrap_or(0);
    let decided = (number("decided_right"), number("decided_wrong"));
    (decided != (0, 0)).then_some(decided)
}

/// Requests of the kernel to the mount.
fn requests(status: &Value) -> u64 {
    let kinds = status["mount_requests"].as_object().into_iter().flatten();
    kinds.filter_map(|(_, count)| count.as_u64()).sum()
}

/// ext4 on a device that another process serves.
///
/// That process takes mount and device away when its input ends, so that they go with this process, however that ends.
struct Ext4 {
    server: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    mount: PathBuf,
    image: PathBuf,
}

impl Ext4 {
    fn make(place: &Path, model: &str, options: &PolicyOptions) -> Result<Self> {
        let (mount, image) = (place.join("ext4"), place.join("image"));
        std::fs::create_dir_all(&mount).map_err(BenchError::file(&mount, "make"))?;
        let mut command = Command::new(&options.program);
        command.args(["bench", "device"]).arg(&image);
        command.args(["--bytes", &options.volume_bytes.to_string()]);
        if model != NO_MODEL {
            command.args(["--model", model]);
        }
        let mut server = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(BenchError::file(&options.program, "start"))?;
        let (Some(input), Some(output)) = (server.stdin.take(), server.stdout.take()) else {
            return Err(Self::failed("no pipe".to_owned()));
        };
        let mut ext4 = Ext4 {
            server,
            input: Some(input),
            output: BufReader::new(output),
            mount,
            image,
        };
        let ready = ext4.answer()?;
        let device = ready["device"].as_str().unwrap_or_default().to_owned();
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
            .arg(&device))?;
        run(Command::new("mount").arg(&device).arg(&ext4.mount))?;
        Ok(ext4)
    }

    fn failed(found: String) -> BenchError {
        BenchError::Program {
            program: "the device of ext4".to_owned(),
            found,
        }
    }

    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        read.map_err(|error| Self::failed(error.to_string()))?;
        serde_json::from_str(&line).map_err(|error| Self::failed(format!("'{line}': {error}")))
    }

    /// Counts so far, when everything is on the device.
    fn counts(&mut self) -> Result<Counts> {
        let root =
            std::fs::File::open(&self.mount).map_err(BenchError::file(&self.mount, "open"))?;
        rustix::fs::syncfs(&root).map_err(BenchError::file(&self.mount, "sync"))?;
        if let Some(input) = &mut self.input {
            let asked = writeln!(input, "counters").and_then(|()| input.flush());
            asked.map_err(|error| Self::failed(error.to_string()))?;
        }
        let answer = serde_json::from_value::<Counters>(self.answer()?);
        let counters = answer.map_err(|error| Self::failed(error.to_string()))?;
        Ok(Counts {
            medium_bytes: counters.written_bytes,
            requests: counters.requests,
        })
    }

    fn end(mut self) -> Result<()> {
        run(Command::new("umount").arg(&self.mount))?;
        self.stop()
    }

    fn stop(&mut self) -> Result<()> {
        if self.input.take().is_none() {
            return Ok(());
        }
        let status = self.server.wait();
        let status = status.map_err(|error| Self::failed(error.to_string()))?;
        // A name that is not there was not made.
        let _ = std::fs::remove_file(&self.image);
        match status.success() {
            true => Ok(()),
            false => Err(Self::failed(status.to_string())),
        }
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// Why ext4 cannot be measured here; `None`: it can.
pub(crate) fn why_no_ext4() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root to mount a device".to_owned());
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("needs /dev/fuse for a device as slow as the model".to_owned());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("needs loop devices".to_owned());
    }
    let made = run(Command::new("mkfs.ext4").arg("-V"));
    made.err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_requests_of_a_status() {
        let status = serde_json::json!({
            "device": [{"path": "data", "bytes_stored": 100}, {"path": "log", "bytes_stored": 7}],
            "clients": [{"written": {"nvm_bytes": 50, "copied_bytes": 20}}],
            "written_by_others": {"nvm_bytes": 9, "copied_bytes": 4},
            "mount_requests": {"write": 3, "lookup": 4},
        });
        assert_eq!(nvm_bytes(&status), 107 + 30 + 5);
        assert_eq!(requests(&status), 7);
        assert_eq!((nvm_bytes(&Value::Null), requests(&Value::Null)), (0, 0));
        assert_eq!(decided(&status), None);
        let status = serde_json::json!({"buffer": {"decided_right": 9, "decided_wrong": 1}});
        assert_eq!(decided(&status), Some((9, 1)));
    }

    #[test]
    fn names_of_policies() {
        for name in [
            "strict",
            "buffered",
            "buffered-lazy",
            "buffered-eager",
            "buffered-model",
        ] {
            assert!(is_policy(name), "{name}");
        }
        for name in ["strict-lazy", "buffered-", "buffered-x", "lazy", ""] {
            assert!(!is_policy(name), "{name}");
        }
    }

    #[test]
    fn names_of_systems() {
        let names = [
            System::Shale(Way::Run, "buffered".to_owned()),
            System::Tmpfs,
            System::Ext4,
        ];
        assert_eq!(
            names.map(|system| system.to_string()),
            ["run buffered", "tmpfs", "ext4"]
        );
    }
}
