//! Orders to a daemon that only its owner may give: a socket beside that of the clients.
//!
//! Rebuilt by each daemon, so it is gone for a moment between two.

use crate::failure::{Failure, Result};
use crate::limit;
use crate::migrate;
use crate::mount_settings::save;
use crate::packet::{self, Start};
use crate::state::StateDir;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, socket_with,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shale_daemon::scrub::Damage;
use shale_daemon::{Daemon, MigrateProgress, ScrubProgress, ScrubReport, Status, Whose};
use shale_format::TierId;
use shale_pool::volume_file::DeviceFile;
use shale_proto::SocketPeer;
use shale_sys::private;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const SOCKET: &str = "control";
/// Between two tries to reach the next daemon.
const PAUSE: Duration = Duration::from_millis(50);

/// Between two words about progress.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// What can be ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Bring everything that is logged now into the volume.
    Digest,
    /// Move what NVM holds to the tiers below, or so many bytes of it. Answered by [`Migrating`], again and again.
    Migrate(Option<u64>),
    /// Change how fast migration may be. A limit: bytes a second, 0 for none.
    Speed {
        /// Pause or go on.
        paused: Option<bool>,
        /// Bytes a second.
        limit: Option<u64>,
    },
    /// Change how fast clients may write. Bytes a second, 0 for none; nothing: as each client.
    Limit {
        /// Whose limit.
        whose: Whose,
        /// Bytes a second.
        rate: Option<u64>,
    },
    /// Where the blocks of an inode are, from a byte on.
    Where {
        /// Which.
        ino: u64,
        /// First byte.
        from: u64,
    },
    /// How many files and bytes each device holds.
    Holdings,
    /// Pin inodes to a tier (its number), or to none; or only say what that would move.
    Pin {
        /// Which.
        inos: Vec<u64>,
        /// `None`: they are pinned no more.
        tier: Option<u8>,
        /// Change nothing.
        look: bool,
    },
    /// The devices of the lower tiers.
    Devices,
    /// Change one of them. Answered by all of them as they are then.
    Device(DeviceOrder),
    /// Verify all checksums. Answered by [`Scrubbing`], again and again.
    Scrub,
}

/// What can be ordered about a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceOrder {
    /// Make it part of the volume.
    Add {
        /// Not `nvm`.
        tier: u8,
        /// The device.
        file: DeviceFile,
        /// It may hold another volume, which is lost.
        force: bool,
    },
    /// Begin to empty it.
    Evacuate(PathBuf),
    /// Use it again.
    Keep(PathBuf),
    /// Take it out of the volume.
    Remove(PathBuf),
}

/// What the daemon says while it scrubs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scrubbing {
    /// How far it is.
    Progress(ScrubProgress),
    /// Something is damaged.
    Found(Damage),
    /// The end; what was found has been reported.
    Done(ScrubReport),
}

/// What the daemon says while it moves data down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Migrating {
    /// How far it is.
    Progress(MigrateProgress),
    /// The end: bytes moved, or why it failed.
    Done(std::result::Result<u64, String>),
}

/// What a [`Order::Digest`] did; what went on beside it is counted with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digested {
    /// Records taken.
    pub records: u64,
    /// Of these, records that later ones made superfluous.
    pub skipped: u64,
    /// Bytes of their log.
    pub bytes_logged: u64,
    /// Bytes of data that reached the volume.
    pub bytes_digested: u64,
    /// Blocks of 4 KiB written.
    pub blocks_written: u64,
    /// Blocks of 4 KiB that only had to be linked.
    pub blocks_linked: u64,
    /// Transactions.
    pub commits: u64,
    /// Logs that could not be digested, and why.
    pub stuck: Vec<String>,
}

/// Accepts orders until the process ends.
pub fn serve(start: &Start, daemon: &Arc<Daemon>) -> Result<()> {
    let path = start.state_dir.join(SOCKET);
    let listener = SocketPeer::listen(&path).map_err(Failure::because(path.display()))?;
    // A client that connects before this is asked who it is.
    rustix::fs::chmod(&path, private::MODE.into()).map_err(Failure::because(path.display()))?;
    let daemon = Arc::downgrade(daemon);
    let state_dir = start.state_dir.clone();
    thread::spawn(move || {
        loop {
            let socket = match accept_with(&listener, SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                Err(error) => {
                    tracing::warn!("an order was not heard: {error}");
                    thread::sleep(PAUSE);
                    continue;
                }
            };
            let Some(daemon) = daemon.upgrade() else {
                return;
            };
            // A scrub takes long, and must not hold up others.
            let state_dir = state_dir.clone();
            thread::spawn(move || {
                if let Err(failure) = obey(&socket, &daemon, &state_dir) {
                    tracing::warn!("{failure}");
                }
            });
        }
    });
    Ok(())
}

fn obey(socket: &OwnedFd, daemon: &Daemon, state_dir: &Path) -> Result<()> {
    let who = rustix::net::sockopt::socket_peercred(socket)
        .map_err(Failure::because("cannot tell who orders"))?;
    if !who.uid.is_root() && who.uid != rustix::process::geteuid() {
        let text = format!("user {} may not order", who.uid.as_raw());
        return packet::send(socket, &Err::<Digested, _>(text), &[]);
    }
    match packet::receive::<Order>(socket)? {
        Some((Order::Digest, _)) => {
            let before = daemon.status_values();
            daemon.quiesce();
            let done = difference(&before, &daemon.status_values());
            packet::send(socket, &Ok::<_, String>(done), &[])
        }
        Some((Order::Scrub, _)) => scrub_and_tell(socket, daemon),
        Some((Order::Migrate(bytes), _)) => {
            let mut progress = as_it_goes(socket, Migrating::Progress);
            let moved = daemon.migrate_with(bytes, &mut progress);
            let done = Migrating::Done(moved.map_err(|e| e.to_string()));
            packet::send(socket, &done, &[])
        }
        Some((Order::Speed { paused, limit }, _)) => {
            let mut speed = daemon.speed();
            speed.paused = paused.unwrap_or(speed.paused);
            speed.limit = limit.unwrap_or(speed.limit);
            daemon.set_speed(speed);
            let done = was_kept(save(state_dir, migrate::FILE, &speed), speed.limit);
            packet::send(socket, &done, &[])
        }
        Some((Order::Limit { whose, rate }, _)) => {
            let limits = daemon.change_limits(|limits| {
                limit::forget_ended(limits);
                limits.set(whose, rate);
            });
            let kept = save(state_dir, limit::FILE, &limits);
            packet::send(socket, &was_kept(kept, limits), &[])
        }
        Some((Order::Holdings, _)) => {
            let held = daemon.holdings().map_err(|e| e.to_string());
            packet::send(socket, &held, &[])
        }
        Some((Order::Pin { inos, tier, look }, _)) => {
            let tier = tier.and_then(TierId::from_number);
            let done = match look {
                true => daemon.look_at_pins(&inos, tier),
                false => daemon.pin(&inos, tier),
            };
            packet::send(socket, &done.map_err(|e| e.to_string()), &[])
        }
        Some((Order::Devices, _)) => packet::send(socket, &Ok::<_, String>(daemon.devices()), &[]),
        Some((Order::Device(order), _)) => {
            let done = change_device(&order, daemon).map_err(|e| e.to_string());
            packet::send(socket, &done.map(|()| daemon.devices()), &[])
        }
        Some((Order::Where { ino, from }, _)) => {
            let places = daemon.where_is(ino, from).map_err(|e| e.to_string());
            packet::send(socket, &places, &[])
        }
        None => Ok(()),
    }
}

/// What the giver of an order gets, when what was set had to be kept.
fn was_kept<T>(kept: std::io::Result<()>, set: T) -> std::result::Result<T, String> {
    kept.map(|()| set)
        .map_err(|e| format!("set, but not kept: {e}"))
}

fn change_device(order: &DeviceOrder, daemon: &Daemon) -> shale_daemon::Result<()> {
    match order {
        DeviceOrder::Add { tier, file, force } => {
            let tier = TierId::from_number(*tier).unwrap_or(TierId::Nvm);
            daemon.add_device(tier, file, *force).map(drop)
        }
        DeviceOrder::Evacuate(path) => daemon.evacuate_device(path).map(drop),
        DeviceOrder::Keep(path) => daemon.keep_device(path),
        DeviceOrder::Remove(path) => daemon.remove_device(path),
    }
}

/// Tells progress now and then, as long as somebody listens.
fn as_it_goes<P, W: Serialize>(
    socket: &OwnedFd,
    word: impl Fn(P) -> W,
) -> impl FnMut(P) -> ControlFlow<()> {
    let mut reported = Instant::now();
    move |progress| {
        if reported.elapsed() < TELL_EVERY {
            return ControlFlow::Continue(());
        }
        reported = Instant::now();
        match packet::send(socket, &word(progress), &[]) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

/// Scrubs as long as somebody listens.
fn scrub_and_tell(socket: &OwnedFd, daemon: &Daemon) -> Result<()> {
    let mut report = daemon.scrub(&mut as_it_goes(socket, Scrubbing::Progress));
    for one in std::mem::take(&mut report.damage) {
        packet::send(socket, &Scrubbing::Found(one), &[])?;
    }
    packet::send(socket, &Scrubbing::Done(report), &[])
}

/// Has the daemon of a mount scrub; `hear` gets everything that it says.
///
/// # Errors
/// The daemon ends, or refuses.
pub fn scrub(dir: &StateDir, hear: &mut dyn FnMut(Scrubbing)) -> Result<ScrubReport> {
    let socket = reach(dir)?;
    packet::send(socket.as_fd(), &Order::Scrub, &[])?;
    loop {
        let (word, _) = packet::receive::<Scrubbing>(&socket)?.ok_or_else(|| ended(dir))?;
        hear(word.clone());
        if let Scrubbing::Done(report) = word {
            return Ok(report);
        }
    }
}

/// Has the daemon of a mount move data down; `hear` gets how far it is. Gives the bytes.
///
/// # Errors
/// The daemon ends, or refuses.
pub fn migrate(
    dir: &StateDir,
    bytes: Option<u64>,
    hear: &mut dyn FnMut(MigrateProgress),
) -> Result<u64> {
    let socket = reach(dir)?;
    packet::send(socket.as_fd(), &Order::Migrate(bytes), &[])?;
    loop {
        match packet::receive::<Migrating>(&socket)?.ok_or_else(|| ended(dir))? {
            (Migrating::Progress(progress), _) => hear(progress),
            (Migrating::Done(done), _) => return done.map_err(|why| refused(dir, &why)),
        }
    }
}

fn difference(before: &Status, after: &Status) -> Digested {
    let (old, new) = (&before.digest.stats, &after.digest.stats);
    let stuck = after
        .clients
        .iter()
        .filter(|c| c.state.starts_with("stuck"));
    Digested {
        records: new.records - old.records,
        skipped: new.skipped - old.skipped,
        bytes_logged: new.bytes_logged - old.bytes_logged,
        bytes_digested: new.bytes_digested - old.bytes_digested,
        blocks_written: new.blocks_written - old.blocks_written,
        blocks_linked: new.blocks_linked - old.blocks_linked,
        commits: new.commits - old.commits,
        stuck: stuck
            .map(|c| format!("log of process {}: {}", c.pid, c.state))
            .collect(),
    }
}

/// Gives an order that is answered once. It is given to the next daemon where there is none at the moment, and
/// not repeated where one ends with it.
///
/// # Errors
/// The daemon ends, or refuses, or the mount has ended.
pub fn order<T: DeserializeOwned>(dir: &StateDir, order: &Order) -> Result<T> {
    let answer = ask::<T>(&reach(dir)?, order).ok_or_else(|| ended(dir))?;
    answer.map_err(|why| refused(dir, &why))
}

/// Asks for something that changes nothing, the next daemon if this one ends before it answers.
///
/// # Errors
/// The mount ends, or the daemon refuses.
pub fn look<T: DeserializeOwned>(dir: &StateDir, order: &Order) -> Result<T> {
    again(dir, order)
}

/// Has the daemon of a mount digest everything, the next one if this one is killed.
///
/// # Errors
/// The mount ends, or the daemon refuses.
pub fn digest(dir: &StateDir) -> Result<Digested> {
    again(dir, &Order::Digest)
}

fn again<T: DeserializeOwned>(dir: &StateDir, order: &Order) -> Result<T> {
    loop {
        if let Some(answer) = ask::<T>(&reach(dir)?, order) {
            return answer.map_err(|why| refused(dir, &why));
        }
        thread::sleep(PAUSE);
    }
}

fn ended(dir: &StateDir) -> Failure {
    let path = dir.path().join(SOCKET);
    let shown = path.display();
    Failure::new(format!("{shown}: the daemon has ended meanwhile"))
        .advise("see what came of it, and give the order again")
}

fn refused(dir: &StateDir, why: &str) -> Failure {
    Failure::new(format!("{}: {why}", dir.path().join(SOCKET).display()))
}

/// A connection to the daemon, the next one if there is none at the moment.
fn reach(dir: &StateDir) -> Result<OwnedFd> {
    let path = dir.path().join(SOCKET);
    let address = SocketAddrUnix::new(path.clone()).map_err(Failure::because(path.display()))?;
    loop {
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
            .map_err(Failure::because("cannot make a socket"))?;
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            // Between two daemons it is there and nobody hears, or it is not there.
            Err(Errno::CONNREFUSED | Errno::NOENT) => {}
            Err(e) => return Err(Failure::because(path.display())(e)),
        }
        if StateDir::load(dir.path().to_owned()).is_none_or(|d| d.state.is_stale()) {
            let place = dir.state.mountpoint.display();
            return Err(Failure::not_mounted(format!(
                "{place}: it was unmounted meanwhile"
            )));
        }
        thread::sleep(PAUSE);
    }
}

/// `None`: the daemon ended before it answered.
fn ask<T: DeserializeOwned>(
    socket: &OwnedFd,
    order: &Order,
) -> Option<std::result::Result<T, String>> {
    packet::send(socket.as_fd(), order, &[]).ok()?;
    Some(packet::receive(socket).ok()??.0)
}
