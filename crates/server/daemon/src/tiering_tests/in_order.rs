//! The same cuts with an upper tier that is only written in order: raw flash, of which each unit has done
//! some of its commands and may have been in the midst of one, and a host-managed device, of which each
//! zone has. What is left is opened, compared, and written on to its end. So with a zone that wears out while
//! it is written.

use super::*;
use shale_block::host_managed::HostManaged;
use shale_block::{BlockCounts, BlockDevice, BlockError, ManagedBlocks};
use shale_emulate::host_managed::{EmulatedZones, ZoneShape};
use shale_emulate::zoned::{Behaviour, Geometry};
use shale_emulate::{FlashZones, Zoned};
use shale_format::BlockAddr;
use shale_volume::{VolumeError, WriteStream};
use std::cell::Cell;
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

    /// Wears a zone of the tier out.
    fn wear_zone(&self, zone: u64);

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
        Arc::new(FlashZones::open("flash", flash, LABEL_AREA_BYTES, ZONE_BYTES).unwrap())
    }

    fn lose_power(&self, seed: u64) {
        self.cut_power(seed).unwrap();
    }

    /// The second of its erase blocks.
    fn wear_zone(&self, zone: u64) {
        let block = GEOMETRY.block(2 + 2 * zone as u32 + 1);
        self.wear_out(block).unwrap();
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

    fn wear_zone(&self, zone: u64) {
        self.wear_out(2 + zone, false).unwrap();
    }

    fn refused(&self) -> u64 {
        self.out_of_order()
    }
}

/// The write, counted from 1, during which its zone wears out; 0: none.
type WearsAt = u64;

/// The zone of the tier that a byte of the device is in.
fn zone_at(at: u64) -> u64 {
    (at - LABEL_AREA_BYTES) / ZONE_BYTES
}

/// A device whose steps are noted, and that looks at what the volume maps when a zone is erased.
struct Watched {
    device: Arc<dyn TierDevice>,
    tape: Arc<BlockTape>,
    volume: OnceLock<Weak<Volume>>,
    erased: AtomicU64,
    written: AtomicU64,
    wears_at: WearsAt,
    wear: Box<dyn Fn(u64) + Send + Sync>,
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

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        self.device.read(at, into)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        let bytes = from.into();
        self.tape.note(0, Step::Write { at, bytes });
        if self.written.fetch_add(1, Ordering::Relaxed) + 1 == self.wears_at {
            (self.wear)(zone_at(at));
        }
        self.device.write(at, from)
    }

    fn discard(&self, at: u64, bytes: u64) -> Result<(), BlockError> {
        assert_eq!(
            self.mapped(at, bytes),
            0,
            "a zone is erased with live blocks"
        );
        self.erased.fetch_add(1, Ordering::Relaxed);
        self.tape.note(0, Step::Discard { at, bytes });
        self.device.discard(at, bytes)
    }

    fn flush(&self) -> Result<(), BlockError> {
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

    fn zone_worn(&self, at: u64, bytes: u64) -> bool {
        self.device.zone_worn(at, bytes)
    }
}

fn stage_on_medium(
    dir: &Path,
    medium: &Arc<impl Medium>,
    wears_at: WearsAt,
) -> (Stage, Arc<Watched>) {
    let mut watched = None;
    let stage = stage_on(dir, |tape, _| {
        let worn = Arc::clone(medium);
        let device = Arc::new(Watched {
            written: AtomicU64::new(0),
            wears_at,
            wear: Box::new(move |zone| worn.wear_zone(zone)),
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
fn cut<M: Medium>(tape: &[shale_record::Noted], wears_at: WearsAt, seed: u64) -> Arc<M> {
    let medium = M::blank();
    let blocks = M::open(&medium);
    let mut written = 0;
    for step in tape.iter().filter(|step| step.device == 0) {
        let done = match &step.step {
            Step::Write { at, bytes } => {
                written += 1;
                if written == wears_at {
                    medium.wear_zone(zone_at(*at));
                }
                blocks.write(*at, bytes)
            }
            Step::Discard { at, bytes } => blocks.discard(*at, *bytes),
            Step::Flush => blocks.flush(),
        };
        // As it did the first time.
        let worn = done.as_ref().is_err_and(BlockError::is_worn_out);
        assert!(done.is_ok() || (worn && wears_at > 0), "{done:?}");
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
        let stream = if odd % 2 == 0 {
            WriteStream::Cold
        } else {
            WriteStream::Hot
        };
        let run = match volume.allocate_lower(TierId::Ssd, stream, odd, true) {
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

fn explore_on<M: Medium>(workload: fn(&mut Stage), wears_at: WearsAt) -> Result<usize, String> {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let medium = M::blank();
    let (stage, watched) = stage_on_medium(dir.path(), &medium, wears_at);
    let states = run(stage, workload, &mut |replay, below, states, seeded| {
        let event = replay.at();
        let allowed = allowed(states, event);
        let uncertain = replay.cut(&MediaRules::default());
        let seed = event as u64;
        let all = [Choice::None, Choice::All, Choice::Seed(2 + seed)];
        let choices = &all[..if seeded { 3 } else { 2 }];
        for (n, nvm) in (0..).zip(choices) {
            let seed = seed << 8 | n;
            let medium: Arc<M> = cut(&below.noted()[..below.at()], wears_at, seed);
            let mut devices = memories(below, &Choice::Seed(seed));
            devices[0] = M::open(&medium);
            verify(map_after(&uncertain, nvm), &devices, &allowed)
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
    let states = explore_on::<Zoned>(workload, 0).unwrap();
    println!("{states} states");
    assert!(states > 100);
}

#[test]
fn a_power_cut_in_migration_to_a_host_managed_device_loses_nothing() {
    let states = explore_on::<EmulatedZones>(workload, 0).unwrap();
    println!("{states} states");
    assert!(states > 100);
}

/// A zone that cannot be written any more is no free space, and its device goes on without it.
#[test]
fn a_zone_that_is_worn_out_is_left_alone() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let medium = EmulatedZones::blank();
    // Two zones in front are for labels.
    medium.wear_out(2 + 1, false).unwrap();
    let (mut s, watched) = stage_on_medium(dir.path(), &medium, 0);
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

thread_local! {
    /// Blocks that were live in a zone as it wore out.
    static LIVE: Cell<u64> = const { Cell::new(0) };
}

/// A zone wears out while it is written: what was to go there goes elsewhere, and what was there follows.
fn zone_wears_out(s: &mut Stage) {
    workload(s);
    let live = || s.daemon.volume().lower_device_infos(TierId::Ssd)[0].live_worn;
    LIVE.set(live());
    while live() > 0 {
        assert!(s.daemon.services().tiering.empty_devices() > 0);
    }
    s.write(30, 0, 40, 30);
    s.daemon.migrate(None).unwrap();
}

/// What holds on either medium. Gives the blocks of the zone that were live as it wore out.
fn goes_on_without_a_zone<M: Medium>(wears_at: WearsAt) -> u64 {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let medium = M::blank();
    let (mut s, watched) = stage_on_medium(dir.path(), &medium, wears_at);
    workload(&mut s);
    let volume = s.daemon.volume().clone();
    let zones = volume.lower_zones(TierId::Ssd);
    let worn: Vec<_> = zones.iter().filter(|z| z.worn).collect();
    assert_eq!(worn.len(), 1, "{zones:?}");
    let (written, live) = (watched.written.load(Ordering::Relaxed), worn[0].live);
    assert!(written > wears_at, "nothing was written after it");
    let status = s.daemon.status_values();
    let device = &status.tiers[0].devices[0];
    assert_eq!(device.worn_zones, [worn[0].place.zone]);
    assert_eq!((device.failing.as_ref(), device.errors), (None, 1));
    let said = status.migration.unwrap().last_error.unwrap();
    assert!(said.contains("worn out"), "{said}");
    let total = || volume.lower_space(TierId::Ssd).unwrap().total;
    assert_eq!(total(), 4 * ZONE + live);
    while total() > 4 * ZONE {
        assert!(s.daemon.services().tiering.empty_devices() > 0);
    }
    assert_eq!(contents(&volume).unwrap(), s.content);
    assert_eq!(medium.refused(), 0);
    live
}

#[test]
fn a_zone_that_wears_out_while_it_is_written_is_emptied_and_the_device_goes_on() {
    let mut live = Vec::new();
    for wears_at in 1..=9 {
        live.push(goes_on_without_a_zone::<Zoned>(wears_at));
        live.push(goes_on_without_a_zone::<EmulatedZones>(wears_at));
    }
    println!("{live:?} blocks were live in it");
    assert!(live.iter().any(|&n| n > 0));
}

/// In which writes the data goes is up to the daemon's threads, so the zone that the fifth write wears out may be an empty one: then others do.
fn power_cuts_around_a_worn_zone<M: Medium>() {
    for wears_at in [5, 4, 6, 3, 7, 2] {
        let states = explore_on::<M>(zone_wears_out, wears_at).unwrap();
        println!("{states} states, {} blocks live", LIVE.get());
        assert!(states > 100);
        if LIVE.get() > 0 {
            return;
        }
    }
    panic!("no zone with data has worn out");
}

#[test]
fn a_power_cut_around_a_zone_of_flash_that_wears_out_loses_nothing() {
    power_cuts_around_a_worn_zone::<Zoned>();
}

#[test]
fn a_power_cut_around_a_host_managed_zone_that_wears_out_loses_nothing() {
    power_cuts_around_a_worn_zone::<EmulatedZones>();
}
