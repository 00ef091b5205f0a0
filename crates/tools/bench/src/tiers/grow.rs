//! A file server, like Filebench's fileserver: files are made and written whole, appended to, read
//! whole, looked at and removed; more are made than removed, until the file system is as full as was asked for.
//! Beside it a checker goes round and reads everything.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::levels::Levels;
use super::{Stopwatch, Times, compare, fill};
use crate::BenchError;
use crate::Result;
use crate::chance::Chance;

/// Bytes that the checker reads at once.
const CHECK_BYTES: usize = 1 << 20;

/// What to do.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// It ends when so much of the file system is in use.
    pub until_percent: f64,
    /// It ends after so many bytes written, too.
    pub bytes_max: u64,
    /// Bytes of a new file, on average.
    pub file_bytes: u64,
    /// Bytes of an append, on average.
    pub append_bytes: u64,
    /// Of a hundred rounds so many remove a file.
    pub remove_percent: u64,
    /// Every file is synced before it is closed.
    pub sync: bool,
    /// A checker reads beside the load; without it all is read at the end, and by the load.
    pub check: bool,
    /// Seed of all choices.
    pub seed: u64,
}

/// One step of ten percent on the way.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Step {
    /// Percent of the file system in use at its end.
    pub used_percent: f64,
    /// Bytes written and read in it per second, MiB.
    pub mib_per_s: f64,
}

/// What was done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Seconds until the last call returned.
    pub seconds: f64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes read by the load.
    pub read_bytes: u64,
    /// Bytes that the checker read and found right, beside the load.
    pub checked_bytes: u64,
    /// Bytes read again at the end: everything.
    pub last_checked_bytes: u64,
    /// Files at the end.
    pub files: u64,
    /// Bytes of files that were moved from level to level; 0 with one directory.
    pub moved_bytes: u64,
    /// How often a write waited for that.
    pub waits: u64,
    /// Making and writing a file.
    pub make: Times,
    /// Appending.
    pub append: Times,
    /// Reading a whole file.
    pub read: Times,
    /// Removing one.
    pub remove: Times,
    /// Speed on the way.
    pub steps: Vec<Step>,
}

impl Report {
    /// Reads one that was printed as JSON.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn load(path: &Path) -> Result<Report> {
        let text = fs::read_to_string(path).map_err(BenchError::file(path, "read"))?;
        let report = serde_json::from_str(&text).map_err(std::io::Error::other);
        report.map_err(BenchError::file(path, "read the report in"))
    }
}

/// A file: its number and bytes.
type Known = (u64, u64);

struct Load<'a> {
    levels: &'a Levels,
    options: Options,
    chance: Chance,
    /// What the checker may read: files that nobody appends to or removes at the moment.
    files: &'a Mutex<Vec<Known>>,
    made: u64,
    buffer: Vec<u8>,
    written: u64,
    read: u64,
    watches: [Stopwatch; 4],
}

/// Bytes, a multiple of 8, about `mean`.
fn around(chance: &mut Chance, mean: u64) -> u64 {
    (mean / 2 + chance.below(mean)).next_multiple_of(8)
}

impl Load<'_> {
    fn put(&mut self, file: &mut File, (number, from): Known, bytes: u64) -> std::io::Result<()> {
        self.buffer.resize(bytes as usize, 0);
        fill(number, from / 8, &mut self.buffer);
        file.write_all(&self.buffer)?;
        if self.options.sync {
            file.sync_data()?;
        }
        self.written += bytes;
        Ok(())
    }

    fn make(&mut self) -> Result<()> {
        let number = self.made;
        let bytes = around(&mut self.chance, self.options.file_bytes);
        let begun = Instant::now();
        let at = self.levels.hold(number, bytes)?;
        let made = File::create_new(&at).or_else(|e| match (e.kind(), at.parent()) {
            (ErrorKind::NotFound, Some(sub)) => {
                fs::create_dir_all(sub).and_then(|()| File::create_new(&at))
            }
            _ => Err(e),
        });
        let written = made.and_then(|mut f| self.put(&mut f, (number, 0), bytes));
        written.map_err(BenchError::file(&at, "make and write"))?;
        self.levels.let_go(number, Some(bytes));
        self.watches[0].note(begun.elapsed());
        self.made += 1;
        self.files.lock().push((number, bytes));
        Ok(())
    }

    /// Takes a file from what the checker knows.
    fn take(&mut self) -> Option<Known> {
        let mut files = self.files.lock();
        let n = self.chance.below((files.len() as u64).max(1)) as usize;
        (n < files.len()).then(|| files.swap_remove(n))
    }

    fn append(&mut self) -> Result<()> {
        let Some(known) = self.take() else {
            return Ok(());
        };
        let bytes = around(&mut self.chance, self.options.append_bytes);
        let begun = Instant::now();
        let at = self.levels.hold(known.0, bytes)?;
        let opened = OpenOptions::new().append(true).open(&at);
        let written = opened.and_then(|mut f| self.put(&mut f, known, bytes));
        written.map_err(BenchError::file(&at, "append to"))?;
        self.levels.let_go(known.0, Some(known.1 + bytes));
        self.watches[1].note(begun.elapsed());
        self.files.lock().push((known.0, known.1 + bytes));
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let Some(known) = self.take() else {
            return Ok(());
        };
        let begun = Instant::now();
        let found = self.levels.read(known.0, |at| fs::read(at))?;
        self.watches[2].note(begun.elapsed());
        let (at, found) = (self.levels.path(known.0), found.unwrap_or_default());
        self.buffer.resize(known.1 as usize, 0);
        fill(known.0, 0, &mut self.buffer);
        length(&at, found.len() as u64, known.1)?;
        compare(&at, 0, &found, &self.buffer)?;
        self.read += known.1;
        self.files.lock().push(known);
        Ok(())
    }

    fn remove(&mut self) -> Result<()> {
        let Some((number, bytes)) = self.take() else {
            return Ok(());
        };
        let begun = Instant::now();
        let at = self.levels.hold(number, 0)?;
        let meta = fs::metadata(&at).map_err(BenchError::file(&at, "look at"))?;
        length(&at, meta.len(), bytes)?;
        fs::remove_file(&at).map_err(BenchError::file(&at, "remove"))?;
        self.levels.let_go(number, None);
        self.watches[3].note(begun.elapsed());
        Ok(())
    }

    /// Until the file system is as full as was asked for.
    fn run(&mut self) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        let (mut since, mut before) = (Instant::now(), 0);
        let mut next = (self.levels.used_percent()? / 10.0).floor() * 10.0 + 10.0;
        for round in 1_u64.. {
            self.make()?;
            self.append()?;
            self.read()?;
            if self.chance.below(100) < self.options.remove_percent {
                self.remove()?;
            }
            if !round.is_multiple_of(16) {
                continue;
            }
            let used = self.levels.used_percent()?;
            let ends = used >= self.options.until_percent || self.written >= self.options.bytes_max;
            if used >= next || ends {
                let moved = self.written + self.read;
                let mib = (moved - before) as f64 / f64::from(1 << 20);
                steps.push(Step {
                    used_percent: used,
                    mib_per_s: mib / since.elapsed().as_secs_f64(),
                });
                (since, before, next) = (Instant::now(), moved, next + 10.0);
            }
            if ends {
                break;
            }
        }
        Ok(steps)
    }
}

fn length(at: &Path, found: u64, expected: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(BenchError::Wrong {
        target: at.display().to_string(),
        what: "its length",
        expected,
        found,
    })
}

/// Reads what is known of a file, which may have become longer since.
fn check(levels: &Levels, (number, bytes): Known) -> Result<u64> {
    let Some(mut file) = levels.read(number, |at| File::open(at))? else {
        // It was removed meanwhile.
        return Ok(0);
    };
    let at = levels.path(number);
    let (mut found, mut wanted) = (vec![0; CHECK_BYTES], vec![0; CHECK_BYTES]);
    let mut done = 0;
    while done < bytes {
        let n = (bytes - done).min(CHECK_BYTES as u64) as usize;
        let read = file.read_exact(&mut found[..n]);
        read.map_err(BenchError::file(&at, "read"))?;
        fill(number, done / 8, &mut wanted[..n]);
        compare(&at, done, &found[..n], &wanted[..n])?;
        done += n as u64;
    }
    Ok(bytes)
}

/// Goes round until `ended`.
fn check_on(
    levels: &Levels,
    files: &Mutex<Vec<Known>>,
    ended: &AtomicBool,
    sum: &AtomicU64,
    seed: u64,
) -> Result<()> {
    let mut chance = Chance::new(!seed);
    while !ended.load(Ordering::Relaxed) {
        let known = {
            let files = files.lock();
            let n = chance.below((files.len() as u64).max(1)) as usize;
            files.get(n).copied()
        };
        match known {
            Some(known) => sum.fetch_add(check(levels, known)?, Ordering::Relaxed),
            None => {
                thread::yield_now();
                0
            }
        };
    }
    Ok(())
}

/// Fills `dirs`, empty directories: that of one file system, or of several between which files move,
/// the fastest first.
///
/// # Errors
/// A call fails, or a byte is another one than was written.
pub fn run(dirs: Vec<PathBuf>, options: Options) -> Result<Report> {
    let levels = &Levels::new(dirs);
    let files = Mutex::new(Vec::new());
    let (ended, checked) = (AtomicBool::new(false), AtomicU64::new(0));
    let watches = [
        Stopwatch::new()?,
        Stopwatch::new()?,
        Stopwatch::new()?,
        Stopwatch::new()?,
    ];
    let mut load = Load {
        levels,
        options,
        chance: Chance::new(options.seed),
        files: &files,
        made: 0,
        buffer: Vec::new(),
        written: 0,
        read: 0,
        watches,
    };
    let begun = Instant::now();
    let steps = thread::scope(|scope| {
        let check = || check_on(levels, &files, &ended, &checked, options.seed);
        let checker = options.check.then(|| scope.spawn(check));
        let mover = scope.spawn(|| levels.move_on(&ended));
        let steps = load.run();
        ended.store(true, Ordering::Relaxed);
        let seconds = begun.elapsed().as_secs_f64();
        let found = checker.map_or(Ok(()), |checker| checker.join().unwrap_or(Ok(())));
        // Why the mover failed says more than that the load found no space.
        mover.join().unwrap_or(Ok(())).and(found)?;
        steps.map(|steps| (steps, seconds))
    });
    let (steps, seconds) = steps?;
    let known = files.lock().clone();
    let mut last = 0;
    for &file in &known {
        let bytes = check(levels, file)?;
        length(&levels.path(file.0), bytes, file.1)?;
        last += bytes;
    }
    let [make, append, read, remove] = load.watches.each_ref().map(Stopwatch::times);
    Ok(Report {
        seconds,
        written_bytes: load.written,
        read_bytes: load.read,
        checked_bytes: checked.into_inner(),
        last_checked_bytes: last,
        files: known.len() as u64,
        moved_bytes: levels.moved_bytes(),
        waits: levels.waits(),
        make,
        append,
        read,
        remove,
        steps,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            until_percent: 100.0,
            bytes_max: 4 << 20,
            file_bytes: 16 << 10,
            append_bytes: 16 << 10,
            remove_percent: 50,
            sync: false,
            check: true,
            seed: 3,
        }
    }

    #[test]
    fn files_become_more_and_hold_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let report = run(vec![dir.path().into()], options()).unwrap();
        assert!(report.files > 50 && report.remove.calls > 10, "{report:?}");
        assert!(report.last_checked_bytes > 1 << 20, "{report:?}");
    }

    #[test]
    fn a_byte_that_changed_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let levels = Levels::new(vec![dir.path().into()]);
        let at = levels.path(5);
        fs::create_dir(at.parent().unwrap()).unwrap();
        let mut bytes = vec![0; 4096];
        fill(5, 0, &mut bytes);
        fs::write(&at, &bytes).unwrap();
        assert_eq!(check(&levels, (5, 4096)).unwrap(), 4096);
        bytes[100] ^= 1;
        fs::write(&at, &bytes).unwrap();
        let error = check(&levels, (5, 4096)).unwrap_err().to_string();
        assert!(error.contains("byte 100"), "{error}");
    }
}
