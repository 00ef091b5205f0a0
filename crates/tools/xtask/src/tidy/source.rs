//! Rules of one source file: its length, words it may not contain, `unsafe`.

use super::edges::Graph;
use super::finding::Finding;
use super::lexer::{Lexed, line_of, word_offsets};

/// Lines of one source file. About 600 is the habit.
const FILE_LINES_MAX: usize = 800;

/// Macros that mark unfinished work.
const UNFINISHED_MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Marks of unfinished work in comments. They pass with a reason: `MARK(reason)`.
const UNFINISHED_MARKS: [&str; 3] = ["TODO", "FIXME", "XXX"];

/// A file that is too long.
pub fn length(place: &str, text: &str) -> Option<Finding> {
    let lines = text.lines().count();
    (lines > FILE_LINES_MAX).then(|| {
        Finding::new(
            place,
            format!("{lines} lines, at most {FILE_LINES_MAX}: one idea per file"),
        )
    })
}

/// Unfinished work.
pub fn words(place: &str, lexed: &Lexed) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in UNFINISHED_MACROS {
        for offset in word_offsets(&lexed.code, name) {
            if lexed.code[offset + name.len()..].starts_with('!') {
                let line = line_of(&lexed.code, offset);
                findings.push(Finding::new(
                    format!("{place}:{line}"),
                    format!("{name}! does not land"),
                ));
            }
        }
    }
    for mark in UNFINISHED_MARKS {
        for offset in word_offsets(&lexed.comments, mark) {
            if !lexed.comments[offset + mark.len()..].starts_with('(') {
                let line = line_of(&lexed.comments, offset);
                findings.push(Finding::new(
                    format!("{place}:{line}"),
                    format!("{mark} without a reason"),
                ));
            }
        }
    }
    findings
}

/// A crate root that does not rule `unsafe` out, where the crate is not one that may use it.
pub fn forbids_unsafe(place: &str, crate_name: &str, graph: &Graph, text: &str) -> Option<Finding> {
    if graph.unsafe_allowed.contains(crate_name) {
        return None;
    }
    let code: String = Lexed::new(text).code.split_whitespace().collect();
    (!code.contains("#![forbid(unsafe_code)]")).then(|| {
        Finding::new(
            place,
            format!("{crate_name} must say #![forbid(unsafe_code)]"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_found() {
        assert_eq!(length("a.rs", &"x\n".repeat(FILE_LINES_MAX)), None);
        assert!(length("a.rs", &"x\n".repeat(FILE_LINES_MAX + 1)).is_some());
    }

    #[test]
    fn unfinished_work_is_found_in_code_and_comments_only() {
        let text = "fn f() {\n    todo!()\n}\nfn g() { dbg!(1); unimplemented!() }\n";
        assert_eq!(words("a.rs", &Lexed::new(text)).len(), 3);
        assert_eq!(words("a.rs", &Lexed::new(text))[0].place, "a.rs:2");
        assert_eq!(
            words(
                "a.rs",
                &Lexed::new("let s = \"todo!()\"; // todo!()\nfn todo() {}")
            ),
            []
        );
        let marks =
            "// TODO: later\n// TODO(waits for the disk): later\n/* FIXME */ let s = \"XXX\";";
        let findings = words("a.rs", &Lexed::new(marks));
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert_eq!(findings[0].place, "a.rs:1");
    }

    #[test]
    fn unsafe_must_be_forbidden_except_where_allowed() {
        let mut graph = Graph::default();
        graph.unsafe_allowed.insert("nvm".into());
        assert!(forbids_unsafe("x", "oplog", &graph, "// #![forbid(unsafe_code)]\n").is_some());
        assert!(forbids_unsafe("x", "oplog", &graph, "#![deny(unsafe_code)]\n").is_some());
        assert_eq!(
            forbids_unsafe("x", "oplog", &graph, "//! Doc.\n#![forbid(unsafe_code)]\n"),
            None
        );
        assert_eq!(forbids_unsafe("x", "nvm", &graph, ""), None);
    }
}
