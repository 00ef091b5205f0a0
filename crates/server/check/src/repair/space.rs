//! Which blocks are whose while a volume is repaired.

use shale_format::{BlockAddr, TierId};
use std::collections::HashSet;
use std::ops::Range;

/// One bit a block.
struct Bits(Vec<u64>);

impl Bits {
    fn new(blocks: u64) -> Self {
        Bits(vec![0; blocks.div_ceil(64) as usize])
    }

    fn get(&self, block: u64) -> bool {
        self.0[(block / 64) as usize] >> (block % 64) & 1 == 1
    }

    /// Sets a bit; whether it was not set.
    fn set(&mut self, block: u64) -> bool {
        let new = !self.get(block);
        self.0[(block / 64) as usize] |= 1 << (block % 64);
        new
    }
}

/// Blocks of the NVM tier.
pub(super) struct Space {
    data: Range<u64>,
    /// Blocks of each tier.
    tiers: [u64; 3],
    /// Something that is kept, or was there before, has it.
    claimed: Bits,
    /// It is a tree node that was read.
    nodes: Bits,
    /// Leaves below NVM that were read.
    leaves_below: HashSet<BlockAddr>,
    /// It is part of the repaired volume.
    used: Bits,
    /// Blocks of the tiers below that something has, and those that are part of the repaired
    /// volume.
    below: [[Bits; 2]; 2],
    /// Where the search for a free block goes on.
    next: u64,
}

impl Space {
    pub(super) fn new(data: Range<u64>, tiers: [u64; 3]) -> Self {
        Space {
            claimed: Bits::new(data.end),
            nodes: Bits::new(data.end),
            leaves_below: HashSet::new(),
            used: Bits::new(data.end),
            below: [1, 2].map(|n| [(); 2].map(|()| Bits::new(tiers[n]))),
            next: data.start,
            data,
            tiers,
        }
    }

    /// Whether all of a run can belong to something.
    pub(super) fn is_inside(&self, addr: BlockAddr, len: u64) -> bool {
        let end = addr.index().checked_add(len);
        match (addr.tier(), end) {
            (Some(TierId::Nvm), Some(end)) => {
                addr.index() >= self.data.start && end <= self.data.end
            }
            (Some(tier), Some(end)) => end <= self.tiers[tier as usize],
            _ => false,
        }
    }

    pub(super) fn data(&self) -> Range<u64> {
        self.data.clone()
    }

    /// Claims a block; whether nobody had it. Only blocks of the data area.
    pub(super) fn claim(&mut self, block: u64) -> bool {
        self.claimed.set(block)
    }

    pub(super) fn is_claimed(&self, block: u64) -> bool {
        self.claimed.get(block)
    }

    /// Claims all of a run or nothing.
    pub(super) fn claim_run(&mut self, addr: BlockAddr, len: u64) -> bool {
        let blocks = addr.index()..addr.index() + len;
        let free = self.is_inside(addr, len)
            && addr.tier() == Some(TierId::Nvm)
            && blocks.clone().all(|b| !self.claimed.get(b));
        if free {
            for block in blocks {
                self.claimed.set(block);
            }
        }
        free
    }

    /// Claims a block as a tree node; whether it is nobody's.
    pub(super) fn claim_node(&mut self, addr: BlockAddr) -> bool {
        if addr.tier() != Some(TierId::Nvm) {
            return self.claim_below(addr, 1) && self.leaves_below.insert(addr);
        }
        let new = self.claimed.set(addr.index());
        if new {
            self.nodes.set(addr.index());
        }
        new
    }

    /// Whether a block was claimed as a node.
    pub(super) fn is_node(&self, addr: BlockAddr) -> bool {
        match addr.tier() {
            Some(TierId::Nvm) => self.nodes.get(addr.index()),
            _ => self.leaves_below.contains(&addr),
        }
    }

    /// Claims all of a run of a lower tier or nothing.
    pub(super) fn claim_below(&mut self, addr: BlockAddr, len: u64) -> bool {
        let n = match addr.tier() {
            Some(TierId::Ssd) => 0,
            Some(TierId::Hdd) => 1,
            _ => return false,
        };
        let blocks = addr.index()..addr.index() + len;
        let claimed = &mut self.below[n][0];
        let free = blocks.clone().all(|b| !claimed.get(b));
        for block in blocks.filter(|_| free) {
            claimed.set(block);
        }
        free
    }

    /// Makes blocks part of the repaired volume.
    pub(super) fn keep(&mut self, addr: BlockAddr, len: u64) {
        let used = match addr.tier() {
            Some(TierId::Nvm) => &mut self.used,
            Some(TierId::Ssd) => &mut self.below[0][1],
            Some(TierId::Hdd) => &mut self.below[1][1],
            None => return,
        };
        for block in addr.index()..addr.index() + len {
            used.set(block);
        }
    }

    /// Runs of the blocks of each tier below that are part of the repaired volume.
    pub(super) fn used_below(&self) -> [Vec<(u64, u64)>; 2] {
        [0, 1].map(|n| runs(0..self.tiers[n + 1], &self.below[n][1]))
    }

    /// A block that nothing refers to, now part of the repaired volume.
    pub(super) fn take(&mut self) -> Option<BlockAddr> {
        while self.next < self.data.end {
            let block = self.next;
            self.next += 1;
            if self.claimed.set(block) {
                self.used.set(block);
                return Some(BlockAddr::nvm(block));
            }
        }
        None
    }

    /// Runs of the blocks that are part of the repaired volume.
    pub(super) fn used_runs(&self) -> Vec<(u64, u64)> {
        runs(self.data.clone(), &self.used)
    }
}

fn runs(blocks: Range<u64>, used: &Bits) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for block in blocks.filter(|&b| used.get(b)) {
        match runs.last_mut() {
            Some((first, len)) if *first + *len == block => *len += 1,
            _ => runs.push((block, 1)),
        }
    }
    runs
}
