//! mount(2) and umount(2), without libfuse.
//!
//! `default_permissions` and `allow_other` are always on: the kernel checks every
//! permission, and every user may come.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::error::FuseError;
use crate::transport::REQUEST_DATA_BYTES_MAX;

/// Type of the file system in `/proc/mounts`, after `fuse.`.
const SUBTYPE: &str = "shale";

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// First column of `/proc/mounts`. Default `shale`.
    pub fsname: String,
    /// Refuse to change anything. Default `false`.
    pub read_only: bool,
    /// Ignore set-user-ID and set-group-ID of programs. Default `false`: the volume is
    /// served by its owner, and whoever can mount it could do as much.
    pub nosuid: bool,
    /// Do not open device nodes. Default `false`.
    pub nodev: bool,
    /// Do not run programs. Default `false`.
    pub noexec: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            fsname: SUBTYPE.to_owned(),
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
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
        flags
    }
}

/// Opens the device and mounts it; returns the descriptor on which requests
/// arrive. The mount lives as long as any process holds that descriptor.
pub fn mount(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, FuseError> {
    if options.fsname.contains([',', '\0']) {
        return Err(FuseError::Option {
            option: "fsname",
            found: options.fsname.clone(),
        });
    }
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| FuseError::OpenDevice(e.into()))?;
    let refused = |source| FuseError::Mount {
        mountpoint: mountpoint.to_owned(),
        source,
    };
    if !fs::metadata(mountpoint).map_err(refused)?.is_dir() {
        return Err(refused(std::io::ErrorKind::NotADirectory.into()));
    }
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,allow_other,max_read={}",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
        REQUEST_DATA_BYTES_MAX,
    );
    let data = CString::new(data).map_err(|e| refused(e.into()))?;
    rustix::mount::mount(
        options.fsname.as_str(),
        mountpoint,
        format!("fuse.{SUBTYPE}"),
        options.flags(),
        data.as_c_str(),
    )
    .map_err(|e| refused(e.into()))?;
    Ok(device)
}

/// Unmounts. With `lazy` the name goes at once and the rest once the last open
/// file is closed; without, open files are `EBUSY`.
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<(), FuseError> {
    let flags = if lazy {
        UnmountFlags::DETACH
    } else {
        UnmountFlags::empty()
    };
    rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW).map_err(|e| {
        FuseError::Unmount {
            mountpoint: mountpoint.to_owned(),
            source: e.into(),
        }
    })
}
