//! Orders to a daemon that only its owner may give, and what it answers: a socket beside that of the clients.
//!
//! Rebuilt by each daemon, so it is gone for a moment between two.

use serde::{Deserialize, Serialize};
use shale_daemon::scrub::Damage;
use shale_daemon::{MigrateProgress, ScrubProgress, ScrubReport, Whose};
use shale_pool::volume_file::DeviceFile;
use shale_tune::Change;
use std::path::PathBuf;

/// The socket, beside the state of the mount.
pub const SOCKET: &str = "control";

/// What can be ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Bring everything that is logged now into the volume.
    Digest,
    /// Move what NVM holds to the tiers below, or so many bytes of it. Answered by [`Migrating`], again and again.
    Migrate(Option<u64>),
    /// Change how fast migration may be. A limit: bytes a second, 0 for none.
    Speed {
        /// Pause or go on.
        paused: Option<bool>,
        /// Bytes a second.
        limit: Option<u64>,
    },
    /// Change how fast clients may write. Bytes a second, 0 for none; nothing: as each client.
    Limit {
        /// Whose limit.
        whose: Whose,
        /// Bytes a second.
        rate: Option<u64>,
    },
    /// Where the blocks of an inode are, from a byte on.
    Where {
        /// Which.
        ino: u64,
        /// First byte.
        from: u64,
    },
    /// How many files and bytes each device holds.
    Holdings,
    /// Pin inodes to a tier (its number), or to none; or only say what that would move.
    Pin {
        /// Which.
        inos: Vec<u64>,
        /// `None`: they are pinned no more.
        tier: Option<u8>,
        /// Change nothing.
        look: bool,
    },
    /// The devices of the lower tiers.
    Devices,
    /// Change one of them. Answered by all of them as they are then.
    Device(DeviceOrder),
    /// Change settings, or none of them. Answered by all of them as they are then.
    Tune(Vec<Change>),
    /// Verify all checksums. Answered by [`Scrubbing`], again and again.
    Scrub,
}

/// What can be ordered about a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceOrder {
    /// Make it part of the volume.
    Add {
        /// Not `nvm`.
        tier: u8,
        /// The device.
        file: DeviceFile,
        /// It may hold another volume, which is lost.
        force: bool,
    },
    /// Begin to empty it.
    Evacuate(PathBuf),
    /// Use it again.
    Keep(PathBuf),
    /// Take it out of the volume.
    Remove(PathBuf),
}

/// What the daemon says while it scrubs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scrubbing {
    /// How far it is.
    Progress(ScrubProgress),
    /// Something is damaged.
    Found(Damage),
    /// The end; what was found has been reported.
    Done(ScrubReport),
}

/// What the daemon says while it moves data down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Migrating {
    /// How far it is.
    Progress(MigrateProgress),
    /// The end: bytes moved, or why it failed.
    Done(std::result::Result<u64, String>),
}

/// What a [`Order::Digest`] did; what went on beside it is counted with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digested {
    /// Records taken.
    pub records: u64,
    /// Of these, records that later ones made superfluous.
    pub skipped: u64,
    /// Bytes of their log.
    pub bytes_logged: u64,
    /// Bytes of data that reached the volume.
    pub bytes_digested: u64,
    /// Blocks of 4 KiB written.
    pub blocks_written: u64,
    /// Blocks of 4 KiB that only had to be linked.
    pub blocks_linked: u64,
    /// Transactions.
    pub commits: u64,
    /// Logs that could not be digested, and why.
    pub stuck: Vec<String>,
}
