//! A volume to be read: a mounted one as one more client of its daemon, another one with a daemon in this process.

use crate::error::{BackupError, Result};
use rustix::fs::{Mode, OFlags};
use shale_daemon::{Daemon, DaemonConfig};
use shale_libfs::{Caller, Recent, Session, SessionOptions};
use shale_pool::VolumeFile;
use shale_proto::{Channel, InProcess, SocketChannel, mounts};
use shale_sys::SystemClock;
use std::path::Path;
use std::sync::Arc;

/// The tree is read for the superuser: rights are those to attach to the volume.
pub(crate) const READER: Caller = Caller {
    uid: 0,
    gid: 0,
    groups: &[],
    pid: 0,
    umask: 0,
    request: 0,
};

/// An open volume.
pub struct Source {
    pub(crate) session: Arc<Session>,
    /// Identity of the volume.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// Device number of the mount; `None`: it is not mounted, and nobody else uses it.
    pub device: Option<u64>,
    daemon: Option<Arc<Daemon>>,
}

impl Source {
    /// The volume that is mounted at `mountpoint`.
    ///
    /// # Errors
    /// None is, or this user may not attach to it.
    pub fn mounted(mountpoint: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(mountpoint, flags, Mode::empty())
            .map_err(BackupError::file(mountpoint, "open it"))?;
        let device = rustix::fs::fstat(&file)
            .map_err(BackupError::file(mountpoint, "look at it"))?
            .st_dev;
        let no_volume = || {
            BackupError::Open(format!(
                "{}: no shale volume is mounted there",
                mountpoint.display()
            ))
        };
        let socket = mounts::socket_of(&file).ok_or_else(no_volume)?;
        // What was stored through shared mappings counts as written when the kernel has written it.
        let _ = rustix::fs::syncfs(&file);
        let channel = SocketChannel::connect(&socket);
        let channel =
            channel.map_err(|e| BackupError::Open(format!("{}: {e}", socket.display())))?;
        let session = attach(Arc::new(channel))?;
        Self::new(session, Some(device), None)
    }

    /// The volume of a file VOLUME.toml, which is not mounted.
    ///
    /// # Errors
    /// It is mounted; it cannot be opened.
    pub fn unmounted(volume: &Path) -> Result<Self> {
        let open = || -> shale_daemon::error::Result<Arc<Daemon>> {
            let file = VolumeFile::load(volume)?;
            Daemon::start(DaemonConfig::new(file), Arc::new(SystemClock::new()))
        };
        let daemon = open().map_err(|e| BackupError::Open(e.to_string()))?;
        let uid = rustix::process::geteuid().as_raw();
        let channel = InProcess(daemon.attach_in_process(uid));
        Self::new(attach(Arc::new(channel))?, None, Some(daemon))
    }

    fn new(
        session: Arc<Session>,
        device: Option<u64>,
        daemon: Option<Arc<Daemon>>,
    ) -> Result<Self> {
        let status = session.status().map_err(called("ask for its state"))?;
        let status: serde_json::Value = serde_json::from_str(&status)
            .map_err(|e| BackupError::Open(format!("the state of the volume: {e}")))?;
        let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
        Ok(Self {
            session,
            volume: text("uuid"),
            name: text("name"),
            device,
            daemon,
        })
    }

    /// Leaves the volume.
    ///
    /// # Errors
    /// It cannot be closed as it should be.
    pub fn close(&self) -> Result<()> {
        self.session.detach().map_err(called("leave the volume"))?;
        match &self.daemon {
            Some(daemon) => daemon
                .shutdown()
                .map_err(|e| BackupError::Open(e.to_string())),
            None => Ok(()),
        }
    }
}

/// For `map_err`: a call on the volume failed.
pub(crate) fn called(what: impl Into<String>) -> impl FnOnce(shale_libfs::Errno) -> BackupError {
    let what = what.into();
    move |why| BackupError::Volume { what, why }
}

fn attach(channel: Arc<dyn Channel>) -> Result<Arc<Session>> {
    let clock = Arc::new(SystemClock::new());
    Session::attach(channel, clock, Recent::default(), SessionOptions::default())
        .map_err(called("become a client of the volume"))
}
