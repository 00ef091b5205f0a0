//! How a translation layer works, and what it counts.

/// Which erase block is cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victims {
    /// The one with the fewest valid blocks.
    Greedy,
    /// Space gained times age, over cost: cold garbage is worth collecting earlier.
    CostBenefit,
}

/// How a translation layer works. The defaults are those of StageFS §5.1.1 where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Part of the device that is not offered, in percent; at least what the streams need.
    pub over_provision_percent: u32,
    /// Cleaning begins when less than this part of the blocks is free, in percent.
    pub clean_below_percent: u32,
    /// Cleaning that begins so early leaves alone blocks of which more than this part is
    /// valid, in percent. Ours: with 10% over-provision a full device never has 10% free.
    pub early_valid_max_percent: u32,
    /// Which block is cleaned. Ours: the paper does not say.
    pub victims: Victims,
    /// Bytes of written blocks kept in memory.
    pub cache_bytes: usize,
    /// By how many erases blocks may differ before the least worn one is moved. Ours.
    pub wear_difference_max: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            over_provision_percent: 10,
            clean_below_percent: 10,
            early_valid_max_percent: 50,
            victims: Victims::CostBenefit,
            cache_bytes: 64 << 20,
            wear_difference_max: 100,
        }
    }
}

/// What a translation layer was asked for and did; pages and erases count the flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FtlCounts {
    /// Blocks of 4 KiB written by the user; parts of one count as one.
    pub blocks_written: u64,
    /// Those that replaced a block still in the cache.
    pub blocks_rewritten_in_cache: u64,
    /// Blocks read by the user.
    pub blocks_read: u64,
    /// Blocks trimmed.
    pub blocks_trimmed: u64,
    /// Flushes by the user.
    pub flushes: u64,
    /// Pages of which only one half was of use.
    pub halves_wasted: u64,
    /// Pages with lists of trimmed blocks.
    pub trim_pages: u64,
    /// Erase blocks cleaned.
    pub blocks_cleaned: u64,
}
