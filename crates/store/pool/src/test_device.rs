//! A device as tests of several modules write it down.

use crate::device_kind::DeviceKind;
use crate::volume_file::DeviceFile;
use std::path::Path;

/// A conventional device of this size, and nothing else said of it.
pub fn device(path: &Path, size_bytes: u64) -> DeviceFile {
    DeviceFile {
        path: path.to_path_buf(),
        size_bytes,
        zone_bytes: None,
        model: None,
        kind: DeviceKind::Conventional,
        overprovision_percent: None,
    }
}
