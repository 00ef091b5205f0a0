//! What a transaction marks and frees, in NVM and below.

use crate::bits::Bits;
use crate::error::Result;
use crate::space::Run;
use crate::tree::Draft;
use crate::zones::Zones;
use shale_format::zone::ZoneEntry;
use shale_format::{BlockAddr, TierId};
use std::sync::Arc;

/// What a transaction changes in a tier below NVM.
pub(crate) struct LowerDraft {
    pub(crate) bits: Bits,
    pub(crate) blocks: u64,
    pub(crate) zones: Arc<Zones>,
    /// First block of the zone table.
    pub(crate) zone_block: u64,
}

impl LowerDraft {
    /// Byte of NVM at which the entry of a zone is.
    pub(crate) fn zone_byte(&self, zone: u64) -> u64 {
        BlockAddr::nvm(self.zone_block).byte() + zone * ZoneEntry::BYTES as u64
    }

    fn check(&self, run: Run) -> Result<()> {
        let end = run.addr.index().checked_add(run.len);
        match end {
            Some(end) if run.len > 0 && end <= self.blocks => Ok(()),
            _ => Err(run.bad("outside its tier")),
        }
    }
}

impl Draft {
    /// The tier below NVM that a run lies in; `None`: it is to be looked for in NVM.
    fn below(&mut self, run: Run) -> Result<Option<&mut LowerDraft>> {
        let n = match run.addr.tier() {
            Some(TierId::Ssd) => 0,
            Some(TierId::Hdd) => 1,
            _ => return Ok(None),
        };
        let lower = self.lower[n].as_mut();
        let lower = lower.ok_or_else(|| run.bad("the volume has no such tier"))?;
        lower.check(run)?;
        Ok(Some(lower))
    }

    /// Checks that a run may be allocated at all.
    pub(crate) fn check(&mut self, run: Run) -> Result<()> {
        match self.below(run)? {
            Some(_) => Ok(()),
            None => self.space.check(run),
        }
    }

    /// Marks a run used; blocks of it that nobody had taken are taken here.
    pub(crate) fn mark(&mut self, run: Run) -> Result<()> {
        if let Some(lower) = self.below(run)? {
            if !lower.zones.is_written(run) {
                return Err(run.bad("behind the write pointer of its zone"));
            }
            return lower.bits.mark(run);
        }
        self.space.check(run)?;
        let taken = self.space.take_free_part(run)?;
        self.taken.extend(taken);
        self.bits.mark(run)
    }

    /// Frees a run that is used.
    pub(crate) fn free(&mut self, run: Run) -> Result<()> {
        if let Some(lower) = self.below(run)? {
            return lower.bits.free(run);
        }
        self.space.check(run)?;
        self.bits.free(run)
    }
}
