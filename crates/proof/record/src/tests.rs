//! What the recorder must catch, and what a cut may and may not take.

use std::sync::Arc;

use super::*;
use shale_nvm::{Access, Map, MapOptions, Piece, StoreKind};

const BYTES: usize = 8192;

fn recorded() -> (Arc<Recording>, Arc<Medium>, Map) {
    let recording = Recording::new();
    let medium = recording.medium("nvm");
    let map = MapOptions::new()
        .recorder(medium.clone())
        .anonymous(BYTES)
        .unwrap();
    (recording, medium, map)
}

/// A mapping of the same memory that no recorder watches.
fn unwatched(map: &Map) -> Map {
    let fd = map.fds().next().unwrap().try_clone_to_owned().unwrap();
    Map::open(vec![Piece { fd, bytes: BYTES }], Access::ReadWrite).unwrap()
}

#[test]
fn shadow_follows_every_kind_of_store() {
    let (_recording, medium, map) = recorded();
    map.store(3, b"through the cache");
    map.copy_nt(1000, &[7; 333]);
    map.copy_nt_with(2001, &[&[1; 64], &[2; 100], &[3; 7]]);
    map.zero_nt(1010, 200);
    map.copy_nt_from(&map, 1000, 4001, 300);
    map.store_u64(64, 1);
    map.store_u32(76, 2);
    map.swap_u64(128, 3);
    map.fetch_add_u32(136, 4);
    assert_eq!(map.compare_exchange_u64(144, 0, 5), Ok(0));
    assert_eq!(map.compare_exchange_u64(144, 0, 6), Err(5));
    assert_eq!(medium.verify_shadow(&map), None);
}

#[test]
fn shadow_catches_an_unrecorded_store() {
    let (_recording, medium, map) = recorded();
    map.store(5000, &[1, 2, 3]);
    unwatched(&map).store(5001, &[9]);
    assert_eq!(
        medium.verify_shadow(&map),
        Some(Difference {
            medium: "nvm".to_owned(),
            offset: 5001,
            expected: 2,
            found: 9
        })
    );
}

#[test]
fn events_carry_operation_and_order() {
    let (recording, _medium, map) = recorded();
    set_operation(41);
    map.copy_nt(10, &[1; 150]);
    set_operation(42);
    map.fence();
    set_operation(0);
    let script = recording.script();
    let actions: Vec<(u64, String)> = script
        .events()
        .iter()
        .map(|e| {
            let what = match &e.action {
                Action::Store {
                    kind,
                    offset,
                    bytes,
                } => format!("{kind:?} {offset} {}", bytes.len()),
                Action::Flush { offset, lines } => format!("Flush {offset} {lines}"),
                Action::Fence => "Fence".to_owned(),
            };
            (e.operation, what)
        })
        .collect();
    let expected = [
        (41, "Copy 10 54"),
        (41, "Flush 0 1"),
        (41, "Nt 64 64"),
        (41, "Copy 128 32"),
        (41, "Flush 128 1"),
        (42, "Fence"),
    ];
    assert_eq!(
        actions,
        expected.map(|(operation, what)| (operation, what.to_owned()))
    );
}

#[test]
fn an_unfenced_write_can_be_lost_and_a_fenced_one_cannot() {
    let (recording, medium, map) = recorded();
    map.copy_nt(100, &[7; 300]);
    let unfenced = recording.event_count();
    map.fence();
    let fenced = recording.event_count();
    let script = recording.script();
    let at = |event, choice| script.crash_image(event, medium.index(), &MediaRules::ADR, &choice);
    assert_eq!(at(unfenced, Choice::None)[100..400], [0; 300]);
    assert_eq!(at(unfenced, Choice::All)[100..400], [7; 300]);
    for choice in [Choice::None, Choice::All, Choice::Seed(1)] {
        assert_eq!(at(fenced, choice)[100..400], [7; 300]);
    }
    // Torn: some units new, some old, none mixed.
    let torn = at(unfenced, Choice::Seed(3));
    let units: Vec<&[u8]> = torn[104..400].chunks(8).collect();
    assert!(units.contains(&&[7; 8][..]) && units.contains(&&[0; 8][..]));
    assert!(units.iter().all(|unit| *unit == [7; 8] || *unit == [0; 8]));
}

#[test]
fn a_fence_covers_only_what_was_flushed() {
    let (recording, medium, map) = recorded();
    map.store(0, &[1; 8]);
    map.store(64, &[2; 8]);
    map.flush(64, 8);
    map.store(72, &[3; 8]);
    map.fence();
    let script = recording.script();
    let end = recording.event_count();
    let image = script.crash_image(end, medium.index(), &MediaRules::ADR, &Choice::None);
    assert_eq!(image[0..8], [0; 8], "never flushed");
    assert_eq!(image[64..72], [2; 8], "flushed and fenced");
    assert_eq!(image[72..80], [0; 8], "stored after the flush");
}

#[test]
fn a_fence_covers_only_its_own_thread() {
    let (recording, medium, map) = recorded();
    std::thread::scope(|scope| {
        scope.spawn(|| map.copy_nt(0, &[1; 64])).join().unwrap();
    });
    // A fence here is not one of the thread that streamed. (The thread is gone, but
    // its stack may not be taken over by this one, which still lives.)
    map.fence();
    let script = recording.script();
    let end = recording.event_count();
    let image = script.crash_image(end, medium.index(), &MediaRules::ADR, &Choice::None);
    assert_eq!(image[0..64], [0; 64]);
}

#[test]
fn words_of_a_line_survive_in_order() {
    let (recording, _medium, map) = recorded();
    map.store_u64(0, 1);
    map.store_u64(64, 2);
    map.store_u64(8, 3);
    let script = recording.script();
    let mut replay = script.replay();
    replay.advance_to(3);
    let cut = replay.cut(&MediaRules::ADR);
    assert_eq!(cut.units().len(), 3);
    let last_only = Choice::Mask(&[false, false, true]);
    let image = cut.image(0, &last_only);
    assert_eq!((image[0], image[64], image[8]), (1, 0, 3));
    let unordered = MediaRules {
        line_prefix: false,
        ..MediaRules::ADR
    };
    let image = replay.cut(&unordered).image(0, &last_only);
    assert_eq!((image[0], image[64], image[8]), (0, 0, 3));
}

#[test]
fn rules_switch_eviction_and_cache_persistence() {
    let (recording, _medium, map) = recorded();
    map.store(0, &[1; 8]);
    map.store(64, &[2; 8]);
    map.flush(64, 8);
    map.copy_nt(128, &[3; 64]);
    let script = recording.script();
    let mut replay = script.replay();
    replay.advance_to(recording.event_count());
    let first_bytes = |rules: &MediaRules, choice| {
        let image = replay.cut(rules).image(0, &choice);
        [image[0], image[64], image[128]]
    };
    assert_eq!(first_bytes(&MediaRules::ADR, Choice::All), [1, 2, 3]);
    assert_eq!(
        first_bytes(&MediaRules::NO_EVICTION, Choice::All),
        [0, 2, 3]
    );
    assert_eq!(first_bytes(&MediaRules::EADR, Choice::None), [1, 2, 0]);
    assert_eq!(replay.cut(&MediaRules::ADR).units().len(), 10);
    assert_eq!(replay.cut(&MediaRules::EADR).units().len(), 8);
}

#[test]
fn the_latest_survivor_of_a_unit_wins_and_old_values_do_not_return() {
    let (recording, _medium, map) = recorded();
    map.store_u64(0, 1);
    map.store_u64(0, 2);
    map.flush(0, 8);
    let before = recording.event_count();
    map.fence();
    map.store_u64(0, 3);
    let script = recording.script();
    let mut replay = script.replay();
    replay.advance_to(before);
    let cut = replay.cut(&MediaRules::ADR);
    assert_eq!(cut.image(0, &Choice::Mask(&[true, false]))[0], 1);
    assert_eq!(cut.image(0, &Choice::Mask(&[false, true]))[0], 2);
    replay.advance_to(recording.event_count());
    let cut = replay.cut(&MediaRules::ADR);
    assert_eq!(cut.units().len(), 1);
    assert_eq!(cut.image(0, &Choice::None)[0], 2);
    assert_eq!(cut.image(0, &Choice::All)[0], 3);
}

#[test]
fn one_fence_orders_several_media_and_two_mappings_of_one() {
    let recording = Recording::new();
    let (log, nvm) = (recording.medium("log"), recording.medium("nvm"));
    let first = MapOptions::new()
        .recorder(log.clone())
        .anonymous(BYTES)
        .unwrap();
    let fd = first.fds().next().unwrap().try_clone_to_owned().unwrap();
    let again = MapOptions::new()
        .recorder(recording.medium("log"))
        .open(vec![Piece { fd, bytes: BYTES }], Access::ReadWrite)
        .unwrap();
    let tier = MapOptions::new()
        .recorder(nvm.clone())
        .anonymous(BYTES)
        .unwrap();
    first.copy_nt(0, &[1; 64]);
    again.copy_nt(64, &[2; 64]);
    tier.copy_nt(0, &[3; 64]);
    tier.fence();
    assert_eq!(log.verify_shadow(&first), None);
    assert_eq!(log.verify_shadow(&again), None);
    let script = recording.script();
    let mut replay = script.replay();
    replay.advance_to(recording.event_count());
    assert!(replay.cut(&MediaRules::ADR).units().is_empty());
    let durable = replay.durable(log.index());
    assert_eq!((durable[0], durable[64]), (1, 2));
    assert_eq!(replay.durable(nvm.index())[0], 3);
    assert_eq!(replay.current(nvm.index())[..64], [3; 64]);
}

#[test]
fn restart_takes_the_present_as_durable() {
    let (recording, _medium, map) = recorded();
    map.store(0, &[5; 8]);
    recording.restart();
    map.store(8, &[6; 8]);
    let script = recording.script();
    assert_eq!(script.events().len(), 1);
    let image = script.crash_image(1, 0, &MediaRules::ADR, &Choice::None);
    assert_eq!((image[0], image[8]), (5, 0));
    assert!(matches!(
        script.events()[0].action,
        Action::Store {
            kind: StoreKind::Copy,
            ..
        }
    ));
}
