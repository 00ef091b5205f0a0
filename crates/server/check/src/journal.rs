//! The structure journal: a valid batch that waits is no damage. The volume is
//! checked as it will be when the batch has been written in place.

use super::media::{Block, Media, Patches};
use super::report::{Findings, Object, Severity};
use shale_format::checksum::crc32c;
use shale_format::journal::{JournalEntry, JournalHeader};
use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::{ROOT_BLOCK, RootBlock, Superblock};
use zerocopy::FromBytes;

const JOURNAL: Object = Object::Part("journal");

/// Lays the batch in the journal over the media. Gives whether it waits to be replayed.
pub(super) fn replay(media: &mut Media, sb: &Superblock, findings: &mut Findings) -> bool {
    let Some(patches) = batch(media, sb, findings) else {
        return false;
    };
    let waits = media.lay_over(patches);
    if waits {
        let what = "needs recovery: a batch waits to be written in place";
        findings.note(
            Severity::Info,
            JOURNAL,
            Some(sb.journal_block),
            what,
            ("", ""),
        );
    }
    waits
}

fn batch(media: &Media, sb: &Superblock, findings: &mut Findings) -> Option<Patches> {
    let at = Some(sb.journal_block);
    let mut block: Block = [0; BLOCK_BYTES];
    if !media.load(sb.journal_block, &mut block) {
        return None;
    }
    let header = JournalHeader::decode(&block).filter(|h| h.uuid == sb.uuid)?;
    let capacity = (sb.journal_blocks - 1) * BLOCK_BYTES as u64;
    if header.body_bytes > capacity || header.body_bytes > u32::MAX.into() {
        let what = "batch larger than the journal";
        findings.error(JOURNAL, at, what, (capacity, header.body_bytes));
        return None;
    }
    let mut body = vec![0; header.body_bytes as usize];
    if !media.load_run(sb.journal_block + 1, &mut body) {
        return None;
    }
    if crc32c(&body) != header.body_crc {
        torn(media, sb, &header, findings);
        return None;
    }
    let patches = ranges(sb, header.entries, body);
    if patches.is_none() {
        findings.error(JOURNAL, at, "batch with ranges that no batch has", ("", ""));
    }
    patches
}

/// A body that does not fit its header is that of the next batch, which was being
/// written when the power went: harmless if this one is in place.
fn torn(media: &Media, sb: &Superblock, header: &JournalHeader, findings: &mut Findings) {
    let mut block: Block = [0; BLOCK_BYTES];
    let root = match media.load(ROOT_BLOCK, &mut block) {
        true => RootBlock::decode(&block).ok(),
        false => None,
    };
    let applied = root.map_or("nothing readable".to_owned(), |r| r.txid.to_string());
    if root.is_none_or(|r| r.txid != header.txid) {
        let what = "batch damaged and not known to be in place";
        findings.error(
            JOURNAL,
            Some(sb.journal_block),
            what,
            (header.txid, applied),
        );
    }
}

/// The ranges of a batch; `None`: one of them is none that a batch may change.
fn ranges(sb: &Superblock, entries: u32, body: Vec<u8>) -> Option<Patches> {
    let mut patches = Patches::new(body);
    let mut at = 0;
    for _ in 0..entries {
        let rest = patches.body().get(at..)?;
        let (e, tail) = JournalEntry::read_from_prefix(rest).ok()?;
        let bytes = e.bytes as usize;
        if bytes > tail.len() || !may_change(sb, e.offset, e.bytes.into()) {
            return None;
        }
        at += JournalEntry::BYTES;
        patches.push(e.offset, bytes, at);
        at += bytes;
    }
    patches.sort();
    Some(patches)
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
    let inside = [fixed, rest]
        .iter()
        .any(|r| offset >= r.start && end <= r.end);
    inside && offset.is_multiple_of(8) && bytes.is_multiple_of(8)
}
