//! Update logs, and volumes in directories.

use super::assert_clean;
use super::sample::*;
use crate::{CheckOptions, LogFile, Severity, check_volume_dir};
use shale_format::limits::LOG_BYTES_MIN;
use shale_format::log::{LOG_MAGIC, LogHeader, LogSlot, RING_AT, file_name, slot_state};
use shale_format::{Ino, LogPos};
use shale_nvm::{Map, MapOptions};
use shale_oplog::{Log, PublishedWord, Writer, encode};
use shale_pool::error::PoolError;
use shale_pool::nvm_dir::{NvmLock, make_nvm};
use shale_volume::Volume;
use std::sync::Arc;

pub(super) const SLOT: u32 = 3;

pub(super) fn slot() -> LogSlot {
    LogSlot {
        state: slot_state::LIVE,
        uid: 1000,
        salt: 77,
        ring_bytes: LOG_BYTES_MIN,
        digested: 0,
        connection: 0,
        reserved: [0; 16],
        reserved1: 0,
        crc: 0,
    }
}

/// Makes a log of three records in `map`.
pub(super) fn write_log(map: &Arc<Map>) {
    let header = LogHeader {
        magic: LOG_MAGIC,
        uuid: options().uuid,
        salt: slot().salt,
        ring_bytes: LOG_BYTES_MIN,
        uid: 1000,
        slot: SLOT,
        created_ns: 1,
        reserved: [0; 64],
        reserved1: 0,
        crc: 0,
    };
    let log = Arc::new(Log::create(Arc::clone(map), header).unwrap());
    let word = PublishedWord {
        map: Arc::new(Map::anonymous(4096).unwrap()),
        offset: 64,
    };
    let writer = Writer::new(log, LogPos(0), word).unwrap();
    for n in 0..3 {
        let mut part = encode::write(Ino(DIRECT), n * 100, b"some bytes");
        let mut permit = writer.try_reserve(part.bytes()).unwrap();
        writer.append(&mut permit, &mut part);
    }
}

pub(super) fn set_slot(map: &Arc<Map>, slot: &LogSlot) {
    let volume = Volume::open(Arc::clone(map)).unwrap();
    let mut txn = volume.begin();
    txn.set_log_slot(SLOT, slot).unwrap();
    txn.commit().unwrap();
}

pub(super) fn with_log() -> (Sample, Arc<Map>) {
    let mut s = Sample::new();
    set_slot(&s.map, &slot());
    s.map.store(s.sb().journal_block as usize * 4096, &[0; 64]);
    let map = Arc::new(Map::anonymous(RING_AT + LOG_BYTES_MIN as usize).unwrap());
    write_log(&map);
    s.logs = vec![LogFile {
        slot: SLOT,
        map: Ok(Arc::clone(&map)),
    }];
    (s, map)
}

#[test]
fn records_that_wait_are_counted() {
    let (s, map) = with_log();
    let report = s.check();
    assert_clean(&report);
    assert_eq!((report.totals.logs, report.totals.records_waiting), (1, 3));
    assert_eq!(report.totals.bytes_waiting, 3 * 128);
    // The second record is damaged: the log ends before it.
    map.store(RING_AT + 128 + 70, b"!");
    let report = s.check();
    assert_clean(&report);
    assert_eq!(report.totals.records_waiting, 1);
    let line = report
        .findings
        .iter()
        .find(|f| f.what.contains("others lie behind"))
        .unwrap();
    assert_eq!(line.severity, Severity::Info);
    assert_eq!(line.found, "end at 128, next at 256");
}

#[test]
fn damaged_logs_are_found() {
    let (mut s, map) = with_log();
    let at = 2 * 4096 + SLOT as usize * LogSlot::BYTES;
    let edit = |s: &Sample, f: fn(&mut LogSlot)| {
        let mut slot = slot();
        f(&mut slot);
        s.store(at, &slot.encode());
    };
    let finds = |s: &Sample, what: &str| {
        let report = s.check();
        let found = report
            .findings
            .iter()
            .any(|f| f.what == what && f.severity > Severity::Info);
        assert!(found, "'{what}' is not in:\n{report}");
        s.put_back();
    };
    s.store(at + 20, &[1]);
    finds(&s, "log slot: checksum");
    type Change = fn(&mut LogSlot);
    let slots: [(Change, &str); 8] = [
        (|l| l.state = 7, "state of a log slot"),
        (|l| l.ring_bytes = 12345, "bytes of a log's ring"),
        (|l| l.ring_bytes *= 2, "log file too short"),
        (|l| l.salt = 78, "log header: salt"),
        (|l| l.uid = 0, "log header: uid"),
        (|l| l.digested = 100, "log: digested position"),
        (|l| l.digested = !63, "log: digested position"),
        (|l| l.digested = 1 << 40, "log: tail"),
    ];
    for (change, what) in slots {
        edit(&s, change);
        finds(&s, what);
    }
    let good: [u8; 512] = map.load_array(0);
    map.store(4, &[1]);
    finds(&s, "log header: magic number");
    map.store(0, &good);
    map.store(30, &[1]);
    finds(&s, "log header: checksum");
    map.store(0, &good);
    map.store(256, &99u64.to_le_bytes());
    finds(&s, "log: tail");
    map.store(0, &good);
    for (change, what) in [
        (
            (|h| h.uuid = [8; 16]) as fn(&mut LogHeader),
            "log of another volume",
        ),
        (|h| h.slot = 9, "log header: slot"),
    ] {
        let mut h = LogHeader::decode(&good).unwrap();
        change(&mut h);
        map.store(0, &h.encode());
        finds(&s, what);
        map.store(0, &good);
    }
    assert_clean(&s.check());
    s.logs[0].map = Err("no permission".to_owned());
    finds(&s, "log file cannot be read");
    s.logs.clear();
    finds(&s, "log file is missing");
}

#[test]
fn a_volume_in_a_directory() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path();
    let run = || check_volume_dir(path, &CheckOptions::default(), &mut |_| ());
    assert!(matches!(run(), Err(PoolError::NvmDir { .. })));
    let bytes = (64 << 20) + (1 << 20);
    let map = Arc::new(make_nvm(path, bytes, &MapOptions::new()).unwrap());
    drop(Volume::create(Arc::clone(&map), &options()).unwrap());
    assert_clean(&run().unwrap());
    set_slot(&map, &slot());
    assert!(
        run()
            .unwrap()
            .to_string()
            .contains("log-003: log file is missing")
    );
    let log = Map::create_file(
        &path.join(file_name(SLOT)),
        RING_AT + LOG_BYTES_MIN as usize,
    );
    write_log(&Arc::new(log.unwrap()));
    let mut stages = Vec::new();
    let report = check_volume_dir(path, &CheckOptions::default(), &mut |p| {
        stages.push(p.stage)
    })
    .unwrap();
    assert_clean(&report);
    assert_eq!(report.totals.records_waiting, 3);
    stages.dedup();
    assert_eq!(stages.len(), 5, "{stages:?}");
    let lock = NvmLock::take(path).unwrap();
    assert!(matches!(run(), Err(PoolError::InUse { .. })));
    drop(lock);
    assert_clean(&run().unwrap());
    std::fs::write(path.join("log-007.refused"), b"").unwrap();
    let report = run().unwrap();
    assert_clean(&report);
    assert!(
        report
            .to_string()
            .contains("info: log-007.refused: log put aside"),
        "{report}"
    );
    std::fs::remove_file(path.join("seg-0001")).unwrap();
    let report = run().unwrap();
    let what = "tier larger than its segments";
    assert!(report.findings.iter().any(|f| f.what == what), "{report}");
    std::fs::rename(path.join("seg-0000"), path.join("seg-0001")).unwrap();
    assert!(
        run()
            .unwrap_err()
            .to_string()
            .contains("seg-0000 is missing")
    );
}
