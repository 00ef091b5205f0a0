//! The trees that steps leave, one after the other: what a power cut may leave.

use std::collections::HashSet;
use std::sync::Arc;

use shale_model::Snapshot;
use shale_model::workload::alphabet::TWIN;

/// [`Snapshot::digest`] of what is outside of the twin tree, and of the twin tree.
pub type Parts = [u64; 2];

/// Both of a tree.
pub fn parts(tree: &Snapshot) -> Parts {
    let is_collision = |p: &[u8]| p.first().is_none_or(|&b| b == b'/');
    let below = |path: &[u8]| path.strip_prefix(TWIN).is_some_and(is_collision);
    [false, true].map(|twin| tree.digest(|path| below(path) == twin))
}

/// Steps that follow one another.
pub struct Track {
    /// The part of the tree that these steps alone change; none: all of it.
    part: Option<usize>,
    /// For each step the numbers of events before it began and when it had returned.
    pub steps: Vec<(usize, usize)>,
    /// Steps after which nothing was promised: their calls were not durable when they returned.
    unpromised: HashSet<usize>,
    /// The tree before the first step and after each one.
    pub trees: Vec<Arc<Snapshot>>,
    /// [`parts`] of each of them.
    parts: Vec<Parts>,
}

impl Track {
    pub(crate) fn new(part: Option<usize>, tree: Arc<Snapshot>) -> Self {
        Track {
            part,
            steps: Vec::new(),
            unpromised: HashSet::new(),
            parts: vec![parts(&tree)],
            trees: vec![tree],
        }
    }

    /// One more step; no tree: it changed nothing.
    pub(crate) fn add(&mut self, begun: usize, returned: usize, tree: Option<Arc<Snapshot>>) {
        self.steps.push((begun, returned));
        // A digest changes nothing that can be seen.
        let last = self.trees.len() - 1;
        let of = tree.as_deref().map_or(self.parts[last], parts);
        self.parts.push(of);
        self.trees
            .push(tree.unwrap_or_else(|| self.trees[last].clone()));
    }

    /// The last step promised nothing.
    pub(crate) fn break_promise(&mut self) {
        self.unpromised.insert(self.steps.len());
    }

    /// Steps that had returned up to the last that promised that all before it is durable, and steps that had begun, when `event` events had
    /// happened.
    pub fn window(&self, event: usize) -> (usize, usize) {
        let mut returned = self.steps.iter().filter(|s| s.1 <= event).count();
        while self.unpromised.contains(&returned) {
            returned -= 1;
        }
        let begun = self.steps.iter().filter(|s| s.0 < event).count();
        (returned, begun.max(returned))
    }

    /// Whether a tree is that after `k` steps, as far as these steps go.
    pub fn is_after(&self, k: usize, tree: &Parts) -> bool {
        match self.part {
            Some(part) => self.parts[k][part] == tree[part],
            None => self.parts[k] == *tree,
        }
    }
}
