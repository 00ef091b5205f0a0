//! Volumes by identity: `UUID=…` of `mount.shale` and `shale mount`, or a block device with the volume's label.
//!
//! A volume file of `/etc/shale` is taken first, without a look at any device. Else the volume is looked for on the devices, and its file
//! written below `/run`, for as long as the machine runs.
//!
//! mount(8) asks the system for the device of `UUID=` itself, and refuses one that it does not find: fstab has `uuid=`, which it leaves
//! to its helper.

use crate::failure::{Failure, Result};
use crate::mounts::known_volumes::KnownVolumes;
use crate::mounts::state::StateDir;
use shale_pool::scan::{FoundVolume, RebuildOptions, Scan};
use shale_pool::volume_file::{parse_uuid, uuid_text};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// How an identity is written.
const TAGS: [&str; 2] = ["UUID=", "uuid="];

/// The identity that is meant by what is to be mounted, if it is meant by one.
///
/// # Errors
/// It is none.
pub fn identity(spec: &str) -> Result<Option<[u8; 16]>> {
    let Some(text) = TAGS.iter().find_map(|tag| spec.strip_prefix(tag)) else {
        return on_device(Path::new(spec));
    };
    let uuid = parse_uuid(text).ok_or_else(|| {
        Failure::usage(format!("{spec}: expected 32 hexadecimal digits")).advise("shale scan")
    })?;
    Ok(Some(uuid))
}

/// The volume whose label a block device has.
fn on_device(path: &Path) -> Result<Option<[u8; 16]>> {
    let found = path.metadata();
    if !found.is_ok_and(|found| found.file_type().is_block_device()) {
        return Ok(None);
    }
    let scan = Scan::of(&[path.to_path_buf()], &[], None);
    match (scan.volumes.first(), scan.unreadable.first()) {
        (Some(volume), _) => Ok(Some(volume.uuid)),
        (None, Some(unreadable)) => Err(Failure::new(unreadable.why.clone())),
        (None, None) => {
            let text = format!("{}: it is no device of a volume", path.display());
            Err(Failure::new(text).advise("give VOLUME.toml, or uuid=UUID as shale scan shows it"))
        }
    }
}

/// The volume file of a volume. `degraded`: devices may be missing.
///
/// # Errors
/// It is not found, or not whole; its file cannot be written.
pub fn volume_file(uuid: [u8; 16], degraded: bool) -> Result<PathBuf> {
    let known = KnownVolumes::load();
    if let Some((path, _)) = known.files_of(&uuid).next() {
        return Ok(path.to_path_buf());
    }
    let scan = known.scan(&[], None);
    let text = uuid_text(&uuid);
    let found: Option<&FoundVolume> = scan.volumes.iter().find(|v| v.uuid == uuid);
    let found = found.ok_or_else(|| {
        Failure::new(format!(
            "volume {text}: it is neither in /etc/shale nor on a block device"
        ))
        .advise("an NVM directory and image files are found by VOLUME.toml alone: shale import writes it")
    })?;
    let path = StateDir::volume_files()?.join(format!("{text}.toml"));
    let rebuilt = found.volume_file(&RebuildOptions {
        path: &path,
        name: None,
        old: None,
        degraded,
    });
    let file = rebuilt.map_err(Failure::of)?;
    file.save(&path).map_err(Failure::of)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_neither_a_path_nor_a_name() {
        let uuid = "6a5c2f0e-7d1b-4c83-9a55-0f6f3f0f8a11";
        for tag in TAGS {
            let found = identity(&format!("{tag}{uuid}")).unwrap().unwrap();
            assert_eq!(uuid_text(&found), uuid);
            let failure = identity(&format!("{tag}12-34")).unwrap_err().to_string();
            assert!(failure.contains("32 hexadecimal digits"), "{failure}");
        }
        for other in ["data", "/srv/a.toml", "/dev/null", "Uuid=1", ""] {
            assert_eq!(identity(other).unwrap(), None, "{other}");
        }
    }

    #[test]
    fn one_that_is_nowhere_is_named() {
        let failure = volume_file([7; 16], false).unwrap_err().to_string();
        assert!(failure.contains("07070707-0707"), "{failure}");
    }
}
