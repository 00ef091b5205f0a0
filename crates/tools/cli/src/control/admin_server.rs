//! The daemon's side of orders: who may give them, what is done, what is answered.

use crate::control::orders::{DeviceOrder, Digested, Migrating, Order, SOCKET, Scrubbing};
use crate::control::packet::{self, Start};
use crate::failure::{Failure, Result};
use crate::mounts::settings::{LIMITS_FILE, SPEED_FILE, save};
use crate::mounts::state::StateDir;
use crate::process;
use rustix::net::{SocketFlags, accept_with};
use serde::Serialize;
use shale_daemon::{Daemon, Limits, Status};
use shale_format::TierId;
use shale_proto::SocketPeer;
use shale_sys::private;
use shale_tune::{Change, Report};
use std::convert::Infallible;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// After a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);

/// Between two words about progress.
const TELL_EVERY: Duration = Duration::from_millis(100);

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
        return answer(socket, Err::<Digested, _>(text));
    }
    let Some((order, _)) = packet::receive::<Order>(socket)? else {
        return Ok(());
    };
    match order {
        Order::Digest => {
            let before = daemon.status_values();
            daemon.quiesce();
            let done = difference(&before, &daemon.status_values());
            answer(socket, Ok::<_, Infallible>(done))
        }
        Order::Scrub => scrub_and_tell(socket, daemon),
        Order::Migrate(bytes) => {
            let mut progress = as_it_goes(socket, Migrating::Progress);
            let moved = daemon.migrate_with(bytes, &mut progress);
            let done = Migrating::Done(moved.map_err(|e| e.to_string()));
            packet::send(socket, &done, &[])
        }
        Order::Speed { paused, limit } => {
            let mut speed = daemon.speed();
            speed.paused = paused.unwrap_or(speed.paused);
            speed.limit = limit.unwrap_or(speed.limit);
            daemon.set_speed(speed);
            let kept = save(state_dir, SPEED_FILE, &speed);
            answer(socket, was_kept(kept, speed.limit))
        }
        Order::Limit { whose, rate } => {
            let limits = daemon.change_limits(|limits| {
                forget_ended(limits);
                limits.set(whose, rate);
            });
            let kept = save(state_dir, LIMITS_FILE, &limits);
            answer(socket, was_kept(kept, limits))
        }
        Order::Holdings => answer(socket, daemon.holdings()),
        Order::Pin { inos, tier, look } => {
            let tier = tier.and_then(TierId::from_number);
            let done = match look {
                true => daemon.look_at_pins(&inos, tier),
                false => daemon.pin(&inos, tier),
            };
            answer(socket, done)
        }
        Order::Devices => answer(socket, Ok::<_, Infallible>(daemon.devices())),
        Order::Device(order) => {
            let done = change_device(&order, daemon);
            answer(socket, done.map(|()| daemon.devices()))
        }
        Order::Tune(changes) => answer(socket, tune(&changes, daemon, state_dir)),
        Order::Where { ino, from } => answer(socket, daemon.where_is(ino, from)),
    }
}

/// Answers an order that is answered once.
fn answer<T: Serialize, E: Display>(
    socket: &OwnedFd,
    done: std::result::Result<T, E>,
) -> Result<()> {
    packet::send(socket, &done.map_err(|e| e.to_string()), &[])
}

/// What the giver of an order gets, when what was set had to be kept.
fn was_kept<T>(kept: std::io::Result<()>, set: T) -> std::result::Result<T, String> {
    kept.map(|()| set)
        .map_err(|e| format!("set, but not kept: {e}"))
}

fn tune(
    changes: &[Change],
    daemon: &Daemon,
    state_dir: &Path,
) -> std::result::Result<Report, String> {
    let dir = StateDir::load(state_dir.to_owned()).ok_or("the state of the mount is gone")?;
    let (report, now) = shale_tune::change_mounted(daemon, &dir.state.volume, changes)?;
    let kept = save(state_dir, SPEED_FILE, &now.speed);
    was_kept(
        kept.and_then(|()| save(state_dir, LIMITS_FILE, &now.limits)),
        report,
    )
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

/// Forgets processes that have ended: their numbers will be others'.
fn forget_ended(limits: &mut Limits) {
    limits.process.retain(|pid, _| process::exists(*pid));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::settings::load;
    use shale_daemon::Whose;

    #[test]
    fn limits_are_kept_for_the_next_daemon() {
        let mut limits = Limits::default();
        limits.set(Whose::Each, Some(1 << 20));
        limits.set(Whose::Process(std::process::id() as i32), Some(0));
        limits.set(Whose::Process(i32::MAX), Some(1 << 30));
        forget_ended(&mut limits);
        assert_eq!(limits.process.len(), 1);
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), LIMITS_FILE, &limits).unwrap();
        assert_eq!(load::<Limits>(dir.path(), LIMITS_FILE), limits);
    }
}
