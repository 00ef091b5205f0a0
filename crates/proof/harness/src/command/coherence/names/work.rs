//! A worker's calls on names.
//!
//! | verb | call |
//! | --- | --- |
//! | `@C` `@B` `@M` | `open` with `O_CREAT` and `O_EXCL`; with `O_CREAT`; `mkdir` |
//! | `@K` `@N` `@F` `@R` | a file of the worker's own gets a name: `link`; `rename`; a directory: `rename`; `RENAME_NOREPLACE` |
//! | `@V` `@W` `@E` `@H` | from one name to another: `rename`; `RENAME_NOREPLACE`; `RENAME_EXCHANGE`; `link` |
//! | `@U` `@D` | `unlink`, `rmdir` |
//! | `@P` `@O` `@Q` `@L` | `stat`; `open` and `read`; that after the kernel had to open it; `readdir` |
//! | `@S` `@T` | writes a file that `@C` has made; reads one that is open yet |
//! | `@Z` `@Y` | at the end: `stat` of a name with its links; of a private one |
//!
//! A file is known by inode number and time of birth; its content is a number that nobody else writes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::libc;
use shale_bench::chance::Chance;

use crate::dirs::{AGE_NS, DIRS, NAMES, age_of, dir_name, own_name};
use crate::log::{Log, now};
use crate::work::{Worker, set_lock};

/// A worker stays with one directory for up to so long.
const SPELL_NS: u64 = 150_000_000;
/// In this time the others have the beginning, and clients the rest: the kernel may have used a directory last longer ago than the daemon
/// leaves it alone for.
const TURN_NS: u64 = 1_000_000_000;
/// A file of the others is opened again once in so many calls.
const REOPEN: u64 = 1024;
/// One stay in so many is with others.
const VISIT: u64 = 64;
/// Files that a worker keeps open.
const KEPT: usize = 3;

/// What a worker needs for its calls on names.
pub struct Names {
    dir: PathBuf,
    own: PathBuf,
    number: u64,
    client: bool,
    begun: u64,
    ages: u64,
    /// Until when it does what it does, and in which directory.
    spell: (u64, Option<u64>),
    kept: Vec<(String, File)>,
}

fn failed(error: &io::Error) -> String {
    format!("e{}", error.raw_os_error().unwrap_or(0))
}

fn noted<T>(result: io::Result<T>) -> String {
    result.map_or_else(|e| failed(&e), |_| "ok".to_owned())
}

fn id(found: &fs::Metadata) -> io::Result<String> {
    let born = found.created()?.duration_since(UNIX_EPOCH);
    Ok(format!(
        "{}.{}",
        found.ino(),
        born.map_or(0, |b| b.as_nanos())
    ))
}

fn kind(found: &fs::Metadata) -> &'static str {
    if found.is_dir() { "dir" } else { "file" }
}

fn seen(found: io::Result<fs::Metadata>) -> io::Result<String> {
    let found = found?;
    Ok(format!("{} {}", kind(&found), id(&found)?))
}

/// What an open file is and holds.
fn content(mut file: &File) -> io::Result<String> {
    let found = seen(file.metadata())?;
    if found.starts_with("dir") {
        return Ok(found);
    }
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    let content = match <[u8; 8]>::try_from(bytes.as_slice()) {
        Ok(token) => u64::from_le_bytes(token).to_string(),
        Err(_) if bytes.is_empty() => "0".to_owned(),
        Err(_) => "part".to_owned(),
    };
    Ok(format!("{found} {content}"))
}

fn or_errno(result: io::Result<String>) -> String {
    result.unwrap_or_else(|e| failed(&e))
}

impl Names {
    /// From `begun` on, in directories of a run of `ages`.
    pub fn new(dir: &Path, number: u64, client: bool, begun: u64, ages: u64) -> io::Result<Self> {
        let own = dir.join(own_name(number));
        if !own.is_dir() {
            fs::create_dir(&own)?;
        }
        Ok(Self {
            dir: dir.to_owned(),
            own,
            number,
            client,
            begun,
            ages,
            spell: (0, None),
            kept: Vec::new(),
        })
    }

    /// Random calls of a worker until `until`, half of them on names.
    pub fn run(&mut self, worker: &mut Worker, until: u64) -> io::Result<()> {
        // Each open of a file that all use costs its lease, and names are left to the mount where leases cost more than they gain.
        worker.reopen = REOPEN;
        while now() < until {
            let token = worker.stamp(1);
            if self.some(&mut worker.log, &mut worker.chance, token)? {
                worker.change_content()?;
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    fn age(&self) -> u64 {
        let age = now().saturating_sub(self.begun) / AGE_NS;
        age.min(self.ages - 1)
    }

    /// The directory that this worker goes to now; none while it rests.
    fn current(&mut self, chance: &mut Chance) -> Option<String> {
        let age = self.age();
        // One of two directories that are used together.
        let home = self.number % (DIRS / 2) * 2;
        if self.spell.0 < now() {
            let lasts = SPELL_NS / 30 + chance.below(SPELL_NS);
            let visits = chance.below(VISIT) == 0;
            self.spell = match age % 3 {
                // Clients stay at home, and visit others now and then; the others only do that.
                0 if visits => (now() + lasts / 10, Some(chance.below(DIRS))),
                0 => (now() + lasts, self.client.then_some(home)),
                // One of each kind, in turns.
                1 => {
                    let since = now() % TURN_NS;
                    let (is_others, end) = match since < TURN_NS / 16 {
                        true => (true, TURN_NS / 16),
                        false => (false, TURN_NS),
                    };
                    let own = is_others != self.client;
                    (now() + end - since, own.then_some(home))
                }
                // All on all.
                _ => (now() + lasts, Some(chance.below(DIRS / 2))),
            };
        }
        let at = self.spell.1?;
        Some(dir_name(age, at))
    }

    /// A name in the directory, or now and then in the one that is used together with it.
    fn path(dir: &str, chance: &mut Chance) -> String {
        let name = NAMES[chance.below(NAMES.len() as u64) as usize];
        let at = dir.rsplit('-').next().and_then(|at| at.parse::<u64>().ok());
        match at.filter(|_| chance.below(8) == 0) {
            Some(at) => format!("{}-{}/{name}", age_of(dir), at ^ 1),
            None => format!("{dir}/{name}"),
        }
    }

    /// Some call on names; `false`: none now.
    fn some(&mut self, log: &mut Log, chance: &mut Chance, token: u64) -> io::Result<bool> {
        let Some(dir) = self.current(chance) else {
            return Ok(false);
        };
        let path = Self::path(&dir, chance);
        match chance.below(100) {
            0..24 => self.make(log, chance, &path, token)?,
            24..38 => self.given(log, chance, &path, token)?,
            38..54 => self.moved(log, chance, &dir, &path)?,
            54..68 => self.remove(log, chance, &path)?,
            68..78 => self.list(log, &dir)?,
            78..82 => self.look_again(log, chance)?,
            _ => self.look(log, chance, &path)?,
        }
        Ok(true)
    }

    fn make(
        &mut self,
        log: &mut Log,
        chance: &mut Chance,
        path: &str,
        token: u64,
    ) -> io::Result<()> {
        let at = self.dir.join(path);
        let verb = ["@C", "@C", "@B", "@M"][chance.below(4) as usize];
        if verb == "@M" {
            log.call(&format!("@M {path}"), || noted(fs::create_dir(at)))?;
            return Ok(());
        }
        let mut made = None;
        let given = log.call(&format!("{verb} {path}"), || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true);
            let opened = options.create_new(verb == "@C").open(at);
            or_errno(opened.and_then(|file| {
                let id = id(&file.metadata()?)?;
                made = Some(file);
                Ok(id)
            }))
        })?;
        if let Some(mut file) = made.filter(|_| verb == "@C" && chance.below(2) == 0) {
            let what = format!("@S {given} {token}");
            log.call(&what, || noted(file.write_all(&token.to_le_bytes())))?;
        }
        Ok(())
    }

    /// Makes a file or directory that only this worker knows, and gives it a name that all know.
    fn given(
        &mut self,
        log: &mut Log,
        chance: &mut Chance,
        path: &str,
        token: u64,
    ) -> io::Result<()> {
        let (private, to) = (self.own.join(token.to_string()), self.dir.join(path));
        let verb = ["@K", "@K", "@N", "@N", "@F", "@R"][chance.below(6) as usize];
        if verb == "@F" {
            fs::create_dir(&private)?;
        } else {
            File::create_new(&private)?.write_all(&token.to_le_bytes())?;
        }
        let id = id(&fs::symlink_metadata(&private)?)?;
        let what = format!("{verb} {path} {id} {token}");
        let given = log.call(&what, || match verb {
            "@K" => noted(fs::hard_link(&private, &to)),
            "@R" => renamed(&private, &to, RenameFlags::RENAME_NOREPLACE),
            _ => noted(fs::rename(&private, &to)),
        })?;
        match (verb, given.as_str()) {
            ("@F", "ok") | ("@N" | "@R", "ok") => Ok(()),
            ("@F", _) => fs::remove_dir(&private),
            _ => fs::remove_file(&private),
        }
    }

    fn moved(
        &mut self,
        log: &mut Log,
        chance: &mut Chance,
        dir: &str,
        from: &str,
    ) -> io::Result<()> {
        let to = Self::path(dir, chance);
        if from == to {
            return Ok(());
        }
        let (old, new) = (self.dir.join(from), self.dir.join(&to));
        let verb = ["@V", "@V", "@V", "@W", "@E", "@H", "@H"][chance.below(7) as usize];
        log.call(&format!("{verb} {from} {to}"), || match verb {
            "@V" => noted(fs::rename(old, new)),
            "@W" => renamed(&old, &new, RenameFlags::RENAME_NOREPLACE),
            "@E" => renamed(&old, &new, RenameFlags::RENAME_EXCHANGE),
            _ => noted(fs::hard_link(old, new)),
        })?;
        Ok(())
    }

    fn remove(&mut self, log: &mut Log, chance: &mut Chance, path: &str) -> io::Result<()> {
        let at = self.dir.join(path);
        let verb = ["@U", "@U", "@D"][chance.below(3) as usize];
        log.call(&format!("{verb} {path}"), || match verb {
            "@U" => noted(fs::remove_file(at)),
            _ => noted(fs::remove_dir(at)),
        })?;
        Ok(())
    }

    fn look(&mut self, log: &mut Log, chance: &mut Chance, path: &str) -> io::Result<()> {
        let at = self.dir.join(path);
        let verb = ["@P", "@P", "@O", "@Q"][chance.below(4) as usize];
        if verb == "@P" {
            log.call(&format!("@P {path}"), || {
                or_errno(seen(fs::symlink_metadata(at)))
            })?;
            return Ok(());
        }
        let mut kept = None;
        let given = log.call(&format!("{verb} {path}"), || {
            let opened = File::open(at).and_then(|file| {
                if verb == "@Q" {
                    // Only the kernel has locks.
                    set_lock(&file, libc::F_RDLCK)?;
                }
                let given = content(&file)?;
                kept = Some(file);
                Ok(given)
            });
            or_errno(opened)
        })?;
        let mut words = given.split(' ');
        if let (Some("file"), Some(id), Some(file)) = (words.next(), words.next(), kept) {
            self.kept.truncate(KEPT - 1);
            self.kept.insert(0, (id.to_owned(), file));
        }
        Ok(())
    }

    /// At a file that this worker has open; its names may have gone since.
    fn look_again(&mut self, log: &mut Log, chance: &mut Chance) -> io::Result<()> {
        if !self.kept.is_empty() {
            let at = chance.below(self.kept.len() as u64) as usize;
            let (id, file) = &self.kept[at];
            log.call(&format!("@T {id}"), || or_errno(content(file)))?;
        }
        Ok(())
    }

    fn list(&mut self, log: &mut Log, dir: &str) -> io::Result<()> {
        let at = self.dir.join(dir);
        log.call(&format!("@L {dir}"), || {
            let entry = |e: io::Result<fs::DirEntry>| {
                let entry = e?;
                let name = entry.file_name().into_string().unwrap_or_default();
                let kind = if entry.file_type()?.is_dir() {
                    "dir"
                } else {
                    "file"
                };
                Ok(format!("{name}:{kind}:{}", entry.ino()))
            };
            let names = || -> io::Result<Vec<String>> { fs::read_dir(at)?.map(entry).collect() };
            names().map_or_else(|e| failed(&e), |names| format!("ok {}", names.join(" ")))
        })?;
        Ok(())
    }
}

fn renamed(old: &Path, new: &Path, flags: RenameFlags) -> String {
    noted(renameat2(AT_FDCWD, old, AT_FDCWD, new, flags).map_err(io::Error::from))
}

/// Looks at all names once, and at private ones that workers have left.
pub fn finish(dir: &Path, log: &mut Log) -> io::Result<()> {
    let links = |at: &Path| -> String {
        let found = fs::symlink_metadata(at);
        or_errno(found.and_then(|m| Ok(format!("{} {}", seen(Ok(m.clone()))?, m.nlink()))))
    };
    let mut dirs: Vec<String> = Vec::new();
    for entry in fs::read_dir(dir)? {
        dirs.push(entry?.file_name().into_string().unwrap_or_default());
    }
    for name in dirs.iter().filter(|d| d.starts_with("own-")) {
        for entry in fs::read_dir(dir.join(name))? {
            let path = entry?.path();
            log.call("@Y private", || links(&path))?;
        }
    }
    for name in dirs.iter().filter(|d| d.starts_with('n')) {
        for path in NAMES.map(|n| format!("{name}/{n}")) {
            log.call(&format!("@Z {path}"), || links(&dir.join(&path)))?;
        }
    }
    Ok(())
}
