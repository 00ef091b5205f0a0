//! Metadata that is not what was written: bits flipped, blocks of another address, blocks of
//! another time.
//!
//! For each damage, in this order: `fsck` sees it; the volume is served, what is not damaged
//! reads as before, what is damaged is EIO and never wrong, something new can be written;
//! `fsck --repair` makes it whole, a second one finds nothing, and what was not damaged reads
//! as before.

use crate::trial::Trial;
use std::time::{Duration, Instant};

use crate::metadata::structures::{Kind, Part, parts};
use crate::volume::sight::{Sight, use_it};
use crate::volume::stage::{Checked, Filled, Stage, attach_to, close_all, side};
use shale_bench::Result;
use shale_bench::chance::Chance;

/// What all of these rows need.
pub(crate) struct Ground {
    pub(crate) stage: Stage,
    /// The volume; the journal tells of nothing in it any more.
    pub(crate) image: Vec<u8>,
    parts: Vec<Part>,
}

impl Ground {
    pub(crate) fn of(trial: &Trial<'_>) -> Result<Checked<Ground>> {
        let stage = trial.stage()?;
        let image = without_journal(trial.filled, &stage)?;
        stage.put(&image)?;
        let parts = parts(&stage.view()?);
        Ok(parts.map(|parts| Ground {
            stage,
            image,
            parts,
        }))
    }

    /// Any structure that can be repaired, of two of a kind one.
    pub(crate) fn any(&self, chance: &mut Chance) -> Part {
        loop {
            let part = self.parts[chance.below(self.parts.len() as u64) as usize];
            // With both superblocks gone there is no repair.
            if part.kind != Kind::Second {
                return part;
            }
        }
    }

    pub(crate) fn of_kind(&self, kind: Kind) -> Vec<Part> {
        let of = self.parts.iter().filter(|part| part.kind == kind);
        of.copied().collect()
    }
}

/// Longest that anything of one damage may take.
const TIME_MAX: Duration = Duration::from_secs(30);
/// What is made to see that the volume is of use.
const NEW_FILE: &[u8] = b"fault-new";

/// Bytes that are not what they were.
#[derive(Debug, Clone)]
pub struct Damage {
    /// In words.
    pub what: String,
    /// Where, in the tier, and what lies there now.
    pub bytes: Vec<(u64, Vec<u8>)>,
    /// Inodes of which something may be EIO.
    pub inos: Vec<u64>,
    /// What a refused start has to name; `None`: the volume has to be served.
    pub refused_as: Option<&'static str>,
    /// It may be that nothing can be seen of it, as where one copy of two is older.
    pub may_hide: bool,
    /// ENOENT is as good as EIO: the damage is another valid state of the object.
    pub gone: bool,
}

impl Damage {
    /// One structure, changed by `change`.
    pub fn of(part: &Part, image: &[u8], how: &str, change: impl FnOnce(&mut [u8])) -> Damage {
        let mut bytes = part.of(image).to_vec();
        change(&mut bytes);
        Damage {
            what: format!(
                "{:?} of inode {} at {}: {how}",
                part.kind, part.ino, part.at
            ),
            bytes: vec![(part.at, bytes)],
            inos: vec![part.ino],
            refused_as: part.refused_as(),
            may_hide: false,
            gone: false,
        }
    }

    /// Whether anything is changed by it.
    pub fn changes(&self, image: &[u8]) -> bool {
        let differs = |at: &u64, bytes: &[u8]| image[*at as usize..][..bytes.len()] != *bytes;
        self.bytes.iter().any(|(at, bytes)| differs(at, bytes))
    }
}

/// Ways in which the bytes of a structure rot.
pub fn rotten(part: &Part, image: &[u8], chance: &mut Chance) -> Vec<Damage> {
    let bit = chance.below(part.bytes * 8) as usize;
    let byte = chance.below(part.bytes) as usize;
    let noise = chance.bytes(part.bytes as usize);
    let mut all = vec![
        Damage::of(part, image, &format!("bit {bit} flipped"), |b| {
            b[bit / 8] ^= 1 << (bit % 8);
        }),
        Damage::of(part, image, &format!("byte {byte} inverted"), |b| {
            b[byte] ^= 0xff
        }),
        Damage::of(part, image, "its head is ones", |b| {
            b.iter_mut().take(64).for_each(|b| *b = 0xff);
        }),
        Damage::of(part, image, "noise", |b| b.copy_from_slice(&noise)),
    ];
    if part.kind != Kind::LogSlot {
        all.push(Damage {
            // That is a free slot: its names lead nowhere.
            gone: part.kind == Kind::Inode,
            ..Damage::of(part, image, "zeros", |b| b.fill(0))
        });
    }
    all
}

/// What became of a damage.
#[derive(Debug, Default)]
pub struct Seen {
    /// The start was refused.
    pub refused: bool,
    /// Paths that were EIO.
    pub failed: usize,
}

/// The volume with its last batch gone from the journal: a later batch lies there.
pub fn without_journal(filled: &Filled, stage: &Stage) -> Result<Vec<u8>> {
    let mut image = filled.image.clone();
    stage.put(&image)?;
    let at = stage.view()?.superblock().journal_block as usize * 4096;
    image[at..at + 64].fill(0);
    Ok(image)
}

/// Puts a damage into `image` and looks at everything.
///
/// # Errors
/// The outer error: what is around could not do it; the inner one: what is wrong.
pub fn suffer(
    stage: &Stage,
    filled: &Filled,
    image: &[u8],
    damage: &Damage,
) -> Result<Checked<Seen>> {
    stage.put(image)?;
    for (at, bytes) in &damage.bytes {
        stage.store(*at, bytes)?;
    }
    let begun = Instant::now();
    let seen = look(stage, filled, damage);
    let took = begun.elapsed();
    Ok(match seen {
        Ok(_) if took > TIME_MAX => Err(format!("{}: took {took:?}", damage.what)),
        Ok(seen) => Ok(seen),
        Err(wrong) => Err(format!("{}: {wrong}", damage.what)),
    })
}

fn look(stage: &Stage, filled: &Filled, damage: &Damage) -> Checked<Seen> {
    let found = stage.fsck()?;
    if found.clean() && !damage.may_hide {
        return Err("fsck finds nothing".to_owned());
    }
    let reach: Vec<Vec<u8>> = damage.inos.iter().flat_map(|&i| filled.reach(i)).collect();
    let mut seen = Seen::default();
    match stage.start() {
        Err(refusal) => {
            let name = damage.refused_as.ok_or(format!("refused: {refusal}"))?;
            if !refusal.contains(name) {
                return Err(format!("the refusal does not name the {name}: {refusal}"));
            }
            seen.refused = true;
        }
        Ok(daemon) => {
            if damage.refused_as.is_some() && !damage.may_hide {
                return Err("served although that cannot be trusted".to_owned());
            }
            let session = attach_to(&daemon)?;
            let mut shale = side(&session);
            let mut sight = Sight::of(&mut shale, &filled.tree);
            if damage.gone {
                sight.forgive_gone();
            }
            let fine = sight.within(&reach);
            let used = match reach.contains(&Vec::new()) {
                true => Ok(()),
                false => use_it(&mut shale, NEW_FILE),
            };
            close_all(&mut shale);
            drop(shale);
            session.detach().map_err(|e| format!("detach: {e}"))?;
            daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
            fine?;
            used?;
            seen.failed = sight.failed.len();
        }
    }
    mend(stage, filled, damage, &reach)?;
    Ok(seen)
}

fn mend(stage: &Stage, filled: &Filled, damage: &Damage, reach: &[Vec<u8>]) -> Checked<()> {
    let report = stage.repair()?;
    if !report.clean() {
        return Err(format!("not whole after repair:\n{report}"));
    }
    let again = stage.repair()?;
    if !again.mended.is_empty() {
        return Err(format!("a second repair finds more:\n{again}"));
    }
    if damage.inos.iter().all(|&ino| ino == 0) {
        // What is the volume's own can be made again from the rest.
        if let Some(lost) = report.mended.iter().find(|m| m.lost) {
            return Err(format!("repair loses something: {lost}"));
        }
    }
    let daemon = stage.start()?;
    let session = attach_to(&daemon)?;
    let mut shale = side(&session);
    let sight = Sight::mended(&mut shale, &filled.tree, reach, true);
    let used = use_it(&mut shale, b"fault-mended");
    close_all(&mut shale);
    drop(shale);
    session.detach().map_err(|e| format!("detach: {e}"))?;
    daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
    sight
        .within(&[])
        .map_err(|wrong| format!("after repair: {wrong}\n{report}"))?;
    used?;
    let last = stage.fsck()?;
    match last.clean() {
        true => Ok(()),
        false => Err(format!("fsck at the end:\n{last}")),
    }
}

/// Serves the volume: everything but `given_up`, which may show anything, is as before.
///
/// # Errors
/// It is not.
pub fn serve_without(stage: &Stage, filled: &Filled, given_up: &[Vec<u8>]) -> Checked<()> {
    let daemon = stage.start()?;
    let session = attach_to(&daemon)?;
    let mut shale = side(&session);
    let sight = Sight::mended(&mut shale, &filled.tree, given_up, false);
    drop(shale);
    session.detach().map_err(|e| format!("detach: {e}"))?;
    daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
    sight.within(&[])
}
