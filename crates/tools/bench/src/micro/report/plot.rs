//! A report as pictures: latency by size for each operation, and the ratio to the floor.

use std::path::{Path, PathBuf};

use plotters::prelude::*;

use super::{MicroReport, Row};
use crate::BenchError;
use crate::Result;
use crate::micro::target::Op;
use crate::micro::target::{FLOOR, LIBFS};
use crate::plot::{Area, Axes, COLOURS, Drawn, Line, bounds, draw_into, draw_lines};
use crate::table::size_text;

impl MicroReport {
    /// Draws `latency-OPERATION.svg` for each operation that was measured by size,
    /// `latency-names.svg` for those without a size, and `ratio-to-floor.svg`. Makes
    /// the directory if it is missing; files of these names are replaced. Returns
    /// the files.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn plot(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        std::fs::create_dir_all(dir).map_err(BenchError::file(dir, "make"))?;
        let mut files = Vec::new();
        let what = "median latency, ns (both axes logarithmic)";
        for op in Op::ALL.into_iter().filter(|op| op.has_size()) {
            let lines = self.lines(op, |row| Some(row.p50_ns.max(1.0)));
            let file = dir.join(format!("latency-{op}.svg"));
            draw_into(&file, &mut files, &lines, |area| {
                draw_lines(area, &by_size(&format!("{op} by size"), what), &lines)
            })?;
        }
        let lines = self.ratios();
        draw_into(
            &dir.join("ratio-to-floor.svg"),
            &mut files,
            &lines,
            |area| {
                let axes = by_size("LibFS over the floor", "median over the floor's");
                draw_lines(area, &axes, &lines)
            },
        )?;
        let names: Vec<&Row> = self.rows.iter().filter(|row| !row.op.has_size()).collect();
        draw_into(&dir.join("latency-names.svg"), &mut files, &names, |area| {
            draw_bars(area, &names)
        })?;
        Ok(files)
    }

    /// One line for each target.
    fn lines(&self, op: Op, value: impl Fn(&Row) -> Option<f64>) -> Vec<Line> {
        let line = |target: &str| {
            let rows = self
                .rows
                .iter()
                .filter(|row| row.op == op && row.target == target);
            let points = rows.filter_map(|row| Some((row.size_bytes as f64, value(row)?)));
            (target.to_owned(), points.collect())
        };
        let mut lines: Vec<Line> = self.targets().into_iter().map(line).collect();
        lines.retain(|(_, points)| !points.is_empty());
        lines
    }

    /// One line for each operation of LibFS.
    fn ratios(&self) -> Vec<Line> {
        let ops = Op::ALL.into_iter().filter(|op| op.has_size());
        ops.flat_map(|op| {
            let lines = self.lines(op, |row| row.ratio_to_floor);
            let ours = lines.into_iter().find(|(target, _)| target == LIBFS);
            ours.map(|(_, points)| (op.to_string(), points))
        })
        .collect()
    }
}

fn by_size<'t>(title: &'t str, y: &'t str) -> Axes<'t> {
    Axes {
        title,
        x: "size",
        y,
        x_text: &|size| size_text(size.round() as u64),
        y_is_logarithmic: true,
    }
}

/// Median as a bar, 99th percentile as a mark above, a bar for each row.
fn draw_bars(area: &Area<'_>, rows: &[&Row]) -> Drawn {
    let values = bounds(
        rows.iter()
            .flat_map(|r| [r.p50_ns.max(1.0), r.p99_ns.max(1.0)]),
    );
    let bottom = values.start;
    let mut chart = ChartBuilder::on(area)
        .caption(
            "create and unlink: median (bar), 99th percentile (line)",
            ("sans-serif", 20),
        )
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..rows.len() as f64, values.log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_desc("ns (logarithmic)")
        .light_line_style(WHITE)
        .draw()?;
    for (place, row) in rows.iter().enumerate() {
        let (from, to) = (place as f64 + 0.15, place as f64 + 0.85);
        let colour = if row.target == FLOOR {
            COLOURS[0]
        } else {
            COLOURS[3]
        };
        let (median, high) = (row.p50_ns.max(1.0), row.p99_ns.max(1.0));
        let label = format!("{} {}", row.op, row.target);
        chart.draw_series([Rectangle::new(
            [(from, bottom), (to, median)],
            colour.filled(),
        )])?;
        chart.draw_series([PathElement::new(
            [(from, high), (to, high)],
            BLACK.stroke_width(2),
        )])?;
        chart.draw_series([Text::new(label, (from, bottom * 1.08), ("sans-serif", 11))])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::TMPFS;
    use crate::micro::report::tests::{report, row};

    #[test]
    fn a_file_for_each_operation_with_a_line_for_each_target() {
        let mut rows = Vec::new();
        for size in [64, 4_096, 1 << 20] {
            for (target, ns) in [(FLOOR, 200), (LIBFS, 300), (TMPFS, 900)] {
                rows.push(row(Op::Append, size, target, ns + size / 16));
            }
        }
        rows.push(row(Op::Create, 0, LIBFS, 700));
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let files = report(rows).plot(&dir.path().join("plots")).unwrap();
        let names: Vec<_> = files
            .iter()
            .map(|f| f.file_name().unwrap().to_str().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "latency-append.svg",
                "ratio-to-floor.svg",
                "latency-names.svg"
            ]
        );
        let text = std::fs::read_to_string(&files[0]).unwrap();
        assert!(
            text.matches("<polyline").count() >= 3,
            "a line for each target"
        );
        assert!(text.contains(TMPFS) && text.contains("4 KiB") && text.contains("</svg>"));
    }
}
