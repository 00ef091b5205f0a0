//! Call sites of libc that were rewritten ([`crate::rewrite`]), as their stubs have them.

use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes reserved for each stub, with its record.
pub(crate) const STUB_BYTES: usize = 96;
/// Where in a stub its record lies.
pub(crate) const RECORD_AT: usize = 64;

const _: () = assert!(RECORD_AT + size_of::<Site>() == STUB_BYTES);

/// What a site's stub hands over. The trampolines read it by offsets.
#[repr(C)]
pub(crate) struct Site {
    /// Where the system call is made if it is not ours.
    pub(crate) pass: u64,
    /// Where to go on with the result in rax.
    pub(crate) after: u64,
    /// Behind the system call in libc: where the unwinder finds the frame of what made the call.
    pub(crate) frame: u64,
    /// The system call itself: in libc, or, where it was overwritten, in the stub.
    pub(crate) bare: u64,
}

/// Where the stubs of libc lie.
static STUBS_AT: AtomicUsize = AtomicUsize::new(0);
static STUBS_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Stubs were made: `bytes` bytes at `at`, to be neither moved nor changed.
pub(crate) fn note_stubs(at: usize, bytes: usize) {
    assert!(bytes.is_multiple_of(STUB_BYTES), "{bytes} bytes of stubs");
    STUBS_AT.store(at, Ordering::Relaxed);
    STUBS_BYTES.store(bytes, Ordering::Relaxed);
}

/// An address of the stubs; `None`: there are none.
pub(crate) fn stubs() -> Option<usize> {
    Some(STUBS_AT.load(Ordering::Relaxed)).filter(|&at| at != 0)
}

/// The site in libc whose stub a thread is in that would go on at `at` and has not made its system call yet. It can begin at the site again.
pub(crate) fn site_of_stub(at: usize) -> Option<usize> {
    let base = STUBS_AT.load(Ordering::Relaxed);
    let inside = at.checked_sub(base)?;
    if inside >= STUBS_BYTES.load(Ordering::Relaxed) {
        return None;
    }
    let stub = at - inside % STUB_BYTES;
    // SAFETY: each stub has its record there, and stays as long as the process.
    let site = unsafe { ((stub + RECORD_AT) as *const Site).read_unaligned() };
    let bare = site.bare as usize;
    match (stub..stub + RECORD_AT).contains(&bare) {
        // `syscall` is what the site began with.
        true => (at <= bare).then_some(site.frame as usize - 2),
        // The five bytes before it were overwritten.
        false => Some(bare - 5),
    }
}
