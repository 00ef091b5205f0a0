//! What stays as `mkfs` made it, why, and what to do instead.

use serde::{Deserialize, Serialize};
use shale_pool::VolumeFile;
use shale_sys::size;

/// A property that does not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fixed {
    /// Its name.
    pub setting: String,
    /// What it is.
    pub value: String,
    /// Why it stays, and what to do instead.
    pub why: String,
}

impl Fixed {
    fn new(setting: &str, value: impl Into<String>, why: &str) -> Self {
        Self {
            setting: setting.to_owned(),
            value: value.into(),
            why: why.to_owned(),
        }
    }

    /// Those of a volume.
    pub fn all(file: &VolumeFile) -> Vec<Fixed> {
        let mut all = vec![Self::new("uuid", &*file.uuid, "the media are known by it")];
        match &file.staged {
            None => {
                let dir = file.nvm_dir().display().to_string();
                all.push(Self::new("nvm.dir", dir, "all structure lies there: shale device replace VOLUME.toml --nvm DIR moves it, between mounts"));
                all.push(Self::new(
                    "nvm.size_bytes",
                    size::show(file.nvm_bytes()),
                    "it grows between mounts: shale device grow VOLUME.toml --nvm SIZE; it does not shrink",
                ));
                let buffers = file.buffer_dir().display().to_string();
                all.push(Self::new(
                    "buffer_dir",
                    buffers,
                    "logs of a killed daemon may lie there: unmount, then write it into the volume file",
                ));
            }
            Some(staged) => {
                let area = "the area on the SSD was made for it; between mounts shale device add VOLUME.toml --nvm DIR:SIZE, then remove --nvm --staging SIZE, make another one, for as much memory as NVM had";
                let bytes = size::show(staged.memory_bytes);
                all.push(Self::new("staged.memory_bytes", bytes, area));
                let bytes = size::show(staged.staging_bytes);
                all.push(Self::new("staged.staging_bytes", bytes, area));
                all.push(Self::new(
                    "staged.memory_dir",
                    staged.memory_dir.display().to_string(),
                    "the memory tier of a killed daemon may lie there: unmount, then write it into the volume file",
                ));
            }
        }
        for (tier, devices) in [("ssd", &file.ssd), ("hdd", &file.hdd)] {
            for device in devices {
                all.push(Self::new(
                    &format!("{tier}:{}", device.path.display()),
                    size::show(device.size_bytes),
                    "its tables were made for this size and its zones: shale device add another one, evacuate and remove this one",
                ));
            }
        }
        let age = match file.is_staged() {
            true => "about 5 s",
            false => "35 s",
        };
        all.push(Self::new(
            "age of what a buffered client may lose",
            age,
            "part of what a policy promises: choose another policy, or shale run --durability for one program",
        ));
        all
    }
}
