//! `shale digest`: brings everything that is logged into the volume.

use crate::control::admin;
use crate::control::ask;
use crate::control::orders::Digested;
use crate::failure::{Failure, Result};
use crate::terminal::{Waiting, say};
use shale_status::fields::count;
use shale_sys::size;
use std::path::PathBuf;
use std::time::Instant;

const EXAMPLES: &str = "\
Example:
  shale digest /mnt/shale

Digest happens by itself when a log is 30% full (of a buffered client 70%), and at unmount. What is logged is as durable as what is \
digested; this is for looking at its effect and its speed.";

/// Arguments of `digest`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The mount point
    mountpoint: PathBuf,
    /// Print the counts as JSON
    #[arg(long)]
    json: bool,
}

/// Digests.
pub fn run(args: &Args) -> Result<()> {
    let dir = ask::mount_at(&args.mountpoint)?;
    let waiting = Waiting::start("digesting");
    let begun = Instant::now();
    let done = admin::digest(&dir)?;
    let seconds = begun.elapsed().as_secs_f64();
    drop(waiting);
    if args.json {
        let mut json = serde_json::json!(done);
        json["seconds"] = seconds.into();
        say!("{json}");
    } else {
        say!(
            "{}: {}",
            dir.state.mountpoint.display(),
            sentence(&done, seconds)
        );
    }
    match done.stuck.as_slice() {
        [] => Ok(()),
        stuck => Err(Failure::new(format!(
            "{}: not everything is in the volume: {}",
            dir.state.mountpoint.display(),
            stuck.join("; ")
        ))
        .advise(format!("its log: {}", dir.log().display()))),
    }
}

fn sentence(done: &Digested, seconds: f64) -> String {
    if done.records == 0 {
        return "nothing was waiting to be digested".to_owned();
    }
    format!(
        "{} ({} of log) digested in {seconds:.3} s: {} skipped, {} of data, {} written, {} linked, {}",
        count(done.records, "record"),
        size::show(done.bytes_logged),
        done.skipped,
        size::show(done.bytes_digested),
        count(done.blocks_written, "block"),
        done.blocks_linked,
        count(done.commits, "commit"),
    )
}
