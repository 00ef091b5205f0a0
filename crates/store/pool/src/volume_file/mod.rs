//! `VOLUME.toml`: which media make up a volume.
//!
//! The file is for people and for `mount`; what it says about the volume itself is
//! checked against the superblock, which decides. A directory that is not absolute
//! is taken from the place of the file, so that a volume can be moved as a whole.

pub mod arguments;
mod changed_text;
mod entries;

pub use entries::{
    DeviceFile, NextMount, NvmEntry, OVERPROVISION_PERCENT_MAX, STAGING_BYTES_MIN, StagedEntry,
};

use crate::error::{PoolError, Result};
use entries::{Checked, check_nvm_models, unknown_model, wrong_key};
use serde::{Deserialize, Serialize};
use shale_block::BlockModel;
use shale_format::limits::{LOG_BYTES_MAX, LOG_BYTES_MIN, NVM_BYTES_MIN};
use shale_format::superblock::Superblock;
use shale_format::{Buffering, Durability, TierId};
use shale_nvm::Model;
use std::io::Write;
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Newest format of the volume file that this program knows.
pub const FORMAT: u32 = 1;

/// Everybody may read a volume file, whatever the umask, and nobody but its owner may write it: it says whom the volume trusts.
const FILE_MODE: u32 = 0o644;

/// What percentage of a log can be the one at which its digest begins. A log that is full has its client wait.
pub const DIGEST_PERCENT: RangeInclusive<u32> = 1..=90;

/// One change at a time, of all volume files of this process: each begins with what the one before has written.
static CHANGES: Mutex<()> = Mutex::new(());

/// What the kernel takes for no user.
const NOBODY: u32 = u32::MAX;

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
    /// Name of a [`Durability`].
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
    /// Percentage of an update log at which its digest begins, of a client whose records are durable when a call returns; none: 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest_at_percent: Option<u32>,
    /// The same of the log in memory of a buffered client of a volume with NVM, which is its write buffer; none: 70.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_back_at_percent: Option<u32>,
    /// Users beside the owner and root whose processes may map the volume (DESIGN §25): they can read every
    /// byte of NVM and of the tiers below, whatever the modes of files say, and change only what POSIX lets them. Holds
    /// from the next mount on; none unless said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trusted_uids: Vec<u32>,
    /// Directory of the update logs of buffered clients of a volume with NVM, on a file system in memory; none: one in `/dev/shm` that
    /// is named by the volume's identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_dir: Option<PathBuf>,
    /// Which whole blocks buffered clients of a volume with NVM write to memory first, the name of a [`Buffering`]; none: `model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffering: Option<String>,
    /// Most bytes that the logs in memory of all buffered clients of a volume with NVM take together; none: 4 GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_bytes: Option<u64>,
    /// What the next mount is to change on the media; none: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_mount: Option<NextMount>,
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
    /// Name of the model that slows NVM down, and the model; none: it is as fast as it is.
    pub fn nvm_model(&self) -> Option<(&str, Model)> {
        let name = self.nvm.first()?.model.as_deref()?;
        Some((name, Model::named(name)?))
    }

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
        file.make_absolute(base.parent().unwrap_or(Path::new("/")));
        file.check().map_err(|(key, why)| wrong(&key, why))?;
        Ok(file)
    }

    /// Has directories that are not absolute begin at `base`.
    fn make_absolute(&mut self, base: &Path) {
        for entry in &mut self.nvm {
            entry.dir = base.join(&entry.dir);
        }
        if let Some(staged) = &mut self.staged {
            staged.memory_dir = base.join(&staged.memory_dir);
            staged.device = base.join(&staged.device);
        }
        if let Some(dir) = &mut self.buffer_dir {
            *dir = base.join(&dir);
        }
        for device in self.ssd.iter_mut().chain(&mut self.hdd) {
            device.path = base.join(&device.path);
        }
    }

    /// Changes a volume file as it stands there, directories that are not absolute included. What does not change keeps its
    /// place and its comments.
    ///
    /// # Errors
    /// As [`VolumeFile::load`] and [`VolumeFile::save`]; it would be one that cannot be loaded. Nothing has changed then.
    pub fn edit(path: &Path, change: impl FnOnce(&Path, &mut VolumeFile)) -> Result<()> {
        let _one_at_a_time = CHANGES.lock().unwrap_or_else(|e| e.into_inner());
        Self::load(path)?;
        let text = std::fs::read_to_string(path)
            .map_err(|e| PoolError::file(path, "read the volume file", e))?;
        let mut file: VolumeFile = toml::from_str(&text)
            .map_err(|e| PoolError::file(path, "read it as TOML", std::io::Error::other(e)))?;
        let base = std::path::absolute(path).map_err(|e| PoolError::file(path, "resolve it", e))?;
        let base = base.parent().unwrap_or(Path::new("/"));
        change(base, &mut file);
        let mut checked = file.clone();
        checked.make_absolute(base);
        checked
            .check()
            .map_err(|(key, why)| PoolError::VolumeFile {
                path: path.to_path_buf(),
                key,
                why,
            })?;
        let plain = file.text(path)?;
        // Comments are worth less than what the file says.
        let kept = changed_text::changed(&text, &plain);
        let kept =
            kept.filter(|kept| toml::from_str(kept).is_ok_and(|there: VolumeFile| there == file));
        write_text(path, &kept.unwrap_or(plain))
    }

    /// The file as text without comments.
    fn text(&self, path: &Path) -> Result<String> {
        toml::to_string_pretty(self)
            .map_err(|e| PoolError::file(path, "write it as TOML", std::io::Error::other(e)))
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
        write_text(path, &self.text(path)?)
    }

    /// What is wrong: key and mistake. Paths have been made absolute.
    pub(crate) fn check(&self) -> Checked {
        if self.format == 0 {
            return wrong_key("format", "0 is no format; the first one is 1");
        }
        if parse_uuid(&self.uuid).is_none() {
            return wrong_key("uuid", "expected 32 hexadecimal digits");
        }
        match self.durability.parse::<Durability>() {
            Ok(_) => {}
            Err(why) => return wrong_key("durability", why),
        }
        if let Some(Err(why)) = self
            .buffering
            .as_ref()
            .map(|name| name.parse::<Buffering>())
        {
            return wrong_key("buffering", why);
        }
        if self.name.chars().any(char::is_control) {
            return wrong_key("name", "it has a control character: names go to terminals");
        }
        let next = self.next_mount.clone().unwrap_or_default();
        if let Some(Err(why)) = next.durability.map(|name| name.parse::<Durability>()) {
            return wrong_key("next_mount.durability", why);
        }
        let logs = [
            ("log_bytes", Some(self.log_bytes)),
            ("client_log_bytes", self.client_log_bytes),
            ("next_mount.log_bytes", next.log_bytes),
        ];
        if let Some(bytes) = self.buffer_bytes.filter(|bytes| *bytes < LOG_BYTES_MIN) {
            let why = format!("{bytes} is below the least log, of {LOG_BYTES_MIN}");
            return wrong_key("buffer_bytes", why);
        }
        for (key, bytes) in logs {
            if let Some(bytes) = bytes.filter(|b| !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(b)) {
                let why = format!("{bytes} is not between {LOG_BYTES_MIN} and {LOG_BYTES_MAX}");
                return wrong_key(key, why);
            }
        }
        if self.trusted_uids.contains(&NOBODY) {
            return wrong_key("trusted_uids", format!("{NOBODY} is no user"));
        }
        check_nvm_models(&self.nvm)?;
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
        for (key, percent) in [
            ("digest_at_percent", self.digest_at_percent),
            ("write_back_at_percent", self.write_back_at_percent),
        ] {
            if percent.is_some_and(|p| !DIGEST_PERCENT.contains(&p)) {
                let (least, most) = (DIGEST_PERCENT.start(), DIGEST_PERCENT.end());
                return wrong_key(key, format!("expected {least} to {most}"));
            }
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

    /// The file as it is when the next mount has changed what it is to change.
    pub fn with_next_mount(mut self) -> Self {
        let next = self.next_mount.take().unwrap_or_default();
        self.durability = next.durability.unwrap_or(self.durability);
        self.log_bytes = next.log_bytes.unwrap_or(self.log_bytes);
        self
    }

    /// Notes in a volume file that a mount has changed what it was to change.
    ///
    /// # Errors
    /// As [`VolumeFile::edit`].
    pub fn forget_next_mount(path: &Path) -> Result<()> {
        Self::edit(path, |_, file| *file = file.clone().with_next_mount())
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

    /// Directory in memory of the update logs of buffered clients: there while they are, and after their daemon was killed.
    pub fn buffer_dir(&self) -> PathBuf {
        let usual = || shared_memory_dir(&self.uuid_bytes());
        self.buffer_dir.clone().unwrap_or_else(usual)
    }

    /// Which whole blocks buffered clients write to memory first.
    pub fn buffering(&self) -> Buffering {
        let name = self.buffering.as_deref().unwrap_or_default();
        name.parse().unwrap_or_default()
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
    /// Another volume lies there, or it has another durability policy, which no `next_mount` says either: one that
    /// the file says and the volume does not have would be believed.
    pub fn check_superblock(&self, superblock: &Superblock) -> Result<()> {
        let wrong = |why| {
            let dir = self.nvm_dir().to_path_buf();
            Err(PoolError::NvmDir { dir, why })
        };
        if superblock.uuid != self.uuid_bytes() {
            let (there, wanted) = (uuid_text(&superblock.uuid), &self.uuid);
            let (name, key) = (&self.name, ["nvm.dir", "staged.memory_dir"]);
            let key = key[usize::from(self.is_staged())];
            return wrong(format!(
                "volume {there} lies there, expected {wanted} ('{name}'): correct {key} in the volume file"
            ));
        }
        let (there, said) = (superblock.policy().name(), &self.durability);
        // A mount that was cut short has changed the volume, and not yet the file.
        let next = self.next_mount.as_ref();
        let next = next.and_then(|next| next.durability.as_deref());
        if there != said && Some(there) != next {
            return wrong(format!(
                "the volume has durability '{there}', expected '{said}': correct durability in the volume file, and change it by \
                 shale tune (a program has another one by shale run --durability)"
            ));
        }
        Ok(())
    }
}

/// Writes a text beside a file first, then renames it over it, durably.
fn write_text(path: &Path, text: &str) -> Result<()> {
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
        PoolError::file(path, "write it", e)
    })
}

/// Where shared memory is.
pub(crate) const SHARED_MEMORY: &str = "/dev/shm";

/// The usual directory of what a volume has in shared memory.
pub(crate) fn shared_memory_dir(uuid: &[u8; 16]) -> PathBuf {
    Path::new(SHARED_MEMORY).join(format!("shale-{}", uuid_text(uuid)))
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
mod tests;
