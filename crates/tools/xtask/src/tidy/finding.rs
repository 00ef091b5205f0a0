//! What a rule finds.

/// One departure from a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// File and line, or crate.
    pub place: String,
    /// What is wrong and what to do.
    pub what: String,
}

impl Finding {
    /// At `place`, `what` is wrong.
    pub fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            what: what.into(),
        }
    }
}
