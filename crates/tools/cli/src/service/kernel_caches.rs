//! Between the leases of the daemon and the front end of the kernel: what the kernel keeps
//! is dropped before another client may change it.

use shale_daemon::LeaseHook;
use shale_fuse::{Notifier, RequestCounts, ShaleFs};
use std::sync::Arc;
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
