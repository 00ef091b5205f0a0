//! `shale device`: the devices of the lower tiers of a volume that is mounted.

use crate::control::admin;
use crate::control::ask;
use crate::control::orders::{DeviceOrder, Order};
use crate::failure::{Failure, Result};
use crate::mounts::state::StateDir;
use crate::service::between;
use crate::terminal::{Waiting, print_json, say};
use shale_daemon::DeviceReport;
use shale_format::TierId;
use shale_pool::growth::{grow_nvm, may_grow};
use shale_pool::nvm_move::move_nvm;
use shale_pool::volume_file::arguments::{known_model, parse_device, parse_nvm};
use shale_pool::volume_file::{DeviceFile, NvmEntry, parse_uuid};
use shale_pool::{Divided, VolumeFile};
use shale_status::fields::count;
use shale_sys::size;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  shale device list /mnt/shale
  shale device add /mnt/shale --hdd /dev/sdc:4T
  shale device evacuate /mnt/shale /dev/sdb    what it holds moves elsewhere
  shale device remove /mnt/shale /dev/sdb      when it is empty";
const LIST: &str = "\
Example:
  shale device list /mnt/shale --json";
const ADD: &str = "\
Examples:
  shale device add /mnt/shale --ssd /dev/nvme1n1:512G
  shale device add VOLUME.toml --nvm /mnt/pmem/shale:16G

It is used at once, also where it is the first one below NVM. Its tables take 0.1% of its size in NVM. The \
volume file is rewritten.

NVM is added to a volume that was made without, and is not mounted. What its SSD keeps of its memory tier is \
copied to the directory and compared, then the volume file names that. Killed, or cut off from power, before, the \
volume is as it was: begin again. The SSD's staging area becomes part of the SSD tier. Durability stays as it is.";
const EVACUATE: &str = "\
Examples:
  shale device evacuate /mnt/shale /dev/sdb
  shale device evacuate /mnt/shale /dev/sdb --background
  shale device evacuate /mnt/shale /dev/sdb --cancel

Nothing new is written to the device, and what it holds moves to other devices of its tier or, where those \
are full, to other tiers. Programs go on meanwhile. It goes on by itself when this command is ended, when \
the daemon is killed, and at the next mount. Without space elsewhere nothing is begun.";
const REMOVE: &str = "\
Examples:
  shale device remove /mnt/shale /dev/sdb
  shale device remove VOLUME.toml --nvm

Only a device that holds nothing can be removed; shale device evacuate empties it.

A device that is gone for good (missing, on a volume mounted with --degraded) can be removed when nothing \
refers to it any more: shale where MOUNTPOINT --device DEVICE names the files that lie there, which are \
removed, or rewritten; shale fsck VOLUME.toml --repair --without-missing gives up directories and inodes \
that lie there.

NVM is removed from a volume that is not mounted and has an SSD. What is in NVM becomes its memory tier, of the same \
size, in shared memory while it is mounted; on the SSD it takes twice as much, and a staging area. Where the zones of the \
SSD leave no such space, those at its end are emptied and go. Killed, or cut off from power, before the \
volume file names the SSD, the volume is as it was: begin again. Durability stays as it is.";
const GROW: &str = "\
Example:
  shale device grow VOLUME.toml --nvm 32G

New segments are made in the NVM directory, or on what is mounted there, and take their space at once. All files \
stay where they are. While the volume is mounted its calls wait meanwhile: a daemon ends, and the next one has the larger NVM. Killed, or cut off from power, on the way, the next mount, fsck or grow finishes it or takes \
it back. NVM does not shrink.

An SSD or a disk does not grow: shale device add another one.";

const REPLACE: &str = "\
Example:
  shale device replace VOLUME.toml --nvm /mnt/pmem1/shale

Segments and update logs are copied and compared, then the volume file names the new directory, and the old files go. \
Until then the old directory is the volume, whatever happens; after that begin again with the same directory. The size stays: \
shale device grow makes it larger afterwards.

An SSD or a disk is replaced while it is mounted: shale device add the new one, evacuate and remove the old one.";

/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Looks without progress after which a reason is believed.
const PATIENCE: u32 = 100;

/// Arguments of `device`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Show the devices: identity, size, what they hold, state, errors
    List(List),
    /// Make a device part of the volume
    Add(Box<Add>),
    /// Empty a device
    Evacuate(Evacuate),
    /// Take an empty device out of the volume
    Remove(Remove),
    /// Have the NVM of a volume grow
    Grow(Grow),
    /// Move the NVM of a volume that is not mounted to another directory
    Replace(Replace),
}

#[derive(Debug, clap::Args)]
#[command(after_help = LIST)]
struct List {
    /// The mount point
    mountpoint: PathBuf,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = ADD)]
struct Add {
    /// The mount point; for --nvm the volume file, of a volume that is not mounted
    #[arg(value_name = "MOUNTPOINT|VOLUME.toml")]
    mountpoint: PathBuf,
    /// To the flash tier: a block device or an image file, its size, and the size of its zones if
    /// they are known
    #[arg(long, value_name = "PATH:SIZE[,zone=SIZE][,kind=KIND][,overprovision=PERCENT]", value_parser = parse_device, required_unless_present_any = ["hdd", "nvm"])]
    ssd: Option<DeviceFile>,
    /// To the disk tier, likewise
    #[arg(long, value_name = "PATH:SIZE[,zone=SIZE][,kind=KIND][,overprovision=PERCENT]", value_parser = parse_device, conflicts_with = "ssd")]
    hdd: Option<DeviceFile>,
    /// NVM, to a volume without: a directory that is empty, or to be made, and its size
    #[arg(long, value_name = "DIR:SIZE", value_parser = parse_nvm, conflicts_with_all = ["ssd", "hdd", "model", "force"])]
    nvm: Option<NvmEntry>,
    /// Make it as slow as a model of a medium: flash or disk
    #[arg(long, value_name = "MODEL", value_parser = known_model)]
    model: Option<String>,
    /// Destroy a volume that is there
    #[arg(long)]
    force: bool,
    /// Say what was added as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = EVACUATE)]
struct Evacuate {
    /// The mount point
    mountpoint: PathBuf,
    /// The device, or its identity
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Do not wait until it is empty
    #[arg(long)]
    background: bool,
    /// Use it again; what has moved stays where it is
    #[arg(long, conflicts_with = "background")]
    cancel: bool,
    /// Say how it is as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = REMOVE)]
struct Remove {
    /// The mount point; for --nvm the volume file, of a volume that is not mounted
    #[arg(value_name = "MOUNTPOINT|VOLUME.toml")]
    mountpoint: PathBuf,
    /// The device, or its identity
    #[arg(
        value_name = "DEVICE",
        required_unless_present = "nvm",
        conflicts_with = "nvm"
    )]
    device: Option<PathBuf>,
    /// The NVM
    #[arg(long)]
    nvm: bool,
    /// Bytes of the staging area on the SSD, 32M to 512M [default: 128M, less on an SSD below 1G]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "nvm")]
    staging: Option<u64>,
    /// Say what was removed, and what is left, as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = GROW)]
struct Grow {
    /// The volume file; the volume must not be mounted
    #[arg(value_name = "VOLUME.toml")]
    volume: PathBuf,
    /// Bytes that its NVM is to have
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    nvm: u64,
    /// Say how large it was and is as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = REPLACE)]
struct Replace {
    /// The volume file; the volume must not be mounted
    #[arg(value_name = "VOLUME.toml")]
    volume: PathBuf,
    /// The new directory: empty, or to be made
    #[arg(long, value_name = "DIR")]
    nvm: PathBuf,
    /// Say what was moved as JSON
    #[arg(long)]
    json: bool,
}

/// What `device remove --json` prints.
#[derive(serde::Serialize)]
struct Removed {
    /// The device that the volume no longer has.
    removed: PathBuf,
    /// Those that it has.
    devices: Vec<DeviceReport>,
}

/// Shows or changes.
pub fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::List(args) => list(args),
        What::Add(args) => add(args),
        What::Evacuate(args) => evacuate(args),
        What::Remove(args) => remove(args),
        What::Grow(args) => grow(args),
        What::Replace(args) => replace(args),
    }
}

/// The devices of a mount.
///
/// # Errors
/// The daemon does not answer.
pub fn devices(dir: &StateDir) -> Result<Vec<DeviceReport>> {
    admin::look(dir, &Order::Devices)
}

/// Those of them that are `missing`, say; none if the daemon does not answer.
pub fn in_state(dir: &StateDir, state: &str) -> Vec<DeviceReport> {
    let mut all = devices(dir).unwrap_or_default();
    all.retain(|d| d.state == state);
    all
}

fn change(dir: &StateDir, order: DeviceOrder) -> Result<Vec<DeviceReport>> {
    admin::order(dir, &Order::Device(order))
}

fn list(args: &List) -> Result<()> {
    let dir = ask::mount_at(&args.mountpoint)?;
    let all = devices(&dir)?;
    if args.json {
        return print_json(&all);
    }
    if all.is_empty() {
        say!("no devices: the volume has NVM alone");
        return Ok(());
    }
    say!(
        "{:<5} {:<12} {:>9} {:>9} {:>9} {:>12} {:>7}  {:<9} device",
        "tier",
        "kind",
        "size",
        "written",
        "live",
        "zones empty",
        "errors",
        "state"
    );
    for d in &all {
        say!(
            "{:<5} {:<12} {:>9} {:>9} {:>9} {:>12} {:>7}  {:<9} {} ({})",
            d.tier,
            d.kind,
            size::show(d.size_bytes),
            size::show(d.used_bytes),
            size::show(d.live_bytes),
            format!("{} of {}", d.empty_zones, d.divided.zones),
            d.errors,
            d.state,
            d.path,
            d.uuid
        );
        say!("      {}", divided(&d.divided));
        if let Some(why) = &d.trouble {
            say!("      {why}");
        }
        if d.bad_blocks > 0 {
            let blocks = count(d.bad_blocks, "block");
            say!("      {blocks} unreadable: shale status names them");
        }
    }
    Ok(())
}

fn add(args: &Add) -> Result<()> {
    if let Some(nvm) = &args.nvm {
        return shale_switch::add(&args.mountpoint, nvm, args.json);
    }
    let dir = ask::mount_at(&args.mountpoint)?;
    let (tier, file) = match (&args.ssd, &args.hdd) {
        (Some(file), _) => (TierId::Ssd, file),
        (None, Some(file)) => (TierId::Hdd, file),
        (None, None) => return Err(Failure::usage("give --ssd or --hdd")),
    };
    // The daemon has another working directory.
    let path = std::path::absolute(&file.path).map_err(Failure::because(file.path.display()))?;
    let file = DeviceFile {
        path: path.clone(),
        model: args.model.clone(),
        ..file.clone()
    };
    let force = args.force;
    let tier = tier as u8;
    let all = change(&dir, DeviceOrder::Add { tier, file, force })?;
    let added = all.last_of(&path);
    if args.json {
        return print_json(&added);
    }
    if let Some(d) = added {
        say!(
            "{}: {} added to {}, {} of {}",
            d.path,
            size::show(d.size_bytes),
            d.tier,
            count(d.divided.zones, "zone"),
            size::show(d.divided.zone_bytes)
        );
        say!("  {}", divided(&d.divided));
    }
    Ok(())
}

/// How a device is divided, and why so, in words.
pub fn divided(d: &Divided) -> String {
    let mut words = format!(
        "zones of {} from byte {} on",
        size::show(d.zone_bytes),
        d.zones_at_byte
    );
    if d.unit_bytes > 0 {
        let unit = size::show(d.unit_bytes);
        words += &format!("; unit {unit} ({})", d.unit_from);
    }
    if !d.aligned {
        words += "; zones are NOT aligned to it";
    }
    words
}

/// Finding a device among those that the daemon tells of.
pub trait Named {
    /// The last one with this path or identity.
    fn last_of(&self, device: &Path) -> Option<DeviceReport>;
}

impl Named for Vec<DeviceReport> {
    fn last_of(&self, device: &Path) -> Option<DeviceReport> {
        let whole = device.canonicalize().unwrap_or_else(|_| device.to_owned());
        let mine = |d: &&DeviceReport| {
            let path = Path::new(&d.path);
            path == device || path == whole || device.as_os_str() == d.uuid.as_str()
        };
        self.iter().rfind(mine).cloned()
    }
}

/// As the daemon, which has another working directory, finds it.
pub fn named(device: &Path) -> PathBuf {
    let text = device.to_str().unwrap_or_default();
    match !device.exists() && parse_uuid(text).is_some() {
        true => device.to_owned(),
        false => std::path::absolute(device).unwrap_or_else(|_| device.to_owned()),
    }
}

fn evacuate(args: &Evacuate) -> Result<()> {
    let dir = ask::mount_at(&args.mountpoint)?;
    let device = named(&args.device);
    let shown = args.device.display();
    if args.cancel {
        let all = change(&dir, DeviceOrder::Keep(device.clone()))?;
        return report(args, &all.last_of(&device), "in use again");
    }
    let all = change(&dir, DeviceOrder::Evacuate(device.clone()))?;
    let begun = all.last_of(&device);
    let Some(first) = begun.filter(|_| !args.background) else {
        return report(args, &all.last_of(&device), "is being emptied");
    };
    let template = "{wide_bar} {binary_bytes} of {binary_total_bytes} {eta}";
    let bar = Waiting::for_progress(Some(template));
    let (mut last, mut looks) = (u64::MAX, 0);
    let end = loop {
        let now = devices(&dir)?.last_of(&device);
        let Some(now) = now else { break None };
        let moved = first.live_bytes.saturating_sub(now.live_bytes);
        bar.done(moved, first.live_bytes);
        looks = if now.live_bytes < last { 0 } else { looks + 1 };
        last = now.live_bytes;
        if now.live_bytes == 0 || (now.trouble.is_some() && looks > PATIENCE) {
            break Some(now);
        }
        thread::sleep(LOOK);
    };
    drop(bar);
    match end {
        Some(d) if d.live_bytes > 0 => {
            let why = d.trouble.clone().unwrap_or_default();
            Err(Failure::new(format!("{shown}: {why}")).advise(format!(
                "it goes on when that has changed; shale device evacuate {} {shown} --cancel \
                     uses it again",
                args.mountpoint.display()
            )))
        }
        end => report(args, &end, "is empty"),
    }
}

fn report(args: &Evacuate, device: &Option<DeviceReport>, what: &str) -> Result<()> {
    if args.json {
        return print_json(device);
    }
    say!("{}: {what}", args.device.display());
    Ok(())
}

fn grow(args: &Grow) -> Result<()> {
    let waiting = Waiting::start("growing");
    let file = VolumeFile::load(&args.volume).map_err(Failure::of)?;
    let grow = || grow_nvm(&args.volume, args.nvm, &|_| ());
    let grown = match between::mount_of(file.nvm_dir()) {
        None => grow().map_err(Failure::of),
        Some(mount) => {
            // Before a daemon ends for it.
            may_grow(&args.volume, args.nvm).map_err(Failure::of)?;
            between::between_daemons(&mount, grow)
        }
    };
    drop(waiting);
    let grown = grown?;
    if args.json {
        return print_json(&grown);
    }
    say!(
        "{}: NVM has grown from {} to {}, {}",
        grown.dir.display(),
        size::show(grown.from_bytes),
        size::show(grown.to_bytes),
        count(grown.segments as u64, "segment")
    );
    Ok(())
}

fn replace(args: &Replace) -> Result<()> {
    let bar = Waiting::for_progress(Some("{wide_bar} {bytes} of {total_bytes}"));
    let mut show = |done, of| bar.done(done, of);
    let moved = move_nvm(&args.volume, &args.nvm, &mut show, &|_| ());
    drop(bar);
    let moved = moved.map_err(Failure::of)?;
    if args.json {
        return print_json(&moved);
    }
    say!(
        "{}: {} in {} moved from {}",
        moved.to.display(),
        size::show(moved.bytes),
        count(moved.files as u64, "file"),
        moved.from.display()
    );
    Ok(())
}

fn remove(args: &Remove) -> Result<()> {
    let Some(device) = &args.device else {
        return shale_switch::remove(&args.mountpoint, args.staging, args.json);
    };
    let dir = ask::mount_at(&args.mountpoint)?;
    let removed = named(device);
    let devices = change(&dir, DeviceOrder::Remove(removed.clone()))?;
    if args.json {
        return print_json(&Removed { removed, devices });
    }
    say!("{}: removed", device.display());
    Ok(())
}
