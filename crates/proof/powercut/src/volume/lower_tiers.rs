//! Lower tiers of a place: a small flash device and a small disk in memory, whose every step is
//! noted, and what a power cut could leave of them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use shale_block::{Ask, MemoryBlocks, Step, TierDevice};
use shale_check::Below as Devices;
use shale_format::limits::{BLOCK_BYTES, LABEL_AREA_BYTES};
use shale_format::superblock::{DeviceEntry, TierTable};
use shale_record::{BlockReplay, BlockRules, BlockTape, Choice, Noted, Recording};
use shale_volume::{LowerDevices, MkfsOptions};
use zerocopy::FromZeros;

use crate::volume::media::page_hash;
use crate::wrong::Wrong;
use shale_bench::chance::Chance;

/// Blocks of a zone.
pub const ZONE_BLOCKS: u64 = 64;
/// Zones of flash and disk: few, so that they are full soon.
const ZONES: [u64; 2] = [5, 8];
const NAMES: [&str; 2] = ["ssd", "hdd"];
/// What is written whole or not at all.
const SECTORS: [usize; 2] = [512, 4096];

/// What flash and disk hold.
pub type Contents = Arc<Vec<Vec<u8>>>;

fn table(n: usize) -> TierTable {
    let blocks = ZONES[n] * ZONE_BLOCKS;
    let mut table = TierTable::new_zeroed();
    (table.blocks, table.devices) = (blocks, 1);
    table.device[0] = DeviceEntry {
        uuid: [n as u8 + 1; 16],
        blocks,
        zone_blocks: ZONE_BLOCKS as u32,
        kind: 0,
    };
    table
}

/// A volume with these tiers.
pub fn with_tiers(options: MkfsOptions) -> MkfsOptions {
    MkfsOptions {
        ssd: table(0),
        hdd: table(1),
        ..options
    }
}

/// Number 0: empty flash; number 1: an empty disk.
pub fn device(n: usize) -> MemoryBlocks {
    let bytes = LABEL_AREA_BYTES + ZONES[n] * ZONE_BLOCKS * BLOCK_BYTES as u64;
    MemoryBlocks::new(NAMES[n], bytes)
}

/// Both, for a check.
pub fn for_check(devices: [Arc<dyn TierDevice>; 2]) -> Devices {
    let uuid = |n: usize| table(n).device[0].uuid;
    let named = devices.into_iter().enumerate().map(|(n, d)| (uuid(n), d));
    Devices::open(named.collect())
}

/// Holds who flushes a device until something else is done.
#[derive(Default)]
struct Hold {
    state: Mutex<HoldState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum HoldState {
    #[default]
    Nobody,
    /// The next flush is to wait.
    Armed,
    /// One waits.
    Waits,
}

impl Hold {
    fn flush(&self) {
        let mut state = self.state.lock();
        if *state == HoldState::Armed {
            *state = HoldState::Waits;
            self.changed.notify_all();
            self.changed
                .wait_while(&mut state, |s| *s == HoldState::Waits);
        }
    }

    fn set(&self, to: HoldState) {
        *self.state.lock() = to;
        self.changed.notify_all();
    }
}

/// Flash and disk of a place.
pub struct Below {
    devices: [Arc<MemoryBlocks>; 2],
    tape: Arc<BlockTape>,
    hold: Arc<Hold>,
    /// What they hold, where that is known.
    known: Mutex<Option<Contents>>,
}

impl Below {
    /// Empty ones. Events are counted as in `recording`.
    pub fn new(recording: &Arc<Recording>) -> Below {
        let tape = BlockTape::new(recording);
        let hold: Arc<Hold> = Arc::default();
        let devices = [0, 1].map(|n| {
            let hold = Arc::clone(&hold);
            let memory = device(n).asking(move |ask| {
                if ask == Ask::Flush {
                    hold.flush();
                }
                Ok(())
            });
            Arc::new(tape.watch(n, memory))
        });
        Below {
            devices,
            tape,
            hold,
            known: Mutex::default(),
        }
    }

    /// For a daemon.
    pub fn lower(&self) -> LowerDevices {
        let [ssd, hdd] = self.devices.clone();
        LowerDevices {
            ssd: vec![ssd as Arc<dyn TierDevice>],
            hdd: vec![hdd],
        }
    }

    /// For a check.
    pub fn for_check(&self) -> Devices {
        let [ssd, hdd] = self.devices.clone();
        for_check([ssd, hdd])
    }

    /// What they hold.
    pub fn contents(&self) -> Contents {
        Arc::new(self.devices.iter().map(|d| d.contents()).collect())
    }

    /// Has them hold something else, behind everybody's back.
    pub fn put(&self, contents: &Contents) {
        let mut known = self.known.lock();
        if known.as_ref().is_some_and(|k| Arc::ptr_eq(k, contents)) {
            return;
        }
        for (device, bytes) in self.devices.iter().zip(&**contents) {
            device.spoil(0, bytes);
        }
        *known = Some(Arc::clone(contents));
    }

    /// What was done since the last time.
    pub fn take_reported(&self) -> Vec<Noted> {
        let noted = self.tape.take();
        if !noted.is_empty() {
            *self.known.lock() = None;
        }
        noted
    }

    /// Does `first`, and `second` when `first` flushes a device, or when it has returned.
    pub fn while_flushing<A: Send, B>(
        &self,
        first: impl FnOnce() -> A + Send,
        second: impl FnOnce() -> B,
    ) -> (A, B) {
        self.hold.set(HoldState::Armed);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let done = catch_unwind(AssertUnwindSafe(first));
                // Nothing was flushed: the other one need not wait.
                let mut state = self.hold.state.lock();
                if *state == HoldState::Armed {
                    *state = HoldState::Nobody;
                    self.hold.changed.notify_all();
                }
                done
            });
            let mut state = self.hold.state.lock();
            self.hold
                .changed
                .wait_while(&mut state, |s| *s == HoldState::Armed);
            drop(state);
            let second = second();
            self.hold.set(HoldState::Nobody);
            let first = thread.join().and_then(|done| done);
            (first.unwrap_or_else(|panic| resume_unwind(panic)), second)
        })
    }
}

/// Zones are written in order.
///
/// # Errors
/// They are not.
pub fn in_order(noted: &[Noted]) -> Result<(), Wrong> {
    let zone_bytes = ZONE_BLOCKS * BLOCK_BYTES as u64;
    match BlockReplay::out_of_order(noted, LABEL_AREA_BYTES, zone_bytes) {
        None => Ok(()),
        Some((n, at)) => {
            let block = (at - LABEL_AREA_BYTES) / BLOCK_BYTES as u64;
            let name = NAMES[n];
            Err(format!("{name}: block {block} is written out of order"))
        }
    }
}

/// A state of the devices, and a number that is equal for equal states.
#[derive(Clone)]
pub struct Left {
    /// What they hold.
    pub contents: Contents,
    /// Its hash.
    pub hash: u128,
}

/// A position in what the devices of a place were reported.
pub struct Waves<'t> {
    replay: BlockReplay<'t>,
    /// The state while nothing is uncertain.
    known: Option<(usize, Left)>,
}

impl<'t> Waves<'t> {
    /// Before the first step, with `contents` on the devices.
    pub fn new(noted: &'t [Noted], contents: Contents, rules: BlockRules) -> Waves<'t> {
        Waves {
            replay: BlockReplay::new(noted, contents.to_vec(), rules),
            known: None,
        }
    }

    /// Lets everything happen that happened before `event` events of NVM had.
    pub fn pass_to(&mut self, event: usize) {
        while self.replay.next().is_some_and(|noted| noted.event < event) {
            self.replay.step();
        }
    }

    /// Lets what happened after exactly `event` events happen up to the next flush; whether there is
    /// one, which has not happened then.
    pub fn to_flush(&mut self, event: usize) -> bool {
        let now = |noted: &&Noted| noted.event <= event;
        while let Some(noted) = self.replay.next().filter(now) {
            if noted.step == Step::Flush {
                return true;
            }
            self.replay.step();
        }
        false
    }

    /// The next step happens.
    pub fn step(&mut self) {
        self.replay.step();
    }

    /// What the devices may hold if power fails now: nothing of what is uncertain, all, some.
    pub fn left(&mut self, chance: &mut Chance) -> Vec<Left> {
        let sector = SECTORS[chance.below(2) as usize];
        if !self.replay.is_uncertain() {
            let at = self.replay.at();
            let left = match self.known.take() {
                Some((known, left)) if known == at => left,
                _ => Left::of(self.replay.images(sector, &Choice::None)),
            };
            self.known = Some((at, left.clone()));
            return vec![left];
        }
        let some = [512, 4096].map(|bytes| (bytes, Choice::Seed(chance.next_u64())));
        let plain = [Choice::None, Choice::All].map(|choice| (sector, choice));
        let all = plain.into_iter().chain(some);
        all.map(|(bytes, choice)| Left::of(self.replay.images(bytes, &choice)))
            .collect()
    }
}

impl Left {
    fn of(contents: Vec<Vec<u8>>) -> Left {
        Left {
            hash: hash_of(&contents),
            contents: Arc::new(contents),
        }
    }
}

/// Labels are not looked at.
fn hash_of(contents: &[Vec<u8>]) -> u128 {
    let blocks = contents.iter().enumerate().flat_map(|(n, bytes)| {
        let (blocks, _) = bytes[LABEL_AREA_BYTES as usize..].as_chunks::<BLOCK_BYTES>();
        (0..)
            .zip(blocks)
            .map(move |(at, block): (u64, _)| page_hash((n as u64 + 1) << 40 | at, block))
    });
    blocks.fold(0, |sum, hash| sum ^ hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_flushed_is_certain_and_the_rest_is_not() {
        let recording = Recording::new();
        let below = Below::new(&recording);
        let before = below.contents();
        let device = below.lower().ssd.remove(0);
        let at = LABEL_AREA_BYTES;
        device.write(at, &[1; BLOCK_BYTES]).unwrap();
        device.flush().unwrap();
        device.write(at + 4096, &[2; BLOCK_BYTES]).unwrap();
        let noted = below.take_reported();
        assert_eq!(in_order(&noted), Ok(()));
        let mut waves = Waves::new(&noted, before.clone(), BlockRules::default());
        assert!(waves.to_flush(0));
        let byte = |left: &Left, n: u64| left.contents[0][(at + n) as usize];
        let left = waves.left(&mut Chance::new(1));
        assert_eq!(
            (left.len(), byte(&left[0], 0), byte(&left[1], 0)),
            (4, 0, 1)
        );
        waves.step();
        assert!(!waves.to_flush(0));
        let left = waves.left(&mut Chance::new(1));
        assert!(left.iter().all(|left| byte(left, 0) == 1));
        assert_eq!((byte(&left[0], 4096), byte(&left[1], 4096)), (0, 2));
        let lies = BlockRules { flush_lies: true };
        let mut waves = Waves::new(&noted, before, lies);
        assert!(waves.to_flush(0));
        waves.step();
        assert_eq!(byte(&waves.left(&mut Chance::new(1))[0], 0), 0);
        device.write(at + 3 * 4096, &[2; BLOCK_BYTES]).unwrap();
        device.write(at + 2 * 4096, &[2; BLOCK_BYTES]).unwrap();
        assert!(in_order(&below.take_reported()).is_err());
    }

    #[test]
    fn something_happens_while_a_device_is_flushed() {
        let below = Below::new(&Recording::new());
        let device = below.lower().hdd.remove(0);
        let order = Mutex::new(Vec::new());
        let flushes = || {
            order.lock().push(1);
            device.flush().unwrap();
            order.lock().push(3);
        };
        below.while_flushing(flushes, || order.lock().push(2));
        below.while_flushing(|| order.lock().push(4), || order.lock().push(5));
        assert_eq!(*order.lock(), [1, 2, 3, 4, 5]);
    }
}
