//! The same load on several file systems, each on flash of its own, with the counters.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Counters;
use super::load::{self, Expected, Load};
use super::serve::Ready;
use super::shale::{self, Volume};
use crate::BenchError;
use crate::Result;
use crate::programs::run;

const PAGE_BYTES: u64 = 8_192;

/// A file system to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `mkfs.ext4`, mounted with its defaults.
    Ext4,
    /// `mkfs.btrfs`, mounted with its defaults.
    Btrfs,
    /// `mkfs.btrfs --mixed`: data and trees in the same groups.
    #[serde(rename = "btrfs-mixed")]
    BtrfsMixed,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Ext4, Kind::Btrfs, Kind::BtrfsMixed];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Btrfs => "btrfs",
            Kind::BtrfsMixed => "btrfs-mixed",
        }
    }

    /// What the kernel calls it.
    fn type_name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Btrfs | Kind::BtrfsMixed => "btrfs",
        }
    }

    /// Makes one on a device.
    ///
    /// # Errors
    /// There is no such program, or it fails.
    pub fn make(self, device: &Path) -> Result<()> {
        let options: &[&str] = match self {
            Kind::Ext4 => &["-q", "-F"],
            Kind::Btrfs => &["-q", "-f"],
            Kind::BtrfsMixed => &["-q", "-f", "--mixed"],
        };
        let program = format!("mkfs.{}", self.type_name());
        run(Command::new(program).args(options).arg(device)).map(drop)
    }
}

/// The process that is the flash.
pub struct Served {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// What it printed first.
    pub ready: Ready,
}

fn talk(found: impl std::fmt::Display) -> BenchError {
    BenchError::Program {
        program: "the process that is the flash".to_owned(),
        found: found.to_string(),
    }
}

impl Served {
    /// Whether this machine lets one start: it needs root, /dev/fuse and /dev/loop-control.
    pub fn can_start() -> bool {
        let there = |path: &str| Path::new(path).exists();
        rustix::process::geteuid().is_root() && there("/dev/fuse") && there("/dev/loop-control")
    }

    /// Starts `command`, which serves as [`super::serve`] says.
    ///
    /// # Errors
    /// It does not start, or ends before it is ready.
    pub fn start(command: &mut Command) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        // Its own group: what interrupts this process must not end it before it is tidy.
        let command = command.process_group(0);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(talk)?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or_else(|| talk("no output"))?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line).map_err(talk)?;
        let ready = serde_json::from_str(&line).map_err(talk)?;
        Ok(Served {
            child,
            input,
            output,
            ready,
        })
    }

    /// What has been counted until now.
    ///
    /// # Errors
    /// The process is gone, or counts something else.
    pub fn counters<C: DeserializeOwned>(&mut self) -> Result<C> {
        let input = self.input.as_mut().ok_or_else(|| talk("it has ended"))?;
        writeln!(input, "counters").map_err(talk)?;
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(talk)?;
        serde_json::from_str(&line).map_err(talk)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The end of its input is what it waits for.
        self.input = None;
        if let Err(error) = self.child.wait() {
            eprintln!("shale-harness: {error}");
        }
    }
}

/// A mount that is taken away again.
pub struct Mounted(tempfile::TempDir);

impl Mounted {
    /// Mounts a device in a new directory.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn new(device: &Path, kind: Kind) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("shale-flash-on-").tempdir();
        let dir = dir.map_err(BenchError::file("the directory for temporary files", "use"))?;
        let mut mount = Command::new("mount");
        mount.args(["-t", kind.type_name()]);
        run(mount.args([device, dir.path()]))?;
        Ok(Mounted(dir))
    }

    /// Where.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("umount").arg(self.0.path())) {
            eprintln!("shale-harness: {error}");
        }
    }
}

/// One file system under the load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Which file system.
    pub name: String,
    /// Bytes of the files.
    pub file_bytes: u64,
    /// Bytes overwritten while counted.
    pub app_bytes: u64,
    /// Overwrites that found no space before a sync, from the start on.
    pub refused: u64,
    /// What was counted meanwhile.
    pub counted: Counters,
    /// Bytes written to NVM meanwhile.
    pub nvm_bytes: u64,
    /// Seconds that it took here.
    pub seconds: f64,
}

/// How to compare.
#[derive(Debug, Clone)]
pub struct Options {
    /// The load.
    pub load: load::Options,
    /// Overwrites before counting, as a part of the files' blocks in percent.
    pub warm_percent: u64,
    /// Overwrites while counting, likewise.
    pub count_percent: u64,
}

/// Runs the load on one file system; `command` starts its flash.
///
/// # Errors
/// Anything refuses, or a block read back is wrong; nothing is left mounted.
pub fn measure(kind: Kind, command: &mut Command, options: &Options) -> Result<Row> {
    let mut flash = Served::start(command)?;
    let device: PathBuf = flash.ready.device.clone();
    kind.make(&device)?;
    let mounted = Mounted::new(&device, kind)?;
    let count = || Ok((flash.counters()?, 0));
    let (row, expected) = overwritten(kind.name(), mounted.path(), count, options)?;
    // Mounted again, so that it is read from flash.
    drop(mounted);
    let mounted = Mounted::new(&device, kind)?;
    expected.check(mounted.path())?;
    Ok(row)
}

/// Runs the load on a new volume of Shale.
///
/// # Errors
/// As [`measure`].
pub fn measure_shale(volume: &shale::Options, options: &Options) -> Result<Row> {
    let nvm_mib = volume.nvm_bytes >> 20;
    let volume = Volume::new(volume)?;
    let name = format!("Shale, {nvm_mib} MiB of NVM");
    let count = || volume.counters();
    let (row, expected) = overwritten(&name, volume.path(), count, options)?;
    volume.mount_again()?;
    expected.check(volume.path())?;
    Ok(row)
}

/// Fills, overwrites, and counts the second part of that. `count` tells what has been counted, and
/// bytes written to NVM.
fn overwritten(
    name: &str,
    dir: &Path,
    mut count: impl FnMut() -> Result<(Counters, u64)>,
    options: &Options,
) -> Result<(Row, Expected)> {
    let mut load = Load::fill(dir, options.load)?;
    let file_bytes = load.bytes();
    let blocks = file_bytes / load::BLOCK_BYTES as u64;
    load.overwrite(blocks * options.warm_percent / 100)?;
    let (before, nvm_before) = count()?;
    let begun = Instant::now();
    let overwrites = blocks * options.count_percent / 100;
    load.overwrite(overwrites)?;
    let seconds = begun.elapsed().as_secs_f64();
    let (after, nvm_after) = count()?;
    let row = Row {
        name: name.to_owned(),
        file_bytes,
        app_bytes: overwrites * load::BLOCK_BYTES as u64,
        refused: load.refused(),
        counted: after.since(&before),
        nvm_bytes: nvm_after - nvm_before,
        seconds,
    };
    Ok((row, load.close()))
}

const HEAD: &str = "\
| | files MiB | overwritten MiB | reached the FTL MiB | flash written MiB | pages moved | \
blocks erased | moved per erase | WA file system | WA FTL | WA in all | s on the device | no room | \
NVM written MiB |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |";

impl Row {
    fn line(&self) -> String {
        let counted = &self.counted;
        let mib = |bytes: u64| bytes >> 20;
        let reached = counted.blocks_written * load::BLOCK_BYTES as u64;
        let flash = counted.pages_programmed * PAGE_BYTES;
        let over = |a: u64, b: u64| a as f64 / b.max(1) as f64;
        format!(
            "| {} | {} | {} | {} | {} | {} | {} | {:.0} | {:.2} | {:.2} | {:.2} | {:.1} | {} | {} |",
            self.name,
            mib(self.file_bytes),
            mib(self.app_bytes),
            mib(reached),
            mib(flash),
            counted.pages_moved,
            counted.blocks_erased,
            over(counted.pages_moved, counted.blocks_erased),
            over(reached, self.app_bytes),
            over(flash, reached),
            over(flash, self.app_bytes),
            counted.device_ns as f64 / 1e9,
            self.refused,
            mib(self.nvm_bytes),
        )
    }
}

/// The rows as a table of docs/BENCHMARKS.md.
pub fn table(rows: &[Row]) -> String {
    let lines = rows.iter().map(Row::line);
    let lines: Vec<String> = std::iter::once(HEAD.to_owned()).chain(lines).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_was_amplified() {
        let row = Row {
            name: "ext4".to_owned(),
            file_bytes: 1 << 30,
            app_bytes: 100 << 20,
            refused: 9,
            counted: Counters {
                blocks_written: 150 << 8,
                pages_programmed: 300 << 7,
                pages_moved: 6_000,
                blocks_erased: 60,
                device_ns: 2_500_000_000,
                ..Counters::default()
            },
            nvm_bytes: 3 << 20,
            seconds: 1.0,
        };
        let wanted = "| ext4 | 1024 | 100 | 150 | 300 | 6000 | 60 | 100 | 1.50 | 2.00 | 3.00 | 2.5 | 9 | 3 |";
        assert_eq!(table(&[row]).lines().nth(2), Some(wanted));
    }
}
