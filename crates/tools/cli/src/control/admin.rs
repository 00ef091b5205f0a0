//! Giving orders to the daemon of a mount.

use crate::control::orders::{Digested, Migrating, Order, SOCKET, Scrubbing};
use crate::control::packet;
use crate::failure::{Failure, Result};
use crate::mounts::state::StateDir;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::de::DeserializeOwned;
use shale_daemon::{MigrateProgress, ScrubReport};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

/// Between two tries to reach the next daemon.
const PAUSE: Duration = Duration::from_millis(50);

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

/// Gives an order that is answered once. It is given to the next daemon where there is none at the moment, and
/// not repeated where one ends with it.
///
/// # Errors
/// The daemon ends, or refuses, or the mount has ended.
pub fn order<T: DeserializeOwned>(dir: &StateDir, order: &Order) -> Result<T> {
    let answer = ask::<T>(&reach(dir)?, order).ok_or_else(|| ended(dir))?;
    answer.map_err(|why| refused(dir, &why))
}

/// Has the daemon of a mount digest everything, the next one if this one is killed.
///
/// # Errors
/// The mount ends, or the daemon refuses.
pub fn digest(dir: &StateDir) -> Result<Digested> {
    look(dir, &Order::Digest)
}

/// Asks for something that changes nothing, the next daemon if this one ends before it answers.
///
/// # Errors
/// The mount ends, or the daemon refuses.
pub fn look<T: DeserializeOwned>(dir: &StateDir, order: &Order) -> Result<T> {
    loop {
        if let Some(answer) = ask::<T>(&reach(dir)?, order) {
            return answer.map_err(|why| refused(dir, &why));
        }
        thread::sleep(PAUSE);
    }
}

fn ended(dir: &StateDir) -> Failure {
    let shown = dir.state.mountpoint.display();
    Failure::new(format!("{shown}: the daemon has ended meanwhile"))
        .advise("see what came of it, and give the order again")
}

fn refused(dir: &StateDir, why: &str) -> Failure {
    Failure::new(format!("{}: {why}", dir.state.mountpoint.display()))
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
