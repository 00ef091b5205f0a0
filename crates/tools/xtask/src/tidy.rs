//! `cargo xtask tidy`: the rules of the source tree that no compiler knows.
//!
//! Each rule is a pure function from text (or from the crate graph) to findings,
//! so that a test can show that it fires. This file only feeds them.

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

/// What is printed of rules whose findings are warnings.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Warnings {
    /// How many there are of each.
    Counted,
    /// Each of them.
    Listed,
}

/// Runs every rule on the tree below `root` and prints the findings. Warnings are no failure.
pub fn run(root: &Path, warnings: Warnings) -> Result<(), Error> {
    let findings = all(root)?;
    for finding in &findings {
        println!("{}: {}", finding.place, finding.what);
    }
    for (rule, found) in structure(root)? {
        if warnings == Warnings::Listed {
            for finding in &found {
                println!("{}: {}", finding.place, finding.what);
            }
        }
        println!("tidy: warnings of {rule}: {}", found.len());
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
                sources.push(place);
            }
            Some("md") => findings.extend(links::check(root, &path, &read(&path)?)),
            _ => findings.extend(files::is_program(&place, &path)?),
        }
    }
    findings.extend(folders::full(sources.iter().map(String::as_str)));
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

/// Rules that the tree does not keep yet: their findings by rule.
fn structure(root: &Path) -> Result<Vec<(&'static str, Vec<Finding>)>, Error> {
    let mut texts = Vec::new();
    for path in files::below(root)? {
        let place = relative(root, &path);
        if path.extension().is_some_and(|extension| extension == "rs") {
            texts.push((place, lexer::Lexed::new(&read(&path)?)));
        }
    }
    let mut crates: BTreeMap<&str, Vec<(&str, &lexer::Lexed)>> = BTreeMap::new();
    for (place, lexed) in &texts {
        if let Some((name, below)) = place.split_once("/src/") {
            crates.entry(name).or_default().push((below, lexed));
        }
    }
    let (mut in_cycles, mut stray) = (Vec::new(), Vec::new());
    for (name, files) in &crates {
        let places: Vec<String> = files
            .iter()
            .map(|(below, _)| format!("{name}/src/{below}"))
            .collect();
        let sources: Vec<cycles::SourceFile<'_>> = (files.iter().zip(&places))
            .filter_map(|((below, lexed), place)| {
                Some(cycles::SourceFile {
                    place: place.clone(),
                    module: cycles::module_of(below)?,
                    lexed,
                })
            })
            .collect();
        in_cycles.extend(
            cycles::large_cycles(&sources)
                .iter()
                .map(|cycle| cycles::finding(cycle)),
        );
        let files: Vec<impls::File<'_>> = (files.iter().zip(&places))
            .map(|((_, lexed), place)| impls::File { place, lexed })
            .collect();
        stray.extend(impls::stray(&files));
    }
    Ok(vec![
        ("cycles of files", in_cycles),
        ("impl blocks away from their type", stray),
    ])
}

/// A list that may be empty may be absent.
fn read_optional(path: &Path) -> Result<String, Error> {
    if path.exists() {
        read(path)
    } else {
        Ok(String::new())
    }
}
