//! The volume itself: its logs' sizes, its file, what is written in the memory tier and on devices.

use super::options::MakeOptions;
use crate::devices::NewDevices;
use crate::error::{PoolError, Result};
use crate::random::random;
use crate::volume_file::{DeviceFile, FORMAT, VolumeFile, uuid_text};
use shale_format::limits::{CLIENT_LOG_BYTES_DEFAULT, LOG_BYTES_DEFAULT, LOG_BYTES_MIN};
use shale_nvm::Map;
use shale_sys::Clock;
use shale_volume::{MkfsOptions, Volume};
use std::sync::Arc;

pub(crate) fn log_bytes(options: &MakeOptions, nvm_bytes: u64) -> (u64, Option<u64>) {
    match options.log_bytes {
        0 => default_log_bytes(nvm_bytes),
        n => (n, None),
    }
}

/// Bytes of the logs of a volume for which none were said: of the mount, and of each other process. A process
/// waits until its log is allocated (64 MiB: 12 ms), and there may be many.
pub(crate) fn default_log_bytes(nvm_bytes: u64) -> (u64, Option<u64>) {
    // A larger one on a small volume could never be digested into it.
    let share = |parts: u64, most: u64| {
        let bytes = (nvm_bytes / parts).next_power_of_two();
        bytes.clamp(LOG_BYTES_MIN, most)
    };
    let mount = share(4, LOG_BYTES_DEFAULT);
    (mount, Some(share(16, CLIENT_LOG_BYTES_DEFAULT)))
}

/// The file of a volume with these devices, which says nothing of the memory tier yet.
pub(crate) fn volume_file(
    options: &MakeOptions,
    uuid: &[u8; 16],
    (log_bytes, client_log_bytes): (u64, Option<u64>),
    devices: &NewDevices,
) -> Result<VolumeFile> {
    let [ssd, hdd] = devices.files();
    Ok(VolumeFile {
        format: FORMAT,
        name: options.name.clone(),
        uuid: uuid_text(uuid),
        durability: options.durability.name().to_owned(),
        log_bytes,
        client_log_bytes,
        migrate_at_percent: None,
        digest_at_percent: None,
        write_back_at_percent: None,
        next_mount: None,
        trusted_uids: options.trusted_uids.clone(),
        buffer_dir: None,
        buffering: None,
        buffer_bytes: None,
        staged: None,
        nvm: Vec::new(),
        ssd: absolute(ssd)?,
        hdd: absolute(hdd)?,
    })
}

/// Labels the devices and makes the volume of `file` on the whole of `map`.
pub(crate) fn write(
    options: &MakeOptions,
    file: &VolumeFile,
    map: &Arc<Map>,
    devices: &NewDevices,
    clock: &dyn Clock,
) -> Result<Volume> {
    let uuid = file.uuid_bytes();
    let seed: [u8; 16] = random()?;
    let (low, high) = seed.split_at(8);
    let word = |b: &[u8]| b.iter().fold(0, |n: u64, &b| n << 8 | u64::from(b));
    let [ssd, hdd] = devices.tables();
    devices.label(uuid)?;
    let made = Volume::create_with(
        map.clone(),
        &MkfsOptions {
            uuid,
            hash_seed: [word(low), word(high)],
            created_ns: clock.realtime_ns(),
            durability: options.durability,
            owner_uid: options.owner_uid,
            owner_gid: options.owner_gid,
            root_mode: options.root_mode,
            log_bytes: file.log_bytes,
            ssd,
            hdd,
            starts: devices.starts(),
        },
        &devices.devices(),
    );
    Ok(made?)
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
