//! Listing directories: the log's changes merged over the volume's tree, in key order.
//!
//! A cookie is the key of the entry before, so a listing goes on at the same place
//! whatever was made or removed meanwhile, also after a restart. Entries are copied
//! out in batches: nobody waits for the directory's lock while the sink works.

use crate::client::call::CallContext;
use crate::client::call_runner::CallRunner;
use shale_format::{DirKey, Ino};
use shale_inodes::attr::Attr;
use shale_inodes::dir::{DirState, Entry};
use shale_inodes::dirents::KIND_DIR;
use shale_session::caller::Caller;
use shale_session::errno::final_errno;
use shale_session::errno::{Result, Stop};
use shale_session::kernel_refs::KernelRefs;
use shale_session::log::client_log::Need;
use shale_volume::{Dirent, DirentRef};
use std::ops::ControlFlow;

/// Most entries that are listed under one hold of the directory's lock...
const BATCH: usize = 512;
/// ... and most of the volume's that are looked at: those that were removed since cost little.
const SEEN_MAX: usize = 8 * BATCH;
/// Cookie behind `.`.
const AFTER_DOT: u64 = 1;
/// Cookie behind `..`.
const AFTER_DOT_DOT: u64 = 2;

/// One entry of a directory.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// Name, without `/` or a zero byte.
    pub name: &'a [u8],
    /// Inode number.
    pub ino: u64,
    /// Type of the inode, as in `d_type`.
    pub kind: u8,
    /// Where to go on after this entry; never 0, below 2^63.
    pub cookie: u64,
    /// Attributes, if they were asked for and at hand. Never of `.` and `..`.
    pub attr: Option<Attr>,
}

/// An entry on its way to the sink.
struct Listed {
    key: DirKey,
    ino: u64,
    kind: u8,
    name: Vec<u8>,
}

/// Some entries, and where the next batch begins (`None`: there is no more).
struct Batch {
    entries: Vec<Listed>,
    next: Option<DirKey>,
}

/// See [`crate::Session::readdir`].
pub(crate) fn readdir(
    calls: &CallRunner,
    kernel: &KernelRefs,
    caller: &Caller,
    ino: u64,
    cookie: u64,
    plus: bool,
    sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
) -> Result<()> {
    if cookie < AFTER_DOT_DOT {
        let parent = calls.run(caller, Need::default(), |op| {
            let node = op.node(ino)?;
            let state = op.read(&node)?;
            op.live_dir(&state)?;
            Ok(state.inode.parent.max(Ino::ROOT.0))
        })?;
        let dots = [(&b"."[..], ino, AFTER_DOT), (b"..", parent, AFTER_DOT_DOT)];
        for (name, ino, at) in dots {
            let entry = DirEntry {
                name,
                ino,
                kind: KIND_DIR,
                cookie: at,
                attr: None,
            };
            if at > cookie && !sink(entry) {
                return Ok(());
            }
        }
    }
    let mut from = Some(DirKey(cookie.saturating_add(1)).max(DirKey::FIRST));
    while let Some(key) = from {
        let batch = calls.run(caller, Need::default(), |op| batch(op, ino, key))?;
        for e in &batch.entries {
            // An inode that cannot be read has a name all the same: who asks for it hears why.
            let attr = plus.then(|| attr_at_hand(calls, kernel, e.ino));
            let attr = attr.and_then(Result::ok).flatten();
            let entry = DirEntry {
                name: &e.name,
                ino: e.ino,
                kind: e.kind,
                cookie: e.key.0,
                attr,
            };
            if !sink(entry) {
                if attr.is_some() {
                    kernel.unrefer(e.ino, 1);
                }
                return Ok(());
            }
        }
        from = batch.next;
    }
    Ok(())
}

fn batch(op: &CallContext<'_>, ino: u64, from: DirKey) -> std::result::Result<Batch, Stop> {
    let node = op.node(ino)?;
    let state = op.read(&node)?;
    op.live_dir(&state)?;
    let mut old = Old::default();
    if state.in_volume {
        op.volume().sampling().note_directory(&state.inode);
        let mut take = |entry: DirentRef<'_>| old.take(entry, &state.dir);
        op.volume()
            .view()
            .each_entry(&state.inode, from, &mut take)?;
    }
    Ok(merge(old, &state.dir, from))
}

/// Entries of the volume that no change in the log concerns, from some key on.
#[derive(Default)]
struct Old {
    entries: Vec<Dirent>,
    /// Entries that were looked at.
    seen: usize,
    /// The last one of them, if there may be more behind it.
    upto: Option<DirKey>,
}

impl Old {
    /// Takes the next entry, unless the log has something else of its key.
    fn take(&mut self, entry: DirentRef<'_>, changes: &DirState) -> ControlFlow<()> {
        if !changes.is_changed(entry.key) {
            self.entries.push(entry.to_owned());
        }
        self.seen += 1;
        if self.entries.len() < BATCH && self.seen < SEEN_MAX {
            return ControlFlow::Continue(());
        }
        self.upto = Some(entry.key);
        ControlFlow::Break(())
    }
}

/// Lays changes over the entries of the volume from `from` on.
fn merge(old: Old, changes: &DirState, from: DirKey) -> Batch {
    // Behind the last entry read the volume may have more: that is for the next batch.
    let known_to = old.upto.unwrap_or(DirKey(u64::MAX));
    let mut old = old.entries.into_iter().peekable();
    let mut new = changes
        .from(from)
        .take_while(|(k, _)| *k <= known_to)
        .peekable();
    let mut entries = Vec::new();
    while entries.len() < BATCH {
        let (old_key, new_key) = (old.peek().map(|d| d.key), new.peek().map(|&(k, _)| k));
        let listed = match (old_key, new_key) {
            (Some(o), n) if n.is_none_or(|n| o < n) => old.next().map(|d| Listed {
                key: d.key,
                ino: d.ino.0,
                kind: d.kind,
                name: d.name,
            }),
            _ => new.next().map(|(key, entry)| listed(key, entry)),
        };
        match listed {
            Some(listed) => entries.push(listed),
            None => {
                let more = known_to != DirKey(u64::MAX);
                let next = more.then(|| DirKey(known_to.0 + 1));
                return Batch { entries, next };
            }
        }
    }
    let next = entries.last().map(|last| DirKey(last.key.0 + 1));
    Batch { entries, next }
}

fn listed(key: DirKey, entry: &Entry) -> Listed {
    Listed {
        key,
        ino: entry.ino,
        kind: entry.kind,
        name: entry.name.to_vec(),
    }
}

/// Attributes of an inode that a listing names, if nobody has to be waited for.
/// Inodes that are not in memory are as the volume has them, and stay out of
/// memory: a listing must not push out what is used.
fn attr_at_hand(calls: &CallRunner, kernel: &KernelRefs, ino: u64) -> Result<Option<Attr>> {
    let caller = Caller::default();
    if calls.in_memory(ino).is_some() {
        return calls.run(&caller, Need::default(), |op| match op.node(ino) {
            Ok(node) => {
                let state = node.state.try_read().filter(|s| !s.dead && !s.shifting);
                let attr = state.map(|s| Attr::of(&s.inode, s.blocks));
                if attr.is_some() {
                    op.refer(ino);
                }
                Ok(attr)
            }
            Err(_) => Ok(None),
        });
    }
    // Only a kernel gets so many attributes that it did not ask for.
    if !kernel.is_served() {
        return Ok(None);
    }
    let attr = calls.glance(ino, |volume| {
        let inode = match volume.inode(ino) {
            // Who asks for it waits for it.
            Err(Stop::Blocks(_)) => return Ok(None),
            other => other.map_err(final_errno)?,
        };
        kernel.note_use(ino);
        if inode.is_some() {
            kernel.refer(ino);
        }
        Ok(inode.map(|i| Attr::of(&i, i.blocks)))
    })?;
    Ok(attr.flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::LogPos;
    use shale_inodes::dir::Entry;
    use std::collections::BTreeMap;

    fn dirent(key: u64) -> Dirent {
        Dirent {
            key: DirKey(key),
            ino: Ino(key),
            kind: 8,
            name: key.to_string().into(),
        }
    }

    fn all(volume: &BTreeMap<u64, Dirent>, changes: &DirState) -> Vec<(u64, u64)> {
        let mut got = Vec::new();
        let mut from = Some(DirKey(64));
        while let Some(key) = from {
            let mut old = Old::default();
            let taken = volume.range(key.0..).try_for_each(|(_, d)| {
                let name = &d.name;
                let (key, ino, kind) = (d.key, d.ino, d.kind);
                old.take(
                    DirentRef {
                        key,
                        ino,
                        kind,
                        name,
                    },
                    changes,
                )
            });
            assert_eq!(taken.is_break(), old.upto.is_some());
            let batch = merge(old, changes, key);
            got.extend(batch.entries.iter().map(|e| (e.key.0, e.ino)));
            assert!(batch.next.is_none_or(|n| n > key), "every batch gets on");
            from = batch.next;
        }
        got
    }

    #[test]
    fn merged_batches_are_the_directory() {
        let volume: BTreeMap<u64, Dirent> = (100..3000)
            .filter(|k| k % 3 != 0)
            .map(|k| (k, dirent(k)))
            .collect();
        let mut changes = DirState::default();
        let mut model: BTreeMap<u64, u64> = volume.keys().map(|&k| (k, k)).collect();
        for key in (64..5000).filter(|k| k % 5 == 0) {
            let made = key % 2 == 0;
            let entry = Entry {
                ino: key + 7,
                kind: 8,
                name: Box::from(&b"n"[..]),
            };
            changes.set(DirKey(key), made.then_some(entry), LogPos(1));
            if made {
                model.insert(key, key + 7);
            } else {
                model.remove(&key);
            }
        }
        assert_eq!(
            all(&volume, &changes),
            model.into_iter().collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_long_run_of_removed_names_is_passed() {
        let volume: BTreeMap<u64, Dirent> = (100..3000).map(|k| (k, dirent(k))).collect();
        let mut changes = DirState::default();
        for key in 100..2900 {
            changes.set(DirKey(key), None, LogPos(1));
        }
        assert_eq!(all(&volume, &changes).first(), Some(&(2900, 2900)));
        assert_eq!(all(&volume, &changes).len(), 100);
        assert!(all(&BTreeMap::new(), &changes).is_empty());
    }
}
