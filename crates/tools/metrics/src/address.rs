//! Where metrics are served: a port or a Unix socket.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

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
