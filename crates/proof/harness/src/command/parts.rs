//! `shale-harness crash --whole` and `--triples`: sets of workloads, in parts that are added up.

use std::time::Instant;

use shale_bench::Result;
use shale_powercut::workloads::campaign::{self, Options, Summary};
use shale_powercut::workloads::whole::{self, Part, Set};

use super::crash::Args;

/// What a part came to.
fn part_of(summary: &Summary) -> Part {
    let counts = &summary.counts;
    let count = |n: &std::sync::atomic::AtomicU64| n.load(std::sync::atomic::Ordering::Relaxed);
    Part {
        workloads: summary.workloads.iter().map(|kind| kind.1).sum(),
        cuts: count(&counts.cuts),
        states: summary.states,
        states_again: count(&counts.states_again),
        steps: count(&counts.steps),
        faults: count(&counts.faults),
        seconds: summary.seconds as u64,
    }
}

/// Runs one part; whether nothing is wrong, and none of its workloads was left out.
fn one(args: &Args, set: Set, options: &Options) -> Result<(bool, bool)> {
    let summary = campaign::run(options, &|_, _| ())?;
    let (i, of) = options.shard;
    let (part, asked) = (part_of(&summary), set.share(options.shard));
    let whole = summary.complete && part.workloads == asked;
    args.show(&summary);
    println!("part {i} of {of}: {} of {asked} workloads", part.workloads);
    let right = summary.failures.is_empty();
    if let Some(dir) = args.keep.as_ref().filter(|_| whole && right) {
        whole::keep(dir, set, options.shard, &part, &summary.known)?;
    }
    Ok((right, whole))
}

/// Shows what the parts that were kept come to; whether they are all, if `of` of them are there.
fn show_sum(args: &Args, set: Set, of: u64) -> Result<bool> {
    let Some(dir) = &args.keep else {
        return Ok(true);
    };
    let all = set.share((0, 1));
    let sum = whole::sum(dir, set, of)?;
    if args.json {
        println!("{}", serde_json::to_string(&sum).unwrap_or_default());
    }
    println!(
        "{} of {of} parts: {} of {all} workloads, {} cuts, {} different states ({} cut again), \
         {} different volumes, {} s",
        sum.parts.0,
        sum.part.workloads,
        sum.part.cuts,
        sum.states,
        sum.part.states_again,
        sum.volumes,
        sum.part.seconds,
    );
    if sum.part.steps > 0 {
        let (steps, faults) = (sum.part.steps, sum.part.faults);
        println!("{steps} steps of long runs, {faults} faults after which they went on");
    }
    Ok(sum.parts.0 < of || sum.part.workloads == all)
}

/// Runs one part, or all that are left; whether nothing is wrong.
pub(super) fn run(args: &Args, set: Set, mut options: Options) -> Result<bool> {
    let Some(of) = args.parts else {
        let (right, whole) = one(args, set, &options)?;
        return Ok(show_sum(args, set, options.shard.1)? && right && whole);
    };
    let (begin, limit) = (Instant::now(), options.time_limit);
    let mut right = true;
    for part in (0..of).map(|i| (i, of)) {
        let kept = args.keep.as_ref().is_some_and(|dir| set.is_kept(dir, part));
        if kept {
            continue;
        }
        options.time_limit = limit.saturating_sub(begin.elapsed());
        if options.time_limit.is_zero() {
            break;
        }
        options.shard = part;
        // Time that is up is nothing wrong.
        right &= one(args, set, &options)?.0;
    }
    Ok(show_sum(args, set, of)? && right)
}
