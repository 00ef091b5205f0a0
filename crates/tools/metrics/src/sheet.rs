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
}

/// Adds metrics to a sheet, one in each line: kind, unit, name, help, and what there is of it, which has the type that
/// the kind of [`Samples`] takes.
macro_rules! export {
    ($sheet:ident { $($kind:ident $unit:ident $name:literal $help:literal: $samples:expr;)* }) => {
        $($sheet.add($name, $unit(), $help, Samples::$kind($samples));)*
    };
}

fn plain() -> Option<Unit> {
    None
}

fn bytes() -> Option<Unit> {
    Some(Unit::Bytes)
}

fn seconds() -> Option<Unit> {
    Some(Unit::Seconds)
}

fn bytes_per_second() -> Option<Unit> {
    Some(Unit::Other("bytes_per_second".to_owned()))
}

/// Samples of one name, in this order.
#[derive(Debug)]
enum Samples {
    Gauge(Rows),
    Counter(Rows),
    Seconds(Vec<(Labels, f64)>),
    GaugeSeconds(f64),
    /// Seconds of all together; seconds and how many took so long at most, each once.
    Histogram((f64, Vec<(f64, u64)>)),
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
            Samples::Histogram((sum, buckets)) => {
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
            Samples::Histogram(_) => MetricType::Histogram,
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
    buffer(&mut sheet, status);
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
    let help = "The volume that is served";
    sheet.0.register("volume", help, info);
    let heap = [("used", s.heap_used_bytes), ("free", s.heap_free_bytes)];
    let paths = |of: fn(&PathStatus) -> u64| -> Rows {
        let row = |p: &PathStatus| (vec![("path", p.path.to_owned())], of(p));
        s.device.iter().map(row).collect()
    };
    export!(sheet {
        Gauge seconds "uptime" "Time since the daemon started": one(s.uptime_s);
        Gauge bytes "heap" "Memory of the daemon's own: in use, and freed and kept": labelled("kind", &heap);
        Gauge plain "inodes" "Inodes in use": one(s.space.inodes);
        Counter bytes "nvm_stored" "Bytes that the daemon stored to NVM, by what for": paths(|p| p.bytes_stored);
        Counter plain "nvm_fences" "Fences of the daemon, by what for": paths(|p| p.fences);
    });
}

fn tiers(sheet: &mut Sheet, s: &Status) {
    let space = &s.space;
    let below = |of: fn(&TierStatus) -> u64| -> Rows {
        let row = |t: &TierStatus| (vec![("tier", t.tier.clone())], of(t));
        s.tiers.iter().map(row).collect()
    };
    let rows = |nvm: u64, of: fn(&TierStatus) -> u64| -> Rows {
        let mut rows = labelled("tier", &[("nvm", nvm)]);
        rows.extend(below(of));
        rows
    };
    let used = space.used_bytes + space.granted_bytes;
    let kept = space.reserve_bytes + space.credit_bytes;
    export!(sheet {
        Gauge bytes "tier_size" "Size of the tier": rows(space.total_bytes, |t| t.total_bytes);
        Gauge bytes "tier_used" "Taken from the tier, below NVM with what is dead until its zone is cleaned":
            rows(used, |t| t.live_bytes + t.dead_bytes);
        Gauge bytes "tier_live" "Needed by files and structure: lost if the tier were":
            rows(space.used_bytes, |t| t.live_bytes);
        Gauge bytes "tier_dirty" "Logged and not digested yet": rows(space.dirty_bytes, |_| 0);
        Gauge bytes "tier_reserved" "Reserved for records to come, copy-on-write, cleaning":
            rows(kept, |t| t.reserved_bytes);
        Gauge bytes "tier_kept" "The old name of tier_reserved, which goes with the next release":
            rows(kept, |t| t.reserved_bytes);
        Gauge bytes "tier_free" "Could be given to files now": rows(space.available_bytes, |t| t.writable_bytes);
        Gauge plain "tier_zones" "Zones of the tier": below(|t| t.zones);
        Gauge plain "tier_empty_zones" "Empty zones": below(|t| t.empty_zones);
        Counter plain "tier_erased_zones" "Zones erased": below(|t| t.zones_erased);
        Counter bytes "tier_written" "Bytes written to zones by migration and cleaning": below(|t| t.written_bytes);
        Counter bytes "tier_area_written" "Bytes of commits and checkpoints of a volume without NVM":
            below(|t| t.area_written_bytes);
    });
}

fn devices(sheet: &mut Sheet, s: &Status) {
    let rows = |of: fn(&DeviceStatus) -> u64| -> Rows {
        let of_tier = |t: &TierStatus| -> Rows {
            let labels =
                |d: &DeviceStatus| vec![("tier", t.tier.clone()), ("device", d.path.clone())];
            t.devices.iter().map(|d| (labels(d), of(d))).collect()
        };
        s.tiers.iter().flat_map(of_tier).collect()
    };
    export!(sheet {
        Gauge bytes "device_size" "Size of the device's zones": rows(|d| d.total_bytes);
        Gauge bytes "device_live" "In use on the device: lost if it were": rows(|d| d.live_bytes);
        Counter bytes "device_read" "Bytes read": rows(|d| d.read_bytes);
        Counter bytes "device_written" "Bytes written": rows(|d| d.written_bytes);
        Counter bytes "device_discarded" "Bytes discarded": rows(|d| d.discarded_bytes);
        Counter plain "device_flushes" "Flushes": rows(|d| d.flushes);
        Gauge plain "device_failing" "1: nothing new is written to it, since it fails":
            rows(|d| d.failing.is_some().into());
        Gauge plain "device_worn_zones" "Its zones that are worn out: nothing new is written to them":
            rows(|d| d.worn_zones.len() as u64);
        Gauge plain "device_emptying" "1: what it holds moves to others": rows(|d| d.evacuating.into());
        Counter plain "device_errors" "Requests that failed": rows(|d| d.errors);
    });
}

fn digest(sheet: &mut Sheet, s: &Status) {
    let d = &s.digest.stats;
    export!(sheet {
        Counter plain "digest_records" "Records digested": one(d.records);
        Counter plain "digest_skipped_records" "Records that later ones made superfluous": one(d.skipped);
        Counter plain "digest_written_blocks" "Blocks of 4 KiB written": one(d.blocks_written);
        Counter plain "digest_linked_blocks" "Blocks of 4 KiB that were in place already": one(d.blocks_linked);
        Counter bytes "digest_stored" "Bytes of data that were stored into blocks that stayed": one(d.bytes_stored);
        Counter plain "digest_commits" "Transactions": one(d.commits);
        Counter plain "digest_refused_records" "Records that were refused": one(s.digest.refused);
        Counter bytes "digest_log" "Bytes of log digested": one(d.bytes_logged);
        Counter bytes "digest_data" "Bytes of data that reached the volume": one(d.bytes_digested);
    });
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
    let (direct, aborted) = (one(c.direct_to_tier_bytes), one(c.aborted_bytes));
    let longest_wait = vec![(Labels::new(), c.space_wait_max_ns as f64 / 1e9)];
    // With the old names of two of them, for one release.
    export!(sheet {
        Counter bytes "migration_moved" "Bytes moved between tiers, or to empty zones for good ones":
            labelled("direction", &moved);
        Counter bytes "migration_direct" "Bytes of new data that went from logs directly to a tier below NVM":
            direct.clone();
        Counter bytes "migration_straight" "Bytes of new data that went from logs directly to a tier below NVM":
            direct;
        Counter bytes "migration_aborted" "Bytes copied and dropped: the blocks changed meanwhile": aborted.clone();
        Counter bytes "migration_vain" "Bytes copied and dropped: the blocks changed meanwhile": aborted;
        Counter plain "migration_batches" "Batches committed": one(c.batches);
        Counter plain "migration_waits" "Times somebody waited for space": one(c.space_waits);
        Seconds seconds "migration_longest_wait" "The longest that a call waited for space in NVM": longest_wait;
        Gauge plain "migration_paused" "Whether it is paused": one(m.paused.into());
        Gauge bytes_per_second "migration_limit" "Bytes a second that it may move; 0: no limit":
            one(m.limit_bytes_per_s);
    });
}

fn staged(sheet: &mut Sheet, s: &Status) {
    let Some(staged) = &s.staged else {
        return;
    };
    let times = &staged.commit_times;
    let longest = times.buckets.len().saturating_sub(1);
    let buckets = times.buckets.iter().enumerate().map(|(n, bucket)| {
        let to_s = bucket.to_us as f64 / 1e6;
        (
            if n == longest { f64::INFINITY } else { to_s },
            bucket.commits,
        )
    });
    let commit_times = (times.total_us as f64 / 1e6, buckets.collect());
    export!(sheet {
        Gauge bytes "staging_size" "Size of the staging area": one(staged.staging_bytes);
        Gauge bytes "staging_used" "Staged, and in no checkpoint yet": one(staged.staged_bytes);
        Gauge bytes "unhardened" "What a power cut would lose now": one(staged.unhardened_bytes);
        Gauge bytes "checkpoint_lag" "Pages of the memory tier that have changed since the last checkpoint":
            one(staged.dirty_pages * BLOCK);
        GaugeSeconds seconds "unhardened_age" "Age of the oldest byte that a power cut would lose now":
            staged.unhardened_s;
        Counter bytes "commit" "Bytes that commits wrote to the staging area": one(staged.commit_bytes);
        Counter bytes "placed" "Bytes of logs hardened where digests wrote them": one(staged.placed_bytes);
        Counter plain "commit_waiters" "Calls that waited for a commit": one(staged.commit_waiters);
        Histogram seconds "commit_time" "Time of commits": commit_times;
        Counter plain "checkpoints" "Checkpoints written": one(staged.checkpoints);
        Counter bytes "checkpoint" "Bytes that checkpoints wrote": one(staged.checkpoint_pages * BLOCK);
        Gauge plain "staging_failed" "1: the staging area fails, and nothing can be hardened any more":
            one(staged.failure.is_some().into());
    });
}

fn buffer(sheet: &mut Sheet, s: &Status) {
    let Some(buffer) = &s.buffer else {
        return;
    };
    export!(sheet {
        Gauge plain "buffered_clients" "Clients with a log in memory": one(buffer.clients as u64);
        Gauge bytes "buffer_size" "Size of their logs": one(buffer.limit_bytes);
        Gauge bytes "buffer_bound" "Most that the logs of all may have": one(buffer.bound_bytes);
        Counter plain "buffer_unbuffered_clients" "Clients that are strict since no memory was left for their logs":
            one(buffer.unbuffered_clients);
        Gauge bytes "buffer_used" "Logged by them, and not in the volume": one(buffer.used_bytes);
        Gauge bytes "unhardened" "What a power cut would lose now": one(buffer.unhardened_bytes);
        GaugeSeconds seconds "unhardened_age" "Age of the oldest byte that a power cut would lose now":
            buffer.unhardened_s;
        Gauge bytes "buffer_copied" "Bytes that fsync copied to NVM, of clients that are attached":
            one(buffer.copied_bytes);
        Gauge bytes "buffer_eager" "Bytes of whole blocks that they wrote directly to NVM": one(buffer.eager_bytes);
        Gauge bytes "buffer_lazy" "Bytes that they wrote to memory": one(buffer.lazy_bytes);
        Gauge plain "buffer_decided_right" "Blocks of which an fsync found what the one before had":
            one(buffer.decided_right);
        Gauge plain "buffer_decided_wrong" "Blocks of which it found the opposite": one(buffer.decided_wrong);
    });
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
    let rows = |of: fn(&ClientStatus) -> u64| -> Rows {
        shown.iter().map(|c| (client_labels(c), of(c))).collect()
    };
    let waited = shown
        .iter()
        .map(|c| (client_labels(c), c.limited_ms as f64 / 1000.0));
    export!(sheet {
        Counter bytes "client_written" "Bytes written for the client, with digest and migration": written;
        Gauge bytes "client_log_size" "Size of its log": rows(|c| c.log_bytes);
        Gauge bytes "client_log_used" "Log that it keeps": rows(|c| c.log_used_bytes);
        Gauge plain "client_leases" "Leases that it holds": rows(|c| c.leases);
        Gauge bytes_per_second "client_limit" "Bytes a second that it may write; 0: no limit":
            rows(|c| c.limit_bytes_per_s);
        Seconds seconds "client_limited" "Time that it had to wait because of its limit": waited.collect();
        Gauge plain "clients" "Attached clients": one(s.client_count as u64);
        Counter plain "lease_moves" "Leases taken from somebody": one(s.leases.moves);
        Counter plain "paths_known" "Paths of directories that clients had walked before": one(s.paths.known);
        Counter plain "paths_walked" "Paths of directories that clients walked": one(s.paths.walked);
    });
}

fn errors(sheet: &mut Sheet, s: &Status) {
    let migration = s.migration.as_ref().and_then(|m| m.last_error.as_ref());
    let failed = [
        ("digest", u64::from(s.digest.last_error.is_some())),
        ("migration", u64::from(migration.is_some())),
        ("recovery", s.recovery.problems.len() as u64),
    ];
    export!(sheet {
        Gauge plain "failed" "Whether something failed since the start: see shale status": labelled("part", &failed);
        Gauge plain "bad_blocks" "Blocks below NVM that could not be read": one(s.bad_block_count);
    });
}
