//! A directory with the files of a volume, mapped; what was changed in it is put back page by page.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use shale_bench::{BenchError, Result};
use shale_daemon::tiering::Speed;
use shale_daemon::{DaemonConfig, FixedLogs, WriteBackTimes};
use shale_format::Durability;
use shale_format::limits::{BLOCK_BYTES, LOG_BYTES_MIN, NVM_BYTES_MIN};
use shale_format::log::file_name;
use shale_libfs::SessionMaps;
use shale_nvm::{Access, Map, MapOptions};
use shale_pool::VolumeFile;
use shale_pool::volume_file::{FORMAT, NvmEntry, uuid_text};
use shale_record::{Action, Noted, Recorded, Recording};
use tempfile::TempDir;

use crate::images::Mix;
use crate::volume::base::Base;
use crate::volume::lower_tiers::Below;
use crate::volume::media::{
    LOG_FILE_BYTES, LOGS, PAGE_BYTES, SEGMENT, UUID, medium_name, page_number, page_of,
};
use crate::volume::unrest::{Restless, Unrest};
const SALT_SEED: u64 = 0x5a17_0000_0000;
/// Bytes before its end at which a log that wraps begins.
const BEFORE_END: u64 = 448;
/// Longer than any workload takes.
const NEVER: Duration = Duration::from_secs(86_400);

/// A directory with the volume's files.
pub struct Place {
    dir: TempDir,
    /// The segment file.
    pub segment: Arc<Map>,
    /// The same, as daemons see it: what they store is recorded.
    watched: Arc<Map>,
    logs: Vec<(PathBuf, Map)>,
    /// Pages that may differ from the base, as numbers.
    touched: HashSet<u64, BuildHasherDefault<Mix>>,
    /// What daemon and clients do here.
    pub recording: Arc<Recording>,
    /// Makes threads meet in places where they hardly do.
    pub unrest: Arc<Unrest>,
    /// Devices of lower tiers, if the volume has them.
    pub below: Option<Below>,
    /// Durability policy of the volume.
    policy: Durability,
}

impl Place {
    /// A directory in `dir` with NVM and logs of zeros, for a volume with this policy.
    pub(crate) fn empty(dir: &Path, tiered: bool, policy: Durability) -> Result<Place> {
        let dir = tempfile::Builder::new()
            .prefix("shale-crash-")
            .tempdir_in(dir)
            .map_err(BenchError::file(dir, "make a directory in"))?;
        let nvm = dir.path().join("nvm");
        std::fs::create_dir(&nvm).map_err(BenchError::file(&nvm, "make"))?;
        let segment = map_file(&nvm.join(SEGMENT), NVM_BYTES_MIN as usize)?;
        let mut logs = Vec::new();
        for slot in 0..LOGS {
            let path = dir.path().join(format!("spare-{slot}"));
            let map = map_file(&path, LOG_FILE_BYTES)?;
            logs.push((path, map));
        }
        let recording = Recording::events_only();
        for medium in 0..=LOGS {
            recording.medium(&medium_name(medium));
        }
        let unrest = Arc::default();
        let watched =
            recorded(&recording, &unrest, 0).open_files(&[nvm.join(SEGMENT)], Access::ReadWrite)?;
        Ok(Place {
            dir,
            segment: Arc::new(segment),
            watched: Arc::new(watched),
            logs,
            touched: HashSet::default(),
            below: tiered.then(|| Below::new(&recording)),
            recording,
            unrest,
            policy,
        })
    }

    /// A directory in `dir` with the base in it and no logs.
    ///
    /// # Errors
    /// No space.
    pub fn new(dir: &Path, base: &Base) -> Result<Place> {
        let place = Place::empty(dir, base.below.is_some(), base.policy)?;
        place.segment.store(0, &base.segment);
        place.put_below(base);
        Ok(place)
    }

    /// The NVM directory.
    pub fn nvm_dir(&self) -> PathBuf {
        self.dir.path().join("nvm")
    }

    /// How a daemon runs here: every store is recorded, nothing happens by itself.
    ///
    /// `wraps`: logs begin shortly before the ends of their rings; `turns`: that often they
    /// have gone around before.
    pub fn config(&self, wraps: bool, turns: u64) -> DaemonConfig {
        let volume = VolumeFile {
            format: FORMAT,
            name: "crash".to_owned(),
            uuid: uuid_text(&UUID),
            durability: self.policy.name().to_owned(),
            log_bytes: LOG_BYTES_MIN,
            client_log_bytes: None,
            buffer_dir: Some(self.dir.path().join("buffer")),
            buffering: None,
            buffer_bytes: None,
            staged: None,
            nvm: vec![NvmEntry::new(self.nvm_dir(), NVM_BYTES_MIN)],
            // NVM is full from the first block on, so new data is placed directly on a lower tier.
            migrate_at_percent: Some(0),
            digest_at_percent: None,
            write_back_at_percent: None,
            next_mount: None,
            trusted_uids: Vec::new(),
            ssd: vec![],
            hdd: vec![],
        };
        let (recording, unrest) = (self.recording.clone(), self.unrest.clone());
        DaemonConfig {
            digest_threads: 1,
            direct_placement_min_bytes: BLOCK_BYTES as u64,
            speed: Speed {
                paused: true,
                limit: 0,
            },
            write_back: WriteBackTimes {
                every: NEVER,
                age: NEVER,
                ordered: NEVER,
            },
            mapped: Some(self.watched.clone()),
            lower: self.below.as_ref().map(Below::lower),
            log_map: Arc::new(move |slot| recorded(&recording, &unrest, 1 + slot as usize)),
            fixed_logs: Some(FixedLogs {
                salt: SALT_SEED,
                start: match wraps {
                    true => LOG_BYTES_MIN - BEFORE_END,
                    false => 0,
                } + turns * LOG_BYTES_MIN,
                there: false,
            }),
            ..DaemonConfig::new(volume)
        }
    }

    /// The same, and logs that [`Place::link_logs`] put there are taken. `daemons` were here before.
    pub fn config_with_logs(&self, wraps: bool, turns: u64, daemons: u64) -> DaemonConfig {
        let mut config = self.config(wraps, turns);
        if let Some(fixed) = &mut config.fixed_logs {
            fixed.there = true;
            // Salts of two daemons are never the same.
            fixed.salt += daemons << 16;
        }
        config
    }

    /// How client number `client`, which will get the log of slot `client`, maps what it is
    /// handed.
    pub fn maps(&self, client: usize) -> SessionMaps {
        SessionMaps {
            nvm: recorded(&self.recording, &self.unrest, 0),
            log: recorded(&self.recording, &self.unrest, 1 + client),
            ..SessionMaps::default()
        }
    }

    /// The mapping of a medium: of the segment file, or of the spare file that
    /// [`Place::link_logs`] makes a log.
    pub fn map(&self, medium: usize) -> &Map {
        match medium {
            0 => &self.segment,
            n => &self.logs[n - 1].1,
        }
    }

    /// Notes that a page may differ from the base.
    pub fn touch(&mut self, medium: usize, offset: usize) {
        self.touched
            .insert(page_number(medium, offset / PAGE_BYTES));
    }

    /// Notes what events stored to.
    pub fn touch_all(&mut self, events: &[Recorded]) {
        for event in events {
            if let Action::Store { offset, bytes, .. } = &event.action {
                for page in offset / PAGE_BYTES..=(offset + bytes.len() - 1) / PAGE_BYTES {
                    self.touched.insert(page_number(event.medium, page));
                }
            }
        }
    }

    /// Pages that may differ from the base, as medium and number.
    pub fn touched(&self) -> impl Iterator<Item = (usize, usize)> {
        self.touched.iter().map(|&number| page_of(number))
    }

    /// Gives the first `logs` spare files the names of logs.
    ///
    /// # Errors
    /// What the file system says.
    pub fn link_logs(&self, logs: usize) -> Result<()> {
        for (slot, (spare, _)) in self.logs.iter().enumerate().take(logs) {
            let path = self.nvm_dir().join(file_name(slot as u32));
            match std::fs::hard_link(spare, &path) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(BenchError::file(path, "link")(e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Names of files other than segment and lock.
    ///
    /// # Errors
    /// What the file system says.
    pub fn other_files(&self) -> Result<Vec<String>> {
        let dir = self.nvm_dir();
        let entries = std::fs::read_dir(&dir).map_err(BenchError::file(&dir, "list"))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(BenchError::file(&dir, "list"))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != SEGMENT && name != "lock" {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// What devices below NVM were reported since the last time, `before` events after which those of the
    /// recording were counted again.
    pub fn take_reported(&self, before: usize) -> Vec<Noted> {
        let noted = self.below.as_ref().map_or(Vec::new(), Below::take_reported);
        let later = |noted: Noted| Noted {
            event: noted.event + before,
            ..noted
        };
        noted.into_iter().map(later).collect()
    }

    /// Has the lower tiers hold what the base says.
    pub fn put_below(&self, base: &Base) {
        if let (Some(below), Some(contents)) = (&self.below, &base.below) {
            below.put(contents);
        }
    }

    /// Puts the base back and removes logs.
    ///
    /// # Errors
    /// What the file system says.
    pub fn reset(&mut self, base: &Base) -> Result<()> {
        self.touch_all(&self.recording.take_events());
        let changed = |below: &Below| !below.take_reported().is_empty();
        if self.below.as_ref().is_some_and(changed) {
            self.put_below(base);
        }
        for name in self.other_files()? {
            let path = self.nvm_dir().join(name);
            std::fs::remove_file(&path).map_err(BenchError::file(&path, "remove"))?;
        }
        for (medium, page) in std::mem::take(&mut self.touched).into_iter().map(page_of) {
            let at = page * PAGE_BYTES;
            match medium {
                0 => self.segment.store(at, &base.segment[at..at + PAGE_BYTES]),
                n => {
                    let before = base.logs.get(n - 1).map(|log| &log[at..at + PAGE_BYTES]);
                    let zeros = &[0; PAGE_BYTES][..];
                    self.logs[n - 1].1.store(at, before.unwrap_or(zeros));
                }
            }
        }
        Ok(())
    }
}

fn recorded(recording: &Arc<Recording>, unrest: &Arc<Unrest>, medium: usize) -> MapOptions {
    MapOptions::new().recorder(Arc::new(Restless {
        medium: recording.medium(&medium_name(medium)),
        unrest: unrest.clone(),
    }))
}

/// A sparse file of zeros, mapped.
fn map_file(path: &Path, bytes: usize) -> Result<Map> {
    let failed = |e| BenchError::file(path, "make")(e);
    let file = std::fs::File::create_new(path).map_err(failed)?;
    file.set_len(bytes as u64)
        .map_err(BenchError::file(path, "make"))?;
    Ok(Map::open_files(&[path], Access::ReadWrite)?)
}
