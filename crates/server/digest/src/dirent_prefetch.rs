//! Directory entries that a chunk's records name, read before they are asked for.
//!
//! A look into a directory decodes a whole leaf. Records name keys in no order, so that
//! each leaf of a big directory would be decoded for each name in it. Here the keys are
//! sorted first, and each leaf is decoded once.

use super::image::Image;
use super::item::Item;
use shale_format::inode::Inode;
use shale_format::{DirKey, Ino};
use shale_oplog::Op;
use shale_volume::{Dirent, Result, View};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// Fewest names of one directory that are read ahead.
const NAMES_MIN: usize = 8;
/// Entries that are passed over before the next key is looked for from the top.
const PASSED_MAX: usize = 32;

/// What was read of one directory.
struct Known {
    /// Batch that wrote the directory's inode: of another one nothing is known.
    txid: u64,
    groups: HashMap<DirKey, Vec<Dirent>>,
}

/// What was read ahead.
#[derive(Default)]
pub(crate) struct CollisionPrefetch {
    dirs: HashMap<Ino, Known>,
}

impl CollisionPrefetch {
    /// Reads the groups of all names in these records.
    pub fn read(view: &View, image: &dyn Image, items: &[Item]) -> Result<CollisionPrefetch> {
        let mut wanted: HashMap<Ino, Vec<DirKey>> = HashMap::new();
        let mut want = |dir: u64, name: &[u8]| {
            let group = image.key_group(name).group_start();
            wanted.entry(Ino(dir)).or_default().push(group);
        };
        for item in items {
            let dir = item.header.ino;
            match &item.op {
                Op::Create { name, .. } | Op::Link { name, .. } | Op::Unlink { name, .. } => {
                    want(dir, name);
                }
                Op::Rename { body, old, new, .. } => {
                    want(dir, old);
                    want(body.new_parent, new);
                }
                _ => {}
            }
        }
        let mut dirs = HashMap::new();
        for (dir, mut groups) in wanted {
            let Some(inode) = image.inode(dir)?.filter(Inode::is_dir) else {
                continue;
            };
            if groups.len() >= NAMES_MIN {
                groups.sort_unstable();
                groups.dedup();
                dirs.insert(dir, known(view, &inode, &groups)?);
            }
        }
        Ok(CollisionPrefetch { dirs })
    }

    /// The entries of a group, once; `None`: not known.
    pub fn take(&mut self, dir: &Inode, group: DirKey) -> Option<Vec<Dirent>> {
        let known = self.dirs.get_mut(&Ino(dir.ino))?;
        let same = known.txid == dir.txid;
        same.then(|| known.groups.remove(&group.group_start()))?
    }
}

/// Reads groups, ascending, of one directory.
fn known(view: &View, dir: &Inode, groups: &[DirKey]) -> Result<Known> {
    let mut found: HashMap<DirKey, Vec<Dirent>> = HashMap::with_capacity(groups.len());
    found.extend(groups.iter().map(|&g| (g, Vec::new())));
    let mut at = 0;
    while dir.size > 0 && at < groups.len() {
        let (from, mut passed, mut ended) = (at, 0, true);
        view.each_entry(dir, groups[from], &mut |entry| {
            let group = entry.key.group_start();
            while groups.get(at).is_some_and(|&g| g < group) {
                at += 1;
            }
            if groups.get(at) == Some(&group) {
                found.entry(group).or_default().push(entry.to_owned());
                passed = 0;
            } else {
                passed += 1;
            }
            if at == groups.len() || passed > PASSED_MAX {
                ended = false;
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        if ended {
            break;
        }
    }
    let (txid, groups) = (dir.txid, found);
    Ok(Known { txid, groups })
}
