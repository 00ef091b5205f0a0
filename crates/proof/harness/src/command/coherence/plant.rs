//! Deliberate lies in a log that is right: the checker has to find each.

use super::log::Call;
use super::work::{APPENDED, FIXED};

/// One lie; `false` where the log gives no chance for it.
pub type Lie = fn(&mut [Call]) -> bool;

/// All lies.
pub const LIES: [(&str, Lie); 5] = [
    ("a stale cell", stale_cell),
    ("a lost write", lost_write),
    ("a lost append", lost_append),
    ("a stale name", stale_name),
    ("a lost count", lost_count),
];

fn of_first<'c>(calls: &'c [Call], verb: &'static str) -> impl Iterator<Item = (usize, &'c Call)> {
    let about = move |c: &&Call| c.text(0) == verb && c.text(1) == FIXED[0] && c.returned();
    calls.iter().enumerate().filter(move |(_, c)| about(c))
}

/// Three calls on one cell, one after the other: two writes and a read of the second.
fn three(calls: &[Call]) -> Option<(u64, usize, usize)> {
    for (at, read) in of_first(calls, "R").filter(|(_, c)| c.gave.len() > 1) {
        let cell = read.number(2);
        let wrote = |c: &Call| (c.number(2)..c.number(2) + c.number(3)).contains(&cell);
        let mut writes: Vec<(usize, &Call)> = of_first(calls, "W")
            .filter(|(_, c)| wrote(c) && c.end < read.start)
            .collect();
        writes.sort_by_key(|(_, c)| c.end);
        let Some(&(last, new)) = writes.last() else {
            continue;
        };
        if let Some((_, old)) = writes.iter().find(|(_, c)| c.end < new.start) {
            return Some((old.number(4) + cell - old.number(2), last, at));
        }
    }
    None
}

fn stale_cell(calls: &mut [Call]) -> bool {
    let Some((stale, _, read)) = three(calls) else {
        return false;
    };
    calls[read].gave[1] = stale.to_string();
    true
}

fn lost_write(calls: &mut [Call]) -> bool {
    let Some((stale, last, _)) = three(calls) else {
        return false;
    };
    let (cell, from) = (calls[last].number(2), calls[last].end);
    for call in calls.iter_mut() {
        let at = cell.wrapping_sub(call.number(2)) as usize;
        let about = call.text(0) == "R" && call.text(1) == FIXED[0] && call.start > from;
        if about && at < call.gave.len().saturating_sub(1) {
            call.gave[at + 1] = stale.to_string();
        }
    }
    true
}

fn lost_append(calls: &mut [Call]) -> bool {
    let whole = |c: &&mut Call| c.text(0) == "R" && c.text(1) == APPENDED && c.number(2) == 0;
    let last = calls.iter_mut().filter(whole).max_by_key(|c| c.end);
    last.is_some_and(|last| last.gave.len() > 3 && last.gave.pop().is_some())
}

fn stale_name(calls: &mut [Call]) -> bool {
    const CHANGES: [&str; 7] = ["D", "U", "V", "N", "K", "M", "C"];
    // A file was made, and nobody else changed what its name stands for meanwhile or right after.
    let alone = |made: &Call| {
        let about = |c: &Call| c.text(1) == made.text(1) || c.text(2) == made.text(1);
        let meanwhile = |c: &Call| c.end > made.start && c.start <= made.end + 2;
        let changes = |c: &&Call| CHANGES.contains(&c.text(0)) && about(c) && meanwhile(c);
        calls.iter().filter(changes).count() == 1
    };
    let makes = |c: &&Call| c.text(0) == "C" && c.result() == "ok" && alone(c);
    let Some(mut look) = calls.iter().find(makes).cloned() else {
        return false;
    };
    // As if somebody had looked right after and found nothing.
    look.what[0] = "P".to_owned();
    look.gave[0] = "e2".to_owned();
    (look.start, look.end) = (look.end + 1, look.end + 2);
    let place = calls.iter_mut().rev().find(|c| c.text(0) == "L");
    place.is_some_and(|place| {
        *place = look;
        true
    })
}

fn lost_count(calls: &mut [Call]) -> bool {
    let mut counts: Vec<&mut Call> = calls
        .iter_mut()
        .filter(|c| c.text(0) == "X" && c.gave.len() == 3)
        .collect();
    counts.sort_by_key(|c| c.start);
    let middle = counts.len() / 2;
    let Some(count) = counts.get_mut(middle.max(1)) else {
        return false;
    };
    count.gave[2] = "1".to_owned();
    true
}
