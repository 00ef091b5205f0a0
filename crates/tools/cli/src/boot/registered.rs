//! Volumes by name: `NAME` is the volume of `/etc/shale/NAME.toml`, which may be a link to where mkfs wrote it.

use crate::failure::{Failure, Result};
use std::path::{Path, PathBuf};

/// Where VOLUME.toml files are found by name.
pub const DIRECTORY: &str = "/etc/shale";

/// The volume files below a directory, by name.
pub fn all_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    all.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    all.sort();
    all
}

/// The VOLUME.toml that the first field of a line in fstab names: a path if there is a slash in it, else a name.
///
/// # Errors
/// It is neither, or nothing of that name is registered.
pub fn volume_file(spec: &str) -> Result<PathBuf> {
    volume_file_in(Path::new(DIRECTORY), spec)
}

fn volume_file_in(directory: &Path, spec: &str) -> Result<PathBuf> {
    let tag = spec.split_once('=').map(|(tag, _)| tag);
    if let Some(tag) = tag.filter(|tag| ["LABEL", "PARTUUID", "PARTLABEL"].contains(tag)) {
        let text =
            format!("{spec}: {tag} names one block device, and a volume lies on several media");
        return Err(Failure::usage(text)
            .advise("give the path of VOLUME.toml, NAME of /etc/shale/NAME.toml, or uuid=UUID of the volume"));
    }
    if spec.is_empty() || spec.contains('/') {
        return Ok(PathBuf::from(spec));
    }
    let file = directory.join(format!("{spec}.toml"));
    if file.exists() {
        return Ok(file);
    }
    // mount(8) makes a path absolute only if it is there.
    let here = Path::new(spec);
    if here.is_file() {
        return Ok(here.to_owned());
    }
    let text = format!(
        "{spec}: there is no volume of that name: {} does not exist",
        file.display()
    );
    Err(Failure::new(text).advise(format!("ln -s VOLUME.toml {}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_as_it_is_and_a_name_is_looked_up() {
        let dir = tempfile::tempdir().unwrap();
        let found = |spec: &str| volume_file_in(dir.path(), spec);
        assert_eq!(found("/srv/a.toml").unwrap(), Path::new("/srv/a.toml"));
        assert_eq!(found("./a.toml").unwrap(), Path::new("./a.toml"));
        let missing = found("data").unwrap_err().to_string();
        let file = dir.path().join("data.toml");
        assert!(
            missing.starts_with("data: ") && missing.contains(file.to_str().unwrap()),
            "{missing}"
        );
        std::fs::write(&file, "").unwrap();
        assert_eq!(found("data").unwrap(), file);
        // With its ending it is a file of the working directory, or none.
        assert!(found("data.toml").is_err());
    }

    #[test]
    fn what_names_a_device_is_refused() {
        for spec in ["PARTUUID=12-34", "LABEL=data"] {
            let failure = volume_file(spec).unwrap_err().to_string();
            assert!(
                failure.starts_with(spec) && failure.contains("/etc/shale/NAME.toml"),
                "{failure}"
            );
        }
    }
}
