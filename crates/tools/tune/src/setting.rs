//! The table of settings.

use crate::value::{Range, Value};
use serde::{Deserialize, Serialize};
use shale_daemon::RATE_MIN;
use shale_daemon::tiering::{MIGRATE_AT_PERCENT, MIGRATE_STAGED_AT_PERCENT};
use shale_format::limits::{LOG_BYTES_MAX, LOG_BYTES_MIN};
use shale_pool::VolumeFile;
use shale_pool::volume_file::{DIGEST_PERCENT, DeviceFile, OVERPROVISION_PERCENT_MAX};
use std::path::Path;

/// What is before the path of a device in the name of its setting.
pub const OVERPROVISION: &str = "overprovision:";

/// No machine has more memory.
const BUFFER_BYTES_MAX: u64 = 1 << 50;

/// When a change holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// At once.
    AtOnce,
    /// For programs that are started under `shale run`, or attach, from now on.
    NewPrograms,
    /// From the next mount on.
    NextMount,
    /// At once, and until the volume is unmounted.
    UntilUnmounted,
}

impl Holds {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Holds::AtOnce => "at once",
            Holds::NewPrograms => "for new programs",
            Holds::NextMount => "next mount",
            Holds::UntilUnmounted => "until unmounted",
        }
    }
}

/// Which setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Name of the volume.
    Name,
    /// Durability policy of the volume.
    Durability,
    /// Log of the mount.
    LogBytes,
    /// Logs of programs.
    ClientLogBytes,
    /// Mark of migration.
    MigrateAt,
    /// Mark of digests.
    DigestAt,
    /// Mark of digests of write buffers.
    WriteBackAt,
    /// What buffered clients write to memory first.
    Buffering,
    /// Memory of all logs of buffered clients.
    BufferBytes,
    /// Who may map the volume.
    TrustedUids,
    /// What of a device is kept out of use: tier (0 ssd, 1 hdd) and place in the volume file.
    Overprovision(usize, usize),
    /// How fast migration may be.
    MigrationLimit,
    /// How fast each program may write.
    WriteLimit,
    /// How fast all programs of the mount may write.
    MountWriteLimit,
}

/// One setting of a volume.
#[derive(Clone, Debug)]
pub struct Setting {
    /// As it is named in the command.
    pub name: String,
    /// Which.
    pub which: Which,
    /// What it can be.
    pub range: Range,
    /// When it holds.
    pub holds: Holds,
}

impl Setting {
    fn new(name: impl Into<String>, which: Which, range: Range, holds: Holds) -> Self {
        Self {
            name: name.into(),
            which,
            range,
            holds,
        }
    }

    /// The settings of a volume; `mounted`: with those that a mount alone has.
    pub fn all(file: &VolumeFile, mounted: bool) -> Vec<Setting> {
        let bytes = || Range::Bytes(LOG_BYTES_MIN..=LOG_BYTES_MAX);
        let policies = Range::OneOf(&["strict", "buffered", "ordered"]);
        let percent = || Range::Percent(DIGEST_PERCENT);
        let mut all = vec![
            Self::new("name", Which::Name, Range::Text, Holds::NextMount),
            Self::new("durability", Which::Durability, policies, Holds::NextMount),
            Self::new("log_bytes", Which::LogBytes, bytes(), Holds::NextMount),
            Self::new(
                "client_log_bytes",
                Which::ClientLogBytes,
                bytes(),
                Holds::NewPrograms,
            ),
            Self::new(
                "migrate_at_percent",
                Which::MigrateAt,
                Range::Percent(1..=100),
                Holds::AtOnce,
            ),
            Self::new(
                "digest_at_percent",
                Which::DigestAt,
                percent(),
                Holds::AtOnce,
            ),
        ];
        if !file.is_staged() {
            let choices = Range::OneOf(&["model", "lazy", "eager"]);
            all.extend([
                Self::new(
                    "write_back_at_percent",
                    Which::WriteBackAt,
                    percent(),
                    Holds::AtOnce,
                ),
                Self::new("buffering", Which::Buffering, choices, Holds::NewPrograms),
                Self::new(
                    "buffer_bytes",
                    Which::BufferBytes,
                    Range::Bytes(LOG_BYTES_MIN..=BUFFER_BYTES_MAX),
                    Holds::NewPrograms,
                ),
            ]);
        }
        all.push(Self::new(
            "trusted_uids",
            Which::TrustedUids,
            Range::Users,
            Holds::NewPrograms,
        ));
        for (tier, devices) in [&file.ssd, &file.hdd].into_iter().enumerate() {
            all.extend(devices.iter().enumerate().map(|(n, device)| {
                Self::new(
                    format!("{OVERPROVISION}{}", device.path.display()),
                    Which::Overprovision(tier, n),
                    Range::Percent(0..=OVERPROVISION_PERCENT_MAX),
                    Holds::AtOnce,
                )
            }));
        }
        if mounted {
            let limits = [
                ("migration_limit", Which::MigrationLimit, 0),
                ("write_limit", Which::WriteLimit, RATE_MIN),
                ("mount_write_limit", Which::MountWriteLimit, RATE_MIN),
            ];
            let of_mount = |(name, which, least)| {
                Self::new(name, which, Range::Rate(least), Holds::UntilUnmounted)
            };
            all.extend(limits.map(of_mount));
        }
        all
    }

    /// The setting of this name. A device may be named by any path that leads to it.
    pub fn named<'s>(all: &'s [Setting], name: &str) -> Option<&'s Setting> {
        let path_of = |name: &str| {
            let path = Path::new(name.strip_prefix(OVERPROVISION)?);
            path.canonicalize().ok()
        };
        let exact = all.iter().find(|setting| setting.name == name);
        exact.or_else(|| {
            let wanted = path_of(name)?;
            { all.iter() }.find(|setting| path_of(&setting.name).as_ref() == Some(&wanted))
        })
    }

    /// Whether the volume file has it.
    pub fn is_of_file(&self) -> bool {
        self.holds != Holds::UntilUnmounted
    }

    /// What the volume file says; none: nothing, and the default holds.
    pub fn said(&self, file: &VolumeFile) -> Option<Value> {
        let number = |n: Option<u32>| n.map(|n| Value::Number(n.into()));
        match &self.which {
            Which::Name => Some(Value::Word(file.name.clone())),
            Which::Durability => Some(Value::Word(file.durability.clone())),
            Which::LogBytes => Some(Value::Number(file.log_bytes)),
            Which::ClientLogBytes => file.client_log_bytes.map(Value::Number),
            Which::MigrateAt => number(file.migrate_at_percent),
            Which::DigestAt => number(file.digest_at_percent),
            Which::WriteBackAt => number(file.write_back_at_percent),
            Which::Buffering => file.buffering.clone().map(Value::Word),
            Which::BufferBytes => file.buffer_bytes.map(Value::Number),
            Which::TrustedUids => {
                let some = !file.trusted_uids.is_empty();
                some.then(|| Value::Users(file.trusted_uids.clone()))
            }
            Which::Overprovision(tier, n) => {
                let device = [&file.ssd, &file.hdd][*tier].get(*n)?;
                number(device.overprovision_percent)
            }
            Which::MigrationLimit | Which::WriteLimit | Which::MountWriteLimit => None,
        }
    }

    /// What holds where nothing is said.
    pub fn default(&self, file: &VolumeFile) -> Option<Value> {
        let number = |n: u32| Some(Value::Number(n.into()));
        match &self.which {
            // What mkfs has written there has no other default.
            Which::Name | Which::Durability | Which::LogBytes => None,
            Which::ClientLogBytes => Some(Value::Number(file.log_bytes)),
            Which::MigrateAt if file.is_staged() => number(MIGRATE_STAGED_AT_PERCENT),
            Which::MigrateAt => number(MIGRATE_AT_PERCENT),
            Which::DigestAt => number(shale_daemon::config::DIGEST_AT_PERCENT),
            Which::WriteBackAt => number(shale_daemon::config::WRITE_BACK_AT_PERCENT),
            Which::Buffering => Some(Value::Word("model".to_owned())),
            Which::BufferBytes => Some(Value::Number(shale_daemon::config::BUFFER_BYTES)),
            Which::TrustedUids => Some(Value::Users(Vec::new())),
            Which::Overprovision(tier, n) => {
                let device = [&file.ssd, &file.hdd][*tier].get(*n)?;
                number(device.kind.overprovision_percent())
            }
            Which::MigrationLimit | Which::WriteLimit | Which::MountWriteLimit => {
                Some(Value::Number(0))
            }
        }
    }

    /// What the next mount is to change it to.
    pub fn waits(&self, file: &VolumeFile) -> Option<Value> {
        let next = file.next_mount.as_ref()?;
        match &self.which {
            Which::Durability => next.durability.clone().map(Value::Word),
            Which::LogBytes => next.log_bytes.map(Value::Number),
            _ => None,
        }
    }

    /// Writes it into the volume file; none: the default is to hold. What is on the media waits for the next mount.
    pub fn set(&self, file: &mut VolumeFile, value: Option<&Value>) {
        let number = value.and_then(|value| match value {
            Value::Number(n) => Some(*n),
            _ => None,
        });
        let percent = number.map(|n| n as u32);
        let word = value.and_then(|value| match value {
            Value::Word(word) => Some(word.clone()),
            _ => None,
        });
        let mut next = file.next_mount.take().unwrap_or_default();
        match &self.which {
            Which::Name => file.name = word.unwrap_or_default(),
            Which::Durability => {
                next.durability = word.filter(|word| *word != file.durability);
            }
            Which::LogBytes => next.log_bytes = number.filter(|bytes| *bytes != file.log_bytes),
            Which::ClientLogBytes => file.client_log_bytes = number,
            Which::MigrateAt => file.migrate_at_percent = percent,
            Which::DigestAt => file.digest_at_percent = percent,
            Which::WriteBackAt => file.write_back_at_percent = percent,
            Which::Buffering => file.buffering = word,
            Which::BufferBytes => file.buffer_bytes = number,
            Which::TrustedUids => {
                file.trusted_uids = match value {
                    Some(Value::Users(users)) => users.clone(),
                    _ => Vec::new(),
                }
            }
            Which::Overprovision(tier, n) => {
                let devices: &mut Vec<DeviceFile> = [&mut file.ssd, &mut file.hdd][*tier];
                if let Some(device) = devices.get_mut(*n) {
                    device.overprovision_percent = percent;
                }
            }
            Which::MigrationLimit | Which::WriteLimit | Which::MountWriteLimit => {}
        }
        let waits = next.durability.is_some() || next.log_bytes.is_some();
        file.next_mount = waits.then_some(next);
    }
}
