//! `shale bench`: measures Shale on this machine.

mod load;
mod micro;
mod mistake;
mod policy;

use crate::failure::Result;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Measures single operations side by side: bare NVM, Shale, tmpfs, ext4
    Micro(micro::Args),
    /// Measures the strict and the buffered policy side by side: servers, programs, synthetic traces
    Policy(policy::Args),
    /// One load of `policy`, on any directory
    #[command(hide = true)]
    Load(load::Args),
    /// A block device as slow as a model, until the input ends
    #[command(hide = true)]
    Device(policy::Device),
    /// Takes a measurement's directory away when the input ends
    #[command(hide = true)]
    Keeper(policy::Keeper),
}

/// Measures.
pub fn run(args: &Args) -> Result<()> {
    match &args.verb {
        Verb::Micro(args) => micro::run(args),
        Verb::Policy(args) => policy::run(args),
        Verb::Load(args) => load::run(args),
        Verb::Device(args) => policy::serve_device(args),
        Verb::Keeper(args) => policy::keep(args),
    }
}
