//! Runs one call of LibFS again and again, for a profiler:
//! `hot_path write|read|append BYTES CALLS [random]`. Prints nanoseconds per call.
#![forbid(unsafe_code)]

use std::time::Instant;

use shale_bench::chance::Chance;
use shale_bench::scratch::{Scratch, ScratchOptions};
use shale_libfs::OFlags;

const FILE_BYTES: u64 = 64 << 20;
const PIECE_BYTES: usize = 1 << 20;
/// Calls between two digests, in bytes of log at most.
const FLUSH_BYTES: u64 = 4 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, bytes, calls, rest @ ..] = arguments.as_slice() else {
        return Err("usage: hot_path write|read|append BYTES CALLS [random]".into());
    };
    let (bytes, calls): (usize, u64) = (bytes.parse()?, calls.parse()?);
    let random = rest.iter().any(|word| word == "random");
    let options = ScratchOptions {
        nvm_bytes: 5 * FILE_BYTES,
        log_bytes: 64 << 20,
    };
    let scratch = Scratch::new("/dev/shm".as_ref(), options)?;
    let flags = OFlags::CREATE | OFlags::RDWR;
    let tree = scratch.tree();
    let mut file = tree.open(b"/data", flags, 0o644)?;
    let mut buffer = Chance::new(1).bytes(PIECE_BYTES.max(bytes));
    for at in (0..FILE_BYTES).step_by(PIECE_BYTES) {
        file.pwrite(at, &buffer[..PIECE_BYTES])?;
    }
    scratch.flush();
    let mut chance = Chance::new(2);
    let places = FILE_BYTES / bytes as u64;
    let mut spent_ns = 0;
    let mut batches = Vec::new();
    let mut done = 0;
    while done < calls {
        let some = (FLUSH_BYTES / bytes as u64)
            .clamp(1, 10_000)
            .min(calls - done);
        if what == "append" {
            drop(file);
            tree.unlink(b"/data")?;
            file = tree.open(b"/data", flags, 0o644)?;
            scratch.flush();
        }
        let start = Instant::now();
        for n in done..done + some {
            let place = if random {
                chance.below(places)
            } else {
                n % places
            };
            let at = match what.as_str() {
                "append" => n - done,
                _ => place,
            } * bytes as u64;
            match what.as_str() {
                "write" | "append" => file.pwrite(at, &buffer[..bytes])?,
                _ => file.pread(at, &mut buffer[..bytes])?,
            };
        }
        let ns = start.elapsed().as_nanos();
        batches.push(ns / u128::from(some));
        spent_ns += ns;
        done += some;
        scratch.flush();
    }
    batches.sort_unstable();
    let batch = |tenths: usize| batches[batches.len() * tenths / 10];
    let mean = spent_ns as f64 / done as f64;
    println!(
        "{what} {bytes} B: {mean:.1} ns, batches {} to {} ns, median {}",
        batch(1),
        batch(9),
        batch(5)
    );
    Ok(())
}
