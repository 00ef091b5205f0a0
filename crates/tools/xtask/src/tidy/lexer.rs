//! Rust source split into code and comments, without parsing it.
//!
//! Both halves keep the length in lines of the original, so that a position in
//! one is a position in the file. String and character contents are in neither:
//! a rule must not fire on a message that mentions what it forbids.

/// A source file split in two.
pub struct Lexed {
    /// Code; comments and the contents of literals are spaces.
    pub code: String,
    /// Comments; everything else is spaces.
    pub comments: String,
}

impl Lexed {
    /// Splits `text`. Unterminated literals reach to the end of the file.
    pub fn new(text: &str) -> Self {
        let mut cursor = Cursor {
            chars: text.chars().collect(),
            at: 0,
            code: String::with_capacity(text.len()),
            comments: String::with_capacity(text.len()),
        };
        cursor.run();
        Self {
            code: cursor.code,
            comments: cursor.comments,
        }
    }
}

/// Line (from 1) of a byte offset.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text[..offset].bytes().filter(|byte| *byte == b'\n').count()
}

/// Byte offsets at which `word` stands in `text` as a whole identifier.
pub fn word_offsets<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = usize> + 't {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .map(|(offset, _)| offset)
        .filter(move |offset| {
            !text[..*offset].ends_with(part_of_word)
                && !text[offset + word.len()..].starts_with(part_of_word)
        })
}

#[derive(Clone, Copy, PartialEq)]
enum Half {
    Code,
    Comment,
    Neither,
}

struct Cursor {
    chars: Vec<char>,
    at: usize,
    code: String,
    comments: String,
}

impl Cursor {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn take(&mut self, half: Half) {
        let Some(c) = self.peek(0) else { return };
        self.at += 1;
        let blank = if c == '\n' { '\n' } else { ' ' };
        self.code.push(if half == Half::Code { c } else { blank });
        self.comments
            .push(if half == Half::Comment { c } else { blank });
    }

    fn run(&mut self) {
        while let Some(c) = self.peek(0) {
            match (c, self.peek(1)) {
                ('/', Some('/')) => self.line_comment(),
                ('/', Some('*')) => self.block_comment(),
                ('"', _) => self.string(),
                ('\'', _) => self.character_or_lifetime(),
                ('r', Some('"' | '#')) if self.raw_string_starts() => self.raw_string(),
                _ if c.is_alphanumeric() || c == '_' => self.word(),
                _ => self.take(Half::Code),
            }
        }
    }

    /// Whole identifiers at once, so that the `r` of `for"` is no raw string;
    /// the prefixes of literals are left to the literal.
    fn word(&mut self) {
        while let Some(c) = self.peek(0) {
            if !(c.is_alphanumeric() || c == '_') {
                break;
            }
            let prefix = matches!(c, 'b' | 'c') && self.peek(1) == Some('r');
            self.take(Half::Code);
            if prefix && self.raw_string_starts() {
                break;
            }
        }
    }

    fn line_comment(&mut self) {
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.take(Half::Comment);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.peek(0).is_some() {
            let pair = (self.peek(0), self.peek(1));
            match pair {
                (Some('/'), Some('*')) => depth += 1,
                (Some('*'), Some('/')) => depth -= 1,
                _ => {
                    self.take(Half::Comment);
                    continue;
                }
            }
            self.take(Half::Comment);
            self.take(Half::Comment);
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.take(Half::Code);
        while let Some(c) = self.peek(0) {
            match c {
                '\\' => {
                    self.take(Half::Neither);
                    self.take(Half::Neither);
                }
                '"' => return self.take(Half::Code),
                _ => self.take(Half::Neither),
            }
        }
    }

    fn raw_string_starts(&self) -> bool {
        if self.peek(0) != Some('r') {
            return false;
        }
        let hashes = self.chars[self.at + 1..]
            .iter()
            .take_while(|c| **c == '#')
            .count();
        self.peek(1 + hashes) == Some('"')
    }

    fn raw_string(&mut self) {
        self.take(Half::Code);
        let mut hashes = 0;
        while self.peek(0) == Some('#') {
            hashes += 1;
            self.take(Half::Code);
        }
        self.take(Half::Code);
        while let Some(c) = self.peek(0) {
            let closes = c == '"' && (1..=hashes).all(|ahead| self.peek(ahead) == Some('#'));
            if closes {
                for _ in 0..=hashes {
                    self.take(Half::Code);
                }
                return;
            }
            self.take(Half::Neither);
        }
    }

    /// `'a'` and `'\n'` are characters, `'a` is a lifetime or a label.
    fn character_or_lifetime(&mut self) {
        let escaped = self.peek(1) == Some('\\');
        if !escaped && self.peek(2) != Some('\'') {
            return self.take(Half::Code);
        }
        self.take(Half::Code);
        if escaped {
            self.take(Half::Neither);
        }
        self.take(Half::Neither);
        while self.peek(0).is_some_and(|c| c != '\'') {
            self.take(Half::Neither);
        }
        self.take(Half::Code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        let lexed = Lexed::new(text);
        assert_eq!(lexed.code.chars().count(), text.chars().count());
        assert_eq!(lexed.comments.lines().count(), text.lines().count());
        lexed.code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        assert_eq!(code("a // b\nc /* d /* e */ f */ g"), "a c g");
        assert_eq!(code(r#"x("{ \" dbg!", 'y')"#), r#"x(" ", ' ')"#);
        assert_eq!(
            code("r#\"a \" { b\"# + br\"{\" + c\"{\""),
            "r#\" \"# + br\" \" + c\" \""
        );
        assert_eq!(code("for\"{\""), "for\" \"");
    }

    #[test]
    fn lifetimes_are_not_characters() {
        assert_eq!(
            code("fn f<'a>(x: &'a str) { '{'; '\\''; '\\u{7d}' }"),
            "fn f<'a>(x: &'a str) { ' '; ' '; ' ' }"
        );
    }

    #[test]
    fn comments_are_kept_apart() {
        let lexed = Lexed::new("let s = \"// no\"; // yes\n");
        assert_eq!(lexed.comments.trim(), "// yes");
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(
            word_offsets("fn fnord a_fn fn", "fn").collect::<Vec<_>>(),
            [0, 14]
        );
    }
}
