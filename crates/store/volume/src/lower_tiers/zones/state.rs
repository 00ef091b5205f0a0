//! The zones of a tier and the use of its devices, under the lock of [`Zones`](super::Zones).

use super::{WriteStream, ZoneInfo};
use crate::error::{Result, VolumeError};
use crate::lower_tiers::lower::ZonePlace;
use shale_allocation::{Run, for_words};
use shale_format::TxId;
use shale_format::zone::ZoneEntry;
use shale_sys::mutants;

/// A zone.
pub(super) struct Zone {
    pub(super) place: ZonePlace,
    /// Byte of NVM at which its entry is.
    pub(super) entry_byte: u64,
    pub(super) entry: ZoneEntry,
    /// Blocks given out, at least those that the entry counts.
    pub(super) given: u64,
    /// Blocks that reached the device.
    pub(super) reached: u64,
    pub(super) live: u64,
    pub(super) freed: TxId,
    /// Its medium never lets it be written again.
    pub(super) worn: bool,
    /// How often it is pinned ([`Zones::pin`]).
    pub(super) pins: u32,
}

/// A zone as it is found at the start.
pub(crate) struct FoundZone {
    pub(crate) place: ZonePlace,
    /// Byte of NVM at which its entry is.
    pub(crate) entry_byte: u64,
    /// As last committed.
    pub(crate) entry: ZoneEntry,
    /// Blocks written as its medium has it; `None`: it can be written anywhere.
    pub(crate) on_medium: Option<u64>,
    /// It is worn out.
    pub(crate) worn: bool,
}

impl Zone {
    /// `used`: the tier's bitmap.
    pub(super) fn new(found: &FoundZone, used: &[u64]) -> Zone {
        let FoundZone {
            place,
            entry_byte,
            entry,
            on_medium,
            worn,
        } = *found;
        let mut live = 0;
        for_words(place.first, place.blocks, |w, mask| {
            live += u64::from((used[w] & mask).count_ones());
        });
        let committed = entry.written.into();
        let written = match on_medium {
            Some(there) if there < committed => place.blocks,
            Some(there) => there,
            None => committed,
        };
        Zone {
            place,
            entry_byte,
            entry,
            given: written,
            reached: written,
            live,
            freed: TxId(0),
            worn,
            pins: 0,
        }
    }

    pub(super) fn left(&self) -> u64 {
        self.place.blocks - self.given
    }

    pub(super) fn end(&self) -> u64 {
        self.place.first + self.place.blocks
    }
}

/// How a device is used.
#[derive(Clone, Default)]
pub(super) struct DeviceUse {
    /// Nothing new goes to it: it is being emptied.
    pub(super) emptying: bool,
    /// Nothing new goes to it until the next start: why.
    pub(super) failing: Option<String>,
    /// It only has no space below it, and is used again when it has.
    pub(super) full: bool,
    /// Written to since it was flushed.
    pub(super) dirty: bool,
    /// Blocks that it writes at once.
    pub(super) unit: u64,
    /// Blocks of it that are not to be in use.
    pub(super) spare: u64,
}

impl DeviceUse {
    pub(super) fn is_closed(&self) -> bool {
        self.emptying || self.failing.is_some()
    }
}

/// What is known of a tier.
pub(super) struct State {
    pub(super) zones: Vec<Zone>,
    pub(super) open: [Option<usize>; 2],
    /// By place in the tier.
    pub(super) devices: Vec<DeviceUse>,
    pub(super) erased: u64,
    pub(super) written: u64,
    pub(super) out_of_order: u64,
}

impl State {
    /// Moves a zone's write pointer behind a run, and gives the zone; counts what is out of order.
    pub(super) fn go_on(&mut self, run: Run) -> Result<usize> {
        let index = self.zone_of(run.addr.index());
        let zone = &mut self.zones[index];
        let from = run.addr.index() - zone.place.first;
        let in_order = from == zone.reached || mutants::is_on("zone-order");
        zone.reached = from + run.len;
        if in_order {
            return Ok(index);
        }
        self.out_of_order += 1;
        Err(VolumeError::BadRun {
            first: run.addr.raw(),
            last: run.addr.raw() + run.len,
            why: "not where its zone goes on",
        })
    }

    /// Nothing more is written to a zone.
    pub(super) fn close(&mut self, n: usize) {
        for open in &mut self.open {
            *open = open.filter(|&o| o != n);
        }
        let zone = &mut self.zones[n];
        (zone.given, zone.reached) = (zone.place.blocks, zone.place.blocks);
    }

    /// The zones that a run lies in.
    pub(super) fn of(&mut self, run: Run) -> impl Iterator<Item = &mut Zone> {
        let (first, end) = (run.addr.index(), run.addr.index() + run.len);
        let from = self.zone_of(first);
        let zones = self.zones[from..].iter_mut();
        zones.take_while(move |zone| zone.place.first < end)
    }

    pub(super) fn zone_of(&self, index: u64) -> usize {
        self.zones.partition_point(|z| z.end() <= index)
    }

    /// Blocks that are not in use on devices that are written to, and those of the largest zone there.
    pub(super) fn unused(&self, without: Option<usize>) -> (u64, u64) {
        let mine = |z: &&Zone| Some(z.place.device) != without && !self.is_closed(z) && !z.worn;
        let zones = self.zones.iter().filter(mine);
        zones.fold((0, 0), |(sum, largest), z| {
            (sum + z.place.blocks - z.live, largest.max(z.place.blocks))
        })
    }

    /// The spare of devices that are written to.
    pub(super) fn spare(&self, without: Option<usize>) -> u64 {
        let devices = self.devices.iter().enumerate();
        let mine = devices.filter(|(n, d)| Some(*n) != without && !d.is_closed());
        mine.map(|(_, d)| d.spare).sum()
    }

    /// Blocks that may come into use besides what is.
    pub(super) fn available(&self) -> u64 {
        self.unused(None).0.saturating_sub(self.spare(None))
    }

    pub(super) fn is_closed(&self, zone: &Zone) -> bool {
        self.devices[zone.place.device].is_closed()
    }

    /// Finds the zones that go on where they end.
    pub(super) fn reopen(&mut self) {
        let begun = |stream: u8| {
            self.zones.iter().position(|z| {
                z.given > 0 && z.left() > 0 && z.entry.stream == stream && !self.is_closed(z)
            })
        };
        self.open = [begun(0), begun(1)];
    }

    /// Empty zones that may be written.
    pub(super) fn empty(&self) -> impl Iterator<Item = usize> {
        let free = |z: &Zone| z.given == 0 && !self.is_closed(z);
        (0..self.zones.len()).filter(move |&n| free(&self.zones[n]))
    }

    /// Whether there is an empty zone, which is kept for cleaning.
    pub(super) fn has_reserve(&self) -> bool {
        self.empty().next().is_some() || mutants::is_on("zone-reserve")
    }

    /// An empty zone; the last one only if `last`.
    pub(super) fn fresh(&self, last: bool) -> Option<usize> {
        let mut empty = self.empty();
        let first = empty.next()?;
        (last || empty.next().is_some() || mutants::is_on("zone-reserve")).then_some(first)
    }

    pub(super) fn info(&self, n: usize) -> ZoneInfo {
        let z = &self.zones[n];
        ZoneInfo {
            place: z.place,
            written: z.given,
            live: z.live,
            stream: if z.entry.stream == 0 {
                WriteStream::Hot
            } else {
                WriteStream::Cold
            },
            txid: TxId(z.entry.txid),
            open: self.open.contains(&Some(n)) && z.left() > 0,
            worn: z.worn,
        }
    }
}
