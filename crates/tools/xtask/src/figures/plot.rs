//! Volumes without NVM beside other file systems on one disk: the ratios of a run of `scripts/bench/ssd.py`.
//!
//! Every load of the run is a row, also those where Shale loses.

use super::svg::Svg;

/// Columns of the run that are shown: name there, name here, colour.
const SHOWN: [(&str, &str, &str); 6] = [
    ("ext4", "ext4", "#999999"),
    ("xfs", "xfs", "#b090c8"),
    ("btrfs", "btrfs", "#d0b060"),
    ("strict mount", "Shale, strict", "#c02828"),
    ("buffered mount", "Shale, buffered", "#1e6ebe"),
    (
        "ordered mount",
        "Shale, ordered (fsync does not wait)",
        "#28964a",
    ),
];
const WIDTH: f64 = 860.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 92.0;
const ROW: f64 = 22.0;
/// Ratios at the ends of the axis.
const ENDS: (f64, f64) = (1.0 / 32.0, 8.0);
const TICKS: [(f64, &str); 9] = [
    (1.0 / 32.0, "1/32"),
    (1.0 / 16.0, "1/16"),
    (0.125, "1/8"),
    (0.25, "1/4"),
    (0.5, "1/2"),
    (1.0, "1"),
    (2.0, "2"),
    (4.0, "4"),
    (8.0, "8"),
];

/// A load, and its ratio in each of [`SHOWN`].
struct Row {
    name: String,
    ratios: [Option<f64>; SHOWN.len()],
}

/// Draws the table of a run.
pub fn draw(run: &str) -> Result<String, String> {
    let rows = rows(run)?;
    let height = TOP + ROW * rows.len() as f64 + 46.0;
    let title = "Calls a second beside the host's file system, on the same disk (1: as many)";
    let mut svg = Svg::new(WIDTH as u32, height as u32, title);
    svg.words(
        "x=\"16\" y=\"24\" font-size=\"15\" font-weight=\"bold\"",
        title,
    );
    let what = "image files on that disk; Shale without NVM, through the mount; bytes a write and writers, fsync after each; right is better";
    svg.words("x=\"16\" y=\"43\" font-size=\"12\" fill=\"#444444\"", what);
    let mut x = 16.0;
    for (_, name, colour) in SHOWN {
        dot(&mut svg, x + 5.0, 66.0, colour);
        svg.words(
            format!("x=\"{}\" y=\"70\" font-size=\"12\"", x + 14.0),
            name,
        );
        x += 34.0 + 6.4 * name.len() as f64;
    }
    let bottom = TOP + ROW * rows.len() as f64;
    for (value, text) in TICKS {
        let at = across(value);
        let looks = match value == 1.0 {
            true => "stroke=\"#333333\" stroke-width=\"1.5\"",
            false => "stroke=\"#dddddd\"",
        };
        svg.line((at, TOP - 6.0), (at, bottom), looks);
        let place = format!(
            "x=\"{at:.1}\" y=\"{:.1}\" font-size=\"12\" text-anchor=\"middle\"",
            bottom + 17.0
        );
        svg.words(place, text);
    }
    for (n, row) in rows.iter().enumerate() {
        let y = TOP + ROW * (n as f64 + 0.5);
        svg.words(
            format!("x=\"16\" y=\"{:.1}\" font-size=\"12\"", y + 4.0),
            &row.name,
        );
        for (ratio, (_, _, colour)) in row.ratios.iter().zip(SHOWN) {
            if let Some(ratio) = ratio {
                dot(&mut svg, across(*ratio), y, colour);
            }
        }
    }
    let from = "28 November 2026, bd8693cd, docs/runs/2026-11-28-ssd.md; medians of 3 rounds; the disk itself differs by 2 from minute to minute";
    let place = format!(
        "x=\"16\" y=\"{:.1}\" font-size=\"11\" fill=\"#444444\"",
        bottom + 37.0
    );
    svg.words(place, from);
    Ok(svg.end())
}

fn dot(svg: &mut Svg, x: f64, y: f64, colour: &str) {
    svg.add(
        "circle",
        format!("cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{colour}\" fill-opacity=\"0.85\""),
    );
}

/// Where a ratio is on the axis, which is logarithmic.
fn across(ratio: f64) -> f64 {
    let part = (ratio / ENDS.0).ln() / (ENDS.1 / ENDS.0).ln();
    LEFT + part * (WIDTH - LEFT - RIGHT)
}

/// The columns of a line: two spaces and more are between them.
fn columns(line: &str) -> Vec<&str> {
    let parts = line.split("  ").map(str::trim);
    parts.filter(|part| !part.is_empty()).collect()
}

/// Each load of the table with its line `x/host`.
fn rows(run: &str) -> Result<Vec<Row>, String> {
    let mut lines = run.lines();
    let head = lines.find(|line| line.starts_with("load "));
    let head = columns(head.ok_or("no line begins with 'load'")?);
    let place = |name: &str| {
        let found = head.iter().position(|column| *column == name);
        found.ok_or_else(|| format!("no column '{name}'"))
    };
    let mut places = [0; SHOWN.len()];
    for (place_of, (name, _, _)) in places.iter_mut().zip(SHOWN) {
        *place_of = place(name)?;
    }
    let (mut rows, mut name) = (Vec::new(), "");
    for line in lines.take_while(|line| !line.starts_with("```")) {
        let cells = columns(line);
        match cells.first() {
            Some(&"x/host") => {
                let ratio = |at: usize| cells.get(at).and_then(|cell| cell.parse().ok());
                rows.push(Row {
                    name: name.to_owned(),
                    ratios: places.map(ratio),
                });
            }
            Some(first) if !line.starts_with(' ') => name = first,
            _ => {}
        }
    }
    let outside = |ratio: f64| !(ENDS.0..=ENDS.1).contains(&ratio);
    if let Some(row) = rows
        .iter()
        .find(|row| row.ratios.iter().flatten().any(|r| outside(*r)))
    {
        return Err(format!(
            "'{}' has a ratio that the axis does not have",
            row.name
        ));
    }
    match rows.is_empty() {
        true => Err("no line 'x/host'".to_owned()),
        false => Ok(rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "# A run\n```\n\
        load   floor  host  ext4  xfs  btrfs  strict mount  strict run  buffered mount  buffered run  ordered mount  ordered run\n\
        append 128 B, 1   9  8  7  6  5  4  3  2  1  -  -\n\
        \u{20}   p99 458  p99 1  p99 1  p99 1\n\
        \u{20} x/floor  1.00  0.9  0.2  0.2  0.2  0.2  0.2  0.2  0.2  -  -\n\
        \u{20} x/host  1.67  1.00  0.28  0.25  0.20  1.33  1.22  1.05  0.97  -  -\n\
        ```\nSQLite\n  x/host  1  1  1  1  1  1  1  1  1  1  1\n";

    #[test]
    fn every_load_of_the_table_is_a_row() {
        let rows = rows(RUN).unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].name, "append 128 B, 1");
        assert_eq!(
            rows[0].ratios,
            [
                Some(0.28),
                Some(0.25),
                Some(0.20),
                Some(1.33),
                Some(1.05),
                None
            ]
        );
    }

    #[test]
    fn a_ratio_beside_the_axis_is_refused() {
        assert!(draw(&RUN.replace("1.33", "133")).is_err());
        assert!(draw(&RUN.replace("ordered mount", "ordered")).is_err());
        assert!(draw(RUN).is_ok());
    }
}
