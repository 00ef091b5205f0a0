//! Having the kernel drop what it has cached before another client may change it (DESIGN §9).
//!
//! * **Attributes and pages** go with one notification about their inode. Those that are on their way when it comes are
//!   known to the kernel by their age, or held under a page's lock that the notification waits for.
//! * **Names** have to be dropped one by one: those that were noted before the kernel got them ([`super::names`]).
//!
//! Names are dropped by having them asked for again, not by detaching them: the working directory of a process, and the
//! path of an open file, stay what they are.

use std::io;

use super::cache::KernelCache;
use super::names::Cached;
use crate::serving::notify::{Inval, Notifier, keeps_nothing};

/// A name that no directory has: a notification about it only waits.
const NO_NAME: &[u8] = b"/";

/// Has everything about an inode dropped. Waits for requests.
///
/// # Errors
/// The kernel keeps what it has.
pub(crate) fn inode(cache: &KernelCache, notifier: &Notifier, ino: u64) -> io::Result<()> {
    if cache.names_are_unknown() {
        notifier.inc_epoch()?;
        cache.names_are_known();
    }
    if cache.names_leave(ino) {
        // Waits for who is telling names, so that none is noted behind our back.
        notifier.expire_entry(ino, NO_NAME)?;
        match cache.take_names(ino) {
            Some(Cached::Many) => notifier.inc_epoch()?,
            Some(Cached::These(names)) => names
                .iter()
                .try_for_each(|name| notifier.expire_entry(ino, name))?,
            None => {}
        }
    }
    notifier.inval_inode(ino, Inval::All)
}

/// Has all names asked for again, and all that is kept about these inodes dropped. Waits for requests.
pub(crate) fn everything(notifier: &Notifier, inos: &[u64]) {
    let names = notifier.inc_epoch();
    let kept = |done: &io::Result<()>| done.as_ref().is_err_and(|e| !keeps_nothing(e));
    if kept(&names) {
        tracing::error!(?names, "the kernel keeps names");
    }
    for &ino in inos {
        let done = notifier.inval_inode(ino, Inval::All);
        if kept(&done) {
            tracing::error!(ino, ?done, "the kernel keeps what it has");
        }
    }
}
