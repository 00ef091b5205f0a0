//! The mapping from what stands out of band: all metadata is read, and the page with the
//! highest sequence number says where a block is, or that it is trimmed.

use super::map::Where;
use super::oob::{Kind, Oob, ranges};
use super::state::State;
use crate::zoned::{PageAt, Zoned};
use shale_block::BlockError;

/// Erases what a power cut left half erased.
pub(super) fn erase_halves(flash: &Zoned) -> Result<(), BlockError> {
    let blocks = (0..flash.geometry().blocks()).map(|number| flash.geometry().block(number));
    for block in blocks.filter(|block| flash.is_half_erased(*block)) {
        flash.erase(block)?;
    }
    Ok(())
}

/// Fills the map of a new state.
pub(super) fn fill(flash: &Zoned, state: &mut State) -> Result<(), BlockError> {
    let mut pages = found_pages(flash)?;
    pages.sort_unstable_by_key(|(oob, _)| oob.sequence);
    let mut page = vec![0; flash.geometry().page_bytes as usize];
    for (oob, at) in &pages {
        match oob.kind {
            Kind::Data(blocks) => {
                for (slot, block) in blocks.into_iter().enumerate() {
                    if block < state.map.blocks() {
                        state.map.set(block, Where::At(*at, slot));
                    }
                }
            }
            Kind::Trims(count) => {
                flash.read(*at, &mut page)?;
                for (first, blocks) in ranges(&page, count) {
                    for block in first..first.saturating_add(blocks).min(state.map.blocks()) {
                        if state.map.get(block) != Where::Unwritten {
                            state.map.set(block, Where::Trimmed(*at));
                        }
                    }
                }
            }
        }
        state.sequence = oob.sequence;
        state.written_at[at.block.number() as usize] = oob.sequence;
    }
    Ok(())
}

fn found_pages(flash: &Zoned) -> Result<Vec<(Oob, PageAt)>, BlockError> {
    let geometry = flash.geometry();
    let mut pages = Vec::new();
    for number in 0..geometry.blocks() {
        let block = geometry.block(number);
        for page in 0..flash.next_page(block) {
            let at = PageAt { block, page };
            match flash.read_oob(at) {
                Ok(oob) => pages.extend(Oob::from_bytes(&oob).map(|oob| (oob, at))),
                // Never acknowledged by a flush: what it would replace is still there.
                Err(BlockError::TornPage { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(pages)
}
