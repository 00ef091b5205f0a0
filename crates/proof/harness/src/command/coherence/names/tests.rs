use super::super::log::{Call, NEVER};
use super::judge;

/// A call of `worker` from `start` to `end`; an `end` of 0: it has not returned.
fn call(worker: &str, start: u64, end: u64, what: &str, gave: &str) -> Call {
    let words = |text: &str| -> Vec<String> {
        let words = text.split(' ').filter(|w| !w.is_empty());
        words.map(str::to_owned).collect()
    };
    Call {
        start,
        end: if end == 0 { NEVER } else { end },
        client: true,
        worker: worker.to_owned(),
        what: words(what),
        gave: words(gave),
    }
}

/// What is wrong with calls: start, end, what was called, what it gave.
fn wrong(calls: &[(u64, u64, &str, &str)]) -> Vec<&'static str> {
    let call = |(n, c): (usize, &(u64, u64, &str, &str))| call(&n.to_string(), c.0, c.1, c.2, c.3);
    let calls: Vec<Call> = calls.iter().enumerate().map(call).collect();
    judge(&calls).0.into_iter().map(|w| w.0).collect()
}

const NONE: &str = "no order of calls gives this";
const MADE: (u64, u64, &str, &str) = (10, 20, "@C n0-0/a", "7.1");

#[test]
fn a_file_that_is_made_can_be_made_once() {
    let also = |start, end, gave| wrong(&[MADE, (start, end, "@C n0-0/a", gave)]);
    assert_eq!(also(15, 30, "e17"), [""; 0]);
    assert_eq!(also(5, 12, "e17"), [""; 0], "the other one was first");
    assert_eq!(also(1, 9, "e17"), [NONE]);
    assert_eq!(also(15, 30, "8.1"), [NONE]);
    let gone = (16, 25, "@U n0-0/a", "ok");
    assert_eq!(wrong(&[MADE, gone, (15, 30, "@C n0-0/a", "8.1")]), [""; 0]);
    assert_eq!(
        wrong(&[MADE, gone, (30, 40, "@P n0-0/a", "file 7.1")]),
        [NONE]
    );
    assert_eq!(wrong(&[MADE, gone, (26, 40, "@U n0-0/a", "ok")]), [NONE]);
}

#[test]
fn a_rename_changes_two_names_at_once() {
    let moved = (30, 60, "@V n0-0/a n0-1/b", "ok");
    let looks = |a: &str, b: &str| {
        let (a, b) = ((40, 45, "@P n0-0/a", a), (46, 50, "@P n0-1/b", b));
        wrong(&[MADE, moved, a, b])
    };
    let is = "file 7.1";
    assert_eq!(looks(is, is), [""; 0], "it was moved in between");
    assert_eq!(looks("e2", is), [""; 0]);
    assert_eq!(looks(is, "e2"), [""; 0]);
    assert_eq!(looks("e2", "e2"), [NONE]);
    // A listing looks at each name by itself.
    let listed = |from: &str, to: &str| {
        let (from, to) = ((40, 45, "@L n0-0", from), (46, 50, "@L n0-1", to));
        wrong(&[MADE, moved, from, to])
    };
    assert_eq!(listed("ok a:file:7", "ok b:file:7"), [""; 0]);
    assert_eq!(listed("ok", "ok"), [NONE]);
    assert_eq!(listed("ok a:file:8", "ok"), [NONE]);
    assert_eq!(listed("ok a:file:7 a:file:7", "ok"), ["listed twice"]);
}

#[test]
fn renames_obey_their_flags() {
    let other = (10, 20, "@K n0-0/b 8.1 99", "ok");
    let after = |what: &str, gave: &str, a: &str, b: &str| {
        let looks = [(40, 41, "@P n0-0/a", a), (42, 43, "@P n0-0/b", b)];
        wrong(&[MADE, other, (30, 35, what, gave), looks[0], looks[1]])
    };
    let (a, b) = ("file 7.1", "file 8.1");
    assert_eq!(after("@E n0-0/a n0-0/b", "ok", b, a), [""; 0]);
    assert_eq!(after("@E n0-0/a n0-0/b", "ok", "e2", a), [NONE]);
    assert_eq!(after("@W n0-0/a n0-0/b", "e17", a, b), [""; 0]);
    assert_eq!(after("@W n0-0/a n0-0/b", "ok", "e2", a), [NONE]);
    assert_eq!(after("@V n0-0/a n0-0/b", "ok", "e2", a), [""; 0]);
    assert_eq!(after("@V n0-0/a n0-0/b", "ok", "e2", b), [NONE]);
    assert_eq!(
        after("@V n0-0/a n0-0/b", "e116", a, b),
        ["a result that cannot be"]
    );
    assert_eq!(after("@H n0-0/a n0-0/c", "ok", a, b), [""; 0]);
    assert_eq!(after("@H n0-0/d n0-0/c", "ok", a, b), [NONE]);
    assert_eq!(after("@H n0-0/d n0-0/c", "e1", a, b), [NONE]);
}

#[test]
fn a_link_may_be_to_what_its_name_denoted_before() {
    let calls = [
        MADE,
        (30, 60, "@H n0-0/a n0-0/b", "ok"),
        (32, 34, "@V n0-0/a n0-0/c", "ok"),
        (35, 36, "@P n0-0/b", "e2"),
        (70, 71, "@P n0-0/b", "file 7.1"),
    ];
    assert_eq!(wrong(&calls), [""; 0]);
    let mut early = calls;
    early[2] = (21, 23, "@V n0-0/a n0-0/c", "ok");
    assert_eq!(wrong(&early), [NONE]);
}

#[test]
fn what_a_killed_call_did_is_known_by_who_sees_it() {
    let killed = (10, 0, "@C n0-0/a", "");
    let sees = |what| (30, 31, "@P n0-0/a", what);
    assert_eq!(wrong(&[killed, sees("file 7.1")]), [""; 0]);
    assert_eq!(wrong(&[killed, sees("e2")]), [""; 0]);
    assert_eq!(wrong(&[sees("file 7.1")]), [NONE]);
    let later = (40, 41, "@P n0-0/a", "file 8.1");
    assert_eq!(
        wrong(&[killed, sees("file 7.1"), later]),
        [NONE],
        "it made one"
    );
    // A directory is known by number once it is looked at, by all.
    let made = (10, 20, "@M n0-0/a", "ok");
    assert_eq!(wrong(&[made, sees("dir 7.1")]), [""; 0]);
    assert_eq!(
        wrong(&[made, sees("dir 7.1"), (40, 41, "@P n0-0/a", "dir 8.1")]),
        [NONE]
    );
    let again = [(21, 22, "@D n0-0/a", "ok"), (23, 24, "@M n0-0/a", "ok")];
    let long = (5, 30, "@P n0-0/a", "dir 7.1");
    let then = (40, 41, "@P n0-0/a", "dir 8.1");
    assert_eq!(wrong(&[made, again[0], again[1], long, then]), [""; 0]);
}

#[test]
fn only_a_directory_may_be_no_descriptor() {
    let at = |kind: &str| {
        let made = (10, 20, &*format!("{kind} n0-0/a 7.1 99"), "ok");
        wrong(&[made, (30, 31, "@Q n0-0/a", "e9")])
    };
    assert_eq!(at("@F"), [""; 0]);
    assert_eq!(at("@N"), [NONE]);
}

#[test]
fn files_hold_what_was_written_and_count_their_names() {
    let given = (10, 20, "@N n0-0/a 7.1 99", "ok");
    let holds = |gave| wrong(&[given, (30, 31, "@O n0-0/a", gave)]);
    assert_eq!(holds("file 7.1 99"), [""; 0]);
    for bad in ["file 7.1 0", "file 7.1 98", "file 7.1 part"] {
        assert_eq!(holds(bad), ["a file holds what was not written to it"]);
    }
    let written = (21, 30, "@S 7.1 99", "ok");
    let sees = |start, gave| wrong(&[MADE, written, (start, start + 1, "@Q n0-0/a", gave)]);
    assert_eq!(sees(25, "file 7.1 0"), [""; 0]);
    assert_eq!(sees(25, "file 7.1 99"), [""; 0]);
    assert_eq!(sees(31, "file 7.1 0").len(), 1);
    assert_eq!(wrong(&[given, (30, 31, "@T 7.1", "file 8.1 0")]).len(), 1);
    let links = |n: &str| wrong(&[given, (30, 31, "@Z n0-0/a", &format!("file 7.1 {n}"))]);
    assert_eq!(links("1"), [""; 0]);
    assert_eq!(links("2"), ["links are not names"]);
}
