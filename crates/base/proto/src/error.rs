//! What can go wrong between client and daemon.

/// A failed exchange.
#[derive(Debug, thiserror::Error)]
pub enum ProtoError {
    /// The socket failed or the other side went away.
    #[error("daemon connection: {0}")]
    Io(#[from] std::io::Error),
    /// Bytes that are no message.
    #[error("message of {bytes} bytes cannot be read: {why}")]
    Malformed {
        /// Its length.
        bytes: usize,
        /// What the decoder said.
        why: String,
    },
    /// A message longer than [`crate::message::MESSAGE_BYTES_MAX`].
    #[error("message of {bytes} bytes is above the limit of {limit}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The other side closed the connection.
    #[error("the other side closed the connection")]
    Closed,
}
