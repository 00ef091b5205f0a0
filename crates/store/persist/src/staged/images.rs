//! The two images of the memory tier: tables of checksums, which pages each one lacks, and their I/O.
//!
//! Invariant: a page that an image does not lack has, on the device, the checksum that its table says, and the
//! table on the device says the same as the one here. A checkpoint writes every page that its image lacks.

use super::PAGE_BYTES;
use super::error::{Result, damaged};
use super::layout::{AreaLayout, SUMS_PER_BLOCK};
use super::media::{Media, REQUEST_BYTES, is_unreadable};
use super::page_set::PageSet;
use shale_format::checksum::Crc32c;
use shale_format::staged::{SUM_BYTES, page_sum};
use std::ops::Range;

/// Pages of one request.
const REQUEST_PAGES: u64 = (REQUEST_BYTES / PAGE_BYTES) as u64;

/// A page as it is before it is written.
pub(super) const ZERO_PAGE: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// One image.
pub(super) struct Image {
    /// Which: 0 or 1.
    which: usize,
    /// The checksum of each page; 0: never written.
    sums: Vec<u32>,
    /// Pages that it does not hold as the memory tier does.
    lacks: PageSet,
    /// The table on the device is not this one, whatever was written.
    is_new: bool,
}

impl Image {
    /// One that nothing was ever written to.
    pub(super) fn new(which: usize, layout: AreaLayout) -> Self {
        Self {
            which,
            sums: vec![0; layout.pages() as usize],
            lacks: PageSet::new(layout.pages()),
            is_new: true,
        }
    }

    /// Reads the table.
    fn load(&mut self, media: &Media, layout: AreaLayout) -> Result<()> {
        let (mut at, mut bytes) = (layout.table_at(self.which), vec![0; REQUEST_BYTES]);
        for sums in self.sums.chunks_mut(REQUEST_BYTES / SUM_BYTES) {
            let bytes = &mut bytes[..(sums.len() * SUM_BYTES).next_multiple_of(PAGE_BYTES)];
            media.read(at, bytes)?;
            at += bytes.len() as u64;
            for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks::<SUM_BYTES>().0) {
                *sum = u32::from_le_bytes(*bytes);
            }
        }
        self.is_new = false;
        Ok(())
    }

    /// The image of a checkpoint: its table has to have this checksum.
    pub(super) fn load_newest(
        &mut self,
        media: &Media,
        layout: AreaLayout,
        crc: u32,
    ) -> Result<()> {
        self.load(media, layout)?;
        match self.table_crc() == crc {
            true => Ok(()),
            false => damaged(format!(
                "{}: the table of image {} has checksum {:#010x} where its header says {crc:#010x}",
                media.name(),
                self.which + 1,
                self.table_crc()
            )),
        }
    }

    /// The image that a checkpoint after `newest` may have been writing: whatever of it is not as `newest` has it, in
    /// the table or by the checksum of the page, is lacking.
    pub(super) fn load_older(
        &mut self,
        media: &Media,
        layout: AreaLayout,
        newest: &Image,
    ) -> Result<()> {
        match self.load(media, layout) {
            Err(super::PersistError::Device(e)) if is_unreadable(&e) => {
                self.sums.fill(0);
                self.is_new = true;
            }
            other => other?,
        }
        self.lacks_as(newest);
        let mut bytes = vec![0; REQUEST_BYTES];
        for first in (0..layout.pages()).step_by(REQUEST_PAGES as usize) {
            let pages = first..layout.pages().min(first + REQUEST_PAGES);
            let is_there =
                |page: &u64| self.sums[*page as usize] != 0 && !self.lacks.contains(*page);
            let Some(there) = bounds(pages.filter(is_there)) else {
                continue;
            };
            let bytes = &mut bytes[..(there.end - there.start) as usize * PAGE_BYTES];
            let read = media.read(layout.page_at(self.which, there.start), bytes);
            if let Err(e) = read {
                if !is_unreadable(&e) {
                    return Err(e.into());
                }
                there.for_each(|page| self.lacks.insert(page));
                continue;
            }
            for (page, bytes) in there.zip(bytes.chunks(PAGE_BYTES)) {
                let sum = self.sums[page as usize];
                if sum != 0 && sum != page_sum(bytes) {
                    self.lacks.insert(page);
                }
            }
        }
        Ok(())
    }

    /// Notes that it lacks what its table does not have as that of `newest` does.
    pub(super) fn lacks_as(&mut self, newest: &Image) {
        for (page, (mine, other)) in (0..).zip(self.sums.iter().zip(&newest.sums)) {
            if mine != other {
                self.lacks.insert(page);
            }
        }
    }

    /// Notes that it lacks these pages.
    pub(super) fn lack(&mut self, pages: &[u64]) {
        pages.iter().for_each(|&page| self.lacks.insert(page));
    }

    /// Notes that it lacks page `page` if its table does not say this checksum; `is_zero`: the page is zeros, and may
    /// be one that was never written.
    pub(super) fn compare(&mut self, page: u64, sum: u32, is_zero: bool) {
        let mine = self.sums[page as usize];
        if mine != sum && !(is_zero && mine == 0) {
            self.lacks.insert(page);
        }
    }

    /// The pages that it lacks, ascending.
    pub(super) fn lacking(&self) -> Vec<u64> {
        self.lacks.iter().collect()
    }

    fn encode(&self, sums: Range<usize>, into: &mut Vec<u8>) {
        into.clear();
        let sums = &self.sums[sums.start..sums.end.min(self.sums.len())];
        into.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
    }

    /// Checksum of the table without its padding.
    pub(super) fn table_crc(&self) -> u32 {
        let (mut crc, mut bytes) = (Crc32c::new(), Vec::new());
        for from in (0..self.sums.len()).step_by(REQUEST_BYTES / SUM_BYTES) {
            self.encode(from..from + REQUEST_BYTES / SUM_BYTES, &mut bytes);
            crc.update(&bytes);
        }
        crc.finish()
    }

    /// Writes pages, ascending, and what of the table they change. Not durable. Gives how many.
    pub(super) fn write(
        &mut self,
        media: &Media,
        layout: AreaLayout,
        pages: &mut dyn Iterator<Item = (u64, &[u8; PAGE_BYTES])>,
    ) -> Result<u64> {
        let mut request = Vec::with_capacity(REQUEST_BYTES);
        let (mut first, mut count, mut last) = (0, 0, None);
        let mut blocks = PageSet::new(self.sums.len().div_ceil(SUMS_PER_BLOCK) as u64);
        let mut left = PageSet::clone(&self.lacks);
        for (page, bytes) in pages {
            assert!(page < layout.pages(), "page {page} of {}", layout.pages());
            assert!(last < Some(page), "page {page} comes after {last:?}");
            let goes_on = last == page.checked_sub(1) && request.len() < REQUEST_BYTES;
            if !goes_on && !request.is_empty() {
                media.write(layout.page_at(self.which, first), &request)?;
                request.clear();
            }
            if request.is_empty() {
                first = page;
            }
            request.extend_from_slice(bytes);
            self.sums[page as usize] = page_sum(bytes);
            blocks.insert(page / SUMS_PER_BLOCK as u64);
            left.remove(page);
            (count, last) = (count + 1, Some(page));
        }
        if !request.is_empty() {
            media.write(layout.page_at(self.which, first), &request)?;
        }
        let missing = left.first();
        assert!(
            missing.is_none(),
            "a checkpoint without page {missing:?}, which its image lacks"
        );
        if self.is_new {
            (0..layout.table_bytes() / PAGE_BYTES as u64).for_each(|n| blocks.insert(n));
        }
        self.write_table(media, layout, &blocks)?;
        Ok(count)
    }

    /// Writes these blocks of the table.
    fn write_table(&self, media: &Media, layout: AreaLayout, blocks: &PageSet) -> Result<()> {
        let mut bytes = Vec::new();
        let mut blocks = blocks.iter().peekable();
        while let Some(first) = blocks.next() {
            let mut end = first + 1;
            while end - first < REQUEST_PAGES && blocks.next_if_eq(&end).is_some() {
                end += 1;
            }
            let sums = |block: u64| block as usize * SUMS_PER_BLOCK;
            self.encode(sums(first)..sums(end), &mut bytes);
            bytes.resize((end - first) as usize * PAGE_BYTES, 0);
            media.write(
                layout.table_at(self.which) + first * PAGE_BYTES as u64,
                &bytes,
            )?;
        }
        Ok(())
    }

    /// All that it lacked was written and is durable.
    pub(super) fn is_complete(&mut self) {
        self.lacks.clear();
        self.is_new = false;
    }

    /// Gives all pages that were ever written, in order, each checked: the byte of the memory tier and what it holds from
    /// there on.
    pub(super) fn read(
        &self,
        media: &Media,
        layout: AreaLayout,
        put: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<()> {
        let mut bytes = vec![0; REQUEST_BYTES];
        for first in (0..layout.pages()).step_by(REQUEST_PAGES as usize) {
            let all = first..layout.pages().min(first + REQUEST_PAGES);
            let is_written = |page: &u64| self.sums[*page as usize] != 0;
            let Some(pages) = bounds(all.filter(is_written)) else {
                continue;
            };
            let bytes = &mut bytes[..(pages.end - pages.start) as usize * PAGE_BYTES];
            media.read(layout.page_at(self.which, pages.start), bytes)?;
            let mut begun = None;
            for (n, page) in pages.clone().enumerate() {
                let of = |n: usize| n * PAGE_BYTES;
                let (sum, found) = (self.sums[page as usize], &bytes[of(n)..of(n + 1)]);
                if sum == 0 {
                    if let Some(from) = begun.take() {
                        put(byte(pages.start, from), &bytes[of(from)..of(n)]);
                    }
                    continue;
                }
                self.check_page(media, page, found)?;
                begun.get_or_insert(n);
            }
            if let Some(from) = begun {
                put(byte(pages.start, from), &bytes[from * PAGE_BYTES..]);
            }
        }
        Ok(())
    }

    /// Reads a page, checked; zeros if it was never written.
    pub(super) fn read_page(
        &self,
        media: &Media,
        layout: AreaLayout,
        page: u64,
        into: &mut [u8; PAGE_BYTES],
    ) -> Result<()> {
        let sum = self.sums[page as usize];
        if sum == 0 {
            into.fill(0);
            return Ok(());
        }
        media.read(layout.page_at(self.which, page), into)?;
        self.check_page(media, page, into)
    }

    /// Whether a page is as the table says.
    fn check_page(&self, media: &Media, page: u64, found: &[u8]) -> Result<()> {
        let (found, sum) = (page_sum(found), self.sums[page as usize]);
        if found == sum {
            return Ok(());
        }
        damaged(format!(
            "{}: page {page} of image {} has checksum {found:#010x} where its table says {sum:#010x}",
            media.name(),
            self.which + 1
        ))
    }
}

/// Byte of the memory tier of the page `n` pages behind `first`.
fn byte(first: u64, n: usize) -> u64 {
    (first + n as u64) * PAGE_BYTES as u64
}

/// From the first to the last of some numbers, which ascend.
fn bounds(mut pages: impl Iterator<Item = u64>) -> Option<Range<u64>> {
    let first = pages.next()?;
    Some(first..pages.last().unwrap_or(first) + 1)
}
