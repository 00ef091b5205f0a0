//! The structure journal: a redo log of one batch.
//!
//! Order of a commit, and what a power cut after each step leaves:
//! 1. nodes, data and the body of the batch are written, one fence — the state
//!    before: nothing refers to any of it, and the header in place is that of a
//!    batch which is applied already;
//! 2. the header is written, fence — the state after: recovery applies the batch;
//! 3. the ranges are written in place, fence — the state after: applying the batch
//!    again changes nothing.
//!
//! Applying again is harmless only while nothing else may have been written to the
//! ranges of the last batch. So a batch never touches a block that it frees.

use crate::error::{Result, VolumeError};
use crate::media::NvmRegion;
use shale_format::checksum::crc32c;
use shale_format::journal::{JOURNAL_MAGIC, JournalEntry, JournalHeader};
use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::{ROOT_BLOCK, RootBlock, Superblock};
use shale_format::{BlockAddr, TxId};
use shale_sys::{failpoints, mutants};
use zerocopy::{FromBytes, IntoBytes};

const WHAT: &str = "journal";

/// Byte ranges and their new contents, encoded as the journal's body.
#[derive(Default)]
pub(crate) struct Batch {
    body: Vec<u8>,
    entries: u32,
    /// Where the last entry begins in the body.
    last: usize,
}

impl Batch {
    /// Adds a range: multiples of 8. One that begins where the last one ends is joined to it.
    pub(crate) fn push(&mut self, offset: u64, bytes: &[u8]) {
        assert!(offset.is_multiple_of(8) && bytes.len().is_multiple_of(8));
        let head = JournalEntry::BYTES;
        if self.entries > 0
            && let Ok((mut e, _)) = JournalEntry::read_from_prefix(&self.body[self.last..])
            && e.offset + u64::from(e.bytes) == offset
        {
            e.bytes += bytes.len() as u32;
            self.body[self.last..self.last + head].copy_from_slice(e.as_bytes());
        } else {
            self.last = self.body.len();
            let e = JournalEntry {
                offset,
                bytes: bytes.len() as u32,
                reserved: 0,
            };
            self.body.extend_from_slice(e.as_bytes());
            self.entries += 1;
        }
        self.body.extend_from_slice(bytes);
    }

    /// Bytes of the body.
    pub(crate) fn bytes(&self) -> u64 {
        self.body.len() as u64
    }
}

/// Bytes that a batch may have.
pub(crate) fn capacity(sb: &Superblock) -> u64 {
    (sb.journal_blocks - 1) * BLOCK_BYTES as u64
}

/// Checks that a batch fits the journal.
pub(crate) fn check_capacity(sb: &Superblock, batch: &Batch) -> Result<()> {
    let (wanted, capacity) = (batch.bytes(), capacity(sb));
    if wanted > capacity {
        return Err(VolumeError::JournalFull { wanted, capacity });
    }
    Ok(())
}

/// Makes a batch durable and applies it. Everything else that the new state needs
/// has been written by this thread before.
pub(crate) fn commit(media: &NvmRegion, sb: &Superblock, txid: TxId, batch: &Batch) -> Result<()> {
    check_capacity(sb, batch)?;
    let header = JournalHeader {
        magic: JOURNAL_MAGIC,
        txid: txid.0,
        body_bytes: batch.bytes(),
        entries: batch.entries,
        body_crc: crc32c(&batch.body),
        uuid: sb.uuid,
        reserved: [0; 12],
        crc: 0,
    };
    let at = BlockAddr::nvm(sb.journal_block);
    failpoints::reach("journal-begin");
    media.write_journal(at.plus(1), 0, &batch.body)?;
    if !mutants::is_on("journal-body-fence") {
        media.fence();
    }
    failpoints::reach("journal-body");
    media.write_journal(at, 0, &header.encode())?;
    if !mutants::is_on("journal-header-fence") {
        media.fence();
    }
    failpoints::reach("journal-header");
    apply(media, sb, batch.entries, &batch.body)
}

/// Writes the ranges of a batch in place.
fn apply(media: &NvmRegion, sb: &Superblock, entries: u32, body: &[u8]) -> Result<()> {
    let mut rest = body;
    for _ in 0..entries {
        let (e, tail) = JournalEntry::read_from_prefix(rest)
            .map_err(|_| damaged(sb, entries.into(), rest.len() as u64))?;
        let n = e.bytes as usize;
        if n > tail.len() || !may_change(sb, e.offset, u64::from(e.bytes)) {
            return Err(damaged(sb, tail.len() as u64, e.offset));
        }
        let in_block = e.offset % BLOCK_BYTES as u64;
        let addr = BlockAddr::nvm(e.offset / BLOCK_BYTES as u64);
        media.write(addr, in_block, &tail[..n])?;
        rest = &tail[n..];
        failpoints::reach("journal-apply");
    }
    if mutants::is_on("journal-apply-fence") {
        return Ok(());
    }
    media.fence();
    Ok(())
}

/// Whether a batch may touch a range: everything but the journal; of the superblocks a whole copy.
fn may_change(sb: &Superblock, offset: u64, bytes: u64) -> bool {
    let block = BLOCK_BYTES as u64;
    let Some(end) = offset.checked_add(bytes) else {
        return false;
    };
    if bytes == Superblock::BYTES as u64 && sb.copies().map(|copy| copy * block).contains(&offset) {
        return true;
    }
    let fixed = ROOT_BLOCK * block..sb.journal_block * block;
    let rest = sb.changeable();
    let rest = rest.start * block..rest.end * block;
    offset.is_multiple_of(8)
        && bytes.is_multiple_of(8)
        && [fixed, rest]
            .iter()
            .any(|r| offset >= r.start && end <= r.end)
}

fn damaged(sb: &Superblock, expected: u64, found: u64) -> VolumeError {
    VolumeError::Damaged {
        what: WHAT,
        at: sb.journal_block,
        expected,
        found,
    }
}

/// Removes a header of which only a part was written. The next batch has the same number,
/// so a part of *its* header could complete this one, which speaks of a body that is gone.
fn wipe(media: &NvmRegion, at: BlockAddr, found: &[u8]) -> Result<()> {
    if found.iter().any(|&byte| byte != 0) && !mutants::is_on("journal-wipe") {
        media.write_journal(at, 0, &[0; JournalHeader::BYTES])?;
        media.fence();
    }
    Ok(())
}

/// Applies the batch that a crash may have left. Gives whether there was one.
pub(crate) fn replay(media: &NvmRegion, sb: &Superblock) -> Result<bool> {
    let at = BlockAddr::nvm(sb.journal_block);
    let mut bytes = [0; JournalHeader::BYTES];
    media.load(at, 0, &mut bytes)?;
    if mutants::is_on("journal-header-checksum")
        && let Ok(found) = JournalHeader::read_from_bytes(&bytes)
    {
        bytes = found.encode();
    }
    // Without a whole header the last batch is applied: a header is only
    // overwritten after that.
    let Some(header) = JournalHeader::decode(&bytes).filter(|h| h.uuid == sb.uuid) else {
        wipe(media, at, &bytes)?;
        return Ok(false);
    };
    if mutants::is_on("journal-replay") {
        return Ok(false);
    }
    if header.body_bytes > capacity(sb) {
        return Err(damaged(sb, capacity(sb), header.body_bytes));
    }
    let mut body = vec![0; header.body_bytes as usize];
    media.load(at.plus(1), 0, &mut body)?;
    if crc32c(&body) != header.body_crc && !mutants::is_on("journal-body-checksum") {
        // The next batch was being written when the power went: this one is applied.
        // The root block proves it.
        let mut root = [0; RootBlock::BYTES];
        media.load(BlockAddr::nvm(ROOT_BLOCK), 0, &mut root)?;
        let applied = RootBlock::decode(&root)?.txid;
        if applied != header.txid {
            return Err(damaged(sb, header.txid, applied));
        }
        return Ok(false);
    }
    apply(media, sb, header.entries, &body)?;
    Ok(true)
}
