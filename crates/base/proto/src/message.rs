//! Messages. Encoded with postcard; a message never exceeds [`MESSAGE_BYTES_MAX`].

use crate::error::ProtoError;
use crate::lease::LeaseMode;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Version of this protocol; client and daemon must agree.
pub const PROTO_VERSION: u32 = 19;
/// Most bytes of one encoded message.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Most descriptors that one reply carries.
pub const DESCRIPTORS_MAX: usize = 128;
/// Blocks that a client asks for ahead of use.
pub const GRANT_AHEAD_BLOCKS: u32 = 4096;
/// Most blocks of one grant: 256 MiB.
pub const GRANT_BLOCKS_MAX: u32 = 64 << 10;

/// Longest freeze that is granted ([`Request::Freeze`]): 10 minutes.
pub const FREEZE_NS_MAX: u64 = 600 * 1_000_000_000;

/// A run of consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRun {
    /// First block (`BlockAddr::raw`).
    pub addr: u64,
    /// Number of blocks.
    pub blocks: u32,
}

/// How much a client wants a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseRequestMode {
    /// Only if nobody else has to lose one; else [`Reply::NotLeased`].
    Try,
    /// Others lose theirs.
    Revoke,
    /// The client has lost the lease again and again before it had all that one call
    /// needs: nobody takes it back for a moment.
    RevokeAndHold,
    /// As [`LeaseRequestMode::Revoke`], but the client can go through the mount: if the lease
    /// ping-pongs, or FUSE clients use it, [`Reply::Mediated`].
    RevokeOrDefer,
    /// As [`LeaseRequestMode::RevokeOrDefer`], of a client that would make the file longer: also
    /// [`Reply::Mediated`] if others used it through the mount recently. The client may hold the lease.
    GrowOrDefer,
}

impl LeaseRequestMode {
    /// Whether the client can go through the mount.
    pub fn yields(self) -> bool {
        matches!(self, Self::RevokeOrDefer | Self::GrowOrDefer)
    }
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// First message: become a client. Answered by [`Reply::Attached`] with the
    /// descriptors of log, daemon page, client page, of the log in NVM of a buffered client, and, read-only, of as many segments
    /// as there is space for, in this order.
    Attach {
        /// [`PROTO_VERSION`].
        version: u32,
        /// Wanted bytes of the ring; 0: the volume's default.
        log_bytes: u64,
        /// Number of the durability policy that the client wants; 0: the volume's.
        durability: u8,
    },
    /// Descriptors of the NVM segments from `first` on, at most [`DESCRIPTORS_MAX`]
    /// of them, read-only. Answered by [`Reply::Segments`].
    Segments {
        /// Index of the first wanted.
        first: u32,
    },
    /// Inode numbers for files in directory `parent`.
    GrantInodes {
        /// Directory.
        parent: u64,
        /// Runs of up to 16 wanted.
        runs: u32,
    },
    /// Free blocks to write full blocks into; the segments they lie in come
    /// read-write with the reply.
    GrantBlocks {
        /// Blocks wanted; fewer may be granted. More than [`GRANT_AHEAD_BLOCKS`] are for one call:
        /// all of them are granted (up to [`GRANT_BLOCKS_MAX`]), or none.
        blocks: u32,
    },
    /// Granted blocks that no record names and none will: when space is short, idle
    /// grants must not be what others lack.
    ReturnBlocks {
        /// The blocks; parts of granted runs are welcome.
        runs: Vec<BlockRun>,
    },
    /// Space in the volume for later records, in bytes. A client asks outside of its
    /// read section: the answer may have to wait for a grace period.
    Reserve {
        /// Bytes wanted in the best case.
        wanted: u64,
        /// With less than this the answer is [`Reply::NoSpace`].
        least: u64,
    },
    /// Space for a page that a program has changed in a shared mapping: it is too late to refuse it. Where there is no other, it is
    /// lent from what is kept back for digests. For the mount only. Asked outside of the read section, like [`Request::Reserve`].
    ReserveForPage {
        /// Bytes, what one page may add.
        bytes: u64,
    },
    /// Space that is not needed any more.
    ReturnCredit {
        /// Bytes.
        bytes: u64,
    },
    /// The log has filled above the mark: digest soon. Answered at once.
    Notify,
    /// Digest at least up to this log position and answer when it is done. Asked
    /// outside of the read section, like [`Request::Reserve`].
    Digest {
        /// Log position.
        upto: u64,
    },
    /// Have what was logged before this position survive a power cut, and answer when it does. Only where logs lie in memory
    /// ([`Attached::staged`]). Asked outside of the read section, like [`Request::Reserve`]: it waits for a device.
    Harden {
        /// Log position; what lies beyond the published one is not waited for.
        upto: u64,
    },
    /// A lease on an inode. Asked outside of the read section, like [`Request::Reserve`].
    /// `ENOENT` for the number of an inode that another client has yet to make.
    Lease {
        /// Inode.
        ino: u64,
        /// Mode.
        mode: LeaseMode,
        /// What others may be asked for.
        request_mode: LeaseRequestMode,
    },
    /// Gives a lease back. The client's records under it must be in its log.
    Unlease {
        /// Inode.
        ino: u64,
    },
    /// Blocks of a lower tier, from this one on. Answered by [`Reply::Lower`], with as many
    /// as fit and can be read. Asked outside of the read section: the caller looks again afterwards.
    ReadLower {
        /// First block (`BlockAddr::raw`).
        addr: u64,
        /// Blocks wanted.
        blocks: u32,
    },
    /// The device of flash on which this block lies, so that the client reads it by itself. Answered by
    /// [`Reply::Device`].
    OpenLower {
        /// Any of its blocks (`BlockAddr::raw`).
        addr: u64,
    },
    /// A range of a file's blocks stays as it is for a program that maps it, if all of it is in NVM:
    /// [`Reply::Mapped`], else [`Reply::NotMapped`]. What the client has logged is not in it
    /// before it is digested.
    Map {
        /// Inode.
        ino: u64,
        /// First block of the file.
        first: u64,
        /// Blocks; none behind the end.
        blocks: u64,
    },
    /// Free and total space and inodes.
    Space,
    /// State of the volume as JSON.
    Status,
    /// The client leaves: digest its log, free everything it holds. Answered when done.
    Detach,
    /// The log has come to where the daemon page says that the client has to ask (see
    /// [`ALLOWED`](crate::control::daemon_page::ALLOWED)). Asked outside of the read section.
    Pace,
    /// Have everything survive a power cut that any client of the volume has published by now, also one that is leaving: what
    /// `syncfs` is on other file systems. Answered when it does, at once where logs lie in NVM. Every process that reaches the daemon may ask,
    /// without being a client. Asked outside of the read section, as [`Request::Harden`].
    HardenAll,
    /// Have every call of every client wait that would change something, bring all logs into the volume, and answer when nothing
    /// changes any more ([`Reply::Frozen`]). Until then, and until [`Request::Thaw`], the end of this connection, or `max_ns` after
    /// the request, this client reads without taking leases from anybody. Of the volume's owner and root only; one at a time
    /// (`EBUSY`). `ETIMEDOUT`: the logs could not be brought into the volume in that time.
    Freeze {
        /// Nanoseconds after which calls go on whatever this client does, at most [`FREEZE_NS_MAX`].
        max_ns: u64,
    },
    /// Calls go on. Answered by [`Reply::Thawed`]; `ETIMEDOUT`: they have gone on before, so what was read since [`Reply::Frozen`]
    /// is not of one moment.
    Thaw,
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The client is attached.
    Attached(Attached),
    /// The descriptors with this message are segments `first`…
    Segments {
        /// Index of the first.
        first: u32,
        /// Bytes of each.
        bytes: Vec<u64>,
    },
    /// Granted inode numbers; empty: there are none left.
    Inodes {
        /// The numbers, ascending within each run of up to 16.
        inos: Vec<u64>,
    },
    /// Granted blocks; the descriptors with this message are the segments named.
    Blocks {
        /// The blocks; none when there is no space for a grant.
        runs: Vec<BlockRun>,
        /// Indexes of the segments whose read-write descriptors come along.
        segments: Vec<u32>,
    },
    /// Space credits, in bytes.
    Credit {
        /// Bytes reserved for this client.
        bytes: u64,
    },
    /// The volume is full.
    NoSpace,
    /// The log is in the volume up to here.
    Digested {
        /// Log position.
        pos: u64,
    },
    /// The lease is granted.
    Leased {
        /// Value of the inode's generation word at the grant.
        generation: u32,
        /// The client did not hold it all the time since it last did: drop what is cached.
        fresh: bool,
        /// What it holds now: at least what it asked for.
        mode: LeaseMode,
        /// Of an exclusive lease: another client may have the inode open, so it must not
        /// be freed with its last name.
        used: bool,
        /// Of an exclusive lease, to a client that has asked with [`LeaseRequestMode::RevokeOrDefer`]: other
        /// processes use the inode through the mount, so the kernel must not know it too large.
        watched: bool,
        /// The same, and they did recently, or append to it: the kernel must not know it too small, either.
        /// Who makes it longer asks with [`LeaseRequestMode::GrowOrDefer`] first.
        shared: bool,
        /// Of a shared lease: other clients hold it, too, so an exclusive one would be taken from them.
        others: bool,
    },
    /// The lease is not granted: somebody else has one, and the client did not insist.
    NotLeased,
    /// The lease is not granted: for so long everybody uses the file through the mount.
    /// A call that begins later asks again.
    Mediated {
        /// Nanoseconds from now.
        ns: u64,
        /// No other client that could go past the mount wants to write the file.
        alone: bool,
    },
    /// Blocks that stay as they are. The first descriptor with this message keeps them so, and is
    /// for nothing else: until it and all its duplicates are closed. The others are the
    /// segments named, read-only.
    Mapped {
        /// Bytes of the file.
        size: u64,
        /// The blocks in the order of the file.
        runs: Vec<BlockRun>,
        /// Indexes of the segments.
        segments: Vec<u32>,
    },
    /// The blocks are not to be mapped: not all of them lie in NVM, or too much is mapped already.
    NotMapped,
    /// Blocks of a lower tier.
    Lower {
        /// How often their zone was erased when they were read.
        generation: u32,
        /// Their bytes; none: the first cannot be read.
        data: Vec<u8>,
    },
    /// The one descriptor with this message reads the device and does nothing else; without one the device is read by
    /// [`Request::ReadLower`] alone.
    Device,
    /// Space of the volume.
    Space(Space),
    /// JSON text.
    Status(String),
    /// Done; nothing to say.
    Done,
    /// A limit is set on what the client writes: it waits so long, then asks again.
    Wait {
        /// Nanoseconds; 0: it goes on.
        ns: u64,
        /// Blocks that it was granted and does not use are to be returned: they were not counted.
        give_back: bool,
    },
    /// Nothing changes any more.
    Frozen,
    /// Calls go on.
    Thawed {
        /// For so many nanoseconds calls that change something have waited.
        ns: u64,
    },
    /// Refused; an errno and a sentence.
    Refused {
        /// errno as on Linux.
        errno: i32,
        /// What is wrong and what to do.
        why: String,
    },
}

/// Facts for a new client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Number of the client, never used again while the daemon lives.
    pub client: u32,
    /// Slot of its log.
    pub slot: u32,
    /// Bytes of the ring.
    pub ring_bytes: u64,
    /// Number of NVM segments.
    pub segments: u32,
    /// Bytes of each of the first ones, whose descriptors come with this; for the others there is [`Request::Segments`].
    pub first_segments: Vec<u64>,
    /// Bytes of all segments together.
    pub nvm_bytes: u64,
    /// Stolen blocks are linked in place: client and daemon are the same user.
    pub may_steal: bool,
    /// Number of the durability policy that holds for the client.
    pub durability: u8,
    /// The log lies in memory, and its client copies what has to survive a power cut to a log in NVM, whose descriptor comes behind the
    /// others.
    pub buffered: bool,
    /// Number of the [`Buffering`](shale_format::Buffering) of a buffered client.
    pub buffering: u8,
    /// The log lies in memory: what is published survives a power cut only once it is hardened
    /// ([`Request::Harden`], [`daemon_page::HARDENED`](crate::shared_pages::daemon_page::HARDENED)).
    pub staged: bool,
    /// Name of the model that slows NVM down, for measurements: the client puts the same in front of what it maps.
    pub nvm_model: Option<String>,
    /// The log is one that an earlier daemon was using for this client: positions go on.
    pub resumed: bool,
    /// Secret of this client, from the operating system: with it the client's processes open files by inode number through the mount
    /// ([`open_name`](crate::open_name)) while it is attached.
    pub open_token: u128,
    /// Groups of the client's process, as the kernel knew them when it connected, by which what it does to names is judged now and when its
    /// log is recovered: those that its user has in this machine's user database, too. `None`: it is not judged by them (root, the front end).
    pub groups: Option<Vec<u32>>,
}

/// Space as `statfs` tells it; blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Space {
    /// Blocks that files could ever use.
    pub total: u64,
    /// Blocks free for files now, or as soon as no reader can hold them any more.
    pub free: u64,
    /// Bytes free besides whole blocks: with the space of a client they can make one more.
    pub spare_bytes: u64,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Inodes that could still be made.
    pub inodes_free: u64,
}

/// Encodes a message.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, ProtoError> {
    let bytes = postcard::to_stdvec(message).map_err(|e| ProtoError::Malformed {
        bytes: 0,
        why: e.to_string(),
    })?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(ProtoError::TooLong {
            bytes: bytes.len(),
            limit: MESSAGE_BYTES_MAX,
        });
    }
    Ok(bytes)
}

/// Decodes a message; nothing may be left over.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ProtoError> {
    let malformed = |why: String| ProtoError::Malformed {
        bytes: bytes.len(),
        why,
    };
    match postcard::take_from_bytes::<T>(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(malformed(format!("{} bytes are left over", rest.len()))),
        Err(e) => Err(malformed(e.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_garbage() {
        let r = Request::Reserve {
            wanted: 1 << 40,
            least: 4096,
        };
        let bytes = encode(&r).unwrap();
        assert_eq!(decode::<Request>(&bytes).unwrap(), r);
        assert!(decode::<Request>(&bytes[..bytes.len() - 1]).is_err());
        assert!(decode::<Request>(&[&bytes[..], &[0]].concat()).is_err());
        assert!(decode::<Request>(&[0xff; 40]).is_err());
    }
}
