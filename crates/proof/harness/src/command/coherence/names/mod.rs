//! Names: half of all calls make, move, remove, list and open names in a few directories that all workers use; is there
//! an order of them in which each gave what it gave?
//!
//! Unlike a [register](super::register), which judges each name by itself, [`search`] looks for one order of all calls on all names of
//! a few directories: a rename changes two names at once, and what a name denotes is known by inode number and time of birth.
//!
//! The calls are those of `work.rs`, which another program makes: `shale-coherence-worker`.

pub mod dirs;
pub mod plant;
pub mod search;
pub mod table;

use std::collections::HashMap;

use super::log::{Call, NEVER};
use dirs::age_of;
use table::{Op, Table};

/// Whether it is a call on names.
pub fn is_of_names(call: &Call) -> bool {
    call.text(0).starts_with('@')
}

/// Something that is wrong: how, with which name or file, and the calls that show it.
pub type Wrong = (&'static str, String, Vec<usize>);

/// Judges all calls on names: what is wrong, and how much was looked at.
pub fn judge(calls: &[Call]) -> (Vec<Wrong>, usize) {
    let mut ages: HashMap<&str, (Table, Vec<Op>)> = HashMap::new();
    let mut wrong = Vec::new();
    for (at, call) in calls.iter().enumerate().filter(|(_, c)| is_of_names(c)) {
        let age = ages
            .entry(age_of(call.text(1)))
            .or_insert_with(|| (Table::new(), Vec::new()));
        match age.0.acts(at, call) {
            Ok(acts) => age.1.extend(acts),
            Err(how) => wrong.push((how, call.text(1).to_owned(), vec![at])),
        }
    }
    let mut judged = 0;
    for (table, ops) in ages.values() {
        judged += ops.len();
        if let Err(none) = search::search(table, ops) {
            let about = none
                .place
                .map_or_else(String::new, |place| table.name(place));
            wrong.push((none.how, about, none.calls));
        }
    }
    wrong.extend(wrong_contents(calls));
    wrong.extend(wrong_links(calls));
    (wrong, judged)
}

/// What a file holds, by what wrote it: when the write began and had ended, and the number.
fn contents(calls: &[Call]) -> HashMap<&str, (u64, u64, &str)> {
    let mut contents = HashMap::new();
    for call in calls {
        match call.text(0) {
            // Written before it got a name.
            "@K" | "@N" | "@R" => contents.insert(call.text(2), (0, 0, call.text(3))),
            "@S" => contents.insert(call.text(1), (call.start, call.end, call.text(2))),
            _ => None,
        };
    }
    contents
}

/// A file holds what was written to it: nothing before that began, and that once it had ended.
fn wrong_contents(calls: &[Call]) -> Vec<Wrong> {
    let contents = contents(calls);
    let mut wrong = Vec::new();
    for (at, call) in calls.iter().enumerate().filter(|(_, c)| c.returned()) {
        let how = match (call.text(0), call.result()) {
            ("@S", given) if given != "ok" => Some("a write that failed"),
            ("@T", given) if given != "file" => Some("an open file cannot be read"),
            ("@T", _) if call.gave.get(1) != call.what.get(1) => {
                Some("an open file is another one")
            }
            ("@O" | "@Q" | "@T", "file") => {
                let (id, found) = (call.gave.get(1), call.gave.get(2));
                let id = id.map_or("", String::as_str);
                let (start, end, token) = contents.get(id).copied().unwrap_or((NEVER, NEVER, ""));
                let fits = match found.map_or("", String::as_str) {
                    "0" => call.start <= end,
                    found => found == token && start <= call.end,
                };
                (!fits).then_some("a file holds what was not written to it")
            }
            _ => None,
        };
        wrong.extend(how.map(|how| (how, call.text(1).to_owned(), vec![at])));
    }
    wrong
}

/// At the end a file has as many links as names.
fn wrong_links(calls: &[Call]) -> Vec<Wrong> {
    let mut names: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
    for (at, call) in calls.iter().enumerate() {
        if ["@Z", "@Y"].contains(&call.text(0)) && call.result() == "file" {
            let id = call.gave.get(1).map_or("", String::as_str);
            names.entry((&call.worker, id)).or_default().push(at);
        }
    }
    let links = |at: usize| calls[at].gave.get(2).and_then(|n| n.parse().ok());
    let has_others = |of: &[usize]| of.iter().any(|&at| links(at) != Some(of.len()));
    let of = names.into_iter().filter(|(_, of)| has_others(of));
    of.map(|((_, id), of)| ("links are not names", id.to_owned(), of))
        .collect()
}

#[cfg(test)]
mod tests;
