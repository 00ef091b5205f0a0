//! Metrics of a mount, if `shale mount --metrics` asks for them: served by its daemon, found by a file beside its state.

use crate::failure::{Failure, Result};
use crate::mounts::settings;
use shale_daemon::Daemon;
use shale_metrics::{Address, Listener};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// File beside the state of the mount that says where metrics are.
const FILE: &str = "metrics";

/// Where the metrics of a mount are, if they are served.
pub fn place(state_dir: &Path) -> Option<String> {
    let text = fs::read_to_string(state_dir.join(FILE)).ok()?;
    Some(text.trim_end().to_owned())
}

/// Serves metrics until the process ends.
///
/// # Errors
/// The address cannot be had.
pub fn serve(wanted: &str, state_dir: &Path, daemon: &Arc<Daemon>) -> Result<()> {
    let mut address: Address = wanted.parse().map_err(Failure::usage)?;
    // Where a port was chosen, the next daemon takes the same.
    if let Address::Tcp(any) = &address
        && any.port() == 0
        && let Some(last) = place(state_dir).and_then(|p| p.parse().ok())
    {
        address = last;
    }
    let failed = format!("metrics at {address}");
    let listener = Listener::bind(&address).map_err(Failure::because(&failed))?;
    let here = listener
        .address(&address)
        .map_err(Failure::because(&failed))?;
    let text = format!("{here}\n");
    settings::write(&state_dir.join(FILE), text.as_bytes(), 0o644)
        .map_err(Failure::because(&failed))?;
    let daemon = Arc::downgrade(daemon);
    shale_metrics::serve(listener, move || {
        let daemon = daemon.upgrade()?;
        shale_metrics::text(&daemon.status_values()).ok()
    })
    .map_err(Failure::because(&failed))?;
    tracing::info!("metrics at {here}");
    Ok(())
}
