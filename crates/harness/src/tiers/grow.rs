//! A file server, like Filebench's fileserver: files are made and written whole, appended to, read
//! whole, looked at and removed; more are made than removed, until the file system is as full as was asked for.
//! Beside it a checker goes round and reads everything.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;
use serde::Serialize;

use super::{Stopwatch, Times, compare, fill, used_percent};
use crate::chance::Chance;
use crate::{HarnessError, Result};

/// Files of one directory.
const DIRECTORY_FILES: u64 = 512;
/// Bytes of one append, on average (Filebench: 16 KiB).
const APPEND_BYTES: u64 = 16 << 10;
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
    /// Of a hundred rounds so many remove a file.
    pub remove_percent: u64,
    /// Every file is synced before it is closed.
    pub sync: bool,
    /// Seed of all choices.
    pub seed: u64,
}

/// One step of ten percent on the way.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Step {
    /// Percent of the file system in use at its end.
    pub used_percent: f64,
    /// Bytes written and read in it per second, MiB.
    pub mib_per_s: f64,
}

/// What was done.
#[derive(Debug, Clone, Serialize)]
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

/// A file: its number and bytes.
type Known = (u64, u64);

struct Load<'a> {
    dir: &'a Path,
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

fn path(dir: &Path, number: u64) -> PathBuf {
    let sub = dir.join(format!("d{:04}", number / DIRECTORY_FILES));
    sub.join(format!("file-{number:07}"))
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
        let (at, begun) = (path(self.dir, number), Instant::now());
        if number.is_multiple_of(DIRECTORY_FILES) {
            let sub = at.parent().unwrap_or(self.dir);
            fs::create_dir_all(sub).map_err(HarnessError::file(sub, "make"))?;
        }
        let bytes = around(&mut self.chance, self.options.file_bytes);
        let written = File::create_new(&at).and_then(|mut f| self.put(&mut f, (number, 0), bytes));
        written.map_err(HarnessError::file(&at, "make and write"))?;
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
        let (at, begun) = (path(self.dir, known.0), Instant::now());
        let bytes = around(&mut self.chance, APPEND_BYTES);
        let opened = OpenOptions::new().append(true).open(&at);
        let written = opened.and_then(|mut f| self.put(&mut f, known, bytes));
        written.map_err(HarnessError::file(&at, "append to"))?;
        self.watches[1].note(begun.elapsed());
        self.files.lock().push((known.0, known.1 + bytes));
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let Some(known) = self.take() else {
            return Ok(());
        };
        let (at, begun) = (path(self.dir, known.0), Instant::now());
        let found = fs::read(&at).map_err(HarnessError::file(&at, "read"))?;
        self.watches[2].note(begun.elapsed());
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
        let (at, begun) = (path(self.dir, number), Instant::now());
        let meta = fs::metadata(&at).map_err(HarnessError::file(&at, "look at"))?;
        length(&at, meta.len(), bytes)?;
        fs::remove_file(&at).map_err(HarnessError::file(&at, "remove"))?;
        self.watches[3].note(begun.elapsed());
        Ok(())
    }

    /// Until the file system is as full as was asked for.
    fn run(&mut self) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        let (mut since, mut before) = (Instant::now(), 0);
        let mut next = (used_percent(self.dir)? / 10.0).floor() * 10.0 + 10.0;
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
            let used = used_percent(self.dir)?;
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
    Err(HarnessError::Wrong {
        target: at.display().to_string(),
        what: "its length",
        expected,
        found,
    })
}

/// Reads what is known of a file, which may have become longer since.
fn check(dir: &Path, (number, bytes): Known) -> Result<u64> {
    let at = path(dir, number);
    let mut file = match File::open(&at) {
        // It was removed meanwhile.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        opened => opened.map_err(HarnessError::file(&at, "open"))?,
    };
    let (mut found, mut wanted) = (vec![0; CHECK_BYTES], vec![0; CHECK_BYTES]);
    let mut done = 0;
    while done < bytes {
        let n = (bytes - done).min(CHECK_BYTES as u64) as usize;
        let read = file.read_exact(&mut found[..n]);
        read.map_err(HarnessError::file(&at, "read"))?;
        fill(number, done / 8, &mut wanted[..n]);
        compare(&at, done, &found[..n], &wanted[..n])?;
        done += n as u64;
    }
    Ok(bytes)
}

/// Goes round until `ended`.
fn check_on(
    dir: &Path,
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
            Some(known) => sum.fetch_add(check(dir, known)?, Ordering::Relaxed),
            None => {
                thread::yield_now();
                0
            }
        };
    }
    Ok(())
}

/// Fills `dir`, an empty directory.
///
/// # Errors
/// A call fails, or a byte is another one than was written.
pub fn run(dir: &Path, options: Options) -> Result<Report> {
    let files = Mutex::new(Vec::new());
    let (ended, checked) = (AtomicBool::new(false), AtomicU64::new(0));
    let watches = [
        Stopwatch::new()?,
        Stopwatch::new()?,
        Stopwatch::new()?,
        Stopwatch::new()?,
    ];
    let mut load = Load {
        dir,
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
        let checker = scope.spawn(|| check_on(dir, &files, &ended, &checked, options.seed));
        let steps = load.run();
        ended.store(true, Ordering::Relaxed);
        let found = checker.join().unwrap_or(Ok(()));
        steps.and_then(|steps| found.map(|()| steps))
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let known = files.lock().clone();
    let mut last = 0;
    for &file in &known {
        let bytes = check(dir, file)?;
        length(&path(dir, file.0), bytes, file.1)?;
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
            remove_percent: 50,
            sync: false,
            seed: 3,
        }
    }

    #[test]
    fn files_become_more_and_hold_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let report = run(dir.path(), options()).unwrap();
        assert!(report.files > 50 && report.remove.calls > 10, "{report:?}");
        assert!(report.last_checked_bytes > 1 << 20, "{report:?}");
    }

    #[test]
    fn a_byte_that_changed_is_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d0000")).unwrap();
        let mut bytes = vec![0; 4096];
        fill(5, 0, &mut bytes);
        fs::write(path(dir.path(), 5), &bytes).unwrap();
        assert_eq!(check(dir.path(), (5, 4096)).unwrap(), 4096);
        bytes[100] ^= 1;
        fs::write(path(dir.path(), 5), &bytes).unwrap();
        let error = check(dir.path(), (5, 4096)).unwrap_err().to_string();
        assert!(error.contains("byte 100"), "{error}");
    }
}
