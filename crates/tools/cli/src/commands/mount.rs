//! `shale mount`: mounts a volume and returns when the mount answers.
//!
//! ```text
//! shale mount ── starts ──► shale supervise (detached) ── starts, again and again ──► shale daemon
//!      ◄── Mounted, Failed ──┘  keeps /dev/fuse and the socket                 serves
//! ```
//!
//! Everything that can be found wrong is said here, to the user who waits for the prompt.

use crate::boot::by_uuid;
use crate::boot::fstab_options::FstabOptions;
use crate::commands::device::in_state;
use crate::control::ask;
use crate::control::packet::{self, Report};
use crate::failure::{Failure, Result};
use crate::mounts::mount_options::{self, Given};
use crate::mounts::mount_table;
use crate::mounts::state::StateDir;
use crate::service::supervise::{self, Front, Wanted};
use crate::terminal::{note, print_json, say};
use shale_fuse::MountOptions;
use shale_logs::Level;
use shale_metrics::Address;
use shale_pool::VolumeFile;
use shale_status::fields::list;
use shale_sys::size;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const EXAMPLES: &str = "\
Examples:
  shale mount VOLUME.toml /mnt/shale
  shale mount VOLUME.toml /mnt/shale --metrics 127.0.0.1:9180
  shale mount VOLUME.toml /mnt/shale --degraded     a device has failed
  shale mount VOLUME.toml /mnt/shale -o ro,noatime
  shale mount uuid=6a5c2f0e-7d1b-4c83-9a55-0f6f3f0f8a11 /mnt/shale
  shale mount -o remount,rw /mnt/shale

With --degraded a volume is mounted without devices that are missing, blank, cut, or older than the rest. \
Nothing is written to them, reading what they hold is EIO, and all else is used as ever. A device may come \
back at any later mount. For one that is gone for good: shale device list, shale where --device, shale \
device remove. Any process that reaches the address of --metrics may read them: there is no login.

The mount is served in the background until `shale umount`; what its processes say is in the log that `shale \
status` names: one line for each event, 1 MiB and as much from before. Under systemd, with --foreground, it goes to the journal, with the fields of each line (SHALE_…). --log-level debug, -o log_level=debug and SHALE_LOG=debug make them say more.";

/// Arguments of `mount`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume file that mkfs wrote; or uuid=UUID of a volume, which is looked for in /etc/shale and on block devices
    #[arg(value_name = "VOLUME.toml")]
    volume: PathBuf,
    /// A directory; what is in it is hidden meanwhile
    mountpoint: Option<PathBuf>,
    /// Options, separated by commas: ro, noatime, nosuid, nodev, noexec and their opposites; with remount
    /// they change a mount that is there, which is then the only argument. A user other than root mounts for
    /// himself alone, with allow_other for everybody
    #[arg(short = 'o', long = "options", value_name = "LIST")]
    options: Vec<String>,
    /// Stay in the foreground and log to the terminal
    #[arg(long)]
    foreground: bool,
    /// Serve metrics for Prometheus there: IP:PORT (port 0: any) or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<Address>,
    /// Mount without devices that are not there
    #[arg(long)]
    degraded: bool,
    /// How much the processes of the mount log: error, warn, info or debug [default: what SHALE_LOG says, or info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<Level>,
    /// What was mounted as JSON, with the daemon's pid, what could not be recovered, and devices that are missing
    #[arg(long)]
    json: bool,
    /// Says nothing when it was done.
    #[arg(skip)]
    quiet: bool,
}

impl Args {
    /// As mount(8) has it done: `source` is what it will look for in the table of mounts.
    pub fn of_helper(
        volume: PathBuf,
        mountpoint: PathBuf,
        mut options: String,
        source: &str,
    ) -> Self {
        // It would be two options.
        if !source.contains(',') {
            options = format!("fsname={source},{options}");
        }
        Self {
            volume,
            mountpoint: Some(mountpoint),
            options: vec![options],
            foreground: false,
            metrics: None,
            degraded: false,
            log_level: None,
            json: false,
            quiet: true,
        }
    }

    /// With those of the options in their places that have one of their own, and without those that are not for us.
    fn sorted(&self) -> Result<Self> {
        let sorted = FstabOptions::parse(&self.options.join(","))?;
        Ok(Self {
            options: vec![sorted.rest],
            degraded: self.degraded || sorted.degraded,
            metrics: self.metrics.clone().or(sorted.metrics),
            log_level: self.log_level.or(sorted.log_level),
            ..self.clone()
        })
    }
}

/// What `mount --json` prints.
#[derive(serde::Serialize)]
struct Mounted<'a> {
    volume: &'a Path,
    mountpoint: &'a Path,
    /// As `status --json` has it; null: it was unmounted meanwhile.
    daemon_pid: serde_json::Value,
    recovery_problems: Vec<String>,
    missing_devices: Vec<String>,
}

/// Mounts.
pub fn run(args: &Args) -> Result<()> {
    let args = &args.sorted()?;
    if let Some(mountpoint) = remounted(args)? {
        mount_options::change(&mountpoint, &args.options, false)?;
        match args.json {
            true => say!("{}", serde_json::json!({ "remounted": mountpoint })),
            false => say!("{}: remounted", mountpoint.display()),
        }
        return Ok(());
    }
    let wanted = check(args)?;
    if args.foreground {
        if args.json {
            return Err(Failure::usage(
                "--json says what is mounted, and --foreground stays until it is not",
            ));
        }
        return supervise::run(&wanted, Front::Foreground);
    }
    let supervisor = start(&wanted)?;
    let place = wanted.mountpoint.display();
    wait_for(&supervisor, &Report::Mounted)?;
    // The first answer comes when the daemon serves.
    if let Err(error) = std::fs::metadata(&wanted.mountpoint) {
        // If the mount was given up, the supervisor knows why.
        wait_for(&supervisor, &Report::Mounted)?;
        return Err(Failure::new(format!(
            "{place}: mounted, but it does not answer: {error}"
        )));
    }
    let status = StateDir::find(&wanted.mountpoint).and_then(|dir| ask::status(&dir).ok());
    let mounted = Mounted {
        volume: &wanted.volume,
        mountpoint: &wanted.mountpoint,
        daemon_pid: status
            .as_ref()
            .map_or(serde_json::Value::Null, |s| s["daemon_pid"].clone()),
        recovery_problems: recovery_problems(status.as_ref()),
        missing_devices: missing_devices(&wanted.mountpoint),
    };
    if args.json {
        return print_json(&mounted);
    }
    if !args.quiet {
        say!("{place}: {} mounted", wanted.volume.display());
    }
    for problem in mounted.recovery_problems {
        note!("{place}: recovery: {problem}");
    }
    for missing in mounted.missing_devices {
        note!("{place}: without {missing}");
    }
    Ok(())
}

/// Finds what is wrong without mounting.
///
/// # Errors
/// What [`run`] would refuse before it starts a process.
pub fn check_only(args: &Args) -> Result<()> {
    check(&args.sorted()?).map(drop)
}

/// What of the logs that were left could not be recovered: the mount is there all the
/// same, and the process that made it is notified.
fn recovery_problems(status: Option<&serde_json::Value>) -> Vec<String> {
    let problems = status.map(|status| list(&status["recovery"], "problems"));
    let text = |p: &serde_json::Value| p.as_str().map(str::to_owned);
    problems.into_iter().flatten().filter_map(text).collect()
}

/// Devices that are not there, with the reason.
fn missing_devices(mountpoint: &Path) -> Vec<String> {
    let dir = StateDir::find(mountpoint);
    let missing = dir.map(|dir| in_state(&dir, "missing"));
    let missing = missing.into_iter().flatten();
    missing
        .map(|d| {
            let (why, live) = (d.trouble.unwrap_or_default(), size::show(d.live_bytes));
            format!("{}: {why}; {live} cannot be read", d.path)
        })
        .collect()
}

/// The mount point, if a mount is to be changed.
fn remounted(args: &Args) -> Result<Option<PathBuf>> {
    let given = Given::parse(MountOptions::default(), &args.options)?;
    match (given.remount, &args.mountpoint) {
        (false, None) => Err(Failure::usage("where is it to be mounted?")
            .advise("shale mount VOLUME.toml MOUNTPOINT")),
        (false, Some(_)) => Ok(None),
        (true, place) => Ok(Some(place.as_ref().unwrap_or(&args.volume).clone())),
    }
}

fn check(args: &Args) -> Result<Wanted> {
    let Some(mountpoint) = &args.mountpoint else {
        unreachable!("without one nothing is mounted");
    };
    let named = { args.volume.to_str() }.map_or(Ok(None), by_uuid::identity)?;
    let given = match named {
        Some(uuid) => by_uuid::volume_file(uuid, args.degraded)?,
        None => args.volume.clone(),
    };
    let volume = std::path::absolute(&given).map_err(Failure::because(given.display()))?;
    let file = VolumeFile::load(&volume).map_err(|e| {
        let failure = Failure::of(e);
        match volume.exists() {
            true => failure,
            false => failure.advise("shale mkfs makes a volume"),
        }
    })?;
    let mountpoint = check_mountpoint(mountpoint)?;
    for path in [&volume, &mountpoint] {
        if path.to_str().is_none() {
            return Err(Failure::usage(format!(
                "{}: the path is not UTF-8",
                path.display()
            )));
        }
    }
    if !Path::new("/dev/fuse").exists() {
        return Err(Failure::new("/dev/fuse: there is no such device")
            .advise("modprobe fuse; in a container, pass the device in"));
    }
    Ok(Wanted {
        volume,
        mountpoint,
        nvm_dir: file.nvm_dir().to_owned(),
        metrics: args.metrics.as_ref().map(ToString::to_string),
        degraded: args.degraded,
        options: Given::parse(MountOptions::default(), &args.options)?.options,
        log_level: args.log_level,
    })
}

fn check_mountpoint(path: &Path) -> Result<PathBuf> {
    let shown = path.display();
    let place = match mount_table::resolve(path) {
        Ok(place) => place,
        Err(failure) => {
            return Err(Failure::new(failure.text).advise(format!("mkdir {shown}")));
        }
    };
    if let Some(mount) = mount_table::shale_at(&place)? {
        let state = StateDir::find(&place).map(|dir| dir.state);
        let text = match state {
            Some(state) if !state.is_stale() => {
                format!(
                    "{shown}: {} is mounted there already",
                    state.volume.display()
                )
            }
            _ => return Err(Failure::new(ask::unknown(&place, Some(&mount)).to_string())),
        };
        return Err(Failure::new(text).advise(format!("shale umount {shown}")));
    }
    match std::fs::metadata(&place) {
        Ok(metadata) if metadata.is_dir() => Ok(place),
        Ok(_) => Err(Failure::new(format!("{shown}: it is not a directory"))),
        Err(error) => Err(Failure::new(format!("{shown}: {error}"))),
    }
}

/// Starts a supervisor; gives our end of its socket.
fn start(wanted: &Wanted) -> Result<OwnedFd> {
    let (ours, theirs) = packet::pair()?;
    Command::new(supervise::program())
        .arg("supervise")
        .arg(&wanted.volume)
        .arg(&wanted.mountpoint)
        .args(wanted.metrics.iter().flat_map(|m| ["--metrics", m]))
        .args(wanted.degraded.then_some("--degraded"))
        .args({ wanted.log_level.iter() }.flat_map(|level| ["--log-level", level.name()]))
        .args(["-o", &mount_options::list(&wanted.options)])
        .current_dir("/")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(Failure::because("cannot start the supervisor"))?;
    Ok(ours)
}

fn wait_for(supervisor: &OwnedFd, expected: &Report) -> Result<()> {
    match packet::receive::<Report>(supervisor)? {
        Some((report, _)) if report == *expected => Ok(()),
        Some((Report::Waiting(what), _)) => {
            note!("{what}");
            wait_for(supervisor, expected)
        }
        Some((Report::Failed(failure), _)) => Err(failure),
        Some((report, _)) => Err(Failure::new(format!("the supervisor said {report:?}"))),
        None => Err(Failure::new(
            "the supervisor ended without a word: was it killed?",
        )),
    }
}
