//! The block devices of this machine.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the kernel lists disks, partitions and what is made of them.
const CLASS: &str = "/sys/class/block";

/// Disks, partitions, loop devices and what is made of them, that have a size and are no part of another device (of a RAID, a volume
/// group): these are seen through that one.
pub fn block_devices() -> Vec<PathBuf> {
    devices_in(Path::new(CLASS))
}

fn devices_in(class: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(class).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries
        .filter(|entry| is_whole(&entry.path()))
        .map(|entry| {
            // The kernel writes a slash in a name so.
            let name = entry.file_name().to_string_lossy().replace('!', "/");
            Path::new("/dev").join(name)
        })
        .collect();
    all.sort();
    all
}

fn is_whole(entry: &Path) -> bool {
    let size = fs::read_to_string(entry.join("size")).unwrap_or_default();
    let mut holders = fs::read_dir(entry.join("holders")).into_iter().flatten();
    size.trim() != "0" && !size.is_empty() && holders.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_devices_and_parts_of_others_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        for (name, size, holder) in [
            ("sda", "100\n", None),
            ("sda1", "50\n", None),
            ("loop0", "0\n", None),
            ("sdb", "100\n", Some("md0")),
            ("cciss!c0d0", "9\n", None),
        ] {
            let entry = dir.path().join(name);
            fs::create_dir_all(entry.join("holders")).unwrap();
            fs::write(entry.join("size"), size).unwrap();
            if let Some(holder) = holder {
                fs::write(entry.join("holders").join(holder), "").unwrap();
            }
        }
        let found = devices_in(dir.path());
        let found: Vec<&str> = found.iter().map(|p| p.to_str().unwrap()).collect();
        assert_eq!(found, ["/dev/cciss/c0d0", "/dev/sda", "/dev/sda1"]);
        assert!(devices_in(Path::new("/nowhere")).is_empty());
    }
}
