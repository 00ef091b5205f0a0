//! Logs whose rings have gone around: where new records come there are still those of the
//! turn before, whole, with the right salt. Only their positions tell them from new ones.

use crate::recording::run::Run;
use std::collections::BTreeMap;

use shale_format::log::RING_AT;
use shale_nvm::Access;
use shale_record::Action;

use crate::volume::media::medium_name;
use crate::volume::place::Place;
use shale_bench::Result;

/// Bytes of a line of a log, by place in its file.
const LINE: usize = 64;

/// What the ring of each log holds: lines by byte of the file.
pub type Rings = Vec<BTreeMap<usize, [u8; LINE]>>;

/// What a run, a turn earlier, left in the logs.
pub fn rings_of(run: &Run) -> Rings {
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
    rings
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
