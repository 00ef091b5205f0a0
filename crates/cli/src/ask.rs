//! Asking the daemon of a mount over its clients' socket, without becoming a client.

use crate::failure::{Failure, Result};
use crate::mounts;
use crate::state::StateDir;
use shale_proto::{Channel, Reply, Request, SocketChannel};
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// How long a daemon may take, a restart included.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same of one that waits for a lock, which is told then.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// The mount on the path that a user wrote.
///
/// # Errors
/// There is none, or nobody serves it any more.
pub fn mount_at(path: &Path) -> Result<StateDir> {
    let place = mounts::resolve(path)?;
    let shown = place.display();
    let mounted = mounts::at(&place)?.is_some_and(|m| m.is_shale());
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
        _ if mounted => Err(Failure::not_mounted(format!(
            "{shown}: a mount is left there whose daemon is gone"
        ))
        .advise(format!("shale umount {shown}"))),
        _ => Err(
            Failure::not_mounted(format!("{shown}: no shale volume is mounted there"))
                .advise("shale mount VOLUME.toml MOUNTPOINT"),
        ),
    }
}

/// The state of the volume that a mount serves, as its daemon tells it.
///
/// # Errors
/// The daemon refuses, or does not answer in time.
pub fn status(dir: &StateDir) -> Result<serde_json::Value> {
    let place = dir.state.mountpoint.display().to_string();
    let (sender, answer) = channel();
    let (path, state_dir) = (dir.socket(), dir.path().to_owned());
    // In a thread, since a daemon that hangs would never answer.
    thread::spawn(move || {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let asked = SocketChannel::connect(&path).and_then(|c| c.call(Request::Status));
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
        answered = answer.recv_timeout(PATIENCE.saturating_sub(LOCK_PATIENCE));
    }
    let answered = answered.map_err(|_| {
        let seconds = PATIENCE.as_secs();
        Failure::new(format!(
            "{place}: the daemon has not answered for {seconds} s"
        ))
        .advise(format!("its log: {}", dir.log().display()))
    })?;
    let answered = answered.map_err(|error| match dir.path().exists() {
        true => Failure::new(format!("{place}: {error}")),
        false => Failure::not_mounted(format!("{place}: it was unmounted meanwhile")),
    });
    let text = match answered?.0 {
        Reply::Status(text) => text,
        Reply::Refused { why, .. } => return Err(Failure::new(format!("{place}: {why}"))),
        other => return Err(Failure::new(format!("{place}: the daemon said {other:?}"))),
    };
    serde_json::from_str(&text).map_err(Failure::because(&place))
}
