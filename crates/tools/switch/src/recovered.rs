//! A volume that was not unmounted: its logs are brought into it, as by a mount.

use shale_daemon::{Daemon, DaemonConfig};
use shale_pool::VolumeFile;
use shale_sys::SystemClock;
use shale_verb::failure::{Failure, Result};
use shale_verb::terminal::note;
use std::path::Path;
use std::sync::Arc;

/// Recovers a volume. `with` gets the daemon before it ends.
pub(crate) fn recover(
    path: &Path,
    file: &VolumeFile,
    with: &mut dyn FnMut(&Daemon) -> Result<()>,
) -> Result<()> {
    let config = DaemonConfig {
        volume_path: Some(path.to_path_buf()),
        ..DaemonConfig::new(file.clone())
    };
    let daemon = Daemon::start(config, Arc::new(SystemClock::new())).map_err(Failure::of)?;
    let done = with(&daemon);
    daemon.shutdown().map_err(Failure::of)?;
    done
}

/// Recovers a volume, and says so.
pub(crate) fn recover_quietly(path: &Path, file: &VolumeFile) -> Result<()> {
    let shown = path.display();
    note!("{shown}: it was not unmounted; what waits in its logs is brought into the volume");
    recover(path, file, &mut |_| Ok(()))
}
