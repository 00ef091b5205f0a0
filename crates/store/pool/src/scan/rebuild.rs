//! The volume file of a volume that was found on its media.
//!
//! What is on no medium is taken from an older volume file if there is one: name, models, the part of a device that is kept out of use,
//! trusted users, `migrate_at_percent`, `buffering`, `buffer_bytes`, `buffer_dir`, `memory_dir`, and of a device `zone_bytes`. Else it is as mkfs has it unless it
//! is asked.

use super::{FoundVolume, Member, MemberState};
use crate::error::{PoolError, Result};
use crate::mkfs::default_log_bytes;
use crate::volume_file::{
    DeviceFile, FORMAT, NvmEntry, StagedEntry, VolumeFile, shared_memory_dir, uuid_text,
};
use std::path::{Path, PathBuf};

/// How a volume file is made again.
#[derive(Clone, Debug)]
pub struct RebuildOptions<'o> {
    /// Where it will be written, for messages.
    pub path: &'o Path,
    /// Name of the volume, if it is to have another one than in `old`.
    pub name: Option<String>,
    /// The volume file as it was, of the same volume.
    pub old: Option<&'o VolumeFile>,
    /// Devices of lower tiers may be missing.
    pub degraded: bool,
}

impl FoundVolume {
    /// The volume file.
    ///
    /// # Errors
    /// A member is missing or there more than once: each is named.
    pub fn volume_file(&self, options: &RebuildOptions<'_>) -> Result<VolumeFile> {
        let members = self.members();
        self.check(&members, options)?;
        let Some(head) = self.head() else {
            return Err(self.refused(options, "its memory tier cannot be read".to_owned()));
        };
        let (sb, old) = (&head.superblock, options.old);
        let area = self.areas.first().filter(|_| self.nvm.is_empty());
        let mut file = VolumeFile {
            format: FORMAT,
            name: match (&options.name, old) {
                (Some(name), _) => name.clone(),
                (None, Some(old)) => old.name.clone(),
                (None, None) => {
                    let stem = options.path.file_stem().unwrap_or_default();
                    stem.to_string_lossy().into_owned()
                }
            },
            uuid: uuid_text(&self.uuid),
            durability: sb.policy().name().to_owned(),
            log_bytes: sb.log_bytes,
            client_log_bytes: None,
            migrate_at_percent: old.and_then(|old| old.migrate_at_percent),
            digest_at_percent: old.and_then(|old| old.digest_at_percent),
            write_back_at_percent: old.and_then(|old| old.write_back_at_percent),
            next_mount: old.and_then(|old| old.next_mount.clone()),
            trusted_uids: old.map_or(Vec::new(), |old| old.trusted_uids.clone()),
            buffer_dir: old.and_then(|old| old.buffer_dir.clone()),
            buffering: old.and_then(|old| old.buffering.clone()),
            buffer_bytes: old.and_then(|old| old.buffer_bytes),
            staged: None,
            nvm: Vec::new(),
            ssd: self.devices_of(0, "ssd", &members, old)?,
            hdd: self.devices_of(1, "hdd", &members, old)?,
        };
        match area {
            None => {
                let nvm = &self.nvm[0];
                let model = old.and_then(|old| old.nvm.first()?.model.clone());
                let entry = NvmEntry::new(absolute(&nvm.dir)?, nvm.bytes);
                file.nvm = vec![NvmEntry { model, ..entry }];
            }
            Some(area) => {
                let real = |path: &Path| path.canonicalize().ok();
                let has_area = |d: &&mut DeviceFile| real(&d.path) == real(&area.device);
                let mut device = absolute(&area.device)?;
                if let Some(found) = file.ssd.iter_mut().find(has_area) {
                    // The rest of the device is the area's.
                    found.size_bytes = area.at_byte;
                    device.clone_from(&found.path);
                }
                let dir = old.and_then(|old| Some(old.staged.as_ref()?.memory_dir.clone()));
                file.staged = Some(StagedEntry {
                    memory_dir: dir.unwrap_or_else(|| shared_memory_dir(&self.uuid)),
                    memory_bytes: area.layout.memory_bytes,
                    device,
                    at_byte: area.at_byte,
                    staging_bytes: area.layout.staging_bytes,
                });
            }
        }
        let usual = default_log_bytes(file.nvm_bytes());
        let usual = usual.1.filter(|_| usual.0 == sb.log_bytes);
        file.client_log_bytes = old.map_or(usual, |old| old.client_log_bytes);
        let checked = file.check();
        checked.map_err(|(key, why)| PoolError::VolumeFile {
            path: options.path.to_path_buf(),
            key,
            why,
        })?;
        Ok(file)
    }

    fn refused(&self, options: &RebuildOptions<'_>, why: String) -> PoolError {
        PoolError::Refused {
            path: options.path.to_path_buf(),
            why: format!("of volume {} {why}", uuid_text(&self.uuid)),
        }
    }

    /// Whether every member is there, and once.
    fn check(&self, members: &[Member], options: &RebuildOptions<'_>) -> Result<()> {
        let mut wrong = Vec::new();
        for member in members {
            let note = { member.note.as_ref() }.map_or(String::new(), |note| format!(": {note}"));
            let name = member.name();
            let is = match member.paths.first() {
                None => "is missing".to_owned(),
                Some(path) => format!("is not whole in {}", path.display()),
            };
            match member.state {
                MemberState::Copies => {
                    let mut paths: Vec<String> = Vec::new();
                    for (n, path) in member.paths.iter().enumerate() {
                        let starts = member.starts.get(n);
                        let starts = starts.map(|n| format!(" (starts {n})"));
                        paths.push(format!("{}{}", path.display(), starts.unwrap_or_default()));
                    }
                    wrong.push(format!(
                        "{name} is there more than once, as {}: give the paths of the right ones alone",
                        paths.join(" and ")
                    ));
                }
                MemberState::Missing if ["nvm", "area"].contains(&member.tier) => {
                    wrong.push(format!("{name} {is}{note}: give its path"));
                }
                MemberState::Missing if !options.degraded => {
                    wrong.push(format!(
                        "{name} {is}{note}: give its path, or --degraded to go without"
                    ));
                }
                _ => {}
            }
        }
        wrong.extend(
            self.trouble
                .iter()
                .filter(|_| self.head().is_none())
                .cloned(),
        );
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(self.refused(options, wrong.join("; "))),
        }
    }

    /// The devices of a tier in their places.
    fn devices_of(
        &self,
        n: usize,
        tier: &str,
        members: &[Member],
        old: Option<&VolumeFile>,
    ) -> Result<Vec<DeviceFile>> {
        let old = old.map_or(&[][..], |old| if n == 0 { &old.ssd } else { &old.hdd });
        let present = |m: &&Member| m.tier == tier && m.state == MemberState::Present;
        let places = { members.iter() }.filter(|m| m.tier == tier);
        let same_number = old.len() == places.filter(|m| m.uuid.is_some()).count();
        let mut files = Vec::new();
        for member in members.iter().filter(present) {
            let path = absolute(&member.paths[0])?;
            let real = |path: &Path| path.canonicalize().ok();
            let by_path = old.iter().find(|d| real(&d.path) == real(&path));
            let by_place = old.get(member.place).filter(|_| same_number);
            let before = by_path.or(by_place);
            let found = self.devices.iter().find(|d| d.path == member.paths[0]);
            let (kind, bytes) = match (found, before) {
                (Some(found), _) => (found.kind, found.bytes),
                (None, Some(before)) => (before.kind, before.size_bytes),
                (None, None) => (Default::default(), member.bytes),
            };
            files.push(DeviceFile {
                // A name that lasts, such as one in /dev/disk/by-id, stays.
                path: by_path.map_or(path, |d| d.path.clone()),
                size_bytes: bytes,
                zone_bytes: before.and_then(|d| d.zone_bytes),
                model: before.and_then(|d| d.model.clone()),
                kind,
                overprovision_percent: before.and_then(|d| d.overprovision_percent),
            });
        }
        Ok(files)
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| PoolError::file(path, "resolve it", e))
}
