//! Opening a volume and recovering what a crash left, before anybody is served.

use crate::coherence::barrier::Barrier;
use crate::coherence::readers::LocalReaders;
use crate::config::DaemonConfig;
use crate::connections::direct_mappings::Mappings;
use crate::error::Result;
use crate::recovery::recover::{Recovered, Recovery, RecoveryReport};
use shale_digest::Digester;
use shale_nvm::Map;
use shale_pool::device_assembly::{self, Expected};
use shale_pool::labels;
use shale_pool::nvm_dir::{self, NvmLock, open_nvm};
use shale_sys::Clock;
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
    /// The count on the labels of devices.
    pub(crate) starts: u64,
}

impl Opened {
    pub(crate) fn new(
        config: &DaemonConfig,
        clock: &dyn Clock,
        barrier: Barrier,
    ) -> Result<(NvmLock, Opened)> {
        let dir = config.volume.nvm_dir();
        let map = match &config.mapped {
            Some(map) => map.clone(),
            None => Arc::new(open_nvm(dir, config.volume.nvm_bytes(), &config.map)?),
        };
        let lock = NvmLock::take(dir)?;
        nvm_dir::close_to_others(dir)?;
        let (uuid, segments) = (config.volume.uuid_bytes(), map.pieces().len());
        let starts = labels::check(dir, &uuid, segments)?;
        let superblock = *View::open_head(map.clone())?.0.superblock();
        config.volume.check_superblock(&superblock)?;
        let (volume, starts) = match &config.lower {
            Some(devices) => (Volume::open_with(map.clone(), devices)?, 0),
            None => {
                let expected = Expected {
                    file: &config.volume,
                    path: config.volume_path.as_deref(),
                    degraded: config.degraded,
                };
                let started = device_assembly::start(&expected, &map, &superblock, starts)?;
                (started.volume, started.starts)
            }
        };
        let volume = Arc::new(volume);
        let mappings = Mappings::reopen(dir, &volume)?;
        let digester = Digester::new(volume.clone());
        let readers = LocalReaders::default();
        let recovered = Recovery {
            volume: &volume,
            digester: &digester,
            readers: &readers,
            nvm_dir: dir,
            clock,
            connection: config.connection.filter(|_| config.connection_continues),
            threads: config.threads(),
            barrier,
        }
        .run()?;
        let opened = Opened {
            map,
            volume,
            digester,
            readers,
            mappings,
            recovered,
            starts,
        };
        Ok((lock, opened))
    }
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
