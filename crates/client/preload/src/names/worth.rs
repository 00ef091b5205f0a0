//! Whether it is worth while to have the names of a directory in the process.
//!
//! To take a directory from the mount costs a message, and often a digest of what the mount has logged there and a
//! notification of the kernel: as much as a few names that are made. To become a client costs milliseconds. Nobody knows how much
//! a program will make, so what it has made is taken for what is to come, as with files ([`crate::pays`]).
//!
//! * Counted is the time that calls take on the mount which *make* names: a file, a directory, a link, a new name.
//!   Each counts for its directory, and for those above it as far as the path of the call shows them.
//! * A process becomes a client when one directory with all that is below has reached [`ATTACH_NS`] (less where its calls on content
//!   take long, too: [`to_attach`]), and takes a directory when
//!   names were made there for [`OWN_NS`], and for [`TREE_NS`] there and below one of those above; for a new directory when they
//!   were for [`TREE_NS`] there and below: as much may be made in that one, and costs nothing then.
//!   What it makes in directories that it has, new directories too, costs nothing of that.
//! * To ask about a name, to open what is there and to remove gain nothing: each file would need a lease of its own, and the
//!   kernel knows most answers. That is served on a path that leads through a directory in which the process has made
//!   names before, or of which it alone has the lease: the kernel would have to take it away.
//!
//! A directory that others use meanwhile is *left to the mount* for a while, by all calls, so that nobody takes it from anybody: when
//! the daemon says that it is mediated, or when leases have cost more than its names have gained ([`LOSS_US`]): those that calls here ask for,
//! and those that others take of what was made, since each needs a digest ([`TAKEN_US`]). So is
//! the other directory of a call with two: the mount has to take it for that call.
//!
//! With `SHALE_NAMES=N` all this is off, and all names are served after N calls.

use crate::client;
use crate::names::setting;
use crate::pays;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use shale_interpose::clock;
use shale_interpose::raw::{Args, nr};

/// Time in all after which a mount is looked for, ns; twice as much each time that there was none: other file systems' names count
/// until it is known where they lie.
const FIND_NS: u64 = 2_000_000;
const DOUBLINGS_MAX: u32 = 10;
/// In a directory and below it, before this process becomes a client for that.
const ATTACH_NS: u64 = 20_000_000;
/// A quarter is enough for a process whose calls on content took so much with it, ns: of a file that is made here they cost the mount
/// nothing, either.
const ATTACH_WRITER_NS: u64 = 40_000_000;
const ATTACH_WRITER_NAMES_NS: u64 = 5_000_000;
/// The same once it is one.
const TREE_NS: u64 = 2_000_000;
/// In a directory itself, before it is taken: some two names.
const OWN_NS: u64 = 150_000;
/// One call counts for no more: what it waits for (space, a device) it would wait for here, too.
const CALL_NS_MAX: u64 = 500_000;
/// Calls that are counted and not measured take about so many times what each counts for (`Description::used_once`): 8 µs.
const COUNTED_TIMES: u64 = 8;
/// A name that is made here instead of there gains about so much, µs.
const GAIN_US: i32 = 60;
/// More than this is not saved up for worse times.
const GAIN_MAX_US: i32 = 2_000;
/// A lease that another takes costs that one about so much, µs: a digest of what this process has logged, and a wait until no call of it
/// goes on under the lease.
const TAKEN_US: i32 = 150;
/// What calls that asked for leases may have taken beyond that, before the directory is left to the mount.
const LOSS_US: i32 = 3_000;
/// Said in a report of a directory that goes back to the mount.
pub const LEFT: &str = "others use its directory: left to the mount for a while";
/// For so long, and four times as long each time, up to 128 s, unless so many names were made in between, one after the other, of which none
/// asked for a lease.
const LEFT_MS: u32 = 500;
const LEFT_TIMES_MAX: u32 = 4;
const ALONE_NAMES: u32 = 1_000;
/// It is asked so often at most whether others list a directory.
const ASK_MS: u32 = 100;

/// Time of all such calls.
static SPENT_NS: AtomicU64 = AtomicU64::new(0);
/// Time of calls on content of files that were closed after few of them.
static SHORT_NS: AtomicU64 = AtomicU64::new(0);
/// A directory was left to the mount in this process.
static ANY_LEFT: AtomicBool = AtomicBool::new(false);
/// Times that no mount was found.
static NOT_FOUND: AtomicU32 = AtomicU32::new(0);

/// What is known of one directory, by the path that leads there.
struct Directory {
    /// Hash of the path; 0: nothing.
    key: AtomicU64,
    /// Time there and below, µs.
    tree_us: AtomicU32,
    /// Time in it, µs.
    own_us: AtomicU32,
    /// Names were made there in this process.
    is_served: AtomicBool,
    /// What that has gained, less what its leases have cost, µs.
    balance_us: AtomicI32,
    /// It is left to the mount until then, ms since the machine started; 0: it is not.
    left_until_ms: AtomicU32,
    /// How often it was.
    times_left: AtomicU32,
    /// Names that were made here since a call asked for a lease.
    names_alone: AtomicU32,
    /// When it was asked last whether others list it, ms since the machine started.
    asked_ms: AtomicU32,
}

const DIRECTORIES: usize = 4096;
static KNOWN: [Directory; DIRECTORIES] = [const {
    Directory {
        key: AtomicU64::new(0),
        tree_us: AtomicU32::new(0),
        own_us: AtomicU32::new(0),
        is_served: AtomicBool::new(false),
        balance_us: AtomicI32::new(0),
        left_until_ms: AtomicU32::new(0),
        times_left: AtomicU32::new(0),
        names_alone: AtomicU32::new(0),
        asked_ms: AtomicU32::new(0),
    }
}; DIRECTORIES];

/// What a call does with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It makes a name there.
    Make,
    /// It makes a directory there, in which there will be more.
    MakeDirectory,
    /// All else.
    Ask,
}

impl Use {
    /// Of the path of a call with one, or of the second one.
    pub fn of(number: u32, args: &Args) -> Self {
        let creates = |flags: u64| flags as i32 & libc::O_CREAT != 0;
        let creates = match number {
            nr::OPEN => creates(args[1]),
            nr::OPENAT => creates(args[2]),
            _ => number == nr::CREAT,
        };
        let makes = matches!(
            number,
            nr::LINK
                | nr::LINKAT
                | nr::SYMLINK
                | nr::SYMLINKAT
                | nr::RENAME
                | nr::RENAMEAT
                | nr::RENAMEAT2
        );
        match number {
            nr::MKDIR | nr::MKDIRAT => Self::MakeDirectory,
            _ if creates || makes => Self::Make,
            _ => Self::Ask,
        }
    }

    /// Whether it makes a name.
    pub fn makes(self) -> bool {
        self != Self::Ask
    }
}

/// In a child: it has made nothing yet.
pub fn begin_again() {
    SHORT_NS.store(0, Ordering::Relaxed);
    // Else nothing is known of any directory, and the table need not be looked through.
    if SPENT_NS.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    for directory in &KNOWN {
        if directory.key.load(Ordering::Relaxed) != 0 {
            directory.become_of(0);
        }
    }
}

/// Whether so much was made that the mount is worth looking for.
pub fn is_worth_looking() -> bool {
    SPENT_NS.load(Ordering::Relaxed) >= FIND_NS << NOT_FOUND.load(Ordering::Relaxed)
}

/// No mount was found: it is looked for again after more.
pub fn was_not_found() {
    let times = NOT_FOUND.load(Ordering::Relaxed);
    NOT_FOUND.store((times + 1).min(DOUBLINGS_MAX), Ordering::Relaxed);
    SPENT_NS.store(0, Ordering::Relaxed);
}

/// Whether leases may be asked for, so that a call with this path is served.
pub fn may_take(mount: u32, start: Start, path: &[u8], what: Use) -> bool {
    if !setting::is_by_time() {
        return true;
    }
    match what {
        Use::Ask => client::is_attached(mount) && has_made(start, path) && !is_left(start, path),
        _ if is_left(start, path) => false,
        _ if !client::is_attached(mount) => {
            pays(start, path, to_attach(), 0) && client::can_attach(mount)
        }
        Use::MakeDirectory if has_large_tree(start, path) => true,
        _ => pays(start, path, TREE_NS, OWN_NS),
    }
}

/// Whether a call of which it is not known yet where it leads can be served at all.
pub fn is_open(mount: u32, number: u32, args: &Args) -> bool {
    !setting::is_by_time() || client::is_attached(mount) || Use::of(number, args).makes()
}

/// A name was made in this process at this path; since the one before it, others took so many leases that this process alone had.
/// Whether the directory is left to the mount now.
pub fn made(start: Start, path: &[u8], taken: u32) -> bool {
    if !setting::is_by_time() {
        return false;
    }
    let Some(directory) = Directory::of(start, path) else {
        return false;
    };
    directory.is_served.store(true, Ordering::Relaxed);
    directory.gain();
    // What is taken was made in the directories that names are made in, most likely.
    taken != 0 && directory.lose(TAKEN_US.saturating_mul(taken.cast_signed()))
}

/// A call at this path was served, and has asked for leases and taken so long. Whether the directory is left to the mount now.
pub fn has_cost(start: Start, path: &[u8], ns: u64) -> bool {
    let Some(directory) = Directory::of(start, path) else {
        return false;
    };
    directory.lose((ns.min(CALL_NS_MAX) / 1000) as i32)
}

/// The directories of a call's paths go to the mount: others use one of them.
pub fn leave<'a>(places: impl Iterator<Item = (Start, &'a [u8])>) {
    let now = now_ms();
    let directories = places.filter_map(|(start, path)| Directory::of(start, path));
    directories
        .filter(|d| !d.is_left(now))
        .for_each(|d| d.leave(now));
}

/// Of two directories of a call that the mount makes: if one is left to it, so is the other, as long.
pub fn leave_together<'a, P: Iterator<Item = (Start, &'a [u8])>>(places: impl Fn() -> P) {
    let now = now_ms();
    let directories = || places().filter_map(|(start, path)| Directory::of(start, path));
    let left = directories().filter(|d| d.is_left(now));
    let until = left.map(|d| d.left_until_ms.load(Ordering::Relaxed)).max();
    if let Some(until) = until {
        directories().for_each(|d| d.left_until_ms.store(until, Ordering::Relaxed));
    }
}

/// Whether it is to be asked if others list one of the directories of a call with two, which the mount has made: before they would be taken
/// for the first time, and before those that were left to the mount would be taken again.
pub fn is_to_ask<'a>(mut places: impl Iterator<Item = (Start, &'a [u8])>) -> bool {
    let now = now_ms();
    places.any(|(start, path)| Directory::of(start, path).is_some_and(|d| d.is_to_ask(now)))
}

/// Others list one of these directories: all are left to the mount from now on.
pub fn stay_left<'a>(places: impl Iterator<Item = (Start, &'a [u8])>) {
    let now = now_ms();
    let directories = places.filter_map(|(start, path)| Directory::of(start, path));
    directories.for_each(|d| d.leave(now));
}

/// Whether any directory was ever left to the mount.
pub fn any_left() -> bool {
    ANY_LEFT.load(Ordering::Relaxed)
}

/// Whether the directory of a path is left to the mount, or the one that it leads to.
pub fn is_left(start: Start, path: &[u8]) -> bool {
    let left = |key| {
        let directory = Directory::at(key);
        // The time is asked for last: mostly there is nothing to compare it with.
        directory.is_of(key)
            && directory.left_until_ms.load(Ordering::Relaxed) != 0
            && directory.is_left(now_ms())
    };
    prefixes(start, path).last().is_some_and(left) || left(hash_of(start, path))
}

fn now_ms() -> u32 {
    (clock::now_ns() / 1_000_000) as u32
}

/// A file was closed whose few calls were counted for so long, without a look at the clock.
pub fn used(ns: u32) {
    SHORT_NS.fetch_add(u64::from(ns) * COUNTED_TIMES, Ordering::Relaxed);
}

/// A call that makes a name was made by way of the mount, and has taken so long.
pub fn spent(ns: u64) {
    SPENT_NS.fetch_add(ns.min(CALL_NS_MAX), Ordering::Relaxed);
}

/// As [`spent`], where the path of the call is known to lead.
pub fn spent_at(start: Start, path: &[u8], ns: u64) {
    let us = (ns.min(CALL_NS_MAX) / 1000) as u32;
    let mut last = None;
    for key in prefixes(start, path) {
        let directory = Directory::at(key);
        directory.become_of(key);
        directory.tree_us.fetch_add(us, Ordering::Relaxed);
        last = Some(directory);
    }
    if let Some(own) = last {
        own.own_us.fetch_add(us, Ordering::Relaxed);
    }
}

/// Whether names were made in one of the directories on a path, or in the one that it leads to.
fn has_made(start: Start, path: &[u8]) -> bool {
    let served = |key| {
        let directory = Directory::at(key);
        directory.is_of(key) && directory.is_served.load(Ordering::Relaxed)
    };
    prefixes(start, path).any(served) || served(hash_of(start, path))
}

/// What names have to have taken in a directory and below it before this process becomes a client for that, ns.
fn to_attach() -> u64 {
    let content = pays::spent_in_all_ns() + SHORT_NS.load(Ordering::Relaxed);
    let rest = ATTACH_WRITER_NS.saturating_sub(content);
    rest.clamp(ATTACH_WRITER_NAMES_NS, ATTACH_NS)
}

/// Whether so much was made in the directory of a path, and there and below in one of those above.
fn pays(start: Start, path: &[u8], tree_ns: u64, own_ns: u64) -> bool {
    let (mut tree, mut own, mut served) = (0, 0, false);
    for key in prefixes(start, path) {
        let directory = Directory::at(key);
        own = 0;
        if directory.is_of(key) {
            tree = tree.max(directory.tree_us.load(Ordering::Relaxed));
            own = directory.own_us.load(Ordering::Relaxed);
            served |= directory.is_served.load(Ordering::Relaxed);
        }
    }
    served || u64::from(tree) * 1000 >= tree_ns && u64::from(own) * 1000 >= own_ns
}

/// Whether so much was made in the directory of a path and below that another directory there is worth a lease.
fn has_large_tree(start: Start, path: &[u8]) -> bool {
    let large = |key| {
        let directory = Directory::at(key);
        let tree_us = directory.tree_us.load(Ordering::Relaxed);
        directory.is_of(key) && u64::from(tree_us) * 1000 >= TREE_NS
    };
    prefixes(start, path).last().is_some_and(large)
}

impl Directory {
    fn at(key: u64) -> &'static Self {
        &KNOWN[key as usize % DIRECTORIES]
    }

    /// The directory of a path.
    fn of(start: Start, path: &[u8]) -> Option<&'static Self> {
        let key = prefixes(start, path).last()?;
        let directory = Self::at(key);
        directory.become_of(key);
        Some(directory)
    }

    fn gain(&self) {
        if self.balance_us.load(Ordering::Relaxed) < GAIN_MAX_US {
            self.balance_us.fetch_add(GAIN_US, Ordering::Relaxed);
        }
        if self.times_left.load(Ordering::Relaxed) != 0
            && self.names_alone.fetch_add(1, Ordering::Relaxed) >= ALONE_NAMES
        {
            self.times_left.store(0, Ordering::Relaxed);
        }
    }

    /// Others use what is here, which has cost so much. Whether it is left to the mount now.
    fn lose(&self, us: i32) -> bool {
        self.names_alone.store(0, Ordering::Relaxed);
        let leaves = self.balance_us.fetch_sub(us, Ordering::Relaxed) - us < -LOSS_US;
        if leaves {
            self.leave(now_ms());
        }
        leaves
    }

    /// Is left to the mount from now on, for a while.
    fn leave(&self, now_ms: u32) {
        ANY_LEFT.store(true, Ordering::Relaxed);
        let times = self.times_left.fetch_add(1, Ordering::Relaxed);
        let ms = LEFT_MS << (2 * times.min(LEFT_TIMES_MAX));
        let until = now_ms.wrapping_add(ms).max(1);
        self.left_until_ms.store(until, Ordering::Relaxed);
        self.balance_us.store(0, Ordering::Relaxed);
        self.names_alone.store(0, Ordering::Relaxed);
    }

    fn is_to_ask(&self, now_ms: u32) -> bool {
        let until = self.left_until_ms.load(Ordering::Relaxed);
        let nearly = match until {
            0 => {
                u64::from(self.own_us.load(Ordering::Relaxed)) * 1000 >= ATTACH_WRITER_NAMES_NS / 2
            }
            _ => until.wrapping_sub(now_ms).cast_signed() < ASK_MS.cast_signed(),
        };
        let asked = self.asked_ms.load(Ordering::Relaxed);
        let asks = nearly && (asked == 0 || now_ms.wrapping_sub(asked) >= ASK_MS);
        if asks {
            self.asked_ms.store(now_ms.max(1), Ordering::Relaxed);
        }
        asks
    }

    fn is_left(&self, now_ms: u32) -> bool {
        let until = self.left_until_ms.load(Ordering::Relaxed);
        let is_left = until.wrapping_sub(now_ms).cast_signed() > 0;
        if !is_left && until != 0 {
            // So that the time need not be asked for again; who leaves it just now has another moment there.
            let until_ms = &self.left_until_ms;
            let _ = until_ms.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        until != 0 && is_left
    }

    fn is_of(&self, key: u64) -> bool {
        self.key.load(Ordering::Relaxed) == key
    }

    /// Forgets another one that had this place.
    fn become_of(&self, key: u64) {
        if !self.is_of(key) {
            self.tree_us.store(0, Ordering::Relaxed);
            self.own_us.store(0, Ordering::Relaxed);
            self.is_served.store(false, Ordering::Relaxed);
            self.balance_us.store(0, Ordering::Relaxed);
            self.left_until_ms.store(0, Ordering::Relaxed);
            self.times_left.store(0, Ordering::Relaxed);
            self.names_alone.store(0, Ordering::Relaxed);
            self.asked_ms.store(0, Ordering::Relaxed);
            self.key.store(key, Ordering::Relaxed);
        }
    }
}

/// FNV-1a: any will do, and it is known after each component.
const SEED: u64 = 0xcbf2_9ce4_8422_2325;
const FACTOR: u64 = 0x0000_0100_0000_01b3;

fn hashed(hash: u64, component: &[u8]) -> u64 {
    let bytes = component.iter().chain(b"/");
    bytes.fold(hash, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(FACTOR)
    })
}

/// Where paths begin, as the table knows it: the hash of what leads there. So a directory is the same one for paths from the root and
/// for those from the working directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start(u64);

impl Start {
    /// The directory with this inode number, of which no path is known.
    pub fn of(ino: u64) -> Self {
        Self(hashed(SEED, &ino.to_ne_bytes()))
    }

    /// The directory that a path leads to.
    pub fn below(self, path: &[u8]) -> Self {
        Self(components(path).fold(self.0, hashed))
    }
}

fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&b| b == b'/')
        .filter(|c| !c.is_empty() && *c != b".")
}

/// Never 0.
fn key(hash: u64) -> u64 {
    (hash ^ hash >> 29) | 1 << 63
}

fn hash_of(start: Start, path: &[u8]) -> u64 {
    key(start.below(path).0)
}

/// The directories on a path from `start` on, that one first: all but its last component.
fn prefixes(start: Start, path: &[u8]) -> impl Iterator<Item = u64> {
    let mut hash = start.0;
    let mut rest = components(path).peekable();
    let mut first = true;
    core::iter::from_fn(move || {
        if !core::mem::take(&mut first) {
            let component = rest.next()?;
            rest.peek()?;
            hash = hashed(hash, component);
        }
        Some(key(hash))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    /// Directories of different tests can have one place in the table.
    static ONE: Mutex<()> = Mutex::new(());

    #[test]
    fn a_path_counts_for_all_directories_on_it() {
        let _one = ONE.lock();
        let of = |path: &[u8]| prefixes(Start::of(7), path).collect::<Vec<_>>();
        let whole = of(b"a/b/c");
        assert_eq!(whole.len(), 3);
        assert_eq!(whole, of(b"a//./b/other"));
        assert_eq!(whole[2], hash_of(Start::of(7), b"a/b"));
        assert_eq!(whole[..1], of(b"file"));
        assert_ne!(of(b"ab/c")[1], of(b"a/b/c")[2], "a slash counts");
        assert_ne!(
            prefixes(Start::of(8), b"file").next(),
            prefixes(Start::of(7), b"file").next()
        );
        assert_eq!(of(b"."), of(b""));
        let below = Start::of(7).below(b"/a/");
        assert_eq!(prefixes(below, b"b/c").collect::<Vec<_>>(), whole[1..]);
    }

    #[test]
    fn what_was_made_pays() {
        let _one = ONE.lock();
        let (start, dir, file) = (Start::of(1 << 40), &b"dir/sub"[..], &b"dir/sub/file"[..]);
        assert!(!pays(start, file, 1, 0) && !has_made(start, file));
        spent_at(start, file, OWN_NS);
        assert!(!pays(start, file, TREE_NS, OWN_NS));
        for _ in 0..TREE_NS / CALL_NS_MAX {
            // One call counts for no more.
            spent_at(start, file, 10 * CALL_NS_MAX);
        }
        assert!(pays(start, file, TREE_NS, OWN_NS));
        assert!(!pays(start, file, ATTACH_NS, 0));
        // Above it nothing was made, and beside it nothing either.
        assert!(!pays(start, dir, TREE_NS, OWN_NS) && pays(start, dir, TREE_NS, 0));
        assert!(!pays(start, b"dir/other/file", TREE_NS, OWN_NS));
        // A directory is worth it where as much was made as may be made in it.
        assert!(has_large_tree(start, file) && has_large_tree(start, b"dir/new"));
        assert!(!has_large_tree(start, b"dir/other/new"));
        assert!(!has_made(start, file));
        setting::set_by_time();
        assert!(!made(start, file, 0));
        assert!(has_made(start, file) && has_made(start, b"dir/sub/x") && has_made(start, dir));
        assert!(!has_made(start, b"dir/x") && has_made(start, b"dir/sub/x/y"));
        assert!(pays(start, b"dir/sub/x/y", TREE_NS, OWN_NS));
        spent(1);
        begin_again();
        assert!(!has_made(start, file) && !pays(start, file, 1, 0));
    }

    #[test]
    fn what_others_take_as_soon_as_it_is_made_is_left_to_the_mount() {
        let _one = ONE.lock();
        let start = Start::of(5 << 40);
        setting::set_by_time();
        // One lease of three names costs less than these gain.
        let rarely = |n: u32| made(start, b"seldom/file", u32::from(n.is_multiple_of(3)));
        assert!(!(0..1000).any(rarely) && !is_left(start, b"seldom/file"));
        // One of each does not: it is left as soon as what is lost is more than the bound.
        let names = (1..1000).find(|_| made(start, b"often/file", 1)).unwrap();
        assert!((LOSS_US / TAKEN_US..=1 + LOSS_US / (TAKEN_US - GAIN_US)).contains(&names));
        assert!(is_left(start, b"often/file") && !is_left(start, b"seldom/file"));
        assert!(!may_take(0, start, b"often/file", Use::Make));
        // The time in which nobody took anything begins again.
        let directory = Directory::of(start, b"often/file").unwrap();
        assert!(
            !made(start, b"often/file", 0) && directory.names_alone.load(Ordering::Relaxed) == 1
        );
        assert!(
            !made(start, b"often/file", 1) && directory.names_alone.load(Ordering::Relaxed) == 0
        );
    }

    #[test]
    fn what_costs_more_than_it_gains_is_left_and_so_is_what_it_is_used_with() {
        let _one = ONE.lock();
        let (start, file) = (Start::of(3 << 40), &b"shared/file"[..]);
        setting::set_by_time();
        // What was gained is saved up to a bound.
        (0..1000).for_each(|_| assert!(!made(start, file, 0)));
        let costly = |_: &i32| !has_cost(start, file, 10 * CALL_NS_MAX);
        let calls = (0..1000).take_while(costly).count() as i32;
        let us = (CALL_NS_MAX / 1000) as i32;
        let saved = GAIN_MAX_US + GAIN_US;
        assert!(((GAIN_MAX_US + LOSS_US) / us..=(saved + LOSS_US) / us).contains(&calls));
        assert!(is_left(start, file) && is_left(start, b"shared") && !is_left(start, b"file"));
        assert!(!may_take(0, start, file, Use::Make));
        let both = || [(start, &b"other/x"[..]), (start, file)].into_iter();
        leave_together(both);
        assert!(is_left(start, b"other/y") && !is_left(start, b"file"));

        // Four times as long each time, until nobody else uses it.
        let directory = Directory::of(start, file).unwrap();
        let lasts = |ms: u32| {
            let until = directory.left_until_ms.load(Ordering::Relaxed);
            let is_left = directory.is_left(now_ms().wrapping_add(ms));
            directory.left_until_ms.store(until, Ordering::Relaxed);
            is_left
        };
        assert!(!lasts(LEFT_MS));
        directory.leave(now_ms());
        assert!(lasts(LEFT_MS) && !lasts(4 * LEFT_MS));
        let make = |names| (0..names).for_each(|_| assert!(!made(start, file, 0)));
        make(ALONE_NAMES);
        assert!(!has_cost(start, file, 0));
        make(ALONE_NAMES);
        directory.leave(now_ms());
        assert!(lasts(4 * LEFT_MS), "somebody else used it in between");
        make(ALONE_NAMES + 1);
        directory.leave(now_ms());
        assert!(!lasts(LEFT_MS));
    }
}
