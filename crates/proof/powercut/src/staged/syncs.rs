//! sync: what all clients did before it is durable, in one commit, also beside a client that lies.

use super::stage::{DEVICE_BYTES, Recorded, Stage, restore};
use crate::volume::sessions::{clock, side};
use crate::workloads::campaign::Switched;
use shale_block::Ask;
use shale_daemon::{Daemon, StagedStatus};
use shale_format::Durability;
use shale_format::limits::BLOCK_BYTES;
use shale_libfs::{Caller, Session, SessionOptions, WriteFlags};
use shale_model::Snapshot;
use shale_nvm::{Access, Map, Piece};
use shale_proto::message::PROTO_VERSION;
use shale_proto::shared_pages::client_page;
use shale_proto::{Handler, InProcess, Reply, Request};
use shale_record::{BlockReplay, BlockRules, Choice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub(super) const ROOT: Caller = Caller {
    uid: 0,
    gid: 0,
    groups: &[],
    pid: 0,
    umask: 0,
    request: 0,
};

/// A daemon, and clients with a file each.
pub(super) struct Scene {
    stage: Stage,
    contents: Vec<u8>,
    recorded: Recorded,
    daemon: Arc<Daemon>,
    pub(super) clients: Vec<(Arc<Session>, u64)>,
}

impl Scene {
    pub(super) fn new(clients: usize, answer: impl Fn(Ask) + Send + Sync + 'static) -> Self {
        let made = Stage::new(Path::new("/dev/shm"), Durability::Buffered, DEVICE_BYTES);
        let (stage, contents) = made.expect("it is made");
        let recorded = Recorded::asking(contents.clone(), move |ask| {
            answer(ask);
            Ok(())
        });
        let daemon = stage.start(&recorded).unwrap();
        let sessions: Vec<_> = (0..clients).map(|_| attach(&daemon)).collect();
        let made = |(n, session): (usize, &Arc<Session>)| {
            let name = format!("f{n}");
            let made = session.create(&ROOT, 1, name.as_bytes(), 0o600, 0);
            made.unwrap().ino
        };
        let inos: Vec<u64> = sessions.iter().enumerate().map(made).collect();
        let clients = sessions.into_iter().zip(inos).collect();
        let scene = Self {
            stage,
            contents,
            recorded,
            daemon,
            clients,
        };
        // Leases on the directory have moved; nothing moves any more.
        scene.write(0, b"first");
        scene.clients[0].0.sync_all().unwrap();
        scene
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        for (session, ino) in &self.clients {
            let flags = WriteFlags::default();
            session.write(&ROOT, *ino, at, bytes, flags).unwrap();
        }
    }

    pub(super) fn staged(&self) -> StagedStatus {
        self.daemon.status_values().staged.expect("it is staged")
    }

    pub(super) fn end(self) {
        drop(self.clients);
        self.daemon.abandon();
        self.stage.lose(0);
    }
}

fn attach(daemon: &Daemon) -> Arc<Session> {
    let channel = Arc::new(InProcess(daemon.attach_in_process(0)));
    let options = SessionOptions::default();
    Session::attach(channel, clock(), Default::default(), options).unwrap()
}

/// The tree when a sync has returned before which several clients have written, and that after a power cut then: of its cache the
/// device keeps nothing.
fn cut_after_sync(mutant: Option<&'static str>) -> (Snapshot, Snapshot) {
    let scene = Scene::new(4, |_| ());
    scene.write(8, b"second");
    {
        let _switched = Switched::on(mutant, false);
        scene.clients[1].0.sync_all().unwrap();
    }
    let steps = scene.recorded.steps();
    // Reading moves leases, which hardens more: after the cut.
    let mut side = side(&scene.clients[0].0);
    let tree = Snapshot::of(&mut side).unwrap();
    let noted = std::mem::take(&mut *scene.recorded.noted.lock());
    let contents = vec![scene.contents.clone()];
    let mut replay = BlockReplay::new(&noted, contents, BlockRules::default());
    while replay.at() < steps && replay.step() {}
    let image = replay.images(512, &Choice::None).pop().unwrap();
    let (found, ..) = restore(&scene.stage, 1, image).unwrap();
    drop(side);
    scene.end();
    (tree, found)
}

#[test]
fn what_all_clients_did_survives_a_cut_after_a_sync() {
    let (tree, found) = cut_after_sync(None);
    assert!(tree == found, "{}", tree.differences(&found).join("; "));
}

#[cfg(feature = "mutants")]
#[test]
fn a_sync_that_leaves_the_logs_of_others_is_found() {
    let (tree, found) = cut_after_sync(Some("sync-others-left"));
    let differences = tree.differences(&found);
    // The one that asked has its own.
    assert_eq!(differences.len(), 3, "{differences:?}");
}

#[test]
fn a_sync_of_many_clients_is_one_commit() {
    let scene = Scene::new(6, |_| ());
    scene.write(8, b"second");
    let before = scene.staged();
    assert!(before.unhardened_bytes > 0);
    scene.clients[5].0.sync_all().unwrap();
    let after = scene.staged();
    assert_eq!(after.unhardened_bytes, 0);
    // The daemon's own thread may have written one meanwhile.
    let commits = after.commits - before.commits;
    assert!((1..=2).contains(&commits), "{commits} commits");
    scene.end();
}

/// A client that says that it has published what its log does not hold, as its file ends before it.
fn liar(daemon: &Daemon) -> Arc<dyn Handler> {
    let connection = daemon.attach_as(0, &[0]);
    let ask = Request::Attach {
        version: PROTO_VERSION,
        log_bytes: 0,
        durability: 0,
    };
    let (reply, mut fds) = connection.handle(ask);
    assert!(matches!(reply, Reply::Attached(_)), "{reply:?}");
    rustix::fs::ftruncate(&fds[0], 0).unwrap();
    let (fd, bytes) = (fds.swap_remove(2), client_page::BYTES);
    let page = Map::open(vec![Piece { fd, bytes }], Access::ReadWrite).unwrap();
    page.store_u64(client_page::PUBLISHED, 64 << 10);
    connection
}

#[test]
fn a_client_that_lies_takes_nobody_elses_promise() {
    let scene = Scene::new(1, |_| ());
    let liars: Vec<_> = (0..12).map(|_| liar(&scene.daemon)).collect();
    let last = attach(&scene.daemon);
    let ino = last.create(&ROOT, 1, b"last", 0o600, 0).unwrap().ino;
    // So much that no batch has space for as many of it as there are liars.
    scene.write(0, &vec![1; 200 * BLOCK_BYTES]);
    let bytes = vec![2; 10 * BLOCK_BYTES];
    last.write(&ROOT, ino, 0, &bytes, WriteFlags::default())
        .unwrap();
    let (of_liars, all) = (12 * (64 << 10), scene.staged().unhardened_bytes);
    assert!(all > of_liars + 200 * BLOCK_BYTES as u64, "{all}");
    scene.clients[0].0.sync_all().unwrap();
    assert_eq!(scene.staged().unhardened_bytes, of_liars);
    // The client that lies gets the error itself.
    let reply = liars[0].handle(Request::HardenAll).0;
    assert!(
        matches!(reply, Reply::Refused { errno: 5, .. }),
        "{reply:?}"
    );
    drop((liars, last));
    scene.end();
}

#[test]
fn a_user_who_may_not_attach_may_ask() {
    let scene = Scene::new(2, |_| ());
    scene.write(8, b"second");
    let stranger = scene.daemon.attach_as(4711, &[4711]);
    assert_eq!(stranger.handle(Request::HardenAll).0, Reply::Done);
    assert_eq!(scene.staged().unhardened_bytes, 0);
    scene.end();
}

/// An fsync beside programs that do nothing but sync.
#[test]
fn an_fsync_is_held_up_by_syncs_no_more_than_by_other_fsyncs() {
    const FSYNCS: u64 = 21;
    let scene = Scene::new(6, |ask| {
        if matches!(ask, Ask::Write) {
            thread::sleep(Duration::from_millis(10));
        }
    });
    let ended = AtomicBool::new(false);
    let mut counts = Vec::new();
    thread::scope(|scope| {
        let (first, others) = scene.clients.split_first().unwrap();
        for (session, ino) in others {
            let ended = &ended;
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    let flags = WriteFlags::default();
                    session.write(&ROOT, *ino, 0, b"again", flags).unwrap();
                    session.sync_all().unwrap();
                }
            });
        }
        let (session, ino) = first;
        for at in 0..FSYNCS {
            let flags = WriteFlags::default();
            session
                .write(&ROOT, *ino, at * 8, b"12345678", flags)
                .unwrap();
            let before = scene.staged().commits;
            session.fsync(&ROOT, *ino, true).unwrap();
            counts.push(scene.staged().commits - before);
        }
        ended.store(true, Ordering::Relaxed);
    });
    counts.sort_unstable();
    // The one that is on its way, and its own. Some are counted late on a busy machine, so half of them have to be right.
    let half = counts[counts.len() / 2];
    assert!(half <= 3, "commits for each fsync: {counts:?}");
    scene.end();
}
