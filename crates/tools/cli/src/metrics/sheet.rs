//! What is exported: names by the conventions of Prometheus, all beginning with `shale_`.
//!
//! Labels are bounded: tiers, devices, paths, and at most [`CLIENTS_MAX`] clients, those that wrote most;
//! the others, and those that have left, are `client="others"`.

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeCounterValue, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use shale_daemon::stats::{ClientStatus, PathStatus};
use shale_daemon::{DeviceStatus, Status, TierStatus, Written};
use std::fmt;

/// Bytes of a page of a checkpoint.
const BLOCK: u64 = 4096;
/// Clients with labels of their own.
const CLIENTS_MAX: usize = 50;

type Labels = Vec<(&'static str, String)>;
type Rows = Vec<(Labels, u64)>;

/// Metrics of one moment.
struct Sheet(Registry);

impl Sheet {
    fn add(&mut self, name: &str, unit: Option<Unit>, help: &str, samples: Samples) {
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, samples),
            None => self.0.register(name, help, samples),
        }
    }

    fn gauge(&mut self, name: &str, unit: Option<Unit>, help: &str, rows: Rows) {
        self.add(name, unit, help, Samples::Gauge(rows));
    }

    fn counter(&mut self, name: &str, unit: Option<Unit>, help: &str, rows: Rows) {
        self.add(name, unit, help, Samples::Counter(rows));
    }

    /// `buckets`: seconds and how many took so long at most, each once; `sum`: seconds of all together.
    fn histogram(&mut self, name: &str, help: &str, sum: f64, buckets: Vec<(f64, u64)>) {
        let samples = Samples::Histogram { sum, buckets };
        self.add(name, Some(Unit::Seconds), help, samples);
    }

    fn seconds(&mut self, name: &str, help: &str, rows: Vec<(Labels, f64)>) {
        self.add(name, Some(Unit::Seconds), help, Samples::Seconds(rows));
    }
}

/// Samples of one name, in this order.
#[derive(Debug)]
enum Samples {
    Gauge(Rows),
    Counter(Rows),
    Seconds(Vec<(Labels, f64)>),
    GaugeSeconds(f64),
    Histogram { sum: f64, buckets: Vec<(f64, u64)> },
}

impl EncodeMetric for Samples {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Samples::Gauge(rows) => {
                for (labels, value) in rows {
                    match labels[..] {
                        [] => encoder.encode_gauge(value)?,
                        _ => encoder.encode_family(labels)?.encode_gauge(value)?,
                    }
                }
            }
            Samples::Counter(rows) => count(&mut encoder, rows)?,
            Samples::Seconds(rows) => count(&mut encoder, rows)?,
            Samples::GaugeSeconds(value) => encoder.encode_gauge(value)?,
            Samples::Histogram { sum, buckets } => {
                let all = buckets.iter().map(|(_, n)| n).sum();
                encoder.encode_histogram::<NoLabelSet>(*sum, all, buckets, None)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        match self {
            Samples::Gauge(_) | Samples::GaugeSeconds(_) => MetricType::Gauge,
            Samples::Counter(_) | Samples::Seconds(_) => MetricType::Counter,
            Samples::Histogram { .. } => MetricType::Histogram,
        }
    }
}

fn count<V: EncodeCounterValue>(
    encoder: &mut MetricEncoder<'_>,
    rows: &[(Labels, V)],
) -> fmt::Result {
    for (labels, value) in rows {
        match labels[..] {
            [] => encoder.encode_counter::<NoLabelSet, V, u64>(value, None)?,
            _ => {
                let mut one = encoder.encode_family(labels)?;
                one.encode_counter::<NoLabelSet, V, u64>(value, None)?;
            }
        }
    }
    Ok(())
}

fn one(value: u64) -> Rows {
    vec![(Labels::new(), value)]
}

fn speed() -> Option<Unit> {
    Some(Unit::Other("bytes_per_second".to_owned()))
}

fn labelled(name: &'static str, rows: &[(&str, u64)]) -> Rows {
    let label = |(word, value): &(&str, u64)| (vec![(name, (*word).to_owned())], *value);
    rows.iter().map(label).collect()
}

/// All metrics as OpenMetrics text.
///
/// # Errors
/// None: the text grows in memory.
pub fn text(status: &Status) -> Result<String, fmt::Error> {
    let mut sheet = Sheet(Registry::with_prefix("shale"));
    volume(&mut sheet, status);
    tiers(&mut sheet, status);
    devices(&mut sheet, status);
    digest(&mut sheet, status);
    migration(&mut sheet, status);
    staged(&mut sheet, status);
    clients(&mut sheet, status);
    errors(&mut sheet, status);
    let mut text = String::new();
    encode(&mut text, &sheet.0)?;
    Ok(text)
}

fn volume(sheet: &mut Sheet, s: &Status) {
    let info = Info::new(vec![
        ("name", s.name.clone()),
        ("uuid", s.uuid.clone()),
        ("durability", s.durability.to_owned()),
        ("persistence", s.persistence.to_owned()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
    ]);
    sheet
        .0
        .register("volume", "The volume that is served", info);
    let seconds = Some(Unit::Seconds);
    sheet.gauge(
        "uptime",
        seconds,
        "Time since the daemon started",
        one(s.uptime_s),
    );
    let heap = [("used", s.heap_used_bytes), ("free", s.heap_free_bytes)];
    let help = "Memory of the daemon's own: in use, and freed and kept";
    let heap = { heap }.map(|(kind, bytes)| (vec![("kind", kind.to_owned())], bytes));
    sheet.gauge("heap", Some(Unit::Bytes), help, heap.to_vec());
    sheet.gauge("inodes", None, "Inodes in use", one(s.space.inodes));
    let paths = |of: fn(&PathStatus) -> u64| -> Rows {
        let row = |p: &PathStatus| (vec![("path", p.path.to_owned())], of(p));
        s.device.iter().map(row).collect()
    };
    let help = "Bytes that the daemon stored to NVM, by what for";
    sheet.counter(
        "nvm_stored",
        Some(Unit::Bytes),
        help,
        paths(|p| p.bytes_stored),
    );
    let help = "Fences of the daemon, by what for";
    sheet.counter("nvm_fences", None, help, paths(|p| p.fences));
}

fn tiers(sheet: &mut Sheet, s: &Status) {
    let space = &s.space;
    let rows = |nvm: u64, of: fn(&TierStatus) -> u64| -> Rows {
        let label = |tier: &str| vec![("tier", tier.to_owned())];
        let below = s.tiers.iter().map(|t| (label(&t.tier), of(t)));
        std::iter::once((label("nvm"), nvm)).chain(below).collect()
    };
    let bytes = || Some(Unit::Bytes);
    let kept = space.reserve_bytes + space.credit_bytes;
    for (name, help, rows) in [
        (
            "tier_size",
            "Size of the tier",
            rows(space.total_bytes, |t| t.total_bytes),
        ),
        (
            "tier_used",
            "Taken from the tier, below NVM with what is dead until its zone is cleaned",
            rows(space.used_bytes + space.granted_bytes, |t| {
                t.live_bytes + t.dead_bytes
            }),
        ),
        (
            "tier_live",
            "Needed by files and structure: lost if the tier were",
            rows(space.used_bytes, |t| t.live_bytes),
        ),
        (
            "tier_dirty",
            "Logged and not digested yet",
            rows(space.dirty_bytes, |_| 0),
        ),
        (
            "tier_reserved",
            "Reserved for records to come, copy-on-write, cleaning",
            rows(kept, |t| t.reserved_bytes),
        ),
        (
            "tier_kept",
            "The old name of tier_reserved, which goes with the next release",
            rows(kept, |t| t.reserved_bytes),
        ),
        (
            "tier_free",
            "Could be given to files now",
            rows(space.available_bytes, |t| t.writable_bytes),
        ),
    ] {
        sheet.gauge(name, bytes(), help, rows);
    }
    let below = |of: fn(&TierStatus) -> u64| -> Rows {
        let row = |t: &TierStatus| (vec![("tier", t.tier.clone())], of(t));
        s.tiers.iter().map(row).collect()
    };
    sheet.gauge("tier_zones", None, "Zones of the tier", below(|t| t.zones));
    sheet.gauge(
        "tier_empty_zones",
        None,
        "Empty zones",
        below(|t| t.empty_zones),
    );
    sheet.counter(
        "tier_erased_zones",
        None,
        "Zones erased",
        below(|t| t.zones_erased),
    );
    let help = "Bytes written to zones by migration and cleaning";
    sheet.counter("tier_written", bytes(), help, below(|t| t.written_bytes));
    let help = "Bytes of commits and checkpoints of a volume without NVM";
    sheet.counter(
        "tier_area_written",
        bytes(),
        help,
        below(|t| t.area_written_bytes),
    );
}

fn devices(sheet: &mut Sheet, s: &Status) {
    let rows = |of: fn(&DeviceStatus) -> u64| -> Rows {
        let each = s
            .tiers
            .iter()
            .flat_map(|t| t.devices.iter().map(move |d| (t, d)));
        each.map(|(t, d)| {
            (
                vec![("tier", t.tier.clone()), ("device", d.path.clone())],
                of(d),
            )
        })
        .collect()
    };
    let bytes = || Some(Unit::Bytes);
    sheet.gauge(
        "device_size",
        bytes(),
        "Size of the device's zones",
        rows(|d| d.total_bytes),
    );
    let help = "In use on the device: lost if it were";
    sheet.gauge("device_live", bytes(), help, rows(|d| d.live_bytes));
    sheet.counter("device_read", bytes(), "Bytes read", rows(|d| d.read_bytes));
    sheet.counter(
        "device_written",
        bytes(),
        "Bytes written",
        rows(|d| d.written_bytes),
    );
    let help = "Bytes discarded";
    sheet.counter(
        "device_discarded",
        bytes(),
        help,
        rows(|d| d.discarded_bytes),
    );
    sheet.counter("device_flushes", None, "Flushes", rows(|d| d.flushes));
    let help = "1: nothing new is written to it, since it fails";
    let failing = rows(|d| d.failing.is_some().into());
    sheet.gauge("device_failing", None, help, failing);
    let help = "Its zones that are worn out: nothing new is written to them";
    let worn = rows(|d| d.worn_zones.len() as u64);
    sheet.gauge("device_worn_zones", None, help, worn);
    let help = "1: what it holds moves to others";
    sheet.gauge("device_emptying", None, help, rows(|d| d.evacuating.into()));
    sheet.counter(
        "device_errors",
        None,
        "Requests that failed",
        rows(|d| d.errors),
    );
}

fn digest(sheet: &mut Sheet, s: &Status) {
    let d = &s.digest.stats;
    for (name, help, value) in [
        ("digest_records", "Records digested", d.records),
        (
            "digest_skipped_records",
            "Records that later ones made superfluous",
            d.skipped,
        ),
        (
            "digest_written_blocks",
            "Blocks of 4 KiB written",
            d.blocks_written,
        ),
        (
            "digest_linked_blocks",
            "Blocks of 4 KiB that were in place already",
            d.blocks_linked,
        ),
        ("digest_commits", "Transactions", d.commits),
        (
            "digest_refused_records",
            "Records that were refused",
            s.digest.refused,
        ),
    ] {
        sheet.counter(name, None, help, one(value));
    }
    let bytes = Some(Unit::Bytes);
    sheet.counter(
        "digest_log",
        bytes.clone(),
        "Bytes of log digested",
        one(d.bytes_logged),
    );
    let help = "Bytes of data that reached the volume";
    sheet.counter("digest_data", bytes, help, one(d.bytes_digested));
}

fn migration(sheet: &mut Sheet, s: &Status) {
    let Some(m) = &s.migration else {
        return;
    };
    let c = &m.counts;
    let moved = [
        ("down", c.down_bytes),
        ("up", c.up_bytes),
        ("clean", c.cleaned_bytes),
    ];
    let help = "Bytes moved between tiers, or to empty zones for good ones";
    let bytes = || Some(Unit::Bytes);
    sheet.counter(
        "migration_moved",
        bytes(),
        help,
        labelled("direction", &moved),
    );
    // With the old names of two of them, for one release.
    let help = "Bytes of new data that went from logs directly to a tier below NVM";
    for name in ["migration_direct", "migration_straight"] {
        sheet.counter(name, bytes(), help, one(c.direct_to_tier_bytes));
    }
    let help = "Bytes copied and dropped: the blocks changed meanwhile";
    for name in ["migration_aborted", "migration_vain"] {
        sheet.counter(name, bytes(), help, one(c.aborted_bytes));
    }
    sheet.counter(
        "migration_batches",
        None,
        "Batches committed",
        one(c.batches),
    );
    sheet.counter(
        "migration_waits",
        None,
        "Times somebody waited for space",
        one(c.space_waits),
    );
    let help = "The longest that a call waited for space in NVM";
    let longest = c.space_wait_max_ns as f64 / 1e9;
    sheet.seconds("migration_longest_wait", help, vec![(Vec::new(), longest)]);
    sheet.gauge(
        "migration_paused",
        None,
        "Whether it is paused",
        one(m.paused.into()),
    );
    let help = "Bytes a second that it may move; 0: no limit";
    sheet.gauge("migration_limit", speed(), help, one(m.limit_bytes_per_s));
}

fn staged(sheet: &mut Sheet, s: &Status) {
    let Some(staged) = &s.staged else {
        return;
    };
    let bytes = || Some(Unit::Bytes);
    for (name, help, value) in [
        (
            "staging_size",
            "Size of the staging area",
            staged.staging_bytes,
        ),
        (
            "staging_used",
            "Staged, and in no checkpoint yet",
            staged.staged_bytes,
        ),
        (
            "unhardened",
            "What a power cut would lose now",
            staged.unhardened_bytes,
        ),
        (
            "checkpoint_lag",
            "Pages of the memory tier that have changed since the last checkpoint",
            staged.dirty_pages * BLOCK,
        ),
    ] {
        sheet.gauge(name, bytes(), help, one(value));
    }
    let help = "Age of the oldest byte that a power cut would lose now";
    let age = Samples::GaugeSeconds(staged.unhardened_s);
    sheet.add("unhardened_age", Some(Unit::Seconds), help, age);
    let help = "Bytes that commits wrote to the staging area";
    sheet.counter("commit", bytes(), help, one(staged.commit_bytes));
    let help = "Calls that waited for a commit";
    sheet.counter("commit_waiters", None, help, one(staged.commit_waiters));
    let times = &staged.commit_times;
    let longest = times.buckets.len().saturating_sub(1);
    let buckets = times.buckets.iter().enumerate().map(|(n, bucket)| {
        let to_s = bucket.to_us as f64 / 1e6;
        (
            if n == longest { f64::INFINITY } else { to_s },
            bucket.commits,
        )
    });
    let help = "Time of commits";
    let sum = times.total_us as f64 / 1e6;
    sheet.histogram("commit_time", help, sum, buckets.collect());
    let help = "Checkpoints written";
    sheet.counter("checkpoints", None, help, one(staged.checkpoints));
    let help = "Bytes that checkpoints wrote";
    let written = staged.checkpoint_pages * BLOCK;
    sheet.counter("checkpoint", bytes(), help, one(written));
    let help = "1: the staging area fails, and nothing can be hardened any more";
    let failed = staged.failure.is_some().into();
    sheet.gauge("staging_failed", None, help, one(failed));
}

fn client_labels(client: &ClientStatus) -> Labels {
    vec![
        ("client", client.client.to_string()),
        ("pid", client.pid.to_string()),
        ("name", client.name.clone()),
        ("kind", client.kind.to_owned()),
    ]
}

fn clients(sheet: &mut Sheet, s: &Status) {
    let mut all: Vec<&ClientStatus> = s.clients.iter().collect();
    all.sort_by_key(|c| std::cmp::Reverse(c.written.nvm_bytes));
    let (shown, rest) = all.split_at(all.len().min(CLIENTS_MAX));
    let tiers = |w: &Written| {
        [
            ("nvm", w.nvm_bytes),
            ("ssd", w.ssd_bytes),
            ("hdd", w.hdd_bytes),
        ]
    };
    let mut written = Rows::new();
    for client in shown {
        for (tier, bytes) in tiers(&client.written) {
            let mut labels = client_labels(client);
            labels.push(("tier", tier.to_owned()));
            written.push((labels, bytes));
        }
    }
    for (n, (tier, bytes)) in tiers(&s.written_by_others).into_iter().enumerate() {
        let hidden: u64 = rest.iter().map(|c| tiers(&c.written)[n].1).sum();
        let labels = vec![("client", "others".to_owned()), ("tier", tier.to_owned())];
        written.push((labels, bytes + hidden));
    }
    let bytes = || Some(Unit::Bytes);
    let help = "Bytes written for the client, with digest and migration";
    sheet.counter("client_written", bytes(), help, written);
    let rows = |of: fn(&ClientStatus) -> u64| -> Rows {
        shown.iter().map(|c| (client_labels(c), of(c))).collect()
    };
    sheet.gauge(
        "client_log_size",
        bytes(),
        "Size of its log",
        rows(|c| c.log_bytes),
    );
    sheet.gauge(
        "client_log_used",
        bytes(),
        "Log that it keeps",
        rows(|c| c.log_used_bytes),
    );
    sheet.gauge(
        "client_leases",
        None,
        "Leases that it holds",
        rows(|c| c.leases),
    );
    let help = "Bytes a second that it may write; 0: no limit";
    sheet.gauge("client_limit", speed(), help, rows(|c| c.limit_bytes_per_s));
    let waited = shown
        .iter()
        .map(|c| (client_labels(c), c.limited_ms as f64 / 1000.0));
    let help = "Time that it had to wait because of its limit";
    sheet.seconds("client_limited", help, waited.collect());
    sheet.gauge(
        "clients",
        None,
        "Attached clients",
        one(s.client_count as u64),
    );
    sheet.counter(
        "lease_moves",
        None,
        "Leases taken from somebody",
        one(s.leases.moves),
    );
}

fn errors(sheet: &mut Sheet, s: &Status) {
    let migration = s.migration.as_ref().and_then(|m| m.last_error.as_ref());
    let failed = [
        ("digest", u64::from(s.digest.last_error.is_some())),
        ("migration", u64::from(migration.is_some())),
        ("recovery", s.recovery.problems.len() as u64),
    ];
    let help = "Whether something failed since the start: see shale status";
    sheet.gauge("failed", None, help, labelled("part", &failed));
    let help = "Blocks below NVM that could not be read";
    sheet.gauge("bad_blocks", None, help, one(s.bad_block_count));
}
