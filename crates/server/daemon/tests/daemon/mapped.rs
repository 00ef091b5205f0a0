//! What programs have mapped stays, whatever becomes of the file, of others and of the daemon.

use crate::served::*;
use rustix::fs::{FlockOperation, flock};
use shale_daemon::Daemon;
use shale_format::{BlockAddr, Ino};
use shale_oplog::encode;
use shale_proto::message::BlockRun;
use shale_proto::{Reply, Request};
use std::fs::File;
use std::os::fd::OwnedFd;

const BLOCKS: u64 = 74;

/// A part of a file that a client has mapped.
struct Mapped {
    size: u64,
    runs: Vec<BlockRun>,
    keep: OwnedFd,
}

fn map(hand: &Hand, ino: Ino, first: u64, blocks: u64) -> Option<Mapped> {
    let ask = Request::Map {
        ino: ino.0,
        first,
        blocks,
    };
    let (reply, fds) = hand.ask_for(ask);
    let mut fds = fds.into_iter();
    match reply {
        Reply::Mapped { size, runs, .. } => Some(Mapped {
            size,
            runs,
            keep: fds.next().unwrap(),
        }),
        Reply::NotMapped => None,
        other => panic!("{other:?}"),
    }
}

fn bytes_of(daemon: &Daemon, runs: &[BlockRun]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for run in runs {
        let mut part = vec![0; run.blocks as usize * 4096];
        let addr = BlockAddr::from_raw(run.addr);
        daemon.volume().view().read_blocks(addr, &mut part).unwrap();
        bytes.extend(part);
    }
    bytes
}

/// Takes everything that is free, and gives it back: is none of it mapped?
fn gives_none_of(daemon: &Daemon, runs: &[BlockRun]) -> bool {
    let volume = daemon.volume();
    let free = volume.allocate(volume.space().free, None).unwrap();
    let none = free.iter().all(|free| {
        let first = free.addr.raw();
        let apart =
            |r: &BlockRun| r.addr + u64::from(r.blocks) <= first || first + free.len <= r.addr;
        runs.iter().all(apart)
    });
    free.into_iter().for_each(|run| volume.give_back(run));
    none
}

fn map_files(place: &Place) -> usize {
    let names = shale_pool::nvm_dir::volume_files(&place.nvm()).unwrap();
    names.iter().filter(|n| n.starts_with("map-")).count()
}

#[test]
fn a_mapping_outlives_its_file_and_its_daemon() {
    let place = Place::new(64);
    let daemon = place.start();
    daemon.listen(&place.socket()).unwrap();
    let mut hand = Hand::over(&place.socket());
    let data: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    let ino = hand.make_file("a", &data);
    assert!(
        map(&hand, ino, 0, BLOCKS).is_none(),
        "not in the volume yet"
    );
    hand.digest();
    let mapped = map(&hand, ino, 0, BLOCKS).unwrap();
    assert_eq!(mapped.size, data.len() as u64);
    assert_eq!(bytes_of(&daemon, &mapped.runs)[..data.len()], data);
    hand.append(encode::write(ino, 5000, b"in one of its blocks"));
    hand.digest();
    assert_eq!(bytes_of(&daemon, &mapped.runs)[..data.len()], data);
    // Twice, by another process: a duplicate of the descriptor stands for a child.
    let child = rustix::io::dup(&mapped.keep).unwrap();
    hand.append(unlink("a", ino));
    hand.digest();
    eventually("freed, and not to be had", || {
        daemon.volume().space().waiting == BLOCKS
    });
    assert!(gives_none_of(&daemon, &mapped.runs));
    let space = daemon.status_values().space;
    assert_eq!((space.mappings, space.pinned_bytes), (1, BLOCKS * 4096));

    daemon.abandon();
    drop(hand);
    let daemon = place.start();
    assert_eq!(daemon.volume().space().waiting, BLOCKS);
    assert!(gives_none_of(&daemon, &mapped.runs));
    assert_eq!(bytes_of(&daemon, &mapped.runs)[..data.len()], data);
    drop(mapped.keep);
    std::thread::sleep(std::time::Duration::from_millis(600));
    assert_eq!(daemon.volume().space().waiting, BLOCKS, "the child has it");
    drop(child);
    eventually("free", || daemon.volume().space().waiting == 0);
    assert!(!gives_none_of(&daemon, &mapped.runs));
    assert_eq!(
        (daemon.status_values().space.mappings, map_files(&place)),
        (0, 0)
    );
    daemon.shutdown().unwrap();
}

/// What a digest stores into a block that stays is its client's, as the blocks that it writes are; one that is mapped gets new blocks.
#[test]
fn bytes_stored_into_a_block_are_accounted_for() {
    let place = Place::new(64);
    let daemon = place.start();
    daemon.listen(&place.socket()).unwrap();
    let mut hand = Hand::over(&place.socket());
    let copied = || {
        let clients = daemon.status_values().clients;
        clients.iter().map(|c| c.written.copied_bytes).sum::<u64>()
    };
    let ino = hand.make_file("a", &[1; 2 * 4096]);
    hand.digest();
    let before = copied();
    hand.append(encode::write(ino, 5000, b"seventeen bytes.."));
    hand.digest();
    assert_eq!(copied() - before, 17);
    let mapped = map(&hand, ino, 0, 2).unwrap();
    hand.append(encode::write(ino, 5000, b"seventeen bytes.."));
    hand.digest();
    assert_eq!(copied() - before, 17 + 4096);
    drop(mapped.keep);
    daemon.shutdown().unwrap();
}

#[test]
fn only_whole_parts_of_files_in_nvm_and_no_more_than_a_quarter() {
    let place = Place::new(64);
    let daemon = place.start();
    daemon.listen(&place.socket()).unwrap();
    let mut hand = Hand::over(&place.socket());
    let ino = hand.make_file("a", &vec![1; 8 << 20]);
    hand.append(encode::write(ino, 9 << 20, b"behind a hole"));
    hand.digest();
    let blocks = (9 << 8) + 1;
    for (first, count) in [(0, blocks), (blocks, 1), (0, 0), (u64::MAX, 2), (2048, 1)] {
        assert!(map(&hand, ino, first, count).is_none(), "{first} {count}");
    }
    assert!(map(&hand, Ino(999_999), 0, 1).is_none(), "no inode");
    assert!(map(&hand, ROOT, 0, 1).is_none(), "a directory");
    assert!(map(&hand, ino, blocks - 1, 1).is_some());
    // 64 MiB: less than 16 MiB may be mapped.
    let first = map(&hand, ino, 0, 2048).unwrap();
    assert!(map(&hand, ino, 0, 2048).is_none());
    drop(first);
    assert!(map(&hand, ino, 0, 2048).is_some());
    daemon.shutdown().unwrap();
}

#[test]
fn files_of_mappings_that_mean_nothing_go_with_the_next_start() {
    let place = Place::new(64);
    let at = |name: &str| place.nvm().join(name);
    for name in ["map-3", "map-4"] {
        std::fs::write(at(name), b"shalemap and then nothing that it should be").unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", at("map-5")).unwrap();
    let locked = File::open(at("map-4")).unwrap();
    flock(&locked, FlockOperation::LockShared).unwrap();
    let daemon = place.start();
    assert_eq!((map_files(&place), daemon.volume().space().waiting), (0, 0));
    daemon.listen(&place.socket()).unwrap();
    let mut hand = Hand::over(&place.socket());
    let ino = hand.make_file("a", &[1; 5000]);
    hand.digest();
    let mapped = map(&hand, ino, 0, 2).unwrap();
    assert_eq!(map_files(&place), 1);
    drop(mapped);
    daemon.shutdown().unwrap();
}
