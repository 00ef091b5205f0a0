//! Power cuts at every fence: the state before or the state after, nothing else.

use super::*;
use shale_format::TierId;
use shale_format::TxId;
use shale_nvm::MapOptions;
use shale_record::{Choice, MediaRules, Recording};

const BYTES: usize = 32 * MIB;

/// What a volume says, as far as this test changes it.
#[derive(Debug, PartialEq)]
struct State {
    txid: TxId,
    inodes: Vec<Inode>,
    names: Vec<(u64, Vec<u8>)>,
    log: u64,
}

fn state_of(volume: &Volume) -> State {
    let view = volume.view();
    check(&view);
    let mut inodes = Vec::new();
    view.inodes(&mut |_, inode| {
        inodes.push(Inode {
            crc: 0,
            ..inode.unwrap()
        });
        ControlFlow::Continue(())
    })
    .unwrap();
    let mut names = Vec::new();
    let root = view.inode(Ino::ROOT).unwrap().unwrap();
    view.entries(&root, shale_format::DirKey(0), &mut |e| {
        names.push((e.ino.0, e.name));
        ControlFlow::Continue(())
    })
    .unwrap();
    State {
        txid: volume.txid(),
        inodes,
        names,
        log: view.log_slot(3).unwrap().digested,
    }
}

/// A transaction with something of everything.
fn step(volume: &Volume, r: &mut Seeded) -> TxId {
    let view = volume.view();
    let mut txn = volume.begin();
    let mut root = txn.inode(Ino::ROOT).unwrap().unwrap();
    for _ in 0..12 {
        let ino = 16 + r.below(60);
        let name = format!("file {ino}").into_bytes();
        let key = view.key_group(&name);
        let exists = txn.inode(Ino(ino)).unwrap();
        let is_new = exists.is_none();
        let mut inode = exists.unwrap_or(file(ino));
        if r.below(3) == 0 && !is_new {
            let all = FileBlock(0)..FileBlock(u64::MAX);
            txn.extent_remove(&mut inode, TierId::Nvm, all).unwrap();
            txn.dir_remove(&mut root, key, &name).unwrap();
            txn.free_inode(Ino(ino)).unwrap();
            continue;
        }
        for _ in 0..3 {
            let run = volume.allocate(1 + r.below(3), None).unwrap()[0];
            volume.write_at(run.addr, 0, &[ino as u8; 100]).unwrap();
            txn.extent_insert(&mut inode, TierId::Nvm, extent(r.below(80), run))
                .unwrap();
        }
        txn.put_inode(&inode).unwrap();
        if is_new {
            txn.dir_insert(&mut root, key, Ino(ino), 8, &name).unwrap();
        }
    }
    txn.put_inode(&root).unwrap();
    let mut slot = txn.log_slot(3).unwrap();
    slot.state = 1;
    slot.digested += 1000;
    txn.set_log_slot(3, &slot).unwrap();
    txn.commit().unwrap().txid
}

fn opened(image: &[u8]) -> Volume {
    let map = shale_nvm::Map::anonymous(image.len()).unwrap();
    map.store(0, image);
    Volume::open(Arc::new(map)).unwrap()
}

#[test]
fn a_cut_leaves_the_state_before_or_after() {
    let recording = Recording::new();
    let medium = recording.medium("nvm");
    let map = MapOptions::new()
        .recorder(medium.clone())
        .anonymous(BYTES)
        .unwrap();
    let volume = Volume::create(Arc::new(map), &options()).unwrap();
    let mut r = Seeded(21);
    for _ in 0..6 {
        let txid = step(&volume, &mut r);
        volume.release_up_to(txid);
    }
    let begin = recording.event_count();
    let mut states = vec![state_of(&volume)];
    for _ in 0..3 {
        let txid = step(&volume, &mut r);
        volume.release_up_to(txid);
        states.push(state_of(&volume));
    }
    assert!(medium.verify_shadow(volume.view().map()).is_none());
    let script = recording.script();
    let rules = MediaRules::default();
    let mut replay = script.replay();
    replay.advance_to(begin);
    let (mut at_least, mut cuts) = (0, 0);
    loop {
        // Before every fence everything since the last one is uncertain.
        let is_fence = replay.at() == script.events().len()
            || matches!(
                script.events()[replay.at()].action,
                shale_record::Action::Fence
            );
        if is_fence {
            for seed in 0..4 {
                let choice = match seed {
                    0 => Choice::None,
                    1 => Choice::All,
                    _ => Choice::Seed(seed),
                };
                let image = replay.cut(&rules).image(medium.index(), &choice);
                let state = state_of(&opened(&image));
                let which = states.iter().position(|s| *s == state);
                let which = which.expect("a state between two transactions");
                assert!(
                    which >= at_least && which <= at_least + 1,
                    "event {}",
                    replay.at()
                );
                cuts += 1;
                if seed == 0 {
                    at_least = which;
                }
            }
        }
        if replay.step().is_none() {
            break;
        }
    }
    assert_eq!(at_least, states.len() - 1);
    assert!(cuts >= 4 * 3 * 3, "{cuts} cuts");
}

/// Commits a transaction on `image` and gives what was recorded, and where its journal
/// header was stored but not fenced.
fn recorded_step(image: &[u8], seed: u64) -> (shale_record::Script, usize) {
    let recording = Recording::new();
    let map = MapOptions::new()
        .recorder(recording.medium("nvm"))
        .anonymous(image.len())
        .unwrap();
    map.store(0, image);
    map.flush(0, image.len());
    map.fence();
    let volume = Volume::open(Arc::new(map)).unwrap();
    step(&volume, &mut Seeded(seed));
    let script = recording.script();
    let header = volume.superblock().journal_block as usize * 4096;
    let stored = script.events().iter().rposition(
        |e| matches!(e.action, shale_record::Action::Store { offset, .. } if offset == header),
    );
    (script, stored.unwrap() + 1)
}

#[test]
fn two_commits_cut_in_their_headers() {
    let map = Arc::new(shale_nvm::Map::anonymous(BYTES).unwrap());
    let volume = Volume::create(map.clone(), &options()).unwrap();
    step(&volume, &mut Seeded(1));
    let mut image = vec![0; BYTES];
    map.load(0, &mut image);
    let rules = MediaRules::default();
    let (first, at) = recorded_step(&image, 2);
    let mut replay = first.replay();
    replay.advance_to(at);
    let cut = replay.cut(&rules);
    // The number of the batch, which both have in common.
    let number = volume.superblock().journal_block as usize * 4096 + 8;
    let but_it: Vec<bool> = cut.units().iter().map(|u| u.offset != number).collect();
    assert!(but_it.contains(&false), "the number is in the header");
    let torn = cut.image(0, &Choice::Mask(&but_it));
    let (second, at) = recorded_step(&torn, 3);
    let mut replay = second.replay();
    replay.advance_to(at);
    let cut = replay.cut(&rules);
    let only_it: Vec<bool> = cut.units().iter().map(|u| u.offset == number).collect();
    state_of(&opened(&cut.image(0, &Choice::Mask(&only_it))));
}

#[test]
fn mkfs_cut_short_leaves_no_volume_or_a_whole_one() {
    let recording = Recording::new();
    let medium = recording.medium("nvm");
    let map = MapOptions::new()
        .recorder(medium.clone())
        .anonymous(BYTES)
        .unwrap();
    let volume = Volume::create(Arc::new(map), &options()).unwrap();
    drop(volume);
    let script = recording.script();
    let mut opened = [0, 0];
    for event in (0..=script.events().len()).step_by(3) {
        let image = script.crash_image(
            event,
            medium.index(),
            &MediaRules::default(),
            &Choice::Seed(1),
        );
        let map = shale_nvm::Map::anonymous(image.len()).unwrap();
        map.store(0, &image);
        match Volume::open(Arc::new(map)) {
            Ok(volume) => {
                check(&volume.view());
                opened[1] += 1;
            }
            Err(_) => opened[0] += 1,
        }
    }
    assert!(opened[0] > 0);
}
