//! What can be said of an inode once all entries were seen: number of names, parent,
//! orphans, and whether a way leads there from the root.

use super::{Checker, EXPECT_ONE};
use crate::inode::kind;
use crate::inode_table::{Slot, state};
use crate::report::{Object, Severity};
use shale_format::Ino;
use shale_format::inode::{Inode, flag};

impl Checker<'_> {
    /// Checks the links of one inode.
    pub(super) fn check_links(&mut self, inode: &Inode, slot: Slot) {
        let object = Object::Inode(inode.ino);
        let known = self.slots.state_of(slot);
        let orphan = inode.nlink == 0;
        let f = &mut self.findings;
        if (inode.flags & flag::ORPHAN != 0) != orphan {
            let found = format!("{} names, flags {}", inode.nlink, inode.flags);
            f.error(
                object,
                None,
                "orphan flag does not fit the link count",
                ("", found),
            );
        }
        match (known & state::LISTED != 0, orphan) {
            (false, true) => {
                let what = "inode without a name that is not among the orphans";
                f.error(object, None, what, ("", ""));
            }
            (true, false) => {
                let what = "inode among the orphans that has names";
                f.error(object, None, what, (0, inode.nlink));
            }
            _ => (),
        }
        self.totals.orphans += u64::from(orphan);
        match inode.is_dir() {
            true => self.check_dir_links(inode, slot),
            false => self.check_names(inode, slot),
        }
    }

    /// A name that is missing may be in a directory that could not be read.
    fn missing_names(&self) -> Severity {
        match self.names_missing {
            true => Severity::Warning,
            false => Severity::Error,
        }
    }

    fn check_names(&mut self, inode: &Inode, slot: Slot) {
        let object = Object::Inode(inode.ino);
        let names = self.slots.count[slot.0 as usize];
        if names == inode.nlink {
            return;
        }
        let severity = match names < inode.nlink {
            true => self.missing_names(),
            false => Severity::Error,
        };
        let what = match names {
            0 => "inode that no name leads to",
            _ => "link count is not the number of names",
        };
        self.findings
            .note(severity, object, None, what, (names, inode.nlink));
    }

    fn check_dir_links(&mut self, dir: &Inode, slot: Slot) {
        let (ino, object) = (Ino(dir.ino), Object::Inode(dir.ino));
        let subdirectories = self.slots.count[slot.0 as usize];
        let severity = self.missing_names();
        let place = self.slots.place_of(slot).map(|s| self.slots.ino(s));
        let f = &mut self.findings;
        if dir.nlink == 0 {
            if dir.size != 0 {
                f.error(object, None, "orphan directory with entries", (0, dir.size));
            }
            if place.is_some() {
                f.error(
                    object,
                    None,
                    "link count is not the number of names",
                    (1, 0),
                );
            }
            return;
        }
        let links = subdirectories.saturating_add(2);
        if links != dir.nlink {
            let severity = if links < dir.nlink {
                severity
            } else {
                Severity::Error
            };
            let what = "link count of a directory is not 2 and its subdirectories";
            f.note(severity, object, None, what, (links, dir.nlink));
        }
        match place {
            _ if ino == Ino::ORPHANS => (),
            _ if ino == Ino::ROOT => f.equal(object, "parent of a directory", 1, dir.parent),
            None => {
                let what = "directory that no name leads to";
                f.note(severity, object, None, what, (EXPECT_ONE, ""));
            }
            Some(place) => f.equal(object, "parent of a directory", place.0, dir.parent),
        }
    }

    /// Walks up from every directory and reports rings, once each.
    pub(super) fn check_ways(&mut self) {
        let Some(root) = self.slots.find(Ino::ROOT) else {
            return;
        };
        self.slots.set_way(root, state::REACHED);
        for n in 0..self.slots.state.len() {
            let slot = Slot(n as u32);
            if self.slots.state_of(slot) & state::KIND == kind::DIRECTORY {
                self.check_way(slot);
            }
        }
    }

    fn check_way(&mut self, from: Slot) {
        let mut at = Some(from);
        let end = loop {
            let Some(slot) = at else { break state::LOST };
            match self.slots.state_of(slot) & state::WAY {
                0 => self.slots.set_way(slot, state::WALKING),
                state::WALKING => {
                    let ino = self.slots.ino(slot);
                    let what = "directory in a ring that the root does not lead to";
                    self.findings
                        .error(Object::Inode(ino.0), None, what, ("", ""));
                    break state::LOST;
                }
                known => break known,
            }
            at = self.slots.place_of(slot);
        };
        let mut at = Some(from);
        while let Some(slot) = at {
            if self.slots.state_of(slot) & state::WAY != state::WALKING {
                return;
            }
            self.slots.set_way(slot, end);
            at = self.slots.place_of(slot);
        }
    }
}
