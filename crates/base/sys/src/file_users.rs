//! Who else has a file open.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Whether the calling process alone has this file open, by this one opening of it and its duplicates: no other
/// descriptor of any process leads there, and no mapping made by one. Of what was opened only by its name (`O_PATH`)
/// it says nothing: such a descriptor reads and writes nothing.
///
/// The kernel decides: it grants a write lease (`F_SETLEASE`) only then. The lease is given up at once, since only the
/// answer is wanted. `false` also where the file system has no leases, or the file is another user's.
pub fn has_no_others(file: impl AsFd) -> bool {
    set_lease(&file, libc::F_WRLCK).is_ok() && set_lease(&file, libc::F_UNLCK).is_ok()
}

fn set_lease(file: &impl AsFd, kind: i32) -> io::Result<()> {
    // SAFETY: the call takes two numbers and touches no memory.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_SETLEASE, kind) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags};
    use std::fs::File;

    const BYTES: usize = 4096;

    #[test]
    fn another_opening_and_a_mapping_of_it_are_others() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("file");
        let file = File::create_new(&path).unwrap();
        file.set_len(BYTES as u64).unwrap();
        let same = file.try_clone().unwrap();
        assert!(has_no_others(&file), "a duplicate is no other");
        let other = File::options().read(true).write(true).open(&path).unwrap();
        assert!(!has_no_others(&file) && !has_no_others(&same));
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses; nothing is stored into it.
        let at = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                BYTES,
                flags,
                MapFlags::SHARED,
                &other,
                0,
            )
        }
        .unwrap();
        drop(other);
        assert!(!has_no_others(&file), "the mapping is left");
        // SAFETY: the mapping from above, of which there is no reference.
        unsafe { rustix::mm::munmap(at, BYTES) }.unwrap();
        assert!(has_no_others(&file) && has_no_others(&same));
        let reader = File::open(&path).unwrap();
        assert!(!has_no_others(&file), "one that only reads");
        drop(reader);
        assert!(has_no_others(&file));
    }
}
