//! Waiting where a limit is set on what this client writes.

use crate::errno::{Errno, Result};
use crate::session::{Session, final_errno};
use crate::sync::sleep;
use shale_proto::{Reply, Request};
use std::time::Duration;

impl Session {
    /// Waits as long as the daemon says. Outside of gate and locks, so nobody waits for who waits
    /// here; and in this process, so that other threads may ask the daemon meanwhile.
    #[cold]
    pub(crate) fn keep_pace(&self) -> Result<()> {
        loop {
            self.still_served().map_err(final_errno)?;
            match self.ask(Request::Pace)? {
                Reply::Wait { ns, give_back } => {
                    if give_back {
                        self.return_grants()?;
                    }
                    if ns == 0 {
                        return Ok(());
                    }
                    sleep(Duration::from_nanos(ns));
                }
                _ => return Err(Errno::PROTO),
            }
        }
    }
}
