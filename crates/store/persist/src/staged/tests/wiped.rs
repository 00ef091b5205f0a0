//! An area that is wiped, cut anywhere: it is as it was, or none.

use super::cut_device::CutDevice;
use super::*;

#[test]
fn a_cut_while_it_is_wiped_leaves_the_newest_checkpoint_or_none() {
    for checkpoints in 1..4 {
        let device = CutDevice::holding(vec![0xa5; DEVICE_BYTES as usize]);
        let area = StagedArea::make(device.clone(), AT, LAYOUT, UUID).unwrap();
        for n in 1..=checkpoints {
            let pages: Vec<u64> = area.pages_to_copy(&[n]);
            let bytes = [n as u8; PAGE_BYTES];
            let mut pages = pages.iter().map(|&page| (page, &bytes));
            let next = area.next_batch();
            area.write_checkpoint(&mut pages, n, next, true).unwrap();
        }
        let (newest, image) = (area.last_checkpoint(), image_of(&area));
        drop(area);
        let before = device.steps();
        assert!(!wipe_area(&*device, AT, [6; 16]).unwrap(), "another's");
        assert!(!wipe_area(&*device, AT + PAGE_BYTES as u64, UUID).unwrap());
        assert_eq!(device.steps(), before, "nothing is written");
        assert!(wipe_area(&*device, AT, UUID).unwrap());
        let (mut kept, mut gone, mut seed) = (0, 0, 7);
        for cut in before..=device.steps() {
            for _ in 0..20 {
                let there = CutDevice::holding(device.cut(cut, &mut seed));
                match StagedArea::open(there.clone(), AT, LAYOUT, UUID) {
                    Ok(area) => {
                        assert_eq!(area.last_checkpoint(), newest, "cut at {cut}");
                        assert_eq!(image_of(&area), image, "cut at {cut}");
                        kept += 1;
                    }
                    Err(PersistError::NoArea { .. } | PersistError::Damaged { .. }) => gone += 1,
                    Err(e) => panic!("cut at {cut}: {e}"),
                }
                wipe_area(&*there, AT, UUID).unwrap();
                let none = StagedArea::open(there, AT, LAYOUT, UUID);
                assert!(matches!(none, Err(PersistError::NoArea { .. })), "{cut}");
            }
        }
        assert!(kept > 0 && gone > 0, "{kept} {gone}");
    }
}
