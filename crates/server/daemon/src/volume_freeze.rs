//! Freezing a volume for a backup: for a moment nothing changes, and everything is in the volume.
//!
//! 1. A bit in the daemon page of each client. A call that has space in its log looks at it within its read section,
//!    and waits outside of that and of all locks.
//! 2. A grace period. Calls that had not seen the bit have ended, and what they logged is published: a call that has
//!    returned is in a log, and one that has not returned has changed nothing.
//! 3. All logs are digested.
//!
//! From then on the volume has the state of one moment, and the client that asked for it reads without taking leases:
//! holders would have to give up what they cache, and the kernel may hold pages locked for writes that wait. It takes them for
//! given ([`shale_proto::shared_pages::mount_flag::READS_FROZEN`]), and nothing is noted in the table, so all of that client's lease
//! words are raised when the freeze ends.
//!
//! A freeze ends when it is asked to, with the connection of its client, or when its time is over: whichever is
//! first. A daemon that dies takes its pages with it, and clients that wait ask it now and then.

use crate::connections::attach::Refusal;
use crate::digest_scheduler::DigestScheduler;
use parking_lot::{Condvar, Mutex};
use shale_clients::client::Client;
use shale_clients::clients::Clients;
use shale_coherence::digest_stop::DigestStop;
use shale_coherence::grace::GracePeriods;
use shale_proto::message::FREEZE_NS_MAX;
use shale_sys::{Clock, mutants};
use std::sync::Arc;
use std::time::Duration;

/// What a freeze needs.
pub(crate) struct Parts {
    pub(crate) clients: Arc<Clients>,
    pub(crate) grace: Arc<GracePeriods>,
    pub(crate) digests: Arc<DigestScheduler>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Logs that recovery could not digest: what they hold is not in the volume.
    pub(crate) logs_left: u64,
}

/// A freeze that has begun.
struct Freeze {
    number: u64,
    client: Arc<Client>,
    since_ns: u64,
}

#[derive(Default)]
struct State {
    /// Number of the last freeze that has begun.
    last: u64,
    now: Option<Freeze>,
}

/// Freezes the volume. One freeze at a time.
pub(crate) struct VolumeFreeze {
    parts: Parts,
    state: Mutex<State>,
    ended: Condvar,
}

impl VolumeFreeze {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        Arc::new(Self {
            parts,
            state: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// Freezes for `client`, for `max_ns` at most from now on. Returns when everything is in the volume.
    pub(crate) fn freeze(
        self: &Arc<Self>,
        client: &Arc<Client>,
        max_ns: u64,
    ) -> Result<(), Refusal> {
        if self.parts.logs_left > 0 {
            let why = "there are logs that recovery could not digest: what they hold is not in the volume";
            return Err((libc::EIO, why.to_owned()));
        }
        let max = Duration::from_nanos(max_ns.min(FREEZE_NS_MAX));
        let number = self.begin(client)?;
        if let Err(e) = self.end_after(number, max) {
            self.end(number);
            return Err((
                libc::EAGAIN,
                format!("no thread for the end of a freeze: {e}"),
            ));
        }
        if let Err(halt) = self.digest_all() {
            self.end(number);
            return Err((libc::EIO, halt.to_string()));
        }
        match &self.state.lock().now {
            Some(freeze) if freeze.number == number => {
                self.parts.clients.tell_frozen(true, Some(client.id));
                Ok(())
            }
            _ => Err((
                libc::ETIMEDOUT,
                format!(
                    "the logs could not be digested within {} ms",
                    max.as_millis()
                ),
            )),
        }
    }

    fn begin(&self, client: &Arc<Client>) -> Result<u64, Refusal> {
        let mut state = self.state.lock();
        if state.now.is_some() {
            return Err((libc::EBUSY, "the volume is frozen already".to_owned()));
        }
        state.last += 1;
        state.now = Some(Freeze {
            number: state.last,
            client: client.clone(),
            since_ns: self.parts.clock.monotonic_ns(),
        });
        self.parts.clients.tell_frozen(true, None);
        Ok(state.last)
    }

    /// Has a freeze end when its time is over.
    fn end_after(self: &Arc<Self>, number: u64, max: Duration) -> std::io::Result<()> {
        let this = self.clone();
        let watch = move || {
            let mut state = this.state.lock();
            let goes_on = |state: &mut State| {
                let now = state.now.as_ref();
                now.is_some_and(|freeze| freeze.number == number)
            };
            let waited = this.ended.wait_while_for(&mut state, goes_on, max);
            drop(state);
            if waited.timed_out() && this.end(number).is_some() {
                tracing::warn!(
                    "a freeze has ended after {} ms, its longest",
                    max.as_millis()
                );
            }
        };
        let thread = std::thread::Builder::new().name("freeze".to_owned());
        thread.spawn(watch).map(drop)
    }

    /// Waits for the calls that had begun, and digests what they and all before them have logged.
    fn digest_all(&self) -> Result<(), DigestStop> {
        let clients = self.parts.clients.snapshot();
        if !mutants::is_on("freeze-grace") {
            self.parts.grace.wait(&clients);
        }
        for client in &clients {
            let end = client.published().pos().0;
            match self.parts.digests.digest_to(client, end) {
                // What was refused does not count; the rest is in the volume.
                Ok(()) | Err(DigestStop::Rejected(_)) => {}
                Err(halt) => return Err(halt),
            }
        }
        Ok(())
    }

    /// Ends the freeze of a client, which asks for it. Gives for how long calls have waited.
    pub(crate) fn thaw(&self, client: &Client) -> Result<u64, Refusal> {
        self.end_of(client).ok_or_else(|| {
            let why = "the volume is not frozen any more for this client";
            (libc::ETIMEDOUT, why.to_owned())
        })
    }

    /// Ends the freeze of a client, if there is one.
    pub(crate) fn end_of(&self, client: &Client) -> Option<u64> {
        let number = {
            let state = self.state.lock();
            let freeze = state.now.as_ref()?;
            (freeze.client.id == client.id).then_some(freeze.number)?
        };
        self.end(number)
    }

    /// Ends a freeze, unless that was done.
    fn end(&self, number: u64) -> Option<u64> {
        let mut state = self.state.lock();
        let freeze = state.now.take_if(|freeze| freeze.number == number)?;
        let raise = || {
            if !mutants::is_on("freeze-leases") {
                freeze.client.daemon_page.bump_all_generations();
            }
        };
        // Before anybody changes what it may read; and after it has seen for the last time that it may, with generations that
        // were raised already.
        raise();
        self.parts.clients.tell_frozen(false, None);
        raise();
        self.ended.notify_all();
        Some(
            self.parts
                .clock
                .monotonic_ns()
                .saturating_sub(freeze.since_ns),
        )
    }
}
