//! Everything that can be wrong with a log: where, expected, found.

use shale_format::record::Kind;
use shale_format::{FormatError, LogPos};

/// A log file or a record in it that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OplogError {
    /// The header of the log file does not decode.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The log file is shorter than its header says.
    #[error("log file: expected at least {expected} bytes, found {found}")]
    Short {
        /// Header and ring, in bytes.
        expected: u64,
        /// Bytes mapped.
        found: u64,
    },
    /// The durable tail cannot belong to a log that goes on at this position.
    #[error("log tail: expected a multiple of 64 from {lowest} to {highest}, found {found}")]
    Tail {
        /// Lowest possible tail.
        lowest: u64,
        /// Highest possible tail.
        highest: u64,
        /// The word in the log file.
        found: u64,
    },
    /// The body is not the one that the record's kind has.
    #[error("{kind:?} record at {}: expected a body of {expected} bytes, found {found}", pos.0)]
    Body {
        /// Where in the log.
        pos: LogPos,
        /// What the record does.
        kind: Kind,
        /// Bytes expected.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
    /// Names, targets and values do not fill the payload as the body says.
    #[error("{kind:?} record at {}: body asks for a payload of {expected} bytes, found {found}", pos.0)]
    Payload {
        /// Where in the log.
        pos: LogPos,
        /// What the record does.
        kind: Kind,
        /// Bytes that the body asks for.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A field has a value that no operation has.
    #[error("{kind:?} record at {}: {field} is {found}", pos.0)]
    Field {
        /// Where in the log.
        pos: LogPos,
        /// What the record does.
        kind: Kind,
        /// Name of the field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// A name that no directory can hold, or no attribute can have.
    #[error("{kind:?} record at {}: {field} {found:?} is no name", pos.0)]
    Name {
        /// Where in the log.
        pos: LogPos,
        /// What the record does.
        kind: Kind,
        /// Which name.
        field: &'static str,
        /// The bytes, as far as they are text.
        found: String,
    },
}
