//! Which zones to empty.

use shale_volume::ZoneInfo;

/// The zone that pays most to clean: much is dead in it, and it has been so for long
/// (cost-benefit of log-structured file systems). Of ages counts whether they are below or above
/// the mean: else the age of a zone that is all but live outweighs what another one would give, and a disk
/// that begins to be cleaned copies its old zones for next to nothing. `pays`: those that may be cleaned at all.
pub(super) fn to_clean(
    zones: &[ZoneInfo],
    newest: u64,
    pays: impl Fn(&ZoneInfo) -> bool,
) -> Option<ZoneInfo> {
    let may = |z: &&ZoneInfo| !z.open && z.live > 0 && z.live < z.written && pays(z);
    let victims: Vec<&ZoneInfo> = zones.iter().filter(may).collect();
    let age = |z: &ZoneInfo| newest.saturating_sub(z.txid.0) as f64 + 1.0;
    let mean = victims.iter().map(|z| age(z)).sum::<f64>() / victims.len().max(1) as f64;
    let rated = victims.into_iter().map(|z| {
        let live = z.live as f64 / z.place.blocks as f64;
        let settled = age(z) / (age(z) + mean);
        ((1.0 - live) * settled / (1.0 + live), *z)
    });
    rated.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, z)| z)
}

/// The zones of a tier whose data is oldest.
pub(super) fn oldest(zones: &[ZoneInfo], most: usize) -> Vec<ZoneInfo> {
    let mut full: Vec<ZoneInfo> = zones
        .iter()
        .filter(|z| !z.open && z.live > 0)
        .copied()
        .collect();
    full.sort_by_key(|z| (z.stream as u8 == 0, z.txid));
    full.truncate(most);
    full
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::TxId;
    use shale_volume::{WriteStream, ZonePlace};

    #[test]
    fn an_old_zone_that_is_nearly_all_live_is_not_cleaned_before_one_that_frees_space() {
        let zone = |zone: u64, live: u64, txid: u64| ZoneInfo {
            place: ZonePlace {
                zone,
                device: 0,
                first: zone * 100,
                blocks: 100,
            },
            written: 100,
            live,
            stream: WriteStream::Cold,
            txid: TxId(txid),
            open: false,
            worn: false,
        };
        let victim = |zones: &[ZoneInfo]| to_clean(zones, 10_000, |_| true).map(|z| z.place.zone);
        assert_eq!(victim(&[zone(0, 98, 1), zone(1, 70, 9_000)]), Some(1));
        // Of those that give about as much the one in which nothing dies any more.
        assert_eq!(victim(&[zone(0, 72, 1), zone(1, 70, 9_990)]), Some(0));
        assert_eq!(victim(&[zone(0, 100, 1), zone(1, 0, 1)]), None);
    }
}
