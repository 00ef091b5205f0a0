//! `impl` blocks that stand away from the file tree of their type.
//!
//! A type's methods stand with the type: in the file that defines it, in files below that one's folder, or beside it where the
//! file is the `mod.rs` of a folder. Implementations of traits may stand anywhere.

use std::collections::BTreeMap;

use super::finding::Finding;
use super::lexer::{Lexed, line_of, word_offsets};

/// A file of one crate: its place below the root, its text.
pub struct File<'t> {
    /// Path below the root of the workspace.
    pub place: &'t str,
    /// Its text, split.
    pub lexed: &'t Lexed,
}

/// Inherent `impl` blocks of the crate's types that stand elsewhere.
pub fn stray(files: &[File<'_>]) -> Vec<Finding> {
    let mut defined: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for file in files {
        for keyword in ["struct", "enum", "union"] {
            for offset in word_offsets(&file.lexed.code, keyword) {
                let name = first_word(file.lexed.code[offset + keyword.len()..].trim_start());
                if !name.is_empty() {
                    defined.entry(name.to_owned()).or_default().push(file.place);
                }
            }
        }
    }
    let mut findings = Vec::new();
    for file in files {
        for (offset, name) in inherent_impls(&file.lexed.code) {
            let Some(places) = defined.get(name) else {
                continue;
            };
            if !places.iter().any(|at| stands_with(at, file.place)) {
                let line = line_of(&file.lexed.code, offset);
                findings.push(Finding::new(
                    format!("{}:{line}", file.place),
                    format!("impl {name} stands away from its type ({})", places[0]),
                ));
            }
        }
    }
    findings
}

fn first_word(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    &text[..end.unwrap_or(text.len())]
}

/// Offsets and types of `impl X {` and `impl<…> a::X<…> {`, without those of traits.
fn inherent_impls(code: &str) -> impl Iterator<Item = (usize, &str)> {
    word_offsets(code, "impl").filter_map(move |offset| {
        let line_start = code[..offset].rfind('\n').map_or(0, |at| at + 1);
        // `impl Trait` in a signature is no block.
        if !code[line_start..offset].trim().is_empty() {
            return None;
        }
        let rest = &code[offset + 4..];
        let head = &rest[..rest.find('{')?];
        let head = skip_generics(head).trim_start();
        if word_offsets(head, "for").next().is_some() {
            return None;
        }
        let path = &head[..head
            .find(|c: char| c == '<' || c.is_whitespace())
            .unwrap_or(head.len())];
        Some((offset, first_word(path.rsplit("::").next().unwrap_or(path))))
    })
}

fn skip_generics(head: &str) -> &str {
    if !head.starts_with('<') {
        return head;
    }
    let mut depth = 0;
    let mut previous = ' ';
    for (offset, c) in head.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if previous != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &head[offset + 1..];
        }
        previous = c;
    }
    head
}

/// Whether `place` is the file `defining`, or belongs to its file tree.
fn stands_with(defining: &str, place: &str) -> bool {
    let tree = match defining.strip_suffix("/mod.rs") {
        Some(folder) => folder,
        None => defining.strip_suffix(".rs").unwrap_or(defining),
    };
    defining == place
        || place
            .strip_prefix(tree)
            .is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sources: &[(&str, &str)]) -> Vec<String> {
        let lexed: Vec<Lexed> = sources.iter().map(|(_, text)| Lexed::new(text)).collect();
        let files: Vec<File<'_>> = sources
            .iter()
            .zip(&lexed)
            .map(|((place, _), lexed)| File { place, lexed })
            .collect();
        stray(&files)
            .into_iter()
            .map(|finding| finding.place)
            .collect()
    }

    #[test]
    fn methods_stand_with_their_type() {
        let files = [
            (
                "src/a.rs",
                "struct A<'x> { n: &'x u8 }\nimpl<'x> A<'x> {\n}\n",
            ),
            ("src/a/more.rs", "impl super::A<'_> {\n}\n"),
            (
                "src/b.rs",
                "use crate::a::A;\nimpl<F: Fn() -> u8> Drop for A<F> {\n}\nimpl A<'_> {\n}\nfn f() -> impl Sized {\n}\n",
            ),
            ("src/c/mod.rs", "enum C { X }\n"),
            ("src/c/d.rs", "impl C {\n}\n"),
            ("src/e.rs", "impl crate::c::C {\n}\nimpl Elsewhere {\n}\n"),
        ];
        assert_eq!(found(&files), ["src/b.rs:4", "src/e.rs:1"]);
    }
}
