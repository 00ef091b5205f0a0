//! The table of leases: who may read or write which inode (DESIGN §9, Strata §3.4).
//!
//! A client asks at its first use of an inode and keeps the lease. Taking one back
//! needs no help from its holder: the generation word of the inode's bucket in the
//! holder's daemon page is raised, then its gates are passed, then its log is digested.
//! Other inodes of the bucket look revoked to the holder too; it asks again and
//! hears that nothing was lost.
//!
//! Invariant: holders of one inode are compatible with one another. While an inode is
//! being taken from somebody it is *busy*: everybody else who asks waits, so that a
//! stream of readers cannot starve a writer.
//!
//! This file decides; [`crate::revoke`] does what it decided. Lock order: the table's lock is a leaf.

use parking_lot::{Condvar, Mutex};
use shale_proto::LeaseMode;
use std::collections::HashMap;

/// Told when a lease of an in-process client is about to go, and when it has gone.
///
/// The kernel keeps pages and attributes of files that the FUSE client serves: they must be
/// dropped before another client may write.
pub trait LeaseHook: Send + Sync {
    /// The lease on `ino` will be taken away. The client still holds it, so requests
    /// of the kernel that this causes (write-back of mapped pages) can be served;
    /// it may wait for them.
    fn before_revoke(&self, ino: u64);
    /// The client has no lease on `ino` any more. What the kernel cached in between
    /// has to go. Must not wait for requests of the kernel: they may be waiting for this lease.
    fn after_revoke(&self, _ino: u64) {}
}

/// One client that holds a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) client: u32,
    pub(crate) mode: LeaseMode,
}

#[derive(Default)]
struct Entry {
    holders: Vec<Holder>,
    busy: bool,
}

/// A lease as its new holder hears of it; see [`shale_proto::Reply::Leased`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The generation word. It is read under the table's lock, and raised only after a
    /// decision under that lock: so whoever takes this lease away raises it later.
    pub(crate) generation: u32,
    pub(crate) fresh: bool,
}

/// What to do for a client that asks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It has the lease now.
    Granted(Grant),
    /// Take the lease from these, then ask again with [`Leases::taken`]. The inode is busy meanwhile.
    TakeFrom(Vec<Holder>),
}

/// All leases of a volume.
#[derive(Default)]
pub(crate) struct Leases {
    table: Mutex<HashMap<u64, Entry>>,
    freed: Condvar,
}

impl Leases {
    /// Decides a wish. Waits while the inode is being taken from somebody.
    /// `generation` reads the word of the asker.
    pub(crate) fn ask(
        &self,
        client: u32,
        ino: u64,
        mode: LeaseMode,
        generation: impl FnOnce() -> u32,
    ) -> Decision {
        let mut table = self.table.lock();
        loop {
            let entry = table.entry(ino).or_default();
            if !entry.busy {
                let conflicts: Vec<Holder> = entry
                    .holders
                    .iter()
                    .filter(|h| h.client != client && !h.mode.compatible(mode))
                    .copied()
                    .collect();
                if conflicts.is_empty() {
                    return Decision::Granted(Grant {
                        fresh: entry.give(client, mode),
                        generation: generation(),
                    });
                }
                entry.busy = true;
                return Decision::TakeFrom(conflicts);
            }
            self.freed.wait(&mut table);
        }
    }

    /// Numbers granted to a client for new inodes: it holds whatever it makes of them.
    pub(crate) fn give_new(&self, client: u32, inos: &[u64]) {
        let mut table = self.table.lock();
        for &ino in inos {
            table
                .entry(ino)
                .or_default()
                .give(client, LeaseMode::Exclusive);
        }
    }

    /// Ends what [`Decision::TakeFrom`] began: `from` have lost the lease, the asker has it.
    pub(crate) fn taken(
        &self,
        client: u32,
        ino: u64,
        mode: LeaseMode,
        from: &[Holder],
        generation: impl FnOnce() -> u32,
    ) -> Grant {
        let mut table = self.table.lock();
        let entry = table.entry(ino).or_default();
        entry
            .holders
            .retain(|h| !from.iter().any(|f| f.client == h.client));
        entry.busy = false;
        let grant = Grant {
            fresh: entry.give(client, mode),
            generation: generation(),
        };
        self.freed.notify_all();
        grant
    }

    /// Gives up what [`Decision::TakeFrom`] began; `lost` have lost the lease all the same.
    pub(crate) fn give_up(&self, ino: u64, lost: &[Holder]) {
        let mut table = self.table.lock();
        if let Some(entry) = table.get_mut(&ino) {
            entry
                .holders
                .retain(|h| !lost.iter().any(|f| f.client == h.client));
            entry.busy = false;
        }
        self.freed.notify_all();
    }

    /// A client gives a lease back. Its log must have been digested if it could write.
    pub(crate) fn release(&self, client: u32, ino: u64) {
        let mut table = self.table.lock();
        if let Some(entry) = table.get_mut(&ino) {
            entry.holders.retain(|h| h.client != client);
            if entry.holders.is_empty() && !entry.busy {
                table.remove(&ino);
            }
        }
    }

    /// A client has gone, or was cut off.
    pub(crate) fn release_all(&self, client: u32) {
        let mut table = self.table.lock();
        table.retain(|_, entry| {
            entry.holders.retain(|h| h.client != client);
            !entry.holders.is_empty() || entry.busy
        });
    }

    /// What a client holds on an inode.
    pub(crate) fn mode(&self, client: u32, ino: u64) -> Option<LeaseMode> {
        let table = self.table.lock();
        let holders = &table.get(&ino)?.holders;
        holders.iter().find(|h| h.client == client).map(|h| h.mode)
    }

    /// Number of leases of each client.
    pub(crate) fn counts(&self) -> HashMap<u32, u64> {
        let mut counts = HashMap::new();
        for entry in self.table.lock().values() {
            for holder in &entry.holders {
                *counts.entry(holder.client).or_default() += 1;
            }
        }
        counts
    }
}

impl Entry {
    /// Adds or strengthens a holder; whether it held nothing before.
    fn give(&mut self, client: u32, mode: LeaseMode) -> bool {
        match self.holders.iter_mut().find(|h| h.client == client) {
            Some(holder) => {
                holder.mode = holder.mode.max(mode);
                false
            }
            None => {
                self.holders.push(Holder { client, mode });
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LeaseMode::{Exclusive, Shared};
    use std::sync::Arc;

    #[test]
    fn readers_share_a_writer_does_not() {
        let leases = Leases::default();
        let ask = |client, mode| leases.ask(client, 20, mode, || 7);
        let fresh = |fresh| {
            Decision::Granted(Grant {
                generation: 7,
                fresh,
            })
        };
        assert_eq!(ask(1, Shared), fresh(true));
        assert_eq!(ask(2, Shared), fresh(true));
        assert_eq!(ask(1, Shared), fresh(false), "held all the time");
        let one = Holder {
            client: 1,
            mode: Shared,
        };
        assert_eq!(ask(2, Exclusive), Decision::TakeFrom(vec![one]));
        let upgraded = leases.taken(2, 20, Exclusive, &[one], || 7);
        assert!(!upgraded.fresh, "an upgrade loses nothing");
        assert_eq!(leases.mode(1, 20), None);
        assert_eq!(leases.mode(2, 20), Some(Exclusive));
        leases.release_all(2);
        assert_eq!(ask(1, Exclusive), fresh(true), "it had lost it");
        leases.give_new(2, &[32, 33]);
        assert_eq!(leases.mode(2, 33), Some(Exclusive));
        assert_eq!((leases.counts()[&1], leases.counts()[&2]), (1, 2));
    }

    #[test]
    fn nobody_overtakes_while_a_lease_is_being_taken() {
        let leases = Arc::new(Leases::default());
        leases.ask(1, 5, Shared, || 0);
        let Decision::TakeFrom(from) = leases.ask(2, 5, Exclusive, || 0) else {
            panic!("a reader is in the way");
        };
        let other = leases.clone();
        let late = std::thread::spawn(move || other.ask(3, 5, Shared, || 0));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!late.is_finished());
        leases.taken(2, 5, Exclusive, &from, || 0);
        let two = Holder {
            client: 2,
            mode: Exclusive,
        };
        assert_eq!(late.join().unwrap(), Decision::TakeFrom(vec![two]));
        leases.give_up(5, &[two]);
        let granted = leases.ask(1, 5, Shared, || 0);
        assert!(matches!(
            granted,
            Decision::Granted(Grant { fresh: true, .. })
        ));
    }
}
