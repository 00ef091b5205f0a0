//! Stubs for sites, and the jumps to them.
//!
//! Stubs lie in pages of their own near the library, since a jump reaches 2 GiB. They are
//! written, made executable, and only then jumped to. While the constructor runs there is one thread,
//! so nobody runs code that is half changed.

use super::library::Library;
use super::scan::{Form, Site};
use crate::outcome::{CLASS, class};
use crate::raw::{self, nr};
use crate::site::{RECORD_AT, STUB_BYTES, Site as StubSite, note_stubs};
use crate::trampolines;
use core::sync::atomic::Ordering;

const PAGE: usize = 4096;

/// Rewrites sites; gives how many. `every_mmap`: see [`super::rewrite`].
pub fn apply(library: &Library, sites: &[Site], every_mmap: bool) -> u64 {
    if sites.is_empty() {
        return 0;
    }
    let bytes = (sites.len() * STUB_BYTES).next_multiple_of(PAGE);
    let Some(base) = near(library, bytes) else {
        return 0;
    };
    for (i, site) in sites.iter().enumerate() {
        write_stub(
            library,
            site,
            entry(site, every_mmap),
            base + i * STUB_BYTES,
        );
    }
    note_stubs(base, sites.len() * STUB_BYTES);
    if !protect(base, bytes, libc::PROT_READ | libc::PROT_EXEC) {
        return 0;
    }
    let (text, length) = (library.text, library.text_bytes);
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    if !protect(text, length, all) {
        return 0;
    }
    let places = sites.iter().enumerate();
    let done = places
        .filter(|(i, site)| jump(library, site, base + i * STUB_BYTES))
        .count();
    // Code that stays writable still runs.
    let _ = protect(text, length, libc::PROT_READ | libc::PROT_EXEC);
    done as u64
}

fn protect(at: usize, bytes: usize, protection: i32) -> bool {
    let first = at & !(PAGE - 1);
    let end = (at + bytes).next_multiple_of(PAGE);
    // SAFETY: pages of our own stubs, or code of libc that stays executable.
    let args = [
        first as u64,
        (end - first) as u64,
        protection as u64,
        0,
        0,
        0,
    ];
    // SAFETY: as above.
    unsafe { raw::syscall(nr::MPROTECT, &args) >= 0 }
}

/// Free addresses that the library's jumps reach: where the kernel puts a mapping, which is near the libraries as a rule, else
/// before or behind the library.
fn near(library: &Library, bytes: usize) -> Option<usize> {
    const STEP: usize = 1 << 20;
    const REACH: usize = 1 << 30;
    let start = library.text & !(PAGE - 1);
    let end = (start + library.text_bytes).next_multiple_of(PAGE);
    if let Some(at) = map(0, bytes, 0) {
        if at.abs_diff(start) < REACH && at.abs_diff(end) < REACH {
            return Some(at);
        }
        unmap(at, bytes);
    }
    for distance in (STEP..REACH).step_by(STEP) {
        for at in [start.checked_sub(distance), Some(end + distance)]
            .into_iter()
            .flatten()
        {
            match map(at, bytes, libc::MAP_FIXED_NOREPLACE) {
                Some(got) if got == at => return Some(at),
                // A kernel that takes the address for a wish only.
                Some(other) => unmap(other, bytes),
                None => {}
            }
        }
    }
    None
}

/// A new mapping of pages to write to, at an address if there is one.
fn map(at: usize, bytes: usize, flags: i32) -> Option<usize> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags) as u64;
    let args = [at as u64, bytes as u64, protection, flags, u64::MAX, 0];
    // SAFETY: a new mapping that replaces none.
    let got = unsafe { raw::syscall(nr::MMAP, &args) };
    usize::try_from(got).ok()
}

/// Takes a mapping of [`map`] away.
fn unmap(at: usize, bytes: usize) {
    // SAFETY: the mapping was made just now, and nothing refers to it.
    unsafe { raw::syscall(nr::MUNMAP, &[at as u64, bytes as u64, 0, 0, 0, 0]) };
}

fn entry(site: &Site, every_mmap: bool) -> u64 {
    let entry = match site.form {
        Form::Dynamic(_) => trampolines::shale_site_dynamic as *const (),
        Form::Number(nr::MMAP) if !every_mmap => trampolines::shale_site_mmap as *const (),
        Form::Number(n) => match CLASS[n as usize].load(Ordering::Relaxed) {
            class::ALWAYS => trampolines::shale_site_always as *const (),
            class::AT_TIMES => trampolines::shale_site_dynamic as *const (),
            _ => trampolines::shale_site_descriptor as *const (),
        },
    };
    entry as u64
}

/// The bytes of a stub at `at` that leads to `entry`, and its record.
fn stub(library: &Library, site: &Site, entry: u64, at: usize) -> (Vec<u8>, StubSite) {
    let place = library.text + site.at;
    let mut code = Vec::with_capacity(RECORD_AT);
    if let Form::Number(number) = site.form {
        code.push(0xb8);
        code.extend(number.to_le_bytes());
    }
    // lea record(%rip),%rcx
    code.extend([0x48, 0x8d, 0x0d]);
    code.extend(((RECORD_AT - code.len() - 4) as u32).to_le_bytes());
    far_jump(&mut code, entry);
    let record = match site.form {
        Form::Number(_) => StubSite {
            pass: (place + 5) as u64,
            after: (place + 7) as u64,
            frame: (place + 7) as u64,
            bare: (place + 5) as u64,
        },
        Form::Dynamic(bytes) => {
            let bare = at + code.len();
            let bytes = usize::from(bytes);
            code.extend(&library.code()[site.at..site.at + bytes]);
            far_jump(&mut code, (place + bytes) as u64);
            StubSite {
                pass: trampolines::shale_pass_framed as *const () as u64,
                after: (bare + 2) as u64,
                frame: (place + 2) as u64,
                bare: bare as u64,
            }
        }
    };
    (code, record)
}

/// `jmp *0(%rip)` and the address.
fn far_jump(code: &mut Vec<u8>, to: u64) {
    code.extend([0xff, 0x25, 0, 0, 0, 0]);
    code.extend(to.to_le_bytes());
}

fn write_stub(library: &Library, site: &Site, entry: u64, at: usize) {
    let (code, record) = stub(library, site, entry, at);
    assert!(code.len() <= RECORD_AT, "{} bytes of stub", code.len());
    // SAFETY: the stub's own 80 bytes of a page that is ours and writable.
    unsafe {
        core::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len());
        ((at + RECORD_AT) as *mut StubSite).write_unaligned(record);
    }
}

/// Puts the jump into the library's code, which is writable.
fn jump(library: &Library, site: &Site, stub: usize) -> bool {
    let place = library.text + site.at;
    let by = stub as i64 - (place as i64 + 5);
    let Ok(by) = i32::try_from(by) else {
        return false;
    };
    let mut code = [0xe9, 0, 0, 0, 0];
    code[1..].copy_from_slice(&by.to_le_bytes());
    // SAFETY: five bytes of one site, checked by the scan, in code that the caller made
    // writable; no other thread exists yet.
    unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), place as *mut u8, 5) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::site_of_stub;

    #[test]
    fn a_thread_in_a_stub_is_led_back_until_it_has_made_the_call() {
        let library = super::super::library::loaded()[0];
        // Copies, to which nothing leads.
        let stubs = vec![0u64; 2 * STUB_BYTES / 8].leak();
        let base = stubs.as_mut_ptr() as usize;
        for (n, form) in [Form::Number(3), Form::Dynamic(8)].into_iter().enumerate() {
            write_stub(&library, &Site { at: 100, form }, 0, base + n * STUB_BYTES);
        }
        note_stubs(base, 2 * STUB_BYTES);
        let place = Some(library.text + 100);
        let bare = stubs[(STUB_BYTES + RECORD_AT) / 8 + 3] as usize;
        assert!((base + STUB_BYTES..base + STUB_BYTES + RECORD_AT).contains(&bare));
        for at in [base, base + 20, base + STUB_BYTES, bare] {
            assert_eq!(site_of_stub(at), place, "{}", at - base);
        }
        for at in [base - 1, bare + 2, base + 2 * STUB_BYTES] {
            assert_eq!(site_of_stub(at), None);
        }
    }

    #[test]
    fn stubs_fit_and_lead_back() {
        let library = super::super::library::loaded()[0];
        let number = Site {
            at: 100,
            form: Form::Number(3),
        };
        let (code, record) = stub(&library, &number, 0, 0x1000);
        assert_eq!(code[..5], [0xb8, 3, 0, 0, 0]);
        assert!(code.len() <= RECORD_AT);
        assert_eq!(record.pass, (library.text + 105) as u64);
        assert_eq!([record.after, record.frame], [record.pass + 2; 2]);
        let (code, record) = stub(
            &library,
            &Site {
                at: 100,
                form: Form::Dynamic(8),
            },
            0,
            0x1000,
        );
        assert!(code.len() <= RECORD_AT, "{}", code.len());
        let bare = (record.bare - 0x1000) as usize;
        assert_eq!(code[bare..bare + 8], library.code()[100..108]);
        assert_eq!(record.after, record.bare + 2);
        assert_eq!(record.frame, (library.text + 102) as u64);
    }
}
