//! Crates with more lines than one person keeps in mind.

use std::collections::BTreeMap;

use super::cycles::{module_of, without_tests};
use super::finding::Finding;
use super::lexer::Lexed;

/// Lines of a crate without its tests, comments included.
const CRATE_LINES_MAX: usize = 8_500;

/// The floor of what only tests: there the rule does not hold.
const PROOF: &str = "crates/proof/";

/// Crates with more than [`CRATE_LINES_MAX`] lines.
pub fn large(sources: &[(String, Lexed)]) -> Vec<Finding> {
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for (place, lexed) in sources {
        if let Some((name, below)) = place.split_once("/src/")
            && module_of(below).is_some()
            && !place.starts_with(PROOF)
        {
            *lines.entry(name).or_default() += without_tests(&lexed.code).lines().count();
        }
    }
    let large = lines.into_iter().filter(|(_, n)| *n > CRATE_LINES_MAX);
    large
        .map(|(name, n)| {
            let what = format!("{n} lines without tests, at most {CRATE_LINES_MAX}: two crates");
            Finding::new(name, what)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_crate_is_found_and_its_tests_are_not_counted() {
        let source = |place: &str, text: String| (place.to_owned(), Lexed::new(&text));
        let half = || "// line\n".repeat(CRATE_LINES_MAX / 2 - 1);
        let tests = "#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n";
        let mut sources = vec![
            source("crates/base/x/src/a.rs", half()),
            source("crates/base/x/src/b.rs", half() + tests),
            source("crates/base/x/src/b/tests.rs", half()),
            source("crates/base/y/src/a.rs", half()),
        ];
        assert_eq!(large(&sources), []);
        sources.push(source("crates/base/x/src/c.rs", "fn g() {}\n".repeat(3)));
        assert_eq!(large(&sources)[0].place, "crates/base/x");
    }
}
