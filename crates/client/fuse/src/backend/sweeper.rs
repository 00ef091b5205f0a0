//! Freeing inodes that nobody uses any more, which nobody was there to free.

use crate::serving::notify::Notifier;
use shale_libfs::Session;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Time between two looks for inodes without names and users.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Frees inodes that lost their last name while a client had them open that was killed, or by a client while the kernel knew them.
pub struct Sweeper {
    stop: Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Sweeper {
    /// Sweeps on behalf of `session` until it is stopped.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn start(session: Arc<Session>, notifier: Notifier) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = thread::Builder::new()
            .name("sweep".to_owned())
            .spawn(move || sweep(&session, &notifier, &stopped))?;
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

fn sweep(session: &Session, notifier: &Notifier, stopped: &Receiver<()>) {
    let mut can_prune = true;
    while stopped.recv_timeout(SWEEP_EVERY) == Err(RecvTimeoutError::Timeout) {
        match session.sweep_orphans() {
            // What the kernel forgets is freed then.
            Ok(swept) if can_prune && !swept.referred.is_empty() => {
                let done = notifier.prune(&swept.referred);
                can_prune = !done.is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!("inodes without names and users are not freed: {error}");
                return;
            }
        }
    }
}
