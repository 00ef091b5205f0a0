//! Metrics for Prometheus and other readers of OpenMetrics, if `shale mount --metrics` asks for them.
//!
//! * `sheet`: what is exported, under which names;
//! * `http`: the server, a few threads that answer one request each.
//!
//! Served by the daemon's process, which knows the numbers. There is no login: any process that reaches the
//! address may read them.

mod http;
mod sheet;

use crate::failure::{Failure, Result};
use crate::mount_settings;
use shale_daemon::Daemon;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// File beside the state of the mount that says where metrics are.
const FILE: &str = "metrics";

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A port; 0: any.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let path = text.strip_prefix("unix:").unwrap_or(text);
        if path.starts_with('/') {
            return Ok(Address::Unix(path.into()));
        }
        let address = text.parse().map_err(|_| {
            format!(
                "'{text}' is no address; write for example 127.0.0.1:9180, [::1]:9180 or \
                 unix:/run/shale.metrics"
            )
        })?;
        Ok(Address::Tcp(address))
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

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
    let listener = http::Listener::bind(&address).map_err(Failure::because(&failed))?;
    let here = listener
        .address(&address)
        .map_err(Failure::because(&failed))?;
    let text = format!("{here}\n");
    mount_settings::write(&state_dir.join(FILE), text.as_bytes(), 0o644)
        .map_err(Failure::because(&failed))?;
    let daemon = Arc::downgrade(daemon);
    http::serve(listener, move || {
        let daemon = daemon.upgrade()?;
        sheet::text(&daemon.status_values()).ok()
    })
    .map_err(Failure::because(&failed))?;
    tracing::info!("metrics at {here}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for text in ["127.0.0.1:9180", "[::1]:0", "unix:/run/m"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!(
            "/run/m".parse::<Address>().unwrap(),
            Address::Unix("/run/m".into())
        );
        for text in ["", "9180", "localhost", "unix:relative"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
