//! Blocks that could not be read: named for people, and left alone by cleaning.

use parking_lot::Mutex;
use serde::Serialize;
use shale_format::{BlockAddr, TierId};
use shale_volume::{LowerDeviceInfo, Volume, VolumeError};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bad blocks that `status` names.
const NAMED_MAX: usize = 32;
/// Bad blocks that are known, so that their zones are left alone.
const BAD_MAX: usize = 64 << 10;

/// A block that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadBlock {
    /// Its tier.
    pub tier: String,
    /// Its number in the tier.
    pub block: u64,
    /// What is wrong with it.
    pub why: String,
}

/// Blocks that could not be read since the start, until they are rewritten elsewhere or their files go; and what was
/// wrong with each.
#[derive(Default)]
pub struct BadBlocks {
    found: Mutex<BTreeMap<BlockAddr, String>>,
}

impl BadBlocks {
    /// The first of them.
    pub fn list(&self, volume: &Volume) -> Vec<BadBlock> {
        self.forget_dead(volume);
        self.named()
    }

    fn named(&self) -> Vec<BadBlock> {
        let found = self.found.lock();
        let named = found.iter().take(NAMED_MAX).map(|(&addr, why)| BadBlock {
            tier: tier_word(addr),
            block: addr.index(),
            why: why.clone(),
        });
        named.collect()
    }

    /// How many there are.
    pub fn all(&self) -> u64 {
        self.found.lock().len() as u64
    }

    /// How many of them lie in these blocks of a tier.
    pub fn count(&self, tier: TierId, blocks: Range<u64>) -> u64 {
        let ends = [blocks.start, blocks.end].map(|n| BlockAddr::new(tier, n));
        self.found.lock().range(ends[0]..ends[1]).count() as u64
    }

    /// Forgets those that are nobody's any more: at least as often as a zone can be erased and written again.
    pub fn forget_dead(&self, volume: &Volume) {
        let in_nvm = |addr: BlockAddr| addr.tier() == Some(TierId::Nvm);
        self.keep(|addr| in_nvm(addr) || volume.is_live(addr));
    }

    /// As [`Self::note`], but for one whose device is not there, which is named as a whole.
    pub(crate) fn note_of(&self, volume: &Volume, addr: BlockAddr, why: &VolumeError) -> bool {
        let devices = addr.tier().map(|t| volume.lower_device_infos(t));
        let mine = |d: &LowerDeviceInfo| (d.place.first..d.place.end()).contains(&addr.index());
        let absent = { devices.iter().flatten() }.any(|d| d.is_absent() && mine(d));
        !absent && self.note(addr, why)
    }

    /// Forgets those of which `lives` says that nobody misses them any more.
    fn keep(&self, lives: impl Fn(BlockAddr) -> bool) {
        self.found.lock().retain(|&addr, _| lives(addr));
    }

    /// Notes one. `false`: it was known, or there are too many.
    pub fn note(&self, addr: BlockAddr, why: &impl std::fmt::Display) -> bool {
        let mut found = self.found.lock();
        let new = found.len() < BAD_MAX && !found.contains_key(&addr);
        if new {
            if found.len() < NAMED_MAX {
                tracing::error!(tier = %tier_word(addr), block = addr.index(), "{why}");
            }
            found.insert(addr, why.to_string());
        }
        new
    }
}

fn tier_word(addr: BlockAddr) -> String {
    let tier = addr.tier().map_or("?".to_owned(), |t| format!("{t:?}"));
    tier.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_known_and_few_are_named() {
        let bad = BadBlocks::default();
        let at = |n| BlockAddr::new(TierId::Hdd, n);
        assert!((0..500).all(|n| bad.note(at(n * 2), &"torn")));
        assert!(!bad.note(at(8), &"again"));
        assert_eq!((bad.all(), bad.named().len()), (500, NAMED_MAX));
        assert_eq!(
            (bad.named()[1].tier.as_str(), bad.named()[1].block),
            ("hdd", 2)
        );
        assert_eq!(bad.count(TierId::Hdd, 100..200), 50);
        assert_eq!(bad.count(TierId::Ssd, 0..2000), 0);
        bad.keep(|addr| addr.index() >= 900);
        assert_eq!(bad.all(), 50);
    }
}
