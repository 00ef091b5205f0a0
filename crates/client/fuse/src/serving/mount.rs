//! Mounting and unmounting: by system call where the process may, else with the
//! program that libfuse installs for other users.
//!
//! `default_permissions` is always on: the kernel checks every permission. With `allow_other`, as root always mounts, every
//! user may come, else the one that mounts only.

use std::ffi::CString;
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::error::FuseError;
use crate::serving::transport::REQUEST_DATA_BYTES_MAX;

/// Type of the file system in `/proc/mounts`, after `fuse.`.
const SUBTYPE: &str = "shale";

/// Mounts for users without privilege. For `allow_other` they need `user_allow_other` in `/etc/fuse.conf`.
const HELPER: &str = "fusermount3";

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// First column of `/proc/mounts`. Default `shale`.
    pub fsname: String,
    /// Refuse to change anything. Default `false`.
    pub read_only: bool,
    /// Ignore set-user-ID and set-group-ID of programs. Default `false`: the volume is
    /// served by its owner, and any user that can mount it could do as much.
    pub nosuid: bool,
    /// Do not open device nodes. Default `false`.
    pub nodev: bool,
    /// Do not run programs. Default `false`.
    pub noexec: bool,
    /// Do not note that files are read: shown in `/proc/mounts`; it is the file system that has to
    /// go by it. Default `false`: as `relatime` has it.
    pub noatime: bool,
    /// Users other than the one that mounts may come, too, root among them. Default: if that is root.
    pub allow_other: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            fsname: SUBTYPE.to_owned(),
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            noatime: false,
            allow_other: rustix::process::geteuid().is_root(),
        }
    }
}

impl MountOptions {
    fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, self.nosuid);
        flags.set(MountFlags::NODEV, self.nodev);
        flags.set(MountFlags::NOEXEC, self.noexec);
        flags.set(MountFlags::NOATIME, self.noatime);
        flags
    }
}

/// Mounts; returns the descriptor on which requests arrive. The mount lives as
/// long as any process holds that descriptor.
pub fn mount(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, FuseError> {
    if options.fsname.contains([',', '\0']) {
        return Err(FuseError::Option {
            option: "fsname",
            found: options.fsname.clone(),
        });
    }
    let refused = |source| FuseError::Mount {
        mountpoint: mountpoint.to_owned(),
        source,
    };
    if !fs::metadata(mountpoint).map_err(refused)?.is_dir() {
        return Err(refused(io::ErrorKind::NotADirectory.into()));
    }
    if rustix::process::geteuid().is_root() {
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| FuseError::OpenDevice(e.into()))?;
        mount_directly(&device, mountpoint, options).map_err(refused)?;
        Ok(device)
    } else {
        mount_with_helper(mountpoint, options).map_err(refused)
    }
}

/// Options both ways of mounting share.
fn common_options(options: &MountOptions) -> String {
    let others = if options.allow_other {
        ",allow_other"
    } else {
        ""
    };
    format!("default_permissions{others},max_read={REQUEST_DATA_BYTES_MAX}")
}

fn mount_directly(device: &OwnedFd, mountpoint: &Path, options: &MountOptions) -> io::Result<()> {
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},{}",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
        common_options(options),
    );
    let data = CString::new(data)?;
    let kind = format!("fuse.{SUBTYPE}");
    rustix::mount::mount(
        &*options.fsname,
        mountpoint,
        kind,
        options.flags(),
        data.as_c_str(),
    )?;
    Ok(())
}

/// Has the set-user-ID program of libfuse mount, which any user may. It opens the device
/// itself and sends the descriptor over a socket that it is given.
fn mount_with_helper(mountpoint: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let mut words = format!(
        "{},fsname={},subtype={SUBTYPE}",
        common_options(options),
        options.fsname
    );
    for (set, word) in [
        (options.read_only, ",ro"),
        (options.nosuid, ",nosuid"),
        (options.nodev, ",nodev"),
        (options.noexec, ",noexec"),
        (options.noatime, ",noatime"),
    ] {
        words.push_str(if set { word } else { "" });
    }
    let (ours, theirs) = UnixStream::pair()?;
    let done = Command::new(HELPER)
        .args(["-o", &words, "--"])
        .arg(mountpoint)
        // The socket is its standard input.
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .output()
        .map_err(|e| io::Error::new(e.kind(), format!("{HELPER} (package fuse3): {e}")))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        return Err(io::Error::other(said));
    }
    receive_descriptor(&ours)
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let data = &mut [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, data, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    ancillary
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::other(format!("{HELPER} sent no descriptor")))
}

/// Changes how a mount is mounted, to these options; its name stays.
///
/// # Errors
/// `EPERM` for users other than root; `EBUSY` for `read_only` while files are open for writing.
pub fn remount(mountpoint: &Path, options: &MountOptions) -> io::Result<()> {
    let mut flags = options.flags();
    // Without a word about it, noatime would stay.
    flags.set(MountFlags::RELATIME, !options.noatime);
    rustix::mount::mount_remount(mountpoint, flags, c"")?;
    Ok(())
}

/// Unmounts. With `lazy` the name goes at once and the rest once the last open
/// file is closed; without, open files are `EBUSY`.
///
/// # Errors
/// [`FuseError::Unmount`].
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<(), FuseError> {
    take_away(mountpoint, flags(lazy))
}

/// As [`unmount`], for a mount that nobody will ever serve again: as far as this user may, a process that waits for an answer
/// gets an error, whether it could be unmounted or not.
///
/// # Errors
/// As [`unmount`].
pub fn unmount_dead(mountpoint: &Path, lazy: bool) -> Result<(), FuseError> {
    take_away(mountpoint, flags(lazy) | UnmountFlags::FORCE)
}

fn flags(lazy: bool) -> UnmountFlags {
    match lazy {
        true => UnmountFlags::DETACH,
        false => UnmountFlags::empty(),
    }
}

fn take_away(mountpoint: &Path, flags: UnmountFlags) -> Result<(), FuseError> {
    let refused = |source| FuseError::Unmount {
        mountpoint: mountpoint.to_owned(),
        source,
    };
    if rustix::process::geteuid().is_root() {
        return rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW)
            .map_err(|e| refused(e.into()));
    }
    let how = match flags.contains(UnmountFlags::DETACH) {
        true => "-uz",
        false => "-u",
    };
    let done = Command::new(HELPER)
        .args([how, "--"])
        .arg(mountpoint)
        .output()
        .map_err(refused)?;
    if done.status.success() {
        return Ok(());
    }
    Err(refused(io::Error::other(
        String::from_utf8_lossy(&done.stderr).trim().to_owned(),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helper_hands_over_a_descriptor_that_serves() {
        if !Path::new("/dev/fuse").exists()
            || !rustix::process::geteuid().is_root()
            || Command::new(HELPER).arg("-V").output().is_err()
        {
            eprintln!("SKIPPED: needs root, /dev/fuse and {HELPER}");
            return;
        }
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let options = MountOptions {
            fsname: "helped".to_owned(),
            ..MountOptions::default()
        };
        let device = mount_with_helper(dir.path(), &options).unwrap();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        unmount(dir.path(), true).unwrap();
        let line = mounts
            .lines()
            .find(|l| l.contains(dir.path().to_str().unwrap()))
            .unwrap();
        assert!(
            line.starts_with("helped ") && line.contains(" fuse.shale "),
            "{line}"
        );
        assert!(line.contains("default_permissions,allow_other"), "{line}");
        drop(device);
    }

    #[test]
    fn refusals_name_the_place() {
        let options = MountOptions {
            fsname: "a,b".to_owned(),
            ..MountOptions::default()
        };
        let error = mount(Path::new("/"), &options).unwrap_err();
        assert!(
            matches!(
                error,
                FuseError::Option {
                    option: "fsname",
                    ..
                }
            ),
            "{error}"
        );
        let error = mount(Path::new("/nowhere"), &MountOptions::default()).unwrap_err();
        assert!(
            error.to_string().starts_with("cannot mount on /nowhere: "),
            "{error}"
        );
    }
}
