//! The corpus that is in the tree goes through, and inputs that are made of it at random; and how
//! it was made.
//!
//! `SHALE_FUZZ_SEED=N`: other random inputs; `SHALE_FUZZ_INPUTS=N`: more of them for each target.

use std::path::PathBuf;

use super::{decoders, images, logs, messages, staged};
use shale_bench::chance::Chance;

fn corpus(target: &str) -> PathBuf {
    let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus");
    PathBuf::from(place).join(target)
}

/// Longest input that is made.
const BYTES_MAX: usize = 4096;

/// Runs the corpus, then so many inputs made of it at random.
fn run_all(target: &str, random: u64, run: impl Fn(&[u8])) {
    let entries = std::fs::read_dir(corpus(target)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut inputs: Vec<Vec<u8>> = Vec::new();
    for path in paths {
        println!("{}", path.display());
        inputs.push(std::fs::read(path).unwrap());
        run(inputs.last().unwrap());
    }
    assert!(inputs.len() > 1, "{target}: {} inputs", inputs.len());
    let number = |name, usual| std::env::var(name).map_or(usual, |n| n.parse().unwrap());
    let seed = number("SHALE_FUZZ_SEED", 1);
    for n in 0..number("SHALE_FUZZ_INPUTS", random) {
        let mut chance = Chance::new(seed << 32 ^ n);
        let input = changed(&inputs, &mut chance);
        // The last one that is printed is the one that failed.
        println!("{target} {n}: {}", input.escape_ascii());
        run(&input);
    }
}

/// An input of the corpus with a few changes.
fn changed(inputs: &[Vec<u8>], chance: &mut Chance) -> Vec<u8> {
    let any = |chance: &mut Chance| &inputs[chance.below(inputs.len() as u64) as usize];
    let mut input = any(chance).clone();
    for _ in 0..=chance.below(6) {
        let at = chance.below(input.len() as u64 + 1) as usize;
        let end = (at + chance.below(24) as usize).min(input.len());
        match chance.below(6) {
            0 => drop(input.drain(at..end)),
            1 => drop(input.splice(at..at, (at..end).map(|n| n as u8 ^ 0x5a))),
            2 => input[at..end].fill([0, 0xff][chance.below(2) as usize]),
            3 => drop(input.splice(at.., any(chance).iter().copied().skip(at))),
            4 => input.extend(any(chance)),
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << chance.below(8);
                }
            }
        }
        input.truncate(BYTES_MAX);
    }
    input
}

#[test]
fn decoders_stand_anything() {
    run_all("decoders", 20_000, decoders::run);
}

#[test]
fn a_daemon_stands_any_messages() {
    run_all("messages", 150, messages::run);
    messages::check();
    messages::finish();
}

#[test]
fn recovery_stands_any_log() {
    run_all("logs", 400, logs::run);
    logs::finish();
}

#[test]
fn repair_stands_any_image() {
    run_all("images", 60, images::run);
    images::finish();
}

#[test]
fn a_staged_area_stands_any_changes() {
    run_all("staged", 60, staged::run);
}

/// Structures of a volume and messages, each behind the number of its kind.
fn structures() -> Vec<(String, Vec<u8>)> {
    use shale_format::limits::BLOCK_BYTES;
    use shale_powercut::volume::base::{Base, More};
    use shale_proto::{Reply, Request, message::encode};
    let base = Base::make("/dev/shm".as_ref(), More::Large).unwrap();
    let begins = |magic: &[u8]| {
        let mut blocks = base.segment.chunks(BLOCK_BYTES);
        blocks
            .find(|block| block.starts_with(magic))
            .map(|b| b[..1024].to_vec())
    };
    let mut all = Vec::new();
    let kinds: [(u8, &[u8]); 5] = [
        (0, b"SHALE\0SB"),
        (1, b"SHALE\0RT"),
        (6, b"SHLN"),
        (7, b"SHALEXAT"),
        (8, b"SHALEBMP"),
    ];
    for (kind, magic) in kinds {
        if let Some(bytes) = begins(magic) {
            all.push((kind, bytes));
        }
    }
    let inode = shale_format::inode::Inode {
        ino: 20,
        mode: 0o100_644,
        nlink: 1,
        ..shale_format::inode::Inode::free()
    };
    all.push((2, inode.encode().to_vec()));
    let record =
        shale_format::record::RecordHeader::new(shale_format::record::Kind::Write, 20, 0, 0, 100);
    all.push((
        9,
        [zerocopy::IntoBytes::as_bytes(&record), &[7; 128]].concat(),
    ));
    all.push((
        10,
        encode(&Request::GrantInodes { parent: 1, runs: 2 }).unwrap(),
    ));
    let inos = vec![16, 17, 18];
    all.push((11, encode(&Reply::Inodes { inos }).unwrap()));
    all.extend(below_nvm());
    let named =
        |(kind, bytes): (u8, Vec<u8>)| (format!("kind-{kind}"), [&[kind], &bytes[..]].concat());
    all.into_iter().map(named).collect()
}

/// Structures of lower tiers, likewise.
fn below_nvm() -> [(u8, Vec<u8>); 3] {
    use shale_format::device_table::DeviceTable;
    use shale_format::superblock::DeviceEntry;
    use shale_format::zone::{DeviceLabel, LABEL_MAGIC, ZoneEntry};
    use zerocopy::FromZeros;
    let entry = DeviceEntry {
        uuid: [5; 16],
        blocks: 1024,
        zone_blocks: 64,
        kind: 0,
    };
    let mut table = DeviceTable::empty();
    for tier in [0, 1, 1] {
        let block = 20 + 10 * u64::from(table.devices[1]);
        table.add(tier, &entry, (0, block)).unwrap();
    }
    let label = DeviceLabel {
        magic: LABEL_MAGIC,
        blocks: 1024,
        zone_blocks: 64,
        ..DeviceLabel::new_zeroed()
    };
    [
        (12, ZoneEntry::empty().encode().to_vec()),
        (13, label.encode().to_vec()),
        (14, table.encode(7).to_vec()),
    ]
}

#[test]
#[ignore = "writes fuzz/corpus: cargo test -p shale-harness write_the_corpus -- --ignored"]
fn write_the_corpus() {
    let named = |seeds: Vec<(&'static str, Vec<u8>)>| -> Vec<(String, Vec<u8>)> {
        let named = seeds
            .into_iter()
            .map(|(name, bytes)| (name.to_owned(), bytes));
        named.collect()
    };
    for (target, seeds) in [
        ("decoders", structures()),
        ("messages", named(messages::seeds())),
        ("logs", logs::seeds()),
        ("images", images::seeds()),
        ("staged", named(staged::seeds())),
    ] {
        let dir = corpus(target);
        std::fs::create_dir_all(&dir).unwrap();
        for (name, bytes) in seeds {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
    }
}

#[test]
#[ignore = "one input: SHALE_FUZZ_FILE=logs:PATH"]
fn one_input() {
    let named = std::env::var("SHALE_FUZZ_FILE").unwrap();
    let (target, path) = named.split_once(':').unwrap();
    let input = std::fs::read(path).unwrap();
    match target {
        "decoders" => decoders::run(&input),
        "messages" => messages::run(&input),
        "logs" => logs::run(&input),
        "images" => images::run(&input),
        "staged" => staged::run(&input),
        _ => panic!("{target} is no target"),
    }
}
