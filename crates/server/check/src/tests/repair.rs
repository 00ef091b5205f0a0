//! Every damage that the check finds is repaired: the check finds nothing afterwards, a
//! second repair does nothing, and what was not damaged is as it was.

use super::sample::*;
use super::{Damage, assert_clean};
use crate::{CheckOptions, RepairReport, repair};
use shale_format::limits::BLOCK_BYTES;
use shale_format::{DirKey, FileBlock, Ino};
use shale_volume::{Mapping, View, Volume};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn mend(s: &Sample) -> shale_pool::Result<RepairReport> {
    repair(&s.map, &s.logs, &CheckOptions::default(), &mut |_| ())
}

/// Repairs, and looks that all is well then.
fn mended(s: &Sample, what: &str) -> Option<RepairReport> {
    let report = match mend(s) {
        Ok(report) => report,
        // Both superblocks are damaged, or of a newer program.
        Err(e) => {
            let text = e.to_string();
            assert!(text.contains("may only be read"), "{what}: {text}");
            return None;
        }
    };
    assert!(
        report.clean(),
        "{what}:\n{}\nafter\n{}",
        report.before,
        report
    );
    let again = mend(s).unwrap();
    assert!(again.mended.is_empty(), "{what}, again: {again}");
    let text = serde_json::to_string(&report).unwrap();
    assert!(text.contains("\"mended\":"), "{text}");
    Some(report)
}

/// One damage of a table, on a volume of its own.
pub(super) fn each_is_mended(d: &Damage) {
    let s = Sample::new();
    (d.make)(&s);
    if let Some(report) = mended(&s, d.what) {
        assert!(
            !report.mended.is_empty(),
            "'{}': nothing is reported",
            d.what
        );
        use_it(&s, d.what);
    }
}

/// A repaired volume can be opened, written and emptied.
fn use_it(s: &Sample, what: &str) {
    let volume = Volume::open(Arc::clone(&s.map)).unwrap_or_else(|e| panic!("{what}: {e}"));
    let free = volume.space().free;
    let run = volume.allocate(1, None).unwrap()[0];
    let ino = volume.grant_inodes(Ino::ROOT)[0];
    let mut txn = volume.begin();
    let mut file = shale_volume::Inode {
        ino: ino.0,
        mode: 0o100_644,
        nlink: 1,
        size: 4096,
        ..shale_volume::Inode::free()
    };
    let extent = shale_volume::Extent {
        file_block: 0,
        addr: run.addr.raw(),
        len: 1,
        flags: 0,
    };
    txn.extent_insert(&mut file, shale_format::TierId::Nvm, extent)
        .unwrap();
    txn.put_inode(&file).unwrap();
    let mut root = txn.inode(Ino::ROOT).unwrap().unwrap();
    let key = volume.view().key_group(b"after");
    txn.dir_insert(&mut root, key, ino, 8, b"after").unwrap();
    txn.put_inode(&root).unwrap();
    txn.commit().unwrap();
    assert!(volume.space().free < free, "{what}");
    assert_clean(&s.check());
}

/// What each path leads to: mode, and content of files.
fn tree(view: &View) -> BTreeMap<String, (u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut open = vec![(String::new(), Ino::ROOT)];
    while let Some((path, ino)) = open.pop() {
        let inode = view.inode(ino).unwrap().unwrap();
        let mut data = Vec::new();
        if inode.is_dir() {
            view.entries(&inode, DirKey(0), &mut |e| {
                let name = String::from_utf8_lossy(&e.name).into_owned();
                open.push((format!("{path}/{name}"), e.ino));
                ControlFlow::Continue(())
            })
            .unwrap();
        }
        let end = if inode.is_dir() { 0 } else { inode.size };
        for fb in 0..end.div_ceil(4096) {
            let mut block = [0; BLOCK_BYTES];
            if let Mapping::Data { addr, .. } = view.map_block(&inode, FileBlock(fb)).unwrap() {
                view.read_blocks(addr, &mut block).unwrap();
            }
            data.push(block[7]);
        }
        all.insert(path, (inode.mode, data));
    }
    all
}

#[test]
fn a_whole_volume_is_left_alone() {
    let s = Sample::journalled();
    let mut before = vec![0; BYTES];
    s.map.load(0, &mut before);
    let report = mend(&s).unwrap();
    assert!(report.clean() && report.mended.is_empty());
    assert!(report.to_string().contains("nothing to repair"));
    let mut after = vec![0; BYTES];
    s.map.load(0, &mut after);
    assert!(before == after, "nothing is written");
}

#[test]
fn what_may_only_be_read_is_not_repaired() {
    for damaged in [false, true] {
        let s = Sample::new();
        let last = s.sb().second_block();
        for block in [0, last] {
            s.edit_super(block, |sb| sb.ro_compatible = 1 << 40);
        }
        if damaged {
            s.map.store(BLOCK_BYTES, &[0x55; 512]);
        }
        let mut before = vec![0; BYTES];
        s.map.load(0, &mut before);
        let error = mend(&s).unwrap_err().to_string();
        assert!(error.contains("may only be read"), "{error}");
        let mut after = vec![0; BYTES];
        s.map.load(0, &mut after);
        assert!(before == after, "nothing is written");
    }
}

#[test]
fn a_lost_root_block_loses_nothing() {
    let s = Sample::new();
    let before = tree(&s.view());
    s.map.store(BLOCK_BYTES, &[0x55; 512]);
    let report = mended(&s, "root block").unwrap();
    assert_eq!(tree(&s.view()), before, "{report}");
    assert!(report.mended.iter().all(|m| !m.lost), "{report}");
}

#[test]
fn a_lost_directory_leaves_its_files_in_lost_and_found() {
    let s = Sample::new();
    let before = tree(&s.view());
    s.store(s.slot(DEEP), &[0x77; 200]);
    let report = mended(&s, "directory").unwrap();
    let after = tree(&s.view());
    assert!(!after.contains_key("/dir/sub/deep"));
    for (ino, name) in [
        (DIRECT, "direct"),
        (FRAGMENTED, "fragmented"),
        (LINK, "link"),
    ] {
        let path = format!("/lost+found/#{ino}");
        let found = after.get(&path);
        assert_eq!(
            found,
            before.get(&format!("/dir/sub/deep/{name}")),
            "{report}"
        );
        let named = report.mended.iter().any(|m| m.object.starts_with(&path));
        assert!(named, "{report}");
    }
    // It had names elsewhere.
    assert!(after.contains_key("/three") && after.contains_key("/dir/two"));
    assert!(!after.contains_key(&format!("/lost+found/#{SEVERAL}")));
    let lost = "'deep'";
    let named = report
        .mended
        .iter()
        .any(|m| m.lost && m.object.contains("deep"));
    assert!(named, "{lost} is not reported: {report}");
}

#[test]
fn a_damaged_leaf_of_extents_costs_its_blocks_only() {
    let s = Sample::new();
    let before = tree(&s.view());
    let leaf = s.nodes(&s.inode(FRAGMENTED), 0)[1];
    s.store(leaf as usize * BLOCK_BYTES + 100, &[0xff; 8]);
    let report = mended(&s, "leaf").unwrap();
    let after = tree(&s.view());
    let path = "/dir/sub/deep/fragmented";
    let (kept, all) = (&after[path].1, &before[path].1);
    assert_eq!(kept.len(), all.len());
    let lost = kept.iter().zip(all).filter(|(a, b)| a != b).count();
    assert!(lost > 0 && lost <= 168, "{lost}");
    let loss = report.mended.iter().find(|m| m.lost).unwrap();
    assert!(
        loss.object.starts_with(path) && loss.what.contains("file blocks"),
        "{report}"
    );
    for (other, content) in before.iter().filter(|(p, _)| *p != path) {
        assert_eq!(after.get(other), Some(content), "{other}");
    }
}

#[test]
fn a_damaged_leaf_of_entries_leaves_its_files_in_lost_and_found() {
    let s = Sample::new();
    // Files with a single name each, so that some lose it.
    let volume = Volume::open(Arc::clone(&s.map)).unwrap();
    let mut txn = volume.begin();
    let mut dir = txn.inode(Ino(EMPTY)).unwrap().unwrap();
    for n in 0..300u64 {
        let file = shale_volume::Inode {
            ino: 2000 + n,
            mode: 0o100_644,
            nlink: 1,
            ..shale_volume::Inode::free()
        };
        txn.put_inode(&file).unwrap();
        let name = format!("a name of some length, and its number is {n}");
        let key = volume.view().key_group(name.as_bytes());
        txn.dir_insert(&mut dir, key, Ino(file.ino), 8, name.as_bytes())
            .unwrap();
    }
    txn.put_inode(&dir).unwrap();
    txn.commit().unwrap();
    drop(volume);
    s.map
        .store(s.sb().journal_block as usize * BLOCK_BYTES, &[0; 64]);
    let before = tree(&s.view()).len();
    let leaf = s.nodes(&s.inode(EMPTY), 0)[0];
    s.store(leaf as usize * BLOCK_BYTES + 90, &[0xee; 8]);
    let report = mended(&s, "leaf").unwrap();
    let after = tree(&s.view());
    let found = after
        .keys()
        .filter(|p| p.starts_with("/lost+found/"))
        .count();
    assert!(found > 10, "{report}");
    assert_eq!(after.len(), before + 1, "with lost+found itself");
}

#[test]
fn two_files_on_one_block_get_a_copy_each() {
    let s = Sample::new();
    let before = tree(&s.view());
    let addr = s.data(DIRECT).raw();
    s.edit(SPARSE, |i| {
        i.root[0] = shale_format::extent::ExtentRoot {
            addr,
            file_block: 0,
            len: 10,
            kind: shale_format::extent::root_kind::DIRECT,
            ..shale_format::extent::ExtentRoot::EMPTY
        };
        i.blocks = 10;
    });
    let report = mended(&s, "shared").unwrap();
    let after = tree(&s.view());
    assert_eq!(
        after["/dir/sub/deep/direct"],
        before["/dir/sub/deep/direct"]
    );
    let copied = &after["/dir/sub/deep/sparse"].1;
    assert_eq!(
        copied[..10],
        after["/dir/sub/deep/direct"].1[..10],
        "{report}"
    );
}

/// A crash anywhere before the commit leaves the damage, one after it the repaired volume:
/// everything else goes to blocks that were free.
#[test]
fn nothing_in_use_is_written_before_the_commit() {
    let s = Sample::new();
    let used = s.view().used_runs().unwrap();
    s.store(s.slot(DEEP), &[0x77; 200]);
    let mut before = vec![0; BYTES];
    s.map.load(0, &mut before);
    mended(&s, "directory").unwrap();
    let mut after = vec![0; BYTES];
    s.map.load(0, &mut after);
    let data = s.sb().data_block;
    for run in used {
        let first = run.addr.index().max(data) as usize;
        let end = ((run.addr.index() + run.len) as usize).min(BYTES / BLOCK_BYTES - 1);
        for block in first..end.max(first) {
            let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
            assert!(before[range.clone()] == after[range], "block {block}");
        }
    }
}

/// Logs: what can be read of them stays, what cannot is given up and reported.
#[test]
fn damaged_logs_are_mended() {
    use super::logs::{SLOT, slot, with_log};
    use shale_format::log::{LogHeader, LogSlot};
    let at = 2 * BLOCK_BYTES + SLOT as usize * LogSlot::BYTES;
    type Change = fn(&mut LogSlot);
    let given_up: [Change; 5] = [
        |l| l.state = 7,
        |l| l.ring_bytes = 12345,
        |l| l.ring_bytes *= 2,
        |l| l.digested = 100,
        |l| l.digested = !63,
    ];
    let stays: [Change; 2] = [|l| l.uid = 0, |l| l.digested = 1 << 40];
    for (n, change) in given_up.iter().chain(&stays).enumerate() {
        let (s, _) = with_log();
        let mut l = slot();
        change(&mut l);
        s.store(at, &l.encode());
        let report = mended(&s, "slot").unwrap();
        let lost = report
            .mended
            .iter()
            .any(|m| m.lost && m.object == "log-003");
        assert_eq!(lost, n < given_up.len(), "{n}: {report}");
        assert_eq!(report.after.totals.logs, u64::from(!lost), "{n}: {report}");
    }
    let (s, _) = with_log();
    s.store(at + 20, &[1]);
    assert_eq!(mended(&s, "slot checksum").unwrap().after.totals.logs, 0);
    type File = fn(&shale_nvm::Map);
    let files: [(File, u64); 4] = [
        (|m| m.store(4, &[1]), 3),
        (|m| m.store(256, &99u64.to_le_bytes()), 3),
        (
            |m| {
                let mut h = LogHeader::decode(&m.load_array::<128>(0)).unwrap();
                h.slot = 9;
                m.store(0, &h.encode());
            },
            3,
        ),
        (
            |m| {
                let mut h = LogHeader::decode(&m.load_array::<128>(0)).unwrap();
                h.uuid = [8; 16];
                m.store(0, &h.encode());
            },
            0,
        ),
    ];
    for (n, (change, records)) in files.into_iter().enumerate() {
        let (s, map) = with_log();
        change(&map);
        let report = mended(&s, "log file").unwrap();
        assert_eq!(
            report.after.totals.records_waiting, records,
            "{n}: {report}"
        );
    }
}

#[test]
fn a_volume_in_a_directory_is_repaired_if_it_is_the_right_one() {
    use crate::{check_volume_dir, repair_volume_dir};
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path();
    let map = shale_pool::nvm_dir::make_nvm(path, BYTES as u64, &Default::default()).unwrap();
    drop(Volume::create(Arc::new(map), &options()).unwrap());
    let files = [path.join("seg-0000")];
    let damage = shale_nvm::Map::open_files(&files, shale_nvm::Access::ReadWrite).unwrap();
    damage.store(2 * BLOCK_BYTES + 5, &[7]);
    let run = |uuid: &str| repair_volume_dir(path, uuid, &CheckOptions::default(), &mut |_| ());
    let uuid = check_volume_dir(path, &CheckOptions::default(), &mut |_| ())
        .unwrap()
        .uuid
        .unwrap();
    let other = run("00000000-0000-0000-0000-000000000000").unwrap_err();
    assert!(other.to_string().contains("nothing was changed"), "{other}");
    assert_eq!(damage.load_array::<1>(2 * BLOCK_BYTES + 5), [7]);
    let lock = shale_pool::nvm_dir::NvmLock::take(path).unwrap();
    assert!(matches!(
        run(&uuid),
        Err(shale_pool::PoolError::InUse { .. })
    ));
    drop(lock);
    let report = run(&uuid).unwrap();
    assert!(report.clean() && report.mended.len() == 1, "{report}");
}

/// Seeded damage of every kind: bits flipped, and numbers changed behind fitting checksums.
fn seeds(range: std::ops::Range<u64>) {
    let mut s = Sample::new();
    let mut pristine = vec![0; BYTES];
    s.map.load(0, &mut pristine);
    let blocks = s.structure();
    for seed in range {
        let mut r = Seeded(seed);
        for _ in 0..1 + r.below(4) {
            super::random::some_damage(&s, &mut r, &blocks);
        }
        let done = catch_unwind(AssertUnwindSafe(|| {
            if mended(&s, "seeded").is_some() {
                use_it(&s, "seeded");
            }
        }));
        assert!(done.is_ok(), "seed {seed}");
        s = Sample::new();
    }
}

#[test]
fn seeded_damage_is_mended() {
    seeds(0..40);
}

#[test]
#[ignore = "minutes: cargo test --release -p shale-check seeded_damage -- --ignored"]
fn seeded_damage_is_mended_at_length() {
    seeds(40..6000);
}
