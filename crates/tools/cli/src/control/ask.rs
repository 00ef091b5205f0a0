//! Asking the daemon of a mount over its clients' socket, without becoming a client.

use crate::failure::{Failure, Result};
use crate::mounts::mount_table::{self, Mount};
use crate::mounts::state::{State, StateDir};
use rustix::io::Errno;
use shale_proto::{Channel, Reply, Request, SocketChannel};
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// How long a daemon may take, a restart included.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same where it waits for a device, which may be slow.
const DEVICE_PATIENCE: Duration = Duration::from_secs(300);
/// The same of one that waits for a lock, which is reported then.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// The mount on the path that a user wrote.
///
/// # Errors
/// There is none, or nobody serves it any more.
pub fn mount_at(path: &Path) -> Result<StateDir> {
    let place = mount_table::resolve(path)?;
    let shown = place.display();
    let mount = mount_table::shale_at(&place)?;
    match StateDir::find(&place) {
        // Its supervisor may not have ended yet.
        Some(StateDir { state, .. }) if state.failure.is_some() => {
            let why = state.given_up().unwrap_or_default();
            Err(
                Failure::not_mounted(format!("{shown}: {why}")).advise(format!(
                    "shale umount {shown} takes away what is left of it"
                )),
            )
        }
        Some(dir) if !dir.state.is_stale() => Ok(dir),
        _ if mount.is_some() => Err(unknown(&place, mount.as_ref())),
        _ => Err(
            Failure::not_mounted(format!("{shown}: no shale volume is mounted there"))
                .advise("shale mount VOLUME.toml MOUNTPOINT"),
        ),
    }
}

/// What a Shale mount is of which nothing is known under the name of its place: another name of one that is, another
/// user's, or one whose daemon is gone.
pub fn unknown(place: &Path, mount: Option<&Mount>) -> Failure {
    let shown = place.display();
    let device = mount.map(|m| &m.device);
    let mut known = StateDir::all().into_iter().map(|dir| dir.state);
    // The number of a mount that has just ended may be another one's by now.
    let is_there = |state: &State| {
        let there = mount_table::at(&state.mountpoint).ok().flatten();
        there.is_some_and(|mount| Some(&mount.device) == device)
    };
    let same =
        known.find(|state| state.device.as_ref() == device && !state.is_stale() && is_there(state));
    if let Some(state) = same {
        let first = state.mountpoint.display();
        let text = format!(
            "{shown}: it is another name (a bind mount) of the volume that is mounted on {first}"
        );
        return Failure::not_mounted(text)
            .advise(format!("give {first}; umount {shown} takes this name away"));
    }
    if !is_served(place) {
        let text = format!("{shown}: a mount is left there whose daemon is gone");
        return Failure::not_mounted(text).advise(format!("shale umount {shown}"));
    }
    let own = rustix::process::geteuid().as_raw();
    match mount.and_then(Mount::user).filter(|user| *user != own) {
        Some(user) => Failure::not_mounted(format!(
            "{shown}: user {user} has mounted it, and a daemon of that user serves it"
        ))
        .advise(format!("as that user: setpriv --reuid={user} --init-groups env XDG_RUNTIME_DIR=/run/user/{user} shale …")),
        None => Failure::not_mounted(format!(
            "{shown}: a daemon serves it, but its state is in another directory"
        ))
        .advise("set XDG_RUNTIME_DIR as it was for shale mount"),
    }
}

/// Whether somebody answers for a mount. One that says nothing for a while is there.
pub fn is_served(place: &Path) -> bool {
    let (sender, answer) = channel();
    let place = place.to_owned();
    // In a thread, since a daemon that hangs would never answer.
    thread::spawn(move || {
        let _ = sender.send(rustix::fs::statvfs(&place).map(drop));
    });
    !matches!(
        answer.recv_timeout(LOCK_PATIENCE),
        Ok(Err(Errno::NOTCONN | Errno::CONNABORTED))
    )
}

/// The state of the volume that a mount serves, as its daemon tells it.
///
/// # Errors
/// The daemon refuses, or does not answer in time.
pub fn status(dir: &StateDir) -> Result<serde_json::Value> {
    let place = dir.state.mountpoint.display().to_string();
    match answered(dir, &Request::Status, PATIENCE)? {
        Reply::Status(text) => serde_json::from_str(&text).map_err(Failure::because(&place)),
        other => Err(Failure::new(format!("{place}: the daemon said {other:?}"))),
    }
}

/// Returns when everything survives a power cut that any client of the mount has logged.
///
/// # Errors
/// The device has failed, or the daemon does not answer in time.
pub fn harden_all(dir: &StateDir) -> Result<()> {
    match answered(dir, &Request::HardenAll, DEVICE_PATIENCE)? {
        Reply::Done => Ok(()),
        other => {
            let place = dir.state.mountpoint.display();
            Err(Failure::new(format!("{place}: the daemon said {other:?}")))
        }
    }
}

/// What the daemon answers, the next one if this one ends before.
fn answered(dir: &StateDir, request: &Request, patience: Duration) -> Result<Reply> {
    let place = dir.state.mountpoint.display().to_string();
    let (sender, answer) = channel();
    let (path, state_dir, request) = (dir.socket(), dir.path().to_owned(), request.clone());
    // In a thread, since a daemon that hangs would never answer.
    thread::spawn(move || {
        let deadline = Instant::now() + patience;
        loop {
            let asked = SocketChannel::connect(&path).and_then(|c| c.call(request.clone()));
            // The daemon is being started again, unless the mount has gone.
            let again = asked.is_err() && Instant::now() < deadline && state_dir.exists();
            if !again {
                drop(sender.send(asked));
                return;
            }
            thread::sleep(PAUSE);
        }
    });
    let mut answered = answer.recv_timeout(LOCK_PATIENCE);
    if answered.is_err() {
        // Of one that waits for a lock nobody knows how long it will.
        if let Some(why) = StateDir::load(dir.path().to_owned()).and_then(|dir| dir.state.waiting) {
            let text = format!("{place}: the next daemon waits, and programs with it: {why}");
            return Err(Failure::new(text));
        }
        answered = answer.recv_timeout(patience.saturating_sub(LOCK_PATIENCE));
    }
    let answered = answered.map_err(|_| {
        let seconds = patience.as_secs();
        let log = dir.log();
        let log = log.display();
        // Of a daemon that was started again meanwhile, the new one.
        let now = StateDir::load(dir.path().to_owned());
        let process = now.and_then(|dir| dir.state.daemon);
        let failure = Failure::new(format!(
            "{place}: the daemon has not answered for {seconds} s"
        ));
        match process.map(|process| process.pid) {
            Some(pid) => failure.advise(format!(
                "its log: {log}; where it does not go on, kill -9 {pid}: the next daemon takes over, programs wait until it \
                 does, and nothing that had returned is lost"
            )),
            None => failure.advise(format!("its log: {log}")),
        }
    })?;
    let answered = answered.map_err(|error| match dir.path().exists() {
        true => Failure::new(format!("{place}: {error}")),
        false => Failure::not_mounted(format!("{place}: it was unmounted meanwhile")),
    });
    match answered?.0 {
        Reply::Refused { why, .. } => Err(Failure::new(format!("{place}: {why}"))),
        reply => Ok(reply),
    }
}
