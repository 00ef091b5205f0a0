//! Daemons and clients of a place: how they are started, and the clock they have.

use std::sync::Arc;
use std::time::{Duration, Instant};

use shale_bench::scratch::os_error;
use shale_bench::{BenchError, Result};
use shale_daemon::{Daemon, DaemonError};
use shale_libfs::{Caller, LineCosts, Recent, Session, SessionMaps, SessionOptions};
use shale_model::Shale;
use shale_pool::PoolError;
use shale_proto::InProcess;
use shale_sys::Clock;

/// Times that a lock is tried, a millisecond apart.
const LOCK_TRIES: u32 = 1_000;
/// Time at which everything happens, ns since 1970.
pub(crate) const NOW_NS: i64 = 1_700_000_000_000_000_000;

/// The time of day stands still, so that the same calls store the same; leases are held for a time.
struct Hours {
    since: Instant,
}

impl Clock for Hours {
    fn realtime_ns(&self) -> i64 {
        NOW_NS
    }

    fn monotonic_ns(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }
}

/// Of NVM that is ten times as slow as memory: what is measured differs from run to run, and with it what a workload does.
pub(crate) const LINE_COSTS: LineCosts = LineCosts {
    memory_ps: 10,
    nvm_ps: 100,
};

/// A clock that always shows the same time of day.
pub fn clock() -> Arc<dyn Clock> {
    let since = Instant::now();
    Arc::new(Hours { since })
}

/// Starts or recovers with `start`. The lock of a place that was just left may live on for a
/// moment in a child of this process that another test is starting: then once more.
///
/// # Errors
/// What `start` says.
pub fn once_free<T>(start: impl Fn() -> shale_daemon::Result<T>) -> shale_daemon::Result<T> {
    let mut tries = 0;
    loop {
        match start() {
            Err(DaemonError::Pool(PoolError::InUse { .. })) if tries < LOCK_TRIES => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

/// A client in this process, as the superuser.
///
/// # Errors
/// The daemon refuses.
pub fn attach(daemon: &Daemon, maps: &SessionMaps, log_all: bool) -> Result<Arc<Session>> {
    let channel = Arc::new(InProcess(daemon.attach_in_process(0)));
    let options = SessionOptions {
        log_all,
        line_costs: Some(LINE_COSTS),
        ..SessionOptions::default()
    };
    Session::attach_mapped(channel, clock(), Recent::default(), options, maps)
        .map_err(|e| BenchError::call("libfs", "attach")(os_error(e)))
}

/// The volume's paths, as the superuser.
pub fn side(session: &Arc<Session>) -> Shale {
    Shale::new(session.tree(Caller::default()))
}
