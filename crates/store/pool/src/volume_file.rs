//! `VOLUME.toml`: which media make up a volume.
//!
//! The file is for people and for `mount`; what it says about the volume itself is
//! checked against the superblock, which decides. A directory that is not absolute
//! is taken from the place of the file, so that a volume can be moved as a whole.

use crate::device_kind::DeviceKind;
use crate::error::{PoolError, Result};
use serde::{Deserialize, Serialize};
use shale_block::{BlockFile, BlockModel, TierDevice, Timed, Unit};
use shale_format::limits::{LOG_BYTES_MAX, LOG_BYTES_MIN, NVM_BYTES_MIN};
use shale_format::superblock::Superblock;
use shale_format::{Durability, TierId};
use shale_nvm::Pace;
use shale_sys::SystemClock;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Newest format of the volume file that this program knows.
pub const FORMAT: u32 = 1;

/// Most of a device that can be kept out of use, in percent.
pub const OVERPROVISION_PERCENT_MAX: u32 = 50;

/// Everybody may read a volume file, whatever the umask, and nobody but its owner may write it: it says whom the volume trusts.
const FILE_MODE: u32 = 0o644;

/// What the kernel takes for no user.
const NOBODY: u32 = u32::MAX;

/// One directory of NVM segments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmEntry {
    /// Directory that holds `seg-NNNN`, `log-NNN` and the lock.
    pub dir: PathBuf,
    /// Bytes of all segments together.
    pub size_bytes: u64,
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

fn unknown_model(name: &str) -> String {
    let known = BlockModel::NAMES.join(", ");
    format!("model '{name}' is not known; known: {known}")
}

/// A volume, as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeFile {
    /// Format of this file: [`FORMAT`].
    pub format: u32,
    /// Name for people.
    pub name: String,
    /// Identity of the volume: 32 hexadecimal digits, hyphens allowed.
    pub uuid: String,
    /// `strict` or `buffered`.
    pub durability: String,
    /// Bytes of the update log of the mount, and of each other client unless `client_log_bytes` says
    /// otherwise.
    pub log_bytes: u64,
    /// Bytes of the update log of each process under `shale run` or with libshale; none: `log_bytes`. A
    /// process may ask for another size, up to the larger of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_log_bytes: Option<u64>,
    /// Percentage of the NVM tier at which cold data begins to move below; none: 95.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrate_at_percent: Option<u32>,
    /// Users beside the owner and root whose processes may map the volume (DESIGN §25): they can read every
    /// byte of NVM and of the tiers below, whatever the modes of files say, and change only what POSIX lets them. Holds
    /// from the next mount on; none unless said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trusted_uids: Vec<u32>,
    /// NVM tier; one directory.
    pub nvm: Vec<NvmEntry>,
    /// Flash tier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssd: Vec<DeviceFile>,
    /// Disk tier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hdd: Vec<DeviceFile>,
}

/// Just enough to tell a newer file from a broken one.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

impl VolumeFile {
    /// Reads and checks a volume file. Directories come back absolute.
    ///
    /// # Errors
    /// The file cannot be read, is no TOML, is of a newer format, or a key has a
    /// value that cannot be: the message names file, key and what to do.
    pub fn load(path: &Path) -> Result<VolumeFile> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| PoolError::file(path, "read the volume file", e))?;
        let wrong = |key: &str, why: String| PoolError::VolumeFile {
            path: path.to_path_buf(),
            key: key.to_owned(),
            why,
        };
        // A newer format may have keys unknown here, so its number is read first.
        if let Ok(FormatOnly { format }) = toml::from_str(&text)
            && format > FORMAT
        {
            return Err(wrong(
                "format",
                format!(
                    "{format} is newer than {FORMAT}, the newest this program knows; use a newer shale"
                ),
            ));
        }
        let mut file: VolumeFile =
            toml::from_str(&text).map_err(|e| wrong("file", e.to_string().trim().to_owned()))?;
        file.check().map_err(|(key, why)| wrong(&key, why))?;
        let base = std::path::absolute(path).map_err(|e| PoolError::file(path, "resolve it", e))?;
        if let Some(base) = base.parent() {
            for entry in &mut file.nvm {
                entry.dir = base.join(&entry.dir);
            }
            for device in file.ssd.iter_mut().chain(&mut file.hdd) {
                device.path = base.join(&device.path);
            }
        }
        Ok(file)
    }

    /// Changes a volume file as it stands there, directories that are not absolute included.
    ///
    /// # Errors
    /// As [`VolumeFile::load`] and [`VolumeFile::save`].
    pub fn edit(path: &Path, change: impl FnOnce(&Path, &mut VolumeFile)) -> Result<()> {
        Self::load(path)?;
        let text = std::fs::read_to_string(path)
            .map_err(|e| PoolError::file(path, "read the volume file", e))?;
        let mut file: VolumeFile = toml::from_str(&text)
            .map_err(|e| PoolError::file(path, "read it as TOML", std::io::Error::other(e)))?;
        let base = std::path::absolute(path).map_err(|e| PoolError::file(path, "resolve it", e))?;
        change(base.parent().unwrap_or(Path::new("/")), &mut file);
        file.save(path)
    }

    /// Names a device, and whatever else had its path no more.
    ///
    /// # Errors
    /// As [`VolumeFile::edit`].
    pub fn name_device(path: &Path, tier: TierId, device: &DeviceFile) -> Result<()> {
        let real = |path: PathBuf| path.canonicalize().unwrap_or(path);
        let wanted = real(device.path.clone());
        Self::edit(path, |base, file| {
            let other = |d: &DeviceFile| real(base.join(&d.path)) != wanted;
            file.ssd.retain(other);
            file.hdd.retain(other);
            match tier {
                TierId::Hdd => file.hdd.push(device.clone()),
                _ => file.ssd.push(device.clone()),
            }
        })
    }

    /// Leaves a device out of the volume file.
    ///
    /// # Errors
    /// As [`VolumeFile::edit`].
    pub fn forget_device(path: &Path, device: &Path) -> Result<()> {
        Self::edit(path, |base, file| {
            let other = |d: &DeviceFile| base.join(&d.path) != device;
            file.ssd.retain(other);
            file.hdd.retain(other);
        })
    }

    /// Writes the file: beside it first, then renamed over it, so that a crash
    /// leaves the old one or the new one.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let failed = |tried: &str, e: std::io::Error| PoolError::file(path, tried, e);
        let text = toml::to_string_pretty(self)
            .map_err(|e| failed("write it as TOML", std::io::Error::other(e)))?;
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        let mut options = std::fs::OpenOptions::new();
        let options = options.write(true).create_new(true).mode(FILE_MODE);
        // What a crash has left of an earlier time, or somebody's link.
        let _ = std::fs::remove_file(&beside);
        let written = options
            .open(&beside)
            .and_then(|mut f| {
                f.write_all(text.as_bytes())?;
                f.sync_all()
            })
            .and_then(|()| std::fs::rename(&beside, path))
            .and_then(|()| match path.parent() {
                Some(dir) if !dir.as_os_str().is_empty() => std::fs::File::open(dir)?.sync_all(),
                _ => std::fs::File::open(".")?.sync_all(),
            });
        written.map_err(|e| {
            let _ = std::fs::remove_file(&beside);
            failed("write it", e)
        })
    }

    fn check(&self) -> std::result::Result<(), (String, String)> {
        let wrong = |key: &str, why: &str| Err((key.to_owned(), why.to_owned()));
        if self.format == 0 {
            return wrong("format", "0 is no format; the first one is 1");
        }
        if parse_uuid(&self.uuid).is_none() {
            return wrong("uuid", "expected 32 hexadecimal digits");
        }
        match self.durability.parse::<Durability>() {
            Ok(Durability::Strict) => {}
            Ok(Durability::Buffered) => {
                let why = "'buffered' is not implemented yet; accepted: \"strict\"";
                return wrong("durability", why);
            }
            Err(why) => return wrong("durability", &why),
        }
        if self.name.chars().any(char::is_control) {
            return wrong("name", "it has a control character: names go to terminals");
        }
        if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&self.log_bytes) {
            return wrong(
                "log_bytes",
                &format!(
                    "{} is not between {LOG_BYTES_MIN} and {LOG_BYTES_MAX}",
                    self.log_bytes
                ),
            );
        }
        if let Some(bytes) = self.client_log_bytes
            && !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&bytes)
        {
            return wrong(
                "client_log_bytes",
                &format!("{bytes} is not between {LOG_BYTES_MIN} and {LOG_BYTES_MAX}"),
            );
        }
        if self.trusted_uids.contains(&NOBODY) {
            return wrong("trusted_uids", &format!("{NOBODY} is no user"));
        }
        for (tier, devices) in [("ssd", &self.ssd), ("hdd", &self.hdd)] {
            let models = devices.iter().filter_map(|d| d.model.as_deref());
            if let Some(name) = { models }.find(|name| BlockModel::named(name).is_none()) {
                return wrong(&format!("{tier}.model"), &unknown_model(name));
            }
            if devices
                .iter()
                .any(|d| d.spare() > OVERPROVISION_PERCENT_MAX)
            {
                let why = format!("expected 0 to {OVERPROVISION_PERCENT_MAX}");
                return wrong(&format!("{tier}.overprovision_percent"), &why);
            }
        }
        match self.nvm.as_slice() {
            [one] if one.size_bytes < NVM_BYTES_MIN => wrong(
                "nvm.size_bytes",
                &format!("{} is below the least of {NVM_BYTES_MIN}", one.size_bytes),
            ),
            [_] if self
                .migrate_at_percent
                .is_some_and(|p| !(1..=100).contains(&p)) =>
            {
                wrong("migrate_at_percent", "expected 1 to 100")
            }
            [_] => Ok(()),
            [] => wrong("nvm", "no entry; add one [[nvm]] with dir and size_bytes"),
            _ => wrong(
                "nvm",
                "more than one entry; keep the one directory of the volume",
            ),
        }
    }

    /// The NVM directory.
    pub fn nvm_dir(&self) -> &Path {
        self.nvm.first().map_or(Path::new(""), |n| &n.dir)
    }

    /// Bytes of the NVM tier.
    pub fn nvm_bytes(&self) -> u64 {
        self.nvm.first().map_or(0, |n| n.size_bytes)
    }

    /// The identity as bytes; zeros if it is not one ([`Self::load`] refuses that).
    pub fn uuid_bytes(&self) -> [u8; 16] {
        parse_uuid(&self.uuid).unwrap_or_default()
    }

    /// Compares with the superblock found in the NVM directory.
    ///
    /// # Errors
    /// Another volume lies there.
    pub fn check_superblock(&self, superblock: &Superblock) -> Result<()> {
        if superblock.uuid == self.uuid_bytes() {
            return Ok(());
        }
        Err(PoolError::NvmDir {
            dir: self.nvm_dir().to_path_buf(),
            why: format!(
                "volume {} lies there, expected {} ('{}'): correct nvm.dir in the volume file",
                uuid_text(&superblock.uuid),
                self.uuid,
                self.name
            ),
        })
    }
}

/// An identity as people read it.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// An identity from text; hyphens do not matter.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|&c| c != '-')
        .map(|c| c.to_digit(16).map(|d| d as u8))
        .collect::<Option<_>>()?;
    let mut uuid = [0; 16];
    if digits.len() != 32 {
        return None;
    }
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(dir: &Path) -> VolumeFile {
        VolumeFile {
            format: FORMAT,
            name: "v".to_owned(),
            uuid: uuid_text(&[7; 16]),
            durability: "strict".to_owned(),
            log_bytes: LOG_BYTES_MIN,
            client_log_bytes: None,
            migrate_at_percent: None,
            trusted_uids: Vec::new(),
            nvm: vec![NvmEntry {
                dir: dir.to_path_buf(),
                size_bytes: NVM_BYTES_MIN,
            }],
            ssd: vec![],
            hdd: vec![],
        }
    }

    #[test]
    fn save_and_load() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("VOLUME.toml");
        let mut file = sample(Path::new("nvm"));
        file.save(&path).unwrap();
        let without = std::fs::read_to_string(&path).unwrap();
        assert!(!without.contains("trusted_uids"), "{without}");
        assert!(VolumeFile::load(&path).unwrap().trusted_uids.is_empty());
        assert!(!without.contains("client_log_bytes"), "{without}");
        file.trusted_uids = vec![1000, 1001];
        file.client_log_bytes = Some(64 << 20);
        file.save(&path).unwrap();
        VolumeFile::forget_device(&path, Path::new("/none")).unwrap();
        let loaded = VolumeFile::load(&path).unwrap();
        assert_eq!(loaded.trusted_uids, [1000, 1001]);
        assert_eq!(loaded.client_log_bytes, Some(64 << 20));
        assert_eq!(loaded.nvm_dir(), dir.path().join("nvm"));
        assert_eq!(loaded.uuid_bytes(), [7; 16]);
        assert_eq!(loaded.name, "v");
    }

    #[test]
    fn a_path_is_named_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("VOLUME.toml");
        let device = |path: &Path, size_bytes| DeviceFile {
            path: path.to_path_buf(),
            size_bytes,
            zone_bytes: None,
            model: None,
            kind: DeviceKind::Conventional,
            overprovision_percent: None,
        };
        let mut file = sample(Path::new("nvm"));
        file.ssd = vec![device(Path::new("a"), 1), device(Path::new("b"), 2)];
        file.save(&path).unwrap();
        let again = device(&dir.path().join("a"), 3);
        VolumeFile::name_device(&path, TierId::Hdd, &again).unwrap();
        let loaded = VolumeFile::load(&path).unwrap();
        assert_eq!(loaded.ssd, [device(&dir.path().join("b"), 2)]);
        assert_eq!(loaded.hdd, [again]);
    }

    #[test]
    fn the_old_key_of_over_provisioning_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("VOLUME.toml");
        let good = toml::to_string(&sample(Path::new("/nvm"))).unwrap();
        for key in ["overprovision_percent", "spare_percent"] {
            let device = format!("[[ssd]]\npath = \"/s\"\nsize_bytes = 1\n{key} = 7\n[[nvm]]");
            std::fs::write(&path, good.replacen("[[nvm]]", &device, 1)).unwrap();
            let loaded = VolumeFile::load(&path).unwrap();
            assert_eq!(loaded.ssd[0].overprovision_percent, Some(7), "{key}");
        }
    }

    #[test]
    fn every_mistake_names_file_and_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("V.toml");
        let good = toml::to_string(&sample(Path::new("/nvm"))).unwrap();
        for (from, to, key, word) in [
            ("format = 1", "format = 2\nnew_key = 1", "format", "newer"),
            ("\"strict\"", "\"sloppy\"", "durability", "sloppy"),
            (
                "\"strict\"",
                "\"buffered\"",
                "durability",
                "not implemented yet",
            ),
            ("\"v\"", "\"\\u001b[31mv\"", "name", "control character"),
            (
                "log_bytes = 16777216",
                "log_bytes = 5",
                "log_bytes",
                "16777216",
            ),
            (
                "size_bytes = 33554432",
                "size_bytes = 1",
                "nvm.size_bytes",
                "least",
            ),
            ("0707", "07", "uuid", "hexadecimal"),
            ("name = \"v\"", "nam = \"v\"", "file", "nam"),
            (
                "log_bytes",
                "trusted_uids = [4294967295]\nlog_bytes",
                "trusted_uids",
                "no user",
            ),
            (
                "log_bytes",
                "trusted_uids = [\"ann\"]\nlog_bytes",
                "trusted_uids",
                "u32",
            ),
            (
                "[[nvm]]",
                "[[ssd]]\npath = \"s\"\nsize_bytes = 1\nmodel = \"tape\"\n[[nvm]]",
                "ssd.model",
                "tape",
            ),
        ] {
            assert!(good.contains(from), "{from} not in {good}");
            std::fs::write(&path, good.replacen(from, to, 1)).unwrap();
            let text = VolumeFile::load(&path).unwrap_err().to_string();
            assert!(
                text.contains("V.toml") && text.contains(key) && text.contains(word),
                "{text}"
            );
        }
        let missing = VolumeFile::load(&dir.path().join("none")).unwrap_err();
        assert!(missing.to_string().contains("none"));
    }

    #[test]
    fn uuid_text_and_back() {
        let uuid = *b"0123456789abcdef";
        assert_eq!(parse_uuid(&uuid_text(&uuid)), Some(uuid));
        assert_eq!(parse_uuid("12"), None);
    }
}
