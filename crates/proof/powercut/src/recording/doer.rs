//! Does steps, in Shale and in the model, and compares what they say.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustix::io::Errno;
use shale_daemon::Daemon;
use shale_model::compare::shown;
use shale_model::workload::alphabet::{OPEN, within};
use shale_model::workload::words::{Step, Workload};
use shale_model::{Act, FileAct, Fill, Memory, Outcome, Said, Shale, Side, Snapshot};
use shale_record::{Recording, set_operation};

use crate::recording::synced::Synced;
use crate::recording::track::{Track, parts};
use crate::wrong::Checked;

/// What an operation did that met with a full volume: a part of it, or nothing. `None`: it did
/// not meet with one.
fn part_done(act: &Act, did: &Outcome) -> Option<Option<Act>> {
    let less = |fill: &Fill, n: usize| Fill { len: n, ..*fill };
    let part = |slot: &usize, part| Some(Some(Act::File(*slot, part)));
    match (act, did) {
        (Act::Open(slot, ..), Err(Errno::NOSPC)) => part(slot, FileAct::Close),
        (_, Err(Errno::NOSPC)) => Some(None),
        (Act::File(slot, FileAct::Write(at, fill)), Ok(Said::Count(n))) if *n < fill.len => {
            part(slot, FileAct::Write(*at, less(fill, *n)))
        }
        (Act::File(slot, FileAct::WriteNext(fill)), Ok(Said::Count(n))) if *n < fill.len => {
            part(slot, FileAct::WriteNext(less(fill, *n)))
        }
        _ => None,
    }
}

/// One that does steps, and the model of what it does.
pub(crate) struct Doer<'w> {
    pub(crate) workload: &'w Workload,
    pub(crate) shales: Vec<Shale>,
    pub(crate) model: Memory,
    /// In front of all paths.
    pub(crate) root: &'static [u8],
    /// The volume has little space.
    pub(crate) full: bool,
    /// Of a client whose calls are not durable at return: fsync, and whether that makes durable what it has done.
    pub(crate) fsync: Option<&'w (dyn Fn() -> Checked<bool> + Sync)>,
    /// Of such a client: what has calls that are durable at return all the same.
    pub(crate) synced: Option<Synced>,
    /// Whether the last call was one.
    pub(crate) was_synced: bool,
}

/// Steps of which one is followed by fsync, where calls are not durable at return.
const FSYNC_ONE_IN: u64 = 3;

/// How a call of Shale's that panicked begins in [`Wrong`].
pub(crate) const PANIC: &str = "a panic";

impl Doer<'_> {
    /// Does an operation. Gives what was done of it: all, or what there was space for.
    pub(crate) fn act(&mut self, client: usize, act: &Act) -> Checked<Option<Act>> {
        let act = within(self.root, act.clone());
        self.model.set_client(client);
        let shale = &mut self.shales[client];
        let did = catch_unwind(AssertUnwindSafe(|| shale.act(&act)))
            .map_err(|_| format!("{PANIC} in client {client}, {act:?}"))?;
        if self.full
            && let Some(part) = part_done(&act, &did)
        {
            // There was no space, or not enough: that much was done.
            if let Some(part) = &part {
                let _ = self.model.act(part);
            }
            return Ok(part);
        }
        let should = self.model.act(&act);
        if let Some(synced) = &mut self.synced {
            self.was_synced = synced.has_changed(&mut self.model);
        }
        match should == did {
            true => Ok(Some(act)),
            false => Err(format!(
                "client {client}, {act:?}: expected {}, found {}",
                shown(&should),
                shown(&did)
            )),
        }
    }

    pub(crate) fn open_files(&mut self) -> Checked<()> {
        for client in 0..self.shales.len() {
            for (slot, (path, flags)) in OPEN.into_iter().enumerate() {
                let path = path.as_bytes().to_vec();
                self.act(client, &Act::Open(slot, path, flags, 0))?;
            }
        }
        Ok(())
    }

    pub(crate) fn tree(&mut self) -> Arc<Snapshot> {
        Arc::new(Snapshot::of(&mut self.model).expect("the model's tree can be walked"))
    }

    /// Does steps one after the other. `client`: which of the shales does a step.
    pub(crate) fn follow(
        &mut self,
        (recording, daemon): (&Recording, &Daemon),
        steps: &[(usize, Step)],
        client: impl Fn(usize) -> usize,
        track: &mut Track,
    ) -> Checked<()> {
        for &(number, step) in steps {
            let before = recording.event_count();
            set_operation(number as u64 + 1);
            let done = match step {
                Step::Item { client: who, item } => {
                    let act = self.workload.act(item, number);
                    self.act(client(who), &act).map(|_| ())
                }
                _ => {
                    daemon.quiesce();
                    Ok(())
                }
            };
            let done = done.and_then(|()| self.promise(number, step));
            set_operation(0);
            let after = recording.event_count();
            let promised = done.map_err(|wrong| format!("step {number}: {wrong}"))?;
            let tree = (step != Step::Digest).then(|| self.tree());
            track.add(before, after, tree);
            if !promised {
                track.break_promise();
            }
        }
        Ok(())
    }

    /// Whether what is done by now is durable: after each step, or after fsync, which is called behind one step in [`FSYNC_ONE_IN`], if
    /// that promises it, after a call that is durable by itself, and after digests.
    fn promise(&self, number: usize, step: Step) -> Checked<bool> {
        let Some(fsync) = self.fsync else {
            return Ok(true);
        };
        let mut hasher = DefaultHasher::new();
        (self.workload, number).hash(&mut hasher);
        if step == Step::Digest {
            return Ok(true);
        }
        if !hasher.finish().is_multiple_of(FSYNC_ONE_IN) {
            return Ok(self.was_synced);
        }
        Ok(fsync()? | self.was_synced)
    }

    /// What LibFS shows now is what the model shows, as far as `track` goes.
    pub(crate) fn compare(&mut self, track: &Track) -> Checked<()> {
        let shale = &mut self.shales[0];
        let did = catch_unwind(AssertUnwindSafe(|| Snapshot::of(shale)))
            .map_err(|_| format!("{PANIC} in a walk"))?
            .map_err(|e| format!("the walk: {e}"))?;
        let last = track.trees.len() - 1;
        match track.is_after(last, &parts(&did)) {
            true => Ok(()),
            false => Err(format!(
                "before any cut: {}",
                track.trees[last].differences(&did).join("; ")
            )),
        }
    }
}

/// Whether a call of Shale's panicked. What it was at will never be done, and to wait for it, as
/// closing a file or a session may, would be for ever.
pub(crate) fn has_panicked<T>(done: &Checked<T>) -> bool {
    done.as_ref().is_err_and(|wrong| wrong.contains(PANIC))
}
