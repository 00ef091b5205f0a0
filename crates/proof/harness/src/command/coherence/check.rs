//! Judges the logs of all workers: every cell, every size and every name is a register.

use std::collections::BTreeMap;

use super::log::Call;
use super::names;
use super::register::{Read, Register, Seen, Value, Write};
use super::work::{APPENDED, CELL, CELLS, NAMES, RENAMED};

/// Cells that are looked at: reads and cuts go a little further than writes begin.
const LOOKED_AT: u64 = CELLS + 10;
const MOST_SHOWN: usize = 8;

/// What came of a check.
#[derive(Default)]
pub struct Verdict {
    pub calls: usize,
    pub observations: usize,
    pub wrong: Vec<String>,
    pub longest_ns: u64,
}

/// Judges all calls. One of a worker that was not stopped lasts at most `limit_ns`.
pub fn judge(calls: &[Call], stops: &[Call], limit_ns: u64) -> Verdict {
    let mut judge = Judge {
        calls,
        registers: BTreeMap::new(),
        verdict: Verdict {
            calls: calls.len(),
            ..Verdict::default()
        },
    };
    for (at, call) in calls.iter().enumerate() {
        judge.time(call, stops, limit_ns);
        judge.note(at, call);
    }
    judge.appends();
    judge.counts();
    judge.made_once();
    judge.registers();
    let (wrong, judged) = names::judge(calls);
    judge.verdict.observations += judged;
    for (how, about, calls) in wrong {
        judge.wrong(how, &format!("names {about}"), &calls);
    }
    judge.verdict
}

struct Judge<'c> {
    calls: &'c [Call],
    registers: BTreeMap<String, Register>,
    verdict: Verdict,
}

/// What an error number says of the name it was for: `Some(None)` says nothing, `None` is
/// an error that no call here may give.
fn reported_by(verb: &str, errno: &str) -> Option<Option<Seen>> {
    Some(match (verb, errno) {
        ("N", "e21") => Some(Seen::Is(Value::Dir)),
        (_, "e2") => Some(Seen::Is(Value::Absent)),
        ("C" | "M" | "K", "e17") => Some(Seen::Present),
        ("U" | "O", "e21") => Some(Seen::Is(Value::Dir)),
        ("D", "e20") => Some(Seen::File),
        _ => return None,
    })
}

impl Judge<'_> {
    fn wrong(&mut self, how: &str, about: &str, calls: &[usize]) {
        let mut noted = format!("{about}: {how}");
        for &call in calls.iter().filter(|&&c| c != usize::MAX) {
            noted.push_str(&format!("\n        {}", self.calls[call]));
        }
        self.verdict.wrong.push(noted);
    }

    fn time(&mut self, call: &Call, stops: &[Call], limit_ns: u64) {
        let stopped =
            |s: &Call| call.worker == s.text(1) && s.start <= call.end && call.start <= s.end;
        let took = call.end - call.start;
        if call.returned() && !stops.iter().any(stopped) {
            self.verdict.longest_ns = self.verdict.longest_ns.max(took);
            if took > limit_ns {
                self.verdict
                    .wrong
                    .push(format!("time: {} ms for {call}", took / 1_000_000));
            }
        }
    }

    fn write(&mut self, register: String, at: usize, value: Value) {
        let call = &self.calls[at];
        self.registers
            .entry(register)
            .or_default()
            .writes
            .push(Write {
                start: call.start,
                end: call.end,
                value,
                early: !call.client,
                call: at,
            });
    }

    fn saw(&mut self, register: String, at: usize, seen: Seen) {
        let call = &self.calls[at];
        self.verdict.observations += 1;
        self.registers
            .entry(register)
            .or_default()
            .reads
            .push(Read {
                start: call.start,
                end: call.end,
                seen,
                early: !call.client,
                call: at,
            });
    }

    fn note(&mut self, at: usize, call: &Call) {
        let name = call.text(1);
        let failed = call.result().starts_with('e');
        match call.text(0) {
            "X" => {}
            "W" | "R" | "T" | "S" | "A" if failed => self.wrong("failed", name, &[at]),
            "W" => self.note_write(at, call),
            "R" if call.returned() && name != APPENDED => self.note_read(at, call),
            "S" if call.returned() && name != APPENDED => {
                let bytes = call.result().parse().unwrap_or(0u64);
                self.note_size(at, name, bytes.div_ceil(CELL as u64), 0, LOOKED_AT);
            }
            "T" => {
                for cell in 0..LOOKED_AT {
                    if cell >= call.number(2) {
                        self.write(format!("{name} cell {cell}"), at, Value::Absent);
                        self.write(format!("{name} reaches {cell}"), at, Value::Absent);
                    } else {
                        self.write(format!("{name} reaches {cell}"), at, Value::Plain);
                    }
                }
            }
            "R" | "S" | "A" => {}
            _ if names::is_of_names(call) => {}
            _ => self.note_name(at, call, failed),
        }
    }

    fn note_write(&mut self, at: usize, call: &Call) {
        let (name, first, count, stamp) =
            (call.text(1), call.number(2), call.number(3), call.number(4));
        if call.returned() && call.result() != (count * CELL as u64).to_string() {
            self.wrong("written in part", name, &[at]);
        }
        for n in 0..count {
            self.write(
                format!("{name} cell {}", first + n),
                at,
                Value::Stamp(stamp + n),
            );
        }
        for cell in 0..first + count {
            self.write(format!("{name} reaches {cell}"), at, Value::Plain);
        }
    }

    /// The file ends after `cells` cells, as far as `from..to` tells.
    fn note_size(&mut self, at: usize, name: &str, cells: u64, from: u64, to: u64) {
        for cell in from..to {
            let value = if cell < cells {
                Value::Plain
            } else {
                Value::Absent
            };
            self.saw(format!("{name} reaches {cell}"), at, Seen::Is(value));
            if cell >= cells {
                self.saw(format!("{name} cell {cell}"), at, Seen::Is(Value::Absent));
            }
        }
    }

    fn note_read(&mut self, at: usize, call: &Call) {
        let (name, first, count) = (call.text(1), call.number(2), call.number(3));
        let to = (first + count).min(LOOKED_AT);
        let bytes: u64 = call.result().parse().unwrap_or(0);
        if !bytes.is_multiple_of(CELL as u64) {
            self.wrong("read ends inside of a cell", name, &[at]);
        }
        self.note_size(at, name, first + bytes / CELL as u64, first, to);
        for (cell, word) in (first..to).zip(&call.gave[1..]) {
            let words: Vec<&str> = word.split('+').collect();
            // The kernel copies from its pages while another call of the mount fills them.
            if words.len() > 1 && call.client {
                self.wrong("a cell of two writes", name, &[at]);
            }
            for word in words {
                let seen = match word.parse() {
                    Ok(0) => Value::Absent,
                    Ok(stamp) => Value::Stamp(stamp),
                    Err(_) => Value::Stamp(u64::MAX - 1),
                };
                self.saw(format!("{name} cell {cell}"), at, Seen::Is(seen));
            }
        }
    }

    fn note_name(&mut self, at: usize, call: &Call, failed: bool) {
        let verb = call.text(0);
        let name = format!("name {}", call.text(1));
        if failed {
            match (verb, reported_by(verb, call.result())) {
                // A rename's error may be about either of its names.
                ("V", _) if ["e2", "e20", "e21"].contains(&call.result()) => {}
                ("V", _) | (_, None) => self.wrong("an error that cannot be", &name, &[at]),
                (_, Some(seen)) => {
                    if let Some(seen) = seen {
                        self.saw(name, at, seen);
                    }
                }
            }
            return;
        }
        let done = call.returned();
        let (before, value) = match verb {
            "C" => (Some(Seen::Is(Value::Absent)), Value::Plain),
            "M" => (Some(Seen::Is(Value::Absent)), Value::Dir),
            "K" => (Some(Seen::Is(Value::Absent)), Value::Stamp(call.number(2))),
            "N" => (None, Value::Stamp(call.number(2))),
            "D" => (Some(Seen::Is(Value::Dir)), Value::Absent),
            "U" => (Some(Seen::File), Value::Absent),
            "V" => {
                self.write(format!("name {}", call.text(2)), at, Value::Moved);
                (Some(Seen::Present), Value::Absent)
            }
            _ if done => return self.note_look(at, call),
            _ => return,
        };
        if let (Some(seen), true) = (before, done) {
            self.saw(name.clone(), at, seen);
        }
        self.write(name, at, value);
    }

    fn note_look(&mut self, at: usize, call: &Call) {
        let seen = |found: &str| match found {
            "dir" => Seen::Is(Value::Dir),
            "file" => Seen::File,
            "0" => Seen::Is(Value::Plain),
            token => Seen::Is(Value::Stamp(token.parse().unwrap_or(u64::MAX - 1))),
        };
        if call.text(0) != "L" {
            return self.saw(format!("name {}", call.text(1)), at, seen(call.result()));
        }
        for name in NAMES.into_iter().chain(RENAMED) {
            let there = call.gave[1..].iter().filter(|n| *n == name).count();
            if there > 1 {
                self.wrong("listed twice", name, &[at]);
            }
            let seen = if there > 0 {
                Seen::Present
            } else {
                Seen::Is(Value::Absent)
            };
            self.saw(format!("name {name}"), at, seen);
        }
    }

    /// Between two that made a name one has removed it, and the last look agrees.
    fn made_once(&mut self) {
        for name in NAMES {
            let of = |verbs: &[&str], sure: bool| {
                let counts = |c: &&Call| {
                    verbs.contains(&c.text(0))
                        && c.text(1) == name
                        && if sure {
                            c.result() == "ok"
                        } else {
                            !c.returned()
                        }
                };
                self.calls.iter().filter(counts).count() as i64
            };
            let (made, removed) = (["C", "M", "K"], ["D", "U"]);
            let balance = of(&made, true) - of(&removed, true);
            if balance > 1 + of(&removed, false) || balance < -of(&made, false) {
                let how = format!("made {balance} times more often than removed");
                self.wrong(&how, name, &[]);
            }
        }
    }

    /// Appended once each, in the order of time, and never cut.
    fn appends(&mut self) {
        let calls = self.calls;
        let whole = |c: &&Call| c.text(0) == "R" && c.text(1) == APPENDED && c.number(2) == 0;
        let last = calls.iter().filter(whole).max_by_key(|c| c.end);
        let Some(last) = last.filter(|c| c.gave.len() > 1) else {
            return;
        };
        let end: Vec<u64> = last.gave[1..]
            .iter()
            .map(|w| w.parse().unwrap_or(u64::MAX))
            .collect();
        let place: BTreeMap<u64, usize> = end.iter().enumerate().map(|(at, &s)| (s, at)).collect();
        if place.len() != end.len() {
            self.wrong("cells twice in the file", APPENDED, &[]);
        }
        let mut begun = 0;
        let mut returned: Vec<(u64, usize, usize)> = Vec::new();
        for (at, call) in calls.iter().enumerate().filter(|(_, c)| c.text(0) == "A") {
            let (first, count) = (call.number(1), call.number(2));
            let place_of = |s| place.get(&s).copied();
            let places: Vec<usize> = (first..first + count).map_while(place_of).collect();
            // A write that was ended by a kill may have done a part, from the beginning on.
            let rest = first + places.len() as u64..first + count;
            let all = rest.is_empty() || !call.returned() && rest.filter_map(place_of).count() == 0;
            if all && places.windows(2).all(|w| w[0] + 1 == w[1]) {
                begun += places.len() as u64;
            } else {
                self.wrong("not there as it was appended", APPENDED, &[at]);
                continue;
            }
            if let Some(last) = places.last().filter(|_| call.returned()) {
                returned.push((call.end, last + 1, at));
            }
        }
        if begun != end.len() as u64 {
            self.wrong("cells that nobody appended", APPENDED, &[]);
        }
        // How far the file reached for sure at any time.
        returned.sort_unstable();
        for at in 1..returned.len() {
            if returned[at].1 < returned[at - 1].1 {
                (returned[at].1, returned[at].2) = (returned[at - 1].1, returned[at - 1].2);
            }
        }
        for (at, call) in calls.iter().enumerate() {
            let count = returned.partition_point(|r| r.0 < call.start);
            let Some(&(_, sure, by)) = count.checked_sub(1).map(|n| &returned[n]) else {
                continue;
            };
            self.against_appends(at, call, &end, (sure, by), &place);
        }
    }

    fn against_appends(
        &mut self,
        at: usize,
        call: &Call,
        end: &[u64],
        sure: (usize, usize),
        place: &BTreeMap<u64, usize>,
    ) {
        if !call.returned() {
            return;
        }
        let reaches = match call.text(0) {
            "A" => {
                if place.get(&call.number(1)).is_some_and(|&p| p < sure.0) {
                    self.wrong(
                        "appended before an earlier one's end",
                        APPENDED,
                        &[sure.1, at],
                    );
                }
                return;
            }
            "S" if call.text(1) == APPENDED => call.number_given() / CELL as u64,
            "R" if call.text(1) == APPENDED => {
                let from = call.number(2) as usize;
                let got = call.gave[1..].iter().map(|w| w.parse().unwrap_or(u64::MAX));
                let same = got
                    .enumerate()
                    .all(|(n, stamp)| end.get(from + n) == Some(&stamp));
                if !same {
                    self.wrong("read what is not there in the end", APPENDED, &[at]);
                }
                let got = call.gave.len() as u64 - 1;
                if got == call.number(3) {
                    u64::MAX
                } else {
                    call.number(2) + got
                }
            }
            _ => return,
        };
        let from = call.number(2);
        self.verdict.observations += 1;
        let asked = if call.text(0) == "R" { from } else { 0 };
        if reaches < sure.0 as u64 && asked < sure.0 as u64 {
            self.wrong(
                "ends before an append that had returned",
                APPENDED,
                &[sure.1, at],
            );
        }
    }

    /// Never two under the lock, and each counted up by one.
    fn counts(&mut self) {
        let mut held: Vec<(u64, u64, u64, usize)> = Vec::new();
        let mut open = 0;
        for (at, call) in self
            .calls
            .iter()
            .enumerate()
            .filter(|(_, c)| c.text(0) == "X")
        {
            let number = |n: usize| call.gave.get(n).and_then(|w| w.parse().ok()).unwrap_or(0);
            match call.result() {
                "" => open += 1,
                "e11" | "e13" => {}
                error if error.starts_with('e') => self.wrong("failed", "lock", &[at]),
                _ => held.push((number(0), number(1), number(2), at)),
            }
        }
        held.sort_unstable();
        for pair in held.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            if b.0 < a.1 {
                self.wrong("two have the lock", "lock", &[a.3, b.3]);
            }
            // A worker that was killed may have counted or not.
            let more = b.2.wrapping_sub(a.2 + 1);
            if more > open {
                self.wrong("a count is lost", "lock", &[a.3, b.3]);
            } else {
                open -= more;
            }
        }
        self.verdict.observations += held.len();
    }

    fn registers(&mut self) {
        for (name, mut register) in std::mem::take(&mut self.registers) {
            for wrong in register.check().into_iter().take(MOST_SHOWN) {
                self.wrong(wrong.how, &name, &wrong.calls);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::read;
    use super::*;

    fn judged(lines: &[&str]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount-0.log");
        std::fs::write(&path, format!("pid 1\n{}\n", lines.join("\n"))).unwrap();
        judge(&read(&path).unwrap(), &[], u64::MAX).wrong
    }

    #[test]
    fn an_append_is_there_as_a_whole_unless_a_kill_ended_it() {
        let last = ["B 90 R a0 0 9", "E 91 1536 21 22 31"];
        let whole = ["B 10 A 21 2", "E 11 1024", "B 20 A 31 1", "E 21 512"];
        assert_eq!(judged(&[&whole[..], &last].concat()), [""; 0]);
        let lost = ["B 10 A 21 3", "E 11 1536", "B 20 A 31 1", "E 21 512"];
        let noted = judged(&[&lost[..], &last].concat());
        assert!(
            noted[0].contains("not there as it was appended"),
            "{noted:?}"
        );
        // Of one that never returned a part may be there, but not its end without its beginning.
        let killed = |first: &str| {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            std::fs::write(at("run-0.log"), format!("pid 1\nB 10 A {first} 3\n")).unwrap();
            let rest = [&whole[2..], &last].concat().join("\n");
            std::fs::write(at("run-1.log"), format!("pid 2\n{rest}\n")).unwrap();
            let calls = ["run-0.log", "run-1.log"].map(|log| read(&at(log)).unwrap());
            judge(&calls.concat(), &[], u64::MAX).wrong.len()
        };
        assert_eq!(killed("21"), 0);
        assert_ne!(killed("20"), 0);
    }

    #[test]
    fn a_read_on_the_mount_may_not_end_early_either() {
        let calls = |early: &str| {
            let whole = "B 10 A 21 2\nE 11 1024\nB 20 A 31 1\nE 21 512";
            let lines = [
                whole,
                "B 30 R a0 1 9",
                early,
                "B 90 R a0 0 9",
                "E 91 1536 21 22 31",
            ];
            judged(&lines)
        };
        assert_eq!(calls("E 31 1024 22 31"), [""; 0]);
        let noted = calls("E 31 512 22");
        assert!(noted[0].contains("ends before an append"), "{noted:?}");
    }
}
