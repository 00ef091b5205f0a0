//! What an append costs beside the bare non-temporal copy and fence of the same bytes.
//!
//! `cargo run --release -p shale-oplog --example append [DIRECTORY]`: medians in ns of
//! interleaved rounds, so that both sides see the same machine.

use shale_device::Map;
use shale_format::log::{LOG_MAGIC, LogHeader, RING_AT};
use shale_format::{Ino, LogPos};
use shale_oplog::{CommittedWord, Log, Writer, encode};
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
    Ok(())
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
    let word = CommittedWord {
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
            let mut permit = writer.admit(part.bytes(), |_| unreachable!("tail follows"));
            writer.append(&mut permit, &mut part);
        }
        appends.push(begin.elapsed().as_nanos() as f64 / count as f64);
        writer.set_tail(writer.committed());
    }
    (median(floors), median(appends))
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
