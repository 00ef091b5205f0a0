//! A volume, one client's log in it, and short ways to append, digest and look.

use crate::{
    AccessPolicy, Bounds, Change, ChunkDone, DigestError, Digester, LogSource, Mode, NewRun,
    Operation, Placement, Plan, PlanError, plan, scan,
};
use shale_format::acl::Acl;
use shale_format::inode::Inode;
use shale_format::limits::{LOG_BYTES_MIN, NVM_BYTES_MIN};
use shale_format::log::{LogHeader, LogSlot, RING_AT, slot_state};
use shale_format::record::{CreateBody, RenameBody, SetAttrBody, StealBody, attr, flag};
use shale_format::{BlockAddr, DirKey, FileBlock, Ino, LogPos};
use shale_nvm::Map;
use shale_oplog::{Log, Part, PublishedWord, Writer, encode};
use shale_volume::{Mapping, MkfsOptions, Run, View, Volume};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

pub const FILE: u32 = 0o100_644;
pub const DIR: u32 = 0o040_755;
pub const LINK: u32 = 0o120_777;
const SALT: u64 = 0x5a17;
const SLOT: u32 = 3;

/// Says where a run of new data goes.
pub type Place = Box<dyn Fn(&NewRun) -> Placement>;

/// Everything allowed but what is listed.
#[derive(Default)]
pub struct Rules {
    /// Blocks granted; empty: any.
    pub blocks: Vec<Run>,
    /// Inode that may not be changed.
    pub forbidden: Option<Ino>,
    /// Inode number that was not granted.
    pub ungranted: Option<Ino>,
    /// Where new data goes; `None`: to NVM.
    pub placement: Option<Place>,
    /// The client is in no group and keeps no set-id.
    pub stranger: bool,
    /// Lists with which rights on inode 100 were asked.
    pub asked: RefCell<Vec<Option<Acl>>>,
}

impl Rules {
    /// Takes away what a chunk used up.
    pub fn used(&mut self, done: &ChunkDone) {
        for run in done.linked.iter().chain(&done.unused) {
            let overlaps =
                |b: &Run| b.addr < run.addr.plus(run.len) && run.addr < b.addr.plus(b.len);
            let (old, kept) = self.blocks.drain(..).partition::<Vec<Run>, _>(overlaps);
            self.blocks = kept;
            for b in old {
                let ends = (b.addr.raw() + b.len, run.addr.raw() + run.len);
                self.blocks.push(Run {
                    addr: b.addr,
                    len: run.addr.raw().saturating_sub(b.addr.raw()),
                });
                self.blocks.push(Run {
                    addr: run.addr.plus(run.len),
                    len: ends.0.saturating_sub(ends.1),
                });
            }
            self.blocks.retain(|b| b.len > 0);
        }
    }
}

impl AccessPolicy for Rules {
    fn granted_inode(&self, ino: Ino) -> bool {
        self.ungranted != Some(ino)
    }
    fn granted_blocks(&self, run: Run) -> bool {
        self.blocks
            .iter()
            .any(|b| run.addr >= b.addr && run.addr.raw() + run.len <= b.addr.raw() + b.len)
    }
    fn placement(&self, run: &NewRun) -> Placement {
        let placement = self.placement.as_ref();
        placement.map_or(Placement::Nvm, |placement| placement(run))
    }
    fn keeps_set_id(&self) -> bool {
        !self.stranger
    }
    fn is_in_group(&self, _: u32) -> bool {
        !self.stranger
    }
    fn asks_acl(&self, inode: &Inode) -> bool {
        inode.ino == 100
    }
    fn may_change(&self, change: &Change<'_>) -> Result<(), &'static str> {
        if change.inode.ino == 100 {
            self.asked.borrow_mut().push(change.acl.cloned());
        }
        if let Operation::RemoveEntry { child } = change.operation
            && self.forbidden == Some(Ino(child.ino))
        {
            return Err("forbidden");
        }
        match self.forbidden {
            Some(Ino(ino)) if ino == change.inode.ino => Err("forbidden"),
            _ => Ok(()),
        }
    }
}

pub struct World {
    pub digester: Digester,
    pub writer: Writer,
    pub rules: Rules,
    /// Digested so far.
    pub at: LogPos,
    log_map: Arc<Map>,
    /// Blocks granted and not yet used.
    granted: Cell<Option<Run>>,
    time: Cell<i64>,
    /// Put into the next record's header.
    pub reserve: Cell<u32>,
}

pub fn volume(bytes: usize) -> Volume {
    let map = Arc::new(Map::anonymous(bytes).unwrap());
    let options = MkfsOptions {
        hash_seed: [1, 2],
        root_mode: 0o755,
        ..MkfsOptions::default()
    };
    Volume::create(map, &options).unwrap()
}

impl World {
    pub fn new() -> World {
        let whole = Bounds {
            ring_parts: 1,
            ..Bounds::default()
        };
        Self::with(NVM_BYTES_MIN as usize, whole)
    }

    pub fn with(bytes: usize, bounds: Bounds) -> World {
        Self::on(volume(bytes), bounds)
    }

    pub fn on(volume: Volume, bounds: Bounds) -> World {
        let volume = Arc::new(volume);
        let mut txn = volume.begin();
        let slot = LogSlot {
            state: slot_state::LIVE,
            salt: SALT,
            ring_bytes: LOG_BYTES_MIN,
            ..LogSlot::decode(&[0; 64], SLOT).unwrap()
        };
        txn.set_log_slot(SLOT, &slot).unwrap();
        txn.commit().unwrap();
        let log_map = Arc::new(Map::anonymous(RING_AT + LOG_BYTES_MIN as usize).unwrap());
        let header = LogHeader {
            magic: shale_format::log::LOG_MAGIC,
            uuid: [0; 16],
            salt: SALT,
            ring_bytes: LOG_BYTES_MIN,
            uid: 0,
            slot: SLOT,
            created_ns: 0,
            reserved: [0; 64],
            reserved1: 0,
            crc: 0,
        };
        let log = Arc::new(Log::create(log_map.clone(), header).unwrap());
        let word = PublishedWord {
            map: Arc::new(Map::anonymous(4096).unwrap()),
            offset: 0,
        };
        let writer = Writer::new(log, LogPos(0), word).unwrap();
        World {
            digester: Digester::with_bounds(volume, bounds),
            writer,
            rules: Rules::default(),
            at: LogPos(0),
            log_map,
            granted: Cell::new(None),
            time: Cell::new(1_000),
            reserve: Cell::new(0),
        }
    }

    pub fn volume(&self) -> &Volume {
        self.digester.volume()
    }
    pub fn view(&self) -> View {
        self.volume().view()
    }
    pub fn source(&self) -> LogSource<'_> {
        LogSource {
            bytes: self.log_map.on(shale_nvm::Path::Log),
            salt: SALT,
            ring_bytes: LOG_BYTES_MIN,
            slot: SLOT,
        }
    }

    // ---- appending ----

    pub fn chain(&self, parts: &mut [Part<'_>]) -> LogPos {
        for part in parts.iter_mut() {
            self.time.set(self.time.get() + 1);
            part.header.time_ns = self.time.get();
            part.header.reserve = self.reserve.get();
        }
        let bytes = parts.iter().map(Part::bytes).sum();
        let mut permit = self.writer.try_reserve(bytes).expect("space in the ring");
        self.writer.append_chain(&mut permit, parts).pos
    }
    pub fn push(&self, mut part: Part<'_>) -> LogPos {
        self.chain(std::slice::from_mut(&mut part))
    }
    pub fn create(&self, dir: u64, ino: u64, name: &str, mode: u32) {
        self.push(create(dir, ino, name, mode));
    }
    pub fn symlink(&self, dir: u64, ino: u64, name: &str, target: &str) {
        let b = create_body(LINK);
        self.push(encode::create(
            Ino(dir),
            Ino(ino),
            b,
            name.as_bytes(),
            target.as_bytes(),
        ));
    }
    pub fn unlink(&self, dir: u64, ino: u64, name: &str, flags: u8) {
        let kind = if flags & flag::DIRECTORY != 0 { 4 } else { 8 };
        self.push(encode::unlink(Ino(dir), Ino(ino), kind, 0, name.as_bytes()).flags(flags));
    }
    pub fn link(&self, dir: u64, ino: u64, name: &str) {
        self.push(encode::link(Ino(dir), Ino(ino), 8, 0, name.as_bytes()));
    }
    pub fn write(&self, ino: u64, offset: u64, data: &[u8]) -> LogPos {
        self.push(encode::write(Ino(ino), offset, data))
    }
    pub fn truncate(&self, ino: u64, size: u64) {
        self.push(encode::truncate(Ino(ino), size));
    }
    pub fn fallocate(&self, ino: u64, offset: u64, bytes: u64, mode: u32) {
        self.push(encode::fallocate(Ino(ino), offset, bytes, mode));
    }
    pub fn rename(&self, m: Rename<'_>) {
        self.push(m.part());
    }
    pub fn set_xattr(&self, ino: u64, name: &str, value: &[u8]) {
        self.push(encode::set_xattr(Ino(ino), name.as_bytes(), value));
    }
    pub fn set_mode(&self, ino: u64, mode: u32) {
        self.push(encode::set_attr(
            Ino(ino),
            SetAttrBody {
                valid: attr::MODE,
                mode,
                uid: 0,
                gid: 0,
                time_s: [0; 3],
                time_ns: [0; 3],
                flags: 0,
            },
        ));
    }

    /// Blocks that follow one another, granted to the client.
    pub fn grant(&mut self, blocks: u64) -> BlockAddr {
        let run = match self.granted.take().filter(|g| g.len >= blocks) {
            Some(run) => run,
            None => {
                let runs = self.volume().allocate(blocks.max(64), None).unwrap();
                assert_eq!(runs.len(), 1, "a fresh volume has long runs");
                self.rules.blocks.extend_from_slice(&runs);
                runs[0]
            }
        };
        self.granted.set(Some(Run {
            addr: run.addr.plus(blocks),
            len: run.len - blocks,
        }));
        run.addr
    }

    /// Writes whole blocks and gives the record that links them.
    pub fn stolen(&mut self, ino: u64, offset: u64, data: &[u8], end: u64) -> Part<'static> {
        let blocks = (data.len() / 4096) as u32;
        let addr = self.grant(blocks.into());
        self.volume().write_at(addr, 0, data).unwrap();
        self.volume().fence();
        let body = StealBody {
            addr: addr.raw(),
            blocks,
            data_crc: shale_format::checksum::crc32c(data),
            end,
        };
        encode::steal(Ino(ino), offset, body)
    }
    pub fn steal(&mut self, ino: u64, offset: u64, data: &[u8], end: u64) {
        let part = self.stolen(ino, offset, data, end);
        self.push(part);
    }

    // ---- digesting ----

    pub fn chunk(&self, mode: Mode) -> Result<ChunkDone, DigestError> {
        let limit = match mode {
            Mode::Live => self.writer.published().pos(),
            Mode::Recovery => LogPos(u64::MAX),
        };
        let log = self.source();
        self.digester.chunk(&log, self.at, limit, &self.rules, mode)
    }

    /// Digests everything; panics where a record is refused. Gives the chunks.
    pub fn digest(&mut self) -> Vec<ChunkDone> {
        let mut all = Vec::new();
        loop {
            let done = self.chunk(Mode::Live).unwrap();
            assert_eq!(done.refused, None);
            self.rules.used(&done);
            self.at = done.upto;
            let end = done.at_end;
            all.extend(done.txid.is_some().then_some(done));
            if end {
                assert_eq!(self.at, self.writer.published().pos());
                self.writer.set_tail(self.at);
                self.volume().release_up_to(self.volume().txid());
                return all;
            }
        }
    }

    /// Digests everything in one chunk.
    pub fn digest_once(&mut self) -> ChunkDone {
        let mut all = self.digest();
        assert_eq!(all.len(), 1, "one chunk");
        all.remove(0)
    }

    /// The plan of everything that is not digested.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        let bounds = scan::BatchLimits::ANY;
        let limit = self.writer.published().pos();
        let view = self.view();
        let batch = scan::gather(&self.source(), &view, self.at, limit, Mode::Live, &bounds);
        plan::plan(&batch.items, &view, &self.rules)
    }

    // ---- looking ----

    pub fn inode(&self, ino: u64) -> Option<Inode> {
        self.view().inode(Ino(ino)).unwrap()
    }
    pub fn names(&self, dir: u64) -> BTreeMap<String, u64> {
        let view = self.view();
        let inode = view.inode(Ino(dir)).unwrap().unwrap();
        let mut names = BTreeMap::new();
        view.entries(&inode, DirKey(0), &mut |e| {
            let name = String::from_utf8(e.name).unwrap();
            let name = if name.is_empty() {
                format!("#{}", e.ino.0)
            } else {
                name
            };
            names.insert(name, e.ino.0);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(names.len() as u64, inode.size, "count of entries of {dir}");
        names
    }
    pub fn content(&self, ino: u64) -> Vec<u8> {
        content(&self.view(), &self.inode(ino).unwrap())
    }
    pub fn extents(&self, ino: u64) -> Vec<(u64, u64, bool)> {
        let mut list = Vec::new();
        let view = self.view();
        let inode = self.inode(ino).unwrap();
        view.extents(&inode, FileBlock(0), &mut |e| {
            list.push((e.file_block, e.len.into(), e.is_unwritten()));
            ControlFlow::Continue(())
        })
        .unwrap();
        list
    }
}

/// A file as the volume has it. Also checks that nothing hides behind its end.
pub fn content(view: &View, inode: &Inode) -> Vec<u8> {
    let blocks = inode.size.div_ceil(4096);
    let mut all = vec![0; (blocks * 4096) as usize];
    for fb in 0..blocks {
        if let Mapping::Data { addr, .. } = view.map_block(inode, FileBlock(fb)).unwrap() {
            let at = (fb * 4096) as usize;
            view.read_blocks(addr, &mut all[at..at + 4096]).unwrap();
        }
    }
    let hidden = all.split_off(inode.size as usize);
    assert!(
        hidden.iter().all(|&b| b == 0),
        "bytes behind the end of {}",
        inode.ino
    );
    all
}

fn create_body(mode: u32) -> CreateBody {
    CreateBody {
        mode,
        uid: 10,
        gid: 20,
        generation: 1,
        rdev: 0,
        name_bytes: 0,
        target_bytes: 0,
        twin: 0,
        reserved: [0; 11],
    }
}

pub fn create(dir: u64, ino: u64, name: &str, mode: u32) -> Part<'_> {
    create_twin(dir, ino, name, mode, 0)
}

pub fn create_twin(dir: u64, ino: u64, name: &str, mode: u32, twin: u8) -> Part<'_> {
    let body = CreateBody {
        twin,
        ..create_body(mode)
    };
    encode::create(Ino(dir), Ino(ino), body, name.as_bytes(), &[])
}

#[derive(Clone, Copy)]
pub struct Rename<'a> {
    pub from: (u64, &'a str),
    pub to: (u64, &'a str),
    pub ino: u64,
    pub replaced: u64,
    pub kinds: (u8, u8),
    pub exchange: bool,
    pub free_now: bool,
}

impl<'a> Rename<'a> {
    pub fn file(from: (u64, &'a str), ino: u64, to: (u64, &'a str)) -> Self {
        Rename {
            from,
            to,
            ino,
            replaced: 0,
            kinds: (8, 0),
            exchange: false,
            free_now: false,
        }
    }
    pub fn dir(from: (u64, &'a str), ino: u64, to: (u64, &'a str)) -> Self {
        Rename {
            kinds: (4, 0),
            ..Self::file(from, ino, to)
        }
    }
    pub fn over(self, replaced: u64, kind: u8) -> Self {
        Rename {
            replaced,
            kinds: (self.kinds.0, kind),
            ..self
        }
    }
    pub fn part(self) -> Part<'a> {
        let body = RenameBody {
            new_parent: self.to.0,
            replaced: self.replaced,
            flags: if self.exchange { 2 } else { 0 },
            old_bytes: 0,
            new_bytes: 0,
            old_twin: 0,
            new_twin: 0,
            kind: self.kinds.0,
            replaced_kind: self.kinds.1,
            reserved: [0; 4],
        };
        let (dir, ino) = (Ino(self.from.0), Ino(self.ino));
        let mut flags = 0;
        if self.kinds.0 == 4 {
            flags |= flag::DIRECTORY;
        }
        if self.free_now {
            flags |= flag::FREE_NOW;
        }
        encode::rename(dir, ino, body, self.from.1.as_bytes(), self.to.1.as_bytes()).flags(flags)
    }
}
