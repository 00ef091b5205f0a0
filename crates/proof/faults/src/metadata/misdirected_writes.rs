//! Writes that went somewhere else, or nowhere: a block that is whole and lies in another's
//! place, and one that is as it was some time ago.

use crate::metadata::damage::Ground;
use crate::metadata::damage::{Damage, serve_without, suffer};
use crate::metadata::structures::{Kind, Part};
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::stage::Checked;
use shale_bench::Result;

const BLOCK: usize = 4096;

/// Kinds whose structures may be taken for one another's.
const SWAPPED: [&[Kind]; 4] = [
    &[Kind::Inode],
    &[Kind::Extents, Kind::Entries],
    &[Kind::Attributes],
    &[Kind::First, Kind::Second, Kind::Root, Kind::Bitmap],
];

/// A structure of another address of the same kind, whole, in the place of one.
pub fn misdirected(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let ground = kept!(Ground::of(trial)?);
    let mut failed = 0;
    'rounds: loop {
        for kinds in SWAPPED {
            let parts: Vec<Part> = kinds.iter().flat_map(|&k| ground.of_kind(k)).collect();
            if parts.len() < 2 {
                continue;
            }
            let mut pick = || parts[trial.chance.below(parts.len() as u64) as usize];
            let (from, to) = (pick(), pick());
            let Some(damage) = instead(&from, &to, &ground.image) else {
                continue;
            };
            if !trial.next_case() {
                break 'rounds;
            }
            let seen = suffer(&ground.stage, trial.filled, &ground.image, &damage)?;
            failed += kept!(seen).failed;
        }
    }
    trial.seen = format!("{failed} paths EIO");
    Ok(Ok(()))
}

/// What lies at `from`, in the place of `to`.
fn instead(from: &Part, to: &Part, image: &[u8]) -> Option<Damage> {
    let bytes = (to.bytes as usize).min(image.len() - from.at as usize);
    let found = image[from.at as usize..][..bytes].to_vec();
    let copies = [Kind::First, Kind::Second];
    let damage = Damage {
        what: format!(
            "{:?} of inode {} at {} lies in the place of {:?} of inode {} at {}",
            from.kind, from.ino, from.at, to.kind, to.ino, to.at
        ),
        bytes: vec![(to.at, found)],
        ..Damage::of(to, image, "", |_| ())
    };
    // One copy of the superblock is as good as the other.
    let same = copies.contains(&from.kind) && copies.contains(&to.kind);
    (!same && damage.changes(image)).then_some(damage)
}

/// Blocks that are written in place, as they were at half of the workload: all of one kind,
/// or one alone.
pub fn lost(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let ground = kept!(Ground::of(trial)?);
    let older = &trial.filled.older;
    let mut parts: Vec<Part> = [Kind::Root, Kind::Bitmap]
        .iter()
        .flat_map(|&k| ground.of_kind(k))
        .collect();
    let nodes = [Kind::Extents, Kind::Entries];
    parts.extend(nodes.iter().flat_map(|&k| ground.of_kind(k)));
    trial.chance.shuffle(&mut parts);
    let (mut tried, mut hidden) = (0, 0);
    for part in parts {
        let damage = Damage {
            what: format!(
                "{:?} of inode {} at {} is an older one",
                part.kind, part.ino, part.at
            ),
            bytes: vec![(part.at, part.of(older).to_vec())],
            ..Damage::of(&part, &ground.image, "", |_| ())
        };
        if !damage.changes(&ground.image) {
            hidden += 1;
            continue;
        }
        if !trial.next_case() {
            break;
        }
        let seen = suffer(&ground.stage, trial.filled, &ground.image, &damage)?;
        kept!(seen);
        tried += 1;
    }
    if tried == 0 {
        trial.cases = 1;
    }
    trial.seen = format!("{tried} structures; {hidden} had not changed");
    Ok(Ok(()))
}

/// Inode slots as they were at half of the workload. Their checksums fit: nothing in them says
/// that they are old.
pub fn lost_inodes(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let ground = kept!(Ground::of(trial)?);
    let older = &trial.filled.older;
    let mut parts = ground.of_kind(Kind::Inode);
    trial.chance.shuffle(&mut parts);
    let (mut noted, mut tried) = (0, 0);
    for part in parts.iter().filter(|part| part.ino > 2) {
        let bytes = part.of(older).to_vec();
        if bytes == part.of(&ground.image) || bytes.iter().all(|&b| b == 0) {
            continue;
        }
        if !trial.next_case() {
            break;
        }
        ground.stage.put(&ground.image)?;
        ground.stage.store(part.at, &bytes)?;
        let report = kept!(ground.stage.fsck());
        noted += u64::from(!report.clean());
        tried += 1;
        // Whatever it shows of that file: nothing else is wrong, and repair makes it whole.
        let reach = trial.filled.reach(part.ino);
        kept!(serve_without(&ground.stage, trial.filled, &reach));
        let repaired = kept!(ground.stage.repair());
        if !repaired.clean() {
            let text = format!(
                "inode {}, older: not whole after repair:\n{repaired}",
                part.ino
            );
            return Ok(Err(text));
        }
    }
    if tried == 0 {
        trial.cases = 1;
    }
    trial.seen = format!("fsck told of {noted} of {tried}");
    Ok(Ok(()))
}

/// The journal: header and body rot after its batch was applied, which is the rule; and its body
/// while the header says that it counts.
pub fn journal(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let stage = trial.stage()?;
    stage.put(&trial.filled.image)?;
    let at = stage.view()?.superblock().journal_block as usize * BLOCK;
    let image = &trial.filled.image;
    while trial.next_case() {
        let body = trial.chance.below(2) == 1;
        let byte = match body {
            true => at + BLOCK + trial.chance.below(64) as usize,
            false => at + trial.chance.below(64) as usize,
        };
        let flipped = image[byte] ^ (1 << trial.chance.below(8));
        let damage = Damage {
            what: format!("byte {} of the journal is {flipped}", byte - at),
            bytes: vec![(byte as u64, vec![flipped])],
            inos: vec![0],
            refused_as: None,
            // The batch is in its place: nothing is needed of the journal.
            may_hide: true,
            gone: false,
        };
        kept!(suffer(&stage, trial.filled, image, &damage)?);
    }
    trial.seen = "a flipped bit in header or body, the batch applied".to_owned();
    Ok(Ok(()))
}
