//! Settings of a mount that its next daemon has to know: files beside the state of the mount.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file of how fast clients may write.
pub const LIMITS_FILE: &str = "limits.json";

/// The file of how fast migration may be.
pub const SPEED_FILE: &str = "speed.json";

/// Keeps a setting for the next daemon of the mount.
///
/// # Errors
/// The file cannot be written.
pub fn save<T: Serialize>(state_dir: &Path, file: &str, value: &T) -> std::io::Result<()> {
    replace(&state_dir.join(file), &serde_json::to_vec(value)?, 0o600)
}

/// As [`write`], but a reader finds the old file or the new one, whole.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> std::io::Result<()> {
    let new = path.with_extension("new");
    write(&new, bytes, mode)?;
    fs::rename(new, path)
}

/// Writes a file beside the state of a mount. Nobody but its owner may ever write to it, whatever the umask says.
pub fn write(path: &Path, bytes: &[u8], mode: u32) -> std::io::Result<()> {
    // Its mode is that of the file before otherwise.
    let _ = fs::remove_file(path);
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    options.open(path)?.write_all(bytes)
}

/// What was kept; as at first if nothing was.
pub fn load<T: DeserializeOwned + Default>(state_dir: &Path, file: &str) -> T {
    let bytes = fs::read(state_dir.join(file)).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_there_and_what_is_torn_is_as_at_first() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load::<u64>(dir.path(), "speed.json"), 0);
        save(dir.path(), "speed.json", &7_u64).unwrap();
        assert_eq!(load::<u64>(dir.path(), "speed.json"), 7);
        assert_eq!(load::<u64>(dir.path(), "limits.json"), 0);
        fs::write(dir.path().join("speed.json"), b"{").unwrap();
        assert_eq!(load::<u64>(dir.path(), "speed.json"), 0);
    }
}
