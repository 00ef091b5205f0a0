//! Allocates the blocks of a plan: below NVM what goes there, then everything else.

use crate::DigestError;
use crate::access_policy::{AccessPolicy, NewRun, Placement};
use crate::layout::CopyRun;
use crate::plan::Plan;
use shale_format::extent::{Extent, UNWRITTEN};
use shale_format::inode::Inode;
use shale_format::{Ino, TierId};
use shale_volume::{Run, Volume, VolumeError, WriteStream};

/// New blocks of a plan. Until [`Allocation::keep`] they go back when it is dropped.
pub(crate) struct Allocation<'v> {
    volume: &'v Volume,
    runs: Vec<Run>,
    /// For each inode of the plan the extents of its new blocks, ascending.
    pub extents: Vec<Vec<Extent>>,
    /// Those below NVM.
    pub below: Vec<(Ino, Run)>,
}

impl Allocation<'_> {
    /// Asks for each run where it goes, and allocates what goes below NVM, as far as there is space: the beginning
    /// of each.
    fn place_lower(&mut self, plan: &Plan, policy: &dyn AccessPolicy) -> Result<(), DigestError> {
        let mut lower = lower_runs(plan, policy);
        for tier in TierId::ALL {
            let same = lower.iter().filter(|run| run.tier == tier);
            let all: u64 = same.map(|run| run.copy.blocks).sum();
            lower.retain(|run| run.tier != tier || all >= run.chunk_blocks);
        }
        let mut full = Vec::new();
        for run in lower {
            if !full.contains(&run.tier) && !self.place_run(plan, &run)? {
                full.push(run.tier);
            }
        }
        Ok(())
    }

    /// Allocates a run below NVM; `false`: its tier is full.
    fn place_run(&mut self, plan: &Plan, wanted: &LowerRun<'_>) -> Result<bool, DigestError> {
        let LowerRun { copy, inode, .. } = *wanted;
        let mut done = 0;
        while done < copy.blocks {
            let (rest, stream) = (copy.blocks - done, wanted.stream);
            let run = match self.volume.allocate_lower(wanted.tier, stream, rest, false) {
                Ok(run) => run,
                Err(VolumeError::NoSpace { .. }) => return Ok(false),
                Err(e) => return Err(e.into()),
            };
            assert!(
                (1..=rest).contains(&run.len) && run.addr.tier() == Some(wanted.tier),
                "{run:?} was allocated for {rest} blocks of {:?}",
                wanted.tier
            );
            self.extents[inode].push(Extent {
                file_block: copy.at + done,
                addr: run.addr.raw(),
                len: run.len as u32,
                flags: 0,
            });
            self.below.push((plan.inodes[inode].ino, run));
            done += run.len;
        }
        Ok(true)
    }

    /// The blocks are part of the volume now.
    /// Gives those below NVM.
    pub fn keep(mut self) -> Vec<(Ino, Run)> {
        self.runs.clear();
        std::mem::take(&mut self.below)
    }
}

impl Drop for Allocation<'_> {
    fn drop(&mut self) {
        for &run in &self.runs {
            self.volume.give_back(run);
        }
    }
}

/// A run of a plan that goes below NVM.
struct LowerRun<'p> {
    /// Its inode, as the plan counts them.
    inode: usize,
    copy: &'p CopyRun,
    tier: TierId,
    stream: WriteStream,
    chunk_blocks: u64,
}

/// Those runs of a plan for which a tier below NVM is named.
fn lower_runs<'p>(plan: &'p Plan, policy: &dyn AccessPolicy) -> Vec<LowerRun<'p>> {
    let mut lower = Vec::new();
    for (n, inode) in plan.inodes.iter().enumerate() {
        let pin = inode.inode.as_ref().and_then(Inode::pin);
        for copy in &inode.file.copies {
            let blocks = copy.blocks;
            if let Placement::Lower {
                tier,
                stream,
                chunk_blocks,
            } = policy.placement(&NewRun { blocks, pin })
            {
                assert!(tier != TierId::Nvm, "NVM is not below itself");
                lower.push(LowerRun {
                    inode: n,
                    copy,
                    tier,
                    stream,
                    chunk_blocks,
                });
            }
        }
    }
    lower
}

/// Hands out blocks of allocated runs one after the other.
struct RunSplitter {
    runs: std::vec::IntoIter<Run>,
    rest: Option<Run>,
}

impl RunSplitter {
    fn new(runs: Vec<Run>) -> Self {
        let (runs, rest) = (runs.into_iter(), None);
        Self { runs, rest }
    }

    /// Up to `most` blocks that follow one another.
    fn take(&mut self, most: u64) -> Option<Run> {
        let run = self.rest.take().or_else(|| self.runs.next())?;
        let len = run.len.min(most).min(u32::MAX.into());
        if len < run.len {
            self.rest = Some(Run {
                addr: run.addr.plus(len),
                len: run.len - len,
            });
        }
        Some(Run {
            addr: run.addr,
            len,
        })
    }

    /// Extents for `blocks` file blocks from `at` on.
    fn extents(&mut self, at: u64, blocks: u64, flags: u32, into: &mut Vec<Extent>) {
        let mut done = 0;
        while done < blocks {
            let run = self.take(blocks - done);
            let run = run.expect("as many blocks were allocated as the plan counts");
            into.push(Extent {
                file_block: at + done,
                addr: run.addr.raw(),
                len: run.len as u32,
                flags,
            });
            done += run.len;
        }
    }
}

/// What of a run has no block yet: where that begins, and blocks. `below`: the extents below NVM, ascending.
fn rest_of(copy: &CopyRun, below: &[Extent]) -> (u64, u64) {
    let first = below.partition_point(|e| e.file_block < copy.at);
    let mine = below[first..]
        .iter()
        .take_while(|e| e.file_block < copy.at + copy.blocks);
    let done: u64 = mine.map(|e| u64::from(e.len)).sum();
    (copy.at + done, copy.blocks - done)
}

/// Allocates all blocks that the plan needs: below NVM what goes there, then those of a run that
/// would adjoin what the file has already beside it, everything else in one piece, so that it lies
/// in sequence.
pub(crate) fn allocate<'v>(
    volume: &'v Volume,
    plan: &Plan,
    policy: &dyn AccessPolicy,
) -> Result<Allocation<'v>, DigestError> {
    let mut placed = Allocation {
        volume,
        runs: Vec::new(),
        extents: vec![Vec::new(); plan.inodes.len()],
        below: Vec::new(),
    };
    placed.place_lower(plan, policy)?;
    let below: Vec<usize> = placed.extents.iter().map(Vec::len).collect();
    let mut together = 0;
    let all = plan.inodes.iter().zip(&mut placed.extents).zip(&below);
    for ((inode, extents), &below) in all {
        for copy in &inode.file.copies {
            let (at, blocks) = rest_of(copy, &extents[..below]);
            if copy.hint.is_some() && blocks > 0 {
                let runs = volume.allocate(blocks, copy.hint)?;
                placed.runs.extend_from_slice(&runs);
                RunSplitter::new(runs).extents(at, blocks, 0, extents);
            } else {
                together += blocks;
            }
        }
        together += blocks(&inode.file.unwritten);
    }
    let runs = match together {
        0 => Vec::new(),
        blocks => volume.allocate(blocks, None)?,
    };
    placed.runs.extend_from_slice(&runs);
    let mut splitter = RunSplitter::new(runs);
    let all = plan.inodes.iter().zip(&mut placed.extents).zip(&below);
    for ((inode, extents), &below) in all {
        for copy in inode.file.copies.iter().filter(|c| c.hint.is_none()) {
            let (at, blocks) = rest_of(copy, &extents[..below]);
            splitter.extents(at, blocks, 0, extents);
        }
        for range in &inode.file.unwritten {
            splitter.extents(range.start, range.end - range.start, UNWRITTEN, extents);
        }
        extents.sort_by_key(|e| e.file_block);
        debug_assert_eq!(
            extents.iter().map(|e| u64::from(e.len)).sum::<u64>(),
            inode.file.copies.iter().map(|c| c.blocks).sum::<u64>() + blocks(&inode.file.unwritten),
            "each new block of inode {:?} is placed once",
            inode.ino
        );
    }
    Ok(placed)
}

fn blocks(ranges: &[std::ops::Range<u64>]) -> u64 {
    ranges.iter().map(|r| r.end - r.start).sum()
}
