//! A volume with its daemon in this process, and a session on it.

use shale_daemon::{Daemon, DaemonConfig};
use shale_format::Durability;
use shale_libfs::{Caller, Session, SessionOptions, Tree};
use shale_pool::MakeOptions;
use shale_pool::VolumeFile;
use shale_pool::make_volume;
use shale_proto::InProcess;
use shale_sys::SystemClock;
use std::sync::Arc;
use tempfile::TempDir;

/// A user that may be a client too.
pub const TRUSTED: u32 = 1000;

/// A volume in memory that goes when it is dropped.
pub struct Place {
    daemon: Option<Arc<Daemon>>,
    volume: VolumeFile,
    clock: Arc<SystemClock>,
    /// A connection of the kernel outlives daemons.
    kernel: bool,
    _dir: TempDir,
}

impl Place {
    pub fn new() -> Self {
        let dir =
            TempDir::with_prefix_in("shale-namespace-", "/dev/shm").expect("a directory in memory");
        let clock = Arc::new(SystemClock::new());
        let options = MakeOptions {
            file: dir.path().join("VOLUME.toml"),
            name: "namespace".into(),
            nvm: Some(shale_pool::volume_file::NvmEntry::new(
                dir.path().join("nvm"),
                96 << 20,
            )),
            staged: Default::default(),
            lower: Default::default(),
            log_bytes: 16 << 20,
            durability: Durability::Strict,
            owner_uid: rustix::process::geteuid().as_raw(),
            owner_gid: rustix::process::getegid().as_raw(),
            root_mode: 0o755,
            trusted_uids: vec![TRUSTED],
            force: false,
        };
        let volume = make_volume(&options, &*clock).expect("a volume").file;
        let mut place = Self {
            daemon: None,
            volume,
            clock,
            kernel: false,
            _dir: dir,
        };
        place.start(false);
        place
    }

    /// Starts daemons from now on as the mount of a kernel has them.
    pub fn serve_kernel(&mut self) {
        self.kernel = true;
        let daemon = self.daemon.take().expect("the daemon runs");
        daemon.shutdown().expect("a clean stop");
        drop(daemon);
        self.start(false);
    }

    fn start(&mut self, again: bool) {
        let config = DaemonConfig {
            digest_threads: 1,
            connection: self.kernel.then_some(7),
            connection_continues: self.kernel && again,
            ..DaemonConfig::new(self.volume.clone())
        };
        self.daemon = Some(Daemon::start(config, self.clock.clone()).expect("a daemon"));
    }

    pub fn daemon(&self) -> &Arc<Daemon> {
        self.daemon.as_ref().expect("the daemon runs")
    }

    /// Stops the daemon, cleanly or as a kill would, and starts another one.
    pub fn restart(&mut self, clean: bool) {
        let daemon = self.daemon.take().expect("the daemon runs");
        if clean {
            daemon.shutdown().expect("a clean stop");
        }
        drop(daemon);
        self.start(true);
    }

    /// A client of [`TRUSTED`], whose rights the daemon judges.
    pub fn attach_trusted(&self) -> Arc<Session> {
        let judged = self.daemon().attach_as(TRUSTED, &[TRUSTED]);
        let channel = Arc::new(InProcess(judged));
        let options = SessionOptions::default();
        let none = shale_oplog::Recent::default();
        Session::attach(channel, self.clock.clone(), none, options).expect("a session")
    }

    pub fn attach(&self, kernel_references: bool) -> Arc<Session> {
        let uid = rustix::process::geteuid().as_raw();
        let channel = Arc::new(InProcess(self.daemon().attach_in_process(uid)));
        let options = SessionOptions {
            log_bytes: 0,
            kernel_references,
            ..SessionOptions::default()
        };
        Session::attach(
            channel,
            self.clock.clone(),
            self.daemon().recent_requests(),
            options,
        )
        .expect("a session")
    }
}

/// A caller of this user and group.
pub fn caller((uid, gid): (u32, u32)) -> Caller {
    Caller {
        uid,
        gid,
        umask: 0o022,
        ..Caller::default()
    }
}

/// User and group of this process.
pub fn own() -> (u32, u32) {
    (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    )
}

/// This process as a caller.
pub fn me() -> Caller {
    caller(own())
}

pub fn tree(session: &Arc<Session>) -> Tree {
    session.tree(me())
}
