//! Parts of files that programs have mapped directly from NVM (DESIGN §35).
//!
//! A private mapping shows the blocks of a file as they were when it was made, and nobody can take
//! it back: so blocks that are freed meanwhile wait ([`shale_volume::Volume::hold`]). Each mapping
//! has a file in the NVM directory that names its blocks, and the program a descriptor of that file
//! with a shared lock on it. The lock is the kernel's: children inherit it with the mapping, it goes
//! with the last of them (`exec` ends it as it ends the mapping), and it outlives a daemon: the
//! next one finds the file, sees that it is locked, and has the blocks wait again before it gives out any.
//!
//! The files are the daemon's own notes for as long as the machine runs; no power cut
//! leaves a lock. A program that unlocks its file loses what it has mapped, nobody else does.

use crate::error::{DaemonError, Result};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use shale_clients::client::Client;
use shale_coherence::reclaimer::Reclaimer;
use shale_format::checksum::crc32c;
use shale_format::limits::BLOCK_BYTES;
use shale_format::limits::SEGMENT_BYTES;
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_nvm::Map;
use shale_pool::nvm_dir::MAPPING_PREFIX;
use shale_proto::Reply;
use shale_proto::message::BlockRun;
use shale_proto::message::DESCRIPTORS_MAX;
use shale_sys::failpoints;
use shale_volume::{Mapping as Lies, Run, Volume, VolumeError};
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Runs of blocks of one mapping: each is a mapping of its own to the kernel.
const RUNS_MAX: usize = 256;
/// Mappings of all programs; a program that wants more has the mount's.
const MAPPINGS_MAX: usize = 512;
/// Part of the tier's blocks that may be mapped, so that what waits is never all there is.
const HELD_PART: u64 = 4;
/// First word of a mapping's file; the count of runs, the runs, and a checksum follow.
const MAGIC: u64 = u64::from_le_bytes(*b"shalemap");
/// Bytes of the longest file.
const FILE_BYTES_MAX: usize = (RUNS_MAX * 2 + 3) * 8;

/// One mapping.
struct Mapping {
    path: PathBuf,
    /// Not the program's description: to see whether that one still locks.
    file: File,
    hold: u64,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Mappings {
    state: Mutex<(u64, Vec<Mapping>)>,
}

/// The answer to [`shale_proto::Request::Map`].
pub(crate) type Mapped = (Reply, Vec<OwnedFd>);

impl Mappings {
    /// Finds the mappings that are older than this start, before any block is given out. What is
    /// wrong with one file is reported and keeps nobody from starting.
    pub(crate) fn reopen(dir: &Path, volume: &Volume) -> Result<Mappings> {
        let mappings = Mappings::default();
        let mut state = mappings.state.lock();
        for name in shale_pool::nvm_dir::volume_files(dir)? {
            let Some(number) = name
                .strip_prefix(MAPPING_PREFIX)
                .and_then(|n| n.parse().ok())
            else {
                continue;
            };
            let path = dir.join(&name);
            state.0 = state.0.max(number);
            match find(&path, volume) {
                Ok(Some((file, hold))) => state.1.push(Mapping { path, file, hold }),
                Ok(None) => shale_pool::nvm_dir::remove(&path)?,
                Err(why) => {
                    tracing::warn!("{}: {why}; the mapping is not kept", path.display());
                    shale_pool::nvm_dir::remove(&path)?;
                }
            }
        }
        drop(state);
        Ok(mappings)
    }

    /// Number of mappings.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().1.len()
    }

    /// Ends what no program has mapped any more.
    pub(crate) fn look(&self, volume: &Volume) {
        let mut state = self.state.lock();
        state.1.retain(|mapping| {
            let mapped = is_locked(&mapping.file);
            if !mapped {
                volume.drop_hold(mapping.hold);
                if let Err(e) = shale_pool::nvm_dir::remove(&mapping.path) {
                    tracing::warn!("{e}");
                }
            }
            mapped
        });
    }

    /// Holds `runs` for a new mapping: the descriptor that keeps it. The caller sees to it that
    /// the runs are not released meanwhile.
    fn add(&self, dir: &Path, volume: &Volume, runs: &[Run]) -> Result<OwnedFd> {
        let mut state = self.state.lock();
        state.0 += 1;
        let path = dir.join(format!("{MAPPING_PREFIX}{}", state.0));
        let hold = volume.hold(runs)?;
        match make_file(&path, runs) {
            Ok((file, kept)) => {
                state.1.push(Mapping { path, file, hold });
                Ok(kept)
            }
            Err(e) => {
                volume.drop_hold(hold);
                shale_pool::nvm_dir::remove(&path)?;
                Err(e)
            }
        }
    }
}

fn make_file(path: &Path, runs: &[Run]) -> Result<(File, OwnedFd)> {
    let failed = |e: std::io::Error| DaemonError::file(path, "make it", e);
    failpoints::io().map_err(|e| failed(e.into()))?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file = options.open(path).map_err(failed)?;
    file.write_all_at(&encoded(runs), 0).map_err(failed)?;
    let kept = OwnedFd::from(File::open(path).map_err(failed)?);
    flock(&kept, FlockOperation::NonBlockingLockShared).map_err(|e| failed(e.into()))?;
    Ok((file, kept))
}

/// Whether a program has a descriptor of a mapping's file.
fn is_locked(file: &File) -> bool {
    let free = flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    if free {
        // A lock that cannot be given back goes with the file.
        let _ = flock(file, FlockOperation::Unlock);
    }
    !free
}

fn encoded(runs: &[Run]) -> Vec<u8> {
    let mut words = vec![MAGIC, runs.len() as u64];
    words.extend(runs.iter().flat_map(|run| [run.addr.raw(), run.len]));
    let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let sum = crc32c(&bytes);
    bytes.extend(u64::from(sum).to_le_bytes());
    bytes
}

fn decoded(bytes: &[u8]) -> Option<Vec<Run>> {
    let (words, []) = bytes.as_chunks::<8>() else {
        return None;
    };
    let words: Vec<u64> = words.iter().map(|w| u64::from_le_bytes(*w)).collect();
    let runs: Vec<Run> = words
        .get(2..words.len().checked_sub(1)?)?
        .chunks_exact(2)
        .map(|run| Run {
            addr: BlockAddr::from_raw(run[0]),
            len: run[1],
        })
        .collect();
    (encoded(&runs) == bytes).then_some(runs)
}

/// A mapping that an earlier daemon made and some program still has; `None`: nobody has it.
fn find(
    path: &Path,
    volume: &Volume,
) -> std::result::Result<Option<(File, u64)>, Box<dyn std::error::Error>> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    if !is_locked(&file) {
        return Ok(None);
    }
    let mut bytes = vec![0; FILE_BYTES_MAX + 1];
    let n = file.read_at(&mut bytes, 0)?;
    let runs = decoded(&bytes[..n]).ok_or("it is no list of blocks")?;
    if !fits(volume, &runs) {
        return Err("it names more blocks than may be mapped".into());
    }
    Ok(Some((file, volume.hold(&runs)?)))
}

/// Whether so much more may be mapped.
fn fits(volume: &Volume, runs: &[Run]) -> bool {
    let more = runs.iter().map(|run| run.len);
    let all = more.fold(volume.held_blocks(), u64::saturating_add);
    all <= volume.space().total / HELD_PART
}

/// Adds the segments that a run lies in; `false` if that would be more than one reply carries.
pub(crate) fn note_segments(run: Run, segments: &mut Vec<u32>) -> bool {
    let first = run.addr.byte() / SEGMENT_BYTES;
    let last = (run.addr.byte() + run.len * BLOCK - 1) / SEGMENT_BYTES;
    let missing: Vec<u32> = (first..=last)
        .map(|n| n as u32)
        .filter(|n| !segments.contains(n))
        .collect();
    let fits = segments.len() + missing.len() <= DESCRIPTORS_MAX;
    if fits {
        segments.extend(missing);
    }
    fits
}

/// Maps files of the volume for programs.
pub(crate) struct DirectMappings {
    pub(crate) mappings: Arc<Mappings>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) map: Arc<Map>,
    pub(crate) nvm_dir: PathBuf,
    pub(crate) reclaimer: Arc<Reclaimer>,
}

impl DirectMappings {
    /// Has a range of a file's blocks stay as they are for a program that maps them. The whole
    /// range has to lie in NVM; else, and where too much is mapped already, [`Reply::NotMapped`].
    pub(crate) fn map_blocks(
        &self,
        client: &Client,
        ino: u64,
        first: u64,
        blocks: u64,
    ) -> Result<Mapped> {
        let not = || Ok((Reply::NotMapped, Vec::new()));
        self.mappings.look(&self.volume);
        if self.mappings.count() >= MAPPINGS_MAX {
            return not();
        }
        // Until this reader is gone, nothing that it sees is released.
        let _reader = self.reclaimer.read();
        let Some((size, runs)) = self.runs_in_nvm(ino, first, blocks)? else {
            return not();
        };
        let mut segments = Vec::new();
        if !runs.iter().all(|run| note_segments(*run, &mut segments)) || !fits(&self.volume, &runs)
        {
            return not();
        }
        let mut fds = vec![self.mappings.add(&self.nvm_dir, &self.volume, &runs)?];
        for &segment in &segments {
            fds.push(self.map.read_only_fd(segment as usize)?);
        }
        failpoints::reach("mapped");
        tracing::debug!(client = client.id, ino, blocks, "mapped");
        let runs = runs.iter().map(|run| BlockRun {
            addr: run.addr.raw(),
            blocks: run.len as u32,
        });
        let runs = runs.collect();
        let reply = Reply::Mapped {
            size,
            runs,
            segments,
        };
        Ok((reply, fds))
    }

    /// Where a range of a file's blocks lies, and the size of the file, if all of it lies in NVM.
    fn runs_in_nvm(
        &self,
        ino: u64,
        first: u64,
        blocks: u64,
    ) -> std::result::Result<Option<(u64, Vec<Run>)>, VolumeError> {
        let view = self.volume.view();
        let Some(inode) = view.inode(Ino(ino))?.filter(|i| i.is_file()) else {
            return Ok(None);
        };
        let end = inode.size.div_ceil(BLOCK_BYTES as u64);
        if blocks == 0 || first.checked_add(blocks).is_none_or(|last| last > end) {
            return Ok(None);
        }
        let (mut at, mut runs) = (first, Vec::new());
        while at < first + blocks {
            let Lies::Data { addr, len } = view.map_block(&inode, FileBlock(at))? else {
                return Ok(None);
            };
            if addr.tier() != Some(TierId::Nvm) || runs.len() == RUNS_MAX {
                return Ok(None);
            }
            let len = len.min(first + blocks - at).min(u32::MAX.into());
            runs.push(Run { addr, len });
            at += len;
        }
        Ok(Some((inode.size, runs)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_names_every_segment_it_touches() {
        let per_segment = SEGMENT_BYTES / BLOCK;
        let mut segments = vec![1];
        let run = Run {
            addr: BlockAddr::nvm(per_segment - 1),
            len: per_segment + 2,
        };
        assert!(note_segments(run, &mut segments));
        assert_eq!(segments, [1, 0, 2]);
        let huge = Run {
            addr: BlockAddr::nvm(0),
            len: per_segment * 200,
        };
        assert!(!note_segments(huge, &mut segments));
        assert_eq!(segments.len(), 3);
    }

    #[test]
    fn the_file_of_a_mapping_is_checked() {
        let run = |first, len| Run {
            addr: BlockAddr::nvm(first),
            len,
        };
        let runs = vec![run(100, 3), run(7, 1)];
        let bytes = encoded(&runs);
        assert_eq!(decoded(&bytes), Some(runs));
        assert_eq!(decoded(&encoded(&[])), Some(Vec::new()));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert_eq!(decoded(&damaged), None, "byte {at}");
            assert_eq!(decoded(&bytes[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn a_lock_is_seen_from_another_description() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map-1");
        let (file, kept) = make_file(&path, &[]).unwrap();
        let child = rustix::io::dup(&kept).unwrap();
        assert!(is_locked(&file));
        drop(kept);
        assert!(is_locked(&file), "the child has it");
        drop(child);
        assert!(!is_locked(&file));
    }
}
