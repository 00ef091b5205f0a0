//! Tables of the lower tiers that are not what was written: zones, bitmaps, checksums; and what
//! repair makes of them.

use std::collections::BTreeSet;

use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::LowerTables;
use shale_format::zone::ZoneEntry;

use crate::lower_tiers::failures::{spoiled, with_links};
use crate::lower_tiers::tiered_volume::{NAMES, Tiered, program};
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::sight::{Sight, use_it};
use crate::volume::stage::Checked;
use shale_bench::Result;
use shale_bench::chance::Chance;
use shale_powercut::volume::lower_tiers::ZONE_BLOCKS;

const BLOCK: u64 = BLOCK_BYTES as u64;
const SUM_BYTES: u64 = 4;

/// Something else than `was`, and what.
fn rotten(was: &[u8], kind: u64, chance: &mut Chance) -> (&'static str, Vec<u8>) {
    let mut bytes = was.to_vec();
    let n = chance.below(was.len() as u64) as usize;
    match kind % 4 {
        0 => {
            bytes[n] ^= 1 << chance.below(8);
            ("a bit flipped", bytes)
        }
        1 => {
            bytes.fill(0);
            ("zeros", bytes)
        }
        2 => {
            // The first words are older than the others.
            let half = was.len() / 2;
            bytes[..half].fill(0);
            ("torn", bytes)
        }
        _ => ("noise", chance.bytes(was.len())),
    }
}

fn tables(t: &Tiered) -> Result<[LowerTables; 2]> {
    t.restore()?;
    let devices = t.stage.view()?.device_table().map_err(program)?;
    Ok([0, 1].map(|n| devices.of(n)[0].tables()))
}

/// `fsck` tells, the start is refused with `name`, repair makes it whole; what cannot be read
/// afterwards is among `given_up` and was reported. Gives what is EIO.
fn mended(t: &Tiered, name: &str, given_up: &[Vec<u8>]) -> Checked<usize> {
    let report = t.fsck()?;
    if report.clean() || !report.findings.iter().any(|f| NAMES.contains(&&*f.object)) {
        return Err(format!("fsck names no tier:\n{report}"));
    }
    match t.stage.start_with(t.config()) {
        Ok(_) => return Err("served although that cannot be trusted".to_owned()),
        Err(refusal) if !refusal.contains(name) => {
            return Err(format!("the refusal does not name the {name}: {refusal}"));
        }
        Err(_) => {}
    }
    let report = t.repair()?;
    if !report.clean() || report.mended.is_empty() {
        return Err(format!("repair:\n{report}"));
    }
    let again = t.repair()?;
    if !again.mended.is_empty() {
        return Err(format!("a second repair finds more:\n{again}"));
    }
    // Objects are paths, with the number of the inode behind them.
    let lost = report.mended.iter().filter(|m| m.lost);
    let noted: BTreeSet<&str> = lost.filter_map(|m| m.object.split(" (").next()).collect();
    let failed = t.serve(|_, shale, _| {
        let sight = Sight::mended(shale, &t.tree, &[], true);
        sight.within(given_up)?;
        for path in &sight.failed {
            let path = format!("/{}", String::from_utf8_lossy(path));
            let same = with_links(t, &BTreeSet::from([path.as_bytes()[1..].to_vec()]));
            let names = same
                .iter()
                .map(|p| format!("/{}", String::from_utf8_lossy(p)));
            if !names.into_iter().any(|name| noted.contains(&*name)) {
                return Err(format!(
                    "{path} is EIO, and repair did not say so:\n{report}"
                ));
            }
        }
        if given_up.is_empty() && !noted.is_empty() {
            return Err(format!("repair loses something:\n{report}"));
        }
        use_it(shale, b"fault-new")?;
        Ok(sight.failed.len())
    })?;
    let report = t.fsck()?;
    match report.clean() {
        true => Ok(failed),
        false => Err(format!("fsck at the end:\n{report}")),
    }
}

/// Entries of zones rot.
pub fn entries(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let t = kept!(Tiered::new(trial)?);
    let (tables, live) = (tables(&t)?, kept!(t.live()));
    let (mut failed, mut kind) = (0, 0);
    while trial.next_case() {
        t.restore()?;
        let one = &live[trial.chance.below(live.len() as u64) as usize];
        let zone = one.addr.index() / ZONE_BLOCKS;
        let at = tables[one.device()].zone_block * BLOCK + zone * ZoneEntry::BYTES as u64;
        let was = &t.image[at as usize..][..ZoneEntry::BYTES];
        let (how, bytes) = rotten(was, kind, &mut trial.chance);
        kind += 1;
        t.stage.store(at, &bytes)?;
        let inside = live
            .iter()
            .filter(|l| l.device() == one.device() && l.addr.index() / ZONE_BLOCKS == zone);
        let inside: BTreeSet<Vec<u8>> = inside.map(|l| l.path.clone()).collect();
        let place = format!("zone {zone} of {}: {how}", NAMES[one.device()]);
        let found = mended(&t, "zone", &with_links(&t, &inside));
        failed += kept!(found.map_err(|wrong| format!("{place}: {wrong}")));
    }
    trial.seen = format!("{failed} paths EIO, all reported");
    Ok(Ok(()))
}

/// Bitmaps rot.
pub fn bitmaps(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let t = kept!(Tiered::new(trial)?);
    let tables = tables(&t)?;
    while trial.next_case() {
        t.restore()?;
        let n = (trial.cases % 2) as usize;
        let at = tables[n].bitmap_block * BLOCK;
        let was = &t.image[at as usize..][..BLOCK_BYTES];
        let (how, bytes) = rotten(was, trial.cases / 2, &mut trial.chance);
        if bytes == was {
            continue;
        }
        t.stage.store(at, &bytes)?;
        let found = mended(&t, "bitmap", &[]);
        kept!(found.map_err(|wrong| format!("bitmap of {}: {how}: {wrong}", NAMES[n])));
    }
    trial.seen = "nothing is lost".to_owned();
    Ok(Ok(()))
}

/// Checksums of blocks rot.
pub fn sums(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let t = kept!(Tiered::new(trial)?);
    let (tables, live) = (tables(&t)?, kept!(t.live()));
    let mut failed = 0;
    while trial.next_case() {
        t.restore()?;
        let one = &live[trial.chance.below(live.len() as u64) as usize];
        let at = tables[one.device()].sums_block * BLOCK + one.addr.index() * SUM_BYTES;
        let was = &t.image[at as usize..][..SUM_BYTES as usize];
        let (how, bytes) = rotten(was, trial.cases, &mut trial.chance);
        if bytes == was {
            continue;
        }
        t.stage.store(at, &bytes)?;
        let place = format!("sum of {:?}: {how}", one.addr);
        failed += kept!(spoiled(&t, one).map_err(|wrong| format!("{place}: {wrong}")));
    }
    trial.seen = format!("{failed} paths EIO");
    Ok(Ok(()))
}
