//! A volume under /dev/shm, a daemon on it, and clients that append by hand.

use shale_daemon::{Daemon, DaemonConfig};
use shale_format::limits::LOG_BYTES_MIN;
use shale_format::log::RING_AT;
use shale_format::record::{CreateBody, Kind, flag};
use shale_format::{DirKey, Durability, FileBlock, Ino, LogPos};
use shale_nvm::{Access, Map, Piece};
use shale_oplog::{Log, Part, PublishedWord, Writer, encode};
use shale_pool::MakeOptions;
use shale_pool::VolumeFile;
use shale_pool::make_volume;
use shale_proto::message::{Attached, PROTO_VERSION};
use shale_proto::shared_pages::{client_page, daemon_page};
use shale_proto::{Channel, InProcess, LeaseMode, LeaseRequestMode, Reply, Request, SocketChannel};
use shale_sys::SystemClock;
use shale_volume::{Mapping, View};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const ROOT: Ino = Ino::ROOT;
/// The reader slot that calls of a [`Hand`] use.
const READER_SLOT: usize = 5;

/// A volume that goes when it is dropped.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// Makes a volume of `mib` MiB with small logs.
    pub fn new(mib: u64) -> Self {
        Self::with_logs(mib, LOG_BYTES_MIN)
    }

    /// Makes a volume of `mib` MiB with logs of `log_bytes`.
    pub fn with_logs(mib: u64, log_bytes: u64) -> Self {
        Self::with_owner(mib, log_bytes, 0)
    }

    /// As [`Self::with_logs`], of another user.
    pub fn with_owner(mib: u64, log_bytes: u64, uid: u32) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let place = Self { dir };
        let options = MakeOptions {
            file: place.file(),
            name: "test".to_owned(),
            nvm: Some(shale_pool::volume_file::NvmEntry::new(
                place.nvm(),
                mib << 20,
            )),
            staged: Default::default(),
            lower: Default::default(),
            log_bytes,
            durability: Durability::Strict,
            owner_uid: uid,
            owner_gid: uid,
            root_mode: 0o755,
            trusted_uids: Vec::new(),
            force: false,
        };
        make_volume(&options, &SystemClock::new()).unwrap();
        let again = make_volume(&options, &SystemClock::new()).unwrap_err();
        assert!(again.to_string().contains("--force"), "{again}");
        place
    }

    pub fn file(&self) -> PathBuf {
        self.dir.path().join("VOLUME.toml")
    }

    pub fn nvm(&self) -> PathBuf {
        self.dir.path().join("nvm")
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub fn config(&self) -> DaemonConfig {
        DaemonConfig::new(VolumeFile::load(&self.file()).unwrap())
    }

    pub fn start(&self) -> Arc<Daemon> {
        start(self.config())
    }

    /// Names of the log files that are there.
    pub fn logs(&self) -> Vec<String> {
        let names = shale_pool::nvm_dir::volume_files(&self.nvm()).unwrap();
        names
            .into_iter()
            .filter(|n| n.starts_with("log-"))
            .collect()
    }
}

pub fn start(config: DaemonConfig) -> Arc<Daemon> {
    Daemon::start(config, Arc::new(SystemClock::new())).unwrap()
}

/// An attached client without a LibFS.
pub struct Hand {
    channel: Box<dyn Channel>,
    pub attached: Attached,
    pub writer: Writer,
    pub page: Arc<Map>,
    pub daemon_page: Map,
    numbers: Vec<u64>,
    /// Its records are judged, so they have to say how much space they may need.
    judged: bool,
}

impl Hand {
    pub fn in_process(daemon: &Daemon) -> Self {
        Self::attach(Box::new(InProcess(daemon.attach_in_process(0))), false)
    }

    /// One with this policy.
    #[allow(dead_code, reason = "not every test program has such clients")]
    pub fn with_policy(daemon: &Daemon, policy: Durability) -> Self {
        let channel = Box::new(InProcess(daemon.attach_in_process(0)));
        Self::attach_with(channel, false, policy as u8)
    }

    /// As one of another process, with this policy.
    #[allow(dead_code, reason = "not every test program has such clients")]
    pub fn other_with_policy(daemon: &Daemon, policy: Durability) -> Self {
        let channel = Box::new(InProcess(daemon.attach_as(0, &[0])));
        Self::attach_with(channel, true, policy as u8)
    }

    /// Of a user whose records are judged.
    #[allow(dead_code, reason = "not every test program has such clients")]
    pub fn judged(daemon: &Daemon, uid: u32) -> Self {
        Self::attach(Box::new(InProcess(daemon.attach_as(uid, &[uid]))), true)
    }

    pub fn over(socket: &Path) -> Self {
        Self::attach(Box::new(SocketChannel::connect(socket).unwrap()), true)
    }

    fn attach(channel: Box<dyn Channel>, judged: bool) -> Self {
        Self::attach_with(channel, judged, 0)
    }

    /// `durability`: number of its policy; 0: the volume's.
    fn attach_with(channel: Box<dyn Channel>, judged: bool, durability: u8) -> Self {
        let ask = Request::Attach {
            version: PROTO_VERSION,
            log_bytes: 0,
            durability,
        };
        let (reply, fds) = channel.call(ask).unwrap();
        let Reply::Attached(attached) = reply else {
            panic!("{reply:?}");
        };
        let mut fds = fds.into_iter();
        let mut map = |bytes, access| {
            let fd = fds.next().unwrap();
            Map::open(vec![Piece { fd, bytes }], access).unwrap()
        };
        let log = map(RING_AT + attached.ring_bytes as usize, Access::ReadWrite);
        let daemon_page = map(daemon_page::BYTES, Access::ReadOnly);
        let page = Arc::new(map(client_page::BYTES, Access::ReadWrite));
        let word = PublishedWord {
            map: page.clone(),
            offset: client_page::PUBLISHED,
        };
        let log = Arc::new(Log::open(Arc::new(log)).unwrap());
        Self {
            channel,
            attached,
            writer: Writer::new(log, LogPos(0), word).unwrap(),
            page,
            daemon_page,
            numbers: Vec::new(),
            judged,
        }
    }

    pub fn ask(&self, request: Request) -> Reply {
        self.ask_for(request).0
    }

    /// With the descriptors that come along.
    pub fn ask_for(&self, request: Request) -> (Reply, Vec<OwnedFd>) {
        self.channel.call(request).unwrap()
    }

    /// Appends one record with this reserve (in units of 64 bytes) and request.
    pub fn append_for(&self, mut part: Part<'_>, reserve: u32, request: u64) -> LogPos {
        let mut permit = self
            .writer
            .try_reserve(part.bytes())
            .expect("space in the log");
        part.header.reserve = reserve;
        if self.judged && reserve == 0 {
            part.header.reserve = self.need(&part);
        }
        part.header.request = request;
        part.header.time_ns = 1_700_000_000_000_000_000;
        self.writer.append(&mut permit, &mut part).end
    }

    /// Asks for the space that a record may need; in units of 64 bytes.
    fn need(&self, part: &Part<'_>) -> u32 {
        let blocks = u64::from(part.header.payload_bytes).div_ceil(4096) + 1;
        let bytes = match part.header.kind() {
            Kind::Create | Kind::Link | Kind::Rename => 16_512,
            Kind::Write | Kind::Steal => blocks * (4096 + 64) + 8192,
            _ => return 0,
        };
        let ask = Request::Reserve {
            wanted: bytes,
            least: bytes,
        };
        match self.ask(ask) {
            Reply::Credit { bytes } => (bytes / 64) as u32,
            _ => 0,
        }
    }

    pub fn append(&self, part: Part<'_>) -> LogPos {
        self.append_for(part, 0, 0)
    }

    pub fn lease(&self, ino: Ino) -> (u32, bool) {
        self.lease_as(ino, LeaseMode::Exclusive)
    }

    pub fn lease_as(&self, ino: Ino, mode: LeaseMode) -> (u32, bool) {
        let ask = Request::Lease {
            ino: ino.0,
            mode,
            request_mode: LeaseRequestMode::Revoke,
        };
        match self.ask(ask) {
            Reply::Leased {
                generation, fresh, ..
            } => (generation, fresh),
            other => panic!("{other:?}"),
        }
    }

    /// A granted inode number.
    pub fn number(&mut self) -> Ino {
        if self.numbers.is_empty() {
            let ask = Request::GrantInodes { parent: 1, runs: 1 };
            let Reply::Inodes { inos } = self.ask(ask) else {
                panic!("no numbers");
            };
            self.numbers = inos;
            self.numbers.reverse();
        }
        Ino(self.numbers.pop().unwrap())
    }

    /// Makes a file in the root directory, with `data`.
    pub fn make_file(&mut self, name: &str, data: &[u8]) -> Ino {
        let ino = self.number();
        let word = daemon_page::bucket(ROOT.0);
        let body = create_body();
        loop {
            let (generation, _) = self.lease(ROOT);
            // As a LibFS does: inside first, then look whether the lease still stands.
            self.set_reader_slot(READER_SLOT, 1);
            let held = self.daemon_page.load_u32(word) == generation;
            if held {
                self.append(encode::create(ROOT, ino, body, name.as_bytes(), b""));
            }
            self.set_reader_slot(READER_SLOT, 2);
            if held {
                break;
            }
        }
        for (n, piece) in data.chunks(1 << 20).enumerate() {
            self.append(encode::write(ino, (n as u64) << 20, piece));
        }
        ino
    }

    /// Digests everything.
    pub fn digest(&self) -> Reply {
        let upto = self.writer.published().pos().0;
        self.ask(Request::Digest { upto })
    }

    /// Makes reader slot `n` odd or even.
    pub fn set_reader_slot(&self, n: usize, sequence: u64) {
        self.page.store_u64(client_page::reader_slot(n), sequence);
    }

    pub fn state(&self) -> u32 {
        self.daemon_page.load_u32(daemon_page::STATE)
    }
}

pub fn create_body() -> CreateBody {
    CreateBody {
        mode: 0o100_644,
        uid: 0,
        gid: 0,
        generation: 1,
        rdev: 0,
        name_bytes: 0,
        target_bytes: 0,
        twin: 0,
        reserved: [0; 11],
    }
}

pub fn unlink(name: &str, ino: Ino) -> Part<'_> {
    encode::unlink(ROOT, ino, 8, 0, name.as_bytes()).flags(flag::FREE_NOW)
}

/// Names in the root directory, sorted.
pub fn names(view: &View) -> Vec<String> {
    let root = view.inode(ROOT).unwrap().unwrap();
    let mut names = Vec::new();
    view.entries(&root, DirKey(0), &mut |entry| {
        names.push(String::from_utf8(entry.name).unwrap());
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    names.sort();
    names
}

/// Content of a file in the root directory.
pub fn content(view: &View, name: &str) -> Vec<u8> {
    let root = view.inode(ROOT).unwrap().unwrap();
    let entry = view.lookup(&root, name.as_bytes()).unwrap();
    let entry = entry.unwrap_or_else(|| panic!("{name} is not there"));
    let inode = view.inode(entry.ino).unwrap().unwrap();
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < inode.size {
        let mut block = [0; 4096];
        let fb = FileBlock(bytes.len() as u64 / 4096);
        if let Mapping::Data { addr, .. } = view.map_block(&inode, fb).unwrap() {
            view.read_blocks(addr, &mut block).unwrap();
        }
        bytes.extend_from_slice(&block);
    }
    bytes.truncate(inode.size as usize);
    bytes
}

/// Waits until something is so; panics after 5 s.
#[track_caller]
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(5), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
