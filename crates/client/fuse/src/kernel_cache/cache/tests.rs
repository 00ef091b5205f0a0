//! What concerns several inodes, or several threads.

use std::sync::Arc;

use super::*;

const RIGHTS: Rights = Rights {
    uid: 1,
    gid: 2,
    mode: 0o100_644,
};

/// Whether the kernel has to know the size before an answer, if the file is being written.
fn knows_less(cache: &KernelCache, ino: u64, size: u64) -> bool {
    cache.changes(ino);
    cache.before_answer(ino, size, RIGHTS) == BeforeAnswer::Size
}

#[test]
fn what_the_kernel_forgets_is_not_known_any_more() {
    let cache = KernelCache::new(false);
    assert!(!cache.is_mapped_writable(5) && cache.is_alone());
    cache.caches_name(5, b"a");
    cache.lists(6);
    cache.maps_writable(5);
    cache.size_leaves(5, 10, RIGHTS);
    cache.uses(5, 0, true);
    assert!(cache.is_mapped_writable(5) && !cache.is_mapped_writable(6));
    assert!(cache.names_leave(5) && cache.names_leave(6) && !cache.names_leave(7));
    let these = |names: &[&[u8]]| Cached::These(names.iter().map(|&n| n.into()).collect());
    assert_eq!(cache.take_names(5), Some(these(&[b"a"])));
    let kept = |dir, name: &[u8]| cache.keeps_name(dir, name);
    assert!(!kept(5, b"a") && kept(5, b"b") && kept(7, b"a"));
    assert_eq!(cache.take_names(6), Some(these(&[])));
    cache.forget(5);
    assert!(!cache.is_mapped_writable(5) && cache.take_names(5).is_none());
    assert!(!cache.holds_answer(5) && cache.others(5, 1).is_none());
    cache.forget(6);
    assert!(
        cache
            .shards
            .iter()
            .all(|s| s.inodes.lock().lasting.is_empty())
    );
    cache.set_others(2);
    assert!(!cache.is_alone());
}

#[test]
fn only_the_first_answer_about_a_file_that_was_away_is_held_back() {
    let cache = KernelCache::new(false);
    assert!(!cache.holds_answer(5));
    cache.size_leaves(5, 10, RIGHTS);
    assert!(cache.holds_answer(5) && knows_less(&cache, 5, 10) && !cache.holds_answer(6));
    assert!(!knows_less(&cache, 5, 9));
    cache.size_not_answered(5);
    assert!(cache.holds_answer(5), "the kernel still does not know it");
    cache.size_answered(5, 10);
    assert!(!cache.holds_answer(5) && !knows_less(&cache, 5, 10));
    cache.size_leaves(5, 10, RIGHTS);
    assert!(cache.holds_answer(5));
    cache.forget(5);
    assert!(!knows_less(&cache, 5, 10));
    cache.size_answered(5, 10);
    assert!(
        cache
            .shards
            .iter()
            .all(|s| s.inodes.lock().lasting.is_empty())
    );
}

#[test]
fn an_answer_that_changes_rights_or_that_nothing_can_drop_is_sent_as_it_is() {
    let cache = KernelCache::new(false);
    cache.size_leaves(5, 10, RIGHTS);
    let nothing = cache.before_answer(5, 10, RIGHTS);
    assert_eq!(nothing, BeforeAnswer::Nothing, "nobody writes it");
    assert!(cache.holds_answer(5) && knows_less(&cache, 5, 10));
    let closed = Rights {
        mode: 0o100_600,
        ..RIGHTS
    };
    let changed = cache.before_answer(5, 10, closed);
    assert_eq!(changed, BeforeAnswer::Rights);
    cache.rights_answered(5, closed);
    assert!(
        cache.holds_answer(5),
        "the size may be known at the next one"
    );
    let size = cache.before_answer(5, 10, closed);
    assert_eq!(size, BeforeAnswer::Size);
    cache.size_answered(5, 10);
    assert!(!cache.holds_answer(5));
}

#[test]
fn nothing_is_known_of_what_a_process_before_answered() {
    let cache = KernelCache::new(true);
    assert!(cache.holds_answer(5) && !knows_less(&cache, 5, 0));
    let first = cache.before_answer(5, 0, RIGHTS);
    assert_eq!(first, BeforeAnswer::Rights, "it may know others");
    cache.rights_answered(5, RIGHTS);
    assert!(cache.holds_answer(5) && knows_less(&cache, 5, 0));
    cache.size_answered(5, 10);
    assert!(!cache.holds_answer(5));
    cache.size_leaves(5, 10, RIGHTS);
    assert!(cache.holds_answer(5) && !knows_less(&cache, 5, 9));
    cache.forget(6);
    assert!(!cache.holds_answer(6));
    assert!(cache.is_shared(7, &[]), "nothing is known yet");
    assert!(cache.names_are_unknown());
    cache.names_are_known();
    assert!(!cache.names_are_unknown());
}

#[test]
fn not_all_known_sizes_are_remembered() {
    let cache = KernelCache::new(true);
    let last = (3 * KNOWN_MAX * SHARDS) as u64;
    (0..=last).for_each(|ino| cache.forget(ino));
    let known = |s: &Shard| s.inodes.lock().known_sizes.len();
    assert!(cache.shards.iter().all(|s| known(s) <= KNOWN_MAX));
    assert!(cache.holds_answer(1), "it is as if nothing were known");
    assert!(!cache.holds_answer(last));
}

#[test]
fn a_file_does_not_leave_under_an_answer() {
    let cache = Arc::new(KernelCache::new(false));
    cache.size_leaves(5, 1, RIGHTS);
    assert!(cache.holds_answer(5));
    let other = cache.clone();
    let leaving = std::thread::spawn(move || other.size_leaves(5, 2, RIGHTS));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!leaving.is_finished());
    cache.size_answered(5, 2);
    leaving.join().unwrap();
    assert!(knows_less(&cache, 5, 2), "it has left after the answer");
}

#[test]
fn who_fills_a_page_waits_for_the_change_but_not_for_ever() {
    let cache = Arc::new(KernelCache::new(false));
    let last = cache.last_fill(5);
    assert!(cache.bypass(5, last, false));
    let begun = Instant::now();
    cache.fills(6, (0, 1));
    assert!(begun.elapsed() < BYPASS_WAIT_MAX, "another file");
    cache.fills(5, (0, 1));
    assert!(begun.elapsed() >= BYPASS_WAIT_MAX);
    assert!(cache.end_bypass(5, last), "the page may be old");
    let last = cache.last_fill(5);
    assert!(cache.bypass(5, last, false));
    let other = cache.clone();
    let filling = std::thread::spawn(move || other.fills(5, (0, 1)));
    std::thread::sleep(Duration::from_millis(2));
    let filled = cache.end_bypass(5, last);
    filling.join().unwrap();
    assert!(filled || cache.last_fill(5) != last);
}

#[test]
fn a_change_under_way_is_known_though_the_kernel_forgets_the_inode() {
    let cache = KernelCache::new(false);
    let last = cache.last_fill(5);
    assert!(cache.bypass(5, last, false));
    cache.forget(5);
    assert!(!cache.end_bypass(5, last));
}

#[test]
fn a_write_is_overtaken_if_pages_were_dropped_a_moment_ago() {
    let cache = KernelCache::new(false);
    cache.fills(5, (0, 4096));
    assert!(!cache.overtakes(5, 0, 10), "nothing was dropped");
    cache.dropping(5, true);
    cache.dropped(5);
    cache.fills(5, (0, 10));
    cache.fills(6, (0, 10));
    assert!(cache.overtakes(5, 0, 10) && !cache.overtakes(5, 0, 0));
    assert!(
        !cache.overtakes(6, 0, 1),
        "of this file nothing was dropped"
    );
    let next = KernelCache::new(true);
    next.fills(5, (0, 1));
    assert!(next.overtakes(5, 0, 1) && !next.overtakes(6, 0, 1));
}

/// Of files used long ago nothing is known, but for what has to be: pages dropped a moment ago, and changes under way.
#[test]
fn files_used_long_ago_do_not_stay() {
    let cache = KernelCache::new(false);
    let in_one_shard = |ino: &u64| std::ptr::eq(cache.shard(*ino), cache.shard(0));
    let mut files = (1..).filter(in_one_shard);
    let mut next = || files.next().unwrap();
    let (changing, dropped, known, first) = (next(), next(), next(), next());
    let last = cache.last_fill(changing);
    assert!(cache.bypass(changing, last, false));
    let forgotten = cache.last_fill(known);
    cache.uses(first, 0, true);
    cache.dropping(dropped, true);
    cache.fills(dropped, (0, 1));
    let mut use_many = || {
        let mut ino = 0;
        for _ in 0..3 * FILES_MAX {
            ino = next();
            cache.uses(ino, 0, true);
            cache.uses(0, 0, true);
        }
        ino
    };
    let newest = use_many();
    assert!(cache.overtakes(dropped, 0, 1), "within a second");
    assert!(!cache.end_bypass(changing, last));
    let count = |inodes: &Inodes| inodes.young.len() + inodes.old.len();
    assert!(count(&cache.lock(0)) <= 2 * FILES_MAX + 2);
    assert!(cache.others(0, 2).is_some(), "used again and again");
    assert!(cache.others(newest, 2).is_some());
    assert_eq!(cache.others(first, 2), None);
    assert_ne!(cache.last_fill(known), forgotten, "there may be pages");
    cache.lock(0).known(dropped).unwrap().pages.age();
    use_many();
    assert!(cache.lock(0).known(dropped).is_none());
}
