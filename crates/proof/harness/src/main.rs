//! `shale-harness`: shows that Shale is right.
//!
//! One file per verb. A verb that finds something wrong with Shale ends with 1, after a
//! command that shows it again.
#![forbid(unsafe_code)]

mod command;
mod hunt;
mod mutants;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Shows that Shale is right: power cuts, comparison with a model, coherence of many processes.
#[derive(Debug, Parser)]
#[command(name = "shale-harness", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Many processes on one tree, as clients and on the mount: is what they see coherent?
    Coherence(command::coherence::Args),
    /// Cut power at every fence of many workloads, recover, compare with the model
    Crash(Box<command::crash::Args>),
    /// A block device whose power is cut by command, for real programs
    CutDevice(command::cut_device::Args),
    /// How fast logs are digested, and how long a writer waits that is faster
    Digest(command::digest::Args),
    /// Let every fault happen with three workloads, and see that what is promised is kept
    Faults(command::faults::Args),
    /// A daemon that `faults` starts
    #[command(hide = true)]
    FaultsDaemon(command::faults::DaemonArgs),
    /// A daemon that changes devices, which `faults` starts
    #[command(hide = true)]
    FaultsDevices(command::faults::DevicesArgs),
    /// A client that `faults` starts
    #[command(hide = true)]
    FaultsClient(command::faults::ClientArgs),
    /// A client for a moment that `faults` starts
    #[command(hide = true)]
    FaultsGuest(command::faults::GuestArgs),
    /// What looks at damaged images for `faults`
    #[command(hide = true)]
    FaultsImages(command::faults::ImagesArgs),
    /// Make images of this release's format for `faults`, where there are none yet
    #[command(hide = true)]
    GoldenMake(command::faults::GoldenArgs),
    /// Emulated flash as a block device, and other file systems on it
    Flash(command::flash::Args),
    /// Clients that lie: every case alone, and each with each
    Hostile(command::hostile::Args),
    /// Do random operations on the model, tmpfs, ext4 and a volume, and compare
    Model(command::model::Args),
    /// Switch on deliberate mistakes, one at a time, and see that each is found
    Mutants(command::mutants::Args),
    /// Loads for volumes of several tiers: a file server that grows, Zipf's law
    Tiers(command::tiers::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Coherence(args) => command::coherence::run(&args),
        Verb::Crash(args) => command::crash::run(&args),
        Verb::CutDevice(args) => command::cut_device::run(&args),
        Verb::Digest(args) => command::digest::run(&args),
        Verb::Faults(args) => command::faults::run(&args),
        Verb::FaultsDaemon(args) => return command::faults::daemon(&args),
        Verb::FaultsDevices(args) => return command::faults::devices(&args),
        Verb::FaultsClient(args) => return command::faults::client(&args),
        Verb::FaultsGuest(args) => return command::faults::guest(&args),
        Verb::FaultsImages(args) => return command::faults::images(&args),
        Verb::Flash(args) => command::flash::run(&args),
        Verb::GoldenMake(args) => command::faults::golden(&args),
        Verb::Hostile(args) => command::hostile::run(&args),
        Verb::Model(args) => command::model::run(&args),
        Verb::Mutants(args) => command::mutants::run(&args),
        Verb::Tiers(args) => command::tiers::run(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("shale-harness: {error}");
            ExitCode::from(2)
        }
    }
}
