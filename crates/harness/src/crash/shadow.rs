//! Whether everything that is on the media was recorded: a store that went past the recorder
//! would never be lost in any image.

use std::collections::BTreeMap;

use shale_device::sim::{Action, Recorded};
use shale_format::log::file_name;

use super::base::{Base, PAGE_BYTES, Place};

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
    let mut found = vec![0; base.segment.len()];
    place.segment.load(0, &mut found);
    same(&mut pages, 0, &found, &base.segment)?;
    for slot in 0..logs {
        let path = place.nvm_dir().join(file_name(slot as u32));
        let found = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        same(&mut pages, 1 + slot, &found, &vec![0; found.len()])?;
    }
    Ok(())
}

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

fn same(pages: &mut Pages, medium: usize, found: &[u8], before: &[u8]) -> Result<(), String> {
    for (page, found) in found.chunks(PAGE_BYTES).enumerate() {
        let at = page * PAGE_BYTES;
        let changed = pages.remove(&(medium, page));
        let expected = changed
            .as_ref()
            .map_or(&before[at..at + found.len()], |p| &p[..found.len()]);
        if found != expected {
            let byte = found.iter().zip(expected).position(|(f, e)| f != e);
            let at = at + byte.unwrap_or(0);
            return Err(format!(
                "medium {medium}: byte {at} was stored past the recorder"
            ));
        }
    }
    Ok(())
}
