//! A volume that is started without a device which is not there.

use std::path::Path;

use shale_daemon::{Daemon, DaemonConfig};

use crate::lower_tiers::devices::{DEVICES, Three, change, spoil};
use crate::lower_tiers::tiered_volume::down;
use crate::media::segments::copy;
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::sight::{Sight, unlink, use_it};
use crate::volume::stage::{Checked, attach_to, inos, side};
use shale_bench::Result;
use shale_model::Snapshot;

/// What is in the place of a device.
const INSTEAD: [&str; 3] = ["nothing", "a blank one", "an older copy"];

/// Paths of which something lies on a device.
fn on(daemon: &Daemon, device: &Path) -> Checked<Vec<Vec<u8>>> {
    let mut there = Vec::new();
    for (path, ino) in inos(&daemon.volume().view())? {
        let mut from = 0;
        loop {
            let parts = daemon.where_is(ino, from).map_err(|e| e.to_string())?;
            let name = device.to_str();
            if parts.iter().any(|p| p.device.as_deref() == name) {
                there.push(path.clone());
                break;
            }
            match parts.last() {
                Some(last) => from = last.offset + last.bytes,
                None => break,
            }
        }
    }
    Ok(there)
}

/// Without the device `n`: its files are EIO, all others are right, and the volume is of use. Gives how many are
/// EIO.
fn serve(t: &Three, n: usize, tree: &Snapshot) -> Checked<usize> {
    let config = DaemonConfig {
        degraded: true,
        ..t.config().clone()
    };
    // Once more after that it goes on as it was.
    let mut lost = 0;
    for _ in 0..2 {
        let daemon = t.stage().start_with(config.clone())?;
        let session = attach_to(&daemon)?;
        let mut shale = side(&session);
        let states: Vec<String> = daemon.devices().into_iter().map(|d| d.state).collect();
        if (0..DEVICES.len()).any(|at| (states[at] == "missing") != (at == n)) {
            return Err(format!("states of devices: {states:?}"));
        }
        let there = on(&daemon, &t.file(n))?;
        let sight = Sight::of(&mut shale, tree);
        sight.within(&there)?;
        if let Some(path) = there.iter().find(|p| !sight.failed.contains(*p)) {
            return Err(format!("/{} is not EIO", String::from_utf8_lossy(path)));
        }
        use_it(&mut shale, b"fault-new")?;
        down(&daemon)?;
        unlink(&mut shale, b"fault-new")?;
        Sight::of(&mut shale, tree).within(&there)?;
        lost = there.len();
        drop(shale);
        session.detach().map_err(|e| format!("detach: {e}"))?;
        daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
    }
    Ok(lost)
}

/// Devices that are gone, and come back.
pub fn without(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let t = Three::new(trial)?;
    let tree = kept!(t.fill(trial));
    let place = t.stage().dir();
    let (aside, old) = (place.join("aside"), place.join("old"));
    let mut lost = 0;
    for (n, name) in DEVICES.iter().enumerate() {
        copy(&t.file(n), &old)?;
        kept!(t.as_before(&tree));
        for what in INSTEAD {
            change(&t.file(n), |path| std::fs::rename(path, &aside))?;
            match what {
                "nothing" => {}
                "a blank one" => {
                    copy(&aside, &t.file(n))?;
                    for label in [0, 1] {
                        spoil(&t.file(n), label, 0)?;
                    }
                }
                _ => copy(&old, &t.file(n))?,
            }
            let before = std::fs::read(t.file(n)).ok();
            let served = serve(&t, n, &tree);
            lost += kept!(served.map_err(|wrong| format!("{what} for {name}: {wrong}")));
            let after = std::fs::read(t.file(n)).ok();
            if before != after {
                return Ok(Err(format!("{what} for {name}: it was written")));
            }
            change(&aside, |aside| std::fs::rename(aside, t.file(n)))?;
            let back = t.as_before(&tree);
            kept!(back.map_err(|wrong| format!("{name} is back: {wrong}")));
            trial.cases += 1;
        }
        change(&old, |old| std::fs::remove_file(old))?;
    }
    if lost == 0 {
        return Ok(Err("no file lay on any device".to_owned()));
    }
    trial.seen = format!("{lost} files EIO");
    Ok(Ok(()))
}
