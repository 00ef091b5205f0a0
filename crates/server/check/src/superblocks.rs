//! What a volume begins with: both superblocks and the root block.

use super::media::{Block, Media};
use super::report::{Findings, Object, Severity};
use shale_format::FormatError;
use shale_format::limits::{BLOCK_BYTES, NVM_BYTES_MIN};
use shale_format::superblock::{ROOT_BLOCK, RootBlock, SUPER_BLOCK, Superblock};
use shale_format::version::{self, Access};
use shale_pool::volume_file::uuid_text;

const FIRST: Object = Object::Part("first superblock");
const SECOND: Object = Object::Part("second superblock");
const NEWEST: Object = Object::Part("superblock");
pub(super) const ROOT: Object = Object::Part("root block");

/// What became of one copy.
enum Copy {
    Valid(Box<Superblock>),
    Damaged,
    /// Made by a newer program.
    Refused,
}

fn copy(media: &Media, object: Object, block: u64, findings: &mut Findings) -> Copy {
    let mut bytes: Block = [0; BLOCK_BYTES];
    if !media.load(block, &mut bytes) {
        findings.error(
            object,
            Some(block),
            "superblock outside the mapping",
            ("", media.blocks()),
        );
        return Copy::Damaged;
    }
    match Superblock::decode(&bytes, block) {
        Ok((found, access)) => {
            if access == Access::ReadOnly {
                let what = "features in use that this program can only read";
                let bits = format!("{:#x}", found.ro_compatible);
                findings.note(Severity::Info, object, Some(block), what, ("", bits));
            }
            Copy::Valid(Box::new(found))
        }
        Err(e) => {
            findings.undecodable(object, Some(block), &e);
            match e {
                FormatError::Version(_) => Copy::Refused,
                _ => Copy::Damaged,
            }
        }
    }
}

/// The newest valid superblock; `None`: the volume cannot be looked at.
pub(super) fn superblock(media: &Media, findings: &mut Findings) -> Option<Superblock> {
    let last = media.blocks().saturating_sub(1);
    let first = copy(media, FIRST, SUPER_BLOCK, findings);
    let second = copy(media, SECOND, last, findings);
    let sb = match (first, second) {
        (Copy::Refused, _) | (_, Copy::Refused) => return None,
        (Copy::Valid(a), Copy::Valid(b)) if a.uuid != b.uuid => {
            let both = (uuid_text(&a.uuid), uuid_text(&b.uuid));
            let what = "superblock of another volume: a segment is not this volume's";
            findings.error(SECOND, None, what, both);
            return None;
        }
        (Copy::Valid(a), Copy::Valid(b)) => {
            compare(&a, &b, findings);
            if a.generation < b.generation { *b } else { *a }
        }
        (Copy::Valid(one), Copy::Damaged) | (Copy::Damaged, Copy::Valid(one)) => *one,
        (Copy::Damaged, Copy::Damaged) => return None,
    };
    geometry(&sb, media, findings).then_some(sb)
}

fn compare(a: &Superblock, b: &Superblock, findings: &mut Findings) {
    if a.generation != b.generation {
        let (object, block, old, new) = match a.generation < b.generation {
            true => (FIRST, SUPER_BLOCK, a.generation, b.generation),
            false => (SECOND, a.second_block(), b.generation, a.generation),
        };
        let (newer, older) = if a.generation < b.generation {
            (b, a)
        } else {
            (a, b)
        };
        // One copy after the other says so before the first block of inodes, directories or extents goes down,
        // a device is added whose zones do not begin at 1 MiB, or the first inode has flags or a list.
        let begins = |feature| {
            let mut begun = *older;
            begun.incompatible |= feature;
            begun.generation += 1;
            older.incompatible & feature == 0 && begun.encode() == newer.encode()
        };
        let begun = [
            version::INODES_BELOW,
            version::DIRECTORIES_BELOW,
            version::EXTENTS_BELOW,
            version::ZONES_START,
            version::INODE_FLAGS,
            version::POSIX_ACLS,
            version::SYNC_FLAGS,
        ];
        // A mount was about to change what its volume file says for the next one.
        let settings = |sb: &Superblock| (sb.durability, sb.log_bytes);
        let is_tuned = settings(older) != settings(newer);
        let mut tuned = *older;
        tuned.durability = newer.durability;
        tuned.log_bytes = newer.log_bytes;
        tuned.generation += 1;
        let (severity, what) = match begun.into_iter().any(begins) {
            true => (Severity::Info, "a feature was about to come into use"),
            false if is_tuned && tuned.encode() == newer.encode() => (
                Severity::Info,
                "policy and size of logs were about to change",
            ),
            false => (Severity::Warning, "superblock older than the other copy"),
        };
        findings.note(severity, object, Some(block), what, (new, old));
    } else if a != b {
        findings.error(
            SECOND,
            None,
            "superblocks of one generation differ",
            ("", ""),
        );
    }
}

/// Checks what decoding does not know: tiers, and that the mapping has them.
fn geometry(sb: &Superblock, media: &Media, findings: &mut Findings) -> bool {
    let nvm = sb.tier[0].blocks;
    if nvm > media.blocks() {
        let what = "tier larger than its segments";
        findings.error(
            NEWEST,
            None,
            what,
            (format!("{nvm} blocks"), media.blocks()),
        );
        return false;
    }
    if nvm < media.blocks() {
        let what = "tier smaller than its segments";
        let sizes = (format!("{nvm} blocks"), media.blocks());
        findings.note(Severity::Warning, NEWEST, None, what, sizes);
    }
    if nvm < NVM_BYTES_MIN / BLOCK_BYTES as u64 || sb.data().is_empty() {
        findings.error(
            NEWEST,
            None,
            "tier too small",
            (NVM_BYTES_MIN / BLOCK_BYTES as u64, nvm),
        );
        return false;
    }
    for (n, tier) in sb.tier.iter().enumerate() {
        let counted = n < sb.tier_count.into();
        if tier.blocks > 0 && !counted {
            findings.error(NEWEST, None, "number of tiers", (n + 1, sb.tier_count));
        }
        let devices = tier.device.iter().filter(|d| d.blocks > 0);
        findings.equal(
            NEWEST,
            "devices of a tier",
            devices.clone().count() as u64,
            tier.devices.into(),
        );
        let blocks = devices.fold(0, |sum: u64, d| sum.saturating_add(d.blocks));
        findings.equal(NEWEST, "blocks of a tier's devices", tier.blocks, blocks);
    }
    true
}

/// The root block, with what can be said of it alone.
pub(super) fn root(media: &Media, findings: &mut Findings) -> Option<RootBlock> {
    let mut bytes = [0; BLOCK_BYTES];
    if !media.load(ROOT_BLOCK, &mut bytes) {
        return None;
    }
    match RootBlock::decode(&bytes) {
        Ok(root) => Some(root),
        Err(e) => {
            findings.undecodable(ROOT, Some(ROOT_BLOCK), &e);
            None
        }
    }
}
