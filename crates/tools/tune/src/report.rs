//! How all settings of a volume are.

use crate::change::OfMount;
use crate::fixed::Fixed;
use crate::setting::{Holds, Setting};
use crate::value::Value;
use serde::{Deserialize, Serialize};
use shale_pool::VolumeFile;
use std::path::{Path, PathBuf};

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub setting: String,
    /// What it is.
    pub value: Value,
    /// The same as people read it.
    pub shown: String,
    /// What the next mount makes of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_next_mount_on: Option<Value>,
    /// Where it is said: "file", "mount" (what somebody has set since), or "default".
    pub from: String,
    /// Its unit.
    pub unit: String,
    /// What it can be.
    pub range: String,
    /// When a change holds.
    pub holds: Holds,
}

/// All of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Its file.
    pub volume: PathBuf,
    /// What may change.
    pub settings: Vec<Row>,
    /// What does not.
    pub fixed: Vec<Fixed>,
}

impl Report {
    /// Of a volume file; with what a mount has beside it.
    pub fn new(path: &Path, file: &VolumeFile, mount: Option<&OfMount>) -> Report {
        let all = Setting::all(file, mount.is_some());
        Report {
            volume: path.to_path_buf(),
            settings: { all.iter() }
                .filter_map(|setting| row(setting, file, mount))
                .collect(),
            fixed: Fixed::all(file),
        }
    }

    /// As a table, and what stays as it is below it.
    pub fn lines(&self) -> Vec<String> {
        let head = ["SETTING", "VALUE", "FROM", "CHANGES HOLD", "RANGE"].map(str::to_owned);
        let rows = self.settings.iter().map(|row| {
            let unit = match row.unit.as_str() {
                unit @ ("percent" | "bytes" | "bytes a second") => format!(" ({unit})"),
                _ => String::new(),
            };
            [
                row.setting.clone(),
                row.shown.clone(),
                row.from.clone(),
                row.holds.text().to_owned(),
                format!("{}{unit}", row.range),
            ]
        });
        let rows: Vec<[String; 5]> = std::iter::once(head).chain(rows).collect();
        let width = |n: usize| rows.iter().map(|row| row[n].chars().count()).max();
        let widths = [0, 1, 2, 3].map(|n| width(n).unwrap_or(0));
        let line = |row: &[String; 5]| {
            let cells = { row.iter().zip(widths) }
                .map(|(cell, width)| format!("{cell:<width$}  "))
                .collect::<String>();
            format!("{cells}{}", row[4])
        };
        let mut lines: Vec<String> = rows.iter().map(line).collect();
        lines.push(String::new());
        lines.push("as mkfs made it:".to_owned());
        lines.extend(
            self.fixed
                .iter()
                .map(|fixed| format!("  {}: {} ({})", fixed.setting, fixed.value, fixed.why)),
        );
        lines
    }
}

fn row(setting: &Setting, file: &VolumeFile, mount: Option<&OfMount>) -> Option<Row> {
    let of_mount = mount.and_then(|mount| mount.value(&setting.which));
    let default = setting.default(file);
    let said = match setting.is_of_file() {
        true => setting.said(file).map(|value| (value, "file")),
        false => of_mount
            .filter(|value| default.as_ref() != Some(value))
            .map(|value| (value, "mount")),
    };
    let (value, from) = said.or_else(|| default.map(|value| (value, "default")))?;
    let waits = setting.waits(file);
    let shown = match &waits {
        None => setting.range.show(&value),
        Some(next) => format!(
            "{}, next mount: {}",
            setting.range.show(&value),
            setting.range.show(next)
        ),
    };
    Some(Row {
        setting: setting.name.clone(),
        value,
        shown,
        from_next_mount_on: waits,
        from: from.to_owned(),
        unit: setting.range.unit().to_owned(),
        range: setting.range.text(),
        holds: setting.holds,
    })
}
