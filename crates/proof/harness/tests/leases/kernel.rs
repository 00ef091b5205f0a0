//! The kernel, and the front end that serves it: a client in the daemon's process. What the kernel keeps of a directory it answers
//! without asking anybody, so it has to be gone before another client changes the directory.
//!
//! A directory is a number, as all inodes of the model: how often a name was made or removed in it. To look a name up or to list the
//! directory is to see the number.

use crate::client_side::errno::Result;
use crate::client_side::session::Session;
use crate::daemon_side::lease_table::LeaseHook;
use crate::memory;
use crate::sync::{Mutex, MutexGuard};
use shuttle::rand::{Rng, thread_rng};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct Kernel {
    pub(crate) session: Arc<Session>,
    /// What it keeps, under a lock of each directory: a notification about a name waits for calls that hold it.
    kept: HashMap<u64, Mutex<Option<u64>>>,
    /// Requests about each directory, counted before they are served.
    uses: std::sync::Mutex<HashMap<u64, u64>>,
}

impl Kernel {
    /// With what `front_end` serves of these directories.
    pub(crate) fn new(front_end: &Arc<Session>, dirs: [u64; 2]) -> Arc<Self> {
        Arc::new(Self {
            session: front_end.clone(),
            kept: dirs.map(|dir| (dir, Mutex::default())).into(),
            uses: std::sync::Mutex::default(),
        })
    }

    fn lock(&self, dir: u64) -> MutexGuard<'_, Option<u64>> {
        self.kept[&dir].lock()
    }

    fn uses_of(&self, dir: u64) -> u64 {
        memory::step();
        let uses = self.uses.lock().expect("nobody fails holding it");
        uses.get(&dir).copied().unwrap_or(0)
    }

    fn note(&self, dir: u64) {
        memory::step();
        let mut uses = self.uses.lock().expect("nobody fails holding it");
        *uses.entry(dir).or_default() += 1;
    }

    /// A program on the mount looks a name up.
    pub(crate) fn look(&self, dir: u64) -> Result<u64> {
        let mut kept = self.lock(dir);
        if let Some(value) = *kept {
            return Ok(value);
        }
        self.note(dir);
        let value = self.session.read(dir)?;
        memory::step();
        *kept = Some(value);
        Ok(value)
    }

    /// A program on the mount makes or removes a name.
    pub(crate) fn change(&self, dir: u64) -> Result<u64> {
        let mut kept = self.lock(dir);
        self.note(dir);
        let value = self.session.write(dir)?;
        memory::step();
        *kept = Some(value);
        Ok(value)
    }
}

impl LeaseHook for Kernel {
    fn drop_cached(&self, dir: u64) -> u64 {
        let seen = self.uses_of(dir);
        *self.lock(dir) = None;
        seen
    }

    fn used_since(&self, dir: u64, seen: u64) -> bool {
        self.uses_of(dir) != seen
    }

    /// Now and then, with any client: one that can go through the mount does so then.
    fn used_for(&self, _dir: u64, _besides: &[i32]) -> Option<Duration> {
        let used = thread_rng().gen_range(0..4) == 0;
        used.then_some(Duration::from_millis(1))
    }
}
