//! The writing end of a log: many threads append, each call returns when recovery is
//! certain to keep its records.
//!
//! Steps of an append, and what a power cut after each leaves:
//! 1. *admit*: a permit is had before any inode lock. Nothing.
//! 2. *reserve*: one atomic add. Nothing.
//! 3. *fill*: non-temporal stores of whole lines, then **one fence**. A record is valid
//!    as a whole or not at all (checksum), so: the record, if every earlier one is
//!    whole; else nothing. Data above [`CHECKSUM_BYTES_MAX`] is stored and fenced
//!    first, then the header, then a second fence.
//! 4. *publish*: wait until all earlier claims are published, store `published`. The
//!    record, for certain; only now the call returns.
//!
//! In NVM the fence comes before the publication, so what is published is hardened: `hardened`
//! is `published` by construction ([`Domain::hardened`]), and a call that waits for its records
//! has nothing to wait for.
//!
//! What recovery keeps is therefore a prefix of the log, which contains every call
//! that had returned and respects real time across threads.
//!
//! Between reserve and publish a thread must not panic or be cancelled: its claim would
//! stop all later ones. So everything is checked before. Should it panic all the same,
//! those who wait for it panic, too: nothing that returned is behind its claim.
//!
//! [`CHECKSUM_BYTES_MAX`]: shale_format::limits::CHECKSUM_BYTES_MAX

use crate::encode::Part;
use crate::error::OplogError;
use crate::log::Log;
use crate::ring::{Allocation, LogRange, LogReservation, ParkedPermit, Ring};
use crate::write_record;
use parking_lot::Mutex;
use shale_format::LogPos;
use shale_format::record::flag;
use shale_nvm::{Map, SharedWords};
use shale_persist::{Domain, Hardened, Published};
use shale_sys::{failpoints, mutants};
use std::sync::Arc;
use std::time::Duration;

/// Most records in one chain. The scan holds a chain back until it is whole, and must
/// not be made to hold any number.
pub const CHAIN_RECORDS_MAX: usize = 4096;

/// The word that tells the daemon how far the log is published: 8 bytes of shared
/// memory, at a multiple of 8.
pub struct PublishedWord {
    /// The client's control page.
    pub map: Arc<Map>,
    /// Byte offset of the word.
    pub offset: usize,
}

/// Where records went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Position of the (first) record.
    pub pos: LogPos,
    /// Position behind the (last) record.
    pub end: LogPos,
}

/// Appends to one log. There is one writer per log, shared by all threads of the process.
pub struct Writer {
    log: Arc<Log>,
    ring: Ring,
    words: SharedWords,
    word_at: usize,
    domain: Domain,
    /// Serialises changes of the durable tail. Leaf.
    tail_lock: Mutex<()>,
}

impl Writer {
    /// The writer of a log whose valid records end at `head` (0 for a new log). After a
    /// crash, [`Log::seal`] comes first. Stores `head` into `word`.
    ///
    /// # Errors
    /// A durable tail that is above `head` or more than one lap of the ring below it.
    pub fn new(log: Arc<Log>, head: LogPos, word: PublishedWord) -> Result<Self, OplogError> {
        let lowest = LogPos(head.0.saturating_sub(log.ring_bytes()));
        let tail = log.tail(lowest, head)?;
        let ring = Ring::new(log.ring_bytes(), tail.0, head.0);
        let domain = log.domain();
        let words = SharedWords::new(word.map);
        words.store_u64(word.offset, head.0);
        Ok(Self {
            log,
            ring,
            words,
            word_at: word.offset,
            domain,
            tail_lock: Mutex::new(()),
        })
    }

    /// What makes the log durable.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// The log.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Everything before this position is complete, and the daemon sees it.
    #[inline]
    pub fn published(&self) -> Published {
        Published::at(LogPos(self.ring.published()))
    }

    /// Everything before this position survives a power cut. `None`: the log is staged, and the daemon knows.
    #[inline]
    pub fn hardened(&self) -> Option<Hardened> {
        self.domain.hardened(self.published())
    }

    /// Next position that will be given out: no later record begins before it.
    #[inline]
    pub fn reserved(&self) -> LogPos {
        LogPos(self.ring.reserved())
    }

    /// Oldest position that is kept.
    #[inline]
    pub fn tail(&self) -> LogPos {
        LogPos(self.ring.tail())
    }

    /// Bytes of the ring.
    #[inline]
    pub fn ring_bytes(&self) -> u64 {
        self.ring.bytes()
    }

    /// Fraction of the ring that is in use since the tail, 0 to 1.
    #[inline]
    pub fn used(&self) -> f64 {
        let tail = self.ring.tail();
        (self.ring.reserved() - tail) as f64 / self.ring.bytes() as f64
    }

    /// Most bytes that one permit can be for (a quarter of the ring). Larger calls split.
    #[inline]
    pub fn permit_bytes_max(&self) -> u64 {
        self.ring.permit_bytes_max()
    }

    /// Raises the tail to `tail` (at or below `published`; a record's first position or
    /// the end of the last) and gives the space before it to new records. A position
    /// that is not above the present tail changes nothing.
    ///
    /// The caller has made sure that nothing points below `tail` any more: overlays
    /// purged, no request in progress with records there, and everything digested. The tail is
    /// durable before new records may overwrite what lies before it: a power cut in between leaves a tail below which
    /// records are still whole, and recovery merely looks at more.
    pub fn set_tail(&self, tail: LogPos) {
        let guard = self.tail_lock.lock();
        if tail > self.tail() {
            assert!(
                tail <= self.published().pos(),
                "tail {tail:?} is above {:?}",
                self.published()
            );
            self.log.store_tail(tail);
            self.ring.release(tail.0);
        }
        drop(guard);
    }

    /// Copies bytes of a payload out of the ring; see [`crate::Log::read`].
    #[inline]
    pub fn read(&self, at: LogPos, skip: u64, into: &mut [u8]) {
        self.log.read(at, skip, into);
    }

    /// The right to append `bytes` bytes of records ([`Part::bytes`], summed), if the
    /// ring has space for them and for a possible pad. What is not used goes back when
    /// the permit is dropped. Take it before any inode lock.
    ///
    /// # Panics
    /// If `bytes` is above [`Self::permit_bytes_max`].
    #[inline]
    pub fn try_reserve(&self, bytes: u64) -> Option<LogReservation<'_>> {
        self.ring.try_reserve(bytes)
    }

    /// Takes a permit up again that was put aside by [`LogReservation::keep`], once.
    #[inline]
    pub fn resume(&self, kept: ParkedPermit) -> LogReservation<'_> {
        self.ring.resume(kept)
    }

    /// As [`Self::try_reserve`]; while there is no space it calls `make_space` again and
    /// again, which collects (see [`Self::set_tail`]), asks for a digest, and sleeps
    /// in [`Self::wait_for_space`] or in the answer.
    pub fn reserve(&self, bytes: u64, mut make_space: impl FnMut(u64)) -> LogReservation<'_> {
        loop {
            if let Some(permit) = self.try_reserve(bytes) {
                return permit;
            }
            make_space(bytes);
        }
    }

    /// Sleeps until a permit for `bytes` bytes may be had (true) or `limit` has passed.
    pub fn wait_for_space(&self, bytes: u64, limit: Option<Duration>) -> bool {
        self.ring.wait_for_space(bytes, limit)
    }

    /// Appends one record and returns when it is certain to survive a power cut. One
    /// fence up to `CHECKSUM_BYTES_MAX` bytes of payload, two beyond. Fills in
    /// `part.header`: `pos`, `crc` and the flags `MORE` (off) and `FENCED`.
    ///
    /// The payload must be readable memory. It may change meanwhile: what is logged is
    /// then some mixture, as with any write.
    ///
    /// # Panics
    /// If the permit has less than [`Part::bytes`] left.
    #[inline]
    pub fn append(&self, permit: &mut LogReservation<'_>, part: &mut Part<'_>) -> Appended {
        if write_record::needs_two_fences(part) {
            return self.append_chain(permit, std::slice::from_mut(part));
        }
        let unpublished = self.ring.unpublished();
        let claim = self.claim(permit, part.bytes());
        failpoints::reach("append-reserved");
        place(part, claim.start, 0);
        write_record::covered(&self.log, part);
        let early = mutants::is_on("publish-before-fence").then(|| self.publish_unfenced(claim));
        if !mutants::is_on("append-fence") {
            self.log.view().fence();
        }
        let appended = early.unwrap_or_else(|| self.publish(claim));
        unpublished.done();
        appended
    }

    /// The mistake that makes `published` more than `hardened`.
    #[cold]
    fn publish_unfenced(&self, claim: LogRange) -> Appended {
        let appended = self.publish(claim);
        mutants::between();
        appended
    }

    /// Appends records as one transaction: after a power cut either all of them are
    /// there or none, and no other thread's record is between them. Otherwise as
    /// [`Self::append`]; the number of fences is that of one record.
    ///
    /// # Panics
    /// If there is no part, or more than [`CHAIN_RECORDS_MAX`], or the permit has less left.
    pub fn append_chain(
        &self,
        permit: &mut LogReservation<'_>,
        parts: &mut [Part<'_>],
    ) -> Appended {
        assert!(
            (1..=CHAIN_RECORDS_MAX).contains(&parts.len()),
            "chain of {} records",
            parts.len()
        );
        let bytes = parts.iter().map(Part::bytes).sum();
        let unpublished = self.ring.unpublished();
        let claim = self.claim(permit, bytes);
        self.fill(claim.start, parts);
        let appended = self.publish(claim);
        unpublished.done();
        appended
    }

    /// Claims the next bytes of the ring, behind a pad where they would meet its end.
    #[inline]
    fn claim(&self, permit: &mut LogReservation<'_>, bytes: u64) -> LogRange {
        let Allocation { padding, claim } = self.ring.allocate(permit, bytes);
        if let Some((waste, middle)) = padding {
            self.pad(waste, middle);
        }
        claim
    }

    #[cold]
    fn pad(&self, waste: LogRange, middle: u64) {
        write_record::pad(&self.log, waste.start, middle);
        write_record::pad(&self.log, middle, waste.end);
        if !mutants::is_on("pad-fence") {
            self.log.view().fence();
        }
        self.publish(waste);
        mutants::between();
    }

    #[inline]
    fn publish(&self, claim: LogRange) -> Appended {
        failpoints::reach("append-filled");
        let end = self.ring.wait_turn(claim);
        self.words.store_u64(self.word_at, end);
        self.ring.advance(claim, end);
        Appended {
            pos: LogPos(claim.start),
            end: LogPos(claim.end),
        }
    }

    /// Writes the records from position `at` and makes them durable.
    #[inline]
    fn fill(&self, mut at: u64, parts: &mut [Part<'_>]) {
        let last = parts.len() - 1;
        let mut two_fences = false;
        for (n, part) in parts.iter_mut().enumerate() {
            let more = n < last && !mutants::is_on("chain-ends");
            place(part, at, if more { flag::MORE } else { 0 });
            at += part.bytes();
            two_fences |= write_record::needs_two_fences(part);
        }
        if two_fences {
            self.fill_fenced(parts);
        } else {
            for part in parts {
                write_record::covered(&self.log, part);
            }
        }
        if !mutants::is_on("append-fence") {
            self.log.view().fence();
        }
    }

    /// All large data, a fence, then the headers that speak of it and the small records.
    #[inline(never)]
    fn fill_fenced(&self, parts: &mut [Part<'_>]) {
        for part in parts
            .iter_mut()
            .filter(|part| write_record::needs_two_fences(part))
        {
            write_record::data(&self.log, part);
        }
        if !mutants::is_on("append-data-fence") {
            self.log.view().fence();
        }
        for part in parts {
            if write_record::needs_two_fences(part) {
                write_record::header(&self.log, part);
            } else {
                write_record::covered(&self.log, part);
            }
        }
    }
}

/// Gives a record its position, and takes away what only the log may say of it.
#[inline]
fn place(part: &mut Part<'_>, at: u64, more: u8) {
    let header = &mut part.header;
    header.pos = at;
    let payload = header.payload_bytes > 0;
    header.flags &= !(flag::MORE | if payload { flag::FENCED } else { 0 });
    header.flags |= more;
}
