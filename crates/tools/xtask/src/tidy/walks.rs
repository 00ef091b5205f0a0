//! Names of files and functions in a document: those of `docs/INTERNALS.md` have to exist.
//!
//! A code span `crate/file.rs: name, name` names a file below `crates/FLOOR/crate/src` and functions or types in it.

use std::collections::BTreeMap;

use super::finding::Finding;
use super::lexer::{Lexed, line_of};

/// Names that are not where `text` says. `files`: `crate/file.rs` and what is in it.
pub fn check(place: &str, text: &str, files: &BTreeMap<String, &Lexed>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut at = 0;
    for (n, span) in text.split('`').enumerate() {
        if n % 2 == 1
            && let Some((file, names)) = span.split_once(".rs: ")
        {
            let file = format!("{file}.rs");
            let line = format!("{place}:{}", line_of(text, at));
            match files.get(&file) {
                None => findings.push(Finding::new(line, format!("there is no {file}"))),
                Some(lexed) => {
                    let names = names.split(", ").filter(|name| !defines(lexed, name));
                    findings.extend(names.map(|name| {
                        Finding::new(line.clone(), format!("there is no {name} in {file}"))
                    }));
                }
            }
        }
        at += span.len() + 1;
    }
    findings
}

fn defines(lexed: &Lexed, name: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    ["fn", "struct", "enum", "trait"].iter().any(|kind| {
        let wanted = format!("{kind} {name}");
        lexed
            .code
            .match_indices(&wanted)
            .any(|(at, _)| ends(&lexed.code[at + wanted.len()..]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_there_are_found() {
        let lexed = Lexed::new("fn begin() {}\nstruct Ring;\n// fn end() {}\n");
        let files = [("oplog/ring.rs".to_owned(), &lexed)].into();
        let of = |text| {
            let findings = check("a.md", text, &files);
            findings.into_iter().map(|f| f.what).collect::<Vec<_>>()
        };
        assert!(of("`oplog/ring.rs: begin, Ring` and `other`").is_empty());
        assert_eq!(
            of("`oplog/ring.rs: end`"),
            ["there is no end in oplog/ring.rs"]
        );
        assert_eq!(of("`oplog/ring.rs: beg`").len(), 1, "not a part of a name");
        assert_eq!(
            of("see\n`oplog/log.rs: begin`"),
            ["there is no oplog/log.rs"]
        );
    }
}
