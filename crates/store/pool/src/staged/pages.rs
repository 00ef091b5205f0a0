//! Pages of a memory tier: those that hold anything, and checkpoints of them.

use super::area::failed;
use crate::error::{PoolError, Result};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use shale_nvm::{Map, Path as CountPath};
use shale_persist::staged::{Checkpoint, PAGE_BYTES, StagedArea};
use std::path::Path;

/// The contents of a page.
pub type Page = [u8; PAGE_BYTES];

/// Numbers of the pages of `map` that are not zeros, ascending. What was never allocated is not read, as that would
/// allocate it.
///
/// # Errors
/// A file cannot be asked where it has holes.
pub fn written(map: &Map) -> Result<Vec<u64>> {
    let failed = |e: Errno| PoolError::file(Path::new("shared memory"), "find its holes", e);
    let mut found = Vec::new();
    for ((offset, bytes), fd) in map.pieces().zip(map.fds()) {
        let mut at = 0;
        while at < bytes as u64 {
            at = match seek(fd, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => break,
                data => data.map_err(failed)?,
            };
            let end = seek(fd, SeekFrom::Hole(at)).map_err(failed)?;
            let first = (offset as u64 + at) / PAGE_BYTES as u64;
            let last = (offset as u64 + end.min(bytes as u64)).div_ceil(PAGE_BYTES as u64);
            found.extend((first..last).filter(|&page| load(map, page) != [0; PAGE_BYTES]));
            at = end;
        }
    }
    Ok(found)
}

/// A page of `map`, by its number.
pub fn load(map: &Map, page: u64) -> Page {
    map.on(CountPath::Structure)
        .load_array(page as usize * PAGE_BYTES)
}

/// Writes a checkpoint of `map`, of which nothing else changes: all pages that the older image lacks. `lacking`: what both images lack
/// beside what the area knows. Every batch that is staged is free afterwards.
///
/// # Errors
/// What the device says; then the checkpoint before holds.
pub fn checkpoint(
    device: &Path,
    area: &StagedArea,
    map: &Map,
    lacking: &[u64],
    (txid, clean): (u64, bool),
) -> Result<Checkpoint> {
    let pages: Vec<(u64, Page)> = { area.pages_to_copy(lacking) }
        .into_iter()
        .map(|page| (page, load(map, page)))
        .collect();
    let mut pages = pages.iter().map(|(page, bytes)| (*page, bytes));
    area.write_checkpoint(&mut pages, txid, area.next_batch(), clean)
        .map_err(|e| failed(device, e))
}
