//! Every decoder gets bytes that mean nothing, bytes that meant something once, and numbers
//! nobody would write behind checksums that fit. It gives a value or an error: no panic, and what
//! it gives keeps to the limits that its readers count on. Seeded.

use shale_format::bitmap::{self, WORDS_PER_BLOCK};
use shale_format::dirent::check_name;
use shale_format::inode::Inode;
use shale_format::journal::JournalHeader;
use shale_format::limits::{BLOCK_BYTES, LOG_BYTES_MAX, LOG_BYTES_MIN, TREE_LEVELS_MAX};
use shale_format::log::{LOG_MAGIC, LogHeader, LogSlot};
use shale_format::record::{Kind, RecordHeader};
use shale_format::superblock::{ROOT_MAGIC, RootBlock, Superblock};
use shale_format::tree::{self, NODE_BODY_BYTES, NODE_MAGIC, NodeHeader, TreeKind};
use shale_format::xattr::{self, XATTR_BLOCKS_MAX, Xattrs};
use shale_format::{BlockAddr, Ino};
use zerocopy::{FromZeros, IntoBytes};

const SEEDS: u64 = 20_000;

struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn nasty(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => self.below(300),
            4 => self.below(70_000),
            _ => self.next(),
        }
    }

    /// Changes some numbers of 1 to 8 bytes.
    fn scribble(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.below(4) {
            let n = 1usize << self.below(4).min(bytes.len().ilog2().into());
            let at = self.below((bytes.len() / n) as u64) as usize * n;
            bytes[at..at + n].copy_from_slice(&self.nasty().to_le_bytes()[..n]);
        }
    }

    /// Bytes that mean nothing, of any length.
    fn noise(&mut self, most: u64) -> Vec<u8> {
        (0..self.below(most)).map(|_| self.next() as u8).collect()
    }
}

/// Calls `f` with encoded bytes as they are, cut short, and with flipped bits.
fn spoiled(r: &mut Seeded, bytes: &[u8], mut f: impl FnMut(&[u8])) {
    f(bytes);
    f(&bytes[..r.below(bytes.len() as u64 + 1) as usize]);
    let mut flipped = bytes.to_vec();
    for _ in 0..1 + r.below(3) {
        let at = r.below(flipped.len() as u64) as usize;
        flipped[at] ^= 1 << r.below(8);
    }
    f(&flipped);
}

#[test]
fn heads() {
    for seed in 0..SEEDS / 4 {
        let mut r = Seeded(seed);
        let mut root = RootBlock::new_zeroed();
        root.magic = ROOT_MAGIC;
        r.scribble(&mut root.as_mut_bytes()[16..]);
        spoiled(&mut r, &root.encode(), |b| drop(RootBlock::decode(b)));
        let mut sb = Superblock::new_zeroed();
        sb.magic = shale_format::superblock::SUPER_MAGIC;
        r.scribble(&mut sb.as_mut_bytes()[12..]);
        spoiled(&mut r, &sb.encode(), |b| drop(Superblock::decode(b, 0)));
        let noise = r.noise(2048);
        drop((RootBlock::decode(&noise), Superblock::decode(&noise, 0)));
    }
}

#[test]
fn logs_and_records() {
    for seed in 0..SEEDS {
        let mut r = Seeded(seed);
        let mut h = LogHeader {
            magic: LOG_MAGIC,
            ring_bytes: LOG_BYTES_MIN,
            ..LogHeader::new_zeroed()
        };
        r.scribble(&mut h.as_mut_bytes()[8..]);
        spoiled(&mut r, &h.encode(), |b| {
            if let Ok(h) = LogHeader::decode(b) {
                assert!((LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&h.ring_bytes));
            }
        });
        let mut slot = LogSlot::new_zeroed();
        r.scribble(slot.as_mut_bytes());
        spoiled(&mut r, &slot.encode(), |b| drop(LogSlot::decode(b, 3)));
        let mut record = RecordHeader::new(Kind::Write, 20, 5, 0, 100);
        record.pos = r.below(1 << 20) * 64;
        let pos = record.pos;
        r.scribble(record.as_mut_bytes());
        let ring_left = r.below(1 << 22) as usize;
        spoiled(&mut r, record.as_bytes(), |b| {
            if let Some(h) = RecordHeader::decode(b, pos, ring_left) {
                let whole = h.bytes as usize;
                let filled = 64 + h.body_bytes as usize + h.payload_bytes as usize;
                let pad = h.kind() == Kind::Pad;
                assert!(whole <= ring_left && whole >= 64 && whole.is_multiple_of(64));
                assert!(pad || filled <= whole, "{h:?}");
            }
        });
        let mut journal = JournalHeader::new_zeroed();
        journal.magic = shale_format::journal::JOURNAL_MAGIC;
        r.scribble(&mut journal.as_mut_bytes()[8..]);
        spoiled(&mut r, &journal.encode(), |b| {
            let _ = JournalHeader::decode(b);
        });
    }
}

#[test]
fn inodes_and_bitmaps() {
    for seed in 0..SEEDS {
        let mut r = Seeded(seed);
        let mut inode = Inode::free();
        (inode.ino, inode.mode) = (77, 0o100_644);
        r.scribble(inode.as_mut_bytes());
        spoiled(&mut r, &inode.encode(), |b| {
            if let Ok(found) = Inode::decode(b, Ino(77)) {
                assert!(found.ino == 77 || found.as_bytes().iter().all(|&b| b == 0));
                let _ = (
                    found.is_dir(),
                    found.xattr_length(),
                    found.xattr_scattered(),
                );
            }
        });
        if seed % 50 == 0 {
            let words = [r.next(); WORDS_PER_BLOCK];
            let block = bitmap::encode(BlockAddr::nvm(9), seed, &words);
            let mut spoiled = *block;
            r.scribble(&mut spoiled);
            if let Ok(found) = bitmap::decode(&spoiled, BlockAddr::nvm(9)) {
                assert!(found[..] == words[..]);
            }
        }
    }
}

#[test]
fn nodes() {
    for seed in 0..SEEDS {
        let mut r = Seeded(seed);
        let mut node = [0; BLOCK_BYTES];
        let kind = if seed % 2 == 0 {
            TreeKind::Extents
        } else {
            TreeKind::Entries
        };
        let header = NodeHeader {
            magic: NODE_MAGIC,
            addr: BlockAddr::nvm(40).raw(),
            owner: 20,
            kind: kind as u16,
            count: r.nasty() as u16,
            level: r.below(14) as u16,
            ..NodeHeader::new_zeroed()
        };
        node[..NodeHeader::BYTES].copy_from_slice(header.as_bytes());
        r.scribble(&mut node[8..NodeHeader::BYTES]);
        tree::seal(&mut node);
        if let Ok(h) = tree::check(&node, BlockAddr::nvm(40), Ino(20), kind) {
            let each = match (h.level, kind) {
                (0, _) => 24,
                _ => 16,
            };
            assert!(usize::from(h.count) * each <= NODE_BODY_BYTES && h.level <= TREE_LEVELS_MAX);
        }
    }
}

#[test]
fn attributes_and_names() {
    for seed in 0..SEEDS / 4 {
        let mut r = Seeded(seed);
        let attrs = Xattrs::from([
            (b"user.a".to_vec(), vec![1; r.below(500) as usize]),
            (vec![b'n'; 1 + r.below(255) as usize], vec![]),
        ]);
        let (owner, at) = (Ino(20), BlockAddr::nvm(40));
        let mut bytes = xattr::encode(&attrs, owner, at);
        assert_eq!(xattr::decode(&bytes, owner, at).unwrap(), attrs);
        spoiled(&mut r, &bytes.clone(), |b| {
            drop(xattr::decode(b, owner, at))
        });
        // Lengths that lie, behind a checksum that fits.
        let body = shale_format::xattr::XattrHeader::BYTES;
        r.scribble(&mut bytes[body..]);
        let crc_at = 32;
        bytes[crc_at..crc_at + 4].fill(0);
        let crc = shale_format::checksum::crc32c(&bytes);
        bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
        if let Ok(found) = xattr::decode(&bytes, owner, at) {
            assert!(xattr::encoded_bytes(&found) <= bytes.len());
        }
        let blocks: Vec<BlockAddr> = (0..1 + r.below(XATTR_BLOCKS_MAX as u64))
            .map(|_| BlockAddr::from_raw(r.next()))
            .collect();
        let mut list = [0; BLOCK_BYTES];
        let encoded = xattr::encode_list(&blocks, owner, at);
        list[..encoded.len()].copy_from_slice(&encoded);
        assert_eq!(xattr::decode_list(&list, owner, at).unwrap(), blocks);
        r.scribble(&mut list);
        if let Ok(found) = xattr::decode_list(&list, owner, at) {
            assert!(found.len() <= XATTR_BLOCKS_MAX);
        }
        let name = r.noise(400);
        if check_name(&name).is_ok() {
            assert!((1..=255).contains(&name.len()) && !name.contains(&b'/'));
        }
    }
}
