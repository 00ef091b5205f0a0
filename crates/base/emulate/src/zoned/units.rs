//! The time line of each unit.

use crate::UnitTimes;

/// Commands that may wait at a unit before who sends the next one waits too.
const QUEUE_COMMANDS: u64 = 8;

/// When each unit takes its next command, and when it has done its last.
#[derive(Debug)]
pub(super) struct Units {
    times: UnitTimes,
    free_at_ns: Vec<u64>,
    done_at_ns: Vec<u64>,
}

impl Units {
    pub fn new(units: u32, times: UnitTimes) -> Self {
        Units {
            times,
            free_at_ns: vec![0; units as usize],
            done_at_ns: vec![0; units as usize],
        }
    }

    /// Puts a command behind what the unit has to do; when it begins.
    fn queue(&mut self, unit: u32, now_ns: u64, busy_ns: u64, lasts_ns: u64) -> u64 {
        let unit = unit as usize;
        let start_ns = self.free_at_ns[unit].max(now_ns);
        self.free_at_ns[unit] = start_ns + busy_ns;
        self.done_at_ns[unit] = self.done_at_ns[unit].max(start_ns + lasts_ns);
        start_ns
    }

    /// When the bytes are there.
    pub fn read(&mut self, unit: u32, now_ns: u64) -> u64 {
        let UnitTimes {
            read_ns,
            read_busy_ns,
            ..
        } = self.times;
        self.queue(unit, now_ns, read_busy_ns, read_ns) + read_ns
    }

    /// When the sender can go on.
    pub fn program(&mut self, unit: u32, now_ns: u64) -> u64 {
        let UnitTimes {
            program_ns,
            program_busy_ns,
            ..
        } = self.times;
        let start_ns = self.queue(unit, now_ns, program_busy_ns, program_ns);
        start_ns.saturating_sub(QUEUE_COMMANDS * program_busy_ns)
    }

    /// When the sender can go on.
    pub fn erase(&mut self, unit: u32, now_ns: u64) -> u64 {
        let UnitTimes {
            program_busy_ns,
            erase_ns,
            ..
        } = self.times;
        let start_ns = self.queue(unit, now_ns, erase_ns, erase_ns);
        start_ns.saturating_sub(QUEUE_COMMANDS * program_busy_ns)
    }

    /// When all is done.
    pub fn idle_at_ns(&self) -> u64 {
        self.done_at_ns.iter().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_work_side_by_side() {
        let mut units = Units::new(16, UnitTimes::STAGEFS);
        for unit in 0..16 {
            assert_eq!(units.program(unit, 0), 0, "the queue takes it");
        }
        assert_eq!(units.idle_at_ns(), 544_900);
        // Table 1: 6.55 MB/s of one unit, so 8 KiB in 1.25 ms.
        let pages = 1_000;
        for _ in 1..pages {
            units.program(3, 0);
        }
        let seconds = units.free_at_ns[3] as f64 / 1e9;
        let rate = f64::from(pages) * 8_192.0 / seconds / 1e6;
        assert!((rate - 6.55).abs() < 0.01, "{rate} MB/s");
    }

    #[test]
    fn a_full_queue_makes_the_sender_wait_and_reads_wait_behind_it() {
        let mut units = Units::new(1, UnitTimes::STAGEFS);
        let busy_ns = UnitTimes::STAGEFS.program_busy_ns;
        let waits: Vec<u64> = (0..10).map(|_| units.program(0, 0)).collect();
        assert_eq!(waits[8], 0);
        assert_eq!(waits[9], busy_ns);
        assert_eq!(units.read(0, 0), 10 * busy_ns + 52_300);
        assert!(units.erase(0, 0) > waits[9]);
    }
}
