//! A volume on NVM that has grown, and what a power cut leaves of one that is growing.

use super::assert_clean;
use super::sample::*;
use crate::{CheckOptions, Report, check};
use shale_format::superblock::SUPER_BLOCK;
use shale_nvm::{Map, MapOptions};
use shale_pool::growth::tier::{OldTier, superblock_at, write_first};
use shale_record::{Action, Choice, MediaRules, Recording};
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn content(map: &Map) -> Vec<u8> {
    let mut all = vec![0; map.bytes()];
    map.load(0, &mut all);
    all
}

/// A mapping of so many bytes that begins with `image`, durably.
fn mapped(image: &[u8], bytes: usize, options: &MapOptions) -> Arc<Map> {
    let map = options.anonymous(bytes).unwrap();
    map.store(0, image);
    map.flush(0, image.len());
    map.fence();
    Arc::new(map)
}

fn checked(map: &Arc<Map>) -> Report {
    let report = check(map.clone(), &[], &CheckOptions::default(), &mut |_| ());
    assert_clean(&report);
    report
}

/// The volume of `image` on so many bytes.
fn grown(image: &[u8], bytes: usize, options: &MapOptions) -> Arc<Map> {
    let old = OldTier::read(&mapped(image, image.len(), &MapOptions::new())).unwrap();
    let new = old.superblock_of(bytes as u64).unwrap();
    let map = mapped(image, bytes, options);
    old.grow(&map, &new).unwrap();
    map
}

#[test]
fn a_grown_volume_is_clean_and_has_all_that_it_had() {
    let sample = Sample::new();
    let before = sample.check().totals;
    let mut image = content(&sample.map);
    let mut free = before.blocks_free;
    // As many blocks of the bitmap as before, one more, and a size that is no multiple of anything.
    for bytes in [BYTES + 4 * 4096, 130 * MIB, 257 * MIB + 3 * 4096] {
        let map = grown(&image, bytes, &MapOptions::new());
        let now = checked(&map).totals;
        assert_eq!(
            (now.entries, now.inodes, now.blocks_leaked),
            (before.entries, before.inodes, 0)
        );
        assert!(now.blocks_free > free || bytes < 40 * MIB, "{bytes}");
        free = now.blocks_free;
        let volume = shale_volume::Volume::open(map.clone()).unwrap();
        let space = volume.space();
        let all = volume.allocate(space.total - space.used, None).unwrap();
        assert!(
            all.iter()
                .all(|run| run.addr.index() + run.len <= bytes as u64 / 4096 - 4)
        );
        drop(volume);
        image = content(&map);
    }
}

#[test]
fn sizes_that_nvm_cannot_grow_to_are_refused_with_the_least() {
    let sample = Sample::new();
    let image = content(&sample.map);
    let mut old = OldTier::read(&mapped(&image, image.len(), &MapOptions::new())).unwrap();
    for few in [0, 3 * 4096] {
        let why = old.superblock_of(BYTES as u64 + few).unwrap_err();
        let least = (BYTES + 4 * 4096).to_string();
        assert!(
            why.contains(&least) && why.contains("does not shrink"),
            "{why}"
        );
    }
    assert!(old.superblock_of(BYTES as u64 + 4 * 4096).is_ok());
    assert!(old.superblock_of(u64::MAX).unwrap_err().contains("at most"));
    old.superblock.incompatible = 0;
    assert!(old.superblock_of(1 << 30).unwrap_err().contains("2026"));
}

/// As the next one does that opens the directory: which size the tier has says its first superblock, and where that is torn
/// it is written from the second one. Gives the tier, and whether it is the old one.
fn after_cut(image: &[u8]) -> (Arc<Map>, bool) {
    let map = mapped(image, image.len(), &MapOptions::new());
    match superblock_at(&map, SUPER_BLOCK) {
        Ok(first) if first.tier[0].blocks * 4096 == BYTES as u64 => {
            let old = mapped(&image[..BYTES], BYTES, &MapOptions::new());
            (old, true)
        }
        Ok(_) => (map, false),
        Err(_) => {
            write_first(&map).unwrap();
            (map, false)
        }
    }
}

#[test]
fn a_power_cut_leaves_the_old_tier_or_the_new_one() {
    let sample = Sample::new();
    let before = sample.check().totals;
    let recording = Recording::new();
    let medium = recording.medium("nvm");
    let options = MapOptions::new().recorder(medium.clone());
    let image = content(&sample.map);
    let old = OldTier::read(&mapped(&image, BYTES, &MapOptions::new())).unwrap();
    let new = old.superblock_of(36 << 20).unwrap();
    let map = mapped(&image, 36 * MIB, &options);
    let begin = recording.event_count();
    old.grow(&map, &new).unwrap();
    let script = recording.script();
    let mut replay = script.replay();
    replay.advance_to(begin);
    let (mut found, mut torn) = ([0, 0], 0);
    loop {
        let at = replay.at();
        let event = script.events().get(at);
        if event.is_none_or(|e| matches!(e.action, Action::Fence)) {
            for seed in 0..12 {
                let choice = match seed {
                    0 => Choice::None,
                    1 => Choice::All,
                    _ => Choice::Seed(seed),
                };
                let cut = replay.cut(&MediaRules::default());
                let image = cut.image(medium.index(), &choice);
                torn += usize::from(
                    superblock_at(
                        &mapped(&image, image.len(), &MapOptions::new()),
                        SUPER_BLOCK,
                    )
                    .is_err(),
                );
                let (map, is_old) = after_cut(&image);
                let now = checked(&map).totals;
                assert_eq!(
                    (now.entries, now.inodes, now.blocks_leaked),
                    (before.entries, before.inodes, 0),
                    "event {at}, {choice:?}"
                );
                found[usize::from(is_old)] += 1;
            }
        }
        if replay.step().is_none() {
            break;
        }
    }
    let all = [found[0], found[1], torn];
    assert!(all.iter().all(|&n| n > 0), "new, old, torn: {all:?}");
}
