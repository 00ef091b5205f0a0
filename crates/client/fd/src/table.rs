//! Which descriptors of this process are ours.
//!
//! An entry of [`TABLE`] is 0 (the kernel's), [`OWN`] (one that the library itself needs,
//! hidden from the program), or the number of a description plus 1. A descriptor is
//! entered after the kernel has made it and taken out before the kernel closes it, so a
//! number that the kernel gives out again never finds an old entry.

use crate::description;
use core::sync::atomic::{AtomicU32, Ordering};
use shale_interpose::outcome::{FD_END, TABLE};

/// For each file: the generation of its description, by which a child finds out whether it is
/// still the same.
static GENERATION: [AtomicU32; FD_END] = [const { AtomicU32::new(0) }; FD_END];

/// The library's own descriptor.
pub const OWN: u32 = u32::MAX;

/// One more than the highest descriptor ever entered.
static END: AtomicU32 = AtomicU32::new(0);
/// The same of those that are no own ones, whose numbers are high.
static FILES_END: AtomicU32 = AtomicU32::new(0);

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing of ours.
    Kernel,
    /// The library's own.
    Own,
    /// A file of a Shale mount: number of its description.
    File(u32),
}

/// Looks a descriptor up.
#[inline]
pub fn get(fd: i32) -> Entry {
    match TABLE
        .get(fd as u32 as usize)
        .map_or(0, |e| e.load(Ordering::Acquire))
    {
        0 => Entry::Kernel,
        OWN => Entry::Own,
        n => Entry::File(n - 1),
    }
}

/// Enters a descriptor; the description's user count is the caller's to raise. `false`: the
/// number is too high.
pub fn enter(fd: i32, index: u32) -> bool {
    if let Some(place) = GENERATION.get(fd as u32 as usize) {
        place.store(description::generation(index), Ordering::Relaxed);
    }
    set(fd, index + 1)
}

/// Enters one of the library's own.
pub fn enter_own(fd: i32) -> bool {
    set(fd, OWN)
}

fn set(fd: i32, value: u32) -> bool {
    if fd < 0 || fd as usize >= FD_END {
        return false;
    }
    END.fetch_max(fd as u32 + 1, Ordering::AcqRel);
    if value != OWN {
        FILES_END.fetch_max(fd as u32 + 1, Ordering::AcqRel);
    }
    let old = TABLE[fd as usize].swap(value, Ordering::AcqRel);
    if old != 0 && old != OWN {
        description::drop_user(old - 1);
    }
    true
}

/// Takes a descriptor out, unless it is the library's own.
pub fn remove(fd: i32) {
    let Some(entry) = TABLE.get(fd as u32 as usize) else {
        return;
    };
    let old = entry.load(Ordering::Acquire);
    if old != 0
        && old != OWN
        && entry
            .compare_exchange(old, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    {
        description::drop_user(old - 1);
    }
}

/// Takes a descriptor out that has this description still. The description's lock is held: the thread that enters it
/// again takes that before.
pub fn remove_of(fd: i32, index: u32) {
    let entry = &TABLE[fd as usize];
    let (free, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
    if entry.compare_exchange(index + 1, 0, free, relaxed).is_ok() {
        description::drop_user(index);
    }
}

/// Takes one of the library's own out.
pub fn remove_own(fd: i32) {
    if let Some(entry) = TABLE.get(fd as u32 as usize) {
        // An entry that is not `OWN` is the program's: leave it.
        let _ = entry.compare_exchange(OWN, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Leaves every descriptor to the kernel, in a process that this table is not about.
pub fn forget_all() {
    for entry in &TABLE[..END.load(Ordering::Acquire) as usize] {
        entry.store(0, Ordering::Release);
    }
}

/// In a child that came about without our knowing: counts what it has. A file that its parent has closed
/// meanwhile is left to the kernel: its description may be another file's by now.
pub fn count_all() {
    for_each_file(|fd, index| {
        let generation = GENERATION[fd as usize].load(Ordering::Relaxed);
        if !description::add_user_of(index, generation) {
            TABLE[fd as usize].store(0, Ordering::Release);
        }
    });
}

/// Calls `f` for every descriptor that is not the kernel's, from `first` to `last`.
pub fn for_each(first: u32, last: u32, mut f: impl FnMut(i32, Entry)) {
    let end = END.load(Ordering::Acquire).min(last.saturating_add(1));
    for fd in first..end {
        match get(fd as i32) {
            Entry::Kernel => {}
            entry => f(fd as i32, entry),
        }
    }
}

/// Calls `f` for every file of ours, with its description.
pub fn for_each_file(mut f: impl FnMut(i32, u32)) {
    for fd in 0..FILES_END.load(Ordering::Acquire) as i32 {
        if let Entry::File(index) = get(fd) {
            f(fd, index);
        }
    }
}

/// Whether one of these descriptors, from `first` to `last`, is a file of ours.
pub fn has_file(first: u32, last: u32) -> bool {
    let mut found = false;
    for_each(first, last, |_, entry| {
        found |= matches!(entry, Entry::File(_))
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entered_replaced_removed() {
        let _turn = description::IN_TURNS.lock();
        description::make();
        let (a, b) = (description::take().unwrap(), description::take().unwrap());
        assert!(enter(60_000, a) && enter(60_000, b) && enter_own(60_001));
        assert_eq!(description::users(a), 0, "replaced");
        assert_eq!(
            (get(60_000), get(60_001), get(-1)),
            (Entry::File(b), Entry::Own, Entry::Kernel)
        );
        let mut seen = Vec::new();
        for_each(50_000, u32::MAX, |fd, _| seen.push(fd));
        assert_eq!(seen, [60_000, 60_001]);
        // A child counts what it has, but not what its parent closed and took again.
        let replaced = description::take().unwrap();
        assert!(enter(60_002, replaced));
        description::drop_user(replaced);
        assert_eq!(description::take(), Some(replaced));
        count_all();
        assert_eq!([b, replaced].map(description::users), [2, 1]);
        assert_eq!(get(60_002), Entry::Kernel);
        [b, replaced].into_iter().for_each(description::drop_user);
        remove(60_001);
        remove(60_000);
        assert_eq!((get(60_000), get(60_001)), (Entry::Kernel, Entry::Own));
        remove_own(60_001);
        assert!(!enter(FD_END as i32, 0));
    }
}
