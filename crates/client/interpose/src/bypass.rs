//! Programs in which nothing is served, for `SHALE_BYPASS=PROGRAM:…`: they run on the mount.
//!
//! In the image of such a program only those sites of libc are rewritten that make children and
//! start other programs, and the one that a fork needs to have signals wait. No open is seen, so no
//! descriptor is ever ours, and exported symbols go on to libc by themselves. What the program starts
//! gets the library again, also if the program clears its environment.

use crate::outcome::{CLASS, class};
use crate::raw::nr;
use core::sync::atomic::Ordering;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Calls that are followed all the same.
const FOLLOWED: [u32; 7] = [
    nr::CLONE,
    nr::CLONE3,
    nr::FORK,
    nr::VFORK,
    nr::EXECVE,
    nr::EXECVEAT,
    nr::RT_SIGACTION,
];

/// Whether the environment names this program.
pub fn is_wanted() -> bool {
    let list = std::env::var_os("SHALE_BYPASS");
    // What a program is called with says nothing of which it is.
    list.is_some_and(|list| {
        std::fs::read_link("/proc/self/exe").is_ok_and(|program| names(&list, &program))
    })
}

/// Whether a list has the program: the name of its file, or its whole path.
fn names(list: &OsStr, program: &Path) -> bool {
    list.as_bytes().split(|&b| b == b':').any(|entry| {
        let entry = Path::new(OsStr::from_bytes(entry));
        match entry.is_absolute() {
            true => entry == program,
            false => program.file_name() == Some(entry.as_os_str()),
        }
    })
}

/// Fills the table of classes.
pub fn set_classes() {
    for number in FOLLOWED {
        CLASS[number as usize].store(class::ALWAYS, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_named_by_file_or_path() {
        let is = |list: &str| names(OsStr::new(list), Path::new("/usr/bin/git"));
        assert!(is("git") && is("/usr/bin/git") && is("a:git:b") && is(":/usr/bin/git"));
        for list in [
            "",
            ":",
            "gi",
            "bin/git",
            "/usr/bin",
            "/git",
            "git2:/bin/git",
        ] {
            assert!(!is(list), "{list}");
        }
        assert!(!names(OsStr::new(""), Path::new("/")));
    }
}
