//! A host-managed device ([`crate::host_managed`]) as a device of zones.
//!
//! Its first two sequential zones hold the label blocks (`labels`): a version is a page of two
//! blocks, its tag with a checksum, then the label block. All other zones of full length are the volume's, in
//! order. What can be used of each is the least capacity of them all, so that they are alike. A
//! conventional zone has no write pointer: it is written anywhere, and there is nothing to reset.
//!
//! # Active zones
//!
//! A device may allow few zones to be begun and not full. What a volume writes at a time are [`NEEDED`] zones
//! at most. When there are more of them at the start than leave space for these, those that are written furthest count
//! as full, and are finished when another one is begun. So do zones whose pointer stands within a block.
//!
//! # Wear
//!
//! A zone that the device reports as read-only or offline is worn out: it counts as full, and is left alone. After a
//! write, a reset or a finish that failed the device is asked for a report, so this is found out as it happens.
//!
//! Lock: `state`, held while a zone is written, so that writes to it follow one another.

use super::labels::{LABEL_ROWS, LabelRows, Tag, Version};
use super::zones::{ZoneMedium, ZonedBlocks};
use super::{IO_BYTES, Unit};
use crate::error::BlockError;
use crate::host_managed::{HostManaged, Zone, ZoneState, zones_of};
use parking_lot::Mutex;
use rustix::io::Errno;
use shale_nvm::crc32c;
use std::sync::Arc;

const BLOCK: u64 = IO_BYTES as u64;
/// Bytes of a version of a label block: one with the tag, and the label block.
const PAGE_BYTES: u64 = 2 * BLOCK;
/// Zones that a volume writes at a time: of hot data, of cold data, of labels, and one more when its devices
/// change.
const NEEDED: u64 = 4;

/// How a host-managed device is divided for a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagedShape {
    /// Bytes of a zone that can be used.
    pub zone_bytes: u64,
    /// Zones beside those of the labels.
    pub zones: u64,
    /// Number of the first sequential zone of the device.
    pub labels: u64,
}

impl ManagedShape {
    /// Divides the first `bytes` bytes of a device; capacities are rounded down to whole `unit`s.
    ///
    /// # Errors
    /// What the device says; [`BlockError::Unfit`]: it has too few zones, or not those that are needed.
    pub fn of(device: &dyn HostManaged, bytes: u64, unit: u64) -> Result<ManagedShape, BlockError> {
        let all = zones_of(device)?;
        let zones = whole(&all, device.zone_bytes(), bytes);
        let shape = Self::divide(zones, device.max_active(), unit);
        let shape = shape.map_err(|why| unfit(device, why))?;
        let labels = shape.labels as usize..;
        let worn = labels
            .take(LABEL_ROWS as usize)
            .find(|&n| zones[n].is_lost());
        match worn {
            None => Ok(shape),
            Some(n) => {
                let why = format!(
                    "zone {n}, for labels, cannot be written: {:?}",
                    zones[n].state
                );
                Err(unfit(device, why))
            }
        }
    }

    /// Divides zones of full length; labels are where they were though one of their zones is worn out.
    fn divide(zones: &[Zone], max_active: u64, unit: u64) -> Result<ManagedShape, String> {
        if (1..NEEDED).contains(&max_active) {
            return Err(format!(
                "{max_active} zones may be active, expected {NEEDED} at least"
            ));
        }
        let first = zones.iter().position(|z| z.is_sequential);
        let pair = first.and_then(|n| Some((n, zones.get(n..n + LABEL_ROWS as usize)?)));
        let Some((first, _)) = pair.filter(|(_, pair)| pair.iter().all(|z| z.is_sequential)) else {
            return Err(
                "it has no two sequential zones, one behind the other, for labels".to_owned(),
            );
        };
        let usable = zones.iter().filter(|z| !z.is_lost());
        let least = usable.map(|z| z.capacity).min().unwrap_or(0);
        Ok(ManagedShape {
            zone_bytes: least / unit * unit,
            zones: zones.len() as u64 - u64::from(LABEL_ROWS),
            labels: first as u64,
        })
    }
}

fn unfit(device: &dyn HostManaged, why: String) -> BlockError {
    let path = device.path().to_owned();
    BlockError::Unfit { path, why }
}

/// The zones of full length that end within the first `bytes` bytes.
fn whole(zones: &[Zone], zone_bytes: u64, bytes: u64) -> &[Zone] {
    let inside = |z: &Zone| z.bytes == zone_bytes && z.start + z.bytes <= bytes;
    &zones[..zones.iter().take_while(|z| inside(z)).count()]
}

/// One zone of the device, as it is written.
#[derive(Clone, Copy, Debug)]
struct Slot {
    start: u64,
    /// Where it goes on; `None`: anywhere.
    next: Option<u64>,
    /// It is one of those of which the device has few.
    active: bool,
    /// It is never written or reset again.
    lost: bool,
    /// It is not full for the device when it is for us.
    has_more: bool,
}

impl Slot {
    fn new(zone: &Zone, zone_bytes: u64) -> Slot {
        let lost = zone.is_lost() || zone.capacity < zone_bytes;
        let next = match zone.state {
            _ if lost => Some(zone_bytes),
            ZoneState::Anywhere => None,
            ZoneState::Empty => Some(0),
            ZoneState::Active(at) if at.is_multiple_of(BLOCK) => Some(at.min(zone_bytes)),
            _ => Some(zone_bytes),
        };
        Slot {
            start: zone.start,
            next,
            active: matches!(zone.state, ZoneState::Active(_)),
            lost,
            has_more: zone.capacity > zone_bytes,
        }
    }
}

/// A host-managed device in zones.
pub struct ManagedZones {
    device: Arc<dyn HostManaged>,
    zone_bytes: u64,
    /// Number of the first label zone.
    labels: usize,
    state: Mutex<Vec<Slot>>,
}

/// A host-managed device in zones, behind an area for labels.
pub type ManagedBlocks = ZonedBlocks<ManagedZones>;

impl ManagedBlocks {
    /// Opens a device as it is: zones of which `zone_bytes` bytes are used behind `label_bytes` bytes.
    ///
    /// # Errors
    /// As [`ManagedShape::of`], but that one of the label zones may be worn out; it has no zones of that
    /// capacity.
    pub fn open(
        name: &str,
        device: Arc<dyn HostManaged>,
        label_bytes: u64,
        (zone_bytes, unit): (u64, u64),
    ) -> Result<ManagedBlocks, BlockError> {
        let all = zones_of(&*device)?;
        let zones = whole(&all, device.zone_bytes(), device.bytes());
        let shape = ManagedShape::divide(zones, device.max_active(), unit);
        let shape = shape.map_err(|why| unfit(&*device, why))?;
        let fits = |z: &Zone| z.is_sequential && z.capacity / unit * unit == zone_bytes;
        if zone_bytes == 0 || !zones.iter().any(fits) {
            let found = shape.zone_bytes;
            let why = format!("it has zones of {found} bytes, expected {zone_bytes}");
            return Err(unfit(&*device, why));
        }
        let slots: Vec<Slot> = zones.iter().map(|z| Slot::new(z, zone_bytes)).collect();
        let medium = ManagedZones {
            zone_bytes,
            labels: shape.labels as usize,
            state: Mutex::new(slots),
            device,
        };
        medium.give_up_some();
        Self::over(name, medium, label_bytes)
    }
}

impl ManagedZones {
    /// Number on the device of a zone of the volume.
    fn number(&self, zone: u64) -> usize {
        let zone = zone as usize;
        match zone < self.labels {
            true => zone,
            false => zone + LABEL_ROWS as usize,
        }
    }

    fn row(&self, row: u32) -> usize {
        self.labels + row as usize
    }

    fn active(slots: &[Slot]) -> u64 {
        slots.iter().filter(|s| s.active).count() as u64
    }

    /// Counts zones as full that are begun, the fullest first, until those that a volume needs can be begun.
    fn give_up_some(&self) {
        let mut slots = self.state.lock();
        let most = self.device.max_active();
        let labels = self.row(0)..self.row(LABEL_ROWS);
        let mut begun: Vec<(u64, usize)> = (0..slots.len())
            .filter(|n| slots[*n].active && !labels.contains(n))
            .filter_map(|n| Some((slots[n].next.filter(|at| *at < self.zone_bytes)?, n)))
            .collect();
        begun.sort_unstable();
        let kept = match most {
            0 => begun.len(),
            _ => most.saturating_sub(NEEDED) as usize,
        };
        for (_, n) in begun.into_iter().skip(kept).rev() {
            slots[n].next = Some(self.zone_bytes);
        }
    }

    fn refuse(&self, at: u64, slot: &Slot) -> BlockError {
        let next = slot.start + slot.next.unwrap_or(0);
        let tried = format!("write at {at}: its zone goes on at {next}");
        BlockError::os(self.device.path(), tried, Errno::IO)
    }

    fn worn(&self, n: usize) -> BlockError {
        let path = self.device.path().to_owned();
        let zone = n as u64;
        BlockError::WornZone { path, zone }
    }

    /// What a command to zone `n` of the device came to: if it failed and the zone is worn out now, the zone
    /// is given up.
    fn judge(
        &self,
        slots: &mut [Slot],
        n: usize,
        done: Result<(), BlockError>,
    ) -> Result<(), BlockError> {
        let Err(e) = done else {
            return Ok(());
        };
        // A report that fails, too, says nothing of the zone.
        let zones = zones_of(&*self.device).unwrap_or_default();
        if !zones.get(n).is_some_and(Zone::is_lost) {
            return Err(e);
        }
        slots[n] = Slot {
            next: Some(self.zone_bytes),
            active: false,
            lost: true,
            ..slots[n]
        };
        Err(self.worn(n))
    }

    /// Finishes zones that count as full until one more can be begun.
    fn reclaim(&self, slots: &mut [Slot]) -> Result<(), BlockError> {
        let most = self.device.max_active();
        while most > 0 && Self::active(slots) >= most {
            let full = |s: &Slot| s.active && s.next == Some(self.zone_bytes);
            let Some(n) = slots.iter().position(full) else {
                break;
            };
            let done = self.device.finish(slots[n].start);
            match self.judge(slots, n, done) {
                // It is not active any more either.
                Err(e) if e.is_worn_out() => {}
                done => done?,
            }
            slots[n].active = false;
        }
        Ok(())
    }

    /// Writes at place `at` of zone `n` of the device.
    fn write_at(&self, n: usize, at: u64, from: &[u8]) -> Result<(), BlockError> {
        let mut slots = self.state.lock();
        let slot = slots[n];
        let end = at + from.len() as u64;
        if slot.lost {
            return Err(self.worn(n));
        }
        if slot.next.is_some_and(|next| next != at) || end > self.zone_bytes {
            return Err(self.refuse(slot.start + at, &slot));
        }
        if slot.next.is_none() {
            drop(slots);
            let done = self.device.write(slot.start + at, from);
            return self.judge(&mut self.state.lock(), n, done);
        }
        if !slot.active {
            self.reclaim(&mut slots)?;
        }
        slots[n].active = true;
        // Where it goes on after a write that failed nobody knows.
        slots[n].next = Some(self.zone_bytes);
        let done = self.device.write(slot.start + at, from);
        self.judge(&mut slots, n, done)?;
        slots[n].next = Some(end);
        // One that the device has more of is finished when its place is needed.
        slots[n].active = end < self.zone_bytes || slot.has_more;
        Ok(())
    }

    fn reset(&self, n: usize) -> Result<(), BlockError> {
        let mut slots = self.state.lock();
        let slot = slots[n];
        if slot.lost || slot.next.is_none_or(|next| next == 0) {
            return Ok(());
        }
        let done = self.device.discard(slot.start, self.device.zone_bytes());
        match self.judge(&mut slots, n, done) {
            Err(e) if e.is_worn_out() => return Ok(()),
            done => done?,
        }
        (slots[n].next, slots[n].active) = (Some(0), false);
        Ok(())
    }
}

impl ZoneMedium for ManagedZones {
    fn zones(&self) -> u64 {
        self.state.lock().len() as u64 - u64::from(LABEL_ROWS)
    }

    fn zone_bytes(&self) -> u64 {
        self.zone_bytes
    }

    fn read_zone(&self, zone: u64, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        let start = self.number(zone) as u64 * self.device.zone_bytes();
        self.device.read(start + at, into)
    }

    fn write_zone(&self, zone: u64, at: u64, from: &[u8]) -> Result<(), BlockError> {
        self.write_at(self.number(zone), at, from)
    }

    fn erase_zone(&self, zone: u64) -> Result<(), BlockError> {
        self.reset(self.number(zone))
    }

    fn flush_zones(&self) -> Result<(), BlockError> {
        self.device.flush()
    }

    fn written(&self, zone: u64) -> Option<u64> {
        self.state.lock()[self.number(zone)].next
    }

    fn is_worn(&self, zone: u64) -> bool {
        self.state.lock()[self.number(zone)].lost
    }

    fn access(&self) -> &'static str {
        self.device.access()
    }

    fn trouble(&self) -> Option<String> {
        self.device.trouble()
    }

    fn write_unit(&self) -> u64 {
        BLOCK
    }

    fn unit(&self) -> Option<Unit> {
        let bytes = self.device.zone_bytes();
        Some(Unit::said(bytes, "the zones of the device"))
    }
}

/// The first two sequential zones.
impl LabelRows for ManagedZones {
    fn used(&self, row: u32) -> u64 {
        let slot = self.state.lock()[self.row(row)];
        slot.next.map_or(0, |next| next / PAGE_BYTES)
    }

    fn has_space(&self, row: u32) -> bool {
        let slot = self.state.lock()[self.row(row)];
        let next = slot.next.map(|next| next.next_multiple_of(PAGE_BYTES));
        next.is_some_and(|next| next + PAGE_BYTES <= self.zone_bytes)
    }

    fn page(&self, row: u32, page: u64) -> Result<Option<Version>, BlockError> {
        let start = self.state.lock()[self.row(row)].start;
        let mut both = [0; PAGE_BYTES as usize];
        let read = self.device.read(start + page * PAGE_BYTES, &mut both);
        // Behind the pointer of a zone that counts as full there may be nothing to read.
        if read.is_err() {
            return Ok(None);
        }
        let (head, block) = both.split_at(IO_BYTES);
        let (tag, sum) = head.split_at(Tag::BYTES);
        let fits = sum.starts_with(&sum_of(tag, block).to_le_bytes());
        let tag = tag.first_chunk().and_then(Tag::decode).filter(|_| fits);
        Ok(tag.map(|tag| (tag, block.into())))
    }

    fn program(&self, row: u32, tag: Tag, block: &[u8]) -> Result<(), BlockError> {
        let n = self.row(row);
        let next = self.state.lock()[n].next.unwrap_or(0);
        // A power cut may have left half a page.
        let gap = next.next_multiple_of(PAGE_BYTES) - next;
        let mut bytes = vec![0; (gap + BLOCK) as usize];
        let tag = tag.encode();
        let head = &mut bytes[gap as usize..];
        head[..Tag::BYTES].copy_from_slice(&tag);
        head[Tag::BYTES..Tag::BYTES + 4].copy_from_slice(&sum_of(&tag, block).to_le_bytes());
        bytes.extend_from_slice(block);
        self.write_at(n, next, &bytes)
    }

    fn erase_row(&self, row: u32) -> Result<(), BlockError> {
        self.reset(self.row(row))
    }

    fn flush_rows(&self) -> Result<(), BlockError> {
        self.device.flush()
    }
}

/// CRC-32C of a tag and its label block.
fn sum_of(tag: &[u8], block: &[u8]) -> u32 {
    let state = crc32c::update(crc32c::START, tag);
    crc32c::finish(crc32c::update(state, block))
}
