//! Files that are mapped.
//!
//! Pages of a mapping are the kernel's, read and written back through the mount. It does not
//! ask for a file's size at a page fault, so it has to be the one who changes it: a file
//! that this process has mapped once is left to the kernel from then on, with all its
//! descriptors here.

use crate::description::{self, mode};
use crate::raw::{Args, nr};
use crate::report;
use crate::stubs::PASS;
use crate::table::{self, Entry};
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::Mutex;

/// Files that were mapped: mount and inode number.
static MAPPED: Mutex<Vec<(u32, u64)>> = Mutex::new(Vec::new());
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether a file was mapped by this process.
pub fn is_mapped(mount: u32, ino: u64) -> bool {
    ANY.load(Ordering::Relaxed) && MAPPED.lock().contains(&(mount, ino))
}

/// `mmap`.
pub fn map(args: &Args) -> i64 {
    let Entry::File(index) = table::get(args[4] as i32) else {
        return PASS;
    };
    let d = description::get(index);
    let file = (
        d.mount.load(Ordering::Relaxed),
        d.ino.load(Ordering::Relaxed),
    );
    let mut mapped = MAPPED.lock();
    if !mapped.contains(&file) {
        mapped.push(file);
        ANY.store(true, Ordering::Relaxed);
    }
    drop(mapped);
    report::passed(nr::MMAP, "mapped through the mount");
    // Another process may have changed the size.
    let fd = args[4] as i32;
    crate::mounts::settle_size(fd);
    let tid = crate::thread::this().tid.load(Ordering::Relaxed);
    table::for_each(0, u32::MAX, |fd, entry| {
        let Entry::File(index) = entry else { return };
        let d = description::get(index);
        if (
            d.mount.load(Ordering::Relaxed),
            d.ino.load(Ordering::Relaxed),
        ) != file
        {
            return;
        }
        let held = d.lock(tid);
        d.not_before_ns.store(i64::MAX, Ordering::Relaxed);
        if d.mode.load(Ordering::Relaxed) == mode::FAST {
            d.to_kernel(fd, mode::KERNEL);
        }
        drop(held);
    });
    PASS
}
