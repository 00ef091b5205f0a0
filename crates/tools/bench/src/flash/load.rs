//! The load: files up to 90% of what is free, then random overwrites of 4 KiB, most of them
//! to a fifth of the files; at the end everything is read back.
//!
//! Each block says which it is and which write of it was the last, so a wrong block is named.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::BenchError;
use crate::Result;
use crate::chance::Chance;

/// Bytes of one overwrite.
pub const BLOCK_BYTES: usize = 4096;
/// One of so many files is hot.
const HOT_ONE_IN: usize = 5;
/// Of 100 overwrites so many go to hot files.
const HOT_PERCENT: u64 = 80;
/// A block for which so many syncs make no space is an error.
const SYNCS_FOR_SPACE: u32 = 4;

/// What to do.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Part of the free space that is filled, in percent.
    pub full_percent: u64,
    /// At most so many files.
    pub files_max: usize,
    /// Bytes of a file.
    pub file_bytes: u64,
    /// A file is filled in so many passes, each with every so-manieth block and a sync behind it. With
    /// two no extent is larger than a block: btrfs keeps one until all of it is overwritten, and
    /// with large ones finds no space for random overwrites long before it is full.
    pub fill_passes: usize,
    /// Everything is synced (`syncfs`) after so many overwrites.
    pub sync_every: u64,
    /// Seed of all choices.
    pub seed: u64,
}

/// Files, and what each of their blocks holds.
pub struct Load {
    options: Options,
    files: Vec<File>,
    /// Blocks of each file.
    blocks: usize,
    /// By file and block: which write of all was the last to it.
    versions: Vec<u32>,
    written: u32,
    /// Overwrites that found no space before a sync.
    refused: u64,
    chance: Chance,
}

fn content(block: usize, version: u32) -> Vec<u8> {
    let mut content = Vec::with_capacity(BLOCK_BYTES);
    content.extend_from_slice(&(block as u64).to_le_bytes());
    content.extend_from_slice(&u64::from(version).to_le_bytes());
    let seed = (block as u64) << 32 | u64::from(version);
    content.extend_from_slice(&Chance::new(seed).bytes(BLOCK_BYTES - 16));
    content
}

fn file_name(number: usize) -> String {
    format!("file-{number:05}")
}

impl Load {
    /// Makes and fills the files in `dir`, an empty file system; durable on return.
    ///
    /// # Errors
    /// The file system refuses, or is too small for five files.
    pub fn fill(dir: &Path, options: Options) -> Result<Self> {
        let stat = rustix::fs::statvfs(dir).map_err(BenchError::file(dir, "look at"))?;
        let free = stat.f_bavail * stat.f_frsize;
        let count = (free * options.full_percent / 100 / options.file_bytes) as usize;
        let count = count.min(options.files_max);
        if count < HOT_ONE_IN {
            return Err(BenchError::Wrong {
                target: dir.display().to_string(),
                what: "files that there is room for",
                expected: HOT_ONE_IN as u64,
                found: count as u64,
            });
        }
        let blocks = options.file_bytes as usize / BLOCK_BYTES;
        let mut load = Load {
            options,
            files: Vec::with_capacity(count),
            blocks,
            versions: vec![0; count * blocks],
            written: 0,
            refused: 0,
            chance: Chance::new(options.seed),
        };
        for number in 0..count {
            let path = dir.join(file_name(number));
            let file = File::create_new(&path).map_err(BenchError::file(&path, "create"))?;
            load.files.push(file);
            for pass in 0..options.fill_passes {
                load.fill_pass(number, pass)?;
                load.sync()?;
            }
        }
        Ok(load)
    }

    fn fill_pass(&self, number: usize, pass: usize) -> Result<()> {
        let (step, first) = (self.options.fill_passes, number * self.blocks);
        let failed = BenchError::call("the file system", "fill a file");
        let write = |bytes: &[u8], at: usize| {
            self.files[number].write_all_at(bytes, (at * BLOCK_BYTES) as u64)
        };
        let done = match step {
            1 => {
                let whole = (first..first + self.blocks).flat_map(|b| content(b, 0));
                write(&whole.collect::<Vec<u8>>(), 0)
            }
            _ => (pass..self.blocks)
                .step_by(step)
                .try_for_each(|n| write(&content(first + n, 0), n)),
        };
        done.map_err(failed)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        (self.versions.len() * BLOCK_BYTES) as u64
    }

    fn sync(&self) -> Result<()> {
        let of = self.files.first();
        of.map_or(Ok(()), rustix::fs::syncfs)
            .map_err(BenchError::call("the file system", "sync"))
    }

    /// A file: hot ones come in turn with four cold ones.
    fn choose(&mut self) -> usize {
        let hot = self.chance.below(100) < HOT_PERCENT;
        let hot_files = self.files.len().div_ceil(HOT_ONE_IN);
        match hot {
            true => self.chance.below(hot_files as u64) as usize * HOT_ONE_IN,
            false => {
                let cold = self.chance.below((self.files.len() - hot_files) as u64) as usize;
                cold + cold / (HOT_ONE_IN - 1) + 1
            }
        }
    }

    /// Overwrites `count` random blocks; durable on return.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn overwrite(&mut self, count: u64) -> Result<()> {
        for n in 1..=count {
            let file = self.choose();
            let in_file = self.chance.below(self.blocks as u64) as usize;
            let block = file * self.blocks + in_file;
            self.written += 1;
            self.write(file, in_file, &content(block, self.written))?;
            self.versions[block] = self.written;
            if n % self.options.sync_every == 0 {
                self.sync()?;
            }
        }
        self.sync()
    }

    /// Overwrites that found no space: the file system gave back only at a sync what others had
    /// made free.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn write(&mut self, file: usize, block: usize, content: &[u8]) -> Result<()> {
        let mut left = SYNCS_FOR_SPACE;
        loop {
            let written = self.files[file].write_all_at(content, (block * BLOCK_BYTES) as u64);
            match written {
                Err(error) if error.kind() == ErrorKind::StorageFull && left > 0 => {
                    left -= 1;
                    self.refused += 1;
                    self.sync()?;
                }
                done => {
                    return done.map_err(BenchError::call("the file system", "overwrite a block"));
                }
            }
        }
    }

    /// Closes the files: what remains is what they must hold.
    pub fn close(self) -> Expected {
        Expected {
            blocks: self.blocks,
            versions: self.versions,
        }
    }
}

/// What files must hold.
pub struct Expected {
    blocks: usize,
    versions: Vec<u32>,
}

impl Expected {
    /// Reads everything.
    ///
    /// # Errors
    /// A block holds something else, or cannot be read.
    pub fn check(&self, dir: &Path) -> Result<()> {
        for (number, versions) in self.versions.chunks(self.blocks).enumerate() {
            let path = dir.join(file_name(number));
            let found = std::fs::read(&path).map_err(BenchError::file(&path, "read"))?;
            for (n, version) in versions.iter().enumerate() {
                let wanted = content(number * self.blocks + n, *version);
                if found.get(n * BLOCK_BYTES..(n + 1) * BLOCK_BYTES) != Some(&wanted) {
                    return Err(BenchError::Wrong {
                        target: path.display().to_string(),
                        what: "block that holds something else than was written",
                        expected: u64::from(*version),
                        found: n as u64,
                    });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_of_five_go_to_a_fifth_and_all_is_read_back() {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let options = Options {
            full_percent: 50,
            files_max: 12,
            file_bytes: 64 << 10,
            fill_passes: 3,
            sync_every: 50,
            seed: 3,
        };
        let mut load = Load::fill(place.path(), options).unwrap();
        let hot = |file: usize| file.is_multiple_of(HOT_ONE_IN);
        let chosen: Vec<usize> = (0..10_000).map(|_| load.choose()).collect();
        assert!(chosen.iter().all(|file| *file < load.files.len()));
        let hot = chosen.iter().filter(|file| hot(**file)).count();
        assert!((7_700..8_300).contains(&hot), "{hot}");
        load.overwrite(500).unwrap();
        let expected = load.close();
        expected.check(place.path()).unwrap();
        let first = place.path().join(file_name(0));
        let file = File::options().write(true).open(first).unwrap();
        file.write_all_at(b"wrong", 9_000).unwrap();
        let wrong = expected.check(place.path()).unwrap_err();
        assert!(wrong.to_string().contains("file-00000"), "{wrong}");
    }
}
