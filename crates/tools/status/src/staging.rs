//! The first tier of a volume in words, and the staging area of one without NVM.

use crate::fields::count;
use crate::fields::{bytes, list, number, word};
use serde_json::Value;
use shale_sys::size;

/// What the first tier is called: `nvm`, or `memory` where the volume has none.
pub fn first_tier(status: &Value) -> &'static str {
    match status["staged"].is_object() {
        true => "memory",
        false => "nvm",
    }
}

/// A volume without NVM: what it has staged, and what a power cut would lose now.
pub fn staged(status: &Value) -> Option<String> {
    let staged = status["staged"].as_object().map(|_| &status["staged"])?;
    if let Some(why) = staged["failure"].as_str() {
        return Some(format!("NOTHING CAN BE HARDENED ANY MORE: {why}"));
    }
    let lost = match number(staged, "unhardened_bytes") {
        0 => "a power cut would lose nothing now".to_owned(),
        bytes => format!(
            "a power cut would lose {} now, of {:.1} s",
            size::show(bytes),
            seconds(staged, "unhardened_s")
        ),
    };
    Some(format!(
        "{} of {}; {lost}",
        bytes(staged, "staged_bytes"),
        bytes(staged, "staging_bytes"),
    ))
}

/// Buffered clients of a volume with NVM: what their logs in memory hold, and what a power cut would lose now.
pub fn buffer(status: &Value) -> Option<String> {
    let buffer = status["buffer"].as_object().map(|_| &status["buffer"])?;
    let lost = match number(buffer, "unhardened_bytes") {
        0 => "a power cut would lose nothing now".to_owned(),
        bytes => format!(
            "a power cut would lose {} now, of {:.0} s",
            size::show(bytes),
            seconds(buffer, "unhardened_s")
        ),
    };
    let strict = match number(buffer, "unbuffered_clients") {
        0 => String::new(),
        some => format!(", {} strict for lack of it", count(some, "client")),
    };
    Some(format!(
        "{} of {}, {}, of {} for all{strict}; {lost}; fsync copied {} to NVM; written directly there {}, to memory {}{}",
        bytes(buffer, "used_bytes"),
        bytes(buffer, "limit_bytes"),
        count(number(buffer, "clients"), "client"),
        bytes(buffer, "bound_bytes"),
        bytes(buffer, "copied_bytes"),
        bytes(buffer, "eager_bytes"),
        bytes(buffer, "lazy_bytes"),
        accuracy(buffer),
    ))
}

/// How often the Buffer Benefit Model was right, once it has decided anything twice.
fn accuracy(buffer: &Value) -> String {
    let (right, wrong) = (
        number(buffer, "decided_right"),
        number(buffer, "decided_wrong"),
    );
    match right.saturating_add(wrong) {
        0 => String::new(),
        all => format!(
            "; {:.1}% of {all} blocks went where the next fsync found it best",
            right as f64 * 100.0 / all as f64
        ),
    }
}

/// A volume without NVM: its commits.
pub fn commits(status: &Value) -> Option<String> {
    let staged = status["staged"].as_object().map(|_| &status["staged"])?;
    let (commits, times) = (number(staged, "commits"), &staged["commit_times"]);
    let each = |key| number(staged, key) as f64 / commits.max(1) as f64;
    Some(format!(
        "{} of {} for {:.1} calls each on average, {} besides written to their place at once; {} (half), {} (99 of 100), {} (longest)",
        count(commits, "commit"),
        size::show(each("commit_bytes") as u64),
        each("commit_waiters"),
        bytes(staged, "placed_bytes"),
        time(number(times, "p50_us")),
        time(number(times, "p99_us")),
        time(number(times, "max_us")),
    ))
}

/// Eighths of a character's height.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A volume without NVM: how many commits took how long, as bars behind the longest time of each, up to the last time that any has taken.
pub fn commit_histogram(status: &Value) -> Option<String> {
    let buckets: Vec<(u64, u64)> = list(&status["staged"]["commit_times"], "buckets")
        .map(|bucket| (number(bucket, "to_us"), number(bucket, "commits")))
        .collect();
    let last = buckets.iter().rposition(|&(_, commits)| commits > 0)?;
    let most = buckets.iter().map(|&(_, commits)| commits).max()?;
    let bar = |commits: u64| match commits {
        0 => ' ',
        // The highest bar is the most; what there was at all is seen.
        _ => BARS[((commits as f64 / most as f64 * 8.0).ceil() as usize).clamp(1, 8) - 1],
    };
    let bars = buckets[..=last]
        .iter()
        .map(|&(to_us, commits)| format!("{} {}", time(to_us), bar(commits)));
    Some(format!(
        "commits to {}",
        bars.collect::<Vec<_>>().join("  ")
    ))
}

/// A volume without NVM: its checkpoints.
pub fn checkpoints(status: &Value) -> Option<String> {
    let staged = status["staged"].as_object().map(|_| &status["staged"])?;
    let done = number(staged, "checkpoints");
    let last = match done {
        0 => String::new(),
        _ => format!(
            ", the last one {:.0} s ago ({} in {:.0} ms)",
            seconds(staged, "last_checkpoint_s"),
            pages(staged, "last_checkpoint_pages"),
            seconds(staged, "last_checkpoint_ms"),
        ),
    };
    Some(format!(
        "{} of {}{last}; {} changed since",
        count(done, "checkpoint"),
        pages(staged, "checkpoint_pages"),
        pages(staged, "dirty_pages"),
    ))
}

/// Bytes that reached a tier for each byte that programs wrote; empty if none did.
pub fn amplification(tier: &Value) -> String {
    match tier["write_amplification"].as_f64() {
        Some(times) => format!(
            ", {times:.2} bytes written to {} for each that programs wrote",
            word(tier, "tier")
        ),
        None => String::new(),
    }
}

fn seconds(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or(0.0)
}

fn pages(value: &Value, key: &str) -> String {
    size::show(number(value, key) * 4096)
}

fn time(us: u64) -> String {
    match us {
        0..10_000 => format!("{us} µs"),
        _ => format!("{} ms", us / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_power_cut_would_lose_is_said() {
        let mut status = json!({"staged": {"staging_bytes": 128 << 20, "staged_bytes": 3 << 20,
            "unhardened_bytes": 5 << 10, "unhardened_s": 2.34, "commits": 4, "commit_bytes": 32 << 10,
            "commit_waiters": 6, "placed_bytes": 3 << 20, "commit_times": {"p50_us": 110, "p99_us": 900, "max_us": 12_345},
            "checkpoints": 2, "checkpoint_pages": 100, "last_checkpoint_pages": 10,
            "last_checkpoint_ms": 3.2, "last_checkpoint_s": 7.0, "dirty_pages": 5, "failure": null}});
        assert_eq!(first_tier(&status), "memory");
        assert_eq!(
            staged(&status).unwrap(),
            "3 MiB of 128 MiB; a power cut would lose 5 KiB now, of 2.3 s"
        );
        assert_eq!(
            commits(&status).unwrap(),
            "4 commits of 8 KiB for 1.5 calls each on average, 3 MiB besides written to their place at once; 110 µs (half), 900 µs (99 of 100), 12 ms (longest)"
        );
        assert_eq!(
            checkpoints(&status).unwrap(),
            "2 checkpoints of 400 KiB, the last one 7 s ago (40 KiB in 3 ms); 20 KiB changed since"
        );
        assert_eq!(commit_histogram(&status), None, "an older daemon");
        let bucket = |to_us: u64, commits: u64| json!({"to_us": to_us, "commits": commits});
        let buckets = [(50, 0), (100, 800), (200, 90), (10_000, 1), (50_000, 0)];
        let buckets = buckets.map(|(to_us, commits)| bucket(to_us, commits));
        status["staged"]["commit_times"]["buckets"] = Value::from(buckets.to_vec());
        assert_eq!(
            commit_histogram(&status).unwrap(),
            "commits to 50 µs    100 µs █  200 µs ▁  10 ms ▁"
        );
        status["staged"]["unhardened_bytes"] = 0.into();
        assert!(staged(&status).unwrap().ends_with("lose nothing now"));
        status["staged"]["failure"] = "the device is gone".into();
        assert!(staged(&status).unwrap().contains("the device is gone"));
    }

    #[test]
    fn a_volume_with_nvm_has_none_of_it() {
        let status = json!({"staged": null});
        assert_eq!(first_tier(&status), "nvm");
        let none = [staged(&status), commits(&status), checkpoints(&status)];
        assert_eq!(none, [None, None, None]);
        assert_eq!(buffer(&status), None, "nobody is buffered");
        let status = json!({"buffer": {"clients": 2, "limit_bytes": 320 << 20, "used_bytes": 3 << 20,
            "bound_bytes": 4u64 << 30, "unbuffered_clients": 3, "unhardened_bytes": 1 << 20, "unhardened_s": 12.4, "copied_bytes": 5 << 10, "eager_bytes": 7 << 10,
            "lazy_bytes": 2 << 20, "decided_right": 19, "decided_wrong": 1}});
        assert_eq!(
            buffer(&status).unwrap(),
            "3 MiB of 320 MiB, 2 clients, of 4 GiB for all, 3 clients strict for lack of it; a power cut would lose 1 MiB now, of 12 s; fsync copied 5 KiB to NVM; \
             written directly there 7 KiB, to memory 2 MiB; 95.0% of 20 blocks went where the next fsync found it best"
        );
    }
}
