//! `shale scrub`: verifies the checksums of a volume that is mounted.

use crate::control::admin;
use crate::control::ask;
use crate::control::orders::Scrubbing;
use crate::failure::{Failure, Result};
use crate::terminal::{Waiting, print_json, say};
use shale_daemon::ScrubReport;
use shale_format::limits::BLOCK_BYTES;
use shale_status::fields::count;
use shale_sys::printable;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  shale scrub /mnt/shale
  shale scrub /mnt/shale --json

Reads every structure of the NVM tier, and all data on tiers below, and compares checksums, while the volume \
is in use. Data on NVM has no checksum. Exit code 0: all fit; 3: damage was found. Damaged structure is \
repaired by shale fsck VOLUME.toml --repair when the volume is not mounted; data that is damaged is well \
again when it is rewritten, and what cannot be read of it is gone.";

/// Arguments of `scrub`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The mount point
    mountpoint: PathBuf,
    /// The whole report as JSON
    #[arg(long)]
    json: bool,
}

/// Scrubs.
pub fn run(args: &Args) -> Result<()> {
    let dir = ask::mount_at(&args.mountpoint)?;
    let shown = dir.state.mountpoint.display().to_string();
    let bar = Waiting::for_progress(None);
    let mut damage = Vec::new();
    let done = admin::scrub(&dir, &mut |word| match word {
        Scrubbing::Progress(progress) => bar.done(progress.done, progress.of),
        Scrubbing::Found(one) => damage.push(one),
        Scrubbing::Done(_) => {}
    });
    drop(bar);
    let report = ScrubReport { damage, ..done? };
    print(args, &report)?;
    match (report.errors, report.complete) {
        (0, true) => Ok(()),
        (0, false) => Err(Failure::new(format!(
            "{shown}: the scrub was ended before its end"
        ))),
        (errors, _) => Err(Failure::damaged(format!(
            "{shown}: {} in what was read",
            count(errors, "error")
        ))
        .advise(
            "structure: unmount it, then shale fsck VOLUME.toml --repair; data below NVM: write those blocks again, \
             or remove their files",
        )),
    }
}

fn print(args: &Args, report: &ScrubReport) -> Result<()> {
    if args.json {
        return print_json(report);
    }
    for one in &report.damage {
        let object = printable::name(&one.object);
        let Some(bytes) = &one.bytes else {
            say!("{object}: {}", one.what);
            continue;
        };
        let many = bytes.end - bytes.start;
        say!(
            "{object}: {} at byte {}: {}{}",
            count(many, "byte"),
            bytes.start,
            one.what,
            match many.div_ceil(BLOCK_BYTES as u64).saturating_sub(1) {
                0 => String::new(),
                more => format!("; and {} after it", count(more, "block")),
            }
        );
    }
    say!(
        "{}, {}, {} with attributes, {}, {} below NVM: {}",
        count(report.inodes, "inode"),
        count(report.nodes, "tree node"),
        count(report.attributes, "inode"),
        count(report.bitmap_blocks, "bitmap block"),
        count(report.data_blocks, "data block"),
        count(report.errors, "error")
    );
    if report.repaired_blocks > 0 {
        let blocks = count(report.repaired_blocks, "block");
        say!("{blocks} did not fit, rewritten from copies in memory");
    }
    Ok(())
}
