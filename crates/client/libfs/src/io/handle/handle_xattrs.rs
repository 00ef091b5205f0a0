//! Extended attributes of an open file. What decides are the permissions on the file, and not how it was opened.

use crate::client::call::CallContext;
use crate::io::handle::File;
use crate::namespace::access::{READ, WRITE};
use crate::namespace::path::permitted_of;
use crate::namespace::xattrs::{
    getxattr_where, listxattr_where, removexattr_where, setxattr_where,
};
use shale_session::errno::Result;

/// Errors: as by path, and `EBADF` with `PATH`.
impl File {
    /// Sets an extended attribute.
    pub fn setxattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let (ino, caller, session) = self.of_attributes()?;
        let place = |op: &CallContext<'_>| permitted_of(op, ino, name, WRITE);
        let (calls, paths) = (&session.calls, &session.names.paths);
        setxattr_where(calls, paths, caller, name, value, flags, place)
    }

    /// Value of an extended attribute.
    pub fn getxattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        let (ino, caller, session) = self.of_attributes()?;
        let place = |op: &CallContext<'_>| permitted_of(op, ino, name, READ);
        getxattr_where(&session.calls, caller, name, place)
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, name: &[u8]) -> Result<()> {
        let (ino, caller, session) = self.of_attributes()?;
        let place = |op: &CallContext<'_>| permitted_of(op, ino, name, WRITE);
        let (calls, paths) = (&session.calls, &session.names.paths);
        removexattr_where(calls, paths, caller, name, place)
    }

    /// Names of all extended attributes, each ended by a zero byte.
    pub fn listxattr(&self) -> Result<Vec<u8>> {
        let (ino, caller, session) = self.of_attributes()?;
        listxattr_where(&session.calls, caller, |_| Ok(ino))
    }
}
