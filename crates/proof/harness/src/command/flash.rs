//! `shale-harness flash`.

use std::path::{Path, PathBuf};
use std::process::Command;

use shale_bench::BenchError;
use shale_bench::Result;
use shale_bench::flash::compare::{self, Kind};
use shale_bench::flash::{load, serve, shale};
use shale_bench::machine;
use shale_emulate::ftl::{Settings, Victims};

/// Arguments of `flash`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Be the flash: print the loop device, then counters for each line "counters" on the
    /// input; at its end everything is taken away again. Needs root
    Serve(Flash),
    /// Random overwrites on full file systems, each on flash of its own: print the counters
    Compare(Compare),
}

/// The emulated flash.
#[derive(Debug, Clone, clap::Args)]
struct Flash {
    /// MiB of flash, over-provision included
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u64).range(128..=(1 << 20)))]
    mib: u64,
    /// File that keeps it [default: memory]
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// MiB of the translation layer's cache for writes. StageFS: 64 on 8 GiB
    #[arg(long, value_name = "N", default_value_t = 8)]
    cache_mib: usize,
    /// Percent of the flash that are not offered
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(0..=60))]
    over_provision: u32,
    /// Clean the blocks with the fewest valid pages, not by cost and benefit
    #[arg(long)]
    greedy: bool,
    /// Take the time that the device would
    #[arg(long)]
    real_time: bool,
}

#[derive(Debug, clap::Args)]
struct Compare {
    #[command(flatten)]
    flash: Flash,
    /// File systems
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "shale,ext4,btrfs"
    )]
    on: Vec<String>,
    /// The program `shale` [default: beside this one]
    #[arg(long, value_name = "FILE")]
    shale: Option<PathBuf>,
    /// MiB of NVM that Shale has
    #[arg(long, value_name = "N", default_value_t = 64)]
    nvm_mib: u64,
    /// KiB of a zone of Shale's [default: as mkfs has it]
    #[arg(long, value_name = "N")]
    zone_kib: Option<u64>,
    /// At most so many files
    #[arg(long, value_name = "N", default_value_t = usize::MAX, hide_default_value = true)]
    files: usize,
    /// Percent of the free space that files fill
    #[arg(long, value_name = "N", default_value_t = 90)]
    full: u64,
    /// Overwrites between two syncs of the file system
    #[arg(long, value_name = "N", default_value_t = 256)]
    sync_every: u64,
    /// KiB of a file
    #[arg(long, value_name = "N", default_value_t = 4096)]
    file_kib: u64,
    /// Passes in which a file is filled: with 2 no extent is larger than a block
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=16))]
    fill_passes: u32,
    /// Overwrites before counting, in percent of the files
    #[arg(long, value_name = "N", default_value_t = 100)]
    warm: u64,
    /// Overwrites while counting, in percent of the files
    #[arg(long, value_name = "N", default_value_t = 100)]
    count: u64,
    /// Seed of all choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

impl Flash {
    fn options(&self) -> serve::Options {
        serve::Options {
            bytes: self.mib << 20,
            image: self.image.clone(),
            settings: Settings {
                over_provision_percent: self.over_provision,
                cache_bytes: self.cache_mib << 20,
                victims: match self.greedy {
                    true => Victims::Greedy,
                    false => Victims::CostBenefit,
                },
                ..Settings::default()
            },
            real_time: self.real_time,
        }
    }

    /// The command that serves it.
    fn command(&self) -> Result<Command> {
        let program = std::env::current_exe().map_err(|e| BenchError::Program {
            program: "shale-harness".to_owned(),
            found: e.to_string(),
        })?;
        let mut command = Command::new(program);
        command.args(["flash", "serve"]);
        command.args(["--mib", &self.mib.to_string()]);
        command.args(["--cache-mib", &self.cache_mib.to_string()]);
        command.args(["--over-provision", &self.over_provision.to_string()]);
        command.args(self.greedy.then_some("--greedy"));
        command.args(self.real_time.then_some("--real-time"));
        Ok(command)
    }
}

/// Runs it.
pub fn run(args: &Args) -> Result<bool> {
    match &args.what {
        What::Serve(flash) => {
            let (input, output) = (std::io::stdin().lock(), std::io::stdout().lock());
            serve::serve(&flash.options(), input, output)?;
            Ok(true)
        }
        What::Compare(args) => compare(args),
    }
}

/// What a row is of.
enum On {
    Shale,
    Other(Kind),
}

fn on(name: &str) -> Result<On> {
    let known = Kind::ALL.into_iter().find(|kind| kind.name() == name);
    match (name, known) {
        ("shale", _) => Ok(On::Shale),
        (_, Some(kind)) => Ok(On::Other(kind)),
        (_, None) => Err(BenchError::Option {
            option: "--on",
            expected: format!("shale, {}", Kind::ALL.map(Kind::name).join(", ")),
            found: name.to_owned(),
        }),
    }
}

impl Compare {
    fn volume(&self) -> Result<shale::Options> {
        let beside = self.flash.command()?;
        let beside = Path::new(beside.get_program()).with_file_name("shale");
        Ok(shale::Options {
            program: self.shale.clone().unwrap_or(beside),
            nvm_bytes: self.nvm_mib << 20,
            flash_bytes: self.flash.mib << 20,
            zone_bytes: self.zone_kib.map(|kib| kib << 10),
        })
    }
}

fn compare(args: &Compare) -> Result<bool> {
    if args.flash.image.is_some() {
        return Err(BenchError::Option {
            option: "--image",
            expected: "nothing: each file system has flash of its own".to_owned(),
            found: "a file".to_owned(),
        });
    }
    let options = compare::Options {
        load: load::Options {
            full_percent: args.full,
            files_max: args.files,
            file_bytes: args.file_kib << 10,
            fill_passes: args.fill_passes as usize,
            sync_every: args.sync_every,
            seed: args.seed,
        },
        warm_percent: args.warm,
        count_percent: args.count,
    };
    let mut rows = Vec::new();
    for on in args.on.iter().map(|n| on(n)).collect::<Result<Vec<_>>>()? {
        let row = match on {
            On::Shale => compare::measure_shale(&args.volume()?, &options)?,
            On::Other(kind) => compare::measure(kind, &mut args.flash.command()?, &options)?,
        };
        eprintln!("{}: {:.0} s; {:?}", row.name, row.seconds, row.counted);
        rows.push(row);
    }
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&rows).unwrap_or_default()
        );
        return Ok(true);
    }
    println!(
        "{} MiB of flash, seed {}, commit {}, {}\n\n{}",
        args.flash.mib,
        args.seed,
        machine::commit().as_deref().unwrap_or("unknown"),
        machine::date(),
        compare::table(&rows)
    );
    Ok(true)
}
