//! Decide: a pure function of records and volume (DESIGN §6.2). What it gives,
//! [`super::data`] and [`super::apply`] carry out with nothing left to decide.

use super::access_policy::AccessPolicy;
use super::coalesce::{At, Coalesced, DirDelta, Entry, InodeDelta, NOBODY, Step, Stop, bad};
use super::estimate::Estimate;
use super::image::Image;
use super::item::{Item, Refused};
use super::layout::{self, FilePlan, StoreRun};
use super::ranges::Ranges;
use super::stats::DigestStats;
use shale_format::inode::{self, Inode};
use shale_format::limits::BLOCK_BYTES;
use shale_format::xattr::Xattrs;
use shale_format::{BlockAddr, DirKey, Ino, LogPos, TxId};
use shale_oplog::Op;
use shale_volume::{Run, VolumeError};
use std::ops::Range;

/// Directories that one chunk looks at on the way up from others: about a tenth of a second.
const STEPS_MAX: u64 = 1 << 19;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A record must not be digested. Records before `keep` can be.
    #[error("{refused}")]
    Refused {
        /// Which, and why.
        refused: Refused,
        /// Index of the first record of its transaction.
        keep: usize,
    },
    /// Enough for one chunk: others wait meanwhile. The first `keep` records make one.
    #[error("the first {keep} records are enough work")]
    Enough {
        /// Index of the record behind them.
        keep: usize,
    },
    /// The volume could not be read.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// One change in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// Takes the entry of this name out.
    Remove(Box<[u8]>),
    /// Puts an entry in.
    Insert(Entry),
    /// Points the entry at another inode; the name stays.
    Replace(Entry),
}

/// What happens to an inode's entry in the directory of orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orphan {
    /// It gets one.
    Insert {
        /// Type, as in `d_type`.
        kind: u8,
    },
    /// It is another inode now.
    Replace {
        /// Type, as in `d_type`.
        kind: u8,
    },
    /// It loses it.
    Remove,
}

/// Everything that happens to one inode number.
#[derive(Clone, Debug)]
pub struct InodePlan {
    /// The number.
    pub ino: Ino,
    /// Batch that wrote its slot in the volume that was planned for; `None`: it was free.
    pub base: Option<TxId>,
    /// What the volume has there goes: content, entries, attributes, slot.
    pub wipe: bool,
    /// Changes that empty the directory which goes.
    pub wiped_entries: Vec<(DirKey, EntryChange)>,
    /// The inode afterwards (roots, blocks and place of the attributes not yet);
    /// `None`: the number is free.
    pub inode: Option<Inode>,
    /// Changes of its entries.
    pub entries: Vec<(DirKey, EntryChange)>,
    /// All extended attributes, if one changes.
    pub xattrs: Option<Xattrs>,
    /// Its blocks.
    pub file: FilePlan,
    /// Its entry among the orphans.
    pub orphan: Option<Orphan>,
}

/// What a chunk does to the volume.
#[derive(Clone, Debug)]
pub struct Plan {
    /// By number.
    pub inodes: Vec<InodePlan>,
    /// New blocks needed in all.
    pub new_blocks: u64,
    /// Estimate of the journal bytes that the transaction needs.
    pub journal_bytes: u64,
    /// Bytes of the volume that had been reserved for these records.
    pub reserve_bytes: u64,
    /// Stolen blocks that become part of files.
    pub linked: Vec<Run>,
    /// Stolen blocks that no file needs any more: they stay free and with the client's grant.
    pub unused: Vec<Run>,
    /// Granted inode numbers that the records used, also for inodes that are gone again.
    pub created: Vec<Ino>,
    /// Of these, the numbers of inodes that are gone again and never reach the volume.
    pub vanished: Vec<Ino>,
    /// Counts.
    pub stats: DigestStats,
}

impl Plan {
    /// Numbers of inodes that go from the volume, and of which no new one comes.
    pub fn removed(&self) -> impl Iterator<Item = Ino> + '_ {
        let gone = |p: &&InodePlan| p.base.is_some() && p.inode.is_none();
        self.inodes.iter().filter(gone).map(|p| p.ino)
    }

    /// Blocks that files get where they had none, whatever else there is: a record of a few
    /// bytes can ask for any number of them.
    pub fn unwritten_blocks(&self) -> u64 {
        let ranges = self.inodes.iter().flat_map(|i| &i.file.unwritten);
        ranges.fold(0, |sum: u64, r| sum.saturating_add(r.end - r.start))
    }
}

/// Makes the plan of a run of whole transactions.
///
/// # Errors
/// The first record that must not be digested, so many that they are too much at once, or the
/// volume cannot be read.
pub fn plan(
    items: &[Item],
    image: &dyn Image,
    policy: &dyn AccessPolicy,
) -> Result<Plan, PlanError> {
    let mut net = Coalesced::new(image, policy);
    let (mut chain, mut credit) = (0, policy.credit());
    for (n, item) in items.iter().enumerate() {
        let taken = spend_credit(&mut credit, item).and_then(|()| take(&mut net, n as u32, item));
        if let Err(stop) = taken {
            return Err(match stop {
                Stop::Volume(e) => PlanError::Volume(e),
                Stop::Bad(why) => PlanError::Refused {
                    refused: Refused {
                        pos: LogPos(item.header.pos),
                        kind: Some(item.header.kind()),
                        ino: Ino(item.header.ino),
                        why: why.into_owned(),
                    },
                    keep: chain,
                },
            });
        }
        if !item.more() {
            chain = n + 1;
            if net.steps > STEPS_MAX && chain < items.len() {
                return Err(PlanError::Enough { keep: chain });
            }
        }
    }
    Ok(decide(net, items)?)
}

/// Takes what a record says it has reserved out of its client's credit.
fn spend_credit(credit: &mut Option<u64>, item: &Item) -> Step<()> {
    if let Some(left) = credit {
        match left.checked_sub(reserved(item)) {
            Some(less) => *left = less,
            None => return bad("more space reserved than the client has credit for"),
        }
    }
    Ok(())
}

/// Bytes that a record says were reserved for it.
fn reserved(item: &Item) -> u64 {
    u64::from(item.header.reserve) * 64
}

/// Takes one record into the net.
fn take(net: &mut Coalesced<'_>, index: u32, item: &Item) -> Step<()> {
    let header = item.header;
    let at = &At { index, header };
    match &item.op {
        Op::Create {
            body, name, target, ..
        } => net.create(at, body, name, target),
        Op::Link {
            kind, twin, name, ..
        } => net.link(at, *kind, *twin, name),
        Op::Unlink {
            kind, twin, name, ..
        } => net.unlink(at, *kind, *twin, name),
        Op::Rename { body, old, new, .. } => net.rename(at, body, old, new),
        Op::Write { at: from, .. } => net.write(at, *from),
        Op::Steal {
            addr, blocks, end, ..
        } => net.steal(at, *addr, *blocks, *end),
        Op::Truncate { .. } => net.truncate(at),
        Op::SetAttr { body, .. } => net.set_attr(at, body),
        Op::SetXattr { name, value, .. } => net.xattr(at, name, Some(value)),
        Op::RemoveXattr { name, .. } => net.xattr(at, name, None),
        Op::Fallocate { bytes, mode, .. } => net.fallocate(at, *bytes, *mode),
        Op::Free { .. } => net.release(at),
    }
}

/// Which records count.
struct Count(Vec<bool>);

impl Count {
    fn add(&mut self, by: impl IntoIterator<Item = u32>) {
        for n in by {
            if n != NOBODY {
                self.0[n as usize] = true;
            }
        }
    }
}

fn decide(net: Coalesced<'_>, items: &[Item]) -> Result<Plan, VolumeError> {
    let mut count = Count(vec![false; items.len()]);
    let gone = |ino: &&Ino| net.inodes.get(ino).is_some_and(InodeDelta::vanished);
    let mut vanished: Vec<Ino> = net.created.iter().filter(gone).copied().collect();
    vanished.sort_unstable();
    vanished.dedup();
    let mut plan = Plan {
        inodes: Vec::new(),
        new_blocks: 0,
        journal_bytes: 0,
        reserve_bytes: 0,
        linked: Vec::new(),
        unused: Vec::new(),
        vanished,
        created: net.created,
        stats: DigestStats::default(),
    };
    let image = net.image;
    let mut journal = Estimate::default();
    for (&ino, inode) in &net.inodes {
        if let Some(p) = inode_plan(image, ino, inode, &mut count)? {
            let stats = &mut plan.stats;
            stats.inodes += u64::from(p.inode.is_some());
            stats.inodes_freed += u64::from(p.inode.is_none());
            stats.entries += (p.entries.len() + p.wiped_entries.len()) as u64;
            let linked = p.file.links.iter().map(|l| Run {
                addr: l.addr,
                len: l.blocks,
            });
            plan.linked.extend(linked);
            plan.new_blocks += p.file.new_blocks();
            journal.add(image, &p, inode)?;
            plan.stats.extents += (p.file.links.len() + p.file.copies.len()) as u64;
            plan.stats.stores += p.file.stores.len() as u64;
            plan.stats.bytes_stored += p.file.stores.iter().map(StoreRun::bytes).sum::<u64>();
            plan.stats.bytes_digested += p.file.payload_bytes;
            plan.inodes.push(p);
        }
    }
    plan.journal_bytes = journal.bytes(image);
    plan.unused = unused(&net.stolen, &plan.linked);
    tally(&mut plan, items, &count);
    Ok(plan)
}

/// Stolen blocks that are not linked.
fn unused(stolen: &Ranges<u32>, linked: &[Run]) -> Vec<Run> {
    let raw = |run: &Run| run.addr.raw()..run.addr.raw() + run.len;
    let mut linked: Vec<Range<u64>> = linked.iter().map(raw).collect();
    linked.sort_unstable_by_key(|run| run.start);
    let (mut linked, mut unused) = (linked.into_iter().peekable(), Vec::new());
    let mut add = |raw: Range<u64>| {
        if raw.start < raw.end {
            unused.push(Run {
                addr: BlockAddr::from_raw(raw.start),
                len: raw.end - raw.start,
            });
        }
    };
    for (stolen, _) in stolen.iter() {
        let mut at = stolen.start;
        // One that is linked may go on in the blocks of the next record.
        while let Some(run) = linked.next_if(|run| run.end <= stolen.end) {
            add(at..run.start);
            at = at.max(run.end);
        }
        let part = linked.peek().filter(|run| run.start < stolen.end);
        add(at..part.map_or(stolen.end, |run| run.start));
    }
    unused
}

/// Counts of the records.
fn tally(plan: &mut Plan, items: &[Item], count: &Count) {
    let mut writes = 0;
    for (item, &counts) in items.iter().zip(&count.0) {
        plan.reserve_bytes += reserved(item);
        plan.stats.bytes_logged += u64::from(item.header.bytes);
        plan.stats.skipped += u64::from(!counts);
        let bytes = match &item.op {
            Op::Write { len, .. } => u64::from(*len),
            Op::Steal { blocks, .. } => u64::from(*blocks) * BLOCK_BYTES as u64,
            Op::Create { target, .. } => target.len() as u64,
            _ => continue,
        };
        plan.stats.payload_bytes += bytes;
        writes += u64::from(counts && !matches!(item.op, Op::Create { .. }));
    }
    let stats = &mut plan.stats;
    stats.records = items.len() as u64;
    stats.coalesced = writes.saturating_sub(stats.extents + stats.stores);
    stats.bytes_skipped = stats.payload_bytes.saturating_sub(stats.bytes_digested);
    stats.blocks_written = plan.new_blocks;
    stats.blocks_linked = plan.linked.iter().map(|r| r.len).sum();
}

/// What happens to one number; `None`: nothing.
fn inode_plan(
    image: &dyn Image,
    ino: Ino,
    net: &InodeDelta,
    count: &mut Count,
) -> Result<Option<InodePlan>, VolumeError> {
    let wipe = net.base.is_some() && (net.fresh || net.now.is_none());
    if net.vanished() || (!wipe && !changed(net)) {
        return Ok(None);
    }
    count.add(net.marks.all());
    let entries = entries(&net.dir, count);
    let wiped_entries = entries_of_wiped(&net.base_dir, count);
    let file = match net.now {
        Some(_) => layout::file(image, net.continued(), &net.content)?,
        None => FilePlan::default(),
    };
    count.add(file.by.iter().copied());
    let xattrs = net.xattrs.as_ref().map(|x| {
        count.add(x.by.values().copied());
        x.now.clone()
    });
    let is_orphan = |i: &Option<Inode>| {
        i.as_ref()
            .filter(|i| i.flags & inode::flag::ORPHAN != 0)
            .map(|i| shale_format::dirent::kind_of_mode(i.mode))
    };
    let orphan = match (is_orphan(&net.base), is_orphan(&net.now)) {
        (None, Some(kind)) => Some(Orphan::Insert { kind }),
        (Some(was), Some(kind)) if was != kind => Some(Orphan::Replace { kind }),
        (Some(_), None) => Some(Orphan::Remove),
        _ => None,
    };
    Ok(Some(InodePlan {
        ino,
        base: net.base.map(|b| TxId(b.txid)),
        wipe,
        wiped_entries,
        inode: net.now,
        entries,
        xattrs,
        file,
        orphan,
    }))
}

/// Whether anything of an inode that stays the same one changes.
fn changed(net: &InodeDelta) -> bool {
    net.fresh
        || net.marks.all().iter().any(|&m| m != NOBODY)
        || !net.content.is_empty()
        || net.xattrs.is_some()
        || net.dir.slots.values().any(|s| s.base != s.now)
}

fn entries(dir: &DirDelta, count: &mut Count) -> Vec<(DirKey, EntryChange)> {
    let mut changes = Vec::new();
    for (&key, slot) in &dir.slots {
        let change = match (&slot.base, &slot.now) {
            (a, b) if a == b => continue,
            (Some(a), None) => EntryChange::Remove(a.name.clone()),
            (None, Some(b)) => EntryChange::Insert(b.clone()),
            (Some(a), Some(b)) if a.name == b.name => EntryChange::Replace(b.clone()),
            (Some(a), Some(b)) => {
                count.add([slot.by]);
                changes.push((key, EntryChange::Remove(a.name.clone())));
                changes.push((key, EntryChange::Insert(b.clone())));
                continue;
            }
            (None, None) => continue,
        };
        count.add([slot.by]);
        changes.push((key, change));
    }
    changes
}

/// Removes what the volume still has in a directory that goes.
fn entries_of_wiped(dir: &DirDelta, count: &mut Count) -> Vec<(DirKey, EntryChange)> {
    let mut changes = Vec::new();
    for (&key, slot) in &dir.slots {
        if let Some(base) = &slot.base {
            count.add([slot.by]);
            changes.push((key, EntryChange::Remove(base.name.clone())));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_linked_is_unused() {
        let run = |first, len| Run {
            addr: BlockAddr::nvm(first),
            len,
        };
        let mut stolen = Ranges::default();
        for (first, len) in [(10, 5), (15, 5), (20, 5), (30, 1), (40, 10)] {
            let raw = BlockAddr::nvm(first).raw();
            stolen.insert(raw..raw + len, 0);
        }
        // One goes over the ends of three records.
        let linked = [run(47, 1), run(12, 10), run(43, 2), run(49, 1)];
        let rest = [
            run(10, 2),
            run(22, 3),
            run(30, 1),
            run(40, 3),
            run(45, 2),
            run(48, 1),
        ];
        assert_eq!(unused(&stolen, &linked), rest);
        assert_eq!(unused(&stolen, &[run(10, 15), run(30, 1), run(40, 10)]), []);
        assert_eq!(unused(&stolen, &[]).len(), 5);
    }
}
