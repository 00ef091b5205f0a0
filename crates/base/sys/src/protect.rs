//! Protection keys: memory that a thread can reach only while it has opened the key.
//!
//! A stray store of a program that LibFS is part of must not reach what LibFS writes. The
//! processor has 16 keys; each page has one, each thread a register that says what
//! it may do with the pages of each key. To change the register costs some nanoseconds and no
//! system call. New threads have their maker's register, signal handlers one that
//! closes all keys but the first, and a return from the handler puts the old one back.

use rustix::io::Errno;
use std::arch::asm;
use std::sync::atomic::{AtomicU32, Ordering};

/// A key, until the process ends: keys are few, and nobody gives one back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectionKey {
    number: u32,
}

impl ProtectionKey {
    /// A new key, open for the calling thread. `None`: the processor or the kernel has none
    /// (left).
    pub fn alloc() -> Option<Self> {
        // SAFETY: takes no pointers; a key that nobody uses yet protects nothing.
        let number = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) };
        let number = u32::try_from(number).ok()?;
        (1..16).contains(&number).then_some(Self { number })
    }

    /// The key of a number that [`Self::number`] gave.
    ///
    /// # Panics
    /// The number is none of a key that can be allocated (1 to 15).
    #[inline(always)]
    pub fn of(number: u32) -> Self {
        assert!((1..16).contains(&number), "protection key {number}");
        Self { number }
    }

    /// Its number, 1 to 15.
    pub fn number(self) -> u32 {
        self.number
    }

    /// Whether the thread reaches the memory of this key.
    #[inline(always)]
    pub fn is_open(self) -> bool {
        register() & self.bits() == 0
    }

    /// Bits in the register: neither loads nor stores.
    #[inline(always)]
    fn bits(self) -> u32 {
        3 << (2 * self.number)
    }

    /// From here on the thread reaches the memory of this key.
    #[inline(always)]
    pub fn open(self) {
        let bits = self.bits();
        set_register(register() & !bits);
    }

    /// From here on it does not: what touches it is SIGSEGV (`SEGV_PKUERR`).
    #[inline(always)]
    pub fn close(self) {
        let bits = self.bits();
        set_register(register() | bits);
    }

    /// Gives pages this key, readable and writable for threads that have opened it.
    ///
    /// # Errors
    /// What the kernel says.
    ///
    /// # Safety
    /// The pages are of a mapping of the caller's own, which may be read and written by any thread.
    pub unsafe fn protect(self, base: *mut u8, bytes: usize) -> Result<(), Errno> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the caller's promise: nothing becomes reachable by it that was not.
        let result =
            unsafe { libc::syscall(libc::SYS_pkey_mprotect, base, bytes, prot, self.number) };
        match result {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()
                .raw_os_error()
                .map_or(Errno::IO, Errno::from_raw_os_error)),
        }
    }
}

/// The key of a library's own memory, which is to be open inside of its calls only.
pub struct LibraryKey(AtomicU32);

impl LibraryKey {
    /// None yet: nothing is protected.
    #[expect(clippy::new_without_default, reason = "it is the value of a static")]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Makes the key where the processor has keys, closed, unless the environment says
    /// `SHALE_PROTECT=off` (or `0`). Once, and not while a call is in progress that touches what
    /// is to be protected.
    pub fn make(&self) {
        let wanted = !std::env::var("SHALE_PROTECT").is_ok_and(|v| v == "off" || v == "0");
        if let Some(key) = wanted.then(ProtectionKey::alloc).flatten() {
            key.close();
            self.0.store(key.number(), Ordering::Release);
        }
    }

    /// The key, if there is one.
    #[inline(always)]
    pub fn get(&self) -> Option<ProtectionKey> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            number => Some(ProtectionKey::of(number)),
        }
    }
}

#[inline(always)]
fn register() -> u32 {
    let value: u32;
    // SAFETY: a `ProtectionKey` exists, so the processor has the register; reading it
    // touches eax, ecx and edx only.
    unsafe {
        asm!(
            "rdpkru",
            in("ecx") 0,
            out("eax") value,
            out("edx") _,
            options(nomem, nostack, preserves_flags)
        );
    }
    value
}

#[inline(always)]
fn set_register(value: u32) {
    // SAFETY: a `ProtectionKey` exists, so the processor has the register. Rights of this key
    // alone change, which no memory but that of protected mappings has. Without `nomem`: the
    // compiler moves no access to memory across it.
    unsafe {
        asm!(
            "wrpkru",
            in("eax") value,
            in("ecx") 0,
            in("edx") 0,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_key_lets_nothing_through() {
        let Some(key) = ProtectionKey::alloc() else {
            eprintln!("SKIPPED: no protection keys here");
            return;
        };
        assert_eq!(ProtectionKey::of(key.number()), key);
        key.open();
        assert!(key.is_open());
        key.close();
        assert!(!key.is_open());
        assert_eq!(register() & key.bits(), key.bits());
        key.open();
        assert_eq!(register() & key.bits(), 0);
    }
}
