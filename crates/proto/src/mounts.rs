//! Which mounts are Shale's, and where their daemons listen.
//!
//! A running mount has a directory with its state and its daemon's socket. The state names
//! the device number of the mount; the kernel's table of mounts says whether that number is
//! a Shale mount still: a state may be left over, and the number given to another file system.

use std::path::{Path, PathBuf};

/// Type of Shale mounts in the kernel's table.
const KIND: &[u8] = b"fuse.shale";

/// The daemon's socket of the Shale mount with this device number (`st_dev`); `None`: there is
/// no such mount, or none that this user can find.
pub fn socket_of(device: u64) -> Option<PathBuf> {
    let socket = directories().iter().find_map(|base| search(base, device))?;
    is_mounted(device).then_some(socket)
}

/// Whether the table of mounts has the device as a Shale mount. (`statfs` would tell as well,
/// but asks the daemon.)
fn is_mounted(device: u64) -> bool {
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let wanted = name_of(device);
    text.split(|&b| b == b'\n').any(|line| {
        let mut fields = line.split(|&b| b == b' ');
        fields.nth(2) == Some(wanted.as_bytes())
            && fields.skip_while(|&f| f != b"-").nth(1) == Some(KIND)
    })
}

/// A device number as the kernel writes it.
fn name_of(device: u64) -> String {
    format!("{}:{}", libc::major(device), libc::minor(device))
}

/// Where mounts keep their state: one given by the environment, root's, this user's.
fn directories() -> Vec<PathBuf> {
    let given = std::env::var_os("SHALE_RUN_DIR").map(PathBuf::from);
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|d| Path::new(&d).join("shale"));
    given
        .into_iter()
        .chain([PathBuf::from("/run/shale")])
        .chain(own)
        .collect()
}

fn search(base: &Path, device: u64) -> Option<PathBuf> {
    let wanted = name_of(device);
    for entry in std::fs::read_dir(base).ok()?.flatten() {
        let dir = entry.path();
        let text = std::fs::read(dir.join("state.json")).unwrap_or_default();
        let state: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        if state["device"] == wanted.as_str() {
            return Some(dir.join("socket"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn state_files_are_found_by_device() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("7");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(
            dir.join("state.json"),
            r#"{"mountpoint":"/m","device":"0:77"}"#,
        )
        .unwrap();
        assert_eq!(
            search(base.path(), libc::makedev(0, 77)),
            Some(dir.join("socket"))
        );
        assert_eq!(search(base.path(), libc::makedev(0, 78)), None);
    }

    #[test]
    fn other_file_systems_are_not_ours() {
        let root = std::fs::metadata("/").unwrap().dev();
        assert!(!is_mounted(root));
        assert_eq!(socket_of(root), None);
    }
}
