//! An io_uring with a buffer of its own: some requests at once, all waited for.
//!
//! Invariant: no request is in flight when a method returns, so the kernel never touches the
//! buffer of a ring that nobody waits on. Where that cannot be known any more the ring, with
//! its buffer, is given up and never freed.

use super::buffer::Buffer;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use std::os::fd::RawFd;

/// Bytes of one request.
pub(crate) const REQUEST_BYTES: usize = 128 << 10;
/// Requests at once.
const REQUESTS: usize = 32;
/// Bytes of a ring's buffer.
pub(crate) const RING_BYTES: usize = REQUEST_BYTES * REQUESTS;

/// A write of which only a part was done, and no other went wrong: nothing is in flight, so it can be done again otherwise. No system call
/// of those here gives this number.
pub(crate) const PART_DONE: Errno = Errno::XFULL;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// One ring, used by one thread at a time.
pub(crate) struct Ring {
    /// `None` once it cannot be used any more.
    ring: Option<IoUring>,
    buffer: Option<Buffer>,
}

impl Ring {
    /// A ring, if the kernel has any.
    pub(crate) fn new() -> Result<Ring, std::io::Error> {
        Ok(Ring {
            ring: Some(IoUring::new(REQUESTS as u32)?),
            buffer: Some(Buffer::new(RING_BYTES)),
        })
    }

    /// The buffer that requests read from and write to.
    pub(crate) fn buffer(&mut self) -> &mut [u8] {
        self.buffer.as_mut().map_or(&mut [], Buffer::bytes)
    }

    /// Moves the first `bytes` bytes of the buffer to or from byte `at` of the file.
    pub(crate) fn transfer(
        &mut self,
        way: Direction,
        fd: RawFd,
        at: u64,
        bytes: usize,
    ) -> Result<(), Errno> {
        let result = self.requests(way, fd, at, bytes);
        if result == Err(Errno::CANCELED) {
            // Some may be in flight still: their memory must never be anything else.
            std::mem::forget((self.ring.take(), self.buffer.take()));
            return Err(Errno::IO);
        }
        result
    }

    fn requests(&mut self, way: Direction, fd: RawFd, at: u64, bytes: usize) -> Result<(), Errno> {
        let (Some(ring), Some(buffer)) = (&mut self.ring, &mut self.buffer) else {
            return Err(Errno::IO);
        };
        let memory = buffer.bytes();
        assert!(bytes <= memory.len());
        let mut sent = 0;
        for (n, part) in memory[..bytes].chunks_mut(REQUEST_BYTES).enumerate() {
            let offset = at + (n * REQUEST_BYTES) as u64;
            let (fd, len) = (types::Fd(fd), part.len() as u32);
            let entry = match way {
                Direction::Read => opcode::Read::new(fd, part.as_mut_ptr(), len)
                    .offset(offset)
                    .build(),
                Direction::Write => opcode::Write::new(fd, part.as_ptr(), len)
                    .offset(offset)
                    .build(),
            };
            // SAFETY: the request's memory is the ring's buffer, which stays until every request
            // has been answered: this method waits for them, or the caller never frees it.
            let pushed = unsafe { ring.submission().push(&entry.user_data(u64::from(len))) };
            pushed.map_err(|_| Errno::CANCELED)?;
            sent += 1;
        }
        let (mut done, mut result) = (0, Ok(()));
        while done < sent {
            match ring.submit_and_wait(sent - done) {
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => return Err(Errno::CANCELED),
            }
            for answer in ring.completion() {
                done += 1;
                match answer.result() {
                    n if n < 0 => result = Err(Errno::from_raw_os_error(-n)),
                    n if n as u64 == answer.user_data() => {}
                    // What went wrong elsewhere is what counts.
                    _ if result.is_err() => {}
                    _ if way == Direction::Write => result = Err(PART_DONE),
                    // The ends of files and devices were looked at before: less is an error.
                    _ => result = Err(Errno::IO),
                }
            }
        }
        result
    }
}
