//! Which calls wait until what they did survives a power cut: a memory error in the log, which keeps a record from being
//! there, is reported by those that do.

use crate::place::{ME, Place};
use rustix::fs::OFlags;
use shale_format::Durability;
use shale_format::log::RING_AT;
use shale_libfs::inode_flag::{DIR_SYNC, NO_DUMP, SYNC};
use shale_libfs::{Errno, Session, SessionOptions, SetAttr, WriteFlags};
use shale_proto::{Channel, InProcess, ProtoError, Reply, Request};
use shale_sys::SystemClock;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// Passes messages on. The volume has another policy than it says, and the log's file is known.
struct Requests {
    to: InProcess,
    policy: Durability,
    log: Mutex<Option<OwnedFd>>,
}

impl Channel for Requests {
    fn call(&self, request: Request) -> Result<(Reply, Vec<OwnedFd>), ProtoError> {
        let (mut reply, fds) = self.to.call(request)?;
        if let Reply::Attached(attached) = &mut reply {
            attached.durability = self.policy as u8;
            *self.log.lock().unwrap() = Some(fds[0].try_clone().unwrap());
        }
        Ok((reply, fds))
    }
}

/// A volume, a client of it for whom it has that policy, and the client's file.
struct Client {
    session: Arc<Session>,
    requests: Arc<Requests>,
    ino: u64,
    place: Place,
}

impl Client {
    fn new(policy: Durability) -> Self {
        let place = Place::new(34);
        let requests = Arc::new(Requests {
            to: InProcess(place.daemon().attach_as(0, &[0])),
            policy,
            log: Mutex::default(),
        });
        let clock = Arc::new(SystemClock::new());
        let options = SessionOptions::default();
        let session =
            Session::attach(requests.clone(), clock, Default::default(), options).unwrap();
        let ino = session.create(&ME, 1, b"f", 0o644, 0).unwrap().ino;
        Self {
            session,
            requests,
            ino,
            place,
        }
    }

    /// The next record goes to memory that is not there any more.
    fn lose_log(&self) {
        let log = self.requests.log.lock().unwrap();
        rustix::fs::ftruncate(log.as_ref().unwrap(), RING_AT as u64).unwrap();
    }

    fn write(&self, flags: WriteFlags) -> Result<usize, Errno> {
        self.session.write(&ME, self.ino, 0, b"0123456789", flags)
    }

    fn end(mut self) {
        self.place.kill();
    }
}

const PLAIN: WriteFlags = WriteFlags {
    kill_suidgid: false,
    append: false,
    sync: false,
};
const SYNCED: WriteFlags = WriteFlags {
    sync: true,
    ..PLAIN
};

#[test]
fn a_strict_call_waits() {
    let client = Client::new(Durability::Strict);
    assert!(client.session.is_durable_at_return());
    assert_eq!(client.write(PLAIN), Ok(10));
    assert_eq!(client.session.fsync(&ME, client.ino, false), Ok(()));
    client.lose_log();
    assert_eq!(client.write(PLAIN), Err(Errno::IO));
    client.end();
}

#[test]
fn a_buffered_call_leaves_it_to_fsync() {
    let client = Client::new(Durability::Buffered);
    assert!(!client.session.is_durable_at_return());
    client.lose_log();
    assert_eq!(client.write(PLAIN), Ok(10));
    assert!(client.session.is_served());
    assert_eq!(
        client.session.fsync(&ME, client.ino, true),
        Err(Errno::IO),
        "fdatasync"
    );
    assert_eq!(client.session.sync_all(), Err(Errno::IO));
    client.end();
}

#[test]
fn a_buffered_call_with_sync_waits() {
    let client = Client::new(Durability::Buffered);
    client.lose_log();
    assert_eq!(client.write(SYNCED), Err(Errno::IO));
    client.end();
}

/// What it does not wait for it cannot report, but for a log in memory that is not there.
#[test]
fn an_ordered_fsync_reports_a_log_that_is_lost() {
    let client = Client::new(Durability::Ordered);
    assert!(!client.session.is_durable_at_return() && client.session.needs_no_fsync());
    assert_eq!(client.write(SYNCED), Ok(10));
    client.lose_log();
    assert_eq!(client.write(PLAIN), Ok(10));
    let fsync = client.session.fsync(&ME, client.ino, true);
    assert_eq!(fsync, Err(Errno::IO));
    assert_eq!(client.write(SYNCED), Err(Errno::IO));
    client.end();
}

/// By counts: what 50 writes of whole blocks with `O_SYNC`, each followed by fsync, have stored and fenced in NVM.
#[test]
fn an_ordered_fsync_copies_and_fences_nothing() {
    let mut place = Place::new(96);
    for policy in [Durability::Buffered, Durability::Ordered] {
        let session = place.attach_with(SessionOptions {
            durability: Some(policy),
            ..SessionOptions::default()
        });
        let name = policy.name().as_bytes();
        let ino = session.create(&ME, 1, name, 0o644, 0).unwrap().ino;
        let data = vec![7; 4096];
        session.write(&ME, ino, 0, &data, SYNCED).unwrap();
        let before = (session.log_counts(), session.nvm_counts());
        for n in 1..=50 {
            session.write(&ME, ino, n * 4096, &data, SYNCED).unwrap();
            session.fsync(&ME, ino, false).unwrap();
        }
        let log = (session.log_counts() - before.0).total();
        let nvm = (session.nvm_counts() - before.1).total();
        let found = [log.fences, nvm.fences, log.bytes_stored, nvm.bytes_stored];
        match policy {
            Durability::Ordered => assert_eq!(found, [0; 4], "log and blocks"),
            _ => assert!(log.fences >= 50 && nvm.fences >= 50, "{found:?}"),
        }
        session.sync_all().unwrap();
        session.detach().unwrap();
    }
    place.stop();
    place.check();
}

/// Ring of the logs of these volumes.
const RING: u64 = 16 << 20;

/// The copy of the log in NVM is made present in steps, as the log of a strict client is: a fault for each page costs three times that.
#[test]
fn an_fsync_has_the_next_pages_of_the_log_in_nvm_present() {
    let mut place = Place::new(96);
    let session = place.attach_with(SessionOptions {
        durability: Some(Durability::Buffered),
        ..SessionOptions::default()
    });
    let ino = session.create(&ME, 1, b"f", 0o644, 0).unwrap().ino;
    let before = place.log_bytes_mapped(0);
    session.write(&ME, ino, 0, &[7; 1000], PLAIN).unwrap();
    assert_eq!(place.log_bytes_mapped(0), before, "memory alone");
    session.fsync(&ME, ino, false).unwrap();
    let once = place.log_bytes_mapped(0) - before;
    assert!((120 << 10..200 << 10).contains(&once), "{once}");
    session.write(&ME, ino, 1000, &[7; 1000], PLAIN).unwrap();
    session.fsync(&ME, ino, false).unwrap();
    assert_eq!(place.log_bytes_mapped(0) - before, once);
    // More than a step at once, which none of its blocks is spared.
    for n in 0..500 {
        session
            .write(&ME, ino, n * 4000, &[8; 3000], PLAIN)
            .unwrap();
    }
    session.fsync(&ME, ino, false).unwrap();
    let mapped = place.log_bytes_mapped(0) - before;
    assert!((1500 << 10..2200 << 10).contains(&mapped), "{mapped}");
    session.detach().unwrap();
    place.stop();
    place.check();
}

/// As its log in memory is.
#[test]
fn the_log_in_nvm_of_a_session_that_stays_is_present_where_fsync_copies() {
    for policy in [Durability::Buffered, Durability::Ordered] {
        let mut place = Place::new(96);
        let channel = Arc::new(InProcess(place.daemon().attach_in_process(0)));
        let options = SessionOptions {
            durability: Some(policy),
            present: true,
            ..SessionOptions::default()
        };
        let clock = Arc::new(SystemClock::new());
        let session = Session::attach(channel, clock, Default::default(), options).unwrap();
        let mapped = place.log_bytes_mapped(0);
        match policy {
            Durability::Ordered => assert!(mapped < RING * 3 / 2, "the daemon's: {mapped}"),
            _ => assert!(mapped >= 2 * RING, "{mapped}"),
        }
        session.detach().unwrap();
        place.stop();
        place.check();
    }
}

#[test]
fn a_large_buffered_call_with_sync_waits() {
    let client = Client::new(Durability::Buffered);
    client.lose_log();
    let (session, data) = (&client.session, vec![7; 3 << 20]);
    assert_eq!(
        session.write(&ME, client.ino, 1, &data, SYNCED),
        Err(Errno::IO)
    );
    client.end();
}

#[test]
fn a_file_that_is_open_for_it_waits() {
    for (flags, expected) in [
        (OFlags::empty(), Ok(10)),
        (OFlags::DSYNC, Err(Errno::IO)),
        (OFlags::SYNC, Err(Errno::IO)),
    ] {
        let client = Client::new(Durability::Buffered);
        let file = client.session.open(&ME, b"f", OFlags::RDWR | flags, 0);
        let file = file.unwrap();
        client.lose_log();
        assert_eq!(file.write(b"0123456789"), expected, "{flags:?}");
        drop(file);
        client.end();
    }
}

/// A client as the mount is one: nobody else may set flags.
fn attach(place: &Place, policy: Durability) -> Arc<Session> {
    let channel = Arc::new(InProcess(place.daemon().attach_in_process(0)));
    let options = SessionOptions {
        durability: Some(policy),
        ..SessionOptions::default()
    };
    let clock = Arc::new(SystemClock::new());
    Session::attach(channel, clock, Default::default(), options).unwrap()
}

/// Whether a call of a buffered client has copied something to NVM when it returns.
#[track_caller]
fn is_durable<T>(session: &Session, call: impl FnOnce() -> Result<T, Errno>) -> bool {
    let fences = || session.log_counts().total().fences;
    let before = fences();
    call().unwrap();
    fences() > before
}

/// ext4 keeps both flags of directories, `S` of files, and none of what is neither.
#[test]
fn what_is_made_in_a_directory_that_is_synced_inherits_it() {
    let mut place = Place::new(64);
    let session = attach(&place, Durability::Buffered);
    let dir = session.mkdir(&ME, 1, b"d", 0o755).unwrap().ino;
    let flags = SYNC | DIR_SYNC | NO_DUMP;
    session.set_inode_flags(&ME, dir, flags).unwrap();
    let below = session.mkdir(&ME, dir, b"below", 0o755).unwrap().ino;
    let file = session.create(&ME, below, b"f", 0o644, 0).unwrap().ino;
    session.symlink(&ME, below, b"l", b"f").unwrap();
    let moved = session.create(&ME, 1, b"moved", 0o644, 0).unwrap().ino;
    session
        .rename(&ME, (1, b"moved"), (dir, b"moved"), 0)
        .unwrap();
    let expected = [
        (dir, flags),
        (below, flags),
        (file, SYNC | NO_DUMP),
        (moved, 0),
    ];
    for (ino, flags) in expected {
        assert_eq!(session.inode_flags(&ME, ino), Ok(flags));
    }
    // Of a file `D` means nothing.
    session
        .set_inode_flags(&ME, moved, SYNC | DIR_SYNC)
        .unwrap();
    assert_eq!(session.inode_flags(&ME, moved), Ok(SYNC));
    session.set_inode_flags(&ME, moved, 0).unwrap();
    session.detach().unwrap();
    // What digest made of it.
    let again = attach(&place, Durability::Buffered);
    for (ino, flags) in expected {
        assert_eq!(again.inode_flags(&ME, ino), Ok(flags));
    }
    again.detach().unwrap();
    place.stop();
    place.check();
}

#[test]
fn calls_on_what_is_synced_are_durable_when_they_return() {
    let mut place = Place::new(64);
    let session = attach(&place, Durability::Buffered);
    for (n, flags) in [0, SYNC, DIR_SYNC].into_iter().enumerate() {
        let name = [b'a' + n as u8];
        let dir = session.mkdir(&ME, 1, &name, 0o755).unwrap().ino;
        let set = is_durable(&session, || session.set_inode_flags(&ME, dir, flags));
        assert_eq!(set, flags != 0);
        let durable = |what: &str, call: &dyn Fn() -> Result<(), Errno>, expected| {
            let found = is_durable(&session, call);
            assert_eq!(found, expected, "{what} with flags {flags:#x}");
        };
        let done = |made: Result<_, Errno>| made.map(|_: shale_libfs::Attr| ());
        let names = flags != 0;
        durable(
            "create",
            &|| done(session.create(&ME, dir, b"f", 0o644, 0)),
            names,
        );
        durable(
            "mkdir",
            &|| done(session.mkdir(&ME, dir, b"e", 0o755)),
            names,
        );
        durable(
            "symlink",
            &|| done(session.symlink(&ME, dir, b"l", b"f")),
            names,
        );
        durable(
            "rename",
            &|| session.rename(&ME, (dir, b"l"), (dir, b"k"), 0),
            names,
        );
        durable("unlink", &|| session.unlink(&ME, dir, b"k"), names);
        durable("rmdir", &|| session.rmdir(&ME, dir, b"e"), names);
        let file = session.lookup(&ME, dir, b"f").unwrap().ino;
        let content = flags == SYNC;
        let write = |bytes: usize| session.write(&ME, file, 0, &vec![7; bytes], PLAIN);
        durable("write", &|| write(100).map(|_| ()), content);
        durable("large write", &|| write(3 << 20).map(|_| ()), content);
        let size = |bytes| SetAttr {
            size: Some(bytes),
            ..SetAttr::default()
        };
        let cut = |bytes| done(session.setattr(&ME, file, &size(bytes)));
        durable("truncate", &|| cut(5), content);
        durable(
            "fallocate",
            &|| session.fallocate(&ME, file, 0, 0, 9_000),
            content,
        );
        durable(
            "read",
            &|| session.read(&ME, file, 0, &mut [0; 5]).map(|_| ()),
            false,
        );
    }
    session.detach().unwrap();
    place.stop();
    place.check();
}

#[test]
fn what_is_synced_orders_alone_where_fsync_does() {
    let mut place = Place::new(64);
    let session = attach(&place, Durability::Ordered);
    let file = session.create(&ME, 1, b"f", 0o644, 0).unwrap().ino;
    session.set_inode_flags(&ME, file, SYNC).unwrap();
    let write = || session.write(&ME, file, 0, b"0123456789", PLAIN);
    assert!(!is_durable(&session, write));
    session.detach().unwrap();
    place.stop();
    place.check();
}
