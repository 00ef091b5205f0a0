//! What is reported of zones, and of all of a tier.

use super::Zones;
use crate::lower_tiers::lower::ZonePlace;
use shale_format::TxId;

/// Kinds of data that are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStream {
    /// Likely to change or to be read soon.
    Hot = 0,
    /// Not likely.
    Cold = 1,
}

/// One zone as `status` and cleaning see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneInfo {
    /// Where it is.
    pub place: ZonePlace,
    /// Blocks written since it was erased.
    pub written: u64,
    /// Blocks in use.
    pub live: u64,
    /// Hot or cold.
    pub stream: WriteStream,
    /// Last batch that linked blocks of it.
    pub txid: TxId,
    /// More will be written to it.
    pub open: bool,
    /// It is worn out: what is live in it should be moved, and nothing goes to it.
    pub worn: bool,
}

/// How a lower tier is used, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LowerSpace {
    /// All blocks in zones; of those that are worn out, or on devices that fail, only what is in use.
    pub total: u64,
    /// In use.
    pub live: u64,
    /// Written, and not in use any more: until their zone is cleaned.
    pub dead: u64,
    /// Could be written now: nothing where no zone is empty, since what is begun is for cleaning then.
    pub writable: u64,
    /// Left in zones that are being written.
    pub begun: u64,
    /// May come into use besides what is: all others but the spare of devices that are written to.
    pub available: u64,
    /// Kept for cleaning: the spare of its devices, one empty zone at least.
    pub reserved: u64,
    /// Zones.
    pub zones: u64,
    /// Of these, empty.
    pub empty_zones: u64,
    /// Zones erased since the start.
    pub erased: u64,
    /// Blocks written since the start.
    pub written: u64,
    /// Writes that did not continue their zone: none, ever.
    pub out_of_order: u64,
}

impl Zones {
    /// How the tier is used.
    pub(crate) fn space(&self) -> LowerSpace {
        let state = self.state.lock();
        let mut space = LowerSpace {
            zones: state.zones.len() as u64,
            erased: state.erased,
            written: state.written,
            out_of_order: state.out_of_order,
            ..LowerSpace::default()
        };
        let mut empty = Vec::new();
        for (n, z) in state.zones.iter().enumerate() {
            space.live += z.live;
            if z.worn {
                space.total += z.live;
                continue;
            }
            if state.devices[z.place.device].failing.is_some() {
                // Nobody can be promised more.
                space.total += z.live;
            } else {
                space.total += z.place.blocks;
            }
            space.dead += z.given - z.live.min(z.given);
            if state.is_closed(z) {
                continue;
            }
            if z.given == 0 {
                empty.push(z.place.blocks);
            } else if state.open.contains(&Some(n)) {
                space.begun += z.left();
            }
        }
        space.empty_zones = empty.len() as u64;
        space.available = state.available();
        space.reserved = empty.first().map_or(0, |&zone| zone).max(state.spare(None));
        if state.has_reserve() {
            space.writable = space.begun + empty.iter().skip(1).sum::<u64>();
        }
        space
    }
}
