//! Words of libfs in place of those of the front end, and back.

use shale_libfs::Caller;

use crate::backend::node::{Errno, Request};

pub fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid,
        gid: request.gid,
        groups: &[],
        pid: request.pid,
        umask: request.umask,
        request: request.unique,
    }
}

pub fn errno(error: shale_libfs::Errno) -> Errno {
    Errno(error.raw_os_error())
}
