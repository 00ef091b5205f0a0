//! Power cuts while `fsck --repair` works: whatever it had done, a second repair makes the volume
//! whole, with the same tree as one repair that nobody interrupts.

use std::sync::Arc;

use shale_check::{CheckOptions, repair};
use shale_nvm::{Map, MapOptions};
use shale_record::{Recorded, Recording};
use shale_volume::Volume;

use crate::metadata::damage::Ground;
use crate::metadata::damage::{Damage, rotten};
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::stage::{Checked, caught};
use shale_bench::Result;
use shale_model::Snapshot;
use shale_powercut::images::{ALL_SUBSETS, Caches, Cutter, Image};
use shale_powercut::recovery::check::tree;

/// Structures that are damaged at once, at most.
const DAMAGES: u64 = 3;
/// Images at one cut at most.
const IMAGES: usize = 24;

/// Repairs what is on `map`; gives the tree.
fn mend(map: &Arc<Map>) -> Checked<Snapshot> {
    caught(|| {
        let options = CheckOptions::default();
        let report = repair(map, &[], &options, &mut |_| ()).map_err(|e| format!("repair: {e}"))?;
        if !report.clean() {
            return Err(format!("not whole after repair:\n{report}"));
        }
        // A batch that was committed and not applied is for the next start.
        let volume = Volume::open(map.clone()).map_err(|e| format!("start: {e}"))?;
        tree(&volume.view()).map_err(|e| format!("the tree after repair: {e}"))
    })
}

/// The uninterrupted repair: what it stored, and the tree.
fn recorded(damaged: &[u8]) -> Result<Checked<(Vec<Recorded>, Snapshot)>> {
    let recording = Recording::events_only();
    let medium = recording.medium("nvm");
    let map = MapOptions::new()
        .recorder(medium)
        .anonymous(damaged.len())?;
    map.store(0, damaged);
    recording.take_events();
    let tree = kept!(mend(&Arc::new(map)));
    Ok(Ok((recording.take_events(), tree)))
}

/// Cuts before each fence of one repair, and at its end.
fn cut_all(trial: &mut Trial<'_>, damaged: &[u8], what: &str) -> Result<Checked<()>> {
    let (events, expected) = kept!(recorded(damaged)?);
    let map = Arc::new(MapOptions::new().anonymous(damaged.len())?);
    map.store(0, damaged);
    let mut cutter = Cutter::new(&events, damaged, Image::default(), Caches::Volatile);
    loop {
        let over = !cutter.step();
        if !over && !cutter.before_fence() {
            continue;
        }
        let cut = cutter.cut();
        for mask in cut.masks(IMAGES, ALL_SUBSETS, &mut trial.chance) {
            if !trial.next_case() {
                return Ok(Ok(()));
            }
            for (key, value) in cut.image(&mask).units() {
                map.store(key.offset(), &value);
            }
            let found = mend(&map);
            let at = cutter.at();
            match found {
                Ok(found) if found == expected => {}
                Ok(found) => {
                    let differences = expected.differences(&found).join("; ");
                    return Ok(Err(format!("{what}; cut at event {at}: {differences}")));
                }
                Err(wrong) => return Ok(Err(format!("{what}; cut at event {at}: {wrong}"))),
            }
            map.store(0, damaged);
        }
        if over {
            return Ok(Ok(()));
        }
    }
}

/// Damages a volume here and there, and cuts the repair of it.
pub fn repairs(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let ground = kept!(Ground::of(trial)?);
    let mut repaired = 0;
    while !trial.is_over() {
        let mut damaged = ground.image.clone();
        let mut what = Vec::new();
        for _ in 0..=trial.chance.below(DAMAGES) {
            let part = ground.any(&mut trial.chance);
            let ways = rotten(&part, &ground.image, &mut trial.chance);
            let one: &Damage = &ways[trial.chance.below(ways.len() as u64) as usize];
            for (at, bytes) in &one.bytes {
                damaged[*at as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            what.push(one.what.clone());
        }
        kept!(cut_all(trial, &damaged, &what.join(", "))?);
        repaired += 1;
    }
    trial.seen = format!("{repaired} repairs cut");
    Ok(Ok(()))
}
