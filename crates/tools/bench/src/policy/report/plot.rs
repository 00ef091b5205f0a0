//! A report as pictures, one for each thing that was varied, named after the figures of the HiNFS article (ACM ToS 14(1), 2018).
//!
//! | File | Paper | Shown |
//! | --- | --- | --- |
//! | `fig7-loads`, `fig13-traces`, `fig14-programs` | Figures 7, 13, 14 | each system's operations a second over the base's, by load |
//! | `fig8-threads` | Figure 8 | the same by threads |
//! | `fig10-io-size`, `fig10-io-size-nvm` | Figure 10 | the same by size of calls, and bytes that reached NVM for each written |
//! | `fig11-buffer` | Figure 11 | the same by size of the log, which is the buffer |
//! | `fig12-latency` | Figure 12 | the same by the model's latency of a line |

use std::path::{Path, PathBuf};

use super::{Cell, PolicyReport, Row};
use crate::plot::{Axes, Line, draw_groups, draw_into, draw_panels};
use crate::policy::loads::Load;
use crate::policy::systems::System;
use crate::table::size_text;
use crate::{BenchError, Result};

/// A cell without one of the things that are varied: lines are of cells that have the same rest.
type Rest = fn(&Cell) -> Cell;

/// Something that is varied, as an axis.
struct Dimension {
    file: &'static str,
    title: &'static str,
    x: &'static str,
    place: fn(&Cell) -> Option<f64>,
    rest: Rest,
    text: fn(f64) -> String,
}

/// Nothing between whole numbers.
fn count_text(number: f64) -> String {
    match (number - number.round()).abs() < 0.01 {
        true => format!("{number:.0}"),
        false => String::new(),
    }
}

fn bytes_text(bytes: f64) -> String {
    size_text(bytes.round() as u64)
}

/// Nanoseconds of a line of HiNFS's model.
fn latency_ns(model: &str) -> Option<f64> {
    match model {
        "hinfs" => Some(200.0),
        model => model.strip_prefix("hinfs-")?.parse().ok(),
    }
}

const DIMENSIONS: [Dimension; 4] = [
    Dimension {
        file: "fig8-threads",
        title: "by threads (HiNFS, Figure 8)",
        x: "threads",
        place: |cell| Some(f64::from(cell.threads)),
        rest: |cell| Cell {
            threads: 0,
            ..cell.clone()
        },
        text: count_text,
    },
    Dimension {
        file: "fig10-io-size",
        title: "by size of calls (HiNFS, Figure 10)",
        x: "bytes of a call",
        place: |cell| cell.io_bytes.map(|bytes| bytes as f64),
        rest: |cell| Cell {
            io_bytes: None,
            ..cell.clone()
        },
        text: bytes_text,
    },
    Dimension {
        file: "fig11-buffer",
        title: "by size of the log, which is the buffer (HiNFS, Figure 11)",
        x: "bytes of a client's log",
        place: |cell| Some(cell.log_bytes as f64),
        rest: |cell| Cell {
            log_bytes: 0,
            ..cell.clone()
        },
        text: bytes_text,
    },
    Dimension {
        file: "fig12-latency",
        title: "by latency of NVM (HiNFS, Figure 12)",
        x: "ns to write a line",
        place: |cell| latency_ns(&cell.model),
        rest: |cell| Cell {
            model: String::new(),
            ..cell.clone()
        },
        text: count_text,
    },
];

/// Operations a second over those of the base, which is 1 itself.
fn over_base(row: &Row) -> Option<f64> {
    match (&row.ratio, &row.base) {
        (Some(ratio), _) => Some(ratio.median),
        (None, base) => base.is_none().then_some(1.0),
    }
}

const RATIO: &str = "operations a second over the base's";
const BYTES: &str = "bytes to the medium for each written";

impl PolicyReport {
    /// Draws a file for each thing of which there are several values. Makes the directory if it is missing; files of these names are replaced.
    /// Returns the files.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn plot(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        std::fs::create_dir_all(dir).map_err(BenchError::file(dir, "make"))?;
        let mut files = Vec::new();
        let loads = distinct(self.rows.iter().map(|row| row.cell.load));
        if loads.len() > 1 {
            for (file, title, of) in [
                ("fig7-loads", "servers (HiNFS, Figure 7)", Load::SERVERS),
                (
                    "fig13-traces",
                    "SYNTHETIC loads in place of traces (HiNFS, Figure 13)",
                    Load::TRACES,
                ),
                (
                    "fig14-programs",
                    "programs (HiNFS, Figure 14)",
                    Load::PROGRAMS,
                ),
            ] {
                self.plot_loads(&dir.join(format!("{file}.svg")), title, &of, &mut files)?;
            }
        }
        for dimension in &DIMENSIONS {
            let places = self
                .rows
                .iter()
                .filter_map(|row| (dimension.place)(&row.cell));
            if distinct(places).len() < 2 {
                continue;
            }
            let file = dir.join(format!("{}.svg", dimension.file));
            self.plot_lines(dimension, &file, RATIO, over_base, &mut files)?;
            if dimension.file == "fig10-io-size" {
                let file = dir.join("fig10-io-size-nvm.svg");
                let bytes = |row: &Row| row.medium_bytes_for_each.map(|each| each.median);
                self.plot_lines(dimension, &file, BYTES, bytes, &mut files)?;
            }
        }
        Ok(files)
    }

    /// A group of bars for each of these loads that was measured, each with the first values of everything else.
    fn plot_loads(
        &self,
        file: &Path,
        title: &str,
        of: &[Load],
        files: &mut Vec<PathBuf>,
    ) -> Result<()> {
        let systems = distinct(self.rows.iter().map(|row| row.system.clone()));
        let group = |load: &Load| {
            let first = &self.rows.iter().find(|row| row.cell.load == *load)?.cell;
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.cell == *first).collect();
            let values = systems.iter().map(|system| {
                let row = rows.iter().find(|row| row.system == *system)?;
                over_base(row)
            });
            Some((load.to_string(), values.collect()))
        };
        let groups: Vec<(String, Vec<Option<f64>>)> = of.iter().filter_map(group).collect();
        let names: Vec<String> = systems.iter().map(ToString::to_string).collect();
        draw_into(file, files, &groups, |area| {
            draw_groups(area, title, RATIO, &names, &groups)
        })
    }

    /// A chart for each load with a line for each system, all with the first values of everything else.
    fn plot_lines(
        &self,
        dimension: &Dimension,
        file: &Path,
        y: &str,
        value: impl Fn(&Row) -> Option<f64>,
        files: &mut Vec<PathBuf>,
    ) -> Result<()> {
        let loads = distinct(self.rows.iter().map(|row| row.cell.load));
        let titles = loads
            .iter()
            .map(|load| format!("{load} {}", dimension.title));
        let titles: Vec<String> = titles.collect();
        let mut panels = Vec::new();
        for (load, title) in loads.iter().zip(&titles) {
            let of_load = self.rows.iter().filter(|row| row.cell.load == *load);
            let rows: Vec<&Row> = of_load.collect();
            let lines = lines_of(&rows, dimension, &value);
            if !lines.is_empty() {
                let axes = Axes {
                    title,
                    x: dimension.x,
                    y,
                    x_text: &dimension.text,
                    y_is_logarithmic: false,
                };
                panels.push((axes, lines));
            }
        }
        draw_panels(file, files, &panels)
    }
}

/// A line for each system of which there are several points, with what does not vary as in the first row.
fn lines_of(
    rows: &[&Row],
    dimension: &Dimension,
    value: impl Fn(&Row) -> Option<f64>,
) -> Vec<Line> {
    let Some(rest) = rows.first().map(|row| (dimension.rest)(&row.cell)) else {
        return Vec::new();
    };
    let line = |system: System| {
        let own = rows.iter().filter(|row| row.system == system);
        let own = own.filter(|row| (dimension.rest)(&row.cell) == rest);
        let points = own.filter_map(|row| Some(((dimension.place)(&row.cell)?, value(row)?)));
        let mut points: Vec<(f64, f64)> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (points.len() > 1).then(|| (system.to_string(), points))
    };
    let systems = distinct(rows.iter().map(|row| row.system.clone()));
    systems.into_iter().filter_map(line).collect()
}

/// Each once, in the order of their first.
fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cell, report};
    use super::*;

    fn plotted(cells: &[Cell]) -> Vec<(String, String)> {
        let dir = tempfile::tempdir().unwrap();
        let files = report(cells).plot(&dir.path().join("plots")).unwrap();
        let name = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().to_owned();
        let read = |file: &PathBuf| std::fs::read_to_string(file).unwrap();
        files.iter().map(|file| (name(file), read(file))).collect()
    }

    #[test]
    fn a_file_for_each_thing_of_which_there_are_several() {
        let hinfs = |model: &str, log_bytes| Cell {
            model: model.to_owned(),
            log_bytes,
            ..cell(Load::Fileserver, 1, Some(64))
        };
        let cells = [
            cell(Load::Fileserver, 1, Some(64)),
            cell(Load::Fileserver, 2, Some(64)),
            cell(Load::Fileserver, 1, Some(4_096)),
            hinfs("hinfs-800", 64 << 20),
            hinfs("hinfs", 16 << 20),
            cell(Load::Usr0, 1, None),
            cell(Load::Postmark, 1, None),
        ];
        let files = plotted(&cells);
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "fig7-loads.svg",
                "fig13-traces.svg",
                "fig14-programs.svg",
                "fig8-threads.svg",
                "fig10-io-size.svg",
                "fig10-io-size-nvm.svg",
                "fig11-buffer.svg",
                "fig12-latency.svg",
            ]
        );
        for (name, text) in &files {
            assert!(
                text.contains("</svg>") && text.contains("buffered"),
                "{name}"
            );
        }
        assert!(files[1].1.contains("SYNTHETIC"));
        assert!(files[3].1.contains("fileserver by threads"));
        let points = |file: usize| files[file].1.matches("<circle").count();
        assert_eq!(points(3), 3 * 2, "three systems at two numbers of threads");
        assert_eq!(points(5), 2 * 2, "tmpfs counts no bytes");
    }

    #[test]
    fn one_value_of_everything_is_no_picture() {
        assert_eq!(plotted(&[cell(Load::Varmail, 1, None)]), []);
        assert_eq!([2.0, 1.2].map(count_text), ["2", ""]);
        assert_eq!(latency_ns("hinfs"), Some(200.0));
        assert_eq!(latency_ns("hinfs-50"), Some(50.0));
        assert_eq!((latency_ns("none"), latency_ns("strata")), (None, None));
    }
}
