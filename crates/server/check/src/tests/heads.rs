//! Superblocks, root block, journal.

use super::sample::*;
use super::{Damage, assert_clean, damage, each_is_found};
use crate::{CheckOptions, Severity, check};
use shale_format::checksum::crc32c;
use shale_format::journal::JournalHeader;
use shale_format::superblock::{LOG_TABLE_BLOCKS, ROOT_BLOCK};
use shale_nvm::Map;
use std::sync::Arc;

fn last(s: &Sample) -> u64 {
    s.sb().second_block()
}

const SUPERBLOCKS: &[Damage] = &[
    damage(
        |s| s.store(100, &[0xee; 4]),
        "superblock: checksum",
        "first superblock, block 0",
    ),
    damage(
        |s| s.store(0, &[0; 4]),
        "superblock: magic number",
        "first superblock",
    ),
    damage(
        |s| s.store(BYTES - 4096 + 80, &[0xee; 9]),
        "superblock: checksum",
        "second superblock",
    ),
    damage(
        |s| s.edit_super(0, |sb| sb.generation = 2),
        "superblock older than the other copy",
        "second superblock",
    ),
    damage(
        |s| s.edit_super(last(s), |sb| sb.generation = 2),
        "superblock older than the other copy",
        "first superblock",
    ),
    damage(
        |s| s.edit_super(0, |sb| sb.owner_uid = 5),
        "superblocks of one generation differ",
        "superblock",
    ),
    damage(
        |s| s.edit_super(0, |sb| sb.version = 99),
        "superblock: version",
        "99 is newer",
    ),
    damage(
        |s| s.edit_super(0, |sb| sb.incompatible = 1 << 40),
        "superblock: version",
        "0x10000000000",
    ),
    damage(
        |s| s.edit_super(0, |sb| sb.bitmap_blocks = 0),
        "superblock: bitmap_blocks",
        "0",
    ),
    damage(
        |s| s.edit_super(0, |sb| sb.data_block = 2),
        "superblock: data_block",
        "2",
    ),
    damage(
        |s| s.edit_super(0, |sb| (sb.tier[0].blocks, sb.generation) = (9000, 2)),
        "tier larger than its segments",
        "9000 blocks, found 8192",
    ),
    damage(
        |s| s.edit_super(0, |sb| (sb.tier[0].blocks, sb.generation) = (4000, 2)),
        "tier smaller than its segments",
        "4000",
    ),
    damage(
        |s| s.edit_super(0, |sb| (sb.tier[0].blocks, sb.generation) = (4000, 2)),
        "tier too small",
        "4000",
    ),
    damage(
        |s| s.edit_super(0, |sb| (sb.tier[1].blocks, sb.generation) = (77, 2)),
        "superblock: lower",
        "first superblock",
    ),
    damage(
        |s| {
            s.edit_super(0, |sb| {
                (sb.tier[0].device[0].blocks, sb.generation) = (77, 2)
            })
        },
        "blocks of a tier's devices",
        "found 77",
    ),
    damage(
        |s| s.edit_super(0, |sb| (sb.tier[0].devices, sb.generation) = (3, 2)),
        "devices of a tier",
        "found 3",
    ),
    damage(
        |s| s.store(4096 + 40, &[0xee; 3]),
        "root block: checksum",
        "root block, block 1",
    ),
    damage(
        |s| s.store(4096, &[0]),
        "root block: magic number",
        "root block",
    ),
];

#[test]
fn superblocks() {
    each_is_found(SUPERBLOCKS);
}

#[test]
fn without_a_superblock_nothing_more_is_checked() {
    let s = Sample::new();
    s.store(0, &[0]);
    s.store(BYTES - 4096, &[0]);
    let report = s.check();
    assert!(
        !report.complete && report.uuid.is_none() && report.errors == 3,
        "{report}"
    );
    let tiny = Arc::new(Map::anonymous(4096).unwrap());
    assert!(!check(tiny, &[], &CheckOptions::default(), &mut |_| ()).clean());
}

/// A mount that changes the policy was cut short between both copies.
#[test]
fn a_change_of_policy_that_was_cut_short_is_no_damage() {
    let s = Sample::new();
    for block in [0, last(&s)] {
        s.edit_super(block, |sb| (sb.durability, sb.generation) = (2, 2));
        let report = s.check();
        assert_clean(&report);
        let found = report
            .findings
            .iter()
            .find(|f| f.what.starts_with("policy"));
        assert_eq!(found.unwrap().severity, Severity::Info, "{report}");
        s.put_back();
    }
    s.edit_super(0, |sb| {
        (sb.durability, sb.owner_uid, sb.generation) = (2, 5, 2)
    });
    assert!(!s.check().clean(), "more than that has changed");
}

/// A volume in which the last batch is in the journal and not in place.
fn waiting() -> Sample {
    let s = Sample::journalled();
    let volume = shale_volume::Volume::open(Arc::clone(&s.map)).unwrap();
    let sb = s.sb();
    let slots = s.slot(MANY.start) as u64 / 4096;
    let in_place: Vec<u64> = (ROOT_BLOCK..2 + LOG_TABLE_BLOCKS)
        .chain([sb.bitmap_block, s.slot(DIR) as u64 / 4096, slots])
        .collect();
    let before: Vec<_> = in_place.iter().map(|&b| s.block(b)).collect();
    let mut txn = volume.begin();
    let mut big = txn.inode(shale_format::Ino(BIG)).unwrap().unwrap();
    let (key, name) = {
        let (_, (_, e, name)) = s.entry(BIG, None);
        (shale_format::DirKey(e.key), name)
    };
    let gone = txn.dir_remove(&mut big, key, &name).unwrap();
    txn.put_inode(&big).unwrap();
    let mut file = txn.inode(gone.ino).unwrap().unwrap();
    file.nlink -= 1;
    txn.put_inode(&file).unwrap();
    txn.commit().unwrap();
    for (block, bytes) in in_place.iter().zip(before) {
        s.map.store(*block as usize * 4096, &bytes);
    }
    s
}

#[test]
fn a_batch_that_waits_is_no_damage() {
    let s = waiting();
    let report = s.check();
    assert_clean(&report);
    assert!(report.needs_recovery);
    assert_eq!(report.totals.entries, 5 + 30 * 14 - 1 + 10 + 2 + 2);
    // The check changed nothing: recovery still has everything to do.
    let volume = shale_volume::Volume::open(Arc::clone(&s.map)).unwrap();
    assert_eq!(volume.txid().0, report.txid);
    let report = s.check();
    assert_clean(&report);
    assert!(!report.needs_recovery);
}

#[test]
fn a_damaged_batch_is_found() {
    let s = waiting();
    let at = s.sb().journal_block as usize * 4096;
    let [old] = s.map.load_array::<1>(at + 4096 + 30);
    s.store(at + 4096 + 30, &[!old]);
    let report = s.check();
    let what = "batch damaged and not known to be in place";
    assert!(report.findings.iter().any(|f| f.what == what), "{report}");
    s.put_back();
    for (what, change) in [
        (
            "batch larger than the journal",
            (|h, _| h.body_bytes = 1 << 40) as fn(&mut JournalHeader, &mut [u8]),
        ),
        ("batch with ranges that no batch has", |_, body| {
            body[..8].fill(0)
        }),
        ("batch with ranges that no batch has", |_, body| {
            body[..8].fill(0xff)
        }),
        ("batch with ranges that no batch has", |_, body| {
            body[8..12].fill(0xff)
        }),
        ("batch with ranges that no batch has", |h, _| {
            h.entries = u32::MAX
        }),
    ] {
        let block: [u8; 64] = s.map.load_array(at);
        let mut h = JournalHeader::decode(&block).unwrap();
        let mut body = vec![0; h.body_bytes as usize];
        s.map.load(at + 4096, &mut body);
        change(&mut h, &mut body);
        h.body_crc = crc32c(&body);
        s.store(at + 4096, &body);
        s.store(at, &h.encode());
        let report = s.check();
        assert!(
            report.findings.iter().any(|f| f.what == what),
            "{what}: {report}"
        );
        s.put_back();
    }
    assert_clean(&s.check());
}
