//! The log table, each log's slot and file, and what waits in it.

use super::Checker;
use crate::logs::record_behind;
use crate::options::LogFile;
use crate::report::{Object, Severity};
use shale_format::LogPos;
use shale_format::limits::{BLOCK_BYTES, LOG_SLOTS, RECORD_ALIGN};
use shale_format::log::{LogHeader, LogSlot, RING_AT, TAIL_AT, is_position, is_ring, slot_state};
use shale_format::superblock::{LOG_TABLE_BLOCK, LOG_TABLE_BLOCKS};
use shale_nvm::{MappedRegion, Path};
use shale_oplog::{Op, Scan};

const SLOTS_PER_BLOCK: usize = BLOCK_BYTES / LogSlot::BYTES;

impl Checker<'_> {
    /// Checks the log table and every log file.
    pub(super) fn check_logs(&mut self, files: &[LogFile]) {
        for n in 0..LOG_TABLE_BLOCKS {
            let mut block = [0; BLOCK_BYTES];
            if !self.media.load(LOG_TABLE_BLOCK + n, &mut block) {
                return;
            }
            let first = n as u32 * SLOTS_PER_BLOCK as u32;
            for (number, bytes) in (first..LOG_SLOTS).zip(block.chunks_exact(LogSlot::BYTES)) {
                self.check_log(number, LogSlot::decode(bytes, number), files);
            }
        }
    }

    fn check_log(
        &mut self,
        number: u32,
        slot: Result<LogSlot, shale_format::FormatError>,
        files: &[LogFile],
    ) {
        let object = Object::Log(number);
        let file = files.iter().find(|f| f.slot == number);
        let slot = match slot {
            Ok(slot) => slot,
            Err(e) => {
                self.findings.undecodable(object, Some(LOG_TABLE_BLOCK), &e);
                return;
            }
        };
        match (slot.state, file) {
            (slot_state::FREE, None) => (),
            (slot_state::FREE, Some(_)) => {
                let what = "log file without a slot, left from a crash";
                self.findings
                    .note(Severity::Info, object, None, what, ("", ""));
            }
            (slot_state::LIVE, file) => {
                self.totals.logs += 1;
                match file.map(|f| &f.map) {
                    None if self.logs_staged => {
                        let what = "log that the next mount makes again from the staging area";
                        self.findings
                            .note(Severity::Info, object, None, what, ("", ""));
                    }
                    None => self
                        .findings
                        .error(object, None, "log file is missing", ("", "")),
                    Some(Err(why)) => {
                        self.findings
                            .error(object, None, "log file cannot be read", ("", why));
                    }
                    Some(Ok(map)) => self.check_log_file(number, &slot, map.on(Path::Log)),
                }
            }
            (other, _) => {
                let what = "state of a log slot";
                self.findings
                    .error(object, Some(LOG_TABLE_BLOCK), what, ("0 or 1", other));
            }
        }
    }

    fn check_log_file(&mut self, number: u32, slot: &LogSlot, view: &MappedRegion) {
        let object = Object::Log(number);
        let ring = slot.ring_bytes;
        if !is_ring(ring) {
            self.findings
                .error(object, None, "bytes of a log's ring", ("", ring));
            return;
        }
        let (expected, found) = (RING_AT as u64 + ring, view.bytes() as u64);
        if found < expected {
            self.findings
                .error(object, None, "log file too short", (expected, found));
            return;
        }
        match LogHeader::decode(&view.load_array::<{ LogHeader::BYTES }>(0)) {
            Err(e) => self.findings.undecodable(object, None, &e),
            Ok(header) => {
                let f = &mut self.findings;
                if header.uuid != self.sb.uuid {
                    f.error(object, None, "log of another volume", ("", ""));
                }
                f.equal(object, "log header: slot", number, header.slot);
                f.equal(object, "log header: salt", slot.salt, header.salt);
                f.equal(object, "log header: ring_bytes", ring, header.ring_bytes);
                f.equal(object, "log header: uid", slot.uid, header.uid);
            }
        }
        let digested = slot.digested;
        if !is_position(digested) {
            self.findings.error(
                object,
                None,
                "log: digested position",
                ("a multiple of 64", digested),
            );
            return;
        }
        let tail = view.load_u64(TAIL_AT);
        let oldest = digested.saturating_sub(ring);
        if !(oldest..=digested).contains(&tail) || !tail.is_multiple_of(RECORD_ALIGN as u64) {
            let range = format!("{oldest} to {digested}");
            self.findings
                .error(object, None, "log: tail", (range, tail));
        }
        self.check_records(object, slot, view);
    }

    /// Counts what waits and looks at what is behind the end.
    fn check_records(&mut self, object: Object, slot: &LogSlot, view: &MappedRegion) {
        let from = LogPos(slot.digested);
        let limit = LogPos(slot.digested + slot.ring_bytes);
        let mut scan = Scan::new(view, slot.salt, slot.ring_bytes, from).until(limit);
        let mut records = 0;
        for record in scan.by_ref() {
            records += 1;
            if let Err(e) = Op::decode(&record) {
                let what = "record that will be refused";
                self.findings
                    .note(Severity::Warning, object, None, what, ("", e));
            }
        }
        let head = scan.head().0;
        let bytes = head - slot.digested;
        self.totals.records_waiting += records;
        self.totals.bytes_waiting += bytes;
        if records > 0 {
            let found = format!("{records} records, {bytes} bytes");
            let what = "records wait to be digested";
            self.findings
                .note(Severity::Info, object, None, what, ("", found));
        }
        if let Some(behind) = record_behind(view, slot.ring_bytes, head, limit.0) {
            let what = "log ends where a record is not whole, and others lie behind";
            let found = format!("end at {head}, next at {behind}");
            self.findings
                .note(Severity::Info, object, None, what, ("", found));
        }
    }
}
