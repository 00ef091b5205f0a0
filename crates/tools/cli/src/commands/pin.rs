//! `shale pin`: keeps files in a tier.

use crate::commands::placement::{mount_of, tree};
use crate::control::admin;
use crate::control::ask;
use crate::control::orders::Order;
use crate::failure::{Failure, Result};
use crate::mounts::state::StateDir;
use crate::terminal::{Waiting, print_json, say};
use shale_daemon::PinReport;
use shale_status::fields::count;
use shale_sys::size;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  shale pin /mnt/shale/index.db                   in NVM, always
  shale pin /mnt/shale/films --tier hdd           a tree, and what comes later
  shale pin /mnt/shale/index.db --unpin
  shale where /mnt/shale/index.db                 says what is pinned

What lies elsewhere is brought to the tier at once. What is written later to a file that is pinned to ssd or \
hdd goes there when NVM needs space. If the tier has not enough space, nothing is pinned.";

/// Inodes of one order.
const AT_ONCE: usize = 1000;

/// Tiers as people write them, by number.
const TIERS: [&str; 3] = ["nvm", "ssd", "hdd"];

/// Arguments of `pin`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files and directories on one mount
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Where they are to be
    #[arg(long, value_parser = TIERS, default_value = "nvm")]
    tier: String,
    /// Let them move again
    #[arg(long, conflicts_with = "tier")]
    unpin: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Pins.
pub fn run(args: &Args) -> Result<()> {
    let mut inos = Vec::new();
    let mut mount: Option<StateDir> = None;
    for path in &args.paths {
        let place = path
            .canonicalize()
            .map_err(Failure::because(path.display()))?;
        let dir = ask::mount_at(&mount_of(&place)?)?;
        if mount.as_ref().is_some_and(|m| m.path() != dir.path()) {
            return Err(
                Failure::usage("the paths are on several mounts").advise("one mount at a time")
            );
        }
        mount = Some(dir);
        let device = std::fs::metadata(&place)
            .map_err(Failure::because(path.display()))?
            .dev();
        tree(&place, device, &mut |meta| inos.push(meta.ino()))?;
    }
    let Some(dir) = mount else { return Ok(()) };
    inos.sort_unstable();
    inos.dedup();
    let waiting = Waiting::start("pinning");
    admin::digest(&dir)?;
    let tier = TIERS.iter().position(|name| *name == args.tier);
    let tier = tier.filter(|_| !args.unpin).map(|number| number as u8);
    let all = order(&dir, &inos, tier, true)?;
    if all.elsewhere_bytes > all.available_bytes {
        return Err(Failure::new(format!(
            "{}: {} would have to come to {}, and there is space for {}: {} are missing; nothing is pinned",
            args.paths[0].display(),
            size::show(all.elsewhere_bytes),
            args.tier,
            size::show(all.available_bytes),
            size::show(all.elsewhere_bytes - all.available_bytes)
        )));
    }
    let done = order(&dir, &inos, tier, false)?;
    drop(waiting);
    if args.json {
        return print_json(&done);
    }
    match args.unpin {
        true => say!("{} may move again", count(done.inodes, "inode")),
        false => say!(
            "{} pinned to {}, {} moved there",
            count(done.inodes, "inode"),
            args.tier,
            size::show(done.moved_bytes)
        ),
    }
    Ok(())
}

fn order(dir: &StateDir, inos: &[u64], tier: Option<u8>, look: bool) -> Result<PinReport> {
    let mut sum = PinReport::default();
    for part in inos.chunks(AT_ONCE) {
        let inos = part.to_vec();
        let one: PinReport = admin::order(dir, &Order::Pin { inos, tier, look })?;
        sum = PinReport {
            inodes: sum.inodes + one.inodes,
            elsewhere_bytes: sum.elsewhere_bytes + one.elsewhere_bytes,
            available_bytes: one.available_bytes,
            moved_bytes: sum.moved_bytes + one.moved_bytes,
        };
    }
    Ok(sum)
}
