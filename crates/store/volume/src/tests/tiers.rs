//! Lower tiers: moving blocks, checksums, zones, restarts.

mod leaves;

use super::{MIB, check, extent, file, new_volume, options};
use crate::{LowerDevices, Mapping, MkfsOptions, View, Volume, VolumeError, WriteStream};
use shale_block::{BlockDevice, MemoryBlocks, TierDevice};
use shale_format::limits::{BLOCK_BYTES, LABEL_AREA_BYTES};
use shale_format::superblock::{DeviceEntry, TierTable};
use shale_format::{BlockAddr, FileBlock, TierId};
use shale_nvm::Map;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::FromZeros;

const ZONE: u64 = 64;
const ZONES: u64 = 6;

pub(super) struct Tiered {
    pub(super) volume: Volume,
    pub(super) ssd: Arc<MemoryBlocks>,
}

fn table(blocks: u64) -> TierTable {
    let mut table = TierTable::new_zeroed();
    (table.blocks, table.devices) = (blocks, 1);
    table.device[0] = DeviceEntry {
        uuid: [3; 16],
        blocks,
        zone_blocks: ZONE as u32,
        kind: 0,
    };
    table
}

fn devices(ssd: &Arc<MemoryBlocks>) -> LowerDevices {
    LowerDevices {
        ssd: vec![ssd.clone()],
        hdd: vec![],
    }
}

pub(super) fn tiered() -> Tiered {
    let map = Arc::new(Map::anonymous(33 * MIB).unwrap());
    let bytes = LABEL_AREA_BYTES + ZONE * ZONES * BLOCK_BYTES as u64;
    let ssd = Arc::new(MemoryBlocks::new("ssd", bytes));
    let options = MkfsOptions {
        ssd: table(ZONE * ZONES),
        ..options()
    };
    let volume = Volume::create_with(map, &options, &devices(&ssd)).unwrap();
    Tiered { volume, ssd }
}

/// Adds a device whose zones begin behind the label area.
fn add_device(
    volume: &Volume,
    tier: TierId,
    entry: &DeviceEntry,
    device: &Arc<dyn TierDevice>,
) -> crate::Result<crate::Committed> {
    let run = volume.take_tables(entry)?;
    let added = volume.add_device_at(tier, (entry, 0), device, run);
    if added.is_err() && !volume.may_have_device(&entry.uuid) {
        volume.space.give_back(run);
    }
    added
}

impl Tiered {
    /// A file of `blocks` blocks, each with its number in every byte.
    fn make(&self, ino: u64, blocks: u64) {
        let runs = self.volume.allocate(blocks, None).unwrap();
        let mut txn = self.volume.begin();
        let (mut inode, mut fb) = (file(ino), 0);
        for run in runs {
            for n in 0..run.len {
                let bytes = [(fb + n) as u8; BLOCK_BYTES];
                self.volume.write_at(run.addr.plus(n), 0, &bytes).unwrap();
            }
            txn.extent_insert(&mut inode, TierId::Nvm, extent(fb, run))
                .unwrap();
            fb += run.len;
        }
        inode.size = blocks * BLOCK_BYTES as u64;
        txn.put_inode(&inode).unwrap();
        txn.commit().unwrap();
    }

    /// Moves the first `blocks` blocks of a file to flash.
    fn lower(&self, ino: u64, blocks: u64) {
        let mut fb = 0;
        while fb < blocks {
            let run =
                self.volume
                    .allocate_lower(TierId::Ssd, WriteStream::Cold, blocks - fb, false);
            let run = run.unwrap();
            let mut data = Vec::new();
            for n in 0..run.len {
                data.extend_from_slice(&[(fb + n) as u8; BLOCK_BYTES]);
            }
            self.volume.write_lower(run, &data).unwrap();
            self.volume.flush_lower(TierId::Ssd).unwrap();
            let mut txn = self.volume.begin();
            let mut inode = txn.inode(shale_format::Ino(ino)).unwrap().unwrap();
            let range = FileBlock(fb)..FileBlock(fb + run.len);
            txn.extent_remove(&mut inode, TierId::Nvm, range).unwrap();
            txn.extent_insert(&mut inode, TierId::Ssd, extent(fb, run))
                .unwrap();
            txn.put_inode(&inode).unwrap();
            txn.commit().unwrap();
            fb += run.len;
        }
    }

    fn remove(&self, ino: u64) {
        let mut txn = self.volume.begin();
        let mut inode = txn.inode(shale_format::Ino(ino)).unwrap().unwrap();
        for tier in TierId::ALL {
            let all = FileBlock(0)..FileBlock(u64::MAX);
            txn.extent_remove(&mut inode, tier, all).unwrap();
        }
        txn.free_inode(shale_format::Ino(ino)).unwrap();
        txn.commit().unwrap();
    }

    pub(super) fn reopen(self) -> Tiered {
        let map = Arc::clone(self.volume.view().map());
        let ssd = self.ssd;
        drop(self.volume);
        let volume = Volume::open_with(map, &devices(&ssd)).unwrap();
        Tiered { volume, ssd }
    }

    fn at(&self, ino: u64, fb: u64) -> BlockAddr {
        let view = self.volume.view();
        let inode = view.inode(shale_format::Ino(ino)).unwrap().unwrap();
        match view.map_block(&inode, FileBlock(fb)).unwrap() {
            Mapping::Data { addr, .. } => addr,
            other => panic!("{other:?}"),
        }
    }

    fn read(&self, ino: u64, fb: u64) -> Result<u8, VolumeError> {
        let mut block = [0; BLOCK_BYTES];
        self.volume
            .view()
            .read_at(self.at(ino, fb), 0, &mut block)?;
        assert!(block.iter().all(|&b| b == block[0]));
        Ok(block[0])
    }
}

#[test]
fn blocks_move_down_and_stay_over_a_restart() {
    let t = tiered();
    let free = t.volume.space().free;
    t.make(16, 100);
    t.lower(16, 80);
    assert_eq!(t.at(16, 79).tier(), Some(TierId::Ssd));
    assert_eq!(t.at(16, 80).tier(), Some(TierId::Nvm));
    t.volume.release_up_to(t.volume.txid());
    assert!(
        t.volume.space().free >= free - 25,
        "80 blocks of NVM are free again"
    );
    let t = t.reopen();
    for fb in [0, 63, 64, 79, 80, 99] {
        assert_eq!(t.read(16, fb).unwrap(), fb as u8);
    }
    let space = t.volume.lower_space(TierId::Ssd).unwrap();
    assert_eq!(
        (space.live, space.empty_zones, space.out_of_order),
        (80, 4, 0)
    );
    assert_eq!(space.writable, (ZONE - 16) + 3 * ZONE);
    // More goes on where the zone ends.
    t.make(17, 10);
    t.lower(17, 10);
    assert_eq!(t.at(17, 0).index(), 80);
    assert_eq!(t.read(17, 3).unwrap(), 3);
}

#[test]
fn a_block_that_changed_or_is_another_is_an_error_and_no_data() {
    let t = tiered();
    t.make(16, 20);
    t.lower(16, 20);
    let byte = |fb| LABEL_AREA_BYTES + t.at(16, fb).index() * BLOCK_BYTES as u64;
    t.ssd.spoil(byte(3) + 100, &[77]);
    let wrong = t.read(16, 3).unwrap_err();
    assert!(matches!(wrong, VolumeError::BadBlock { .. }), "{wrong}");
    assert_eq!(t.read(16, 4).unwrap(), 4);
    // What belongs beside it, in its place.
    t.ssd.spoil(byte(5), &[6; BLOCK_BYTES]);
    assert!(t.read(16, 5).is_err());
    t.ssd.fail(true);
    assert!(matches!(t.read(16, 4), Err(VolumeError::Lower(_))));
}

#[test]
fn who_reads_a_device_by_himself_knows_what_is_right() {
    let t = tiered();
    t.make(16, 20);
    t.lower(16, 20);
    let (first, view) = (t.at(16, 0), t.volume.view());
    let generation = view.generation(first).unwrap();
    let place = view.device_block(first).unwrap();
    assert_eq!(
        place.byte,
        LABEL_AREA_BYTES + first.index() * BLOCK_BYTES as u64
    );
    assert_eq!(
        (place.device, place.zone_left),
        (0, ZONE - first.index() % ZONE)
    );
    let mut read = vec![0; 20 * BLOCK_BYTES];
    t.ssd.read(place.byte, &mut read).unwrap();
    let fitting = |addr, generation, bytes: &[u8]| view.fitting_blocks(addr, generation, bytes);
    assert_eq!(fitting(first, generation, &read).unwrap(), 20);
    let part = read[3 * BLOCK_BYTES..9 * BLOCK_BYTES].to_vec();
    assert_eq!(fitting(first.plus(3), generation, &part).unwrap(), 6);
    // Of an erased zone, of another place, and behind one that is spoiled nothing is right.
    assert_eq!(fitting(first, generation + 1, &read).unwrap(), 0);
    assert_eq!(fitting(first.plus(1), generation, &part).unwrap(), 0);
    read[7 * BLOCK_BYTES + 9] ^= 1;
    assert_eq!(fitting(first, generation, &read).unwrap(), 7);
    let nowhere = BlockAddr::new(TierId::Ssd, 1 << 40);
    assert!(fitting(nowhere, 1, &part).is_err() && view.device_block(nowhere).is_err());
    assert!(view.device_block(BlockAddr::nvm(1)).is_err());
}

#[test]
fn a_zone_is_erased_when_nobody_can_look_at_it_and_then_written_again() {
    let t = tiered();
    t.make(16, ZONE);
    t.lower(16, ZONE);
    let (first, generation) = (
        t.at(16, 0),
        t.volume.view().generation(t.at(16, 0)).unwrap(),
    );
    assert_eq!(
        t.volume.erase_zones(TierId::Ssd).unwrap(),
        0,
        "all of it is live"
    );
    t.remove(16);
    assert_eq!(
        t.volume.erase_zones(TierId::Ssd).unwrap(),
        0,
        "a reader may be there"
    );
    t.volume.release_up_to(t.volume.txid());
    assert_eq!(t.volume.erase_zones(TierId::Ssd).unwrap(), 1);
    assert_eq!(t.volume.view().generation(first).unwrap(), generation + 1);
    let t = t.reopen();
    assert_eq!(
        t.volume.lower_space(TierId::Ssd).unwrap().empty_zones,
        ZONES
    );
    t.make(17, 5);
    t.lower(17, 5);
    assert_eq!(t.at(17, 0), first);
    assert_eq!(t.read(17, 4).unwrap(), 4);
}

#[test]
fn a_zone_whose_discard_fails_is_erased_and_written_again() {
    let t = tiered();
    t.make(16, ZONE);
    t.lower(16, ZONE);
    t.remove(16);
    t.volume.release_up_to(t.volume.txid());
    t.ssd.fail(true);
    assert_eq!(t.volume.erase_zones(TierId::Ssd).unwrap(), 1);
    t.ssd.fail(false);
    let errors = t.ssd.counts().errors;
    assert_eq!(errors, 1);
    t.make(17, 5);
    t.lower(17, 5);
    assert_eq!(t.read(17, 4).unwrap(), 4);
}

fn spare(n: u8) -> (DeviceEntry, Arc<dyn TierDevice>) {
    let mut entry = table(ZONE * ZONES).device[0];
    entry.uuid = [n; 16];
    let bytes = LABEL_AREA_BYTES + ZONE * ZONES * BLOCK_BYTES as u64;
    (entry, Arc::new(MemoryBlocks::new("spare", bytes)))
}

/// Zones begin where mkfs and add say, which no program can miss that does not know of it.
#[test]
fn zones_begin_where_their_device_has_them() {
    const START: u32 = 256 + 32;
    let start = u64::from(START) * BLOCK_BYTES as u64;
    let map = Arc::new(Map::anonymous(33 * MIB).unwrap());
    let bytes = start + ZONE * ZONES * BLOCK_BYTES as u64;
    let ssd = Arc::new(MemoryBlocks::new("ssd", bytes));
    let mut options = MkfsOptions {
        ssd: table(ZONE * ZONES),
        ..options()
    };
    options.starts[0][0] = START;
    let volume = Volume::create_with(map.clone(), &options, &devices(&ssd)).unwrap();
    let t = Tiered { volume, ssd };
    assert!(t.volume.superblock().has_zones_start());
    t.make(16, 5);
    t.lower(16, 5);
    let at = |n: u64| start + t.at(16, n).index() * BLOCK_BYTES as u64;
    for n in 0..5 {
        let mut block = [0; BLOCK_BYTES];
        t.ssd.read(at(n), &mut block).unwrap();
        assert_eq!(block, [n as u8; BLOCK_BYTES]);
    }
    let t = t.reopen();
    assert_eq!(t.read(16, 4).unwrap(), 4);
    // A device that is a block too short, and one that came to a volume without such devices.
    let old = tiered();
    assert!(!old.volume.superblock().has_zones_start());
    let (entry, _) = spare(4);
    let add = |bytes| {
        let device: Arc<dyn TierDevice> = Arc::new(MemoryBlocks::new("new", bytes));
        let run = old.volume.take_tables(&entry).unwrap();
        old.volume
            .add_device_at(TierId::Ssd, (&entry, START), &device, run)
            .map(drop)
    };
    add(bytes - BLOCK_BYTES as u64).unwrap_err();
    let feature = |volume: &Volume| {
        let head = View::open(Arc::clone(volume.view().map())).unwrap().0;
        head.superblock().has_zones_start()
    };
    assert!(!feature(&old.volume), "nothing is left of what was refused");
    add(bytes).unwrap();
    assert!(feature(&old.volume));
    assert_eq!(
        old.volume.lower_device_infos(TierId::Ssd)[1].place.start,
        START
    );
}

#[test]
fn an_add_that_fails_is_undone_only_if_it_cannot_count() {
    let t = tiered();
    let free = t.volume.space().free;
    let (entry, device) = spare(4);
    // Too small: it fails before the commit.
    let small: Arc<dyn TierDevice> = Arc::new(MemoryBlocks::new("small", LABEL_AREA_BYTES));
    let tier = TierId::Ssd;
    add_device(&t.volume, tier, &entry, &small).unwrap_err();
    assert!(!t.volume.may_have_device(&entry.uuid));
    assert_eq!(t.volume.space().free, free);
    add_device(&t.volume, tier, &entry, &device).unwrap();
    assert!(t.volume.may_have_device(&entry.uuid));
    // A commit that may count: nobody gets the space of the tables.
    let (entry, device) = spare(5);
    let free = t.volume.space().free;
    t.volume.broken.store(true, Ordering::Release);
    add_device(&t.volume, tier, &entry, &device).unwrap_err();
    assert!(t.volume.may_have_device(&entry.uuid));
    let wanted = Volume::table_blocks(&entry);
    assert_eq!(t.volume.space().free, free - wanted);
}

#[test]
fn only_who_does_not_write_reads_the_device_table_again() {
    let t = tiered();
    let (entry, device) = spare(4);
    let map = Arc::clone(t.volume.view().map());
    let (reader, _) = View::open(map).unwrap();
    let added = BlockAddr::new(TierId::Ssd, shale_format::bitmap::BITS_PER_BLOCK);
    t.volume.view().zone(added).unwrap_err();
    reader.zone(added).unwrap_err();
    add_device(&t.volume, TierId::Ssd, &entry, &device).unwrap();
    assert_eq!(reader.zone(added).unwrap().device, 1);
    let infos = t.volume.lower_device_infos(TierId::Ssd);
    assert!(infos.iter().all(|i| i.device.is_some()));
    // Its layout stays when an address is none of it, though it has no device left.
    for uuid in [[3; 16], [4; 16]] {
        t.volume.remove_device(TierId::Ssd, &uuid).unwrap();
    }
    let view = t.volume.view();
    let before = view.lower().unwrap().layout();
    view.zone(added).unwrap_err();
    assert!(Arc::ptr_eq(&before, &view.lower().unwrap().layout()));
}

#[test]
fn one_zone_is_kept_for_cleaning() {
    let t = tiered();
    let mut given = 0;
    while let Ok(run) = t
        .volume
        .allocate_lower(TierId::Ssd, WriteStream::Cold, ZONE, false)
    {
        given += run.len;
    }
    assert_eq!(given, (ZONES - 1) * ZONE);
    assert!(
        t.volume
            .allocate_lower(TierId::Ssd, WriteStream::Hot, 1, true)
            .is_ok()
    );
}

#[test]
fn nvm_alone_gets_a_tier_and_loses_it() {
    let volume = new_volume(33 * MIB);
    assert!(!volume.is_tiered() && volume.lower_tiers().is_empty());
    check(&volume.view());
    let free = volume.space().free;
    let map = Arc::clone(volume.view().map());
    let (reader, _) = View::open(map).unwrap();
    let first = BlockAddr::new(TierId::Hdd, 0);
    reader.zone(first).unwrap_err();
    let (entry, device) = spare(4);
    add_device(&volume, TierId::Hdd, &entry, &device).unwrap();
    assert_eq!(volume.lower_tiers(), [TierId::Hdd]);
    assert_eq!(reader.zone(first).unwrap().device, 0);
    let wanted = Volume::table_blocks(&entry);
    assert_eq!(volume.space().free, free - wanted);
    let done = volume.remove_device(TierId::Hdd, &entry.uuid).unwrap();
    volume.release_up_to(done.txid);
    assert!(!volume.is_tiered());
    assert_eq!(volume.space().free, free);
    check(&volume.view());
}

impl Tiered {
    /// Makes files without content.
    fn make_empty(&self, inos: std::ops::Range<u64>) {
        let mut txn = self.volume.begin();
        for ino in inos {
            txn.put_inode(&file(ino)).unwrap();
        }
        txn.commit().unwrap();
    }

    fn inode_block(&self, fb: u64) -> Option<BlockAddr> {
        let view = self.volume.view();
        let file = view.root().unwrap().inode_file;
        match view.map_block(&file, FileBlock(fb)).unwrap() {
            Mapping::Data { addr, .. } => Some(addr),
            _ => None,
        }
    }

    /// Moves a block of the inode file to flash, as it was before `between`; whether it did.
    fn demote(&self, fb: u64, between: impl FnOnce()) -> bool {
        self.volume.let_inodes_demote().unwrap();
        let from = self.inode_block(fb).unwrap();
        let mut bytes = [0; BLOCK_BYTES];
        self.volume.view().read_at(from, 0, &mut bytes).unwrap();
        let run = self
            .volume
            .allocate_lower(TierId::Ssd, WriteStream::Cold, 1, false);
        let run = run.unwrap();
        self.volume.write_lower(run, &bytes).unwrap();
        self.volume.flush_lower(TierId::Ssd).unwrap();
        between();
        let mut txn = self.volume.begin();
        let moves = txn.move_inode_block(FileBlock(fb), (from, run.addr), &bytes);
        let moves = moves.unwrap();
        txn.commit().unwrap();
        moves
    }

    fn uid(&self, ino: u64) -> Option<u32> {
        let view = self.volume.view();
        view.inode(shale_format::Ino(ino)).unwrap().map(|i| i.uid)
    }

    fn give(&self, ino: u64, uid: u32) {
        let mut txn = self.volume.begin();
        let mut inode = txn.inode(shale_format::Ino(ino)).unwrap().unwrap();
        inode.uid = uid;
        txn.put_inode(&inode).unwrap();
        txn.commit().unwrap();
    }
}

#[test]
fn inodes_move_down_and_return_when_one_of_them_changes() {
    let t = tiered();
    t.make_empty(16..48);
    t.give(17, 5);
    assert!(t.demote(1, || ()));
    assert_eq!(t.inode_block(1).unwrap().tier(), Some(TierId::Ssd));
    assert!(t.volume.has_inodes_below());
    assert_eq!(t.volume.lower_space(TierId::Ssd).unwrap().live, 1);
    check(&t.volume.view());
    let t = t.reopen();
    assert!(t.volume.has_inodes_below());
    assert_eq!(
        [16, 17, 40].map(|ino| t.uid(ino)),
        [Some(0), Some(5), Some(0)]
    );
    t.give(18, 6);
    assert_eq!(t.inode_block(1).unwrap().tier(), Some(TierId::Nvm));
    assert!(!t.volume.has_inodes_below());
    assert_eq!(
        [16, 17, 18].map(|ino| t.uid(ino)),
        [Some(0), Some(5), Some(6)]
    );
    assert_eq!(t.volume.lower_space(TierId::Ssd).unwrap().live, 0);
    assert!(t.demote(1, || ()));
    for ino in 16..32 {
        t.remove(ino);
    }
    assert_eq!(t.inode_block(1), None);
    assert_eq!((t.uid(20), t.uid(40)), (None, Some(0)));
    check(&t.volume.view());
}

#[test]
fn inodes_that_changed_while_they_were_copied_stay() {
    let t = tiered();
    t.make_empty(16..32);
    assert!(!t.demote(1, || t.give(20, 3)));
    assert_eq!(t.inode_block(1).unwrap().tier(), Some(TierId::Nvm));
    assert_eq!(t.uid(20), Some(3));
    // Nor may they change in the transaction that moves them.
    t.volume.let_inodes_demote().unwrap();
    let from = t.inode_block(1).unwrap();
    let mut bytes = [0; BLOCK_BYTES];
    t.volume.view().read_at(from, 0, &mut bytes).unwrap();
    let to = t.volume.allocate(1, None).unwrap()[0].addr;
    let mut txn = t.volume.begin();
    assert!(
        txn.move_inode_block(FileBlock(1), (from, to), &bytes)
            .unwrap()
    );
    txn.put_inode(&file(21)).unwrap();
    assert!(txn.commit().is_err());
    assert_eq!(t.uid(20), Some(3));
}

#[test]
fn a_reader_without_devices_learns_where_an_inode_is_stored() {
    let t = tiered();
    t.make_empty(16..32);
    let (blind, _) = View::open(Arc::clone(t.volume.view().map())).unwrap();
    assert!(!blind.superblock().has_inodes_below());
    t.demote(1, || ());
    let ino = shale_format::Ino(20);
    let at = t.inode_block(1).unwrap();
    let found = blind.find_inode(ino).unwrap();
    assert!(matches!(found, crate::FoundInode::Below { addr, len: 1 } if addr == at));
    assert!(blind.inode(ino).is_err());
    let (later, _) = View::open(Arc::clone(t.volume.view().map())).unwrap();
    assert!(later.superblock().has_inodes_below());
}
