//! The same cuts with raw flash as the upper tier: each unit of it has done some of its commands and
//! may have been in the midst of one. What is left is opened, compared, and written on to its end.

use super::*;
use shale_device::zoned::{Behaviour, Geometry};
use shale_device::{BlockCounts, BlockDevice, DeviceError, FlashBlocks, Zoned};
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

fn blank() -> (Arc<Zoned>, FlashBlocks) {
    let cuts = Behaviour {
        cuts: true,
        ..Behaviour::default()
    };
    let flash = Arc::new(Zoned::memory(GEOMETRY, cuts).unwrap());
    let blocks = on(&flash);
    (flash, blocks)
}

fn on(flash: &Arc<Zoned>) -> FlashBlocks {
    FlashBlocks::open("flash", Arc::clone(flash), LABEL_AREA_BYTES, ZONE_BYTES).unwrap()
}

/// Flash whose steps are noted, and that looks at what the volume maps when a zone is erased.
struct Watched {
    flash: FlashBlocks,
    tape: Arc<BlockTape>,
    volume: OnceLock<Weak<Volume>>,
    erased: AtomicU64,
}

impl Watched {
    /// Blocks of files that lie in a range of the flash.
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
                mapped += u64::from(is_flash(addr) && within.contains(&addr.index()));
            }
        }
        mapped
    }
}

fn is_flash(addr: BlockAddr) -> bool {
    addr.tier() == Some(TierId::Ssd)
}

impl BlockDevice for Watched {
    fn bytes(&self) -> u64 {
        self.flash.bytes()
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.flash.read(at, into)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), DeviceError> {
        let bytes = from.into();
        self.tape.note(0, Step::Write { at, bytes });
        self.flash.write(at, from)
    }

    fn discard(&self, at: u64, bytes: u64) -> Result<(), DeviceError> {
        assert_eq!(
            self.mapped(at, bytes),
            0,
            "a zone is erased with live blocks"
        );
        self.erased.fetch_add(1, Ordering::Relaxed);
        self.tape.note(0, Step::Discard { at, bytes });
        self.flash.discard(at, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.tape.note(0, Step::Flush);
        self.flash.flush()
    }
}

impl TierDevice for Watched {
    fn counts(&self) -> BlockCounts {
        self.flash.counts()
    }

    fn access(&self) -> &'static str {
        self.flash.access()
    }

    fn name(&self) -> String {
        self.flash.name()
    }

    fn write_unit(&self) -> u64 {
        self.flash.write_unit()
    }

    fn zone_written(&self, at: u64, bytes: u64) -> Option<u64> {
        self.flash.zone_written(at, bytes)
    }
}

fn stage_on_flash(dir: &Path) -> (Stage, Arc<Watched>) {
    let mut watched = None;
    let stage = stage_on(dir, |tape, _| {
        let device = Arc::new(Watched {
            flash: blank().1,
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

/// The flash after a cut behind the first steps; `seed` chooses what each unit had done.
fn cut(told: &[shale_device::sim::Told], seed: u64) -> Arc<Zoned> {
    let (flash, blocks) = blank();
    for told in told.iter().filter(|told| told.device == 0) {
        match &told.step {
            Step::Write { at, bytes } => blocks.write(*at, bytes).unwrap(),
            Step::Discard { at, bytes } => blocks.discard(*at, *bytes).unwrap(),
            Step::Flush => blocks.flush().unwrap(),
        }
    }
    flash.cut_power(seed).unwrap();
    flash
}

/// Writes everything that a volume can write to its flash, and reads it.
fn write_on(volume: &Volume, flash: &Zoned) -> Result<(), String> {
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
    let counts = flash.counts();
    match (counts.out_of_order, space.out_of_order, space.writable) {
        (0, 0, 0) if written > 0 || space.live > 0 => Ok(()),
        _ => Err(format!(
            "{written} blocks written on: {space:?}, {counts:?}"
        )),
    }
}

fn explore_flash() -> Result<usize, String> {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (stage, watched) = stage_on_flash(dir.path());
    let states = run(stage, workload, &mut |replay, below, states, seeded| {
        let event = replay.at();
        let allowed = allowed(states, event);
        let uncertain = replay.cut(&MediaRules::default());
        let seed = event as u64;
        let all = [Choice::None, Choice::All, Choice::Seed(2 + seed)];
        let choices = &all[..if seeded { 3 } else { 2 }];
        for (n, nvm) in (0..).zip(choices) {
            let seed = seed << 8 | n;
            let flash = cut(&below.told()[..below.at()], seed);
            let mut devices = memories(below, &Choice::Seed(seed));
            devices[0] = Arc::new(on(&flash));
            verify(&uncertain.image(0, nvm), &devices, &allowed)
                .and_then(|volume| write_on(&volume, &flash))
                .map_err(|e| format!("event {event}, step {}, {nvm:?}: {e}", below.at()))?;
        }
        Ok(choices.len())
    })?;
    let erased = watched.erased.load(Ordering::Relaxed);
    println!("{erased} zones erased");
    assert!(erased > 0);
    assert_eq!(watched.flash.flash().unwrap().counts().out_of_order, 0);
    Ok(states)
}

#[test]
fn a_power_cut_in_migration_to_raw_flash_loses_nothing() {
    let states = explore_flash().unwrap();
    println!("{states} states");
    assert!(states > 100);
}
