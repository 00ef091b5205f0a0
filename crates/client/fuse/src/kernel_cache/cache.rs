//! What the kernel has cached of the mount, inode by inode, and who used it.
//!
//! One state for each inode. What is asked of it decides which notification goes before which answer:
//!
//! | What happens | names of a directory | size | pages | users |
//! | --- | --- | --- | --- | --- |
//! | a request about it is served | noted before the answer | known after the answer | filled | noted |
//! | another client is to get it ([`super::invalidate`]) | asked for again | may be too small from now on | dropped | |
//! | attributes are asked for meanwhile | | the answer is held back; first the kernel gets the size, where it may drop the answer | | |
//! | a change that bypasses the page cache | | | dropped; none is filled until it is done | |
//! | a program maps it writable | | | what it stores is known to nobody: exclusive to the mount | |
//! | the kernel forgets it | nothing | nothing | nothing | nobody |
//!
//! Names, sizes and mappings are known until the kernel forgets the inode. Pages and users are known of the files used
//! last: of others there may be pages, which are dropped once too often, and there are no users.
//!
//! Lock order: the shards are leaves.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::names::{Cached, Names};
use super::pages::{FilePages, RECENT};
use super::size::{KernelSize, Rights};
use super::users::FileUsers;

const SHARDS: usize = 16;
/// Files of one generation of a shard of which pages and users are known.
const FILES_MAX: usize = 1 << 10;
/// Files of a shard whose size the kernel got since a process before this one. When there are more, nothing is known of
/// any: their next answers are held back once more.
const KNOWN_MAX: usize = (1 << 16) / SHARDS;
/// Who fills a page waits so long at most. The change may wait for somebody who has the pages dropped
/// (a client that wants the file), who in turn waits for this page.
const BYPASS_WAIT_MAX: Duration = Duration::from_millis(20);
/// A caller that takes a file away waits so long at most for answers that are held back.
const ANSWER_WAIT_MAX: Duration = Duration::from_millis(200);

/// What is known of an inode until the kernel forgets it.
#[derive(Default)]
struct InodeState {
    /// Of a directory.
    names: Option<Box<Names>>,
    size: KernelSize,
    /// A program wrote it through a shared mapping.
    is_mapped_writable: bool,
}

/// What the kernel has to know before it gets an answer about attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BeforeAnswer {
    /// Nothing: it takes the answer.
    Nothing,
    /// The size, by a notification, after which it does not take the answer.
    Size,
    /// It has to take the answer, for the rights: the size is for the next time.
    Rights,
}

/// What is known of a file that was used recently.
struct RecentState {
    pages: FilePages,
    users: FileUsers,
}

const _: () = assert!(
    size_of::<RecentState>() <= 136,
    "one for each file used recently"
);

#[derive(Default)]
struct Inodes {
    lasting: HashMap<u64, InodeState>,
    /// Files used recently, and those used before them.
    young: HashMap<u64, RecentState>,
    old: HashMap<u64, RecentState>,
    /// If a process before this one knew more: files whose size the kernel got since.
    known_sizes: HashSet<u64>,
}

#[derive(Default)]
struct Shard {
    inodes: Mutex<Inodes>,
    /// A change was done, or an answer has gone out.
    changed: Condvar,
}

/// See the module.
pub(crate) struct KernelCache {
    shards: [Shard; SHARDS],
    /// A process before this one served the mount, and knew more.
    continues: bool,
    began: Instant,
    /// The last number of a request that filled pages.
    stamps: AtomicU64,
    /// Nanoseconds after `began` at which pages were dropped last, and one; 0: never.
    last_drop: AtomicU64,
    /// Some file may have been away since the kernel got its size.
    any_away: AtomicBool,
    any_mapped: AtomicBool,
    /// The process before this one gave names that are not noted here.
    names_are_unknown: AtomicBool,
    /// Clients besides the mount's.
    others: AtomicUsize,
}

impl InodeState {
    fn is_empty(&self) -> bool {
        self.names.is_none() && self.size == KernelSize::default() && !self.is_mapped_writable
    }
}

impl Inodes {
    /// What is known of a file that is used now. `stamp` gives a new number of a request that fills pages.
    fn recent(&mut self, ino: u64, stamp: impl FnOnce() -> u64) -> &mut RecentState {
        if !self.young.contains_key(&ino) {
            if self.young.len() >= FILES_MAX {
                let young = std::mem::take(&mut self.young);
                let old = std::mem::replace(&mut self.old, young);
                self.young = old
                    .into_iter()
                    .filter(|(_, state)| state.pages.must_stay())
                    .collect();
            }
            if let Some(known) = self.old.remove(&ino) {
                self.young.insert(ino, known);
            }
        }
        self.young.entry(ino).or_insert_with(|| RecentState {
            pages: FilePages::unknown(stamp()),
            users: FileUsers::default(),
        })
    }

    /// What is known of a file, if it was used recently.
    fn known(&mut self, ino: u64) -> Option<&mut RecentState> {
        let Self { young, old, .. } = self;
        young.get_mut(&ino).or_else(|| old.get_mut(&ino))
    }

    /// The kernel has got the size of a file since a process before this one.
    fn note_known_size(&mut self, ino: u64) {
        if self.known_sizes.len() >= KNOWN_MAX {
            self.known_sizes = HashSet::new();
        }
        self.known_sizes.insert(ino);
    }

    /// The largest size that the kernel may know of a file that was away.
    fn largest_known(&self, ino: u64, continues: bool) -> Option<u64> {
        let noted = self.lasting.get(&ino).and_then(|i| i.size.largest_known());
        let unknown = continues && !self.known_sizes.contains(&ino);
        noted.or(unknown.then_some(0))
    }

    /// An answer has gone out, or there is none; whether no other is held back.
    fn let_answer_go(&mut self, ino: u64) -> bool {
        let Some(state) = self.lasting.get_mut(&ino) else {
            return true;
        };
        let last = state.size.let_answer_go();
        if state.is_empty() {
            self.lasting.remove(&ino);
        }
        last
    }
}

/// The whole, and names.
impl KernelCache {
    /// `continues`: a process before this one served the mount.
    pub(crate) fn new(continues: bool) -> Self {
        Self {
            shards: Default::default(),
            continues,
            began: Instant::now(),
            stamps: AtomicU64::new(0),
            last_drop: AtomicU64::new(0),
            any_away: AtomicBool::new(continues),
            any_mapped: AtomicBool::new(false),
            names_are_unknown: AtomicBool::new(continues),
            others: AtomicUsize::new(0),
        }
    }

    fn shard(&self, ino: u64) -> &Shard {
        &self.shards[(ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % SHARDS]
    }

    fn lock(&self, ino: u64) -> MutexGuard<'_, Inodes> {
        self.shard(ino).inodes.lock()
    }

    /// Whether a process before this one served the mount.
    pub(crate) fn continues(&self) -> bool {
        self.continues
    }

    /// The kernel has forgotten an inode, and everything below it.
    pub(crate) fn forget(&self, ino: u64) {
        let mut inodes = self.lock(ino);
        if let Some(state) = inodes.lasting.get_mut(&ino) {
            state.names = None;
            state.is_mapped_writable = false;
            state.size.forgotten();
            // An answer that is held back is let go by who holds it.
            if state.is_empty() {
                inodes.lasting.remove(&ino);
            }
        }
        if self.continues {
            inodes.note_known_size(ino);
        }
        let done = |state: &RecentState| !state.pages.is_bypassed();
        if inodes.known(ino).is_some_and(|state| done(state)) {
            inodes.young.remove(&ino);
            inodes.old.remove(&ino);
        }
    }

    /// Whether the kernel may keep attributes that it does not check the age of.
    pub(crate) fn is_alone(&self) -> bool {
        self.others.load(Ordering::Acquire) == 0
    }

    /// So many clients are there besides the mount's.
    pub(crate) fn set_others(&self, count: usize) {
        self.others.store(count, Ordering::Release);
    }

    /// Notes a directory of which the kernel gets a listing: names come along with it.
    pub(crate) fn lists(&self, dir: u64) {
        let mut inodes = self.lock(dir);
        let state = inodes.lasting.entry(dir).or_default();
        state.names.get_or_insert_default();
    }

    /// Notes a name before the kernel gets what it stands for, or that it stands for nothing.
    pub(crate) fn caches_name(&self, dir: u64, name: &[u8]) {
        let mut inodes = self.lock(dir);
        let state = inodes.lasting.entry(dir).or_default();
        state.names.get_or_insert_default().note(name);
    }

    /// Whether the kernel may keep the answer when it asks for a name of a directory.
    pub(crate) fn keeps_name(&self, dir: u64, name: &[u8]) -> bool {
        let inodes = self.lock(dir);
        let names = inodes.lasting.get(&dir).and_then(|i| i.names.as_deref());
        names.is_none_or(|names| names.may_be_kept(name))
    }

    /// Whether a process before this one may have given names.
    pub(super) fn names_are_unknown(&self) -> bool {
        self.names_are_unknown.load(Ordering::Acquire)
    }

    /// Every name is asked for here from now on, and noted.
    pub(super) fn names_are_known(&self) {
        self.names_are_unknown.store(false, Ordering::Release);
    }

    /// Another client is about to get an inode: whether it is a directory with names.
    pub(super) fn names_leave(&self, ino: u64) -> bool {
        let mut inodes = self.lock(ino);
        let state = inodes.lasting.get_mut(&ino);
        let names = state.and_then(|i| i.names.as_deref_mut());
        names.map(Names::leaves).is_some()
    }

    /// What the kernel is to ask for again; none is noted any more.
    pub(super) fn take_names(&self, dir: u64) -> Option<Cached> {
        let mut inodes = self.lock(dir);
        let state = inodes.lasting.get_mut(&dir)?;
        state.names.as_deref_mut().map(Names::take)
    }
}

/// Sizes.
impl KernelCache {
    /// Another client is about to get a file, which is `size` bytes long and has these rights. Waits for answers that
    /// are held back: what they tell the kernel must not be old by then.
    pub(crate) fn size_leaves(&self, ino: u64, size: u64, rights: Rights) {
        let shard = self.shard(ino);
        let mut inodes = shard.inodes.lock();
        let held = |inodes: &mut Inodes| {
            let state = inodes.lasting.get(&ino);
            state.is_some_and(|i| i.size.holds_answers())
        };
        let until = Instant::now() + ANSWER_WAIT_MAX;
        shard.changed.wait_while_until(&mut inodes, held, until);
        self.any_away.store(true, Ordering::Release);
        let state = inodes.lasting.entry(ino).or_default();
        state.size.leaves(size, rights);
    }

    /// Before the front end looks a size up for the kernel: whether the answer has to be held
    /// back; [`Self::size_answered`] or [`Self::size_not_answered`] follows then.
    pub(crate) fn holds_answer(&self, ino: u64) -> bool {
        if !self.any_away.load(Ordering::Acquire) {
            return false;
        }
        let mut inodes = self.lock(ino);
        let away = inodes.largest_known(ino, self.continues).is_some();
        if away {
            inodes.lasting.entry(ino).or_default().size.hold_answer();
        }
        away
    }

    /// What the kernel has to know before an answer that is held back: it may know less than `size`, and not more, and drop the answer.
    pub(crate) fn before_answer(&self, ino: u64, size: u64, rights: Rights) -> BeforeAnswer {
        let mut inodes = self.lock(ino);
        let largest = inodes.largest_known(ino, self.continues);
        let may_know_less = largest.is_some_and(|largest| largest <= size);
        let may_drop = self.inherits_drops()
            || inodes
                .known(ino)
                .is_some_and(|state| state.pages.have_changed());
        if !may_know_less || !may_drop {
            return BeforeAnswer::Nothing;
        }
        let state = inodes.lasting.get(&ino);
        match state.is_some_and(|state| state.size.knows(rights)) {
            true => BeforeAnswer::Size,
            false => BeforeAnswer::Rights,
        }
    }

    /// An answer that was held back has gone out.
    pub(crate) fn size_answered(&self, ino: u64, size: u64) {
        let mut inodes = self.lock(ino);
        let state = inodes.lasting.entry(ino).or_default();
        if state.size.answered(size) && self.continues {
            inodes.note_known_size(ino);
        }
        self.let_answer_go(inodes, ino);
    }

    /// An answer that was held back has gone out by which the kernel is to know the rights; it may not know the size yet.
    pub(crate) fn rights_answered(&self, ino: u64, rights: Rights) {
        let mut inodes = self.lock(ino);
        let state = inodes.lasting.entry(ino).or_default();
        state.size.rights_answered(rights);
        self.let_answer_go(inodes, ino);
    }

    /// There is no answer.
    pub(crate) fn size_not_answered(&self, ino: u64) {
        self.let_answer_go(self.lock(ino), ino);
    }

    fn let_answer_go(&self, mut inodes: MutexGuard<'_, Inodes>, ino: u64) {
        if inodes.let_answer_go(ino) {
            self.shard(ino).changed.notify_all();
        }
    }
}

/// Pages.
impl KernelCache {
    fn stamp(&self) -> u64 {
        self.stamps.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Calls `f` with what is known of a file's pages.
    fn pages<T>(&self, ino: u64, f: impl FnOnce(&mut FilePages) -> T) -> T {
        let mut inodes = self.lock(ino);
        f(&mut inodes.recent(ino, || self.stamp()).pages)
    }

    /// Before a request is served that changes a file in the kernel, too, when its answer comes.
    pub(crate) fn changes(&self, ino: u64) {
        self.pages(ino, FilePages::changes);
    }

    /// Notes that a program writes a file through a shared mapping.
    pub(crate) fn maps_writable(&self, ino: u64) {
        let mut inodes = self.lock(ino);
        inodes.lasting.entry(ino).or_default().is_mapped_writable = true;
        self.any_mapped.store(true, Ordering::Release);
    }

    /// Whether a program may be writing a file through a shared mapping.
    pub(crate) fn is_mapped_writable(&self, ino: u64) -> bool {
        let mapped = || {
            let inodes = self.lock(ino);
            inodes
                .lasting
                .get(&ino)
                .is_some_and(|i| i.is_mapped_writable)
        };
        self.any_mapped.load(Ordering::Acquire) && mapped()
    }

    /// Before a request is served that fills the pages of `range`, offset and length in bytes. Waits for changes that
    /// bypass the page cache.
    pub(crate) fn fills(&self, ino: u64, range: (u64, u64)) {
        let shard = self.shard(ino);
        let mut inodes = shard.inodes.lock();
        let bypassed = |inodes: &mut Inodes| {
            let state = inodes.known(ino);
            state.is_some_and(|state| state.pages.is_bypassed())
        };
        if bypassed(&mut inodes) {
            let until = Instant::now() + BYPASS_WAIT_MAX;
            shard.changed.wait_while_until(&mut inodes, bypassed, until);
        }
        let stamp = self.stamp();
        let pages = &mut inodes.recent(ino, || stamp).pages;
        pages.fills(stamp, range, self.inherits_drops());
    }

    /// Begins a change that bypasses the page cache if no page has been filled since they were dropped;
    /// gives the last request that did. [`Self::end_bypass`] follows then.
    pub(crate) fn bypass_if_dropped(&self, ino: u64) -> Option<u64> {
        self.pages(ino, FilePages::bypass_if_dropped)
    }

    /// The last request that filled pages, for [`Self::bypass`] after they were dropped.
    pub(crate) fn last_fill(&self, ino: u64) -> u64 {
        self.pages(ino, |pages| pages.last_fill())
    }

    /// Has requests that would fill pages wait for a change, if none came since `last`, or if it has
    /// to be. [`Self::end_bypass`] follows if it did.
    pub(crate) fn bypass(&self, ino: u64, last: u64, has_to: bool) -> bool {
        self.pages(ino, |pages| pages.bypass(last, has_to))
    }

    /// The change is done. `true`: pages were filled since `last` all the same.
    pub(crate) fn end_bypass(&self, ino: u64, last: u64) -> bool {
        let filled = self.pages(ino, |pages| pages.end_bypass(last));
        self.shard(ino).changed.notify_all();
        filled
    }

    /// Before a notification drops pages; all of the file's or some.
    pub(crate) fn dropping(&self, ino: u64, all: bool) {
        self.pages(ino, |pages| pages.dropping(all));
        self.note_drop();
    }

    /// It has dropped them.
    pub(crate) fn dropped(&self, ino: u64) {
        if let Some(state) = self.lock(ino).known(ino) {
            state.pages.dropped();
        }
        self.note_drop();
    }

    /// After a write through the pages was done: whether a read may have filled some of its pages since
    /// they were dropped.
    pub(crate) fn overtakes(&self, ino: u64, offset: u64, bytes: u64) -> bool {
        if bytes == 0 || !self.any_drop_is_recent() {
            return false;
        }
        let mut inodes = self.lock(ino);
        let state = inodes.known(ino);
        state.is_some_and(|state| state.pages.overtakes(offset, bytes))
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn note_drop(&self) {
        self.last_drop.store(self.nanos() + 1, Ordering::Release);
    }

    fn any_drop_is_recent(&self) -> bool {
        let last = self.last_drop.load(Ordering::Acquire);
        let recent = |since: u64| self.nanos().saturating_sub(since) < RECENT.as_nanos() as u64;
        (last != 0 && recent(last)) || self.inherits_drops()
    }

    /// Whether a process before this one may have dropped pages a moment ago.
    fn inherits_drops(&self) -> bool {
        self.continues && self.began.elapsed() < RECENT
    }
}

/// Users.
impl KernelCache {
    /// Calls `f` with what is known of a file's users.
    fn users<T>(&self, ino: u64, f: impl FnOnce(&mut FileUsers) -> T) -> T {
        let mut inodes = self.lock(ino);
        f(&mut inodes.recent(ino, || self.stamp()).users)
    }

    /// A copy of what is known of a file's users.
    fn users_now(&self, ino: u64) -> FileUsers {
        let mut inodes = self.lock(ino);
        let known = inodes.known(ino).map(|state| state.users.clone());
        known.unwrap_or_default()
    }

    /// Thread `tid` asks for something about a file; for its `contents`. `true`: for the first time.
    pub(crate) fn uses(&self, ino: u64, tid: u32, contents: bool) -> bool {
        self.users(ino, |users| users.note(tid, contents))
    }

    /// The file is new: nobody used it before.
    pub(crate) fn is_new(&self, ino: u64) {
        self.users(ino, FileUsers::is_new);
    }

    /// Thread `tid`, which was noted, appends to a file.
    pub(crate) fn appends(&self, ino: u64, tid: u32) {
        self.users(ino, |users| users.appends(tid));
    }

    /// For how long the contents of a file are in use yet by other processes than `clients`.
    pub(crate) fn in_use_besides(&self, ino: u64, clients: &[i32]) -> Option<Duration> {
        self.users_now(ino).in_use_besides(clients)
    }

    /// Whether processes other than `clients` asked for anything about a file recently, or append to it;
    /// or it may be so.
    pub(crate) fn is_shared(&self, ino: u64, clients: &[i32]) -> bool {
        let inherited = self.continues.then(|| self.began.elapsed());
        self.users_now(ino).is_shared(clients, inherited)
    }

    /// How long ago a process other than `pid` asked last for anything about a file; `None`: none
    /// that is known of has, or it has ended. Long, if there may be some that is not known of.
    pub(crate) fn others(&self, ino: u64, pid: i32) -> Option<Duration> {
        self.users_now(ino).others(pid, self.continues)
    }
}

#[cfg(test)]
mod tests;
