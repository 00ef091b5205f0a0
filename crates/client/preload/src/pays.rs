//! When a file's use pays for a lease.
//!
//! A file stays with the mount until its calls there have taken long enough. To have one served here takes a
//! lease, for which the daemon digests what the mount has logged and the kernel drops its pages (some hundred
//! microseconds); to become a client first takes some milliseconds. Nobody knows how long a file will be used,
//! so what it has been used is taken for what is to come: a file that waits many times as long as the lease takes
//! loses a few per cent where nothing follows, and gains most of what can be gained where much does. Time counts, not
//! calls: reads that the kernel answers from its pages are hardly slower than here, and gain nothing.
//!
//! * The time is the description's, so all that share it count together. Short-lived files never get there.
//! * A file for which this process has asked for a lease already is served from its first call on, by whichever
//!   descriptor it is used.
//! * A process that takes a lock on a file (`fcntl`) expects others to use it, each of whom takes the lease: what was used
//!   between two locks has to pay by itself.
//! * A lease that is lost again and again after a few calls each (somebody asks about the file by its
//!   name, or writes it, too) does not pay: the file goes back to the mount for a time, longer each time
//!   that this happens ([`Leases`]).
//!
//! `SHALE_WARM_US=N` is the time. With `SHALE_WARM_CALLS=N` all this is off: after so many calls of the process
//! every file is served, whatever it costs.

use crate::client::{self, Client};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use parking_lot::Mutex;
use shale_fd::description::{self, Description};
use shale_fd::table;
use shale_interpose::clock::now_ns;
use shale_interpose::raw::nr;
use shale_interpose::thread::Thread;
use shale_proto::ASKED_FILES;
use std::collections::HashMap;

/// Time that the calls on a file take on the mount before it is served here, ns.
static FILE_NS: AtomicU32 = AtomicU32::new(FILE_NS_DEFAULT);
/// Twenty times what a lease takes, all in all (BENCHMARKS.md).
const FILE_NS_DEFAULT: u32 = 5_000_000;
/// Most of it that can be asked for.
const FILE_NS_MAX: u64 = 1_000_000_000;
/// A process that is no client yet has to spend so many times as much.
const ATTACH_TIMES: u64 = 4;
/// Times that this process was a client and no file of it paid: each makes that four times as much.
static PARTED: AtomicU32 = AtomicU32::new(0);
const PARTED_MAX: u32 = 5;
/// One call counts for no more, ns: what it waits for (space, a device) it would wait for here, too.
const CALL_NS_MAX: u64 = 50_000;
/// A lock on a file takes so much of it away, ns.
const LOCK_NS: u32 = 100_000;
/// Such time of all files of this process, ns.
static SPENT_NS: AtomicU64 = AtomicU64::new(0);

/// Calls that this process leaves to the kernel instead; [`BY_TIME`]: time counts.
static WARM_CALLS: AtomicU32 = AtomicU32::new(BY_TIME);
const BY_TIME: u32 = u32::MAX;
/// Such calls so far.
static EARLY_CALLS: AtomicU32 = AtomicU32::new(0);

/// Fewer calls between two leases than this do not pay for one.
const FEW_CALLS: u32 = 32;
/// After so many in a row that did not pay a file goes back to the mount. The first one or two are
/// those with which it came.
const STRIKES: u32 = 4;
/// For so long at first, then twice as long each time, ns.
const AWAY_NS: i64 = 1_000_000_000;
const DOUBLINGS_MAX: u32 = 6;
/// Files of one generation that are remembered.
const FILES_MAX: usize = 1024;
const _: () = assert!(
    FILES_MAX > ASKED_FILES,
    "what the daemon knows of, this client knows of"
);

/// Takes settings from the environment.
pub fn configure() {
    let number = |name| {
        let value = std::env::var(name).ok();
        value.and_then(|v: String| v.parse::<u64>().ok())
    };
    if let Some(calls) = number("SHALE_WARM_CALLS") {
        WARM_CALLS.store(calls.min(1 << 30) as u32, Ordering::Relaxed);
    }
    if let Some(us) = number("SHALE_WARM_US") {
        let ns = us.saturating_mul(1000).min(FILE_NS_MAX);
        FILE_NS.store(ns as u32, Ordering::Relaxed);
    }
}

/// In a child: it has done nothing yet.
pub fn begin_again() {
    EARLY_CALLS.store(0, Ordering::Relaxed);
    SPENT_NS.store(0, Ordering::Relaxed);
    PARTED.store(0, Ordering::Relaxed);
}

/// This process is no client any more, since no file paid for that.
pub fn parted() {
    PARTED.fetch_add(1, Ordering::Relaxed);
    SPENT_NS.store(0, Ordering::Relaxed);
}

/// Whether time counts.
#[inline]
pub fn by_time() -> bool {
    WARM_CALLS.load(Ordering::Relaxed) == BY_TIME
}

/// Whether the time of a call on a file by way of the mount is to be measured.
pub fn is_measured(number: u32, d: &Description) -> bool {
    let gains = matches!(
        number,
        nr::READ
            | nr::WRITE
            | nr::PREAD
            | nr::PWRITE
            | nr::READV
            | nr::WRITEV
            | nr::PREADV
            | nr::PWRITEV
            | nr::PREADV2
            | nr::PWRITEV2
            | nr::FSYNC
            | nr::FDATASYNC
            | nr::FTRUNCATE
            | nr::FALLOCATE
    );
    gains && by_time() && !has_paid(d)
}

/// A call on a file took so long on the mount.
pub fn spent(d: &Description, ns: u64) {
    let ns = ns.min(CALL_NS_MAX);
    SPENT_NS.fetch_add(ns, Ordering::Relaxed);
    d.spend(ns as u32);
}

/// Time that all measured calls of this process took, ns.
pub fn spent_in_all_ns() -> u64 {
    SPENT_NS.load(Ordering::Relaxed)
}

/// A lock on a file was taken or given up.
pub fn locked(d: &Description) {
    d.unspend(LOCK_NS);
}

fn has_paid(d: &Description) -> bool {
    let needed = FILE_NS.load(Ordering::Relaxed);
    let attached = || client::is_attached(d.mount.load(Ordering::Relaxed));
    d.spent_ns() >= needed && (attached() || may_attach())
}

/// Whether a process that is no client may become one for a file that it is to serve.
#[inline]
pub fn may_attach() -> bool {
    !by_time() || {
        let parted = PARTED.load(Ordering::Relaxed).min(PARTED_MAX);
        let needed = u64::from(FILE_NS.load(Ordering::Relaxed)) * ATTACH_TIMES;
        SPENT_NS.load(Ordering::Relaxed) >= needed << (2 * parted)
    }
}

/// Whether a file that is with the mount is to be served here from now on.
pub fn pays(d: &Description) -> bool {
    let mount = d.mount.load(Ordering::Relaxed);
    if !by_time() {
        return client::is_attached(mount)
            || EARLY_CALLS.fetch_add(1, Ordering::Relaxed) >= WARM_CALLS.load(Ordering::Relaxed);
    }
    match client::current(mount) {
        None => has_paid(d) && client::can_attach(mount),
        Some(client) => match client.link.leases.place(d.ino.load(Ordering::Relaxed)) {
            Place::Here => true,
            Place::Mount => has_paid(d),
            Place::Away => false,
        },
    }
}

/// Whether a file that is opened now is served here from its first call on.
pub fn serves_at_once(mount: u32, ino: u64) -> bool {
    if !by_time() {
        return WARM_CALLS.load(Ordering::Relaxed) == 0 || client::is_attached(mount);
    }
    let client = client::current(mount);
    client.is_some_and(|client| client.link.leases.place(ino) == Place::Here)
}

/// Where a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// This client has asked for a lease on it: it is served here, or mediated.
    Here,
    /// With the mount.
    Mount,
    /// With the mount until some time has passed, since to serve it did not pay.
    Away,
}

/// Descriptions of a file that have been used little are looked at no more: they are to be served, too. So perhaps
/// are those of which nobody knows yet whose they are.
fn note_served(ino: u64) {
    table::for_each_file(|_, index| {
        let d = description::get(index);
        if !d.is_placed() || d.ino.load(Ordering::Relaxed) == ino {
            d.note_served();
        }
    });
}

/// What leases on a file have come to.
#[derive(Clone, Copy, Default)]
struct Account {
    /// One was asked for, and the file did not go back since.
    here: bool,
    /// Leases in a row that did not pay.
    strikes: u32,
    /// The file is the mount's until then, ns.
    away_until: i64,
    /// Times that it went back.
    times: u32,
}

/// Accounts by file: those used recently, and those used before them.
#[derive(Default)]
struct Accounts {
    young: HashMap<u64, Account>,
    old: HashMap<u64, Account>,
}

/// The leases that a client has asked for, by file. A leaf among the locks.
///
/// The daemon takes a client that has asked for a lease on a file for one that leaves the file to the kernel only
/// when it is asked to, and past the kernel's pages; any other is a program on the mount. So what was
/// asked for is served here whatever it costs, until it is given back. The daemon
/// remembers fewer files of a client ([`ASKED_FILES`]) than are remembered here.
#[derive(Default)]
pub struct Leases(Mutex<Accounts>);

impl Leases {
    /// Where a file is.
    pub fn place(&self, ino: u64) -> Place {
        self.0.lock().get(ino).place(now_ns)
    }

    /// Whether any file is here.
    pub fn any_here(&self) -> bool {
        let accounts = self.0.lock();
        let mut all = accounts.young.values().chain(accounts.old.values());
        all.any(|a| a.here)
    }

    /// Whether a file ever was away.
    pub fn was_away(&self, ino: u64) -> bool {
        self.0.lock().get(ino).times != 0
    }

    /// A lease on a file is to be asked for. `false`: the file is away.
    pub fn ask(&self, ino: u64) -> bool {
        let mut accounts = self.0.lock();
        let account = accounts.used(ino);
        let away = account.place(now_ns) == Place::Away;
        let begins = !away && !account.here;
        account.here |= !away;
        drop(accounts);
        if begins {
            note_served(ino);
        }
        !away
    }

    /// A lease was asked for, `calls` calls after the one before. `true`: the file goes back to the mount.
    fn one_more(&self, ino: u64, calls: u32, now_ns: i64) -> bool {
        let mut accounts = self.0.lock();
        let account = accounts.used(ino);
        account.strikes = match calls < FEW_CALLS {
            true => account.strikes + 1,
            false => 0,
        };
        if account.strikes < STRIKES {
            return false;
        }
        *account = Account {
            here: false,
            strikes: 0,
            away_until: now_ns + (AWAY_NS << account.times.min(DOUBLINGS_MAX)),
            times: account.times + 1,
        };
        true
    }
}

impl Account {
    fn place(&self, now_ns: impl FnOnce() -> i64) -> Place {
        match self {
            _ if self.away_until != 0 && now_ns() < self.away_until => Place::Away,
            _ if self.here => Place::Here,
            _ => Place::Mount,
        }
    }
}

impl Accounts {
    fn get(&self, ino: u64) -> Account {
        let account = self.young.get(&ino).or_else(|| self.old.get(&ino));
        account.copied().unwrap_or_default()
    }

    fn used(&mut self, ino: u64) -> &mut Account {
        if !self.young.contains_key(&ino) {
            if self.young.len() >= FILES_MAX {
                self.old = core::mem::take(&mut self.young);
            }
            let known = self.old.remove(&ino).unwrap_or_default();
            self.young.insert(ino, known);
        }
        self.young.entry(ino).or_default()
    }
}

/// The thread has asked for a lease on a file, in the last of `calls` calls on it.
#[cold]
pub fn leased(thread: &Thread, client: &Client, ino: u64, calls: u32) {
    thread.asked.store(0, Ordering::Relaxed);
    if by_time() && client.link.leases.one_more(ino, calls, now_ns()) {
        // Not here: the call may hold the lock of a description.
        thread.leaves.store(ino, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lose(leases: &Leases, calls: u32, now_ns: i64) -> Option<u32> {
        (1..=STRIKES).find(|_| leases.one_more(5, calls, now_ns))
    }

    #[test]
    fn a_file_whose_leases_do_not_pay_is_away_for_longer_each_time() {
        let leases = Leases::default();
        let until = || leases.0.lock().get(5).away_until;
        assert!(leases.ask(5) && leases.place(5) == Place::Here);
        assert_eq!(lose(&leases, FEW_CALLS, 0), None);
        assert!(!leases.was_away(5) && leases.any_here() && leases.place(5) == Place::Here);
        let now = now_ns();
        assert_eq!(lose(&leases, FEW_CALLS - 1, now), Some(STRIKES));
        assert!(leases.was_away(5) && !leases.was_away(6) && !leases.any_here());
        assert_eq!(until(), now + AWAY_NS);
        assert!(leases.place(5) == Place::Away && !leases.ask(5));
        // Then it has to pay again.
        leases.0.lock().used(5).away_until = now - 1;
        assert!(leases.place(5) == Place::Mount && leases.ask(5));
        assert!(leases.place(5) == Place::Here);
        assert_eq!(lose(&leases, 1, now), Some(STRIKES));
        assert_eq!(until(), now + 2 * AWAY_NS);
        // One lease that pays makes up for those before.
        let few = |times| (0..times).any(|_| leases.one_more(7, 1, 0));
        assert!(!few(STRIKES - 1) && !leases.one_more(7, FEW_CALLS, 0) && !few(STRIKES - 1));
        assert!(few(1));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_more_than_the_daemon_remembers() {
        let leases = Leases::default();
        for ino in 0..5 * FILES_MAX as u64 {
            assert!(leases.ask(ino));
            let first = ino.saturating_sub(ASKED_FILES as u64);
            assert!((first..=ino).all(|ino| leases.place(ino) == Place::Here));
            let accounts = leases.0.lock();
            assert!(accounts.young.len() + accounts.old.len() <= 2 * FILES_MAX);
        }
    }
}
