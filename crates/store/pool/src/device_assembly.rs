//! Devices of the lower tiers at a start: found, compared with the device table, counted.
//!
//! A device that is missing, swapped, another volume's, or put back from a backup is named; nothing
//! is written before all are found right. Labels count starts as those of segments do
//! ([`crate::labels`]): twice each time, so that a crash on the way is no damage.
//!
//! *Without a device.* A volume may be started without devices that are not there, if it is asked for: nothing
//! goes to them, and what they hold cannot be read. Devices are found by their labels then, wherever in the volume
//! file they are named. The device table notes of a device that is not there the count of starts that it had seen, before
//! any label counts a start without it. Nothing of what it holds changes meanwhile, so it may come back at any later
//! start, and is distinguished from an older copy of itself by that count.

use crate::device_probe::{self, wrong};
use crate::devices::{LOWER, NAMES, label, label_of, write_label};
use crate::error::{PoolError, Result};
use crate::labels::{self, PUT_BACK};
use crate::volume_file::{DeviceFile, VolumeFile, uuid_text};
use rustix::io::Errno;
use shale_block::{AbsentBlocks, BlockError, TierDevice};
use shale_format::device_table::{DevicePlace, DeviceTable};
use shale_format::superblock::Superblock;
use shale_nvm::Map;
use shale_volume::{LowerDevices, View, Volume};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The volume that is to be started.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'e> {
    /// Its media.
    pub file: &'e VolumeFile,
    /// Where that file is, to be written when a device that it names is none of the volume's; `None`: it is left.
    pub path: Option<&'e Path>,
    /// Without devices that are not there.
    pub degraded: bool,
}

/// One device in its place.
struct AssembledDevice {
    /// Tier and place in it.
    at: (u32, u32),
    place: DevicePlace,
    path: PathBuf,
    device: Arc<dyn TierDevice>,
    /// The count on its label; `None`: it is not there.
    count: Option<u64>,
    /// Percentage that is kept out of use.
    spare: u32,
}

/// Devices of a volume, each found right or not there.
struct Opened {
    volume: [u8; 16],
    placed: Vec<AssembledDevice>,
    /// The newest count there is, of segments and devices.
    newest: u64,
    /// Devices that the volume file names and the volume does not have: adding or removing them was
    /// cut short.
    strangers: Vec<PathBuf>,
}

/// Which file is to be the device of each place, and files that are none's.
type Assigned<'f> = (Vec<Option<&'f DeviceFile>>, Vec<PathBuf>);

/// A volume that was started.
pub struct Started {
    /// The volume.
    pub volume: Volume,
    /// How often it was started, this time included: the count on its labels.
    pub starts: u64,
    /// The device that has the area of a volume without NVM, locked.
    pub area_device: Option<Arc<dyn TierDevice>>,
}

/// Opens a volume with its devices and counts the start on all labels. `starts`: how often it was started, as
/// its segments tell.
///
/// # Errors
/// As [`Named::open`] and [`Volume::open_with`].
pub fn start(
    expected: &Expected<'_>,
    map: &Arc<Map>,
    superblock: &Superblock,
    starts: u64,
) -> Result<Started> {
    if superblock.can_have_tiers() {
        // The device table may be part of the batch that waits.
        Volume::replay(map.clone())?;
    }
    let (view, file) = (View::open(map.clone())?.0, expected.file);
    let table = view.device_table()?;
    check_content(file, &table, map.pieces().len(), view.root()?.txid)?;
    let named = Named {
        file,
        sb: superblock,
        table: &table,
        starts,
    };
    let below = named.open(expected.degraded)?;
    // Before anything is written: without it nothing would be durable.
    let area = file.staged.as_ref().map(|staged| &staged.device);
    let area_device = area.map(|path| below.present(path)).transpose()?;
    let volume = below.open_volume(map.clone())?;
    let last = below.newest + 2;
    let segments = map.pieces().len();
    for count in [last - 1, last] {
        labels::write(
            file.nvm_dir(),
            &superblock.uuid,
            segments,
            count,
            volume.txid().0,
        );
        below.count_start(count)?;
    }
    below.note_back(&volume)?;
    forget_strangers(expected.path, &below.strangers);
    Ok(Started {
        volume,
        starts: last,
        area_device,
    })
}

/// Checks that NVM is not older than devices below it, which have no part in a copy of its segments. NVM alone is of one time,
/// whatever its labels say.
fn check_content(file: &VolumeFile, table: &DeviceTable, segments: usize, txid: u64) -> Result<()> {
    match [0, 1].iter().all(|&n| table.of(n).is_empty()) {
        true => Ok(()),
        false => labels::check_content(file.nvm_dir(), segments, txid),
    }
}

/// Devices that the volume file names and the volume does not have go from the file.
fn forget_strangers(file: Option<&Path>, strangers: &[PathBuf]) {
    for path in strangers {
        let shown = path.display();
        tracing::warn!(
            "{shown}: not a device of the volume (any more): the volume file forgets it"
        );
        if let Some(file) = file
            && let Err(e) = VolumeFile::forget_device(file, path)
        {
            tracing::warn!("{e}");
        }
    }
}

/// What tells which devices there should be.
struct Named<'n> {
    file: &'n VolumeFile,
    sb: &'n Superblock,
    table: &'n DeviceTable,
    /// How often the volume was started, as its segments tell.
    starts: u64,
}

impl Named<'_> {
    /// Opens the devices that a volume file names and compares them with the device table. `degraded`: without those that
    /// are not there.
    ///
    /// # Errors
    /// A device is missing, of another volume, in another's place, older than the others, and not `degraded`; it
    /// is named. So is an NVM directory that is older than a device, in any case.
    fn open(&self, degraded: bool) -> Result<Opened> {
        match self.find(false) {
            // What is not there has to be noted in a device table.
            Err(PoolError::WrongDevice { .. } | PoolError::VolumeFile { .. })
                if degraded && self.sb.has_device_table() =>
            {
                self.find(true)
            }
            found => found,
        }
    }

    fn find(&self, degraded: bool) -> Result<Opened> {
        let (file, nvm_dir) = (self.file, self.file.nvm_dir());
        let mut opened = Opened {
            volume: self.sb.uuid,
            placed: Vec::new(),
            newest: self.starts,
            strangers: Vec::new(),
        };
        for (n, files) in [&file.ssd, &file.hdd].into_iter().enumerate() {
            let places = self.table.of(n);
            let (assigned, strangers) = match degraded {
                true => (by_label(files, places), Vec::new()),
                false => in_order(nvm_dir, n, files, places)?,
            };
            opened.strangers.extend(strangers);
            for ((place, file), nth) in places.iter().zip(assigned).zip(0..) {
                let at = (n as u32 + 1, nth);
                let placed = match AssembledDevice::open(file, place, at, self.sb) {
                    Err(PoolError::WrongDevice { path, why }) if degraded => {
                        AssembledDevice::absent(path, place, at, why)
                    }
                    other => other?,
                };
                opened.placed.push(placed);
            }
        }
        opened.compare_counts(nvm_dir, self.starts, degraded)?;
        Ok(opened)
    }
}

/// What of a volume is older than the rest, as its start would find it. `content`: how many segments there are, and the volume's last
/// batch; none: no labels tell of it. Devices that are not there are passed over; nothing is
/// written.
pub fn what_is_old(
    file: &VolumeFile,
    sb: &Superblock,
    table: &DeviceTable,
    starts: u64,
    content: Option<(usize, u64)>,
) -> Option<PoolError> {
    let older = content.map(|(segments, txid)| check_content(file, table, segments, txid));
    if let Some(Err(error)) = older {
        return Some(error);
    }
    let mut opened = Opened {
        volume: sb.uuid,
        placed: Vec::new(),
        newest: starts,
        strangers: Vec::new(),
    };
    for (n, files) in [&file.ssd, &file.hdd].into_iter().enumerate() {
        let places = table.of(n);
        for ((place, file), nth) in places.iter().zip(by_label(files, places)).zip(0..) {
            let placed = AssembledDevice::open(file, place, (n as u32 + 1, nth), sb);
            opened.placed.extend(placed);
        }
    }
    opened.compare_counts(file.nvm_dir(), starts, false).err()
}

/// Assigns devices in the order in which they are named. Where there are more than the volume has, those whose
/// label it does not know are left out, if it is the others that it has.
fn in_order<'f>(
    nvm_dir: &Path,
    n: usize,
    files: &'f [DeviceFile],
    places: &[DevicePlace],
) -> Result<Assigned<'f>> {
    let known = |file: &&DeviceFile| {
        let label = label_at(file);
        label.is_some_and(|uuid| places.iter().any(|p| p.uuid == uuid))
    };
    let mut mine: Vec<&DeviceFile> = files.iter().collect();
    let mut strangers = Vec::new();
    if files.len() > places.len() {
        let (found, others): (Vec<_>, Vec<_>) = files.iter().partition(known);
        if found.len() == places.len() {
            mine = found;
            strangers = others.into_iter().map(|f| f.path.clone()).collect();
        }
    }
    if mine.len() == places.len() {
        return Ok((mine.into_iter().map(Some).collect(), strangers));
    }
    let named: Vec<String> = files.iter().map(|f| f.path.display().to_string()).collect();
    let named = match named.is_empty() {
        true => "none".to_owned(),
        false => named.join(", "),
    };
    let (tier, many) = (NAMES[n], places.len());
    let plural = if many == 1 { "" } else { "s" };
    Err(PoolError::VolumeFile {
        path: nvm_dir.to_path_buf(),
        key: tier.to_owned(),
        why: format!(
            "the volume has {many} device{plural} there, the volume file names {named}: it needs a [[{tier}]] with path and \
             size_bytes for each (is it a copy from before shale device add?)"
        ),
    })
}

fn label_at(file: &DeviceFile) -> Option<[u8; 16]> {
    let device = device_probe::open_label(file)?;
    label_of(&*device).ok().flatten().map(|label| label.uuid)
}

/// Assigns devices by their labels; places that have none get what is left, which tells what is wrong.
fn by_label<'f>(files: &'f [DeviceFile], places: &[DevicePlace]) -> Vec<Option<&'f DeviceFile>> {
    let labels: Vec<_> = files.iter().map(label_at).collect();
    let of = |place: &DevicePlace| labels.iter().position(|l| *l == Some(place.uuid));
    let found: Vec<Option<usize>> = places.iter().map(of).collect();
    let mut left = (0..files.len()).filter(|n| !found.contains(&Some(*n)));
    let all = found.iter().map(|n| n.or_else(|| left.next()));
    all.map(|n| n.map(|n| &files[n])).collect()
}

/// A device that cannot be opened because it is not there, or is not what it was, is wrong; any other error stays.
fn as_wrong(path: &Path, error: PoolError) -> PoolError {
    let why = match &error {
        PoolError::Device(BlockError::Os { tried, source, .. }) => {
            let gone = [
                Errno::NOENT,
                Errno::NOTDIR,
                Errno::NXIO,
                Errno::NODEV,
                Errno::IO,
            ];
            let is = |errno: &Errno| source.raw_os_error() == Some(errno.raw_os_error());
            let there = !gone.iter().any(is);
            if there {
                return error;
            }
            format!("cannot {tried}: {source}")
        }
        PoolError::Device(BlockError::Short {
            expected, found, ..
        }) => format!("expected at least {expected} bytes, found {found}"),
        PoolError::Device(BlockError::Unfit { why, .. }) => why.clone(),
        PoolError::Device(BlockError::Image { .. } | BlockError::ZoneReport { .. }) => {
            error.to_string()
        }
        _ => return error,
    };
    wrong(path, why)
}

impl AssembledDevice {
    fn open(
        file: Option<&DeviceFile>,
        place: &DevicePlace,
        at: (u32, u32),
        sb: &Superblock,
    ) -> Result<AssembledDevice> {
        let Some(file) = file else {
            let path = PathBuf::from(uuid_text(&place.uuid));
            return Err(wrong(&path, "the volume file does not name it"));
        };
        let opened = device_probe::open(file, place);
        let device = opened.map_err(|e| as_wrong(&file.path, e))?;
        let count = check(&file.path, &*device, (sb, place), at);
        let count = count.map_err(|e| as_wrong(&file.path, e))?;
        Ok(AssembledDevice {
            at,
            place: *place,
            path: file.path.clone(),
            device,
            count: Some(count),
            spare: file.spare(),
        })
    }

    fn absent(path: PathBuf, place: &DevicePlace, at: (u32, u32), why: String) -> AssembledDevice {
        let bytes = place.device_bytes();
        AssembledDevice {
            at,
            place: *place,
            path: path.clone(),
            device: Arc::new(AbsentBlocks::new(path, bytes, why)),
            count: None,
            spare: 0,
        }
    }

    fn tier(&self) -> shale_format::TierId {
        LOWER[self.at.0 as usize - 1]
    }

    /// Why a device with this count is older than the rest of a volume with the newest of all counts.
    fn why_old(&self, newest: u64) -> Option<String> {
        // One that was away has missed starts.
        let expected = match self.place.absent {
            0 => newest,
            since => since,
        };
        let count = self.count.filter(|count| count + 1 < expected)?;
        Some(format!(
            "it is older than the rest of the volume (label {count}, expected {expected}): was it put \
             back from a backup? {PUT_BACK}"
        ))
    }
}

/// The count on the label of the device that is to be at this tier and place.
fn check(
    path: &Path,
    device: &dyn TierDevice,
    (sb, place): (&Superblock, &DevicePlace),
    at: (u32, u32),
) -> Result<u64> {
    let Some(label) = label_of(device)? else {
        let why = "it has no label of a volume: another device, or an erased one".to_owned();
        return Err(wrong(path, why));
    };
    if label.volume != sb.uuid {
        let why = format!(
            "it is of volume {}, expected {}",
            uuid_text(&label.volume),
            uuid_text(&sb.uuid)
        );
        return Err(wrong(path, why));
    }
    if label.uuid != place.uuid {
        let tier = label
            .tier
            .checked_sub(1)
            .and_then(|n| NAMES.get(n as usize));
        let why = format!(
            "it is {} {} of this volume, not {} {}: are devices swapped?",
            tier.unwrap_or(&"device"),
            label.place,
            NAMES[at.0 as usize - 1],
            at.1
        );
        return Err(wrong(path, why));
    }
    Ok(label.count)
}

impl Opened {
    fn compare_counts(&mut self, nvm_dir: &Path, starts: u64, degraded: bool) -> Result<()> {
        let newest = self.placed.iter().filter_map(|one| one.count).max();
        self.newest = self.newest.max(newest.unwrap_or(0));
        for one in &mut self.placed {
            let count = one.count.unwrap_or(0);
            // Segments count each start first.
            if starts > 0 && count > starts {
                return Err(PoolError::NvmDir {
                    dir: nvm_dir.to_path_buf(),
                    why: format!(
                        "it is older than {} (label {starts}, expected {count}): was it put back from a \
                         backup? {PUT_BACK}",
                        one.path.display()
                    ),
                });
            }
            match one.why_old(self.newest) {
                Some(why) if degraded => {
                    *one = AssembledDevice::absent(one.path.clone(), &one.place, one.at, why);
                }
                Some(why) => return Err(wrong(&one.path, why)),
                None => {}
            }
        }
        Ok(())
    }

    /// The device at a path, which is there.
    fn present(&self, path: &Path) -> Result<Arc<dyn TierDevice>> {
        let there = |one: &&AssembledDevice| one.path == path && one.count.is_some();
        let found = self.placed.iter().find(there);
        let missing = || {
            wrong(
                path,
                "it has the staging area, and is not there, or is none of the volume's devices",
            )
        };
        Ok(found.ok_or_else(missing)?.device.clone())
    }

    /// Notes one more start on every device that is there, once of the two times.
    fn count_start(&self, count: u64) -> Result<()> {
        for one in self.placed.iter().filter(|one| one.count.is_some()) {
            let label = label(self.volume, one.at, &one.place.entry(), count);
            write_label(&*one.device, &label)?;
        }
        Ok(())
    }

    /// Opens their volume, which keeps their spare, and notes what is not there.
    ///
    /// # Errors
    /// As [`Volume::open_with`]; the note cannot be written.
    fn open_volume(&self, map: Arc<Map>) -> Result<Volume> {
        let volume = Volume::open_with(map, &self.devices())?;
        for one in &self.placed {
            let (tier, place) = (one.tier(), one.at.1);
            volume.set_spare(tier, place as usize, one.spare)?;
            if one.count.is_none() {
                let shown = one.path.display();
                let why = one.device.trouble().unwrap_or_default();
                tracing::warn!("{shown}: not there: {why}; what it holds cannot be read");
            }
            if one.count.is_none() && one.place.absent == 0 {
                volume.set_device_absent(tier, &one.place.uuid, self.newest.max(1))?;
            }
        }
        Ok(volume)
    }

    /// Notes of devices that were away that they are back. Their labels have counted the start.
    ///
    /// # Errors
    /// The note cannot be written.
    fn note_back(&self, volume: &Volume) -> Result<()> {
        let back = |one: &&AssembledDevice| one.count.is_some() && one.place.absent != 0;
        for one in self.placed.iter().filter(back) {
            tracing::info!("{}: it is back", one.path.display());
            volume.set_device_absent(one.tier(), &one.place.uuid, 0)?;
        }
        Ok(())
    }

    fn devices(&self) -> LowerDevices {
        let of = |tier| {
            let mine = self.placed.iter().filter(move |p| p.at.0 == tier);
            mine.map(|p| Arc::clone(&p.device)).collect()
        };
        LowerDevices {
            ssd: of(1),
            hdd: of(2),
        }
    }
}
