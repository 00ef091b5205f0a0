//! The time that raw flash takes.

/// How long one unit (channel) of raw flash is busy.
///
/// Latency is what a caller waits for at an idle unit; `busy` how long until the unit takes
/// the next command, so that many commands in a row get the bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitTimes {
    /// From the begin of a read to its bytes, in nanoseconds.
    pub read_ns: u64,
    /// How long a read keeps the unit, in nanoseconds.
    pub read_busy_ns: u64,
    /// From the begin of programming a page to its end, in nanoseconds.
    pub program_ns: u64,
    /// How long programming keeps the unit, in nanoseconds.
    pub program_busy_ns: u64,
    /// From the begin of erasing a block to its end; the unit is busy all the time.
    pub erase_ns: u64,
}

impl UnitTimes {
    /// StageFS Table 1, pages of 8 KiB: read 52.3 µs and 49.84 MB/s, write 544.9 µs and
    /// 6.55 MB/s (MB = 10^6 bytes). The paper has no time for erasing: 2 ms is ours, usual
    /// for the flash of its year.
    pub const STAGEFS: UnitTimes = UnitTimes {
        read_ns: 52_300,
        read_busy_ns: 8_192 * 100_000 / 4_984,
        program_ns: 544_900,
        program_busy_ns: 8_192 * 100_000 / 655,
        erase_ns: 2_000_000,
    };

    /// Everything at once.
    pub const NONE: UnitTimes = UnitTimes {
        read_ns: 0,
        read_busy_ns: 0,
        program_ns: 0,
        program_busy_ns: 0,
        erase_ns: 0,
    };
}
