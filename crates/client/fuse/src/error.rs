//! What can go wrong with the mount itself. What goes wrong inside a request is
//! an [`Errno`](crate::Errno) and goes to the program that asked.

use std::io;
use std::path::PathBuf;

/// An error of mounting, adopting or serving.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FuseError {
    /// `/dev/fuse` cannot be opened: no such module, or no right to it.
    #[error("cannot open /dev/fuse: {0}")]
    OpenDevice(#[source] io::Error),
    /// mount(2) refused.
    #[error("cannot mount on {}: {source}", mountpoint.display())]
    Mount {
        /// Where the mount should have been.
        mountpoint: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// umount(2) refused, with `EBUSY` while a program has a file open there.
    #[error("cannot unmount {}: {source}", mountpoint.display())]
    Unmount {
        /// The mount point.
        mountpoint: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A mount option that would be taken for several.
    #[error("mount option {option} may not contain a comma or a zero byte: {found:?}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// Its value.
        found: String,
    },
    /// The kernel did not take the request to send unanswered requests again.
    /// Adopting needs Linux 6.9.
    #[error("cannot adopt the mount, RESEND was refused (needs Linux 6.9): {0}")]
    Resend(#[source] io::Error),
    /// Reading a request failed for a reason that will not pass.
    #[error("reading a request failed: {0}")]
    Receive(#[source] io::Error),
    /// Memory for requests and replies could not be had.
    #[error("cannot map {bytes} bytes for requests: {source}")]
    Buffer {
        /// Bytes asked for.
        bytes: usize,
        /// Why not.
        source: io::Error,
    },
    /// A worker thread could not be started.
    #[error("cannot start a worker thread: {0}")]
    Spawn(#[source] io::Error),
    /// The signal that ends a worker's wait could not be prepared.
    #[error("cannot prepare the wake-up signal: {0}")]
    Wake(#[source] io::Error),
    /// A message does not have the shape the kernel's interface gives it.
    #[error("message of {found} bytes where at least {expected} were expected")]
    Message {
        /// Bytes the header promised or needs.
        expected: usize,
        /// Bytes there.
        found: usize,
    },
    /// Bytes that are no [`MountInfo`](crate::MountInfo).
    #[error("no state of a mount: {what}: expected {expected:#x}, found {found:#x}")]
    MountInfo {
        /// The part that is wrong.
        what: &'static str,
        /// What belongs there.
        expected: u64,
        /// What is there.
        found: u64,
    },
}
