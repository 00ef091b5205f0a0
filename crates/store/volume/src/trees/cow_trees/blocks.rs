//! Blocks that a transaction marks and frees, in NVM and below.

use super::CowTrees;
use crate::error::Result;
use crate::lower_tiers::txn_lower::LowerTxn;
use shale_allocation::Run;
use shale_format::TierId;

impl CowTrees {
    /// The lower tier that a run lies in; `None`: it is to be looked for in NVM.
    fn below(&mut self, run: Run) -> Result<Option<&mut LowerTxn>> {
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
            None => Ok(self.space.check(run)?),
        }
    }

    /// Marks a run used; blocks of it that nobody had taken are taken here.
    pub(crate) fn mark(&mut self, run: Run) -> Result<()> {
        if let Some(lower) = self.below(run)? {
            if !lower.zones.is_written(run) {
                return Err(run.bad("behind the write pointer of its zone").into());
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
