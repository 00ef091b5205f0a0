//! Which mounts are Shale's, and where their daemons listen.
//!
//! A running mount has a directory for its daemon's socket, named after the number of the
//! mount, which is random. The kernel's table of mounts says whether a device number is a
//! Shale mount, and the mount itself which number it has: as an extended attribute of any
//! of its files. (What a directory says of a device number would not do: the kernel gives
//! the number of a mount that has gone to the next one, while the daemon of the first is
//! still busy.)

use rustix::fs::{AtFlags, StatxFlags, fgetxattr, statx};
use shale_sys::{kernel_text, user_directory};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Type of Shale mounts in the kernel's table.
const KIND: &[u8] = b"fuse.shale";
/// The extended attribute of every file of a mount that holds [`name_of`] its number. It is
/// not listed, and cannot be set.
pub const NUMBER: &str = "system.shale.mount";
/// Who reads this extended attribute of a file, which is never there, is about to map it shared, to
/// store to it: from then on the mount takes its pages for changed at any time. The kernel does not tell.
pub const MAPPED: &str = "system.shale.mapped";
/// This extended attribute is there, empty, while processes other than the one that asks use the contents of the file or list the directory
/// through the mount, and for half a second after. Who would take it from the mount leaves it there. It is not listed, and cannot be set.
pub const USED: &str = "system.shale.used";
/// Who sets this extended attribute of a file, with `XATTR_REPLACE`, has the mount do one of the modes
/// of `fallocate` that the kernel refuses for FUSE: it checks what it checks before any change (right to
/// write, read-only mounts), and holds the lock of the file. The value is a [`RangeCall`]. Nothing is stored.
pub const RANGE: &str = "user.shale.fallocate";
/// Bytes of a mount's name.
const NAME_BYTES: usize = 16;

/// A `fallocate` of the modes that only [`RANGE`] leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeCall {
    /// As in `fallocate(2)`: collapse, insert or unshare, the latter also with keep size.
    pub mode: u32,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl RangeCall {
    /// Length of the value.
    pub const BYTES: usize = 20;

    /// Whether the kernel refuses the mode for FUSE, and a Shale mount has it.
    #[must_use]
    pub fn is_needed(mode: u32) -> bool {
        const KEEP_SIZE: u32 = 1;
        const COLLAPSE: u32 = 8;
        const INSERT: u32 = 32;
        const UNSHARE: u32 = 64;
        matches!(mode & !KEEP_SIZE, COLLAPSE | INSERT | UNSHARE)
    }

    /// The value to set.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.mode.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.offset.to_le_bytes());
        bytes[12..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// What was set; `None`: no such call.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes = <&[u8; Self::BYTES]>::try_from(bytes).ok()?;
        let (mode, rest) = bytes.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let call = Self {
            mode: u32::from_le_bytes(*mode),
            offset: u64::from_le_bytes(*offset),
            bytes: u64::from_le_bytes(rest.try_into().ok()?),
        };
        Self::is_needed(call.mode).then_some(call)
    }
}

/// The name of a mount's directory.
pub fn name_of(number: u64) -> String {
    format!("{number:016x}")
}

/// The daemon's socket of the Shale mount that a file lies on; `None`: it lies on none, or on
/// none that this user can find. Asks the mount, if it is one.
pub fn socket_of(file: impl AsFd) -> Option<PathBuf> {
    let status = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::empty()).ok()?;
    if !is_mounted(&format!(
        "{}:{}",
        status.stx_dev_major, status.stx_dev_minor
    )) {
        return None;
    }
    let mut name = [0u8; NAME_BYTES];
    let got = rustix::io::retry_on_intr(|| fgetxattr(&file, NUMBER, &mut name[..])).ok()?;
    let name = std::str::from_utf8(&name).ok()?;
    let is_name = got == NAME_BYTES && name.bytes().all(|b| b.is_ascii_hexdigit());
    is_name.then(|| search(&directories(), name)).flatten()
}

/// The sockets of all mounts that this user can find, some of which may have ended.
pub fn sockets() -> Vec<PathBuf> {
    let mut sockets = Vec::new();
    for base in directories() {
        // Not by `opendir`, which takes the locks of `malloc`: in a program, who forks has them, and waits for this call.
        let listed = std::fs::File::open(&base).ok();
        let listed = listed.and_then(|dir| rustix::fs::Dir::new(dir).ok());
        let inside = listed.into_iter().flatten().flatten();
        let names = inside.map(|dir| OsStr::from_bytes(dir.file_name().to_bytes()).to_owned());
        let names = names.filter(|name| name != "." && name != "..");
        sockets.extend(names.map(|name| base.join(name).join("socket")));
    }
    sockets.retain(|socket| socket.exists());
    sockets.sort_unstable();
    sockets.dedup();
    sockets
}

/// Whether the table of mounts has the device as a Shale mount. (`statfs` would tell as well,
/// but asks the daemon.)
fn is_mounted(device: &str) -> bool {
    let text = kernel_text::read("/proc/self/mountinfo").unwrap_or_default();
    text.split(|&b| b == b'\n').any(|line| {
        let mut fields = line.split(|&b| b == b' ');
        fields.nth(2) == Some(device.as_bytes())
            && fields.skip_while(|&f| f != b"-").nth(1) == Some(KIND)
    })
}

/// Where mounts keep their state: one given by the environment, root's, this user's.
fn directories() -> Vec<PathBuf> {
    let given = std::env::var_os("SHALE_RUN_DIR").map(PathBuf::from);
    let own = user_directory::of_session().map(|d| d.join("shale"));
    given
        .into_iter()
        .chain([PathBuf::from("/run/shale")])
        .chain(own)
        .collect()
}

fn search(bases: &[PathBuf], name: &str) -> Option<PathBuf> {
    let sockets = bases.iter().map(|base| base.join(name).join("socket"));
    sockets.into_iter().find(|socket| socket.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_about_ranges_are_counted_as_bytes() {
        for mode in [8, 32, 64, 65] {
            let call = RangeCall {
                mode,
                offset: 1 << 40,
                bytes: 4096,
            };
            assert_eq!(RangeCall::from_bytes(&call.to_bytes()), Some(call));
        }
        let punch = RangeCall {
            mode: 3,
            offset: 0,
            bytes: 1,
        };
        assert_eq!(RangeCall::from_bytes(&punch.to_bytes()), None);
        assert_eq!(RangeCall::from_bytes(b"short"), None);
    }

    #[test]
    fn sockets_are_found_by_the_number_of_the_mount() {
        let (empty, base) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dir = base.path().join("000000000000004d");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("socket"), "").unwrap();
        let bases = [empty.path().to_owned(), base.path().to_owned()];
        assert_eq!(search(&bases, &name_of(77)), Some(dir.join("socket")));
        assert_eq!(search(&bases, &name_of(78)), None);
    }

    #[test]
    fn other_file_systems_are_not_ours() {
        assert_eq!(socket_of(std::fs::File::open("/").unwrap()), None);
        assert_eq!(socket_of(tempfile::tempfile().unwrap()), None);
    }
}
