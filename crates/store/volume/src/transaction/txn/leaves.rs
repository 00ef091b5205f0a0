//! Leaves that a transaction has lie elsewhere.

use super::Txn;
use crate::error::Result;
use crate::trees::node::Dirent;
use shale_format::extent::{Extent, root_kind};
use shale_format::{BlockAddr, Ino};
use std::collections::HashMap;

impl Txn<'_> {
    /// Has leaves of a directory, or of a file's extents, lie where `moves` says, by where they lie: there the caller
    /// has written copies of them, as nodes of those places. Gives those that move, by where they lay: not what is
    /// somewhere else by now, and as many as the journal takes.
    ///
    /// # Errors
    /// Damaged tree, `NoSpace` for inner nodes.
    pub fn move_leaves(
        &mut self,
        ino: Ino,
        moves: &HashMap<BlockAddr, BlockAddr>,
    ) -> Result<Vec<BlockAddr>> {
        let mut moved = Vec::new();
        let Some(mut inode) = self.inode(ino)? else {
            return Ok(moved);
        };
        let is_dir = inode.is_dir();
        let most_bytes = self.journal_capacity() / 4 * 3;
        let roots = if is_dir { 1 } else { inode.root.len() };
        for root in &mut inode.root[..roots] {
            if root.kind != root_kind::TREE {
                continue;
            }
            let (draft, to) = (self.draft(), (moves, &mut moved));
            let result = match is_dir {
                true => draft.move_leaves::<Dirent>(root, ino, to, most_bytes),
                false => draft.move_leaves::<Extent>(root, ino, to, most_bytes),
            };
            self.noted(result)?;
        }
        if !moved.is_empty() {
            self.put_inode(&inode)?;
        }
        Ok(moved)
    }
}
