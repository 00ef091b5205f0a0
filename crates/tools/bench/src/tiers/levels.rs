//! Files on several file systems, the fastest first; whole files move down by least recent use, as
//! in the user-space mover that Strata is compared with (§5.3).
//!
//! New files go to the first level. A level that is 95% full is emptied to 90%, as a volume's tiers are, and
//! also where somebody waits for space in it.
//! A batch is copied, the level below synced once, and only then the old files are removed. It is
//! as good as such a mover can be: where a file is stands in memory, so no path leads through a symbolic
//! link; each level has a mover of its own; who reads a file that is moved reads the old one.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::StatVfs;

use crate::BenchError;
use crate::Result;

/// Files of one directory.
const DIRECTORY_FILES: u64 = 512;
/// A level is emptied when so many percent of it are in use,
const BEGIN_PERCENT: f64 = 95.0;
/// until only so many are.
const END_PERCENT: f64 = 90.0;
/// Bytes moved with one sync.
const BATCH_BYTES: u64 = 16 << 20;
/// Bytes that are left free for what a file system writes of its own.
const SPARE_BYTES: u64 = 2 << 20;
/// How often space is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// How long space is waited for.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often a file that moves away under its reader is looked for.
const FINDS_MAX: u32 = 8;

/// Who has a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    Nobody,
    /// It is written or removed.
    Load,
    /// It is moved.
    Mover,
}

struct Placed {
    level: usize,
    bytes: u64,
    used: u64,
    hold: Hold,
    /// Bytes that are promised to its holder.
    promised: u64,
}

/// One file system.
struct Level {
    dir: PathBuf,
    /// Somebody found no space in it.
    short: AtomicBool,
    /// Bytes that writers were promised, and that may not be written yet.
    promised: Mutex<u64>,
}

/// File systems, and where each file is. With one alone nothing moves.
pub struct Levels {
    levels: Vec<Level>,
    files: Mutex<HashMap<u64, Placed>>,
    /// A file is let go of.
    free: Condvar,
    uses: AtomicU64,
    moved_bytes: AtomicU64,
    waits: AtomicU64,
    /// A mover has failed: nobody frees space any more.
    broken: AtomicBool,
}

fn stat(dir: &Path) -> Result<StatVfs> {
    rustix::fs::statvfs(dir).map_err(BenchError::file(dir, "look at"))
}

/// Percent of the file systems together that are in use.
fn percent<'a>(of: impl Iterator<Item = &'a Level>) -> Result<f64> {
    let (mut all, mut used) = (0, 0);
    for level in of {
        let stat = stat(&level.dir)?;
        all += stat.f_blocks * stat.f_frsize;
        used += stat.f_blocks.saturating_sub(stat.f_bfree) * stat.f_frsize;
    }
    Ok(used as f64 * 100.0 / all.max(1) as f64)
}

impl Levels {
    /// Empty directories of file systems, the fastest first.
    pub fn new(dirs: Vec<PathBuf>) -> Self {
        Levels {
            levels: dirs
                .into_iter()
                .map(|dir| Level {
                    dir,
                    short: AtomicBool::new(false),
                    promised: Mutex::new(0),
                })
                .collect(),
            files: Mutex::default(),
            free: Condvar::new(),
            uses: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// Bytes that were moved down.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    /// How often a write waited for space or for a mover.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    fn path_on(&self, level: usize, number: u64) -> PathBuf {
        let sub = format!("d{:04}", number / DIRECTORY_FILES);
        self.levels[level]
            .dir
            .join(sub)
            .join(format!("file-{number:07}"))
    }

    /// Where a file is now, or would be made.
    pub fn path(&self, number: u64) -> PathBuf {
        let level = self.files.lock().get(&number).map_or(0, |f| f.level);
        self.path_on(level, number)
    }

    /// Percent of all levels in use.
    ///
    /// # Errors
    /// A file system cannot be asked.
    pub fn used_percent(&self) -> Result<f64> {
        percent(self.levels.iter())
    }

    /// Promises space, if there is any; [`Self::use_space`] must follow.
    fn take_space(&self, level: usize, bytes: u64) -> Result<bool> {
        if self.levels.len() == 1 {
            return Ok(true);
        }
        let level = &self.levels[level];
        let mut promised = level.promised.lock();
        let stat = stat(&level.dir)?;
        let has = stat.f_bavail * stat.f_frsize >= *promised + bytes + SPARE_BYTES;
        match has {
            true => *promised += bytes,
            false => level.short.store(true, Ordering::Relaxed),
        }
        Ok(has)
    }

    /// What was promised is written, or not needed.
    fn use_space(&self, level: usize, bytes: u64) {
        if self.levels.len() > 1 {
            *self.levels[level].promised.lock() -= bytes;
        }
    }

    /// Takes a file that is to be written, or a new one; returns when it is not being moved and
    /// `more` bytes have space where it is. [`Self::let_go`] must follow.
    ///
    /// # Errors
    /// A file system cannot be asked, or nobody frees space any more.
    pub fn hold(&self, number: u64, more: u64) -> Result<PathBuf> {
        let level = {
            let mut files = self.files.lock();
            let new = Placed {
                level: 0,
                bytes: 0,
                used: 0,
                hold: Hold::Nobody,
                promised: 0,
            };
            while files.get(&number).is_some_and(|f| f.hold == Hold::Mover) {
                self.waits.fetch_add(1, Ordering::Relaxed);
                self.free.wait(&mut files);
            }
            let file = files.entry(number).or_insert(new);
            (file.hold, file.promised) = (Hold::Load, more);
            file.level
        };
        let mut waited = None;
        while !self.take_space(level, more)? {
            let begun = *waited.get_or_insert_with(Instant::now);
            if self.broken.load(Ordering::Relaxed) || begun.elapsed() > PATIENCE {
                return Err(BenchError::Program {
                    program: "the mover".to_owned(),
                    found: format!("it has made no room for {more} bytes on level {level}"),
                });
            }
            thread::sleep(LOOK);
        }
        self.waits
            .fetch_add(u64::from(waited.is_some()), Ordering::Relaxed);
        Ok(self.path_on(level, number))
    }

    /// Lets go of a file that has `bytes` bytes now, or is removed.
    pub fn let_go(&self, number: u64, bytes: Option<u64>) {
        let mut files = self.files.lock();
        if let Some(file) = files.get(&number) {
            self.use_space(file.level, file.promised);
        }
        match (bytes, files.get_mut(&number)) {
            (Some(bytes), Some(file)) => {
                let used = self.uses.fetch_add(1, Ordering::Relaxed);
                (file.bytes, file.used, file.hold) = (bytes, used, Hold::Nobody);
            }
            _ => drop(files.remove(&number)),
        }
    }

    /// Calls `read` with the place of a file, again if it has moved away meanwhile. `None`: there is no such file.
    ///
    /// # Errors
    /// What `read` returns.
    pub fn read<T>(
        &self,
        number: u64,
        read: impl Fn(&Path) -> std::io::Result<T>,
    ) -> Result<Option<T>> {
        for _ in 0..FINDS_MAX {
            let at = self.path(number);
            match read(&at) {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                done => {
                    if let Some(file) = self.files.lock().get_mut(&number) {
                        file.used = self.uses.fetch_add(1, Ordering::Relaxed);
                    }
                    return done.map(Some).map_err(BenchError::file(&at, "read"));
                }
            }
        }
        Ok(None)
    }

    /// The files of a level that were not used for longest, of about `limit` bytes, taken for a move.
    fn coldest(&self, level: usize, limit: u64) -> Vec<(u64, u64)> {
        let mut files = self.files.lock();
        let mut mine: Vec<_> = files
            .iter()
            .filter(|(_, f)| f.level == level && f.hold == Hold::Nobody)
            .map(|(number, f)| (f.used, *number, f.bytes))
            .collect();
        mine.sort_unstable();
        let (mut chosen, mut sum) = (Vec::new(), 0);
        for (_, number, bytes) in mine {
            if sum >= limit {
                break;
            }
            sum += bytes;
            chosen.push((number, bytes));
            if let Some(file) = files.get_mut(&number) {
                file.hold = Hold::Mover;
            }
        }
        chosen
    }

    fn copy(&self, level: usize, numbers: &[(u64, u64)]) -> Result<()> {
        for (number, _) in numbers {
            let (from, to) = (
                self.path_on(level, *number),
                self.path_on(level + 1, *number),
            );
            let sub = to.parent().unwrap_or(&to);
            let copied = fs::read(&from).and_then(|bytes| match fs::write(&to, &bytes) {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    fs::create_dir_all(sub).and_then(|()| fs::write(&to, &bytes))
                }
                done => done,
            });
            copied.map_err(BenchError::file(&from, "move down"))?;
        }
        let below = &self.levels[level + 1].dir;
        let synced = File::open(below).and_then(|dir| Ok(rustix::fs::syncfs(dir)?));
        synced.map_err(BenchError::file(below, "sync"))
    }

    /// Moves one batch down; says whether there was any, and space for it.
    fn batch(&self, level: usize) -> Result<bool> {
        // No more than fits below with some to spare: a level that is nearly full takes small batches.
        let below = stat(&self.levels[level + 1].dir)?;
        let limit = BATCH_BYTES.min(below.f_bavail * below.f_frsize / 4);
        let chosen = self.coldest(level, limit);
        let sum = chosen.iter().map(|(_, bytes)| bytes).sum();
        let done = match self.take_space(level + 1, sum) {
            Ok(true) => {
                let copied = self.copy(level, &chosen);
                self.use_space(level + 1, sum);
                copied.map(|()| true)
            }
            other => other,
        };
        let mut files = self.files.lock();
        for (number, _) in &chosen {
            if let Some(file) = files.get_mut(number) {
                file.hold = Hold::Nobody;
                file.level += usize::from(matches!(done, Ok(true)));
            }
        }
        drop(files);
        self.free.notify_all();
        if !done? {
            return Ok(false);
        }
        for (number, bytes) in &chosen {
            let old = self.path_on(level, *number);
            fs::remove_file(&old).map_err(BenchError::file(&old, "remove"))?;
            self.moved_bytes.fetch_add(*bytes, Ordering::Relaxed);
        }
        Ok(!chosen.is_empty())
    }

    fn empty(&self, level: usize, ended: &AtomicBool) -> Result<()> {
        let mut until = BEGIN_PERCENT;
        while !ended.load(Ordering::Relaxed) {
            let of = &self.levels[level];
            let used = percent(std::iter::once(of))?;
            let begins = of.short.swap(false, Ordering::Relaxed) || used >= until;
            until = if begins { END_PERCENT } else { BEGIN_PERCENT };
            if !(begins && self.batch(level)?) {
                thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// Moves files down until `ended`.
    ///
    /// # Errors
    /// A file cannot be moved; who waits for space gets the error, too.
    pub fn move_on(&self, ended: &AtomicBool) -> Result<()> {
        thread::scope(|scope| {
            let movers = (0..self.levels.len() - 1).map(|level| {
                scope.spawn(move || {
                    let done = self.empty(level, ended);
                    if done.is_err() {
                        self.broken.store(true, Ordering::Relaxed);
                    }
                    done
                })
            });
            let movers: Vec<_> = movers.collect();
            movers
                .into_iter()
                .try_for_each(|mover| mover.join().unwrap_or(Ok(())))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coldest_goes_down_and_is_found_there() {
        let (above, below) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let levels = Levels::new(vec![above.path().into(), below.path().into()]);
        for number in 0..3 {
            let at = levels.hold(number, 10).unwrap();
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(&at, [number as u8; 10]).unwrap();
            levels.let_go(number, Some(BATCH_BYTES / 2));
        }
        let read = |number| levels.read(number, |at| fs::read(at)).unwrap();
        assert_eq!(read(0), Some(vec![0; 10]));
        levels.hold(1, 0).unwrap();
        // One is held and nought was used last, but a batch takes two.
        assert!(levels.batch(0).unwrap());
        let on = |number| levels.files.lock()[&number].level;
        assert_eq!((on(0), on(1), on(2)), (1, 0, 1));
        assert_eq!(read(2), Some(vec![2; 10]));
        assert!(!above.path().join("d0000/file-0000002").exists());
        assert_eq!(levels.moved_bytes(), BATCH_BYTES);
        levels.let_go(1, None);
        assert!(!levels.batch(0).unwrap());
        assert_eq!(read(7), None);
    }
}
