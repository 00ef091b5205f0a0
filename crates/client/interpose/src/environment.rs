//! The environment that keeps the library in the programs that a program starts.
//!
//! What the library was started with is kept aside. A program that is started with an
//! environment that says nothing of a preload gets it again.

use crate::probe;
use crate::raw::{self, Args};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Variables that are kept, by the beginning of their names.
const KEPT: [&[u8]; 2] = [b"LD_PRELOAD=", b"SHALE_"];
const KEPT_MAX: usize = 16;
/// Longer environments are passed on as they are: the new one is made on the stack, which
/// may be a small one.
const VARIABLES_MAX: usize = 500;

static KEEP: [AtomicPtr<u8>; KEPT_MAX] = [const { AtomicPtr::new(ptr::null_mut()) }; KEPT_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Keeps copies of what is to be passed on.
pub fn keep() {
    use std::os::unix::ffi::OsStrExt;
    for (name, value) in std::env::vars_os() {
        let text = [name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat();
        let count = COUNT.load(Ordering::Relaxed);
        if KEPT.iter().any(|k| text.starts_with(k)) && count < KEPT_MAX {
            KEEP[count].store(text.leak().as_mut_ptr(), Ordering::Relaxed);
            COUNT.store(count + 1, Ordering::Relaxed);
        }
    }
}

/// Makes an `execve` or `execveat`, with the variables added that keep the library in. Returns
/// only if the kernel refuses. Allocates nothing.
#[inline(never)]
pub fn exec(number: u32, args: &Args) -> i64 {
    let at = if number == raw::nr::EXECVE { 2 } else { 3 };
    let mut list = [ptr::null::<u8>(); VARIABLES_MAX + KEPT_MAX + 1];
    let mut changed = *args;
    // SAFETY: the program's own array of variables.
    if unsafe { complete(args[at] as *const *const u8, &mut list) } {
        changed[at] = list.as_ptr() as u64;
    }
    // SAFETY: the program's own call; the list ends with a null pointer.
    unsafe { raw::syscall(number, &changed) }
}

/// Copies the variables at `from` and adds ours. `false`: nothing is to be added.
///
/// # Safety
/// `from` is null or what the program gave for an array of variables.
unsafe fn complete(from: *const *const u8, list: &mut [*const u8]) -> bool {
    let mut count = 0;
    if !from.is_null() {
        loop {
            // SAFETY: the array goes on up to a null pointer.
            let at = unsafe { from.add(count) };
            if probe::readable(at as u64, 8) < 8 {
                return false;
            }
            // SAFETY: as above, and it can be read.
            let variable = unsafe { at.read() };
            if variable.is_null() {
                break;
            }
            let begins = probe::readable(variable as u64, KEPT[0].len() as u64);
            // SAFETY: so much of it can be read. A string that is shorter, at the end of what there is, is none of ours.
            let text = unsafe { core::slice::from_raw_parts(variable, begins as usize) };
            if text == KEPT[0] || count == VARIABLES_MAX {
                return false;
            }
            list[count] = variable;
            count += 1;
        }
    }
    let kept = COUNT.load(Ordering::Relaxed);
    for (place, kept) in list[count..].iter_mut().zip(&KEEP[..kept]) {
        *place = kept.load(Ordering::Relaxed);
    }
    kept > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_only_where_missing() {
        let text = c"LD_PRELOAD=x";
        KEEP[0].store(text.as_ptr().cast_mut().cast(), Ordering::Relaxed);
        COUNT.store(1, Ordering::Relaxed);
        let mut list = [ptr::null(); VARIABLES_MAX + KEPT_MAX + 1];
        let none = [c"A=1".as_ptr().cast::<u8>(), ptr::null()];
        // SAFETY: arrays of strings that end with null.
        unsafe {
            assert!(complete(none.as_ptr(), &mut list));
            assert_eq!(list[1].cast(), text.as_ptr());
            assert!(list[2].is_null());
            let has = [text.as_ptr().cast::<u8>(), ptr::null()];
            assert!(!complete(has.as_ptr(), &mut list));
            assert!(complete(ptr::null(), &mut list));
        }
        COUNT.store(0, Ordering::Relaxed);
    }
}
