//! What a call that goes on can see is not given out: blocks that others have freed meanwhile stay
//! as they were until it has left. Of its own file only bytes change that it reads from its log.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use shale_daemon::Daemon;
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, FileBlock, Ino};
use shale_libfs::{OFlags, Session};
use shale_oplog::encode;
use shale_proto::Request;
use shale_proto::shared_pages::daemon_page;
use shale_volume::{Mapping, View};

use crate::metadata::structures::{Kind, parts};
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::sight::{unlink, use_it};
use crate::volume::stage::{Checked, Filled, Stage, attach_to, caught, close_all, side};
use shale_bench::Result;
use shale_hostile::served::{Hand, ROOT, eventually};
use shale_model::{Act, FileAct, Fill, Side};

const BLOCK: u64 = BLOCK_BYTES as u64;
const SLOT: usize = 1;
/// The reader slot of the call that goes on.
const READER_SLOT: usize = 3;
/// Nobody is cut off while this is looked at.
const PATIENCE: Duration = Duration::from_secs(60);
/// Blocks that stay free: what a digest needs for a moment, and that it need not wait.
const LEFT_FREE: u64 = 160;
/// What the client logs inside of its call: as long as what the file had.
const LOGGED: &[u8] = b"from inside";
/// Each new file.
const FILE_BYTES: usize = 256 << 10;

/// A client that stays inside a call.
struct Inside {
    hand: Hand,
    ino: Ino,
    /// Where its log begins as long as it stays.
    kept: u64,
}

/// When what the client logs inside of its call is digested. A grace period is waited for once per digest after
/// the other, so the first one after it came inside is the one that shows most.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Before others remove what it can see: the log's space has to wait.
    LogFirst,
    /// After: what they remove has to wait.
    RemovedFirst,
}

impl Inside {
    fn enter(daemon: &Daemon) -> Inside {
        let mut hand = Hand::in_process(daemon);
        let ino = hand.make_file("fault-inside", b"from before");
        hand.digest();
        hand.ask(Request::Unlease { ino: ROOT.0 });
        let kept = hand.writer.published().pos().0;
        let inside = Inside { hand, ino, kept };
        eventually("log space comes back", || inside.reclaim() == kept);
        inside.hand.set_reader_slot(READER_SLOT, 1);
        inside.hand.append(encode::write(ino, 0, LOGGED));
        inside
    }

    /// Has what it logged digested.
    fn digest(&self) {
        // A request for a digest would wait for this very call.
        self.hand.ask(Request::Notify);
        let upto = self.hand.writer.published().pos().0;
        let digested = || self.hand.daemon_page.load_u64(daemon_page::DIGESTED);
        eventually("it is digested", || digested() == upto);
    }

    /// The block of its file.
    fn block(&self, view: &View) -> Checked<u64> {
        let text = |e: shale_volume::VolumeError| e.to_string();
        let inode = view.inode(self.ino).map_err(text)?;
        let inode = inode.ok_or("its file is gone")?;
        match view.map_block(&inode, FileBlock(0)).map_err(text)? {
            Mapping::Data { addr, .. } => Ok(addr.index()),
            other => Err(format!("its file has no block: {other:?}")),
        }
    }

    /// Up to where it may use its log again.
    fn reclaim(&self) -> u64 {
        self.hand.daemon_page.load_u64(daemon_page::RECLAIM)
    }

    /// Logs more, which is not digested, and leaves: the space of what is digested comes back.
    fn leave(&self) -> Checked<()> {
        let digested = || self.hand.daemon_page.load_u64(daemon_page::DIGESTED);
        let upto = digested();
        self.hand
            .append(encode::write(self.ino, 0, b"not digested"));
        self.hand.set_reader_slot(READER_SLOT, 2);
        eventually("log space comes back", || self.reclaim() >= upto);
        let reclaim = self.reclaim();
        match reclaim <= digested() {
            true => Ok(()),
            false => Err(format!(
                "log space up to {reclaim} was given back, not digested"
            )),
        }
    }

    fn end(self) {
        self.hand.ask(Request::Detach);
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Nobody has to wait until it is cut off.
        self.hand.set_reader_slot(READER_SLOT, 4);
    }
}

/// All blocks of trees, attributes and data, and what is in them.
fn blocks(view: &View) -> Checked<BTreeMap<u64, Vec<u8>>> {
    let mut places = Vec::new();
    let fixed = view.superblock().data_block * BLOCK;
    for part in parts(view)? {
        // Inodes are read with their checksums, and change in place.
        if part.at >= fixed && part.kind != Kind::Inode {
            places.push(part.at / BLOCK);
        }
    }
    let mut failed = None;
    view.inodes(&mut |_, inode| {
        let inode = match inode {
            Ok(inode) if !inode.is_dir() => inode,
            _ => return ControlFlow::Continue(()),
        };
        let looked = view.extents(&inode, FileBlock(0), &mut |extent| {
            let first = BlockAddr::from_raw(extent.addr).index();
            places.extend(first..first + u64::from(extent.len));
            ControlFlow::Continue(())
        });
        failed = failed.take().or(looked.err());
        ControlFlow::Continue(())
    })
    .map_err(|e| e.to_string())?;
    if let Some(e) = failed {
        return Err(e.to_string());
    }
    // The last block of the tier is a superblock.
    places.retain(|&block| block != view.superblock().second_block());
    let read = |block: u64| {
        let mut bytes = vec![0; BLOCK_BYTES];
        let read = view.read_blocks(BlockAddr::nvm(block), &mut bytes);
        read.map(|_| (block, bytes)).map_err(|e| e.to_string())
    };
    places.into_iter().map(read).collect()
}

/// Removes everything that the workload made.
fn remove_all(side: &mut dyn Side, filled: &Filled) -> Checked<()> {
    const KIND: u32 = 0o170_000;
    const DIR: u32 = 0o040_000;
    // What is below comes behind its directory in the order of paths.
    for (path, facts) in filled.tree.paths.iter().rev() {
        if path.is_empty() {
            continue;
        }
        let done = match facts.stat.mode & KIND == DIR {
            true => side.act(&Act::Rmdir(path.clone())),
            false => side.act(&Act::Unlink(path.clone())),
        };
        done.map_err(|e| format!("remove {}: {e}", String::from_utf8_lossy(path)))?;
    }
    Ok(())
}

/// Writes new files until hardly a block is left that may be taken; gives their names.
fn fill_up(side: &mut dyn Side, session: &Session, daemon: &Daemon) -> Checked<Vec<Vec<u8>>> {
    let mut made = Vec::new();
    for n in 0_u8.. {
        session.digest().map_err(|e| format!("digest: {e}"))?;
        // What the call that goes on can see counts as free, but waiting for it frees nothing.
        let pending = daemon.volume().space().pending;
        let free = session.space().map_err(|e| format!("space: {e}"))?.free;
        if free.saturating_sub(pending) < LEFT_FREE + FILE_BYTES as u64 / BLOCK {
            break;
        }
        let path = format!("fault-{n}").into_bytes();
        let fill = Fill {
            seed: n,
            len: FILE_BYTES,
        };
        for act in [
            Act::Open(SLOT, path.clone(), OFlags::RDWR | OFlags::CREATE, 0o600),
            Act::File(SLOT, FileAct::WriteNext(fill)),
            Act::File(SLOT, FileAct::Close),
        ] {
            side.act(&act).map_err(|e| format!("{act:?}: {e}"))?;
        }
        made.push(path);
    }
    Ok(made)
}

fn hold(stage: &Stage, filled: &Filled, order: Order) -> Checked<usize> {
    let mut config = stage.config();
    config.client_stall_timeout = PATIENCE;
    let daemon: Arc<Daemon> = stage.start_with(config)?;
    let inside = Inside::enter(&daemon);
    if order == Order::LogFirst {
        inside.digest();
    }
    let before = blocks(&daemon.volume().view())?;
    let own = inside.block(&daemon.volume().view())?;
    let session = attach_to(&daemon)?;
    let mut shale = side(&session);
    let used = daemon.volume().space().used;
    remove_all(&mut shale, filled)?;
    session.digest().map_err(|e| format!("digest: {e}"))?;
    let freed = used.saturating_sub(daemon.volume().space().used);
    let made = fill_up(&mut shale, &session, &daemon)?;
    if order == Order::RemovedFirst {
        inside.digest();
    }
    if freed == 0 || made.is_empty() {
        return Err(format!("{freed} blocks freed, {} files made", made.len()));
    }
    let now = daemon.volume().view();
    for (&block, bytes) in &before {
        let mut found = vec![0; BLOCK_BYTES];
        now.read_blocks(BlockAddr::nvm(block), &mut found)
            .map_err(|e| e.to_string())?;
        let from = if block == own { LOGGED.len() } else { 0 };
        if found[from..] != bytes[from..] {
            return Err(format!(
                "block {block} was given out while a call could see it"
            ));
        }
    }
    if inside.reclaim() > inside.kept {
        return Err("log space was given back while a call could see it".to_owned());
    }
    inside.leave()?;
    unlink(&mut shale, b"fault-inside")?;
    for path in &made {
        unlink(&mut shale, path)?;
    }
    daemon.quiesce();
    let pending = daemon.volume().space().pending;
    use_it(&mut shale, b"fault-after")?;
    close_all(&mut shale);
    drop(shale);
    inside.end();
    session.detach().map_err(|e| format!("detach: {e}"))?;
    daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
    if pending > 0 {
        return Err(format!("{pending} blocks do not come back"));
    }
    let report = stage.fsck()?;
    match report.clean() {
        true => Ok(before.len()),
        false => Err(format!("fsck:\n{report}")),
    }
}

/// A call goes on while others free and write everything that it could see.
pub fn calls(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let stage = trial.stage()?;
    while trial.next_case() {
        stage.put(&trial.filled.image)?;
        let order = match trial.cases % 2 == 1 {
            true => Order::RemovedFirst,
            false => Order::LogFirst,
        };
        let held = kept!(caught(|| hold(&stage, trial.filled, order)));
        trial.seen = format!("{held} blocks stayed as they were");
    }
    Ok(Ok(()))
}
