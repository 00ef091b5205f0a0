//! The manual: one page for the program and one for each verb, from the table of verbs (hidden verb, for `make install`).

use crate::failure::{Failure, Result};
use clap::Command;
use clap_mangen::Man;
use std::fs;
use std::path::{Path, PathBuf};

/// Arguments of the hidden verb.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An existing directory, in which the pages are written
    directory: PathBuf,
}

/// Writes the pages of `program` and its verbs.
///
/// # Errors
/// One cannot be written.
pub fn run(args: &Args, program: Command) -> Result<()> {
    // Long options that all verbs have are known only afterwards.
    let mut program = program.disable_help_subcommand(true);
    program.build();
    write(&args.directory, &program)
}

fn write(directory: &Path, command: &Command) -> Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = directory.join(format!("{name}.1"));
    let failed = format!("{}: cannot write it", path.display());
    let mut page = Vec::new();
    render(command, name, &mut page).map_err(Failure::because(&failed))?;
    fs::write(&path, page).map_err(Failure::because(&failed))?;
    let mut verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    verbs.try_for_each(|verb| write(directory, verb))
}

fn render(command: &Command, name: &str, page: &mut Vec<u8>) -> std::io::Result<()> {
    let man = Man::new(command.clone())
        .title(name)
        .manual("Shale")
        .date("");
    man.render(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_verb_that_is_shown_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().to_owned();
        run(&Args { directory }, crate::Cli::command()).unwrap();
        let has = |page: &str| dir.path().join(page).exists();
        for page in [
            "shale.1",
            "shale-mkfs.1",
            "shale-mount.1",
            "shale-device-add.1",
            "shale-bench-policy.1",
        ] {
            assert!(has(page), "{page}");
        }
        assert!(!has("shale-supervise.1") && !has("shale-daemon.1") && !has("shale-help.1"));
        let text = fs::read_to_string(dir.path().join("shale-mount.1")).unwrap();
        for part in [".TH", "shale mount", "degraded", "Examples:"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let args = Args {
            directory: "/nowhere/at/all".into(),
        };
        let failure = run(&args, crate::Cli::command()).unwrap_err();
        assert!(
            failure.text.starts_with("/nowhere/at/all/shale.1: "),
            "{failure}"
        );
    }
}
