//! A volume that lives as long as a measurement, with its daemon and one client in this
//! process.
//!
//! The client is an ordinary one: mappings, log and leases of its own, and messages to
//! the daemon that are plain calls instead of a socket's.

use std::path::Path;
use std::sync::Arc;

use shale_daemon::{Daemon, DaemonConfig, Status};
use shale_format::Durability;
use shale_libfs::{Caller, Errno, Recent, Session, SessionOptions, Tree};
use shale_pool::MakeOptions;
use shale_pool::make_volume;
use shale_proto::InProcess;
use shale_sys::{Clock, SystemClock};
use tempfile::TempDir;

use crate::BenchError;
use crate::Result;

/// How large a volume to make.
#[derive(Debug, Clone, Copy)]
pub struct ScratchOptions {
    /// Bytes of NVM.
    pub nvm_bytes: u64,
    /// Bytes of the client's update log; 0: the default.
    pub log_bytes: u64,
}

/// A volume, its daemon and a client. Gone when it is dropped.
pub struct Scratch {
    session: Arc<Session>,
    daemon: Arc<Daemon>,
    _place: TempDir,
}

/// An error of LibFS as the operating system would say it.
pub fn os_error(errno: Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno.raw_os_error())
}

impl Scratch {
    /// Makes a volume with the strict policy in a new directory in `dir`, and attaches.
    ///
    /// # Errors
    /// No space, or what daemon and client say; nothing is left then.
    pub fn new(dir: &Path, options: ScratchOptions) -> Result<Self> {
        Self::with(dir, options, |_| ())
    }

    /// As [`Self::new`], with a daemon that `configure` has set up.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with(
        dir: &Path,
        options: ScratchOptions,
        configure: impl FnOnce(&mut DaemonConfig),
    ) -> Result<Self> {
        let place = tempfile::Builder::new()
            .prefix("shale-volume-")
            .tempdir_in(dir)
            .map_err(BenchError::file(dir, "make a directory in"))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let made = make_volume(
            &MakeOptions {
                file: place.path().join("scratch.toml"),
                name: "scratch".to_owned(),
                nvm: Some(shale_pool::volume_file::NvmEntry::new(
                    place.path().join("nvm"),
                    options.nvm_bytes,
                )),
                staged: Default::default(),
                lower: Default::default(),
                log_bytes: options.log_bytes,
                durability: Durability::Strict,
                owner_uid: rustix::process::geteuid().as_raw(),
                owner_gid: rustix::process::getegid().as_raw(),
                root_mode: 0o755,
                trusted_uids: Vec::new(),
                force: false,
            },
            &*clock,
        )?;
        let mut config = DaemonConfig::new(made.file);
        configure(&mut config);
        let daemon = Daemon::start(config, clock.clone())?;
        let uid = rustix::process::geteuid().as_raw();
        let channel = Arc::new(InProcess(daemon.attach_in_process(uid)));
        let options = SessionOptions {
            present: true,
            ..SessionOptions::default()
        };
        let session = Session::attach(channel, clock, Recent::default(), options)
            .map_err(|e| BenchError::call("libfs", "attach")(os_error(e)))?;
        Ok(Scratch {
            session,
            daemon,
            _place: place,
        })
    }

    /// The client.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The volume's paths, as the process's own user.
    pub fn tree(&self) -> Tree {
        self.session.tree(Caller {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            pid: std::process::id(),
            ..Caller::default()
        })
    }

    /// The daemon.
    pub fn daemon(&self) -> &Arc<Daemon> {
        &self.daemon
    }

    /// What `status` would show.
    pub fn status(&self) -> Status {
        self.daemon.status_values()
    }

    /// Returns when everything that was logged is in the volume, and the space that
    /// this freed can be used again.
    pub fn flush(&self) {
        self.daemon.quiesce();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The directory goes next: nothing of what could fail here is worth keeping.
        let _ = self.session.detach();
        let _ = self.daemon.shutdown();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_libfs::OFlags;

    #[test]
    fn a_volume_works_and_leaves_nothing() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let options = ScratchOptions {
            nvm_bytes: 32 << 20,
            log_bytes: shale_format::limits::LOG_BYTES_MIN,
        };
        let scratch = Scratch::new(dir.path(), options).unwrap();
        let flags = OFlags::CREATE | OFlags::RDWR;
        let file = scratch.tree().open(b"/name", flags, 0o644).unwrap();
        file.pwrite(0, &[7; 10_000]).unwrap();
        scratch.flush();
        let mut found = [0; 10_000];
        assert_eq!(file.pread(0, &mut found).unwrap(), 10_000);
        assert_eq!(found, [7; 10_000]);
        assert!(scratch.status().digest.stats.records >= 2);
        drop((file, scratch));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
