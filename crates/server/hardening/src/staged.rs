//! What a staged volume has beside one with NVM.

use crate::checkpointer::Checkpointer;
use crate::hardener::Hardener;
use shale_sys::StopFlag;
use std::sync::Arc;

/// The services of a staged volume.
#[derive(Clone)]
pub struct Staged {
    /// Has logs hardened.
    pub hardener: Arc<Hardener>,
    /// Has the memory tier written.
    pub checkpointer: Arc<Checkpointer>,
    /// Ends the thread that hardens what nobody waits for.
    pub stop: Arc<StopFlag>,
}
