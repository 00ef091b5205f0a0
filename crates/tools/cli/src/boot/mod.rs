//! What mount(8), systemd and `make install` call, rather than a user.
//!
//! * `mount_helper`: `/sbin/mount.shale`, `/sbin/umount.shale` and the same of type `fuse.shale`, which are this program by
//!   another name; `fstab_options`: the options that they are given;
//! * `registered`: volumes by name, below `/etc/shale`; `by_uuid`: by identity, there or on devices;
//! * `readiness`: tells the service manager that a mount answers;
//! * `man_pages`: writes the manual from the table of verbs.

pub mod by_uuid;
pub mod fstab_options;
pub mod man_pages;
pub mod mount_helper;
pub mod readiness;
pub mod registered;
