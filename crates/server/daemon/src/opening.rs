//! Opening a volume and recovering what a crash left, before anybody is served.

use crate::config::DaemonConfig;
use crate::connections::direct_mappings::Mappings;
use crate::error::{DaemonError, Result};
use shale_block::TierDevice;
use shale_clients::barrier::Barrier;
use shale_coherence::readers::LocalReaders;
use shale_digest::Digester;
use shale_format::TxId;
use shale_format::superblock::Superblock;
use shale_nvm::Map;
use shale_persist::staged::{DirtyPages, PAGE_BYTES, StagedArea};
use shale_pool::device_assembly::{self, Expected};
use shale_pool::labels;
use shale_pool::nvm_dir::{self, NvmLock, open_nvm};
use shale_pool::staged;
use shale_pool::volume_file::NextMount;
use shale_recovery::recover::{Recovered, Recovery, RecoveryReport};
use shale_sys::{Clock, failpoints};
use shale_volume::{View, Volume};
use std::sync::Arc;

/// A volume that was opened and recovered, and is served by nobody yet.
pub(crate) struct Opened {
    pub(crate) map: Arc<Map>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) digester: Digester,
    pub(crate) readers: LocalReaders,
    pub(crate) mappings: Mappings,
    pub(crate) recovered: Recovered,
    /// Where the memory tier lies in shared memory: what it is staged in.
    pub(crate) staged: Option<OpenedArea>,
    /// The count on the labels of devices.
    pub(crate) starts: u64,
}

/// The staging area of a volume whose memory tier lies in shared memory, and which pages of that have changed.
pub(crate) struct OpenedArea {
    pub(crate) area: Arc<StagedArea>,
    pub(crate) dirty: Arc<DirtyPages>,
}

/// The memory tier, mapped: NVM, or shared memory that was there or was restored.
struct MemoryTier {
    map: Arc<Map>,
    lock: NvmLock,
    /// Of shared memory: the pages that are stored to from now on, and whether it was just restored.
    staged: Option<(Arc<DirtyPages>, bool)>,
}

impl MemoryTier {
    fn open(config: &DaemonConfig) -> Result<Self> {
        let (file, dir) = (&config.volume, config.volume.nvm_dir());
        if !file.is_staged() {
            let map = match &config.mapped {
                Some(map) => map.clone(),
                None => Arc::new(open_nvm(dir, file.nvm_bytes(), &config.map)?),
            };
            let lock = NvmLock::take(dir)?;
            let staged = None;
            return Ok(Self { map, lock, staged });
        }
        let dirty = Arc::new(DirtyPages::new(file.nvm_bytes()));
        let options = config.map.clone().recorder(dirty.clone());
        let restored = match area_of(config) {
            Some(device) => staged::restore_from(file, &options, device)?,
            None => staged::restore(file, &options)?,
        };
        Ok(Self {
            map: Arc::new(restored.map),
            lock: restored.lock,
            staged: Some((dirty, restored.restored)),
        })
    }
}

/// The device of the staging area, if devices are open already: the first one.
fn area_of(config: &DaemonConfig) -> Option<Arc<dyn TierDevice>> {
    config.lower.as_ref()?.ssd.first().cloned()
}

/// The staging area, on a device that is open by now. `restored`: the memory tier was just made from it; else its pages are compared.
fn open_area(
    config: &DaemonConfig,
    device: Option<Arc<dyn TierDevice>>,
    (volume, map): (&Volume, &Map),
    (dirty, restored): (Arc<DirtyPages>, bool),
) -> Result<OpenedArea> {
    let device = device.ok_or(DaemonError::NoArea)?;
    let area = staged::open_area(&config.volume, device)?;
    if !restored {
        area.compare(&mut |page, into| map.peek(page as usize * PAGE_BYTES, into));
    }
    // No zone goes that the image of a restore could lead to.
    volume.erase_up_to(TxId(0));
    let area = Arc::new(area);
    Ok(OpenedArea { area, dirty })
}

impl Opened {
    pub(crate) fn new(
        config: &DaemonConfig,
        clock: &dyn Clock,
        barrier: Barrier,
    ) -> Result<(NvmLock, Opened)> {
        let dir = config.volume.nvm_dir();
        let MemoryTier { map, lock, staged } = MemoryTier::open(config)?;
        nvm_dir::close_to_others(dir)?;
        let (uuid, segments) = (config.volume.uuid_bytes(), map.pieces().len());
        let starts = labels::check(dir, &uuid, segments)?;
        let superblock = *View::open_head(map.clone())?.0.superblock();
        config.volume.check_superblock(&superblock)?;
        let superblock = match &config.volume.next_mount {
            Some(next) if config.is_next_mount => change_media(&map, next)?,
            _ => superblock,
        };
        let (volume, starts, area) = match &config.lower {
            Some(devices) => {
                let volume = Volume::open_with(map.clone(), devices)?;
                (volume, 0, area_of(config))
            }
            None => {
                let expected = Expected {
                    file: &config.volume,
                    path: config.volume_path.as_deref(),
                    degraded: config.degraded,
                };
                let started = device_assembly::start(&expected, &map, &superblock, starts)?;
                (started.volume, started.starts, started.area_device)
            }
        };
        let restored = staged.as_ref().is_some_and(|(_, restored)| *restored);
        let staged = staged
            .map(|found| open_area(config, area, (&volume, &map), found))
            .transpose()?;
        let volume = Arc::new(volume);
        let mappings = Mappings::reopen(dir, &volume)?;
        let digester = Digester::with_bounds(volume.clone(), config.digest_bounds);
        let readers = LocalReaders::default();
        let buffer_dir = (!config.volume.is_staged()).then(|| config.volume.buffer_dir());
        let recovered = Recovery {
            volume: &volume,
            digester: &digester,
            readers: &readers,
            nvm_dir: dir,
            buffer_dir: buffer_dir.as_deref(),
            clock,
            connection: config.connection.filter(|_| config.connection_continues),
            threads: config.threads(),
            barrier,
            staged: staged
                .as_ref()
                .filter(|_| restored)
                .map(|found| &*found.area),
        }
        .run()?;
        let opened = Opened {
            map,
            volume,
            digester,
            readers,
            mappings,
            recovered,
            staged,
            starts,
        };
        Ok((lock, opened))
    }
}

/// Changes the superblock as a volume file says for the next mount, and gives it.
fn change_media(map: &Arc<Map>, next: &NextMount) -> Result<Superblock> {
    Volume::replay(map.clone())?;
    let superblock = *View::open_head(map.clone())?.0.superblock();
    let policy = next.durability.as_deref().map(str::parse);
    let policy = policy
        .and_then(|policy| policy.ok())
        .unwrap_or(superblock.policy());
    let log_bytes = next.log_bytes.unwrap_or(superblock.log_bytes);
    if (policy, log_bytes) != (superblock.policy(), superblock.log_bytes) {
        Volume::open(map.clone())?.set_policy_and_log(policy, log_bytes)?;
        failpoints::reach("next-mount-changed");
    }
    Ok(*View::open_head(map.clone())?.0.superblock())
}

/// Opens and recovers a volume as [`Daemon::start`] does, and serves nobody.
///
/// # Errors
/// As there.
pub fn recover_only(
    config: &DaemonConfig,
    clock: &dyn Clock,
) -> Result<(Arc<Volume>, RecoveryReport)> {
    let (_lock, opened) = Opened::new(config, clock, Barrier::register()?)?;
    Ok((opened.volume, opened.recovered.report))
}
