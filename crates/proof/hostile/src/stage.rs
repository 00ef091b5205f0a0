//! A volume with things of several users, an honest client at work, and what must hold
//! after an attack.

use super::attacker::{Attacker, MALLORY};
use super::lists::list;
use super::served::{Hand, Place, create_body, start};
use parking_lot::Mutex;
use shale_check::{CheckOptions, check_volume_dir};
use shale_daemon::Daemon;
use shale_format::checksum::crc32c;
use shale_format::inode::flag as inode_flag;
use shale_format::limits::LOG_BYTES_MIN;
use shale_format::record::{CreateBody, SetAttrBody, attr};
use shale_format::xattr::Xattrs;
use shale_format::{DirKey, FileBlock, Ino};
use shale_model::acl::ACCESS;
use shale_oplog::encode;
use shale_proto::{Reply, Request};
use shale_volume::{Inode, Mapping, View};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

/// What an attack finds.
#[derive(Clone, Debug, Default)]
pub struct Things {
    /// Root's file that Mallory may not read: mode 0400.
    pub secret: u64,
    /// Root's file that all may write, with set-user-id.
    pub suid: u64,
    /// Root's directory that only root may write, and a file in it.
    pub closed: u64,
    pub inside: u64,
    /// A sticky directory of root, with a file of root.
    pub sticky: u64,
    pub stuck: u64,
    /// Root's files and directories that all may write, but for their flags: an immutable file, one that is
    /// appended only, an immutable directory with a file, one that names are added to only, with a file.
    pub fixed: u64,
    pub grows: u64,
    pub fixed_dir: u64,
    pub fixed_in: u64,
    pub grows_dir: u64,
    pub grows_in: u64,
    /// Root's file and directory, with a file, that all may change but Mallory: a list says so.
    pub listed: u64,
    pub listed_dir: u64,
    pub listed_in: u64,
    /// Mallory's directory.
    pub mine: u64,
    /// Where the honest client works.
    pub honest: u64,
}

pub struct Stage {
    pub place: Place,
    pub daemon: Arc<Daemon>,
    pub things: Things,
    before: Snapshot,
    worker: Option<std::thread::JoinHandle<Hand>>,
    stop: Arc<AtomicBool>,
    listens: Mutex<bool>,
}

fn body(mode: u32, uid: u32) -> CreateBody {
    CreateBody {
        mode,
        uid,
        gid: uid,
        ..create_body()
    }
}

/// Panics of the daemon's own threads. In its own process the first one ends it.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Has panics of the daemon's threads counted.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or_default();
            let own = ["digest-", "release", "listen", "client-"];
            let place = panic.location().map_or("", |l| l.file());
            if own.iter().any(|o| name.starts_with(o))
                || !place.contains("hostile/") && !place.ends_with("served.rs")
            {
                PANICS.lock().push(panic.to_string());
            }
            before(panic);
        }));
    });
}

impl Stage {
    pub fn new() -> Self {
        count_panics();
        let place = Place::with_owner(64, LOG_BYTES_MIN, MALLORY);
        let mut config = place.config();
        config.client_stall_timeout = Duration::from_millis(100);
        let daemon = start(config);
        let mut root = Hand::in_process(&daemon);
        let mut make = |dir: u64, name: &str, mode, uid, data: &[u8]| {
            let ino = root.number();
            root.lease(Ino(dir));
            root.append(encode::create(
                Ino(dir),
                ino,
                body(mode, uid),
                name.as_bytes(),
                b"",
            ));
            if !data.is_empty() {
                root.append(encode::write(ino, 0, data));
            }
            ino.0
        };
        let mut things = Things {
            secret: make(1, "secret", 0o100_400, 0, b"root's eyes only"),
            suid: make(1, "suid", 0o104_777, 0, b"#!/bin/program"),
            closed: make(1, "closed", 0o040_755, 0, b""),
            sticky: make(1, "sticky", 0o041_777, 0, b""),
            mine: make(1, "mine", 0o040_755, MALLORY, b""),
            honest: make(1, "honest", 0o040_700, 0, b""),
            ..Things::default()
        };
        things.inside = make(things.closed, "inside", 0o100_644, 0, &[7; 10_000]);
        things.fixed = make(1, "fixed", 0o100_666, 0, b"as it is");
        things.grows = make(1, "grows", 0o100_666, 0, b"a line\n");
        things.fixed_dir = make(1, "fixed-dir", 0o040_777, 0, b"");
        things.fixed_in = make(things.fixed_dir, "in", 0o100_666, 0, b"in it");
        things.grows_dir = make(1, "grows-dir", 0o040_777, 0, b"");
        things.grows_in = make(things.grows_dir, "in", 0o100_666, 0, b"in it");
        things.listed = make(1, "listed", 0o100_666, 0, b"root's");
        things.listed_dir = make(1, "listed-dir", 0o040_777, 0, b"");
        things.listed_in = make(things.listed_dir, "in", 0o100_666, 0, b"in it");
        things.stuck = make(things.sticky, "stuck", 0o100_666, 0, b"stays");
        for ino in [things.listed, things.listed_dir] {
            root.append(encode::set_xattr(Ino(ino), ACCESS, &list(5)));
        }
        let (fixed, grows) = (inode_flag::IMMUTABLE, inode_flag::APPEND_ONLY);
        for (ino, flags) in [
            (things.fixed, fixed),
            (things.fixed_dir, fixed),
            (things.grows, grows),
            (things.grows_dir, grows),
        ] {
            let body = SetAttrBody {
                valid: attr::FLAGS,
                flags,
                ..zerocopy::FromZeros::new_zeroed()
            };
            root.append(encode::set_attr(Ino(ino), body));
        }
        assert!(matches!(root.digest(), Reply::Digested { .. }));
        let before = Snapshot::of(&daemon.volume().view());
        let mut stage = Self {
            place,
            daemon,
            things,
            before,
            worker: None,
            stop: Arc::default(),
            listens: Mutex::default(),
        };
        stage.work(root);
        stage
    }

    /// Has the honest client make, fill and rewrite files until it is asked to stop.
    fn work(&mut self, mut hand: Hand) {
        let (dir, stop) = (Ino(self.things.honest), self.stop.clone());
        self.worker = Some(std::thread::spawn(move || {
            hand.lease(dir);
            let mut made = Vec::new();
            for n in 0u64.. {
                if stop.load(Ordering::Relaxed) && n >= 8 {
                    break;
                }
                if n < 8 {
                    let ino = hand.number();
                    let name = format!("{n}");
                    hand.append(encode::create(
                        dir,
                        ino,
                        body(0o100_600, 0),
                        name.as_bytes(),
                        b"",
                    ));
                    made.push(ino);
                }
                let ino = made[(n % 8) as usize];
                hand.append(encode::write(ino, n % 8 * 1000, &content_at(n % 8)));
                assert!(matches!(hand.digest(), Reply::Digested { .. }));
                hand.writer.set_tail(hand.writer.published().pos());
                std::thread::sleep(Duration::from_millis(2));
            }
            hand
        }));
    }

    /// A socket at which the daemon listens, for everybody.
    pub fn socket(&self) -> PathBuf {
        let path = self.place.socket();
        let mut listens = self.listens.lock();
        if !std::mem::replace(&mut *listens, true) {
            self.daemon.listen(&path).unwrap();
            for place in [&path, path.parent().unwrap()] {
                let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
                std::fs::set_permissions(place, all).unwrap();
            }
        }
        path
    }

    pub fn attacker(&self) -> Attacker {
        Attacker::new(&self.daemon, &self.place, MALLORY)
    }

    /// An attacker of the daemon's own user, who may steal blocks.
    pub fn same_user(&self) -> Attacker {
        let uid = rustix::process::geteuid().as_raw();
        Attacker::new(&self.daemon, &self.place, uid)
    }

    /// What is in the volume of a file.
    pub fn content(&self, ino: u64) -> Option<Vec<u8>> {
        let view = self.daemon.volume().view();
        let inode = view.inode(Ino(ino)).unwrap()?;
        Some(read(&view, &inode))
    }

    pub fn inode(&self, ino: u64) -> Option<Inode> {
        self.daemon.volume().view().inode(Ino(ino)).unwrap()
    }

    /// Nothing but what is Mallory's has changed.
    #[track_caller]
    pub fn unchanged(&self, what: &str) {
        let now = Snapshot::of(&self.daemon.volume().view());
        assert_eq!(self.before, now, "{what}");
    }

    /// Nothing has changed of what Mallory may not change by any record that makes sense: she owns
    /// the root directory, writes to some files of others, and gives others' files names.
    #[cfg(test)]
    #[track_caller]
    pub fn protected(&self, what: &str) {
        let now = Snapshot::of(&self.daemon.volume().view());
        for path in ["/secret", "/closed", "/closed/inside", "/sticky"] {
            let seen = |s: &Snapshot| s.0.get(path).map(|s| (s.0, s.1, s.2, s.4));
            assert_eq!(seen(&self.before), seen(&now), "{what}: {path}");
        }
    }

    /// Ends without a look at what Mallory may change.
    #[cfg(test)]
    pub fn end_protected(mut self, what: &str) {
        self.protected(what);
        self.before = Snapshot::of(&self.daemon.volume().view());
        self.end();
    }

    /// The honest client ends; all is as it wrote; the volume is whole.
    pub fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let hand = self
            .worker
            .take()
            .unwrap()
            .join()
            .expect("honest work goes on");
        let panics = std::mem::take(&mut *PANICS.lock());
        assert!(panics.is_empty(), "the daemon panicked: {panics:?}");
        self.unchanged("at the end");
        let view = self.daemon.volume().view();
        let dir = view.inode(Ino(self.things.honest)).unwrap().unwrap();
        for n in 0..8u64 {
            let name = format!("{n}");
            let entry = view.lookup(&dir, name.as_bytes()).unwrap().unwrap();
            let inode = view.inode(entry.ino).unwrap().unwrap();
            let mut expected = vec![0; n as usize * 1000];
            expected.extend(content_at(n));
            assert_eq!(read(&view, &inode), expected, "honest file {n}");
        }
        assert_eq!(hand.ask(Request::Detach), Reply::Done);
        drop(hand);
        self.daemon.shutdown().expect("every log is in the volume");
        self.is_whole();
        // And again by the way of recovery.
        let daemon = self.place.start();
        daemon.shutdown().unwrap();
    }

    pub fn is_whole(&self) {
        let options = CheckOptions::default();
        let report = check_volume_dir(&self.place.nvm(), &options, &mut |_| ()).unwrap();
        assert!(report.clean(), "{report}");
    }
}

fn content_at(n: u64) -> Vec<u8> {
    (0..9000 + n * 700)
        .map(|i| (i * (n + 3) % 251) as u8)
        .collect()
}

pub fn read(view: &View, inode: &Inode) -> Vec<u8> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < inode.size {
        let mut block = [0; 4096];
        let fb = FileBlock(bytes.len() as u64 / 4096);
        if let Mapping::Data { addr, .. } = view.map_block(inode, fb).unwrap() {
            view.read_blocks(addr, &mut block).unwrap();
        }
        bytes.extend_from_slice(&block);
    }
    bytes.truncate(inode.size as usize);
    bytes
}

/// What an inode is to those who look at it.
type Seen = (u32, u32, u32, u32, (usize, u32), Xattrs);

/// Everything that is not the attacker's or the honest worker's.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Snapshot(BTreeMap<String, Seen>);

impl Snapshot {
    fn of(view: &View) -> Self {
        let mut all = BTreeMap::new();
        let mut open = vec![(String::new(), Ino::ROOT)];
        while let Some((path, ino)) = open.pop() {
            let inode = view.inode(ino).unwrap().unwrap();
            let data = if inode.is_dir() {
                vec![]
            } else {
                read(view, &inode)
            };
            // Mallory owns the root directory and makes things in it.
            let nlink = if ino == Ino::ROOT { 0 } else { inode.nlink };
            let data = (data.len(), crc32c(&data));
            let attrs = view.xattrs(&inode).unwrap();
            let seen = (inode.mode, inode.uid, inode.gid, nlink, data, attrs);
            all.insert(path.clone(), seen);
            if !inode.is_dir() || path == "/mine" || path == "/honest" {
                continue;
            }
            view.entries(&inode, DirKey(0), &mut |e| {
                let name = e.name.escape_ascii().to_string();
                // What is under a name of the attacker's is the attacker's.
                if !name.starts_with("m-") {
                    open.push((format!("{path}/{name}"), e.ino));
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        }
        all.get_mut("/honest").unwrap().3 = 0;
        all.get_mut("/mine").unwrap().3 = 0;
        Snapshot(all)
    }
}
