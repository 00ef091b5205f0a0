//! The threads that serve a mount: which there are, which wait for a request, and how they are stopped.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::FuseError;
use crate::serving::transport::{Device, LockedBuf, Received, Wakeable};

/// One thread that serves.
struct Worker {
    thread: Wakeable,
    /// Whether it waits for a request. Only then it may be interrupted.
    waiting: Arc<AtomicBool>,
}

/// Lock order: `workers` is taken alone.
#[derive(Default)]
pub(crate) struct StopState {
    pub(crate) stopping: AtomicBool,
    /// Threads that wait for a request of the kernel.
    receiving: AtomicUsize,
    workers: Mutex<Vec<Worker>>,
}

impl StopState {
    /// Whether a thread, other than the one that asks, waits for requests: while this one waits for something else they are taken.
    pub(crate) fn is_received(&self) -> bool {
        self.receiving.load(Ordering::Relaxed) > 0
    }
}

/// Ends [`FuseSession::serve`](crate::serving::session::FuseSession::serve) from another thread.
#[derive(Clone)]
pub struct Stopper(pub(crate) Arc<StopState>);

impl fmt::Debug for Stopper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stopper").finish_non_exhaustive()
    }
}

impl Stopper {
    /// Returns when no thread serves any more. Requests in progress are answered;
    /// those that come later wait for the process that adopts the mount. A session
    /// that was stopped serves no more. Must not be called from a method of the
    /// file system, which would wait for itself.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::SeqCst);
        loop {
            {
                let workers = self.0.workers.lock();
                if workers.is_empty() {
                    return;
                }
                // A worker clears `waiting` before it looks at `stopping`: one that
                // goes on to serve a request is seen here as not waiting.
                for worker in workers.iter().filter(|w| w.waiting.load(Ordering::SeqCst)) {
                    worker.thread.wake();
                }
            }
            // A signal that comes just before the wait begins is lost, so again.
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Takes a worker off the list when it ends; the process ends if it panicked.
pub(crate) struct Enlisted<'a> {
    state: &'a StopState,
    waiting: Arc<AtomicBool>,
}

impl<'a> Enlisted<'a> {
    pub(crate) fn new(state: &'a StopState) -> Self {
        let waiting = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            thread: Wakeable::current(),
            waiting: Arc::clone(&waiting),
        };
        state.workers.lock().push(worker);
        Self { state, waiting }
    }

    /// Waits for a request.
    pub(crate) fn receive(
        &self,
        device: &Device,
        buf: &mut LockedBuf,
    ) -> Result<Received, FuseError> {
        self.waiting.store(true, Ordering::SeqCst);
        self.state.receiving.fetch_add(1, Ordering::Relaxed);
        let received = device.receive(buf);
        self.state.receiving.fetch_sub(1, Ordering::Relaxed);
        self.waiting.store(false, Ordering::SeqCst);
        received
    }
}

impl Drop for Enlisted<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!("panic while serving a request: the process ends");
            std::process::abort();
        }
        self.state
            .workers
            .lock()
            .retain(|w| !Arc::ptr_eq(&w.waiting, &self.waiting));
    }
}
