use super::*;
use rustix::io::Errno;
use shale_block::BlockDevice;
use shale_block::host_managed::{ZoneState, zones_of};

const BLOCK: usize = 4096;
const EACH: u64 = 64 << 10;

/// One conventional zone, five more.
const SHAPE: ZoneShape = ZoneShape {
    zones: 6,
    conventional: 1,
    zone_bytes: EACH,
    capacity: 48 << 10,
    max_active: 3,
};

fn write(device: &EmulatedZones, at: u64, blocks: usize) -> Result<(), Errno> {
    let done = device.write(at, &vec![7; blocks * BLOCK]);
    let number = |e: BlockError| Errno::from_raw_os_error(e.raw_os_error().unwrap());
    done.map_err(number)
}

fn states(device: &EmulatedZones) -> Vec<ZoneState> {
    let zones = zones_of(device).unwrap();
    zones.into_iter().map(|z| z.state).collect()
}

#[test]
fn what_is_not_at_a_pointer_is_refused() {
    let device = EmulatedZones::memory(SHAPE).unwrap();
    let block = BLOCK as u64;
    assert_eq!(write(&device, EACH + block, 1), Err(Errno::IO));
    assert_eq!(write(&device, EACH, 2), Ok(()));
    for at in [0, block, 3 * block] {
        assert_eq!(write(&device, EACH + at, 1), Err(Errno::IO), "{at}");
    }
    assert_eq!(
        write(&device, EACH + 2 * block, 11),
        Err(Errno::IO),
        "beyond what it holds"
    );
    assert_eq!(device.out_of_order(), 5);
    assert_eq!(states(&device)[1], ZoneState::Active(2 * block));
    // Behind the pointer nothing is read, before it everything.
    assert!(device.read(EACH + block, &mut [0; BLOCK]).is_ok());
    assert!(device.read(EACH + block, &mut [0; 2 * BLOCK]).is_err());
    assert_eq!(write(&device, EACH + 2 * block, 10), Ok(()));
    assert_eq!(states(&device)[1], ZoneState::Full);
    // The conventional zone has no pointer, and is not reset.
    assert_eq!(write(&device, 5 * block, 2), Ok(()));
    assert_eq!(write(&device, 4 * block, 1), Ok(()));
    assert!(device.discard(0, EACH).is_err());
    assert!(device.discard(EACH, EACH / 2).is_err());
    device.discard(EACH, 2 * EACH).unwrap();
    assert_eq!(
        states(&device)[..2],
        [ZoneState::Anywhere, ZoneState::Empty]
    );
    assert_eq!(write(&device, EACH, 1), Ok(()));
}

#[test]
fn few_zones_can_be_begun_and_not_full() {
    let device = EmulatedZones::memory(SHAPE).unwrap();
    for n in 1..=3 {
        assert_eq!(write(&device, n * EACH, 1), Ok(()));
    }
    assert_eq!(write(&device, 4 * EACH, 1), Err(Errno::OVERFLOW));
    device.finish(2 * EACH).unwrap();
    assert_eq!(states(&device)[2], ZoneState::Full);
    assert_eq!(write(&device, 2 * EACH + BLOCK as u64, 1), Err(Errno::IO));
    assert_eq!(write(&device, 4 * EACH, 1), Ok(()));
    assert_eq!(write(&device, 5 * EACH, 1), Err(Errno::OVERFLOW));
    device.discard(EACH, EACH).unwrap();
    assert_eq!(write(&device, 5 * EACH, 12), Ok(()), "full at once");
    assert_eq!(write(&device, EACH, 1), Ok(()));
}

#[test]
fn an_image_is_what_it_was_and_is_used_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("zones.img");
    assert_eq!(zone_bytes_at(&path).unwrap(), None);
    let device = EmulatedZones::create(&path, SHAPE).unwrap();
    assert_eq!(write(&device, 2 * EACH, 3), Ok(()));
    device.wear_out(4, true).unwrap();
    let before = states(&device);
    drop(device);
    assert_eq!(zone_bytes_at(&path).unwrap(), Some(EACH));
    let again = open(&path).unwrap();
    let found = zones_of(&*again).unwrap();
    assert!(found.iter().map(|z| z.state).eq(before));
    assert_eq!((again.max_active(), again.bytes()), (3, 6 * EACH));
    let mut bytes = [0; BLOCK];
    again.read(2 * EACH + 2 * BLOCK as u64, &mut bytes).unwrap();
    assert_eq!(bytes, [7; BLOCK]);
    assert!(again.read(4 * EACH, &mut bytes).is_err());
    assert!(again.trouble().is_none());
    std::fs::remove_file(&path).unwrap();
    assert!(again.trouble().unwrap().contains("leads nowhere"));
}

#[test]
fn what_is_no_image_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("zones.img");
    drop(EmulatedZones::create(&path, SHAPE).unwrap());
    let whole = std::fs::read(&path).unwrap();
    let mut other_version = whole.clone();
    other_version[4] ^= 2;
    let mut no_zones = whole.clone();
    no_zones[8..16].fill(0);
    let mut too_much = whole.clone();
    too_much[8..32].fill(0xff);
    let cut = whole[..whole.len() - BLOCK].to_vec();
    for bytes in [
        vec![],
        vec![0; 1 << 20],
        other_version,
        no_zones,
        too_much,
        cut,
    ] {
        std::fs::write(&path, &bytes).unwrap();
        let said = open(&path).err().unwrap().to_string();
        assert!(
            said.contains("zones.img: it is no host-managed device"),
            "{said}"
        );
    }
}

/// More zones than are asked for at once.
#[test]
fn many_zones_are_reported_piece_by_piece() {
    let shape = ZoneShape {
        zones: 9_000,
        conventional: 90,
        zone_bytes: BLOCK as u64,
        capacity: BLOCK as u64,
        max_active: 0,
    };
    let device = EmulatedZones::memory(shape).unwrap();
    assert_eq!(write(&device, 8_500 * BLOCK as u64, 1), Ok(()));
    let zones = zones_of(&device).unwrap();
    assert_eq!(zones.len(), 9_000);
    let full: Vec<_> = (0..9_000)
        .filter(|&n| zones[n].state == ZoneState::Full)
        .collect();
    assert_eq!(full, [8_500]);
    assert_eq!(zones.iter().filter(|z| !z.is_sequential).count(), 90);
}
