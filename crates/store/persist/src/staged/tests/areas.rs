//! Areas that are made, opened, refused; round trips; what a failing device leaves.

use super::cut_device::CutDevice;
use super::*;
use shale_block::{BlockFile, TierDevice};

fn made() -> (Arc<CutDevice>, StagedArea) {
    let device = CutDevice::holding(vec![0xee; DEVICE_BYTES as usize]);
    let area = StagedArea::make(device.clone(), AT, LAYOUT, UUID).unwrap();
    (device, area)
}

fn reopened(device: &CutDevice) -> StagedArea {
    let device = CutDevice::holding(device.contents());
    StagedArea::open(device, AT, LAYOUT, UUID).unwrap()
}

/// Writes a checkpoint of `memory`, of which these pages changed.
fn checkpoint(area: &StagedArea, memory: &Memory, dirty: &[u64]) -> Result<Checkpoint> {
    let zero = [0; PAGE_BYTES];
    let pages = area.pages_to_copy(dirty);
    let mut copies = pages.iter().map(|p| (*p, memory.get(p).unwrap_or(&zero)));
    area.write_checkpoint(&mut copies, 77, area.next_batch(), true)
}

fn text<T>(result: Result<T>) -> String {
    match result {
        Err(e) => e.to_string(),
        Ok(_) => panic!("it is refused"),
    }
}

#[test]
fn a_new_area_is_empty_and_its_ring_is_zeros() {
    let (device, area) = made();
    let ring = AT as usize + 2 * PAGE_BYTES;
    let bytes = device.contents();
    assert!(bytes[..AT as usize].iter().all(|&b| b == 0xee));
    let ring = ring..ring + LAYOUT.staging_bytes as usize;
    assert!(bytes[ring].iter().all(|&b| b == 0));
    for area in [area, reopened(&device)] {
        assert_eq!(area.last_checkpoint().number, 0);
        assert_eq!(area.next_batch().get(), 1);
        assert_eq!((area.staged_bytes(), area.layout()), (0, LAYOUT));
        assert_eq!(image_of(&area), Memory::new());
        assert_eq!(batches_of(&area), []);
        assert_eq!(area.pages_to_copy(&[]), []);
    }
}

#[test]
fn what_was_staged_and_checkpointed_is_read_back() {
    let (device, area) = made();
    let memory = Memory::from([
        (0, [1; PAGE_BYTES]),
        (7, [2; PAGE_BYTES]),
        (8, [3; PAGE_BYTES]),
    ]);
    let pieces = vec![
        piece(3, 640, vec![9; 700]),
        with_placed(
            piece(4, 64, vec![7; 900_000]),
            &[(100, 400_000), (400_100, 499_000)],
        ),
        with_placed(piece(5, 64, vec![7; 5000]), &[(0, 5000)]),
        piece(255, 0, vec![8; 1]),
    ];
    append_pieces(&area, &pieces).unwrap();
    checkpoint(&area, &memory, &[0, 7, 8]).unwrap();
    assert_eq!(area.staged_bytes(), 0);
    let number = append_pieces(&area, &pieces).unwrap();
    let counts = area.counts();
    assert_eq!((counts.batches, counts.batch_bytes), (2, 8192));
    assert_eq!((counts.checkpoints, counts.pages_written), (1, 3));
    let area = reopened(&device);
    assert_eq!(batches_of(&area), [Batch { number, pieces }]);
    assert_eq!(image_of(&area), memory);
    let last = area.last_checkpoint();
    assert_eq!((last.number, last.txid, last.clean), (1, 77, true));
    let mut seen = 0;
    let _ = area.for_each_batch(&mut |_| {
        seen += 1;
        ControlFlow::Break(())
    });
    assert_eq!(seen, 1);
}

/// The older image lacks what changed in the last two intervals, and nothing else is written.
#[test]
fn an_image_gets_what_it_lacks_and_no_more() {
    let (device, area) = made();
    let mut memory = Memory::new();
    memory.insert(1, [1; PAGE_BYTES]);
    assert_eq!(area.pages_to_copy(&[1]), [1]);
    memory.insert(2, [1; PAGE_BYTES]);
    checkpoint(&area, &memory, &[2]).unwrap();
    memory.insert(3, [1; PAGE_BYTES]);
    assert_eq!(area.pages_to_copy(&[3]), [1, 2, 3]);
    checkpoint(&area, &memory, &[]).unwrap();
    assert_eq!(area.pages_to_copy(&[]), [3]);
    checkpoint(&area, &memory, &[]).unwrap();
    assert_eq!(area.pages_to_copy(&[]), []);
    let before = device.steps();
    checkpoint(&area, &memory, &[]).unwrap();
    assert_eq!(device.written_blocks(before).len(), 1, "the header alone");
    // Each opened area finds the same by itself, and restores the same.
    let area = reopened(&device);
    assert_eq!(area.pages_to_copy(&[]), []);
    assert_eq!(image_of(&area), memory);
}

#[test]
fn a_table_of_several_blocks_is_written_where_it_changed() {
    let layout = AreaLayout {
        memory_bytes: 3000 * PAGE_BYTES as u64,
        staging_bytes: STAGING_BYTES_MIN,
    };
    let device = CutDevice::holding(vec![0xee; (layout.bytes() + AT) as usize]);
    let area = StagedArea::make(device.clone(), AT, layout, UUID).unwrap();
    let mut memory: Memory = (0..3000)
        .step_by(2)
        .map(|p| (p, [p as u8 | 1; PAGE_BYTES]))
        .collect();
    let all: Vec<u64> = memory.keys().copied().collect();
    checkpoint(&area, &memory, &all).unwrap();
    checkpoint(&area, &memory, &[]).unwrap();
    memory.insert(1500, [4; PAGE_BYTES]);
    memory.insert(1501, [4; PAGE_BYTES]);
    let before = device.steps();
    checkpoint(&area, &memory, &[1500, 1501]).unwrap();
    // Two pages, one of three blocks of the table, the header.
    assert_eq!(device.written_blocks(before).len(), 4);
    let bytes = device.contents();
    let open = |bytes| StagedArea::open(CutDevice::holding(bytes), AT, layout, UUID);
    let area = open(bytes.clone()).unwrap();
    assert_eq!(image_of(&area), memory);
    assert_eq!(area.pages_to_copy(&[2999]), [1500, 1501, 2999]);
    // A page of the newest image, and its table.
    let table = AT + layout.bytes() - 2 * (3000 * 4096 + 3 * 4096);
    let mut damaged = bytes.clone();
    damaged[table as usize + 3 * 4096 + 1500 * 4096 + 5] ^= 1;
    let area = open(damaged).unwrap();
    assert!(text(area.read_image(&mut |_, _| {})).contains("page 1500 of image 1"));
    let mut damaged = bytes.clone();
    damaged[table as usize + 1500 * 4] ^= 1;
    assert!(text(open(damaged)).contains("table of image 1"));
    // Of the older one, a page that has not changed since: it is written again.
    let mut damaged = bytes;
    damaged[(AT + layout.bytes()) as usize - 2 * 4096] ^= 1;
    assert_eq!(
        open(damaged).unwrap().pages_to_copy(&[]),
        [1500, 1501, 2998]
    );
}

#[test]
fn a_memory_tier_that_is_still_there_is_compared() {
    let (device, area) = made();
    let mut memory = Memory::from([(1, [1; PAGE_BYTES]), (2, [2; PAGE_BYTES])]);
    checkpoint(&area, &memory, &[1, 2, 3]).unwrap();
    checkpoint(&area, &memory, &[]).unwrap();
    let area = reopened(&device);
    memory.insert(2, [7; PAGE_BYTES]);
    memory.insert(9, [9; PAGE_BYTES]);
    let mut asked = 0;
    area.compare(&mut |page, into| {
        assert_eq!(page, asked);
        asked += 1;
        *into = *memory.get(&page).unwrap_or(&[0; PAGE_BYTES]);
    });
    assert_eq!(asked, PAGES);
    // Page 3 was written as zeros, and 4 never: neither differs.
    assert_eq!(area.pages_to_copy(&[]), [2, 9]);
    checkpoint(&area, &memory, &[]).unwrap();
    assert_eq!(area.pages_to_copy(&[]), [2, 9]);
    assert_eq!(image_of(&area), memory);
}

/// Pages that a checkpoint wrote before the power cut, though neither table has changed.
#[test]
fn a_checkpoint_that_was_cut_leaves_an_image_that_lacks_its_pages() {
    let (device, area) = made();
    let mut memory = Memory::from([(1, [1; PAGE_BYTES])]);
    checkpoint(&area, &memory, &[1]).unwrap();
    checkpoint(&area, &memory, &[]).unwrap();
    memory.insert(1, [9; PAGE_BYTES]);
    device.fail_after(1);
    assert!(checkpoint(&area, &memory, &[1]).is_err());
    let area = reopened(&device);
    memory.insert(1, [1; PAGE_BYTES]);
    assert_eq!(image_of(&area), memory);
    assert_eq!(area.pages_to_copy(&[]), [1]);
}

#[test]
#[should_panic(expected = "without page Some(4)")]
fn a_checkpoint_without_a_page_is_a_mistake() {
    let (_, area) = made();
    area.pages_to_copy(&[4]);
    let _ = area.write_checkpoint(&mut std::iter::empty(), 1, area.next_batch(), false);
}

#[test]
fn after_a_write_that_failed_nothing_is_taken() {
    // An append has one step; a checkpoint writes a page, the table, flushes, and writes the header.
    for steps in 0..4 {
        let (device, area) = made();
        let pieces = [piece(1, 0, vec![1; 10])];
        append_pieces(&area, &pieces).unwrap();
        device.fail_after(steps);
        let memory = Memory::from([(1, [1; PAGE_BYTES])]);
        let failed = checkpoint(&area, &memory, &[1]);
        assert!(
            matches!(failed, Err(PersistError::Device(_))),
            "{steps}: {failed:?}"
        );
        device.fail_after(100);
        let poisoned = append_pieces(&area, &pieces);
        assert!(
            matches!(poisoned, Err(PersistError::Poisoned)),
            "{poisoned:?}"
        );
        let poisoned = checkpoint(&area, &memory, &[1]);
        assert!(
            matches!(poisoned, Err(PersistError::Poisoned)),
            "{poisoned:?}"
        );
        let area = reopened(&device);
        assert_eq!((area.last_checkpoint().number, area.next_batch().0), (0, 2));
        assert_eq!(batches_of(&area).len(), 1);
    }
    let (device, area) = made();
    device.fail_after(0);
    let pieces = [piece(1, 0, vec![1; 10])];
    assert!(matches!(
        append_pieces(&area, &pieces),
        Err(PersistError::Device(_))
    ));
    assert!(matches!(
        append_pieces(&area, &pieces),
        Err(PersistError::Poisoned)
    ));
    assert_eq!(area.next_batch().0, 1);
}

#[test]
fn a_full_ring_says_how_much_there_is() {
    let (_, area) = made();
    let data = [piece(1, 0, vec![1; area.batch_bytes_max()])];
    let mut appended = 0;
    let (needed, free) = loop {
        match append_pieces(&area, &data) {
            Ok(_) => appended += 1,
            Err(PersistError::Full { needed, free }) => break (needed, free),
            Err(e) => panic!("{e}"),
        }
    };
    assert!(appended >= 4 && needed > free);
    assert_eq!(area.staged_bytes() + free, LAYOUT.staging_bytes);
    // It is not poisoned: what is smaller fits, and after a checkpoint all does.
    let small = [piece(1, 0, vec![1; free as usize - 128])];
    append_pieces(&area, &small).unwrap();
    assert_eq!(area.staged_bytes(), LAYOUT.staging_bytes);
    assert!(matches!(
        append_pieces(&area, &small),
        Err(PersistError::Full { free: 0, .. })
    ));
    checkpoint(&area, &Memory::new(), &[]).unwrap();
    append_pieces(&area, &data).unwrap();
}

#[test]
fn what_does_not_fit_is_named() {
    let (device, _area) = made();
    let holding = || CutDevice::holding(device.contents());
    let open = |at, layout, uuid| text(StagedArea::open(holding(), at, layout, uuid));
    assert!(open(AT, LAYOUT, [6; 16]).contains("of volume 0505"));
    let other = |memory_pages: u64, staging_bytes: u64| AreaLayout {
        memory_bytes: memory_pages * 4096,
        staging_bytes,
    };
    let why = open(AT, other(39, 1 << 20), UUID);
    assert!(
        why.contains("memory_bytes is 163840, expected 159744"),
        "{why}"
    );
    let why = open(AT, other(39, (1 << 20) + 4096), UUID);
    assert!(why.contains("memory_bytes"), "{why}");
    let why = open(AT, other(40, (1 << 20) + 4096), UUID);
    assert!(why.contains("staging_bytes is 1048576"), "{why}");
    assert!(open(AT, other(40, 1 << 19), UUID).contains("staging_bytes is 524288"));
    assert!(open(AT, other(0, 1 << 20), UUID).contains("memory_bytes is 0"));
    assert!(open(AT + 1, LAYOUT, UUID).contains("multiple of 4096"));
    assert!(open(0, LAYOUT, UUID).contains("no header"));
    assert!(open(1 << 20, LAYOUT, UUID).contains("behind the device"));
    assert!(open(u64::MAX - 4095, LAYOUT, UUID).contains("behind the device"));
    // An area that was copied elsewhere.
    let mut bytes = device.contents();
    bytes.copy_within(AT as usize..(AT + LAYOUT.bytes()) as usize, 0);
    let moved = StagedArea::open(CutDevice::holding(bytes), 0, LAYOUT, UUID);
    assert!(text(moved).contains("place is 12288, expected 0"));
    let mut bytes = device.contents();
    bytes[AT as usize + 30] ^= 1;
    let damaged = StagedArea::open(CutDevice::holding(bytes), AT, LAYOUT, UUID);
    assert!(matches!(&damaged, Err(PersistError::Damaged { why }) if why.contains("checksum")));
}

#[test]
fn made_again_it_knows_nothing_of_before() {
    let (device, area) = made();
    append_pieces(&area, &[piece(1, 0, vec![1; 10])]).unwrap();
    let memory = Memory::from([(1, [1; PAGE_BYTES])]);
    checkpoint(&area, &memory, &[1]).unwrap();
    let area = StagedArea::make(device.clone(), AT, LAYOUT, UUID).unwrap();
    checkpoint(&area, &Memory::new(), &[]).unwrap();
    let area = reopened(&device);
    assert_eq!(image_of(&area), Memory::new());
    assert_eq!(batches_of(&area), []);
}

#[test]
fn an_image_file_holds_an_area() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ssd.img");
    BlockFile::create(&path, DEVICE_BYTES).unwrap();
    let open = || Arc::new(BlockFile::open(&path, DEVICE_BYTES).unwrap());
    let device = open();
    let area = StagedArea::make(device.clone(), AT, LAYOUT, UUID).unwrap();
    let flushes = device.counts().flushes;
    let pieces = vec![piece(3, 640, vec![9; 70_000]), piece(4, 0, vec![8; 1])];
    append_pieces(&area, &pieces).unwrap();
    assert_eq!(device.counts().flushes, flushes + 1);
    let memory = Memory::from([(0, [1; PAGE_BYTES]), (39, [2; PAGE_BYTES])]);
    checkpoint(&area, &memory, &[0, 39]).unwrap();
    append_pieces(&area, &pieces).unwrap();
    drop((area, device));
    let area = StagedArea::open(open(), AT, LAYOUT, UUID).unwrap();
    assert_eq!(image_of(&area), memory);
    assert_eq!(batches_of(&area)[0].pieces, pieces);
}
