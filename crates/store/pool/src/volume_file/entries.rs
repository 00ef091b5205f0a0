//! What a volume file lists: NVM, what is there instead of it, devices of lower tiers.

use crate::device_kind::DeviceKind;
use crate::error::{PoolError, Result};
use serde::{Deserialize, Serialize};
use shale_block::{BlockFile, BlockModel, TierDevice, Timed, Unit};
use shale_format::limits::{BLOCK_BYTES, NVM_BYTES_MIN};
use shale_nvm::{Model, Pace};
use shale_sys::SystemClock;
use std::path::PathBuf;
use std::sync::Arc;

/// Most of a device that can be kept out of use, in percent.
pub const OVERPROVISION_PERCENT_MAX: u32 = 50;

/// Least bytes of a staging area.
pub const STAGING_BYTES_MIN: u64 = 1 << 20;

/// One directory of NVM segments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmEntry {
    /// Directory that holds `seg-NNNN`, `log-NNN` and the lock.
    pub dir: PathBuf,
    /// Bytes of all segments together.
    pub size_bytes: u64,
    /// Model of a slower medium that is put in front of it, a name of [`Model::named`]; none: it is as fast as it is. For
    /// measurements, from the next mount on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

impl NvmEntry {
    /// A directory of NVM as fast as it is.
    pub fn new(dir: impl Into<PathBuf>, size_bytes: u64) -> Self {
        Self {
            dir: dir.into(),
            size_bytes,
            model: None,
        }
    }
}

/// Where a volume without NVM keeps what NVM would hold: in shared memory, and durably in an area of one of its SSDs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagedEntry {
    /// Directory of the memory tier, in shared memory: `seg-NNNN`, `log-NNN` and the lock, as in an NVM directory. A mount makes
    /// it from the area, and removes it when it ends.
    pub memory_dir: PathBuf,
    /// Bytes of all segments of the memory tier together; a multiple of 4096, at least [`NVM_BYTES_MIN`].
    pub memory_bytes: u64,
    /// Which of the `[[ssd]]` has the area: a conventional one, named by the same path.
    pub device: PathBuf,
    /// Byte of that device at which the area begins; a multiple of 4096, not before the `size_bytes` that the tier uses.
    pub at_byte: u64,
    /// Bytes of the staging area, a ring; a multiple of 4096, at least [`STAGING_BYTES_MIN`].
    pub staging_bytes: u64,
}

/// What is on the media and cannot change while a volume is mounted: the next mount writes it there, and then the file
/// without this.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextMount {
    /// Name of a durability policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<String>,
    /// Bytes of the update log of the mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_bytes: Option<u64>,
}

/// A device of a lower tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFile {
    /// File or block device.
    pub path: PathBuf,
    /// Bytes.
    pub size_bytes: u64,
    /// Bytes of a zone; none: chosen by mkfs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone_bytes: Option<u64>,
    /// Model of a slower medium that is put in front of it, a name of [`BlockModel::named`]; none: it is
    /// as fast as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What it is; a conventional device unless it is said.
    #[serde(default, skip_serializing_if = "DeviceKind::is_usual")]
    pub kind: DeviceKind,
    /// Percentage of it that is kept out of use, so that its zones are emptier when they are cleaned, 0 to
    /// [`OVERPROVISION_PERCENT_MAX`]. None: that of its kind. Holds from the next mount on.
    #[serde(
        default,
        alias = "spare_percent",
        skip_serializing_if = "Option::is_none"
    )]
    pub overprovision_percent: Option<u32>,
}

impl DeviceFile {
    /// Percentage of it that is kept out of use.
    pub fn spare(&self) -> u32 {
        self.overprovision_percent
            .unwrap_or(self.kind.overprovision_percent())
    }

    /// What its medium is best written or erased in, of a conventional device: what was said of its zones, or what is found.
    pub fn unit(&self) -> Unit {
        let found = Unit::of(&self.path);
        match self.zone_bytes {
            Some(bytes) => Unit {
                bytes,
                from: "the zones asked for".to_owned(),
                ..found
            },
            None => found,
        }
    }

    /// Opens a conventional device, for at least `bytes` bytes, with its model in front.
    ///
    /// # Errors
    /// As [`BlockFile::open`]; the model is none that is known.
    pub(crate) fn open_conventional(&self, bytes: u64) -> Result<Arc<dyn TierDevice>> {
        let file = BlockFile::open(&self.path, bytes)?.with_unit(self.unit());
        let Some(name) = &self.model else {
            return Ok(Arc::new(file));
        };
        let model = BlockModel::named(name).ok_or_else(|| PoolError::WrongDevice {
            path: self.path.clone(),
            why: unknown_model(name),
        })?;
        let pace = Pace::of_real_time(Arc::new(SystemClock::new()));
        Ok(Arc::new(Timed::new(file, model, pace)))
    }
}

/// Nothing, or the key that is wrong, with the mistake.
pub(crate) type Checked = std::result::Result<(), (String, String)>;

pub(crate) fn wrong_key(key: &str, why: impl Into<String>) -> Checked {
    Err((key.to_owned(), why.into()))
}

impl StagedEntry {
    /// What is wrong with it; `ssd`: the devices of the flash tier.
    pub(crate) fn check(&self, ssd: &[DeviceFile]) -> Checked {
        let sizes = [
            ("staged.memory_bytes", self.memory_bytes, NVM_BYTES_MIN),
            ("staged.at_byte", self.at_byte, 0),
            (
                "staged.staging_bytes",
                self.staging_bytes,
                STAGING_BYTES_MIN,
            ),
        ];
        for (key, bytes, least) in sizes {
            if !bytes.is_multiple_of(BLOCK_BYTES as u64) {
                return wrong_key(key, format!("{bytes} is no multiple of {BLOCK_BYTES}"));
            }
            if bytes < least {
                return wrong_key(key, format!("{bytes} is below the least of {least}"));
            }
        }
        let Some(device) = ssd.iter().find(|d| d.path == self.device) else {
            let why = format!(
                "{} is none of the [[ssd]]: the path of the one that has the staging area is expected",
                self.device.display()
            );
            return wrong_key("staged.device", why);
        };
        if device.kind != DeviceKind::Conventional {
            let (path, kind) = (self.device.display(), device.kind.name());
            let why = format!("{path} is {kind}: a staging area lies on a conventional device");
            return wrong_key("staged.device", why);
        }
        if self.at_byte < device.size_bytes {
            let why = format!(
                "{} lies within the {} bytes that the tier uses of {}: it begins behind them",
                self.at_byte,
                device.size_bytes,
                self.device.display()
            );
            return wrong_key("staged.at_byte", why);
        }
        Ok(())
    }
}

pub(crate) fn unknown_model(name: &str) -> String {
    let known = BlockModel::NAMES.join(", ");
    format!("model '{name}' is not known; known: {known}")
}

/// What is wrong with the model of NVM entries.
pub(crate) fn check_nvm_models(nvm: &[NvmEntry]) -> Checked {
    let mut names = nvm.iter().filter_map(|n| n.model.as_deref());
    match names.find(|name| Model::named(name).is_none()) {
        Some(name) => {
            let why = format!("model '{name}' is not known; known: {}", Model::NAMES);
            wrong_key("nvm.model", why)
        }
        None => Ok(()),
    }
}
