//! Names under which anything may be put, and which therefore say nothing.

use std::path::Path;

use super::finding::Finding;
use super::lexer::{Lexed, line_of, word_offsets};

const FORBIDDEN: [&str; 5] = ["common", "util", "utils", "types", "test_utils"];

fn forbidden(name: &str) -> bool {
    FORBIDDEN.contains(&name.replace('-', "_").as_str())
}

fn finding(place: impl Into<String>, name: &str) -> Finding {
    Finding::new(
        place,
        format!("nothing may be named {name}: name what is in it"),
    )
}

/// Crates.
pub fn crates(names: &[String]) -> Vec<Finding> {
    let bad = names.iter().filter(|name| forbidden(name));
    bad.map(|name| finding(format!("crates/{name}"), name))
        .collect()
}

/// Files and directories of crates: a module's name is its file's.
pub fn file(place: &str) -> Vec<Finding> {
    let path = Path::new(place);
    if !path.starts_with("crates") || path.extension().is_none_or(|extension| extension != "rs") {
        return Vec::new();
    }
    let parts = path.with_extension("");
    let bad = parts
        .iter()
        .filter_map(|part| part.to_str())
        .filter(|part| forbidden(part));
    bad.map(|part| finding(place, part)).collect()
}

/// Modules written inside a file.
pub fn modules(place: &str, lexed: &Lexed) -> Vec<Finding> {
    let mut findings = Vec::new();
    for offset in word_offsets(&lexed.code, "mod") {
        let rest = lexed.code[offset + 3..].trim_start();
        let name: String = rest
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        let inline = rest[name.len()..].trim_start().starts_with('{');
        if inline && forbidden(&name) {
            findings.push(finding(
                format!("{place}:{}", line_of(&lexed.code, offset)),
                &name,
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_files_and_modules_are_judged() {
        assert_eq!(crates(&["oplog".into(), "test-utils".into()]).len(), 1);
        assert_eq!(file("crates/store/oplog/src/util.rs").len(), 1);
        assert_eq!(file("crates/store/oplog/src/common/ring.rs").len(), 1);
        assert_eq!(file("crates/store/oplog/src/utility.rs"), []);
        assert_eq!(file("docs/types.md"), []);
        let lexed = Lexed::new("mod ring;\nmod types {\n}\n// mod util {}\n");
        let findings = modules("a.rs", &lexed);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].place, "a.rs:2");
    }
}
