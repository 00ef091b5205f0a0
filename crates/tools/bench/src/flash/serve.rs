//! The process that is the flash, or another device: it serves a mount of one file, with a loop device
//! over it that bypasses the kernel's page cache.
//!
//! It talks in lines: first one with a [`Ready`] as JSON; then, for each line `counters` on its
//! standard input, one with [`Counters`], or what else is counted. At the end of its input it unmounts what is mounted
//! from the loop device, takes that away, unmounts, and ends; so nothing is left when a caller that
//! started it dies.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shale_block::BlockDevice;
use shale_emulate::ftl::Settings;
use shale_emulate::zoned::{Behaviour, Geometry};
use shale_emulate::{Ftl, Zoned};
use shale_fuse::{FuseSession, MountOptions, ServeOptions, unmount};
use shale_nvm::Pace;
use shale_sys::SystemClock;

use super::Counters;
use super::export::{Exported, NAME};
use crate::BenchError;
use crate::Result;
use crate::programs::run;

/// Requests that are served at once: as many wait for a model side by side.
const THREADS: usize = 8;

/// The flash to serve.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes of flash; with an image that exists its own.
    pub bytes: u64,
    /// File that keeps it; `None`: memory.
    pub image: Option<PathBuf>,
    /// How the translation layer works.
    pub settings: Settings,
    /// Whether the device takes the time it would take.
    pub real_time: bool,
}

/// What is printed first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ready {
    /// The loop device.
    pub device: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// The mount and the loop device over it; both go with it.
struct Place {
    dir: tempfile::TempDir,
    looped: Option<PathBuf>,
}

impl Place {
    fn attach(&mut self) -> Result<PathBuf> {
        let looped = run(Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on", "--sector-size=4096"])
            .arg(self.dir.path().join(NAME)))?;
        Ok(self.looped.insert(looped.into()).clone())
    }
}

/// Where a device is mounted.
fn mounts_of(device: &Path) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        (Path::new(words.next()?) == device).then(|| PathBuf::from(words.next().unwrap_or("/")))
    });
    mounts.collect()
}

impl Drop for Place {
    fn drop(&mut self) {
        // Each of these waits for this process to serve it, so other processes do them.
        let done = |command: &mut Command| match run(command) {
            Ok(_) => true,
            Err(error) => {
                eprintln!("shale-harness: {error}");
                false
            }
        };
        if let Some(looped) = self.looped.take() {
            for mount in mounts_of(&looped) {
                if !done(Command::new("umount").arg(&mount)) {
                    done(Command::new("umount").arg("-l").arg(&mount));
                }
            }
            done(Command::new("losetup").arg("-d").arg(&looped));
        }
        let gone = (0..100).any(|_| {
            let gone = unmount(self.dir.path(), false).is_ok();
            // The loop device is let go of behind `losetup -d`.
            std::thread::sleep(std::time::Duration::from_millis(if gone { 0 } else { 50 }));
            gone
        });
        if !gone && let Err(error) = unmount(self.dir.path(), true) {
            eprintln!("shale-harness: {error}");
        }
    }
}

fn open(options: &Options) -> Result<Arc<Ftl>> {
    let pace = match options.real_time {
        true => Pace::of_real_time(Arc::new(SystemClock::new())),
        false => Pace::of_virtual_time(),
    };
    let behaviour = Behaviour {
        pace,
        ..Behaviour::default()
    };
    let geometry = Geometry::stagefs(options.bytes);
    let flash = match &options.image {
        Some(path) if path.exists() => Zoned::open(path, behaviour)?,
        Some(path) => Zoned::create(path, geometry, behaviour)?,
        None => Zoned::memory(geometry, behaviour)?,
    };
    Ok(Arc::new(Ftl::open(Arc::new(flash), options.settings)?))
}

/// Serves flash until `input` ends; speaks on `output`.
///
/// # Errors
/// The flash cannot be opened; as [`serve_device`].
pub fn serve(options: &Options, input: impl BufRead, output: impl Write) -> Result<()> {
    let ftl = open(options)?;
    let answer = |line: &str| (line == "counters").then(|| Counters::of(&ftl));
    serve_device(&ftl, answer, input, output)
}

/// Serves a device until `input` ends or says "quit"; speaks on `output`, and says what `answer` returns of a line.
///
/// # Errors
/// The device cannot be mounted, or put below a loop device; nothing is left then.
pub fn serve_device<D: BlockDevice + 'static, C: Serialize>(
    device: &Arc<D>,
    answer: impl Fn(&str) -> Option<C>,
    input: impl BufRead,
    mut output: impl Write,
) -> Result<()> {
    let dir = tempfile::Builder::new().prefix("shale-flash-").tempdir();
    let dir = dir.map_err(BenchError::file("the directory for temporary files", "use"))?;
    let fuse = |error: shale_fuse::FuseError| BenchError::Program {
        program: "the mount of the flash".to_owned(),
        found: error.to_string(),
    };
    let named = MountOptions {
        fsname: "shale-flash".to_owned(),
        ..MountOptions::default()
    };
    let session = FuseSession::mount(dir.path(), &named).map_err(fuse)?;
    let mut place = Place { dir, looped: None };
    let exported = Arc::new(Exported::new(Arc::clone(device)));
    let options = ServeOptions {
        threads: THREADS,
        ..ServeOptions::default()
    };
    let served = std::thread::spawn(move || session.serve(exported, &options));
    let ready = Ready {
        device: place.attach()?,
        bytes: device.bytes(),
    };
    let mut tell = |line: serde_json::Result<String>| {
        let line = line.unwrap_or_default();
        writeln!(output, "{line}").and_then(|()| output.flush())
    };
    let mut sent = tell(serde_json::to_string(&ready));
    for line in input.lines().map_while(std::io::Result::ok) {
        if let Some(answer) = answer(line.trim()) {
            sent = tell(serde_json::to_string(&answer));
        }
        if sent.is_err() || line.trim() == "quit" {
            break;
        }
    }
    drop(place);
    let ended = served.join().map_err(|_| BenchError::Program {
        program: "the mount of the flash".to_owned(),
        found: "a panic".to_owned(),
    })?;
    ended.map_err(fuse)?;
    // All of it is on the medium, for a caller that opens the image next.
    device.flush()?;
    Ok(())
}
