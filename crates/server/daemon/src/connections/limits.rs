//! How fast a client may write, if somebody has set a limit (bytes a second of its log, and of
//! the blocks granted to it for full blocks).
//!
//! The word `ALLOWED` in the daemon page says up to which log position the client goes on without
//! asking; without a limit that is the end of the world, and a write costs one comparison with
//! a word beside one that it reads anyway. A client that has come so far asks, outside of its read section and
//! locks, and gets how long to wait: so nobody else ever waits for it. There is no thread for this.
//!
//! A bucket of tokens, in bytes: filled at the rate, up to an eighth of a second's worth; what was
//! logged and granted is taken out. It may go below 0 by one call of each thread, which is paid
//! back. A call thus may be larger than the bucket.
//!
//! What it was granted before there was a limit it is asked to return then, since nobody counted it.
//!
//! The same word has a client pause that takes space faster than digest gives it back (see [`shale_clients::space_credits`]).
//!
//! A client that does not look at the word is limited by nothing but its log. It runs as a user
//! who may attach, and hurts only that user's own limit.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use shale_clients::client::{Client, Transport};
use shale_clients::clients::Clients;
use shale_proto::Reply;
use shale_sys::Clock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Least limit, in bytes a second: a single call of 1 MiB takes 16 s then.
pub const RATE_MIN: u64 = 64 << 10;

/// Whose limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Whose {
    /// Of each client that has none of its own, now and later; not of the mount.
    Each,
    /// Of all FUSE clients together.
    Mount,
    /// Of one process.
    Process(i32),
}

/// The limits of a volume's clients, in bytes a second; 0: none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Of each client that has none of its own.
    #[serde(default)]
    pub each: u64,
    /// Of the mount.
    #[serde(default)]
    pub mount: u64,
    /// Of processes, by number. 0: none for this one, whatever there is for each.
    #[serde(default)]
    pub process: BTreeMap<i32, u64>,
}

impl Limits {
    /// Sets one; `None`: as for each client.
    pub fn set(&mut self, whose: Whose, rate: Option<u64>) {
        let rate = rate.map(|r| if r == 0 { 0 } else { r.max(RATE_MIN) });
        match (whose, rate) {
            (Whose::Each, rate) => self.each = rate.unwrap_or(0),
            (Whose::Mount, rate) => self.mount = rate.unwrap_or(0),
            (Whose::Process(pid), Some(rate)) => drop(self.process.insert(pid, rate)),
            (Whose::Process(pid), None) => drop(self.process.remove(&pid)),
        }
    }

    fn of(&self, client: &Client) -> u64 {
        match client.transport {
            Transport::InProcess => self.mount,
            Transport::Socket => *self.process.get(&client.pid).unwrap_or(&self.each),
        }
    }
}

/// How fast clients may write.
pub(crate) struct RateLimits {
    clock: Arc<dyn Clock>,
    clients: Arc<Clients>,
    limits: Mutex<Limits>,
}

impl RateLimits {
    pub(crate) fn new(clock: Arc<dyn Clock>, clients: Arc<Clients>) -> Self {
        Self {
            clock,
            clients,
            limits: Mutex::default(),
        }
    }

    /// A client that has come has its limit from the start.
    pub(crate) fn begin(&self, client: &Client) {
        let limits = self.limits.lock();
        client.set_rate(limits.of(client), self.clock.monotonic_ns());
    }

    /// The client has come to where it has to ask.
    pub(crate) fn pace(&self, client: &Client) -> Reply {
        let (ns, give_back) = client.pace(self.clock.monotonic_ns());
        Reply::Wait { ns, give_back }
    }

    /// The limits in force.
    pub(crate) fn now(&self) -> Limits {
        self.limits.lock().clone()
    }

    /// Changes them, for clients from their next call on. Gives them as they are then.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Limits)) -> Limits {
        let mut limits = self.limits.lock();
        change(&mut limits);
        for client in self.clients.snapshot() {
            client.set_rate(limits.of(&client), self.clock.monotonic_ns());
        }
        limits.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_clients::bucket::{BURST_PART, Bucket};
    use shale_clients::client::pace::HOLD_MIN_NS;
    use shale_format::BlockAddr;
    use shale_volume::Run;

    const MS: u64 = 1_000_000;

    /// Writes as fast as it is let for some time; gives the bytes.
    fn write_for(bucket: &mut Bucket, ms: u64, each: u64, overslept_ms: u64) -> u64 {
        let (mut now, mut pos) = (bucket.at_ns, bucket.seen);
        let (end, from) = (now + ms * MS, pos);
        while now < end {
            if pos < bucket.allowed() {
                pos += each;
                continue;
            }
            bucket.fill(now, pos);
            match bucket.wait_ns() {
                0 => {}
                ns => now += ns + overslept_ms * MS,
            }
        }
        pos - from
    }

    #[test]
    fn the_rate_is_kept_whatever_the_size_of_calls() {
        for (rate, each) in [
            (RATE_MIN, 64),
            (RATE_MIN, 100_000),
            (50 << 20, 4096),
            (2 << 30, 100_000),
        ] {
            for overslept in [0, 30] {
                let mut bucket = Bucket {
                    rate,
                    ..Bucket::default()
                };
                let bytes = write_for(&mut bucket, 20_000, each, overslept);
                let off = bytes as f64 / (20 * rate) as f64;
                assert!(
                    (0.9..1.1).contains(&off),
                    "{rate} bytes a second in calls of {each}: {off}"
                );
            }
        }
    }

    #[test]
    fn idle_time_is_not_saved_up_and_debts_are_paid() {
        let rate = 1 << 20;
        let mut bucket = Bucket {
            rate,
            ..Bucket::default()
        };
        bucket.fill(1_000_000 * MS, 0);
        assert_eq!(bucket.allowed(), rate / BURST_PART);
        bucket.fill(1_000_000 * MS, rate + rate / BURST_PART);
        assert_eq!(bucket.allowed(), bucket.seen);
        bucket.fill(1_000_900 * MS, bucket.seen);
        assert!(bucket.wait_ns() > 0, "a second's worth is owed");
        bucket.fill(1_001_100 * MS, bucket.seen);
        assert_eq!(bucket.wait_ns(), 0);
    }

    #[test]
    fn who_is_held_back_pauses_once_and_goes_on() {
        let client = shale_clients::testing::lone(1, Transport::Socket);
        client.hold_back(MS, HOLD_MIN_NS - 1);
        assert_eq!(client.pace(MS), (0, false));
        client.hold_back(MS, 300_000);
        assert_eq!(client.bucket.lock().allowed(), 0, "the next call asks");
        assert_eq!(client.pace(MS + 100_000), (200_000, false));
        assert_eq!(client.bucket.lock().allowed(), u64::MAX);
        assert_eq!(client.pace(MS + 100_000), (0, false));
        client.hold_back(MS, 300_000);
        assert_eq!(
            client.pace(2 * MS),
            (0, false),
            "it did something else meanwhile"
        );
        assert_eq!(client.waited_ns(), 0, "that was no limit");
    }

    #[test]
    fn what_was_granted_before_there_was_a_limit_counts_for_nothing() {
        let client = shale_clients::testing::lone(1, Transport::Socket);
        client.grants.lock().blocks.insert(Run {
            addr: BlockAddr::nvm(100),
            len: 50,
        });
        client.set_rate(RATE_MIN, 0);
        let (wait, give_back) = client.pace(0);
        assert!(give_back);
        assert!(!client.pace(0).1, "it gets it once");
        client.charge_blocks(0, 50);
        assert_eq!(client.pace(0).0, wait);
        client.charge_blocks(0, 1);
        assert_eq!(client.pace(0).0, 0);
    }

    #[test]
    fn each_process_has_the_limit_of_each_unless_it_has_its_own() {
        let mut limits = Limits::default();
        let direct = shale_clients::testing::lone(1, Transport::Socket);
        let mount = shale_clients::testing::lone(2, Transport::InProcess);
        limits.set(Whose::Each, Some(1));
        assert_eq!((limits.of(&direct), limits.of(&mount)), (RATE_MIN, 0));
        limits.set(Whose::Process(direct.pid), Some(0));
        limits.set(Whose::Mount, Some(1 << 20));
        assert_eq!((limits.of(&direct), limits.of(&mount)), (0, 1 << 20));
        limits.set(Whose::Process(direct.pid), None);
        assert_eq!(limits.of(&direct), RATE_MIN);
        direct.set_rate(RATE_MIN, 5);
        assert!(direct.pace(5).0 > 0);
        assert_eq!(direct.pace(1_000_000_005), (0, false));
        direct.charge_blocks(1000, 0);
        assert!(direct.pace(1_000_000_005).0 > 0);
        direct.charge_blocks(0, 1000);
        assert_eq!(direct.pace(1_000_000_005).0, 0);
        direct.set_rate(0, 1_000_000_005);
        assert_eq!(direct.pace(1_000_000_005).0, 0);
    }
}
