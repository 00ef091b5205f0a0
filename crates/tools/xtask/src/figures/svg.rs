//! Writing SVG: the few shapes that the pictures have.

use std::fmt::{Display, Write as _};

/// A picture while it is drawn.
pub struct Svg {
    text: String,
}

impl Svg {
    /// White paper of this size, with what it shows for those who cannot see it.
    pub fn new(width: u32, height: u32, what: &str) -> Self {
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n"
        );
        let _ = writeln!(text, "<title>{}</title>", escaped(what));
        let mut svg = Self { text };
        svg.add("rect", "width=\"100%\" height=\"100%\" fill=\"#ffffff\"");
        svg
    }

    /// An element without content.
    pub fn add(&mut self, name: &str, attributes: impl Display) {
        let _ = writeln!(self.text, "<{name} {attributes}/>");
    }

    /// A line of text; `attributes`: its place, and what it looks like.
    pub fn words(&mut self, attributes: impl Display, words: &str) {
        let _ = writeln!(self.text, "<text {attributes}>{}</text>", escaped(words));
    }

    /// A line between two points.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), attributes: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(
            "line",
            format!("x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {attributes}"),
        );
    }

    /// The finished picture.
    pub fn end(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

fn escaped(words: &str) -> String {
    words
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_cannot_be_elements() {
        let mut svg = Svg::new(1, 1, "a & b");
        svg.words("x=\"0\"", "<b>");
        let text = svg.end();
        assert!(text.contains("&lt;b&gt;") && text.contains("a &amp; b"));
    }
}
