//! What is written bypassing the kernel's page cache is not followed by older bytes read through them.

use crate::volume::{Volume, can_mount};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const WRITES: u64 = 20_000;
const AT: u64 = 512;
const BYTES: usize = 512;

fn number_in(file: &File) -> u64 {
    let mut bytes = [0; BYTES];
    file.read_exact_at(&mut bytes, AT).unwrap();
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// One thread writes past the pages, as clients do with files that FUSE clients use too. One
/// reads past them. A caller that reads through the pages after that reads this number or a later one.
#[test]
fn a_write_past_the_pages_is_not_followed_by_older_bytes() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("past-pages");
    v.mount();
    let path = v.mountpoint().join("file");
    std::fs::write(&path, [0; 2 * BYTES]).unwrap();
    let open = |flags: OFlags| {
        let mut how = OpenOptions::new();
        how.read(true).write(true);
        how.custom_flags(flags.bits().cast_signed()).open(&path)
    };
    let [past, also_past] = [0; 2].map(|_| open(OFlags::DIRECT).unwrap());
    let through = [0; 2].map(|_| open(OFlags::empty()).unwrap());
    let (seen, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let (reads, old) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                seen.fetch_max(number_in(&also_past), Ordering::SeqCst);
            }
        });
        for file in &through {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let least = seen.load(Ordering::SeqCst);
                    let found = number_in(file);
                    old.fetch_add(u64::from(found < least), Ordering::Relaxed);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for n in 1..=WRITES {
            let bytes = n.to_le_bytes().repeat(BYTES / 8);
            past.write_all_at(&bytes, AT).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let (reads, old) = (reads.into_inner(), old.into_inner());
    eprintln!("{WRITES} writes, {reads} reads through the pages, {old} of them old");
    assert_eq!(old, 0, "reads of {reads} that others had gone past");
}
