//! Where a user other than root keeps what lasts as long as its session.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// `$XDG_RUNTIME_DIR`, or where that is not set (after `su`, from cron) `/run/user/UID`, as systemd makes it, if that is a directory of this
/// user's. `None`: there is neither.
#[must_use]
pub fn of_session() -> Option<PathBuf> {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(given) => given.is_absolute().then_some(given),
        None => usual(Path::new("/run/user"), rustix::process::geteuid().as_raw()),
    }
}

fn usual(base: &Path, uid: u32) -> Option<PathBuf> {
    let path = base.join(uid.to_string());
    let found = path.symlink_metadata().ok()?;
    (found.is_dir() && found.uid() == uid).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_of_the_user_counts() {
        let base = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(usual(base.path(), uid), None);
        let own = base.path().join(uid.to_string());
        std::fs::write(&own, "").unwrap();
        assert_eq!(usual(base.path(), uid), None);
        std::fs::remove_file(&own).unwrap();
        std::fs::create_dir(&own).unwrap();
        assert_eq!(usual(base.path(), uid), Some(own.clone()));
        // Of another user.
        std::fs::rename(&own, base.path().join((uid + 1).to_string())).unwrap();
        assert_eq!(usual(base.path(), uid + 1), None);
    }
}
