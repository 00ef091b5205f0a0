//! `shale status`: what a mount is doing.

use crate::commands::df;
use crate::commands::limit;
use crate::commands::mkfs::explain;
use crate::control::ask;
use crate::failure::Result;
use crate::mounts::state::StateDir;
use crate::service::metrics;
use crate::terminal::{self, say};
use serde_json::Value;
use shale_status::fields::{bytes, count, list, number, word};
use shale_status::staging;
use shale_sys::size;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  shale status /mnt/shale
  shale status /mnt/shale --json";

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The mount point
    mountpoint: PathBuf,
    /// Everything that is known, as JSON
    #[arg(long)]
    json: bool,
    /// How many files have blocks on each device: looks through all files
    #[arg(long)]
    files: bool,
}

/// Shows the state.
pub fn run(args: &Args) -> Result<()> {
    let dir = ask::mount_at(&args.mountpoint)?;
    let mut status = complete(ask::status(&dir)?, &dir);
    if args.files {
        status["holdings"] = df::holdings(&dir)?;
    }
    if args.json {
        say!("{status:#}");
    } else {
        terminal::print(&table(&status));
    }
    Ok(())
}

/// Adds what the daemon does not know: the mount.
pub fn complete(mut status: Value, dir: &StateDir) -> Value {
    // As it is after the answer: a restart may have come before it.
    let dir = StateDir::load(dir.path().to_owned()).unwrap_or_else(|| dir.clone());
    let state = &dir.state;
    status["mountpoint"] = state.mountpoint.to_string_lossy().into();
    status["volume"] = state.volume.to_string_lossy().into();
    status["mounted"] = state.is_mounted().unwrap_or(false).into();
    status["supervisor_pid"] = state.supervisor.pid.into();
    status["supervised"] = state.supervisor.lives().into();
    status["restarts"] = state.restarts.into();
    status["socket"] = dir.socket().to_string_lossy().into();
    status["metrics"] = metrics::place(dir.path()).into();
    status["log"] = dir.log().to_string_lossy().into();
    status
}

fn table(status: &Value) -> String {
    let mut lines = vec![format!(
        "{}: volume '{}', {}",
        word(status, "mountpoint"),
        word(status, "name"),
        word(status, "durability"),
    )];
    let mut line = |name: &str, text: String| lines.push(format!("  {name:<10} {text}"));
    line(
        "volume",
        format!("{}  {}", word(status, "volume"), word(status, "uuid")),
    );
    let space = &status["space"];
    line(
        staging::first_tier(status),
        format!(
            "{} used of {}, {} available, {} logged and not digested; {}",
            bytes(space, "used_bytes"),
            bytes(space, "total_bytes"),
            bytes(space, "available_bytes"),
            bytes(space, "dirty_bytes"),
            word(status, "nvm_dir"),
        ),
    );
    for tier in list(status, "tiers") {
        line(word(tier, "tier"), self::tier(tier));
    }
    if status["migration"].is_object() {
        line("migration", migration(&status["migration"]));
    }
    for held in list(status, "holdings") {
        line(word(held, "tier"), df::holding(held));
    }
    for bad in list(status, "bad_blocks") {
        line("bad block", word(bad, "why").to_owned());
    }
    let all = number(status, "bad_block_count");
    if all > 0 {
        line("bad blocks", format!("{all}; shale scrub names the files"));
    }
    let host = &status["nvm_host"];
    let is_memory = host["is_memory"] != false;
    match staging::staged(status) {
        Some(staged) => line("staging", staged),
        None => line(
            "nvm is",
            explain(word(status, "persistence"), word(host, "kind"), is_memory)
                + &slowed_down(
                    &status["nvm_model"]["name"],
                    number(&status["nvm_model"], "delayed_ns"),
                ),
        ),
    }
    if let Some(buffer) = staging::buffer(status) {
        line("buffer", buffer);
    }
    for words in { [staging::commits(status), staging::checkpoints(status)] }
        .into_iter()
        .flatten()
    {
        line("", words);
    }
    if let Some(short) = host["short"].as_str() {
        line("NO SPACE", short.to_owned());
    }
    line("inodes", number(space, "inodes").to_string());
    line("daemon", daemon(status));
    line("supervisor", supervisor(status));
    if let Some(metrics) = status["metrics"].as_str() {
        line("metrics", metrics.to_owned());
    }
    line("log", word(status, "log").to_owned());
    line("requests", requests(&status["mount_requests"]));
    line("digested", digest(&status["digest"]));
    if let Some(error) = status["digest"]["last_error"].as_str() {
        line("error", error.to_owned());
    }
    for problem in list(&status["recovery"], "problems") {
        line("recovery", problem.as_str().unwrap_or("?").to_owned());
    }
    for client in list(status, "clients") {
        line("client", self::client(client, staging::first_tier(status)));
    }
    for gone in list(status, "detached_clients") {
        line(
            "cut off",
            format!("process {}: {}", number(gone, "pid"), word(gone, "why")),
        );
    }
    lines.join("\n") + "\n"
}

/// What the kernel asked the mount for, the most frequent kinds first.
fn requests(counts: &Value) -> String {
    const SHOWN: usize = 6;
    let mut kinds: Vec<(&str, u64)> = counts
        .as_object()
        .into_iter()
        .flatten()
        .map(|(kind, count)| (kind.as_str(), count.as_u64().unwrap_or(0)))
        .collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let sum: u64 = kinds.iter().map(|(_, count)| count).sum();
    let shown: Vec<String> = kinds
        .iter()
        .take(SHOWN)
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    format!("{sum} from the kernel: {}", shown.join(", "))
}

/// Of a medium with a model in front: its name, and by how much it slowed down so far.
fn slowed_down(model: &Value, ns: u64) -> String {
    model.as_str().map_or(String::new(), |name| {
        let seconds = ns as f64 / 1e9;
        format!(", SLOWED DOWN to the model '{name}' by {seconds:.1} s")
    })
}

fn tier(tier: &Value) -> String {
    let devices = list(tier, "devices");
    let paths: Vec<String> = devices
        .map(|d| match d["failing"].as_str() {
            Some(why) => format!("FAILING, gets nothing new: {why}"),
            None => {
                let live = bytes(d, "live_bytes");
                let emptying = if d["evacuating"] == true {
                    ", being emptied"
                } else {
                    ""
                };
                let worn = list(d, "worn_zones");
                let worn: Vec<String> = worn.map(Value::to_string).collect();
                let worn = match worn.is_empty() {
                    true => String::new(),
                    false => format!(", WORN OUT zones: {}", worn.join(" ")),
                };
                let model = slowed_down(&d["model"], number(d, "model_delayed_ns"));
                format!(
                    "{} ({}, {}, {live}{emptying}{worn}{model})",
                    word(d, "path"),
                    word(d, "kind"),
                    word(d, "access")
                )
            }
        })
        .collect();
    format!(
        "{} used of {}, {} dead, {} writable, {} reserved; {} of {} zones empty{}; {}",
        bytes(tier, "live_bytes"),
        bytes(tier, "total_bytes"),
        bytes(tier, "dead_bytes"),
        bytes(tier, "writable_bytes"),
        bytes(tier, "reserved_bytes"),
        number(tier, "empty_zones"),
        number(tier, "zones"),
        staging::amplification(tier),
        paths.join(", "),
    )
}

fn migration(m: &Value) -> String {
    let pace = match (m["paused"].as_bool(), number(m, "limit_bytes_per_s")) {
        (Some(true), _) => "paused".to_owned(),
        (_, 0) => format!("from {}%", number(m, "at_percent")),
        (_, limit) => format!("at most {} a second", size::show(limit)),
    };
    let error = m["last_error"]
        .as_str()
        .map_or(String::new(), |e| format!("; {e}"));
    format!(
        "{pace}; {} down, {} up, {} cleaned in {}, {} a second recently, {} since the start; \
         {} directly from logs; calls waited for space {} ms at most{error}",
        bytes(m, "down_bytes"),
        bytes(m, "up_bytes"),
        bytes(m, "cleaned_bytes"),
        match number(m, "batches") {
            1 => "1 batch".to_owned(),
            many => format!("{many} batches"),
        },
        bytes(m, "recent_bytes_per_s"),
        bytes(m, "rate_bytes_per_s"),
        bytes(m, "direct_to_tier_bytes"),
        number(m, "space_wait_max_ns").div_ceil(1_000_000),
    )
}

fn daemon(status: &Value) -> String {
    let down = match status["shut_down"].as_bool() {
        Some(true) => "; the volume was shut down: unmount it, and mount it again",
        _ => "",
    };
    format!(
        "process {}, for {} s, started again {}{down}",
        number(status, "daemon_pid"),
        number(status, "uptime_s"),
        count(number(status, "restarts"), "time"),
    )
}

fn supervisor(status: &Value) -> String {
    let pid = number(status, "supervisor_pid");
    match status["supervised"].as_bool() {
        Some(true) => format!("process {pid}"),
        _ => format!("gone (was process {pid}): the mount ends when nobody uses it"),
    }
}

fn digest(digest: &Value) -> String {
    format!(
        "{} ({} of log), {} skipped; {} written, {} linked, {} changed in place; {}",
        count(number(digest, "records"), "record"),
        bytes(digest, "bytes_logged"),
        number(digest, "skipped"),
        count(number(digest, "blocks_written"), "block"),
        number(digest, "blocks_linked"),
        bytes(digest, "bytes_stored"),
        count(number(digest, "commits"), "commit"),
    )
}

/// `first`: what the first tier is called.
fn client(client: &Value, first: &str) -> String {
    let waiting = number(client, "published").saturating_sub(number(client, "digested"));
    format!(
        "{} of process {} {}(user {}), {}: {} of {} log kept, {} to digest; wrote {}{}",
        word(client, "kind"),
        number(client, "pid"),
        client["name"]
            .as_str()
            .map_or(String::new(), |n| format!("'{n}' ")),
        number(client, "uid"),
        word(client, "state"),
        bytes(client, "log_used_bytes"),
        bytes(client, "log_bytes"),
        size::show(waiting),
        written(&client["written"], first),
        match number(client, "limit_bytes_per_s") {
            0 => String::new(),
            rate => format!(", at most {}", limit::shown(rate)),
        },
    )
}

/// Bytes to each tier that has some.
fn written(written: &Value, first: &str) -> String {
    let first = match first {
        "nvm" => "NVM",
        other => other,
    };
    let tiers = [
        ("nvm_bytes", first),
        ("ssd_bytes", "SSD"),
        ("hdd_bytes", "HDD"),
    ];
    let parts: Vec<String> = tiers
        .iter()
        .map(|(key, name)| (number(written, key), name))
        .filter(|(bytes, name)| *bytes > 0 || **name == first)
        .map(|(bytes, name)| format!("{} to {name}", size::show(bytes)))
        .collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_a_disk_is_no_nvm() {
        let said = explain("emulated", "ext4", false);
        assert!(said.contains("NOT NVM") && said.contains("ext4"), "{said}");
        assert!(explain("dax", "ext4", false).contains("survives a power cut"));
    }

    #[test]
    fn the_table_says_what_matters() {
        let status = serde_json::json!({
            "mountpoint": "/m", "name": "v", "durability": "strict", "volume": "/v.toml",
            "uuid": "u", "nvm_dir": "/n", "persistence": "emulated", "daemon_pid": 12,
            "supervisor_pid": 11, "supervised": false, "uptime_s": 3, "restarts": 2, "log": "/l",
            "space": {"used_bytes": 1 << 20, "total_bytes": 1 << 30, "available_bytes": 5 << 20, "dirty_bytes": 72, "inodes": 7},
            "digest": {"records": 9, "last_error": "worn out"},
            "clients": [{"kind": "mount", "pid": 12, "uid": 0, "state": "served",
                "log_bytes": 4096, "log_used_bytes": 128, "published": 200, "digested": 72,
                "name": "mount", "limit_bytes_per_s": 1 << 20,
                "written": {"nvm_bytes": 2048, "hdd_bytes": 1 << 20}}],
            "detached_clients": [{"pid": 99, "why": "slept inside a call"}],
            "recovery": {"problems": ["log-003: short"]},
            "nvm_host": {"kind": "tmpfs", "is_memory": true, "short": "1 GiB of the volume"},
        });
        let text = table(&status);
        for part in [
            "/m: volume 'v', strict",
            "1 MiB used of 1 GiB, 5 MiB available, 72 B logged",
            "not a power cut",
            "NO SPACE   1 GiB of the volume",
            "process 12, for 3 s, started again 2 times",
            "gone (was process 11)",
            "9 records",
            "worn out",
            "log-003: short",
            "mount of process 12 'mount' (user 0), served",
            "128 B of 4 KiB log kept, 128 B to digest; wrote 2 KiB to NVM, 1 MiB to HDD",
            "HDD, at most 1 MiB a second",
            "process 99: slept inside a call",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
