//! Scrub reads what lies below NVM in runs, and names each block that is damaged.

use super::*;
use crate::scrub::ScrubReport;
use shale_block::Ask;
use shale_format::BlockAddr;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCKS: u64 = 100;

/// Where a block of a file lies below NVM.
fn addr(s: &Stage, ino: u64, fb: u64) -> BlockAddr {
    let view = s.daemon.volume().view();
    let inode = view.inode(Ino(ino)).unwrap().unwrap();
    match view.map_block(&inode, FileBlock(fb)).unwrap() {
        Mapping::Data { addr, .. } => addr,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_scrub_reads_in_runs_and_names_damaged_blocks() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let reads = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&reads);
    let flash = MemoryBlocks::new("ssd", device_bytes(0)).asking(move |ask| {
        count.fetch_add(u64::from(ask == Ask::Read), Ordering::Relaxed);
        Ok(())
    });
    let flash = Arc::new(flash);
    let mut s = stage_on(dir.path(), |_, _| flash.clone());
    s.write(16, 0, BLOCKS, 16);
    s.daemon.migrate(None).unwrap();
    let scrub = |s: &Stage| -> (ScrubReport, u64) {
        let before = reads.load(Ordering::Relaxed);
        let report = s.daemon.scrub(&mut |_| ControlFlow::Continue(()));
        assert!(
            report.complete && report.data_blocks == BLOCKS,
            "{report:?}"
        );
        (report, reads.load(Ordering::Relaxed) - before)
    };
    // One for each of two zones.
    let (report, requests) = scrub(&s);
    assert_eq!((report.errors, requests), (0, 2), "{report:?}");
    let bad = [10, 70].map(|fb| addr(&s, 16, fb));
    for addr in bad {
        flash.spoil(LABEL_AREA_BYTES + addr.byte(), &[1; 7]);
    }
    // The first one fails, then each block is read.
    let (report, requests) = scrub(&s);
    assert_eq!((report.errors, requests), (2, 1 + BLOCKS), "{report:?}");
    for (one, (fb, addr)) in report.damage.iter().zip([10, 70].into_iter().zip(bad)) {
        let named = format!("block {} of the tier", addr.index());
        assert!(one.what.contains(&named), "{one:?}");
        let at = fb * BLOCK_BYTES as u64;
        assert_eq!(one.bytes, Some(at..at + BLOCK_BYTES as u64), "{one:?}");
        assert_eq!(one.object, "/file 16 (inode 16)");
    }
    // Blocks that adjoin are one entry: a disk that dies has thousands, and no file may be left out for them.
    flash.spoil(LABEL_AREA_BYTES + addr(&s, 16, 11).byte(), &[1; 7]);
    let (report, _) = scrub(&s);
    let bytes = |n: usize| report.damage[n].bytes.clone();
    let block = BLOCK_BYTES as u64;
    assert_eq!((report.errors, report.damage.len()), (3, 2), "{report:?}");
    assert_eq!(bytes(0), Some(10 * block..12 * block));
    assert_eq!(bytes(1), Some(70 * block..71 * block));
}
