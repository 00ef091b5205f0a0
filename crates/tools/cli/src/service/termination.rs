//! SIGTERM and SIGINT: what ends a mount in order, where nobody calls `umount` for it.
//!
//! When a machine is shut down, the service manager ends what a login left running. A supervisor that died of it, and a
//! daemon with it, would lose what is not durable yet: what no program synced would be gone after an orderly shutdown. So
//! the supervisor takes the mount away, with its last file at the latest, and ends when everything is in the volume; the
//! daemon does not notice the signal, it ends with the mount.

use crate::failure::{Failure, Result};
use crate::mounts::state::StateDir;
use crate::terminal::note;
use nix::sys::signal::{SigSet, Signal};
use std::sync::{Arc, OnceLock};
use std::thread;

fn signals() -> SigSet {
    [Signal::SIGTERM, Signal::SIGINT].into_iter().collect()
}

/// Keeps this thread, and those that it starts later, from being ended by these signals.
///
/// # Errors
/// The kernel refuses.
pub fn block() -> Result<()> {
    let blocked = signals().thread_block();
    blocked.map_err(Failure::because("cannot block signals"))
}

/// Waits for the signals in a thread of its own.
#[derive(Debug)]
pub struct Termination {
    mounted: Arc<OnceLock<StateDir>>,
}

impl Termination {
    /// Waits from now on. Comes before the first other thread: one that does not block them would end the process.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn watch() -> Result<Self> {
        block()?;
        let mounted = Arc::new(OnceLock::new());
        let watched = Arc::clone(&mounted);
        thread::Builder::new()
            .name("termination".to_owned())
            .spawn(move || {
                while let Ok(signal) = signals().wait() {
                    match watched.get() {
                        Some(dir) => unmount(dir, signal),
                        // The daemon sees that this process is gone before it has a mount to serve.
                        None => std::process::exit(128 + signal as i32),
                    }
                }
            })
            .map_err(Failure::because("cannot start a thread"))?;
        Ok(Self { mounted })
    }

    /// A signal means this mount from now on.
    pub fn unmounts(&self, dir: StateDir) {
        let _ = self.mounted.set(dir);
    }
}

/// Takes a mount away. Its name goes now, and it goes with its last open file.
fn unmount(dir: &StateDir, signal: Signal) {
    let shown = dir.state.mountpoint.display();
    // What is mounted there afterwards is not ours.
    if !dir.state.is_mounted().unwrap_or(false) {
        return;
    }
    tracing::info!("{signal}: {shown} is unmounted");
    let done = shale_fuse::unmount(&dir.state.mountpoint, false).or_else(|_| {
        note!("{shown}: {signal}: it is in use, and served as long as a file is open");
        shale_fuse::unmount(&dir.state.mountpoint, true)
    });
    if let Err(error) = done {
        tracing::error!("{error}");
    }
}
