//! `shale tune`: settings of a volume that may change after it was made.

use crate::control::admin;
use crate::control::ask;
use crate::control::orders::Order;
use crate::failure::{Failure, Result};
use crate::mounts::state::StateDir;
use crate::terminal::{print_json, say};
use shale_pool::VolumeFile;
use shale_tune::{Report, change_file, check, parse};
use shale_verb::user::parse_user;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  shale tune /mnt/shale                              all settings, with ranges
  shale tune /mnt/shale migrate_at_percent=80
  shale tune VOLUME.toml durability=buffered log_bytes=512M
  shale tune /mnt/shale overprovision:/dev/nvme0n1p3=10
  shale tune /mnt/shale digest_at_percent=default

All settings are checked before one is changed. They are written to the volume file, whose comments stay, and the \
daemon of a mount goes on as they say where CHANGES HOLD is not 'next mount'. Limits hold until the volume \
is unmounted.

Exit code 0: all are set; 1: nothing has changed; 2: nothing has changed, a setting is unknown or outside of its \
range.";

/// Arguments of `tune`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The mount point, or the volume file
    #[arg(value_name = "MOUNTPOINT|VOLUME.toml")]
    volume: PathBuf,
    /// What is to change; 'default': as if nothing was said
    #[arg(value_name = "SETTING=VALUE")]
    settings: Vec<String>,
    /// All settings as JSON
    #[arg(long)]
    json: bool,
}

/// Shows or changes.
pub fn run(args: &Args) -> Result<()> {
    let (path, mount) = find(&args.volume)?;
    let file = VolumeFile::load(&path).map_err(Failure::of)?;
    let changes = parse(&args.settings, &file, mount.is_some(), &parse_user)
        .and_then(|changes| check(&file, &changes, mount.is_some()).map(|_| changes));
    let changes = changes.map_err(|why| {
        let shown = args.volume.display();
        Failure::usage(format!("{shown}: {why}")).advise(format!(
            "nothing has changed; shale tune {shown} shows settings and ranges"
        ))
    })?;
    let report: Report = match &mount {
        Some(dir) if changes.is_empty() => admin::look(dir, &Order::Tune(changes))?,
        Some(dir) => admin::order(dir, &Order::Tune(changes))?,
        None => {
            let because = Failure::because(args.volume.display());
            let file = change_file(&path, &changes).map_err(because)?;
            Report::new(&path, &file, None)
        }
    };
    if args.json {
        return print_json(&report);
    }
    let named =
        |name: &str| { args.settings.iter() }.any(|word| word.starts_with(&format!("{name}=")));
    if args.settings.is_empty() {
        for line in report.lines() {
            say!("{line}");
        }
    }
    for row in report.settings.iter().filter(|row| named(&row.setting)) {
        say!("{}: {} ({})", row.setting, row.shown, row.holds.text());
    }
    Ok(())
}

/// The volume file that a path means, and the mount of it if there is one.
fn find(given: &Path) -> Result<(PathBuf, Option<StateDir>)> {
    if given.is_file() {
        let path = std::path::absolute(given).map_err(Failure::because(given.display()))?;
        let real = |path: &Path| path.canonicalize().ok();
        let is_it = |dir: &StateDir| real(&dir.state.volume) == real(&path);
        let mount = StateDir::all()
            .into_iter()
            .find(|dir| is_it(dir) && !dir.state.is_stale());
        return Ok((path, mount));
    }
    let dir = ask::mount_at(given)?;
    Ok((dir.state.volume.clone(), Some(dir)))
}
