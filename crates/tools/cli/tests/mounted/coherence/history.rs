//! What several threads did to one value (a block, a size, what a name stands for), and
//! whether all that they read can be explained.
//!
//! A read may return a value if its write had begun by the end of the read, and no other
//! write lies wholly between that write and the read. And who reads after somebody else
//! has read must not see an older value; but a FUSE client may see what another
//! one on the mount is about to write: the kernel has it before the file system.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

/// A value: unique for each write, except for [`ABSENT`].
pub type Value = u64;
/// Nothing is there.
pub const ABSENT: Value = 0;

/// When a call began and ended, ns.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    begin: u64,
    end: u64,
}

impl Span {
    fn before(self, other: Span) -> bool {
        self.end < other.begin
    }
}

#[derive(Clone, Copy, Debug)]
struct Call {
    span: Span,
    value: Value,
    who: usize,
}

/// Everything that was done to one value.
pub struct History {
    name: String,
    /// Threads below this number are on the mount.
    mounted: usize,
    calls: Mutex<(Vec<Call>, Vec<Call>)>,
}

/// A read that nothing explains.
pub struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Gives times to calls.
pub struct Watch(Instant);

impl Watch {
    pub fn new() -> Self {
        Self(Instant::now())
    }

    pub fn now(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    /// Runs a call and tells when it ran.
    pub fn time<T>(&self, f: impl FnOnce() -> T) -> (Span, T) {
        let begin = self.now();
        let result = f();
        let end = self.now();
        (Span { begin, end }, result)
    }
}

/// The highest number noted up to a time.
struct Latest(Vec<(u64, u64)>);

impl Latest {
    /// Of pairs of time and number.
    fn of(pairs: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut all: Vec<(u64, u64)> = pairs.collect();
        all.sort_unstable();
        let mut highest = 0;
        for (_, number) in &mut all {
            highest = highest.max(*number);
            *number = highest;
        }
        Self(all)
    }

    /// The highest number noted before `time`.
    fn before(&self, time: u64) -> Option<u64> {
        let n = self.0.partition_point(|&(at, _)| at < time);
        n.checked_sub(1).map(|last| self.0[last].1)
    }
}

impl History {
    /// The value is `first` to begin with. Threads below `mounted` are on the mount.
    pub fn new(name: impl Into<String>, first: Value, mounted: usize) -> Self {
        let span = Span { begin: 0, end: 0 };
        let write = Call {
            span,
            value: first,
            who: usize::MAX,
        };
        Self {
            name: name.into(),
            mounted,
            calls: Mutex::new((vec![write], Vec::new())),
        }
    }

    pub fn wrote(&self, who: usize, span: Span, value: Value) {
        self.calls.lock().0.push(Call { span, value, who });
    }

    pub fn read(&self, who: usize, span: Span, value: Value) {
        self.calls.lock().1.push(Call { span, value, who });
    }

    /// Number of reads; or the first one that nothing explains.
    pub fn check(&self) -> Result<usize, Wrong> {
        let (writes, mut reads) = self.calls.lock().clone();
        reads.sort_by_key(|r| r.span.begin);
        let by_end = Latest::of(writes.iter().map(|w| (w.span.end, w.span.begin)));
        let mut of_value: HashMap<Value, Vec<(u64, u64)>> = HashMap::new();
        for w in &writes {
            let spans = of_value.entry(w.value).or_default();
            spans.push((w.span.begin, w.span.end));
        }
        let of_value: HashMap<Value, Latest> = of_value
            .into_iter()
            .map(|(value, spans)| (value, Latest::of(spans.into_iter())))
            .collect();
        for r in &reads {
            // The newest write that had begun after another one's end, and ended before the read.
            let newest = by_end.before(r.span.begin).unwrap_or(0);
            let own = of_value.get(&r.value);
            // The write of the value that ended last, of those that had begun.
            let last = own.and_then(|own| own.before(r.span.end + 1));
            if last.is_none_or(|end| end < newest) {
                return Err(self.wrong("is stale", r, &writes));
            }
        }
        self.check_order(&writes, &reads)?;
        Ok(reads.len())
    }

    /// Of two reads one after the other the second is not older.
    fn check_order(&self, writes: &[Call], reads: &[Call]) -> Result<(), Wrong> {
        let written: HashMap<Value, Call> = writes.iter().map(|w| (w.value, *w)).collect();
        let unique = || reads.iter().filter(|r| r.value != ABSENT);
        let begun = |r: &Call| written.get(&r.value).map_or(0, |w| w.span.begin);
        let early = |r: &Call| {
            let write = written.get(&r.value);
            let by_kernel = |w: &Call| r.who < self.mounted && w.who < self.mounted;
            write.is_some_and(|w| by_kernel(w) && w.span.end > r.span.begin)
        };
        let sure = unique().filter(|r| !early(r));
        let seen = Latest::of(sure.map(|r| (r.span.end, begun(r))));
        for r in unique() {
            let newest = seen.before(r.span.begin).unwrap_or(0);
            if written.get(&r.value).is_some_and(|w| w.span.end < newest) {
                let seen = unique().find(|s| s.span.before(r.span) && begun(s) == newest);
                let seen = seen.map_or((0, 0), |s| (s.who, s.value));
                let text = format!("is older than what {} had read as {:#x}", seen.0, seen.1);
                return Err(self.wrong(&text, r, writes));
            }
        }
        Ok(())
    }

    fn wrong(&self, what: &str, r: &Call, writes: &[Call]) -> Wrong {
        let near: Vec<String> = writes
            .iter()
            .filter(|w| w.span.end + 3_000_000 > r.span.begin && w.span.begin < r.span.end)
            .map(|w| format!("  {} wrote {:#x} {:?}", w.who, w.value, w.span))
            .collect();
        let own = writes.iter().filter(|w| w.value == r.value);
        let own: Vec<String> = own
            .map(|w| format!("{} {:?}", w.who, w.span))
            .take(3)
            .collect();
        Wrong(format!(
            "{}: {} read {:#x} {:?}, which {what}; written by {own:?}; writes around:\n{}",
            self.name,
            r.who,
            r.value,
            r.span,
            near.join("\n")
        ))
    }
}

#[test]
fn stale_reads_are_found() {
    let at = |begin, end| Span { begin, end };
    let history = |mounted, reads: &[(u64, u64, Value)]| {
        let h = History::new("h", 1, mounted);
        h.wrote(0, at(10, 20), 2);
        h.wrote(0, at(30, 40), 3);
        for &(begin, end, value) in reads {
            h.read(1, at(begin, end), value);
        }
        h.check()
    };
    assert!(history(0, &[(5, 15, 2), (11, 12, 1), (35, 36, 2), (41, 42, 3)]).is_ok());
    assert!(history(0, &[(21, 22, 1)]).is_err(), "overwritten");
    assert!(history(0, &[(5, 9, 2)]).is_err(), "from the future");
    assert!(history(0, &[(5, 25, 7)]).is_err(), "from nowhere");
    let back = [(31, 32, 3), (33, 34, 2)];
    assert!(history(0, &back).is_err(), "back again");
    assert!(history(2, &back).is_ok(), "the kernel had it");
    assert!(
        history(0, &[(31, 33, 3), (33, 34, 2)]).is_ok(),
        "beside each other"
    );
}
