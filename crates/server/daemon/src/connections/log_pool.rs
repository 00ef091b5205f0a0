//! One log file that is ready before a client asks for it: to allocate and clear all of a log's
//! space takes milliseconds, which a program that becomes a client would wait.
//!
//! The file has no name until it is taken, so a daemon that dies leaves nothing of it. It is
//! made again, in the background, after each time it was taken, and is of the size that was
//! asked for last. It is never one that a client had: that client could still write to it.

use crate::error::{DaemonError, Result};
use parking_lot::{Condvar, Mutex};
use shale_nvm::{Access, Map, Piece, create_unnamed, name_unnamed};
use shale_pool::nvm_dir::remove;
use std::os::fd::OwnedFd;
use std::path::Path;

/// As low as it gets.
const NICE: i32 = 19;

#[derive(Default)]
struct State {
    /// Bytes of the file to have ready; 0: none.
    wanted: usize,
    ready: Option<(OwnedFd, usize)>,
    /// The thread ends.
    stop: bool,
}

/// The log file that is ready, or being made.
#[derive(Default)]
pub(crate) struct LogPool {
    state: Mutex<State>,
    changed: Condvar,
}

impl LogPool {
    /// A file of `bytes` zeros at `path`, with all its space, if there is one ready. Another one
    /// of that size is made then, or if there was none.
    ///
    /// # Errors
    /// It cannot get its name.
    pub(crate) fn take(&self, path: &Path, bytes: usize) -> Result<Option<OwnedFd>> {
        assert!(bytes > 0, "a log of no bytes");
        let ready = {
            let mut state = self.state.lock();
            state.wanted = bytes;
            self.changed.notify_all();
            state.ready.take()
        };
        match ready {
            Some((file, there)) if there == bytes => {
                remove(path)?;
                name_unnamed(&file, path)?;
                Ok(Some(file))
            }
            // One of another size is of no use now.
            _ => Ok(None),
        }
    }

    /// Has a file of `bytes` bytes made, unless one was asked for before.
    pub(crate) fn expect(&self, bytes: usize) {
        assert!(bytes > 0, "a log of no bytes");
        let mut state = self.state.lock();
        if state.wanted == 0 {
            state.wanted = bytes;
            self.changed.notify_all();
        }
    }

    /// Bytes that the file takes which is ready.
    pub(crate) fn bytes(&self) -> u64 {
        let ready = |state: &State| state.ready.as_ref().map_or(0, |(_, bytes)| *bytes as u64);
        ready(&self.state.lock())
    }

    /// The thread that makes files in `dir`.
    pub(crate) fn make_loop(&self, dir: &Path) {
        // The program that has just taken one goes first. (A thread's own on Linux.)
        if let Err(e) = rustix::process::nice(NICE) {
            tracing::debug!("logs are made ready at full priority: {e}");
        }
        loop {
            let wanted = {
                let mut state = self.state.lock();
                self.changed
                    .wait_while(&mut state, |s| !s.stop && (s.wanted == 0 || s.is_right()));
                if state.stop {
                    return;
                }
                // The space of one that is of the wrong size comes first.
                state.ready = None;
                state.wanted
            };
            let made = make(dir, wanted);
            let mut state = self.state.lock();
            match made {
                Ok(_) if state.stop => {}
                Ok(file) => {
                    assert!(state.ready.is_none(), "one thread makes logs ready");
                    state.ready = Some((file, wanted));
                }
                Err(e) => {
                    tracing::debug!("no log is kept ready: {e}");
                    // Until somebody asks again.
                    if state.wanted == wanted {
                        state.wanted = 0;
                    }
                }
            }
        }
    }

    /// Ends the thread and gives the space back.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stop = true;
        state.ready = None;
        self.changed.notify_all();
    }
}

impl State {
    fn is_right(&self) -> bool {
        self.ready.as_ref().is_some_and(|r| r.1 == self.wanted)
    }
}

/// A file that is present everywhere and in no cache, as NVM is.
fn make(dir: &Path, bytes: usize) -> Result<OwnedFd> {
    let file = create_unnamed(dir, bytes)?;
    let copy = rustix::io::fcntl_dupfd_cloexec(&file, 0)
        .map_err(|e| DaemonError::file(dir, "duplicate a descriptor of a file in it", e))?;
    Map::open(vec![Piece { fd: copy, bytes }], Access::ReadWrite)?.prepare()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    const BYTES: usize = 1 << 20;

    fn wait_for(spare: &LogPool, bytes: u64) {
        let since = Instant::now();
        while spare.bytes() != bytes {
            assert!(since.elapsed() < Duration::from_secs(20), "not made");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn one_is_ready_each_time_and_nothing_is_left() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let spare = Arc::new(LogPool::default());
        let thread = {
            let (spare, dir) = (spare.clone(), dir.path().to_owned());
            std::thread::spawn(move || spare.make_loop(&dir))
        };
        let path = dir.path().join("log-000");
        assert!(spare.take(&path, BYTES).unwrap().is_none(), "not expected");
        for round in 0..3 {
            wait_for(&spare, BYTES as u64);
            // What is in the place of the name gives way.
            assert_eq!(path.exists(), round > 0);
            let file = spare.take(&path, BYTES).unwrap().expect("it is ready");
            let there = std::fs::read(&path).unwrap();
            assert!(there.len() == BYTES && there.iter().all(|&b| b == 0));
            assert_eq!(rustix::io::pwrite(&file, b"used", 0), Ok(4));
        }
        wait_for(&spare, BYTES as u64);
        assert!(
            spare.take(&path, 2 * BYTES).unwrap().is_none(),
            "other size"
        );
        wait_for(&spare, 2 * BYTES as u64);
        spare.stop();
        thread.join().unwrap();
        assert_eq!(spare.bytes(), 0);
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "only what was taken: {left:?}");
    }
}
