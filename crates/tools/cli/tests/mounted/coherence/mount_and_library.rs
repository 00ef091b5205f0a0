//! FUSE clients and clients that go past it, on the same few files: nobody reads
//! what others have overwritten, and every name is there, or gone, when the call returns.
//!
//! `SHALE_SECONDS=n` runs longer, `SHALE_SEED=n` another sequence.

use super::history::{ABSENT, History, Value, Watch};
use crate::volume::{StopOnDrop, Volume, can_mount};
use shale_libfs::{Caller, Errno, File as DirectFile, OFlags, Session, SessionOptions, Tree};
use shale_proto::SocketChannel;
use shale_sys::SystemClock;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const FILES: usize = 3;
const CELLS: usize = 3;
/// Bytes of a cell: not a multiple of a page.
const CELL: usize = 3000;
/// The kernel hands on a write page by page.
const PAGE: usize = 4096;
/// Threads on the mount; direct clients have the numbers that follow.
const MOUNTED: usize = 2;
const NAMES: usize = 3;
const SIZES: usize = 2;
/// A call that takes longer hangs.
const HANGS: Duration = Duration::from_secs(20);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

/// One way to the files, for one thread.
trait Way: Send {
    fn write(&mut self, path: &str, at: usize, data: &[u8]) -> io::Result<()>;
    fn read(&mut self, path: &str, at: usize, into: &mut [u8]) -> io::Result<usize>;
    fn size(&mut self, path: &str) -> io::Result<u64>;
    fn truncate(&mut self, path: &str, size: u64) -> io::Result<()>;
    /// Makes a file that must not exist, with content.
    fn create(&mut self, path: &str, data: &[u8]) -> io::Result<()>;
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    fn unlink(&mut self, path: &str) -> io::Result<()>;
    /// Content of the file at `path`, opened again.
    fn content(&mut self, path: &str) -> io::Result<Vec<u8>>;
    fn list(&mut self, path: &str) -> io::Result<Vec<String>>;
    /// Closes what is open.
    fn close(&mut self);
}

struct Mounted {
    root: PathBuf,
    open: std::collections::HashMap<String, File>,
}

impl Mounted {
    fn new(v: &Volume) -> Self {
        Self {
            root: v.mountpoint().to_owned(),
            open: Default::default(),
        }
    }

    fn file(&mut self, path: &str) -> io::Result<&File> {
        let at = self.root.join(path);
        Ok(match self.open.entry(path.to_owned()) {
            std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
            std::collections::hash_map::Entry::Vacant(e) => {
                e.insert(OpenOptions::new().read(true).write(true).open(at)?)
            }
        })
    }
}

impl Way for Mounted {
    fn write(&mut self, path: &str, at: usize, data: &[u8]) -> io::Result<()> {
        self.file(path)?.write_all_at(data, at as u64)
    }
    fn read(&mut self, path: &str, at: usize, into: &mut [u8]) -> io::Result<usize> {
        self.file(path)?.read_at(into, at as u64)
    }
    fn size(&mut self, path: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.root.join(path))?.len())
    }
    fn truncate(&mut self, path: &str, size: u64) -> io::Result<()> {
        self.file(path)?.set_len(size)
    }
    fn create(&mut self, path: &str, data: &[u8]) -> io::Result<()> {
        let new = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(self.root.join(path))?;
        new.write_all_at(data, 0)
    }
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.root.join(from), self.root.join(to))
    }
    fn unlink(&mut self, path: &str) -> io::Result<()> {
        fs::remove_file(self.root.join(path))
    }
    fn content(&mut self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.root.join(path))
    }
    fn list(&mut self, path: &str) -> io::Result<Vec<String>> {
        fs::read_dir(self.root.join(path))?
            .map(|e| Ok(e?.file_name().into_string().unwrap()))
            .collect()
    }
    fn close(&mut self) {
        self.open.clear();
    }
}

/// A client of its own.
struct Direct {
    tree: Tree,
    open: std::collections::HashMap<String, DirectFile>,
}

fn io(e: Errno) -> io::Error {
    io::Error::from_raw_os_error(e.raw_os_error())
}

pub fn attach(v: &Volume) -> Arc<Session> {
    let channel = SocketChannel::connect(&v.socket()).unwrap();
    let clock = Arc::new(SystemClock::new());
    let options = SessionOptions::default();
    Session::attach(Arc::new(channel), clock, Default::default(), options).unwrap()
}

impl Direct {
    fn new(session: &Arc<Session>) -> Self {
        Self {
            tree: session.tree(Caller::default()),
            open: Default::default(),
        }
    }

    fn file(&mut self, path: &str) -> io::Result<&DirectFile> {
        Ok(match self.open.entry(path.to_owned()) {
            std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
            std::collections::hash_map::Entry::Vacant(e) => {
                let opened = self.tree.open(path.as_bytes(), OFlags::RDWR, 0);
                e.insert(opened.map_err(io)?)
            }
        })
    }
}

impl Way for Direct {
    fn write(&mut self, path: &str, at: usize, data: &[u8]) -> io::Result<()> {
        let n = self.file(path)?.pwrite(at as u64, data).map_err(io)?;
        assert_eq!(n, data.len());
        Ok(())
    }
    fn read(&mut self, path: &str, at: usize, into: &mut [u8]) -> io::Result<usize> {
        self.file(path)?.pread(at as u64, into).map_err(io)
    }
    fn size(&mut self, path: &str) -> io::Result<u64> {
        Ok(self.tree.stat(path.as_bytes()).map_err(io)?.size)
    }
    fn truncate(&mut self, path: &str, size: u64) -> io::Result<()> {
        self.file(path)?.truncate(size).map_err(io)
    }
    fn create(&mut self, path: &str, data: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let new = self.tree.open(path.as_bytes(), flags, 0o644).map_err(io)?;
        new.pwrite(0, data).map_err(io)?;
        Ok(())
    }
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.tree
            .rename(from.as_bytes(), to.as_bytes(), 0)
            .map_err(io)
    }
    fn unlink(&mut self, path: &str) -> io::Result<()> {
        self.tree.unlink(path.as_bytes()).map_err(io)
    }
    fn content(&mut self, path: &str) -> io::Result<Vec<u8>> {
        let file = self
            .tree
            .open(path.as_bytes(), OFlags::RDONLY, 0)
            .map_err(io)?;
        let mut bytes = vec![0; 64];
        let n = file.pread(0, &mut bytes).map_err(io)?;
        bytes.truncate(n);
        Ok(bytes)
    }
    fn list(&mut self, path: &str) -> io::Result<Vec<String>> {
        let entries = self.tree.read_dir(path.as_bytes()).map_err(io)?;
        entries
            .map(|e| Ok(String::from_utf8(e.map_err(io)?.name).unwrap()))
            .collect()
    }
    fn close(&mut self) {
        self.open.clear();
    }
}

/// Everything that threads write, and what they did.
struct World {
    watch: Watch,
    /// By file, cell, and part of a cell on one page.
    cells: Vec<Vec<[History; 2]>>,
    names: Vec<History>,
    sizes: Vec<History>,
    next: AtomicU64,
}

fn file(n: usize) -> String {
    format!("dir/file-{n}")
}
fn sized(n: usize) -> String {
    format!("dir/sized-{n}")
}
fn name(n: usize) -> String {
    format!("dir/name-{n}")
}

impl World {
    fn new(way: &mut Mounted) -> Self {
        fs::create_dir(way.root.join("dir")).unwrap();
        for n in 0..FILES {
            way.create(&file(n), &[0; CELLS * CELL]).unwrap();
        }
        for n in 0..SIZES {
            way.create(&sized(n), b"").unwrap();
        }
        let part = |f, c, p| History::new(format!("file {f} cell {c} part {p}"), 0, MOUNTED);
        let cell = |f, c| [part(f, c, 0), part(f, c, 1)];
        Self {
            watch: Watch::new(),
            cells: (0..FILES)
                .map(|f| (0..CELLS).map(|c| cell(f, c)).collect())
                .collect(),
            names: (0..NAMES)
                .map(|n| History::new(format!("name {n}"), ABSENT, MOUNTED))
                .collect(),
            sizes: (0..SIZES)
                .map(|n| History::new(format!("size {n}"), 0, MOUNTED))
                .collect(),
            next: AtomicU64::new(1),
        }
    }

    fn value(&self) -> Value {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// One random call of thread `who`.
    fn step(&self, who: usize, way: &mut dyn Way, dice: &mut Dice) {
        match dice.below(14) {
            0..3 => self.write_cell(who, way, dice),
            3..7 => self.read_cell(who, way, dice),
            7 => self.replace_name(who, way, dice),
            8 => self.remove_name(who, way, dice),
            9..11 => self.look_at_name(who, way, dice),
            11 => self.set_size(who, way, dice),
            12 => self.look_at_size(who, way, dice),
            _ => self.list(way, dice),
        }
        if dice.below(50) == 0 {
            way.close();
        }
    }

    fn write_cell(&self, who: usize, way: &mut dyn Way, dice: &mut Dice) {
        let (f, c) = (dice.below(FILES), dice.below(CELLS));
        let value = self.value();
        let data = value.to_le_bytes().repeat(CELL / 8);
        let (span, done) = self.watch.time(|| way.write(&file(f), c * CELL, &data));
        done.unwrap();
        for part in &self.cells[f][c] {
            part.wrote(who, span, value);
        }
    }

    fn read_cell(&self, who: usize, way: &mut dyn Way, dice: &mut Dice) {
        let (f, c) = (dice.below(FILES), dice.below(CELLS));
        let mut data = vec![0; CELL];
        let (span, done) = self.watch.time(|| way.read(&file(f), c * CELL, &mut data));
        assert_eq!(done.unwrap(), CELL);
        // A read that runs beside a write may find some of both: every word counts.
        let mut last = None;
        for (n, word) in data.chunks(8).enumerate() {
            let value = u64::from_le_bytes(word.try_into().unwrap());
            let part = (c * CELL + n * 8) / PAGE - c * CELL / PAGE;
            if last != Some((part, value)) {
                self.cells[f][c][part].read(who, span, value);
            }
            last = Some((part, value));
        }
    }

    /// Puts a new file in the place of whatever has the name.
    fn replace_name(&self, who: usize, way: &mut dyn Way, dice: &mut Dice) {
        let n = dice.below(NAMES);
        let value = self.value();
        let fresh = format!("fresh-{who}");
        way.create(&fresh, &value.to_le_bytes()).unwrap();
        let (span, done) = self.watch.time(|| way.rename(&fresh, &name(n)));
        done.unwrap();
        self.names[n].wrote(who, span, value);
    }

    fn remove_name(&self, who: usize, way: &mut dyn Way, dice: &mut Dice) {
        let n = dice.below(NAMES);
        let (span, done) = self.watch.time(|| way.unlink(&name(n)));
        match done {
            Ok(()) => self.names[n].wrote(who, span, ABSENT),
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.names[n].read(who, span, ABSENT),
            Err(e) => panic!("unlink: {e}"),
        }
    }

    fn look_at_name(&self, who: usize, way: &mut dyn Way, dice: &mut Dice) {
        let n = dice.below(NAMES);
        let (span, found) = self.watch.time(|| way.content(&name(n)));
        let value = match found {
            Ok(bytes) => u64::from_le_bytes(bytes[..].try_into().unwrap_or_else(|_| {
                panic!("{who}: name {n} stands for a file of {} bytes", bytes.len())
            })),
            Err(e) if e.kind() == io::ErrorKind::NotFound => ABSENT,
            Err(e) => panic!("open: {e}"),
        };
        self.names[n].read(who, span, value);
    }

    fn set_size(&self, who: usize, way: &mut dyn Way, dice: &mut Dice) {
        let n = dice.below(SIZES);
        let value = self.value();
        let (span, done) = self.watch.time(|| way.truncate(&sized(n), value));
        done.unwrap();
        self.sizes[n].wrote(who, span, value);
    }

    fn look_at_size(&self, who: usize, way: &mut dyn Way, dice: &mut Dice) {
        let n = dice.below(SIZES);
        let (span, size) = self.watch.time(|| way.size(&sized(n)));
        self.sizes[n].read(who, span, size.unwrap());
    }

    /// What is there all the time is listed, once.
    fn list(&self, way: &mut dyn Way, dice: &mut Dice) {
        let names = way.list("dir").unwrap();
        for path in [file(dice.below(FILES)), sized(dice.below(SIZES))] {
            let times = names.iter().filter(|n| path.ends_with(*n)).count();
            assert_eq!(times, 1, "{path} in {names:?}");
        }
    }

    fn check(&self) -> usize {
        let all = self
            .cells
            .iter()
            .flatten()
            .flatten()
            .chain(&self.names)
            .chain(&self.sizes);
        let checked: Vec<_> = all.map(History::check).collect();
        let wrong: Vec<String> = checked
            .iter()
            .filter_map(|c| c.as_ref().err().map(ToString::to_string))
            .collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
        checked.into_iter().flatten().sum()
    }
}

/// Lets threads loose for a while; a thread that does nothing for long ends the test.
fn run<'a>(
    ways: Vec<Box<dyn Way + 'a>>,
    step: impl Fn(usize, &mut dyn Way, &mut Dice) + Sync,
) -> u64 {
    let seed = number("SHALE_SEED", 1);
    let time = Duration::from_secs(number("SHALE_SECONDS", 3));
    println!("SHALE_SEED={seed} SHALE_SECONDS={}", time.as_secs());
    let stop = AtomicBool::new(false);
    let done: Vec<AtomicU64> = ways.iter().map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        let threads: Vec<_> = ways
            .into_iter()
            .enumerate()
            .map(|(who, mut way)| {
                let (stop, done, step) = (&stop, &done, &step);
                scope.spawn(move || {
                    let _all = StopOnDrop(stop);
                    let mut dice = Dice(seed * 1_000_003 + 7919 * (who as u64 + 1));
                    while !stop.load(Ordering::Relaxed) {
                        step(who, &mut *way, &mut dice);
                        done[who].fetch_add(1, Ordering::Relaxed);
                    }
                    way.close();
                })
            })
            .collect();
        let begun = Instant::now();
        let mut seen: Vec<(u64, Instant)> = done.iter().map(|_| (0, begun)).collect();
        while threads.iter().any(|t| !t.is_finished()) {
            thread::sleep(Duration::from_millis(20));
            stop.fetch_or(begun.elapsed() > time, Ordering::Relaxed);
            for (who, (last, at)) in seen.iter_mut().enumerate() {
                let now = done[who].load(Ordering::Relaxed);
                if now != *last {
                    (*last, *at) = (now, Instant::now());
                } else if at.elapsed() > HANGS && !threads[who].is_finished() {
                    eprintln!("thread {who} hangs after {now} calls: {seen:?}");
                    std::process::abort();
                }
            }
        }
        for t in threads {
            if let Err(panic) = t.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    done.iter().map(|d| d.load(Ordering::Relaxed)).sum()
}

fn report(v: &Volume, what: &str, calls: u64, reads: usize) {
    let status = v.status();
    assert_eq!(
        status["detached_clients"].as_array().unwrap().len(),
        0,
        "{status:#}"
    );
    let moves = &status["leases"]["moves"];
    println!("{what}: {calls} calls, {reads} reads checked, leases moved {moves} times");
}

#[test]
fn the_mount_and_direct_clients_see_the_same() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("coherence");
    v.mount();
    let world = World::new(&mut Mounted::new(&v));
    let sessions = [attach(&v), attach(&v)];
    let ways: Vec<Box<dyn Way>> = vec![
        Box::new(Mounted::new(&v)),
        Box::new(Mounted::new(&v)),
        Box::new(Direct::new(&sessions[0])),
        Box::new(Direct::new(&sessions[1])),
    ];
    let calls = run(ways, |who, way, dice| world.step(who, way, dice));
    report(&v, "mixed", calls, world.check());
    for session in sessions {
        session.detach().unwrap();
    }
    v.umount();
    v.fsck();
}

#[test]
fn a_lock_file_keeps_others_out() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("lock");
    v.mount();
    let sessions = [attach(&v), attach(&v)];
    let ways: Vec<Box<dyn Way>> = vec![
        Box::new(Mounted::new(&v)),
        Box::new(Direct::new(&sessions[0])),
        Box::new(Direct::new(&sessions[1])),
    ];
    let (inside, held) = (AtomicU64::new(0), AtomicU64::new(0));
    let calls = run(ways, |who, way, _| match way.create("lock", b"") {
        Ok(()) => {
            assert_eq!(
                inside.fetch_add(1, Ordering::SeqCst),
                0,
                "{who} is not alone"
            );
            held.fetch_add(1, Ordering::Relaxed);
            inside.fetch_sub(1, Ordering::SeqCst);
            way.unlink("lock").expect("it is still there");
        }
        Err(e) => assert_eq!(e.kind(), io::ErrorKind::AlreadyExists, "{who}"),
    });
    let held = held.into_inner();
    assert!(held > 50, "{held} times in {calls} tries");
    report(&v, &format!("lock held {held} times"), calls, 0);
    drop(sessions);
    v.umount();
    v.fsck();
}

/// The kernel never looks the root up, and keeps names of it all the same.
#[test]
fn a_name_that_a_client_removes_from_the_root_is_gone() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("root-names");
    v.mount();
    let session = attach(&v);
    let tree = session.tree(Caller::default());
    let at = |name: &str| v.mountpoint().join(name);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    for _ in 0..3 {
        assert!(!at("first").exists() && !at("second").exists());
        drop(tree.open(b"first", flags, 0o600).unwrap());
        assert!(at("first").exists());
        tree.rename(b"first", b"second", 0).unwrap();
        assert!(!at("first").exists() && at("second").exists());
        tree.unlink(b"second").unwrap();
        assert!(!at("second").exists());
    }
    drop((tree, session));
    v.umount();
    v.fsck();
}
