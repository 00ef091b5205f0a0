//! A device with a write cache that a power cut empties, for real programs.
//!
//! What is written is read again at once, and survives a power cut once a flush has returned, or the write itself was durable
//! ([`BlockDevice::write_durable`]). Of what was not flushed a cut takes any sectors; of a sector that was written more often
//! since it was last durable, the newest content survives or the durable one, none between. A device may write its cache down
//! when it likes: this one does it all at once when [`CACHE_BYTES_MAX`] are not flushed.
//!
//! Power fails in two steps, so that what was on its way at that moment is torn, too, and no program hears of a success
//! afterwards: from [`WriteCache::hold`] on writes are done and not answered, and flushes neither; [`WriteCache::cut`] empties
//! the cache, and whatever waits or comes fails until [`WriteCache::power_on`].

use std::collections::BTreeMap;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use shale_block::{BlockDevice, BlockError};
use shale_sys::random::next_random;

/// What is written whole or not at all.
pub const SECTOR_BYTES: usize = 512;
/// Most that is not flushed.
pub const CACHE_BYTES_MAX: usize = 64 << 20;
/// What is read at once of what is written over.
const PART_BYTES: usize = 1 << 20;

type Sector = [u8; SECTOR_BYTES];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Power {
    On,
    /// Failing: nothing is answered.
    Holding,
    Off,
}

struct State {
    power: Power,
    /// By number, what is durable of each sector that was written and not flushed.
    durable: BTreeMap<u64, Sector>,
    counts: CacheCounts,
}

/// See the module.
pub struct WriteCache<D> {
    device: D,
    lies: bool,
    state: Mutex<State>,
    /// Power is off or on again.
    changed: Condvar,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Writes and discards.
    pub writes: u64,
    /// Of these, durable when they returned.
    pub durable_writes: u64,
    /// Flushes.
    pub flushes: u64,
}

/// What a power cut did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// Sectors that had been written and not flushed.
    pub unflushed: usize,
    /// Of these, lost.
    pub lost: usize,
}

fn no_power() -> BlockError {
    BlockError::os("a device without power", "use it", Errno::IO)
}

impl<D: BlockDevice> WriteCache<D> {
    /// A cache before `device`, of which everything is durable.
    pub fn before(device: D) -> Self {
        Self {
            device,
            lies: false,
            state: Mutex::new(State {
                power: Power::On,
                durable: BTreeMap::new(),
                counts: CacheCounts::default(),
            }),
            changed: Condvar::new(),
        }
    }

    /// Whether it says that flushes are done, and durable writes durable, and neither is so: a control for tests.
    pub fn lying(mut self, lies: bool) -> Self {
        self.lies = lies;
        self
    }

    /// What was done since it was made.
    pub fn counts(&self) -> CacheCounts {
        self.state.lock().counts
    }

    /// Power begins to fail: no write and no flush is answered any more.
    pub fn hold(&self) {
        self.state.lock().power = Power::Holding;
    }

    /// Power is off: of each sector that was not flushed the new content survives with `kept_percent`, else the durable one,
    /// the same ones for the same seed and the same writes. Everything fails from now on.
    ///
    /// # Errors
    /// The device below cannot be written.
    pub fn cut(&self, seed: u64, kept_percent: u8) -> Result<Emptied, BlockError> {
        let mut state = self.state.lock();
        state.power = Power::Off;
        self.changed.notify_all();
        let durable = std::mem::take(&mut state.durable);
        let (unflushed, mut lost, mut random) = (durable.len(), 0, seed);
        for (n, was) in durable {
            if next_random(&mut random) % 100 >= u64::from(kept_percent) {
                self.device.write(n * SECTOR_BYTES as u64, &was)?;
                lost += 1;
            }
        }
        Ok(Emptied { unflushed, lost })
    }

    /// Power is there again.
    pub fn power_on(&self) {
        self.state.lock().power = Power::On;
        self.changed.notify_all();
    }

    /// Notes what is durable of a range that `change` changes.
    fn change(
        &self,
        range: (u64, u64),
        durable: bool,
        change: impl FnOnce() -> Result<(), BlockError>,
    ) -> Result<(), BlockError> {
        let (offset, bytes) = range;
        let sector = SECTOR_BYTES as u64;
        if !offset.is_multiple_of(sector) || !bytes.is_multiple_of(sector) {
            return Err(BlockError::os(
                "a device",
                "write parts of sectors",
                Errno::INVAL,
            ));
        }
        let mut state = self.state.lock();
        if state.power == Power::Off {
            return Err(no_power());
        }
        state.counts.writes += 1;
        state.counts.durable_writes += u64::from(durable);
        let (first, end) = (offset / sector, (offset + bytes) / sector);
        if durable && !self.lies && state.power == Power::On {
            (first..end).for_each(|n| {
                state.durable.remove(&n);
            });
        } else {
            self.note_durable(&mut state.durable, first, end)?;
        }
        change()?;
        if state.durable.len() * SECTOR_BYTES > CACHE_BYTES_MAX {
            state.durable.clear();
        }
        if state.power == Power::Holding {
            self.changed
                .wait_while(&mut state, |state| state.power == Power::Holding);
            return Err(no_power());
        }
        Ok(())
    }

    fn note_durable(
        &self,
        durable: &mut BTreeMap<u64, Sector>,
        mut first: u64,
        end: u64,
    ) -> Result<(), BlockError> {
        let mut old = vec![0; PART_BYTES];
        while first < end {
            let sectors = (end - first).min((PART_BYTES / SECTOR_BYTES) as u64);
            let part = &mut old[..sectors as usize * SECTOR_BYTES];
            self.device.read(first * SECTOR_BYTES as u64, part)?;
            for (n, was) in (first..).zip(part.as_chunks::<SECTOR_BYTES>().0) {
                durable.entry(n).or_insert(*was);
            }
            if durable.len() * SECTOR_BYTES > CACHE_BYTES_MAX {
                durable.clear();
            }
            first += sectors;
        }
        Ok(())
    }
}

impl<D: BlockDevice> BlockDevice for WriteCache<D> {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        if self.state.lock().power == Power::Off {
            return Err(no_power());
        }
        self.device.read(offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        let write = || self.device.write(offset, from);
        self.change((offset, from.len() as u64), false, write)
    }

    fn write_durable(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        let write = || self.device.write(offset, from);
        self.change((offset, from.len() as u64), true, write)
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        self.change((offset, bytes), false, || {
            self.device.discard(offset, bytes)
        })
    }

    fn flush(&self) -> Result<(), BlockError> {
        let mut state = self.state.lock();
        self.changed
            .wait_while(&mut state, |state| state.power == Power::Holding);
        if state.power == Power::Off {
            return Err(no_power());
        }
        state.counts.flushes += 1;
        if !self.lies {
            state.durable.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_block::FileDevice;

    fn device() -> WriteCache<FileDevice> {
        WriteCache::before(FileDevice::memory(64 << 10).unwrap())
    }

    fn at(device: &WriteCache<FileDevice>, sector: u64) -> u8 {
        let mut content = [0; SECTOR_BYTES];
        let offset = sector * SECTOR_BYTES as u64;
        device.read(offset, &mut content).unwrap();
        assert!(content.iter().all(|b| *b == content[0]), "a sector is torn");
        content[0]
    }

    fn put(device: &WriteCache<FileDevice>, sector: u64, byte: u8, count: usize) {
        let content = vec![byte; SECTOR_BYTES * count];
        device
            .write(sector * SECTOR_BYTES as u64, &content)
            .unwrap();
    }

    fn put_durably(device: &WriteCache<FileDevice>, sector: u64, byte: u8) {
        let content = [byte; SECTOR_BYTES];
        device
            .write_durable(sector * SECTOR_BYTES as u64, &content)
            .unwrap();
    }

    #[test]
    fn a_cut_takes_what_was_not_flushed() {
        let device = device();
        put(&device, 0, 1, 8);
        device.flush().unwrap();
        put(&device, 0, 2, 4);
        put(&device, 1, 3, 1);
        put_durably(&device, 6, 4);
        device.discard(7 * 512, 512).unwrap();
        assert_eq!((at(&device, 0), at(&device, 1), at(&device, 7)), (2, 3, 0));
        let emptied = device.cut(1, 0).unwrap();
        assert_eq!((emptied.unflushed, emptied.lost), (5, 5));
        assert!(device.read(0, &mut [0; 512]).is_err());
        assert!(device.write(0, &[0; 512]).is_err());
        assert!(device.flush().is_err());
        device.power_on();
        let found = [0, 1, 6, 7].map(|sector| at(&device, sector));
        assert_eq!(found, [1, 1, 4, 1]);
        // Another cut has nothing to take.
        assert_eq!(device.cut(2, 0).unwrap().unflushed, 0);
    }

    #[test]
    fn a_durable_write_leaves_the_cache_of_other_sectors_alone() {
        let device = device();
        put(&device, 0, 1, 4);
        put_durably(&device, 2, 2);
        device.cut(1, 0).unwrap();
        device.power_on();
        assert_eq!([0, 2, 3].map(|sector| at(&device, sector)), [0, 2, 0]);
        let counts = device.counts();
        assert_eq!((counts.writes, counts.durable_writes), (2, 1));
    }

    #[test]
    fn sectors_survive_one_by_one_the_same_for_the_same_seed() {
        let survivors = |seed, kept_percent| {
            let device = device();
            put(&device, 0, 9, 100);
            let emptied = device.cut(seed, kept_percent).unwrap();
            device.power_on();
            let kept = Vec::from_iter((0..100).filter(|n| at(&device, *n) == 9));
            assert_eq!(emptied.lost + kept.len(), 100);
            kept
        };
        let half = survivors(7, 50);
        assert!((20..80).contains(&half.len()), "{} survive", half.len());
        assert_eq!(half, survivors(7, 50));
        assert_ne!(half, survivors(8, 50));
        assert_eq!(survivors(7, 100).len(), 100);
    }

    #[test]
    fn what_is_on_its_way_when_power_fails_is_torn_and_fails() {
        let device = device();
        put(&device, 0, 1, 100);
        device.flush().unwrap();
        device.hold();
        std::thread::scope(|scope| {
            let written = scope.spawn(|| device.write_durable(0, &[2; 100 * 512]));
            let flushed = scope.spawn(|| device.flush());
            while device.counts().writes < 2 {
                std::thread::yield_now();
            }
            assert!(!written.is_finished() && !flushed.is_finished());
            let emptied = device.cut(3, 50).unwrap();
            assert_eq!(emptied.unflushed, 100);
            assert!((20..80).contains(&emptied.lost), "{}", emptied.lost);
            assert!(written.join().unwrap().is_err());
            assert!(flushed.join().unwrap().is_err());
        });
        device.power_on();
        assert!((0..100).all(|sector| matches!(at(&device, sector), 1 | 2)));
    }

    #[test]
    fn one_that_lies_loses_what_was_flushed() {
        let device = device().lying(true);
        put(&device, 0, 1, 4);
        put_durably(&device, 4, 1);
        device.flush().unwrap();
        assert_eq!(device.cut(1, 0).unwrap().lost, 5);
    }

    #[test]
    fn parts_of_sectors_are_refused() {
        let device = device();
        for (bytes, offset) in [(100, 0), (512, 100)] {
            assert!(device.write(offset, &vec![1; bytes]).is_err());
        }
        assert_eq!(device.counts(), CacheCounts::default());
    }
}
