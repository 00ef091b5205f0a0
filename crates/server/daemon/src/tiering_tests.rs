//! Power cuts at every fence and flush of migration, cleaning and erasing, on all media.

mod backrefs;
mod cuts;
mod directories;
mod extents;
#[cfg(not(feature = "mutants"))]
mod in_order;
mod inodes;
#[cfg(not(feature = "mutants"))]
mod mended;
mod overprovision;
mod scrubbed;

use crate::config::DaemonConfig;
use crate::daemon::Daemon;
use crate::tiering::{Speed, Unsent};
#[cfg(feature = "mutants")]
use cuts::are_found;
#[cfg(not(feature = "mutants"))]
use cuts::{devices_go, loses_nothing};
use shale_block::{MemoryBlocks, Step, TierDevice};
use shale_check::{Below, CheckOptions, check};
use shale_format::device_table::DevicePlace;
use shale_format::extent::UNWRITTEN;
use shale_format::limits::{BLOCK_BYTES, LABEL_AREA_BYTES, LOG_BYTES_MIN};
use shale_format::superblock::{DeviceEntry, TierTable};
use shale_format::{FileBlock, Ino, TierId};
use shale_nvm::{Map, MapOptions};
use shale_pool::nvm_dir::make_nvm;
use shale_pool::volume_file::{FORMAT, NvmEntry, VolumeFile, uuid_text};
use shale_record::{
    Action, BlockReplay, BlockRules, BlockTape, Choice, Cut, MediaRules, Recording, Replay,
};
use shale_sys::SystemClock;
use shale_volume::{Extent, Inode, LowerDevices, Mapping, MkfsOptions, View, Volume};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use zerocopy::FromZeros;

const NVM_BYTES: u64 = 33 << 20;
const ZONE: u64 = 64;
const SECTOR: usize = 512;
/// Zones of flash, disk, and a flash device that is added.
const ZONES: [u64; 3] = [5, 8, 6];
const DEVICES: usize = ZONES.len();

/// By inode: the byte that each of its blocks is filled with; of a directory its names in a row.
type Content = BTreeMap<u64, Vec<u8>>;

fn entry(n: usize) -> DeviceEntry {
    DeviceEntry {
        uuid: [n as u8 + 1; 16],
        blocks: ZONES[n] * ZONE,
        zone_blocks: ZONE as u32,
        kind: 0,
    }
}

fn table(n: usize) -> TierTable {
    let mut table = TierTable::new_zeroed();
    (table.blocks, table.devices) = (entry(n).blocks, 1);
    table.device[0] = entry(n);
    table
}

/// Block of the device that is added where its zones begin.
const START: u32 = 256 + ZONE as u32;

fn device_bytes(n: usize) -> u64 {
    let labels = match n {
        2 => u64::from(START) * BLOCK_BYTES as u64,
        _ => LABEL_AREA_BYTES,
    };
    labels + ZONES[n] * ZONE * BLOCK_BYTES as u64
}

fn volume_file(dir: &Path) -> VolumeFile {
    VolumeFile {
        format: FORMAT,
        name: "cuts".to_owned(),
        uuid: uuid_text(&[7; 16]),
        durability: "strict".to_owned(),
        buffer_dir: None,
        buffering: None,
        buffer_bytes: None,
        log_bytes: LOG_BYTES_MIN,
        client_log_bytes: None,
        migrate_at_percent: None,
        digest_at_percent: None,
        write_back_at_percent: None,
        next_mount: None,
        trusted_uids: Vec::new(),
        staged: None,
        nvm: vec![NvmEntry::new(dir.to_path_buf(), NVM_BYTES)],
        ssd: vec![],
        hdd: vec![],
    }
}

/// A daemon on recorded media.
struct Stage {
    daemon: Arc<Daemon>,
    recording: Arc<Recording>,
    tape: Arc<BlockTape>,
    /// The devices; the last is to be added.
    memory: [Arc<MemoryBlocks>; DEVICES],
    content: Content,
    /// What the files held, and from which event on.
    states: Vec<(usize, Content)>,
}

fn stage(dir: &Path) -> Stage {
    stage_on(dir, |_, memory| memory)
}

/// As [`stage`], with an upper tier that `ssd` makes of what is noted and of the memory it would be.
fn stage_on(
    dir: &Path,
    ssd: impl FnOnce(&Arc<BlockTape>, Arc<dyn TierDevice>) -> Arc<dyn TierDevice>,
) -> Stage {
    let options = MkfsOptions {
        ssd: table(0),
        hdd: table(1),
        ..MkfsOptions::default()
    };
    stage_of(dir, &options, |tape, memory| LowerDevices {
        ssd: vec![ssd(tape, memory[0].clone())],
        hdd: vec![memory[1].clone()],
    })
}

/// A volume with NVM alone: all devices are to be added.
fn stage_alone(dir: &Path) -> Stage {
    stage_of(dir, &MkfsOptions::default(), |_, _| LowerDevices::default())
}

fn stage_of(
    dir: &Path,
    options: &MkfsOptions,
    lower: impl FnOnce(&Arc<BlockTape>, &[Arc<MemoryBlocks>; DEVICES]) -> LowerDevices,
) -> Stage {
    let recording = Recording::new();
    let medium = recording.medium("nvm");
    let map = make_nvm(dir, NVM_BYTES, &MapOptions::new().recorder(medium)).unwrap();
    let map = Arc::new(map);
    let tape = BlockTape::new(&recording);
    let memory = [0, 1, 2].map(|n| {
        let memory = MemoryBlocks::new(["ssd", "hdd", "new"][n], device_bytes(n));
        Arc::new(tape.watch(n, memory))
    });
    let lower = lower(&tape, &memory);
    let options = MkfsOptions {
        uuid: [7; 16],
        ..options.clone()
    };
    drop(Volume::create_with(map.clone(), &options, &lower).unwrap());
    let mut config = DaemonConfig::new(volume_file(dir));
    config.mapped = Some(map);
    config.lower = Some(lower);
    let daemon = Daemon::start(config, Arc::new(SystemClock::new())).unwrap();
    Stage {
        daemon,
        recording,
        tape,
        memory,
        content: Content::new(),
        states: Vec::new(),
    }
}

/// The name of a file.
fn name(volume: &Volume, ino: u64) -> (shale_format::DirKey, Vec<u8>) {
    let name = format!("file {ino}").into_bytes();
    (volume.view().key_group(&name), name)
}

impl Stage {
    /// Writes `blocks` blocks of a file again, from `at` on, as a digest would; 0: reserves them as
    /// `fallocate` does.
    fn write(&mut self, ino: u64, at: u64, blocks: u64, byte: u8) {
        let volume = self.daemon.volume();
        let runs = volume.allocate(blocks, None).unwrap();
        let mut txn = volume.begin();
        let fresh = Inode {
            ino,
            mode: 0o100_644,
            nlink: 1,
            ..Inode::free()
        };
        let mut inode = txn.inode(Ino(ino)).unwrap().unwrap_or(fresh);
        let mut fb = at;
        for run in runs {
            if byte != 0 {
                let bytes = vec![byte; run.len as usize * BLOCK_BYTES];
                volume.write_at(run.addr, 0, &bytes).unwrap();
            }
            let extent = Extent {
                file_block: fb,
                addr: run.addr.raw(),
                len: run.len as u32,
                flags: u32::from(byte == 0) * UNWRITTEN,
            };
            txn.extent_insert(&mut inode, TierId::Nvm, extent).unwrap();
            let range = FileBlock(fb)..FileBlock(fb + run.len);
            for tier in [TierId::Ssd, TierId::Hdd] {
                txn.extent_remove(&mut inode, tier, range.clone()).unwrap();
            }
            fb += run.len;
        }
        inode.size = inode.size.max(fb * BLOCK_BYTES as u64);
        txn.put_inode(&inode).unwrap();
        if !self.content.contains_key(&ino) {
            let mut root = txn.inode(Ino::ROOT).unwrap().unwrap();
            let (key, name) = name(volume, ino);
            txn.dir_insert(&mut root, key, Ino(ino), 8, &name).unwrap();
            txn.put_inode(&root).unwrap();
        }
        let done = txn.commit().unwrap();
        self.daemon.services().clients.publish(done.txid);
        let file = self.content.entry(ino).or_default();
        file.resize(file.len().max(fb as usize), 0);
        file[at as usize..fb as usize].fill(byte);
        self.noted();
    }

    fn remove(&mut self, ino: u64) {
        let mut txn = self.daemon.volume().begin();
        let mut inode = txn.inode(Ino(ino)).unwrap().unwrap();
        for tier in TierId::ALL {
            let all = FileBlock(0)..FileBlock(u64::MAX);
            txn.extent_remove(&mut inode, tier, all).unwrap();
        }
        txn.free_inode(Ino(ino)).unwrap();
        let mut root = txn.inode(Ino::ROOT).unwrap().unwrap();
        let (key, name) = name(self.daemon.volume(), ino);
        txn.dir_remove(&mut root, key, &name).unwrap();
        txn.put_inode(&root).unwrap();
        let done = txn.commit().unwrap();
        self.daemon.services().clients.publish(done.txid);
        self.content.remove(&ino);
        self.noted();
    }

    fn noted(&mut self) {
        let at = self.recording.event_count();
        self.states.push((at, self.content.clone()));
    }
}

/// Files come, move down, change, move on, go.
fn workload(s: &mut Stage) {
    for ino in 16..20 {
        s.write(ino, 0, 40, ino as u8);
    }
    s.daemon.migrate(None).unwrap();
    s.write(16, 10, 20, 100);
    s.write(23, 0, 50, 0);
    s.remove(17);
    s.write(20, 0, 90, 20);
    s.daemon.migrate(None).unwrap();
    s.remove(18);
    s.write(21, 0, 100, 21);
    s.write(19, 5, 3, 101);
    s.write(23, 20, 9, 102);
    s.daemon.migrate(None).unwrap();
    s.write(22, 0, 60, 22);
    s.daemon.migrate(None).unwrap();
    let erased = s.daemon.status_values().tiers[0].zones_erased;
    assert!(erased > 0, "no zone was erased");
}

/// A device comes, another is emptied while files come and go, and is taken out.
fn devices_change(s: &mut Stage) {
    for ino in 16..21 {
        s.write(ino, 0, 45, ino as u8);
    }
    s.daemon.migrate(None).unwrap();
    let volume = s.daemon.volume().clone();
    let spare: Arc<dyn TierDevice> = s.memory[2].clone();
    let run = volume.take_tables(&entry(2)).unwrap();
    let new = (&entry(2), START);
    let done = volume.add_device_at(TierId::Ssd, new, &spare, run).unwrap();
    s.daemon.services().clients.publish(done.txid);
    s.write(21, 0, 70, 21);
    s.daemon.migrate(None).unwrap();
    let old = entry(0).uuid;
    let live = || volume.lower_device_infos(TierId::Ssd)[0].live;
    assert!(live() > 100);
    let done = volume.set_device_state(TierId::Ssd, &old, 1).unwrap();
    s.daemon.services().clients.publish(done.txid);
    s.write(17, 3, 4, 100);
    s.remove(18);
    let begun = std::time::Instant::now();
    while live() > 0 {
        s.daemon.services().tiering.empty_devices();
        assert!(begun.elapsed().as_secs() < 60, "{:?}", s.daemon.devices());
    }
    let done = volume.remove_device(TierId::Ssd, &old).unwrap();
    s.daemon.services().clients.publish(done.txid);
    assert_eq!(volume.lower_devices(TierId::Ssd).len(), 1);
    s.write(22, 0, 30, 22);
    s.daemon.migrate(None).unwrap();
}

/// NVM alone gets flash, then a disk; both are emptied and go again.
#[cfg(not(feature = "mutants"))]
fn tiers_come_and_go(s: &mut Stage) {
    for ino in 16..20 {
        s.write(ino, 0, 40, ino as u8);
    }
    let volume = s.daemon.volume().clone();
    assert!(!volume.is_tiered() && s.daemon.migrate(None).unwrap() == 0);
    for (n, tier) in [TierId::Ssd, TierId::Hdd].into_iter().enumerate() {
        let device: Arc<dyn TierDevice> = s.memory[n].clone();
        let run = volume.take_tables(&entry(n)).unwrap();
        let added = volume.add_device_at(tier, (&entry(n), 0), &device, run);
        let done = added.unwrap();
        s.daemon.services().clients.publish(done.txid);
        s.write(20 + n as u64, 0, 70, 20 + n as u8);
        s.write(16, 5, 9, 100 + n as u8);
        assert!(s.daemon.migrate(None).unwrap() > 0);
    }
    s.remove(17);
    let live = |tier| volume.lower_device_infos(tier)[0].live;
    for (n, tier) in [TierId::Ssd, TierId::Hdd].into_iter().enumerate() {
        let uuid = entry(n).uuid;
        let done = volume.set_device_state(tier, &uuid, 1).unwrap();
        s.daemon.services().clients.publish(done.txid);
        let begun = std::time::Instant::now();
        while live(tier) > 0 {
            s.daemon.services().tiering.empty_devices();
            assert!(begun.elapsed().as_secs() < 60, "{:?}", s.daemon.devices());
        }
        let done = volume.remove_device(tier, &uuid).unwrap();
        s.daemon.services().clients.publish(done.txid);
    }
    assert!(!volume.is_tiered());
    s.write(22, 0, 30, 22);
}

/// What a cut leaves of NVM. It lies where the one before did, once nothing uses that any more: most of a look would be new
/// pages of memory.
fn map_after(cut: &Cut<'_>, choice: &Choice<'_>) -> Arc<Map> {
    thread_local! {
        static LAST: RefCell<Option<Arc<Map>>> = const { RefCell::new(None) };
    }
    let unused = LAST.take().filter(|map| Arc::strong_count(map) == 1);
    let map = unused.unwrap_or_else(|| Arc::new(Map::anonymous(NVM_BYTES as usize).unwrap()));
    cut.write_image(0, choice, |at, bytes| map.store(at, bytes));
    LAST.set(Some(map.clone()));
    map
}

/// Opens what a cut left and compares it.
fn verify(
    map: Arc<Map>,
    devices: &[Arc<dyn TierDevice>],
    allowed: &[&Content],
) -> Result<Volume, String> {
    Volume::replay(map.clone()).map_err(|e| format!("replay: {e}"))?;
    let view = View::open(map.clone()).map_err(|e| format!("open: {e}"))?.0;
    let table = view.device_table().map_err(|e| format!("devices: {e}"))?;
    let device = |place: &DevicePlace| devices[usize::from(place.uuid[0]) - 1].clone();
    let tier = |n| table.of(n).iter().map(device).collect();
    let lower = LowerDevices {
        ssd: tier(0),
        hdd: tier(1),
    };
    let volume = Volume::open_with(map.clone(), &lower).map_err(|e| format!("open: {e}"))?;
    let places = table.of(0).iter().chain(table.of(1));
    let options = CheckOptions {
        below: Below::open(places.map(|p| (p.uuid, device(p))).collect()),
        ..CheckOptions::default()
    };
    let report = check(map, &[], &options, &mut |_| {});
    if report.errors > 0 {
        return Err(format!("fsck: {report}"));
    }
    let found = contents(&volume)?;
    match allowed.contains(&&found) {
        true => Ok(volume),
        false => Err("the files hold what they never held".to_owned()),
    }
}

fn contents(volume: &Volume) -> Result<Content, String> {
    let view = volume.view();
    let mut content = Content::new();
    for ino in 16..96 {
        let Some(inode) = view.inode(Ino(ino)).map_err(|e| e.to_string())? else {
            continue;
        };
        let mut file = directories::names_of(&view, &inode)?;
        for fb in 0..inode.size / BLOCK_BYTES as u64 {
            let mut block = [0; BLOCK_BYTES];
            match view.map_block(&inode, FileBlock(fb)) {
                Ok(Mapping::Data { addr, .. }) => view
                    .read_at(addr, 0, &mut block)
                    .map_err(|e| format!("inode {ino}, block {fb}: {e}"))?,
                Ok(Mapping::Unwritten { .. } | Mapping::Hole { .. }) => {}
                other => return Err(format!("inode {ino}, block {fb}: {other:?}")),
            }
            if block.iter().any(|&b| b != block[0]) {
                return Err(format!("inode {ino}, block {fb} is torn"));
            }
            file.push(block[0]);
        }
        // Who owns it, where that was said.
        file.extend((inode.uid != 0).then_some(inode.uid as u8));
        content.insert(ino, file);
    }
    Ok(content)
}

/// What files may hold after a cut behind `event`.
fn allowed(states: &[(usize, Content)], event: usize) -> Vec<&Content> {
    let now = states.partition_point(|(at, _)| *at <= event);
    let between = &states[now.saturating_sub(1)..states.len().min(now + 1)];
    between.iter().map(|(_, c)| c).collect()
}

/// What a cut leaves of devices that are memory.
fn memories(below: &BlockReplay<'_>, choice: &Choice<'_>) -> Vec<Arc<dyn TierDevice>> {
    let images = below.images(SECTOR, choice).into_iter();
    let device =
        |bytes| -> Arc<dyn TierDevice> { Arc::new(MemoryBlocks::holding("device", bytes)) };
    images.map(device).collect()
}

/// Power fails here: looks at some of what that could leave. Gives the number of states.
fn look(
    replay: &Replay<'_>,
    below: &BlockReplay<'_>,
    states: &[(usize, Content)],
    seeded: bool,
) -> Result<usize, String> {
    let event = replay.at();
    let allowed = allowed(states, event);
    let uncertain = replay.cut(&MediaRules::default());
    // What NVM keeps and what devices keep has nothing to do with one another.
    let seed = Choice::Seed(2 + event as u64);
    let all = [
        (Choice::None, Choice::All),
        (Choice::All, Choice::None),
        (seed, seed),
    ];
    let choices = &all[..if seeded { 3 } else { 2 }];
    for (nvm, devices) in choices {
        verify(
            map_after(&uncertain, nvm),
            &memories(below, devices),
            &allowed,
        )
        .map(drop)
        .map_err(|e| format!("event {event}, step {}, {nvm:?}: {e}", below.at()))?;
    }
    Ok(choices.len())
}

/// Runs the workload and looks at every cut. Gives the number of states.
fn explore(workload: fn(&mut Stage)) -> Result<usize, String> {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    run(stage(dir.path()), workload, &mut look)
}

/// Power fails here: looks at what that could leave. The last tells of every third time.
type Look<'l> = dyn FnMut(&Replay<'_>, &BlockReplay<'_>, &[(usize, Content)], bool) -> Result<usize, String>
    + 'l;

fn run(mut s: Stage, workload: fn(&mut Stage), look: &mut Look<'_>) -> Result<usize, String> {
    let from = s.recording.event_count();
    s.noted();
    workload(&mut s);
    let (script, states) = (s.recording.script(), s.states.clone());
    let tape = s.tape.take();
    drop(s);
    let empty = [0, 1, 2]
        .map(|n| vec![0; device_bytes(n) as usize])
        .to_vec();
    let mut below = BlockReplay::new(&tape, empty, BlockRules::default());
    let mut replay = script.replay();
    let mut seen = 0;
    for (event, recorded) in script.events().iter().enumerate() {
        replay.advance_to(event);
        while let Some(next) = below.next().filter(|tape| tape.event <= event) {
            if next.step == Step::Flush && event >= from {
                seen += look(&replay, &below, &states, seen % 3 == 0)?;
            }
            below.step();
        }
        if recorded.action == Action::Fence && event >= from {
            seen += look(&replay, &below, &states, seen % 3 == 0)?;
        }
    }
    Ok(seen)
}

// With mutants another test switches them on, for the whole process.
#[cfg(not(feature = "mutants"))]
#[test]
fn a_power_cut_in_migration_loses_nothing() {
    loses_nothing(workload);
}

#[cfg(not(feature = "mutants"))]
#[test]
fn a_power_cut_while_devices_change_loses_nothing() {
    loses_nothing(devices_change);
}

#[cfg(not(feature = "mutants"))]
#[test]
fn a_power_cut_while_tiers_come_to_nvm_alone_and_go_loses_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let states = run(stage_alone(dir.path()), tiers_come_and_go, &mut look).unwrap();
    println!("{states} states");
    assert!(states > 100);
}

#[test]
fn what_takes_many_messages_is_read_once() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut s = stage(dir.path());
    s.write(16, 0, 40, 16);
    s.daemon.migrate(None).unwrap();
    let view = s.daemon.volume().view();
    let inode = view.inode(Ino(16)).unwrap().unwrap();
    let Mapping::Data { addr, .. } = view.map_block(&inode, FileBlock(0)).unwrap() else {
        panic!("no data");
    };
    let read = || s.memory[0].counts().read_bytes;
    let (unsent, before) = (Unsent::default(), read());
    let mut sent = Vec::new();
    for left in [40, 25, 10] {
        let addr = addr.plus(40 - left);
        let (_, data) = unsent
            .read(&s.daemon.services().tiering, addr, left, 15)
            .unwrap();
        assert!(data.iter().all(|byte| *byte == 16));
        sent.push(data.len() / BLOCK_BYTES);
    }
    assert_eq!(sent, [15, 15, 10]);
    assert_eq!(read() - before, 40 * BLOCK_BYTES as u64);
    // All was sent, and elsewhere nothing is kept.
    unsent
        .read(&s.daemon.services().tiering, addr, 2, 15)
        .unwrap();
    assert_eq!(read() - before, 42 * BLOCK_BYTES as u64);
}

#[test]
fn a_device_that_fails_gets_nothing_more_and_the_rest_goes_on() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut s = stage(dir.path());
    for ino in 16..19 {
        s.write(ino, 0, 30, ino as u8);
    }
    s.daemon.migrate(None).unwrap();
    let state = |s: &Stage| s.daemon.devices()[0].state.clone();
    assert_eq!(state(&s), "in use");
    s.memory[0].fail_writes();
    s.write(20, 0, 90, 20);
    s.daemon.migrate(None).unwrap();
    let report = s.daemon.devices()[0].clone();
    assert_eq!(report.state, "failing", "{report:?}");
    assert!(report.errors > 0 && report.trouble.is_some(), "{report:?}");
    assert!(s.daemon.devices()[1].live_bytes >= 90 * BLOCK_BYTES as u64);
    assert_eq!(contents(s.daemon.volume()).unwrap(), s.content);
    // It can be emptied: it is still read.
    s.write(21, 0, 10, 21);
    let old = entry(0).uuid;
    let volume = s.daemon.volume();
    volume.set_device_state(TierId::Ssd, &old, 1).unwrap();
    let begun = std::time::Instant::now();
    while s.daemon.devices()[0].live_bytes > 0 {
        s.daemon.services().tiering.empty_devices();
        assert!(begun.elapsed().as_secs() < 60, "{:?}", s.daemon.devices());
    }
    assert_eq!(contents(volume).unwrap(), s.content);
}

#[cfg(feature = "mutants")]
#[test]
fn mistakes_in_changing_devices_are_found() {
    are_found(&["zones-start-feature"], devices_change);
}

#[cfg(feature = "mutants")]
#[test]
fn mistakes_in_migration_are_found() {
    are_found(
        &[
            "lower-flush",
            "lower-bitmap",
            "zone-pointer",
            "migrate-freed-early",
        ],
        workload,
    );
}

#[test]
fn only_what_nobody_asked_for_is_owed() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let s = stage_alone(dir.path());
    let tiering = s.daemon.services().tiering.clone();
    tiering.set_speed(Speed {
        limit: 1 << 20,
        ..Speed::default()
    });
    let owed = |asked, bytes| {
        let guard = tiering.lock_mover_for(asked);
        tiering.pretend_moved(bytes);
        drop(guard);
        tiering.owed(1 << 20).as_secs_f64()
    };
    assert_eq!(owed(true, 1 << 20), 0.0);
    let seconds = owed(false, 1 << 20);
    assert!((1.8..=2.0).contains(&seconds), "{seconds}");
}
