//! No space: in the volume, in the log, for inodes. ENOSPC at the call and not later, what was
//! acknowledged is digested, and removing always works.

use std::sync::Arc;

use rustix::io::Errno;
use shale_daemon::Daemon;
use shale_libfs::{OFlags, Session};

use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::sight::{Sight, unlink};
use crate::volume::stage::{Checked, Stage, attach_to, both, close_all, side, tree};
use shale_bench::Result;
use shale_bench::chance::Chance;
use shale_model::{Act, FileAct, Fill, Memory, Said, Shale, Side};

/// Files that fill a volume, and operations tried on a full one.
const FILLERS: usize = 40_000;
const TRIES: usize = 400;
const SLOT: usize = 2;

/// A volume that is being filled, next to its model.
struct Filling {
    stage: Stage,
    daemon: Arc<Daemon>,
    session: Arc<Session>,
    shale: Shale,
    model: Memory,
    /// Calls that got ENOSPC.
    noted: u64,
}

impl Filling {
    /// A new volume; its first `acts` operations are the workload's.
    fn new(trial: &Trial<'_>, acts: usize) -> Result<Checked<Filling>> {
        let stage = trial.stage()?;
        let daemon = kept!(stage.start());
        let session = kept!(attach_to(&daemon));
        let mut filling = Filling {
            shale: side(&session),
            model: Memory::new(0o755),
            noted: 0,
            stage,
            daemon,
            session,
        };
        let load = trial.filled.load;
        for act in load.acts(trial.options.seed).take(acts) {
            kept!(both(&mut filling.model, &mut filling.shale, &act));
        }
        Ok(Ok(filling))
    }

    /// Does one operation. ENOSPC changes nothing; a write may be short.
    fn act(&mut self, act: &Act) -> Checked<bool> {
        let did = self.shale.act(act);
        match (act, &did) {
            (_, Err(Errno::NOSPC)) => {
                self.noted += 1;
                if let Act::Open(slot, ..) = act {
                    // What the slot held was closed before.
                    let _ = self.model.act(&Act::File(*slot, FileAct::Close));
                }
                return Ok(false);
            }
            (Act::File(slot, FileAct::Write(at, fill)), Ok(Said::Count(n))) if *n < fill.len => {
                return self.short(*slot, FileAct::Write(*at, Fill { len: *n, ..*fill }));
            }
            (Act::File(slot, FileAct::WriteNext(fill)), Ok(Said::Count(n))) if *n < fill.len => {
                return self.short(*slot, FileAct::WriteNext(Fill { len: *n, ..*fill }));
            }
            _ => {}
        }
        let should = self.model.act(act);
        match should == did {
            true => Ok(true),
            false => {
                let shown = shale_model::compare::shown;
                let (should, did) = (shown(&should), shown(&did));
                Err(format!("{act:?}: expected {should}, found {did}"))
            }
        }
    }

    fn short(&mut self, slot: usize, done: FileAct) -> Checked<bool> {
        // What was written is the beginning of what was to be written.
        self.noted += 1;
        let should = self.model.act(&Act::File(slot, done));
        should
            .map(|_| false)
            .map_err(|e| format!("a short write: {e}"))
    }

    fn compare(&mut self) -> Checked<()> {
        let expected = tree(&mut self.model)?;
        Sight::of(&mut self.shale, &expected).within(&[])
    }

    /// Everything that returned is there after digest, unmount and a new start; then
    /// everything is removed, and the space comes back.
    fn end(mut self, made: &[Vec<u8>], free_before: u64) -> Checked<()> {
        self.compare().map_err(|e| format!("while full: {e}"))?;
        close_all(&mut self.shale);
        close_all(&mut self.model);
        let expected = tree(&mut self.model)?;
        drop(self.shale);
        self.session
            .detach()
            .map_err(|e| format!("detach of a full volume: {e}"))?;
        self.daemon
            .shutdown()
            .map_err(|e| format!("shutdown of a full volume: {e}"))?;
        let report = self.stage.fsck()?;
        if !report.clean() {
            return Err(format!("fsck of a full volume:\n{report}"));
        }
        let daemon = self.stage.start()?;
        let session = attach_to(&daemon)?;
        let mut shale = side(&session);
        Sight::of(&mut shale, &expected)
            .within(&[])
            .map_err(|e| format!("after unmount of a full volume: {e}"))?;
        for path in made
            .iter()
            .filter(|path| expected.paths.contains_key(*path))
        {
            unlink(&mut shale, path).map_err(|e| format!("on a full volume: {e}"))?;
        }
        daemon.quiesce();
        let free = session.space().map_err(|e| format!("space: {e}"))?.free;
        drop(shale);
        session.detach().map_err(|e| format!("detach: {e}"))?;
        daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
        // Nodes of the workload's files may lie in more blocks now.
        if free + 64 < free_before {
            return Err(format!("{free_before} blocks were free, now {free}"));
        }
        let report = self.stage.fsck()?;
        match report.clean() {
            true => Ok(()),
            false => Err(format!("fsck at the end:\n{report}")),
        }
    }
}

/// The volume fills with data; the workload goes on meanwhile.
pub fn volume(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let sizes = [2 << 20, 300_000, 64 << 10, 10_000, 3_000, 100];
    while trial.next_case() {
        let mut filling = kept!(Filling::new(trial, 200)?);
        kept!(filling.digest());
        let free = kept!(filling.free());
        let mut made = Vec::new();
        for (n, len) in sizes.into_iter().cycle().enumerate().take(FILLERS) {
            let path = format!("fault-{n}").into_bytes();
            let flags = OFlags::RDWR | OFlags::CREATE;
            let fill = Fill { seed: n as u8, len };
            let some = [
                Act::Open(SLOT, path.clone(), flags, 0o600),
                Act::File(SLOT, FileAct::WriteNext(fill)),
                Act::File(SLOT, FileAct::Close),
            ];
            made.push(path);
            for act in some {
                kept!(filling.act(&act));
            }
            if filling.noted > 60 {
                break;
            }
        }
        if filling.noted == 0 {
            return Ok(Err("the volume could not be filled".to_owned()));
        }
        let seed = trial.chance.next_u64();
        let acts = trial.filled.load.acts(seed).take(TRIES);
        for act in acts {
            kept!(
                filling
                    .act(&act)
                    .map_err(|e| format!("on a full volume: {e}"))
            );
        }
        trial.seen = format!("{} calls got ENOSPC", filling.noted);
        // What the workload rebuilt may have been overwritten: only its own names go.
        kept!(
            filling
                .end(&made, 0)
                .map_err(|e| format!("{free} blocks at first: {e}"))
        );
    }
    Ok(Ok(()))
}

/// Names and inodes fill the volume: there is no other limit on their number.
pub fn inodes(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    if !trial.next_case() {
        return Ok(Ok(()));
    }
    let mut filling = kept!(Filling::new(trial, 100)?);
    // Most of the volume is a file that can be made at once.
    let flags = OFlags::RDWR | OFlags::CREATE;
    kept!(filling.act(&Act::Open(SLOT, b"fault-large".to_vec(), flags, 0o600)));
    kept!(filling.digest());
    let free = kept!(filling.free());
    let space = free.saturating_sub(200) * 4096;
    kept!(filling.act(&Act::File(SLOT, FileAct::Allocate(0, 0, space))));
    let mut made = vec![b"fault-large".to_vec()];
    let mut chance = Chance::new(trial.options.seed);
    for n in 0..200_000_u64 {
        let path = format!("fault-{n}-{}", "x".repeat(chance.below(200) as usize)).into_bytes();
        let ok = kept!(filling.act(&Act::Symlink(b"/".to_vec(), path.clone())));
        if ok {
            made.push(path);
        }
        if filling.noted > 100 {
            break;
        }
    }
    if filling.noted == 0 {
        return Ok(Err("there was always another inode".to_owned()));
    }
    trial.seen = format!("{} inodes made until ENOSPC", made.len());
    kept!(filling.end(&made, 0));
    Ok(Ok(()))
}

/// A log of the smallest size, written much faster than it is digested: writers wait.
pub fn log(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    while trial.next_case() {
        let mut filling = kept!(Filling::new(trial, 100)?);
        let flags = OFlags::RDWR | OFlags::CREATE;
        kept!(filling.act(&Act::Open(SLOT, b"fault-again".to_vec(), flags, 0o600)));
        // 60 MiB through a ring of 16, not aligned, so that nothing is stolen.
        for n in 0..200_u64 {
            let fill = Fill {
                seed: n as u8,
                len: 300_001,
            };
            let at = 1 + n % 3 * 1_000;
            let done = kept!(filling.act(&Act::File(SLOT, FileAct::Write(at, fill))));
            if !done {
                return Ok(Err(format!("write {n}: ENOSPC although there is room")));
            }
        }
        kept!(filling.end(&[b"fault-again".to_vec()], 0));
        trial.seen = "60 MB through a ring of 16: writers wait, no call fails".to_owned();
    }
    Ok(Ok(()))
}

impl Filling {
    fn digest(&self) -> Checked<()> {
        self.session.digest().map_err(|e| format!("digest: {e}"))?;
        self.daemon.quiesce();
        Ok(())
    }

    fn free(&self) -> Checked<u64> {
        let space = self.session.space();
        space.map(|s| s.free).map_err(|e| format!("space: {e}"))
    }
}
