//! `VOLUME.toml`: which media make up a volume.
//!
//! The file is for people and for `mount`; what it says about the volume itself is
//! checked against the superblock, which decides. A directory that is not absolute
//! is taken from the place of the file, so that a volume can be moved as a whole.

use crate::device_kind::DeviceKind;
use crate::error::{PoolError, Result};
use serde::{Deserialize, Serialize};
use shale_block::{BlockFile, BlockModel, TierDevice, Timed, Unit};
use shale_format::limits::{BLOCK_BYTES, LOG_BYTES_MAX, LOG_BYTES_MIN, NVM_BYTES_MIN};
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

/// Least bytes of a staging area.
pub const STAGING_BYTES_MIN: u64 = 1 << 20;

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
type Checked = std::result::Result<(), (String, String)>;

fn wrong_key(key: &str, why: impl Into<String>) -> Checked {
    Err((key.to_owned(), why.into()))
}

impl StagedEntry {
    /// What is wrong with it; `ssd`: the devices of the flash tier.
    fn check(&self, ssd: &[DeviceFile]) -> Checked {
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
    /// Name of a [`Durability`]: on NVM `strict`; of a volume without NVM any.
    pub durability: String,
    /// Bytes of the update log of the mount, and of each other client unless `client_log_bytes` says
    /// otherwise.
    pub log_bytes: u64,
    /// Bytes of the update log of each process under `shale run` or with libshale; none: `log_bytes`. A
    /// process may ask for another size, up to the larger of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_log_bytes: Option<u64>,
    /// Percentage of the NVM or memory tier at which cold data begins to move below; none: 95.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrate_at_percent: Option<u32>,
    /// Users beside the owner and root whose processes may map the volume (DESIGN §25): they can read every
    /// byte of NVM and of the tiers below, whatever the modes of files say, and change only what POSIX lets them. Holds
    /// from the next mount on; none unless said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trusted_uids: Vec<u32>,
    /// What a volume without NVM has in its place; none: it has NVM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged: Option<StagedEntry>,
    /// NVM tier; one directory, or none and `staged`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
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
        let base = std::path::absolute(path).map_err(|e| PoolError::file(path, "resolve it", e))?;
        if let Some(base) = base.parent() {
            for entry in &mut file.nvm {
                entry.dir = base.join(&entry.dir);
            }
            if let Some(staged) = &mut file.staged {
                staged.memory_dir = base.join(&staged.memory_dir);
                staged.device = base.join(&staged.device);
            }
            for device in file.ssd.iter_mut().chain(&mut file.hdd) {
                device.path = base.join(&device.path);
            }
        }
        file.check().map_err(|(key, why)| wrong(&key, why))?;
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

    /// What is wrong: key and mistake. Paths have been made absolute.
    fn check(&self) -> Checked {
        if self.format == 0 {
            return wrong_key("format", "0 is no format; the first one is 1");
        }
        if parse_uuid(&self.uuid).is_none() {
            return wrong_key("uuid", "expected 32 hexadecimal digits");
        }
        match self.durability.parse::<Durability>() {
            Ok(Durability::Strict) => {}
            // What it has in place of NVM is checked below.
            Ok(_) if self.is_staged() || self.nvm.is_empty() => {}
            Ok(policy) => {
                let why = format!(
                    "'{}' is not implemented yet on NVM; accepted: \"strict\"",
                    policy.name()
                );
                return wrong_key("durability", why);
            }
            Err(why) => return wrong_key("durability", why),
        }
        if self.name.chars().any(char::is_control) {
            return wrong_key("name", "it has a control character: names go to terminals");
        }
        let logs = [
            ("log_bytes", Some(self.log_bytes)),
            ("client_log_bytes", self.client_log_bytes),
        ];
        for (key, bytes) in logs {
            if let Some(bytes) = bytes.filter(|b| !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(b)) {
                let why = format!("{bytes} is not between {LOG_BYTES_MIN} and {LOG_BYTES_MAX}");
                return wrong_key(key, why);
            }
        }
        if self.trusted_uids.contains(&NOBODY) {
            return wrong_key("trusted_uids", format!("{NOBODY} is no user"));
        }
        for (tier, devices) in [("ssd", &self.ssd), ("hdd", &self.hdd)] {
            let models = devices.iter().filter_map(|d| d.model.as_deref());
            if let Some(name) = { models }.find(|name| BlockModel::named(name).is_none()) {
                return wrong_key(&format!("{tier}.model"), unknown_model(name));
            }
            if devices
                .iter()
                .any(|d| d.spare() > OVERPROVISION_PERCENT_MAX)
            {
                let why = format!("expected 0 to {OVERPROVISION_PERCENT_MAX}");
                return wrong_key(&format!("{tier}.overprovision_percent"), why);
            }
        }
        if self
            .migrate_at_percent
            .is_some_and(|p| !(1..=100).contains(&p))
        {
            return wrong_key("migrate_at_percent", "expected 1 to 100");
        }
        self.check_first_tier()
    }

    /// Whether there is NVM, or what takes its place.
    fn check_first_tier(&self) -> Checked {
        match (self.nvm.as_slice(), &self.staged) {
            ([one], None) if one.size_bytes < NVM_BYTES_MIN => {
                let why = format!("{} is below the least of {NVM_BYTES_MIN}", one.size_bytes);
                wrong_key("nvm.size_bytes", why)
            }
            ([_], None) => Ok(()),
            ([], Some(staged)) => staged.check(&self.ssd),
            ([], None) => wrong_key(
                "nvm",
                "no entry; add one [[nvm]] with dir and size_bytes, or [staged] as mkfs wrote it",
            ),
            (_, Some(_)) => wrong_key(
                "staged",
                "a volume has either NVM or a staging area: keep [[nvm]] or [staged], as mkfs wrote it",
            ),
            _ => wrong_key(
                "nvm",
                "more than one entry; keep the one directory of the volume",
            ),
        }
    }

    /// Whether it is a volume without NVM: with a memory tier, and a staging area on an SSD.
    pub fn is_staged(&self) -> bool {
        self.staged.is_some()
    }

    /// Directory of the memory tier: the NVM directory, or of a staged volume the directory in shared memory, which is there while
    /// it is mounted, and after its daemon was killed.
    pub fn nvm_dir(&self) -> &Path {
        let nvm = self.nvm.first().map(|n| &n.dir);
        let memory = self.staged.as_ref().map(|s| &s.memory_dir);
        nvm.or(memory).map_or(Path::new(""), |dir| dir)
    }

    /// Bytes of the memory tier: of NVM, or of the segments in shared memory.
    pub fn nvm_bytes(&self) -> u64 {
        let nvm = self.nvm.first().map(|n| n.size_bytes);
        let memory = self.staged.as_ref().map(|s| s.memory_bytes);
        nvm.or(memory).unwrap_or(0)
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
                "volume {} lies there, expected {} ('{}'): correct {} in the volume file",
                uuid_text(&superblock.uuid),
                self.uuid,
                self.name,
                if self.is_staged() {
                    "staged.memory_dir"
                } else {
                    "nvm.dir"
                }
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
            staged: None,
            nvm: vec![NvmEntry {
                dir: dir.to_path_buf(),
                size_bytes: NVM_BYTES_MIN,
            }],
            ssd: vec![],
            hdd: vec![],
        }
    }

    fn device(path: &Path, size_bytes: u64) -> DeviceFile {
        DeviceFile {
            path: path.to_path_buf(),
            size_bytes,
            zone_bytes: None,
            model: None,
            kind: DeviceKind::Conventional,
            overprovision_percent: None,
        }
    }

    /// Of a volume without NVM: on the second of its SSDs.
    fn staged_sample() -> VolumeFile {
        VolumeFile {
            durability: "buffered".to_owned(),
            nvm: vec![],
            staged: Some(StagedEntry {
                memory_dir: "/dev/shm/shale-x".into(),
                memory_bytes: 64 << 20,
                device: "b.img".into(),
                at_byte: 1 << 30,
                staging_bytes: 32 << 20,
            }),
            ssd: vec![
                device(Path::new("a.img"), 2 << 30),
                device(Path::new("b.img"), 1 << 30),
            ],
            ..sample(Path::new("unused"))
        }
    }

    #[test]
    fn a_staged_volume_is_saved_and_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("VOLUME.toml");
        let file = staged_sample();
        file.save(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("[staged]") && !text.contains("nvm"), "{text}");
        let loaded = VolumeFile::load(&path).unwrap();
        assert!(loaded.is_staged() && !sample(Path::new("n")).is_staged());
        assert_eq!(loaded.nvm_dir(), Path::new("/dev/shm/shale-x"));
        assert_eq!(loaded.nvm_bytes(), 64 << 20);
        assert_eq!(loaded.staged.unwrap().device, dir.path().join("b.img"));
        for policy in ["strict", "buffered"] {
            let durability = policy.to_owned();
            let file = VolumeFile {
                durability,
                ..staged_sample()
            };
            file.save(&path).unwrap();
            assert_eq!(VolumeFile::load(&path).unwrap().durability, policy);
        }
        // Named by another path that is the same.
        let whole = dir.path().join("b.img").display().to_string();
        std::fs::write(
            &path,
            text.replacen("\"b.img\"", &format!("\"{whole}\""), 1),
        )
        .unwrap();
        VolumeFile::load(&path).unwrap();
    }

    #[test]
    fn every_mistake_of_a_staged_volume_names_file_and_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("V.toml");
        let good = toml::to_string(&staged_sample()).unwrap();
        let staged = good.split_once("[staged]").unwrap().1;
        let staged = format!("[staged]{}", staged.split_once("[[ssd]]").unwrap().0);
        let nvm = "[[nvm]]\ndir = \"/n\"\nsize_bytes = 33554432\n[[ssd]]";
        for (from, to, key, word) in [
            (staged.as_str(), "", "nvm", "no entry"),
            ("[[ssd]]", nvm, "staged", "either"),
            ("\"b.img\"", "\"c.img\"", "staged.device", "c.img is none"),
            (
                "memory_bytes = 67108864",
                "memory_bytes = 67108865",
                "staged.memory_bytes",
                "4096",
            ),
            (
                "memory_bytes = 67108864",
                "memory_bytes = 4096",
                "staged.memory_bytes",
                "least",
            ),
            (
                "at_byte = 1073741824",
                "at_byte = 1073741825",
                "staged.at_byte",
                "4096",
            ),
            (
                "at_byte = 1073741824",
                "at_byte = 1073737728",
                "staged.at_byte",
                "the tier uses",
            ),
            (
                "staging_bytes = 33554432",
                "staging_bytes = 33554433",
                "staged.staging_bytes",
                "4096",
            ),
            (
                "staging_bytes = 33554432",
                "staging_bytes = 8192",
                "staged.staging_bytes",
                "least",
            ),
            ("staging_bytes", "stage_bytes", "file", "stage_bytes"),
            (
                "path = \"b.img\"",
                "path = \"b.img\"\nkind = \"open-channel\"",
                "staged.device",
                "open-channel",
            ),
            ("\"buffered\"", "\"sloppy\"", "durability", "sloppy"),
        ] {
            assert!(good.contains(from), "{from} not in {good}");
            std::fs::write(&path, good.replacen(from, to, 1)).unwrap();
            let text = VolumeFile::load(&path).unwrap_err().to_string();
            assert!(
                text.contains("V.toml") && text.contains(key) && text.contains(word),
                "{text}"
            );
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
