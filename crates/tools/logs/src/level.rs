//! How much is logged.

use std::fmt;
use std::str::FromStr;
use tracing_subscriber::EnvFilter;

/// Variable that says how much: a level, or a filter of the tracing crate. The processes of a mount hand it to each other.
pub const VARIABLE: &str = "SHALE_LOG";

/// How much is logged: this and what is worse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// What failed.
    Error,
    /// What may fail, or is done in another way.
    Warn,
    /// Events of mounts.
    #[default]
    Info,
    /// What clients and requests do.
    Debug,
}

impl Level {
    const ALL: [Level; 4] = [Level::Error, Level::Warn, Level::Info, Level::Debug];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|level| level.name() == text);
        found.ok_or_else(|| format!("'{text}' is none of error, warn, info, debug"))
    }
}

/// What passes: `asked`, or as [`VARIABLE`] says, or `info`.
pub(crate) fn filter(asked: Option<Level>) -> EnvFilter {
    let said = || EnvFilter::try_from_env(VARIABLE).ok();
    let asked = asked.map(|level| EnvFilter::new(level.name()));
    asked
        .or_else(said)
        .unwrap_or_else(|| EnvFilter::new(Level::default().name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_known_by_its_name() {
        for level in Level::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        assert!(
            "loud"
                .parse::<Level>()
                .unwrap_err()
                .contains("error, warn, info, debug")
        );
        assert_eq!(filter(Some(Level::Warn)).to_string(), "warn");
    }
}
