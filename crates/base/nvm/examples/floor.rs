//! Prints what a mapping adds to the bare non-temporal copy and fence of the same bytes,
//! in nanoseconds per operation, what a load adds to `memcpy`, and what a checksum on
//! the way adds to `copy_nt` (there "bare" is the latter). Build with
//! `--release`. Rounds of the two alternate, and the median round counts.

use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
use std::hint::black_box;
use std::time::Instant;

use shale_nvm::{Map, MappedRegion, Path, crc32c};

const AREA_BYTES: usize = 64 << 20;
const ROUNDS: usize = 31;
const ROUND_BYTES: usize = 8 << 20;

/// The floor: whole lines, nothing checked, nothing counted.
///
/// # Safety
/// `to` is aligned to 64 with `bytes`, a multiple of 64, writable; `from` has as many readable.
#[target_feature(enable = "avx512f")]
unsafe fn bare_avx512(to: *mut u8, from: *const u8, bytes: usize) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
    for at in (0..bytes).step_by(64) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_stream_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast())) };
    }
    _mm_sfence();
}

/// As `bare_avx512` on any x86-64.
///
/// # Safety
/// As there.
unsafe fn bare_sse2(to: *mut u8, from: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(16) {
        // SAFETY: the caller's promise.
        unsafe { _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast())) };
    }
    // SAFETY: every x86-64 has SSE.
    unsafe { _mm_sfence() };
}

/// Nanoseconds per call over one round.
fn round(bytes: usize, mut call: impl FnMut(usize)) -> f64 {
    let calls = (ROUND_BYTES / bytes).clamp(200, 20_000);
    let start = Instant::now();
    let mut at = 0;
    for _ in 0..calls {
        call(at);
        at += bytes;
        if at + bytes > AREA_BYTES {
            at = 0;
        }
    }
    start.elapsed().as_nanos() as f64 / calls as f64
}

fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn compare(what: &str, bytes: usize, mut bare: impl FnMut(usize), mut ours: impl FnMut(usize)) {
    let (mut bare_rounds, mut our_rounds) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare_rounds.push(round(bytes, &mut bare));
        our_rounds.push(round(bytes, &mut ours));
    }
    let (bare, ours) = (median(bare_rounds), median(our_rounds));
    println!(
        "{what:<14} {bytes:>6} B  bare {bare:>8.1} ns  Map {ours:>8.1} ns  +{:>6.1} ns  {:.3} x",
        ours - bare,
        ours / bare
    );
}

fn checksums(log: &MappedRegion, source: &[u8]) {
    for bytes in [128, 192, 1 << 10, 4 << 10, 12 << 10] {
        let run = &source[..bytes];
        compare(
            "nt + crc32c",
            bytes,
            |at| {
                log.copy_nt(at, black_box(run));
                log.fence();
            },
            |at| {
                black_box(log.copy_nt_crc32c(at, &[black_box(run)], crc32c::START));
                log.fence();
            },
        );
    }
}

/// The bare side needs an address of its own: maps the file once more by hand.
fn bare_mapping(floor: &Map) -> *mut u8 {
    let fd = floor.fds().next().expect("one piece");
    // SAFETY: a new mapping at an address the kernel chooses.
    unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            AREA_BYTES,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::POPULATE,
            fd,
            0,
        )
    }
    .expect("map the floor")
    .cast::<u8>()
}

fn main() -> Result<(), shale_nvm::NvmError> {
    let map = Map::anonymous(AREA_BYTES)?;
    let floor = Map::anonymous(AREA_BYTES)?;
    map.populate()?;
    floor.populate()?;
    let bare = bare_mapping(&floor);
    println!("{}", map.instructions());
    let source: Vec<u8> = (0..64 << 10).map(|i| i as u8).collect();
    let mut into = vec![0_u8; 64 << 10];
    let mut into_bare = vec![0_u8; 64 << 10];
    let log = map.on(Path::Log);
    let wide = is_x86_feature_detected!("avx512f");
    checksums(log, &source);
    for bytes in [128, 1 << 10, 4 << 10, 64 << 10] {
        let run = &source[..bytes];
        compare(
            "nt + fence",
            bytes,
            |at| {
                // SAFETY: `round` keeps `at + bytes` inside the area, in steps of whole lines.
                unsafe {
                    if wide {
                        bare_avx512(bare.add(at), black_box(run).as_ptr(), bytes);
                    } else {
                        bare_sse2(bare.add(at), black_box(run).as_ptr(), bytes);
                    }
                }
            },
            |at| {
                log.copy_nt(at, black_box(run));
                log.fence();
            },
        );
        let (header, payload) = run.split_at(64);
        compare(
            "64+rest, fence",
            bytes,
            // SAFETY: as above.
            |at| unsafe {
                if wide {
                    bare_avx512(bare.add(at), black_box(run).as_ptr(), bytes);
                } else {
                    bare_sse2(bare.add(at), black_box(run).as_ptr(), bytes);
                }
            },
            |at| {
                log.copy_nt_with(at, &[black_box(header), black_box(payload)]);
                log.fence();
            },
        );
        compare(
            "load",
            bytes,
            // SAFETY: as above; the target is a buffer of 64 KiB.
            |at| unsafe {
                bare.add(at)
                    .copy_to_nonoverlapping(black_box(&mut into_bare).as_mut_ptr(), bytes);
            },
            |at| log.load(at, black_box(&mut into[..bytes])),
        );
    }
    Ok(())
}
