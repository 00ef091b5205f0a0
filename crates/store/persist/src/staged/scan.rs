//! Reading batches: from the replay position to the first that is not whole.
//!
//! The batch that follows another one has the next number and names its session: it is of the same one, or it says
//! that it is the first of a new one after it. So what lies in the ring of an earlier lap, or of before a
//! power cut that another batch of the same number has followed, is never taken for a successor.

use super::batch::{self, Batch};
use super::error::{Result, damaged};
use super::layout::AreaLayout;
use super::media::{Media, REQUEST_BYTES, is_unreadable};
use super::ring::{Place, Replay, Ring};
use shale_format::staged::BatchHeader;

/// Reads the ring in large requests.
pub(super) struct RingReader<'a> {
    media: &'a Media,
    staging_bytes: u64,
    salt: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl<'a> RingReader<'a> {
    /// Of the area with this salt.
    pub(super) fn new(media: &'a Media, layout: AreaLayout, salt: u64) -> Self {
        Self {
            media,
            staging_bytes: layout.staging_bytes,
            salt,
            window: Vec::new(),
            window_at: 0,
        }
    }

    /// The bytes at `at`, within the ring. `None`: the medium cannot read them.
    fn load(&mut self, at: u64, bytes: usize) -> Result<Option<&[u8]>> {
        let end = at + bytes as u64;
        if at < self.window_at || end > self.window_at + self.window.len() as u64 {
            let most = (self.staging_bytes - at).min(bytes.max(REQUEST_BYTES) as u64) as usize;
            if !self.fill(at, most)? && !self.fill(at, bytes)? {
                return Ok(None);
            }
        }
        let from = (at - self.window_at) as usize;
        Ok(Some(&self.window[from..from + bytes]))
    }

    fn fill(&mut self, at: u64, bytes: usize) -> Result<bool> {
        self.window_at = at;
        self.window.resize(bytes, 0);
        match self
            .media
            .read(AreaLayout::ring_at() + at, &mut self.window)
        {
            Ok(()) => Ok(true),
            Err(e) => {
                self.window.clear();
                is_unreadable(&e).then_some(false).ok_or(e.into())
            }
        }
    }

    /// The batch at byte `at` if one of this area lies there and is whole.
    fn whole(&mut self, at: u64) -> Result<Option<(BatchHeader, &[u8])>> {
        const HEAD_BYTES: usize = super::PAGE_BYTES;
        let (salt, staging_bytes) = (self.salt, self.staging_bytes);
        let Some(head) = self.load(at, HEAD_BYTES)? else {
            return Ok(None);
        };
        let Ok(header) = BatchHeader::decode(head, at) else {
            return Ok(None);
        };
        if header.salt != salt || u64::from(header.bytes) > staging_bytes - at {
            return Ok(None);
        }
        let Some(bytes) = self.load(at, header.bytes as usize)? else {
            return Ok(None);
        };
        let fits = header.verify(&bytes[BatchHeader::BYTES..], at).is_ok();
        Ok(fits.then_some((header, bytes)))
    }

    /// The batch at byte `at` if it is the one after `session`'s, with this number.
    fn next(&mut self, at: u64, number: u64, session: u64) -> Result<Option<BatchHeader>> {
        let found = self.whole(at)?.map(|(header, _)| header);
        Ok(found.filter(|h| h.number == number && [h.session, h.previous].contains(&session)))
    }

    /// Finds all batches from `replay` on; `checkpoint` is the newest one that there is a header of. Gives also the bytes of the
    /// ring where others begin that were never finished, and have to be wiped before the next one is written: else a
    /// power cut could mix the two and make the old one whole.
    pub(super) fn scan(&mut self, replay: Replay, checkpoint: u64) -> Result<(Ring, Vec<u64>)> {
        let mut ring = Ring::new(self.staging_bytes, replay);
        loop {
            let (number, session) = (ring.next(), ring.previous());
            let at_head = self.next(ring.head(), number, session)?;
            let (at, found) = match at_head {
                Some(header) => (ring.head(), Some(header)),
                None => (0, self.next(0, number, session)?),
            };
            let Some(header) = found else {
                break;
            };
            // Over a batch that is needed nothing is ever written.
            if ring.place(header.bytes.into()) != Ok(at) {
                return damaged(format!(
                    "{}: batch {number} at byte {at} of the staging ring lies where none is written",
                    self.media.name()
                ));
            }
            ring.push(at, header.bytes.into(), header.session);
        }
        let mut torn = Vec::new();
        for at in [ring.head(), 0] {
            let (salt, next) = (self.salt, ring.next());
            let head = self.load(at, super::PAGE_BYTES)?;
            let head = head.and_then(|head| BatchHeader::decode(head, at).ok());
            if head.is_some_and(|h| h.salt == salt && h.number >= next) {
                torn.push(at);
            }
            let other = self.whole(at)?.map(|(header, _)| header);
            if let Some(other) = other.filter(|h| h.number >= next && h.checkpoint > checkpoint) {
                return damaged(format!(
                    "{}: its newest header is of checkpoint {checkpoint}, and batch {} was staged after checkpoint {}",
                    self.media.name(),
                    other.number,
                    other.checkpoint
                ));
            }
        }
        Ok((ring, torn))
    }

    /// Reads a batch that was found before.
    pub(super) fn batch(&mut self, place: Place) -> Result<Batch> {
        let name = self.media.name();
        let wrong = |why: String| {
            damaged(format!(
                "{name}: batch {} at byte {} of the staging ring: {why}",
                place.number, place.at
            ))
        };
        match self.whole(place.at)? {
            Some((header, bytes)) if header.number == place.number => {
                batch::decode(&header, bytes, place.at).or_else(|e| wrong(e.to_string()))
            }
            _ => wrong("it is not whole any more".to_owned()),
        }
    }
}
