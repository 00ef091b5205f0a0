//! What an append costs beside the bare non-temporal copy and fence of the same bytes,
//! how fast a scan is beside a plain copy out, and what an overlay's changes cost.
//!
//! `cargo run --release -p shale-oplog --example append [DIRECTORY]`: medians in ns of
//! interleaved rounds, so that both sides see the same machine.
#![forbid(unsafe_code)]

use shale_format::log::{LOG_MAGIC, LogHeader, RING_AT};
use shale_format::{Ino, LogPos};
use shale_nvm::Map;
use shale_oplog::{Log, Overlay, PublishedWord, Scan, Source, Writer, encode};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const RING_BYTES: u64 = 64 << 20;
const ROUNDS: usize = 101;
const BYTES_PER_ROUND: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let parent = std::env::args().nth(1).unwrap_or("/dev/shm".into());
    let dir = tempfile::tempdir_in(parent)?;
    let writer = writer(dir.path())?;
    let bare = Map::create_file(&dir.path().join("bare"), RING_BYTES as usize)?;
    bare.populate()?;
    println!(
        "{:>8} {:>10} {:>10} {:>7}",
        "bytes", "bare ns", "append ns", "ratio"
    );
    for bytes in [128, 1 << 10, 4 << 10, 12 << 10, 64 << 10] {
        let (floor, append) = compare(&writer, &bare, bytes);
        println!(
            "{bytes:>8} {floor:>10.0} {append:>10.0} {:>7.2}",
            append / floor
        );
    }
    for bytes in [128, 4 << 10, 64 << 10] {
        scan(&writer, bytes);
    }
    overlay();
    Ok(())
}

/// Fills most of the ring with records of this size and scans them.
fn scan(writer: &Writer, bytes: usize) {
    let data = vec![7; bytes];
    let from = writer.published().pos();
    while writer.used() < 0.75 {
        let mut part = encode::write(Ino(20), 0, &data);
        let mut permit = writer.reserve(part.bytes(), |_| unreachable!("a quarter is free"));
        writer.append(&mut permit, &mut part);
    }
    let (mut scans, mut copies, mut chunk) = (Vec::new(), Vec::new(), vec![0; 16 << 10]);
    for _ in 0..5 {
        let begin = Instant::now();
        let mut scan = Scan::of(writer.log(), from);
        let count = scan.by_ref().count();
        assert!(count > 0 && scan.head() == writer.published().pos());
        scans.push(begin.elapsed().as_nanos() as f64);

        let begin = Instant::now();
        for at in (RING_AT..RING_AT + (scan.head().0 - from.0) as usize).step_by(chunk.len()) {
            writer.log().view().load(at, &mut chunk);
        }
        copies.push(begin.elapsed().as_nanos() as f64);
    }
    let total = (writer.published().pos().0 - from.0) as f64;
    println!(
        "scan of {bytes} byte writes {:.1} GB/s, copy out {:.1} GB/s",
        total / median(scans),
        total / median(copies)
    );
    writer.set_tail(writer.published().pos());
}

/// Appending, and writing over what is there, in overlays of some sizes.
fn overlay() {
    for pieces in [8, 1000, 100_000] {
        let mut overlay = Overlay::new();
        let mut insert = |n: u64| {
            let at = LogPos(n * 4160 + 64);
            overlay.insert(n * 4096..(n + 1) * 4096, Source::Log { at }, at);
        };
        let begin = Instant::now();
        (0..pieces).for_each(&mut insert);
        let appends = begin.elapsed().as_nanos() as f64 / pieces as f64;
        let begin = Instant::now();
        (0..pieces).for_each(|n| insert(n * 7919 % pieces));
        let overwrites = begin.elapsed().as_nanos() as f64 / pieces as f64;
        println!(
            "overlay of {pieces} pieces: append {appends:.0} ns, overwrite {overwrites:.0} ns"
        );
    }
}

fn writer(dir: &Path) -> Result<Writer, Box<dyn std::error::Error>> {
    let file: PathBuf = dir.join("log");
    let map = Map::create_file(&file, RING_AT + RING_BYTES as usize)?;
    map.populate()?;
    let header = LogHeader {
        magic: LOG_MAGIC,
        uuid: [7; 16],
        salt: 0x5a17,
        ring_bytes: RING_BYTES,
        uid: 0,
        slot: 0,
        created_ns: 0,
        reserved: [0; 64],
        reserved1: 0,
        crc: 0,
    };
    let log = Arc::new(Log::create(Arc::new(map), header)?);
    let word = PublishedWord {
        map: Arc::new(Map::anonymous(4096)?),
        offset: 0,
    };
    Ok(Writer::new(log, LogPos(0), word)?)
}

/// Median ns per operation: (bare copy and fence, append).
fn compare(writer: &Writer, bare: &Map, bytes: usize) -> (f64, f64) {
    let data: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
    let count = BYTES_PER_ROUND / bytes;
    let (mut floors, mut appends, mut at) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for _ in 0..count {
            at = if at + bytes > bare.bytes() { 0 } else { at };
            bare.copy_nt(at, &data);
            bare.fence();
            at += bytes;
        }
        floors.push(begin.elapsed().as_nanos() as f64 / count as f64);

        let begin = Instant::now();
        for n in 0..count {
            let mut part = encode::write(Ino(20), (n * bytes) as u64, &data);
            let mut permit = writer.reserve(part.bytes(), |_| unreachable!("tail follows"));
            writer.append(&mut permit, &mut part);
        }
        appends.push(begin.elapsed().as_nanos() as f64 / count as f64);
        writer.set_tail(writer.published().pos());
    }
    (median(floors), median(appends))
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
