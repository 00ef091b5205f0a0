//! What `top` shows: the last state, what changed since the one before, how clients are sorted.

use crate::fields::{list, number, word};
use serde_json::Value;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// One client, or all that have left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Process.
    pub pid: u64,
    /// Name of its program.
    pub name: String,
    /// How it uses the volume: `mount`, `run` and so on.
    pub kind: String,
    /// Percent of its log.
    pub fill: u64,
    /// Bytes a second that it writes.
    pub rate: u64,
    /// Bytes to NVM, flash, disk.
    pub written: [u64; 3],
    /// Leases that it has.
    pub leases: u64,
    /// Bytes a second that it may write; 0: as many as it likes.
    pub limit: u64,
    /// How long that has kept it waiting, ms.
    pub limited_ms: u64,
    /// What it does.
    pub state: String,
}

/// A column that clients can be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Process.
    Pid,
    /// Name of the program.
    Name,
    /// How it uses the volume.
    Kind,
    /// How full its log is.
    Log,
    /// Bytes a second.
    Rate,
    /// Bytes to NVM.
    Nvm,
    /// Bytes to flash.
    Ssd,
    /// Bytes to disk.
    Hdd,
    /// Leases.
    Leases,
    /// Bytes a second that it may write.
    Limit,
    /// How long that has kept it waiting.
    Waited,
    /// What it does.
    State,
}

impl Column {
    /// All, from left to right.
    pub const ALL: [Column; 12] = [
        Column::Pid,
        Column::Name,
        Column::Kind,
        Column::Log,
        Column::Rate,
        Column::Nvm,
        Column::Ssd,
        Column::Hdd,
        Column::Leases,
        Column::Limit,
        Column::Waited,
        Column::State,
    ];

    fn compare(self, a: &Row, b: &Row) -> Ordering {
        match self {
            Column::Pid => a.pid.cmp(&b.pid),
            Column::Name => b.name.cmp(&a.name),
            Column::Kind => b.kind.cmp(&a.kind),
            Column::Log => a.fill.cmp(&b.fill),
            Column::Rate => a.rate.cmp(&b.rate),
            Column::Nvm => a.written[0].cmp(&b.written[0]),
            Column::Ssd => a.written[1].cmp(&b.written[1]),
            Column::Hdd => a.written[2].cmp(&b.written[2]),
            Column::Leases => a.leases.cmp(&b.leases),
            Column::Limit => a.limit.cmp(&b.limit),
            Column::Waited => a.limited_ms.cmp(&b.limited_ms),
            Column::State => b.state.cmp(&a.state),
        }
    }
}

/// What is shown.
#[derive(Debug)]
pub struct Screen {
    /// The mount point, as it was given.
    pub place: String,
    /// Time between two looks.
    pub interval: Duration,
    /// The last answer.
    pub status: Value,
    /// The picture stands still.
    pub paused: bool,
    /// The daemon has not answered for some time.
    pub silent: bool,
    /// Number of the column by which clients are sorted.
    pub sort: usize,
    /// Largest first.
    pub descending: bool,
    /// The first client that is shown.
    pub first: usize,
    heard: Instant,
    /// Bytes that each client had written when it was looked last.
    before: HashMap<u64, u64>,
    rates: HashMap<u64, u64>,
}

/// Intervals without an answer after which it is said that the daemon is silent.
const SILENT: u32 = 3;

impl Screen {
    /// Nothing was heard yet.
    pub fn new(place: String, interval: Duration) -> Self {
        let rate = Column::ALL.iter().position(|c| *c == Column::Rate);
        Self {
            place,
            interval,
            status: Value::Null,
            paused: false,
            silent: false,
            sort: rate.unwrap_or(0),
            descending: true,
            first: 0,
            heard: Instant::now(),
            before: HashMap::new(),
            rates: HashMap::new(),
        }
    }

    /// Takes a new state.
    pub fn hear(&mut self, now: Instant, status: Value) {
        self.silent = false;
        if self.paused {
            self.heard = now;
            return;
        }
        let seconds = now.saturating_duration_since(self.heard).as_secs_f64();
        let wrote = |client: &Value| {
            let written = &client["written"];
            number(written, "log_bytes") + number(written, "stolen_bytes")
        };
        let clients = list(&status, "clients");
        let after: HashMap<u64, u64> = clients.map(|c| (number(c, "client"), wrote(c))).collect();
        // Another daemon counts from 0 again.
        let rate = |(id, bytes): (&u64, &u64)| {
            let more = bytes.checked_sub(*self.before.get(id)?)?;
            Some((*id, (more as f64 / seconds.max(0.001)) as u64))
        };
        self.rates = after.iter().filter_map(rate).collect();
        (self.before, self.heard, self.status) = (after, now, status);
    }

    /// Whether the daemon has not answered for some time, and that is new.
    pub fn grew_silent(&mut self, now: Instant) -> bool {
        let late = now.saturating_duration_since(self.heard);
        let silent = late > self.interval * SILENT + Duration::from_secs(1);
        std::mem::replace(&mut self.silent, silent) != silent
    }

    /// Has the picture stand still, or go on.
    pub fn pause(&mut self) {
        self.paused = !self.paused;
    }

    /// Sorts the other way round.
    pub fn reverse(&mut self) {
        self.descending = !self.descending;
    }

    /// Sorts by a column so many to the right.
    pub fn sort_by(&mut self, step: isize) {
        let columns = Column::ALL.len();
        self.sort = self.sort.saturating_add_signed(step).min(columns - 1);
    }

    /// Shows clients so many further down.
    pub fn scroll(&mut self, step: isize) {
        let last = self.rows().len().saturating_sub(1);
        self.first = self.first.saturating_add_signed(step).min(last);
    }

    /// All clients in order, then who has left.
    pub fn rows(&self) -> Vec<Row> {
        let clients = list(&self.status, "clients");
        let mut rows: Vec<Row> = clients.map(|c| self.row(c)).collect();
        let column = Column::ALL[self.sort];
        rows.sort_by(|a, b| {
            let order = column.compare(a, b);
            let order = if self.descending {
                order.reverse()
            } else {
                order
            };
            order.then(a.pid.cmp(&b.pid))
        });
        let others = &self.status["written_by_others"];
        rows.push(Row {
            name: "others".to_owned(),
            written: written(others),
            ..Row::default()
        });
        rows
    }

    fn row(&self, client: &Value) -> Row {
        let used = number(client, "log_used_bytes");
        let rate = self.rates.get(&number(client, "client"));
        Row {
            pid: number(client, "pid"),
            name: word(client, "name").to_owned(),
            kind: word(client, "kind").to_owned(),
            fill: used * 100 / number(client, "log_bytes").max(1),
            rate: rate.copied().unwrap_or(0),
            written: written(&client["written"]),
            leases: number(client, "leases"),
            limit: number(client, "limit_bytes_per_s"),
            limited_ms: number(client, "limited_ms"),
            state: word(client, "state").to_owned(),
        }
    }

    /// What went wrong, newest knowledge first.
    pub fn errors(&self) -> Vec<String> {
        let s = &self.status;
        let mut errors = Vec::new();
        for (what, place) in [("digest", &s["digest"]), ("migration", &s["migration"])] {
            if let Some(error) = place["last_error"].as_str() {
                errors.push(format!("{what}: {error}"));
            }
        }
        for tier in list(s, "tiers") {
            for device in list(tier, "devices") {
                let (failed, path) = (number(device, "errors"), word(device, "path"));
                if let Some(why) = device["failing"].as_str() {
                    errors.push(format!("{path}: failing: {why}"));
                }
                if failed > 0 {
                    errors.push(format!("{path}: {failed} requests failed"));
                }
            }
        }
        for bad in list(s, "bad_blocks") {
            errors.push(format!("bad block: {}", word(bad, "why")));
        }
        for gone in list(s, "detached_clients") {
            let (pid, why) = (number(gone, "pid"), word(gone, "why"));
            errors.push(format!("process {pid} was cut off: {why}"));
        }
        for problem in list(&s["recovery"], "problems") {
            errors.push(format!("recovery: {}", problem.as_str().unwrap_or("?")));
        }
        errors
    }
}

fn written(written: &Value) -> [u64; 3] {
    ["nvm_bytes", "ssd_bytes", "hdd_bytes"].map(|key| number(written, key))
}
