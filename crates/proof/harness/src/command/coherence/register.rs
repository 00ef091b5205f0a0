//! One register (a cell of a file, a name, whether a file reaches so far) and all that was
//! written to it and seen of it.
//!
//! *Fresh*: what a call saw was written by a call that had begun before it returned, and
//! nothing else was written completely between the two. *In one order* (only for values that
//! are written once; Gibbons and Korach, 1997): the calls that name one value span a zone
//! from the first return to the last begin. Two such zones may not overlap, and no other
//! value may live only inside of one.

use std::collections::HashMap;

use super::log::NEVER;

/// What a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// No name; a cell of zeros or beyond the end; the file does not reach so far.
    Absent,
    /// A file without contents; the file reaches so far.
    Plain,
    Dir,
    /// Written by one call only.
    Stamp(u64),
    /// What another name held, which is not known.
    Moved,
}

/// What a call saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seen {
    Is(Value),
    /// Anything but absent.
    Present,
    /// A regular file.
    File,
}

impl Seen {
    fn fits(self, value: Value) -> bool {
        match (self, value) {
            (Seen::Is(Value::Absent), _) => value == Value::Absent,
            (_, Value::Moved) => true,
            (Seen::Is(seen), _) => seen == value,
            (Seen::Present, _) => value != Value::Absent,
            (Seen::File, _) => !matches!(value, Value::Absent | Value::Dir),
        }
    }
}

/// One call's part in the register; `call` is its number, for the report.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    pub start: u64,
    pub end: u64,
    pub value: Value,
    /// By way of the kernel, which shows it to others of the mount before it is done.
    pub early: bool,
    pub call: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub start: u64,
    pub end: u64,
    pub seen: Seen,
    /// By way of the kernel.
    pub early: bool,
    pub call: usize,
}

#[derive(Default)]
pub struct Register {
    pub writes: Vec<Write>,
    pub reads: Vec<Read>,
}

/// Two calls that contradict one another, and how.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong {
    pub how: &'static str,
    pub calls: Vec<usize>,
}

/// For one kind of observation: writes that fit by start with the latest end so far, and
/// writes that do not by start with the earliest end from there on.
struct Sides {
    fitting: Vec<(u64, u64)>,
    opposed: Vec<(u64, u64, usize)>,
}

impl Sides {
    fn new(sorted: &[Write], seen: Seen) -> Self {
        let mut latest = 0;
        let fitting = sorted.iter().filter(|w| seen.fits(w.value));
        let fitting = fitting.map(|w| {
            latest = latest.max(w.end);
            (w.start, latest)
        });
        let against = |w: &&Write| w.end != NEVER && !seen.fits(w.value);
        let mut opposed: Vec<_> = sorted
            .iter()
            .filter(against)
            .map(|w| (w.start, w.end, w.call))
            .collect();
        for at in (1..opposed.len()).rev() {
            if opposed[at].1 < opposed[at - 1].1 {
                (opposed[at - 1].1, opposed[at - 1].2) = (opposed[at].1, opposed[at].2);
            }
        }
        Self {
            fitting: fitting.collect(),
            opposed,
        }
    }

    /// The latest end of a fitting write that began before `time`.
    fn latest(&self, time: u64) -> Option<u64> {
        let count = self.fitting.partition_point(|w| w.0 < time);
        count.checked_sub(1).map(|at| self.fitting[at].1)
    }

    /// An opposed write wholly between.
    fn between(&self, after: u64, before: u64) -> Option<usize> {
        let at = self.opposed.partition_point(|w| w.0 <= after);
        let write = self.opposed.get(at)?;
        (write.1 < before).then_some(write.2)
    }
}

impl Register {
    /// Everything that is wrong with it. Absent from the beginning on.
    pub fn check(&mut self) -> Vec<Wrong> {
        self.writes.push(Write {
            start: 0,
            end: 0,
            value: Value::Absent,
            early: false,
            call: usize::MAX,
        });
        self.writes.sort_by_key(|w| w.start);
        let mut wrong = self.not_fresh();
        wrong.extend(self.not_in_order());
        wrong
    }

    fn not_fresh(&self) -> Vec<Wrong> {
        // All stamps share one table of what is opposed to them: a stamp's only write never
        // begins after itself.
        let any_stamp = Seen::Is(Value::Stamp(u64::MAX));
        let stamps: HashMap<u64, &Write> = self
            .writes
            .iter()
            .filter_map(|w| match w.value {
                Value::Stamp(stamp) => Some((stamp, w)),
                _ => None,
            })
            .collect();
        let mut sides: HashMap<Seen, Sides> = HashMap::new();
        let mut wrong = Vec::new();
        for read in &self.reads {
            let (key, own) = match read.seen {
                Seen::Is(Value::Stamp(stamp)) => (any_stamp, stamps.get(&stamp)),
                seen => (seen, None),
            };
            let side = sides
                .entry(key)
                .or_insert_with(|| Sides::new(&self.writes, key));
            let own = own.filter(|w| w.start < read.end).map(|w| w.end);
            match side.latest(read.end).max(own) {
                None => wrong.push(Wrong {
                    how: "saw what nobody had begun to write",
                    calls: vec![read.call],
                }),
                Some(end) => wrong.extend(side.between(end, read.start).map(|by| Wrong {
                    how: "saw what had been written over",
                    calls: vec![by, read.call],
                })),
            }
        }
        wrong
    }

    fn not_in_order(&self) -> Vec<Wrong> {
        if self.writes.iter().any(|w| w.value == Value::Moved) {
            return Vec::new();
        }
        let mut zones = self.zones();
        zones.sort_by_key(|z| z.from());
        let mut wrong = Vec::new();
        // The forward zone that reaches furthest so far.
        let mut last: Option<&Zone> = None;
        for zone in &zones {
            // Another zone that begins in there, or one that only ends in there: the same comparison.
            if let Some(last) = last.filter(|last| zone.first_end < last.last_start) {
                wrong.push(Wrong {
                    how: "seen before and after another",
                    calls: vec![last.calls.0, zone.calls.0, last.calls.1, zone.calls.1],
                });
            }
            if zone.forward() && last.is_none_or(|l| l.last_start < zone.last_start) {
                last = Some(zone);
            }
        }
        wrong
    }

    fn zones(&self) -> Vec<Zone> {
        let mut zones = Vec::new();
        let mut of_stamp: HashMap<u64, usize> = HashMap::new();
        for write in &self.writes {
            if let Value::Stamp(stamp) = write.value {
                of_stamp.insert(stamp, zones.len());
            } else if write.end == NEVER {
                continue;
            }
            zones.push(Zone {
                first_end: write.end,
                last_start: write.start,
                calls: (write.call, write.call),
                write: *write,
            });
        }
        for read in &self.reads {
            let Seen::Is(Value::Stamp(stamp)) = read.seen else {
                continue;
            };
            let Some(&at) = of_stamp.get(&stamp) else {
                continue;
            };
            let zone = &mut zones[at];
            if read.early && zone.write.early && read.start < zone.write.end {
                continue;
            }
            if read.end < zone.first_end {
                (zone.first_end, zone.calls.0) = (read.end, read.call);
            }
            if read.start > zone.last_start {
                (zone.last_start, zone.calls.1) = (read.start, read.call);
            }
        }
        // Written by a call that never returned, and never seen: it may not have happened.
        zones.retain(|z| z.first_end != NEVER);
        zones
    }
}

/// All calls that wrote or saw one value.
struct Zone {
    first_end: u64,
    last_start: u64,
    calls: (usize, usize),
    write: Write,
}

impl Zone {
    fn forward(&self) -> bool {
        self.first_end < self.last_start
    }

    fn from(&self) -> u64 {
        self.first_end.min(self.last_start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(start: u64, end: u64, value: Value) -> Write {
        let call = start as usize;
        Write {
            start,
            end,
            value,
            early: false,
            call,
        }
    }

    fn read(start: u64, end: u64, seen: Seen) -> Read {
        Read {
            start,
            end,
            seen,
            early: false,
            call: start as usize,
        }
    }

    fn wrong(writes: &[Write], reads: &[Read]) -> Vec<&'static str> {
        let mut register = Register {
            writes: writes.to_vec(),
            reads: reads.to_vec(),
        };
        register.check().iter().map(|w| w.how).collect()
    }

    const ONE: Value = Value::Stamp(1);
    const TWO: Value = Value::Stamp(2);

    #[test]
    fn what_can_be_put_in_order_is_right() {
        let writes = [
            write(10, 20, ONE),
            write(15, 30, TWO),
            write(40, 50, Value::Absent),
        ];
        let reads = [
            read(1, 12, Seen::Is(Value::Absent)),
            read(11, 16, Seen::Is(ONE)),
            read(21, 25, Seen::Is(ONE)),
            read(26, 31, Seen::Is(TWO)),
            read(41, 42, Seen::Is(TWO)),
            read(43, 60, Seen::Is(Value::Absent)),
        ];
        assert_eq!(wrong(&writes, &reads), [""; 0]);
    }

    #[test]
    fn stale_early_and_foreign_values_are_found() {
        let writes = [write(10, 20, ONE), write(25, 30, TWO)];
        let stale = "saw what had been written over";
        let early = "saw what nobody had begun to write";
        assert!(wrong(&writes, &[read(31, 32, Seen::Is(ONE))]).contains(&stale));
        assert!(wrong(&writes, &[read(21, 22, Seen::Is(Value::Absent))]).contains(&stale));
        assert_eq!(wrong(&writes, &[read(1, 9, Seen::Is(ONE))]), [early]);
        assert_eq!(
            wrong(&writes, &[read(21, 22, Seen::Is(Value::Stamp(3)))]),
            [early]
        );
    }

    #[test]
    fn a_value_that_comes_back_is_found() {
        // Both writes go on all the time, so each read alone is right.
        let writes = [write(10, 100, ONE), write(11, 100, TWO)];
        let reads = [
            read(20, 21, Seen::Is(ONE)),
            read(30, 31, Seen::Is(TWO)),
            read(40, 41, Seen::Is(ONE)),
        ];
        assert_eq!(wrong(&writes, &reads), ["seen before and after another"]);
        assert_eq!(wrong(&writes, &reads[..2]), [""; 0]);
        // The kernel's early look at the kernel's own write is no part of the order.
        let mut kernel = (writes, reads);
        kernel.0[0].early = true;
        kernel.1[0].early = true;
        assert_eq!(wrong(&kernel.0, &kernel.1), [""; 0]);
    }

    #[test]
    fn a_call_that_never_returned_may_have_happened_or_not() {
        let writes = [write(10, 20, ONE), write(30, NEVER, TWO)];
        for seen in [ONE, TWO] {
            assert_eq!(wrong(&writes, &[read(90, 91, Seen::Is(seen))]), [""; 0]);
        }
        let back = [read(90, 91, Seen::Is(TWO)), read(92, 93, Seen::Is(ONE))];
        assert_eq!(wrong(&writes, &back).len(), 1);
    }

    #[test]
    fn values_that_are_written_often_are_judged_by_time() {
        let writes = [
            write(10, 20, Value::Plain),
            write(30, 40, Value::Absent),
            write(50, 60, Value::Dir),
            write(70, 80, Value::Moved),
        ];
        let judged = |from, seen| wrong(&writes, &[read(from, from + 1, seen)]).is_empty();
        assert!(judged(21, Seen::Present) && judged(35, Seen::File) && !judged(41, Seen::Present));
        assert!(judged(61, Seen::Present) && !judged(61, Seen::File));
        assert!(judged(81, Seen::File) && !judged(81, Seen::Is(Value::Absent)));
    }
}
