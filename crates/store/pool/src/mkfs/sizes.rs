//! Sizes of a volume without NVM: of its memory tier, its staging area, and what is left of the SSD that has the area.

use super::checks::refused;
use super::contents::default_log_bytes;
use super::options::MakeOptions;
use crate::error::Result;
use crate::host_space::{NvmNeed, shown};

use shale_format::limits::{BLOCK_BYTES, NVM_BYTES_MIN};
use std::ops::RangeInclusive;
use std::path::Path;

const BLOCK: u64 = BLOCK_BYTES as u64;
const MIB: u64 = 1 << 20;
/// What of the lower tiers the memory tier has: it keeps their tables (0.1%), metadata, and what was written last.
const MEMORY_PART: u64 = 128;
/// Least bytes of a memory tier for which none were said.
const MEMORY_LEAST: u64 = 64 * MIB;
/// What of the machine's memory the memory tier may take, if nothing was said.
const MACHINE_PART: u64 = 4;
/// Bytes of the staging area, if none were said: what an SSD writes in a tenth of a second or less.
const STAGING_DEFAULT: u64 = 128 * MIB;
/// What of the SSD it may take, if nothing was said.
const STAGING_PART: u64 = 8;
/// Bytes that a staging area may have. A transaction of the smallest log fits a quarter of the least one.
const STAGING: RangeInclusive<u64> = 32 * MIB..=512 * MIB;

/// What a machine has for a memory tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    /// Bytes of its memory; none: nobody tells.
    pub memory_bytes: Option<u64>,
    /// Bytes that are free of its shared memory.
    pub shared_free_bytes: u64,
}

impl Machine {
    /// Bytes of the memory tier of a volume with lower tiers of `lower_bytes` bytes. It fits together with its logs of `log_bytes` bytes
    /// (0: those that it would get), unless even the least does not.
    pub(crate) fn memory_default(&self, lower_bytes: u64, log_bytes: u64) -> u64 {
        let most = self.memory_bytes.map_or(u64::MAX, |all| all / MACHINE_PART);
        let wanted = (lower_bytes / MEMORY_PART).min(most).max(MEMORY_LEAST) / MIB * MIB;
        let logs = |memory| match log_bytes {
            0 => default_log_bytes(memory),
            n => (n, None),
        };
        let need = |memory| {
            let (mount, other) = logs(memory);
            NvmNeed::new(memory, mount, other.unwrap_or(mount)).bytes()
        };
        match need(wanted).checked_sub(self.shared_free_bytes) {
            None | Some(0) => wanted,
            // With less memory the logs are no larger.
            Some(over) => (wanted.saturating_sub(over) / MIB * MIB).max(MEMORY_LEAST),
        }
    }
}

/// Bytes of the memory tier that was asked for; `None`: nothing was said.
///
/// # Errors
/// It is too small for any volume.
pub(crate) fn memory_asked(options: &MakeOptions) -> Result<Option<u64>> {
    let asked = options.staged.memory_bytes.map(|n| n / BLOCK * BLOCK);
    match asked.filter(|&bytes| bytes < NVM_BYTES_MIN) {
        None => Ok(asked),
        Some(bytes) => {
            let why = format!(
                "a memory tier of {}: {} at least are expected (--memory)",
                shown(bytes),
                shown(NVM_BYTES_MIN)
            );
            Err(refused(&options.file, why))
        }
    }
}

/// Bytes of the staging area on an SSD of `ssd_bytes` bytes.
///
/// # Errors
/// What was asked for is too small or too large.
pub(crate) fn staging(file: &Path, asked: Option<u64>, ssd_bytes: u64) -> Result<u64> {
    let Some(asked) = asked else {
        let part = (ssd_bytes / STAGING_PART).min(STAGING_DEFAULT);
        return Ok(part.max(*STAGING.start()) / BLOCK * BLOCK);
    };
    let bytes = asked / BLOCK * BLOCK;
    if STAGING.contains(&bytes) {
        return Ok(bytes);
    }
    let why = format!(
        "a staging area of {}: {} to {} are expected on an SSD of {} (--staging)",
        shown(asked),
        shown(*STAGING.start()),
        shown(*STAGING.end()),
        shown(ssd_bytes)
    );
    Err(refused(file, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_memory_tier_is_a_part_of_what_lies_below_it_and_fits_the_machine() {
        let machine = |memory: u64, free: u64| Machine {
            memory_bytes: Some(memory),
            shared_free_bytes: free,
        };
        let large = machine(64 * GIB, 32 * GIB);
        assert_eq!(large.memory_default(200 * GIB, 0), 200 * GIB / 128);
        assert_eq!(large.memory_default(GIB, 0), MEMORY_LEAST, "at least");
        assert_eq!(large.memory_default(8 << 40, 0), 16 * GIB, "of the machine");
        for free in [9 * GIB, 2 * GIB, 600 * MIB] {
            let bytes = machine(64 * GIB, free).memory_default(8 << 40, 0);
            let (mount, other) = default_log_bytes(bytes);
            let need = NvmNeed::new(bytes, mount, other.unwrap()).bytes();
            assert!(need <= free && bytes > MEMORY_LEAST, "{bytes} of {free}");
        }
        let none = machine(64 * GIB, 0).memory_default(GIB, 0);
        assert_eq!(none, MEMORY_LEAST, "the check of space says no");
        let with_logs = machine(64 * GIB, 2 * GIB).memory_default(8 << 40, 512 * MIB);
        assert!(with_logs + 3 * 512 * MIB <= 2 * GIB, "{with_logs}");
    }
}
