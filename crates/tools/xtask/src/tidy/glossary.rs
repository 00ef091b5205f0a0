//! Words that mean nothing to an engineer of the field, and what to write instead.
//!
//! `crates/tools/xtask/words.txt` has a line for each: the word, a space, its replacement. The words are looked for whole, in code, in
//! comments and in names of files, not in string literals; a name in snake case has the words between its underscores.

use std::collections::BTreeMap;

use super::finding::Finding;
use super::lexer::{Lexed, line_of};

/// Forbidden words with their replacements.
pub struct Glossary {
    replacements: BTreeMap<String, String>,
}

impl Glossary {
    /// Reads lines of `word replacement`; `#` starts a comment line.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().map(str::trim);
        let rows = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let pairs = rows.filter_map(|line| line.split_once(char::is_whitespace));
        Self {
            replacements: pairs
                .map(|(word, instead)| (word.to_lowercase(), instead.trim().to_owned()))
                .collect(),
        }
    }

    /// Each of the words in a source file and in its name.
    pub fn check(&self, place: &str, lexed: &Lexed) -> Vec<Finding> {
        let name = place.rsplit('/').next().unwrap_or(place);
        let mut findings: Vec<Finding> = words(name)
            .iter()
            .filter_map(|(_, word)| self.replacements.get(word).map(|instead| (word, instead)))
            .map(|(word, instead)| {
                Finding::new(
                    place,
                    format!("the word {word} in its name: write {instead}"),
                )
            })
            .collect();
        for text in [&lexed.code, &lexed.comments] {
            for (offset, word) in words(text) {
                if let Some(instead) = self.replacements.get(&word) {
                    let line = line_of(text, offset);
                    findings.push(Finding::new(
                        format!("{place}:{line}"),
                        format!("the word {word}: write {instead}"),
                    ));
                }
            }
        }
        findings
    }
}

/// The words of a text in lower case: parts of names in snake case and in camel case, too.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut word = String::new();
    let mut start = 0;
    let mut previous = ' ';
    for (offset, c) in text.char_indices() {
        let begins = c.is_uppercase() && !previous.is_uppercase();
        if (!c.is_alphabetic() || begins) && !word.is_empty() {
            found.push((start, std::mem::take(&mut word)));
        }
        if c.is_alphabetic() {
            if word.is_empty() {
                start = offset;
            }
            word.extend(c.to_lowercase());
        }
        previous = c;
    }
    if !word.is_empty() {
        found.push((start, word));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_names_and_comments_are_found_and_strings_are_not() {
        let glossary = Glossary::parse("# why\nroom a reservation, or reclaim\ngate epoch\n");
        let text = "fn make_room() {} // passes the gate\nstruct GateRoom; const S: &str = \"room\"; let broom = 1;\n";
        let findings = glossary.check("a.rs", &Lexed::new(text));
        let places: Vec<_> = findings
            .iter()
            .map(|finding| finding.place.as_str())
            .collect();
        assert_eq!(places, ["a.rs:1", "a.rs:2", "a.rs:2", "a.rs:1"]);
        assert!(findings[0].what.contains("a reservation"), "{findings:?}");
        let named = glossary.check("src/gate_number.rs", &Lexed::new(""));
        assert_eq!(named.len(), 1, "{named:?}");
    }
}
