//! The barrier on all processors that lets clients' reader slots be plain stores (DESIGN §9).
//!
//! Client processes must be registered (`MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED`)
//! before they attach; this process registers when the daemon starts.

use crate::error::{ClientError, Result};
use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

/// The barrier that orders the daemon's stores before it reads the reader slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// Interrupts only processors that run a registered process: about 2 µs.
    Expedited,
    /// Waits until every processor has passed the scheduler: milliseconds.
    Global,
}

impl Barrier {
    /// Registers this process and chooses the cheapest barrier there is.
    pub fn register() -> Result<Barrier> {
        let offers = membarrier_query();
        let register = MembarrierCommand::RegisterGlobalExpedited;
        if offers.contains_command(MembarrierCommand::GlobalExpedited)
            && membarrier(register).is_ok()
        {
            return Ok(Barrier::Expedited);
        }
        membarrier(MembarrierCommand::Global).map_err(|e| ClientError::Membarrier(e.into()))?;
        Ok(Barrier::Global)
    }

    /// Orders every store of this thread before every later load, as seen by any
    /// thread of a registered process.
    pub fn run(self) {
        let command = match self {
            Barrier::Expedited => MembarrierCommand::GlobalExpedited,
            Barrier::Global => MembarrierCommand::Global,
        };
        // It has worked once with the same arguments; without it nothing here is sound.
        if let Err(e) = membarrier(command) {
            panic!("membarrier {command:?} failed after it had worked: {e}");
        }
    }
}
