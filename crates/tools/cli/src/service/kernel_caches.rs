//! Between the leases of the daemon and the front end of the kernel: what the kernel keeps
//! is dropped before another client may change it, and what nobody uses any more is freed.

use crate::failure::{Failure, Result};
use shale_daemon::LeaseHook;
use shale_fuse::{Notifier, RequestCounts, ShaleFs};
use shale_libfs::Session;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Tells the kernel what it must not keep any more.
pub struct KernelCaches {
    fs: Arc<ShaleFs>,
    notifier: Notifier,
    requests: Arc<RequestCounts>,
}

impl KernelCaches {
    /// For `mount`, which `fs` serves.
    pub fn new(fs: Arc<ShaleFs>, mount: &shale_fuse::FuseSession) -> Self {
        Self {
            fs,
            notifier: mount.notifier(),
            requests: mount.requests(),
        }
    }
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

    fn requests(&self) -> Vec<(&'static str, u64)> {
        self.requests.snapshot()
    }

    fn others(&self, count: usize) {
        self.fs.set_others(count);
    }
}

/// Time between two looks for inodes without names and users.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Frees inodes that lost their last name while a client had them open that was killed.
pub struct Sweeper {
    stop: Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Sweeper {
    /// Sweeps on behalf of `session` until it is stopped.
    pub fn start(session: Arc<Session>) -> Result<Self> {
        let (stop, stopped) = channel();
        let thread = thread::Builder::new()
            .name("sweep".to_owned())
            .spawn(move || sweep(&session, &stopped))
            .map_err(Failure::because("cannot start a thread"))?;
        Ok(Self { stop, thread })
    }

    /// Returns when nothing is swept any more.
    pub fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            tracing::error!("the sweeper panicked");
        }
    }
}

fn sweep(session: &Session, stopped: &Receiver<()>) {
    while stopped.recv_timeout(SWEEP_EVERY) == Err(RecvTimeoutError::Timeout) {
        if let Err(error) = session.sweep_orphans() {
            tracing::warn!("inodes without names and users are not freed: {error}");
            return;
        }
    }
}
