//! A volume without NVM: on devices alone, one of which has the area.

use super::checks::{Begun, check_file, check_name, check_tables, refused};
use super::contents::{self, log_bytes};
use super::options::{Made, MakeOptions};
use super::sizes::{self, Machine};
use crate::device_kind::DeviceKind;
use crate::device_probe::{ZONE_BYTES, ZONES_MIN, as_found};
use crate::devices::{LowerTiers, NewDevices, label_of};
use crate::error::{PoolError, Result};
use crate::host_space::{HostSpace, NvmNeed, check_space, machine_memory, shown};
use crate::nvm_dir::segment_sizes;
use crate::random::random;
use crate::staged::{area, memory_tier, pages};
use crate::volume_file::{DeviceFile, SHARED_MEMORY, StagedEntry, VolumeFile, shared_memory_dir};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use shale_block::{BlockError, BlockFile, TierDevice, Unit};
use shale_format::limits::{BLOCK_BYTES, LABEL_AREA_BYTES};
use shale_nvm::MapOptions;
use shale_persist::Domain;
use shale_persist::staged::{AreaLayout, StagedArea};
use shale_sys::Clock;
use std::path::Path;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Largest unit of a medium that an area is aligned to.
pub(crate) const ALIGN_MAX: u64 = 16 << 20;

/// Where the area is to be, and what is left of its device for the tier.
struct Plan {
    /// The lower tiers, without the area.
    lower: LowerTiers,
    /// Which device of the flash tier has the area.
    nth: usize,
    layout: AreaLayout,
    at_byte: u64,
}

/// Makes a volume without NVM. Its memory tier is made in memory of this process, for the first checkpoint.
pub(crate) fn make(options: &MakeOptions, clock: &dyn Clock) -> Result<Made> {
    check_name(options)?;
    check_file(options)?;
    let shared = Path::new(SHARED_MEMORY);
    let host = HostSpace::of(shared)?;
    let plan = Plan::new(options, &host)?;
    let memory_bytes = plan.layout.memory_bytes;
    // Everything that could be refused is refused before anything is made, or lost.
    let tables = NewDevices::plan(&plan.lower)?;
    check_tables(memory_bytes, tables, options)?;
    let logs = log_bytes(options, memory_bytes);
    let need = NvmNeed::new(memory_bytes, logs.0, logs.1.unwrap_or(logs.0)).staged();
    let uuid = random()?;
    if !options.force {
        let dir = shared_memory_dir(&uuid);
        check_space((&dir, shared), &need, options.lower.tiers())?;
    }
    let mut begun = Begun::default();
    for device in options.lower.tiers().into_iter().flatten() {
        begun.expect(&device.path);
    }
    let whole = &options.lower.ssd[plan.nth];
    BlockFile::create(&whole.path, whole.size_bytes)?;
    let devices = NewDevices::open(&plan.lower, options.force)?;
    let device = plan.open_in(&devices)?;
    // What an older volume there has in shared memory is destroyed with it.
    let old = label_of(&*device)?.map(|label| shared_memory_dir(&label.volume));
    let made = make_in(options, &plan, (uuid, logs), (&devices, device), clock);
    if made.is_err() {
        devices.wipe();
    }
    let (file, huge_pages) = made?;
    begun.kept = true;
    if let Some(Err(e)) = old.map(|dir| memory_tier::remove_of(&dir)) {
        tracing::warn!("{e}");
    }
    Ok(Made {
        host,
        need,
        file,
        domain: Domain::Staged,
        huge_pages,
        segments: segment_sizes(memory_bytes).len(),
        divided: devices.divided(),
        area_bytes: plan.layout.bytes(),
    })
}

impl Plan {
    fn new(options: &MakeOptions, host: &HostSpace) -> Result<Plan> {
        let mut lower = options.lower.clone();
        let nth = area_device(options)?;
        let device = &mut lower.ssd[nth];
        let ssd_bytes = device.size_bytes / BLOCK * BLOCK;
        let machine = Machine {
            memory_bytes: machine_memory(),
            shared_free_bytes: host.free_bytes,
        };
        let all = options.lower.tiers().into_iter().flatten();
        let lower_bytes = all.fold(0u64, |sum, d| sum.saturating_add(d.size_bytes));
        let memory = sizes::memory_asked(options)?;
        let default = || machine.memory_default(lower_bytes, options.log_bytes);
        let layout = AreaLayout {
            memory_bytes: memory.unwrap_or_else(default),
            staging_bytes: sizes::staging(&options.file, options.staged.staging_bytes, ssd_bytes)?,
        };
        let left = ssd_bytes.saturating_sub(layout.bytes());
        if left < LABEL_AREA_BYTES + ZONES_MIN * ZONE_BYTES.start() {
            let why = format!(
                "of its {} the volume takes {} to keep its memory tier of {} twice, and a staging area of {}; that leaves too little for \
                 files: give a larger device, or make them smaller with --memory and --staging",
                shown(ssd_bytes),
                shown(layout.bytes()),
                shown(layout.memory_bytes),
                shown(layout.staging_bytes)
            );
            return Err(refused(&device.path, why));
        }
        check_length(device, ssd_bytes)?;
        let at_byte = begin(&Unit::of(&device.path), left);
        device.size_bytes = at_byte;
        Ok(Plan {
            lower,
            nth,
            layout,
            at_byte,
        })
    }

    /// The device that has the area, as the tier has it.
    fn device(&self) -> &DeviceFile {
        &self.lower.ssd[self.nth]
    }

    /// Byte of the device at which the area ends.
    fn end(&self) -> u64 {
        self.at_byte + self.layout.bytes()
    }

    /// The device among those that were opened, with space of its file for all of the area.
    fn open_in(&self, devices: &NewDevices) -> Result<Arc<dyn TierDevice>> {
        let device = devices.devices().ssd[self.nth].clone();
        let path = &self.device().path;
        if device.bytes() < self.end() {
            return Err(PoolError::Device(BlockError::Short {
                path: path.clone(),
                expected: self.end(),
                found: device.bytes(),
            }));
        }
        if path.is_file() {
            allocate(path, self.at_byte, self.layout.bytes())?;
        }
        Ok(device)
    }
}

/// Allocates a part of an image, so that what is durable there never finds its file system full.
pub(crate) fn allocate(path: &Path, at: u64, bytes: u64) -> Result<()> {
    let failed = |e: std::io::Error| {
        let tried = format!("allocate the {} of its staging area", shown(bytes));
        PoolError::file(path, tried, e)
    };
    let file = std::fs::OpenOptions::new().write(true).open(path);
    let file = file.map_err(failed)?;
    match fallocate(&file, FallocateFlags::empty(), at, bytes) {
        // The ring is written when it is made, and images whenever there is a checkpoint.
        Err(Errno::OPNOTSUPP) => Ok(()),
        done => done.map_err(|e| failed(e.into())),
    }
}

/// Refuses an image that is there and ends before the area would.
fn check_length(device: &DeviceFile, expected: u64) -> Result<()> {
    match device.path.metadata() {
        Ok(found) if found.is_file() && found.len() < expected => {
            let found = found.len();
            let path = device.path.clone();
            Err(PoolError::Device(BlockError::Short {
                path,
                expected,
                found,
            }))
        }
        _ => Ok(()),
    }
}

/// The place of the first SSD that can have the area.
fn area_device(options: &MakeOptions) -> Result<usize> {
    let ssd = &options.lower.ssd;
    for (nth, file) in ssd.iter().enumerate() {
        if as_found(file)?.kind == DeviceKind::Conventional {
            return Ok(nth);
        }
    }
    match ssd.first() {
        None => Err(refused(
            &options.file,
            "a volume without NVM needs an SSD, as in --ssd /dev/nvme0n1p3:200G",
        )),
        Some(first) => {
            let kind = as_found(first)?.kind.name();
            let why = format!(
                "it is {kind}: a volume without NVM needs an SSD that can be written anywhere, for its staging area; \
                 give one, or NVM (--nvm). On {kind} devices alone it is not implemented yet"
            );
            Err(refused(&first.path, why))
        }
    }
}

/// The last byte up to `most` at which an area can begin: where a unit of the medium does, if that costs little.
fn begin(unit: &Unit, most: u64) -> u64 {
    let before = unit.before / BLOCK * BLOCK;
    let multiple = if unit.bytes <= ALIGN_MAX {
        unit.bytes
    } else {
        BLOCK
    };
    let aligned = (most + before) / multiple * multiple;
    let whole = aligned
        .checked_sub(before)
        .filter(|at| at.is_multiple_of(BLOCK));
    whole.unwrap_or(most / BLOCK * BLOCK)
}

/// Makes the volume in memory, its first checkpoint on the device, and its file. Gives the file, and whether memory has huge pages.
fn make_in(
    options: &MakeOptions,
    plan: &Plan,
    (uuid, logs): ([u8; 16], (u64, Option<u64>)),
    (devices, device): (&NewDevices, Arc<dyn TierDevice>),
    clock: &dyn Clock,
) -> Result<(VolumeFile, bool)> {
    let mut file = contents::volume_file(options, &uuid, logs, devices)?;
    let entry = StagedEntry {
        memory_dir: shared_memory_dir(&uuid),
        memory_bytes: plan.layout.memory_bytes,
        device: file.ssd[plan.nth].path.clone(),
        at_byte: plan.at_byte,
        staging_bytes: plan.layout.staging_bytes,
    };
    let map = Arc::new(MapOptions::new().anonymous(entry.memory_bytes as usize)?);
    let volume = contents::write(options, &file, &map, devices, clock)?;
    let txid = volume.txid().0;
    drop(volume);
    let area = StagedArea::make(device, plan.at_byte, plan.layout, uuid)
        .map_err(|e| area::failed(&entry.device, e))?;
    let written = pages::written(&map)?;
    pages::checkpoint(&entry.device, &area, &map, &written, (txid, true))?;
    file.staged = Some(entry);
    file.save(&options.file)?;
    Ok((file, map.huge_pages()))
}
