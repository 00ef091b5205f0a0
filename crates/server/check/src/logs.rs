//! Update logs: each file's header and positions, and what waits in it.
//!
//! A log ends at its first record that is not whole: that is no damage. Whether
//! records lie behind that point is reported, for who wants to know what a crash cost.

use super::options::LogFile;
use shale_format::LogPos;
use shale_format::limits::{RECORD_ALIGN, RECORD_BYTES_MAX};
use shale_format::log::{LOG_MAGIC, LogHeader, LogSlot, RING_AT, TAIL_AT, slot_state};
use shale_format::record::RecordHeader;
use shale_format::superblock::Superblock;
use shale_nvm::MappedRegion;
use shale_oplog::{Op, Scan};

/// Makes a log's file fit its slot. Gives what was done, and whether something is lost by it.
pub(super) fn mend(
    number: u32,
    slot: &LogSlot,
    sb: &Superblock,
    view: &MappedRegion,
) -> Vec<(String, bool)> {
    let mut done = Vec::new();
    let found = LogHeader::decode(&view.load_array::<{ LogHeader::BYTES }>(0)).ok();
    let header = LogHeader {
        magic: LOG_MAGIC,
        uuid: sb.uuid,
        salt: slot.salt,
        ring_bytes: slot.ring_bytes,
        uid: slot.uid,
        slot: number,
        created_ns: found.map_or(0, |h| h.created_ns),
        ..zerocopy::FromZeros::new_zeroed()
    };
    if found.is_none_or(|h| h.encode() != header.encode()) {
        view.copy_nt(0, &header.encode());
        done.push(("header rewritten".to_owned(), false));
    }
    let oldest = slot.digested.saturating_sub(slot.ring_bytes);
    let tail = view.load_u64(TAIL_AT);
    if !(oldest..=slot.digested).contains(&tail) || !tail.is_multiple_of(RECORD_ALIGN as u64) {
        view.store_u64(TAIL_AT, slot.digested);
        view.flush(TAIL_AT, size_of::<u64>());
        done.push(("tail set right".to_owned(), false));
    }
    let from = LogPos(slot.digested);
    let limit = LogPos(slot.digested + slot.ring_bytes);
    let mut scan = Scan::new(view, slot.salt, slot.ring_bytes, from).until(limit);
    let bad = scan.find_map(|r| Op::decode(&r).err().map(|e| (r.pos(), e)));
    if let Some((pos, e)) = bad {
        let at = RING_AT + (pos.0 % slot.ring_bytes) as usize;
        view.zero_nt(at, RecordHeader::BYTES);
        done.push((format!("its records from position {} on: {e}", pos.0), true));
    }
    view.fence();
    done
}

/// Why a log slot cannot be used, so that what waits in its log is lost. `files`: none where they are made again from a
/// staging area.
pub(super) fn unusable(
    number: u32,
    slot: &LogSlot,
    sb: &Superblock,
    files: Option<&[LogFile]>,
) -> Option<String> {
    let file = files.unwrap_or_default();
    let file = file.iter().find(|f| f.slot == number).map(|f| &f.map);
    let map = match (slot.state, file) {
        (slot_state::FREE, _) => return None,
        (slot_state::LIVE, _) if !slot.is_sound() => {
            return Some("its slot makes no sense".to_owned());
        }
        (slot_state::LIVE, None) if files.is_none() => return None,
        (slot_state::LIVE, None) => return Some("the file is missing".to_owned()),
        (slot_state::LIVE, Some(Err(why))) => return Some(why.clone()),
        (slot_state::LIVE, Some(Ok(map))) => map,
        (other, _) => return Some(format!("its state is {other}")),
    };
    if (map.bytes() as u64) < RING_AT as u64 + slot.ring_bytes {
        return Some("the file is too short".to_owned());
    }
    let header = LogHeader::decode(&map.load_array::<{ LogHeader::BYTES }>(0));
    header
        .is_ok_and(|h| h.uuid != sb.uuid)
        .then(|| "the file is another volume's".to_owned())
}

/// Position of the first record that seems to lie behind the end `head` of a log, as
/// far as one record can reach.
pub(super) fn record_behind(view: &MappedRegion, ring: u64, head: u64, limit: u64) -> Option<u64> {
    let step = RECORD_ALIGN as u64;
    let end = limit.min(head + RECORD_BYTES_MAX as u64 + step);
    let mut pos = head + step;
    while pos + step <= end {
        let at = RING_AT + (pos % ring) as usize;
        let line = view.load_array::<{ RecordHeader::BYTES }>(at);
        let ring_left = ring - pos % ring;
        if RecordHeader::decode(&line, pos, ring_left as usize).is_some() {
            return Some(pos);
        }
        pos += step;
    }
    None
}
