//! `shale-harness hostile`.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use shale_bench::Result;
use shale_hostile::campaign::{self, Options, Pairs, Summary};

const EXAMPLES: &str = "\
Examples:
  shale-harness hostile                          every case alone, then all pairs
  shale-harness hostile --no-pairs --json        every case alone
  shale-harness hostile --only 'forged' --pairs  cases whose name contains this, with all others
  shale-harness hostile --part 3/8               an eighth of the pairs
  shale-harness hostile --list                   the cases

Use a release build.";

/// Arguments of `hostile`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// All pairs: so it is unless something else is said
    #[arg(long, conflicts_with = "no_pairs")]
    pairs: bool,
    /// Each case alone
    #[arg(long)]
    no_pairs: bool,
    /// Part I of N of the pairs, I from 0
    #[arg(long, value_name = "I/N", default_value = "0/1", value_parser = super::crash::parse_shard)]
    part: (u64, u64),
    /// Ends after so many seconds; what was not tried by then has not passed
    #[arg(long, value_name = "N", default_value_t = 7_200)]
    seconds: u64,
    /// Print the cases only
    #[arg(long)]
    list: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it; whether all passed.
pub fn run(args: &Args) -> Result<bool> {
    if args.list {
        for (head, name) in campaign::names() {
            println!("{head:<10} {name}");
        }
        return Ok(true);
    }
    let options = Options {
        only: args.only.clone(),
        pairs: match args.no_pairs {
            true => Pairs::None,
            false => Pairs::Part(args.part.0, args.part.1),
        },
        time_limit: Duration::from_secs(args.seconds),
        first: false,
    };
    // What is wrong is reported with its case.
    std::panic::set_hook(Box::new(|_| ()));
    let bar = std::io::stderr().is_terminal().then(|| {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}");
        ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    });
    let summary = campaign::run(&options, &|summary| {
        let sum = summary.sum();
        if let Some(bar) = &bar {
            bar.set_length(sum.all);
            bar.set_position(sum.tried);
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(tell(args, &summary))
}

fn tell(args: &Args, summary: &Summary) -> bool {
    for failure in &summary.failures {
        eprintln!("{}: {}", failure.cases.join(" and "), failure.wrong);
        eprintln!("again: shale-harness {}", failure.again);
    }
    if args.json {
        let text = serde_json::to_string_pretty(summary).unwrap_or_default();
        println!("{text}");
    }
    let parts = [
        ("alone", summary.alone),
        ("left logs", summary.left),
        ("pairs", summary.pairs),
    ];
    for (what, count) in parts {
        println!(
            "{what}: {} of {} tried, {} passed",
            count.tried, count.all, count.passed
        );
    }
    let sum = summary.sum();
    let (failed, untried) = (sum.tried - sum.passed, sum.all - sum.tried);
    println!(
        "{} passed, {failed} failed, {untried} not tried, {:.0} s",
        sum.passed, summary.seconds
    );
    failed == 0 && untried == 0 && summary.failures.is_empty() && sum.all > 0
}
