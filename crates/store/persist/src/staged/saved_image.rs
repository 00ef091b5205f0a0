//! An area that is found by its header, and single pages of its newest image, of a device that another process may be using.
//!
//! Where an area begins, only VOLUME.toml says. Its headers say where they lie themselves, so one that is found there, with the
//! volume's identity, is the area's: unless a user has written a file that looks like one. Files lie in the zones before it, and in
//! its images: [`find_areas`] gives all that look right, for the caller to refuse where there are several.

use super::area::{checkpoint_of, newest_header};
use super::error::{Result, damaged, no_area};
use super::images::Image;
use super::layout::AreaLayout;
use super::media::{Media, REQUEST_BYTES};
use super::{Checkpoint, PAGE_BYTES};
use shale_block::TierDevice;
use shale_format::staged::{AREA_MAGIC, AreaHeader, image};
use std::ops::Range;
use std::sync::Arc;

const PAGE: u64 = PAGE_BYTES as u64;

/// The newest image of an area, to be read page by page. It is not locked: what is read may have been replaced meanwhile, and is
/// an error then.
pub struct SavedImage {
    media: Media,
    layout: AreaLayout,
    header: AreaHeader,
    /// None before the first checkpoint: all is zeros.
    image: Option<Image>,
}

impl SavedImage {
    /// Opens the area at byte `at` of `device`, whatever its size.
    ///
    /// # Errors
    /// There is none; it does not end within the device; its table is damaged; what the device says.
    pub fn open(device: Arc<dyn TierDevice>, at: u64) -> Result<SavedImage> {
        let mut block = [0; PAGE_BYTES];
        let mut found = None;
        for n in 0..2 {
            let at = at.saturating_add(n * PAGE);
            let fits = at.is_multiple_of(PAGE) && at <= device.bytes().saturating_sub(PAGE);
            if !fits {
                continue;
            }
            device.read(at, &mut block)?;
            if let Ok(header) = AreaHeader::decode(&block, n) {
                found = Some(AreaLayout {
                    memory_bytes: header.memory_bytes,
                    staging_bytes: header.staging_bytes,
                });
            }
        }
        let Some(layout) = found else {
            return no_area(format!("{}, byte {at}: no header is there", device.name()));
        };
        let media = Media::new(device, at, layout)?;
        let header = newest_header(&media)?;
        let image = match header.image {
            image::NONE => None,
            which => {
                let mut newest = Image::new(which as usize - 1, layout);
                newest.load_newest(&media, layout, header.table_crc)?;
                Some(newest)
            }
        };
        Ok(SavedImage {
            media,
            layout,
            header,
            image,
        })
    }

    /// Identity of the volume.
    pub fn uuid(&self) -> [u8; 16] {
        self.header.uuid
    }

    /// How large the parts of the area are.
    pub fn layout(&self) -> AreaLayout {
        self.layout
    }

    /// The newest checkpoint.
    pub fn checkpoint(&self) -> Checkpoint {
        checkpoint_of(&self.header)
    }

    /// Reads a page of the memory tier as the image has it.
    ///
    /// # Errors
    /// It is damaged, or behind the end; what the device says.
    pub fn read_page(&self, page: u64, into: &mut [u8; PAGE_BYTES]) -> Result<()> {
        if page >= self.layout.pages() {
            let pages = self.layout.pages();
            return damaged(format!("{}: page {page} of {pages}", self.media.name()));
        }
        match &self.image {
            Some(image) => image.read_page(&self.media, self.layout, page, into),
            None => {
                into.fill(0);
                Ok(())
            }
        }
    }
}

/// Bytes of a device at which an area of this volume may begin: a header there is whole, names the volume, and says that it lies there.
/// Looks from the beginning of `range` to its end, and ends before where an area was found and `sure` is behind.
///
/// # Errors
/// What the device says.
pub fn find_areas(
    device: &dyn TierDevice,
    uuid: [u8; 16],
    range: Range<u64>,
    sure: u64,
) -> Result<Vec<u64>> {
    let (mut found, mut bytes) = (Vec::new(), vec![0; REQUEST_BYTES]);
    let mut at = range.start / PAGE * PAGE;
    let end = range.end.min(device.bytes()) / PAGE * PAGE;
    while at < end && (found.is_empty() || at < sure) {
        let bytes = &mut bytes[..(end - at).min(REQUEST_BYTES as u64) as usize];
        device.read(at, bytes)?;
        for (n, block) in (0..).zip(bytes.chunks(PAGE_BYTES)) {
            let here = at + n * PAGE;
            if let Some(begin) = begins(block, here, uuid).filter(|begin| !found.contains(begin)) {
                found.push(begin);
            }
        }
        at += bytes.len() as u64;
    }
    Ok(found)
}

/// Where the area begins of which this block, at byte `here`, is a header.
fn begins(block: &[u8], here: u64, uuid: [u8; 16]) -> Option<u64> {
    if !block.starts_with(&AREA_MAGIC.to_le_bytes()) {
        return None;
    }
    let begins = |n: u64| {
        let header = AreaHeader::decode(block, n).ok()?;
        let begin = here.checked_sub(n * PAGE)?;
        (header.uuid == uuid && header.at == begin).then_some(begin)
    };
    begins(0).or_else(|| begins(1))
}
