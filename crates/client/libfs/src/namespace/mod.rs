//! Names, paths, listings, attributes and rights.

pub(crate) mod access;
pub(crate) mod acl;
pub(crate) mod links;
pub(crate) mod list;
pub(crate) mod meta;
pub(crate) mod names;
pub(crate) mod path;
pub(crate) mod path_cache;
pub(crate) mod path_xattrs;
pub(crate) mod rename;
pub(crate) mod rights;
pub(crate) mod walk;
pub(crate) mod xattrs;
