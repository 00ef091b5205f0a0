//! Full volumes, seed by seed. `SEEDS=from..to` runs others.

use crate::load::Load;
use crate::place::Place;

/// Seeds that run always.
const SEEDS: std::ops::Range<u64> = 0..2;

fn seeds() -> std::ops::Range<u64> {
    let text = std::env::var("SEEDS").unwrap_or_default();
    let ends: Option<Vec<u64>> = text.split("..").map(|n| n.parse().ok()).collect();
    match ends.as_deref() {
        Some(&[from, to]) => from..to,
        _ => SEEDS,
    }
}

/// Fills the volume with files of sizes that the seed chooses, so that free space lies
/// in pieces.
fn fill(load: &mut Load) {
    let most = [3_000, 20_000, 200_000][load.chance.below(3) as usize];
    for _ in 0..2 {
        while {
            let bytes = load.chance.below(most);
            load.make(bytes)
        } {}
        for _ in 0..load.chance.below(200) {
            load.unlink();
        }
        load.digest();
    }
}

/// Space was reserved for everything that was digested: the reserves are whole, but for
/// a few inner nodes that have split.
#[track_caller]
fn reserves_are_whole(place: &Place) {
    const INNER_NODES: u64 = 8;
    let volume = place.daemon().volume();
    let space = volume.space();
    let orphans = (volume.inodes() * 128).div_ceil(4096);
    assert!(
        space.free + space.pending + space.taken + INNER_NODES >= space.reserved_fixed + orphans,
        "{space:?}, {orphans} for orphans"
    );
}

/// Makes some space and has it digested, so that the records to come have space and wait.
fn make_space(load: &mut Load) {
    let mut bytes = load.chance.below(6 << 20);
    while bytes > 0 {
        bytes = bytes.saturating_sub(load.unlink());
    }
    for _ in 0..load.chance.below(40) {
        load.forget();
    }
    load.digest();
}

#[test]
fn a_full_volume_is_recovered_to_its_last_record() {
    let mut most = 0;
    for seed in seeds() {
        println!("SEEDS={seed}..{}", seed + 1);
        let mut place = Place::new(32);
        let mut load = Load::new(place.attach(true), seed);
        fill(&mut load);
        for kill in 0..6 {
            make_space(&mut load);
            reserves_are_whole(&place);
            for _ in 0..load.chance.below(500) {
                load.step();
            }
            place.kill();
            place.start();
            let report = place.daemon().recovery().clone();
            assert!(report.problems.is_empty(), "kill {kill}: {report:?}");
            reserves_are_whole(&place);
            load.go_on(place.attach(true));
            load.verify();
            println!("  {} records, {} refused", report.records, load.refused);
            most = most.max(report.records);
        }
        place.stop();
        place.check();
    }
    assert!(most > 20, "records waited at a kill: {most} at most");
}

/// The same for a daemon that runs: no log of a client ever stops.
#[test]
fn a_running_daemon_digests_a_full_volume() {
    for seed in seeds() {
        println!("SEEDS={seed}..{}", seed + 1);
        let mut place = Place::new(32);
        let session = place.attach(true);
        let mut load = Load::new(session.clone(), seed);
        fill(&mut load);
        for _ in 0..10 {
            make_space(&mut load);
            for _ in 0..load.chance.below(200) {
                load.step();
            }
            reserves_are_whole(&place);
        }
        load.verify();
        assert_eq!(place.daemon().status_values().digest.last_error, None);
        drop(load);
        session.detach().expect("all of it is digested");
        drop(session);
        place.stop();
        place.check();
    }
}

/// Each overwrite breaks the one extent of a file in two, so each file gets a tree.
#[test]
fn overwrites_that_break_every_extent_have_space() {
    let mut place = Place::new(32);
    let mut load = Load::new(place.attach(true), 1);
    while load.make(8192) {}
    load.digest();
    for round in 0..3 {
        for _ in 0..100 {
            load.unlink();
        }
        load.forget_all();
        load.digest();
        let before = load.refused;
        let written = load.overwrite_each_once(|load| load.refused < before + 3);
        assert!(written > 20, "{written}");
        place.kill();
        place.start();
        let report = place.daemon().recovery().clone();
        assert!(report.problems.is_empty(), "round {round}: {report:?}");
        reserves_are_whole(&place);
        load.go_on(place.attach(true));
        load.verify();
    }
    place.stop();
    place.check();
}

/// The last name of every file goes while the file is in use: each becomes an orphan, and
/// the directory of orphans grows without anybody asking for space.
#[test]
fn every_name_can_go_on_a_full_volume() {
    let mut place = Place::new(32);
    let mut load = Load::new(place.attach(true), 5);
    load.make(24 << 20);
    while load.make(0) {}
    load.digest();
    let files = load.names();
    assert!(files > 3000, "{files}");
    load.unlink_all_in_use(files / 2);
    load.digest();
    reserves_are_whole(&place);
    load.unlink_all_in_use(files);
    place.kill();
    place.start();
    let report = place.daemon().recovery().clone();
    assert!(report.problems.is_empty(), "{report:?}");
    assert_eq!(report.orphans_freed, files as u64);
    load.go_on(place.attach(true));
    load.verify();
    place.stop();
    place.check();
}

/// The first device below NVM comes to a full volume whose client has logged what reserves no space for
/// it, and goes on.
#[test]
fn a_full_volume_gets_flash_under_a_client() {
    for seed in seeds() {
        println!("SEEDS={seed}..{}", seed + 1);
        let mut place = Place::new(32);
        let session = place.attach(true);
        let mut load = Load::new(session.clone(), seed);
        fill(&mut load);
        let logged = || place.daemon().status_values().space.dirty_bytes;
        loop {
            make_space(&mut load);
            for _ in 0..100 {
                load.step();
            }
            // A digest may have been asked for by the last step.
            while logged() == 0 {
                load.step();
            }
            if place.add_flash(64) {
                break;
            }
        }
        assert_eq!(
            logged(),
            0,
            "all of it is digested before anything goes below"
        );
        for _ in 0..10 {
            for _ in 0..60 {
                load.step();
            }
            place.daemon().migrate(Some(4 << 20)).expect("migrate");
        }
        load.verify();
        let flash = &place.daemon().status_values().tiers[0];
        assert!(flash.live_bytes > 0);
        assert_eq!(place.daemon().status_values().digest.last_error, None);
        drop(load);
        session.detach().expect("all of it is digested");
        drop(session);
        place.stop();
        place.check();
    }
}
