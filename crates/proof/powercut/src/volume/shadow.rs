//! Whether everything that is on the media was recorded: a store that went past the recorder
//! would never be lost in any image.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};
use shale_format::log::file_name;
use shale_record::{Action, Recorded};

use crate::volume::base::Base;
use crate::volume::media::PAGE_BYTES;
use crate::volume::place::Place;

/// Compares the media at `place` with the base and what `events` stored since. `logs` logs
/// exist.
///
/// # Errors
/// The first page that is different, or a log that cannot be read.
pub fn all_recorded(
    place: &Place,
    base: &Base,
    events: &[&[Recorded]],
    logs: usize,
) -> Result<(), String> {
    let mut pages = stored(base, events);
    let mut part = vec![0; PART_BYTES];
    for at in (0..base.segment.len()).step_by(PART_BYTES) {
        let n = PART_BYTES.min(base.segment.len() - at);
        place.segment.load(at, &mut part[..n]);
        same(&mut pages, (0, at), &part[..n], &base.segment[at..at + n])?;
    }
    let zeros = vec![0; PART_BYTES];
    for slot in 0..logs {
        let path = place.nvm_dir().join(file_name(slot as u32));
        let failed = |e: std::io::Error| format!("{}: {e}", path.display());
        let file = File::open(&path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        // What was never stored to is a hole, which has no pages: nothing to be read.
        let mut at = 0;
        while let Ok(data) = seek(&file, SeekFrom::Data(at)) {
            at = data / PART_BYTES as u64 * PART_BYTES as u64;
            let n = (PART_BYTES as u64).min(bytes - at) as usize;
            file.read_exact_at(&mut part[..n], at).map_err(failed)?;
            same(&mut pages, (1 + slot, at as usize), &part[..n], &zeros[..n])?;
            at += n as u64;
        }
    }
    match pages.first_key_value() {
        Some((&(medium, page), right)) if medium <= logs && right.iter().any(|&b| b != 0) => Err(
            format!("medium {medium}: page {page} was recorded and is not there"),
        ),
        _ => Ok(()),
    }
}

/// Bytes that are compared at a time.
const PART_BYTES: usize = 64 * PAGE_BYTES;

type Pages = BTreeMap<(usize, usize), [u8; PAGE_BYTES]>;

/// The pages that were stored to, as they should be now.
fn stored(base: &Base, events: &[&[Recorded]]) -> Pages {
    let mut pages = Pages::new();
    for event in events.iter().copied().flatten() {
        let Action::Store { offset, bytes, .. } = &event.action else {
            continue;
        };
        for (n, &byte) in bytes.iter().enumerate() {
            let (page, at) = ((offset + n) / PAGE_BYTES, (offset + n) % PAGE_BYTES);
            let new = || match event.medium {
                0 => std::array::from_fn(|at| base.segment[page * PAGE_BYTES + at]),
                _ => [0; PAGE_BYTES],
            };
            pages.entry((event.medium, page)).or_insert_with(new)[at] = byte;
        }
    }
    pages
}

/// Compares a part of a medium, which begins at a page.
fn same(
    pages: &mut Pages,
    (medium, first): (usize, usize),
    found: &[u8],
    before: &[u8],
) -> Result<(), String> {
    for (page, found) in found.chunks(PAGE_BYTES).enumerate() {
        let at = page * PAGE_BYTES;
        let changed = pages.remove(&(medium, first / PAGE_BYTES + page));
        let expected = changed
            .as_ref()
            .map_or(&before[at..at + found.len()], |p| &p[..found.len()]);
        if found != expected {
            let byte = found.iter().zip(expected).position(|(f, e)| f != e);
            let at = first + at + byte.unwrap_or(0);
            return Err(format!(
                "medium {medium}: byte {at} was stored past the recorder"
            ));
        }
    }
    Ok(())
}
