//! Making a volume: directory, segments, superblock, volume file.

use crate::devices::{Divided, LowerTiers, NewDevices};
use crate::error::{DaemonError, Result};
use crate::nvm_dir::{NvmLock, make_nvm, remove, volume_files};
use crate::volume_file::{DeviceFile, FORMAT, NvmEntry, VolumeFile, uuid_text};
use shale_device::{Clock, MapOptions, Persistence};
use shale_format::Durability;
use shale_format::limits::{
    BLOCK_BYTES, CLIENT_LOG_BYTES_DEFAULT, LOG_BYTES_DEFAULT, LOG_BYTES_MIN, NVM_BYTES_MIN,
};
use shale_volume::{MkfsOptions, Volume};
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;

/// What to make.
#[derive(Clone, Debug)]
pub struct MakeOptions {
    /// The volume file to write.
    pub file: PathBuf,
    /// Name for people.
    pub name: String,
    /// Directory for the NVM tier; made if missing. On a DAX file system, or on
    /// tmpfs, which survives processes but no power cut.
    pub nvm_dir: PathBuf,
    /// Bytes of the NVM tier, rounded down to whole blocks.
    pub nvm_bytes: u64,
    /// Tiers below NVM; empty: none.
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
    /// Destroy a volume that is there.
    pub force: bool,
}

/// What was made.
#[derive(Clone, Debug)]
pub struct Made {
    /// The volume file as written.
    pub file: VolumeFile,
    /// What a fence is worth there.
    pub persistence: Persistence,
    /// Whether the kernel took the advice to use huge pages.
    pub huge_pages: bool,
    /// Number of segment files.
    pub segments: usize,
    /// How the devices of ssd and hdd are divided.
    pub divided: [Vec<Divided>; 2],
}

/// Makes a volume (mkfs). Everything that was in it is lost.
///
/// # Errors
/// A volume is there and `force` is not given, a daemon serves it, there is no
/// space. A volume half made is removed again.
pub fn make_volume(options: &MakeOptions, clock: &dyn Clock) -> Result<Made> {
    let dir = std::path::absolute(&options.nvm_dir)
        .map_err(|e| DaemonError::file(&options.nvm_dir, "resolve it", e))?;
    let bytes = options.nvm_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    if bytes < NVM_BYTES_MIN {
        return Err(DaemonError::VolumeFile {
            path: options.file.clone(),
            key: "nvm.size_bytes".to_owned(),
            why: format!("{bytes} is below the least of {NVM_BYTES_MIN}"),
        });
    }
    if !options.force && options.file.exists() {
        return Err(DaemonError::Exists {
            path: options.file.clone(),
            found: "a volume file".to_owned(),
        });
    }
    if !dir.is_dir() {
        // Nobody else has any business there: files have names, times and sizes.
        let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
        made.map_err(|e| DaemonError::file(&dir, "make the NVM directory", e))?;
    }
    let lock = NvmLock::take(&dir)?;
    let there = volume_files(&dir)?;
    if let (Some(first), false) = (there.first(), options.force) {
        return Err(DaemonError::Exists {
            path: dir,
            found: format!("{first} and {} more files", there.len() - 1),
        });
    }
    // Everything that could be refused is refused before anything is lost.
    let devices = NewDevices::open(&options.lower, options.force)?;
    for name in &there {
        remove(&dir.join(name))?;
    }
    let made = make_in(options, &dir, bytes, &devices, clock);
    if made.is_err() {
        for name in volume_files(&dir)? {
            remove(&dir.join(name))?;
        }
    }
    drop(lock);
    made
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
    dir: &std::path::Path,
    bytes: u64,
    devices: &NewDevices,
    clock: &dyn Clock,
) -> Result<Made> {
    let map = make_nvm(dir, bytes, &MapOptions::new())?;
    let (persistence, huge_pages) = (map.persistence(), map.huge_pages());
    let segments = map.pieces().len();
    let (log_bytes, client_log_bytes) = match options.log_bytes {
        0 => default_log_bytes(bytes),
        n => (n, None),
    };
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
        Arc::new(map),
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
    Ok(Made {
        file,
        persistence,
        huge_pages,
        segments,
        divided: devices.divided(),
    })
}

/// The same devices, wherever the volume file is.
fn absolute(files: &[DeviceFile]) -> Result<Vec<DeviceFile>> {
    let whole = |file: &DeviceFile| {
        let path = std::path::absolute(&file.path)
            .map_err(|e| DaemonError::file(&file.path, "resolve it", e))?;
        Ok(DeviceFile {
            path,
            ..file.clone()
        })
    };
    files.iter().map(whole).collect()
}

/// Random bytes that nobody can guess: identities, salts, hash keys.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let path = std::path::Path::new("/dev/urandom");
    let mut bytes = [0; N];
    std::fs::File::open(path)
        .and_then(|mut f| f.read_exact(&mut bytes))
        .map_err(|e| DaemonError::file(path, format!("read {N} random bytes"), e))?;
    Ok(bytes)
}
