//! Zone reports of the kernel: `struct blk_zone_report` and `struct blk_zone` of
//! `linux/blkzoned.h`, in sectors of 512 bytes, checked before anything believes them.

use super::{HostManaged, SECTOR};
use crate::error::BlockError;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Zones that are asked for at once.
const ZONES_AT_ONCE: usize = 4096;
/// `BLK_ZONE_REP_CAPACITY`: zones in the report have a capacity.
pub const REP_CAPACITY: u32 = 1;

/// Types of zones (`enum blk_zone_type`).
pub mod zone_type {
    /// It is written anywhere.
    pub const CONVENTIONAL: u8 = 1;
    /// It is written in order only.
    pub const SEQWRITE_REQ: u8 = 2;
    /// It is best written in order.
    pub const SEQWRITE_PREF: u8 = 3;
}

/// Conditions of zones (`enum blk_zone_cond`).
pub mod zone_cond {
    /// It has no write pointer.
    pub const NOT_WP: u8 = 0x0;
    /// Nothing is written.
    pub const EMPTY: u8 = 0x1;
    /// A write opened it.
    pub const IMP_OPEN: u8 = 0x2;
    /// It was asked to be open.
    pub const EXP_OPEN: u8 = 0x3;
    /// It is begun, and not open.
    pub const CLOSED: u8 = 0x4;
    /// It can only be read.
    pub const READONLY: u8 = 0xd;
    /// Nothing more can be written.
    pub const FULL: u8 = 0xe;
    /// It cannot even be read.
    pub const OFFLINE: u8 = 0xf;
}

/// `struct blk_zone_report` without its zones.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReportHeader {
    /// The first sector asked for.
    pub sector: u64,
    /// Zones: asked for, then answered.
    pub nr_zones: u32,
    /// What the answer has ([`REP_CAPACITY`]).
    pub flags: u32,
}

/// `struct blk_zone`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawZone {
    /// Its first sector.
    pub start: u64,
    /// Its sectors.
    pub len: u64,
    /// The sector of its write pointer.
    pub wp: u64,
    /// As [`zone_type`].
    pub kind: u8,
    /// As [`zone_cond`].
    pub cond: u8,
    /// It was written out of order.
    pub non_seq: u8,
    /// It is to be reset.
    pub reset: u8,
    /// Nothing.
    pub resv: [u8; 4],
    /// Its sectors that can be used.
    pub capacity: u64,
    /// Nothing.
    pub reserved: [u8; 24],
}

/// Bytes of a report before its zones.
pub const HEADER_BYTES: usize = size_of::<ReportHeader>();
/// Bytes of a zone in a report.
pub const ZONE_BYTES: usize = size_of::<RawZone>();
const _: () = assert!(HEADER_BYTES == 16 && ZONE_BYTES == 64);

/// What can be done with a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneState {
    /// Conventional: it is read and written anywhere, and has no write pointer.
    Anywhere,
    /// Nothing is written.
    Empty,
    /// Open or closed: written so many bytes far. The device has a limited number of these.
    Active(u64),
    /// Nothing more can be written before a reset.
    Full,
    /// It can be read, and never written or reset again.
    ReadOnly,
    /// It cannot even be read.
    Offline,
}

/// A zone as its device reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its first byte.
    pub start: u64,
    /// Bytes up to the next zone.
    pub bytes: u64,
    /// Bytes of these, the first ones, that can be used.
    pub capacity: u64,
    /// Whether it is written in order only.
    pub is_sequential: bool,
    /// What can be done with it.
    pub state: ZoneState,
}

impl Zone {
    /// Whether it will never be written again.
    pub fn is_lost(&self) -> bool {
        matches!(self.state, ZoneState::ReadOnly | ZoneState::Offline)
    }
}

/// What is wrong with a zone in a report: field, expected, found.
type Wrong = (&'static str, u64, u64);

/// Reads one zone. `start`: the sector at which it has to begin; `len`: sectors of the device's zones; `end`:
/// the device's last sector, where a shorter zone may end.
fn zone(raw: &RawZone, flags: u32, start: u64, len: u64, end: u64) -> Result<Zone, Wrong> {
    if raw.start != start {
        return Err(("its first sector", start, raw.start));
    }
    let left = end.saturating_sub(start);
    if raw.len != len.min(left) || raw.len == 0 {
        return Err(("its sectors", len.min(left), raw.len));
    }
    let is_sequential = match raw.kind {
        zone_type::CONVENTIONAL => false,
        zone_type::SEQWRITE_REQ | zone_type::SEQWRITE_PREF => true,
        other => return Err(("its type", zone_type::SEQWRITE_REQ.into(), other.into())),
    };
    let capacity = match flags & REP_CAPACITY {
        0 => raw.len,
        _ => raw.capacity,
    };
    let is_lost = matches!(raw.cond, zone_cond::READONLY | zone_cond::OFFLINE);
    if capacity > raw.len || capacity == 0 && !is_lost {
        return Err(("its capacity in sectors, at most", raw.len, capacity));
    }
    let state = match (is_sequential, raw.cond) {
        (_, zone_cond::READONLY) => ZoneState::ReadOnly,
        (_, zone_cond::OFFLINE) => ZoneState::Offline,
        (false, zone_cond::NOT_WP) => ZoneState::Anywhere,
        (true, zone_cond::FULL) => ZoneState::Full,
        (true, zone_cond::EMPTY) if raw.wp == start => ZoneState::Empty,
        (true, zone_cond::EMPTY) => return Err(("the pointer of an empty zone", start, raw.wp)),
        (true, zone_cond::IMP_OPEN | zone_cond::EXP_OPEN | zone_cond::CLOSED) => {
            match raw.wp.checked_sub(start).filter(|n| *n <= capacity) {
                Some(written) => ZoneState::Active(written * SECTOR),
                None => return Err(("its pointer, at most", start + capacity, raw.wp)),
            }
        }
        (false, other) => return Err(("its condition", zone_cond::NOT_WP.into(), other.into())),
        (true, other) => return Err(("its condition", zone_cond::EMPTY.into(), other.into())),
    };
    Ok(Zone {
        start: start * SECTOR,
        bytes: raw.len * SECTOR,
        capacity: capacity * SECTOR,
        is_sequential,
        state,
    })
}

/// Takes the zones of one report, which go on behind those that there are.
fn take(
    zones: &mut Vec<Zone>,
    report: &[u8],
    zone_bytes: u64,
    bytes: u64,
) -> Result<usize, (usize, Wrong)> {
    let at = zones.len();
    let short = || {
        (
            at,
            (
                "bytes of a report",
                HEADER_BYTES as u64,
                report.len() as u64,
            ),
        )
    };
    let (header, rest) = ReportHeader::read_from_prefix(report).map_err(|_| short())?;
    let capacity = rest.len() / ZONE_BYTES;
    let count = header.nr_zones as usize;
    if count > capacity {
        let wrong = ("zones in a report, at most", capacity as u64, count as u64);
        return Err((at, wrong));
    }
    for bytes_of_zone in rest.chunks_exact(ZONE_BYTES).take(count) {
        let raw = RawZone::read_from_bytes(bytes_of_zone).map_err(|_| short())?;
        let start = zones.last().map_or(0, |z| (z.start + z.bytes) / SECTOR);
        let (len, end) = (zone_bytes / SECTOR, bytes / SECTOR);
        let found = zone(&raw, header.flags, start, len, end);
        zones.push(found.map_err(|wrong| (zones.len(), wrong))?);
    }
    Ok(count)
}

/// All zones of a device, from its first byte to its last.
///
/// # Errors
/// What the device says; a report that cannot be: [`BlockError::ZoneReport`] names zone and field.
pub fn zones_of(device: &dyn HostManaged) -> Result<Vec<Zone>, BlockError> {
    let (zone_bytes, bytes) = (device.zone_bytes(), device.bytes());
    let refuse = |(zone, (what, expected, found)): (usize, Wrong)| BlockError::ZoneReport {
        path: device.path().to_owned(),
        zone: zone as u64,
        what,
        expected,
        found,
    };
    let mut zones: Vec<Zone> = Vec::new();
    let mut report = vec![0; HEADER_BYTES + ZONES_AT_ONCE * ZONE_BYTES];
    loop {
        let sector = zones.last().map_or(0, |z| (z.start + z.bytes) / SECTOR);
        if sector * SECTOR >= bytes {
            return Ok(zones);
        }
        report.fill(0);
        let header = ReportHeader {
            sector,
            nr_zones: ZONES_AT_ONCE as u32,
            ..ReportHeader::new_zeroed()
        };
        report[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        device.report(&mut report)?;
        if take(&mut zones, &report, zone_bytes, bytes).map_err(refuse)? == 0 {
            let wrong = ("sectors that the zones cover", bytes / SECTOR, sector);
            return Err(refuse((zones.len(), wrong)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 128;
    /// A device of four zones, the last one shorter.
    const END: u64 = 3 * LEN + 40;

    fn raw(n: u64, kind: u8, cond: u8, wp: u64, capacity: u64) -> RawZone {
        RawZone {
            start: n * LEN,
            len: LEN.min(END - n * LEN),
            wp,
            kind,
            cond,
            capacity,
            ..RawZone::new_zeroed()
        }
    }

    fn usual() -> [RawZone; 4] {
        [
            raw(0, zone_type::CONVENTIONAL, zone_cond::NOT_WP, u64::MAX, LEN),
            raw(1, 2, zone_cond::CLOSED, LEN + 24, 100),
            raw(2, 2, zone_cond::EMPTY, 2 * LEN, 100),
            raw(3, 2, zone_cond::FULL, u64::MAX, 40),
        ]
    }

    fn report(zones: &[RawZone], flags: u32) -> Vec<u8> {
        let header = ReportHeader {
            sector: 0,
            nr_zones: zones.len() as u32,
            flags,
        };
        [header.as_bytes(), zones.as_bytes()].concat()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Zone>, (usize, Wrong)> {
        let mut zones = Vec::new();
        take(&mut zones, bytes, LEN * SECTOR, END * SECTOR)?;
        Ok(zones)
    }

    #[test]
    fn layouts_are_those_of_the_kernel() {
        let zone = raw(1, 2, 4, 0x11, 0x22);
        let bytes = zone.as_bytes();
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(
            (word(0), word(8), word(16), word(32)),
            (LEN, LEN, 0x11, 0x22)
        );
        assert_eq!((bytes[24], bytes[25]), (2, 4));
        let bytes = report(&[], REP_CAPACITY);
        assert_eq!((bytes[8], bytes[12]), (0, 1));
    }

    #[test]
    fn zones_are_what_the_report_says() {
        let zones = read(&report(&usual(), REP_CAPACITY)).unwrap();
        let states: Vec<_> = zones.iter().map(|z| z.state).collect();
        let pointer = ZoneState::Active(24 * SECTOR);
        let expected = [
            ZoneState::Anywhere,
            pointer,
            ZoneState::Empty,
            ZoneState::Full,
        ];
        assert_eq!(states, expected);
        assert_eq!(zones[1].capacity, 100 * SECTOR);
        assert_eq!(
            (zones[3].start, zones[3].bytes),
            (3 * LEN * SECTOR, 40 * SECTOR)
        );
        assert!(!zones[0].is_sequential && zones[1].is_sequential);
        // A kernel before 5.9 tells of no capacity.
        let zones = read(&report(&usual(), 0)).unwrap();
        assert_eq!(zones[1].capacity, LEN * SECTOR);
        for (cond, state) in [(0xd, ZoneState::ReadOnly), (0xf, ZoneState::Offline)] {
            let mut raws = usual();
            (raws[1].cond, raws[1].wp, raws[1].capacity) = (cond, u64::MAX, 0);
            (raws[0].cond, raws[2].kind) = (cond, zone_type::SEQWRITE_PREF);
            let zones = read(&report(&raws, REP_CAPACITY)).unwrap();
            assert_eq!((zones[0].state, zones[1].state), (state, state));
            assert!(zones[0].is_lost() && !zones[2].is_lost());
        }
    }

    #[test]
    fn what_cannot_be_is_refused_and_named() {
        type Change = fn(&mut [RawZone; 4]);
        let cases: [(usize, &str, Change); 15] = [
            (1, "first sector", |z| z[1].start += 8),
            (1, "first sector", |z| z[1].start = 0),
            (2, "its sectors", |z| z[2].len = 0),
            (2, "its sectors", |z| z[2].len = LEN - 8),
            (3, "its sectors", |z| z[3].len = LEN),
            (1, "type", |z| z[1].kind = 0),
            (1, "type", |z| z[1].kind = 4),
            (0, "condition", |z| z[0].cond = zone_cond::EMPTY),
            (1, "condition", |z| z[1].cond = 5),
            (1, "condition", |z| z[1].cond = zone_cond::NOT_WP),
            (1, "pointer", |z| z[1].wp = LEN + 101),
            (1, "pointer", |z| z[1].wp = LEN - 1),
            (2, "empty zone", |z| z[2].wp += 8),
            (2, "capacity", |z| z[2].capacity = LEN + 1),
            (1, "capacity", |z| (z[1].capacity, z[1].wp) = (u64::MAX, 0)),
        ];
        for (n, word, change) in cases {
            let mut zones = usual();
            change(&mut zones);
            let (zone, (what, expected, found)) = read(&report(&zones, REP_CAPACITY)).unwrap_err();
            assert!(what.contains(word), "{what}, expected {word}");
            assert_eq!(zone, n, "{what}: {expected}, {found}");
        }
        let mut zones = usual();
        zones[2].capacity = 0;
        assert!(read(&report(&zones, REP_CAPACITY)).is_err());
        assert!(read(&report(&zones, 0)).is_ok());
    }

    #[test]
    fn a_report_holds_no_more_than_fits() {
        let mut bytes = report(&usual(), REP_CAPACITY);
        bytes[8] = 5;
        assert_eq!(
            read(&bytes).unwrap_err().1,
            ("zones in a report, at most", 4, 5)
        );
        bytes[8] = 2;
        assert_eq!(read(&bytes).unwrap().len(), 2);
        assert!(read(&bytes[..15]).is_err());
        // A zone behind the device's end.
        let mut zones = Vec::new();
        let all = report(&usual(), 0);
        take(&mut zones, &all, LEN * SECTOR, END * SECTOR).unwrap();
        assert!(take(&mut zones, &all, LEN * SECTOR, END * SECTOR).is_err());
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut random = 7;
        for _ in 0..20_000 {
            let mut bytes = report(&usual(), REP_CAPACITY);
            for _ in 0..1 + shale_sys::random::next_random(&mut random) % 4 {
                let at = shale_sys::random::next_random(&mut random) as usize % bytes.len();
                bytes[at] = shale_sys::random::next_random(&mut random) as u8;
            }
            if let Ok(zones) = read(&bytes) {
                assert!(zones.iter().all(|z| z.capacity <= z.bytes));
            }
        }
    }
}
