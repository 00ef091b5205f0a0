//! Deliberate lies about names in a log that is right: the judge has to find each.

use super::super::log::Call;
use super::dirs::NAMES;

/// One lie; `false` where the log gives no chance for it.
type Lie = fn(&mut [Call]) -> bool;

/// All lies.
pub const LIES: [(&str, Lie); 17] = [
    ("a name that is lost", lost),
    ("a name that is back", back),
    ("O_EXCL makes what is there", |calls| {
        changed(calls, "@C", "e17", &["1.1"])
    }),
    ("O_EXCL finds what is not there", |calls| {
        changed(calls, "@C", "", &["e17"])
    }),
    ("mkdir makes what is there", |calls| {
        changed(calls, "@M", "e17", &["ok"])
    }),
    ("a rename that leaves its source", half),
    ("RENAME_NOREPLACE replaces", |calls| {
        changed(calls, "@W", "e17", &["ok"]) || changed(calls, "@R", "e17", &["ok"])
    }),
    ("RENAME_EXCHANGE with nothing", |calls| {
        changed(calls, "@E", "e2", &["ok"])
    }),
    ("a rename of what is not there", |calls| {
        changed(calls, "@V", "e2", &["ok"])
    }),
    ("a link over what is there", |calls| {
        changed(calls, "@H", "e17", &["ok"]) || changed(calls, "@K", "e17", &["ok"])
    }),
    ("unlink of what is not there", |calls| {
        changed(calls, "@U", "e2", &["ok"])
    }),
    ("rmdir of a file", |calls| {
        changed(calls, "@D", "e20", &["ok"])
    }),
    ("a listing that lacks a name", unlisted),
    ("a listing of what is not there", listed),
    ("a name that is listed twice", twice),
    ("another file's content", content),
    ("a link too many", links),
];

const CHANGES: [&str; 13] = [
    "@C", "@B", "@M", "@K", "@N", "@F", "@R", "@V", "@W", "@E", "@H", "@U", "@D",
];

fn is_about(call: &Call, path: &str) -> bool {
    let has_two = ["@V", "@W", "@E", "@H"].contains(&call.text(0));
    call.text(1) == path || has_two && call.text(2) == path
}

/// Whether nobody but call `at` may have changed what a name denotes from `start` to `end`.
fn is_quiet(calls: &[Call], at: usize, path: &str, (start, end): (u64, u64)) -> bool {
    let changes = |call: &Call| {
        let failed = call.result().starts_with('e');
        CHANGES.contains(&call.text(0)) && !failed && is_about(call, path)
    };
    let mut others = calls.iter().enumerate().filter(|(n, _)| *n != at);
    !others.any(|(_, call)| call.end >= start && call.start <= end && changes(call))
}

/// The first call that `fits`, on whose names nobody else changes anything meanwhile.
fn first(calls: &[Call], fits: impl Fn(&Call) -> bool) -> Option<usize> {
    let alone = |at: usize| {
        let call = &calls[at];
        let quiet = |path: &str| is_quiet(calls, at, path, (call.start, call.end));
        quiet(call.text(1)) && (!call.text(2).contains('/') || quiet(call.text(2)))
    };
    (0..calls.len()).find(|&at| calls[at].returned() && fits(&calls[at]) && alone(at))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&w| w.to_owned()).collect()
}

/// A call `verb` that gave `result` (nothing: no error) says that it gave something else.
fn changed(calls: &mut [Call], verb: &str, result: &str, instead: &[&str]) -> bool {
    let fits = |call: &Call| {
        let gave = call.result();
        call.text(0) == verb && (gave == result || result.is_empty() && !gave.starts_with('e'))
    };
    let Some(at) = first(calls, fits) else {
        return false;
    };
    calls[at].gave = words(instead);
    true
}

fn lost(calls: &mut [Call]) -> bool {
    let Some(at) = first(calls, |c| c.text(0) == "@P" && c.result() == "file") else {
        return false;
    };
    calls[at].gave = words(&["e2"]);
    true
}

fn back(calls: &mut [Call]) -> bool {
    let made = calls
        .iter()
        .find(|c| c.text(0) == "@N" && c.result() == "ok");
    let Some(id) = made.map(|c| c.text(2).to_owned()) else {
        return false;
    };
    changed(calls, "@P", "e2", &["file", &id])
}

/// After a rename its source is seen where its target was.
fn half(calls: &mut [Call]) -> bool {
    let renames = |c: &Call| c.text(0) == "@V" && c.result() == "ok";
    for at in (0..calls.len()).filter(|&at| renames(&calls[at])) {
        let (moved, to) = (&calls[at], calls[at].text(2));
        let looks = |c: &Call| c.text(0) == "@P" && c.result() == "file" && c.text(1) == to;
        let after = |c: &Call| c.start > moved.end && c.start < moved.end + 20_000_000;
        let look = calls.iter().position(|c| looks(c) && after(c));
        let Some(look) = look else { continue };
        let time = (moved.start, calls[look].end);
        let from = moved.text(1).to_owned();
        if is_quiet(calls, at, &from, time) && is_quiet(calls, at, to, time) {
            calls[look].what[1] = from;
            return true;
        }
    }
    false
}

/// A listing, and the place of one of its names that nobody changes meanwhile.
fn in_listing(calls: &[Call]) -> Option<(usize, usize)> {
    let listings = calls.iter().enumerate();
    let listings = listings.filter(|(_, c)| c.text(0) == "@L" && c.result() == "ok");
    listings.into_iter().find_map(|(at, call)| {
        let quiet = |word: &String| {
            let name = word.split(':').next().unwrap_or_default();
            let path = format!("{}/{name}", call.text(1));
            is_quiet(calls, at, &path, (call.start, call.end))
        };
        let place = call.gave[1..].iter().position(quiet)?;
        Some((at, place + 1))
    })
}

fn unlisted(calls: &mut [Call]) -> bool {
    let found = in_listing(calls);
    found.is_some_and(|(at, place)| {
        calls[at].gave.remove(place);
        true
    })
}

fn twice(calls: &mut [Call]) -> bool {
    let found = in_listing(calls);
    found.is_some_and(|(at, place)| {
        let again = calls[at].gave[place].clone();
        calls[at].gave.push(again);
        true
    })
}

fn listed(calls: &mut [Call]) -> bool {
    let lacks = |call: &Call| {
        let has = |name: &str| call.gave.iter().any(|word| word.starts_with(name));
        let lacked = NAMES.into_iter().find(|n| !has(&format!("{n}:")));
        lacked.map(|name| (format!("{}/{name}", call.text(1)), name))
    };
    let listings = (0..calls.len()).filter(|&at| calls[at].text(0) == "@L");
    let found = listings.into_iter().find_map(|at| {
        let call = &calls[at];
        let (path, name) = lacks(call).filter(|_| call.result() == "ok")?;
        is_quiet(calls, at, &path, (call.start, call.end)).then_some((at, name))
    });
    found.is_some_and(|(at, name)| {
        calls[at].gave.push(format!("{name}:file:1"));
        true
    })
}

fn content(calls: &mut [Call]) -> bool {
    let opened = |c: &&mut Call| c.text(0) == "@O" && c.gave.get(2).is_some_and(|t| t != "0");
    let opened = calls.iter_mut().find(opened);
    opened.is_some_and(|call| {
        call.gave[2] = "1".to_owned();
        true
    })
}

fn links(calls: &mut [Call]) -> bool {
    let last = calls
        .iter_mut()
        .find(|c| c.text(0) == "@Z" && c.result() == "file");
    last.is_some_and(|call| {
        call.gave[2].push('1');
        true
    })
}

/// Lies that are not found, and how many there was a chance for.
pub fn missed(calls: &[Call]) -> (Vec<&'static str>, usize) {
    let (mut missed, mut planted) = (Vec::new(), 0);
    for (what, lie) in LIES {
        let mut changed = calls.to_vec();
        if lie(&mut changed) {
            planted += 1;
            if super::judge(&changed).0.is_empty() {
                missed.push(what);
            }
        }
    }
    (missed, planted)
}
