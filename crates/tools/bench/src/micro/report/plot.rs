//! A report as pictures: latency by size for each operation, and the ratio to the floor.

use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;

use super::table::size_text;
use super::{MicroReport, Row};
use crate::BenchError;
use crate::Result;
use crate::micro::target::Op;
use crate::micro::target::{FLOOR, LIBFS};

const PIXELS: (u32, u32) = (860, 520);
const COLOURS: [RGBColor; 7] = [
    RGBColor(110, 110, 110),
    RGBColor(200, 40, 40),
    RGBColor(230, 140, 20),
    RGBColor(30, 110, 190),
    RGBColor(40, 150, 70),
    RGBColor(130, 60, 160),
    RGBColor(0, 150, 160),
];

/// A line: its name and points of size and value.
type Line = (String, Vec<(f64, f64)>);
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

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
                draw_lines(area, &format!("{op} by size"), what, &lines)
            })?;
        }
        let lines = self.ratios();
        draw_into(
            &dir.join("ratio-to-floor.svg"),
            &mut files,
            &lines,
            |area| {
                draw_lines(
                    area,
                    "LibFS over the floor",
                    "median over the floor's",
                    &lines,
                )
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

fn draw_into<T>(
    file: &Path,
    files: &mut Vec<PathBuf>,
    of: &[T],
    draw: impl FnOnce(&Area<'_>) -> Drawn,
) -> Result<()> {
    if of.is_empty() {
        return Ok(());
    }
    let area = SVGBackend::new(file, PIXELS).into_drawing_area();
    let drawn = area
        .fill(&WHITE)
        .map_err(Into::into)
        .and_then(|()| draw(&area))
        .and_then(|()| area.present().map_err(Into::into));
    drawn.map_err(|e| BenchError::Plot {
        path: file.to_owned(),
        found: e.to_string(),
    })?;
    files.push(file.to_owned());
    Ok(())
}

/// Least and greatest of some numbers, a bit apart.
fn bounds(numbers: impl Iterator<Item = f64> + Clone) -> std::ops::Range<f64> {
    let least = numbers.clone().fold(f64::INFINITY, f64::min);
    let greatest = numbers.fold(f64::NEG_INFINITY, f64::max);
    least / 1.3..greatest * 1.3
}

fn draw_lines(area: &Area<'_>, title: &str, unit: &str, lines: &[Line]) -> Drawn {
    let points = lines.iter().flat_map(|(_, points)| points);
    let sizes = bounds(points.clone().map(|(size, _)| *size));
    let values = bounds(points.map(|(_, value)| *value));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(76)
        .build_cartesian_2d(sizes.log_scale().base(2.0), values.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("size")
        .y_desc(unit)
        .x_label_formatter(&|size| size_text(size.round() as u64))
        .light_line_style(WHITE)
        .draw()?;
    for ((name, points), colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let series = LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3);
        let colour = *colour;
        chart
            .draw_series(series)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    Ok(())
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
