//! The device and the memory requests travel through.
//!
//! Invariants: a [`LockedBuf`] is resident from its creation on, stays so (locked,
//! and not shared with children, so that fork does not turn its pages into
//! copy-on-write ones), and every request and every reply passes through one.
//! A process killed while the kernel faults in such a page would end the
//! request with `EIO`, and the program would see it.
//!
//! All of the crate's `unsafe` is here.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno as OsErrno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::FuseError;
use crate::serving::wire::{InHeader, OutHeader};

/// Largest read or write in one request, in bytes.
pub const REQUEST_DATA_BYTES_MAX: usize = 1 << 20;

/// Largest read or write in one request, in pages of the kernel.
pub const REQUEST_PAGES_MAX: u16 = 256;

/// Largest request in bytes: the largest data, and a page for everything before it.
const REQUEST_BYTES_MAX: usize = REQUEST_DATA_BYTES_MAX + 4096;

/// Size of a buffer in bytes. A request and its reply share one: no request with much
/// data has a reply with much data. So one page for the reply to the largest request
/// does, and leaves a small request more than the largest reply.
pub const BUFFER_BYTES: usize = REQUEST_BYTES_MAX + 4096;

const _: () = assert!(REQUEST_PAGES_MAX as usize * 4096 == REQUEST_DATA_BYTES_MAX);

/// Page-aligned memory that is resident and, if the process may, locked.
pub struct LockedBuf {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, like the memory of a `Vec<u8>`.
unsafe impl Send for LockedBuf {}

impl LockedBuf {
    /// Maps `bytes` bytes of zeros. If the process may not lock that much
    /// memory, a warning is logged, once, and the pages are resident only.
    pub fn new(bytes: usize) -> Result<Self, FuseError> {
        // SAFETY: a new private mapping at an address the kernel chooses replaces
        // nothing. POPULATE makes its pages present and writable.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )
        }
        .map_err(|e| FuseError::Buffer {
            bytes,
            source: e.into(),
        })?;
        // SAFETY: start..start+bytes is the mapping made above; both calls change
        // how the kernel treats it, not what it holds.
        let kept = unsafe {
            rustix::mm::madvise(start, bytes, Advice::LinuxDontFork)
                .and_then(|()| rustix::mm::mlock(start, bytes))
        };
        // Of one the same holds as of all others.
        static SAID: AtomicBool = AtomicBool::new(false);
        if let Err(error) = kept
            && !SAID.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%error, bytes, "request buffer is not locked in memory: \
                a kill at the wrong moment may be seen by a program");
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| FuseError::Buffer {
            bytes,
            source: io::ErrorKind::OutOfMemory.into(),
        })?;
        Ok(Self { start, bytes })
    }

    /// The request of `bytes` bytes at the start, and where its reply goes.
    pub fn split(&mut self, bytes: usize) -> (&[u8], &mut [u8]) {
        let (request, reply) = self.split_at_mut(bytes.next_multiple_of(8));
        (&request[..bytes], reply)
    }
}

impl Deref for LockedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is readable, initialised (zeros), `bytes` long, and
        // lives until drop; the borrow rules of `self` govern it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for LockedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the borrow exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for LockedBuf {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping of `new`; no borrow of it can be left.
        if let Err(error) = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) } {
            tracing::error!(%error, "request buffer could not be unmapped");
        }
    }
}

/// What came of waiting for a request.
#[derive(Debug)]
pub enum Received {
    /// A request of this header; the message is in the buffer.
    Request(InHeader),
    /// Nothing: the wait was interrupted, or the request was withdrawn.
    Nothing,
    /// The file system is unmounted or the connection was aborted.
    Gone,
}

/// An open `/dev/fuse` with a mount behind it.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl Device {
    /// Takes the descriptor of a mount.
    pub fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Waits for one request and reads it to the start of `buf`.
    pub fn receive(&self, buf: &mut LockedBuf) -> Result<Received, FuseError> {
        let length = buf.bytes.min(REQUEST_BYTES_MAX);
        let found = match rustix::io::read(&self.0, &mut buf[..length]) {
            Ok(found) => found,
            // ENOENT: the request was interrupted before it was read.
            Err(OsErrno::INTR | OsErrno::NOENT) => return Ok(Received::Nothing),
            Err(OsErrno::AGAIN) => return self.wait(),
            Err(OsErrno::NODEV | OsErrno::CONNABORTED) => return Ok(Received::Gone),
            Err(error) => return Err(FuseError::Receive(error.into())),
        };
        let (header, _) =
            InHeader::read_from_prefix(&buf[..found]).map_err(|_| FuseError::Message {
                expected: size_of::<InHeader>(),
                found,
            })?;
        if header.len as usize != found {
            return Err(FuseError::Message {
                expected: header.len as usize,
                found,
            });
        }
        Ok(Received::Request(header))
    }

    /// Waits until a descriptor that somebody made non-blocking has something.
    fn wait(&self) -> Result<Received, FuseError> {
        use rustix::event::{PollFd, PollFlags, poll};
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None) {
            Ok(_) | Err(OsErrno::INTR) => Ok(Received::Nothing),
            Err(error) => Err(FuseError::Receive(error.into())),
        }
    }

    /// Sends the reply that starts `buf`: space for a header, then `payload` bytes.
    /// The header is filled in here. `buf` is part of a [`LockedBuf`]. A request that was
    /// withdrawn meanwhile is not an error.
    pub fn reply(&self, buf: &mut [u8], unique: u64, result: Result<usize, i32>) -> io::Result<()> {
        let (payload, error) = match result {
            Ok(payload) => (payload, 0),
            Err(errno) => (0, -errno),
        };
        let bytes = size_of::<OutHeader>() + payload;
        let header = OutHeader {
            len: bytes as u32,
            error,
            unique,
        };
        buf[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        match rustix::io::write(&self.0, &buf[..bytes]) {
            Ok(_) | Err(OsErrno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a notification, a message that answers nothing.
    pub fn notify(&self, message: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.0, message)?;
        Ok(())
    }
}

/// The device, in a thread that has nothing else open: see [`Device::alone`]. Stays in that thread.
pub struct Alone {
    fd: RawFd,
    _thread: PhantomData<*const ()>,
}

impl Device {
    /// Runs `work` in the calling thread, which gets a table of descriptors of its own with nothing in it but the device,
    /// `fd`. The thread must end after that, and own and use no other descriptor; the device must stay open in the process
    /// until `work` begins.
    ///
    /// # Errors
    /// The kernel cannot: `work` was not called.
    pub fn alone(fd: RawFd, work: impl FnOnce(&Alone)) -> io::Result<()> {
        let number = fd as libc::c_uint;
        let unshare = libc::CLOSE_RANGE_UNSHARE as libc::c_int;
        // SAFETY: the thread has a table of its own before anything is closed in it, so no descriptor of
        // another thread is; this one uses none of those that are, by the contract above.
        if unsafe { libc::close_range(number + 1, libc::c_uint::MAX, unshare) } != 0 {
            return Err(io::Error::last_os_error());
        }
        if number > 0 {
            // SAFETY: as above.
            unsafe { libc::close_range(0, number - 1, 0) };
        }
        work(&Alone {
            fd,
            _thread: PhantomData,
        });
        Ok(())
    }
}

impl Alone {
    /// Sends a notification.
    pub fn notify(&self, message: &[u8]) -> io::Result<()> {
        // SAFETY: the descriptor is open in this thread's table, where nobody else can close it.
        let device = unsafe { BorrowedFd::borrow_raw(self.fd) };
        rustix::io::write(device, message)?;
        Ok(())
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A thread that can be made to return from a blocking system call.
#[derive(Clone, Copy, Debug)]
pub struct Wakeable(libc::pthread_t);

/// Signal used for it: one of the real-time signals programs rarely use.
fn wake_signal() -> libc::c_int {
    libc::SIGRTMIN() + 9
}

extern "C" fn ignore_wake(_: libc::c_int) {}

impl Wakeable {
    /// Installs the handler, which does nothing, once per process.
    pub fn prepare() -> io::Result<()> {
        static PREPARED: OnceLock<Result<(), i32>> = OnceLock::new();
        PREPARED
            .get_or_init(|| {
                // SAFETY: all zeros is a valid sigaction: no flags (in particular
                // not SA_RESTART, so that calls return), empty mask.
                let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
                action.sa_sigaction = ignore_wake as extern "C" fn(libc::c_int) as usize;
                // SAFETY: `action` is valid, and the handler does nothing, which
                // is async-signal-safe.
                match unsafe { libc::sigaction(wake_signal(), &action, ptr::null_mut()) } {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()
                        .raw_os_error()
                        .unwrap_or(libc::EINVAL)),
                }
            })
            .map_err(io::Error::from_raw_os_error)
    }

    /// The calling thread.
    pub fn current() -> Self {
        // SAFETY: has no preconditions.
        Self(unsafe { libc::pthread_self() })
    }

    /// Interrupts the thread. It must not have ended: the caller holds the lock
    /// under which the thread takes itself off the list before it ends.
    pub fn wake(self) {
        // SAFETY: the thread lives (above), so the handle is valid, and the handler
        // is installed by `prepare`, which `serve` calls before any thread starts.
        unsafe { libc::pthread_kill(self.0, wake_signal()) };
    }
}

/// Has the calling thread run as soon as it can, before all ordinary ones: one that seldom does, and for
/// some microseconds.
///
/// # Errors
/// The process may not.
pub fn run_at_once() -> io::Result<()> {
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are valid, and 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const lowest) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the calling thread is scheduled as most are.
pub fn has_ordinary_policy() -> bool {
    // SAFETY: has no preconditions; 0 is the calling thread.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_OTHER }
}

/// Has the calling thread run only when no other wants its processor, which then counts as idle for whom it wakes; or again as most do.
///
/// # Errors
/// Taking it back needs a privilege or a limit for `nice` (sched(7)); it stays as it is.
pub fn step_back(back: bool) -> io::Result<()> {
    let policy = match back {
        true => libc::SCHED_IDLE,
        false => libc::SCHED_OTHER,
    };
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters are valid, and 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_resident_aligned_and_locked() {
        let mut buf = LockedBuf::new(BUFFER_BYTES).unwrap();
        assert_eq!(buf.as_ptr() as usize % 4096, 0);
        assert!(buf.iter().all(|&b| b == 0));
        buf[BUFFER_BYTES - 1] = 7;
        let address = format!("{:x}-", buf.as_ptr() as usize);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let ours = maps
            .split("VmFlags:")
            .find(|part| part.lines().any(|l| l.starts_with(&address)))
            .map(|part| {
                part.lines()
                    .find(|l| l.starts_with("Rss:"))
                    .unwrap()
                    .to_owned()
            });
        // The kernel may have merged the mapping with a neighbour: then the line is not there.
        if let Some(rss) = ours {
            let kib: usize = rss.split_whitespace().nth(1).unwrap().parse().unwrap();
            assert!(kib * 1024 >= BUFFER_BYTES, "{rss}");
        }
    }

    #[test]
    fn wrong_length_is_refused() {
        let (read_end, write_end) = rustix::pipe::pipe().unwrap();
        let header = InHeader {
            len: 48,
            ..InHeader::default()
        };
        rustix::io::write(&write_end, header.as_bytes()).unwrap();
        let mut buf = LockedBuf::new(8192).unwrap();
        let error = Device::new(read_end).receive(&mut buf).unwrap_err();
        assert!(
            matches!(
                error,
                FuseError::Message {
                    expected: 48,
                    found: 40
                }
            ),
            "{error}"
        );
    }
}
