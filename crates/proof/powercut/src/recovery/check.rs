//! Recovers one image with the daemon's own code and looks at everything that came out.

use crate::wrong::Wrong;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use shale_check::{Below as Devices, CheckOptions, Severity, check};
use shale_daemon::{Daemon, RecoveryReport, recover_only};
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, DirKey, FileBlock, Ino, TierId};
use shale_libfs::OFlags;
use shale_record::Recorded;
use shale_volume::{Inode, View, VolumeError};

use crate::images::Image;
use crate::recording::track::{Parts, parts};
use crate::volume::base::Base;
use crate::volume::media::{PAGE_BYTES, page_hash};
use crate::volume::place::Place;
use crate::volume::sessions::{attach, clock, once_free, side};
use shale_bench::Result;
use shale_model::snapshot::Facts;
use shale_model::{Act, FileAct, Fill, Shale, Side, Snapshot, Stat};

/// What recovering an image came to.
pub struct Recovered {
    /// What recovery stored.
    pub events: Vec<Recorded>,
    /// [`parts`] of the tree.
    pub parts: Parts,
    /// The tree, unless it is one that the volume is known to have.
    pub tree: Option<Snapshot>,
    /// Equal for equal volumes.
    pub volume: u128,
}

/// Puts an image on the media at `place`, which holds the base, and recovers it. `logs`
/// logs exist. `known`: what the tree of a volume is, if it has been read before. The place is
/// left as recovery left it.
///
/// # Errors
/// The outer error: what is around could not do it. The inner one: recovery failed.
pub fn recover(
    place: &mut Place,
    base: &Base,
    image: &Image,
    logs: usize,
    known: &dyn Fn(u128) -> Option<Parts>,
) -> Result<std::result::Result<Recovered, Wrong>> {
    for (key, value) in image.units() {
        place.touch(key.medium(), key.offset());
        place.map(key.medium()).store(key.offset(), &value);
    }
    place.link_logs(logs)?;
    let done = caught(|| {
        let (volume, report) = once_free(|| recover_only(&place.config(false, 0), &*clock()))
            .map_err(|e| format!("recovery: {e}"))?;
        fine(&report)?;
        Ok(volume)
    });
    let events = place.recording.take_events();
    place.touch_all(&events);
    let volume = match done {
        Ok(volume) => volume,
        Err(wrong) => return Ok(Err(wrong)),
    };
    let others = place.other_files()?;
    if !others.is_empty() {
        return Ok(Err(format!("recovery left {}", others.join(", "))));
    }
    let hash = volume_hash(place, base);
    let (parts, tree) = match known(hash) {
        Some(parts) => (parts, None),
        None => {
            let read = || tree(&volume.view()).map_err(|e| format!("the recovered tree: {e}"));
            match caught(read) {
                Ok(tree) => (parts(&tree), Some(tree)),
                Err(wrong) => return Ok(Err(wrong)),
            }
        }
    };
    Ok(Ok(Recovered {
        events,
        parts,
        tree,
        volume: hash,
    }))
}

/// A panic is something wrong like any other.
pub(crate) fn caught<T>(
    f: impl FnOnce() -> std::result::Result<T, Wrong>,
) -> std::result::Result<T, Wrong> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

pub(crate) fn fine(report: &RecoveryReport) -> std::result::Result<(), Wrong> {
    if report.problems.is_empty() && report.logs_left == 0 && report.logs_refused == 0 {
        return Ok(());
    }
    Err(format!("recovery: {}", report.problems.join("; ")))
}

/// Verifies every invariant of the volume at `place`.
///
/// # Errors
/// What is wrong.
pub fn fsck(place: &Place) -> std::result::Result<(), Wrong> {
    let below = place.below.as_ref();
    let options = CheckOptions {
        below: below.map_or_else(Devices::default, |b| b.for_check()),
        ..CheckOptions::default()
    };
    let report = check(place.segment.clone(), &[], &options, &mut |_| ());
    let bad = |severity: Severity| severity != Severity::Info;
    let findings: Vec<String> = report
        .findings
        .iter()
        .filter(|f| bad(f.severity))
        .map(|f| {
            format!(
                "{}: {} (expected {}, found {})",
                f.object, f.what, f.expected, f.found
            )
        })
        .collect();
    match findings.is_empty() && report.complete && !report.needs_recovery {
        true => Ok(()),
        false => Err(format!("fsck: {}", findings.join("; "))),
    }
}

/// Serves the recovered volume: the tree through LibFS, something new written and read,
/// everything deleted, all space back.
///
/// # Errors
/// The outer error: what is around could not do it. The inner one: what is wrong.
pub fn live_on(
    place: &mut Place,
    base: &Base,
    tree: &Snapshot,
) -> Result<std::result::Result<(), Wrong>> {
    let daemon = match once_free(|| Daemon::start(place.config(false, 0), clock())) {
        Ok(daemon) => daemon,
        Err(e) => return Ok(Err(format!("the start after recovery: {e}"))),
    };
    let session = attach(&daemon, &place.maps(0), false)?;
    let done = caught(|| {
        fine(daemon.recovery())?;
        let mut shale = side(&session);
        let found =
            Snapshot::of(&mut shale).map_err(|e| format!("the walk after recovery: {e}"))?;
        if found != *tree {
            return Err(format!(
                "LibFS shows another tree: {}",
                tree.differences(&found).join("; ")
            ));
        }
        if !base.full {
            use_it(&mut shale)?;
        }
        if base.below.is_some() {
            move_down(&daemon, &mut shale, tree)?;
        }
        empty_it(&mut shale, tree)?;
        if base.full {
            // Removing gives the space back at once.
            use_it(&mut shale)?;
        }
        drop(shale);
        daemon.quiesce();
        session.detach().map_err(|e| format!("detach: {e}"))?;
        daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
        let below = [TierId::Ssd, TierId::Hdd].map(|t| daemon.volume().lower_space(t));
        let live: u64 = below.iter().flatten().map(|space| space.live).sum();
        if live > 0 {
            return Err(format!(
                "everything deleted: {live} blocks below NVM are in use"
            ));
        }
        let used = daemon.volume().space().used;
        match used == base.empty_blocks {
            true => Ok(()),
            false => Err(format!(
                "everything deleted: expected {} blocks in use, found {used}",
                base.empty_blocks
            )),
        }
    });
    daemon.abandon();
    let events = place.recording.take_events();
    place.touch_all(&events);
    Ok(done.and_then(|()| fsck(place)))
}

/// Moves everything out of NVM, as far as there is space below, and then extents, inodes and directories: the
/// tree is the same.
fn move_down(
    daemon: &Daemon,
    shale: &mut Shale,
    tree: &Snapshot,
) -> std::result::Result<(), Wrong> {
    daemon
        .migrate(None)
        .and_then(|_| daemon.demote_extents())
        .and_then(|_| daemon.demote_inodes())
        .and_then(|_| daemon.demote_directories())
        .map_err(|e| format!("after recovery, migration: {e}"))?;
    daemon.quiesce();
    let found = Snapshot::of(shale).map_err(|e| format!("after recovery, moved down: {e}"))?;
    match found == *tree {
        true => Ok(()),
        false => Err(format!(
            "after recovery, moved down: {}",
            tree.differences(&found).join("; ")
        )),
    }
}

/// Makes, writes, renames and reads something.
pub fn use_it(side: &mut dyn Side) -> std::result::Result<(), Wrong> {
    let path = |text: &str| text.as_bytes().to_vec();
    let fill = Fill {
        seed: 99,
        len: 9_999,
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let acts = [
        Act::Mkdir(path("new-dir"), 0o755),
        Act::Open(0, path("new-dir/file"), flags, 0o600),
        Act::File(0, FileAct::Write(1, fill)),
        Act::Rename(path("new-dir/file"), path("new-file"), 0),
        Act::File(0, FileAct::Truncate(5_000)),
    ];
    for act in acts {
        side.act(&act)
            .map_err(|e| format!("after recovery, {act:?}: {e}"))?;
    }
    let read = side.act(&Act::File(0, FileAct::Read(0, 10_000)));
    let mut expected = [&[0], &fill.bytes()[..]].concat();
    expected.truncate(5_000);
    if read != Ok(shale_model::Said::Bytes(expected)) {
        return Err("after recovery: what was written reads differently".to_owned());
    }
    for act in [
        Act::File(0, FileAct::Close),
        Act::Unlink(path("new-file")),
        Act::Rmdir(path("new-dir")),
    ] {
        side.act(&act)
            .map_err(|e| format!("after recovery, {act:?}: {e}"))?;
    }
    Ok(())
}

fn empty_it(side: &mut dyn Side, tree: &Snapshot) -> std::result::Result<(), Wrong> {
    for (path, facts) in tree.paths.iter().rev().filter(|(path, _)| !path.is_empty()) {
        let act = match facts.stat.mode & 0o170_000 {
            0o040_000 => Act::Rmdir(path.clone()),
            _ => Act::Unlink(path.clone()),
        };
        side.act(&act)
            .map_err(|e| format!("deleting everything, {act:?}: {e}"))?;
    }
    Ok(())
}

/// What the volume shows, read without LibFS.
pub fn tree(view: &View) -> std::result::Result<Snapshot, VolumeError> {
    let mut snapshot = Snapshot::default();
    let mut firsts: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut left = vec![(Vec::new(), Ino::ROOT)];
    while let Some((path, ino)) = left.pop() {
        let inode = view.inode(ino)?.ok_or(VolumeError::BadIno(ino))?;
        if inode.is_dir() {
            view.entries(&inode, DirKey(0), &mut |entry| {
                let below = match path.is_empty() {
                    true => entry.name,
                    false => [&path[..], b"/", &entry.name].concat(),
                };
                left.push((below, entry.ino));
                ControlFlow::Continue(())
            })?;
        }
        let mut facts = facts(view, &inode)?;
        if !inode.is_dir() && inode.nlink > 1 {
            let first = firsts.entry(inode.ino).or_insert(path.clone());
            facts.same_as = Some(first.clone());
        }
        snapshot.paths.insert(path, facts);
    }
    snapshot.name_firsts();
    Ok(snapshot)
}

fn facts(view: &View, inode: &Inode) -> std::result::Result<Facts, VolumeError> {
    let dir = inode.is_dir();
    Ok(Facts {
        stat: Stat {
            mode: inode.mode,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            size: if dir { 0 } else { inode.size },
        },
        data: match () {
            () if dir => Vec::new(),
            () if inode.is_symlink() => view.link_target(inode)?,
            () => content(view, inode)?,
        },
        xattrs: view.xattrs(inode)?,
        same_as: None,
    })
}

fn content(view: &View, inode: &Inode) -> std::result::Result<Vec<u8>, VolumeError> {
    let mut data = vec![0; (inode.size as usize).next_multiple_of(BLOCK_BYTES)];
    let mut failed = None;
    view.extents(inode, FileBlock(0), &mut |extent| {
        let from = extent.start().0 as usize * BLOCK_BYTES;
        let to = data.len().min(extent.end().0 as usize * BLOCK_BYTES);
        if from < to && !extent.is_unwritten() {
            let addr = BlockAddr::from_raw(extent.addr);
            failed = view.read_blocks(addr, &mut data[from..to]).err();
        }
        match failed {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    })?;
    data.truncate(inode.size as usize);
    failed.map_or(Ok(data), Err)
}

/// Hash of all pages of the NVM tier that differ from the base.
fn volume_hash(place: &Place, base: &Base) -> u128 {
    let mut hash = base.id;
    let mut page = [0; PAGE_BYTES];
    for (_, number) in place.touched().filter(|p| p.0 == 0) {
        let at = number * PAGE_BYTES;
        place.segment.load(at, &mut page);
        if page[..] != base.segment[at..at + PAGE_BYTES] {
            hash ^= page_hash(number as u64, &page);
        }
    }
    hash
}

/// What differs between a recovered tree and those that would be right, for people.
pub fn explain(found: &Snapshot, right: &[(usize, Arc<Snapshot>)]) -> String {
    let lines = right.iter().map(|(step, tree)| {
        let differences = tree.differences(found);
        format!("as after {step} steps, but {}", differences.join("; "))
    });
    lines.collect::<Vec<_>>().join("\n    ")
}
