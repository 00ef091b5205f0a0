//! `shale df`: the space of each tier and device, and what would be lost with a device.

use crate::control::admin;
use crate::control::ask;
use crate::control::orders::Order;
use crate::failure::Result;
use crate::mounts::state::StateDir;
use crate::terminal::{self, say};
use serde_json::{Value, json};
use shale_daemon::DeviceUsage;
use shale_status::fields::{bytes, count, list, number, word};
use shale_status::staging;
use shale_sys::size;
use std::path::PathBuf;

const NOTES: &str = "\
USED  taken from the tier; below NVM with what is dead until its zone is cleaned LIVE  what files and \
structure need: what would be lost with the tier or device DIRTY logged and not digested yet; logs lie \
beside the tier KEPT  set aside: on NVM for records to come, copy-on-write, and 128 bytes for each inode; \
below for cleaning FREE  could be given to files now

All structure lies on NVM: without it nothing is found again. Of a volume without NVM it lies in memory, and on the \
first SSD as it was at the last checkpoint; what came later is staged there. DIRTY of staging is what a power cut \
would lose now.

Examples:
  shale df /mnt/shale
  shale df /mnt/shale --files      also how many files lie on each device";

/// Arguments of `df`.
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    /// The mount point
    mountpoint: PathBuf,
    /// Count the files with blocks on each device: looks through all files
    #[arg(long)]
    files: bool,
    /// As JSON, in bytes
    #[arg(long)]
    json: bool,
}

/// Shows the space.
pub fn run(args: &Args) -> Result<()> {
    let dir = ask::mount_at(&args.mountpoint)?;
    let status = ask::status(&dir)?;
    let held = args.files.then(|| holdings(&dir)).transpose()?;
    let rows = rows(&status, held.as_ref());
    if args.json {
        say!("{:#}", Value::from(rows));
    } else {
        terminal::print(&table(&rows));
    }
    Ok(())
}

/// How many files and bytes each device holds.
///
/// # Errors
/// The daemon ends, or its structure is damaged.
pub fn holdings(dir: &StateDir) -> Result<Value> {
    let held: Vec<DeviceUsage> = admin::order(dir, &Order::Holdings)?;
    Ok(json!(held))
}

/// One device in words.
pub fn holding(held: &Value) -> String {
    format!(
        "device {}: {} of {}",
        number(held, "device"),
        bytes(held, "bytes"),
        count(number(held, "files"), "file"),
    )
}

/// A row for each tier, and one for each device below NVM.
fn rows(status: &Value, held: Option<&Value>) -> Vec<Value> {
    let space = &status["space"];
    let kept = number(space, "reserve_bytes") + number(space, "credit_bytes");
    let first = staging::first_tier(status);
    let mut rows = vec![json!({
        "tier": first,
        "device": status["nvm_dir"],
        "size_bytes": space["total_bytes"],
        "used_bytes": number(space, "used_bytes") + number(space, "granted_bytes"),
        "live_bytes": space["used_bytes"],
        "dirty_bytes": space["dirty_bytes"],
        "kept_bytes": kept,
        "free_bytes": space["available_bytes"],
        "files": files(held, "nvm", 0),
    })];
    if let staged @ Value::Object(_) = &status["staged"] {
        rows.push(json!({
            "tier": "staging",
            "size_bytes": staged["staging_bytes"],
            "used_bytes": staged["staged_bytes"],
            "dirty_bytes": staged["unhardened_bytes"],
        }));
    }
    for tier in list(status, "tiers") {
        let (live, dead) = (number(tier, "live_bytes"), number(tier, "dead_bytes"));
        rows.push(json!({
            "tier": tier["tier"],
            "size_bytes": tier["total_bytes"],
            "used_bytes": live + dead,
            "live_bytes": live,
            "dirty_bytes": 0,
            "kept_bytes": tier["reserved_bytes"],
            "free_bytes": tier["writable_bytes"],
        }));
        let devices = list(tier, "devices");
        rows.extend(devices.enumerate().map(|(n, device)| {
            let live = number(device, "live_bytes");
            json!({
                "tier": tier["tier"],
                "device": device["path"],
                "size_bytes": device["total_bytes"],
                "used_bytes": live + number(device, "dead_bytes"),
                "live_bytes": live,
                "files": files(held, word(tier, "tier"), n),
                "errors": device["errors"],
                "state": state(device),
            })
        }));
    }
    rows
}

/// How a device is, in a word.
pub fn state(device: &Value) -> &'static str {
    let (failing, emptying) = (device["failing"].is_string(), device["evacuating"] == true);
    match (failing, emptying, number(device, "live_bytes")) {
        (true, ..) => "failing",
        (false, true, 0) => "empty",
        (false, true, _) => "emptying",
        (false, false, _) => "in use",
    }
}

fn files(held: Option<&Value>, tier: &str, device: usize) -> Value {
    let all = held.and_then(Value::as_array).into_iter().flatten();
    let one = all
        .filter(|h| word(h, "tier") == tier)
        .find(|h| h["device"] == device);
    one.map_or(Value::Null, |h| h["files"].clone())
}

const COLUMNS: [&str; 6] = ["size", "used", "live", "dirty", "kept", "free"];

fn table(rows: &[Value]) -> String {
    let mut text = format!("{:<8}", "TIER");
    for column in COLUMNS {
        text += &format!("{:>10}", column.to_uppercase());
    }
    text += "\n";
    for row in rows {
        let device = row["device"].as_str();
        let tier = word(row, "tier");
        let below = device.is_some() && !matches!(tier, "nvm" | "memory");
        text += &format!("{:<8}", if below { "" } else { tier });
        for column in COLUMNS {
            let value = row[format!("{column}_bytes")].as_u64();
            text += &format!("{:>10}", value.map_or(String::new(), size::show));
        }
        if let Some(device) = device {
            text += &format!("  {device}");
        }
        if let Some(files) = row["files"].as_u64() {
            text += &format!("  {}", count(files, "file"));
        }
        if row["errors"].as_u64().is_some_and(|n| n > 0) {
            text += &format!("  {}", count(number(row, "errors"), "error"));
        }
        if let Some(state) = row["state"].as_str().filter(|s| *s != "in use") {
            text += &format!("  {state}");
        }
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tier_and_device_has_a_row() {
        let status = json!({
            "nvm_dir": "/n",
            "space": {"total_bytes": 1 << 30, "used_bytes": 1 << 20, "granted_bytes": 0,
                "available_bytes": 1 << 29, "dirty_bytes": 640, "credit_bytes": 1024,
                "reserve_bytes": 1024},
            "tiers": [{"tier": "ssd", "total_bytes": 8u64 << 30, "live_bytes": 3 << 20,
                "dead_bytes": 1 << 20, "writable_bytes": 7u64 << 30, "reserved_bytes": 64 << 20,
                "devices": [
                    {"path": "/a", "total_bytes": 4u64 << 30, "live_bytes": 3 << 20,
                        "dead_bytes": 1 << 20, "errors": 2, "failing": "worn out"},
                    {"path": "/b", "total_bytes": 4u64 << 30, "live_bytes": 0, "dead_bytes": 0,
                        "errors": 0, "evacuating": false, "failing": null}]}],
        });
        let held = json!([{"tier": "nvm", "device": 0, "files": 9, "bytes": 1},
            {"tier": "ssd", "device": 0, "files": 4, "bytes": 1},
            {"tier": "ssd", "device": 1, "files": 0, "bytes": 0}]);
        let text = table(&rows(&status, Some(&held)));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        for (line, parts) in [
            (1, &["nvm", "640 B", "2 KiB", "512 MiB  /n  9 files"][..]),
            (2, &["ssd", "8 GiB", "4 MiB", "3 MiB", "0 B", "7 GiB"]),
            (3, &["4 GiB", "/a  4 files  2 errors  failing"]),
            (4, &["/b  0 files"]),
        ] {
            for part in parts {
                assert!(lines[line].contains(part), "{part} is missing in\n{text}");
            }
        }
        assert!(!table(&rows(&status, None)).contains("files"));
    }
}
