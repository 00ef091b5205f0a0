//! The ioctls of chattr(1) and lsattr(1): flags of inodes as the kernel numbers them.
//!
//! Who may change them the kernel has checked (since Linux 5.13): the owner or `CAP_FOWNER`, and for immutable
//! and append-only `CAP_LINUX_IMMUTABLE`. It does so for these command numbers alone, not for their 32-bit forms, which it
//! turns into these itself.

use shale_libfs::inode_flag::{APPEND_ONLY, DIR_SYNC, IMMUTABLE, NO_ATIME, NO_DUMP, SYNC};
use shale_libfs::{Caller, Session};

use crate::backend::convert::errno;
use crate::backend::node::{Errno, Ioctl, Result};

/// `FS_IOC_GETFLAGS`.
const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`.
const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`.
const GET_XATTR: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`.
const SET_XATTR: u32 = 0x401c_5820;
/// `FS_IOC_GETVERSION`.
const GET_VERSION: u32 = 0x8008_7601;
/// Minor version of the protocol from which on the kernel checks who changes flags.
pub const MINOR_CHECKED: u32 = 34;

/// Our flag, that of `FS_IOC_GETFLAGS`, that of `FS_IOC_FSGETXATTR` (0: there it is not, and stays as it is).
const FLAGS: [(u32, u32, u32); 6] = [
    (SYNC, 0x08, 0x20),
    (DIR_SYNC, 0x1_0000, 0),
    (IMMUTABLE, 0x10, 0x08),
    (APPEND_ONLY, 0x20, 0x10),
    (NO_DUMP, 0x40, 0x80),
    (NO_ATIME, 0x80, 0x40),
];
/// Bytes of `struct fsxattr`: flags, extent size, number of extents, project, another extent size, 8 that are 0.
const FSXATTR_BYTES: usize = 28;

/// What an ioctl asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The flags; `true`: in a `struct fsxattr`.
    Get(bool),
    /// These flags, ours, and beside them those of the others that are set.
    Set(u32, u32),
    /// The generation.
    Version,
}

/// Whether it is a command that changes flags.
pub fn changes(cmd: u32) -> bool {
    matches!(cmd, SET_FLAGS | SET_XATTR)
}

impl Wish {
    /// What it asks for; `ENOTTY` if it is none of these, `EOPNOTSUPP` for flags that there are not.
    pub fn of(ioctl: &Ioctl<'_>) -> Result<Self> {
        let word = |n: usize| {
            let bytes = ioctl.input.get(n * 4..n * 4 + 4);
            let bytes: [u8; 4] = bytes
                .and_then(|b| b.try_into().ok())
                .ok_or(Errno(libc::EINVAL))?;
            Ok::<u32, Errno>(u32::from_ne_bytes(bytes))
        };
        match ioctl.cmd {
            GET_FLAGS => Ok(Self::Get(false)),
            GET_XATTR => Ok(Self::Get(true)),
            GET_VERSION => Ok(Self::Version),
            SET_FLAGS => Ok(Self::Set(ours(word(0)?, |f| f.1)?, 0)),
            SET_XATTR => {
                // Extent sizes and projects are none of ours.
                for n in [1, 3, 4] {
                    if word(n)? != 0 {
                        return Err(Errno(libc::EOPNOTSUPP));
                    }
                }
                Ok(Self::Set(ours(word(0)?, |f| f.2)?, DIR_SYNC))
            }
            _ => Err(Errno(libc::ENOTTY)),
        }
    }
}

impl Wish {
    /// Does it; gives the bytes of `output` that are filled.
    pub fn serve(
        self,
        session: &Session,
        caller: &Caller,
        ino: u64,
        output: &mut [u8],
    ) -> Result<usize> {
        match self {
            Self::Get(whole) => {
                let flags = session.inode_flags(caller, ino).map_err(errno)?;
                put(flags, whole, output)
            }
            Self::Set(mut flags, kept) => {
                if kept != 0 {
                    flags |= session.inode_flags(caller, ino).map_err(errno)? & kept;
                }
                let set = session.set_inode_flags(caller, ino, flags);
                set.map(|()| 0).map_err(errno)
            }
            Self::Version => {
                let attr = session.getattr(caller, ino).map_err(errno)?;
                let buffer = output.get_mut(..4).ok_or(Errno(libc::EINVAL))?;
                buffer.copy_from_slice(&attr.generation.to_ne_bytes());
                Ok(4)
            }
        }
    }
}

fn ours(theirs: u32, of: impl Fn(&(u32, u32, u32)) -> u32) -> Result<u32> {
    let known = FLAGS.iter().fold(0, |all, f| all | of(f));
    if theirs & !known != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let set = FLAGS.iter().filter(|f| theirs & of(f) != 0);
    Ok(set.fold(0, |all, f| all | f.0))
}

/// Puts flags where the caller has space for them; `whole`: in a `struct fsxattr`. Gives the bytes.
fn put(flags: u32, whole: bool, output: &mut [u8]) -> Result<usize> {
    let set = || FLAGS.iter().filter(|f| flags & f.0 != 0);
    let mut bytes = [0; FSXATTR_BYTES];
    let (word, length) = match whole {
        true => (set().fold(0, |all, f| all | f.2), FSXATTR_BYTES),
        false => (set().fold(0, |all, f| all | f.1), 4),
    };
    bytes[..4].copy_from_slice(&word.to_ne_bytes());
    let buffer = output.get_mut(..length).ok_or(Errno(libc::EINVAL))?;
    buffer.copy_from_slice(&bytes[..length]);
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_round_trip_in_both_forms() {
        for ours in [0, IMMUTABLE, APPEND_ONLY | NO_DUMP, NO_ATIME | SYNC] {
            for (whole, cmd, kept) in [(false, SET_FLAGS, 0), (true, SET_XATTR, DIR_SYNC)] {
                let mut buffer = [0; FSXATTR_BYTES];
                let bytes = put(ours, whole, &mut buffer).unwrap();
                let input = &buffer[..bytes];
                let ioctl = Ioctl { cmd, arg: 0, input };
                assert_eq!(Wish::of(&ioctl), Ok(Wish::Set(ours, kept)));
            }
        }
        assert!(put(0, false, &mut [0; 3]).is_err());
    }

    #[test]
    fn what_there_is_not_is_refused() {
        let of = |cmd, words: &[u32]| {
            let input: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
            let input = &input[..];
            Wish::of(&Ioctl { cmd, arg: 0, input })
        };
        const COMPRESSED: u32 = 4;
        assert_eq!(of(SET_FLAGS, &[COMPRESSED]), Err(Errno(libc::EOPNOTSUPP)));
        assert_eq!(of(SET_FLAGS, &[]), Err(Errno(libc::EINVAL)));
        let project = [8, 0, 0, 5, 0, 0, 0];
        assert_eq!(of(SET_XATTR, &project), Err(Errno(libc::EOPNOTSUPP)));
        // The form of 32-bit programs, which the kernel does not check.
        assert_eq!(of(0x4004_6602, &[0]), Err(Errno(libc::ENOTTY)));
    }
}
