//! Which descriptors lie on a Shale mount.
//!
//! A mount is known by the kernel's mount number, which is never used again, so an answer
//! holds for ever, yes or no. The first time a number is met, the file is looked at: is
//! it served by FUSE, and which mount does it say that it is?
//!
//! Mounts are numbered in the order in which they are met; a child goes on from its
//! parent's numbers, so a description that both have means the same mount to both.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use parking_lot::{Mutex, RwLock};
use shale_interpose::raw::{self, nr};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// In the mask of `statx`: the number of the mount.
pub const MNT_ID: u32 = 0x1000;
/// The one that is never used again (Linux 6.8); an older kernel gives the plain one.
pub const MNT_ID_UNIQUE: u32 = 0x4000;

/// Mounts that one process family can use. Others are left to the kernel.
pub const MOUNTS: usize = 16;

/// One mount.
#[derive(Clone, Debug)]
pub struct Mount {
    /// Device number, as in `stat`.
    pub device: u64,
    /// Where its daemon listens.
    pub socket: PathBuf,
}

/// What is known of one mount number of the kernel.
struct Known {
    id: u64,
    mount: Option<u32>,
}

/// The first of them, to be found without a lock: what is there once stays.
static FIRST: [First; 4] = [const { First::new() }; 4];

/// A mount number of the kernel's, and 0 or the number of the mount plus 1.
struct First {
    id: AtomicU64,
    mount: AtomicU32,
}

impl First {
    const fn new() -> Self {
        Self {
            id: AtomicU64::new(0),
            mount: AtomicU32::new(0),
        }
    }
}

static KNOWN: RwLock<Vec<Known>> = RwLock::new(Vec::new());
static MOUNT: Mutex<Vec<Mount>> = Mutex::new(Vec::new());
/// How many there are.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A regular file on a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the mount.
    pub mount: u32,
    /// Inode number.
    pub ino: u64,
}

/// Where the file of a descriptor lies, if that is a regular file on a Shale mount.
pub fn place(fd: i32) -> Option<Place> {
    let status = status_of(fd).filter(is_regular)?;
    let mount = number_of(fd, &status)?;
    let ino = status.stx_ino;
    Some(Place { mount, ino })
}

/// The Shale mount that the file of a descriptor lies on, whatever it is.
pub fn mount_of(fd: i32) -> Option<u32> {
    number_of(fd, &status_of(fd)?)
}

fn number_of(fd: i32, status: &libc::statx) -> Option<u32> {
    let id = status.stx_mnt_id;
    let known = || KNOWN.read().iter().find(|k| k.id == id).map(|k| k.mount);
    known_first(id).or_else(known).unwrap_or_else(|| {
        let device = libc::makedev(status.stx_dev_major, status.stx_dev_minor);
        // SAFETY: the caller's descriptor, in a call about it.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let mount = look_for(device, file);
        let mut known = KNOWN.write();
        if let Some(first) = FIRST.get(known.len()) {
            let mount = mount.map_or(0, |mount| mount + 1);
            first.mount.store(mount, Ordering::Relaxed);
            first.id.store(id, Ordering::Release);
        }
        known.push(Known { id, mount });
        mount
    })
}

/// What is known of a mount number, if it is one of the first.
fn known_first(id: u64) -> Option<Option<u32>> {
    let same = |f: &&First| id != 0 && f.id.load(Ordering::Acquire) == id;
    let found = FIRST.iter().find(same)?;
    Some(found.mount.load(Ordering::Relaxed).checked_sub(1))
}

/// As [`place`], if that takes neither lock nor memory; `None`: it does.
pub fn place_quickly(fd: i32) -> Option<Option<Place>> {
    let Some(status) = status_of(fd).filter(is_regular) else {
        return Some(None);
    };
    let mount = known_first(status.stx_mnt_id)?;
    let ino = status.stx_ino;
    Some(mount.map(|mount| Place { mount, ino }))
}

/// Type, inode and mount number of a file.
fn status_of(fd: i32) -> Option<libc::statx> {
    let mask = libc::STATX_TYPE | libc::STATX_INO | MNT_ID | MNT_ID_UNIQUE;
    statx(fd, libc::AT_STATX_DONT_SYNC, mask)
}

fn is_regular(status: &libc::statx) -> bool {
    u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFREG
}

/// `statx` of a descriptor; `None`: the kernel refuses.
pub fn statx(fd: i32, flags: i32, mask: u32) -> Option<libc::statx> {
    statx_at(fd, c"", flags | libc::AT_EMPTY_PATH, mask)
}

/// `statx` of a path; `None`: the kernel refuses.
pub fn statx_at(dir: i32, path: &CStr, flags: i32, mask: u32) -> Option<libc::statx> {
    let mut status = core::mem::MaybeUninit::<libc::statx>::zeroed();
    let args = [
        dir as u64,
        path.as_ptr() as u64,
        flags as u64,
        mask.into(),
        status.as_mut_ptr() as u64,
        0,
    ];
    // SAFETY: the path is a string and the status is as long as the kernel writes.
    let result = unsafe { raw::syscall(nr::STATX, &args) };
    // SAFETY: all zeros is a valid value, and the kernel has filled it in.
    (result >= 0).then(|| unsafe { status.assume_init() })
}

/// Tries to have the kernel know a size before it is left as it is.
pub const SIZE_TRIES: u32 = 64;

/// Has the kernel know the size of a file. It asks neither when it appends, nor when it maps
/// or reads pages of a mapping. And if what it keeps of the file is dropped while
/// it asks, it drops the answer, too, and goes on with what it knew before: a read then ends
/// early. So it is asked until it knows what it got. Gives the size it got, 0 if
/// nobody tells.
pub fn refresh_size(fd: i32) -> u64 {
    let mut size = 0;
    for _ in 0..SIZE_TRIES {
        // A file that cannot be asked about can be neither read nor written.
        let Some(stat) = statx(fd, libc::AT_STATX_FORCE_SYNC, libc::STATX_SIZE) else {
            return 0;
        };
        size = stat.stx_size;
        let kept = statx(fd, libc::AT_STATX_DONT_SYNC, libc::STATX_SIZE);
        if kept.is_none_or(|kept| kept.stx_size == size) {
            break;
        }
    }
    size
}

/// The size of a file that the kernel keeps, which may be an old one. A file that others use on the
/// mount is not cut below it behind the kernel's back: a size that is too small the kernel asks for
/// when somebody reads beyond it; one that is too large it goes by, and gives zeros for what is not there.
pub fn kept_size(fd: i32) -> u64 {
    let kept = statx(fd, libc::AT_STATX_DONT_SYNC, libc::STATX_SIZE);
    kept.map_or(u64::MAX, |kept| kept.stx_size)
}

/// Mounts that this process has met, or had its parent when it was made.
pub fn count() -> u32 {
    COUNT.load(Ordering::Acquire)
}

/// A mount by number.
pub fn get(number: u32) -> Option<Mount> {
    MOUNT.lock().get(number as usize).cloned()
}

fn look_for(device: u64, file: BorrowedFd<'_>) -> Option<u32> {
    let socket = shale_proto::mounts::socket_of(file)?;
    let mut mounts = MOUNT.lock();
    let same = |m: &Mount| m.device == device && m.socket == socket;
    if let Some(at) = mounts.iter().position(same) {
        return Some(at as u32);
    }
    if mounts.len() == MOUNTS {
        return None;
    }
    mounts.push(Mount { device, socket });
    let count = mounts.len() as u32;
    COUNT.store(count, Ordering::Release);
    Some(count - 1)
}

/// Whether a path cannot lie on a Shale mount, or only by ways that nobody takes for
/// speed: looking at the descriptor is not worth its system call.
pub fn surely_elsewhere(path: &[u8]) -> bool {
    const ELSEWHERE: [&str; 6] = ["/proc/", "/sys/", "/usr/", "/lib/", "/lib64/", "/etc/"];
    ELSEWHERE
        .iter()
        .any(|p| path.starts_with(Path::new(p).as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn other_file_systems_are_not_ours() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(place(file.as_raw_fd()), None);
        assert_eq!(place(file.as_raw_fd()), None, "remembered");
        assert!(surely_elsewhere(b"/proc/self/maps") && !surely_elsewhere(b"/mnt/a"));
    }
}
