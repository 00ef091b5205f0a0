//! The table of leases: who may read or write which inode (DESIGN §9, Strata §3.4).
//!
//! A client asks at its first use of an inode and keeps the lease. Taking one back
//! needs no help from its holder: the generation word of the inode's bucket in the
//! holder's daemon page is raised, then a grace period is waited for, then its log is digested.
//! Other inodes of the bucket look revoked to the holder too; it asks again and
//! hears that nothing was lost. Who only has to stop writing keeps a shared lease.
//!
//! Invariant: holders of one inode are compatible with one another. While an inode is
//! being taken from somebody it is *busy*: everybody else who asks waits, so that a
//! stream of readers cannot starve a writer. Nothing that happens while an inode is busy
//! waits for a request of the kernel: such a request may be waiting for this inode.
//!
//! An inode whose lease ping-pongs, or that FUSE clients use, is *mediated* for a
//! time: clients that can ([`LeaseRequestMode::RevokeOrDefer`]) leave it to the kernel, all until the same
//! moment. So that a size is the kernel's to keep or the clients', never both: what the kernel
//! does of their calls when that moment has come has a little time to end.
//!
//! An entry goes when its inode is freed, if its number is nobody's then. Of those that are left the ones
//! that were asked for least recently go when there are too many ([`super::lease_manager`]): who held one has to ask
//! again, and learns that what it knows may be old.
//!
//! This file decides; [`super::lease_manager`] does what it decided. Lock order: the table's lock is a leaf, but
//! for what tells whether a number is free.

use super::clients::LEFT_LOGS;
use super::sync::{AtomicU64, Condvar, Mutex, Ordering, mutants};
use shale_proto::{LeaseMode, LeaseRequestMode};
use shale_sys::Clock;
use smallvec::SmallVec;
use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Called when a lease of the front end in this process is about to go.
///
/// The kernel keeps names, pages and attributes of what the front end serves: they have
/// to be gone before another client may change them.
pub trait LeaseHook: Send + Sync {
    /// Has the kernel drop everything it keeps of `ino`, and gives what
    /// [`LeaseHook::used_since`] is asked with. The front end holds the lease
    /// meanwhile, so requests of the kernel that this causes (write-back of mapped
    /// pages) are served; this may wait for them.
    fn drop_cached(&self, ino: u64) -> u64;
    /// Whether the front end has used `ino` since [`LeaseHook::drop_cached`], which gave
    /// `seen`, began: then the kernel may keep something again. Asked when no call of the
    /// front end can go on under the lease. Must not wait for requests of the kernel.
    fn used_since(&self, ino: u64, seen: u64) -> bool;
    /// Whether the kernel may hold back changes that a reader elsewhere has to see: pages
    /// of shared mappings. Then readers, too, have everything dropped.
    fn holds_back(&self, _ino: u64) -> bool {
        false
    }
    /// FUSE clients other than the processes `besides` use the contents of `ino`: for so
    /// long they should keep it.
    fn used_for(&self, _ino: u64, _besides: &[i32]) -> Option<Duration> {
        None
    }
    /// How long ago a process other than `pid` last asked for anything about `ino` by way of the
    /// mount; `None`: none that lives. Asked for a client that has the lease, or is about to.
    fn used_by_others(&self, _ino: u64, _pid: i32) -> Option<Duration> {
        None
    }
    /// Whether FUSE clients other than the processes `besides` used `ino` recently, or append to it.
    fn shared_with(&self, _ino: u64, _besides: &[i32]) -> bool {
        false
    }
    /// Whether the kernel has references to `ino`, so that it must outlive its last name.
    fn in_use(&self, _ino: u64) -> bool {
        false
    }
    /// Requests of the kernel since this process began to serve, by kind, for `status`.
    fn requests(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// So many clients are attached besides the front end.
    fn others(&self, _count: usize) {}
}

/// A client that asked with [`LeaseRequestMode::RevokeAndHold`] keeps what it got for so long, times one to
/// [`HOLD_STEPS`]: two clients that want each other's leases must not give up together.
pub const HOLD_NS: u64 = 300_000;
const HOLD_STEPS: u64 = 5;

/// A lease that clients who yield take from others this often...
const BOUNCES: u32 = 16;
/// ... within this time ping-pongs: it is cheaper to let the kernel do the calls.
pub const BOUNCE_NS: u64 = 100_000_000;
/// For so long then.
pub const MEDIATED_NS: u64 = 500_000_000;
/// Who wanted to write within this time is a writer.
const WRITES_NS: u64 = 2_000_000_000;
/// Places of entries that have gone, and that are kept without looking.
const ORDER_SPARE: usize = 1024;
/// So many entries are chosen to go at a time.
const LEAVING_MAX: usize = 1024;
/// Calls that the kernel was doing when that time was over have ended after this.
const ENDING_NS: u64 = 20_000_000;

/// One client that holds a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Number of the client.
    pub client: u32,
    /// Shared or exclusive.
    pub mode: LeaseMode,
}

/// A wish for a lease.
#[derive(Clone, Copy, Debug)]
pub struct LeaseRequest {
    /// Number of the client.
    pub client: u32,
    /// Number of the inode.
    pub ino: u64,
    /// Shared or exclusive.
    pub mode: LeaseMode,
    /// Whether it insists.
    pub request_mode: LeaseRequestMode,
}

/// Those that hold an inode: mostly one.
pub type Holders = SmallVec<[Holder; 2]>;

/// What is known of the lease on an inode. There is one for each inode that somebody uses: kept small.
#[derive(Default)]
struct Entry {
    holders: Holders,
    /// Of these, who is only taken for one ([`LeaseTable::assume_reader`]): what it knows itself may be older.
    assumed: Option<u32>,
    /// Its place in the order of use.
    place: u32,
    /// It was asked for since it was looked at last.
    used: bool,
    busy: bool,
    /// While it was busy its number was granted for a new inode: there is nothing to be taken.
    renewed: bool,
    /// It goes soon, unless somebody asks before.
    leaving: bool,
    contest: Option<Box<Contest>>,
}
const _: () = assert!(size_of::<Entry>() <= 56, "one for each file in use");

/// What is known of an inode that several clients have wanted.
#[derive(Default)]
struct Contest {
    /// Times it was taken from somebody.
    moves: u32,
    /// Nobody takes it from this client before this time.
    hold: Option<(u32, u64)>,
    /// Clients that yield leave it to the kernel until this time.
    mediated_until: u64,
    /// Since when they took it from others, and how often.
    wanted: (u64, u32),
    /// The last two of them that wanted to write, and when.
    writers: [(u32, u64); 2],
}

impl Contest {
    /// Whether it will make a difference to somebody who asks.
    fn matters(&self, now_ns: u64) -> bool {
        let times = [
            self.hold.map_or(0, |(_, until)| until),
            self.mediated_until,
            self.wanted.0,
            self.writers[0].1,
            self.writers[1].1,
        ];
        times.iter().any(|&at| at != 0 && at + WRITES_NS > now_ns)
    }
}

/// An entry that is to go: its inode, and who holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Number of the inode.
    pub ino: u64,
    /// Who holds it.
    pub holders: Holders,
}

/// The entries, and in which order they are looked at when some have to go.
#[derive(Default)]
struct Table {
    entries: HashMap<u64, Entry>,
    /// Inodes with their places; those whose entry has another place, or none, have gone.
    order: VecDeque<(u64, u32)>,
    places: u32,
}

impl Table {
    /// The entry of an inode, which is used now; `new` makes one.
    fn used(&mut self, ino: u64, new: impl FnOnce() -> Entry) -> &mut Entry {
        if self.order.len() > 2 * self.entries.len() + ORDER_SPARE {
            let entries = &self.entries;
            self.order
                .retain(|(ino, place)| entries.get(ino).is_some_and(|e| e.place == *place));
        }
        let entry = match self.entries.entry(ino) {
            Slot::Occupied(there) => there.into_mut(),
            Slot::Vacant(free) => {
                self.places = self.places.wrapping_add(1);
                self.order.push_back((ino, self.places));
                free.insert(Entry {
                    place: self.places,
                    ..new()
                })
            }
        };
        entry.used = true;
        entry.leaving = false;
        entry
    }

    fn get(&self, ino: u64) -> Option<&Entry> {
        self.entries.get(&ino)
    }

    fn get_mut(&mut self, ino: u64) -> Option<&mut Entry> {
        self.entries.get_mut(&ino)
    }

    /// Shrinks when few are left of many.
    fn shrink(&mut self) {
        if self.entries.capacity() > ORDER_SPARE.max(8 * self.entries.len()) {
            self.entries.shrink_to(2 * self.entries.len());
        }
    }
}

/// A lease as its new holder hears of it; see [`shale_proto::Reply::Leased`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The generation word. It is read under the table's lock, and raised only after a
    /// decision under that lock: so a caller that takes this lease away raises it later.
    pub generation: u32,
    /// The client did not hold it all the time since it last did: it drops what it has cached.
    pub fresh: bool,
    /// Shared or exclusive.
    pub mode: LeaseMode,
    /// Other clients hold it, too.
    pub others: bool,
}

/// A lease that a client gets, and what else it hears of the inode.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// The lease.
    pub grant: Grant,
    /// Another client may have it open.
    pub used: bool,
    /// Other processes use it through the mount.
    pub watched: bool,
    /// They did recently, or append to it.
    pub shared: bool,
}

/// A lease that a client does not get; see [`shale_proto::Reply::Mediated`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mediated {
    /// Nanoseconds from now in which everybody uses the file through the mount.
    pub ns: u64,
    /// No other client that could go past the mount wants to write the file.
    pub alone: bool,
}

/// What to do for a client that asks.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// It has the lease now.
    Granted(Grant),
    /// Take the lease from these, then end with [`LeaseTable::taken`]. The inode is busy meanwhile.
    TakeFrom(Vec<Holder>),
    /// Others have it, and the client did not insist.
    Refused,
    /// It is mediated.
    Mediated(Mediated),
}

/// All leases of a volume.
pub struct LeaseTable {
    table: Mutex<Table>,
    /// With more entries than this some have to go.
    most: usize,
    freed: Condvar,
    clock: Arc<dyn Clock>,
    moves: AtomicU64,
    /// Client that may hold any inode of which nothing is known.
    assumed: AtomicU64,
}

impl LeaseTable {
    /// `most`: entries that are kept while nobody needs them.
    pub fn new(clock: Arc<dyn Clock>, most: usize) -> Self {
        Self {
            table: Mutex::default(),
            most,
            freed: Condvar::new(),
            clock,
            moves: AtomicU64::new(0),
            assumed: AtomicU64::new(u64::MAX),
        }
    }

    /// From now on `client` is taken for a reader of every inode that nobody has a lease on:
    /// the kernel keeps what a daemon before this one gave it.
    pub fn assume_reader(&self, client: u32) {
        self.assumed.store(u64::from(client), Ordering::Release);
    }

    /// Decides a wish. Waits while the inode is being taken from somebody.
    /// `generation` reads the word of the requester.
    pub fn ask(&self, wish: &LeaseRequest, generation: impl FnOnce() -> u32) -> Decision {
        let mut table = self.table.lock();
        loop {
            let entry = self.entry(&mut table, wish.ino);
            let mut wait = None;
            if !entry.busy {
                let conflicts = entry.conflicts(wish);
                if conflicts.is_empty() {
                    return Decision::Granted(self.grant(entry, wish, generation()));
                }
                if wish.request_mode == LeaseRequestMode::Try {
                    return Decision::Refused;
                }
                let now = self.clock.monotonic_ns();
                wait = entry.held_for(&conflicts, now);
                if wish.request_mode.yields() {
                    if let Some(mediated) = entry.mediated(wish, now) {
                        return Decision::Mediated(mediated);
                    }
                    wait = wait.max(entry.ending(now));
                }
                if wait.is_none() {
                    entry.busy = !mutants::is_on("lease-busy");
                    return Decision::TakeFrom(conflicts);
                }
            } else if wish.request_mode == LeaseRequestMode::Try {
                return Decision::Refused;
            }
            match wait {
                Some(wait) => drop(self.freed.wait_for(&mut table, wait)),
                None => self.freed.wait(&mut table),
            }
        }
    }

    fn entry<'t>(&self, table: &'t mut Table, ino: u64) -> &'t mut Entry {
        table.used(ino, || {
            let assumed = u32::try_from(self.assumed.load(Ordering::Acquire)).ok();
            let holder = |client| Holder {
                client,
                mode: LeaseMode::Shared,
            };
            Entry {
                holders: assumed.map(holder).into_iter().collect(),
                assumed,
                ..Entry::default()
            }
        })
    }

    fn grant(&self, entry: &mut Entry, wish: &LeaseRequest, generation: u32) -> Grant {
        if wish.request_mode == LeaseRequestMode::RevokeAndHold {
            let client = u64::from(wish.client);
            let until = self.clock.monotonic_ns() + HOLD_NS * (1 + client % HOLD_STEPS);
            entry.contest().hold = Some((wish.client, until));
        }
        let (fresh, mode) = entry.give(wish.client, wish.mode);
        Grant {
            generation,
            fresh,
            mode,
            others: entry.holders.len() > 1,
        }
    }

    /// Numbers granted to a client for new inodes: it holds whatever it makes of them. Who
    /// freed an inode of that number, or has just asked for it, may be noted as its holder still:
    /// gives those, whose generation words are to be raised before the client has the numbers.
    pub fn give_new(&self, client: u32, inos: &[u64]) -> Vec<(u32, u64)> {
        let mut table = self.table.lock();
        let mut before = Vec::new();
        for &ino in inos {
            let entry = table.used(ino, Entry::default);
            let others = entry.holders.iter().filter(|h| h.client != client);
            before.extend(others.map(|h| (h.client, ino)));
            entry.holders.clear();
            entry.renewed |= entry.busy;
            entry.give(client, LeaseMode::Exclusive);
        }
        before
    }

    /// FUSE clients use an inode: for `ns` from now at least it is mediated.
    pub fn leave(&self, ino: u64, ns: u64) {
        let until = self.clock.monotonic_ns() + ns;
        if let Some(entry) = self.table.lock().get_mut(ino) {
            let contest = entry.contest();
            contest.mediated_until = contest.mediated_until.max(until);
        }
    }

    /// Leaves an inode to the kernel for a while, regardless of the lease, so that the kernel makes it longer.
    pub fn left_to_grow(&self, wish: &LeaseRequest) -> Option<Mediated> {
        let now = self.clock.monotonic_ns();
        let mut table = self.table.lock();
        let entry = self.entry(&mut table, wish.ino);
        let contest = entry.contest();
        contest.mediated_until = contest.mediated_until.max(now + MEDIATED_NS);
        entry.mediated(wish, now)
    }

    /// A client that yields takes the lease from others.
    pub fn bounces(&self, ino: u64) {
        if let Some(entry) = self.table.lock().get_mut(ino) {
            entry.contest().wanted.1 += 1;
        }
    }

    /// Ends what [`Decision::TakeFrom`] began: `from` have lost the lease, or what is more
    /// than the wish lets them keep, and the requester has it. `None`: the number was granted for a new
    /// inode meanwhile. That is its maker's, who need not ask for it.
    pub fn taken(
        &self,
        wish: &LeaseRequest,
        from: &[Holder],
        generation: impl FnOnce() -> u32,
    ) -> Option<Grant> {
        let mut table = self.table.lock();
        let entry = table.used(wish.ino, Entry::default);
        self.freed.notify_all();
        if !entry.lose(from, wish.mode) {
            return None;
        }
        let contest = entry.contest();
        contest.moves = contest.moves.saturating_add(1);
        self.moves.fetch_add(1, Ordering::Relaxed);
        Some(self.grant(entry, wish, generation()))
    }

    /// Gives up what [`Decision::TakeFrom`] began; `lost` have lost the lease all the same.
    pub fn give_up(&self, wish: &LeaseRequest, lost: &[Holder]) {
        let mut table = self.table.lock();
        if let Some(entry) = table.get_mut(wish.ino) {
            entry.lose(lost, wish.mode);
        }
        self.freed.notify_all();
    }

    /// A client gives a lease back. Its log must have been digested if it could write.
    pub fn release(&self, client: u32, ino: u64) {
        let mut table = self.table.lock();
        if let Some(entry) = table.get_mut(ino) {
            entry.holders.retain(|h| h.client != client);
            if entry.holders.is_empty() && !entry.busy {
                table.entries.remove(&ino);
            }
        }
    }

    /// A client has gone, or was cut off.
    pub fn release_all(&self, client: u32) {
        let mut table = self.table.lock();
        let gone = u64::from(client);
        // If another one is assumed there is nothing to change.
        let _ = self
            .assumed
            .compare_exchange(gone, u64::MAX, Ordering::AcqRel, Ordering::Relaxed);
        table.entries.retain(|_, entry| {
            entry.holders.retain(|h| h.client != client);
            let writers = entry.contest.as_mut().map(|c| &mut c.writers);
            let of_gone = writers.into_iter().flatten().filter(|w| w.0 == client);
            of_gone.for_each(|w| *w = (0, 0));
            !entry.holders.is_empty() || entry.busy
        });
        table.shrink();
    }

    /// These inodes were freed. Their leases are nobody's, if `is_free`: a number that was granted
    /// again is its maker's. Who granted it before this looked has it noted here, or will.
    pub fn forget(&self, inos: impl Iterator<Item = u64>, is_free: impl Fn(u64) -> bool) {
        let mut table = self.table.lock();
        for ino in inos {
            let idle = table.get(ino).is_some_and(|entry| !entry.busy);
            if idle && (is_free(ino) || mutants::is_on("lease-forget-granted")) {
                table.entries.remove(&ino);
            }
        }
        table.shrink();
    }

    /// If there are too many entries: those that go next, of the ones that nobody asked for recently. They stay
    /// what they are until [`LeaseTable::left`].
    pub fn leaving(&self) -> Vec<Leaving> {
        let now = self.clock.monotonic_ns();
        let mut table = self.table.lock();
        let table = &mut *table;
        let surplus = table.entries.len().saturating_sub(self.most);
        let wanted = match surplus {
            0 => 0,
            // A few more, so that it is not for each.
            _ => (surplus + self.most / 16).min(LEAVING_MAX),
        };
        let mut leaving = Vec::new();
        for _ in 0..table.order.len() {
            if leaving.len() == wanted {
                break;
            }
            let Some((ino, place)) = table.order.pop_front() else {
                break;
            };
            let entry = table.entries.get_mut(&ino);
            let Some(entry) = entry.filter(|entry| entry.place == place) else {
                continue;
            };
            table.order.push_back((ino, place));
            if !std::mem::take(&mut entry.used) && entry.is_idle(now) {
                entry.leaving = true;
                leaving.push(Leaving {
                    ino,
                    holders: entry.holders.clone(),
                });
            }
        }
        leaving
    }

    /// Ends what [`LeaseTable::leaving`] began: its holders know that they have to ask again, no call goes on under
    /// the lease, and what was done under it is in the volume. A client that has asked since keeps it.
    pub fn left<'l>(&self, leaving: impl Iterator<Item = &'l Leaving>) {
        let mut table = self.table.lock();
        for Leaving { ino, .. } in leaving {
            let leaves = |e: &&Entry| (e.leaving || mutants::is_on("lease-idle-asked")) && !e.busy;
            if table.get(*ino).filter(leaves).is_some() {
                table.entries.remove(ino);
            }
        }
        table.shrink();
    }

    /// Places in the order of use.
    #[cfg(test)]
    pub fn places(&self) -> usize {
        self.table.lock().order.len()
    }

    /// Whether some have to go.
    pub fn are_many(&self) -> bool {
        self.known() > self.most
    }

    /// Number of inodes that something is known of.
    pub fn known(&self) -> usize {
        self.table.lock().entries.len()
    }

    /// Whether anybody has a lease on an inode.
    pub fn knows(&self, ino: u64) -> bool {
        self.table.lock().get(ino).is_some()
    }

    /// What a client holds on an inode.
    pub fn mode(&self, client: u32, ino: u64) -> Option<LeaseMode> {
        let table = self.table.lock();
        let holders = &table.get(ino)?.holders;
        holders.iter().find(|h| h.client == client).map(|h| h.mode)
    }

    /// Begins to make leases to change these inodes shared: gives them with their holders. The inodes are
    /// busy until [`LeaseTable::downgraded`]. Those that are busy already are left as they are, and what a
    /// log changes that waits for the next start.
    pub fn downgrade(&self, inos: impl Iterator<Item = u64>) -> Vec<(u64, Holder)> {
        let mut table = self.table.lock();
        let mut weak = Vec::new();
        for ino in inos {
            let entry = table.get_mut(ino).filter(|entry| !entry.busy);
            let Some(entry) = entry else { continue };
            let holder = entry
                .holders
                .iter()
                .find(|h| h.mode == LeaseMode::Exclusive);
            if let Some(&holder) = holder.filter(|h| h.client != LEFT_LOGS) {
                entry.busy = true;
                weak.push((ino, holder));
            }
        }
        weak
    }

    /// Ends what [`LeaseTable::downgrade`] began, of one client; `done`: it knows, and its log is digested.
    pub fn downgraded(&self, leases: &[(u64, Holder)], done: bool) {
        let mut table = self.table.lock();
        for (ino, holder) in leases {
            if let Some(entry) = table.get_mut(*ino) {
                let from = if done {
                    std::slice::from_ref(holder)
                } else {
                    &[]
                };
                entry.lose(from, LeaseMode::Shared);
            }
        }
        self.freed.notify_all();
    }

    /// Whether somebody may change one of these inodes.
    pub fn any_exclusive(&self, inos: Range<u64>) -> bool {
        let table = self.table.lock();
        let mut entries = inos.filter_map(|ino| table.get(ino));
        entries.any(|entry| entry.holders.iter().any(|h| h.mode == LeaseMode::Exclusive))
    }

    /// Number of leases of each client.
    pub fn counts(&self) -> HashMap<u32, u64> {
        let mut counts = HashMap::new();
        for entry in self.table.lock().entries.values() {
            for holder in &entry.holders {
                *counts.entry(holder.client).or_default() += 1;
            }
        }
        counts
    }

    /// Times that leases were taken from somebody since the start, and the inodes whose
    /// leases were taken most often, at most `most`, with their times.
    pub fn moves(&self, most: usize) -> (u64, Vec<(u64, u32)>) {
        let table = self.table.lock();
        let entries = table.entries.iter();
        let moves = entries.filter_map(|(&ino, e)| Some((ino, e.contest.as_ref()?.moves)));
        let mut moved: Vec<(u64, u32)> = moves.filter(|&(_, moves)| moves > 0).collect();
        drop(table);
        moved.sort_unstable_by_key(|&(ino, moves)| (std::cmp::Reverse(moves), ino));
        moved.truncate(most);
        (self.moves.load(Ordering::Relaxed), moved)
    }
}

impl Entry {
    fn contest(&mut self) -> &mut Contest {
        self.contest.get_or_insert_default()
    }

    /// Whether nobody is about to do anything with it.
    fn is_idle(&self, now_ns: u64) -> bool {
        let left_logs = self.holders.iter().any(|h| h.client == LEFT_LOGS);
        let contest = self.contest.as_ref();
        !self.busy && !left_logs && !contest.is_some_and(|c| c.matters(now_ns))
    }

    /// Those that a wish is not compatible with.
    fn conflicts(&self, wish: &LeaseRequest) -> Vec<Holder> {
        let others = self.holders.iter().filter(|h| h.client != wish.client);
        others
            .filter(|h| !h.mode.compatible(wish.mode))
            .copied()
            .collect()
    }

    /// How long one of `holders` may keep the lease yet, if at all.
    fn held_for(&self, holders: &[Holder], now_ns: u64) -> Option<Duration> {
        let (client, until) = self.contest.as_ref()?.hold?;
        let holds = until > now_ns && holders.iter().any(|h| h.client == client);
        holds.then(|| Duration::from_nanos(until - now_ns))
    }

    /// How long it is mediated yet, if it is; somebody wants it who would yield.
    fn mediated(&mut self, wish: &LeaseRequest, now_ns: u64) -> Option<Mediated> {
        let contest = self.contest();
        if wish.mode == LeaseMode::Exclusive {
            if contest.writers[0].0 != wish.client {
                contest.writers.swap(0, 1);
            }
            contest.writers[0] = (wish.client, now_ns);
        }
        if now_ns - contest.wanted.0.min(now_ns) > BOUNCE_NS {
            contest.wanted = (now_ns, 0);
        }
        if contest.wanted.1 >= BOUNCES {
            contest.wanted.1 = 0;
            contest.mediated_until = contest.mediated_until.max(now_ns + MEDIATED_NS);
        }
        let writes = |w: &(u32, u64)| w.1 != 0 && w.1 + WRITES_NS > now_ns;
        let others = contest.writers.iter().filter(|w| w.0 != wish.client);
        let alone = others.filter(|w| writes(w)).count() == 0;
        (contest.mediated_until > now_ns).then(|| Mediated {
            ns: contest.mediated_until - now_ns,
            alone,
        })
    }

    /// How long calls of the kernel may last yet, now that it is not mediated any more.
    fn ending(&self, now_ns: u64) -> Option<Duration> {
        let mediated_until = self.contest.as_ref()?.mediated_until;
        let end = mediated_until + ENDING_NS;
        let ends = mediated_until != 0 && end > now_ns;
        ends.then(|| Duration::from_nanos(end - now_ns))
    }

    /// It is not busy any more: takes from holders what is not compatible with somebody else's
    /// `mode`, unless those are of a new inode.
    fn lose(&mut self, from: &[Holder], mode: LeaseMode) -> bool {
        assert!(
            self.busy || mutants::is_on("lease-busy"),
            "a lease is lost that nobody began to take"
        );
        self.busy = false;
        if std::mem::take(&mut self.renewed) {
            return false;
        }
        let loses = |h: &Holder| from.iter().any(|f| f.client == h.client);
        match mode {
            LeaseMode::Exclusive => self.holders.retain(|h| !loses(h)),
            LeaseMode::Shared => {
                for holder in self.holders.iter_mut().filter(|h| loses(h)) {
                    holder.mode = LeaseMode::Shared;
                }
            }
        }
        true
    }

    /// Adds or strengthens a holder; whether it held nothing before, and what it has now.
    fn give(&mut self, client: u32, mode: LeaseMode) -> (bool, LeaseMode) {
        let given = self.give_unchecked(client, mode);
        let alone = self.holders.len() == 1;
        let shared = |h: &Holder| h.mode == LeaseMode::Shared;
        assert!(
            alone || self.holders.iter().all(shared) || mutants::is_on("lease-busy"),
            "who may change an inode holds it alone: {:?}",
            self.holders
        );
        given
    }

    fn give_unchecked(&mut self, client: u32, mode: LeaseMode) -> (bool, LeaseMode) {
        match self.holders.iter_mut().find(|h| h.client == client) {
            Some(holder) => {
                holder.mode = holder.mode.max(mode);
                let taken_for = self.assumed.take_if(|assumed| *assumed == client);
                let fresh = taken_for.is_some() && !mutants::is_on("lease-fresh");
                (fresh, holder.mode)
            }
            None => {
                self.assumed.take_if(|assumed| *assumed == client);
                self.holders.push(Holder { client, mode });
                (!mutants::is_on("lease-fresh"), mode)
            }
        }
    }
}
