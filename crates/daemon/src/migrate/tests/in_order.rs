//! The same cuts with an upper tier that is only written in order: raw flash, of which each unit has done
//! some of its commands and may have been in the midst of one, and a host-managed device, of which each
//! zone has. What is left is opened, compared, and written on to its end.

use super::*;
use shale_device::host_managed::{EmulatedZones, HostManaged, ZoneShape};
use shale_device::zoned::{Behaviour, Geometry};
use shale_device::{BlockCounts, BlockDevice, DeviceError, FlashBlocks, ManagedBlocks, Zoned};
use shale_format::BlockAddr;
use shale_volume::{Heat, VolumeError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};

const BLOCK: u64 = BLOCK_BYTES as u64;
const ZONE_BYTES: u64 = ZONE * BLOCK;

/// A zone has two erase blocks of 16 pages; there are five, and two erase blocks for labels.
const GEOMETRY: Geometry = Geometry {
    units: 4,
    blocks_per_unit: 3,
    pages_per_block: 16,
    page_bytes: 8192,
};

/// Five zones, of which not all can be used, and two for labels. As few may be begun as a volume needs.
const SHAPE: ZoneShape = ZoneShape {
    zones: 7,
    conventional: 0,
    zone_bytes: 2 * ZONE_BYTES,
    capacity: ZONE_BYTES + 3 * BLOCK,
    max_active: 4,
};

/// A medium that outlives its power, and refuses what is out of order.
trait Medium: Send + Sync + Sized + 'static {
    fn blank() -> Arc<Self>;

    /// As a device, as it is.
    fn open(medium: &Arc<Self>) -> Arc<dyn TierDevice>;

    fn lose_power(&self, seed: u64);

    /// Writes that it refused.
    fn refused(&self) -> u64;
}

impl Medium for Zoned {
    fn blank() -> Arc<Zoned> {
        let cuts = Behaviour {
            cuts: true,
            ..Behaviour::default()
        };
        Arc::new(Zoned::memory(GEOMETRY, cuts).unwrap())
    }

    fn open(flash: &Arc<Zoned>) -> Arc<dyn TierDevice> {
        let flash = Arc::clone(flash);
        Arc::new(FlashBlocks::open("flash", flash, LABEL_AREA_BYTES, ZONE_BYTES).unwrap())
    }

    fn lose_power(&self, seed: u64) {
        self.cut_power(seed).unwrap();
    }

    fn refused(&self) -> u64 {
        self.counts().out_of_order
    }
}

impl Medium for EmulatedZones {
    fn blank() -> Arc<EmulatedZones> {
        Arc::new(EmulatedZones::memory(SHAPE).unwrap())
    }

    fn open(zones: &Arc<EmulatedZones>) -> Arc<dyn TierDevice> {
        let device: Arc<dyn HostManaged> = zones.clone();
        let zone = (ZONE_BYTES, ZONE_BYTES);
        Arc::new(ManagedBlocks::open("zones", device, LABEL_AREA_BYTES, zone).unwrap())
    }

    fn lose_power(&self, seed: u64) {
        self.cut_power(seed).unwrap();
    }

    fn refused(&self) -> u64 {
        self.out_of_order()
    }
}

/// A device whose steps are noted, and that looks at what the volume maps when a zone is erased.
struct Watched {
    device: Arc<dyn TierDevice>,
    tape: Arc<BlockTape>,
    volume: OnceLock<Weak<Volume>>,
    erased: AtomicU64,
}

impl Watched {
    /// Blocks of files that lie in a range of the device.
    fn mapped(&self, at: u64, bytes: u64) -> u64 {
        let Some(volume) = self.volume.get().and_then(Weak::upgrade) else {
            panic!("a zone is erased before there are files");
        };
        let first = (at - LABEL_AREA_BYTES) / BLOCK;
        let within = first..first + bytes / BLOCK;
        let (view, mut mapped) = (volume.view(), 0);
        for inode in (16..32).filter_map(|n| view.inode(Ino(n)).unwrap()) {
            for fb in 0..inode.size / BLOCK {
                let found = view.map_block(&inode, FileBlock(fb)).unwrap();
                let Mapping::Data { addr, .. } = found else {
                    continue;
                };
                mapped += u64::from(is_upper(addr) && within.contains(&addr.index()));
            }
        }
        mapped
    }
}

fn is_upper(addr: BlockAddr) -> bool {
    addr.tier() == Some(TierId::Ssd)
}

impl BlockDevice for Watched {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(at, into)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), DeviceError> {
        let bytes = from.into();
        self.tape.note(0, Step::Write { at, bytes });
        self.device.write(at, from)
    }

    fn discard(&self, at: u64, bytes: u64) -> Result<(), DeviceError> {
        assert_eq!(
            self.mapped(at, bytes),
            0,
            "a zone is erased with live blocks"
        );
        self.erased.fetch_add(1, Ordering::Relaxed);
        self.tape.note(0, Step::Discard { at, bytes });
        self.device.discard(at, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.tape.note(0, Step::Flush);
        self.device.flush()
    }
}

impl TierDevice for Watched {
    fn counts(&self) -> BlockCounts {
        self.device.counts()
    }

    fn access(&self) -> &'static str {
        self.device.access()
    }

    fn name(&self) -> String {
        self.device.name()
    }

    fn write_unit(&self) -> u64 {
        self.device.write_unit()
    }

    fn zone_written(&self, at: u64, bytes: u64) -> Option<u64> {
        self.device.zone_written(at, bytes)
    }
}

fn stage_on_medium(dir: &Path, medium: &Arc<impl Medium>) -> (Stage, Arc<Watched>) {
    let mut watched = None;
    let stage = stage_on(dir, |tape, _| {
        let device = Arc::new(Watched {
            device: Medium::open(medium),
            tape: Arc::clone(tape),
            volume: OnceLock::new(),
            erased: AtomicU64::new(0),
        });
        watched.insert(device).clone()
    });
    let watched = watched.unwrap();
    let volume = Arc::downgrade(stage.daemon.volume());
    watched.volume.set(volume).unwrap();
    (stage, watched)
}

/// The medium after a cut behind the first steps; `seed` chooses what had been done.
fn cut<M: Medium>(told: &[shale_device::sim::Told], seed: u64) -> Arc<M> {
    let medium = M::blank();
    let blocks = M::open(&medium);
    for told in told.iter().filter(|told| told.device == 0) {
        match &told.step {
            Step::Write { at, bytes } => blocks.write(*at, bytes).unwrap(),
            Step::Discard { at, bytes } => blocks.discard(*at, *bytes).unwrap(),
            Step::Flush => blocks.flush().unwrap(),
        }
    }
    medium.lose_power(seed);
    medium
}

/// Writes everything that a volume can write to its upper tier, and reads it.
fn write_on(volume: &Volume, medium: &impl Medium) -> Result<(), String> {
    let why = |e: VolumeError| format!("written on: {e}");
    volume.erase_zones(TierId::Ssd).map_err(why)?;
    let (mut written, mut odd) = (0, 3);
    loop {
        let heat = if odd % 2 == 0 { Heat::Cold } else { Heat::Hot };
        let run = match volume.allocate_lower(TierId::Ssd, heat, odd, true) {
            Ok(run) => run,
            Err(VolumeError::NoSpace { .. }) => break,
            Err(e) => return Err(why(e)),
        };
        let bytes = vec![odd as u8; (run.len * BLOCK) as usize];
        volume.write_lower(run, &bytes).map_err(why)?;
        volume.flush_lower(TierId::Ssd).map_err(why)?;
        let mut found = vec![0; bytes.len()];
        volume
            .view()
            .read_at(run.addr, 0, &mut found)
            .map_err(why)?;
        if found != bytes {
            return Err("what was written on is something else".to_owned());
        }
        (written, odd) = (written + run.len, odd % 13 + 1);
    }
    let space = volume.lower_space(TierId::Ssd).unwrap();
    let refused = medium.refused();
    match (refused, space.out_of_order, space.writable) {
        (0, 0, 0) if written > 0 || space.live > 0 => Ok(()),
        _ => Err(format!(
            "{written} blocks written on: {space:?}, {refused} refused"
        )),
    }
}

fn explore_on<M: Medium>() -> Result<usize, String> {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let medium = M::blank();
    let (stage, watched) = stage_on_medium(dir.path(), &medium);
    let states = run(stage, workload, &mut |replay, below, states, seeded| {
        let event = replay.at();
        let allowed = allowed(states, event);
        let uncertain = replay.cut(&MediaRules::default());
        let seed = event as u64;
        let all = [Choice::None, Choice::All, Choice::Seed(2 + seed)];
        let choices = &all[..if seeded { 3 } else { 2 }];
        for (n, nvm) in (0..).zip(choices) {
            let seed = seed << 8 | n;
            let medium: Arc<M> = cut(&below.told()[..below.at()], seed);
            let mut devices = memories(below, &Choice::Seed(seed));
            devices[0] = M::open(&medium);
            verify(&uncertain.image(0, nvm), &devices, &allowed)
                .and_then(|volume| write_on(&volume, &*medium))
                .map_err(|e| format!("event {event}, step {}, {nvm:?}: {e}", below.at()))?;
        }
        Ok(choices.len())
    })?;
    let erased = watched.erased.load(Ordering::Relaxed);
    println!("{erased} zones erased");
    assert!(erased > 0);
    assert_eq!(medium.refused(), 0);
    Ok(states)
}

#[test]
fn a_power_cut_in_migration_to_raw_flash_loses_nothing() {
    let states = explore_on::<Zoned>().unwrap();
    println!("{states} states");
    assert!(states > 100);
}

#[test]
fn a_power_cut_in_migration_to_a_host_managed_device_loses_nothing() {
    let states = explore_on::<EmulatedZones>().unwrap();
    println!("{states} states");
    assert!(states > 100);
}

/// A zone that cannot be written any more is no room, and its device goes on without it.
#[test]
fn a_zone_that_is_worn_out_is_left_alone() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let medium = EmulatedZones::blank();
    // Two zones in front are for labels.
    medium.wear_out(2 + 1, false).unwrap();
    let (mut s, watched) = stage_on_medium(dir.path(), &medium);
    workload(&mut s);
    let volume = s.daemon.volume();
    assert_eq!(contents(volume).unwrap(), s.content);
    let zones = volume.lower_zones(TierId::Ssd);
    assert_eq!((zones[1].written, zones[1].live), (ZONE, 0), "{zones:?}");
    assert!(zones.iter().map(|z| z.live).sum::<u64>() > 0, "{zones:?}");
    let space = volume.lower_space(TierId::Ssd).unwrap();
    assert_eq!(space.total, 4 * ZONE, "{space:?}");
    let report = s.daemon.devices()[0].clone();
    assert_eq!((report.state.as_str(), report.errors), ("in use", 0));
    assert!(watched.erased.load(Ordering::Relaxed) > 0);
    assert_eq!(medium.refused(), 0);
}
