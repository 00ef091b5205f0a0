//! Taking a backup.
//!
//! 1. The tree is walked and copied while programs go on ([`Walk`]), once more as long as much of it changes: no order is
//!    kept here, and what is read counts for nothing by itself.
//! 2. The volume is frozen. The tree is walked again: what has the change time that it had in step 1, or in the backup
//!    before, is taken from there; what has not is read now.
//! 3. The volume is thawed. If it had thawed by itself before, what was read is not of one moment: from step 1.
//!
//! A change time tells of each change if it is past, by more than a step of the clock, when the content is read
//! ([`Entry::settled`]): a change after that has another one. Setting the clock of the machine back can make two of them equal.

use crate::error::{BackupError, Result};
use crate::manifest::{
    CHUNK_BYTES, Content, DEPTH_MAX, Entry, Header, Manifest, Meta, Piece, Summary, Time,
};
use crate::source::{READER, Source, called};
use crate::store::{NewBackup, Store, by_offset, hash_of};
use shale_libfs::{Attr, Errno, SEEK_DATA, SEEK_HOLE, Session, Timestamp};
use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest step of the clock that inodes have their times from, and time for who has read it to log.
const CLOCK_STEP_NS: i128 = 20_000_000;
/// Walks before the volume is frozen, at most.
const WALKS_MAX: u32 = 4;
/// A walk that read less than this is the last one before the volume is frozen.
const CHANGED_BYTES: u64 = 8 << 20;
/// How often the volume is frozen before it is given up.
const FREEZES_MAX: u32 = 3;

/// Which backup unchanged content is taken from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    /// The newest one of this volume, if there is one.
    Newest,
    /// This one.
    Named(String),
    /// None: everything is read and written.
    Nothing,
}

/// How a backup is taken.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where unchanged content is taken from.
    pub base: Base,
    /// For how long calls may wait at most, each time.
    pub longest_freeze: Duration,
}

/// A backup that was taken.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Its name.
    pub name: String,
    /// The one that unchanged content was taken from.
    pub base: Option<String>,
    /// What it comes to.
    pub summary: Summary,
    /// How often the volume was frozen.
    pub freezes: u32,
    /// Names that could not be read, with errno.
    pub unreadable: Vec<(Vec<u8>, i32)>,
}

/// What is known of an inode from an earlier walk, by its number.
type Known = HashMap<u64, Entry>;

/// Takes a backup of a volume. `progress` hears how many names were seen and bytes read, never while the volume is frozen.
///
/// # Errors
/// See [`BackupError`]; then nothing of it is left, but what a kill leaves.
pub fn take(
    source: &Source,
    store: &Store,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Taken> {
    let lock = store.lock()?;
    store.remove_partial(&lock)?;
    let base = base_of(source, store, &options.base)?;
    let begun_ns = now_ns();
    let mut backup = store.begin(&lock, begun_ns.div_euclid(1_000_000_000))?;
    let (base_name, mut packs, mut known) = match base {
        Some((name, manifest)) => {
            let packs = manifest.header.packs.clone();
            (Some(name), packs, known_of(manifest.entries))
        }
        None => (None, Vec::new(), Known::new()),
    };
    packs.push(backup.name.clone());
    let own = packs.len() as u32 - 1;
    let mut read_bytes = 0;
    let mut freezes = 0;
    let (walked, frozen_ns) = loop {
        for _ in 0..WALKS_MAX {
            let walk = Walk::new(source, &known, (&mut backup, own), None);
            let walked = walk.run(progress)?;
            read_bytes += walked.read_bytes;
            let changed = walked.read_bytes;
            known = known_of(walked.entries);
            if changed < CHANGED_BYTES || source.device.is_none() {
                break;
            }
        }
        freezes += 1;
        let walk = |backup: &mut NewBackup| {
            let deadline = source
                .device
                .map(|_| Instant::now() + options.longest_freeze);
            Walk::new(source, &known, (backup, own), deadline).run(&mut |_, _| {})
        };
        let (walked, frozen) = frozen(source, options.longest_freeze, || walk(&mut backup))?;
        if let Some(walked) = walked {
            read_bytes += walked.read_bytes;
            break (walked, frozen);
        }
        if freezes == FREEZES_MAX {
            return Err(BackupError::FreezeTooShort {
                longest: options.longest_freeze,
                tries: freezes,
            });
        }
    };
    let summary = Summary {
        taken_ns: now_ns(),
        frozen_ns: frozen_ns.as_nanos() as u64,
        read_bytes,
        ..sums(&walked.entries, own)
    };
    let mut manifest = Manifest {
        header: Header {
            volume: source.volume.clone(),
            name: source.name.clone(),
            packs,
            begun_ns,
        },
        entries: walked.entries,
        summary: summary.clone(),
    };
    drop_unused_packs(&mut manifest);
    Ok(Taken {
        unreadable: unreadable(&manifest.entries),
        name: backup.finish(&manifest)?,
        base: base_name,
        summary,
        freezes,
    })
}

/// Runs `walk` while the volume is frozen; `None`: it was not, or not until the end.
fn frozen(
    source: &Source,
    longest: Duration,
    walk: impl FnOnce() -> Result<Walked>,
) -> Result<(Option<Walked>, Duration)> {
    if source.device.is_none() {
        // Nobody else uses it.
        return Ok((Some(walk()?), Duration::ZERO));
    }
    match source.session.freeze(longest) {
        Ok(()) => {}
        Err(Errno::TIMEDOUT) => return Ok((None, longest)),
        Err(e) => return Err(called("freeze the volume")(e)),
    }
    let walked = walk();
    match source.session.thaw() {
        Ok(frozen) => match walked {
            Err(BackupError::Volume {
                why: Errno::TIMEDOUT,
                ..
            }) => Ok((None, frozen)),
            walked => Ok((Some(walked?), frozen)),
        },
        Err(Errno::TIMEDOUT) => Ok((None, longest)),
        Err(e) => Err(called("thaw the volume")(e)),
    }
}

fn base_of(source: &Source, store: &Store, base: &Base) -> Result<Option<(String, Manifest)>> {
    let name = match base {
        Base::Nothing => return Ok(None),
        Base::Named(name) => store.find(Some(name))?,
        Base::Newest => match store.complete()?.pop() {
            Some(name) => name,
            None => return Ok(None),
        },
    };
    let manifest = store.manifest(&name)?;
    // Numbers of inodes say something within one volume only.
    if manifest.header.volume != source.volume {
        return match base {
            Base::Named(_) => Err(BackupError::NoBackup {
                store: store.path().to_owned(),
                name: format!("{name} of this volume"),
            }),
            _ => Ok(None),
        };
    }
    // What an older backup has to have is there.
    store.content(&manifest.header)?;
    Ok(Some((name, manifest)))
}

fn known_of(entries: Vec<Entry>) -> Known {
    let is_inode = |e: &Entry| !matches!(e.content, Content::SameAs(_) | Content::Unreadable(_));
    let inodes = entries.into_iter().filter(is_inode);
    inodes.map(|entry| (entry.meta.ino, entry)).collect()
}

fn sums(entries: &[Entry], own: u32) -> Summary {
    let mut sums = Summary::default();
    for entry in entries {
        match &entry.content {
            Content::Directory => sums.directories += 1,
            Content::Unreadable(_) => sums.unreadable += 1,
            _ => sums.files += 1,
        }
        if let Content::File(pieces) = &entry.content {
            let bytes = |own_only: bool| {
                let counted = pieces.iter().filter(|p| !own_only || p.pack == own);
                counted.map(|p| u64::from(p.bytes)).sum::<u64>()
            };
            sums.bytes += bytes(false);
            sums.new_bytes += bytes(true);
        }
    }
    sums
}

/// Backups that have none of the content need not be kept for this one.
fn drop_unused_packs(manifest: &mut Manifest) {
    let mut used = vec![false; manifest.header.packs.len()];
    // Its own, which names it.
    if let Some(own) = used.last_mut() {
        *own = true;
    }
    let files = |entry: &Entry| match &entry.content {
        Content::File(pieces) => pieces.clone(),
        _ => Vec::new(),
    };
    for piece in manifest.entries.iter().flat_map(files) {
        used[piece.pack as usize] = true;
    }
    let mut number = 0;
    let new: Vec<u32> = used
        .iter()
        .map(|used| {
            let this = number;
            number += u32::from(*used);
            this
        })
        .collect();
    for entry in &mut manifest.entries {
        if let Content::File(pieces) = &mut entry.content {
            pieces
                .iter_mut()
                .for_each(|p| p.pack = new[p.pack as usize]);
        }
    }
    let mut of = used.into_iter();
    manifest.header.packs.retain(|_| of.next().unwrap_or(true));
}

/// Paths of what could not be read.
fn unreadable(entries: &[Entry]) -> Vec<(Vec<u8>, i32)> {
    let failed = entries
        .iter()
        .enumerate()
        .filter_map(|(n, e)| match e.content {
            Content::Unreadable(errno) => Some((path_of(entries, n), errno)),
            _ => None,
        });
    failed.collect()
}

/// Path of an entry below the root.
pub fn path_of(entries: &[Entry], n: usize) -> Vec<u8> {
    let mut parts = Vec::new();
    let mut at = n;
    while at > 0 {
        parts.push(&entries[at].name[..]);
        at = entries[at].parent as usize;
    }
    parts.reverse();
    parts.join(&b'/')
}

/// What a walk has found.
struct Walked {
    entries: Vec<Entry>,
    read_bytes: u64,
}

/// Names in a directory, with the numbers of their inodes.
type Names = Vec<(Vec<u8>, u64)>;

/// One walk through the tree.
struct Walk<'a> {
    session: &'a Session,
    known: &'a Known,
    backup: &'a mut NewBackup,
    /// Index of the backup that is being taken.
    own: u32,
    /// When the volume thaws; `None`: it is not frozen, and the tree changes meanwhile.
    deadline: Option<Instant>,
    is_still: bool,
    walked: Walked,
    /// First entry of each inode with several names.
    first: HashMap<u64, u64>,
    buffer: Vec<u8>,
}

impl<'a> Walk<'a> {
    fn new(
        source: &'a Source,
        known: &'a Known,
        (backup, own): (&'a mut NewBackup, u32),
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            session: &source.session,
            known,
            backup,
            own,
            deadline,
            is_still: deadline.is_some() || source.device.is_none(),
            walked: Walked {
                entries: Vec::new(),
                read_bytes: 0,
            },
            first: HashMap::new(),
            buffer: vec![0; CHUNK_BYTES as usize],
        }
    }

    fn run(mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<Walked> {
        const ROOT: u64 = 1;
        let root = self.entry(0, Vec::new(), ROOT)?;
        let root = root.filter(|e| e.content == Content::Directory);
        let root = root.ok_or_else(|| called("read the root directory")(Errno::IO))?;
        self.walked.entries.push(root);
        // What is left to see of each directory on the way.
        let names = self.names(ROOT, 0)?.unwrap_or_default();
        let mut way = vec![(0u64, names.into_iter())];
        while let Some((index, names)) = way.last_mut() {
            let index = *index;
            let Some((name, ino)) = names.next() else {
                way.pop();
                progress(self.walked.entries.len() as u64, self.walked.read_bytes);
                continue;
            };
            self.in_time()?;
            let Some(entry) = self.entry(index, name, ino)? else {
                continue;
            };
            let n = self.walked.entries.len() as u64;
            let is_directory = entry.content == Content::Directory;
            self.walked.entries.push(entry);
            // A tree that moves while it is walked could be walked without end.
            if is_directory
                && way.len() < DEPTH_MAX
                && let Some(names) = self.names(ino, n)?
            {
                way.push((n, names.into_iter()));
            }
        }
        Ok(self.walked)
    }

    /// Fails with `ETIMEDOUT` when the volume has thawed.
    fn in_time(&self) -> Result<()> {
        match self.deadline.is_some_and(|end| Instant::now() >= end) {
            true => Err(called("read the volume")(Errno::TIMEDOUT)),
            false => Ok(()),
        }
    }

    /// The names in a directory; `None`: it is gone, or cannot be read, which is noted then.
    fn names(&mut self, ino: u64, index: u64) -> Result<Option<Names>> {
        let mut names = Vec::new();
        let listed = self.session.readdir(&READER, ino, 0, false, &mut |e| {
            if e.name != b"." && e.name != b".." {
                names.push((e.name.to_vec(), e.ino));
            }
            true
        });
        match listed {
            Ok(()) => Ok(Some(names)),
            Err(e) if is_lost(e) => Err(called("list a directory")(e)),
            Err(e) => {
                self.walked.entries[index as usize].content = Content::Unreadable(e.raw_os_error());
                Ok(None)
            }
        }
    }

    /// An entry for a name; `None`: it is gone meanwhile.
    fn entry(&mut self, parent: u64, name: Vec<u8>, ino: u64) -> Result<Option<Entry>> {
        let before_ns = i128::from(now_ns());
        let read = self.inode(ino, before_ns);
        let (meta, settled, content) = match read {
            Ok(read) => read,
            Err(BackupError::Volume { why, .. }) if why != Errno::TIMEDOUT && !is_lost(why) => {
                if !self.is_still && why == Errno::NOENT {
                    return Ok(None);
                }
                let meta = Meta {
                    ino,
                    ..Meta::default()
                };
                (meta, false, Content::Unreadable(why.raw_os_error()))
            }
            Err(e) => return Err(e),
        };
        Ok(Some(Entry {
            parent,
            name,
            meta,
            settled,
            content,
        }))
    }

    fn inode(&mut self, ino: u64, before_ns: i128) -> Result<(Meta, bool, Content)> {
        let failed = |what: &'static str| called(format!("{what} inode {ino}"));
        let attr = self
            .session
            .getattr(&READER, ino)
            .map_err(failed("look at"))?;
        let kind = attr.mode & libc::S_IFMT;
        let mut meta = meta_of(&attr);
        if kind != libc::S_IFDIR && attr.nlink > 1 {
            let this = self.walked.entries.len() as u64;
            let first = *self.first.entry(ino).or_insert(this);
            if first != this {
                return Ok((meta, false, Content::SameAs(first)));
            }
        }
        let settled = nanoseconds(meta.ctime) + CLOCK_STEP_NS < before_ns;
        let known = self.known.get(&ino);
        let same = known.filter(|known| known.settled && is_same(&known.meta, &meta));
        if let Some(known) = same {
            meta.flags = known.meta.flags;
            meta.xattrs.clone_from(&known.meta.xattrs);
            return Ok((meta, settled, known.content.clone()));
        }
        let mut attributes = || -> shale_libfs::Result<()> {
            if matches!(kind, libc::S_IFREG | libc::S_IFDIR) {
                meta.flags = self.session.inode_flags(&READER, ino)?;
            }
            for name in self.session.listxattr(&READER, ino)?.split(|&b| b == 0) {
                if !name.is_empty() {
                    let value = self.session.getxattr(&READER, ino, name)?;
                    meta.xattrs.push((name.to_vec(), value));
                }
            }
            Ok(())
        };
        attributes().map_err(failed("read the attributes of"))?;
        let content = match kind {
            libc::S_IFDIR => Content::Directory,
            libc::S_IFLNK => Content::Symlink(
                self.session
                    .readlink(&READER, ino)
                    .map_err(failed("read"))?,
            ),
            libc::S_IFREG => {
                let pieces = known.map_or(&[][..], |known| match &known.content {
                    Content::File(pieces) => pieces,
                    _ => &[],
                });
                Content::File(self.pieces(ino, attr.size, pieces)?)
            }
            _ => Content::Special,
        };
        Ok((meta, settled, content))
    }

    /// Reads a file; what is as one of `known` is not written again.
    fn pieces(&mut self, ino: u64, size: u64, known: &[Piece]) -> Result<Vec<Piece>> {
        let failed = |e| called(format!("read inode {ino}"))(e);
        let known = by_offset(known);
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < size {
            let data = match self.session.lseek(&READER, ino, at, SEEK_DATA) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(e) => return Err(failed(e)),
            };
            let hole = match self.session.lseek(&READER, ino, data, SEEK_HOLE) {
                Ok(hole) => hole.min(size),
                // It was cut off meanwhile.
                Err(Errno::NXIO) => break,
                Err(e) => return Err(failed(e)),
            };
            at = data;
            while at < hole {
                self.in_time()?;
                let end = (at / CHUNK_BYTES + 1) * CHUNK_BYTES;
                let wanted = (hole.min(end) - at) as usize;
                let read = self
                    .session
                    .read(&READER, ino, at, &mut self.buffer[..wanted]);
                let read = read.map_err(failed)?;
                self.walked.read_bytes += read as u64;
                if read < wanted && self.is_still {
                    return Err(failed(Errno::IO));
                }
                if read == 0 {
                    return Ok(pieces);
                }
                let bytes = &self.buffer[..read];
                let hash = hash_of(bytes);
                let before = known
                    .get(&at)
                    .filter(|p| p.bytes as usize == read && p.hash == hash);
                pieces.push(match before {
                    Some(piece) => *piece,
                    None => Piece {
                        offset: at,
                        bytes: read as u32,
                        pack: self.own,
                        at: self.backup.add(bytes)?,
                        hash,
                    },
                });
                at += read as u64;
            }
        }
        Ok(pieces)
    }
}

/// Whether an inode is as it was: the same one, and not changed since.
fn is_same(known: &Meta, now: &Meta) -> bool {
    let of = |meta: &Meta| {
        let Meta {
            ino,
            generation,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size,
            mtime,
            ctime,
            ..
        } = *meta;
        (
            (ino, generation, mode, nlink, uid),
            (gid, rdev, size, mtime, ctime),
        )
    };
    of(known) == of(now)
}

/// Whether the daemon has gone, or serves this client no more: then nothing can be read.
fn is_lost(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOTCONN | Errno::CONNRESET | Errno::PIPE | Errno::PROTO
    )
}

fn time(at: Timestamp) -> Time {
    (at.sec, at.nsec)
}

fn nanoseconds((seconds, nanoseconds): Time) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
}

fn meta_of(attr: &Attr) -> Meta {
    Meta {
        ino: attr.ino,
        generation: attr.generation,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: attr.size,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        flags: 0,
        xattrs: Vec::new(),
    }
}

fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as i64)
}
