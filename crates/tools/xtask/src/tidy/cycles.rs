//! Cycles of files within a crate: files that can only be understood together.
//!
//! A file is a module. An arrow goes from a file to the file whose module a path of its code names
//! (`crate::…`, `super::…`, `self::…`, or a child module's name). Names that `lib.rs` or another file only hands on
//! (`pub use`) lead to the file that defines them. Tests are left out. The crate root is the surface of the crate and is no part
//! of a cycle.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::lexer::{Lexed, word_offsets};

/// Files that may form one cycle.
pub const CYCLE_FILES_MAX: usize = 3;

/// One source file of a crate.
pub struct SourceFile<'t> {
    /// Path below the root of the workspace.
    pub place: String,
    /// Its module, from the root of the crate on; empty: the root itself.
    pub module: Vec<String>,
    /// Its text, split.
    pub lexed: &'t Lexed,
}

/// The module that a file below `src/` is; `None`: tests, and programs of `src/bin`.
pub fn module_of(below_src: &str) -> Option<Vec<String>> {
    let mut parts: Vec<String> = below_src
        .strip_suffix(".rs")?
        .split('/')
        .map(str::to_owned)
        .collect();
    let is_test = |part: &String| part == "tests" || part.ends_with("_tests") || part == "bin";
    if parts.iter().any(is_test) {
        return None;
    }
    match parts.last().map(String::as_str) {
        Some("lib" | "main") if parts.len() == 1 => parts.clear(),
        Some("mod") => {
            parts.pop();
        }
        _ => {}
    }
    Some(parts)
}

/// Cycles of more files than [`CYCLE_FILES_MAX`], largest first; each as the places of its files.
pub fn large_cycles(files: &[SourceFile<'_>]) -> Vec<Vec<String>> {
    let graph = Graph::new(files);
    let mut cycles: Vec<Vec<String>> = graph
        .cycles()
        .into_iter()
        .filter(|cycle| cycle.len() > CYCLE_FILES_MAX)
        .map(|cycle| cycle.into_iter().map(|n| files[n].place.clone()).collect())
        .collect();
    cycles.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
    cycles
}

/// What to say of a cycle.
pub fn finding(cycle: &[String]) -> Finding {
    let some: Vec<&str> = cycle.iter().take(4).map(String::as_str).collect();
    Finding::new(
        cycle[0].clone(),
        format!(
            "{} files use each other in a cycle, at most {CYCLE_FILES_MAX}: {}{}",
            cycle.len(),
            some.join(", "),
            if cycle.len() > some.len() {
                ", …"
            } else {
                ""
            }
        ),
    )
}

struct Graph {
    arrows: Vec<BTreeSet<usize>>,
}

/// Where a name of a module leads that is handed on from elsewhere: (module, name) to a path.
type Handed = BTreeMap<(Vec<String>, String), Vec<String>>;

impl Graph {
    fn new(files: &[SourceFile<'_>]) -> Self {
        let by_module: BTreeMap<&[String], usize> = files
            .iter()
            .enumerate()
            .map(|(n, file)| (file.module.as_slice(), n))
            .collect();
        let paths: Vec<Vec<(bool, Vec<String>)>> = files
            .iter()
            .map(|file| paths_in(&without_tests(&file.lexed.code), &file.module, &by_module))
            .collect();
        let mut handed = Handed::new();
        for (file, paths) in files.iter().zip(&paths) {
            for (is_handed, path) in paths {
                if let Some(name) = path.last().filter(|_| *is_handed) {
                    handed.insert((file.module.clone(), name.clone()), path.clone());
                }
            }
        }
        let target = |path: &[String]| target(path, &by_module, &handed, 0);
        let arrows = files.iter().zip(&paths).enumerate().map(|(n, (_, paths))| {
            let reached = paths.iter().filter(|(is_handed, _)| !is_handed);
            let reached = reached.filter_map(|(_, path)| target(path));
            reached
                .filter(|&to| to != n && !files[to].module.is_empty())
                .collect()
        });
        Self {
            arrows: arrows.collect(),
        }
    }

    /// Strongly connected components, by Tarjan's algorithm.
    fn cycles(&self) -> Vec<Vec<usize>> {
        let mut search = Search {
            arrows: &self.arrows,
            index: vec![None; self.arrows.len()],
            low: vec![0; self.arrows.len()],
            on_stack: vec![false; self.arrows.len()],
            stack: Vec::new(),
            next: 0,
            found: Vec::new(),
        };
        for n in 0..self.arrows.len() {
            if search.index[n].is_none() {
                search.visit(n);
            }
        }
        search.found
    }
}

struct Search<'g> {
    arrows: &'g [BTreeSet<usize>],
    index: Vec<Option<usize>>,
    low: Vec<usize>,
    on_stack: Vec<bool>,
    stack: Vec<usize>,
    next: usize,
    found: Vec<Vec<usize>>,
}

impl Search<'_> {
    fn visit(&mut self, n: usize) {
        self.index[n] = Some(self.next);
        self.low[n] = self.next;
        self.next += 1;
        self.stack.push(n);
        self.on_stack[n] = true;
        for &to in &self.arrows[n] {
            match self.index[to] {
                None => {
                    self.visit(to);
                    self.low[n] = self.low[n].min(self.low[to]);
                }
                Some(index) if self.on_stack[to] => self.low[n] = self.low[n].min(index),
                Some(_) => {}
            }
        }
        if Some(self.low[n]) == self.index[n] {
            let from = self.stack.iter().rposition(|&m| m == n).unwrap_or(0);
            let mut cycle = self.stack.split_off(from);
            for &m in &cycle {
                self.on_stack[m] = false;
            }
            cycle.sort_unstable();
            self.found.push(cycle);
        }
    }
}

/// The file that a path leads to.
fn target(
    path: &[String],
    by_module: &BTreeMap<&[String], usize>,
    handed: &Handed,
    depth: usize,
) -> Option<usize> {
    // Two names that hand each other on would never end.
    if depth > 8 {
        return None;
    }
    let longest = (0..=path.len())
        .rev()
        .find(|&n| by_module.contains_key(&path[..n]))?;
    if let Some(name) = path.get(longest) {
        let key = (path[..longest].to_vec(), name.clone());
        if let Some(next) = handed.get(&key).filter(|next| next.as_slice() != path) {
            return target(next, by_module, handed, depth + 1);
        }
    }
    by_module.get(&path[..longest]).copied()
}

/// Code without modules that are compiled for tests only.
pub fn without_tests(code: &str) -> String {
    let mut rest = code;
    let mut kept = String::with_capacity(code.len());
    while let Some(at) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..at]);
        let after = &rest[at..];
        let item = after["#[cfg(test)]".len()..].trim_start();
        let end = match (after.find('{'), after.find(';')) {
            (Some(open), semicolon) if semicolon.is_none_or(|semicolon| open < semicolon) => {
                closing(after, open)
            }
            (_, Some(semicolon)) if item.starts_with("mod") || item.starts_with("use") => semicolon,
            (_, other) => other.unwrap_or(after.len() - 1),
        };
        rest = after.get(end + 1..).unwrap_or_default();
    }
    kept.push_str(rest);
    kept
}

/// Offset of the brace that closes the one at `open`.
fn closing(text: &str, open: usize) -> usize {
    let mut depth = 0;
    for (offset, c) in text[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return open + offset;
                }
            }
            _ => {}
        }
    }
    text.len().saturating_sub(1)
}

/// Every path of the crate that the code names, from the root on; with `true`: it is only handed on.
fn paths_in(
    code: &str,
    module: &[String],
    by_module: &BTreeMap<&[String], usize>,
) -> Vec<(bool, Vec<String>)> {
    let mut found = Vec::new();
    let mut add = |offset: usize, word: &str, base: Vec<String>| {
        if code[..offset].trim_end().ends_with("::") {
            return;
        }
        let rest = &code[offset + word.len()..];
        let handed = is_handed_on(&code[..offset]);
        let mut tree = Tree {
            rest,
            found: &mut found,
            handed,
        };
        tree.after(base);
    };
    for offset in word_offsets(code, "crate") {
        add(offset, "crate", Vec::new());
    }
    for offset in word_offsets(code, "self") {
        if code[offset + 4..].starts_with("::") {
            add(offset, "self", module.to_vec());
        }
    }
    let parent = &module[..module.len().saturating_sub(1)];
    for offset in word_offsets(code, "super") {
        add(offset, "super", parent.to_vec());
    }
    for child in by_module.keys() {
        let [above @ .., name] = child else { continue };
        if above == module {
            for offset in word_offsets(code, name) {
                if code[offset + name.len()..].starts_with("::") {
                    add(offset, name, child.to_vec());
                }
            }
        }
    }
    found
}

/// Whether the text before a path ends with `pub use` or `pub(…) use`.
fn is_handed_on(before: &str) -> bool {
    let Some(before) = before.trim_end().strip_suffix("use") else {
        return false;
    };
    let before = before.trim_end();
    before.ends_with("pub")
        || (before.ends_with(')')
            && before
                .rfind("pub(")
                .is_some_and(|at| before.len() - at < 40))
}

/// A tree of paths behind its first word: `::a::{b, c::d}`.
struct Tree<'c, 'f> {
    rest: &'c str,
    found: &'f mut Vec<(bool, Vec<String>)>,
    handed: bool,
}

impl Tree<'_, '_> {
    fn after(&mut self, path: Vec<String>) {
        let Some(rest) = self.rest.strip_prefix("::") else {
            self.found.push((self.handed, path));
            return;
        };
        self.rest = rest;
        self.segment(path);
    }

    fn segment(&mut self, mut path: Vec<String>) {
        self.rest = self.rest.trim_start();
        if let Some(rest) = self.rest.strip_prefix('{') {
            self.rest = rest;
            loop {
                self.rest = self
                    .rest
                    .trim_start_matches(|c: char| c.is_whitespace() || c == ',');
                if let Some(rest) = self.rest.strip_prefix('}') {
                    self.rest = rest;
                    return;
                }
                if self.rest.is_empty() {
                    return;
                }
                let before = self.rest.len();
                self.segment(path.clone());
                // What is not understood is passed over.
                if self.rest.len() == before {
                    self.rest = &self.rest[1..];
                }
            }
        }
        let end = self
            .rest
            .find(|c: char| !(c.is_alphanumeric() || c == '_'))
            .unwrap_or(self.rest.len());
        let word = &self.rest[..end];
        self.rest = &self.rest[end..];
        match word {
            "" | "self" => {}
            "super" => {
                path.pop();
            }
            word => path.push(word.to_owned()),
        }
        self.after(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles_of(sources: &[(&str, &str)]) -> Vec<Vec<String>> {
        let lexed: Vec<Lexed> = sources.iter().map(|(_, text)| Lexed::new(text)).collect();
        let files: Vec<SourceFile<'_>> = sources
            .iter()
            .zip(&lexed)
            .filter_map(|((place, _), lexed)| {
                Some(SourceFile {
                    place: (*place).to_owned(),
                    module: module_of(place)?,
                    lexed,
                })
            })
            .collect();
        large_cycles(&files)
    }

    #[test]
    fn a_cycle_of_four_is_found_and_one_of_three_is_not() {
        let three = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::{self, B};"),
            ("b.rs", "fn f() { crate::c::g() }"),
            ("c.rs", "use super::a::A;"),
            ("d.rs", "use crate::{a, b};"),
        ];
        assert_eq!(cycles_of(&three), Vec::<Vec<String>>::new());
        let mut four = three;
        four[3].1 = "use crate::d::D;";
        assert_eq!(cycles_of(&four), [["a.rs", "b.rs", "c.rs", "d.rs"]]);
    }

    #[test]
    fn names_that_are_handed_on_lead_to_where_they_are_defined() {
        let files = [
            ("lib.rs", "pub use a::A; pub(crate) use d::D;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::c::C;"),
            ("c.rs", "use crate::D;"),
            ("d.rs", "use crate::A;"),
        ];
        assert_eq!(cycles_of(&files).len(), 1);
    }

    #[test]
    fn tests_comments_and_strings_make_no_arrow() {
        let files = [
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::c::C;"),
            ("c.rs", "use crate::d::D;"),
            (
                "d.rs",
                "// crate::a::A\n#[cfg(test)]\nmod tests { use crate::a::A; }\nconst S: &str = \"crate::a\";",
            ),
            ("d/tests.rs", "use crate::a::A;"),
        ];
        assert_eq!(cycles_of(&files), Vec::<Vec<String>>::new());
    }

    #[test]
    fn children_by_name_are_arrows() {
        let files = [
            ("a/mod.rs", "mod x; use x::X;"),
            ("a/x.rs", "use super::y::Y;"),
            ("a/y.rs", "use super::z::Z;"),
            ("a/z.rs", "use super::A;"),
        ];
        assert_eq!(cycles_of(&files).len(), 1);
    }
}
