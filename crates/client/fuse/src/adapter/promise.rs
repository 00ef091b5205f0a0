//! What the answer to a request promises, by the request alone.

use super::message::Body;
use crate::backend::node::Promise;
use crate::serving::wire::{InHeader, WriteIn, opcode};

/// Whether a file was opened so that every write to it is durable at return; `flags`: those of open(2).
pub(super) fn is_sync(flags: u32) -> bool {
    flags.cast_signed() & (libc::O_SYNC | libc::O_DSYNC) != 0
}

/// What the answer to a request promises beyond that it was done; `None`: it changes nothing, or nobody asked.
pub(super) fn promise_of(header: &InHeader, message: &[u8]) -> Option<Promise> {
    match header.opcode {
        opcode::FSYNC | opcode::FSYNCDIR => Some(Promise::Fsync),
        opcode::WRITE => match Body::of(header, message).take::<WriteIn>() {
            Ok(write) if is_sync(write.flags) => Some(Promise::SyncWrite),
            _ => Some(Promise::Change),
        },
        opcode::SETATTR
        | opcode::SYMLINK
        | opcode::MKNOD
        | opcode::MKDIR
        | opcode::UNLINK
        | opcode::RMDIR
        | opcode::RENAME
        | opcode::RENAME2
        | opcode::LINK
        | opcode::CREATE
        | opcode::TMPFILE
        | opcode::FALLOCATE
        | opcode::COPY_FILE_RANGE
        | opcode::COPY_FILE_RANGE_64
        | opcode::SETXATTR
        | opcode::REMOVEXATTR
        | opcode::IOCTL => Some(Promise::Change),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn promise(opcode: u32, body: &[u8]) -> Option<Promise> {
        let header = InHeader {
            opcode,
            ..InHeader::default()
        };
        promise_of(&header, &[header.as_bytes(), body].concat())
    }

    #[test]
    fn writes_promise_by_how_the_file_was_opened() {
        for (flags, expected) in [
            (libc::O_WRONLY, Promise::Change),
            (libc::O_RDWR | libc::O_APPEND, Promise::Change),
            (libc::O_WRONLY | libc::O_DSYNC, Promise::SyncWrite),
            (libc::O_RDWR | libc::O_SYNC, Promise::SyncWrite),
        ] {
            let write = WriteIn {
                flags: flags.cast_unsigned(),
                ..WriteIn::default()
            };
            let found = promise(opcode::WRITE, write.as_bytes());
            assert_eq!(found, Some(expected), "{flags:#o}");
        }
    }

    #[test]
    fn what_changes_nothing_promises_nothing() {
        for (opcode, expected) in [
            (opcode::FSYNC, Some(Promise::Fsync)),
            (opcode::FSYNCDIR, Some(Promise::Fsync)),
            (opcode::RENAME2, Some(Promise::Change)),
            (opcode::SETATTR, Some(Promise::Change)),
            (opcode::READ, None),
            (opcode::LOOKUP, None),
            (opcode::GETATTR, None),
            (opcode::READDIRPLUS, None),
            (opcode::STATFS, None),
        ] {
            assert_eq!(promise(opcode, &[]), expected, "{opcode}");
        }
    }
}
