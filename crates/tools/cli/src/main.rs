//! `shale`: makes, mounts, watches and checks volumes.
//!
//! | Folder | What it holds |
//! | --- | --- |
//! | `commands` | one file per verb; [`Verb`] is the table of them |
//! | `service` | the processes of a mount: its supervisor, its daemon |
//! | `mounts` | what is known of mounts: the kernel's table, options, state and settings, who uses one |
//! | `control` | how these processes talk: packets, orders, questions |
//! | `boot` | what mount(8), systemd and `make install` call |
//!
//! A verb that fails says what failed, why, and what to do, on one line of standard error.
#![forbid(unsafe_code)]

mod boot;
mod commands;
mod control;
mod mounts;
mod service;

use boot::{man_pages, mount_helper};
use commands::{
    bench, completions, device, df, digest, fsck, limit, log, migrate, mkfs, mount, pin, placement,
    rescue, run, scrub, status, sync, top, tune, umount,
};
use control::ask;
use mounts::mount_options;
use rescue::{import, report, scan};
use service::{daemon, supervise};
use shale_backup::verbs::{backup, restore};
use shale_verb::{failure, process, terminal};

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the operation failed
  2  the arguments cannot be used
  3  fsck or scrub found damage
  4  no shale volume is mounted there

Example:
  shale mkfs VOLUME.toml --nvm /dev/shm/shale:1G
  shale mount VOLUME.toml /mnt/shale
  shale run -- sqlite3 /mnt/shale/books.db
  shale status /mnt/shale
  shale umount /mnt/shale
  shale fsck VOLUME.toml";

/// Shale: a cross-media file system in user space.
#[derive(Debug, Parser)]
#[command(name = "shale", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// The table of verbs.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a volume
    Mkfs(mkfs::Args),
    /// Mount a volume
    Mount(mount::Args),
    /// Unmount; returns when everything is in the volume
    Umount(umount::Args),
    /// Run a command whose calls are served in its own process
    Run(run::Args),
    /// Show what a mount is doing
    Status(status::Args),
    /// Watch what a mount is doing
    Top(top::Args),
    /// Show the space of each tier and device, and what would be lost with it
    Df(df::Args),
    /// Bring everything that is logged into the volume
    Digest(digest::Args),
    /// Make everything durable that any program has written
    Sync(sync::Args),
    /// Move cold data to slower tiers now, or say how fast that may go
    Migrate(migrate::Args),
    /// Keep files in a tier
    Pin(pin::Args),
    /// Show, add, empty and remove devices of the lower tiers
    Device(device::Args),
    /// Show settings of a volume, and change those that may change
    Tune(tune::Args),
    /// Show or say how fast clients may write
    Limit(limit::Args),
    /// Show on which tiers, in which zones, a file lies
    Where(placement::Args),
    /// Take a backup of a volume as it is at one moment, or list and verify backups
    Backup(backup::Args),
    /// Make a volume or a directory equal to a backup
    Restore(restore::Args),
    /// Check a volume that is not mounted, and repair it if asked
    Fsck(fsck::Args),
    /// Find volumes by what is on devices
    Scan(scan::Args),
    /// Write the volume file of a volume again, from its devices
    Import(import::Args),
    /// Verify the checksums of a volume that is mounted
    Scrub(scrub::Args),
    /// Write a failure report, without names and contents of files
    Report(report::Args),
    /// Look into the update logs
    Log(log::Args),
    /// Measure Shale on this machine
    Bench(bench::Args),
    /// Write a completion script for a shell
    Completions(completions::Args),
    #[command(hide = true)]
    Shale(mount_options::Args),
    #[command(hide = true)]
    Supervise(supervise::Args),
    #[command(hide = true)]
    Daemon,
    #[command(hide = true)]
    ManPages(man_pages::Args),
}

impl Verb {
    fn run(self) -> (&'static str, failure::Result<()>) {
        match self {
            Verb::Mkfs(args) => ("mkfs", mkfs::run(&args)),
            Verb::Mount(args) => ("mount", mount::run(&args)),
            Verb::Umount(args) => ("umount", umount::run(&args)),
            Verb::Run(args) => ("run", run::run(&args)),
            Verb::Status(args) => ("status", status::run(&args)),
            Verb::Top(args) => ("top", top::run(&args)),
            Verb::Df(args) => ("df", df::run(&args)),
            Verb::Digest(args) => ("digest", digest::run(&args)),
            Verb::Sync(args) => ("sync", sync::run(&args)),
            Verb::Migrate(args) => ("migrate", migrate::run(&args)),
            Verb::Pin(args) => ("pin", pin::run(&args)),
            Verb::Device(args) => ("device", device::run(&args)),
            Verb::Tune(args) => ("tune", tune::run(&args)),
            Verb::Limit(args) => ("limit", limit::run(&args)),
            Verb::Where(args) => ("where", placement::run(&args)),
            Verb::Backup(args) => (
                "backup",
                backup::run(&args, |path| Ok(ask::mount_at(path)?.state.mountpoint)),
            ),
            Verb::Restore(args) => ("restore", restore::run(&args)),
            Verb::Fsck(args) => ("fsck", fsck::run(&args)),
            Verb::Scan(args) => ("scan", scan::run(&args)),
            Verb::Import(args) => ("import", import::run(&args)),
            Verb::Scrub(args) => ("scrub", scrub::run(&args)),
            Verb::Report(args) => ("report", report::run(&args)),
            Verb::Log(args) => ("log", log::run(&args)),
            Verb::Bench(args) => ("bench", bench::run(&args)),
            Verb::Completions(args) => {
                completions::run(&args, Cli::command());
                ("completions", Ok(()))
            }
            Verb::Shale(args) => ("mount", mount_options::verb(&args)),
            Verb::Supervise(args) => ("supervise", supervise::verb(&args)),
            Verb::Daemon => ("daemon", daemon::run()),
            Verb::ManPages(args) => ("man-pages", man_pages::run(&args, Cli::command())),
        }
    }
}

/// `shale run` by itself.
#[derive(Debug, Parser)]
struct OnlyRun {
    #[command(flatten)]
    args: run::Args,
}

impl Verb {
    /// What the command line asks for; ends the process if that is help, or nothing that can be understood.
    ///
    /// `shale run` is in front of every command that a user starts: it does not make the arguments of all other
    /// verbs, which takes a quarter of a millisecond.
    fn of_command_line() -> Self {
        let words = || std::env::args_os().skip(1);
        if words().next().is_some_and(|verb| verb == "run")
            && let Ok(only) = OnlyRun::try_parse_from(words())
        {
            return Verb::Run(only.args);
        }
        Cli::parse().verb
    }
}

fn main() -> ExitCode {
    if let Some(done) = mount_helper::called() {
        return done;
    }
    match Verb::of_command_line().run() {
        (_, Ok(())) => ExitCode::SUCCESS,
        (verb, Err(failure)) => {
            eprintln!("shale {verb}: {failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    /// Every verb, with its names in front.
    fn verbs(command: &clap::Command, name: &str, all: &mut Vec<(String, clap::Command)>) {
        for verb in command.get_subcommands() {
            let name = format!("{name} {}", verb.get_name());
            verbs(verb, &name, all);
            all.push((name, verb.clone()));
        }
    }

    /// clap breaks lines where the terminal ends: a paragraph that is broken by hand is broken twice. Examples are not
    /// broken, so that they can be copied.
    #[test]
    fn help_fits_a_terminal_of_80_columns() {
        let mut all = Vec::new();
        verbs(&Cli::command(), "shale", &mut all);
        let mut wrong = Vec::new();
        for (name, verb) in &all {
            let footer = verb.get_after_help().map(ToString::to_string);
            let footer = footer.unwrap_or_default();
            let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
            let lines: Vec<&str> = footer.lines().collect();
            for pair in lines.windows(2) {
                if is_text(pair[0]) && is_text(pair[1]) {
                    wrong.push(format!("{name}: broken by hand: {}", pair[1]));
                }
            }
            for line in lines.iter().filter(|l| !is_text(l) && l.len() > 80) {
                wrong.push(format!("{name}: {} columns: {line}", line.len()));
            }
            if !verb.is_hide_set() && verb.get_subcommands().next().is_none() {
                let example = lines.iter().any(|l| l.starts_with(&format!("  {name}")));
                if !example {
                    wrong.push(format!("{name}: no example"));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
