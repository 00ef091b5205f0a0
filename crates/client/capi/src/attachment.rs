//! Being attached to a volume, and the library itself.
//!
//! What is open counts the attachment: it can end only when nothing is.

use crate::MEMORY;
use crate::edge::{Out, status, text};
use crate::protect::Inside;
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::fs::{Mode, OFlags};
use rustix::process::{getegid, geteuid};
use shale_libfs::{Caller, Errno, Result, Session, SessionOptions, Tree};
use shale_proto::{Channel, ProtoError, SocketChannel, mounts};
use shale_sys::SystemClock;
use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Bytes of the update log to ask for: what the volume has for a process.
const LOG_BYTES: u64 = 0;
/// What a process takes away from the modes of its files where the kernel does not say.
const UMASK_DEFAULT: u32 = 0o022;

/// A volume that this process is attached to: `shale_t`.
pub struct Attachment {
    pub(crate) session: Arc<Session>,
    pub(crate) tree: Tree,
    /// Device number of the mount.
    pub(crate) device: u64,
    /// [`FORKS`] of the process that attached.
    forks: u32,
}

impl Attachment {
    /// A session for who calls.
    pub(crate) fn new(
        channel: Arc<dyn Channel>,
        log_bytes: u64,
        device: u64,
        caller: Caller,
    ) -> Result<Arc<Self>> {
        let options = SessionOptions {
            log_bytes,
            memory: Some(&MEMORY),
            ..SessionOptions::default()
        };
        count_forks()?;
        let clock = Arc::new(SystemClock::new());
        let inside = Inside::enter_to_attach();
        let recent = Default::default();
        let session = Session::attach_mapped(channel, clock, recent, options, &inside.maps())?;
        Ok(Arc::new(Self {
            tree: session.tree(Caller {
                groups: session.groups().unwrap_or_default(),
                ..caller
            }),
            session,
            device,
            forks: FORKS.load(Ordering::Relaxed),
        }))
    }

    /// Errors: `ENOTCONN` in a child of the process that attached.
    pub(crate) fn in_this_process(&self) -> Result<()> {
        if self.forks == FORKS.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err(Errno::NOTCONN)
        }
    }

    /// One more user of what is behind a handle; errors as [`crate::edge::handle`].
    ///
    /// # Safety
    /// As for [`crate::edge::handle`], of a handle that [`Arc::into_raw`] made.
    pub(crate) unsafe fn share(handle: *const Self) -> Result<Arc<Self>> {
        // SAFETY: the caller's promise.
        unsafe { crate::edge::handle(handle) }?;
        // SAFETY: the handle came from `Arc::into_raw` and its count is not given back here.
        let counted = ManuallyDrop::new(unsafe { Arc::from_raw(handle) });
        Ok(Arc::clone(&counted))
    }
}

impl AsRef<Attachment> for Attachment {
    fn as_ref(&self) -> &Attachment {
        self
    }
}

/// How many forks lie between this process and the one that loaded the library.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    MEMORY.unlock_all();
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Has forks counted from now on. Errors: `ENOMEM`.
fn count_forks() -> Result<()> {
    static COUNTING: OnceLock<c_int> = OnceLock::new();
    // SAFETY: the function stores to atomics, which a child may do at any time.
    let counting = || unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    match *COUNTING.get_or_init(counting) {
        0 => Ok(()),
        e => Err(Errno::from_raw_os_error(e)),
    }
}

/// Who this process is. The kernel tells the umask without changing it in one place only.
fn caller() -> Caller {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("Umask:"));
    let umask = mask.and_then(|m| u32::from_str_radix(m.trim(), 8).ok());
    Caller {
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        groups: &[],
        pid: std::process::id(),
        umask: umask.unwrap_or(UMASK_DEFAULT),
        request: 0,
    }
}

fn attach(mountpoint: &[u8]) -> Result<Arc<Attachment>> {
    count_forks()?;
    if !MEMORY.keep_reserve() {
        return Err(Errno::NOMEM);
    }
    let path = Path::new(OsStr::from_bytes(mountpoint));
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let device = rustix::fs::fstat(&file)?.st_dev;
    let socket = mounts::socket_of(&file).ok_or(Errno::NODEV)?;
    let channel = SocketChannel::connect(&socket).map_err(|e| no_connection(&e))?;
    Attachment::new(Arc::new(channel), LOG_BYTES, device, caller())
}

fn no_connection(e: &ProtoError) -> Errno {
    match e {
        ProtoError::Io(e) => e
            .raw_os_error()
            .map_or(Errno::CONNREFUSED, Errno::from_raw_os_error),
        _ => Errno::CONNREFUSED,
    }
}

/// See the header.
///
/// # Safety
/// As the header says: a string, and a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_attach(
    mountpoint: *const c_char,
    volume: *mut *const Attachment,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (mountpoint, out) = unsafe { (text(mountpoint)?, Out::at(volume)?) };
        out.put(Arc::into_raw(attach(mountpoint)?));
        Ok(())
    })
}

/// See the header.
///
/// # Safety
/// As the header says: null or a handle, which nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_detach(volume: *const Attachment) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        unsafe { crate::edge::handle(volume) }?;
        // SAFETY: the handle came from `Arc::into_raw`; by the caller's promise it ends here,
        // unless it is made a handle again below.
        match Arc::try_unwrap(unsafe { Arc::from_raw(volume) }) {
            Ok(attachment) => attachment.session.detach(),
            Err(in_use) => {
                let _ = Arc::into_raw(in_use);
                Err(Errno::BUSY)
            }
        }
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn shale_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Longest message with its zero byte; longer ones are cut.
const MESSAGE_BYTES: usize = 128;

thread_local! {
    static MESSAGE: UnsafeCell<[c_char; MESSAGE_BYTES]> =
        const { UnsafeCell::new([0; MESSAGE_BYTES]) };
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn shale_strerror(error: c_int) -> *const c_char {
    let error = error.checked_abs().unwrap_or(c_int::MAX);
    let message = MESSAGE.try_with(|message| {
        let message = message.get().cast::<c_char>();
        // SAFETY: the buffer is this thread's, as long as said, and written nowhere else; no
        // reference to it exists. It ends with a zero byte whatever is returned.
        let _ = unsafe { libc::strerror_r(error, message, MESSAGE_BYTES) };
        message.cast_const()
    });
    // The thread is ending and its buffer is gone.
    message.unwrap_or(c"error".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::CStr;

    #[test]
    fn errors_have_words_and_the_library_a_version() {
        let words = |e| {
            // SAFETY: a string of this thread.
            let message = unsafe { CStr::from_ptr(shale_strerror(e)) };
            message.to_str().unwrap()
        };
        assert_eq!(words(libc::ENOENT), "No such file or directory");
        assert_eq!(words(-libc::ENOENT), "No such file or directory");
        assert!(words(c_int::MIN).contains("Unknown"));
        // SAFETY: a string that lives for ever.
        let version = unsafe { CStr::from_ptr(shale_version()) };
        assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn what_is_no_mount_is_refused() {
        let mut volume = core::ptr::null();
        // SAFETY: strings, and a place for a pointer.
        unsafe {
            assert_eq!(shale_attach(c"/".as_ptr(), &mut volume), -libc::ENODEV);
            assert_eq!(
                shale_attach(c"/no/such".as_ptr(), &mut volume),
                -libc::ENOENT
            );
            assert_eq!(shale_attach(core::ptr::null(), &mut volume), -libc::EFAULT);
            assert_eq!(
                shale_attach(c"/".as_ptr(), core::ptr::null_mut()),
                -libc::EFAULT
            );
            assert_eq!(shale_detach(core::ptr::null()), -libc::EBADF);
        }
        assert!(volume.is_null());
    }
}
