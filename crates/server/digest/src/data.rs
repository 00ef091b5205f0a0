//! Write data: allocates the blocks of a plan and writes them (DESIGN §6.3). Nothing is fenced here: the commit by the
//! same thread does that, and until then the blocks are not part of the volume. A crash leaves free blocks.
//!
//! Blocks that stay get what is new where they are. A crash before the commit leaves a part of that in them: the log is
//! digested again then, from the same position on, and stores it again. Nobody reads these bytes there meanwhile: who has
//! the file's lease has them from the log, until the commit is published and every call has ended that began before.
//!
//! Each run is placed by itself ([`Placement`]): in NVM, or in a tier below it, once instead of to NVM and from
//! there down. What goes below is written in the order in which it was allocated, in long requests, and the tier
//! is flushed before anything links it, as in `migrate`.

mod new_blocks;

pub(crate) use new_blocks::{Allocation, allocate};

use super::DigestError;
use super::content::{BLOCK, Source};
use super::item::Item;
use super::layout::{CopyRun, Fill, From, StoreRun};
use super::plan::{InodePlan, Plan};
use super::poison;
use super::scan::LogSource;
use crate::tail_block_cache::{TailBlockCache, tail_block};
use shale_format::checksum::Crc32c;
use shale_format::extent::Extent;
use shale_format::inode::Inode;
use shale_format::limits::BLOCK_BYTES;
use shale_format::log::RING_AT;
use shale_format::staged::PlacedEntry;
use shale_format::{BlockAddr, FileBlock, Ino, LogPos, TierId};
use shale_nvm::{LINE_BYTES, Path};
use shale_oplog::Op;
use shale_sys::mutants;
use shale_volume::{KeptLeaf, Mapping, Run, View, Volume, VolumeError};

/// Bytes that are put together before they are written: they stay in the caches.
const BUFFER_BYTES: usize = 64 << 10;
/// Payloads of at least this many bytes go from the log to their block directly.
const DIRECT_BYTES: u64 = 4096;
/// Bytes that are written below NVM at once.
const ROW_BYTES: usize = 1 << 20;
/// Least bytes of a log that follow one another below NVM and get an entry of their own.
const PLACED_BYTES_MIN: u64 = 2048;

const _: () = assert!(BUFFER_BYTES.is_multiple_of(BLOCK_BYTES));

/// Writes the data of all runs. Gives which bytes of the log lie below NVM now, durable: ascending, none twice.
pub(crate) fn write(
    (volume, tail_blocks): (&Volume, &TailBlockCache),
    log: &LogSource<'_>,
    items: &[Item],
    plan: &Plan,
    placed: &Allocation<'_>,
) -> Result<Vec<PlacedEntry>, DigestError> {
    let view = volume.view();
    let mut writer = Writer {
        volume,
        view: &view,
        tail_blocks,
        log,
        items,
        buffer: vec![0; BUFFER_BYTES].into(),
        row: SequentialWriter::default(),
        leaf: KeptLeaf::default(),
        last: Vec::new(),
        logged: Vec::new(),
    };
    for (inode, extents) in plan.inodes.iter().zip(&placed.extents) {
        for run in &inode.file.stores {
            writer.store(run)?;
        }
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
        writer.note_last(inode, extents)?;
    }
    writer.row.write(volume)?;
    let to = |tier: TierId| {
        placed
            .below
            .iter()
            .any(|(_, run)| run.addr.tier() == Some(tier))
    };
    for tier in TierId::ALL.into_iter().filter(|tier| to(*tier)) {
        if !mutants::is_on("direct-flush") && !mutants::is_on("placed-unflushed") {
            volume.flush_lower(tier)?;
        }
    }
    for (ino, addr, bytes) in writer.last {
        tail_blocks.keep(ino.0, (addr, view.generation(addr)?), &bytes);
    }
    Ok(large_and_once(writer.logged))
}

/// Of bytes of a log that were written below, those that are worth an entry: [`PLACED_BYTES_MIN`] and more. Ascending, none twice.
fn large_and_once(logged: Vec<(PlacedEntry, Crc32c)>) -> Vec<PlacedEntry> {
    let large = logged
        .into_iter()
        .filter(|(placed, _)| placed.bytes >= PLACED_BYTES_MIN);
    let with_crc = large.map(|(placed, crc)| PlacedEntry {
        crc: crc.finish(),
        ..placed
    });
    let mut logged: Vec<PlacedEntry> = with_crc.collect();
    logged.sort_by_key(|placed| placed.from);
    let mut end = 0;
    logged.retain(|placed| {
        let is_new = placed.from >= end;
        end = end.max(placed.end());
        is_new
    });
    logged
}

/// Bytes for blocks below NVM that follow one another in one zone.
#[derive(Default)]
struct SequentialWriter {
    at: Option<BlockAddr>,
    bytes: Vec<u8>,
}

impl SequentialWriter {
    /// Adds whole blocks; what they do not follow is written first.
    fn push(&mut self, volume: &Volume, addr: BlockAddr, blocks: &[u8]) -> Result<(), VolumeError> {
        let end = |at: BlockAddr| at.plus(self.bytes.len() as u64 / BLOCK);
        let goes_on = self.at.is_some_and(|at| end(at) == addr) && self.bytes.len() < ROW_BYTES;
        if !goes_on || volume.view().zone(addr)?.first == addr.index() {
            self.write(volume)?;
            self.at = Some(addr);
        }
        self.bytes.extend_from_slice(blocks);
        Ok(())
    }

    /// The block at its end, if that is `addr`.
    fn last_if(&self, addr: BlockAddr) -> Option<&[u8]> {
        let (blocks, _) = self.bytes.as_chunks::<BLOCK_BYTES>();
        let last = self.at?.plus((blocks.len() as u64).checked_sub(1)?);
        blocks.last().filter(|_| last == addr).map(|b| &b[..])
    }

    fn write(&mut self, volume: &Volume) -> Result<(), VolumeError> {
        if let Some(addr) = self.at.take() {
            let len = self.bytes.len() as u64 / BLOCK;
            volume.write_lower(Run { addr, len }, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }
}

struct Writer<'a> {
    volume: &'a Volume,
    view: &'a View,
    tail_blocks: &'a TailBlockCache,
    log: &'a LogSource<'a>,
    items: &'a [Item],
    buffer: Box<[u8]>,
    row: SequentialWriter,
    leaf: KeptLeaf,
    /// Last blocks that lie below NVM.
    last: Vec<(Ino, BlockAddr, Vec<u8>)>,
    /// Bytes of the log that were written below NVM, and their checksums.
    logged: Vec<(PlacedEntry, Crc32c)>,
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
            let below = target.tier() != Some(TierId::Nvm);
            let bytes = u64::from(extent.len) * BLOCK;
            let (mut done, mut held) = (0u64, 0usize);
            while done + (held as u64) < bytes {
                let at = done + held as u64;
                let Some(f) = fill.as_mut() else {
                    unreachable!("the fills of a run fill all of it");
                };
                let rest = (bytes - at).min(f.bytes);
                let direct = match below {
                    true => 0,
                    false => self.direct(f.from, target, at, rest, held == 0)?,
                };
                let n = if direct > 0 {
                    done += direct;
                    direct
                } else {
                    let n = rest.min((BUFFER_BYTES - held) as u64);
                    self.load(f.from, old, held, n as usize)?;
                    if below {
                        self.note_logged(f.from, (held, n), (target, at));
                    }
                    held += n as usize;
                    n
                };
                f.bytes -= n;
                f.from = f.from.advance(n);
                if f.bytes == 0 {
                    fill = fills.next();
                }
                let line_end = !below
                    && held > 0
                    && self.direct_follows(fill.map(|f| (f.from, f.bytes)), at + n);
                if held == BUFFER_BYTES || done + (held as u64) == bytes || line_end {
                    let bytes = &self.buffer[..held];
                    match below {
                        true => self
                            .row
                            .push(self.volume, target.plus(done / BLOCK), bytes)?,
                        false => self.volume.write_at(target, done, bytes)?,
                    }
                    done += held as u64;
                    held = 0;
                }
            }
        }
        Ok(())
    }

    /// Stores what is new in blocks that stay, and nothing of what they have.
    fn store(&mut self, run: &StoreRun) -> Result<(), DigestError> {
        let (mut at, mut held) = (0, 0);
        for &Fill {
            mut bytes,
            mut from,
        } in &run.fills
        {
            if matches!(from, From::Old(_)) {
                self.store_held(run, at, &mut held)?;
                at += bytes;
                continue;
            }
            while bytes > 0 {
                let n = match self.direct(from, run.addr, at, bytes, held == 0)? {
                    0 => {
                        let n = bytes.min((BUFFER_BYTES - held) as u64);
                        self.load(from, None, held, n as usize)?;
                        held += n as usize;
                        n
                    }
                    direct => direct,
                };
                (at, bytes, from) = (at + n, bytes - n, from.advance(n));
                if held == BUFFER_BYTES {
                    self.store_held(run, at, &mut held)?;
                }
            }
        }
        self.store_held(run, at, &mut held)
    }

    /// Stores what the buffer holds: `held` bytes that end at byte `end` of a run.
    fn store_held(&self, run: &StoreRun, end: u64, held: &mut usize) -> Result<(), DigestError> {
        let bytes = &self.buffer[..std::mem::take(held)];
        let byte = end - bytes.len() as u64;
        if bytes.is_empty() {
            return Ok(());
        }
        if mutants::is_on("store-unflushed") {
            let map = self.view.map().on(Path::Data);
            map.store((run.addr.byte() + byte) as usize, bytes);
            return Ok(());
        }
        Ok(self.volume.write_at(run.addr, byte, bytes)?)
    }

    /// Notes the file's last block, if it was just put into the row: the bytes are at its end.
    fn note_last(&mut self, plan: &InodePlan, extents: &[Extent]) -> Result<(), DigestError> {
        let last = plan.inode.as_ref().and_then(tail_block);
        let Some(extent) = extents.last().filter(|e| last == Some(e.end().0 - 1)) else {
            return Ok(());
        };
        let addr = BlockAddr::from_raw(extent.addr).plus(u64::from(extent.len) - 1);
        if let Some(bytes) = self.row.last_if(addr) {
            self.last.push((plan.ino, addr, bytes.to_vec()));
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
        rest: u64,
        empty: bool,
    ) -> Result<u64, DigestError> {
        let (From::New(Source::Log(pos)), Some(log)) = (from, self.log.bytes.mapped()) else {
            return Ok(0);
        };
        let bytes = rest - rest % LINE_BYTES as u64;
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

    /// Notes that what lies in the buffer from byte `held` on, `bytes` bytes from `from`, goes to byte `at` behind the start of
    /// `target`, if it is the log's.
    fn note_logged(
        &mut self,
        from: From,
        (held, bytes): (usize, u64),
        (target, at): (BlockAddr, u64),
    ) {
        let From::New(Source::Log(pos)) = from else {
            return;
        };
        let data = &self.buffer[held..held + bytes as usize];
        let (addr, byte) = (target.plus(at / BLOCK), at % BLOCK);
        if let Some((last, crc)) = self.logged.last_mut() {
            let behind = u64::from(last.byte) + last.bytes;
            let next = BlockAddr::from_raw(last.addr).plus(behind / BLOCK);
            if (last.end(), next, behind % BLOCK) == (pos.0, addr, byte) {
                last.bytes += bytes;
                crc.update(data);
                return;
            }
        }
        let mut crc = Crc32c::new();
        crc.update(data);
        let placed = PlacedEntry::new(pos.0, bytes, (addr, byte as u32), 0);
        self.logged.push((placed, crc));
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
            (From::Old(offset), Some(inode)) => read_old(
                (self.view, self.tail_blocks),
                &mut self.leaf,
                inode,
                offset,
                into,
            )?,
            (From::New(Source::Zero), _) if mutants::is_on("zeros-left-out") => {}
            (From::New(Source::Zero), _) | (From::Old(_), None) => into.fill(0),
        }
        Ok(())
    }
}

/// Reads a file as it is in the volume, holes as zeros.
fn read_old(
    (view, tail_blocks): (&View, &TailBlockCache),
    leaf: &mut KeptLeaf,
    inode: &Inode,
    offset: u64,
    into: &mut [u8],
) -> Result<(), DigestError> {
    let mut done = 0;
    while done < into.len() {
        let byte = offset + done as u64;
        let fb = FileBlock::containing(byte);
        let mapping = view.map_block_near(inode, fb, leaf)?;
        let (Mapping::Data { len, .. } | Mapping::Unwritten { len, .. } | Mapping::Hole { len }) =
            mapping;
        let run_end = fb.0.saturating_add(len.max(1)).saturating_mul(BLOCK);
        let n = (run_end - byte).min((into.len() - done) as u64) as usize;
        let part = &mut into[done..done + n];
        match mapping {
            Mapping::Data { addr, .. } => {
                let (from, skip) = ((view, tail_blocks), byte - fb.byte());
                poison::read(from, inode, (fb, addr), skip, part)?
            }
            _ => part.fill(0),
        }
        done += n;
    }
    Ok(())
}
