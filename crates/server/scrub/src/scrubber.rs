//! The walk over a volume that is in use.

use crate::report::{Damage, ScrubProgress, ScrubReport};
use shale_clients::clients::Clients;
use shale_coherence::reclaimer::Reclaimer;
use shale_format::device_table::{DEVICE_TABLE_COPIES, DeviceTable};
use shale_format::inode::Inode;
use shale_format::limits::{BLOCK_BYTES, INODES_PER_BLOCK, LOG_SLOTS};
use shale_format::superblock::{SUPER_BLOCK, Superblock};
use shale_format::{BlockAddr, DirKey, FileBlock, Ino, TierId, bitmap};
use shale_tiering::Tiering;
use shale_volume::{Run, View, Volume, VolumeError};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// A batch is written in place in less.
const TABLE_WAIT: Duration = Duration::from_millis(10);
/// Damage reported at most; the rest is counted.
const REPORTED_MAX: usize = 1000;
/// Blocks below NVM that are read at once: 1 MiB.
const RUN_BLOCKS: u64 = (1 << 20) / BLOCK_BYTES as u64;
/// Directories on one path.
const STEPS_MAX: usize = 4096;

/// A scrub on its way.
struct Scrub<'a> {
    services: &'a Scrubber,
    view: View,
    report: ScrubReport,
    /// Blocks of data of the inode at hand that cannot be read.
    unread: Vec<(BlockAddr, VolumeError)>,
    /// Inodes with damage.
    bad: BTreeSet<u64>,
    /// Space for a run of blocks.
    buffer: Vec<u8>,
}

/// Verifies a volume while it is used.
pub struct Scrubber {
    /// The volume.
    pub volume: Arc<Volume>,
    /// They know when it is being unmounted.
    pub clients: Arc<Clients>,
    /// Keeps what is read from being used again meanwhile.
    pub reclaimer: Arc<Reclaimer>,
    /// Rewrites blocks of data of which it has a copy.
    pub tiering: Arc<Tiering>,
}

impl Scrubber {
    /// Scrubs; stops early when the volume is being unmounted, or `progress` says so: it is asked before each block of the inode file.
    /// What cannot be read is in the report.
    pub fn scrub(&self, progress: &mut dyn FnMut(ScrubProgress) -> ControlFlow<()>) -> ScrubReport {
        let mut scrub = Scrub {
            services: self,
            view: self.volume.view(),
            report: ScrubReport::default(),
            unread: Vec::new(),
            bad: BTreeSet::new(),
            buffer: Vec::new(),
        };
        scrub.heads();
        scrub.bitmap();
        scrub.report.complete = scrub.inodes(progress);
        if !scrub.bad.is_empty() {
            scrub.name();
        }
        scrub.report
    }
}

impl Scrub<'_> {
    fn note(&mut self, object: &str, ino: Option<u64>, what: impl std::fmt::Display) {
        self.report.errors += 1;
        self.bad.extend(ino);
        if self.report.damage.len() < REPORTED_MAX {
            self.report.damage.push(Damage {
                object: object.to_owned(),
                ino,
                what: what.to_string(),
                bytes: None,
            });
        }
    }

    /// Notes a block of a file's data, or of a link's target. Blocks that adjoin are one entry: a disk that dies has
    /// thousands, and each file has to be named.
    fn note_data(&mut self, inode: &Inode, block: u64, what: impl std::fmt::Display) {
        let first = block * BLOCK_BYTES as u64;
        // Behind the end of the file there is nothing that could be lost.
        let end = (first + BLOCK_BYTES as u64).min(inode.size.max(first));
        let last = self.report.damage.last_mut();
        let last = last.filter(|last| last.ino == Some(inode.ino));
        if let Some(bytes) = last.and_then(|last| last.bytes.as_mut())
            && bytes.end == first
        {
            bytes.end = end;
            self.report.errors += 1;
            return;
        }
        let listed = self.report.damage.len();
        self.note("", Some(inode.ino), what);
        if let Some(one) = self.report.damage.get_mut(listed) {
            one.bytes = Some(first..end);
        }
    }

    fn heads(&mut self) {
        let second = self.view.superblock().second_block();
        for (name, block) in [
            ("first superblock", SUPER_BLOCK),
            ("second superblock", second),
        ] {
            let mut bytes = [0; Superblock::BYTES];
            let read = self.view.read_at(BlockAddr::nvm(block), 0, &mut bytes);
            let whole = read.and_then(|()| Ok(Superblock::decode(&bytes, block)?));
            if let Err(e) = whole {
                self.note(name, None, e);
            }
        }
        self.device_table();
        if let Err(e) = self.view.root() {
            self.note("root block", None, e);
        }
        for n in 0..LOG_SLOTS {
            if let Err(e) = self.view.log_slot(n) {
                self.note("log table", None, e);
            }
        }
    }

    fn device_table(&mut self) {
        let sb = *self.view.superblock();
        for copy in (0..DEVICE_TABLE_COPIES).filter(|_| sb.has_device_table()) {
            let at = sb.device_table_block() + copy;
            let read = || {
                let mut bytes = [0; DeviceTable::BYTES];
                self.view.read_at(BlockAddr::nvm(at), 0, &mut bytes)?;
                Ok::<_, VolumeError>(DeviceTable::decode(&bytes, at, &sb)?)
            };
            // It changes in place: once more, and its writer is done.
            let again = |_| {
                std::thread::sleep(TABLE_WAIT);
                read()
            };
            if let Err(e) = read().or_else(again) {
                self.note("device table", None, e);
            }
        }
    }

    fn bitmap(&mut self) {
        let (first, blocks) = {
            let sb = self.view.superblock();
            (sb.bitmap_block, sb.bitmap_blocks)
        };
        for n in 0..blocks {
            let addr = BlockAddr::nvm(first + n);
            let mut block = [0; BLOCK_BYTES];
            // It changes in place, with each transaction.
            let quiet = self.services.volume.begin();
            let read = self.view.read_blocks(addr, &mut block);
            drop(quiet);
            let whole = read.and_then(|()| Ok(bitmap::decode(&block, addr)?));
            if let Err(e) = whole {
                self.note("bitmap", None, e);
            }
            self.report.bitmap_blocks += 1;
        }
    }

    /// All inodes; whether it came to the end.
    fn inodes(&mut self, progress: &mut dyn FnMut(ScrubProgress) -> ControlFlow<()>) -> bool {
        let (mut fb, mut done) = (0, 0);
        loop {
            let of = self.view.root().map_or(0, |r| r.inode_file.blocks);
            let stop = progress(ScrubProgress { done, of }).is_break();
            if stop || self.services.clients.is_closing() {
                return false;
            }
            match self.next_block(fb) {
                Ok(Some(at)) => {
                    for n in 0..INODES_PER_BLOCK {
                        let ino = Ino(at * INODES_PER_BLOCK + n);
                        self.inode(ino);
                        self.mend(ino);
                    }
                    fb = at + 1;
                    done += 1;
                }
                Ok(None) => return true,
                Err(e) => {
                    // Its place is reported by `fsck`, which knows ways around.
                    self.note("inode file", None, e);
                    return false;
                }
            }
        }
    }

    /// First block of the inode file that is mapped, from `fb` on.
    fn next_block(&self, fb: u64) -> Result<Option<u64>, VolumeError> {
        let _reader = self.services.reclaimer.read();
        let file = self.view.root()?.inode_file;
        let mut found = None;
        self.view.extents(&file, FileBlock(fb), &mut |e| {
            found = Some(e.file_block);
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    fn inode(&mut self, ino: Ino) {
        let _reader = self.services.reclaimer.read();
        let inode = match self.view.inode(ino) {
            Ok(Some(inode)) => inode,
            Ok(None) => return,
            Err(e) => return self.note("", Some(ino.0), e),
        };
        self.report.inodes += 1;
        let (mut nodes, mut bad) = (0, Vec::new());
        // Nothing breaks it off.
        let _ = self.view.nodes(&inode, &mut |at, read| {
            // One below NVM may have been read before: what counts is what is on the device.
            let below = at.addr.tier() != Some(TierId::Nvm);
            let read = read.and_then(|()| match below {
                true => self.view.read_at(at.addr, 0, &mut [0; BLOCK_BYTES]),
                false => Ok(()),
            });
            match read {
                Ok(()) => nodes += 1,
                Err(e) => bad.push(e),
            }
            ControlFlow::Continue(())
        });
        self.report.nodes += nodes;
        for e in bad {
            self.note("", Some(ino.0), e);
        }
        if inode.has_content() {
            self.data_below(&inode);
        }
        if inode.is_symlink()
            && let Err(e) = self.view.link_target(&inode)
        {
            self.note("", Some(ino.0), e);
        }
        if inode.xattr_addr != 0 {
            self.report.attributes += 1;
            if let Err(e) = self.view.xattrs(&inode) {
                self.note("", Some(ino.0), e);
            }
        }
    }

    /// Data on lower tiers.
    fn data_below(&mut self, inode: &Inode) {
        let mut runs: Vec<Run> = Vec::new();
        // What cannot be read of the trees has been noted.
        let _ = self.view.extents(inode, FileBlock(0), &mut |e| {
            let (addr, len) = (BlockAddr::from_raw(e.addr), e.len.into());
            if addr.tier() != Some(TierId::Nvm) && !e.is_unwritten() {
                match runs.last_mut().filter(|r| r.addr.plus(r.len) == addr) {
                    Some(last) => last.len += len,
                    None => runs.push(Run { addr, len }),
                }
            }
            ControlFlow::Continue(())
        });
        for run in runs {
            for done in (0..run.len).step_by(RUN_BLOCKS as usize) {
                let (addr, len) = (run.addr.plus(done), RUN_BLOCKS.min(run.len - done));
                self.run_below(Run { addr, len });
            }
        }
    }

    /// Reads blocks at once; if that fails one by one, so that the damaged ones are named.
    fn run_below(&mut self, run: Run) {
        self.report.data_blocks += run.len;
        self.buffer.resize(run.len as usize * BLOCK_BYTES, 0);
        if self.view.read_at(run.addr, 0, &mut self.buffer).is_ok() {
            return;
        }
        for n in 0..run.len {
            let block = &mut self.buffer[..BLOCK_BYTES];
            if let Err(e) = self.view.read_at(run.addr.plus(n), 0, block) {
                self.unread.push((run.addr.plus(n), e));
            }
        }
    }

    /// Has blocks that could not be read rewritten where there is a copy; tells of the others.
    fn mend(&mut self, ino: Ino) {
        for (addr, e) in std::mem::take(&mut self.unread) {
            match self.block_at(ino, addr) {
                Some((inode, at)) if self.services.tiering.mend_block(&inode, at, addr) => {
                    self.report.repaired_blocks += 1;
                }
                Some((inode, at)) => self.note_data(&inode, at, e),
                // It has gone, or moved, meanwhile.
                None => {}
            }
        }
    }

    /// Which block of an inode lies there, if one does.
    fn block_at(&self, ino: Ino, addr: BlockAddr) -> Option<(Inode, u64)> {
        let _reader = self.services.reclaimer.read();
        let inode = self.view.inode(ino).ok()??;
        let mut found = None;
        let _ = self.view.extents(&inode, FileBlock(0), &mut |e| {
            let lies = e.addr <= addr.raw() && addr.raw() < e.addr + u64::from(e.len);
            found = lies.then(|| e.file_block + (addr.raw() - e.addr));
            match lies {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        Some((inode, found?))
    }

    /// Finds the paths of the inodes with damage: one more walk over all directories.
    fn name(&mut self) {
        let mut names: BTreeMap<u64, (u64, Vec<u8>)> = BTreeMap::new();
        let mut wanted = self.bad.clone();
        let mut fb = 0;
        while let Ok(Some(at)) = self.next_block(fb) {
            for n in 0..INODES_PER_BLOCK {
                self.names_in(Ino(at * INODES_PER_BLOCK + n), &wanted, &mut names);
            }
            fb = at + 1;
        }
        for ino in std::mem::take(&mut wanted) {
            let path = self.path(ino, &names);
            let damage = self.report.damage.iter_mut();
            for one in damage.filter(|d| d.ino == Some(ino)) {
                one.object.clone_from(&path);
            }
        }
    }

    fn names_in(
        &self,
        dir: Ino,
        wanted: &BTreeSet<u64>,
        names: &mut BTreeMap<u64, (u64, Vec<u8>)>,
    ) {
        let _reader = self.services.reclaimer.read();
        let Ok(Some(inode)) = self.view.inode(dir) else {
            return;
        };
        if !inode.is_dir() || dir == Ino::ORPHANS {
            return;
        }
        // What cannot be read of it has been noted.
        let _ = self.view.entries(&inode, DirKey(0), &mut |e| {
            if wanted.contains(&e.ino.0) {
                names.entry(e.ino.0).or_insert((dir.0, e.name));
            }
            ControlFlow::Continue(())
        });
    }

    fn path(&self, ino: u64, names: &BTreeMap<u64, (u64, Vec<u8>)>) -> String {
        if ino == Ino::ROOT.0 {
            return "/".to_owned();
        }
        let Some((dir, name)) = names.get(&ino) else {
            return format!("inode {ino}");
        };
        let (mut parts, mut at) = (vec![name.escape_ascii().to_string()], *dir);
        while at != Ino::ROOT.0 && parts.len() < STEPS_MAX {
            let Some((parent, name)) = self.name_of_dir(at) else {
                parts.push(format!("(inode {at})"));
                break;
            };
            parts.push(name);
            at = parent;
        }
        parts.reverse();
        format!("/{} (inode {ino})", parts.join("/"))
    }

    /// Parent of a directory and its name there.
    fn name_of_dir(&self, dir: u64) -> Option<(u64, String)> {
        let _reader = self.services.reclaimer.read();
        let inode: Inode = self.view.inode(Ino(dir)).ok()??;
        let parent = self.view.inode(Ino(inode.parent)).ok()??;
        let mut found = None;
        let read = self.view.entries(&parent, DirKey(0), &mut |e| {
            if e.ino.0 == dir {
                found = Some((parent.ino, e.name.escape_ascii().to_string()));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        read.ok().and(found)
    }
}
