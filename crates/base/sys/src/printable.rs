//! Names and paths as they may go to a terminal: what another user chose must not move its cursor, or look like a line of ours.

use std::borrow::Cow;
use std::fmt::Write;

/// A text with its control characters written as `\u001b`, as JSON does; line ends and tabs stay.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c.is_control() && !matches!(c, '\n' | '\t'))
}

/// A name with all of its control characters written so, line ends included.
pub fn name(text: &str) -> Cow<'_, str> {
    escaped(text, char::is_control)
}

fn escaped(text: &str, is_bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_bad) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_bad(c) {
            true => {
                // Writing to a string does not fail.
                let _ = write!(clean, "\\u{:04x}", u32::from(c));
            }
            false => clean.push(c),
        }
    }
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(
            name("a\x1b[31mb\n\u{9b}c\u{7f}"),
            "a\\u001b[31mb\\u000a\\u009bc\\u007f"
        );
        assert_eq!(lines("a\tb\r\nc"), "a\tb\\u000d\nc");
        assert!(matches!(name("plain é"), Cow::Borrowed(_)));
    }
}
