//! What a process that has not opened the devices needs to read what lies below NVM: it gets blocks in another way, and
//! looks here where they are and whether they are right.

use crate::error::Result;
use crate::lower_tiers::lower::DeviceBlock;
use crate::reading::block_reader::BlockSource;
use crate::reading::view::View;
use shale_format::BlockAddr;
use std::sync::Arc;

impl View {
    /// Has leaves below NVM read from what `given` holds: for a process without devices.
    #[must_use]
    pub fn with_block_source(mut self, given: Arc<dyn BlockSource>) -> View {
        self.blocks.given = Some(given);
        self
    }

    /// Where a block below NVM is on its device.
    ///
    /// # Errors
    /// No such block.
    pub fn device_block(&self, addr: BlockAddr) -> Result<DeviceBlock> {
        self.below()?.device_place(addr)
    }

    /// How many of the blocks in `bytes`, which somebody has read from the device of `addr`, from there on within one zone, are
    /// what was written there when the zone had been erased `generation` times: those before the first that is not. Needs no
    /// read section: what changes meanwhile does not fit.
    ///
    /// # Errors
    /// No such block.
    pub fn fitting_blocks(&self, addr: BlockAddr, generation: u32, bytes: &[u8]) -> Result<usize> {
        self.below()?.fitting(addr, generation, bytes)
    }
}
