//! What decoding can find wrong.

/// Bytes on media that are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The magic number is another one.
    #[error("{what} at {at}: magic {found:#x} where {expected:#x} is expected")]
    Magic {
        /// The structure.
        what: &'static str,
        /// Where it was read.
        at: u64,
        /// The number it should begin with.
        expected: u64,
        /// The number found.
        found: u64,
    },
    /// The checksum does not fit the bytes.
    #[error("{what} at {at}: checksum {found:#010x} where {expected:#010x} is expected")]
    Checksum {
        /// The structure.
        what: &'static str,
        /// Where it was read.
        at: u64,
        /// The checksum computed from the bytes.
        expected: u32,
        /// The checksum stored.
        found: u32,
    },
    /// The structure says that it lives elsewhere (a misdirected write).
    #[error("{what} at {at}: it says that it belongs at {found}")]
    Misplaced {
        /// The structure.
        what: &'static str,
        /// Where it was read.
        at: u64,
        /// Where it says that it belongs.
        found: u64,
    },
    /// A field is outside what it may be.
    #[error("{what} at {at}: {field} is {found}")]
    Field {
        /// The structure.
        what: &'static str,
        /// Where it was read.
        at: u64,
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// Fewer bytes than the structure needs.
    #[error("{what}: {found} bytes where {expected} are needed")]
    Short {
        /// The structure.
        what: &'static str,
        /// Bytes needed.
        expected: usize,
        /// Bytes there.
        found: usize,
    },
    /// A format this program must not open in this way.
    #[error("volume format: {0}")]
    Version(crate::version::Refusal),
    /// A name that no directory entry may have.
    #[error("illegal name of {bytes} bytes: {why}")]
    Name {
        /// Its length.
        bytes: usize,
        /// What is wrong with it.
        why: &'static str,
    },
}
