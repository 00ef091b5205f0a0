//! What nobody in the model knows: who is inside of what, and what has been returned.

use crate::daemon_side::client::Client;
use crate::daemon_side::shared::Shared;
use crate::memory;
use crate::sync::{Condvar, Mutex};
use shale_proto::LeaseMode;
use shuttle::rand::{Rng, thread_rng};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[derive(Default)]
struct Seen {
    /// Calls under way, with the mark that says whether their client was cut off.
    inside: Vec<(u32, u64, LeaseMode, Arc<std::sync::atomic::AtomicBool>)>,
    /// Newest number of an inode that a call has returned.
    returned: HashMap<u64, u64>,
    /// Writes that have returned.
    written: HashMap<u64, u64>,
}

/// Threads that do something yet, by client, and how many of them are stopped.
#[derive(Default)]
struct Going {
    threads: HashMap<u32, i32>,
    stops_left: u32,
}

pub(crate) struct World {
    pub(crate) shared: Arc<Shared>,
    seen: std::sync::Mutex<Seen>,
    going: Mutex<Going>,
    changed: Condvar,
}

impl World {
    pub(crate) fn new(shared: Arc<Shared>, stops: u32) -> Arc<Self> {
        let going = Going {
            stops_left: stops,
            ..Going::default()
        };
        Arc::new(Self {
            shared,
            seen: std::sync::Mutex::default(),
            going: Mutex::new(going),
            changed: Condvar::new(),
        })
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// A call goes on under its lease.
    pub(crate) fn enter(&self, client: &Client, ino: u64, mode: LeaseMode) {
        let mut seen = self.seen();
        let cut = |mark: &std::sync::atomic::AtomicBool| mark.load(Ordering::Relaxed);
        let other = seen.inside.iter().find(|(id, other, held, mark)| {
            *id != client.id && *other == ino && !held.compatible(mode) && !cut(mark)
        });
        if let (Some((id, ..)), false) = (other, cut(&client.log_fd.cut)) {
            panic!(
                "violation: client {} is inside of {ino} ({mode:?}) and so is client {id}",
                client.id
            );
        }
        let mark = client.log_fd.cut.clone();
        seen.inside.push((client.id, ino, mode, mark));
    }

    /// Its call leaves the read section next.
    pub(crate) fn leave(&self, client: &Client, ino: u64, mode: LeaseMode) {
        let mut seen = self.seen();
        let this = |(id, other, held, _): &(u32, u64, LeaseMode, _)| {
            (*id, *other, *held) == (client.id, ino, mode)
        };
        let at = seen.inside.iter().position(this);
        seen.inside.swap_remove(at.expect("it entered"));
    }

    /// What a call that begins now has to see at least.
    pub(crate) fn floor(&self, ino: u64) -> u64 {
        self.seen().returned.get(&ino).copied().unwrap_or(0)
    }

    /// A call that saw `value` returns; `floor` as it began.
    pub(crate) fn returned(&self, client: &Client, ino: u64, value: u64, floor: u64) {
        assert!(
            value >= floor,
            "violation: client {} saw {value} after {floor} had been returned",
            client.id
        );
        let mut seen = self.seen();
        let newest = seen.returned.entry(ino).or_default();
        *newest = value.max(*newest);
    }

    /// A write has returned.
    pub(crate) fn wrote(&self, ino: u64) {
        *self.seen().written.entry(ino).or_default() += 1;
    }

    /// Everything is digested: the volume has exactly the writes that returned, and
    /// nobody has seen more.
    pub(crate) fn check_end(&self, inos: &[u64]) {
        for ino in inos {
            let written = self.seen().written.get(ino).copied().unwrap_or(0);
            let volume = self.shared.in_volume(*ino);
            assert_eq!(
                volume, written,
                "violation: the volume does not have the writes that returned"
            );
            assert!(
                self.floor(*ino) <= volume,
                "violation: a number was seen that never was"
            );
        }
    }

    /// A thread of a client begins.
    pub(crate) fn begin(&self, client: u32) {
        *self.going.lock().threads.entry(client).or_default() += 1;
    }

    /// It has ended.
    pub(crate) fn end(&self, client: u32) {
        *self.going.lock().threads.entry(client).or_default() -= 1;
        self.changed.notify_all();
    }

    /// The thread may be stopped here: for a while, or until no other client has
    /// anything to do. A context switch writes its stores out.
    pub(crate) fn perhaps_stop(&self, client: &Client) {
        let chance = thread_rng().gen_range(0..12);
        if chance > 1 {
            return;
        }
        memory::fence();
        if chance == 1 {
            for _ in 0..thread_rng().gen_range(1..40) {
                shuttle::thread::yield_now();
            }
            return;
        }
        let mut going = self.going.lock();
        if going.stops_left == 0 {
            return;
        }
        going.stops_left -= 1;
        *going.threads.entry(client.id).or_default() -= 1;
        self.changed.notify_all();
        while going
            .threads
            .iter()
            .any(|(&id, &n)| id != client.id && n > 0)
        {
            self.changed.wait(&mut going);
        }
        *going.threads.entry(client.id).or_default() += 1;
    }
}
