//! The machine: what writes where, with NVM and without.

use serde::Deserialize;

use super::svg::Svg;

/// Pixels between two lines of text.
const LINE: f64 = 17.0;

#[derive(Deserialize)]
struct Machine {
    what: String,
    width: u32,
    height: u32,
    boxes: Vec<Box>,
    arrows: Vec<Arrow>,
    captions: Vec<Caption>,
}

#[derive(Deserialize)]
struct Box {
    id: String,
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    fill: String,
    title: String,
    #[serde(default)]
    lines: Vec<String>,
}

/// From one box to another one that is beside or below it.
#[derive(Deserialize)]
struct Arrow {
    from: String,
    to: String,
    #[serde(default)]
    label: String,
    /// Pixels to the right (of a vertical one) or down, from the middle of what the two have in common.
    #[serde(default)]
    shift: f64,
    #[serde(default)]
    both: bool,
}

#[derive(Deserialize)]
struct Caption {
    x: f64,
    y: f64,
    text: String,
    #[serde(default)]
    bold: bool,
}

/// Draws `docs/machine.json`.
pub fn draw(data: &str) -> Result<String, String> {
    let machine: Machine = serde_json::from_str(data).map_err(|e| e.to_string())?;
    let mut svg = Svg::new(machine.width, machine.height, &machine.what);
    for one in &machine.boxes {
        draw_box(&mut svg, one);
    }
    for arrow in &machine.arrows {
        let named = |id: &str| {
            let found = machine.boxes.iter().find(|one| one.id == id);
            found.ok_or_else(|| format!("an arrow names box '{id}', which is not there"))
        };
        let (from, to) = (named(&arrow.from)?, named(&arrow.to)?);
        draw_arrow(&mut svg, arrow, from, to)
            .ok_or_else(|| format!("'{}' is neither beside nor above '{}'", from.id, to.id))?;
    }
    for caption in &machine.captions {
        let weight = if caption.bold { "bold" } else { "normal" };
        let place = format!(
            "x=\"{}\" y=\"{}\" font-weight=\"{weight}\" fill=\"#333333\"",
            caption.x, caption.y
        );
        svg.words(place, &caption.text);
    }
    Ok(svg.end())
}

fn draw_box(svg: &mut Svg, one: &Box) {
    svg.add(
        "rect",
        format!(
            "x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"5\" fill=\"{}\" stroke=\"#555555\"",
            one.x, one.y, one.width, one.height, one.fill
        ),
    );
    let x = one.x + 10.0;
    let place = format!("x=\"{x}\" y=\"{}\" font-weight=\"bold\"", one.y + 19.0);
    svg.words(place, &one.title);
    for (n, line) in one.lines.iter().enumerate() {
        let y = one.y + 19.0 + LINE * (n + 1) as f64;
        svg.words(format!("x=\"{x}\" y=\"{y}\" font-size=\"12\""), line);
    }
}

/// The middle of what two ranges have in common.
fn common((a, a_end): (f64, f64), (b, b_end): (f64, f64)) -> Option<f64> {
    let (from, to) = (a.max(b), a_end.min(b_end));
    (from < to).then_some((from + to) / 2.0)
}

fn draw_arrow(svg: &mut Svg, arrow: &Arrow, from: &Box, to: &Box) -> Option<()> {
    let across = |one: &Box| (one.x, one.x + one.width);
    let down = |one: &Box| (one.y, one.y + one.height);
    let (begin, end, label) = if from.y + from.height <= to.y {
        let x = common(across(from), across(to))? + arrow.shift;
        let (top, bottom) = (from.y + from.height, to.y);
        (
            (x, top),
            (x, bottom),
            (x + 7.0, (top + bottom) / 2.0 + 4.0, "start"),
        )
    } else {
        let y = common(down(from), down(to))? + arrow.shift;
        let (left, right) = (from.x + from.width, to.x);
        if left > right {
            return None;
        }
        (
            (left, y),
            (right, y),
            ((left + right) / 2.0, y - 6.0, "middle"),
        )
    };
    svg.line(begin, end, "stroke=\"#333333\" stroke-width=\"1.5\"");
    head(svg, begin, end);
    if arrow.both {
        head(svg, end, begin);
    }
    let (x, y, anchor) = label;
    let place = format!(
        "x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"12\" fill=\"#333333\" text-anchor=\"{anchor}\""
    );
    svg.words(place, &arrow.label);
    Some(())
}

/// The head of an arrow that comes from `from`, at `to`.
fn head(svg: &mut Svg, from: (f64, f64), to: (f64, f64)) {
    let length = (to.0 - from.0).hypot(to.1 - from.1);
    let (x, y) = ((to.0 - from.0) / length, (to.1 - from.1) / length);
    let corner = |side: f64| (to.0 - 9.0 * x - side * y, to.1 - 9.0 * y + side * x);
    let ((a, b), (c, d)) = (corner(4.0), corner(-4.0));
    svg.add(
        "path",
        format!(
            "d=\"M{:.1} {:.1} L{a:.1} {b:.1} L{c:.1} {d:.1} Z\" fill=\"#333333\"",
            to.0, to.1
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r##"{"what": "two", "width": 300, "height": 100, "captions": [],
        "boxes": [{"id": "a", "x": 0, "y": 0, "width": 100, "height": 50, "fill": "#fff", "title": "A"},
                  {"id": "b", "x": 200, "y": 20, "width": 100, "height": 50, "fill": "#fff", "title": "B"}],
        "arrows": [{"from": "a", "to": "b"}]}"##;

    #[test]
    fn an_arrow_joins_the_sides_of_boxes() {
        assert!(
            draw(TWO)
                .unwrap()
                .contains("x1=\"100.0\" y1=\"35.0\" x2=\"200.0\" y2=\"35.0\"")
        );
    }

    #[test]
    fn an_arrow_to_nowhere_is_refused() {
        assert!(
            draw(&TWO.replace("\"to\": \"b\"", "\"to\": \"c\""))
                .unwrap_err()
                .contains("'c'")
        );
        let apart = TWO
            .replace("\"x\": 200", "\"x\": 20")
            .replace("\"x\": 0,", "\"x\": 190,");
        assert!(draw(&apart).unwrap_err().contains("neither"), "{apart}");
    }
}
