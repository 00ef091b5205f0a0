//! A host-managed device in a file: it takes writes at write pointers only, as the kernel and the
//! device together would, and loses in a power cut what was not flushed.
//!
//! | Bytes | What |
//! | --- | --- |
//! | 0 … 4095 | magic, version; zones, conventional ones, bytes of a zone, capacity, limit of active zones (u64 each) |
//! | then 16 per zone | written (u64), condition as in `linux/blkzoned.h` (u64) |
//! | then, at a multiple of 4096 | the zones |
//!
//! Integers are little-endian. Data is written before the pointer, so a process that is killed between
//! leaves the pointer where it was. Nothing is synced: the file survives processes.
//!
//! # What a power cut leaves
//!
//! What was flushed. Behind it each zone has done the first of its commands, and may have done part of
//! the next if that is a write: so its pointer is anywhere between the flushed one and the last one.
//! A reset is done or not. Of what was written to conventional zones any block may be there. A zone that is worn out
//! stays so.

use parking_lot::Mutex;
use rustix::io::Errno;
use shale_block::host_managed::report::{
    HEADER_BYTES, REP_CAPACITY, RawZone, ReportHeader, ZONE_BYTES, zone_cond, zone_type,
};
use shale_block::host_managed::{HostManaged, SECTOR};
use shale_block::{BlockDevice, BlockError, FileDevice, IO_BYTES};
use shale_sys::random::next_random;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const MAGIC: u32 = u32::from_le_bytes(*b"SHzn");
const VERSION: u32 = 1;
const TABLE_AT: u64 = 4096;
const RECORD_BYTES: u64 = 16;
/// Bytes of the header that are used.
const USED: usize = 48;

/// How an emulated device is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneShape {
    /// Zones.
    pub zones: u64,
    /// Of these, the first ones, that are conventional.
    pub conventional: u64,
    /// Bytes of a zone: whole blocks of 4 KiB.
    pub zone_bytes: u64,
    /// Bytes of a sequential zone that can be used.
    pub capacity: u64,
    /// Zones that may be active; 0: no limit.
    pub max_active: u64,
}

impl ZoneShape {
    fn is_sound(&self) -> bool {
        let whole = |n: u64| n > 0 && n.is_multiple_of(IO_BYTES as u64);
        let total = self.zone_bytes.checked_mul(self.zones);
        whole(self.zone_bytes)
            && whole(self.capacity)
            && self.capacity <= self.zone_bytes
            && self.conventional <= self.zones
            && self.zones > 0
            && total.is_some_and(|bytes| bytes < 1 << 50)
    }

    fn data_at(&self) -> u64 {
        (TABLE_AT + self.zones * RECORD_BYTES).next_multiple_of(4096)
    }

    fn image_bytes(&self) -> u64 {
        self.data_at() + self.zones * self.zone_bytes
    }

    fn words(&self) -> [u64; 5] {
        let ZoneShape {
            zones,
            conventional,
            zone_bytes,
            capacity,
            max_active,
        } = *self;
        [zones, conventional, zone_bytes, capacity, max_active]
    }

    /// `None`: these are not the first bytes of an image.
    fn read(header: &[u8; USED]) -> Option<ZoneShape> {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let shape = ZoneShape {
            zones: word(8),
            conventional: word(16),
            zone_bytes: word(24),
            capacity: word(32),
            max_active: word(40),
        };
        let magic = u64::from(MAGIC) | u64::from(VERSION) << 32;
        (word(0) == magic && shape.is_sound()).then_some(shape)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Emulated {
    written: u64,
    cond: u8,
}

impl Emulated {
    fn is_worn(&self) -> bool {
        matches!(self.cond, zone_cond::READONLY | zone_cond::OFFLINE)
    }
}

/// A command that a power cut may take back, with what there was before.
struct InFlight {
    was: Emulated,
    /// What it destroyed: place in the zone, and bytes.
    lost: (u64, Vec<u8>),
    /// Bytes that it wrote.
    wrote: u64,
}

#[derive(Default)]
struct State {
    zones: Vec<Emulated>,
    /// By zone: commands since the last flush.
    in_flight: BTreeMap<u64, Vec<InFlight>>,
    out_of_order: u64,
    resets: u64,
}

/// An emulated host-managed device.
pub struct EmulatedZones {
    medium: FileDevice,
    path: PathBuf,
    shape: ZoneShape,
    /// Commands are noted, for [`EmulatedZones::cut_power`].
    cuts: bool,
    state: Mutex<State>,
}

impl EmulatedZones {
    /// A device in memory, whose power can be cut.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn memory(shape: ZoneShape) -> Result<Self, BlockError> {
        let medium = FileDevice::memory(shape.image_bytes())?;
        let mut made = Self::new(medium, Path::new("emulated zones"), shape)?;
        made.cuts = true;
        Ok(made)
    }

    /// Makes an image of an empty device, whatever the file held.
    ///
    /// # Errors
    /// The operating system refuses, or another process uses it.
    pub fn create(path: &Path, shape: ZoneShape) -> Result<Self, BlockError> {
        let medium = FileDevice::create(path, shape.image_bytes())?;
        medium.discard(0, medium.bytes())?;
        Self::new(medium, path, shape)
    }

    fn new(medium: FileDevice, path: &Path, shape: ZoneShape) -> Result<Self, BlockError> {
        assert!(shape.is_sound(), "{shape:?}");
        let first = u64::from(MAGIC) | u64::from(VERSION) << 32;
        let [a, b, c, d, e] = shape.words();
        let header = [first, a, b, c, d, e].map(u64::to_le_bytes).concat();
        medium.write(0, &header)?;
        let made = EmulatedZones {
            medium,
            path: path.to_owned(),
            shape,
            cuts: false,
            state: Mutex::default(),
        };
        for n in 0..shape.zones {
            let cond = match n < shape.conventional {
                true => zone_cond::NOT_WP,
                false => zone_cond::EMPTY,
            };
            let zone = Emulated { written: 0, cond };
            made.store(n, zone)?;
            made.state.lock().zones.push(zone);
        }
        Ok(made)
    }

    /// Opens and locks an image.
    ///
    /// # Errors
    /// It is none, or another process uses it.
    pub fn open(path: &Path) -> Result<Self, BlockError> {
        let medium = FileDevice::open(path)?;
        let mut header = [0; USED];
        let mut shape = None;
        if medium.bytes() >= TABLE_AT {
            medium.read(0, &mut header)?;
            shape = ZoneShape::read(&header);
        }
        let Some(shape) = shape.filter(|s| s.image_bytes() == medium.bytes()) else {
            return Err(BlockError::Unfit {
                path: path.to_owned(),
                why: "it is no host-managed device: it is a file that can be written anywhere"
                    .to_owned(),
            });
        };
        let mut table = vec![0; (shape.zones * RECORD_BYTES) as usize];
        medium.read(TABLE_AT, &mut table)?;
        let zones = table.as_chunks::<16>().0.iter().map(|record| {
            let (written, cond) = record.split_at(8);
            let mut bytes = [0; 8];
            bytes.copy_from_slice(written);
            Emulated {
                written: u64::from_le_bytes(bytes),
                cond: cond[0],
            }
        });
        let state = State {
            zones: zones.collect(),
            ..State::default()
        };
        Ok(EmulatedZones {
            medium,
            path: path.to_owned(),
            shape,
            cuts: false,
            state: Mutex::new(state),
        })
    }

    /// As [`super::zone_bytes_at`].
    pub(super) fn zone_bytes_at(path: &Path) -> Result<Option<u64>, BlockError> {
        let file = std::fs::File::open(path);
        let file = file.map_err(|e| BlockError::os(path, "open it", e))?;
        let mut header = [0; USED];
        // A file that is too short, or cannot be read here, is no image.
        let whole = file.read_exact_at(&mut header, 0).is_ok();
        let shape = whole.then(|| ZoneShape::read(&header)).flatten();
        Ok(shape.map(|shape| shape.zone_bytes))
    }

    /// Writes that were not at the pointer of their zone.
    pub fn out_of_order(&self) -> u64 {
        self.state.lock().out_of_order
    }

    /// Zones that were reset.
    pub fn resets(&self) -> u64 {
        self.state.lock().resets
    }

    /// Wears a zone out: it can only be read from now on, or not even that (`offline`).
    ///
    /// # Errors
    /// What the operating system says of the image.
    pub fn wear_out(&self, zone: u64, offline: bool) -> Result<(), BlockError> {
        let mut state = self.state.lock();
        let cond = match offline {
            true => zone_cond::OFFLINE,
            false => zone_cond::READONLY,
        };
        state.zones[zone as usize].cond = cond;
        // A power cut takes commands back, and not that.
        for command in state.in_flight.entry(zone).or_default() {
            command.was.cond = cond;
        }
        self.store(zone, state.zones[zone as usize])
    }

    fn failed(&self, tried: String, e: Errno) -> BlockError {
        BlockError::os(&self.path, tried, e)
    }

    fn store(&self, n: u64, zone: Emulated) -> Result<(), BlockError> {
        let words = [zone.written, zone.cond.into()].map(u64::to_le_bytes);
        self.medium
            .write(TABLE_AT + n * RECORD_BYTES, &words.concat())
    }

    fn byte(&self, zone: u64, at: u64) -> u64 {
        self.shape.data_at() + zone * self.shape.zone_bytes + at
    }

    /// Notes a command that is about to be done, which destroys `bytes` bytes and writes `wrote`.
    fn note(
        &self,
        state: &mut State,
        n: u64,
        destroys: (u64, u64),
        wrote: u64,
    ) -> Result<(), BlockError> {
        if !self.cuts {
            return Ok(());
        }
        let mut lost = vec![0; destroys.1 as usize];
        self.medium.read(self.byte(n, destroys.0), &mut lost)?;
        let was = state.zones[n as usize];
        state.in_flight.entry(n).or_default().push(InFlight {
            was,
            lost: (destroys.0, lost),
            wrote,
        });
        Ok(())
    }

    /// Writes within one zone.
    fn write_within(&self, n: u64, at: u64, from: &[u8]) -> Result<(), Errno> {
        let len = from.len() as u64;
        let mut state = self.state.lock();
        let io = |_: BlockError| Errno::IO;
        let mut zone = state.zones[n as usize];
        if zone.is_worn() {
            return Err(Errno::IO);
        }
        if zone.cond == zone_cond::NOT_WP {
            self.note(&mut state, n, (at, len), len).map_err(io)?;
            return self.medium.write(self.byte(n, at), from).map_err(io);
        }
        let is_writable = matches!(zone.cond, zone_cond::EMPTY..=zone_cond::CLOSED);
        if !is_writable || at != zone.written || at + len > self.shape.capacity {
            state.out_of_order += 1;
            return Err(Errno::IO);
        }
        let is_active = |z: &&Emulated| matches!(z.cond, zone_cond::IMP_OPEN..=zone_cond::CLOSED);
        let active = state.zones.iter().filter(is_active).count() as u64;
        if !is_active(&&zone) && self.shape.max_active > 0 && active >= self.shape.max_active {
            return Err(Errno::OVERFLOW);
        }
        self.note(&mut state, n, (at, 0), len).map_err(io)?;
        self.medium.write(self.byte(n, at), from).map_err(io)?;
        zone.written += len;
        zone.cond = match zone.written == self.shape.capacity {
            true => zone_cond::FULL,
            false => zone_cond::IMP_OPEN,
        };
        state.zones[n as usize] = zone;
        self.store(n, zone).map_err(io)
    }

    /// Gives a sequential zone another condition, if it has one that can change.
    fn change(&self, n: u64, cond: u8) -> Result<(), BlockError> {
        let mut state = self.state.lock();
        let mut zone = state.zones[n as usize];
        if zone.cond == zone_cond::NOT_WP || zone.is_worn() {
            return Err(self.failed(format!("reset or finish zone {n}"), Errno::IO));
        }
        zone.cond = cond;
        match cond {
            zone_cond::EMPTY => {
                let bytes = zone.written;
                self.note(&mut state, n, (0, bytes), 0)?;
                self.medium.discard(self.byte(n, 0), bytes)?;
                zone.written = 0;
                state.resets += 1;
            }
            _ => self.note(&mut state, n, (0, 0), 0)?,
        }
        state.zones[n as usize] = zone;
        self.store(n, zone)
    }

    /// Cuts power, and gives it back. What is left of the commands since the last flush is
    /// one of the states that the module describes, chosen by `seed`.
    ///
    /// # Errors
    /// What the operating system says of the image.
    ///
    /// # Panics
    /// If it was not made with [`EmulatedZones::memory`].
    pub fn cut_power(&self, seed: u64) -> Result<(), BlockError> {
        assert!(self.cuts, "made without cuts");
        let mut state = self.state.lock();
        let mut random = seed;
        for (n, commands) in std::mem::take(&mut state.in_flight) {
            let done = next_random(&mut random) as usize % (commands.len() + 1);
            let midst = next_random(&mut random);
            for (place, command) in commands.into_iter().enumerate().skip(done).rev() {
                let (at, lost) = &command.lost;
                if command.was.cond == zone_cond::NOT_WP {
                    for (at, block) in (*at..).step_by(IO_BYTES).zip(lost.chunks(IO_BYTES)) {
                        if next_random(&mut random).is_multiple_of(2) {
                            self.medium.write(self.byte(n, at), block)?;
                        }
                    }
                    continue;
                }
                self.medium.write(self.byte(n, *at), lost)?;
                let mut zone = command.was;
                let part = midst % (command.wrote / IO_BYTES as u64 + 1) * IO_BYTES as u64;
                if place == done && (1..command.wrote).contains(&part) {
                    zone.written += part;
                    if !zone.is_worn() {
                        zone.cond = zone_cond::CLOSED;
                    }
                }
                state.zones[n as usize] = zone;
                self.store(n, zone)?;
            }
        }
        for n in 0..state.zones.len() {
            if matches!(state.zones[n].cond, zone_cond::IMP_OPEN) {
                state.zones[n].cond = zone_cond::CLOSED;
            }
        }
        Ok(())
    }

    fn raw(&self, n: u64, zone: Emulated) -> RawZone {
        let (kind, capacity) = match n < self.shape.conventional {
            true => (zone_type::CONVENTIONAL, self.shape.zone_bytes),
            false => (zone_type::SEQWRITE_REQ, self.shape.capacity),
        };
        let start = n * self.shape.zone_bytes / SECTOR;
        let wp = match zone.cond {
            zone_cond::EMPTY..=zone_cond::CLOSED => start + zone.written / SECTOR,
            // As the kernel has it: not to be believed.
            _ => u64::MAX,
        };
        RawZone {
            start,
            len: self.shape.zone_bytes / SECTOR,
            wp,
            kind,
            cond: zone.cond,
            capacity: capacity / SECTOR,
            ..RawZone::new_zeroed()
        }
    }
}

impl BlockDevice for EmulatedZones {
    fn bytes(&self) -> u64 {
        self.shape.zones * self.shape.zone_bytes
    }

    /// What lies behind a write pointer cannot be read, as on disks that are strict about it.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        let (each, end) = (self.shape.zone_bytes, at + into.len() as u64);
        let zones = (at / each..).zip((at / each * each..end).step_by(each as usize));
        let state = self.state.lock();
        for (n, start) in zones {
            let zone = state.zones[n as usize];
            let readable = match zone.cond {
                zone_cond::EMPTY..=zone_cond::CLOSED => zone.written,
                zone_cond::OFFLINE => 0,
                _ => each,
            };
            if end.min(start + each) - start > readable {
                let tried = format!("read {} bytes at {at}: zone {n}", into.len());
                return Err(self.failed(tried, Errno::IO));
            }
        }
        drop(state);
        self.medium.read(self.byte(0, at), into)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        let (n, within) = (at / self.shape.zone_bytes, at % self.shape.zone_bytes);
        let done = self.write_within(n, within, from);
        done.map_err(|e| self.failed(format!("write {} bytes at {at}", from.len()), e))
    }

    fn discard(&self, at: u64, bytes: u64) -> Result<(), BlockError> {
        let each = self.shape.zone_bytes;
        if !at.is_multiple_of(each) || !bytes.is_multiple_of(each) {
            return Err(self.failed(format!("reset {bytes} bytes at {at}"), Errno::INVAL));
        }
        (at / each..(at + bytes) / each).try_for_each(|n| self.change(n, zone_cond::EMPTY))
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.state.lock().in_flight.clear();
        Ok(())
    }
}

impl HostManaged for EmulatedZones {
    fn path(&self) -> &Path {
        &self.path
    }

    fn zone_bytes(&self) -> u64 {
        self.shape.zone_bytes
    }

    fn max_active(&self) -> u64 {
        self.shape.max_active
    }

    fn report(&self, into: &mut [u8]) -> Result<(), BlockError> {
        let short = |_| self.failed("report into too small a buffer".to_owned(), Errno::INVAL);
        let (asked, _) = ReportHeader::read_from_prefix(into).map_err(|_| short(()))?;
        let (head, rest) = into.split_at_mut(HEADER_BYTES);
        let first = asked.sector * SECTOR / self.shape.zone_bytes;
        let state = self.state.lock();
        let there = (first..).zip(state.zones.iter().skip(first as usize));
        let slots = rest
            .chunks_exact_mut(ZONE_BYTES)
            .take(asked.nr_zones as usize);
        let mut nr_zones = 0;
        for ((n, zone), slot) in there.zip(slots) {
            slot.copy_from_slice(self.raw(n, *zone).as_bytes());
            nr_zones += 1;
        }
        let header = ReportHeader {
            sector: asked.sector,
            nr_zones,
            flags: REP_CAPACITY,
        };
        head.copy_from_slice(header.as_bytes());
        Ok(())
    }

    fn finish(&self, at: u64) -> Result<(), BlockError> {
        self.change(at / self.shape.zone_bytes, zone_cond::FULL)
    }

    fn access(&self) -> &'static str {
        "emulated zones"
    }

    fn trouble(&self) -> Option<String> {
        self.medium.trouble()
    }
}
