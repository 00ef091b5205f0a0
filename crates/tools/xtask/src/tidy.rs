//! `cargo xtask tidy`: the rules of the source tree that no compiler knows.
//!
//! Each rule is a pure function from text (or from the crate graph) to findings,
//! so that a test can show that it fires. This file only feeds them.

mod crate_sizes;
mod cycles;
mod edges;
mod files;
mod finding;
mod folders;
mod functions;
mod glossary;
mod impls;
mod lexer;
mod links;
mod names;
mod source;
mod walks;

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Error, read};
use files::relative;
use finding::Finding;

/// Functions that may be longer than the limit, with the reason:
/// lines of `path function reason`.
const LONG_FUNCTIONS: &str = "crates/tools/xtask/long-functions.txt";

/// Walks through the code, by file and function.
const WALKS: &str = "docs/INTERNALS.md";

/// Words that say nothing to an engineer of the field.
const WORDS: &str = "crates/tools/xtask/words.txt";

/// Runs every rule on the tree below `root` and prints the findings.
pub fn run(root: &Path) -> Result<(), Error> {
    let findings = all(root)?;
    for finding in &findings {
        println!("{}: {}", finding.place, finding.what);
    }
    match findings.len() {
        0 => {
            println!("tidy: nothing found");
            Ok(())
        }
        count => Err(Error::Untidy(count)),
    }
}

fn all(root: &Path) -> Result<Vec<Finding>, Error> {
    let graph = edges::Graph::load(root)?;
    let mut findings = edges::check(&graph);
    findings.extend(names::crates(&graph.crate_names()));
    for crate_root in graph.crate_roots() {
        let text = read(&crate_root.path)?;
        let place = relative(root, &crate_root.path);
        findings.extend(source::forbids_unsafe(
            &place,
            &crate_root.crate_name,
            &graph,
            &text,
        ));
    }

    let glossary = glossary::Glossary::parse(&read(&root.join(WORDS))?);
    let mut allowed = functions::Allowed::parse(&read_optional(&root.join(LONG_FUNCTIONS))?);
    let mut sources = Vec::new();
    for path in files::below(root)? {
        let place = relative(root, &path);
        findings.extend(names::file(&place));
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => {
                let text = read(&path)?;
                let lexed = lexer::Lexed::new(&text);
                findings.extend(source::length(&place, &text));
                findings.extend(source::words(&place, &lexed));
                findings.extend(glossary.check(&place, &lexed));
                findings.extend(names::modules(&place, &lexed));
                findings.extend(functions::check(&place, &lexed, &mut allowed));
                sources.push((place, lexed));
            }
            Some("md") => findings.extend(links::check(root, &path, &read(&path)?)),
            _ => findings.extend(files::is_program(&place, &path)?),
        }
    }
    findings.extend(folders::full(
        sources.iter().map(|(place, _)| place.as_str()),
    ));
    findings.extend(crate_sizes::large(&sources));
    findings.extend(structure(&sources));
    findings.extend(allowed.unused(LONG_FUNCTIONS));
    findings.extend(walks(root)?);
    Ok(findings)
}

/// Names in the walks that are not in the code.
fn walks(root: &Path) -> Result<Vec<Finding>, Error> {
    let mut texts = BTreeMap::new();
    for path in files::below(&root.join("crates"))? {
        let place = relative(root, &path);
        // crates/FLOOR/CRATE/src/FILE
        let parts: Vec<&str> = place.splitn(5, '/').collect();
        if let [_, _, name, "src", file] = parts[..]
            && file.ends_with(".rs")
        {
            texts.insert(format!("{name}/{file}"), lexer::Lexed::new(&read(&path)?));
        }
    }
    let files = texts.iter().map(|(file, lexed)| (file.clone(), lexed));
    let text = read_optional(&root.join(WALKS))?;
    Ok(walks::check(WALKS, &text, &files.collect()))
}

/// Rules of a crate as a whole: cycles of its files, methods away from their type.
fn structure(sources: &[(String, lexer::Lexed)]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<(&str, &str, &lexer::Lexed)>> = BTreeMap::new();
    for (place, lexed) in sources {
        if let Some((name, below)) = place.split_once("/src/") {
            crates.entry(name).or_default().push((place, below, lexed));
        }
    }
    let mut findings = Vec::new();
    for files in crates.values() {
        let modules: Vec<cycles::SourceFile<'_>> = files
            .iter()
            .filter_map(|(place, below, lexed)| {
                Some(cycles::SourceFile {
                    place: (*place).to_owned(),
                    module: cycles::module_of(below)?,
                    lexed,
                })
            })
            .collect();
        let cycles = cycles::large_cycles(&modules);
        findings.extend(cycles.iter().map(|cycle| cycles::finding(cycle)));
        let files: Vec<impls::File<'_>> = files
            .iter()
            .map(|(place, _, lexed)| impls::File { place, lexed })
            .collect();
        findings.extend(impls::stray(&files));
    }
    findings
}

/// A list that may be empty may be absent.
fn read_optional(path: &Path) -> Result<String, Error> {
    if path.exists() {
        read(path)
    } else {
        Ok(String::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(sources: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<(String, lexer::Lexed)> = sources
            .iter()
            .map(|(place, text)| ((*place).to_owned(), lexer::Lexed::new(text)))
            .collect();
        let findings = structure(&sources).into_iter();
        findings.map(|finding| finding.place).collect()
    }

    #[test]
    fn cycles_and_stray_methods_of_each_crate_are_found() {
        let cycle = [
            ("x/src/a.rs", "use crate::b::B;"),
            ("x/src/b.rs", "use crate::c::C;"),
            ("x/src/c.rs", "use crate::d::D;"),
            ("x/src/d.rs", "use crate::a::A;"),
        ];
        assert_eq!(places(&cycle), ["x/src/a.rs"]);
        let in_two_crates = cycle.map(|(place, text)| match place {
            "x/src/d.rs" => ("y/src/d.rs", text),
            _ => (place, text),
        });
        assert_eq!(places(&in_two_crates), [""; 0]);
        let methods = [
            ("x/src/a.rs", "struct A;"),
            ("x/src/b.rs", "impl crate::a::A {\n}\n"),
            ("y/src/b.rs", "struct B;\nimpl B {\n}\n"),
        ];
        assert_eq!(places(&methods), ["x/src/b.rs:1"]);
    }
}
