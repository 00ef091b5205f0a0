//! A check on its way: the walks over slots, inodes and links, one after the other.
//!
//! What a walk finds out for a later one is a field of [`Checker`]. What a structure may hold is checked by functions that are
//! given what they need, in files beside this one; repair uses them, too.

mod bitmap;
mod counts;
mod entries;
mod inode;
mod link_counts;
mod logs;
mod lower_tiers;
mod paths;

use crate::block_refs::{Claims, Owner, Part};
use crate::inode::{extents, kind};
use crate::inode_table::{Slot, Slots, state};
use crate::media::{self, Media};
use crate::options::{CheckOptions, LogFile, Progress, Stage};
use crate::report::{Findings, Object, Report, Severity, Totals};
use crate::{journal, superblocks};
use shale_format::device_table::DeviceTable;
use shale_format::dirent::kind_of_mode;
use shale_format::inode::Inode;
use shale_format::limits::{BLOCK_BYTES, INODE_BYTES, INODES_PER_BLOCK};
use shale_format::superblock::{RootBlock, Superblock};
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_nvm::Map;
use shale_pool::volume_file::uuid_text;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is expected where something is missing.
const EXPECT_ONE: &str = "one";
const INODE_FILE: Object = Object::Part("inode file");
/// Blocks of the inode file between two reports of progress.
const PROGRESS_BLOCKS: u64 = 256;

/// A check on its way.
struct Checker<'a> {
    media: Media,
    sb: Superblock,
    devices: DeviceTable,
    root: RootBlock,
    findings: Findings,
    claims: Claims,
    slots: Slots,
    totals: Totals,
    /// Logs are made again from a staging area.
    logs_staged: bool,
    progress: &'a mut dyn FnMut(Progress),
    /// A directory could not be read whole: names may be in it.
    names_missing: bool,
    /// The inode file could not be read whole.
    inode_file_broken: bool,
    /// Blocks of inodes below NVM cannot be read.
    slots_unread: bool,
    /// Leaves of directories in ssd and hdd.
    leaves_below: [u64; 2],
    /// Leaves of files' extents there.
    extent_leaves_below: [u64; 2],
    /// Some extents cannot be read.
    extents_missing: bool,
}

/// Checks a volume. `map` holds the NVM tier; nobody may be changing it. Nothing is
/// written.
///
/// A volume that needs recovery is checked as it is after the batch in its journal;
/// records in update logs are counted, and are no damage.
pub fn check(
    map: Arc<Map>,
    logs: &[LogFile],
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Report {
    check_named(map, logs, options, progress, &[]).0
}

/// Checks, and gives the paths of `inos` besides.
pub(crate) fn check_named(
    map: Arc<Map>,
    logs: &[LogFile],
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
    inos: &[u64],
) -> (Report, BTreeMap<u64, String>) {
    let mut media = Media::new(map);
    let mut findings = Findings::new(options.findings_max);
    let mut report = Report::default();
    progress(Progress {
        stage: Stage::Head,
        done: 0,
        of: 0,
    });
    if let Some(sb) = superblocks::superblock(&media, &mut findings) {
        report.uuid = Some(uuid_text(&sb.uuid));
        report.needs_recovery = journal::replay(&mut media, &sb, &mut findings);
        let devices = crate::lower_tiers::devices(&media, &sb, &mut findings);
        let root = superblocks::root(&media, &mut findings);
        if let (Some(root), Some(devices)) = (root, devices) {
            report.txid = root.txid;
            // Before those are opened, and so locked, that are read.
            for why in options.below.absent(&devices) {
                let what = "without this device the volume can be mounted with --degraded only";
                findings.note(
                    Severity::Warning,
                    Object::Part("tiers"),
                    None,
                    what,
                    ("", why),
                );
            }
            media.open_below(Some(&root), &devices, &options.below);
            let tiers = crate::lower_tiers::tier_blocks(&sb, &devices);
            let data = sb.data();
            let checker = Checker {
                media,
                claims: Claims::new(data, tiers, options.findings_max),
                sb,
                devices,
                root,
                findings,
                slots: Slots::default(),
                totals: Totals::default(),
                logs_staged: options.logs_staged,
                progress,
                names_missing: false,
                inode_file_broken: false,
                slots_unread: false,
                leaves_below: [0; 2],
                extent_leaves_below: [0; 2],
                extents_missing: false,
            };
            let paths = checker.run(logs, &mut report, inos);
            return (report, paths);
        }
    }
    let what = "the volume could not be checked any further";
    findings.error(Object::Part("volume"), None, what, ("", ""));
    findings.finish(&Default::default(), &mut report);
    (report, BTreeMap::new())
}

impl Checker<'_> {
    /// Checks; gives the paths of `inos`.
    fn run(mut self, logs: &[LogFile], report: &mut Report, inos: &[u64]) -> BTreeMap<u64, String> {
        self.check_logs(logs);
        self.claim_tables();
        self.check_inode_file();
        self.check_below();
        self.each_block(Stage::Slots, Self::check_slots);
        self.each_inode(Stage::Inodes, |c, inode, _| c.check_inode(inode));
        self.check_ways();
        self.each_inode(Stage::Links, |c, inode, slot| c.check_links(inode, slot));
        self.tell(Stage::Bitmap, 0);
        let marked = self.check_bitmap();
        self.check_lower();
        self.totals.blocks_used = self.claims.counts.iter().sum();
        self.totals.blocks_twice = self.claims.again_blocks;
        self.check_counts(marked);
        let lost = self.inode_file_broken || self.slots_unread;
        report.complete = !self.claims.gave_up() && !lost && !self.names_missing;
        if self.claims.gave_up() {
            let what = "so many blocks are used twice that not all were looked at";
            let found = self.totals.blocks_twice;
            self.findings
                .error(Object::Part("volume"), None, what, ("", found));
        }
        report.totals = self.totals;
        self.name_owners();
        let paths = self.paths(&self.findings.inodes());
        let wanted = self.paths(inos);
        self.findings.finish(&paths, report);
        wanted
    }

    fn tell(&mut self, stage: Stage, done: u64) {
        let of = match stage {
            Stage::Head | Stage::Bitmap => 0,
            _ => self.slots.blocks(),
        };
        (self.progress)(Progress { stage, done, of });
    }

    /// Finds where the slots lie.
    fn check_inode_file(&mut self) {
        let file = self.root.inode_file;
        let f = &mut self.findings;
        f.equal(INODE_FILE, "number of the inode file", 0, file.ino);
        if !file.is_file() {
            let found = format!("mode {:o}", file.mode);
            f.error(
                INODE_FILE,
                None,
                "type of an inode",
                ("a regular file", found),
            );
        }
        let file = Inode { ino: 0, ..file };
        let sb = &self.sb;
        let (slots, mut unusable, mut all) = (&mut self.slots, 0, Vec::new());
        let mapped = extents(
            &self.media,
            &mut self.claims,
            f,
            (&file, self.root.txid, false),
            &mut |e| {
                let below = BlockAddr::from_raw(e.addr).tier() != Some(TierId::Nvm);
                let usable = (!below || sb.has_inodes_below())
                    && !e.is_unwritten()
                    && e.end() <= FileBlock::containing(file.size);
                all.extend(usable.then_some(*e));
                unusable += u64::from(!usable);
            },
        );
        // Of one tier after the other they were reported.
        all.sort_by_key(|e| e.file_block);
        let mut end = 0;
        for e in all {
            let usable = e.file_block >= end && slots.add(e.file_block, e.addr, e.len);
            unusable += u64::from(!usable);
            end = end.max(e.end().0);
        }
        slots.close();
        self.totals.extents += mapped.extents;
        self.totals.nodes += mapped.nodes;
        if unusable > 0 {
            let what = "extents of the inode file that cannot hold slots";
            f.error(INODE_FILE, None, what, (0, unusable));
        }
        if !mapped.broken {
            f.equal(INODE_FILE, "count of blocks", mapped.blocks, file.blocks);
        }
        let lost = u64::from(mapped.broken) + unusable > 0 || mapped.blocks > slots.blocks();
        self.inode_file_broken = lost;
        self.names_missing = lost;
    }

    /// Reads the inode file block by block.
    fn each_block(&mut self, stage: Stage, f: impl Fn(&mut Self, Ino, u64, &media::Block)) {
        let mut block = [0; BLOCK_BYTES];
        for rank in 0..self.slots.blocks() {
            if rank.is_multiple_of(PROGRESS_BLOCKS) {
                self.tell(stage, rank);
            }
            if let Some((first, at)) = self.slots.block(rank)
                && self.media.load(at, &mut block)
            {
                f(self, first, at, &block);
            }
            if self.claims.found_all() {
                break;
            }
        }
        self.tell(stage, self.slots.blocks());
    }

    /// Calls `f` with every inode that can be read.
    fn each_inode(&mut self, stage: Stage, f: impl Fn(&mut Self, &Inode, Slot)) {
        self.each_block(stage, |c, first, _, block| {
            for (n, bytes) in (0..).zip(block.chunks_exact(INODE_BYTES)) {
                let ino = Ino(first.0 + n);
                let known = |slot: &Slot| c.slots.state_of(*slot) & state::KIND != 0;
                if let Some(slot) = c.slots.find(ino).filter(known)
                    && let Ok(inode) = Inode::decode(bytes, ino)
                {
                    f(c, &inode, slot);
                }
            }
        });
    }

    /// Notes which slots of a block hold what.
    fn check_slots(&mut self, first: Ino, at: u64, block: &media::Block) {
        let at = Some(at).filter(|&at| BlockAddr::from_raw(at).tier() == Some(TierId::Nvm));
        let mut used = 0;
        for (n, bytes) in (0..INODES_PER_BLOCK).zip(block.chunks_exact(INODE_BYTES)) {
            let ino = Ino(first.0 + n);
            let Some(slot) = self.slots.find(ino) else {
                continue;
            };
            let object = Object::Inode(ino.0);
            let known = match Inode::decode(bytes, ino) {
                Ok(inode) if inode.is_free() => {
                    if bytes.iter().any(|&b| b != 0) {
                        let what = "free slot that is not zeros";
                        self.findings
                            .note(Severity::Warning, object, at, what, ("", ""));
                    }
                    continue;
                }
                Ok(inode) => {
                    self.count_inode(&inode);
                    if !ino.is_user() && ino != Ino::ORPHANS {
                        let what = "inode with a number that no inode may have";
                        self.findings.error(object, at, what, ("", ""));
                    }
                    // A type that does not exist counts as something that is there.
                    kind_of_mode(inode.mode).max(1)
                }
                Err(e) => {
                    self.totals.damaged_inodes += 1;
                    self.names_missing = true;
                    self.findings.undecodable(object, at, &e);
                    state::DAMAGED
                }
            };
            used += 1;
            self.slots.state[slot.0 as usize] = known;
        }
        if used == 0 {
            let what = "block of the inode file without an inode";
            self.findings
                .note(Severity::Warning, INODE_FILE, at, what, ("", first.0));
        }
    }

    fn count_inode(&mut self, inode: &Inode) {
        let t = &mut self.totals;
        t.inodes += 1;
        let kinds = match kind_of_mode(inode.mode) {
            kind::DIRECTORY => &mut t.directories,
            kind::FILE => &mut t.files,
            kind::SYMLINK => &mut t.symlinks,
            _ => &mut t.special,
        };
        *kinds += 1;
    }

    /// Does the walk over all blocks again to name the first owners of blocks that are
    /// used twice, and reports them.
    fn name_owners(&mut self) {
        if !self.claims.again() {
            return;
        }
        self.findings.quiet = true;
        let file = Inode {
            ino: 0,
            ..self.root.inode_file
        };
        let (claims, findings) = (&mut self.claims, &mut self.findings);
        extents(
            &self.media,
            claims,
            findings,
            (&file, self.root.txid, false),
            &mut |_| (),
        );
        self.each_inode(Stage::Owners, |c, inode, _| c.check_inode(inode));
        self.findings.quiet = false;
        let twice = self.claims.twice().to_vec();
        let earlier = twice.iter().filter_map(|t| t.earlier).map(|o| o.ino);
        let paths = self.paths(&earlier.collect::<Vec<_>>());
        for t in twice {
            let by = t
                .earlier
                .map_or("what could not be found again".to_owned(), |o| {
                    let path = paths.get(&o.ino).cloned();
                    let ino = || match o.ino {
                        0 => "inode file".to_owned(),
                        ino => format!("inode {ino}"),
                    };
                    format!("{} of {}", use_of(&o), path.unwrap_or_else(ino))
                });
            let found = format!(
                "{} blocks as {}; the first owner: {by}",
                t.len,
                use_of(&t.later)
            );
            let object = t.later.object();
            self.findings
                .error(object, Some(t.first), "blocks used twice", ("", found));
        }
    }
}

/// What an owner uses a block for.
fn use_of(owner: &Owner) -> &'static str {
    match owner.part {
        Part::Data => "data",
        Part::Node => "tree node",
        Part::Xattrs => "extended attributes",
        Part::Tables => "tables of a device",
    }
}
