//! What the root block counts, and the directories that every volume has.

use super::{Checker, EXPECT_ONE};
use crate::report::Object;
use crate::superblocks::ROOT;
use shale_format::Ino;
use shale_format::limits::TIERS_MAX;

impl Checker<'_> {
    /// Compares the counts of the root block with what was found.
    pub(super) fn check_counts(&mut self, marked: Option<u64>) {
        let (root, totals) = (self.root, self.totals);
        if let Some(marked) = marked {
            self.findings
                .equal(ROOT, "count of used blocks", marked, root.used_blocks[0]);
        }
        for tier in 1..TIERS_MAX {
            let seen = self.claims.counts[tier];
            self.findings.equal(
                ROOT,
                "count of used blocks in a tier below",
                seen,
                root.used_blocks[tier],
            );
        }
        // Whether a damaged slot counts depends on what was in it.
        let inodes = totals.inodes..=totals.inodes + totals.damaged_inodes;
        if !inodes.contains(&root.inodes) && !self.inode_file_broken {
            let count = (totals.inodes, root.inodes);
            self.findings.error(ROOT, None, "count of inodes", count);
        }
        for (ino, name) in [
            (Ino::ROOT, "root directory"),
            (Ino::ORPHANS, "directory of orphans"),
        ] {
            let there = self.slots.find(ino).is_some_and(|s| self.slots.is_used(s));
            if !there {
                self.findings
                    .error(Object::Part(name), None, "missing", (EXPECT_ONE, ""));
            }
        }
    }
}
