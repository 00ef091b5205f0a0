//! Repair: what can be read of a damaged volume becomes a whole one again (DESIGN §12).
//!
//! | Module | What it does |
//! | --- | --- |
//! | `space` | which blocks are whose |
//! | `trees` | reads trees as far as they can be read |
//! | `inode_table` | finds the inodes, also where the way to them is lost |
//! | `content` | blocks and attributes of each inode |
//! | `names` | directories: which entries stay; `lost`: what no name leads to |
//! | `write` | writes the result beside what is there, then commits it at once |
//!
//! Rules. What decodes is believed, what does not is lost; what contradicts what was
//! believed before gives way. Structure comes before data, what is in the way of the
//! first owner of a block is copied. What has lost its names gets one in
//! `/lost+found`, unless it was an orphan: then the next mount frees it. Nothing is
//! written over before the commit, so a crash leaves the volume as it was or repaired,
//! and a second repair finds nothing to do.
//!
//! **Memory**: about 500 bytes for each inode, the entries of one directory at a time, three
//! bits for each block. **Work** is bounded like that of the check: each node is entered once.

mod content;
mod inode_table;
mod lost;
mod names;
mod space;
mod trees;
mod write;

use super::checker::check_named;
use super::media::Media;
use super::options::{CheckOptions, LogFile, Progress};
use super::report::{Finding, Findings, Report, Severity};
use super::{lower_tiers, superblocks};
use serde::Serialize;
use shale_format::bitmap::{self, BitmapHeader};
use shale_format::device_table::DeviceTable;
use shale_format::extent::Extent;
use shale_format::inode::Inode;
use shale_format::log::LogSlot;
use shale_format::superblock::{LOG_TABLE_BLOCK, RootBlock, Superblock};
use shale_format::{BlockAddr, Ino, version};
use shale_nvm::Map;
use shale_pool::error::{PoolError, Result};
use shale_sys::printable;
use shale_volume::{Dirent, Rebuild};
use space::Space;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::FromBytes;

/// One thing that was repaired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mended {
    /// What it is about: its path after the repair, else an inode number or the name of a
    /// structure.
    pub object: String,
    /// Number of the inode, if it is about one.
    pub ino: Option<u64>,
    /// What was done.
    pub what: String,
    /// Whether something is lost by it.
    pub lost: bool,
}

/// What a repair did.
#[derive(Clone, Debug, Serialize)]
pub struct RepairReport {
    /// What the check found before.
    pub before: Report,
    /// What was repaired and what was lost. Empty: nothing was written.
    pub mended: Vec<Mended>,
    /// What the check found after.
    pub after: Report,
}

impl RepairReport {
    /// Whether the volume is as it should be now.
    pub fn clean(&self) -> bool {
        self.after.clean()
    }
}

impl fmt::Display for Mended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.lost { "lost" } else { "repaired" };
        write!(f, "{how}: {}: {}", printable::name(&self.object), self.what)
    }
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for mended in &self.mended {
            writeln!(f, "{mended}")?;
        }
        if self.mended.is_empty() && self.before.clean() {
            writeln!(f, "nothing to repair")?;
        }
        write!(f, "{}", self.after)
    }
}

/// An inode that is kept.
struct KeptInode {
    /// As it will be; roots of trees that are rewritten excepted.
    inode: Inode,
    /// Its slot has to be written.
    changed: bool,
    /// Its extents per tier, if its trees have to be written.
    extents: Option<[Vec<Extent>; 3]>,
    /// Its entries, if they have to be written.
    entries: Option<Vec<Dirent>>,
    /// Directory in which its name stays (one of them, of a file).
    place: Option<u64>,
    /// Of a directory: subdirectories in it; of anything else: its names.
    count: u32,
    /// The directory of orphans names it.
    listed: bool,
}

/// A note for the report.
struct Note {
    ino: Option<u64>,
    /// A structure, or a name in the directory `ino`.
    name: Option<String>,
    what: String,
    lost: bool,
}

/// A repair on its way.
struct Repair {
    media: Media,
    sb: Superblock,
    root: RootBlock,
    space: Space,
    /// Addresses of the blocks of the inode file by number; 0: to be written.
    slots: BTreeMap<u64, u64>,
    /// The blocks above or their tree are not what is on the medium.
    slots_changed: bool,
    inodes: BTreeMap<u64, KeptInode>,
    notes: Vec<Note>,
    /// Highest transaction that anything tells of.
    txid: u64,
    /// Log slots that cannot be read.
    bad_logs: Vec<u32>,
    /// Parts of files whose blocks somebody else had before.
    shared: Vec<(u64, Extent)>,
    /// Last blocks of files that hold something behind the end: to be copied without it.
    tails: Vec<(u64, Extent)>,
    /// Blocks of zones below NVM whose entries are lost, by tier.
    lost_zones: [Vec<Range<u64>>; 2],
    /// Blocks in them, by inode and tier.
    unsure: BTreeMap<(u64, usize), u64>,
}

/// Checks a volume and repairs what is wrong. `map` holds the NVM tier, mapped for writing.
///
/// # Errors
/// Both superblocks are damaged or from a newer program, or the volume uses features that this program can only read:
/// nothing can be done then, and nothing is written. Also too few free blocks for what has to be rewritten.
pub fn repair(
    map: &Arc<Map>,
    logs: &[LogFile],
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<RepairReport> {
    let (before, _) = check_named(map.clone(), logs, options, progress, &[]);
    let mut findings = Findings::new(0);
    let mut media = Media::new(map.clone());
    let newest = superblocks::superblock(&media, &mut findings);
    if newest.is_some_and(|sb| sb.ro_compatible & !version::RO_COMPATIBLE != 0) {
        return Err(shale_volume::VolumeError::ReadOnly.into());
    }
    if before.clean() {
        let (mended, after) = (Vec::new(), before.clone());
        return Ok(RepairReport {
            before,
            mended,
            after,
        });
    }
    let Some(mut sb) = newest else {
        return Err(shale_volume::VolumeError::ReadOnly.into());
    };
    mend_tiers(&mut sb);
    let mut rebuild = Rebuild::begin(map.clone(), &sb)?;
    media = Media::new(map.clone());
    let devices = lower_tiers::devices(&media, &sb, &mut findings);
    let devices = devices.ok_or_else(|| {
        let why = "both copies of the device table are damaged: nothing below NVM can be found";
        shale_volume::VolumeError::Lower(why.to_owned())
    })?;
    if sb.has_inodes_below() || sb.has_directories_below() || sb.has_extents_below() {
        let root = believed_root(&media, &sb).0;
        media.open_below(root.as_ref(), &devices, &options.below);
    }
    if let Some(why) = media.missing_below() {
        let why = format!(
            "{why}: inodes, names or extents lie there, and without them nothing is repaired, unless they are given \
             up (--without-missing)"
        );
        return Err(shale_volume::VolumeError::Lower(why).into());
    }
    let files = (!options.logs_staged).then_some(logs);
    let mut repair = Repair::new(media, sb, &devices, files);
    repair.note_parts(&before);
    repair.superblocks(map);
    repair.find_slots();
    repair.read_content();
    repair.read_names();
    repair.name_the_lost();
    let notes = repair.write(&mut rebuild)?;
    // Devices are locked by who has them open, and the check after it opens them again.
    drop(repair);
    let inos: Vec<u64> = notes.1.iter().filter_map(|n| n.ino).collect();
    let (root, used, bad_logs) = notes.0;
    rebuild.superblocks()?;
    rebuild.commit(root, &used.0, &used.1, &bad_logs)?;
    let mut notes = notes.1;
    notes.extend(mend_logs(map, &sb, logs));
    let (after, names) = check_named(map.clone(), logs, options, progress, &inos);
    let mended = notes.into_iter().map(|n| n.into_mended(&names)).collect();
    Ok(RepairReport {
        before,
        mended,
        after,
    })
}

/// Logs that stay: their headers and tails are made to fit the log table.
fn mend_logs(map: &Arc<Map>, sb: &Superblock, files: &[LogFile]) -> Vec<Note> {
    let media = Media::new(map.clone());
    let mut notes = Vec::new();
    for (n, slot) in live_slots(&media) {
        let file = files.iter().find(|f| f.slot == n).map(|f| &f.map);
        let Some(Ok(log)) = file else { continue };
        for (what, lost) in super::logs::mend(n, &slot, sb, log.on(shale_nvm::Path::Log)) {
            notes.push(Note {
                ino: None,
                name: Some(shale_format::log::file_name(n)),
                what,
                lost,
            });
        }
    }
    notes
}

/// Slots of the log table that are in use and can be read.
fn live_slots(media: &Media) -> Vec<(u32, LogSlot)> {
    let mut all = Vec::new();
    for n in 0..shale_format::limits::LOG_SLOTS {
        let mut bytes = [0; shale_format::limits::BLOCK_BYTES];
        let at = n as usize * LogSlot::BYTES;
        let (block, at) = (at / bytes.len(), at % bytes.len());
        if media.load(LOG_TABLE_BLOCK + block as u64, &mut bytes)
            && let Ok(slot) = LogSlot::decode(&bytes[at..at + LogSlot::BYTES], n)
            && slot.state == shale_format::log::slot_state::LIVE
        {
            all.push((n, slot));
        }
    }
    all
}

/// Makes the tables of a superblock agree with one another. Blocks and devices of lower tiers do,
/// else it would not have been read; of NVM the devices are believed if they have all its blocks.
fn mend_tiers(sb: &mut Superblock) {
    for tier in &mut sb.tier[1..] {
        let unused = tier.device.iter_mut().skip(tier.devices as usize);
        unused.for_each(|entry| *entry = zerocopy::FromZeros::new_zeroed());
    }
    let nvm = &mut sb.tier[0];
    let there = nvm.device.iter().filter(|d| d.blocks > 0);
    nvm.devices = there.clone().count() as u32;
    // Its geometry has been checked against the segments.
    if there.fold(0, |sum: u64, d| sum.saturating_add(d.blocks)) != nvm.blocks {
        let uuid = nvm.device[0].uuid;
        nvm.device.fill(zerocopy::FromZeros::new_zeroed());
        nvm.device[0].uuid = uuid;
        nvm.device[0].blocks = nvm.blocks;
        nvm.devices = 1;
    }
    let last = sb.tier.iter().rposition(|t| t.blocks > 0).unwrap_or(0);
    sb.tier_count = last as u8 + 1;
}

/// The root block, if it can be read and is not older than the bitmap; and the last batch that a block of
/// the bitmap tells of. The root block is written with every batch: one that is older is not what was
/// written last.
fn believed_root(media: &Media, sb: &Superblock) -> (Option<RootBlock>, u64) {
    let mut newest = 0;
    let mut bytes = [0; shale_format::limits::BLOCK_BYTES];
    for n in 0..sb.bitmap_blocks {
        let addr = BlockAddr::nvm(sb.bitmap_block + n);
        if media.load(addr.index(), &mut bytes)
            && bitmap::decode(&bytes, addr).is_ok()
            && let Ok((header, _)) = BitmapHeader::read_from_prefix(&bytes)
            && header.txid < 1 << 62
        {
            newest = newest.max(header.txid);
        }
    }
    let root = superblocks::root(media, &mut Findings::new(0));
    (root.filter(|root| root.txid >= newest), newest)
}

impl Note {
    fn into_mended(self, names: &BTreeMap<u64, String>) -> Mended {
        let path = |ino: u64| {
            names
                .get(&ino)
                .cloned()
                .unwrap_or_else(|| format!("inode {ino}"))
        };
        let object = match (self.ino, &self.name) {
            (Some(ino), Some(name)) => format!("{name} in {}", path(ino)),
            (Some(ino), None) => path(ino),
            (None, name) => name.clone().unwrap_or_default(),
        };
        Mended {
            object,
            ino: self.ino,
            what: self.what,
            lost: self.lost,
        }
    }
}

impl Repair {
    fn new(media: Media, sb: Superblock, devices: &DeviceTable, logs: Option<&[LogFile]>) -> Self {
        let tiers = lower_tiers::tier_blocks(&sb, devices);
        let mut space = Space::new(sb.data(), tiers);
        for (addr, len) in lower_tiers::added_tables(&sb, devices) {
            space.claim_run(addr, len);
            space.keep(addr, len);
        }
        let mut repair = Repair {
            space,
            media,
            root: zerocopy::FromZeros::new_zeroed(),
            sb,
            slots: BTreeMap::new(),
            slots_changed: false,
            inodes: BTreeMap::new(),
            notes: Vec::new(),
            txid: 0,
            bad_logs: Vec::new(),
            shared: Vec::new(),
            tails: Vec::new(),
            lost_zones: Default::default(),
            unsure: BTreeMap::new(),
        };
        repair.lost_zones = lower_tiers::lost_zones(&repair.media, devices);
        repair.find_root();
        repair.find_logs(logs);
        repair
    }

    /// Notes what was done to a structure.
    fn note_part(&mut self, name: &str, what: impl Into<String>, lost: bool) {
        let name = Some(name.to_owned());
        self.note(None, name, what.into(), lost);
    }

    /// Notes what was done to an inode.
    fn note_inode(&mut self, ino: u64, what: impl Into<String>, lost: bool) {
        self.note(Some(ino), None, what.into(), lost);
    }

    fn note(&mut self, ino: Option<u64>, name: Option<String>, what: String, lost: bool) {
        self.notes.push(Note {
            ino,
            name,
            what,
            lost,
        });
    }

    /// Structures that are rewritten in any case.
    fn note_parts(&mut self, before: &Report) {
        for name in ["bitmap", "root block", "journal", "device table"] {
            let wrong = |f: &&Finding| f.object == name && f.severity > Severity::Info;
            let rewritten = self.notes.iter().any(|n| n.name.as_deref() == Some(name));
            if before.findings.iter().any(|f| wrong(&f)) && !rewritten {
                self.note_part(name, "rewritten", false);
            }
        }
        for name in ["ssd", "hdd"] {
            if before.findings.iter().any(|f| f.object == name) {
                self.note_part(name, "tables rewritten", false);
            }
        }
        let newer = |f: &&Finding| f.what.ends_with("of a batch that never was");
        if before.findings.iter().any(|f| newer(&f)) {
            let what = "number of the last batch set above all others";
            self.note_part("root block", what, false);
        }
        if before.totals.blocks_leaked > 0 {
            let what = format!("{} leaked blocks freed", before.totals.blocks_leaked);
            self.note_part("bitmap", what, false);
        }
    }

    fn superblocks(&mut self, map: &Arc<Map>) {
        let copies = [0, self.sb.second_block()];
        for (name, block) in ["first superblock", "second superblock"].iter().zip(copies) {
            let bytes: [u8; Superblock::BYTES] =
                map.load_array(block as usize * shale_format::limits::BLOCK_BYTES);
            if bytes != self.sb.encode() {
                self.note_part(name, "written from the other copy", false);
            }
        }
    }

    /// The root block, or one that stands for it: then the inode file is looked for.
    fn find_root(&mut self) {
        let (root, newest) = believed_root(&self.media, &self.sb);
        if let Some(root) = root {
            self.root = root;
            self.see_txid(root.txid);
            return;
        }
        self.root.magic = shale_format::superblock::ROOT_MAGIC;
        self.slots_changed = true;
        self.see_txid(newest);
        let what = match superblocks::root(&self.media, &mut Findings::new(0)) {
            Some(_) => "older than the bitmap: rebuilt",
            None => "rebuilt",
        };
        self.note_part("root block", what, false);
    }

    /// Slots of the log table that cannot be used: their logs are lost.
    fn find_logs(&mut self, files: Option<&[LogFile]>) {
        for n in 0..shale_format::limits::LOG_SLOTS {
            let mut bytes = [0; shale_format::limits::BLOCK_BYTES];
            let at = n as usize * LogSlot::BYTES;
            let block = LOG_TABLE_BLOCK + (at / bytes.len()) as u64;
            let at = at % bytes.len();
            let slot = match self.media.load(block, &mut bytes) {
                true => LogSlot::decode(&bytes[at..at + LogSlot::BYTES], n),
                false => continue,
            };
            // A slot that names no file any more was free.
            let file = || files.is_some_and(|files| files.iter().any(|file| file.slot == n));
            let (why, lost) = match slot {
                Ok(slot) => (super::logs::unusable(n, &slot, &self.sb, files), true),
                Err(e) => (Some(e.to_string()), file()),
            };
            if let Some(why) = why {
                self.bad_logs.push(n);
                let name = shale_format::log::file_name(n);
                let what = match lost {
                    true => "given up, with the records that were not digested",
                    false => "slot rebuilt",
                };
                self.note_part(&name, format!("{what}: {why}"), lost);
            }
        }
    }

    /// Takes a transaction number into account, if it can be one.
    fn see_txid(&mut self, txid: u64) -> bool {
        let sane = txid < 1 << 62;
        if sane {
            self.txid = self.txid.max(txid);
        }
        sane
    }

    fn kept(&self, ino: Ino) -> Option<&KeptInode> {
        self.inodes.get(&ino.0)
    }
}

/// Too few free blocks for what has to be written.
fn no_space() -> PoolError {
    shale_volume::VolumeError::NoSpace { wanted: 1, free: 0 }.into()
}
