//! `shale backup` and `shale restore`: what comes back, of which moment it is, and what is left when something is cut off.

mod cut_off;
mod one_moment;
mod round_trip;
mod tree;

use crate::volume::{Volume, can_mount, library, shale};
use serde_json::Value;
use std::path::Path;

/// A mounted volume of each kind: NVM alone, NVM with tiers below, without NVM.
fn of_each_kind(name: &str) -> Vec<Volume> {
    if !can_mount() {
        return Vec::new();
    }
    if !library().exists() {
        eprintln!("SKIPPED: {} is not built", library().display());
        return Vec::new();
    }
    let volumes = vec![
        Volume::new(name),
        Volume::tiered(name, "64M", "96M", "128M"),
        Volume::of_ssd(name, "384M"),
    ];
    volumes.iter().for_each(Volume::mount);
    volumes
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[track_caller]
fn backup(v: &Volume, dest: &Path) -> Value {
    let said = shale(&["backup", v.place(), text(dest), "--json"]).ok();
    serde_json::from_str(&said).unwrap()
}

#[track_caller]
fn restore(dest: &Path, target: &Path, more: &[&str]) -> Value {
    let args = ["restore", text(dest), text(target), "--json"];
    let said = shale(&[&args, more].concat()).ok();
    serde_json::from_str(&said).unwrap()
}

/// The states of the backups in a directory.
#[track_caller]
fn states(dest: &Path) -> Vec<String> {
    let said = shale(&["backup", "--list", text(dest), "--json"]).ok();
    let rows: Vec<Value> = serde_json::from_str(&said).unwrap();
    let state = |row: &Value| row["state"].as_str().unwrap().to_owned();
    rows.iter().map(state).collect()
}
