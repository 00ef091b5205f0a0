//! What a client keeps about the tree of names besides its inodes.

use crate::namespace::path_cache::PathCache;
use parking_lot::Mutex;

/// See the module.
pub(crate) struct Names {
    /// Whole paths that were walked.
    pub paths: PathCache,
    /// Held while a directory changes its parent: the first of the locks of a call.
    pub rename_lock: Mutex<()>,
}

impl Names {
    pub(crate) fn new() -> Self {
        Self {
            paths: PathCache::new(),
            rename_lock: Mutex::new(()),
        }
    }
}
