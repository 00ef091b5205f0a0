//! Which new data goes directly to a lower tier.

use shale_digest::{NewRun, Placement};
use shale_format::TierId;
use shale_volume::WriteStream;

/// Which new data goes below NVM while that is full.
#[derive(Clone, Copy, Debug)]
pub struct DirectPlacement {
    pub(super) tier: TierId,
    /// Blocks of a run, at least.
    pub(super) run_blocks: u64,
    /// Blocks of such runs in one chunk, at least.
    pub(super) chunk_blocks: u64,
}

impl DirectPlacement {
    /// Where a run goes: below if it is large and its file is not pinned elsewhere. Nothing is known of how
    /// soon it is used again, and large runs mostly are not, so it is written with what is cold.
    pub fn of(&self, run: &NewRun) -> Placement {
        let may = run.pin.is_none_or(|pin| pin == self.tier);
        match may && run.blocks >= self.run_blocks {
            true => Placement::Lower {
                tier: self.tier,
                stream: WriteStream::Cold,
                chunk_blocks: self.chunk_blocks,
            },
            false => Placement::Nvm,
        }
    }
}
