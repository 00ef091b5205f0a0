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
pub fn run(args: &Args, command: clap::Command) {
    let mut command = without_hidden(&command);
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "shale", &mut script);
    terminal::print(&String::from_utf8_lossy(&script));
}

/// The verbs that a user gives: clap_complete offers hidden ones, too.
fn without_hidden(command: &clap::Command) -> clap::Command {
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let about = command.get_about().cloned().unwrap_or_default();
    clap::Command::new("shale")
        .about(about)
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments())
        .subcommands(verbs.cloned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn hidden_verbs_are_not_offered() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            let mut command = without_hidden(&crate::Cli::command());
            clap_complete::generate(shell, &mut command, "shale", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(
                script.contains("umount") && script.contains("evacuate"),
                "{shell}"
            );
            assert!(
                !script.contains("supervise") && !script.contains("man-pages"),
                "{shell}"
            );
        }
    }
}
