//! Memory errors: a page of NVM that cannot be read, or a file that became shorter than its
//! mapping (SIGBUS). The access goes on with a page of zeros that nobody else sees, and the page
//! counts as *lost* for this mapping; the caller that loaded or stored asks [`Lost::has`] afterwards and
//! gives an error instead of what it got.
//!
//! Invariants: a slot of the table is filled before its mapping is used and emptied after it was
//! used last, so the handler, which runs in the thread that touched the page, finds the mapping
//! as it is. The handler calls nothing but `mmap` and atomics.

use std::ffi::c_void;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

const PAGE_BYTES: usize = 4096;
/// Mappings of one process that are guarded; more are not.
const MAPPINGS: usize = 256;
/// Lost pages of one mapping that are distinguished; with more, all of it counts as lost.
const PAGES: usize = 128;

/// The pages of one mapping that are lost.
pub(crate) struct Lost {
    base: usize,
    /// Pages lost so far.
    count: AtomicUsize,
    /// Their offsets in the mapping, plus 1.
    pages: [AtomicUsize; PAGES],
}

impl Lost {
    fn new(base: usize) -> Lost {
        Lost {
            base,
            count: AtomicUsize::new(0),
            pages: [const { AtomicUsize::new(0) }; PAGES],
        }
    }

    /// Whether any page is lost.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        ANYWHERE.load(Ordering::Relaxed) && self.count.load(Ordering::Relaxed) != 0
    }

    /// The first page that is lost of a range.
    #[inline(always)]
    pub(crate) fn has(&self, offset: usize, bytes: usize) -> Option<usize> {
        match self.any() {
            false => None,
            true => self.find(offset, bytes),
        }
    }

    #[cold]
    fn find(&self, offset: usize, bytes: usize) -> Option<usize> {
        let count = self.count.load(Ordering::Acquire);
        if count > PAGES {
            return Some(offset / PAGE_BYTES * PAGE_BYTES);
        }
        let pages = self.pages[..count].iter();
        let pages = pages.filter_map(|page| page.load(Ordering::Acquire).checked_sub(1));
        pages
            .filter(|&page| page < offset + bytes && page + PAGE_BYTES > offset)
            .min()
    }

    fn note(&self, page: usize) {
        ANYWHERE.store(true, Ordering::Release);
        let number = self.count.fetch_add(1, Ordering::AcqRel);
        if let Some(slot) = self.pages.get(number) {
            slot.store(page + 1, Ordering::Release);
        }
    }
}

/// Whether any mapping of this process has lost a page: the one word that the short path looks at.
static ANYWHERE: AtomicBool = AtomicBool::new(false);
static TABLE: [Slot; MAPPINGS] = [const { Slot::new() }; MAPPINGS];

/// One mapping in the table. The range is here and not behind the pointer, so that the handler
/// follows only the pointer of the mapping that its own thread is using.
struct Slot {
    taken: AtomicBool,
    base: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicPtr<Lost>,
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            taken: AtomicBool::new(false),
            base: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            lost: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

/// What handled the signal before, as `sigaction` gave it; written once.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());
static INSTALL: Once = Once::new();

/// A guarded range of addresses.
pub(crate) struct Guard {
    lost: Box<Lost>,
    slot: Option<usize>,
}

impl Guard {
    /// Guards a range that is mapped from now on.
    pub(crate) fn new(base: *const u8, bytes: usize) -> Guard {
        INSTALL.call_once(install);
        let lost = Box::new(Lost::new(base.addr()));
        let slot = TABLE
            .iter()
            .position(|slot| !slot.taken.swap(true, Ordering::AcqRel));
        if let Some(slot) = slot.map(|n| &TABLE[n]) {
            slot.lost
                .store(ptr::from_ref(&*lost).cast_mut(), Ordering::Release);
            slot.base.store(base.addr(), Ordering::Release);
            slot.end.store(base.addr() + bytes, Ordering::Release);
        }
        Guard { lost, slot }
    }

    /// What is lost of it.
    #[inline(always)]
    pub(crate) fn lost(&self) -> &Lost {
        &self.lost
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.map(|n| &TABLE[n]) {
            slot.end.store(0, Ordering::Release);
            slot.taken.store(false, Ordering::Release);
        }
    }
}

fn install() {
    // SAFETY: all zeros is a legal action, filled in below and by the kernel; the handler does
    // only what is allowed in one. The box lives for ever.
    unsafe {
        let before = Box::into_raw(Box::new(std::mem::zeroed::<libc::sigaction>()));
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        if libc::sigaction(libc::SIGBUS, &raw const action, before) == 0 {
            BEFORE.store(before, Ordering::Release);
        }
    }
}

extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a valid structure with the signal.
    let (address, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    // What another process sent is no memory error.
    if code > 0 && replace(address) {
        return;
    }
    // SAFETY: stored once by `install`, never freed; null if that has not happened yet.
    let before = unsafe { BEFORE.load(Ordering::Acquire).as_ref() };
    match before.map(|before| (before.sa_sigaction, before.sa_flags)) {
        Some((handler, flags)) if handler > libc::SIG_IGN => {
            // SAFETY: what the program gave as its handler for this signal, called as it
            // asked to be called.
            unsafe {
                if flags & libc::SA_SIGINFO != 0 {
                    let call: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) =
                        std::mem::transmute(handler);
                    call(signal, info, context);
                } else {
                    let call: extern "C" fn(i32) = std::mem::transmute(handler);
                    call(signal);
                }
            }
        }
        _ => {
            // The access is done again and ends the process, as it would have.
            // SAFETY: the default action needs no handler.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        }
    }
}

/// Puts a page of zeros where one is lost, if it is of a guarded mapping.
fn replace(address: usize) -> bool {
    for slot in &TABLE {
        let end = slot.end.load(Ordering::Acquire);
        if address < slot.base.load(Ordering::Acquire) || address >= end {
            continue;
        }
        // SAFETY: the address lies in this slot's mapping, which the thread that runs this was
        // accessing: so it is alive, and with it what the pointer leads to.
        let Some(lost) = (unsafe { slot.lost.load(Ordering::Acquire).as_ref() }) else {
            continue;
        };
        let page = address / PAGE_BYTES * PAGE_BYTES;
        lost.note(page - lost.base);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the page lies in a mapping of this module's crate, whose users only copy bytes
        // in and out; `mmap` is a plain system call.
        let mapped = unsafe {
            libc::mmap(
                ptr::without_provenance_mut(page),
                PAGE_BYTES,
                prot,
                flags,
                -1,
                0,
            )
        };
        return mapped != libc::MAP_FAILED;
    }
    false
}

#[cfg(test)]
mod tests {
    use crate::{Access, Map};

    #[test]
    fn a_page_that_is_gone_is_reported_and_the_process_lives() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("seg");
        let map = Map::create_file(&path, 4 * 4096).unwrap();
        map.store(0, &[7; 4 * 4096]);
        let other = Map::open_files(&[&path], Access::ReadOnly).unwrap();
        assert!(!map.any_lost());
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(2 * 4096).unwrap();
        let mut bytes = [1; 3 * 4096];
        map.load(0, &mut bytes);
        assert_eq!(bytes[..2 * 4096], [7; 2 * 4096]);
        assert_eq!(bytes[2 * 4096..], [0; 4096]);
        assert_eq!(map.lost(0, 3 * 4096), Some(2 * 4096));
        assert_eq!(map.lost(0, 2 * 4096), None);
        map.store(3 * 4096 + 8, &[9]);
        assert_eq!(map.lost(3 * 4096, 4096), Some(3 * 4096));
        // Each mapping finds out for itself.
        assert!(!other.any_lost());
        other.load(2 * 4096 + 5, &mut bytes[..1]);
        assert!(other.any_lost());
    }
}
