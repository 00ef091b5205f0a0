//! `cargo xtask tidy`: the rules of the source tree that no compiler knows.
//!
//! Each rule is a pure function from text (or from the crate graph) to findings,
//! so that a test can show that it fires. This file only feeds them.

mod edges;
mod files;
mod functions;
mod lexer;
mod links;
mod names;
mod source;

use std::path::Path;

use crate::error::{Error, read};

/// One departure from a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// File and line, or crate.
    place: String,
    /// What is wrong and what to do.
    what: String,
}

impl Finding {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            what: what.into(),
        }
    }
}

/// Functions that may be longer than the limit, with the reason:
/// lines of `path function reason`.
const LONG_FUNCTIONS: &str = "crates/xtask/long-functions.txt";

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

    let mut allowed = functions::Allowed::parse(&read_optional(&root.join(LONG_FUNCTIONS))?);
    for path in files::below(root)? {
        let place = relative(root, &path);
        findings.extend(names::file(&place));
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => {
                let text = read(&path)?;
                let lexed = lexer::Lexed::new(&text);
                findings.extend(source::length(&place, &text));
                findings.extend(source::words(&place, &lexed));
                findings.extend(names::modules(&place, &lexed));
                findings.extend(functions::check(&place, &lexed, &mut allowed));
            }
            Some("md") => findings.extend(links::check(root, &path, &read(&path)?)),
            _ => findings.extend(files::is_program(&place, &path)?),
        }
    }
    findings.extend(allowed.unused(LONG_FUNCTIONS));
    Ok(findings)
}

fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root)
        .unwrap_or(path)
        .display()
        .to_string()
}

/// A list that may be empty may be absent.
fn read_optional(path: &Path) -> Result<String, Error> {
    if path.exists() {
        read(path)
    } else {
        Ok(String::new())
    }
}
