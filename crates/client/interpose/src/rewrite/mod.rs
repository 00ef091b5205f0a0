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
//!
//! All or nothing: a `dup` that is not seen would leave two ideas of one offset. Where a process may not
//! change code (`PR_SET_MDWE`, rules against executable memory), or a libc is built so that its
//! code must not be changed, nothing is served, and the program runs on the mount.

pub mod library;
mod patch;
pub mod scan;

use crate::raw::nr;
use scan::Form;

/// Calls that every libc makes, and that make descriptors, share them or close them: those of them that
/// are looked for have to be found.
const FOLLOWED: [u32; 12] = [
    nr::OPENAT,
    nr::CLOSE,
    nr::DUP,
    nr::DUP2,
    nr::DUP3,
    nr::FCNTL,
    nr::MMAP,
    nr::CLONE,
    nr::VFORK,
    nr::EXECVE,
    nr::SENDMSG,
    nr::SENDFILE,
];

/// What [`rewrite`] did.
#[derive(Clone, Copy, Debug)]
pub struct Rewritten {
    /// Call sites of libc that were rewritten.
    pub sites: u64,
    /// Whether every one was, so that calls can be served.
    pub all: bool,
}

/// Rewrites what is loaded of libc. `every_mmap`: also mappings of memory that no file has are looked at.
#[must_use]
pub fn rewrite(every_mmap: bool) -> Rewritten {
    let (mut rewritten, mut all, mut numbers) = (0, true, Vec::new());
    for library in library::loaded() {
        let sites = scan::sites(&library);
        let done = patch::apply(&library, &sites, every_mmap);
        all &= done == sites.len() as u64;
        rewritten += done;
        numbers.extend(sites.iter().filter_map(|site| match site.form {
            Form::Number(number) => Some(number),
            Form::Dynamic(_) => None,
        }));
    }
    let mut followed = FOLLOWED.iter().filter(|number| scan::interesting(**number));
    all &= followed.all(|number| numbers.contains(number));
    Rewritten {
        sites: rewritten,
        all,
    }
}
