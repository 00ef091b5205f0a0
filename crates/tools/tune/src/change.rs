//! Changing settings: all of them, or none.

use crate::report::Report;
use crate::setting::{Holds, Setting, Which};
use crate::value::{FindUser, Value};
use serde::{Deserialize, Serialize};
use shale_daemon::{Daemon, Limits, Whose, tiering::Speed};
use shale_pool::VolumeFile;
use std::path::Path;

/// The word for a setting that is to have its default.
const DEFAULT: &str = "default";

/// A setting, and what it is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Its name.
    pub setting: String,
    /// None: the default.
    pub value: Option<Value>,
}

/// What somebody wrote as `SETTING=VALUE`, each.
///
/// # Errors
/// One of them is no setting of this volume, is named twice, or has a value outside of its range; it is named, with the range.
pub fn parse(
    words: &[String],
    file: &VolumeFile,
    mounted: bool,
    user: FindUser<'_>,
) -> Result<Vec<Change>, String> {
    let all = Setting::all(file, mounted);
    let mut changes: Vec<Change> = Vec::new();
    for word in words {
        let Some((name, text)) = word.rsplit_once('=') else {
            return Err(format!("'{word}' is no SETTING=VALUE"));
        };
        let setting = find(&all, name, mounted)?;
        if changes.iter().any(|change| change.setting == setting.name) {
            return Err(format!("{name}: it is given twice"));
        }
        let value = match text {
            DEFAULT if setting.default(file).is_none() => {
                return Err(format!(
                    "{name}: it has no default; its range: {}",
                    setting.range.text()
                ));
            }
            DEFAULT => None,
            text => {
                Some({ setting.range.parse(text, user) }.map_err(|why| format!("{name}: {why}"))?)
            }
        };
        changes.push(Change {
            setting: setting.name.clone(),
            value,
        });
    }
    Ok(changes)
}

fn find<'s>(all: &'s [Setting], name: &str, mounted: bool) -> Result<&'s Setting, String> {
    Setting::named(all, name).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|setting| &*setting.name).collect();
        let of_mounts = match mounted {
            true => "",
            false => "; limits are those of a mount: name the mount point",
        };
        format!(
            "'{name}' is no setting of this volume; there are {}{of_mounts}",
            names.join(", ")
        )
    })
}

/// Whether all changes can be made to this volume; the file as it would be.
///
/// # Errors
/// One cannot.
pub fn check(file: &VolumeFile, changes: &[Change], mounted: bool) -> Result<VolumeFile, String> {
    let all = Setting::all(file, mounted);
    let mut wanted = file.clone();
    for change in changes {
        let setting = find(&all, &change.setting, mounted)?;
        setting.set(&mut wanted, change.value.as_ref());
        if setting.is_of_file() && change.value.is_some() {
            let is = setting.waits(&wanted).or_else(|| setting.said(&wanted));
            // Nobody is trusted: that is said by saying nothing.
            let is = is.or_else(|| setting.default(&wanted));
            if is != change.value {
                return Err(format!("{}: it cannot be that", change.setting));
            }
        }
    }
    Ok(wanted)
}

/// Makes changes to the volume file, all at once.
///
/// # Errors
/// One cannot be made, or the file cannot be written: it is as before.
pub fn change_file(path: &Path, changes: &[Change]) -> Result<VolumeFile, String> {
    let file = VolumeFile::load(path).map_err(|e| e.to_string())?;
    let wanted = check(&file, changes, true)?;
    if wanted != file {
        let all = Setting::all(&file, true);
        // Of paths that are not absolute the text stays.
        VolumeFile::edit(path, |_, there| {
            for change in changes {
                if let Some(setting) = Setting::named(&all, &change.setting) {
                    setting.set(there, change.value.as_ref());
                }
            }
        })
        .map_err(|e| e.to_string())?;
    }
    Ok(wanted)
}

/// What only the daemon of a mount knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfMount {
    /// How fast migration may be.
    pub speed: Speed,
    /// How fast clients may write.
    pub limits: Limits,
}

impl OfMount {
    /// As it is now.
    pub fn of(daemon: &Daemon) -> Self {
        Self {
            speed: daemon.speed(),
            limits: daemon.limits(),
        }
    }

    fn set(&mut self, which: &Which, value: Option<&Value>) {
        let rate = match value {
            Some(Value::Number(rate)) => *rate,
            _ => 0,
        };
        match which {
            Which::MigrationLimit => self.speed.limit = rate,
            Which::WriteLimit => self.limits.set(Whose::Each, Some(rate)),
            Which::MountWriteLimit => self.limits.set(Whose::Mount, Some(rate)),
            _ => {}
        }
    }

    /// One of its settings.
    pub(crate) fn value(&self, which: &Which) -> Option<Value> {
        let rate = match which {
            Which::MigrationLimit => self.speed.limit,
            Which::WriteLimit => self.limits.each,
            Which::MountWriteLimit => self.limits.mount,
            _ => return None,
        };
        Some(Value::Number(rate))
    }
}

/// Makes changes to the volume file of a mount and to its daemon, and tells how all is then. The file is taken as it is now: what
/// somebody has written there by hand holds, too. What is to be kept until the volume is unmounted comes back.
///
/// # Errors
/// One cannot be made, or the file cannot be written: all is as before.
pub fn change_mounted(
    daemon: &Daemon,
    path: &Path,
    changes: &[Change],
) -> Result<(Report, OfMount), String> {
    if changes.is_empty() {
        let file = VolumeFile::load(path).map_err(|e| e.to_string())?;
        let now = OfMount::of(daemon);
        return Ok((Report::new(path, &file, Some(&now)), now));
    }
    let file = change_file(path, changes)?;
    daemon.use_file(&file);
    let all = Setting::all(&file, true);
    let mut now = OfMount::of(daemon);
    let named = changes.iter().filter_map(|change| {
        let setting = Setting::named(&all, &change.setting)?;
        Some((setting, change.value.as_ref()))
    });
    for (setting, value) in named.filter(|(setting, _)| setting.holds == Holds::UntilUnmounted) {
        now.set(&setting.which, value);
    }
    daemon.set_speed(now.speed);
    now.limits = daemon.change_limits(|limits| {
        (limits.each, limits.mount) = (now.limits.each, now.limits.mount);
    });
    Ok((Report::new(path, &file, Some(&now)), now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.toml");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    const TEXT: &str = "\
format = 1
name = \"v\" # mine
uuid = \"00000000000000000000000000000007\"
durability = \"strict\"
log_bytes = 16777216

# NVM.
[[nvm]]
dir = \"n\"
size_bytes = 67108864

[[ssd]]
path = \"a.img\" # the fast one
size_bytes = 67108864
";

    fn user(text: &str) -> Result<u32, String> {
        text.parse().map_err(|_| format!("'{text}' is no user"))
    }

    fn changed(path: &Path, words: &[&str]) -> Result<VolumeFile, String> {
        let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        let there = VolumeFile::load(path).unwrap();
        change_file(path, &parse(&words, &there, false, &user)?)
    }

    #[test]
    fn changes_are_in_the_file_and_comments_stay() {
        let (dir, path) = file(TEXT);
        let device = format!("overprovision:{}=7", dir.path().join("a.img").display());
        let words = [
            "migrate_at_percent=80",
            "client_log_bytes=32M",
            "digest_at_percent=10%",
            "write_back_at_percent=20",
            "buffering=lazy",
            "buffer_bytes=64M",
            "trusted_uids=1000,1001",
            "name=w",
            &*device,
        ];
        changed(&path, &words).unwrap();
        let now = VolumeFile::load(&path).unwrap();
        assert_eq!(now.migrate_at_percent, Some(80));
        assert_eq!(now.client_log_bytes, Some(32 << 20));
        assert_eq!(now.digest_at_percent, Some(10));
        assert_eq!(now.write_back_at_percent, Some(20));
        assert_eq!(now.buffering.as_deref(), Some("lazy"));
        assert_eq!(now.buffer_bytes, Some(64 << 20));
        assert_eq!(now.trusted_uids, [1000, 1001]);
        assert_eq!(
            (&*now.name, now.ssd[0].overprovision_percent),
            ("w", Some(7))
        );
        let text = std::fs::read_to_string(&path).unwrap();
        for kept in [
            "# mine",
            "# NVM.",
            "# the fast one",
            "dir = \"n\"",
            "path = \"a.img\"",
        ] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        let back: Vec<String> = words
            .iter()
            .filter(|word| !word.starts_with("name"))
            .map(|word| format!("{}=default", word.rsplit_once('=').unwrap().0))
            .collect();
        let back: Vec<&str> = back.iter().map(String::as_str).collect();
        changed(&path, &back).unwrap();
        changed(&path, &["name=v"]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), TEXT);
    }

    #[test]
    fn what_is_on_the_media_waits_for_the_next_mount() {
        let (_dir, path) = file(TEXT);
        changed(&path, &["durability=buffered", "log_bytes=64M"]).unwrap();
        let now = VolumeFile::load(&path).unwrap();
        assert_eq!((&*now.durability, now.log_bytes), ("strict", 16 << 20));
        let after = now.clone().with_next_mount();
        assert_eq!(
            (&*after.durability, after.log_bytes),
            ("buffered", 64 << 20)
        );
        assert_eq!(after.next_mount, None);
        changed(&path, &["durability=strict", "log_bytes=16M"]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), TEXT);
        changed(&path, &["durability=ordered"]).unwrap();
        VolumeFile::forget_next_mount(&path).unwrap();
        let now = VolumeFile::load(&path).unwrap();
        assert_eq!((&*now.durability, now.next_mount), ("ordered", None));
    }

    #[test]
    fn nothing_changes_if_one_is_bad() {
        let (_dir, path) = file(TEXT);
        for (bad, parts) in [
            ("digest_at_percent=91", ["digest_at_percent", "1 to 90"]),
            ("migrate_at_percent=0", ["migrate_at_percent", "1 to 100"]),
            (
                "durability=lazy",
                ["durability", "strict, buffered, ordered"],
            ),
            ("log_bytes=1M", ["log_bytes", "16 MiB to 4 GiB"]),
            ("log_bytes=default", ["log_bytes", "no default"]),
            ("uuid=7", ["uuid", "no setting"]),
            ("write_limit=1M", ["write_limit", "name the mount point"]),
            ("overprovision:/x=5", ["overprovision:/x", "no setting"]),
            ("buffering", ["buffering", "SETTING=VALUE"]),
            ("name=x", ["name", "twice"]),
        ] {
            let why = changed(&path, &["name=w", "client_log_bytes=32M", bad]).unwrap_err();
            assert!(parts.iter().all(|part| why.contains(part)), "{bad}: {why}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), TEXT, "{bad}");
        }
    }
}
