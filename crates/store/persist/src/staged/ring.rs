//! Where batches lie in the staging ring: which part is in use, and where the next one goes.
//!
//! A batch is contiguous. It goes behind the one before, or, where it does not fit there, to byte 0. The first
//! one is looked for at the replay position in the same way.

use std::collections::VecDeque;

/// A batch in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) number: u64,
    pub(super) at: u64,
    pub(super) bytes: u64,
    pub(super) session: u64,
}

/// Where reading begins: as in the header of the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replay {
    pub(super) number: u64,
    pub(super) at: u64,
    pub(super) session: u64,
}

/// See the module.
pub(super) struct Ring {
    bytes: u64,
    /// Batches since the replay position, oldest first. None: the next one goes to the replay position.
    live: VecDeque<Place>,
    head: u64,
    next: u64,
    /// The session that the next batch names as the one before.
    previous: u64,
}

impl Ring {
    /// Of `bytes` bytes, without a batch.
    pub(super) fn new(bytes: u64, replay: Replay) -> Self {
        Self {
            bytes,
            live: VecDeque::new(),
            head: replay.at,
            next: replay.number,
            previous: replay.session,
        }
    }

    /// Number of the next batch.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The session that the next batch names as the one before.
    pub(super) fn previous(&self) -> u64 {
        self.previous
    }

    /// Where the next batch goes, unless it does not fit there.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Batches since the replay position, oldest first.
    pub(super) fn live(&self) -> &VecDeque<Place> {
        &self.live
    }

    /// Bytes free at the head, and at byte 0.
    fn free(&self) -> (u64, u64) {
        match self.live.front() {
            None => (self.bytes - self.head, self.bytes),
            Some(oldest) if self.head > oldest.at => (self.bytes - self.head, oldest.at),
            Some(oldest) => (oldest.at - self.head, 0),
        }
    }

    /// Where a batch of `bytes` bytes goes. Else how many are free in one piece.
    pub(super) fn place(&self, bytes: u64) -> Result<u64, u64> {
        let (at_head, at_begin) = self.free();
        match () {
            () if bytes <= at_head => Ok(self.head),
            () if bytes <= at_begin => Ok(0),
            () => Err(at_head.max(at_begin)),
        }
    }

    /// A batch lies there.
    pub(super) fn push(&mut self, at: u64, bytes: u64, session: u64) {
        assert!(at == self.head || at == 0, "a batch at {at} of the ring");
        let number = self.next;
        self.live.push_back(Place {
            number,
            at,
            bytes,
            session,
        });
        self.head = (at + bytes) % self.bytes;
        self.next += 1;
        self.previous = session;
    }

    /// Where reading begins if batches before `keep_from` are not needed; `session`: whose batches come next.
    pub(super) fn replay(&self, keep_from: u64, session: u64) -> Replay {
        let kept = self.live.iter().find(|place| place.number >= keep_from);
        match kept {
            Some(kept) => Replay {
                number: kept.number,
                at: kept.at,
                session: kept.session,
            },
            None => Replay {
                number: self.next,
                at: self.head,
                session,
            },
        }
    }

    /// Batches before `number` are free.
    pub(super) fn free_before(&mut self, number: u64) {
        while self.live.front().is_some_and(|p| p.number < number) {
            self.live.pop_front();
        }
    }

    /// Bytes from the oldest batch to the head, with what was left out at the end of the ring.
    pub(super) fn used(&self) -> u64 {
        match self.live.front() {
            None => 0,
            Some(oldest) if self.head > oldest.at => self.head - oldest.at,
            Some(oldest) => self.bytes - oldest.at + self.head,
        }
    }
}
