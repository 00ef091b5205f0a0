//! The rows of metadata that is not what was written, structure by structure.

use crate::metadata::damage::{Damage, Ground, rotten, suffer};
use crate::metadata::structures::{Kind, Part};
use crate::trial::{Trial, kept};
use crate::volume::stage::Checked;
use shale_bench::Result;

/// Every way to rot, for structures of these kinds in random order, while there is time.
fn rot(trial: &mut Trial<'_>, kinds: &[Kind]) -> Result<Checked<()>> {
    let ground = kept!(Ground::of(trial)?);
    let mut parts: Vec<Part> = kinds.iter().flat_map(|&k| ground.of_kind(k)).collect();
    trial.chance.shuffle(&mut parts);
    let all = parts.len();
    let (mut tried, mut failed, mut refused) = (0, 0, 0);
    'parts: for part in parts {
        for damage in rotten(&part, &ground.image, &mut trial.chance) {
            if !damage.changes(&ground.image) {
                continue;
            }
            if !trial.next_case() {
                break 'parts;
            }
            let seen = suffer(&ground.stage, trial.filled, &ground.image, &damage)?;
            let seen = kept!(seen);
            failed += seen.failed;
            refused += u64::from(seen.refused);
        }
        tried += 1;
    }
    trial.seen = format!("{tried} of {all} structures; {refused} refused, {failed} paths EIO");
    if all == 0 {
        // A small workload may have none of them; another one has.
        trial.cases = 1;
        trial.seen = "this workload leaves none".to_owned();
    }
    Ok(Ok(()))
}

/// One superblock rots.
pub fn superblock(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    rot(trial, &[Kind::First, Kind::Second])
}

/// The root block rots.
pub fn root(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    rot(trial, &[Kind::Root])
}

/// The log table rots.
pub fn log_table(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    rot(trial, &[Kind::LogSlot])
}

/// The bitmap rots.
pub fn bitmap(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    rot(trial, &[Kind::Bitmap])
}

/// Inode slots rot.
pub fn inodes(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    rot(trial, &[Kind::Inode])
}

/// Nodes of extents rot.
pub fn extents(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    rot(trial, &[Kind::Extents])
}

/// Nodes of entries rot.
pub fn entries(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    rot(trial, &[Kind::Entries])
}

/// Extended attributes rot.
pub fn attributes(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    rot(trial, &[Kind::Attributes])
}

/// Targets of symbolic links rot.
pub fn targets(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    rot(trial, &[Kind::Target])
}

/// Superblocks of several generations, whole and damaged, in every combination.
pub fn copies(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    use shale_format::superblock::Superblock;
    let ground = kept!(Ground::of(trial)?);
    let both = [Kind::First, Kind::Second].map(|kind| ground.of_kind(kind)[0]);
    let now = kept!(Superblock::decode(both[0].of(&ground.image), 0).map_err(|e| e.to_string())).0;
    let newer = Superblock {
        generation: now.generation + 1,
        ..now
    };
    let copies: [(&str, Option<Vec<u8>>); 4] = [
        ("as it is", Some(now.encode().to_vec())),
        ("newer", Some(newer.encode().to_vec())),
        ("rotten", None),
        ("of another block", Some(vec![0; Superblock::BYTES])),
    ];
    for (first, a) in &copies {
        for (second, b) in &copies {
            let rotten = |part: &Part| part.of(&ground.image).iter().map(|b| !b).collect();
            let bytes = vec![
                (both[0].at, a.clone().unwrap_or_else(|| rotten(&both[0]))),
                (both[1].at, b.clone().unwrap_or_else(|| rotten(&both[1]))),
            ];
            let whole = |name: &str| name == "as it is" || name == "newer";
            let damage = Damage {
                what: format!("first {first}, second {second}"),
                bytes,
                inos: vec![0],
                refused_as: None,
                may_hide: first == second,
                gone: false,
            };
            trial.cases += 1;
            if whole(first) || whole(second) {
                let seen = suffer(&ground.stage, trial.filled, &ground.image, &damage)?;
                kept!(seen);
            } else {
                kept!(none_left(&ground, &damage)?);
            }
        }
    }
    trial.seen = "every pair of: as it is, newer, rotten, zeros".to_owned();
    Ok(Ok(()))
}

/// Neither superblock can be read: everything refuses, and nothing is written.
fn none_left(ground: &Ground, damage: &Damage) -> Result<Checked<()>> {
    ground.stage.put(&ground.image)?;
    for (at, bytes) in &damage.bytes {
        ground.stage.store(*at, bytes)?;
    }
    let before = ground.stage.image()?;
    let found = kept!(ground.stage.fsck());
    let refusals = [
        ("start", ground.stage.start().map(|_| ())),
        ("repair", ground.stage.repair().map(|_| ())),
    ];
    for (what, refusal) in refusals {
        match refusal {
            Err(text) if text.contains("superblock") => {}
            other => {
                let what = format!("{}: {what}: {other:?}", damage.what);
                return Ok(Err(what));
            }
        }
    }
    if found.clean() || ground.stage.image()? != before {
        return Ok(Err(format!("{}: not told, or written to", damage.what)));
    }
    Ok(Ok(()))
}
