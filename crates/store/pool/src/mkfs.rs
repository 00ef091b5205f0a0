//! Making a volume: directory, segments, superblock, volume file.

use crate::devices::{Divided, LowerTiers, NAMES, NewDevices};
use crate::error::{PoolError, Result};
use crate::host_space::{HostSpace, NvmNeed, check_space, shown};
use crate::nvm_dir::{NvmLock, lock_path, make_nvm, remove, strangers, volume_files};
use crate::random::random;
use crate::volume_file::{DeviceFile, FORMAT, NvmEntry, VolumeFile, uuid_text};
use shale_format::Durability;
use shale_format::limits::{
    BLOCK_BYTES, CLIENT_LOG_BYTES_DEFAULT, LOG_BYTES_DEFAULT, LOG_BYTES_MIN, NVM_BYTES_MIN,
};
use shale_format::superblock::TierTable;
use shale_nvm::{Map, MapOptions};
use shale_persist::Domain;
use shale_sys::Clock;
use shale_volume::{MkfsOptions, Volume, VolumeError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to make.
#[derive(Clone, Debug)]
pub struct MakeOptions {
    /// The volume file to write.
    pub file: PathBuf,
    /// Name for people.
    pub name: String,
    /// Directory for the NVM tier; made if missing, but not the one above it. On a DAX file system, or on
    /// tmpfs, which survives processes but no power cut.
    pub nvm_dir: PathBuf,
    /// Bytes of the NVM tier, rounded down to whole blocks.
    pub nvm_bytes: u64,
    /// Lower tiers; empty: none.
    pub lower: LowerTiers,
    /// Bytes of each client's log; 0: a size for the mount and a smaller one for other processes, by the size
    /// of NVM.
    pub log_bytes: u64,
    /// Durability policy.
    pub durability: Durability,
    /// Owner of volume and root directory.
    pub owner_uid: u32,
    /// Group of the root directory.
    pub owner_gid: u32,
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// Users beside the owner and root whose processes may map the volume; see [`VolumeFile::trusted_uids`].
    pub trusted_uids: Vec<u32>,
    /// Destroy a volume that is there; make one that takes more than there is of memory or of a file system.
    pub force: bool,
}

/// What was made.
#[derive(Clone, Debug)]
pub struct Made {
    /// The volume file as written.
    pub file: VolumeFile,
    /// What a fence is worth there.
    pub domain: Domain,
    /// Whether the kernel took the advice to use huge pages.
    pub huge_pages: bool,
    /// Number of segment files.
    pub segments: usize,
    /// How the devices of ssd and hdd are divided.
    pub divided: [Vec<Divided>; 2],
    /// The file system of the NVM directory.
    pub host: HostSpace,
    /// What the NVM directory takes, with logs.
    pub need: NvmNeed,
}

/// What was made so far for a volume: taken away again unless it is kept.
#[derive(Debug, Default)]
struct Begun {
    /// In the order in which they were made.
    made: Vec<PathBuf>,
    kept: bool,
}

impl Begun {
    /// Notes a path before it is made, if nothing is there.
    fn expect(&mut self, path: &Path) {
        if path.symlink_metadata().is_err() {
            self.made.push(path.to_path_buf());
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // The first failure is the one to report.
        for path in self.made.iter().rev().filter(|_| !self.kept) {
            match path.is_dir() {
                true => drop(std::fs::remove_dir(path)),
                false => drop(std::fs::remove_file(path)),
            }
        }
    }
}

/// Makes a volume (mkfs). Everything that was in it is lost.
///
/// # Errors
/// A volume is there and `force` is not given, a daemon serves it, there is no
/// space; a name, a directory or a device cannot be used. Nothing is left of a volume that is refused or half made.
pub fn make_volume(options: &MakeOptions, clock: &dyn Clock) -> Result<Made> {
    let dir = std::path::absolute(&options.nvm_dir)
        .map_err(|e| PoolError::file(&options.nvm_dir, "resolve it", e))?;
    let bytes = options.nvm_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    if bytes < NVM_BYTES_MIN {
        return Err(PoolError::VolumeFile {
            path: options.file.clone(),
            key: "nvm.size_bytes".to_owned(),
            why: format!("{bytes} is below the least of {NVM_BYTES_MIN}"),
        });
    }
    check_name(options)?;
    check_file(options)?;
    let there = check_dir(&dir, options)?;
    // Everything that could be refused is refused before anything is made, or lost.
    let tables = NewDevices::plan(&options.lower)?;
    check_tables(bytes, tables, options)?;
    let logs = log_bytes(options, bytes);
    let need = NvmNeed::new(bytes, logs.0, logs.1.unwrap_or(logs.0));
    if !options.force {
        let parent = dir.parent().unwrap_or(Path::new("/"));
        let at = if dir.exists() { &*dir } else { parent };
        check_space((&dir, at), &need, options.lower.tiers())?;
    }
    let mut begun = Begun::default();
    begun.expect(&dir);
    if !dir.is_dir() {
        // Nobody else has any business there: files have names, times and sizes.
        let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
        made.map_err(|e| PoolError::file(&dir, "make the NVM directory", e))?;
    }
    begun.expect(&lock_path(&dir));
    let lock = NvmLock::take(&dir)?;
    for device in options.lower.tiers().into_iter().flatten() {
        begun.expect(&device.path);
    }
    let devices = NewDevices::open(&options.lower, options.force)?;
    for name in &there {
        remove(&dir.join(name))?;
    }
    let made = make_in(options, (&dir, bytes), logs, &devices, clock);
    if made.is_err() {
        devices.wipe();
        for name in volume_files(&dir)? {
            remove(&dir.join(name))?;
        }
    }
    drop(lock);
    let (map, file) = made?;
    begun.kept = true;
    Ok(Made {
        host: HostSpace::of(&dir)?,
        need,
        file,
        domain: Domain::of(&map),
        huge_pages: map.huge_pages(),
        segments: map.pieces().len(),
        divided: devices.divided(),
    })
}

fn refused(path: &Path, why: impl Into<String>) -> PoolError {
    PoolError::Refused {
        path: path.to_path_buf(),
        why: why.into(),
    }
}

/// Names go to terminals.
fn check_name(options: &MakeOptions) -> Result<()> {
    match options.name.chars().find(|c| c.is_control()) {
        None => Ok(()),
        Some(c) => {
            let why = format!(
                "the volume's name has a control character (U+{:04X}): give it another one with --label",
                u32::from(c)
            );
            Err(refused(&options.file, why))
        }
    }
}

/// Whether the volume file can be written where it is to be.
fn check_file(options: &MakeOptions) -> Result<()> {
    let file = &options.file;
    let parent = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    if !parent.is_dir() {
        let why = format!(
            "there is no directory {} for the volume file",
            parent.display()
        );
        return Err(refused(file, why));
    }
    match file.symlink_metadata() {
        Ok(found) if found.is_dir() => Err(refused(
            file,
            "it is a directory: name the volume file, as in VOLUME.toml",
        )),
        Ok(_) if !options.force => Err(PoolError::Exists {
            path: file.clone(),
            found: "a volume file".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// The files of a volume that are in the NVM directory. One that is missing can be made; in one that is there nothing else is.
fn check_dir(dir: &Path, options: &MakeOptions) -> Result<Vec<String>> {
    let parent = dir.parent().unwrap_or(Path::new("/"));
    let found = match dir.metadata() {
        Ok(found) => found,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && dir.symlink_metadata().is_err() => {
            return match parent.is_dir() {
                true => Ok(Vec::new()),
                false => {
                    let why = format!(
                        "{} is missing: only the last directory is made (is a file system not mounted?)",
                        parent.display()
                    );
                    Err(refused(dir, why))
                }
            };
        }
        Err(e) => return Err(PoolError::file(dir, "look at it", e)),
    };
    if !found.is_dir() {
        return Err(refused(dir, "it is not a directory"));
    }
    if found.mode() & 0o002 != 0 {
        let why = format!(
            "every user may write to it (mode {:04o}), and take names in it: give a directory in it, or chmod 700 it",
            found.mode() & 0o7777
        );
        return Err(refused(dir, why));
    }
    let there = volume_files(dir)?;
    let strangers = strangers(dir)?;
    if let (Some(first), true) = (strangers.first(), there.is_empty()) {
        let why = format!(
            "it holds other files ({first} and {} more): give an empty directory, or one that is to be made",
            strangers.len() - 1
        );
        return Err(refused(dir, why));
    }
    match (there.first(), options.force) {
        (Some(first), false) => Err(PoolError::Exists {
            path: dir.to_path_buf(),
            found: format!("{first} and {} more files", there.len() - 1),
        }),
        _ => Ok(there),
    }
}

/// Names the tier whose tables take too much of NVM.
fn check_tables(bytes: u64, tables: [TierTable; 2], options: &MakeOptions) -> Result<()> {
    let [ssd, hdd] = tables;
    let wanted = MkfsOptions {
        ssd,
        hdd,
        ..MkfsOptions::default()
    };
    let Err(VolumeError::TierSize { expected, .. }) = Volume::check_new(bytes, &wanted) else {
        return Ok(());
    };
    let tiers = NAMES.into_iter().zip(&tables).zip(options.lower.tiers());
    let largest = tiers.max_by_key(|((_, table), _)| table.blocks);
    let Some(((name, table), [first, ..])) = largest.map(|(t, files)| (t, files.as_slice())) else {
        return Ok(());
    };
    let why = format!(
        "{name}: the tables of {} of {name} need more of NVM than there is: NVM has {}, with these tiers it must have {}; \
         give more NVM, or smaller devices",
        shown(table.blocks * BLOCK_BYTES as u64),
        shown(bytes),
        shown(expected)
    );
    Err(refused(&first.path, why))
}

fn log_bytes(options: &MakeOptions, nvm_bytes: u64) -> (u64, Option<u64>) {
    match options.log_bytes {
        0 => default_log_bytes(nvm_bytes),
        n => (n, None),
    }
}

/// Bytes of the logs of a volume for which none were said: of the mount, and of each other process. A process
/// waits until its log is allocated (64 MiB: 12 ms), and there may be many.
fn default_log_bytes(nvm_bytes: u64) -> (u64, Option<u64>) {
    // A larger one on a small volume could never be digested into it.
    let share = |parts: u64, most: u64| {
        let bytes = (nvm_bytes / parts).next_power_of_two();
        bytes.clamp(LOG_BYTES_MIN, most)
    };
    let mount = share(4, LOG_BYTES_DEFAULT);
    (mount, Some(share(16, CLIENT_LOG_BYTES_DEFAULT)))
}

fn make_in(
    options: &MakeOptions,
    (dir, bytes): (&Path, u64),
    (log_bytes, client_log_bytes): (u64, Option<u64>),
    devices: &NewDevices,
    clock: &dyn Clock,
) -> Result<(Arc<Map>, VolumeFile)> {
    let map = Arc::new(make_nvm(dir, bytes, &MapOptions::new())?);
    let uuid = random()?;
    let [ssd_files, hdd_files] = devices.files();
    let file = VolumeFile {
        format: FORMAT,
        name: options.name.clone(),
        uuid: uuid_text(&uuid),
        durability: options.durability.name().to_owned(),
        log_bytes,
        client_log_bytes,
        migrate_at_percent: None,
        trusted_uids: options.trusted_uids.clone(),
        staged: None,
        nvm: vec![NvmEntry {
            dir: dir.to_path_buf(),
            size_bytes: bytes,
        }],
        ssd: absolute(ssd_files)?,
        hdd: absolute(hdd_files)?,
    };
    let seed: [u8; 16] = random()?;
    let (low, high) = seed.split_at(8);
    let word = |b: &[u8]| b.iter().fold(0, |n: u64, &b| n << 8 | u64::from(b));
    let [ssd, hdd] = devices.tables();
    devices.label(uuid)?;
    Volume::create_with(
        map.clone(),
        &MkfsOptions {
            uuid,
            hash_seed: [word(low), word(high)],
            created_ns: clock.realtime_ns(),
            durability: options.durability,
            owner_uid: options.owner_uid,
            owner_gid: options.owner_gid,
            root_mode: options.root_mode,
            log_bytes,
            ssd,
            hdd,
            starts: devices.starts(),
        },
        &devices.devices(),
    )?;
    file.save(&options.file)?;
    Ok((map, file))
}

/// The same devices, wherever the volume file is.
fn absolute(files: &[DeviceFile]) -> Result<Vec<DeviceFile>> {
    let whole = |file: &DeviceFile| {
        let path = std::path::absolute(&file.path)
            .map_err(|e| PoolError::file(&file.path, "resolve it", e))?;
        Ok(DeviceFile {
            path,
            ..file.clone()
        })
    };
    files.iter().map(whole).collect()
}
