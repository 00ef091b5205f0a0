//! How a verb fails: what, why, what to do, and the exit code.

use serde::{Deserialize, Serialize};
use shale_sys::printable;
use std::fmt;

/// Exit codes; the list is part of `shale --help`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// The operation failed.
    #[default]
    Failed = 1,
    /// The arguments cannot be used.
    Usage = 2,
    /// `fsck` found damage.
    Damaged = 3,
    /// Nothing of Shale is mounted there.
    NotMounted = 4,
}

/// Why a verb ends without having done its work. The processes of a mount send it to each other, without its code: what
/// failed in one of them is [`Code::Failed`] in another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Exit code.
    #[serde(skip)]
    pub code: Code,
    /// What failed and why: "what: why".
    pub text: String,
    /// What to do about it.
    pub advice: Option<String>,
    /// Another process has locked what is needed: it may be free a moment later.
    #[serde(default)]
    pub busy: bool,
}

/// Result with [`Failure`].
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failed operation.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            code: Code::Failed,
            text: text.into(),
            advice: None,
            busy: false,
        }
    }

    /// Arguments that cannot be used.
    pub fn usage(text: impl Into<String>) -> Self {
        Self {
            code: Code::Usage,
            ..Self::new(text)
        }
    }

    /// Damage was found.
    pub fn damaged(text: impl Into<String>) -> Self {
        Self {
            code: Code::Damaged,
            ..Self::new(text)
        }
    }

    /// Nothing of Shale is mounted there.
    pub fn not_mounted(text: impl Into<String>) -> Self {
        Self {
            code: Code::NotMounted,
            ..Self::new(text)
        }
    }

    /// Adds what to do.
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// For `map_err`: the error says what failed, and why.
    pub fn of<E: fmt::Display>(error: E) -> Self {
        Self::new(error.to_string())
    }

    /// For `map_err`: `what` failed, the error says why.
    pub fn because<E: fmt::Display>(what: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |error| Self::new(format!("{what}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // On one line: logs and scripts read it.
        f.write_str(&printable::name(&self.text.replace('\n', "; ")))?;
        match &self.advice {
            Some(advice) => write!(f, " ({})", printable::lines(advice)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_with_advice_behind() {
        let error = std::io::Error::from(std::io::ErrorKind::NotFound);
        let failure = Failure::because("/x: cannot read\nit")(error).advise("make it");
        assert_eq!(
            failure.to_string(),
            "/x: cannot read; it: entity not found (make it)"
        );
        assert_eq!(failure.code, Code::Failed);
    }
}
