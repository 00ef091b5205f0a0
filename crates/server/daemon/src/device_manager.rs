//! Devices of the lower tiers come, are emptied, and go, while the volume is used.
//!
//! What names a device: its label, the volume file, and the device table in NVM, which decides. Adding:
//! label, volume file, table; removing: table, label, volume file. So a device that is part of the
//! volume always has its label and is always in the file, and a start forgets what is in the file
//! and not in the table.
//!
//! A device is emptied by the thread that migrates (`tiering::service::evacuation`). That it is being emptied stands
//! in the device table, so it goes on after a crash.

use crate::digest_scheduler::DigestScheduler;
use crate::error::Result;
use crate::stats::flash::FlashUse;
use crate::tiering::Tiering;
use serde::{Deserialize, Serialize};
use shale_clients::clients::Clients;
use shale_clients::space_credits::{FreeSpace, SpaceCredits};
use shale_coherence::digest_stop::DigestStop;
use shale_coherence::reclaimer::Reclaimer;
use shale_format::TierId;
use shale_format::device_table::device_state;
use shale_format::limits::{BLOCK_BYTES, DEVICES_MAX};
use shale_pool::DeviceKind;
use shale_pool::device_probe::{self, wrong};
use shale_pool::devices::{Divided, LOWER, NAMES, NewDevice, check_zones, wipe_label};
use shale_pool::host_space::check_new_image;
use shale_pool::volume_file::{DeviceFile, VolumeFile, uuid_text};
use shale_volume::{LowerDeviceInfo, Run, Volume, VolumeError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// A file that was removed a moment ago is there until the kernel has said that it uses it no more, and its blocks are
/// until no reader looks at them: a device whose data finds too little space is looked at so many times more.
const SPACE_LOOKS: u32 = 10;
/// Between two of these looks.
const SPACE_WAIT: Duration = Duration::from_millis(50);
/// Blocks of a device for each block of its tables, at least.
const BLOCKS_PER_TABLE: u64 = 880;

/// One device, for `shale device list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// `ssd` or `hdd`.
    pub tier: String,
    /// Where it is.
    pub path: String,
    /// Its identity.
    pub uuid: String,
    /// Bytes in zones.
    pub size_bytes: u64,
    /// Bytes written since their zones were erased.
    pub used_bytes: u64,
    /// Of these, bytes in use.
    pub live_bytes: u64,
    /// Zones that are empty.
    pub empty_zones: u64,
    /// How it is divided, and why so.
    #[serde(flatten)]
    pub divided: Divided,
    /// `in use`, `emptying`, `empty` (may be removed), `failing` (nothing new goes to it), `missing` (it was not
    /// there when the volume was mounted).
    pub state: String,
    /// What is wrong with it, or why it cannot be emptied.
    pub trouble: Option<String>,
    /// Requests that failed since the start.
    pub errors: u64,
    /// Of the blocks that `status` names because they cannot be read (32 at most) those that are here.
    pub bad_blocks: u64,
    /// What it is: `conventional`, `host-managed`, `open-channel`.
    pub kind: String,
    /// What its flash did since the start, where it is emulated.
    pub flash: Option<FlashUse>,
}

/// A device that an order names.
struct Found {
    tier: TierId,
    at: usize,
    info: LowerDeviceInfo,
}

/// How what is on a device that is gone for good is given up.
fn give_up(path: &Path) -> String {
    let shown = path.display();
    format!(
        "Mount the volume with it, or, if it is gone for good, remove the files that lie there (shale where \
         MOUNTPOINT --device {shown} names them); directories and inodes that lie there are given up by \
         shale fsck VOLUME.toml --repair --without-missing"
    )
}

fn absolute(path: &Path) -> PathBuf {
    let parent = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    let whole = path.canonicalize().ok().or_else(parent);
    whole.unwrap_or_else(|| path.to_path_buf())
}

/// Adds, empties and removes devices of the lower tiers.
pub(crate) struct DeviceManager {
    pub(crate) volume: Arc<Volume>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) reclaimer: Arc<Reclaimer>,
    pub(crate) digests: Arc<DigestScheduler>,
    pub(crate) tiering: Arc<Tiering>,
    pub(crate) credits: Arc<SpaceCredits>,
    /// Where the volume file is, to be written when devices come and go; `None`: they do not.
    pub(crate) volume_path: Option<PathBuf>,
    /// The device that has the area of a volume without NVM.
    pub(crate) area_device: Option<PathBuf>,
    /// Logs that recovery could not digest.
    pub(crate) logs_left: usize,
    /// The count on the labels of devices.
    pub(crate) label_count: u64,
}

impl DeviceManager {
    pub(crate) fn reports(&self) -> Vec<DeviceReport> {
        let mut reports = Vec::new();
        self.tiering.bad_blocks.forget_dead(&self.volume);
        for tier in LOWER {
            let zones = self.volume.lower_zones(tier);
            for (n, info) in self.volume.lower_device_infos(tier).into_iter().enumerate() {
                let mine = zones.iter().filter(|z| z.place.device == n);
                let written: u64 = mine.clone().map(|z| z.written).sum();
                let stuck = self.tiering.stuck(&info.place.uuid);
                let state = match (&info.failing, info.is_emptying(), info.live) {
                    _ if info.is_absent() => "missing",
                    (Some(_), ..) => "failing",
                    (None, true, 0) => "empty",
                    (None, true, _) => "emptying",
                    (None, false, _) => "in use",
                };
                reports.push(DeviceReport {
                    tier: NAMES[tier as usize - 1].to_owned(),
                    path: info.device.as_ref().map_or(String::new(), |d| d.name()),
                    uuid: uuid_text(&info.place.uuid),
                    size_bytes: info.place.blocks * BLOCK,
                    used_bytes: written * BLOCK,
                    live_bytes: info.live * BLOCK,
                    empty_zones: mine.filter(|z| z.written == 0).count() as u64,
                    divided: Divided::of(&info.place, info.device.as_deref()),
                    state: state.to_owned(),
                    trouble: info.failing.clone().or(stuck),
                    errors: info.device.as_ref().map_or(0, |d| d.counts().errors),
                    bad_blocks: self
                        .tiering
                        .bad_blocks
                        .count(tier, info.place.first..info.place.end()),
                    kind: DeviceKind::of(info.place.kind)
                        .map_or("", DeviceKind::name)
                        .to_owned(),
                    flash: info.device.as_ref().and_then(|d| FlashUse::of(&**d)),
                });
            }
        }
        reports
    }

    fn find_device(&self, path: &Path) -> Result<Found> {
        let wanted = absolute(path);
        let mut there = Vec::new();
        for tier in LOWER {
            for (at, info) in self.volume.lower_device_infos(tier).into_iter().enumerate() {
                let name = info.device.as_ref().map_or(String::new(), |d| d.name());
                let same = absolute(Path::new(&name)) == wanted
                    || Path::new(&name) == path
                    || path.as_os_str() == uuid_text(&info.place.uuid).as_str();
                if same {
                    return Ok(Found { tier, at, info });
                }
                there.push(name);
            }
        }
        let why = format!(
            "no device of the volume; it has {}",
            if there.is_empty() {
                "none".to_owned()
            } else {
                there.join(", ")
            }
        );
        Err(wrong(path, why).into())
    }

    /// See [`crate::Daemon::add_device`].
    pub(crate) fn add(&self, tier: TierId, file: &DeviceFile, force: bool) -> Result<DeviceReport> {
        let _guard = self.tiering.lock_mover();
        let sb = self.volume.superblock();
        if !sb.can_have_tiers() {
            let why = "the volume was made with NVM alone by an older shale, which left no place for a \
                       table of devices: make a new volume (shale mkfs) and copy the files there";
            return Err(wrong(&file.path, why).into());
        }
        let left = self.logs_left;
        if left > 0 && !self.tiering.is_tiered() {
            let why = format!(
                "{left} logs that could not be digested reserved no space for tiers below NVM: \
                 unmount, and run shale fsck --repair first"
            );
            return Err(wrong(&file.path, why).into());
        }
        if let Ok(found) = self.find_device(&file.path) {
            let why = format!("it is a device of tier {:?} already", found.tier).to_lowercase();
            return Err(wrong(&file.path, why).into());
        }
        let there = self.volume.lower_device_infos(tier);
        let place = there.len();
        if place >= DEVICES_MAX {
            let why = format!("a tier has at most {DEVICES_MAX} devices");
            return Err(wrong(&file.path, why).into());
        }
        let file = device_probe::as_found(&DeviceFile {
            path: absolute(&file.path),
            ..file.clone()
        })?;
        let zones: u64 = there.iter().map(|info| info.place.zones()).sum();
        let zones = zones + device_probe::divide(&file)?.entry.zones();
        check_zones(&file.path, tier as usize - 1, zones)?;
        if !force {
            check_new_image(tier, &file)?;
        }
        let there = file.path.exists();
        let new = NewDevice::open(&file, force, Some(sb.uuid))?;
        let added = match self.tiering.is_tiered() {
            true => self
                .add_opened(tier, place, &file, &new)
                .inspect(|()| self.tiering.wake()),
            false => self.add_first(tier, &file, &new),
        };
        if added.is_err() && self.volume.may_have_device(&new.entry.uuid) {
            // The next start finds its label and its name in the volume file, if it needs them.
            let shown = file.path.display();
            tracing::warn!("{shown}: whether it was added is found out at the next start");
        } else if added.is_err() {
            // It is no device of the volume; what is left of the try is forgotten at the next start.
            let _ = wipe_label(&*new.device);
            if let Some(volume) = &self.volume_path {
                let _ = VolumeFile::forget_device(volume, &file.path);
            }
            if !there {
                let _ = std::fs::remove_file(&file.path);
            }
        }
        added?;
        tracing::info!("{} added", file.path.display());
        let reports = self.reports();
        let uuid = uuid_text(&new.entry.uuid);
        let report = reports.into_iter().find(|r| r.uuid == uuid);
        report.ok_or_else(|| wrong(&file.path, "it was not added").into())
    }

    /// Adds the first device below NVM. What was logged before has reserved no space for what lies
    /// below, so nothing may go there until all of it is digested; the caller's migration lock sees to that. A
    /// crash on the way is no harm: recovery digests everything before anything moves.
    fn add_first(&self, tier: TierId, file: &DeviceFile, new: &NewDevice) -> Result<()> {
        self.add_opened(tier, 0, file, new)?;
        self.clients.tell_tiers(|| self.tiering.is_tiered());
        let begun = self.digest_what_was();
        shale_sys::failpoints::reach("tiers-begun");
        if let Err(why) = begun {
            let done = self.volume.remove_device(tier, &new.entry.uuid)?;
            self.clients.publish(done.txid);
            self.clients.tell_tiers(|| self.tiering.is_tiered());
            self.reclaimer.request();
            return Err(wrong(&file.path, format!("it is not added: {why}")).into());
        }
        // The thread that migrates slept until now.
        self.tiering.wake();
        Ok(())
    }

    /// Digests all that calls have logged which began before this one.
    fn digest_what_was(&self) -> std::result::Result<(), String> {
        if !self.reclaimer.wait_grace_period() {
            return Err("calls of programs have not returned in time; try again".to_owned());
        }
        for client in self.clients.snapshot() {
            match self.digests.digest_to(&client, client.published().pos().0) {
                Ok(()) | Err(DigestStop::Rejected(_)) => {}
                Err(why) => return Err(format!("of process {} {why}", client.pid)),
            }
        }
        Ok(())
    }

    fn add_opened(
        &self,
        tier: TierId,
        place: usize,
        file: &DeviceFile,
        new: &NewDevice,
    ) -> Result<()> {
        let run = self.take_tables(file, new)?;
        let added = self.add_with_tables(tier, place, (file, new), run);
        if added.is_err() && !self.volume.may_have_device(&new.entry.uuid) {
            self.volume.give_back(run);
        }
        added
    }

    /// NVM for the tables of a device; nobody is given the space meanwhile. A device may come to a volume
    /// that is full to the last block on all tiers, so its tables may have what the reserve can spare:
    /// nobody is given space before as much has moved below.
    fn take_tables(&self, file: &DeviceFile, new: &NewDevice) -> Result<Run> {
        let wanted = Volume::table_blocks(&new.entry) * BLOCK;
        let take = || {
            let supply = || {
                let mut supply = FreeSpace::of(&self.volume);
                supply.blocks.free += supply.blocks.spare();
                supply
            };
            self.credits.with_available(supply, |space| {
                (wanted <= space)
                    .then(|| self.volume.take_tables(&new.entry))
                    .ok_or(space)
            })
        };
        let taken = take().or_else(|_| {
            // What waits to be digested holds space that it does not need.
            self.digests.digest_all();
            self.reclaimer.wait_grace_period();
            take()
        });
        let space = match taken {
            Ok(Err(VolumeError::NoSpace { free, .. })) => {
                let why = format!(
                    "its tables need {wanted} bytes of NVM in a row, and {} are free so: remove files, or \
                     take a smaller device",
                    free * BLOCK
                );
                return Err(wrong(&file.path, why).into());
            }
            Ok(run) => return Ok(run?),
            Err(space) => space,
        };
        let most = ((space / BLOCK).saturating_sub(3) * BLOCKS_PER_TABLE * BLOCK) >> 20;
        let why = format!(
            "its tables need {wanted} bytes of NVM, and {space} can be had: remove files, or begin with a \
             device of {most} MiB"
        );
        Err(wrong(&file.path, why).into())
    }

    fn add_with_tables(
        &self,
        tier: TierId,
        place: usize,
        (file, new): (&DeviceFile, &NewDevice),
        run: Run,
    ) -> Result<()> {
        let uuid = self.volume.superblock().uuid;
        new.label(uuid, (tier as u32, place as u32), self.label_count)?;
        if let Some(volume) = &self.volume_path {
            VolumeFile::name_device(volume, tier, file)?;
        }
        shale_sys::failpoints::reach("device-named");
        let volume = &self.volume;
        let done = volume.add_device_at(tier, (&new.entry, new.start), &new.device, run)?;
        volume.set_spare(tier, place, file.spare())?;
        self.clients.publish(done.txid);
        shale_sys::failpoints::reach("device-added");
        Ok(())
    }

    /// Keeps as much of each device out of use as the volume file says now. What is not there is left out.
    pub(crate) fn use_spare(&self, file: &VolumeFile) {
        for device in file.ssd.iter().chain(&file.hdd) {
            let found = self.find_device(&device.path);
            let done = found.and_then(|found| match found.info.is_absent() {
                true => Ok(()),
                false => Ok(self
                    .volume
                    .set_spare(found.tier, found.at, device.spare())?),
            });
            if let Err(error) = done {
                tracing::debug!("over-provisioning: {error}");
            }
        }
    }

    /// See [`crate::Daemon::evacuate_device`].
    pub(crate) fn evacuate(&self, path: &Path) -> Result<u64> {
        let mut looks = 0;
        loop {
            // Files that were removed a moment ago need not find space.
            self.digests.digest_all();
            match self.begin_to_empty(path)? {
                Ok(live) => return Ok(live * BLOCK),
                Err(why) if looks == SPACE_LOOKS => return Err(wrong(path, why).into()),
                Err(_) => {
                    looks += 1;
                    std::thread::sleep(SPACE_WAIT);
                }
            }
        }
    }

    /// The blocks that are to move; or why the other devices have too little space for them now.
    fn begin_to_empty(&self, path: &Path) -> Result<std::result::Result<u64, String>> {
        let guard = self.tiering.lock_mover();
        let found = self.find_device(path)?;
        let live = found.info.live;
        if live > 0 && found.info.is_absent() {
            let why = format!(
                "it is not there: {}; {} bytes cannot be moved. {}",
                found.info.failing.unwrap_or_default(),
                live * BLOCK,
                give_up(path)
            );
            return Err(wrong(path, why).into());
        }
        if !found.info.is_emptying() {
            let space = self.tiering.available_elsewhere(found.tier, found.at);
            if live > space {
                let bytes = |blocks: u64| blocks * BLOCK;
                return Ok(Err(format!(
                    "it holds {} bytes, and the other devices have space for {}: {} bytes are missing; \
                     add a device (shale device add) or remove files",
                    bytes(live),
                    bytes(space),
                    bytes(live - space)
                )));
            }
            self.set_state(&found, device_state::EMPTYING)?;
        }
        drop(guard);
        self.tiering.unstick(&found.info.place.uuid);
        self.tiering.wake();
        Ok(Ok(live))
    }

    fn set_state(&self, found: &Found, state: u32) -> Result<()> {
        let uuid = &found.info.place.uuid;
        let done = self.volume.set_device_state(found.tier, uuid, state)?;
        self.clients.publish(done.txid);
        Ok(())
    }

    /// See [`crate::Daemon::keep_device`].
    pub(crate) fn keep(&self, path: &Path) -> Result<()> {
        let _guard = self.tiering.lock_mover();
        let found = self.find_device(path)?;
        self.tiering.unstick(&found.info.place.uuid);
        match found.info.is_emptying() {
            true => self.set_state(&found, device_state::IN_USE),
            false => Ok(()),
        }
    }

    /// See [`crate::Daemon::empty_end`].
    pub(crate) fn empty_end(&self, path: &Path, blocks: u64) -> Result<()> {
        let guard = self.tiering.lock_mover();
        let found = self.find_device(path)?;
        let place = found.info.place;
        let from = place.first + blocks;
        self.volume.close_zones(found.tier, found.at, from)?;
        drop(guard);
        self.tiering.unstick(&place.uuid);
        while self.find_device(path)?.info.live_worn > 0 {
            if let Some(why) = self.tiering.stuck(&place.uuid) {
                return Err(wrong(path, why).into());
            }
            self.tiering.wake();
            std::thread::sleep(SPACE_WAIT);
        }
        Ok(())
    }

    /// See [`crate::Daemon::remove_device`].
    pub(crate) fn remove(&self, path: &Path) -> Result<()> {
        if self.find_device(path)?.info.live > 0 {
            // Files that were removed a moment ago hold nothing there.
            self.digests.digest_all();
        }
        let _guard = self.tiering.lock_mover();
        let found = self.find_device(path)?;
        let name = found.info.device.as_ref().map(|device| device.name());
        let is_area =
            |area: &PathBuf| name.is_some_and(|n| absolute(Path::new(&n)) == absolute(area));
        if self.area_device.as_ref().is_some_and(is_area) {
            let why = "it has the staging area of the volume, and stays with it. Make another volume with that elsewhere, and copy";
            return Err(wrong(path, why).into());
        }
        if found.info.live > 0 {
            let help = match found.info.is_absent() {
                true => give_up(path),
                false => {
                    let shown = path.display();
                    format!("Empty it first: shale device evacuate MOUNTPOINT {shown}")
                }
            };
            let why = format!("it holds {} bytes. {help}", found.info.live * BLOCK);
            return Err(wrong(path, why).into());
        }
        let uuid = &found.info.place.uuid;
        let done = self.volume.remove_device(found.tier, uuid)?;
        self.clients.publish(done.txid);
        self.clients.tell_tiers(|| self.tiering.is_tiered());
        self.reclaimer.request();
        shale_sys::failpoints::reach("device-removed");
        let Some(device) = &found.info.device else {
            return Ok(());
        };
        if let Err(e) = wipe_label(&**device) {
            // A device that fails is no reason to keep it.
            tracing::warn!("its label stays: {e}");
        }
        if let Some(volume) = &self.volume_path {
            VolumeFile::forget_device(volume, Path::new(&device.name()))?;
        }
        tracing::info!("{} removed", device.name());
        Ok(())
    }
}
