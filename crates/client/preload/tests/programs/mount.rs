//! A volume in memory, its daemon and its mount, in this process.

use shale_daemon::{Daemon, DaemonConfig, LeaseHook};
use shale_format::Durability;
use shale_fuse::{Notifier, ServeOptions, ShaleFs};
use shale_libfs::{Session, SessionOptions};
use shale_pool::MakeOptions;
use shale_pool::VolumeFile;
use shale_pool::make_volume;
use shale_proto::{InProcess, SocketPeer};
use shale_sys::{Clock, SystemClock};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const NVM_BYTES: u64 = 192 << 20;
const LOG_BYTES: u64 = 16 << 20;
/// Number of the mount.
const NUMBER: u64 = 1;

/// A mount; unmounted when dropped.
pub struct Mounted {
    base: tempfile::TempDir,
    stopper: shale_fuse::Stopper,
    serving: Option<JoinHandle<()>>,
    daemon: Option<Arc<Daemon>>,
}

/// What the kernel keeps goes before a lease does, as in `shale mount`.
struct KernelCaches {
    fs: Arc<ShaleFs>,
    notifier: Notifier,
}

impl LeaseHook for KernelCaches {
    fn drop_cached(&self, ino: u64) -> u64 {
        self.fs.drop_cached(&self.notifier, ino)
    }

    fn used_since(&self, ino: u64, seen: u64) -> bool {
        self.fs.used_since(ino, seen)
    }

    fn holds_back(&self, ino: u64) -> bool {
        self.fs.holds_back(ino)
    }

    fn used_for(&self, ino: u64, besides: &[i32]) -> Option<Duration> {
        self.fs.used_for(ino, besides)
    }

    fn used_by_others(&self, ino: u64, pid: i32) -> Option<Duration> {
        self.fs.used_by_others(ino, pid)
    }

    fn shared_with(&self, ino: u64, besides: &[i32]) -> bool {
        self.fs.shared_with(ino, besides)
    }

    fn in_use(&self, ino: u64) -> bool {
        self.fs.in_use(ino)
    }

    fn others(&self, count: usize) {
        self.fs.set_others(count);
    }
}

impl Mounted {
    /// A new mount; `None`, with a word, where there can be none.
    pub fn new() -> Option<Self> {
        let root = rustix::process::geteuid().is_root();
        if !root || !Path::new("/dev/fuse").exists() || !super::tools::has("cc") {
            eprintln!("SKIPPED: needs root, /dev/fuse and cc");
            return None;
        }
        let base = tempfile::tempdir_in("/dev/shm").unwrap();
        let at = |name: &str| base.path().join(name);
        let socket_dir = format!("run/{}", shale_proto::mounts::name_of(NUMBER));
        for dir in ["mnt", "nvm", "run", &socket_dir] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let options = MakeOptions {
            file: at("volume.toml"),
            name: "programs".to_owned(),
            nvm: Some(shale_pool::volume_file::NvmEntry::new(at("nvm"), NVM_BYTES)),
            staged: Default::default(),
            lower: Default::default(),
            log_bytes: LOG_BYTES,
            durability: Durability::Strict,
            owner_uid: 0,
            owner_gid: 0,
            root_mode: 0o755,
            trusted_uids: Vec::new(),
            force: false,
        };
        make_volume(&options, &*clock).unwrap();
        let file = VolumeFile::load(&at("volume.toml")).unwrap();
        let daemon = Daemon::start(DaemonConfig::new(file), clock.clone()).unwrap();
        let channel = Arc::new(InProcess(daemon.attach_in_process(0)));
        let own = SessionOptions {
            kernel_references: true,
            ..SessionOptions::default()
        };
        let session = Session::attach(channel, clock, Default::default(), own).unwrap();
        let mount = shale_fuse::FuseSession::mount(&at("mnt"), &Default::default()).unwrap();
        let fs = Arc::new(ShaleFs::new(session, NUMBER, &mount));
        daemon.set_lease_hook(Arc::new(KernelCaches {
            fs: fs.clone(),
            notifier: mount.notifier(),
        }));
        let asked = Arc::downgrade(&daemon);
        let owner_of = move |token, ino| asked.upgrade()?.open_token_owner(token, ino);
        fs.can_open_by_number(mount.notifier(), owner_of).unwrap();
        let listener = SocketPeer::listen(&at(&socket_dir).join("socket")).unwrap();
        daemon.serve_listener(listener).unwrap();
        let stopper = mount.stopper();
        let serving = std::thread::spawn(move || {
            let served = mount.serve(fs, &ServeOptions::default());
            served.unwrap();
        });
        Some(Self {
            base,
            stopper,
            serving: Some(serving),
            daemon: Some(daemon),
        })
    }

    /// State of the volume.
    pub fn status(&self) -> shale_daemon::Status {
        let daemon = self.daemon.as_ref().unwrap();
        daemon.status_values()
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.base.path().join("mnt")
    }

    /// A path that is not on the mount.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    /// The directory of mounts' states.
    pub fn states(&self) -> PathBuf {
        self.base.path().join("run")
    }

    /// A new directory on the mount.
    pub fn dir(&self, name: &str) -> PathBuf {
        let dir = self.path().join(name);
        fs::create_dir(&dir).unwrap();
        dir
    }

    /// The variable that loads the library.
    pub fn preload(&self) -> String {
        format!("LD_PRELOAD={}", super::tools::library().display())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = shale_fuse::unmount(&self.path(), true) {
            eprintln!("{error}");
        }
        self.stopper.stop();
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
        if let Some(daemon) = self.daemon.take()
            && let Err(error) = daemon.shutdown()
        {
            eprintln!("{error}");
        }
    }
}
