//! Logs whose rings have gone around: where new records come there are still those of the
//! turn before, whole, with the right salt. Only their positions tell them from new ones.

use std::collections::BTreeMap;

use shale_format::log::RING_AT;
use shale_nvm::Access;
use shale_record::Action;

use super::base::{Base, Place, medium_name};
use super::record::{Wrong, run};
use shale_bench::Result;
use shale_model::workload::words::Workload;

/// Bytes of a line of a log, by place in its file.
const LINE: usize = 64;

/// What the ring of each log holds: lines by byte of the file.
pub type Rings = Vec<BTreeMap<usize, [u8; LINE]>>;

/// Runs the workload a turn earlier, and gives what that leaves in the logs.
///
/// # Errors
/// As [`run`].
pub fn last_turn(
    place: &mut Place,
    base: &Base,
    workload: &Workload,
) -> Result<std::result::Result<Rings, Wrong>> {
    let earlier = Workload {
        turned: false,
        ..workload.clone()
    };
    let run = match run(place, base, &earlier)? {
        Ok(run) => run,
        Err(wrong) => return Ok(Err(wrong)),
    };
    let mut rings = vec![BTreeMap::new(); run.logs];
    for event in run.events.iter().filter(|e| e.medium > 0) {
        let Action::Store { offset, bytes, .. } = &event.action else {
            continue;
        };
        let ring: &mut BTreeMap<_, _> = &mut rings[event.medium - 1];
        for (at, &byte) in (*offset..).zip(bytes.iter()).filter(|b| b.0 >= RING_AT) {
            ring.entry(at / LINE * LINE).or_insert([0; LINE])[at % LINE] = byte;
        }
    }
    Ok(Ok(rings))
}

/// Stores it into the logs that have just been made at `place`, durably.
///
/// # Errors
/// A log cannot be mapped.
pub fn put(place: &Place, rings: &Rings) -> Result<()> {
    for (client, ring) in rings.iter().enumerate() {
        let path = place.nvm_dir().join(medium_name(1 + client));
        let maps = place.maps(client).log;
        let map = maps.open_files(&[path], Access::ReadWrite)?;
        for (&at, line) in ring {
            map.copy_nt(at, line);
        }
        map.fence();
    }
    Ok(())
}
