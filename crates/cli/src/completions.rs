//! `shale completions`: completion scripts.

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
    clap_complete::generate(args.shell, &mut command, "shale", &mut std::io::stdout());
}
