//! ext4 on a loop device, for comparison.
//!
//! Invariant: nothing of it outlives the process, however that ends. The image's name
//! is removed and the file system detached from its place as soon as it is mounted;
//! what remains hangs on one descriptor, and the loop device goes with it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags};

use crate::BenchError;
use crate::Result;
use crate::programs::run;

/// Makes an ext4 of `bytes` bytes in a file in `dir` and gives its root directory, or
/// says why that cannot be done here.
pub(crate) fn mount(dir: &Path, bytes: u64) -> std::result::Result<OwnedFd, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root to mount a loop device".to_owned());
    }
    make(dir, bytes).map_err(|error| error.to_string())
}

fn make(dir: &Path, bytes: u64) -> Result<OwnedFd> {
    let place = tempfile::Builder::new()
        .prefix("shale-ext4-")
        .tempdir_in(dir)
        .map_err(BenchError::file(dir, "make a directory in"))?;
    let (image, root) = (place.path().join("image"), place.path().join("root"));
    File::create(&image)
        .and_then(|file| file.set_len(bytes))
        .map_err(BenchError::file(&image, "create"))?;
    std::fs::create_dir(&root).map_err(BenchError::file(&root, "create"))?;
    run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
    // The mount sets the loop device up so that it goes when its last user does.
    run(Command::new("mount")
        .args(["-t", "ext4", "-o", "loop"])
        .args([&image, &root]))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&root, flags, Mode::empty());
    run(Command::new("umount").arg("-l").arg(&root))?;
    opened.map_err(BenchError::file(&root, "open"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::calls::{Calls, Sync};
    use crate::micro::target::Target;

    #[test]
    fn it_works_and_leaves_nothing_or_says_why_not() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        match mount(place.path(), 16 << 20) {
            Ok(root) => {
                let mut ext4 = Calls::of("ext4", root, Sync::Fsync);
                ext4.fill(1 << 20).unwrap();
                ext4.write(4_096, b"durable").unwrap();
                let mut found = [0; 7];
                ext4.read(4_096, &mut found).unwrap();
                assert_eq!(&found, b"durable");
                let left = std::fs::read_dir(place.path()).unwrap().count();
                assert_eq!(left, 0, "image and place are gone while it is in use");
            }
            Err(why) => assert!(!why.is_empty()),
        }
    }
}
