//! `shale completions`: completion scripts.

use crate::terminal;
use clap_complete::Shell;

const EXAMPLES: &str = "\
Example:
  shale completions bash >/etc/bash_completion.d/shale";

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The shell to write for
    shell: Shell,
}

/// Writes the script to standard output.
pub fn run(args: &Args, mut command: clap::Command) {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "shale", &mut script);
    terminal::print(&String::from_utf8_lossy(&script));
}
