//! Revokes leases, as [`super::lease_table`] decided (DESIGN §9).
//!
//! From a client, in this order: its generation word is raised, so that no new call proceeds under the lease; a grace
//! period is waited for, so that no old call does; if the lease was exclusive the client's log is digested, so that the
//! next holder finds everything in the volume. The client is not woken. A client that stays in a read section beyond the
//! time limit is cut off; several are waited for together.
//!
//! From the FUSE server in this process: the kernel caches names, pages and attributes. They are invalidated *first*,
//! before any request waits for the inode: invalidation waits for requests of the kernel, and these wait for leases. If
//! the FUSE server used the inode between invalidation and revocation, the kernel may have cached something again: then
//! the FUSE server keeps the lease, and the revocation is retried.

mod idle;

use super::client::{Client, ClientState, Transport};
use super::clients::Clients;
use super::clients::LEFT_LOGS;
use super::digest_stop::DigestStop;
use super::grace::GracePeriods;
use super::lease_table::{
    BOUNCE_NS, Decision, Given, Grant, Holder, LeaseHook, LeaseRequest, LeaseTable, MEDIATED_NS,
    Mediated,
};
use super::sync::{Ordering, RwLock, failpoints, mutants};
use shale_proto::{LeaseMode, LeaseRequestMode};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Who digests logs: what a holder wrote has to be in the volume before the next one has the lease.
pub trait LogFlusher: Send + Sync {
    /// Digests a log up to `target`, or to what its client has published if that is less.
    ///
    /// # Errors
    /// The log cannot be digested so far.
    fn digest_to(&self, client: &Arc<Client>, target: u64) -> Result<(), DigestStop>;
}

/// So often the kernel is asked to drop what it keeps of an inode for a client that yields. Who uses it through the mount each time before the
/// lease has been taken would keep this client waiting for long.
const DROPS_MAX: u32 = 3;

/// Why a client gets no lease.
#[derive(Debug)]
pub enum NoLease {
    /// A holder's log cannot be digested: what it wrote is not in the volume.
    DigestStop(DigestStop),
    /// The number was granted to another client, which had not made an inode of it.
    NotMade,
    /// The client yields: everybody goes through the mount.
    Mediated(Mediated),
}

/// Who else has to do with an inode; see [`Given`].
struct Seen {
    used: bool,
    watched: bool,
    shared: bool,
}

impl Seen {
    fn given(self, grant: Grant) -> Given {
        let Self {
            used,
            watched,
            shared,
        } = self;
        Given {
            grant,
            used,
            watched,
            shared,
        }
    }
}

/// What came of taking a lease from holders.
enum Step {
    Done,
    /// The kernel has to drop what it keeps first.
    DropFirst,
}

/// Up to where a client's log is published now.
fn published(client: &Arc<Client>) -> u64 {
    client.published().pos().0
}

/// Gives leases, and takes them from their holders.
pub struct LeaseManager {
    table: LeaseTable,
    /// Called before the front end in this process loses a lease.
    hook: RwLock<Option<Arc<dyn LeaseHook>>>,
    clients: Arc<Clients>,
    grace: Arc<GracePeriods>,
    /// Gone once the daemon is: then nobody asks for a lease any more.
    flusher: Weak<dyn LogFlusher>,
}

impl LeaseManager {
    /// `flusher`: who digests the logs of holders.
    pub fn new(
        table: LeaseTable,
        clients: Arc<Clients>,
        grace: Arc<GracePeriods>,
        flusher: Weak<dyn LogFlusher>,
    ) -> Self {
        Self {
            table,
            hook: RwLock::default(),
            clients,
            grace,
            flusher,
        }
    }

    /// What is known of leases. A caller that changes it by itself takes nothing from anybody.
    pub fn table(&self) -> &LeaseTable {
        &self.table
    }

    /// Called before the front end loses a lease.
    pub fn hook(&self) -> Option<Arc<dyn LeaseHook>> {
        self.hook.read().clone()
    }

    /// Sets it.
    pub fn set_hook(&self, hook: Arc<dyn LeaseHook>) {
        *self.hook.write() = Some(hook);
        self.tell_others();
    }

    /// Digests what `client` has published by now. Where no call of it is inside any more that began under a lease, what it logged
    /// under that is published; what it goes on logging keeps nobody waiting, for it may log faster than is digested.
    fn digest(&self, client: &Arc<Client>) -> Result<(), DigestStop> {
        self.digest_to(client, published(client))
    }

    fn digest_to(&self, client: &Arc<Client>, end: u64) -> Result<(), DigestStop> {
        match self.flusher.upgrade() {
            Some(flusher) => flusher.digest_to(client, end),
            None => Err(DigestStop::MediaError("the daemon has ended".to_owned())),
        }
    }

    /// Gives a client a lease, taking it from others if need be. `None`: they have it, and
    /// the client does not insist.
    ///
    /// # Errors
    /// See [`NoLease`].
    pub fn acquire(&self, client: &Client, wish: &LeaseRequest) -> Result<Option<Given>, NoLease> {
        let ino = wish.ino;
        let generation = || client.daemon_page.generation(ino);
        let (mut dropped, mut drops) = (None, 0);
        self.yield_to_mount(client, wish);
        if wish.request_mode == LeaseRequestMode::GrowOrDefer
            && self.is_shared(ino)
            && let Some(mediated) = self.table.left_to_grow(wish)
        {
            return Err(NoLease::Mediated(mediated));
        }
        loop {
            let from = match self.table.ask(wish, generation) {
                Decision::Granted(grant) => {
                    failpoints::reach("lease-grant");
                    return Ok(Some(self.seen(client, wish).given(grant)));
                }
                Decision::Refused => return Ok(None),
                Decision::Mediated(mediated) => return Err(NoLease::Mediated(mediated)),
                Decision::TakeFrom(from) => from,
            };
            if dropped.is_none() && wish.request_mode.yields() {
                self.count_bounce(client, ino, &from);
            }
            match self.take_all(wish, &from, dropped) {
                Ok(Step::Done) => {
                    // Before anybody else can get the lease, and open the inode under it.
                    let seen = self.seen(client, wish);
                    failpoints::reach("lease-taken");
                    let grant = self.table.taken(wish, &from, generation);
                    if mutants::is_on("lease-digest-late") {
                        let holders = from.iter().filter_map(|h| self.clients.get(h.client));
                        holders.for_each(|holder| drop(self.digest(&holder)));
                    }
                    let given = grant.map(|grant| seen.given(grant));
                    return given.map(Some).ok_or(NoLease::NotMade);
                }
                Ok(Step::DropFirst) => {
                    drops += 1;
                    if drops > DROPS_MAX && wish.request_mode.yields() {
                        self.table.leave(ino, MEDIATED_NS);
                        continue;
                    }
                    let hook = self.hook();
                    dropped = hook.map(|hook| hook.drop_cached(ino));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Who else has to do with an inode that a client is about to have alone.
    fn seen(&self, client: &Client, wish: &LeaseRequest) -> Seen {
        let alone = wish.mode == LeaseMode::Exclusive;
        let hook = self.hook();
        let hook = hook.filter(|_| alone && client.yields.load(Ordering::Acquire));
        let last = hook.and_then(|hook| hook.used_by_others(wish.ino, client.pid));
        Seen {
            used: alone && self.used_by_others(client, wish.ino),
            watched: last.is_some(),
            shared: last.is_some() && self.is_shared(wish.ino),
        }
    }

    /// A client that yields takes the lease `from` others. From the front end that does not count
    /// if nobody but the client itself went through the mount recently: it opens its file again, say.
    fn count_bounce(&self, client: &Client, ino: u64, from: &[Holder]) {
        let direct = |h: &Holder| {
            let holder = self.clients.get(h.client);
            holder.is_none_or(|c| c.transport != Transport::InProcess)
        };
        let by_others = || {
            let hook = self.hook();
            let last = hook.and_then(|hook| hook.used_by_others(ino, client.pid));
            last.is_some_and(|ago| ago.as_nanos() <= u128::from(BOUNCE_NS))
        };
        if from.iter().any(direct) || by_others() {
            self.table.bounces(ino);
        }
    }

    /// The processes that leave an inode to the kernel when they are asked to, and use it there no other way.
    fn yielding(&self, ino: u64) -> Vec<i32> {
        let yields = |c: &Arc<Client>| c.asked.lock().has(ino).then_some(c.pid);
        self.clients.snapshot().iter().filter_map(yields).collect()
    }

    /// Whether an inode belongs to FUSE clients, too: the kernel makes it longer.
    fn is_shared(&self, ino: u64) -> bool {
        let hook = self.hook();
        hook.is_some_and(|hook| hook.shared_with(ino, &self.yielding(ino)))
    }

    /// A client that yields leaves the kernel what FUSE clients use.
    fn yield_to_mount(&self, client: &Client, wish: &LeaseRequest) {
        if !wish.request_mode.yields() {
            return;
        }
        client.yields.store(true, Ordering::Release);
        client.asked.lock().note(wish.ino);
        let hook = self.hook();
        if let Some(hook) = hook.filter(|_| wish.mode == LeaseMode::Exclusive)
            && let Some(left) = hook.used_for(wish.ino, &self.yielding(wish.ino))
        {
            self.table.leave(wish.ino, left.as_nanos() as u64);
        }
    }

    /// Takes the lease from all of `from`; if that does not come to its end, the inode is not
    /// busy any more.
    fn take_all(
        &self,
        wish: &LeaseRequest,
        from: &[Holder],
        dropped: Option<u64>,
    ) -> Result<Step, NoLease> {
        let (kernel, direct): (Vec<Holder>, Vec<Holder>) =
            from.iter().partition(|h| self.hook_for(h, wish).is_some());
        let mut lost = Vec::new();
        // The front end first: it alone can stop this half-way.
        for holders in [kernel, direct] {
            match self.take_from(&holders, wish, dropped) {
                Ok(Step::Done) => lost.extend(holders),
                stop => {
                    self.table.give_up(wish, &lost);
                    return stop;
                }
            }
        }
        Ok(Step::Done)
    }

    /// Who has to drop what the kernel keeps before `holder` loses the lease.
    fn hook_for(&self, holder: &Holder, wish: &LeaseRequest) -> Option<Arc<dyn LeaseHook>> {
        let front_end = self
            .clients
            .get(holder.client)
            .is_some_and(|c| c.transport == Transport::InProcess);
        let hook = self.hook().filter(|_| front_end)?;
        let drops = wish.mode == LeaseMode::Exclusive || hook.holds_back(wish.ino);
        drops.then_some(hook)
    }

    /// Takes the lease from holders: from all at the same time, so that those that are held up
    /// inside of a call are waited for together.
    fn take_from(
        &self,
        holders: &[Holder],
        wish: &LeaseRequest,
        dropped: Option<u64>,
    ) -> Result<Step, NoLease> {
        let ino = wish.ino;
        let mut victims = Vec::new();
        for holder in holders {
            if holder.client == LEFT_LOGS {
                let why = "a log that recovery could not digest changes this inode";
                return Err(NoLease::DigestStop(DigestStop::MediaError(why.to_owned())));
            }
            // One that has gone meanwhile was digested as it went.
            if let Some(victim) = self.clients.get(holder.client) {
                self.check_made(&victim, ino)?;
                victims.push(victim);
            }
        }
        let hook = holders.iter().find_map(|h| self.hook_for(h, wish));
        let hook = hook.filter(|_| !mutants::is_on("kernel-undropped"));
        if hook.is_some() && dropped.is_none() {
            return Ok(Step::DropFirst);
        }
        if !mutants::is_on("lease-generation") {
            victims
                .iter()
                .for_each(|v| v.daemon_page.bump_generation(ino));
        }
        failpoints::reach("lease-revoke");
        let early: Vec<u64> = victims.iter().map(published).collect();
        self.grace.wait(&victims);
        if let (Some(hook), Some(seen)) = (hook, dropped)
            && hook.used_since(ino, seen)
            && !mutants::is_on("kernel-used-since")
        {
            return Ok(Step::DropFirst);
        }
        let late = mutants::is_on("lease-digest") || mutants::is_on("lease-digest-late");
        let wrote = |v: &Arc<Client>| {
            let is_it = |h: &Holder| h.client == v.id && h.mode == LeaseMode::Exclusive;
            holders.iter().any(is_it)
        };
        for (victim, early) in victims.iter().zip(early).filter(|(v, _)| !late && wrote(v)) {
            let digested = match mutants::is_on("lease-digest-early") {
                true => self.digest_to(victim, early),
                false => self.digest(victim),
            };
            match digested {
                Err(halt @ (DigestStop::MediaError(_) | DigestStop::NoSpace(_))) => {
                    return Err(NoLease::DigestStop(halt));
                }
                // What was refused does not count; the rest is in the volume.
                Err(DigestStop::Rejected(_)) | Ok(()) => victim.daemon_page.count_taken(),
            }
        }
        Ok(Step::Done)
    }

    /// A client trusts that whatever it makes of a granted number is its own: nobody may
    /// take the lease before. Who asks for it knows the number from an inode that is no more.
    fn check_made(&self, victim: &Arc<Client>, ino: u64) -> Result<(), NoLease> {
        let to_make = || victim.grants.lock().inos.contains(&ino);
        if to_make() {
            if let Err(halt @ (DigestStop::MediaError(_) | DigestStop::NoSpace(_))) =
                self.digest(victim)
            {
                return Err(NoLease::DigestStop(halt));
            }
            if to_make() {
                return Err(NoLease::NotMade);
            }
        }
        Ok(())
    }

    /// Whether another client than `client`, which holds the lease alone, may have the inode open.
    pub fn used_by_others(&self, client: &Client, ino: u64) -> bool {
        let hook = self.hook();
        let uses = |other: &Arc<Client>| {
            let kernel = hook
                .as_ref()
                .filter(|_| other.transport == Transport::InProcess);
            kernel.is_some_and(|kernel| kernel.in_use(ino)) || other.client_page.uses(ino)
        };
        let is_other = |other: &Arc<Client>| {
            other.id != client.id
                && !other.leaving.load(Ordering::Acquire)
                && !matches!(*other.client_state.lock(), ClientState::Evicted(_))
        };
        self.clients.any(|other| is_other(other) && uses(other))
    }

    /// Tells the front end how many clients there are besides it.
    pub fn tell_others(&self) {
        if let Some(hook) = self.hook() {
            let clients = self.clients.snapshot();
            hook.others(
                clients
                    .iter()
                    .filter(|c| c.transport == Transport::Socket)
                    .count(),
            );
        }
    }

    /// A client gives a lease back. What it wrote under it is digested first, so that
    /// its records are judged while it still holds it.
    pub fn give_back(&self, client: &Arc<Client>, ino: u64) -> Result<(), DigestStop> {
        let mode = self.table.mode(client.id, ino);
        if mode.is_some() {
            // Its other threads may be using it.
            client.daemon_page.bump_generation(ino);
            self.grace.wait(std::slice::from_ref(client));
        }
        if mode == Some(LeaseMode::Exclusive) {
            self.digest(client)?;
        }
        self.table.release(client.id, ino);
        client.asked.lock().forget(ino);
        Ok(())
    }

    /// Numbers granted to a client for new inodes: it holds whatever it makes of them. To any client that may be noted
    /// as a holder of one still, it looks revoked.
    pub fn give_new(&self, client: u32, inos: &[u64]) {
        for (other, ino) in self.table.give_new(client, inos) {
            if let Some(other) = self.clients.get(other) {
                other.daemon_page.bump_generation(ino);
            }
        }
    }

    /// Leases to change these inodes become shared: what was done under them is in the volume
    /// then. Who still changes something keeps them.
    pub fn downgrade(&self, inos: impl Iterator<Item = u64>) {
        let hook = self.hook();
        let held = |ino: u64| hook.as_ref().is_some_and(|h| h.holds_back(ino));
        let mut by_client: BTreeMap<u32, Vec<(u64, Holder)>> = BTreeMap::new();
        for (ino, holder) in self.table.downgrade(inos.filter(|&ino| !held(ino))) {
            by_client
                .entry(holder.client)
                .or_default()
                .push((ino, holder));
        }
        for (id, leases) in by_client {
            // One that has gone was digested as it went.
            let done = self.clients.get(id).is_none_or(|client| {
                for (ino, _) in &leases {
                    client.daemon_page.bump_generation(*ino);
                }
                self.grace.wait(std::slice::from_ref(&client));
                self.digest(&client).is_ok()
            });
            self.table.downgraded(&leases, done);
        }
    }
}
