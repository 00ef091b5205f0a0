//! Content by hand.

use super::world::{FILE, World};
use crate::layout::{From, LINK_BLOCKS_MIN};
use crate::{Bounds, Digester, Mode, data};
use shale_format::record::flag;
use shale_format::{FileBlock, Ino};
use shale_oplog::encode;
use shale_volume::{Mapping, Run};

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes)
        .map(|i| (i as u8).wrapping_mul(31) ^ seed)
        .collect()
}

/// A world with an empty file 100, in the volume.
fn world() -> World {
    let mut w = World::new();
    w.create(1, 100, "f", FILE);
    w.digest();
    w
}

#[test]
fn a_thousand_small_appends_become_one_extent() {
    let mut w = world();
    let data = pattern(128_000, 3);
    for (n, part) in data.chunks(128).enumerate() {
        w.write(100, n as u64 * 128, part);
    }
    let plan = w.plan().unwrap();
    assert_eq!((plan.new_blocks, plan.stats.coalesced), (32, 999));
    w.digest();
    assert_eq!(w.extents(100), [(0, 32, false)]);
    assert_eq!(w.content(100), data);
    assert_eq!(w.inode(100).unwrap().blocks, 32);
    // The next appends go on beside it, the last block is rewritten.
    let more = pattern(40_000, 9);
    for (n, part) in more.chunks(100).enumerate() {
        w.write(100, 128_000 + n as u64 * 100, part);
    }
    w.digest();
    assert_eq!(w.content(100), [data, more].concat());
}

#[test]
fn overwritten_bytes_are_written_once() {
    let mut w = world();
    for n in 0..10 {
        w.write(100, 0, &pattern(8192, n));
    }
    w.write(100, 100, &pattern(50, 77));
    let plan = w.plan().unwrap();
    assert_eq!(plan.new_blocks, 2);
    assert_eq!(plan.stats.skipped, 9);
    assert_eq!(plan.stats.bytes_skipped, 9 * 8192 + 50);
    w.digest();
    let mut expected = pattern(8192, 9);
    expected[100..150].copy_from_slice(&pattern(50, 77));
    assert_eq!(w.content(100), expected);
    // In the volume now: a small write goes to its one block, and nothing else of it is written.
    w.write(100, 5000, b"patch");
    let plan = w.plan().unwrap();
    let file = &plan.inodes[0].file;
    let run = &file.stores[0];
    assert_eq!((file.copies.len(), run.at, run.blocks), (0, 1, 1));
    assert!(matches!(run.fills[0].from, From::Old(4096)) && run.fills[0].bytes == 904);
    let extents = w.extents(100);
    assert_eq!(w.digest_once().stats.bytes_stored, 5);
    assert_eq!(w.extents(100), extents);
    expected[5000..5005].copy_from_slice(b"patch");
    assert_eq!(w.content(100), expected);
}

#[test]
fn what_is_cut_off_never_comes_back() {
    let mut w = world();
    w.write(100, 0, &pattern(20_000, 1));
    w.digest();
    w.truncate(100, 5000);
    w.truncate(100, 30_000);
    w.write(100, 9000, b"new");
    w.digest();
    let mut expected = pattern(5000, 1);
    expected.resize(30_000, 0);
    expected[9000..9003].copy_from_slice(b"new");
    assert_eq!(w.content(100), expected);
    assert_eq!(
        w.extents(100).iter().map(|e| e.1).sum::<u64>(),
        3,
        "{:?}",
        w.extents(100)
    );
    // Cut to a block's edge: nothing is written.
    w.truncate(100, 4096);
    assert_eq!(w.plan().unwrap().new_blocks, 0);
    w.digest();
    assert_eq!(w.extents(100), [(0, 1, false)]);
    // A write that is cut off in the same chunk.
    w.write(100, 4096, &pattern(50_000, 2));
    w.truncate(100, 6000);
    w.digest();
    assert_eq!(w.content(100)[4096..], pattern(1904, 2));
    assert_eq!(w.extents(100), [(0, 2, false)]);
    // Cut twice to the same size in one chunk; what was there shows only when the file grows.
    w.truncate(100, 5000);
    w.truncate(100, 5000);
    w.digest();
    w.truncate(100, 6000);
    w.digest();
    assert_eq!(w.content(100)[5000..], [0; 1000]);
}

#[test]
fn holes_stay_holes() {
    let mut w = world();
    w.write(100, 1 << 30, b"far");
    w.digest();
    assert_eq!(w.extents(100), [(1 << 18, 1, false)]);
    w.truncate(100, 2 << 40);
    w.digest();
    assert_eq!(w.inode(100).unwrap().size, 2 << 40);
    assert_eq!(w.inode(100).unwrap().blocks, 1);
}

#[test]
fn ranges_are_allocated_punched_and_zeroed() {
    let mut w = world();
    w.fallocate(100, 0, 40_960, 1);
    w.digest();
    assert_eq!(w.extents(100), [(0, 10, true)]);
    assert_eq!(w.inode(100).unwrap().size, 0);
    w.write(100, 4096, &pattern(8192, 4));
    w.digest();
    assert_eq!(w.extents(100), [(0, 1, true), (1, 2, false), (3, 7, true)]);
    // Punch from the middle of block 1 to the middle of block 2, and all of block 3.
    w.fallocate(100, 6000, 4000, 1 | 2);
    w.fallocate(100, 12_288, 4096, 1 | 2);
    w.digest();
    let mut expected = vec![0; 12_288];
    expected[4096..].copy_from_slice(&pattern(8192, 4));
    expected[6000..10_000].fill(0);
    assert_eq!(w.content(100), expected);
    assert_eq!(w.extents(100), [(0, 1, true), (1, 2, false), (4, 6, true)]);
    // Zeroing keeps blocks allocated, and allocates the hole.
    w.fallocate(100, 4096, 12_288, 16);
    w.digest();
    assert_eq!(w.content(100), vec![0; 16_384]);
    assert_eq!(
        w.extents(100)
            .iter()
            .map(|e| (e.1, e.2))
            .fold(0, |n, (len, u)| {
                assert!(u);
                n + len
            }),
        10
    );
    // Cutting the file gives up what was allocated behind its end.
    w.truncate(100, 4096);
    w.digest();
    assert_eq!(w.extents(100), [(0, 1, true)]);
}

#[test]
fn allocating_and_punching_in_one_chunk_follow_their_order() {
    let mut w = world();
    w.fallocate(100, 0, 8192, 0);
    w.fallocate(100, 0, 4096, 1 | 2);
    w.digest();
    assert_eq!(w.extents(100), [(1, 1, true)]);
    w.fallocate(100, 0, 8192, 1 | 2);
    w.fallocate(100, 0, 4096, 0);
    w.digest();
    assert_eq!(w.extents(100), [(0, 1, true)]);
    assert_eq!(w.inode(100).unwrap().size, 8192);
}

#[test]
fn ranges_are_taken_out_and_put_in_alone() {
    let mut w = world();
    let data = pattern(40_000, 6);
    w.write(100, 0, &data);
    w.fallocate(100, 4096, 8192, 8);
    w.write(100, 0, b"start");
    w.fallocate(100, 8192, 4096, 32);
    let chunks = w.digest();
    assert_eq!(chunks.len(), 4, "a shift stands alone");
    let mut expected = data.clone();
    expected.drain(4096..12_288);
    expected[..5].copy_from_slice(b"start");
    let behind = expected.split_off(8192);
    expected.resize(12_288, 0);
    expected.extend(behind);
    assert_eq!(w.content(100), expected);
}

#[test]
fn stolen_blocks_are_linked_not_written() {
    let mut w = world();
    let data = pattern(65_536, 5);
    for (n, part) in data.chunks(16_384).enumerate() {
        let at = n as u64 * 16_384;
        w.steal(100, at, part, at + 16_384);
    }
    let plan = w.plan().unwrap();
    assert_eq!(
        (plan.new_blocks, plan.linked.len(), plan.unused.len()),
        (0, 1, 0)
    );
    let done = w.digest_once();
    assert_eq!(
        (done.stats.blocks_written, done.stats.blocks_linked),
        (0, 16)
    );
    assert_eq!(
        w.extents(100),
        [(0, 16, false)],
        "runs that adjoin are one extent"
    );
    assert_eq!(w.content(100), data);
}

#[test]
fn a_stolen_tail_is_clean_whatever_the_client_left_there() {
    let mut w = world();
    w.steal(100, 0, &pattern(8192, 5), 5000);
    w.digest();
    assert_eq!(w.content(100), pattern(8192, 5)[..5000]);
    w.truncate(100, 8192);
    w.digest();
    assert!(w.content(100)[5000..].iter().all(|&b| b == 0));
}

#[test]
fn stolen_blocks_that_are_patched_or_superseded() {
    let mut w = world();
    let data = pattern(32_768, 5);
    w.steal(100, 0, &data, 32_768);
    w.write(100, 5000, b"in block 1");
    w.write(100, 24_576, &pattern(8192, 8));
    let done = w.digest_once();
    let mut expected = data;
    expected[5000..5010].copy_from_slice(b"in block 1");
    expected[24_576..].copy_from_slice(&pattern(8192, 8));
    assert_eq!(w.content(100), expected);
    let unused: u64 = done.unused.iter().map(|r| r.len).sum();
    let linked: u64 = done.linked.iter().map(|r| r.len).sum();
    assert_eq!((linked, unused), (5, 3));
}

#[test]
fn a_short_stolen_island_is_copied() {
    for (blocks, linked) in [(LINK_BLOCKS_MIN - 1, 0), (LINK_BLOCKS_MIN, LINK_BLOCKS_MIN)] {
        let mut w = world();
        let bytes = blocks * 4096;
        w.write(100, 0, &pattern(8192, 1));
        w.steal(100, 8192, &pattern(bytes as usize, 2), 8192 + bytes);
        w.write(100, 8192 + bytes, &pattern(8192, 3));
        let done = w.digest_once();
        assert_eq!(done.stats.blocks_linked, linked);
        assert_eq!(
            w.extents(100).len(),
            if linked == 0 {
                1
            } else {
                2.max(w.extents(100).len())
            }
        );
        let parts = [
            pattern(8192, 1),
            pattern(bytes as usize, 2),
            pattern(8192, 3),
        ];
        assert_eq!(w.content(100), parts.concat());
    }
}

#[test]
fn attributes_are_set_and_removed() {
    let mut w = world();
    w.set_xattr(100, "user.a", b"1");
    w.set_xattr(100, "user.b", &[7; 5000]);
    w.set_xattr(100, "user.a", b"2");
    w.digest();
    w.push(encode::remove_xattr(Ino(100), b"user.b"));
    w.set_xattr(100, "user.c", b"");
    let done = w.digest_once();
    assert_eq!(done.stats.skipped, 0);
    let attrs = w.view().xattrs(&w.inode(100).unwrap()).unwrap();
    let expected = [
        (b"user.a".to_vec(), b"2".to_vec()),
        (b"user.c".to_vec(), vec![]),
    ];
    assert_eq!(attrs, expected.into());
    w.push(encode::remove_xattr(Ino(100), b"user.a"));
    w.push(encode::remove_xattr(Ino(100), b"user.c"));
    w.digest();
    assert_eq!(w.inode(100).unwrap().xattr_addr, 0);
    w.unlink(1, 100, "f", flag::FREE_NOW);
    w.digest();
}

/// Small and large payloads at any offset, so that all ways of copying meet.
#[test]
fn payloads_of_all_sizes_meet_in_one_run() {
    let mut w = world();
    let mut expected: Vec<u8> = Vec::new();
    let sizes = [
        1, 63, 4096, 5000, 64, 70_000, 128, 4096, 131_072, 10, 8192, 3,
    ];
    for (n, size) in sizes.into_iter().enumerate() {
        let data = pattern(size, n as u8);
        w.write(100, expected.len() as u64, &data);
        expected.extend(data);
    }
    w.digest();
    assert_eq!(w.content(100), expected);
    assert_eq!(w.extents(100).len(), 1);
}

/// A full volume has no second set of blocks for what is made zeros.
#[test]
fn zeroed_blocks_stay_where_they_are() {
    let mut w = World::new();
    w.create(1, 100, "f", FILE);
    w.write(100, 0, &[7; 10 * 4096]);
    w.digest();
    let before = w.extents(100);
    let used = w.volume().space().used;
    w.fallocate(100, 4096 + 10, 6 * 4096, 16);
    let done = w.digest_once();
    assert_eq!(done.stats.blocks_written, 0);
    assert_eq!(
        (done.stats.stores, done.stats.bytes_stored),
        (2, 4096),
        "both ends"
    );
    let mut expected = vec![7; 10 * 4096];
    expected[4106..4106 + 6 * 4096].fill(0);
    assert_eq!(w.content(100), expected);
    assert_eq!(before, [(0, 10, false)]);
    assert!(
        w.extents(100).contains(&(2, 5, true)),
        "{:?}",
        w.extents(100)
    );
    assert_eq!(w.volume().space().used, used + 1, "a node");
    w.write(100, 2 * 4096, b"again");
    w.digest();
    expected[2 * 4096..2 * 4096 + 5].copy_from_slice(b"again");
    assert_eq!(w.content(100), expected);
}

/// Bytes of a log that a digest stored before it was cut short are stored again, also by one that takes fewer records.
#[test]
fn what_was_stored_is_stored_again() {
    let mut w = world();
    let mut expected = pattern(10 * 4096, 5);
    w.write(100, 0, &expected);
    w.digest();
    for n in 0..8 {
        let (at, bytes) = (n * 5000 + 3, pattern(600 * n + 1, n as u8));
        w.write(100, at as u64, &bytes);
        expected[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    w.truncate(100, 7 * 4096 + 9);
    w.write(100, 7 * 4096, b"beside the new end");
    let extents = w.extents(100);
    let plan = w.plan().unwrap();
    assert!(plan.inodes[0].file.stores[0].fills.len() > 9, "{plan:?}");
    let placed = data::allocate(w.volume(), &plan, &w.rules).unwrap();
    let into = (w.volume(), w.digester.tail_blocks());
    data::write(into, &w.source(), &[], &plan, &placed).unwrap();
    drop(placed);
    expected.truncate(7 * 4096);
    expected.extend(b"beside the new end");
    let single = Bounds {
        records_max: 1,
        ..Bounds::default()
    };
    w.digester = Digester::with_bounds(w.digester.volume().clone(), single);
    w.digest();
    assert_eq!(w.content(100), expected);
    assert_eq!(w.extents(100)[0], (0, extents[0].1.min(7), false));
}

/// Who copies or has mapped a block has it as it was.
#[test]
fn blocks_that_are_copied_or_mapped_do_not_change() {
    let mut w = world();
    let before = pattern(12 * 4096, 1);
    w.write(100, 0, &before);
    w.digest();
    let inode = w.inode(100).unwrap();
    let mapping = w.view().map_block(&inode, FileBlock(0)).unwrap();
    let Mapping::Data { addr, len: 12 } = mapping else {
        panic!("one run: {mapping:?}");
    };
    let hold = w.volume().hold(&[Run { addr, len: 2 }]).unwrap();
    let copied = Run {
        addr: addr.plus(6),
        len: 1,
    };
    let mut expected = before.clone();
    for block in [1, 3, 6, 9] {
        let at = block * 4096 + 100;
        w.write(100, at as u64, &[block as u8; 9]);
        expected[at..at + 9].fill(block as u8);
    }
    let stable = w.digester.keep_stable([copied].into_iter().collect());
    let done = w.chunk(Mode::Live).unwrap();
    drop(stable);
    w.rules.used(&done);
    w.at = done.upto;
    assert_eq!((done.stats.blocks_written, done.stats.stores), (2, 2));
    assert_eq!(w.content(100), expected);
    let mut after = vec![0; before.len()];
    w.view().read_blocks(addr, &mut after).unwrap();
    for block in 0..12 {
        let bytes = block * 4096..(block + 1) * 4096;
        let same = match block {
            3 | 9 => &expected,
            _ => &before,
        };
        assert_eq!(after[bytes.clone()], same[bytes], "block {block}");
    }
    w.volume().drop_hold(hold);
    // Nobody copies or maps them now.
    w.write(100, 4096, b"x");
    assert_eq!(w.digest_once().stats.bytes_stored, 1);
}
