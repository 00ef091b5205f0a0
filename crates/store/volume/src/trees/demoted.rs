//! How many leaves of trees a transaction moves below NVM, and back.

use shale_format::BlockAddr;
use shale_format::superblock::RootBlock;
use shale_format::tree::TreeKind;

/// Leaves below NVM, by tier.
type Tiers = [i64; 2];

/// Leaves below NVM that a transaction has more than there were.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demoted {
    /// In the tree of the operation in progress.
    tree: i32,
    entries: Tiers,
    extents: Tiers,
}

impl Demoted {
    /// `n` leaves more lie in the tier of a block; whether that is below NVM.
    pub(crate) fn add(&mut self, kind: TreeKind, addr: BlockAddr, n: i32) -> bool {
        let tiers = match kind {
            TreeKind::Entries => &mut self.entries,
            TreeKind::Extents => &mut self.extents,
        };
        let tier = addr.tier().map_or(0, |t| t as usize);
        let below = tier.checked_sub(1).map(|t| &mut tiers[t]);
        let is_below = below.is_some();
        if let Some(count) = below {
            self.tree += n;
            *count += i64::from(n);
        }
        is_below
    }

    /// A leaf goes away from a block; whether that is below NVM.
    pub(crate) fn left(&mut self, kind: TreeKind, addr: BlockAddr) -> bool {
        self.add(kind, addr, -1)
    }

    /// Those of the operation in progress, which ends.
    pub(crate) fn of_tree(&mut self) -> i32 {
        std::mem::take(&mut self.tree)
    }

    /// Counts them in the root block.
    pub(crate) fn count(&self, root: &mut RootBlock) {
        let counts = [
            (&mut root.leaves_below, &self.entries),
            (&mut root.extent_leaves_below, &self.extents),
        ];
        for (counts, changes) in counts {
            for (count, &n) in counts.iter_mut().zip(changes) {
                *count = count.saturating_add_signed(n);
            }
        }
    }
}
