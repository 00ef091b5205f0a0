//! The area: made, opened, appended to, and the checkpoints.
//!
//! Locks in this order: `images`, `staging`, `newest`. A checkpoint holds the first one all the time and the
//! second one for moments: batches are appended while it writes.
//!
//! What a power cut leaves of a checkpoint: before its header is durable, the one before, whose image nobody wrote to and
//! whose batches are all there; afterwards the new one.

use super::batch::{self, Batch, BatchNumber, OVERHEAD_BYTES_MAX, Piece};
use super::error::{PersistError, Result, damaged, no_area};
use super::images::{Image, ZERO_PAGE};
use super::layout::AreaLayout;
use super::media::{Media, is_unreadable};
use super::ring::{Replay, Ring};
use super::scan::RingReader;
use super::{Checkpoint, PAGE_BYTES, StagedCounts};
use parking_lot::Mutex;
use shale_block::{BlockError, Buffer, TierDevice};
use shale_format::FormatError;
use shale_format::staged::{
    AREA_MAGIC, AREA_VERSION, AreaHeader, BATCH_MAGIC, BATCH_PIECES_MAX, BatchHeader, image,
    page_sum,
};
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most bytes of a batch in the ring, however large that is. A transaction, which takes a quarter of a log at most, is in one batch.
const BATCH_BYTES_MAX: u64 = 64 << 20;

/// What appending needs.
struct Staging {
    ring: Ring,
    /// Bytes of the ring where batches begin that a power cut has torn: wiped before the next one is written.
    torn: Vec<u64>,
    /// The batch, in memory that direct I/O accepts.
    buffer: Buffer,
    buffer_bytes: usize,
}

impl Staging {
    fn new(ring: Ring, torn: Vec<u64>) -> Self {
        Self {
            ring,
            torn,
            buffer: Buffer::new(PAGE_BYTES),
            buffer_bytes: PAGE_BYTES,
        }
    }
}

#[derive(Default)]
struct Counters {
    batches: AtomicU64,
    batch_bytes: AtomicU64,
    checkpoints: AtomicU64,
    pages_written: AtomicU64,
}

/// The staged persistence area of a volume; see [`crate::staged`]. Shared by all threads.
pub struct StagedArea {
    media: Media,
    layout: AreaLayout,
    /// Names the batches that this value appends.
    session: u64,
    images: Mutex<[Image; 2]>,
    staging: Mutex<Staging>,
    /// The newest header that is durable.
    newest: Mutex<AreaHeader>,
    counters: Counters,
}

impl StagedArea {
    /// Makes an area at byte `at` of `device`, without a checkpoint. All of the ring is written, so that no later write
    /// to it changes what a host's file system knows of an image file.
    ///
    /// # Errors
    /// [`PersistError::NoArea`]: there is no place for it; what the device says.
    pub fn make(
        device: Arc<dyn TierDevice>,
        at: u64,
        layout: AreaLayout,
        uuid: [u8; 16],
    ) -> Result<StagedArea> {
        let media = Media::new(device, at, layout)?;
        let session = random()?;
        // First of all no header of an area that was here counts any more.
        media.zero(AreaLayout::header_at(0), 2 * PAGE_BYTES as u64)?;
        media.flush()?;
        media.zero(AreaLayout::ring_at(), layout.staging_bytes)?;
        media.flush()?;
        let header = AreaHeader {
            magic: AREA_MAGIC,
            uuid,
            salt: random()?,
            at,
            memory_bytes: layout.memory_bytes,
            staging_bytes: layout.staging_bytes,
            checkpoint: 0,
            txid: 0,
            replay_number: 1,
            replay_at: 0,
            replay_session: session,
            image: image::NONE,
            clean: 0,
            version: AREA_VERSION,
            table_crc: 0,
            reserved: [0; 20],
            crc: 0,
        };
        write_header(&media, &header)?;
        let ring = Ring::new(layout.staging_bytes, replay_of(&header));
        let images = [0, 1].map(|which| Image::new(which, layout));
        let staging = Staging::new(ring, Vec::new());
        Ok(Self::with(
            media,
            layout,
            session,
            (header, images, staging),
        ))
    }

    /// Opens the area at byte `at` of `device`: the newest header that is whole, and the batches since its
    /// checkpoint. Reads the ring and the older image; writes nothing.
    ///
    /// # Errors
    /// [`PersistError::NoArea`]: there is none of this volume, place and size. [`PersistError::Damaged`]: what the header
    /// promises is not there. What the device says.
    pub fn open(
        device: Arc<dyn TierDevice>,
        at: u64,
        layout: AreaLayout,
        uuid: [u8; 16],
    ) -> Result<StagedArea> {
        let media = Media::new(device, at, layout)?;
        let header = newest_header(&media)?;
        let name = media.name();
        if header.uuid != uuid {
            let [expected, found] = [uuid, header.uuid].map(u128::from_be_bytes);
            return no_area(format!(
                "{name}: it is of volume {found:032x}, expected {expected:032x}"
            ));
        }
        for (what, expected, found) in [
            ("place", at, header.at),
            ("memory_bytes", layout.memory_bytes, header.memory_bytes),
            ("staging_bytes", layout.staging_bytes, header.staging_bytes),
        ] {
            if expected != found {
                return no_area(format!(
                    "{name}: its {what} is {found}, expected {expected}"
                ));
            }
        }
        let mut reader = RingReader::new(&media, layout, header.salt);
        let (ring, torn) = reader.scan(replay_of(&header), header.checkpoint)?;
        let mut images = [0, 1].map(|which| Image::new(which, layout));
        if header.checkpoint > 0 {
            let [first, second] = &mut images;
            let (newest, older) = match header.image {
                image::FIRST => (first, second),
                _ => (second, first),
            };
            newest.load_newest(&media, layout, header.table_crc)?;
            match header.checkpoint {
                1 => older.lacks_as(newest),
                _ => older.load_older(&media, layout, newest)?,
            }
        }
        let session = random()?;
        let staging = Staging::new(ring, torn);
        Ok(Self::with(
            media,
            layout,
            session,
            (header, images, staging),
        ))
    }

    fn with(
        media: Media,
        layout: AreaLayout,
        session: u64,
        (header, images, staging): (AreaHeader, [Image; 2], Staging),
    ) -> Self {
        Self {
            media,
            layout,
            session,
            images: Mutex::new(images),
            staging: Mutex::new(staging),
            newest: Mutex::new(header),
            counters: Counters::default(),
        }
    }

    /// How large its parts are.
    pub fn layout(&self) -> AreaLayout {
        self.layout
    }

    /// The newest checkpoint; number 0: there is none yet.
    pub fn last_checkpoint(&self) -> Checkpoint {
        checkpoint_of(&self.newest.lock())
    }

    /// Reads the image of the newest checkpoint: `put` gets a byte of the memory tier and what it holds from there on, of
    /// the pages that were ever written, in order, in whole pages. All others are zeros.
    ///
    /// # Errors
    /// [`PersistError::Damaged`]: a page does not have its checksum. What the device says. `put` has got what
    /// comes before.
    pub fn read_image(&self, put: &mut dyn FnMut(u64, &[u8])) -> Result<()> {
        let images = self.images.lock();
        match self.newest.lock().image {
            image::NONE => Ok(()),
            which => images[which as usize - 1].read(&self.media, self.layout, put),
        }
    }

    /// Gives the batches since the newest checkpoint in order, until `each` breaks. Those that are appended meanwhile
    /// may be left out. Not beside a checkpoint: it frees batches.
    ///
    /// # Errors
    /// [`PersistError::Damaged`]: one that was found when the area was opened is not whole any more. What the device says.
    pub fn for_each_batch(&self, each: &mut dyn FnMut(Batch) -> ControlFlow<()>) -> Result<()> {
        let live = self.staging.lock().ring.live().clone();
        let salt = self.newest.lock().salt;
        let mut reader = RingReader::new(&self.media, self.layout, salt);
        for place in live {
            if each(reader.batch(place)?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Most bytes of all pieces of one batch ([`Piece::batch_bytes`]).
    pub fn batch_bytes_max(&self) -> usize {
        let most = (self.layout.staging_bytes / 4).min(BATCH_BYTES_MAX);
        most as usize - OVERHEAD_BYTES_MAX
    }

    /// Most pieces of one batch.
    pub fn batch_pieces_max(&self) -> usize {
        BATCH_PIECES_MAX as usize
    }

    /// Appends a batch: one write, durable on return.
    ///
    /// # Errors
    /// [`PersistError::Full`]: nothing happened, and a checkpoint makes space. [`PersistError::Device`]: it may be
    /// there or not, and all that follows is [`PersistError::Poisoned`].
    ///
    /// # Panics
    /// No pieces, an empty one, or more than [`Self::batch_pieces_max`] and [`Self::batch_bytes_max`] allow.
    pub fn append(&self, pieces: &[Piece<'_>]) -> Result<BatchNumber> {
        let data_bytes: usize = pieces.iter().map(Piece::batch_bytes).sum();
        let (most, count) = (self.batch_bytes_max(), pieces.len());
        assert!(
            data_bytes <= most,
            "{data_bytes} bytes in a batch, {most} may be"
        );
        assert!(
            (1..=self.batch_pieces_max()).contains(&count),
            "{count} pieces in a batch"
        );
        assert!(pieces.iter().all(|p| p.log_bytes() > 0), "an empty piece");
        let bytes = batch::batch_bytes(pieces);
        let mut staging = self.staging.lock();
        let place = staging.ring.place(bytes as u64);
        let at = place.map_err(|free| PersistError::Full {
            needed: bytes as u64,
            free,
        })?;
        while let Some(torn) = staging.torn.last() {
            let at = AreaLayout::ring_at() + torn;
            self.media.write_durable(at, &ZERO_PAGE)?;
            staging.torn.pop();
        }
        let (salt, checkpoint) = {
            let newest = self.newest.lock();
            (newest.salt, newest.checkpoint)
        };
        let number = staging.ring.next();
        let header = BatchHeader {
            magic: BATCH_MAGIC,
            salt,
            number,
            session: self.session,
            previous: staging.ring.previous(),
            checkpoint,
            bytes: bytes as u32,
            pieces: count as u32,
            reserved: 0,
            crc: 0,
        };
        if staging.buffer_bytes < bytes {
            staging.buffer_bytes = bytes.next_power_of_two();
            staging.buffer = Buffer::new(staging.buffer_bytes);
        }
        let buffer = &mut staging.buffer.bytes()[..bytes];
        batch::encode(&header, pieces, buffer);
        self.media
            .write_durable(AreaLayout::ring_at() + at, buffer)?;
        staging.ring.push(at, bytes as u64, self.session);
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        let bytes = bytes as u64;
        self.counters
            .batch_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        Ok(BatchNumber(number))
    }

    /// Bytes of the ring that are in use: batches since the newest checkpoint, and what was left out between them.
    pub fn staged_bytes(&self) -> u64 {
        self.staging.lock().ring.used()
    }

    /// The number that the next batch gets.
    pub fn next_batch(&self) -> BatchNumber {
        BatchNumber(self.staging.lock().ring.next())
    }

    /// Notes that neither image has these pages as they are now, and gives all that the older one lacks, ascending: what
    /// the next checkpoint has to write. Under the volume's lock, with the copying of these pages.
    ///
    /// # Panics
    /// A page behind the end of the memory tier.
    pub fn pages_to_copy(&self, dirty: &[u64]) -> Vec<u64> {
        let last = dirty.iter().max();
        let pages = self.layout.pages();
        assert!(
            last.is_none_or(|&page| page < pages),
            "page {last:?} of {pages}"
        );
        let mut images = self.images.lock();
        images.iter_mut().for_each(|image| image.lack(dirty));
        let next = self.newest.lock().checkpoint + 1;
        images[image_of(next) as usize - 1].lacking()
    }

    /// Writes a checkpoint: the pages that [`Self::pages_to_copy`] gave, ascending, into the older image. When it
    /// returns it is durable, and batches before `keep_from` are free. After an error nothing has changed that a
    /// restore sees, but where the last write of all failed: then it sees either.
    ///
    /// # Errors
    /// What the device says; then all that follows is [`PersistError::Poisoned`].
    ///
    /// # Panics
    /// A page that the image lacks is missing, or `keep_from` is no number that was given yet.
    pub fn write_checkpoint(
        &self,
        pages: &mut dyn Iterator<Item = (u64, &[u8; PAGE_BYTES])>,
        txid: u64,
        keep_from: BatchNumber,
        clean: bool,
    ) -> Result<Checkpoint> {
        let mut images = self.images.lock();
        let before = *self.newest.lock();
        let number = before.checkpoint + 1;
        let which = image_of(number);
        let image = &mut images[which as usize - 1];
        let written = image.write(&self.media, self.layout, pages)?;
        self.media.flush()?;
        let replay = {
            let ring = &self.staging.lock().ring;
            let next = ring.next();
            assert!(keep_from.0 <= next, "{keep_from:?} of {next} batches");
            ring.replay(keep_from.0, self.session)
        };
        let header = AreaHeader {
            checkpoint: number,
            txid,
            replay_number: replay.number,
            replay_at: replay.at,
            replay_session: replay.session,
            image: which,
            clean: clean.into(),
            table_crc: image.table_crc(),
            ..before
        };
        write_header(&self.media, &header)?;
        image.is_complete();
        let mut staging = self.staging.lock();
        staging.ring.free_before(keep_from.0);
        *self.newest.lock() = header;
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        let pages_written = &self.counters.pages_written;
        pages_written.fetch_add(written, Ordering::Relaxed);
        Ok(checkpoint_of(&header))
    }

    /// After a restart with the memory tier still there: finds by checksums which of its pages each image lacks. `read`
    /// fills in a page of the memory tier, by its number; each is asked for once, in order.
    pub fn compare(&self, read: &mut dyn FnMut(u64, &mut [u8; PAGE_BYTES])) {
        let mut images = self.images.lock();
        let mut page = ZERO_PAGE;
        for n in 0..self.layout.pages() {
            read(n, &mut page);
            let (sum, is_zero) = (page_sum(&page), page == ZERO_PAGE);
            for image in images.iter_mut() {
                image.compare(n, sum, is_zero);
            }
        }
    }

    /// What was done since it was made or opened.
    pub fn counts(&self) -> StagedCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StagedCounts {
            batches: of(&self.counters.batches),
            batch_bytes: of(&self.counters.batch_bytes),
            checkpoints: of(&self.counters.checkpoints),
            pages_written: of(&self.counters.pages_written),
        }
    }
}

/// The image that a checkpoint with this number is in, as headers have it.
fn image_of(checkpoint: u64) -> u32 {
    match checkpoint % 2 {
        1 => image::FIRST,
        _ => image::SECOND,
    }
}

pub(super) fn checkpoint_of(header: &AreaHeader) -> Checkpoint {
    Checkpoint {
        number: header.checkpoint,
        txid: header.txid,
        clean: header.clean == 1,
    }
}

fn replay_of(header: &AreaHeader) -> Replay {
    Replay {
        number: header.replay_number,
        at: header.replay_at,
        session: header.replay_session,
    }
}

/// Writes a header to its block; durable on return.
fn write_header(media: &Media, header: &AreaHeader) -> Result<()> {
    let mut block = Buffer::new(PAGE_BYTES);
    block.bytes()[..AreaHeader::BYTES].copy_from_slice(&header.encode());
    media.write_durable(AreaLayout::header_at(header.checkpoint % 2), block.bytes())
}

/// The newest header that is whole.
pub(super) fn newest_header(media: &Media) -> Result<AreaHeader> {
    let mut block = ZERO_PAGE;
    let mut found = Vec::new();
    let mut wrong = Vec::new();
    for n in 0..2 {
        match media.read(AreaLayout::header_at(n), &mut block) {
            Err(e) if is_unreadable(&e) => {
                wrong.push(e.to_string());
                continue;
            }
            other => other?,
        }
        match AreaHeader::decode(&block, n) {
            Ok(header) => found.push(header),
            Err(FormatError::Magic { .. }) => {}
            Err(e) => wrong.push(e.to_string()),
        }
    }
    match found.into_iter().max_by_key(|header| header.checkpoint) {
        Some(newest) => Ok(newest),
        None if wrong.is_empty() => no_area(format!("{}: no header is there", media.name())),
        None => damaged(format!("{}: {}", media.name(), wrong.join("; "))),
    }
}

/// A number that nobody can guess.
fn random() -> Result<u64> {
    let path = "/dev/urandom";
    let mut bytes = [0; 8];
    std::fs::File::open(path)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| BlockError::os(path, "read 8 random bytes", e))?;
    Ok(u64::from_le_bytes(bytes))
}
