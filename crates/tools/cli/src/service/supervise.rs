//! The supervisor of one mount (hidden verb; the foreground of `mount --foreground`).
//!
//! It holds what must outlive a daemon: the descriptor of the mount, the listening
//! socket, what was agreed with the kernel, the number of the mount. It starts
//! daemons, one at a time, until the mount is gone and every log is in the volume.
//!
//! Order of the start, so that a volume that cannot be served is never mounted: claim
//! the place, listen, let the daemon open and recover the volume, mount, hand over. A
//! daemon killed at any moment is followed by another: before `Negotiated` has come the
//! kernel's first request is still unanswered and is sent again, after it the next
//! daemon gets what was agreed.
//!
//! The supervisor itself may be killed: its daemon then serves until nobody uses the
//! mount, and unmounts it.

use crate::boot::readiness;
use crate::control::packet::{self, FromDaemon, Report, Start, ToDaemon};
use crate::failure::{Failure, Result};
use crate::mounts::mount_options::Given;
use crate::mounts::mount_table;
use crate::mounts::state::{State, StateDir};
use crate::process::{Left, Process, child_ends_within, left_of};
use crate::service::deaths::Deaths;
use crate::service::termination::Termination;
use crate::terminal::note;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use shale_fuse::{FuseSession, MountInfo, MountOptions};
use shale_logs::{Level, LogFile, level};
use shale_pool::VolumeFile;
use shale_proto::SocketPeer;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at a daemon that has closed its socket and not ended.
const LINGER_LOOK: Duration = Duration::from_millis(50);
/// After this time it is reported.
const LINGER_TELL: Duration = Duration::from_secs(1);
/// Between two tries to lock the volume for the next daemon.
const LOCK_PAUSE: Duration = Duration::from_millis(250);
/// How long the lock of an unmounted volume is waited for: nobody uses it any more, and the next mount recovers it.
const FLUSH_LOCK_WAIT: Duration = Duration::from_secs(60);
/// How often an unmounted volume's logs are tried.
const FLUSH_TRIES: u32 = 3;

/// What is to be mounted where. Both paths are absolute.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Volume file.
    pub volume: PathBuf,
    /// Mount point.
    pub mountpoint: PathBuf,
    /// Directory of the NVM tier.
    pub nvm_dir: PathBuf,
    /// Where metrics are served, if they are.
    pub metrics: Option<String>,
    /// Without devices that are not there.
    pub degraded: bool,
    /// How it is mounted.
    pub options: MountOptions,
    /// How much its processes log; none: as they find it said.
    pub log_level: Option<Level>,
}

/// Who waits for the mount.
#[derive(Debug)]
pub enum Front {
    /// The user, at this process.
    Foreground,
    /// `mount`, at the other end of this socket.
    Mount(OwnedFd),
}

impl Front {
    fn tell(&self, report: &Report) {
        match self {
            // A `mount` that was interrupted need not know.
            Front::Mount(socket) => drop(packet::send(socket, report, &[])),
            Front::Foreground if *report == Report::Mounted => readiness::ready(),
            Front::Foreground => {}
        }
    }
}

/// Arguments of the hidden verb.
#[derive(Debug, clap::Args)]
pub struct Args {
    volume: PathBuf,
    mountpoint: PathBuf,
    #[arg(long)]
    metrics: Option<String>,
    #[arg(long)]
    degraded: bool,
    #[arg(short = 'o')]
    options: Vec<String>,
    #[arg(long)]
    log_level: Option<Level>,
}

/// What `mount` starts: its socket is standard input.
pub fn verb(args: &Args) -> Result<()> {
    let front = std::io::stdin().as_fd().try_clone_to_owned();
    let front = front.map_err(Failure::because("standard input"))?;
    // Fails where there is a session of its own already.
    let _ = rustix::process::setsid();
    let file = VolumeFile::load(&args.volume).map_err(Failure::of)?;
    let wanted = Wanted {
        volume: args.volume.clone(),
        mountpoint: args.mountpoint.clone(),
        nvm_dir: file.nvm_dir().to_owned(),
        metrics: args.metrics.clone(),
        degraded: args.degraded,
        options: Given::parse(MountOptions::default(), &args.options)?.options,
        log_level: args.log_level,
    };
    run(&wanted, Front::Mount(front))
}

/// Mounts and supervises until the mount is gone.
///
/// # Errors
/// It could not be mounted, or was given up, or not every log came into the volume.
pub fn run(wanted: &Wanted, front: Front) -> Result<()> {
    let termination = Termination::watch()?;
    let outcome = Supervisor::new(wanted, &front).and_then(|mut supervisor| {
        supervisor.mount(wanted)?;
        termination.unmounts(supervisor.dir.clone());
        front.tell(&Report::Mounted);
        supervisor.keep()
    });
    if let Err(failure) = &outcome {
        tracing::error!("{failure}");
        front.tell(&Report::Failed(failure.clone()));
    }
    outcome
}

/// This program, also when its file was replaced meanwhile.
pub fn program() -> PathBuf {
    match std::env::current_exe() {
        Ok(path) if path.exists() => path,
        _ => "/proc/self/exe".into(),
    }
}

/// What happens to the supervisor.
enum Event {
    Said(FromDaemon),
    /// It is dead, but has not ended: why not.
    Lingers(String),
    /// Everything it said came before.
    Ended(std::io::Result<ExitStatus>),
}

/// The daemon that runs now.
struct Running {
    socket: OwnedFd,
    started: Instant,
    serving: bool,
}

struct Supervisor {
    dir: StateDir,
    foreground: bool,
    listener: OwnedFd,
    mount: Option<FuseSession>,
    metrics: Option<String>,
    /// Daemons may start without devices that are not there.
    degraded: bool,
    log_level: Option<Level>,
    info: [u8; MountInfo::BYTES],
    daemon: Option<Running>,
    /// What the last daemon said that it failed of.
    reason: Option<Failure>,
    sender: Sender<Event>,
    events: Receiver<Event>,
}

impl Supervisor {
    fn new(wanted: &Wanted, front: &Front) -> Result<Self> {
        let foreground = matches!(front, Front::Foreground);
        let state = State {
            mountpoint: wanted.mountpoint.clone(),
            volume: wanted.volume.clone(),
            nvm_dir: wanted.nvm_dir.clone(),
            connection: random()?,
            device: None,
            supervisor: Process::this(),
            daemon: None,
            restarts: 0,
            failure: None,
            waiting: None,
        };
        let dir = StateDir::claim(state, &|what| match front {
            Front::Foreground => note!("{what}"),
            Front::Mount(_) => front.tell(&Report::Waiting(what.to_owned())),
        })?;
        let listener = dir.open_log().and_then(|log| {
            let file = (!foreground).then(|| LogFile::new(log, dir.log()));
            shale_logs::start(file, wanted.log_level);
            let socket = dir.socket();
            let listener =
                SocketPeer::listen(&socket).map_err(Failure::because(socket.display()))?;
            // Who may do what is decided by the daemon, which sees who connects.
            rustix::fs::chmod(&socket, 0o666.into()).map_err(Failure::because(socket.display()))?;
            Ok(listener)
        });
        let listener = listener.inspect_err(|_| dir.remove())?;
        let (sender, events) = channel();
        Ok(Self {
            dir,
            foreground,
            listener,
            mount: None,
            metrics: wanted.metrics.clone(),
            degraded: wanted.degraded,
            log_level: wanted.log_level,
            info: MountInfo::new().to_bytes(),
            daemon: None,
            reason: None,
            sender,
            events,
        })
    }

    /// Opens the volume, then mounts it.
    fn mount(&mut self, wanted: &Wanted) -> Result<()> {
        let mounted = self.open().and_then(|()| {
            FuseSession::mount(&wanted.mountpoint, &wanted.options).map_err(Failure::of)
        });
        let mounted = match mounted {
            Ok(mounted) => mounted,
            Err(failure) => {
                self.dismiss();
                self.dir.remove();
                return Err(failure);
            }
        };
        let found = mount_table::at(&wanted.mountpoint)?;
        self.dir.state.device = found.map(|m| m.device);
        self.dir.save()?;
        if let Some(daemon) = &self.daemon {
            // One that died just now is noticed below, and the next one gets it at its start.
            let _ = packet::send(&daemon.socket, &ToDaemon::Mounted, &[mounted.fd()]);
        }
        self.mount = Some(mounted);
        // What was lost meanwhile must not keep the next daemon from serving the rest.
        self.degraded = true;
        tracing::info!(
            volume = %wanted.volume.display(),
            mountpoint = %wanted.mountpoint.display(),
            version = env!("CARGO_PKG_VERSION"),
            "mounted"
        );
        Ok(())
    }

    /// Starts the first daemon and waits until it has the volume open.
    fn open(&mut self) -> Result<()> {
        self.start(false)?;
        match self.next()? {
            Event::Said(FromDaemon::Opened) => Ok(()),
            Event::Said(other) => {
                self.note(other);
                self.open_failed()
            }
            Event::Lingers(_) => self.open_failed(),
            Event::Ended(status) => {
                self.daemon = None;
                Err(self.died(&status))
            }
        }
    }

    /// The daemon has said why; it ends now.
    fn open_failed(&mut self) -> Result<()> {
        let status = self.wait_for_end()?;
        self.daemon = None;
        Err(self.died(&status))
    }

    fn next(&self) -> Result<Event> {
        self.events
            .recv()
            .map_err(Failure::because("the supervisor hears nothing"))
    }

    /// Supervises until the mount is gone and every log is in the volume.
    fn keep(&mut self) -> Result<()> {
        let mut deaths = Deaths::default();
        loop {
            let status = self.wait_for_end()?;
            let lived = self.daemon.take();
            if !self.is_connected() {
                return match &status {
                    Ok(status) if status.success() => self.end(),
                    _ => self.flush_logs(),
                };
            }
            let reason = self.died(&status);
            if reason.busy {
                // Somebody checks the volume, or keeps its lock for nothing: programs wait, and lose nothing.
                self.wait_for_lock(&reason);
            } else {
                let served = lived.as_ref().filter(|daemon| daemon.serving);
                match deaths.add(served.map(|daemon| daemon.started.elapsed())) {
                    None => return self.give_up(&reason),
                    Some(pause) => {
                        // Its last lines are in the log as it is.
                        tracing::warn!(?pause, "{}; the next one starts", reason.text);
                        thread::sleep(pause);
                    }
                }
                self.dir.state.restarts += 1;
            }
            if let Err(failure) = self.start(false) {
                // No memory, no process: it may pass.
                self.reason = Some(failure);
                drop(
                    self.sender
                        .send(Event::Ended(Err(std::io::ErrorKind::Other.into()))),
                );
            }
        }
    }

    /// Another process has locked the volume: says so once, and waits a moment.
    fn wait_for_lock(&mut self, reason: &Failure) {
        let text = reason.to_string();
        if self.dir.state.waiting.as_ref() != Some(&text) {
            tracing::warn!("{text}; it is tried again until the lock is free");
            self.waits_for(text);
        }
        thread::sleep(LOCK_PAUSE);
    }

    /// What the next daemon waits for, for `shale status`.
    fn waits_for(&mut self, what: String) {
        self.dir.state.waiting = Some(what);
        self.save_state();
    }

    /// Without it the mount goes on.
    fn save_state(&self) {
        if let Err(failure) = self.dir.save() {
            tracing::warn!("{failure}");
        }
    }

    /// Listens to the daemon until it has ended.
    fn wait_for_end(&mut self) -> Result<std::io::Result<ExitStatus>> {
        loop {
            match self.next()? {
                Event::Said(word) => self.note(word),
                Event::Lingers(why) => self.waits_for(why),
                Event::Ended(status) => return Ok(status),
            }
        }
    }

    fn note(&mut self, word: FromDaemon) {
        match word {
            FromDaemon::Opened => {}
            FromDaemon::Negotiated(info) => self.info = info,
            FromDaemon::Serving => {
                if let Some(daemon) = &mut self.daemon {
                    daemon.serving = true;
                }
                let (restarts, pid) = (self.dir.state.restarts, self.dir.state.daemon);
                if restarts > 0 {
                    let pid = pid.map(|daemon| daemon.pid);
                    tracing::info!(restarts, pid, "another daemon serves the mount");
                }
                self.dir.state.waiting = None;
                self.save_state();
            }
            FromDaemon::Failed(failure) => self.reason = Some(failure),
        }
    }

    /// Why the daemon ended: in its own words, or as the kernel says.
    fn died(&mut self, status: &std::io::Result<ExitStatus>) -> Failure {
        self.reason.take().unwrap_or_else(|| match status {
            Ok(status) => Failure::new(format!("the daemon died ({status})"))
                .advise(format!("its log: {}", self.dir.last_lines(3))),
            Err(error) => Failure::new(format!("the daemon cannot be started: {error}")),
        })
    }

    /// Starts a daemon and a thread that listens to it.
    fn start(&mut self, flush_logs: bool) -> Result<()> {
        let (ours, theirs) = packet::pair()?;
        let stderr = match self.foreground {
            true => Stdio::inherit(),
            false => Stdio::from(self.dir.open_log()?),
        };
        let level = self.log_level.map(|level| (level::VARIABLE, level.name()));
        let child = Command::new(program())
            .arg("daemon")
            .envs(level)
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(stderr)
            // What the terminal sends to its foreground is not for the daemon.
            .process_group(0)
            .spawn()
            .map_err(Failure::because("cannot start the daemon"))?;
        let start = ToDaemon::Start(Start {
            volume: self.dir.state.volume.clone(),
            mountpoint: self.dir.state.mountpoint.clone(),
            state_dir: self.dir.path().to_owned(),
            connection: self.dir.state.connection,
            info: self.info,
            metrics: self.metrics.clone(),
            degraded: self.degraded,
            flush_logs,
        });
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.listener.as_fd()];
        fds.extend(self.mount.as_ref().map(FuseSession::fd));
        // A daemon that is dead already cannot be notified; its end is heard all the same.
        let _ = packet::send(&ours, &start, &fds);
        self.dir.state.daemon = Some(Process::of(child.id()));
        self.save_state();
        let heard = ours
            .try_clone()
            .map_err(Failure::because("cannot listen to the daemon"));
        let sender = self.sender.clone();
        self.reason = None;
        self.daemon = Some(Running {
            socket: ours,
            started: Instant::now(),
            serving: false,
        });
        let heard = heard?;
        thread::spawn(move || listen(&heard, child, &sender));
        Ok(())
    }

    /// Has the daemon end that still waits for the mount.
    fn dismiss(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            let _ = rustix::net::shutdown(&daemon.socket, Shutdown::Write);
            let _ = self.wait_for_end();
        }
    }

    /// Whether the kernel still has the mount, by whatever name.
    fn is_connected(&self) -> bool {
        let Some(mount) = &self.mount else {
            return false;
        };
        let mut device = [PollFd::from_borrowed_fd(mount.fd(), PollFlags::empty())];
        match poll(&mut device, Some(&Timespec::default())) {
            Ok(_) => !device[0].revents().contains(PollFlags::ERR),
            Err(_) => true,
        }
    }

    /// The last daemon died after the unmount: another one brings what it left into the
    /// volume.
    fn flush_logs(&mut self) -> Result<()> {
        self.mount = None;
        let mut reason = Failure::new("the daemon died while the volume was being unmounted");
        let (begun, mut tries) = (Instant::now(), 0);
        while tries < FLUSH_TRIES {
            self.start(true)?;
            let status = self.wait_for_end()?;
            self.daemon = None;
            if status.as_ref().is_ok_and(ExitStatus::success) {
                return self.end();
            }
            reason = self.died(&status);
            match reason.busy && begun.elapsed() < FLUSH_LOCK_WAIT {
                true => self.wait_for_lock(&reason),
                false => tries += 1,
            }
        }
        self.fail(&reason)
    }

    fn give_up(&mut self, reason: &Failure) -> Result<()> {
        tracing::error!("too many daemons died one after the other: the mount ends");
        if let Err(error) = shale_fuse::unmount(&self.dir.state.mountpoint, true) {
            tracing::error!("{error}");
        }
        // The last descriptor: a process that waits for an answer gets an error.
        self.mount = None;
        self.fail(reason)
    }

    /// Leaves the reason for the process that unmounts.
    fn fail(&mut self, reason: &Failure) -> Result<()> {
        self.dir.state.failure = Some(reason.to_string());
        if let Err(failure) = self.dir.save() {
            tracing::error!("{failure}");
        }
        Err(reason.clone())
    }

    fn end(&self) -> Result<()> {
        tracing::info!(
            mountpoint = %self.dir.state.mountpoint.display(),
            "unmounted; every log is in the volume"
        );
        self.dir.remove();
        Ok(())
    }
}

/// Passes on what the daemon says, then its end.
fn listen(socket: &OwnedFd, mut child: Child, events: &Sender<Event>) {
    loop {
        match packet::receive::<FromDaemon>(socket) {
            Ok(Some((word, _))) => drop(events.send(Event::Said(word))),
            Ok(None) => break,
            Err(failure) => {
                tracing::error!("{failure}");
                break;
            }
        }
    }
    // If it only closed its end, nobody could tell it to stop any more.
    let ended = match lingers(&child, events) {
        Ok(true) => Ok(ExitStatus::from_raw(rustix::process::Signal::KILL.as_raw())),
        Ok(false) => child.wait(),
        Err(failure) => {
            tracing::error!("{failure}");
            child.wait()
        }
    };
    drop(events.send(Event::Ended(ended)));
    // What is left of it ends with an answer of the next one.
    let _ = child.wait();
}

/// Waits until a daemon has ended, or until nothing is left of it that could keep out or disturb the next one (`true`).
fn lingers(child: &Child, events: &Sender<Event>) -> Result<bool> {
    let (pid, begun, mut reported) = (child.id(), Instant::now(), false);
    while !child_ends_within(child, LINGER_LOOK)? {
        match left_of(pid) {
            Left::Nothing => {
                tracing::info!(pid, "threads of the dead daemon wait for the next one");
                return Ok(true);
            }
            Left::Thread(which) if !reported && begun.elapsed() >= LINGER_TELL => {
                reported = true;
                let why = format!("process {pid} is dead, but its thread {which} has not ended");
                tracing::warn!("{why}; the next daemon starts when it has");
                drop(events.send(Event::Lingers(why)));
            }
            Left::Process | Left::Thread(_) => {}
        }
    }
    Ok(false)
}

/// A number that no other mount has.
///
/// # Errors
/// `/dev/urandom` cannot be read.
pub fn random() -> Result<u64> {
    let bytes = shale_pool::random::random().map_err(Failure::of)?;
    // 0 is the number of no mount.
    Ok(u64::from_le_bytes(bytes).max(1))
}
