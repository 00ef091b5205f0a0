//! Leases as a client holds them: the word in each inode's memory, and getting one.
//!
//! A node's word has the generation of the lease and its mode. It stands as long as the
//! daemon's word for the inode has the same generation; a call looks inside the read section, so
//! that the daemon waits for it before somebody else gets the lease. The daemon's words
//! are shared by several inodes: when one of them is taken away all have to be asked for
//! again, and most learn that nothing was lost.
//!
//! Invariant: who says that a node's word stands has brought the node up to date. So
//! asking, loading and setting the word are one step: one thread at a time per inode.

use super::errno::{ELSEWHERE, Errno, Result, Stop};
use super::node::Node;
use super::read_section::ReadSection;
use super::session::Session;
use super::sync::{AtomicU64, Mutex, Ordering, failpoints};
use shale_proto::{LeaseMode, LeaseRequestMode, Reply, Request};
use std::sync::Arc;

/// Generation and mode of the lease on one inode.
#[derive(Default)]
pub(crate) struct LeaseWord(AtomicU64);

const SHARED: u64 = 1 << 32;
const EXCLUSIVE: u64 = 2 << 32;

impl LeaseWord {
    /// Notes a lease.
    pub(crate) fn set(&self, generation: u32, mode: LeaseMode) {
        let mode = match mode {
            LeaseMode::Shared => SHARED,
            LeaseMode::Exclusive => EXCLUSIVE,
        };
        self.0
            .store(mode | u64::from(generation), Ordering::Release);
    }

    /// What is in memory is worth nothing until it is loaded again.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Whether what is in memory has ever been loaded under a lease.
    pub(crate) fn was_set(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Whether the lease stands while the daemon's word is `generation`, and suffices.
    #[inline]
    pub(crate) fn covers(&self, generation: u32, wanted: LeaseMode) -> bool {
        let word = self.0.load(Ordering::Acquire);
        let needed = match wanted {
            LeaseMode::Shared => SHARED,
            LeaseMode::Exclusive => EXCLUSIVE,
        };
        word as u32 == generation && word >= needed
    }
}

const TURNS: usize = 64;

/// Locks of which one is held while a lease on an inode is asked for.
pub(crate) struct AcquireLocks([Mutex<()>; TURNS]);

impl AcquireLocks {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }

    fn of(&self, ino: u64) -> &Mutex<()> {
        &self.0[(ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % TURNS]
    }
}

impl Session {
    /// Whether the lease on a node in memory stands and suffices. True as long as the
    /// caller stays inside the read section.
    pub(crate) fn holds(&self, node: &Node, mode: LeaseMode) -> bool {
        node.lease.covers(self.lease_word(node.ino), mode)
    }

    /// Gets a lease before it is needed; others lose theirs. Kept until another client
    /// takes it, or [`Self::give_back`]. Errors: `ENOENT`.
    pub fn lease(&self, ino: u64, mode: LeaseMode) -> Result<()> {
        self.acquire(ino, mode, LeaseRequestMode::Revoke)
            .map(|_| ())
    }

    /// Gives a lease back. What was written under it is in the volume when this returns.
    pub fn give_back(&self, ino: u64) -> Result<()> {
        let _acquiring = self.acquire_locks.of(ino).lock();
        if let Some(node) = self.nodes.get(ino) {
            node.lease.clear();
        }
        self.ask(Request::Unlease { ino })?;
        Ok(())
    }

    /// Gets a lease and brings the inode in memory up to date. Outside of the read section.
    /// `false`: others have the lease, and the caller does not insist.
    pub(crate) fn acquire(
        &self,
        ino: u64,
        mode: LeaseMode,
        request_mode: LeaseRequestMode,
    ) -> Result<bool> {
        let _acquiring = self.acquire_locks.of(ino).lock();
        let node = self.nodes.get(ino);
        // Who does not insist wants to know about others, too.
        let asks = matches!(
            request_mode,
            LeaseRequestMode::Try | LeaseRequestMode::GrowOrDefer
        );
        if !asks && node.is_some_and(|n| self.holds(&n, mode)) {
            return Ok(true);
        }
        let (generation, fresh, mode, used, watched, shared) = match self.ask(Request::Lease {
            ino,
            mode,
            request_mode,
        })? {
            Reply::Leased {
                generation,
                fresh,
                mode,
                used,
                watched,
                shared,
            } => (generation, fresh, mode, used, watched, shared),
            Reply::NotLeased => return Ok(false),
            Reply::Elsewhere { .. } => return Err(ELSEWHERE),
            _ => return Err(Errno::PROTO),
        };
        failpoints::reach("lease-given");
        loop {
            let inside = ReadSection::enter(self.client_words());
            let node = match self.nodes.get(ino) {
                Some(node) => self.up_to_date(node, fresh),
                None => self.load(ino, self.epoch()),
            };
            match node {
                Ok(node) => {
                    node.used_elsewhere.store(used, Ordering::Release);
                    node.watched.store(watched, Ordering::Release);
                    node.shared.store(
                        shared && request_mode != LeaseRequestMode::GrowOrDefer,
                        Ordering::Release,
                    );
                    node.lease.set(generation, mode);
                    return Ok(true);
                }
                Err(stop) => {
                    drop(inside);
                    self.get_lacking(stop)?;
                }
            }
        }
    }

    fn up_to_date(&self, node: Arc<Node>, fresh: bool) -> std::result::Result<Arc<Node>, Stop> {
        if fresh {
            // Should loading fail, the next one to ask will not be notified again.
            node.lease.clear();
        }
        if !node.lease.was_set() {
            node.reload(self, self.epoch())?;
            // Who found it dead may have taken it out meanwhile. There must be no second node
            // for the inode while this one's lease stands.
            return Ok(self.nodes.add(node, self.digested()));
        }
        Ok(node)
    }

    /// Whether the volume may be asked about an inode that is not in memory, for once: gets
    /// a shared lease if nobody has to lose one, and calls `f` inside the read section while it stands.
    pub(crate) fn glance<T>(&self, ino: u64, f: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let _acquiring = self.acquire_locks.of(ino).lock();
        if self.nodes.get(ino).is_some() {
            return Ok(None);
        }
        let ask = Request::Lease {
            ino,
            mode: LeaseMode::Shared,
            request_mode: LeaseRequestMode::Try,
        };
        let generation = match self.ask(ask) {
            Ok(Reply::Leased { generation, .. }) => generation,
            Ok(Reply::NotLeased) | Err(Errno::NOENT) => return Ok(None),
            Ok(_) => return Err(Errno::PROTO),
            Err(e) => return Err(e),
        };
        let _inside = ReadSection::enter(self.client_words());
        if self.lease_word(ino) == generation {
            f().map(Some)
        } else {
            Ok(None)
        }
    }
}
