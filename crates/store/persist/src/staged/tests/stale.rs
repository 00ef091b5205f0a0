//! Batches that must not be taken: torn ones, those of an earlier lap, and those of before a power cut.

use super::cut_device::CutDevice;
use super::*;

/// Byte of the device at which the ring begins.
const RING_AT: usize = AT as usize + 2 * PAGE_BYTES;

fn open(bytes: Vec<u8>) -> (Arc<CutDevice>, StagedArea) {
    let device = CutDevice::holding(bytes);
    let area = StagedArea::open(device.clone(), AT, LAYOUT, UUID).unwrap();
    (device, area)
}

/// An area that holds batches of these many data bytes.
fn staged(bytes: &[usize]) -> (Arc<CutDevice>, StagedArea) {
    let device = CutDevice::holding(vec![0xee; DEVICE_BYTES as usize]);
    let area = StagedArea::make(device.clone(), AT, LAYOUT, UUID).unwrap();
    for (n, bytes) in bytes.iter().enumerate() {
        append(&area, n as u8, *bytes);
    }
    (device, area)
}

fn append(area: &StagedArea, fill: u8, bytes: usize) -> BatchNumber {
    let pieces = [piece(1, 64, vec![fill; bytes])];
    append_pieces(area, &pieces).unwrap()
}

/// Number and first byte of each batch.
fn found(area: &StagedArea) -> Vec<(u64, u8)> {
    let batches = batches_of(area);
    batches
        .iter()
        .map(|b| (b.number.0, b.pieces[0].bytes[0]))
        .collect()
}

fn checkpoint(area: &StagedArea, keep_from: BatchNumber) {
    assert_eq!(area.pages_to_copy(&[]), []);
    area.write_checkpoint(&mut std::iter::empty(), 1, keep_from, false)
        .unwrap();
}

#[test]
fn a_batch_ends_at_what_is_damaged_in_it() {
    let (device, _area) = staged(&[100, 9000, 100]);
    let whole = device.contents();
    // Headers, an entry, bytes of each page, padding.
    for at in [0, 9, 17, 48, 63, 64, 100, 4095, 4096, 9000, 9128, 12287] {
        let mut bytes = whole.clone();
        bytes[RING_AT + PAGE_BYTES + at] ^= 0x10;
        let (_, area) = open(bytes);
        assert_eq!(found(&area), [(1, 0)], "byte {at}");
        assert_eq!(area.staged_bytes(), 4096);
        assert_eq!(area.next_batch().get(), 2);
    }
    assert_eq!(found(&open(whole).1), [(1, 0), (2, 1), (3, 2)]);
}

/// Batch 2 is lost, another one of the same number and size follows: the old batch 3 fits behind it, and is stale.
#[test]
fn a_batch_of_before_the_cut_is_no_successor() {
    let (device, _area) = staged(&[100, 100, 100, 100]);
    let mut bytes = device.contents();
    bytes[RING_AT + PAGE_BYTES + 200] ^= 1;
    let (device, area) = open(bytes);
    assert_eq!(found(&area), [(1, 0)]);
    assert_eq!(append(&area, 9, 100).get(), 2);
    let (device, area) = open(device.contents());
    assert_eq!(found(&area), [(1, 0), (2, 9)]);
    assert_eq!(append(&area, 10, 100).get(), 3);
    assert_eq!(found(&open(device.contents()).1), [(1, 0), (2, 9), (3, 10)]);
}

/// The same, with a checkpoint in between that needs nothing of the ring.
#[test]
fn a_batch_of_before_the_cut_is_not_the_first_after_a_checkpoint() {
    let (device, _area) = staged(&[100, 100]);
    let old = device.contents();
    let mut bytes = old.clone();
    bytes[RING_AT + PAGE_BYTES + 200] ^= 1;
    let (device, area) = open(bytes);
    checkpoint(&area, area.next_batch());
    // What was torn becomes whole: the rest of it reaches the medium late.
    let mut bytes = device.contents();
    let batch = RING_AT + PAGE_BYTES..RING_AT + 2 * PAGE_BYTES;
    bytes[batch.clone()].copy_from_slice(&old[batch]);
    let (device, area) = open(bytes);
    assert_eq!(found(&area), []);
    assert_eq!(append(&area, 9, 100).get(), 2);
    assert_eq!(found(&open(device.contents()).1), [(2, 9)]);
}

/// Two batches of the same number and place, both torn, whose last sector is the same zeros: the old one lacks it, and of the
/// new one nothing else is written.
#[test]
fn two_torn_batches_do_not_make_one_that_is_whole() {
    let (device, _area) = staged(&[100, 100]);
    let end = RING_AT + 2 * PAGE_BYTES;
    let mut bytes = device.contents();
    bytes[end - 512..end].fill(0xee);
    let (device, area) = open(bytes);
    assert_eq!(found(&area), [(1, 0)]);
    let before = device.steps();
    append(&area, 9, 100);
    // The cut during its last step, of which the last sector alone was written.
    assert!(device.steps() > before);
    let whole = device.contents();
    let mut bytes = device.cut_without(device.steps() - 1);
    bytes[end - 512..end].copy_from_slice(&whole[end - 512..end]);
    assert_eq!(found(&open(bytes).1), [(1, 0)]);
}

/// What a client writes into its log cannot be taken for a batch, even if it looks like the next one.
#[test]
fn a_batch_of_another_area_is_none() {
    let (one, area) = staged(&[100, 100]);
    let (other, _) = staged(&[100]);
    let mut bytes = other.contents();
    let batch = RING_AT + PAGE_BYTES..RING_AT + 2 * PAGE_BYTES;
    bytes[batch.clone()].copy_from_slice(&one.contents()[batch]);
    assert_eq!(found(&open(bytes).1), [(1, 0)]);
    drop(area);
}

/// Laps of the ring with batches of many sizes; all that is kept is found, and nothing of an earlier lap.
#[test]
fn the_ring_wraps_many_times() {
    let (device, area) = staged(&[]);
    let most = area.batch_bytes_max();
    let (mut kept, mut wraps, mut used) = (Vec::new(), 0, 0);
    for n in 0..400_usize {
        let bytes = 1 + n * 7919 % most;
        let data = [piece(2, n as u64, vec![n as u8; bytes])];
        let number = loop {
            match append_pieces(&area, &data) {
                Ok(number) => break number,
                Err(PersistError::Full { needed, free }) => {
                    assert!(needed > free && needed >= bytes as u64);
                    assert!(area.staged_bytes() + needed > LAYOUT.staging_bytes / 2);
                    // Half of them may go.
                    kept.drain(..kept.len() / 2 + 1);
                    let keep = kept.first().map_or(area.next_batch().0, |(n, _)| *n);
                    checkpoint(&area, BatchNumber(keep));
                }
                Err(e) => panic!("{e}"),
            }
        };
        kept.push((number.0, n as u8));
        let now = area.staged_bytes();
        assert!(now <= LAYOUT.staging_bytes);
        wraps += usize::from(now < used);
        used = now;
        if n % 7 == 0 {
            let (_, area) = open(device.contents());
            assert_eq!(found(&area), kept);
            assert_eq!(area.staged_bytes(), used);
            assert_eq!(area.next_batch().0, number.0 + 1);
        }
    }
    assert!(wraps > 20, "{wraps}");
    assert_eq!(found(&area), kept);
}

/// The header of the newest checkpoint is lost, and the ring has been written over what the one before needs.
#[test]
fn a_lost_header_is_noticed() {
    let (device, area) = staged(&[100, 100]);
    checkpoint(&area, area.next_batch());
    let mut noticed = 0;
    for n in 0..8 {
        for _ in 0..3 {
            append(&area, n, area.batch_bytes_max());
        }
        checkpoint(&area, area.next_batch());
        let data = [piece(1, 0, vec![n; area.batch_bytes_max()])];
        while append_pieces(&area, &data).is_ok() {}
        let last = area.last_checkpoint().number;
        let mut bytes = device.contents();
        bytes[AT as usize + (last % 2) as usize * PAGE_BYTES + 20] ^= 1;
        let device = CutDevice::holding(bytes);
        match StagedArea::open(device, AT, LAYOUT, UUID) {
            Err(PersistError::Damaged { why }) => {
                assert!(why.contains("was staged after checkpoint"), "{why}");
                noticed += 1;
            }
            Err(e) => panic!("{e}"),
            // Nothing that the one before needs is gone: no batch was lost.
            Ok(found) => assert_eq!(found.next_batch(), area.next_batch()),
        }
        checkpoint(&area, area.next_batch());
    }
    assert!(noticed > 0);
}
