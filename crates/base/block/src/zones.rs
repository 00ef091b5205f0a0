//! A medium of zones, written in order and erased whole, as a block device behind an area for
//! labels: what raw flash and host-managed devices have in common.

use super::labels::{LabelRows, Labels};
use super::{
    BlockCounts, BlockDevice, Counters, Did, FlashWork, IO_BYTES, TierDevice, Unit, check_range,
};
use crate::error::BlockError;
use parking_lot::Mutex;

/// Zones of one size, by number, and rows of pages for labels. Places within a zone are bytes from its
/// start, and whole blocks.
pub trait ZoneMedium: LabelRows + Send + Sync {
    /// Number of zones.
    fn zones(&self) -> u64;

    /// Bytes of a zone that can be written.
    fn zone_bytes(&self) -> u64;

    /// Reads within a zone.
    ///
    /// # Errors
    /// What the medium says.
    fn read_zone(&self, zone: u64, at: u64, into: &mut [u8]) -> Result<(), BlockError>;

    /// Writes where a zone goes on.
    ///
    /// # Errors
    /// It goes on elsewhere; it has worn out; what the medium says.
    fn write_zone(&self, zone: u64, at: u64, from: &[u8]) -> Result<(), BlockError>;

    /// Erases a zone, so that it can be written from its start. One that the medium does not let
    /// anybody write any more stays as it is, which is no error.
    ///
    /// # Errors
    /// What the medium says.
    fn erase_zone(&self, zone: u64) -> Result<(), BlockError>;

    /// Makes everything durable.
    ///
    /// # Errors
    /// What the medium says. Where that is that zones have worn out, the others are durable.
    fn flush_zones(&self) -> Result<(), BlockError>;

    /// As [`TierDevice::zone_written`].
    fn written(&self, zone: u64) -> Option<u64>;

    /// As [`TierDevice::zone_worn`].
    fn is_worn(&self, zone: u64) -> bool;

    /// As [`TierDevice::access`].
    fn access(&self) -> &'static str;

    /// As [`TierDevice::trouble`].
    fn trouble(&self) -> Option<String>;

    /// As [`TierDevice::write_unit`].
    fn write_unit(&self) -> u64;

    /// As [`TierDevice::unit`].
    fn unit(&self) -> Option<Unit>;

    /// As [`TierDevice::flash`].
    fn flash(&self) -> Option<FlashWork> {
        None
    }
}

/// A medium of zones behind an area for labels. Lock order: labels, then the medium's own.
pub struct ZonedBlocks<M> {
    name: String,
    medium: M,
    label_bytes: u64,
    labels: Mutex<Labels>,
    counters: Counters,
}

impl<M: ZoneMedium> ZonedBlocks<M> {
    /// The medium as it is, its zones behind `label_bytes` bytes.
    ///
    /// # Errors
    /// What the medium says when its labels are read.
    pub fn over(name: &str, medium: M, label_bytes: u64) -> Result<Self, BlockError> {
        Ok(ZonedBlocks {
            name: name.to_owned(),
            label_bytes,
            labels: Mutex::new(Labels::open(&medium)?),
            counters: Counters::default(),
            medium,
        })
    }

    /// The medium itself.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// How many of `bytes` bytes from `at` on are in the label area.
    fn in_labels(&self, at: u64, bytes: usize) -> usize {
        self.label_bytes.saturating_sub(at).min(bytes as u64) as usize
    }

    /// The zone of `bytes` bytes at `at`; `None`: that is in the label area.
    fn zone_at(&self, at: u64, bytes: u64) -> Option<u64> {
        let zone_bytes = self.medium.zone_bytes();
        let at = at.checked_sub(self.label_bytes)?;
        assert!(
            at.is_multiple_of(zone_bytes) && bytes == zone_bytes,
            "{bytes} bytes at {at}"
        );
        Some(at / zone_bytes)
    }

    /// Zone and place of what is `at` bytes behind the label area, and bytes that follow there.
    fn spot(&self, at: u64, bytes: usize) -> (u64, u64, usize) {
        let zone_bytes = self.medium.zone_bytes();
        let within = at % zone_bytes;
        let len = (zone_bytes - within).min(bytes as u64);
        (at / zone_bytes, within, len as usize)
    }

    fn write_parts(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        let (labels, mut rest) = from.split_at(self.in_labels(at, from.len()));
        for (which, block) in (at / IO_BYTES as u64..).zip(labels.chunks(IO_BYTES)) {
            self.labels.lock().put(&self.medium, which, block)?;
        }
        let mut at = (at + labels.len() as u64).saturating_sub(self.label_bytes);
        while !rest.is_empty() {
            let (zone, within, len) = self.spot(at, rest.len());
            let (part, later) = rest.split_at(len);
            self.medium.write_zone(zone, within, part)?;
            (at, rest) = (at + len as u64, later);
        }
        Ok(())
    }

    fn read_parts(&self, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        let (labels, mut rest) = into.split_at_mut(self.in_labels(at, into.len()));
        for (which, block) in (at / IO_BYTES as u64..).zip(labels.chunks_mut(IO_BYTES)) {
            self.labels.lock().get(which, block);
        }
        let mut at = (at + labels.len() as u64).saturating_sub(self.label_bytes);
        while !rest.is_empty() {
            let (zone, within, len) = self.spot(at, rest.len());
            let (part, later) = rest.split_at_mut(len);
            self.medium.read_zone(zone, within, part)?;
            (at, rest) = (at + len as u64, later);
        }
        Ok(())
    }
}

impl<M: ZoneMedium> BlockDevice for ZonedBlocks<M> {
    fn bytes(&self) -> u64 {
        self.label_bytes + self.medium.zones() * self.medium.zone_bytes()
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        check_range(at, into.len() as u64, self.bytes());
        let did = Did::Read(into.len() as u64);
        self.counters.note(did, self.read_parts(at, into))
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        check_range(at, from.len() as u64, self.bytes());
        let did = Did::Wrote(from.len() as u64);
        self.counters.note(did, self.write_parts(at, from))
    }

    /// Erases the zones that lie in the range as a whole; nothing else.
    fn discard(&self, at: u64, bytes: u64) -> Result<(), BlockError> {
        check_range(at, bytes, self.bytes());
        let zone_bytes = self.medium.zone_bytes();
        let first = at.saturating_sub(self.label_bytes).div_ceil(zone_bytes);
        let end = (at + bytes).saturating_sub(self.label_bytes) / zone_bytes;
        let done = (first..end).try_for_each(|zone| self.medium.erase_zone(zone));
        self.counters.note(Did::Discarded(bytes), done)
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.counters.note(Did::Flushed, self.medium.flush_zones())
    }
}

impl<M: ZoneMedium> TierDevice for ZonedBlocks<M> {
    fn counts(&self) -> BlockCounts {
        self.counters.snapshot()
    }

    fn access(&self) -> &'static str {
        self.medium.access()
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn trouble(&self) -> Option<String> {
        self.medium.trouble()
    }

    fn write_unit(&self) -> u64 {
        self.medium.write_unit()
    }

    fn unit(&self) -> Option<Unit> {
        self.medium.unit()
    }

    fn zone_written(&self, at: u64, bytes: u64) -> Option<u64> {
        self.medium.written(self.zone_at(at, bytes)?)
    }

    fn zone_worn(&self, at: u64, bytes: u64) -> bool {
        let zone = self.zone_at(at, bytes);
        zone.is_some_and(|zone| self.medium.is_worn(zone))
    }

    fn flash(&self) -> Option<FlashWork> {
        self.medium.flash()
    }
}
