//! Taking leases: what [`crate::lease`] decided is done here (DESIGN §9).
//!
//! From a holder, step by step: the front end in this process lets the kernel write
//! back; the generation word is raised, so that no new call goes on under the
//! lease; the gates are passed, so that no old one does; if it could write, its log
//! is digested, so that the next holder finds everything in the volume. The holder is
//! never woken. One that stays inside a call is cut off after the time limit.

use crate::client::{Client, Reach};
use crate::digestion::Halt;
use crate::lease::{Decision, Grant, Holder};
use crate::shared::Shared;
use crate::space::LEFT_LOGS;
use shale_proto::LeaseMode;
use std::sync::Arc;

impl Shared {
    /// Gives `client` a lease on `ino`, taking it from others if need be.
    ///
    /// # Errors
    /// A holder's log cannot be digested: what it wrote is not in the volume.
    pub(crate) fn lease(
        self: &Arc<Self>,
        client: &Client,
        ino: u64,
        mode: LeaseMode,
    ) -> Result<Grant, Halt> {
        let generation = || client.daemon_page.generation(ino);
        let from = match self.leases.ask(client.id, ino, mode, generation) {
            Decision::Granted(grant) => return Ok(grant),
            Decision::TakeFrom(from) => from,
        };
        let mut lost = Vec::new();
        for holder in &from {
            if let Err(halt) = self.take_from(holder, ino) {
                self.leases.give_up(ino, &lost);
                return Err(halt);
            }
            lost.push(*holder);
        }
        Ok(self.leases.taken(client.id, ino, mode, &from, generation))
    }

    fn take_from(self: &Arc<Self>, holder: &Holder, ino: u64) -> Result<(), Halt> {
        if holder.client == LEFT_LOGS {
            let why = "a log that recovery could not digest changes this inode";
            return Err(Halt::Stuck(why.to_owned()));
        }
        // One that has gone meanwhile was digested as it went.
        let Some(victim) = self.client(holder.client) else {
            return Ok(());
        };
        let hook = match victim.reach {
            Reach::InProcess => self.hook.read().clone(),
            Reach::Socket => None,
        };
        if let Some(hook) = &hook {
            hook.before_revoke(ino);
        }
        victim.daemon_page.bump_generation(ino);
        self.pass_gate(&victim);
        if holder.mode == LeaseMode::Exclusive {
            match self.digest_to(&victim, u64::MAX) {
                Err(halt @ (Halt::Stuck(_) | Halt::Short(_))) => return Err(halt),
                // What was refused does not count; the rest is in the volume.
                Err(Halt::Refused(_)) | Ok(()) => {}
            }
        }
        if let Some(hook) = &hook {
            hook.after_revoke(ino);
        }
        Ok(())
    }

    /// A client gives a lease back. What it wrote under it is digested first, so that
    /// its records are judged while it still holds it.
    pub(crate) fn unlease(self: &Arc<Self>, client: &Arc<Client>, ino: u64) -> Result<(), Halt> {
        if self.leases.mode(client.id, ino) == Some(LeaseMode::Exclusive) {
            self.digest_to(client, u64::MAX)?;
        }
        self.leases.release(client.id, ino);
        Ok(())
    }
}
