//! Private mappings of placeholders, without the kernel's file.
//!
//! What is mapped is a copy of the file as it is now: of a private mapping POSIX leaves open whether it shows what is written to the
//! file later. The copy is a file in memory (memfd_create(2)) that nobody else has, so that the mapping is as any of a file: pages
//! behind its end are SIGBUS, and what madvise(2) drops comes back.

use crate::calls::direct;
use crate::names::open::placeholder_of;
use core::sync::atomic::Ordering;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, pwrite};
use shale_fd::description;
use shale_fd::limits;
use shale_fd::placeholder;
use shale_interpose::raw::{self, Args, nr};
use shale_interpose::thread;
use std::os::fd::AsRawFd;

/// Longer mappings are the kernel's: copying takes longer than having it open the file.
const BYTES_MAX: u64 = 256 << 10;
/// Flags of `mmap` under which a mapping is served.
const FLAGS: i32 = libc::MAP_PRIVATE
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_32BIT
    | libc::MAP_POPULATE
    | libc::MAP_NORESERVE
    | libc::MAP_DENYWRITE;
const PAGE: u64 = 4096;

/// `mmap` of a placeholder; `None`: it needs the kernel's file, or the kernel says what is wrong.
pub fn map(index: u32, args: &Args) -> Option<i64> {
    let [_, bytes, protection, flags, fd, offset] = *args;
    let (flags, protection) = (flags as i32, protection as i32);
    let served = flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && flags & !FLAGS == 0
        && protection & !(libc::PROT_READ | libc::PROT_WRITE) == 0
        && (1..=BYTES_MAX).contains(&bytes)
        && offset.is_multiple_of(PAGE);
    if !served || placeholder::any_lost() {
        return None;
    }
    let copied = copy(index, fd as i32, offset, bytes)?;
    let args = [
        args[0],
        bytes,
        args[2],
        args[3],
        copied.as_raw_fd() as u64,
        0,
    ];
    // SAFETY: the program's own call, with another file.
    let at = unsafe { raw::syscall(nr::MMAP, &args) };
    if at >= 0 && direct::any() {
        direct::gone(at as u64, bytes);
    }
    Some(at)
}

/// A file in memory with what there is of so many bytes of a placeholder's file.
fn copy(index: u32, fd: i32, offset: u64, bytes: u64) -> Option<impl AsRawFd> {
    let d = description::get(index);
    let file = {
        let _held = d.lock(thread::tid());
        let readable = d.flags.load(Ordering::Relaxed) as i32 & libc::O_ACCMODE != libc::O_WRONLY;
        if placeholder_of(fd) != Some(index) || d.is_directory() || !readable {
            return None;
        }
        placeholder::file(index)?
    };
    let mut content = vec![0; bytes as usize];
    let there = file.pread(offset, &mut content).ok()?;
    if there as u64 > limits::file_bytes() {
        return None;
    }
    let copied = memfd_create(c"shale-mapped", MemfdFlags::CLOEXEC).ok()?;
    let mut rest = &content[..there];
    while !rest.is_empty() {
        match pwrite(&copied, rest, (there - rest.len()) as u64) {
            Ok(0) => return None,
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(copied)
}
