//! Write data: allocates the blocks of a plan and writes them, never over live ones
//! (DESIGN §6.3). Nothing is fenced here: the commit by the same thread does that, and
//! until then the blocks are not part of the volume. A crash leaves free blocks.

use super::DigestError;
use super::content::{BLOCK, Source};
use super::gather::LogSource;
use super::layout::{CopyRun, From};
use super::plan::{Item, Plan};
use shale_device::mutants;
use shale_device::{LINE_BYTES, Path};
use shale_format::extent::{Extent, UNWRITTEN};
use shale_format::inode::Inode;
use shale_format::limits::BLOCK_BYTES;
use shale_format::log::RING_AT;
use shale_format::{BlockAddr, FileBlock, LogPos};
use shale_oplog::Op;
use shale_volume::{Mapping, Run, View, Volume, VolumeError};

/// Bytes that are put together before they are written: they stay in the caches.
const BUFFER_BYTES: usize = 64 << 10;
/// Payloads of at least this many bytes go from the log to their block directly.
const DIRECT_BYTES: u64 = 4096;

const _: () = assert!(BUFFER_BYTES.is_multiple_of(BLOCK_BYTES));

/// New blocks of a plan. Until [`Placed::keep`] they go back when it is dropped.
pub(crate) struct Placed<'v> {
    volume: &'v Volume,
    runs: Vec<Run>,
    /// For each inode of the plan the extents of its new blocks, ascending.
    pub extents: Vec<Vec<Extent>>,
}

impl Placed<'_> {
    /// The blocks are part of the volume now.
    pub fn keep(mut self) {
        self.runs.clear();
    }
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        for &run in &self.runs {
            self.volume.give_back(run);
        }
    }
}

/// Hands out blocks of allocated runs one after the other.
struct Carver {
    runs: std::vec::IntoIter<Run>,
    rest: Option<Run>,
}

impl Carver {
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

/// Allocates all blocks that the plan needs: those of a run that would adjoin what the
/// file has already beside it, everything else in one piece, so that it lies in sequence.
pub(crate) fn allocate<'v>(volume: &'v Volume, plan: &Plan) -> Result<Placed<'v>, DigestError> {
    let mut placed = Placed {
        volume,
        runs: Vec::new(),
        extents: vec![Vec::new(); plan.inodes.len()],
    };
    let mut together = 0;
    for (inode, extents) in plan.inodes.iter().zip(&mut placed.extents) {
        for copy in &inode.file.copies {
            if copy.hint.is_some() {
                let runs = volume.allocate(copy.blocks, copy.hint)?;
                placed.runs.extend_from_slice(&runs);
                Carver::new(runs).extents(copy.at, copy.blocks, 0, extents);
            } else {
                together += copy.blocks;
            }
        }
        together += blocks(&inode.file.unwritten);
    }
    if together == 0 {
        return Ok(placed);
    }
    let runs = volume.allocate(together, None)?;
    placed.runs.extend_from_slice(&runs);
    let mut carver = Carver::new(runs);
    for (inode, extents) in plan.inodes.iter().zip(&mut placed.extents) {
        for copy in inode.file.copies.iter().filter(|c| c.hint.is_none()) {
            carver.extents(copy.at, copy.blocks, 0, extents);
        }
        for range in &inode.file.unwritten {
            carver.extents(range.start, range.end - range.start, UNWRITTEN, extents);
        }
        extents.sort_by_key(|e| e.file_block);
    }
    Ok(placed)
}

fn blocks(ranges: &[std::ops::Range<u64>]) -> u64 {
    ranges.iter().map(|r| r.end - r.start).sum()
}

/// Writes the data of all runs.
pub(crate) fn write(
    volume: &Volume,
    log: &LogSource<'_>,
    items: &[Item],
    plan: &Plan,
    placed: &Placed<'_>,
) -> Result<(), DigestError> {
    let view = volume.view();
    let mut writer = Writer {
        volume,
        view: &view,
        log,
        items,
        buffer: vec![0; BUFFER_BYTES].into(),
    };
    for (inode, extents) in plan.inodes.iter().zip(&placed.extents) {
        if inode.file.copies.is_empty() {
            continue;
        }
        let old = match inode.base {
            Some(_) if !inode.wipe => view.inode(inode.ino)?,
            _ => None,
        };
        for copy in &inode.file.copies {
            writer.run(copy, old.as_ref(), extents)?;
        }
    }
    Ok(())
}

struct Writer<'a> {
    volume: &'a Volume,
    view: &'a View,
    log: &'a LogSource<'a>,
    items: &'a [Item],
    buffer: Box<[u8]>,
}

impl Writer<'_> {
    /// Writes one run to the extents that lie in it.
    fn run(
        &mut self,
        copy: &CopyRun,
        old: Option<&Inode>,
        extents: &[Extent],
    ) -> Result<(), DigestError> {
        let mut fills = copy.fills.iter().copied();
        let mut fill = fills.next();
        let end = copy.at + copy.blocks;
        // Ascending: a search for each run, not a walk over all extents of the file.
        let first = extents.partition_point(|e| e.file_block < copy.at);
        let mine = extents[first..]
            .iter()
            .take_while(|e| e.file_block < end)
            .filter(|e| !e.is_unwritten());
        for extent in mine {
            let target = BlockAddr::from_raw(extent.addr);
            let bytes = u64::from(extent.len) * BLOCK;
            let (mut done, mut held) = (0u64, 0usize);
            while done + (held as u64) < bytes {
                let at = done + held as u64;
                let Some(f) = fill.as_mut() else {
                    unreachable!("the fills of a run fill all of it");
                };
                let room = (bytes - at).min(f.bytes);
                let direct = self.direct(f.from, target, at, room, held == 0)?;
                let n = if direct > 0 {
                    done += direct;
                    direct
                } else {
                    let n = room.min((BUFFER_BYTES - held) as u64);
                    self.load(f.from, old, held, n as usize)?;
                    held += n as usize;
                    n
                };
                f.bytes -= n;
                f.from = f.from.further(n);
                if f.bytes == 0 {
                    fill = fills.next();
                }
                let line_end =
                    held > 0 && self.direct_follows(fill.map(|f| (f.from, f.bytes)), at + n);
                if held == BUFFER_BYTES || done + (held as u64) == bytes || line_end {
                    self.volume.write_at(target, done, &self.buffer[..held])?;
                    done += held as u64;
                    held = 0;
                }
            }
        }
        Ok(())
    }

    /// Whether a payload that begins at byte `at` of its extent is to go there directly.
    fn direct_follows(&self, fill: Option<(From, u64)>, at: u64) -> bool {
        let large = matches!(fill, Some((From::New(Source::Log(_)), n)) if n >= DIRECT_BYTES);
        large && at.is_multiple_of(LINE_BYTES as u64)
    }

    /// Copies whole lines of a large payload from the log to the block, if nothing waits
    /// in the buffer. Gives the bytes copied; 0: not possible.
    fn direct(
        &self,
        from: From,
        target: BlockAddr,
        at: u64,
        room: u64,
        empty: bool,
    ) -> Result<u64, DigestError> {
        let (From::New(Source::Log(pos)), Some(log)) = (from, self.log.bytes.mapped()) else {
            return Ok(0);
        };
        let bytes = room - room % LINE_BYTES as u64;
        if !empty || bytes < DIRECT_BYTES || !at.is_multiple_of(LINE_BYTES as u64) {
            return Ok(0);
        }
        let map = self.view.map().on(Path::Data);
        if mutants::is_on("direct-without-flush") {
            let mut cached = vec![0; bytes as usize];
            let _ = self.log.bytes.load(self.place(pos), &mut cached);
            map.store((target.byte() + at) as usize, &cached);
            return Ok(bytes);
        }
        map.copy_nt_from(
            log,
            self.place(pos),
            (target.byte() + at) as usize,
            bytes as usize,
        );
        let lost = self
            .view
            .map()
            .lost((target.byte() + at) as usize, bytes as usize);
        if let Some(page) = lost {
            let block = (page / BLOCK_BYTES) as u64;
            return Err(VolumeError::Unreadable { block }.into());
        }
        Ok(bytes)
    }

    /// Byte of the log file where position `pos` is.
    fn place(&self, pos: LogPos) -> usize {
        RING_AT + (pos.0 % self.log.ring_bytes) as usize
    }

    /// Puts bytes of a source into the buffer.
    fn load(
        &mut self,
        from: From,
        old: Option<&Inode>,
        at: usize,
        bytes: usize,
    ) -> Result<(), DigestError> {
        let place = match from {
            From::New(Source::Log(pos)) => self.place(pos),
            _ => 0,
        };
        let into = &mut self.buffer[at..at + bytes];
        match (from, old) {
            (From::New(Source::Log(pos)), _) => {
                if !self.log.bytes.load(place, into) {
                    let slot = self.log.slot;
                    return Err(DigestError::Cut { slot, pos });
                }
            }
            (From::New(Source::Target { by, byte }), _) => {
                if let Op::Create { target, .. } = &self.items[by as usize].op {
                    into.copy_from_slice(&target[byte as usize..][..bytes]);
                }
            }
            (From::New(Source::Block { addr, byte }), _) => self.view.read_at(addr, byte, into)?,
            (From::Old(_), Some(_)) if mutants::is_on("old-bytes") => into.fill(0),
            (From::Old(offset), Some(inode)) => read_old(self.view, inode, offset, into)?,
            (From::New(Source::Zero), _) if mutants::is_on("zeros-left-out") => {}
            (From::New(Source::Zero), _) | (From::Old(_), None) => into.fill(0),
        }
        Ok(())
    }
}

impl From {
    fn further(self, by: u64) -> From {
        use super::ranges::Advance;
        match self {
            From::New(source) => From::New(source.advance(by)),
            From::Old(offset) => From::Old(offset + by),
        }
    }
}

/// Reads a file as it is in the volume, holes as zeros.
fn read_old(view: &View, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<(), DigestError> {
    let mut done = 0;
    while done < into.len() {
        let byte = offset + done as u64;
        let fb = FileBlock::containing(byte);
        let mapping = view.map_block(inode, fb)?;
        let (Mapping::Data { len, .. } | Mapping::Unwritten { len, .. } | Mapping::Hole { len }) =
            mapping;
        let run_end = fb.0.saturating_add(len.max(1)).saturating_mul(BLOCK);
        let n = (run_end - byte).min((into.len() - done) as u64) as usize;
        let part = &mut into[done..done + n];
        match mapping {
            Mapping::Data { addr, .. } => view.read_at(addr, byte - fb.byte(), part)?,
            _ => part.fill(0),
        }
        done += n;
    }
    Ok(())
}
