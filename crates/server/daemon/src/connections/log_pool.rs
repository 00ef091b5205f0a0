//! A log file that is there before a client asks for it: to allocate and clear all of a log's
//! space takes milliseconds, which a program that becomes a client would wait.
//!
//! There are two kinds, and at most one file at a time.
//!
//! * One that was *made ready* in the background, by the thread of [`LogPool::make_loop`]. It has no name until it is
//!   taken, so a daemon that dies leaves nothing of it. Any client may have it.
//! * One that a client *left*, under the name [`LEFT_FILE`], its old records still in it: they are none of the next
//!   log's, which has another salt. It is taken only for a client of the same user, which could read and write it
//!   before, and only when nobody has it open or mapped any more but this daemon
//!   ([`has_no_others`](shale_sys::file_users::has_no_others)): who does could write to the next client's log. The file
//!   is removed at the end of the daemon and at each start.
//!
//! After a file was taken the thread waits for a moment before it makes the next one: where programs come and go one
//! after the other, each finds the log of the one before, and nothing has to be made.

use crate::error::{DaemonError, Result};
use parking_lot::{Condvar, Mutex};
use shale_clients::client::Client;
use shale_format::log::{LEFT_FILE, RING_AT};
use shale_nvm::{Access, Map, Piece, create_unnamed, name_unnamed, rename_file};
use shale_pool::nvm_dir::remove;
use shale_sys::file_users::has_no_others;
use shale_sys::mutants;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::{Duration, Instant};

/// As low as it gets.
const NICE: i32 = 19;
/// Between the moment that a file is missing and that in which one is made.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Default)]
struct State {
    /// Bytes of the file to have ready; 0: none.
    wanted: usize,
    ready: Option<(OwnedFd, usize)>,
    left: Option<LeftLog>,
    /// The thread ends.
    stop: bool,
}

/// The log of a client that has left.
pub(crate) struct LeftLog {
    /// The daemon's own opening of it.
    pub(crate) file: OwnedFd,
    pub(crate) path: PathBuf,
    pub(crate) bytes: usize,
    /// User of the client.
    pub(crate) uid: u32,
    /// The client: as long as anybody in this daemon knows of it, its log may be written to.
    pub(crate) client: Weak<Client>,
}

/// The log file that is there, or being made.
#[derive(Default)]
pub(crate) struct LogPool {
    state: Mutex<State>,
    changed: Condvar,
}

impl LogPool {
    /// A file of `bytes` bytes at `path` for a client of user `uid`, with all its space, if there is one. Its content is
    /// zeros or what an earlier client of that user has written. If it was made ready, or there was none, another one of
    /// that size is made.
    ///
    /// # Errors
    /// It cannot get its name.
    pub(crate) fn take(&self, path: &Path, bytes: usize, uid: u32) -> Result<Option<OwnedFd>> {
        assert!(bytes > 0, "a log of no bytes");
        let (left, ready) = {
            let mut state = self.state.lock();
            state.wanted = bytes;
            let serves = |left: &LeftLog| left.serves(bytes, uid);
            let left = match state.left.take_if(|left| serves(left)) {
                Some(left) => Some(left),
                // The space of one that is of no use comes first.
                None if state.left.as_ref().is_some_and(|l| !l.suits(bytes, uid)) => {
                    give_up(state.left.take());
                    None
                }
                None => None,
            };
            let ready = if left.is_some() {
                None
            } else {
                state.ready.take()
            };
            self.changed.notify_all();
            (left, ready)
        };
        if let Some(left) = left {
            let file = left.become_log(path);
            // Then one is made.
            return Ok(file.inspect_err(|e| tracing::error!("{e}")).ok());
        }
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

    /// Keeps the log of a client that has left, whose slot is free, for the next one, if there is no file already. Else
    /// it is removed.
    ///
    /// # Errors
    /// It can neither be renamed nor removed.
    pub(crate) fn leave(&self, log: LeftLog) -> Result<()> {
        let mut state = self.state.lock();
        let is_enough = state.stop || state.wanted != log.bytes || state.ready.is_some();
        if is_enough || state.left.as_ref().is_some_and(|left| left.is_usable()) {
            drop(state);
            return log.remove();
        }
        give_up(state.left.take());
        let name = log.path.with_file_name(LEFT_FILE);
        if log.rename_to(&name).is_err() {
            drop(state);
            return log.remove();
        }
        state.left = Some(LeftLog { path: name, ..log });
        self.changed.notify_all();
        Ok(())
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

    /// Bytes that the file takes which is there.
    pub(crate) fn bytes(&self) -> u64 {
        let state = self.state.lock();
        let ready = state.ready.as_ref().map_or(0, |(_, bytes)| *bytes as u64);
        ready + state.left.as_ref().map_or(0, |left| left.bytes as u64)
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
                    .wait_while(&mut state, |s| !s.stop && !s.lacks());
                let until = Instant::now() + PAUSE;
                while !state.stop && state.lacks() && Instant::now() < until {
                    self.changed.wait_until(&mut state, until);
                }
                if state.stop {
                    return;
                }
                if !state.lacks() {
                    continue;
                }
                // The space of one that is of the wrong size comes first.
                state.ready = None;
                give_up(state.left.take());
                state.wanted
            };
            let made = make(dir, wanted);
            let mut state = self.state.lock();
            match made {
                Ok(_) if state.stop => {}
                // A client has left its log meanwhile.
                Ok(_) if state.left.as_ref().is_some_and(|left| left.is_usable()) => {}
                Ok(file) => {
                    assert!(state.ready.is_none(), "one thread makes logs ready");
                    give_up(state.left.take());
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
        give_up(state.left.take());
        self.changed.notify_all();
    }
}

impl State {
    /// Whether a file is to be made.
    fn lacks(&self) -> bool {
        let ready = self.ready.as_ref().map(|r| r.1);
        let left = || self.left.as_ref().filter(|left| left.is_usable());
        self.wanted != 0 && ready.or_else(|| left().map(|l| l.bytes)) != Some(self.wanted)
    }
}

impl LeftLog {
    /// Whether it can become the log of a client now.
    fn serves(&self, bytes: usize, uid: u32) -> bool {
        self.suits(bytes, uid) && self.is_usable()
    }

    /// Whether it will be able to, once nobody uses it any more.
    fn suits(&self, bytes: usize, uid: u32) -> bool {
        self.bytes == bytes && (self.uid == uid || mutants::is_on("left-log-of-others"))
    }

    /// Whether neither its client nor anybody in this daemon can write to it, and it is whole.
    fn is_usable(&self) -> bool {
        let unused = || self.client.strong_count() == 0 && has_no_others(&self.file);
        (unused() || mutants::is_on("left-log-in-use")) && self.is_whole()
    }

    /// Whether it has all its space still: its client could cut it short, or make holes in it.
    fn is_whole(&self) -> bool {
        rustix::fs::fstat(&self.file).is_ok_and(|stat| {
            let space = stat.st_blocks as u64 * 512;
            stat.st_size as u64 == self.bytes as u64 && space >= self.bytes as u64
        })
    }

    /// Gives it another name. Somebody who may change the directory can have put something else in the place of the old one:
    /// then that has the new name now, and goes.
    fn rename_to(&self, name: &Path) -> Result<()> {
        remove(name)?;
        rename_file(&self.path, name)?;
        let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let there = rustix::fs::lstat(name).map(identity);
        if there.is_ok() && there == rustix::fs::fstat(&self.file).map(identity) {
            return Ok(());
        }
        remove(name)?;
        let why = std::io::Error::other("another file has taken its place");
        Err(DaemonError::file(name, "keep a log under this name", why))
    }

    /// Makes it the log at `path`.
    fn become_log(self, path: &Path) -> Result<OwnedFd> {
        self.rename_to(path).map(|()| self.file)
    }

    /// Removes the file; its client may have it mapped for long, so its space is given back as well.
    fn remove(self) -> Result<()> {
        remove(&self.path)?;
        shale_recovery::empty_log(self.file.as_fd(), (self.bytes - RING_AT) as u64);
        Ok(())
    }
}

/// Removes a log that is of no use any more. What cannot be removed goes at the next start.
fn give_up(left: Option<LeftLog>) {
    if let Some(Err(e)) = left.map(LeftLog::remove) {
        tracing::error!("{e}");
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
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    const BYTES: usize = 1 << 20;
    const UID: u32 = 7;

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
        assert!(
            spare.take(&path, BYTES, UID).unwrap().is_none(),
            "not expected"
        );
        for round in 0..3 {
            wait_for(&spare, BYTES as u64);
            // What is in the place of the name gives way.
            assert_eq!(path.exists(), round > 0);
            let file = spare.take(&path, BYTES, UID).unwrap().expect("it is ready");
            let there = std::fs::read(&path).unwrap();
            assert!(there.len() == BYTES && there.iter().all(|&b| b == 0));
            assert_eq!(rustix::io::pwrite(&file, b"used", 0), Ok(4));
        }
        wait_for(&spare, BYTES as u64);
        assert!(
            spare.take(&path, 2 * BYTES, UID).unwrap().is_none(),
            "other size"
        );
        wait_for(&spare, 2 * BYTES as u64);
        spare.stop();
        thread.join().unwrap();
        assert_eq!(spare.bytes(), 0);
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "only what was taken: {left:?}");
    }

    /// The log of a client of [`UID`] that has left, of [`BYTES`] bytes.
    fn left(dir: &Path, name: &str) -> LeftLog {
        let path = dir.join(name);
        std::fs::write(&path, vec![3; BYTES]).unwrap();
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        LeftLog {
            file: file.into(),
            path,
            bytes: BYTES,
            uid: UID,
            client: Weak::new(),
        }
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let name = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name();
        let mut names: Vec<_> = entries.map(|e| name(e).into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_client_has_left_serves_the_next_one_of_its_user() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (dir, path) = (dir.path(), dir.path().join("log-005"));
        let pool = LogPool::default();
        pool.expect(BYTES);
        pool.leave(left(dir, "log-000")).unwrap();
        assert_eq!(names(dir), [LEFT_FILE]);
        assert_eq!(pool.bytes(), BYTES as u64);
        // A second one is not kept.
        pool.leave(left(dir, "log-001")).unwrap();
        assert_eq!(names(dir), [LEFT_FILE]);
        assert!(pool.take(&path, BYTES, UID).unwrap().is_some());
        assert_eq!(names(dir), ["log-005"]);
        assert!(std::fs::read(&path).unwrap().iter().all(|&b| b == 3));
        assert!(pool.take(&path, BYTES, UID).unwrap().is_none(), "one only");
        // Of another user, or of another size: it goes.
        for (bytes, uid) in [(BYTES, UID + 1), (2 * BYTES, UID)] {
            pool.expect(BYTES);
            pool.state.lock().wanted = BYTES;
            pool.leave(left(dir, "log-000")).unwrap();
            assert!(pool.take(&path, bytes, uid).unwrap().is_none());
            assert_eq!((names(dir), pool.bytes()), (vec!["log-005".into()], 0));
        }
        pool.leave(left(dir, "log-000")).unwrap();
        assert_eq!(pool.bytes(), 0, "of a size that nobody wants");
        pool.state.lock().wanted = BYTES;
        pool.leave(left(dir, "log-000")).unwrap();
        pool.stop();
        assert_eq!(names(dir), ["log-005"]);
        pool.leave(left(dir, "log-000")).unwrap();
        assert_eq!(names(dir), ["log-005"], "after the end");
    }

    #[test]
    fn what_lies_in_the_place_of_a_log_is_none() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (dir, path) = (dir.path(), dir.path().join("log-005"));
        let pool = LogPool::default();
        pool.expect(BYTES);
        let replace: [fn(&Path); 3] = [
            |at| std::fs::create_dir(at).unwrap(),
            |at| std::os::unix::fs::symlink("/", at).unwrap(),
            |at| std::fs::write(at, vec![1; BYTES]).unwrap(),
        ];
        let there = |name: &str| names(dir).iter().any(|n| n == name);
        for replace in replace {
            let log = left(dir, "log-000");
            std::fs::remove_file(&log.path).unwrap();
            replace(&log.path);
            pool.leave(log).unwrap();
            assert_eq!(pool.bytes(), 0);
            assert!(!there("log-000") && !there(LEFT_FILE));
            // The same after it was left.
            pool.leave(left(dir, "log-000")).unwrap();
            std::fs::remove_file(dir.join(LEFT_FILE)).unwrap();
            replace(&dir.join(LEFT_FILE));
            assert!(pool.take(&path, BYTES, UID).unwrap().is_none());
            assert!(!there("log-005") && !there(LEFT_FILE));
        }
    }

    #[test]
    fn what_somebody_still_has_open_or_has_cut_short_serves_nobody() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (dir, path) = (dir.path(), dir.path().join("log-005"));
        let pool = LogPool::default();
        pool.expect(BYTES);
        let log = left(dir, "log-000");
        let open = std::fs::File::options().write(true).open(&log.path);
        pool.leave(log).unwrap();
        assert!(pool.take(&path, BYTES, UID).unwrap().is_none(), "open");
        assert_eq!(names(dir), [LEFT_FILE]);
        drop(open);
        assert!(pool.take(&path, BYTES, UID).unwrap().is_some());
        // One that is in use gives way to the next that is left.
        let log = left(dir, "log-000");
        let open = std::fs::File::options().write(true).open(&log.path);
        pool.leave(log).unwrap();
        pool.leave(left(dir, "log-001")).unwrap();
        assert_eq!(names(dir), ["log-005", LEFT_FILE]);
        assert_eq!(open.unwrap().metadata().unwrap().blocks(), 8, "its header");
        assert!(pool.take(&path, BYTES, UID).unwrap().is_some());
        let changes: [fn(&std::fs::File); 3] = [
            |file| file.set_len(BYTES as u64 - 4096).unwrap(),
            |file| file.set_len(BYTES as u64 + 4096).unwrap(),
            |file| {
                file.set_len(4096).unwrap();
                file.set_len(BYTES as u64).unwrap();
            },
        ];
        for change in changes {
            let log = left(dir, "log-000");
            let open = std::fs::File::options().write(true).open(&log.path);
            pool.leave(log).unwrap();
            change(&open.unwrap());
            assert!(pool.take(&path, BYTES, UID).unwrap().is_none(), "changed");
        }
    }
}
