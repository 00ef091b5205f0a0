//! `shale report`: what those who look for a failure need, in one file, without users' data.

use crate::commands::{fsck, status};
use crate::control::ask;
use crate::failure::{Failure, Result};
use crate::mounts::mount_table;
use crate::mounts::state::StateDir;
use crate::terminal::{print_json, say};
use serde_json::{Value, json};
use shale_check::CheckOptions;
use shale_pool::VolumeFile;
use shale_pool::host_space::HostSpace;
use shale_report::{Archive, Redactor, machine};
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const EXAMPLES: &str = "\
Examples:
  shale report /mnt/shale
  shale report VOLUME.toml -o /tmp/shale-report.tar.gz

In it are versions, the machine, VOLUME.toml as it is, options and state of the mount, status, the last lines of its log, and of a volume that is \
not mounted what shale fsck finds. Left out are names and contents of files, names of programs, the name of the machine, and on each line \
what follows a path that is not known to be of the volume. Look into it before you hand it on: tar xzf FILE.

Exit code 0: it was written, with what could be found out; 1: it could not be written.";

/// Most lines of the log.
const LOG_LINES: usize = 2000;

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The mount point, or the volume file of a volume that is mounted or not
    #[arg(value_name = "MOUNTPOINT|VOLUME.toml")]
    place: PathBuf,
    /// The file to write, which must not be there [default: shale-report-UUID-TIME.tar.gz in the working directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Where it was written and what is in it, as JSON
    #[arg(long)]
    json: bool,
}

/// What a report is about.
struct Subject {
    /// The volume file, as it was given or as the mount has it.
    volume: PathBuf,
    /// What it says, or why it cannot be read.
    file: std::result::Result<VolumeFile, String>,
    /// State of the mount, if there is one.
    mount: Option<StateDir>,
}

/// Writes a report.
pub fn run(args: &Args) -> Result<()> {
    let subject = Subject::of(&args.place)?;
    let redactor = subject.redactor();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seconds = now.map_or(0, |now| now.as_secs());
    let uuid = subject.file.as_ref().map_or("", |file| &file.uuid);
    let name = format!("shale-report-{}-{seconds}", &uuid[..uuid.len().min(8)]);
    let mut report = Archive::new(&*name);
    let program = format!("shale {}", env!("CARGO_PKG_VERSION"));
    report.add("versions.txt", format!("{program}\n{}", machine()));
    report.add("media.txt", subject.media());
    let volume = fs::read_to_string(&subject.volume);
    report.add(
        "volume.toml",
        volume.unwrap_or_else(|e| format!("# cannot be read: {e}\n")),
    );
    match &subject.mount {
        Some(dir) => {
            report.add("mount.json", pretty(mount_of(dir), &redactor));
            let answered = ask::status(dir).map(|answer| status::complete(answer, dir));
            let answer = answered.unwrap_or_else(|e| json!({"error": e.to_string()}));
            report.add("status.json", pretty(answer, &redactor));
            report.add("log.txt", redactor.text(&dir.last_lines_of_both(LOG_LINES)));
        }
        None => report.add("fsck.json", subject.checked(&redactor)),
    }
    let parts: Vec<String> = report.names().map(str::to_owned).collect();
    report.explain(&program);
    let output = args
        .output
        .clone()
        .unwrap_or_else(|| format!("{name}.tar.gz").into());
    let shown = output.display();
    let written = report.write(&output);
    written.map_err(Failure::because(format!("{shown}: cannot write it")))?;
    if args.json {
        return print_json(&json!({"report": output, "parts": parts}));
    }
    say!("{shown}: {}", parts.join(", "));
    say!(
        "names and contents of files are left out; look into it before you hand it on: tar xzf {shown}"
    );
    Ok(())
}

impl Subject {
    fn of(place: &Path) -> Result<Self> {
        let (volume, mount) = match place.is_file() {
            true => {
                let volume = std::path::absolute(place);
                let volume = volume.map_err(Failure::because(place.display()))?;
                let real = |path: &Path| path.canonicalize().ok();
                let mut all = StateDir::all();
                all.retain(|dir| real(&dir.state.volume) == real(&volume));
                all.sort_by_key(|dir| dir.state.is_stale());
                (volume, all.into_iter().next())
            }
            false => {
                let place = mount_table::resolve(place)?;
                // One that was given up has state and log still.
                match StateDir::find(&place) {
                    Some(dir) => (dir.state.volume.clone(), Some(dir)),
                    None => {
                        return Err(ask::mount_at(&place).err().unwrap_or_else(|| gone(&place)));
                    }
                }
            }
        };
        let file = VolumeFile::load(&volume).map_err(|e| e.to_string());
        Ok(Self {
            volume,
            file,
            mount,
        })
    }

    fn redactor(&self) -> Redactor {
        let mut exact = vec![self.volume.clone()];
        let mut whole = Vec::new();
        if let Ok(file) = &self.file {
            let devices = file.ssd.iter().chain(&file.hdd);
            exact.extend(devices.map(|device| device.path.clone()));
            whole.extend([file.nvm_dir().to_owned(), file.buffer_dir()]);
        }
        if let Some(dir) = &self.mount {
            exact.push(dir.state.mountpoint.clone());
            whole.extend([dir.state.nvm_dir.clone(), dir.path().to_owned()]);
        }
        Redactor::new(&exact, &whole)
    }

    /// What the media are.
    fn media(&self) -> String {
        let file = match &self.file {
            Ok(file) => file,
            Err(why) => return format!("the volume file cannot be used: {why}\n"),
        };
        let mut text = String::new();
        let devices = file.ssd.iter().chain(&file.hdd).map(|device| &*device.path);
        for path in [file.nvm_dir()].into_iter().chain(devices) {
            let is = match fs::metadata(path) {
                Ok(found) => {
                    let host = HostSpace::of(path);
                    let kind = host.map_or_else(|e| e.to_string(), |host| host.kind);
                    let is = match found.file_type() {
                        is if is.is_block_device() => "block device",
                        is if is.is_dir() => "directory",
                        _ => "file",
                    };
                    format!("{is}, {} bytes, on {kind}", found.len())
                }
                Err(e) => e.to_string(),
            };
            let _ = writeln!(text, "{}: {is}", path.display());
        }
        text
    }

    /// What a check finds.
    fn checked(&self, redactor: &Redactor) -> String {
        let file = self.file.as_ref().map_err(Clone::clone);
        let checked = file.and_then(|file| {
            let report = fsck::check(file, &CheckOptions::of(file)).map_err(|e| e.to_string())?;
            serde_json::to_value(report).map_err(|e| e.to_string())
        });
        let mut answer = checked.unwrap_or_else(|why| json!({"error": why}));
        redactor.findings(&mut answer);
        format!("{answer:#}\n")
    }
}

fn gone(place: &Path) -> Failure {
    Failure::not_mounted(format!("{}: its mount has just ended", place.display()))
}

fn pretty(mut value: Value, redactor: &Redactor) -> String {
    redactor.json(&mut value);
    format!("{value:#}\n")
}

/// State of a mount, and how the kernel has it.
fn mount_of(dir: &StateDir) -> Value {
    let found = mount_table::at(&dir.state.mountpoint).ok().flatten();
    let daemon = dir.state.daemon.map(|daemon| daemon.pid);
    let program = daemon.and_then(|pid| fs::read_link(format!("/proc/{pid}/exe")).ok());
    json!({
        "state": dir.state,
        "mounted": dir.state.is_mounted().unwrap_or(false),
        "options": found.map(|mount| mount.options),
        "daemon_lives": dir.state.daemon.is_some_and(|daemon| daemon.lives()),
        "program_was_replaced": program.map(|path| path.to_string_lossy().ends_with(" (deleted)")),
    })
}
