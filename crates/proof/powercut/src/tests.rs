//! The whole way: workloads, all cuts, recovery, model. And that wrong things are seen.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shale_nvm::counters::Path;
use shale_nvm::{LINE_BYTES, MapOptions, StoreKind};
use shale_record::{Action, BlockRules, Choice, MediaRules, Recorded, Recording};

use crate::explore::explorer::{Depth, Explorer, Known};
use crate::images::{ALL_SUBSETS, Caches, Cutter, Image};
use crate::recording::record;
use crate::recovery::check;
use crate::recovery::rot;
use crate::volume::base::{Base, More};
use crate::volume::place::Place;
use crate::workloads::campaign::{self, Options};
use crate::workloads::sequences::Kind;
use crate::workloads::whole::{self, Set};
use shale_bench::chance::Chance;

fn shm() -> &'static std::path::Path {
    "/dev/shm".as_ref()
}

#[test]
fn cuts_of_a_few_workloads() {
    let base = Base::make(shm(), More::Nothing).unwrap();
    let known = Arc::new(Known::default());
    let mut explorer = Explorer::new(shm(), base, Depth::default(), known.clone()).unwrap();
    for words in [
        "0 D",
        "L 24 17",
        "O 24 17",
        "M",
        "W 84 D 13",
        "b58 89 D b159 b117",
        "151 D 160",
        "N 155 141 K 141",
    ] {
        let workload = words.parse().unwrap();
        let found = explorer.explore(&workload, 1, &|| false).unwrap();
        assert!(found.is_ok(), "{:#?}", found.unwrap_err());
    }
    let counts = &known.counts;
    assert!(counts.states.load(Ordering::Relaxed) > 1_000, "{counts:?}");
    assert!(
        counts.states_again.load(Ordering::Relaxed) > 100,
        "{counts:?}"
    );
    assert!(
        counts.states_third.load(Ordering::Relaxed) > 0,
        "{counts:?}"
    );
}

/// Everything that moves below NVM is there after a cut; a device that says it has flushed and has
/// not is found out.
#[test]
fn cuts_with_tiers_below() {
    let base = Base::make(shm(), More::Tiers).unwrap();
    let workload = "S 1126 v1159".parse().unwrap();
    let depth = Depth {
        images_per_cut: 1,
        all_subsets: 1,
        again_every: 0,
        ..Depth::TIERS
    };
    let known = Arc::new(Known::default());
    let mut explorer = Explorer::new(shm(), base.clone(), depth, known.clone()).unwrap();
    let found = explorer.explore(&workload, 1, &|| false).unwrap();
    assert!(found.is_ok(), "{:#?}", found.unwrap_err());
    let states = known.counts.states.load(Ordering::Relaxed);
    assert!(states > 20, "{states} states");
    let lies = Depth {
        devices: BlockRules { flush_lies: true },
        ..depth
    };
    let mut explorer = Explorer::new(shm(), base, lies, Arc::default()).unwrap();
    let found = explorer.explore(&workload, 1, &|| false).unwrap();
    let wrong = found.unwrap_err().wrong;
    assert!(wrong.contains("does not fit"), "{wrong}");
}

#[test]
fn a_campaign_keeps_its_limits() {
    let options = Options {
        dir: shm().to_path_buf(),
        kinds: vec![(Kind::Ones, 3), (Kind::Two, 1)],
        only: None,
        large: false,
        full: false,
        policy: shale_format::Durability::Strict,
        seed: 7,
        shard: (0, 1),
        in_order: false,
        threads: 2,
        time_limit: Duration::from_secs(60),
        states_max: 100_000,
        failures_max: 1,
        minimise: true,
        mutant: None,
        depth: Depth {
            images_per_cut: 12,
            again_every: 0,
            ..Depth::default()
        },
    };
    // In order, the two halves are all of them.
    let halves = [0, 1].map(|half| {
        let kinds = vec![(Kind::Ones, 5)];
        let options = Options {
            kinds,
            in_order: true,
            shard: (half, 2),
            ..options.clone()
        };
        campaign::run(&options, &|_, _| ()).unwrap().workloads[0].1
    });
    assert_eq!(halves, [2, 3]);
    let summary = campaign::run(&options, &|_, _| ()).unwrap();
    assert!(summary.failures.is_empty(), "{summary:#?}");
    assert!(summary.complete);
    assert_eq!(summary.workloads, [("ones", 3), ("two", 1)]);
    let threads = Options {
        kinds: vec![(Kind::Threads, 2)],
        ..options
    };
    let summary = campaign::run(&threads, &|_, _| ()).unwrap();
    assert!(summary.failures.is_empty(), "{summary:#?}");
}

/// What two parts met counts once, and a part that is missing is missed.
#[test]
fn parts_are_added_up() {
    let base = Base::make(shm(), More::Nothing).unwrap();
    let dir = tempfile::tempdir_in(shm()).unwrap();
    let depth = Depth {
        images_per_cut: 12,
        again_every: 0,
        ..Depth::default()
    };
    let mut each = Vec::new();
    for (i, words) in ["0", "0 D"].into_iter().enumerate() {
        assert_eq!(
            whole::sum(dir.path(), Set::Whole, 2).unwrap().parts,
            (i as u64, 2)
        );
        let known = Arc::new(Known::default());
        let mut explorer = Explorer::new(shm(), base.clone(), depth, known.clone()).unwrap();
        let found = explorer.explore(&words.parse().unwrap(), 1, &|| false);
        assert!(found.unwrap().is_ok());
        let part = whole::Part {
            workloads: 1,
            states: known.counts.states.load(Ordering::Relaxed),
            ..whole::Part::default()
        };
        assert_eq!(part.states, known.images().len() as u64);
        whole::keep(dir.path(), Set::Whole, (i as u64, 2), &part, &known).unwrap();
        each.push(part.states);
    }
    let sum = whole::sum(dir.path(), Set::Whole, 2).unwrap();
    assert_eq!((sum.parts, sum.part.workloads), ((2, 2), 2));
    assert!(sum.states < each[0] + each[1] && sum.states >= each[1]);
}

#[test]
fn a_flipped_bit_is_found_and_put_back() {
    let base = Base::make(shm(), More::Large).unwrap();
    let place = Place::new(shm(), &base).unwrap();
    for seed in 0..8 {
        let found = rot::flip_bits(&place, &base.tree, &mut Chance::new(seed));
        assert_eq!(found, Ok(()));
    }
    let mut after = vec![0; base.segment.len()];
    place.segment.load(0, &mut after);
    assert!(after == base.segment);
}

#[test]
fn a_volume_that_lost_a_store_is_seen() {
    let base = Base::make(shm(), More::Nothing).unwrap();
    let mut place = Place::new(shm(), &base).unwrap();
    let run = record::run(&mut place, &base, &"0 D".parse().unwrap())
        .unwrap()
        .unwrap();
    let mut cutter = Cutter::new(
        &run.events,
        &base.segment,
        Image::default(),
        Caches::Volatile,
    );
    while cutter.step() {}
    let whole = cutter.cut().image(&[]);
    let recovered = check::recover(&mut place, &base, &whole, 1, &|_| None)
        .unwrap()
        .unwrap();
    assert_eq!(
        recovered.tree.as_ref().unwrap(),
        &**run.tracks[0].trees.last().unwrap()
    );
    assert_eq!(check::fsck(&place), Ok(()));
    place.reset(&base).unwrap();
    // Nothing of the log and nothing of the digest: the operation is gone.
    let before_step = run.tracks[0].steps[0].0;
    let mut cutter = Cutter::new(
        &run.events[..before_step],
        &base.segment,
        Image::default(),
        Caches::Volatile,
    );
    while cutter.step() {}
    let lost = cutter.cut().image(&[]);
    let recovered = check::recover(&mut place, &base, &lost, 1, &|_| None)
        .unwrap()
        .unwrap();
    assert_eq!(recovered.tree.as_ref().unwrap(), &*run.tracks[0].trees[0]);
    assert_ne!(
        recovered.tree.as_ref().unwrap(),
        &**run.tracks[0].trees.last().unwrap()
    );
}

/// The quick cutter leaves what that of `shale-record` leaves.
#[test]
fn images_are_those_of_the_device() {
    const BYTES: usize = 4096;
    let mut chance = Chance::new(3);
    for round in 0..60 {
        let recording = Recording::new();
        let medium = recording.medium("nvm");
        let map = MapOptions::new().recorder(medium).anonymous(BYTES).unwrap();
        for _ in 0..12 {
            let at = chance.below(200) as usize;
            match chance.below(5) {
                0 => map.store_u64(at / 8 * 8, chance.next_u64()),
                1 => map.store(at, &chance.bytes(1 + at % 20)),
                2 => map.copy_nt(at, &chance.bytes(1 + at)),
                3 => map.flush(at, 1 + at),
                _ => map.fence(),
            }
        }
        let script = recording.script();
        let base = script.initial(0).to_vec();
        for (rules, caches) in [
            (MediaRules::ADR, Caches::Volatile),
            (MediaRules::EADR, Caches::Persistent),
        ] {
            let mut cutter = Cutter::new(script.events(), &base, Image::default(), caches);
            let mut replay = script.replay();
            loop {
                let (quick, slow) = (cutter.cut(), replay.cut(&rules));
                let same = quick.uncertain() == slow.units().len();
                assert!(same || caches == Caches::Persistent, "round {round}");
                for mut mask in quick.masks(20, ALL_SUBSETS, &mut chance) {
                    let expected = match mask.first() {
                        _ if same => slow.image(0, &Choice::Mask(&mask)),
                        Some(true) if mask.iter().all(|&m| m) => slow.image(0, &Choice::All),
                        None => slow.image(0, &Choice::None),
                        _ => continue,
                    };
                    let hash = quick.hash(&mut mask);
                    let image = quick.image(&mask);
                    assert_eq!(image.hash, hash, "the hash of an image without making it");
                    let mut found = base.clone();
                    for (key, value) in image.units() {
                        found[key.offset()..key.offset() + 8].copy_from_slice(&value);
                    }
                    assert!(found == expected, "round {round}, event {}", cutter.at());
                }
                if !cutter.step() {
                    break;
                }
                replay.step();
            }
        }
    }
}

#[test]
fn small_cuts_are_looked_at_in_full() {
    let event = |n: u8| Recorded {
        medium: 0,
        thread: 0,
        operation: 0,
        path: Path::Data,
        action: Action::Store {
            kind: StoreKind::Nt,
            offset: usize::from(n) * LINE_BYTES,
            bytes: [n + 1; 8].into(),
        },
    };
    let events: Vec<Recorded> = (0..6).map(event).collect();
    let base = vec![0; 4096];
    let mut cutter = Cutter::new(&events, &base, Image::default(), Caches::Volatile);
    while cutter.step() {}
    let cut = cutter.cut();
    let mut seen = HashMap::new();
    for mut mask in cut.masks(100, ALL_SUBSETS, &mut Chance::new(1)) {
        seen.insert(cut.hash(&mut mask), mask);
    }
    assert_eq!(seen.len(), 64);
}

#[test]
fn long_runs_go_on_after_faults() {
    let base = Base::make(shm(), More::Nothing).unwrap();
    let known = Arc::new(Known::default());
    let depth = Depth {
        images_per_cut: 6,
        all_subsets: 16,
        ..Depth::default()
    };
    let mut explorer = Explorer::new(shm(), base, depth, known.clone()).unwrap();
    let mut whole = Kind::Runs.workload(1, 1);
    whole.steps.truncate(450);
    let words = [
        "N 3 b5 Xa 1017 K b40 U 17 D K",
        // A file without a name gets one, loses it, and gets none any more.
        "N 160 166 97 166",
        &whole.to_string(),
    ];
    for words in words {
        let workload = words.parse().unwrap();
        let found = explorer.explore(&workload, 1, &|| false).unwrap();
        assert!(found.is_ok(), "{:#?}", found.unwrap_err());
    }
    let count = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
    let counts = &known.counts;
    assert_eq!(count(&counts.steps), 14 + whole.steps.len() as u64);
    assert!(count(&counts.faults) > 5, "{counts:?}");
    assert!(count(&counts.states) > 200, "{counts:?}");
    // The places hold their base again.
    let found = explorer
        .explore(&"0 D".parse().unwrap(), 1, &|| false)
        .unwrap();
    assert!(found.is_ok(), "{:#?}", found.unwrap_err());
}
