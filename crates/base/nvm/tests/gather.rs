//! Copies that checksum: against plain copies, plain checksums, and a source that changes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crc_fast::{CrcAlgorithm, checksum};

use shale_nvm::crc32c::{START, finish, update};
use shale_nvm::{LINE_WORDS, Map, MapOptions, Path};
use shale_record::Recording;

const AREA: usize = 1024;
const SIZE_MAX: usize = 600;

fn reference(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005) | 1;
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }

    /// Cuts a run at up to 3 places.
    fn split<'s>(&mut self, run: &'s [u8]) -> Vec<&'s [u8]> {
        let mut cuts = vec![0, run.len()];
        for _ in 0..self.below(4) {
            cuts.push(self.below(run.len() + 1));
        }
        cuts.sort_unstable();
        cuts.windows(2).map(|cut| &run[cut[0]..cut[1]]).collect()
    }
}

#[test]
fn every_size_and_alignment_equals_memcpy_and_checksum() {
    let map = Map::anonymous(AREA).unwrap();
    let plain = Map::anonymous(AREA).unwrap();
    let mut random = Random(1);
    let source = random.bytes(SIZE_MAX + 64);
    let mut found = [0; AREA];
    for size in 0..=SIZE_MAX {
        for skew in [0, 0, 1, 7, 8, 33, 63, random.below(64)] {
            let run = &source[random.below(64)..][..size];
            let slices = random.split(run);
            let state = random.below(1 << 31) as u32;
            let at = 64 + skew;
            map.store(0, &[0xee; AREA]);
            let before = map.counts();
            let summed = map.on(Path::Log).copy_nt_crc32c(at, &slices, state);
            let spent = (map.counts() - before).path(Path::Log);

            let mut expected = [0xee; AREA];
            expected[at..at + size].copy_from_slice(run);
            map.load(0, &mut found);
            assert!(found == expected, "size {size} at {skew}");
            assert_eq!(summed, update(state, run), "size {size} at {skew}");
            let before = plain.counts();
            plain.on(Path::Log).copy_nt(at, run);
            assert_eq!(spent, (plain.counts() - before).path(Path::Log));

            let summed = map.copy_nt_crc32c(at, &slices, START);
            assert_eq!(finish(summed), reference(run), "size {size} at {skew}");
        }
    }
}

/// Seals slices behind a line of ones; gives the state that the line was made of.
fn sealed(map: &Map, at: usize, slices: &[&[u8]]) -> u32 {
    let mut sum = 0;
    map.copy_nt_sealed(at, slices, START, |state| {
        sum = state;
        [!0; LINE_WORDS]
    });
    sum
}

#[test]
fn padding_is_zeros_outside_the_checksum() {
    let map = Map::anonymous(AREA).unwrap();
    let mut random = Random(2);
    let source = random.bytes(SIZE_MAX);
    let mut found = [0; AREA];
    for size in 0..=SIZE_MAX {
        for at in [0, 64] {
            let run = &source[..size];
            let slices = random.split(run);
            map.store(0, &[0xee; AREA]);
            let before = map.counts();
            let summed = sealed(&map, at, &slices);
            let spent = (map.counts() - before).path(Path::Data);
            let behind = at + 64;
            let end = (behind + size).next_multiple_of(64);
            let mut expected = [0xee; AREA];
            expected[at..behind].fill(0xff);
            expected[behind..end].fill(0);
            expected[behind..behind + size].copy_from_slice(run);
            map.load(0, &mut found);
            assert!(found == expected, "size {size} at {at}");
            assert_eq!(finish(summed), reference(run), "size {size} at {at}");
            assert_eq!(spent.bytes_stored, (end - at) as u64);
            assert_eq!(spent.bytes_streamed, (end - at) as u64);
            assert_eq!(spent.lines_flushed, 0);
        }
    }
}

#[test]
fn long_runs_and_states_compose() {
    let map = Map::anonymous(1 << 20).unwrap();
    let source = Random(3).bytes(200_000);
    for size in [1 << 10, 4096, 12 << 10, 65_537, 200_000] {
        for cut in [0, 1, 64, 1000, size / 2, size] {
            let (front, back) = source[..size].split_at(cut);
            let state = map.copy_nt_crc32c(5, &[front], START);
            let state = map.copy_nt_crc32c(5 + cut, &[back], state);
            assert_eq!(finish(state), reference(&source[..size]));
            let mut found = vec![0; size];
            map.load(5, &mut found);
            assert_eq!(found, source[..size]);
        }
    }
}

#[test]
fn a_recorder_hears_what_a_plain_copy_tells_it() {
    let source = Random(4).bytes(777);
    for at in [0, 3, 64, 127] {
        for size in [0, 1, 64, 200, 777] {
            let run = &source[..size];
            let mut padded = run.to_vec();
            padded.resize(size.next_multiple_of(64), 0);
            let pair = |plain: &dyn Fn(&Map), summed: &dyn Fn(&Map) -> u32| {
                let events: [Vec<_>; 2] = std::array::from_fn(|side| {
                    let recording = Recording::new();
                    let medium = recording.medium("nvm");
                    let options = MapOptions::new().recorder(medium.clone());
                    let map = options.anonymous(AREA).unwrap();
                    match side {
                        0 => plain(&map),
                        _ => assert_eq!(finish(summed(&map)), reference(run)),
                    }
                    map.fence();
                    assert_eq!(medium.verify_shadow(&map), None);
                    recording.script().events().to_vec()
                });
                assert!(events[0] == events[1], "{size} bytes at {at}");
            };
            let slices = [&run[..size / 3], &run[size / 3..]];
            pair(&|map| map.copy_nt(at, run), &|map| {
                map.copy_nt_crc32c(at, &slices, START)
            });
            if at % 64 == 0 {
                let in_turn = |map: &Map| {
                    map.copy_nt(at + 64, &padded);
                    map.copy_nt(at, &[0xff; 64]);
                };
                pair(&in_turn, &|map| sealed(map, at, &slices));
            }
        }
    }
}

#[test]
#[should_panic(expected = "not inside")]
fn padding_outside_the_mapping_is_a_mistake() {
    let map = Map::anonymous(100).unwrap();
    sealed(&map, 0, &[&[0; 37]]);
}

#[test]
fn expecting_changes_nothing_wherever_it_points() {
    let map = Map::anonymous(3 << 12).unwrap();
    map.store(0, &[7; 3 << 12]);
    let before = map.counts();
    for offset in [0, 1, 4096, (3 << 12) - 1, 3 << 12, usize::MAX - 4095] {
        for bytes in [0, 1, 4096, 3 << 12, usize::MAX] {
            map.expect(offset, bytes);
        }
    }
    assert_eq!(map.counts(), before);
    assert_eq!(map.load_array::<{ 3 << 12 }>(0), [7; 3 << 12]);
}

/// Sets a flag when dropped, so that a failed assertion does not leave a thread running.
struct Raise<'f>(&'f AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn stored_bytes_and_checksum_agree_while_the_source_changes() {
    const WORDS: usize = 160;
    const ROUNDS: usize = 30_000;
    let source: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    let (started, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let map = Map::anonymous(4096).unwrap();
    let mut mixtures = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 1_u64;
            while !ended.load(Ordering::Relaxed) {
                for word in &source {
                    word.store(value, Ordering::Relaxed);
                }
                value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
                started.store(true, Ordering::Relaxed);
            }
        });
        let _raise = Raise(&ended);
        while !started.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        let mut random = Random(5);
        // Not before a change was caught in the act: the threads may share one CPU.
        let mut round = 0;
        while round < ROUNDS || (mixtures == 0 && round < 1000 * ROUNDS) {
            round += 1;
            let skew = random.below(64);
            let size = random.below(WORDS * 8 - skew);
            // SAFETY: the words live to the end of the scope. That they change while a slice
            // of them exists is what this test is about: the callee reads them by code
            // the compiler does not see into.
            let run =
                unsafe { std::slice::from_raw_parts(source.as_ptr().cast::<u8>().add(skew), size) };
            let (front, back) = run.split_at(random.below(size + 1));
            let at = random.below(2) * random.below(64);
            let state = map.copy_nt_crc32c(at, &[front, back], START);
            let mut stored = vec![0; size];
            map.load(at, &mut stored);
            assert_eq!(finish(state), reference(&stored), "{size} bytes");
            let words = &stored[skew.wrapping_neg() % 8 % (size + 1)..];
            let mut words = words.chunks_exact(8);
            if let Some(first) = words.next() {
                mixtures += usize::from(words.any(|word| word != first));
            }
        }
    });
    assert!(mixtures > 0, "no copy met a change");
}
