//! The daemon of one mount (hidden verb): owns the volume, serves clients and mount.
//!
//! Its standard input is the socket to the supervisor, which tells it what to do. A panic
//! anywhere ends the process: afterwards nobody would know in what state it
//! is, and the next one starts at once.

use crate::control::admin_server;
use crate::control::packet::{self, FromDaemon, Start, ToDaemon};
use crate::failure::{Failure, Result};
use crate::mounts::mount_options;
use crate::mounts::settings::{LIMITS_FILE, SPEED_FILE, load};
use crate::mounts::state::StateDir;
use crate::service::kernel_caches::KernelCaches;
use crate::service::metrics;
use crate::service::termination;
use rustix::process::Signal;
use shale_daemon::{Daemon, DaemonConfig, DaemonError};
use shale_fuse::{Ended, MountInfo, READERS_MAX, ServeOptions, ShaleFs, Sweeper};
use shale_libfs::SessionOptions;
use shale_logs::LogFile;
use shale_pool::PoolError;
use shale_pool::VolumeFile;
use shale_pool::host_space::shown;
use shale_proto::InProcess;
use shale_sys::{Clock, SystemClock};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long a supervisor is gone before its daemon tries to end the mount, and the time
/// between two tries.
const ALONE: Duration = Duration::from_secs(1);

/// Serves until the mount is gone.
pub fn run() -> Result<()> {
    termination::block()?;
    shale_sys::heap::keep_little();
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default(panic);
        // Not `abort`: the kernel would have it wait, with all it has open, until the last thread has stopped for a core
        // dump, and one that notifies may wait for the next daemon.
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
        std::process::abort();
    }));
    let supervisor = std::io::stdin().as_fd().try_clone_to_owned();
    let supervisor = Arc::new(supervisor.map_err(Failure::because("standard input"))?);
    let Some((ToDaemon::Start(start), fds)) = packet::receive(&*supervisor)? else {
        return Err(Failure::usage("the daemon is started by shale mount only"));
    };
    shale_logs::start(log_of(&start), None);
    let served = serve(&start, fds, &supervisor);
    if let Err(failure) = &served {
        // The supervisor says once what is waited for.
        if !failure.busy {
            tracing::error!("{failure}");
        }
        let failed = FromDaemon::Failed(failure.clone());
        // A supervisor that is gone cannot be notified.
        let sent = packet::send(&*supervisor, &failed, &[]);
        if failure.busy && sent.is_ok() {
            std::process::exit(failure.code as i32);
        }
    }
    if let Some(dir) = StateDir::load(start.state_dir)
        && served.is_ok()
        && !dir.state.supervisor.lives()
    {
        dir.remove();
    }
    served
}

/// The log of the mount, if standard error is it: else the mount is in the foreground.
fn log_of(start: &Start) -> Option<LogFile> {
    let dir = StateDir::load(start.state_dir.clone())?;
    let (log, error) = (
        dir.open_log().ok()?,
        rustix::fs::fstat(std::io::stderr()).ok()?,
    );
    let found = log.metadata().ok()?;
    let is_it = (found.dev(), found.ino()) == (error.st_dev, error.st_ino);
    is_it.then(|| LogFile::new(log, dir.log()))
}

fn serve(start: &Start, fds: Vec<OwnedFd>, supervisor: &Arc<OwnedFd>) -> Result<()> {
    let mut fds = fds.into_iter();
    let listener = fds
        .next()
        .ok_or_else(|| Failure::new("the supervisor handed over no socket"))?;
    let mount = fds.next();
    let continues = mount.is_some();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let daemon = open(start, continues, &clock)?;
    if start.flush_logs {
        return shutdown(&daemon);
    }
    daemon.change_limits(|limits| *limits = load(&start.state_dir, LIMITS_FILE));
    serve_metrics(start, continues, &daemon)?;
    let session = shale_libfs::Session::attach(
        Arc::new(InProcess(
            daemon.attach_in_process(rustix::process::geteuid().as_raw()),
        )),
        clock,
        daemon.recent_requests(),
        SessionOptions {
            kernel_references: true,
            present: true,
            hardens_later: true,
            ..SessionOptions::default()
        },
    )
    .map_err(|errno| no_client(&daemon, errno.raw_os_error()))?;
    let sent = packet::send(&**supervisor, &FromDaemon::Opened, &[]);
    let mount = match mount {
        Some(mount) => mount,
        None => match sent.and_then(|()| packet::receive::<ToDaemon>(&**supervisor))? {
            Some((ToDaemon::Mounted, fds)) => fds
                .into_iter()
                .next()
                .ok_or_else(|| Failure::new("the supervisor handed over no mount"))?,
            // It could not mount.
            _ => return shutdown(&daemon),
        },
    };
    let info = MountInfo::from_bytes(&start.info).map_err(Failure::of)?;
    let mount = shale_fuse::FuseSession::adopt(mount, info, continues).map_err(Failure::of)?;
    let fs = Arc::new(ShaleFs::new(session.clone(), start.connection, &mount));
    fs.drop_misplaced(mount.notifier())
        .map_err(Failure::because("cannot start a thread"))?;
    // Before anybody else can become a client.
    daemon.set_lease_hook(Arc::new(KernelCaches::new(fs.clone(), &mount)));
    mount_options::watch(&daemon, &start.mountpoint)?;
    can_shut_down(&daemon, &mount, &fs);
    can_open_by_number(&daemon, &mount, &fs)?;
    daemon.serve_listener(listener).map_err(Failure::of)?;
    admin_server::serve(start, &daemon)?;
    watch(start, supervisor);
    let sweeper = Sweeper::start(session.clone(), mount.notifier())
        .map_err(Failure::because("cannot start a thread"))?;
    serve_mount(&mount, fs, supervisor, daemon.volume().is_tiered())?;
    sweeper.stop();
    session.detach().map_err(Failure::because(
        "what was written last is not in the volume yet",
    ))?;
    shutdown(&daemon)
}

/// Why the mount cannot become a client of its volume.
fn no_client(daemon: &Daemon, errno: i32) -> Failure {
    let why = std::io::Error::from_raw_os_error(errno);
    if errno != libc::ENOSPC {
        return Failure::new(format!(
            "the mount cannot become a client of its volume: {why}"
        ));
    }
    let (dir, needed, free) = daemon.space_for_log();
    Failure::new(format!(
        "{}: the log of the mount takes {}, and {} are free there: {why}",
        dir.display(),
        shown(needed),
        shown(free)
    ))
    .advise("free space there, or rebuild the volume with a smaller --nvm or --log-bytes")
}

/// A mount that is shut down serves no client, and one that is not can be.
fn can_shut_down(daemon: &Arc<Daemon>, mount: &shale_fuse::FuseSession, fs: &ShaleFs) {
    if mount.info().is_shut_down() {
        daemon.stop_clients();
    }
    let daemon = Arc::downgrade(daemon);
    fs.can_shut_down(mount.notifier(), move || {
        if let Some(daemon) = daemon.upgrade() {
            daemon.stop_clients();
        }
    });
}

/// The mount asks the daemon whose a token is.
fn can_open_by_number(
    daemon: &Arc<Daemon>,
    mount: &shale_fuse::FuseSession,
    fs: &ShaleFs,
) -> Result<()> {
    let daemon = Arc::downgrade(daemon);
    let owner_of = move |token, ino| daemon.upgrade()?.open_token_owner(token, ino);
    fs.can_open_by_number(mount.notifier(), owner_of)
        .map_err(Failure::because("cannot start a thread"))
}

/// What is said where the device is missing that has the staging area.
const AREA_MISSING: &str = "put it back: the structure and the staging area of the volume are on this device, so \
                            --degraded cannot do without it";

/// Opens and recovers the volume.
fn open(start: &Start, continues: bool, clock: &Arc<dyn Clock>) -> Result<Arc<Daemon>> {
    let file = VolumeFile::load(&start.volume).map_err(Failure::of)?;
    let area = file.staged.as_ref().map(|staged| staged.device.clone());
    let config = DaemonConfig {
        volume_path: Some(start.volume.clone()),
        connection: (!start.flush_logs).then_some(start.connection),
        connection_continues: continues,
        degraded: start.degraded,
        is_next_mount: !continues && !start.flush_logs,
        supervisor_pid: rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32),
        speed: load(&start.state_dir, SPEED_FILE),
        ..DaemonConfig::new(file)
    };
    Daemon::start(config, clock.clone()).map_err(|e| {
        let failure = Failure::of(&e);
        match e {
            // The volume's lock, or that of one of its devices.
            _ if e.is_busy() => Failure {
                busy: true,
                ..failure
            },
            DaemonError::Volume(error) | DaemonError::Pool(PoolError::Volume(error))
                if error.is_damage() =>
            {
                failure.advise(format!(
                    "shale fsck {0} tells what is damaged, and with --repair mends what it can",
                    start.volume.display()
                ))
            }
            DaemonError::Pool(PoolError::WrongDevice { path, .. })
                if area.as_ref() == Some(&path) =>
            {
                failure.advise(AREA_MISSING)
            }
            DaemonError::Pool(PoolError::Device(_)) if area.is_some() => {
                failure.advise(AREA_MISSING)
            }
            DaemonError::Pool(PoolError::WrongDevice { .. }) => failure.advise(format!(
                "put it back; or do without what it holds: shale mount --degraded {} {}",
                start.volume.display(),
                start.mountpoint.display()
            )),
            _ => failure,
        }
    })
}

/// A mount that is there already goes on without its metrics rather than not at all.
fn serve_metrics(start: &Start, continues: bool, daemon: &Arc<Daemon>) -> Result<()> {
    let Some(address) = &start.metrics else {
        return Ok(());
    };
    match metrics::serve(address, &start.state_dir, daemon) {
        Err(failure) if continues => {
            tracing::error!("{failure}");
            Ok(())
        }
        served => served,
    }
}

fn shutdown(daemon: &Daemon) -> Result<()> {
    daemon.shutdown().map_err(Failure::of)
}

fn serve_mount(
    mount: &shale_fuse::FuseSession,
    fs: Arc<ShaleFs>,
    supervisor: &Arc<OwnedFd>,
    is_tiered: bool,
) -> Result<()> {
    let supervisor_too = supervisor.clone();
    let options = ServeOptions {
        on_init: Some(Box::new(move |info| {
            let agreed = FromDaemon::Negotiated(info.to_bytes());
            // Without a supervisor there is no next daemon that would have to know.
            let _ = packet::send(&*supervisor_too, &agreed, &[]);
        })),
        threads: match is_tiered {
            // While one waits for a disk others answer.
            true => READERS_MAX,
            false => ServeOptions::readers(),
        },
        ..ServeOptions::default()
    };
    let _ = packet::send(&**supervisor, &FromDaemon::Serving, &[]);
    match mount.serve(fs, &options).map_err(Failure::of)? {
        Ended::Unmounted => Ok(()),
        Ended::Stopped => Err(Failure::new("serving stopped while the volume is mounted")),
    }
}

/// A mount without its supervisor would break with its daemon. It is served on as long
/// as somebody uses it, and unmounted as soon as nobody does.
fn watch(start: &Start, supervisor: &Arc<OwnedFd>) {
    let (supervisor, state_dir) = (supervisor.clone(), start.state_dir.clone());
    thread::spawn(move || {
        // It says nothing any more: only its end is heard.
        while packet::receive::<ToDaemon>(&*supervisor).is_ok_and(|word| word.is_some()) {}
        tracing::warn!("the supervisor is gone: the mount ends when nobody uses it");
        loop {
            thread::sleep(ALONE);
            let Some(dir) = StateDir::load(state_dir.clone()) else {
                return;
            };
            if dir.state.is_mounted().unwrap_or(false)
                && let Err(error) = shale_fuse::unmount(&dir.state.mountpoint, false)
            {
                tracing::debug!("{error}");
            }
        }
    });
}
