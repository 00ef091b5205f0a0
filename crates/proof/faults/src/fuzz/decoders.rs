//! One structure: decoded as it is, and once more with a checksum that fits. What was decoded
//! and encoded again is what it was.

use shale_format::device_table::DeviceTable;
use shale_format::inode::Inode;
use shale_format::journal::JournalHeader;
use shale_format::limits::BLOCK_BYTES;
use shale_format::log::{LogHeader, LogSlot};
use shale_format::record::RecordHeader;
use shale_format::superblock::{RootBlock, Superblock};
use shale_format::tree::{self, TreeKind};
use shale_format::zone::{DeviceLabel, ZoneEntry};
use shale_format::{BlockAddr, Ino, bitmap, dirent, xattr};
use shale_oplog::Scan;
use shale_proto::message::{decode, encode};
use shale_proto::{Reply, Request};
use zerocopy::{FromBytes, FromZeros};

use super::input::Input;

/// Where all structures are taken to be.
const ADDR: u64 = 7;
const INO: Ino = Ino(20);
const SALT: u64 = 0x5a17;
const RING_BYTES: usize = 64 << 10;

fn addr() -> BlockAddr {
    BlockAddr::nvm(ADDR)
}

/// Takes the first byte for the kind, the rest for the structure.
///
/// # Panics
/// If a decoder does, or forgets something.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.number(1) % 15;
    let bytes = input.take(usize::MAX);
    match kind {
        0 => superblock(bytes),
        1 => root_block(bytes),
        2 => inode(bytes),
        3 => log_header(bytes),
        4 => log_slot(bytes),
        5 => journal(bytes),
        6 => node(bytes),
        7 => attributes(bytes),
        8 => drop(bitmap::decode(&block(bytes), addr())),
        9 => records(bytes),
        10 => message::<Request>(bytes),
        11 => message::<Reply>(bytes),
        12 => zone(bytes),
        13 => label(bytes),
        _ => device_table(bytes),
    }
}

/// A block that begins with these bytes.
fn block(bytes: &[u8]) -> Box<[u8; BLOCK_BYTES]> {
    let mut block = Box::new([0; BLOCK_BYTES]);
    let n = bytes.len().min(BLOCK_BYTES);
    block[..n].copy_from_slice(&bytes[..n]);
    block
}

fn superblock(bytes: &[u8]) {
    let _ = Superblock::decode(bytes, ADDR);
    if let Ok((raw, _)) = Superblock::read_from_prefix(bytes)
        && let Ok((read, _)) = Superblock::decode(&raw.encode(), ADDR)
    {
        assert_eq!(read.encode(), raw.encode());
        let _ = (read.policy(), read.second_block());
    }
}

fn root_block(bytes: &[u8]) {
    let _ = RootBlock::decode(bytes);
    if let Ok((raw, _)) = RootBlock::read_from_prefix(bytes)
        && let Ok(read) = RootBlock::decode(&raw.encode())
    {
        assert_eq!(read.encode(), raw.encode());
    }
}

fn inode(bytes: &[u8]) {
    let _ = Inode::decode(bytes, INO);
    if let Ok((mut raw, _)) = Inode::read_from_prefix(bytes) {
        raw.ino = INO.0;
        let read = Inode::decode(&raw.encode(), INO).expect("number and checksum are right");
        let _ = (read.is_dir(), read.is_file(), read.is_symlink());
        let _ = (read.xattr_length(), read.xattr_scattered());
    }
}

fn log_header(bytes: &[u8]) {
    let _ = LogHeader::decode(bytes);
    if let Ok((raw, _)) = LogHeader::read_from_prefix(bytes)
        && let Ok(read) = LogHeader::decode(&raw.encode())
    {
        assert_eq!(read.encode(), raw.encode());
    }
}

fn log_slot(bytes: &[u8]) {
    let _ = LogSlot::decode(bytes, 3);
    if let Ok((raw, _)) = LogSlot::read_from_prefix(bytes)
        && let Ok(read) = LogSlot::decode(&raw.encode(), 3)
    {
        assert_eq!(read.encode(), raw.encode());
    }
}

fn journal(bytes: &[u8]) {
    let _ = JournalHeader::decode(bytes);
    if let Ok((raw, _)) = JournalHeader::read_from_prefix(bytes)
        && let Some(read) = JournalHeader::decode(&raw.encode())
    {
        assert_eq!(read.encode(), raw.encode());
    }
}

fn zone(bytes: &[u8]) {
    let _ = ZoneEntry::decode(bytes, ADDR);
    if let Ok((raw, _)) = ZoneEntry::read_from_prefix(bytes)
        && let Ok(read) = ZoneEntry::decode(&raw.encode(), ADDR)
    {
        assert_eq!(read.encode(), raw.encode());
    }
}

fn label(bytes: &[u8]) {
    let _ = DeviceLabel::decode(bytes, ADDR);
    if let Ok((raw, _)) = DeviceLabel::read_from_prefix(bytes)
        && let Ok(read) = DeviceLabel::decode(&raw.encode(), ADDR)
    {
        assert_eq!(read.encode(), raw.encode());
    }
}

/// Of a volume of 64 MiB. What is decoded says nothing that cannot be: its tables lie in NVM, and its
/// devices one behind the other.
fn device_table(bytes: &[u8]) {
    let mut sb = Superblock::new_zeroed();
    (sb.bitmap_block, sb.bitmap_blocks, sb.tier[0].blocks) = (9, 1, 16_384);
    let _ = DeviceTable::decode(bytes, ADDR, &sb);
    if let Ok((raw, _)) = DeviceTable::read_from_prefix(bytes)
        && let Ok(read) = DeviceTable::decode(&raw.encode(ADDR), ADDR, &sb)
    {
        assert_eq!(read.encode(ADDR), raw.encode(ADDR));
        for places in [read.of(0), read.of(1)] {
            assert!(places.is_sorted_by(|a, b| a.end() <= b.first));
            for place in places {
                assert!(place.zones() > 0 && place.tables().end_block < sb.tier[0].blocks);
            }
        }
    }
}

fn node(bytes: &[u8]) {
    let mut node = block(bytes);
    tree::seal(&mut node);
    for kind in [TreeKind::Extents, TreeKind::Entries] {
        let _ = tree::check(&node, addr(), INO, kind);
    }
    let _ = dirent::check_name(bytes);
}

fn attributes(bytes: &[u8]) {
    if let Ok(read) = xattr::decode(bytes, INO, addr()) {
        let again = xattr::encode(&read, INO, addr());
        assert_eq!(xattr::decode(&again, INO, addr()).ok(), Some(read));
    }
    let _ = xattr::decode_list(&block(bytes), INO, addr());
    // What a name and a value of any length become.
    let (name, value) = bytes.split_at(bytes.len().min(200));
    let name: Vec<u8> = name.iter().copied().filter(|&b| b != 0).collect();
    if !name.is_empty() && value.len() < BLOCK_BYTES {
        let attrs = xattr::Xattrs::from([(name, value.to_vec())]);
        let read = xattr::decode(&xattr::encode(&attrs, INO, addr()), INO, addr());
        assert_eq!(read.ok(), Some(attrs));
    }
}

/// A ring that begins with these bytes; the first record's checksum is made to fit.
fn records(bytes: &[u8]) {
    let mut ring = vec![0; shale_format::log::RING_AT + RING_BYTES];
    let at = shale_format::log::RING_AT;
    let n = bytes.len().min(RING_BYTES);
    ring[at..at + n].copy_from_slice(&bytes[..n]);
    if let Some(mut header) = RecordHeader::decode(bytes, 0, RING_BYTES) {
        let body = RecordHeader::BYTES..RecordHeader::BYTES + usize::from(header.body_bytes);
        let data = body.end..body.end + header.payload_bytes as usize;
        if data.end <= RING_BYTES && header.kind != 0 {
            let (body, data) = (&ring[at..][body], &ring[at..][data]);
            header.crc = header.checksum(SALT, body, data);
            ring[at..at + 4].copy_from_slice(&header.crc.to_le_bytes());
        }
    }
    let log = Ring(ring);
    for record in Scan::new(&log, SALT, RING_BYTES as u64, shale_format::LogPos(0)) {
        let _ = shale_oplog::Op::decode(&record);
    }
}

/// A log in memory.
struct Ring(Vec<u8>);

impl shale_oplog::LogReader for Ring {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn load(&self, at: usize, into: &mut [u8]) -> bool {
        let found = self.0.get(at..at + into.len());
        found.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }
}

fn message<T>(bytes: &[u8])
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    if let Ok(message) = decode::<T>(bytes) {
        let again = encode(&message).expect("what was decoded can be encoded");
        assert_eq!(decode::<T>(&again).ok(), Some(message));
    }
}
