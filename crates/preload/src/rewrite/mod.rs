//! Rewriting libc's system-call sites in memory (DESIGN §4).
//!
//! Two forms are rewritten, and nothing that cannot be proven:
//!
//! * `mov $nr,%eax; syscall`: the five bytes of the `mov` become a jump to the site's stub. The
//!   `syscall` stays, and a call that is not ours runs it where it stands.
//! * `syscall; cmp $-4096,%rax`: where the number is set elsewhere (`xor %eax,%eax` for
//!   `read`, or an argument for `syscall()`). The first five of its bytes become
//!   the jump; both instructions run in the stub. Only if no jump in the library leads
//!   behind the first byte.
//!
//! The dynamic linker is left alone: whatever it opens it reads, maps and closes itself, so
//! its descriptors never meet ours.

mod library;
mod patch;
mod scan;

use core::sync::atomic::{AtomicU64, Ordering};

/// Sites that were rewritten.
pub static SITES: AtomicU64 = AtomicU64::new(0);

/// Rewrites what is loaded of libc. Gives the number of sites; 0: only exported symbols are
/// caught.
pub fn rewrite() -> u64 {
    let mut total = 0;
    for library in library::loaded() {
        let sites = scan::sites(&library);
        total += patch::apply(&library, &sites);
    }
    SITES.store(total, Ordering::Relaxed);
    total
}
