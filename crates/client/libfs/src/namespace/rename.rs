//! Renaming: moving, replacing, exchanging.
//!
//! Lock order: the session's rename lock, when a directory changes its parent; then
//! the states of both directories and both children. Parents change only under the
//! rename lock, so the walk that looks for cycles sees a tree that stands still.

use crate::client::call::CallContext;
use crate::client::call_runner::CallRunner;
use crate::inodes::flags::{may_add_to, may_take_from};
use crate::inodes::inode_locks::Locked;
use crate::namespace::create_lookup::{Fresh, add_entry, create_body, new_numbered, take_entry};
use crate::namespace::names::Names;
use crate::namespace::path_cache::PathCache;
use crate::namespace::unlink_link::{entry, frees, lose_name, may_remove, unchanged};
use shale_format::dirent::kind_of_mode;
use shale_format::inode::{Inode, time};
use shale_format::limits::{DEPTH_MAX, LINKS_MAX};
use shale_format::record::{RenameBody, flag, record_bytes};
use shale_format::{DirKey, Ino, LogPos};
use shale_inodes::dirents::{FoundDirent, KIND_DIR, Slot, check_length, check_new, slot};
use shale_inodes::node::{Node, NodeState};
use shale_oplog::{Part, encode};
use shale_session::caller::Caller;
use shale_session::errno::{Errno, Result, Stop};
use shale_session::log::client_log::Need;
use shale_session::space::reservation::{INODE_BYTES, TREE_BYTES};
use std::sync::Arc;

/// `RENAME_NOREPLACE`: an existing new name is `EEXIST`.
pub const RENAME_NOREPLACE: u32 = 1;
/// `RENAME_EXCHANGE`: both names exist and change places.
pub const RENAME_EXCHANGE: u32 = 2;

/// `RENAME_WHITEOUT`: the old name stands for a whiteout then, as overlay file systems know them.
pub const RENAME_WHITEOUT: u32 = 4;

/// Whether there is such a rename.
pub(crate) fn is_kind(flags: u32) -> bool {
    matches!(flags & !RENAME_WHITEOUT, 0 | RENAME_NOREPLACE) || flags == RENAME_EXCHANGE
}

/// A rename as it was asked for.
#[derive(Clone, Copy)]
pub(crate) struct Ask<N> {
    /// Directory and name of what moves.
    pub from: (u64, N),
    /// Where it moves.
    pub to: (u64, N),
    /// As in [`Session::rename`].
    pub flags: u32,
    /// What the names have to stand for, if that has been asked about.
    pub expected: Option<(u64, Option<u64>)>,
}

/// What the names stand for.
struct Ends {
    source: FoundDirent,
    source_node: Arc<Node>,
    target: Option<(FoundDirent, Arc<Node>)>,
}

impl<N: AsRef<[u8]>> Ask<N> {
    fn borrowed(&self) -> Ask<&[u8]> {
        Ask {
            from: (self.from.0, self.from.1.as_ref()),
            to: (self.to.0, self.to.1.as_ref()),
            flags: self.flags,
            expected: self.expected,
        }
    }

    fn exchange(&self) -> bool {
        self.flags == RENAME_EXCHANGE
    }

    fn whiteout(&self) -> bool {
        self.flags & RENAME_WHITEOUT != 0
    }

    fn moves_across(&self) -> bool {
        self.from.0 != self.to.0
    }
}

/// See [`crate::Session::rename`].
pub(crate) fn rename(
    calls: &CallRunner,
    names: &Names,
    caller: &Caller,
    from: (u64, &[u8]),
    to: (u64, &[u8]),
    flags: u32,
) -> Result<()> {
    if !is_kind(flags) {
        return Err(Errno::INVAL);
    }
    check_length(from.1)?;
    if matches!(from.1, b"." | b"..") || matches!(to.1, b"." | b"..") {
        return Err(Errno::BUSY);
    }
    check_new(to.1)?;
    if calls.done_before(caller).is_some() {
        return Ok(());
    }
    let ask = Ask {
        from,
        to,
        flags,
        expected: None,
    };
    rename_where(calls, names, caller, from.1.len() + to.1.len(), |_| Ok(ask))
}

/// Does the rename that `place` comes to, of names that have at most `name_bytes` bytes together:
/// in the run in which it does, see [`make_where`].
pub(crate) fn rename_where<N: AsRef<[u8]>>(
    calls: &CallRunner,
    names: &Names,
    caller: &Caller,
    name_bytes: usize,
    place: impl Fn(&CallContext<'_>) -> std::result::Result<Ask<N>, Stop>,
) -> Result<()> {
    let whiteout = Fresh::whiteout().need(name_bytes).log;
    let bytes = record_bytes(RenameBody::BYTES, name_bytes) as u64 + whiteout;
    calls.run(caller, Need::log(bytes), |op| {
        let ask = place(op)?;
        rename_in(op, names, &ask.borrowed())
    })
}

fn rename_in(
    op: &mut CallContext<'_>,
    names: &Names,
    ask: &Ask<&[u8]>,
) -> std::result::Result<(), Stop> {
    let dirs = (op.node_to_change(ask.from.0)?, op.node_to_change(ask.to.0)?);
    let Some(ends) = ends(op, ask, &dirs)? else {
        return Ok(());
    };
    let across = ask.moves_across()
        && (ends.source.is_dir()
            || ask.exchange() && ends.target.as_ref().is_some_and(|t| t.0.is_dir()));
    let _tree = across.then(|| names.rename_lock.lock());
    let gone = ends.target.as_ref().map(|t| (t.0.ino, t.0.kind));
    let moves = (ends.source.ino, ends.source.kind);
    no_cycle(op, (ask.from.0, ask.to.0), moves, gone, ask.flags)?;
    let mut nodes: [&Node; 4] = [&dirs.0, &dirs.1, &ends.source_node, &ends.source_node];
    if let Some((_, node)) = &ends.target {
        nodes[3] = node;
    }
    let mut locked = Locked::take(op, &nodes)?;
    unchanged(op, &locked[ask.from.0], ask.from.1, Some(ends.source))?;
    unchanged(
        op,
        &locked[ask.to.0],
        ask.to.1,
        ends.target.as_ref().map(|t| t.0),
    )?;
    if ask.exchange() {
        exchange(op, &names.paths, &mut locked, ask, &ends)
    } else {
        replace(op, &names.paths, &mut locked, ask, &ends)
    }
}

/// Looks both names up; `None`: they name the same inode, so nothing is to be done.
fn ends(
    op: &CallContext<'_>,
    ask: &Ask<&[u8]>,
    dirs: &(Arc<Node>, Arc<Node>),
) -> std::result::Result<Option<Ends>, Stop> {
    let source = entry(op, &dirs.0, ask.from.1)?;
    let target = entry(op, &dirs.1, ask.to.1)?;
    let source = source.ok_or_else(|| op.gone())?;
    if let Some((from, to)) = ask.expected
        && (from != source.ino || to != target.map(|t| t.ino))
    {
        return Err(Stop::Again);
    }
    match target {
        Some(_) if ask.flags & RENAME_NOREPLACE != 0 => return Err(Errno::EXIST.into()),
        None if ask.exchange() => return Err(Errno::NOENT.into()),
        Some(t) if t.ino == source.ino => return Ok(None),
        _ => {}
    }
    let source_node = op.node_to_change(source.ino)?;
    let target = match target {
        Some(found) => Some((found, op.node_to_change(found.ino)?)),
        None => None,
    };
    Ok(Some(Ends {
        source,
        source_node,
        target,
    }))
}

/// Refuses what would put a directory below itself. `moves` and `gone`: the inode that
/// gets a name in `to` and, if there is one, the inode that has it; both with their type.
pub(crate) fn no_cycle(
    op: &CallContext<'_>,
    (from, to): (u64, u64),
    moves: (u64, u8),
    gone: Option<(u64, u8)>,
    flags: u32,
) -> std::result::Result<(), Stop> {
    if from == to {
        return Ok(());
    }
    if moves.1 == KIND_DIR && is_below(op, to, moves.0)? {
        return Err(Errno::INVAL.into());
    }
    // The other way round a plain rename would remove a directory that is not empty.
    match gone {
        Some((ino, KIND_DIR)) if is_below(op, from, ino)? => {
            let exchange = flags == RENAME_EXCHANGE;
            Err(if exchange {
                Errno::INVAL
            } else {
                Errno::NOTEMPTY
            }
            .into())
        }
        _ => Ok(()),
    }
}

/// Whether directory `dir` is `top` or below it.
fn is_below(op: &CallContext<'_>, dir: u64, top: u64) -> std::result::Result<bool, Stop> {
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at == top {
            return Ok(true);
        }
        if at == Ino::ROOT.0 || at == 0 {
            return Ok(false);
        }
        let node = op.node(at)?;
        at = op.read(&node)?.inode.parent;
    }
    // Digest would refuse the record.
    Err(Errno::NAMETOOLONG.into())
}

fn replace(
    op: &mut CallContext<'_>,
    paths: &PathCache,
    locked: &mut Locked<'_>,
    ask: &Ask<&[u8]>,
    ends: &Ends,
) -> std::result::Result<(), Stop> {
    let (from, to) = (ask.from.0, ask.to.0);
    let source = ends.source;
    let mut freed = false;
    may_take_from(&locked[from].inode, &locked[source.ino].inode)?;
    match &ends.target {
        Some((target, _)) => may_take_from(&locked[to].inode, &locked[target.ino].inode)?,
        None => may_add_to(&locked[to].inode)?,
    }
    let new_key = match &ends.target {
        Some((target, node)) => {
            may_remove(&locked[target.ino], source.is_dir())?;
            freed = frees(op, node, &locked[target.ino]);
            target.key
        }
        None => match slot(op.volume(), &locked[to], ask.to.1)? {
            Slot::Vacant(key) => key,
            Slot::Taken(_) => return Err(Stop::Again),
        },
    };
    if source.is_dir() && from != to && ends.target.is_none() && locked[to].inode.nlink >= LINKS_MAX
    {
        return Err(Errno::MLINK.into());
    }
    let (whiteout, end) = append(op, &locked[from].inode, ask, ends, new_key, freed)?;

    let now = op.now_ns;
    take_entry(&mut locked[from], &source, now, end);
    if let Some((target, node)) = &ends.target {
        take_entry(&mut locked[to], target, now, end);
        lose_name(&mut locked[target.ino], freed, now, end);
        if freed {
            op.bury(node, end);
        }
    }
    add_entry(
        &mut locked[to],
        &FoundDirent {
            key: new_key,
            ..source
        },
        ask.to.1,
        now,
        end,
    );
    arrived(locked, &source, to, now, end);
    if let Some(inode) = whiteout {
        let found = FoundDirent {
            key: source.key,
            ino: inode.ino,
            kind: kind_of_mode(inode.mode),
        };
        let mut state = NodeState::fresh(inode, op.epoch);
        state.touched(end);
        op.add_new(state, false);
        add_entry(&mut locked[from], &found, ask.from.1, now, end);
    }
    paths.entry_gone(source.kind);
    if let Some((target, _)) = &ends.target {
        paths.entry_gone(target.kind);
    }
    Ok(())
}

fn exchange(
    op: &mut CallContext<'_>,
    paths: &PathCache,
    locked: &mut Locked<'_>,
    ask: &Ask<&[u8]>,
    ends: &Ends,
) -> std::result::Result<(), Stop> {
    let (from, to) = (ask.from.0, ask.to.0);
    let source = ends.source;
    let target = ends.target.as_ref().ok_or(Errno::NOENT)?.0;
    may_take_from(&locked[from].inode, &locked[source.ino].inode)?;
    may_take_from(&locked[to].inode, &locked[target.ino].inode)?;
    if from != to {
        let grows = |dir: u64, comes: &FoundDirent, goes: &FoundDirent| {
            comes.is_dir() && !goes.is_dir() && locked[dir].inode.nlink >= LINKS_MAX
        };
        if grows(to, &source, &target) || grows(from, &target, &source) {
            return Err(Errno::MLINK.into());
        }
    }
    let end = op.append(&mut record(ask, ends, target.key, false))?;

    let now = op.now_ns;
    take_entry(&mut locked[from], &source, now, end);
    take_entry(&mut locked[to], &target, now, end);
    add_entry(
        &mut locked[from],
        &FoundDirent {
            key: source.key,
            ..target
        },
        ask.from.1,
        now,
        end,
    );
    add_entry(
        &mut locked[to],
        &FoundDirent {
            key: target.key,
            ..source
        },
        ask.to.1,
        now,
        end,
    );
    arrived(locked, &source, to, now, end);
    arrived(locked, &target, from, now, end);
    paths.entry_gone(source.kind);
    paths.entry_gone(target.kind);
    Ok(())
}

/// Appends what the log has to say of a rename that is no exchange; with a whiteout, which is returned then, as
/// one transaction. `dir`: where the old name is.
fn append(
    op: &mut CallContext<'_>,
    dir: &Inode,
    ask: &Ask<&[u8]>,
    ends: &Ends,
    new_key: DirKey,
    freed: bool,
) -> std::result::Result<(Option<Inode>, LogPos), Stop> {
    let name = if ends.target.is_none() { TREE_BYTES } else { 0 };
    let mut part = record(ask, ends, new_key, freed);
    if !ask.whiteout() {
        op.reserve_space(name)?;
        return Ok((None, op.append(&mut part)?));
    }
    op.reserve_space(name + TREE_BYTES + INODE_BYTES)?;
    let inode = new_numbered(op, dir, &Fresh::whiteout())?;
    let body = create_body(&inode, ends.source.key.twin());
    let made = encode::create(Ino(dir.ino), Ino(inode.ino), body, ask.from.1, b"");
    let end = op.append_chain(&mut [part, made])?;
    Ok((Some(inode), end))
}

/// What the log has to say of a rename, but for a whiteout.
fn record<'a>(ask: &Ask<&'a [u8]>, ends: &Ends, new_key: DirKey, freed: bool) -> Part<'a> {
    let target = ends.target.as_ref().map(|t| t.0);
    let body = RenameBody {
        new_parent: ask.to.0,
        replaced: target.map_or(0, |t| t.ino),
        flags: ask.flags & RENAME_EXCHANGE,
        old_bytes: 0,
        new_bytes: 0,
        old_twin: ends.source.key.twin(),
        new_twin: new_key.twin(),
        kind: ends.source.kind,
        replaced_kind: target.map_or(0, |t| t.kind),
        reserved: [0; 4],
    };
    encode::rename(
        Ino(ask.from.0),
        Ino(ends.source.ino),
        body,
        ask.from.1,
        ask.to.1,
    )
    .flags(if freed { flag::FREE_NOW } else { 0 })
    .flags(if ends.source.is_dir() {
        flag::DIRECTORY
    } else {
        0
    })
}

/// An inode in memory that a rename has brought to directory `dir`.
fn arrived(locked: &mut Locked<'_>, found: &FoundDirent, dir: u64, now_ns: i64, end: LogPos) {
    let state = &mut locked[found.ino];
    if found.is_dir() {
        state.inode.parent = dir;
    }
    state.inode.set_time_ns(time::CHANGE, now_ns);
    state.touched(end);
}
