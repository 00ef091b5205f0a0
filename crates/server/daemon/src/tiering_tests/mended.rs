//! Repair of volumes with inodes below NVM: what is damaged is lost, and nothing else.

use super::*;
use shale_check::{RepairReport, repair};
use shale_format::extent::root_kind;
use shale_format::inode::slot_of;
use shale_format::limits::INODE_BYTES;
use shale_format::superblock::ROOT_BLOCK;
use shale_format::zone::ZoneEntry;

/// A volume with inodes below, at rest.
struct Rest {
    nvm: Vec<u8>,
    devices: [Vec<u8>; 2],
    content: Content,
    /// Where inode 20 lies below.
    addr: shale_format::BlockAddr,
    /// The inode file.
    file: Inode,
    place: DevicePlace,
}

/// Blocks 1, 3 and 4 of the inode file go down at first, then block 2; some files have data there.
fn at_rest() -> Rest {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut s = stage(dir.path());
    s.make_empty(16..80);
    s.write(70, 0, 40, 70);
    s.daemon.migrate(None).unwrap();
    let stays = s.daemon.services().tiering.promote_inode(40).unwrap();
    assert_eq!(s.demote(), 3);
    drop(stays);
    s.give(41, 5);
    assert_eq!(s.demote(), 1);
    let view = s.daemon.volume().view();
    let file = view.root().unwrap().inode_file;
    let Mapping::Data { addr, .. } = view.map_block(&file, FileBlock(1)).unwrap() else {
        panic!("not mapped");
    };
    let sb = *view.superblock();
    let mut nvm = vec![0; NVM_BYTES as usize];
    view.map().load(0, &mut nvm);
    // A later batch lies there: the last one is not put in its place once more.
    nvm[sb.journal_block as usize * BLOCK_BYTES..][..64].fill(0);
    Rest {
        nvm,
        devices: [0, 1].map(|n| s.memory[n].contents()),
        content: s.content.clone(),
        addr,
        file,
        place: s.daemon.volume().lower_device_infos(TierId::Ssd)[0].place,
    }
}

impl Rest {
    /// Where the block of inode 20 lies on flash.
    fn byte(&self) -> usize {
        let at = self.addr.index() - self.place.first;
        (LABEL_AREA_BYTES + at * BLOCK_BYTES as u64) as usize
    }

    fn spoil(&mut self, block: u64, at: usize, bytes: usize) {
        self.nvm[block as usize * BLOCK_BYTES + at..][..bytes].fill(0x55);
    }

    /// Repairs it with these devices.
    fn repaired(
        &self,
        map: &Arc<Map>,
        n: std::ops::Range<usize>,
    ) -> shale_pool::Result<RepairReport> {
        let options = CheckOptions {
            below: Below::open(n.map(|n| (entry(n).uuid, self.device(n))).collect()),
            ..CheckOptions::default()
        };
        repair(map, &[], &options, &mut |_| {})
    }

    fn device(&self, n: usize) -> Arc<dyn TierDevice> {
        Arc::new(MemoryBlocks::holding("device", self.devices[n].clone()))
    }

    fn map(&self) -> Arc<Map> {
        let map = Arc::new(Map::anonymous(self.nvm.len()).unwrap());
        map.store(0, &self.nvm);
        map
    }

    /// Repairs it: it is whole then, and a second repair finds nothing. Gives the report, and the
    /// files.
    fn mended(&self) -> (RepairReport, Content) {
        let map = self.map();
        let report = self.repaired(&map, 0..2).unwrap();
        assert!(report.clean() && !report.mended.is_empty(), "{report}");
        let again = self.repaired(&map, 0..2).unwrap();
        assert!(again.mended.is_empty(), "{again}");
        let lower = LowerDevices {
            ssd: vec![self.device(0)],
            hdd: vec![self.device(1)],
        };
        let volume = Volume::open_with(map, &lower).unwrap();
        (report, contents(&volume).unwrap())
    }

    /// Everything is there afterwards.
    #[track_caller]
    fn loses_nothing(&self, loss: bool) {
        let (report, found) = self.mended();
        assert_eq!(found, self.content, "{report}");
        assert_eq!(report.mended.iter().any(|m| m.lost), loss, "{report}");
    }
}

#[test]
fn a_lost_way_to_inodes_below_loses_nothing() {
    let mut root = at_rest();
    root.spoil(ROOT_BLOCK, 0, BLOCK_BYTES);
    root.loses_nothing(false);
    // Nor if it is not known, too, which blocks below are in use.
    let bitmap = root.place.tables().bitmap_block;
    root.spoil(bitmap, 0, BLOCK_BYTES);
    root.loses_nothing(false);

    let mut node = at_rest();
    let below = node.file.root[TierId::Ssd as usize];
    assert_eq!(below.kind, root_kind::TREE);
    node.spoil(below.addr, 0, BLOCK_BYTES);
    node.loses_nothing(false);
}

#[test]
fn damaged_tables_of_the_tier_lose_no_inodes() {
    let mut zone = at_rest();
    let at = zone.addr.index() - zone.place.first;
    let entry = (at / ZONE) as usize * ZoneEntry::BYTES;
    zone.spoil(zone.place.tables().zone_block, entry, ZoneEntry::BYTES);
    let (report, found) = zone.mended();
    for (ino, file) in &zone.content {
        // Its data may be in that zone.
        assert!(
            found.get(ino) == Some(file) || *ino == 70,
            "{ino}: {report}"
        );
    }
    let mut sum = at_rest();
    sum.spoil(sum.place.tables().sums_block, at as usize * 4, 4);
    sum.loses_nothing(true);
}

#[test]
fn of_a_damaged_block_below_the_inodes_that_are_whole_are_kept() {
    let mut one = at_rest();
    let at = one.byte() + slot_of(Ino(20)).1;
    one.devices[0][at + 70] ^= 0x10;
    let (report, found) = one.mended();
    one.content.remove(&20);
    assert_eq!(found, one.content, "{report}");
    let about = |text: &str| {
        report
            .mended
            .iter()
            .any(|m| m.lost && m.what.contains(text))
    };
    assert!(about("16 to 31") && about("15 of them"), "{report}");

    let mut all = at_rest();
    let at = all.byte();
    all.devices[0][at..at + 16 * INODE_BYTES].fill(0);
    let (report, found) = all.mended();
    all.content.retain(|ino, _| !(16..32).contains(ino));
    assert_eq!(found, all.content, "{report}");
}

#[test]
fn without_its_devices_nothing_is_repaired() {
    let mut rest = at_rest();
    rest.spoil(ROOT_BLOCK, 0, BLOCK_BYTES);
    let map = rest.map();
    for devices in [0..0, 0..1, 1..2] {
        let refused = rest.repaired(&map, devices).unwrap_err().to_string();
        assert!(refused.contains("missing"), "{refused}");
    }
    let mut after = vec![0; rest.nvm.len()];
    map.load(0, &mut after);
    assert!(after == rest.nvm, "nothing is written");
}
