//! Pictures: lines over an axis of powers of two, and bars, as SVG.

use std::ops::Range;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::BenchError;
use crate::Result;

const PIXELS: (u32, u32) = (860, 520);
/// Of one of several charts in a picture.
const PANEL_PIXELS: (u32, u32) = (560, 380);
/// Colours of lines and bars, in this order.
pub(crate) const COLOURS: [RGBColor; 7] = [
    RGBColor(110, 110, 110),
    RGBColor(200, 40, 40),
    RGBColor(230, 140, 20),
    RGBColor(30, 110, 190),
    RGBColor(40, 150, 70),
    RGBColor(130, 60, 160),
    RGBColor(0, 150, 160),
];

/// A line: its name and its points.
pub(crate) type Line = (String, Vec<(f64, f64)>);
/// Where is drawn.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// What drawing gives.
pub(crate) type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// What stands around lines.
pub(crate) struct Axes<'t> {
    /// Above.
    pub title: &'t str,
    /// Below.
    pub x: &'t str,
    /// At the side.
    pub y: &'t str,
    /// A number of the axis below.
    pub x_text: &'t dyn Fn(f64) -> String,
    /// Whether the axis at the side is logarithmic; otherwise it begins with 0.
    pub y_is_logarithmic: bool,
}

/// Draws into a file, unless there is nothing to draw, and adds it to `files`.
pub(crate) fn draw_into<T>(
    file: &Path,
    files: &mut Vec<PathBuf>,
    of: &[T],
    draw: impl FnOnce(&Area<'_>) -> Drawn,
) -> Result<()> {
    match of.is_empty() {
        true => Ok(()),
        false => draw_sized(file, files, PIXELS, draw),
    }
}

fn draw_sized(
    file: &Path,
    files: &mut Vec<PathBuf>,
    pixels: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Drawn,
) -> Result<()> {
    let area = SVGBackend::new(file, pixels).into_drawing_area();
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

/// Draws several charts of lines into one file, two side by side, each with its title.
pub(crate) fn draw_panels(
    file: &Path,
    files: &mut Vec<PathBuf>,
    panels: &[(Axes<'_>, Vec<Line>)],
) -> Result<()> {
    let (rows, columns) = (panels.len().div_ceil(2), panels.len().min(2));
    if panels.is_empty() {
        return Ok(());
    }
    let pixels = (
        PANEL_PIXELS.0 * columns as u32,
        PANEL_PIXELS.1 * rows as u32,
    );
    draw_sized(file, files, pixels, |area| {
        let areas = area.split_evenly((rows, columns));
        let mut pairs = areas.iter().zip(panels);
        pairs.try_for_each(|(area, (axes, lines))| draw_lines(area, axes, lines))
    })
}

/// Least and greatest of some numbers, a bit apart.
pub(crate) fn bounds(numbers: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let least = numbers.clone().fold(f64::INFINITY, f64::min);
    let greatest = numbers.fold(f64::NEG_INFINITY, f64::max);
    least / 1.3..greatest * 1.3
}

/// Draws lines with a legend. All numbers are above 0 where an axis is logarithmic, as the one below always is.
pub(crate) fn draw_lines(area: &Area<'_>, axes: &Axes<'_>, lines: &[Line]) -> Drawn {
    let values = bounds(lines.iter().flat_map(|(_, points)| points).map(|(_, y)| *y));
    match axes.y_is_logarithmic {
        true => draw_over(area, axes, values.log_scale(), lines),
        // Above the lines is the legend.
        false => draw_over(
            area,
            axes,
            0.0..values.end * (1.0 + 0.08 * lines.len() as f64),
            lines,
        ),
    }
}

fn draw_over<Y>(area: &Area<'_>, axes: &Axes<'_>, values: Y, lines: &[Line]) -> Drawn
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let places = bounds(lines.iter().flat_map(|(_, points)| points).map(|(x, _)| *x));
    let mut chart = ChartBuilder::on(area)
        .caption(axes.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(76)
        .build_cartesian_2d(places.log_scale().base(2.0), values)?;
    chart
        .configure_mesh()
        .x_desc(axes.x)
        .y_desc(axes.y)
        .x_label_formatter(&|x| (axes.x_text)(*x))
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

/// Draws groups of bars from 0, with a legend: of each group its name and one value for each of `names`, where it has one.
pub(crate) fn draw_groups(
    area: &Area<'_>,
    title: &str,
    y: &str,
    names: &[String],
    groups: &[(String, Vec<Option<f64>>)],
) -> Drawn {
    let values = groups.iter().flat_map(|(_, values)| values).flatten();
    let greatest = values.copied().fold(f64::MIN_POSITIVE, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..groups.len() as f64, -0.06 * greatest..greatest * 1.35)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_desc(y)
        .light_line_style(WHITE)
        .draw()?;
    let wide = 0.8 / names.len().max(1) as f64;
    for (which, (name, colour)) in names.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let colour = *colour;
        let bars = groups
            .iter()
            .enumerate()
            .filter_map(|(place, (_, values))| {
                let value = values.get(which).copied().flatten()?;
                let from = place as f64 + 0.1 + which as f64 * wide;
                Some(Rectangle::new(
                    [(from, 0.0), (from + wide, value)],
                    colour.filled(),
                ))
            });
        chart
            .draw_series(bars)?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 14, y + 4)], colour.filled()));
    }
    for (place, (name, _)) in groups.iter().enumerate() {
        let at = (place as f64 + 0.1, -0.015 * greatest);
        chart.draw_series([Text::new(name.clone(), at, ("sans-serif", 14))])?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    Ok(())
}
