//! One worker: random calls on one small tree. File calls are those of `std`, so that the
//! library sees what it sees of any program; so are locks, by way of libc: names are not served in a program that has system
//! calls of its own.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use shale_bench::chance::Chance;

use super::log::{Log, now};

/// The unit in which file contents are judged.
pub const CELL: usize = 512;
/// Cells of files that are written at random.
pub const CELLS: u64 = 40;
/// Written at random.
pub const FIXED: [&str; 2] = ["f0", "f1"];
/// Written and cut at random.
pub const CUT: &str = "g0";
/// Only grows.
pub const APPENDED: &str = "a0";
/// Names that are made and removed.
pub const NAMES: [&str; 4] = ["x0", "x1", "x2", "x3"];
/// Names that are renamed as well.
pub const RENAMED: [&str; 4] = ["y0", "y1", "y2", "y3"];
const MOST_CELLS: u64 = 10;
const MOST_APPENDS: u32 = 2_000;
const REOPEN: u64 = 16;
/// Half of it is longer than the daemon leaves a file to the kernel that nobody uses there.
const TIDE_NS: u64 = 1_400_000_000;

/// A worker's place, kind and time.
pub struct Worker {
    pub dir: PathBuf,
    pub log: Log,
    pub chance: Chance,
    /// Unlike that of any other worker of the run, below 2^16.
    pub number: u64,
    stamps: u64,
    appends: u32,
    /// Once in so many calls a file is opened again.
    pub reopen: u64,
    files: Vec<(&'static str, File)>,
}

/// Makes the tree that workers need.
pub fn prepare(dir: &Path) -> io::Result<()> {
    fs::create_dir(dir.join("d"))?;
    fs::create_dir(dir.join("private"))?;
    for name in [FIXED[0], FIXED[1], CUT, APPENDED, "lock", "count"] {
        File::create(dir.join(name))?;
    }
    Ok(())
}

fn failed(error: &io::Error) -> String {
    format!("e{}", error.raw_os_error().unwrap_or(0))
}

fn noted<T>(result: io::Result<T>) -> String {
    result.map_or_else(|e| failed(&e), |_| "ok".to_owned())
}

/// The stamps of cells: 0 for zeros, `a+b` where one cell holds several.
pub fn stamps(bytes: &[u8]) -> String {
    let cell = |cell: &[u8]| {
        let mut words: Vec<u64> = cell
            .chunks(8)
            .map(|w| w.try_into().map_or(u64::MAX, u64::from_le_bytes))
            .collect();
        words.dedup();
        let words: Vec<_> = words.iter().map(u64::to_string).collect();
        words.join("+")
    };
    bytes.chunks(CELL).map(cell).collect::<Vec<_>>().join(" ")
}

fn cells(first: u64, count: u64) -> Vec<u8> {
    let words = (0..count).flat_map(|n| std::iter::repeat_n(first + n, CELL / 8));
    words.flat_map(u64::to_le_bytes).collect()
}

impl Worker {
    pub fn new(dir: PathBuf, log: Log, seed: u64, number: u64) -> Self {
        Self {
            dir,
            log,
            chance: Chance::new(seed ^ number.wrapping_mul(0x9e37_79b9)),
            number,
            stamps: 0,
            appends: 0,
            reopen: REOPEN,
            files: Vec::new(),
        }
    }

    /// Stamps that nobody else has, `count` in a row.
    pub fn stamp(&mut self, count: u64) -> u64 {
        let first = (self.number + 1) << 40 | (self.stamps + 1);
        self.stamps += count;
        first
    }

    fn file(&mut self, name: &'static str) -> io::Result<File> {
        // A descriptor that lives on, and every now and then a new one.
        if self.chance.below(self.reopen) == 0 {
            self.files.retain(|f| f.0 != name);
        }
        if let Some((_, file)) = self.files.iter().find(|f| f.0 == name) {
            return file.try_clone();
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).append(name == APPENDED);
        let file = options.open(self.dir.join(name))?;
        self.files.push((name, file.try_clone()?));
        Ok(file)
    }

    /// Some call that is not on names.
    pub fn change_content(&mut self) -> io::Result<()> {
        match self.chance.below(73) {
            0..25 => self.write(),
            25..55 => self.read(),
            55..60 => self.cut(),
            60..66 => self.size(),
            66..71 => self.append(),
            _ => self.count(),
        }
    }

    /// Random calls until `until`; with `rests` only in the first half of each [`TIDE_NS`].
    pub fn run(&mut self, until: u64, rests: bool) -> io::Result<()> {
        while now() < until {
            let tide = now() % TIDE_NS;
            if rests && tide >= TIDE_NS / 2 {
                let left = Duration::from_nanos(TIDE_NS - tide);
                std::thread::sleep(left.min(Duration::from_nanos(until.saturating_sub(now()))));
                continue;
            }
            match self.chance.below(100) {
                0..73 => self.change_content()?,
                73..76 => self.given_name()?,
                76 => self.renamed()?,
                77..86 => self.change_name()?,
                _ => self.look()?,
            }
        }
        Ok(())
    }

    /// Looks at everything once.
    pub fn finish(&mut self) -> io::Result<()> {
        for name in [FIXED[0], FIXED[1], CUT] {
            self.read_at(name, 0, CELLS + MOST_CELLS)?;
        }
        for name in [FIXED[0], CUT, APPENDED] {
            self.size_of(name)?;
        }
        for name in NAMES.into_iter().chain(RENAMED) {
            self.open_name(name)?;
        }
        self.list()?;
        let length = fs::metadata(self.dir.join(APPENDED))?.len();
        self.read_at(APPENDED, 0, length.div_ceil(CELL as u64))
    }

    fn some_file(&mut self) -> &'static str {
        [FIXED[0], FIXED[1], CUT][self.chance.below(3) as usize]
    }

    fn write(&mut self) -> io::Result<()> {
        let name = self.some_file();
        let (cell, count) = (self.chance.below(CELLS), 1 + self.chance.below(MOST_CELLS));
        let count = if self.chance.below(2) == 0 { 1 } else { count };
        let first = self.stamp(count);
        let file = self.file(name)?;
        let bytes = cells(first, count);
        let what = format!("W {name} {cell} {count} {first}");
        self.log
            .call(&what, || match file.write_at(&bytes, cell * CELL as u64) {
                Ok(done) => done.to_string(),
                Err(error) => failed(&error),
            })?;
        Ok(())
    }

    fn read(&mut self) -> io::Result<()> {
        if self.chance.below(10) == 0 {
            let file = self.file(APPENDED)?;
            let end = file.metadata()?.len() / CELL as u64;
            let cell = (end + 4).saturating_sub(self.chance.below(16));
            return self.read_at(APPENDED, cell, MOST_CELLS);
        }
        let name = self.some_file();
        let (cell, count) = (self.chance.below(CELLS), 1 + self.chance.below(MOST_CELLS));
        self.read_at(name, cell, count)
    }

    fn read_at(&mut self, name: &'static str, cell: u64, count: u64) -> io::Result<()> {
        let file = self.file(name)?;
        let mut bytes = vec![0x5a; count as usize * CELL];
        let what = format!("R {name} {cell} {count}");
        self.log.call(&what, || {
            match file.read_at(&mut bytes, cell * CELL as u64) {
                Ok(done) => format!("{done} {}", stamps(&bytes[..done])),
                Err(error) => failed(&error),
            }
        })?;
        Ok(())
    }

    fn cut(&mut self) -> io::Result<()> {
        let file = self.file(CUT)?;
        let cell = self.chance.below(CELLS + MOST_CELLS);
        let what = format!("T {CUT} {cell}");
        self.log
            .call(&what, || noted(file.set_len(cell * CELL as u64)))?;
        Ok(())
    }

    fn size(&mut self) -> io::Result<()> {
        let name = [FIXED[0], CUT, APPENDED][self.chance.below(3) as usize];
        self.size_of(name)
    }

    fn size_of(&mut self, name: &'static str) -> io::Result<()> {
        let by_name = self.chance.below(2) == 0;
        let (file, path) = (self.file(name)?, self.dir.join(name));
        self.log.call(&format!("S {name}"), || {
            let found = if by_name {
                fs::metadata(path)
            } else {
                file.metadata()
            };
            found.map_or_else(|e| failed(&e), |m| m.len().to_string())
        })?;
        Ok(())
    }

    fn append(&mut self) -> io::Result<()> {
        if self.appends >= MOST_APPENDS {
            return Ok(());
        }
        self.appends += 1;
        let count = 1 + self.chance.below(MOST_CELLS);
        let first = self.stamp(count);
        let mut file = self.file(APPENDED)?;
        let bytes = cells(first, count);
        self.log
            .call(&format!("A {first} {count}"), || match file.write(&bytes) {
                Ok(done) => done.to_string(),
                Err(error) => failed(&error),
            })?;
        Ok(())
    }

    /// Counts up in a file under a lock of `fcntl`, if nobody else has it.
    fn count(&mut self) -> io::Result<()> {
        let (lock, count) = (self.dir.join("lock"), self.dir.join("count"));
        self.log.call("X", || {
            let counted = || -> io::Result<(u64, u64, u64)> {
                let lock = OpenOptions::new().read(true).write(true).open(lock)?;
                set_lock(&lock, libc::F_WRLCK)?;
                let from = now();
                let file = OpenOptions::new().read(true).write(true).open(count)?;
                let value = counter(&file)? + 1;
                file.write_all_at(&value.to_le_bytes(), 0)?;
                let to = now();
                set_lock(&lock, libc::F_UNLCK)?;
                Ok((from, to, value))
            };
            counted().map_or_else(|e| failed(&e), |(a, b, value)| format!("{a} {b} {value}"))
        })?;
        Ok(())
    }

    fn any_name(&mut self) -> &'static str {
        let at = self.chance.below(8) as usize;
        NAMES.into_iter().chain(RENAMED).nth(at).unwrap_or(NAMES[0])
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.join("d").join(name)
    }

    /// A file that is written before it gets one of the names that all know.
    fn given_name(&mut self) -> io::Result<()> {
        let token = self.stamp(1);
        let private = self.dir.join("private").join(token.to_string());
        let mut file = File::create_new(&private)?;
        file.write_all(&token.to_le_bytes())?;
        drop(file);
        let rename = self.chance.below(2) == 0;
        let name = if rename {
            RENAMED[self.chance.below(4) as usize]
        } else {
            self.any_name()
        };
        let (verb, to) = (if rename { "N" } else { "K" }, self.at(name));
        self.log.call(&format!("{verb} {name} {token}"), || {
            noted(if rename {
                fs::rename(&private, &to)
            } else {
                fs::hard_link(&private, &to)
            })
        })?;
        match fs::remove_file(&private) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn renamed(&mut self) -> io::Result<()> {
        let from = self.chance.below(4) as usize;
        let to = (from + 1 + self.chance.below(3) as usize) % 4;
        let (old, new) = (self.at(RENAMED[from]), self.at(RENAMED[to]));
        let what = format!("V {} {}", RENAMED[from], RENAMED[to]);
        self.log.call(&what, || noted(fs::rename(old, new)))?;
        Ok(())
    }

    fn change_name(&mut self) -> io::Result<()> {
        let name = self.any_name();
        let path = self.at(name);
        let verb = ["C", "C", "M", "D", "U", "U"][self.chance.below(6) as usize];
        self.log.call(&format!("{verb} {name}"), || match verb {
            "C" => noted(File::create_new(path)),
            "M" => noted(fs::create_dir(path)),
            "D" => noted(fs::remove_dir(path)),
            _ => noted(fs::remove_file(path)),
        })?;
        Ok(())
    }

    fn look(&mut self) -> io::Result<()> {
        let name = self.any_name();
        match self.chance.below(3) {
            0 => self.open_name(name),
            1 => self.list(),
            _ => {
                let path = self.at(name);
                self.log
                    .call(&format!("P {name}"), || match fs::symlink_metadata(path) {
                        Ok(found) => if found.is_dir() { "dir" } else { "file" }.to_owned(),
                        Err(error) => failed(&error),
                    })?;
                Ok(())
            }
        }
    }

    fn open_name(&mut self, name: &str) -> io::Result<()> {
        let path = self.at(name);
        self.log.call(&format!("O {name}"), || {
            let mut bytes = Vec::new();
            let done = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
            match (done, <[u8; 8]>::try_from(bytes.as_slice())) {
                (Err(error), _) => failed(&error),
                (_, Ok(token)) => u64::from_le_bytes(token).to_string(),
                _ => bytes.len().to_string(),
            }
        })?;
        Ok(())
    }

    fn list(&mut self) -> io::Result<()> {
        let dir = self.dir.join("d");
        self.log.call("L", || {
            let names = || -> io::Result<Vec<String>> {
                let name = |e: io::Result<fs::DirEntry>| {
                    Ok(e?.file_name().into_string().unwrap_or_default())
                };
                fs::read_dir(dir)?.map(name).collect()
            };
            names().map_or_else(|e| failed(&e), |names| format!("ok {}", names.join(" ")))
        })?;
        Ok(())
    }
}

/// Sets a lock of `fcntl` on a whole file, if nobody else has it.
pub fn set_lock(file: &File, kind: i32) -> io::Result<()> {
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_SETLK(&lock))?;
    Ok(())
}

/// The number in a counter file; 0 for an empty one.
pub fn counter(file: &File) -> io::Result<u64> {
    let mut bytes = [0; 8];
    match file.read_at(&mut bytes, 0)? {
        0 | 8 => Ok(u64::from_le_bytes(bytes)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
