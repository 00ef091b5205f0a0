//! Who uses which block: one bit a block for "seen", one for "entered as a tree node",
//! and a third once blocks were seen twice.
//!
//! The second owner of a block is known at once, the first one only after the same
//! walk was done again ([`Claims::again`]). Work is bounded: blocks are seen for the
//! first time once each and entered once each, and after [`TWICE_PART`] times the tier
//! of them were seen again, nothing is followed any more.

use super::report::{Findings, Object};
use shale_format::{BlockAddr, TierId};
use std::ops::Range;

/// Blocks seen again, as a multiple of the tier, after which the check gives up on them.
const TWICE_PART: u64 = 8;

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Bytes of a file, or slots of inodes.
    Data,
    /// A tree node.
    Node,
    /// Extended attributes.
    Xattrs,
    /// Tables of a device below NVM.
    Tables,
}

/// Who uses a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// Inode number; 0: the inode file.
    pub(super) ino: u64,
    /// What for.
    pub(super) part: Part,
}

impl Owner {
    pub(super) fn object(self) -> Object {
        match self.ino {
            0 if self.part == Part::Tables => Object::Part("device table"),
            ino => Object::of(ino),
        }
    }
}

/// A run of blocks that something referred to which had an owner already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Twice {
    pub(super) first: u64,
    pub(super) len: u64,
    pub(super) later: Owner,
    pub(super) earlier: Option<Owner>,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claimed {
    /// All blocks are the claimer's.
    Whole,
    /// Some had an owner already.
    Twice,
    /// They are not blocks that can be owned.
    Outside,
}

/// One bit a block.
#[derive(Default)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn new(bits: u64) -> Self {
        Bits(vec![0; bits.div_ceil(64) as usize])
    }

    pub(super) fn word(&self, w: usize) -> u64 {
        self.0.get(w).copied().unwrap_or(0)
    }
}

/// Calls `f` with every word that a run touches and the mask of its bits there.
fn for_words(first: u64, len: u64, mut f: impl FnMut(usize, u64)) {
    let end = first + len;
    let mut at = first;
    while at < end {
        let n = (64 - at % 64).min(end - at);
        let mask = (u64::MAX >> (64 - n)) << (at % 64);
        f((at / 64) as usize, mask);
        at += n;
    }
}

/// Calls `f` with first bit and length of every run of ones.
pub(super) fn for_runs(word: usize, mut bits: u64, mut f: impl FnMut(u64, u64)) {
    let base = word as u64 * 64;
    let mut at = 0;
    while bits != 0 {
        let skip = bits.trailing_zeros();
        bits >>= skip;
        let n = bits.trailing_ones();
        f(base + u64::from(at + skip), n.into());
        bits = if n == 64 { 0 } else { bits >> n };
        at += skip + n;
    }
}

/// Which blocks were seen.
pub(super) struct Claims {
    data: Range<u64>,
    /// Blocks of each tier.
    tiers: [u64; 3],
    seen: Bits,
    /// Blocks of the lower tiers that were seen.
    below: [Bits; 2],
    /// Tree nodes that were found whole: each is valid for one inode only.
    entered: Bits,
    /// Blocks seen, per tier.
    pub(super) counts: [u64; 3],
    twice_bits: Bits,
    twice: Vec<Twice>,
    most: usize,
    /// Blocks seen again, each time.
    pub(super) again_blocks: u64,
    /// The walk is done again to find first owners; so many are to be found.
    missing: Option<usize>,
}

impl Claims {
    /// For `data`, the blocks of NVM that can be owned, in tiers of these sizes; at most
    /// `most` runs seen twice are remembered.
    pub(super) fn new(data: Range<u64>, tiers: [u64; 3], most: usize) -> Self {
        Claims {
            seen: Bits::new(data.end),
            below: [1, 2].map(|n| Bits::new(tiers[n])),
            entered: Bits::new(data.end),
            data,
            tiers,
            counts: [0; 3],
            twice_bits: Bits::default(),
            twice: Vec::new(),
            most,
            again_blocks: 0,
            missing: None,
        }
    }

    /// Blocks seen of a lower tier, counted from 0.
    pub(super) fn below(&self, n: usize) -> &Bits {
        &self.below[n]
    }

    /// Notes blocks of a lower tier: what has two owners is reported at once.
    fn claim_below(
        &mut self,
        addr: BlockAddr,
        len: u64,
        owner: Owner,
        findings: &mut Findings,
    ) -> Claimed {
        let tier = addr.tier().map_or(1, |t| t as usize);
        let mut again = 0;
        let seen = &mut self.below[tier - 1];
        for_words(addr.index(), len, |w, mask| {
            again += u64::from((seen.0[w] & mask).count_ones());
            seen.0[w] |= mask;
        });
        self.counts[tier] = self.counts[tier].saturating_add(len - again);
        if again == 0 {
            return Claimed::Whole;
        }
        let what = "blocks of a tier below that have an owner already";
        findings.error(owner.object(), Some(addr.index()), what, ("", again));
        Claimed::Twice
    }

    pub(super) fn seen(&self) -> &Bits {
        &self.seen
    }

    /// Whether a tree node that is whole is seen for the first time as such. Somebody else
    /// may use its block too, without doing harm to the rightful tree. Leaves below NVM are not noted:
    /// they lead nowhere.
    pub(super) fn enter(&mut self, addr: BlockAddr) -> bool {
        if addr.tier() != Some(TierId::Nvm) {
            return !self.gave_up();
        }
        let block = addr.index();
        let (w, bit) = ((block / 64) as usize, 1 << (block % 64));
        let new = !self.gave_up() && self.entered.word(w) & bit == 0;
        if new {
            self.entered.0[w] |= bit;
        }
        new
    }

    /// Whether so much is used twice that it is no longer followed.
    pub(super) fn gave_up(&self) -> bool {
        self.again_blocks > self.data.end * TWICE_PART
    }

    /// Notes that `owner` uses a run, and what is wrong with that.
    pub(super) fn claim(
        &mut self,
        addr: BlockAddr,
        len: u64,
        owner: Owner,
        findings: &mut Findings,
    ) -> Claimed {
        let end = addr.index().checked_add(len);
        let inside = match (addr.tier(), end) {
            (Some(TierId::Nvm), Some(end)) => {
                addr.index() >= self.data.start && end <= self.data.end
            }
            (Some(tier), Some(end)) => end <= self.tiers[tier as usize],
            _ => false,
        };
        if !inside {
            self.note_outside(addr, len, owner, findings);
            return Claimed::Outside;
        }
        if addr.tier() != Some(TierId::Nvm) {
            // The second walk looks for owners of blocks of NVM.
            return match self.missing {
                None => self.claim_below(addr, len, owner, findings),
                Some(_) => Claimed::Whole,
            };
        }
        match self.missing {
            None => self.claim_nvm(addr.index(), len, owner),
            Some(_) => self.claim_again(addr.index(), len, owner),
        }
    }

    fn note_outside(&self, addr: BlockAddr, len: u64, owner: Owner, findings: &mut Findings) {
        let what = match owner.part {
            Part::Data => "extent outside the data area",
            Part::Node => "tree node outside the data area",
            Part::Xattrs => "extended attributes outside the data area",
            Part::Tables => "tables of a device outside the data area",
        };
        let expected = match addr.tier() {
            None => "tier 0 to 2".to_owned(),
            Some(TierId::Nvm) => format!("blocks {} to {}", self.data.start, self.data.end - 1),
            Some(tier) => format!(
                "fewer than {} blocks of {tier:?}",
                self.tiers[tier as usize]
            ),
        };
        let found = format!("{len} from {addr:?}");
        findings.error(owner.object(), Some(addr.index()), what, (expected, found));
    }

    fn claim_nvm(&mut self, first: u64, len: u64, owner: Owner) -> Claimed {
        if self.gave_up() {
            return Claimed::Twice;
        }
        let mut again = 0;
        let Claims {
            seen,
            twice,
            twice_bits,
            most,
            data,
            ..
        } = self;
        for_words(first, len, |w, mask| {
            let dup = seen.0[w] & mask;
            seen.0[w] |= mask;
            if dup == 0 {
                return;
            }
            again += u64::from(dup.count_ones());
            if twice_bits.0.is_empty() {
                *twice_bits = Bits::new(data.end);
            }
            for_runs(w, dup, |at, n| {
                let full = twice.len() >= *most;
                match twice.last_mut() {
                    Some(t) if t.later == owner && t.first + t.len == at => t.len += n,
                    _ if full => return,
                    _ => twice.push(Twice {
                        first: at,
                        len: n,
                        later: owner,
                        earlier: None,
                    }),
                }
                for_words(at, n, |w, mask| twice_bits.0[w] |= mask);
            });
        });
        self.counts[0] += len - again;
        self.again_blocks += again;
        if again == 0 {
            Claimed::Whole
        } else {
            Claimed::Twice
        }
    }

    /// Begins the second walk, in which first owners are found; `false`: none is missing.
    pub(super) fn again(&mut self) -> bool {
        if self.twice.is_empty() {
            return false;
        }
        self.seen = Bits::new(self.data.end);
        self.entered = Bits::new(self.data.end);
        // So that it ends where the first one did.
        self.again_blocks = 0;
        self.missing = Some(self.twice.len());
        true
    }

    /// Whether the second walk has found everything.
    pub(super) fn found_all(&self) -> bool {
        self.missing == Some(0)
    }

    fn claim_again(&mut self, first: u64, len: u64, owner: Owner) -> Claimed {
        if self.gave_up() {
            return Claimed::Twice;
        }
        let mut again = 0;
        let Claims {
            seen,
            twice,
            twice_bits,
            missing,
            ..
        } = self;
        for_words(first, len, |w, mask| {
            let new = mask & !seen.0[w];
            again += u64::from((mask & !new).count_ones());
            seen.0[w] |= mask;
            let wanted = new & twice_bits.word(w);
            if wanted == 0 {
                return;
            }
            for_runs(w, wanted, |at, n| {
                let touched = twice
                    .iter_mut()
                    .filter(|t| t.earlier.is_none() && t.first < at + n && t.first + t.len > at);
                for t in touched {
                    t.earlier = Some(owner);
                    *missing = missing.map(|m| m.saturating_sub(1));
                }
            });
        });
        self.again_blocks += again;
        if again == 0 {
            Claimed::Whole
        } else {
            Claimed::Twice
        }
    }

    /// The runs that were seen twice.
    pub(super) fn twice(&self) -> &[Twice] {
        &self.twice
    }
}
