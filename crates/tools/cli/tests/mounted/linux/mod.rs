//! What Linux has beyond POSIX (access control lists, flags of `chattr`, handles, capabilities, whiteouts): as on ext4.

mod acls;
mod beside_ext4;
mod flags;
mod handles;
mod rights;
mod whiteout;
