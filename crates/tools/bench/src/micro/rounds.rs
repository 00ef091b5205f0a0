//! Interleaved rounds: every target in turn, again and again, so that whatever the
//! machine does meanwhile hits all alike.
//!
//! Within a round the targets take turns every [`MicroOptions::turn_ops`] operations: memory can
//! have more than one speed, and change it every millisecond or so (on a virtual machine 4 KiB
//! past the cache took 205 or 290 ns). With whole rounds in turn, a median is that of the speed
//! that was the more frequent one in the target's few rounds.
//!
//! Invariant: within a round every target gets the same operations: the same offsets, the
//! same numbers, the same bytes from the same buffer. Round 0 is for warming up and
//! is not counted. Work that a target puts off is waited for after each round.

use hdrhistogram::Histogram;
use std::ops::Range;

use super::options::MicroOptions;
use super::report::{Counts, Row};
use super::target::{DeviceCounts, Op, Target};
use crate::Result;
use crate::chance::Chance;
use crate::timer::{Timer, histogram};

/// The operations of one round.
struct Round<'b> {
    op: Op,
    size: usize,
    ops: usize,
    offsets: Vec<u64>,
    numbers: Range<u64>,
    data: &'b [u8],
}

/// What one target did so far.
struct Tally {
    times: Histogram<u64>,
    spent_ns: u64,
    flush_ns: u64,
    calls: DeviceCounts,
    after: DeviceCounts,
    counted: bool,
}

impl Tally {
    fn new() -> Self {
        Tally {
            times: histogram(),
            spent_ns: 0,
            flush_ns: 0,
            calls: DeviceCounts::default(),
            after: DeviceCounts::default(),
            counted: false,
        }
    }
}

/// Measures one operation at one size on all targets. `size` is 0 for operations without.
pub(crate) fn measure(
    targets: &mut [Box<dyn Target>],
    op: Op,
    size: usize,
    options: &MicroOptions,
    timer: &Timer,
    buffer: &[u8],
) -> Result<Vec<Row>> {
    let mut chance = Chance::new(options.seed ^ (op as u64) << 32 ^ size as u64);
    let mut tallies: Vec<Tally> = targets.iter().map(|_| Tally::new()).collect();
    let mut into = vec![0; size];
    // Another order in each round, so that none always follows the same one.
    let mut order: Vec<usize> = (0..targets.len()).collect();
    if op.has_size() && op != Op::Append {
        for target in targets.iter_mut() {
            target.fill(options.working_set_bytes)?;
            target.flush()?;
        }
    }
    let every = match op {
        Op::Overwrite | Op::RandomOverwrite => options.digest_rounds.max(1),
        _ => 1,
    };
    for number in 0..=options.rounds {
        let round = plan(op, size, number, options, &mut chance, &buffer[..size]);
        chance.shuffle(&mut order);
        let last = number == options.rounds || (number + 1) % every == 0;
        let tally = one_round(targets, &order, &round, options, timer, &mut into, last)?;
        if number > 0 {
            for (sum, one) in tallies.iter_mut().zip(tally) {
                add(sum, one);
            }
        }
    }
    Ok(rows(targets, op, size, &tallies, timer))
}

fn plan<'b>(
    op: Op,
    size: usize,
    number: u32,
    options: &MicroOptions,
    chance: &mut Chance,
    data: &'b [u8],
) -> Round<'b> {
    let ops = match size {
        0 => options.round_ops_max,
        size => (options.round_bytes as usize / size).clamp(1, options.round_ops_max),
    };
    let places = options.working_set_bytes / size.max(1) as u64;
    let first = u64::from(number) * ops as u64;
    let offsets = (0..ops as u64).map(|n| match op {
        Op::Overwrite | Op::SequentialRead => (first + n) % places * size as u64,
        Op::RandomOverwrite | Op::RandomRead => chance.below(places) * size as u64,
        _ => 0,
    });
    Round {
        op,
        size,
        ops,
        offsets: offsets.collect(),
        numbers: first..first + ops as u64,
        data,
    }
}

/// One round of all targets; what each did, in the order of `targets`.
fn one_round(
    targets: &mut [Box<dyn Target>],
    order: &[usize],
    round: &Round<'_>,
    options: &MicroOptions,
    timer: &Timer,
    into: &mut [u8],
    flush: bool,
) -> Result<Vec<Tally>> {
    for &which in order {
        prepare(targets[which].as_mut(), round)?;
    }
    let mut tallies: Vec<Tally> = targets.iter().map(|_| Tally::new()).collect();
    let before: Vec<_> = targets.iter().map(|t| t.counts()).collect();
    let limit_ns = options.round_ms_max * 1_000_000;
    let mut done = vec![0; targets.len()];
    for from in (0..round.ops).step_by(options.turn_ops) {
        let turn = from..round.ops.min(from + options.turn_ops);
        for &which in order {
            let tally = &mut tallies[which];
            // A slow one stops early, after a whole turn.
            if tally.spent_ns <= limit_ns {
                timed(targets[which].as_mut(), round, &turn, timer, tally, into)?;
                done[which] = turn.end;
            }
        }
    }
    for &which in order {
        let (target, tally) = (targets[which].as_mut(), &mut tallies[which]);
        let between = target.counts();
        let start = timer.now_ns();
        if flush {
            target.flush()?;
        }
        tally.flush_ns = timer.now_ns() - start;
        if let (Some(before), Some(between), Some(after)) =
            (before[which], between, target.counts())
        {
            tally.counted = true;
            tally.calls = between.calls - before.calls;
            tally.after = after.calls - before.calls;
            tally.after += after.background - before.background;
        }
        tidy_up(target, round, done[which])?;
    }
    Ok(tallies)
}

/// What a round needs before its first operation.
fn prepare(target: &mut dyn Target, round: &Round<'_>) -> Result<()> {
    match round.op {
        Op::Append => target.fresh()?,
        Op::Unlink => round.numbers.clone().try_for_each(|n| target.create(n))?,
        _ => {}
    }
    match round.op {
        Op::Append | Op::Create | Op::Unlink => target.flush(),
        _ => Ok(()),
    }
}

/// Takes away the names that are left after `done` operations.
fn tidy_up(target: &mut dyn Target, round: &Round<'_>, done: usize) -> Result<()> {
    let done = round.numbers.start + done as u64;
    match round.op {
        Op::Create => (round.numbers.start..done).try_for_each(|n| target.unlink(n)),
        Op::Unlink => (done..round.numbers.end).try_for_each(|n| target.unlink(n)),
        _ => Ok(()),
    }
}

/// Runs some of the operations of a round and takes each one's time.
fn timed(
    target: &mut dyn Target,
    round: &Round<'_>,
    turn: &Range<usize>,
    timer: &Timer,
    tally: &mut Tally,
    into: &mut [u8],
) -> Result<()> {
    debug_assert!(round.size == 0 || into.len() == round.size);
    for index in turn.clone() {
        let (offset, number) = (round.offsets[index], round.numbers.start + index as u64);
        let start = timer.now_ns();
        match round.op {
            Op::Append => target.append(round.data)?,
            Op::Overwrite | Op::RandomOverwrite => target.write(offset, round.data)?,
            Op::SequentialRead | Op::RandomRead => target.read(offset, into)?,
            Op::Create => target.create(number)?,
            Op::Unlink => target.unlink(number)?,
        }
        let ns = timer.now_ns() - start;
        tally.times.saturating_record(ns);
        tally.spent_ns += ns;
    }
    Ok(())
}

fn add(to: &mut Tally, round: Tally) {
    to.times += &round.times;
    to.flush_ns += round.flush_ns;
    to.calls += round.calls;
    to.after += round.after;
    to.counted |= round.counted;
}

/// Numbers in reports have three decimals: what there is behind is noise.
fn rounded(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}

fn rows(
    targets: &[Box<dyn Target>],
    op: Op,
    size: usize,
    tallies: &[Tally],
    timer: &Timer,
) -> Vec<Row> {
    let row = |target: &dyn Target, tally: &Tally| {
        let (times, ops) = (&tally.times, tally.times.len());
        let per_op = |count: u64| rounded(count as f64 / ops.max(1) as f64);
        let quantile = |q: f64| rounded(timer.net_ns(times.value_at_quantile(q) as f64));
        Row {
            op,
            size_bytes: size as u64,
            target: target.name().to_owned(),
            ops,
            mean_ns: rounded(timer.net_ns(times.mean())),
            p50_ns: rounded(timer.median_ns(times)),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            flush_ns: per_op(tally.flush_ns),
            ratio_to_floor: None,
            counts: tally.counted.then(|| Counts {
                fences: per_op(tally.calls.fences),
                lines_flushed: per_op(tally.calls.lines_flushed),
                nvm_bytes_before_digest: per_op(tally.calls.bytes_stored),
                nvm_bytes_after_digest: per_op(tally.after.bytes_stored),
            }),
        }
    };
    let pairs = targets.iter().zip(tallies);
    pairs
        .map(|(target, tally)| row(target.as_ref(), tally))
        .collect()
}
