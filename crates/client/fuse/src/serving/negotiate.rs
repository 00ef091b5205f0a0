//! The first request, and what of its answer outlives the process that gave it.
//!
//! The kernel asks once in the life of a mount. A daemon that adopts the mount
//! later sees no such request and works on with the answer its predecessor gave:
//! that is [`MountInfo`], which the supervisor keeps. It is handed over *before*
//! the answer is sent, so that no answered mount has a supervisor that does
//! not know; a process killed in between leaves the request to be sent again.

use zerocopy::FromBytes;

use crate::backend::inode_flags;
use crate::backend::node::Errno;
use crate::error::FuseError;
use crate::serving::transport::{REQUEST_DATA_BYTES_MAX, REQUEST_PAGES_MAX};
use crate::serving::wire::{InitIn, InitOut, PROTOCOL_MAJOR, PROTOCOL_MINOR, PROTOCOL_MINOR_MIN};

/// Flags of INIT by their bit, as in `linux/fuse.h`.
mod flag {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const PASSTHROUGH: u64 = 1 << 37;
    pub const HAS_RESEND: u64 = 1 << 39;
}

/// What we ask for, if the kernel offers it. Left out on purpose:
/// `ATOMIC_O_TRUNC` (with no OPEN message nothing would be truncated),
/// `AUTO_INVAL_DATA` (re-reads pages after our own writes), `WRITEBACK_CACHE` (the
/// kernel would own sizes and times), `POSIX_LOCKS` and `FLOCK_LOCKS` (the kernel's
/// own are right for one mount, and 30 times faster), `CREATE_SUPP_GROUP` (the kernel clears
/// set-group-ID itself), `OVER_IO_URING` (does not survive a crash of the daemon).
const ASK: u64 = flag::ASYNC_READ
    | flag::EXPORT_SUPPORT
    | flag::BIG_WRITES
    | flag::DONT_MASK
    | flag::DO_READDIRPLUS
    | flag::ASYNC_DIO
    | flag::NO_OPEN_SUPPORT
    | flag::PARALLEL_DIROPS
    | flag::POSIX_ACL
    | flag::MAX_PAGES
    | flag::CACHE_SYMLINKS
    | flag::EXPLICIT_INVAL_DATA
    | flag::HANDLE_KILLPRIV_V2
    | flag::SETXATTR_EXT
    | flag::INIT_EXT
    | flag::HAS_EXPIRE_ONLY
    | flag::PASSTHROUGH
    | flag::HAS_RESEND;

/// Access control lists, which the kernel asks for, keeps and obeys then; and whether who sets one keeps set-group-ID, which
/// only the kernel knows. The one without the other (before Linux 5.13) is not asked for.
const ACLS: u64 = flag::POSIX_ACL | flag::SETXATTR_EXT;

/// Bit of [`MountInfo`]'s flags that no kernel has: the file system was shut down.
const IS_SHUT_DOWN: u64 = 1 << 63;

/// Requests of the kernel's own (read-ahead) in flight at once.
const BACKGROUND_MAX: u16 = 64;
/// From this number on the kernel slows down read-ahead.
const BACKGROUND_CONGESTED: u16 = 48;

/// What kernel and server agreed on: the state of a mount that has to survive
/// the process that serves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountInfo {
    kernel_minor: u32,
    max_write_bytes: u32,
    flags: u64,
}

impl MountInfo {
    /// Length of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = 24;
    const MAGIC: u32 = u32::from_le_bytes(*b"SHmi");
    const VERSION: u32 = 1;

    /// A mount whose first request is not answered yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A mount with these flags.
    #[cfg(test)]
    pub(crate) fn agreed(flags: u64) -> Self {
        Self {
            flags,
            ..Self::default()
        }
    }

    /// Whether the first request has an answer (or is about to get one).
    #[must_use]
    pub fn is_negotiated(&self) -> bool {
        self.kernel_minor != 0
    }

    /// Minor version of the kernel's protocol, 0 before negotiation.
    #[must_use]
    pub fn kernel_minor(&self) -> u32 {
        self.kernel_minor
    }

    /// Largest write in one request, in bytes.
    #[must_use]
    pub fn max_write_bytes(&self) -> u32 {
        self.max_write_bytes
    }

    /// Whether the kernel can send unanswered requests again (Linux 6.9), without
    /// which a daemon's death is seen by programs.
    #[must_use]
    pub fn can_resend(&self) -> bool {
        self.flags & flag::HAS_RESEND != 0
    }

    /// Whether the kernel can ask again for every cached name (Linux 6.16).
    #[must_use]
    pub fn can_inc_epoch(&self) -> bool {
        self.kernel_minor >= 44
    }

    /// Whether the file system was shut down: nothing is served until the mount ends.
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        self.flags & IS_SHUT_DOWN != 0
    }

    /// The same of a file system that is shut down.
    pub(crate) fn shut_down(self) -> Self {
        Self {
            flags: self.flags | IS_SHUT_DOWN,
            ..self
        }
    }

    /// Whether the kernel obeys access control lists, and says more with a request that sets an attribute. A mount that a
    /// version without them made has none.
    pub(crate) fn has_acls(&self) -> bool {
        self.flags & ACLS == ACLS
    }

    /// Whether the kernel checks who changes the flags of inodes.
    pub(crate) fn checks_inode_flags(&self) -> bool {
        self.kernel_minor >= inode_flags::MINOR_CHECKED
    }

    /// For the supervisor to keep.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&Self::MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&Self::VERSION.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.kernel_minor.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.max_write_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.flags.to_le_bytes());
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote, also in another version of
    /// this program.
    ///
    /// # Errors
    /// [`FuseError::MountInfo`] for bytes of anything else, or of a version that
    /// is not known here, or whose requests do not fit our buffers.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FuseError> {
        let refuse = |what, expected, found| FuseError::MountInfo {
            what,
            expected,
            found,
        };
        let Ok(bytes) = <&[u8; Self::BYTES]>::try_from(bytes) else {
            return Err(refuse("length", Self::BYTES as u64, bytes.len() as u64));
        };
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if word(0) != Self::MAGIC {
            return Err(refuse("magic", Self::MAGIC.into(), word(0).into()));
        }
        if word(4) != Self::VERSION {
            return Err(refuse("version", Self::VERSION.into(), word(4).into()));
        }
        if word(12) as usize > REQUEST_DATA_BYTES_MAX {
            return Err(refuse(
                "largest write",
                REQUEST_DATA_BYTES_MAX as u64,
                word(12).into(),
            ));
        }
        Ok(Self {
            kernel_minor: word(8),
            max_write_bytes: word(12),
            flags: u64::from(word(16)) | u64::from(word(20)) << 32,
        })
    }
}

/// What to do with the kernel's offer.
#[derive(Debug)]
pub enum Negotiated {
    /// Answer this; the mount is as described from then on.
    Agreed(InitOut, MountInfo),
    /// Answer this; the kernel speaks a later major version and will ask again.
    AskAgain(InitOut),
}

/// Decides on the kernel's offer.
pub fn negotiate(body: &[u8]) -> Result<Negotiated, Errno> {
    // Kernels before 5.17 send 16 bytes; the rest is then zero.
    let mut whole = [0u8; size_of::<InitIn>()];
    let given = body.len().min(whole.len());
    whole[..given].copy_from_slice(&body[..given]);
    let offer = InitIn::read_from_bytes(&whole).map_err(|_| Errno(libc::EPROTO))?;
    let ours = InitOut {
        major: PROTOCOL_MAJOR,
        minor: PROTOCOL_MINOR,
        ..InitOut::default()
    };
    if offer.major > PROTOCOL_MAJOR {
        return Ok(Negotiated::AskAgain(ours));
    }
    if offer.major < PROTOCOL_MAJOR || offer.minor < PROTOCOL_MINOR_MIN {
        tracing::error!(
            major = offer.major,
            minor = offer.minor,
            "kernel too old for this mount"
        );
        return Err(Errno(libc::EPROTO));
    }
    let mut offered = u64::from(offer.flags);
    if offered & flag::INIT_EXT != 0 {
        offered |= u64::from(offer.flags2) << 32;
    }
    let acls = if offered & ACLS == ACLS { ACLS } else { 0 };
    let flags = offered & ASK & !ACLS | acls;
    if flags & flag::HAS_RESEND == 0 {
        tracing::warn!("kernel without RESEND: programs will see it when the daemon dies");
    }
    let out = InitOut {
        max_readahead: offer.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_CONGESTED,
        max_write: REQUEST_DATA_BYTES_MAX as u32,
        time_gran: 1,
        max_pages: REQUEST_PAGES_MAX,
        max_stack_depth: u32::from(flags & flag::PASSTHROUGH != 0),
        ..ours
    };
    let info = MountInfo {
        kernel_minor: offer.minor,
        max_write_bytes: out.max_write,
        flags,
    };
    Ok(Negotiated::Agreed(out, info))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn offer(major: u32, minor: u32, flags: u64) -> Vec<u8> {
        InitIn {
            major,
            minor,
            max_readahead: 131_072,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            ..InitIn::default()
        }
        .as_bytes()
        .to_vec()
    }

    #[test]
    fn asks_only_for_what_is_offered_and_wanted() {
        let all = !0u64;
        let Ok(Negotiated::Agreed(out, info)) = negotiate(&offer(7, 45, all)) else {
            panic!()
        };
        let got = u64::from(out.flags) | u64::from(out.flags2) << 32;
        assert_eq!(got, ASK);
        // ATOMIC_O_TRUNC, AUTO_INVAL_DATA, WRITEBACK_CACHE, POSIX_LOCKS, FLOCK_LOCKS, OVER_IO_URING.
        for bit in [3, 12, 16, 1, 10, 41] {
            assert_eq!(got & (1 << bit), 0, "bit {bit}");
        }
        assert!(info.can_resend() && info.is_negotiated() && info.can_inc_epoch());
        assert!(info.has_acls());
        assert_eq!(out.max_stack_depth, 1);

        let Ok(Negotiated::Agreed(out, info)) = negotiate(&offer(7, 36, flag::INIT_EXT)) else {
            panic!()
        };
        assert_eq!(
            (out.flags, out.flags2, out.max_stack_depth),
            (1 << 30, 0, 0)
        );
        assert!(!info.can_resend());
    }

    #[test]
    fn second_flags_count_only_with_init_ext() {
        let Ok(Negotiated::Agreed(out, _)) = negotiate(&offer(7, 45, flag::HAS_RESEND)) else {
            panic!()
        };
        assert_eq!((out.flags, out.flags2), (0, 0));
    }

    #[test]
    fn lists_need_both_flags() {
        for (offered, has) in [
            (flag::POSIX_ACL, false),
            (flag::SETXATTR_EXT, false),
            (ACLS, true),
        ] {
            let Ok(Negotiated::Agreed(out, info)) = negotiate(&offer(7, 45, offered)) else {
                panic!()
            };
            let expected = if has { ACLS as u32 } else { 0 };
            assert_eq!((out.flags, info.has_acls()), (expected, has));
        }
    }

    #[test]
    fn other_versions() {
        assert!(matches!(
            negotiate(&offer(8, 0, 0)),
            Ok(Negotiated::AskAgain(_))
        ));
        assert!(matches!(
            negotiate(&offer(6, 99, 0)),
            Err(Errno(libc::EPROTO))
        ));
        assert!(matches!(
            negotiate(&offer(7, 30, 0)),
            Err(Errno(libc::EPROTO))
        ));
    }

    #[test]
    fn info_survives_bytes_and_refuses_others() {
        let info = MountInfo {
            kernel_minor: 45,
            max_write_bytes: 1 << 20,
            flags: ASK,
        };
        let bytes = info.to_bytes();
        assert_eq!(MountInfo::from_bytes(&bytes).unwrap(), info);
        assert_eq!(
            MountInfo::from_bytes(&MountInfo::new().to_bytes()).unwrap(),
            MountInfo::new()
        );
        assert!(MountInfo::from_bytes(&bytes[1..]).is_err());
        let down = info.shut_down();
        let kept = MountInfo::from_bytes(&down.to_bytes()).unwrap();
        assert!(kept.is_shut_down() && !info.is_shut_down() && kept.can_resend());
        for (at, what) in [(0, "magic"), (4, "version"), (15, "largest write")] {
            let mut wrong = bytes;
            wrong[at] ^= 0x40;
            let error = MountInfo::from_bytes(&wrong).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
