//! This process as a client of the volumes behind the mounts.
//!
//! A process becomes a client when its use of a file pays for that ([`crate::pays`]). A session whose daemon is gone
//! is retired: other threads may be using it. When each of them has ended the call that it was in, it
//! is freed, with its memory and descriptors. A child never uses its parent's sessions.

use crate::link::Link;
use crate::names::setting;
use crate::pays;
use core::ptr;
use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering,
};
use parking_lot::Mutex;
use shale_fd::mounts::{self, MOUNTS};
use shale_fd::{mapped, own, placeholder};
use shale_format::Durability;
use shale_interpose::clock;
use shale_interpose::protect;
use shale_interpose::thread;
use shale_libfs::{Caller, Errno, Session, SessionMaps, SessionOptions};
use shale_nvm::MapOptions;
use shale_proto::{Channel, Reply, Request, SocketChannel};
use shale_sys::{SystemClock, size};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A session with one mount.
pub struct Client {
    /// Distinguished from all other clients of this process, also those that were freed.
    pub number: u64,
    /// The session.
    pub session: Arc<Session>,
    /// Its connection.
    pub link: Arc<Link>,
    /// [`Session::leases_taken`] when that was looked at last.
    taken_before: AtomicU32,
}

impl Client {
    /// How many leases that this process alone had were taken for others since this was asked last.
    pub fn newly_taken(&self) -> u32 {
        let taken = self.session.leases_taken();
        match self.taken_before.load(Ordering::Relaxed) {
            before if before == taken => 0,
            _ => taken.wrapping_sub(self.taken_before.swap(taken, Ordering::Relaxed)),
        }
    }
}

static CLIENT: [AtomicPtr<Client>; MOUNTS] = [const { AtomicPtr::new(ptr::null_mut()) }; MOUNTS];
/// After a failure: when to try again, ns.
static AGAIN_NS: [AtomicI64; MOUNTS] = [const { AtomicI64::new(0) }; MOUNTS];
/// Number of the next client.
static NUMBER: AtomicU64 = AtomicU64::new(1);
static EVER_ATTACHED: AtomicBool = AtomicBool::new(false);
static ATTACHING: Mutex<()> = Mutex::new(());
/// Clients that nobody finds any more. A leaf among the locks.
static ASIDE: Mutex<Vec<Aside>> = Mutex::new(Vec::new());
/// Whether there are any.
static ANY_ASIDE: AtomicBool = AtomicBool::new(false);

/// A client that some threads may be using still.
struct Aside {
    /// From a box. No box before it is freed: others have references.
    client: AtomicPtr<Client>,
    /// Those that may.
    busy: thread::Busy,
}
/// Bytes of the update log to ask for; 0: what the volume has for a process.
static LOG_BYTES: AtomicU64 = AtomicU64::new(0);
/// Number of the durability policy to ask for; 0: the volume's.
static DURABILITY: AtomicU8 = AtomicU8::new(0);
/// Effective user, and whether it has to be asked for again.
static EUID: AtomicU32 = AtomicU32::new(NOT_KNOWN);
const NOT_KNOWN: u32 = u32::MAX - 1;

/// Time between two tries to reach a daemon.
const RETRY_NS: i64 = 1_000_000_000;
/// How long `syncfs` waits for the next daemon, and how long `sync` does, which cannot report a failure.
const SYNC_PATIENCE_NS: i64 = 30 * 1_000_000_000;
const SYNC_ALL_PATIENCE_NS: i64 = 5 * 1_000_000_000;
/// Between two tries.
const SYNC_PAUSE: Duration = Duration::from_millis(20);
/// A daemon that refuses will do so again.
const REFUSED_RETRY_NS: i64 = 3600 * 1_000_000_000;

/// Takes settings from the environment.
pub fn configure() {
    if let Ok(text) = std::env::var("SHALE_LOG_BYTES") {
        match size::parse(&text) {
            Ok(bytes) => LOG_BYTES.store(bytes, Ordering::Relaxed),
            Err(_) => shale_fd::warning::warn(&format!(
                "SHALE_LOG_BYTES={text} is no size; write for example 64M: the volume's is used"
            )),
        }
    }
    if let Ok(text) = std::env::var("SHALE_DURABILITY") {
        match text.parse::<Durability>() {
            Ok(policy) => DURABILITY.store(policy as u8, Ordering::Relaxed),
            Err(why) => {
                shale_fd::warning::warn(&format!("SHALE_DURABILITY: {why}: the volume's is used"));
            }
        }
    }
}

/// Says, once, that the log is not as large as was asked for.
fn check_log_bytes(session: &Session) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let (asked, has) = (LOG_BYTES.load(Ordering::Relaxed), session.log_bytes());
    if asked != 0 && asked != has && !SAID.swap(true, Ordering::Relaxed) {
        let limit = if asked > has { "most" } else { "least" };
        shale_fd::warning::warn(&format!(
            "SHALE_LOG_BYTES={asked}: a log of this volume has at {limit} {has} bytes (log_bytes in its volume file): {has} are used"
        ));
    }
}

/// Whether this process is a client of the mount already.
pub fn is_attached(mount: u32) -> bool {
    current(mount).is_some()
}

/// Whether this process is, was or is becoming a client of any mount.
#[inline]
pub fn ever_attached() -> bool {
    EVER_ATTACHED.load(Ordering::Acquire)
}

/// The client of a mount, if this process is one; of [`NOT_PLACED`](shale_fd::description::NOT_PLACED) none.
#[inline]
pub fn current(mount: u32) -> Option<&'static Client> {
    let client = CLIENT.get(mount as usize)?.load(Ordering::Acquire);
    // SAFETY: the pointer came from a box. The calling thread is busy, so the box is not freed before
    // its call has ended, and the reference is not used longer.
    unsafe { client.as_ref() }
}

/// The client of a mount; attaches if that was not done and pays. `None`: not possible now.
#[inline]
pub fn get(mount: u32) -> Option<&'static Client> {
    current(mount).or_else(|| pays::may_attach().then(|| attach(mount)).flatten())
}

/// Whether it is not too early to try again to become a client, after the daemon was not there or has refused.
pub fn can_attach(mount: u32) -> bool {
    let again = AGAIN_NS[mount as usize].load(Ordering::Relaxed);
    again == 0 || clock::now_ns() >= again
}

/// As [`get`], whatever it pays.
pub fn get_now(mount: u32) -> Option<&'static Client> {
    current(mount).or_else(|| attach(mount))
}

#[cold]
fn attach(mount: u32) -> Option<&'static Client> {
    let slot = &CLIENT[mount as usize];
    if !can_attach(mount) {
        return None;
    }
    let _one = ATTACHING.lock();
    free_unused();
    let there = slot.load(Ordering::Acquire);
    if !there.is_null() {
        // SAFETY: as in `current`.
        return unsafe { there.as_ref() };
    }
    match connect(mount) {
        Ok(client) => {
            let client = Box::leak(Box::new(client));
            slot.store(client, Ordering::Release);
            Some(client)
        }
        Err(e) => {
            let refused = matches!(e, Errno::PERM | Errno::ACCESS);
            let wait = if refused { REFUSED_RETRY_NS } else { RETRY_NS };
            AGAIN_NS[mount as usize].store(clock::now_ns() + wait, Ordering::Relaxed);
            shale_fd::report::attach_failed(e.raw_os_error());
            None
        }
    }
}

fn connect(mount: u32) -> Result<Client, Errno> {
    let place = mounts::get(mount).ok_or(Errno::NODEV)?;
    if !thread::register_barriers() {
        return Err(Errno::NOSYS);
    }
    let link = Arc::new(Link::connect(&place.socket).map_err(|_| Errno::CONNREFUSED)?);
    let options = SessionOptions {
        log_bytes: LOG_BYTES.load(Ordering::Relaxed),
        durability: Durability::from_number(DURABILITY.load(Ordering::Relaxed)),
        // With names in the process no kernel has references to what is opened here.
        kernel_references: !setting::are_wanted(),
        yields: true,
        ..SessionOptions::default()
    };
    let clock = Arc::new(SystemClock::new());
    let protected = || MapOptions::new().protect(protect::key());
    let maps = SessionMaps {
        nvm: protected(),
        log: protected(),
        buffer: protected(),
        client_page: protected(),
    };
    let recent = Default::default();
    let session = Session::attach_mapped(link.clone(), clock, recent, options, &maps)?;
    check_log_bytes(&session);
    // What is mapped from now on is noted by the thread that maps it, and what was mapped before is there.
    EVER_ATTACHED.store(true, Ordering::Release);
    thread::barrier();
    if !mapped::note_present(mount, place.device) {
        return Err(Errno::NOENT);
    }
    shale_fd::report::attached();
    Ok(Client {
        taken_before: AtomicU32::new(0),
        number: NUMBER.fetch_add(1, Ordering::Relaxed),
        session,
        link,
    })
}

/// Frees clients that were retired and that nobody can be using any more.
fn free_unused() {
    let unused: Vec<Aside> = {
        let mut aside = ASIDE.lock();
        let unused = aside.extract_if(.., |a| a.busy.have_ended()).collect();
        ANY_ASIDE.store(!aside.is_empty(), Ordering::Relaxed);
        unused
    };
    for mut unused in unused {
        // SAFETY: from a box, taken out of sight once, and a thread that had found it before is done with it.
        // Some milliseconds: unmapped, closed.
        drop(unsafe { Box::from_raw(*unused.client.get_mut()) });
    }
}

/// Sets a client aside whose daemon is gone or has cut it off. `false`: it is all right.
pub fn set_aside_if_lost(mount: u32, client: &'static Client) -> bool {
    let lost = client.link.is_broken() || !client.session.is_served();
    if lost && is_taken_away(mount, client) {
        shale_fd::report::lost();
    }
    lost
}

/// Takes a client out of sight, to be freed when nobody can be using it.
fn is_taken_away(mount: u32, client: &'static Client) -> bool {
    let slot = &CLIENT[mount as usize];
    let client = ptr::from_ref(client).cast_mut();
    let was_there = slot
        .compare_exchange(client, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed)
        .is_ok();
    if was_there {
        let busy = thread::Busy::now();
        let client = AtomicPtr::new(client);
        placeholder::lose();
        ASIDE.lock().push(Aside { client, busy });
        ANY_ASIDE.store(true, Ordering::Release);
    }
    was_there
}

/// Ends the session with a mount of which no file is served any more, and no names: as long as there are clients the
/// kernel may not keep attributes of any file.
pub fn part(mount: u32, client: &'static Client) {
    if !setting::have_served() && is_taken_away(mount, client) {
        pays::parted();
    }
}

/// Has everything made durable that any client of a mount has logged, whether or not this process is one.
pub fn harden_all(mount: u32) -> Result<(), Errno> {
    harden_within(mount, SYNC_PATIENCE_NS)
}

/// The same of every mount of which this process is a client, that it has met, or that it can find. As sync(2), it tells nobody what failed.
pub fn harden_all_mounts() {
    let met: Vec<PathBuf> = (0..mounts::count())
        .filter_map(|mount| {
            let _ = harden_within(mount, SYNC_ALL_PATIENCE_NS);
            mounts::get(mount).map(|place| place.socket)
        })
        .collect();
    let others = shale_proto::mounts::sockets().into_iter();
    for socket in others.filter(|socket| !met.contains(socket)) {
        let _ = ask_to_harden(&socket, 0);
    }
}

fn harden_within(mount: u32, patience_ns: i64) -> Result<(), Errno> {
    if let Some(client) = current(mount) {
        match client.session.sync_all() {
            // Of a lost session the daemon has what was logged: the next one is asked for it.
            Err(_) if set_aside_if_lost(mount, client) => {}
            done => return done,
        }
    }
    let place = mounts::get(mount).ok_or(Errno::NODEV)?;
    ask_to_harden(&place.socket, patience_ns)
}

/// Asks the daemon, without becoming its client; the next one if this one ends before it answers.
fn ask_to_harden(socket: &Path, patience_ns: i64) -> Result<(), Errno> {
    let deadline = clock::now_ns() + patience_ns;
    loop {
        let channel = SocketChannel::connect_placed(socket, own::hide);
        match channel.and_then(|channel| channel.call(Request::HardenAll)) {
            Ok((Reply::Done, _)) => return Ok(()),
            Ok((Reply::Refused { errno, .. }, _)) => return Err(Errno::from_raw_os_error(errno)),
            Ok(_) => return Err(Errno::PROTO),
            Err(_) if clock::now_ns() < deadline && socket.exists() => {
                std::thread::sleep(SYNC_PAUSE);
            }
            Err(_) => return Err(Errno::IO),
        }
    }
}

/// Frees what was retired, if that can be done now. For calls that go through the mount.
#[inline]
pub fn tidy() {
    if ANY_ASIDE.load(Ordering::Relaxed)
        && let Some(_one) = ATTACHING.try_lock()
    {
        free_unused();
    }
}

/// In a child: no client of anything.
pub fn forget_all() {
    for slot in &CLIENT {
        slot.store(ptr::null_mut(), Ordering::Release);
    }
    pays::begin_again();
    for again in &AGAIN_NS {
        again.store(0, Ordering::Relaxed);
    }
    // A thread of the parent may have held a lock in the moment that was copied.
    // SAFETY: the child has one thread, this one, so nobody else can hold or take a lock.
    unsafe {
        if ATTACHING.is_locked() {
            ATTACHING.force_unlock();
        }
        if ASIDE.is_locked() {
            ASIDE.force_unlock();
        }
    }
    // They are the parent's, and in its child not whole.
    core::mem::forget(core::mem::take(&mut *ASIDE.lock()));
    ANY_ASIDE.store(false, Ordering::Relaxed);
}

/// Nothing is served any more, and nobody is inside: ends all sessions. The daemon brings what they have
/// logged into the volume.
pub fn drop_all(thread: &thread::Thread) {
    thread.inside.store(1, Ordering::Relaxed);
    for slot in &CLIENT {
        let client = slot.swap(ptr::null_mut(), Ordering::AcqRel);
        if !client.is_null() {
            // SAFETY: it came from a box, and threads that used it are gone.
            drop(unsafe { Box::from_raw(client) });
        }
    }
    free_unused();
    thread.inside.store(0, Ordering::Relaxed);
}

/// The user may have changed.
pub fn forget_user() {
    EUID.store(NOT_KNOWN, Ordering::Relaxed);
}

/// Who calls.
#[inline]
pub fn caller() -> Caller {
    let mut uid = EUID.load(Ordering::Relaxed);
    if uid == NOT_KNOWN {
        uid = rustix::process::geteuid().as_raw();
        EUID.store(uid, Ordering::Relaxed);
    }
    Caller {
        uid,
        ..Caller::default()
    }
}
