//! The corpus that is in the tree goes through; and how it was made.

use std::path::PathBuf;

use super::{decoders, images, logs, messages};

fn corpus(target: &str) -> PathBuf {
    let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");
    PathBuf::from(place).join(target)
}

fn run_all(target: &str, run: impl Fn(&[u8])) {
    let mut count = 0;
    for entry in std::fs::read_dir(corpus(target)).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        run(&std::fs::read(path).unwrap());
        count += 1;
    }
    assert!(count > 1, "{target}: {count} inputs");
}

#[test]
fn decoders_stand_the_corpus() {
    run_all("decoders", decoders::run);
}

#[test]
fn a_daemon_stands_the_corpus() {
    run_all("messages", messages::run);
    messages::check();
}

#[test]
fn recovery_stands_the_corpus() {
    run_all("logs", logs::run);
}

#[test]
fn repair_stands_the_corpus() {
    run_all("images", images::run);
}

/// Structures of a volume and messages, each behind the number of its kind.
fn structures() -> Vec<(String, Vec<u8>)> {
    use crate::crash::base::{Base, More};
    use shale_format::limits::BLOCK_BYTES;
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
    let named =
        |(kind, bytes): (u8, Vec<u8>)| (format!("kind-{kind}"), [&[kind], &bytes[..]].concat());
    all.into_iter().map(named).collect()
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
    ] {
        let dir = corpus(target);
        std::fs::create_dir_all(&dir).unwrap();
        for (name, bytes) in seeds {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
    }
}
