//! Names, paths, listings, attributes, extended attributes and permissions.
//!
//! Called by front ends, by inode number (the kernel has walked and checked) or by path (walked and checked here);
//! calls `client` for the frame of a call and `inodes` for entries and attributes.
//!
//! A call by path walks, checks and acts in one read section, so it never meets another inode under a reused number.
//!
//! Lock order: the session's rename lock when a directory changes its parent, then nodes by ascending inode number.
//!
//! A change of names is one transaction: after a power cut all of it is there, or nothing. An inode that loses its
//! last name while it is used becomes an orphan in the same transaction.

pub(crate) mod access;
pub(crate) mod acl;
pub(crate) mod attributes;
pub(crate) mod create_lookup;
pub(crate) mod list;
pub(crate) mod names;
pub(crate) mod path;
pub(crate) mod path_cache;
pub(crate) mod rename;
pub(crate) mod rights;
pub(crate) mod unlink_link;
pub(crate) mod walk;
pub(crate) mod xattrs;
