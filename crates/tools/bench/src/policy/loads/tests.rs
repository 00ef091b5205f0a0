//! Each load leaves what it says, and the same seed does the same.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;

/// Paths below a directory with their sizes.
fn tree(dir: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(at) = left.pop() {
        for entry in std::fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let data = std::fs::metadata(&path).unwrap();
            match data.is_dir() {
                true => left.push(path),
                false => {
                    let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
                    found.insert(name, data.len());
                }
            }
        }
    }
    found
}

fn options(operations: u64) -> LoadOptions {
    LoadOptions {
        threads: 1,
        limit: Limit::Operations(operations),
        files: Some(60),
        io_bytes: None,
        sync_percent: None,
        seed: 7,
    }
}

/// What a load did, what was there when it began and what is there at its end.
fn ran(load: Load, options: &LoadOptions) -> (Found, BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = place.path().join("load");
    let mut before = BTreeMap::new();
    let found = run(load, &dir, options, || {
        before = tree(&dir);
        Ok(())
    });
    (found.unwrap(), before, tree(&dir))
}

fn bytes(tree: &BTreeMap<String, u64>) -> u64 {
    tree.values().sum()
}

#[test]
fn the_same_seed_does_the_same_and_another_one_does_not() {
    for load in Load::ALL {
        let (a, first, last) = ran(load, &options(400));
        let (b, first_again, last_again) = ran(load, &options(400));
        let b = Found {
            seconds: a.seconds,
            ..b
        };
        assert_eq!(
            (&a, &first, &last),
            (&b, &first_again, &last_again),
            "{load}"
        );
        assert!((400..500).contains(&a.operations), "{load}: {a:?}");
        let other = LoadOptions {
            seed: 8,
            ..options(400)
        };
        let (_, first_of_other, _) = ran(load, &other);
        assert!(load == Load::Tpcc || first_of_other != first, "{load}");
    }
}

#[test]
fn what_has_no_fsync_has_none_and_what_is_synced_is() {
    for load in Load::ALL {
        let (found, ..) = ran(load, &options(20_000));
        let share = found.synced_bytes as f64 / found.written_bytes.max(1) as f64;
        let expected = match load {
            Load::Varmail => 1.0..=1.0,
            // Published: over 90%.
            Load::Tpcc => 0.9..=1.0,
            // Published: many.
            Load::Facebook => 0.8..=1.0,
            Load::Usr0 => 0.3..=0.5,
            Load::Usr1 => 0.5..=0.7,
            // Published: none.
            _ => 0.0..=0.0,
        };
        assert!(expected.contains(&share), "{load}: {share}");
        assert_eq!(found.fsyncs > 0, share > 0.0, "{load}");
    }
    let chosen = LoadOptions {
        sync_percent: Some(0),
        ..options(2_000)
    };
    assert_eq!(ran(Load::Facebook, &chosen).0.fsyncs, 0);
}

#[test]
fn servers_keep_about_as_many_files_and_write_what_is_there() {
    for load in Load::SERVERS {
        let (found, before, after) = ran(load, &options(3_000));
        // Four of five files, and the log.
        assert!(
            (36..=60).contains(&before.len()),
            "{load}: {}",
            before.len()
        );
        assert!(after.len() <= 61, "{load}");
        let log = after["log"];
        match load {
            Load::Webserver => {
                assert_eq!(found.written_bytes, log, "only the log is written");
                assert_eq!(bytes(&before) + log, bytes(&after));
            }
            Load::Webproxy => assert!(log > 0 && log < found.written_bytes),
            _ => assert_eq!(log, 0, "{load}"),
        }
        assert!(found.read_bytes > 0 && found.written_bytes > 0, "{load}");
    }
}

#[test]
fn calls_have_the_size_that_is_asked_for() {
    let small = LoadOptions {
        io_bytes: Some(1_000),
        ..options(5_000)
    };
    let (found, ..) = ran(Load::Fileserver, &small);
    let bytes = found.written_bytes + found.read_bytes;
    // Most calls read or write then, and none more than this.
    assert!(bytes <= found.operations * 1_000, "{found:?}");
    assert!(bytes > found.operations * 700, "{found:?}");
    let (pages, ..) = ran(
        Load::Tpcc,
        &LoadOptions {
            io_bytes: Some(64),
            ..options(5_000)
        },
    );
    let of_four = pages.read_bytes / 4_096;
    assert_eq!(pages.read_bytes % 4_096, 0, "pages stay pages: {of_four}");
}

#[test]
fn postmark_makes_files_of_its_sizes() {
    let (found, before, after) = ran(Load::Postmark, &options(4_000));
    assert_eq!(before.len(), 60);
    assert!(before.values().all(|n| (500..=9_770).contains(n)));
    assert!(after.len() < 120 && after != before);
    assert!(found.written_bytes <= 512 * found.operations);
}

#[test]
fn a_build_makes_an_object_of_each_source_and_a_search_writes_nothing() {
    // 30 calls at least for each source, and 60 sources.
    let (found, before, after) = ran(Load::KernelMake, &options(8_000));
    let of_kind = |tree: &BTreeMap<String, u64>, end: &str| {
        tree.keys().filter(|name| name.ends_with(end)).count()
    };
    assert_eq!((of_kind(&before, ".c"), of_kind(&before, ".h")), (60, 30));
    assert_eq!(before.len(), 90);
    assert_eq!(of_kind(&after, ".c"), 60);
    let objects = of_kind(&after, ".o") - of_kind(&after, "built-in.o");
    assert_eq!((objects, of_kind(&after, "built-in.o")), (60, 3));
    assert_eq!((of_kind(&after, ".cmd"), of_kind(&after, ".d")), (60, 0));
    assert!(found.written_bytes > bytes(&after) - bytes(&before));

    let (found, before, after) = ran(Load::KernelGrep, &options(900));
    assert_eq!((found.written_bytes, &before), (0, &after));
    assert!(found.read_bytes >= bytes(&after), "all of it once");
}

#[test]
fn a_database_keeps_its_size_and_its_journal_is_cut() {
    let (_, before, after) = ran(Load::Tpcc, &options(64 * 19));
    assert_eq!(before["database"], 60 * 65_536);
    assert_eq!(after["database"], before["database"]);
    // 18 calls a transaction; the checkpoint after 64 of them, 2 more, cuts the journal.
    assert_eq!(after["journal"], 4 * (4 * 4_096 + 128));
}

#[test]
fn threads_share_a_load_and_seconds_end_it() {
    for load in Load::ALL {
        let two = LoadOptions {
            threads: 2,
            limit: Limit::Seconds(0.05),
            ..options(0)
        };
        let (found, ..) = ran(load, &two);
        assert!(found.operations > 0, "{load}");
        assert!((0.05..10.0).contains(&found.seconds), "{load}: {found:?}");
    }
}

#[test]
fn a_call_that_fails_ends_the_load_and_says_where() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let long = LoadOptions {
        limit: Limit::Seconds(60.0),
        ..options(0)
    };
    let failed = run(Load::KernelGrep, place.path(), &long, || {
        std::fs::remove_file(place.path().join("0001/000030.c")).unwrap();
        Ok(())
    });
    let text = failed.unwrap_err().to_string();
    assert!(
        text.contains("kernel-grep") && text.contains("000030.c"),
        "{text}"
    );
}

#[test]
fn every_load_has_a_name_and_a_place_in_a_figure() {
    for load in Load::ALL {
        assert_eq!(Load::named(load.name()), Ok(load));
        let figures = [Load::SERVERS, Load::TRACES, Load::PROGRAMS];
        assert!(figures.iter().any(|of| of.contains(&load)), "{load}");
        let synthetic = load.caveat().is_some_and(|text| text.contains("synthetic"));
        assert_eq!(Load::TRACES.contains(&load), synthetic, "{load}");
    }
    assert!(Load::named("fly").unwrap_err().contains("varmail"));
}
