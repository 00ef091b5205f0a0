//! The connection to a daemon: a socket that the program does not see.
//!
//! As the channel of `proto`, with three additions: every descriptor that comes is moved
//! out of the program's way; a connection that broke is remembered; and files whose
//! lease goes back and forth are noticed.

use crate::clock;
use crate::own;
use parking_lot::Mutex;
use shale_proto::{Channel, ProtoError, Reply, Request, SocketChannel};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A lease that came anew this often...
const BOUNCES: u32 = 8;
/// ... within this time bounces: both sides are better off with the daemon in between.
const BOUNCE_NS: i64 = 100_000_000;
/// How long such a file is left to the kernel.
const MEDIATED_NS: i64 = 500_000_000;
/// Files watched for bouncing.
const WATCHED: usize = 64;

#[derive(Clone, Copy, Default)]
struct Watched {
    ino: u64,
    since_ns: i64,
    times: u32,
    until_ns: i64,
}

/// A connection.
pub struct Link {
    channel: SocketChannel,
    broken: AtomicBool,
    watched: Mutex<[Watched; WATCHED]>,
    mediated: AtomicU32,
}

impl Link {
    /// Connects to the daemon that listens at `path`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn connect(path: &Path) -> Result<Self, ProtoError> {
        Ok(Self {
            channel: SocketChannel::connect_placed(path, own::hide)?,
            broken: AtomicBool::new(false),
            watched: Mutex::new([Watched::default(); WATCHED]),
            mediated: AtomicU32::new(0),
        })
    }

    /// Whether the daemon is gone.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Until when a file is to be left to the kernel because its lease bounces; 0: it is not.
    #[inline]
    pub fn mediated_until(&self, ino: u64) -> i64 {
        if self.mediated.load(Ordering::Relaxed) == 0 {
            0
        } else {
            self.look_up_mediated(ino)
        }
    }

    #[cold]
    fn look_up_mediated(&self, ino: u64) -> i64 {
        let now = clock::now_ns();
        let watched = self.watched.lock();
        if watched.iter().all(|w| w.until_ns <= now) {
            self.mediated.store(0, Ordering::Relaxed);
        }
        watched
            .iter()
            .find(|w| w.ino == ino && w.until_ns > now)
            .map_or(0, |w| w.until_ns)
    }

    /// A lease came that had been elsewhere.
    fn came_anew(&self, ino: u64) {
        let now = clock::now_ns();
        let mut watched = self.watched.lock();
        let at = (ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % WATCHED;
        let w = &mut watched[at];
        if w.ino != ino || now - w.since_ns > BOUNCE_NS {
            *w = Watched {
                ino,
                since_ns: now,
                times: 0,
                until_ns: 0,
            };
        }
        w.times += 1;
        if w.times >= BOUNCES {
            w.until_ns = now + MEDIATED_NS;
            w.times = 0;
            self.mediated.store(1, Ordering::Relaxed);
        }
    }
}

impl Channel for Link {
    fn call(&self, request: Request) -> Result<(Reply, Vec<OwnedFd>), ProtoError> {
        let lease = match &request {
            Request::Lease { ino, .. } => Some(*ino),
            _ => None,
        };
        let answer = self.channel.call(request);
        match (lease, &answer) {
            (_, Err(_)) => self.broken.store(true, Ordering::Release),
            (Some(ino), Ok((Reply::Leased { fresh: true, .. }, _))) => self.came_anew(ino),
            _ => {}
        }
        let (reply, fds) = answer?;
        Ok((reply, fds.into_iter().map(own::hide).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bouncing_leases_are_noticed_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _listener = shale_proto::SocketPeer::listen(&path).unwrap();
        let link = Link::connect(&path).unwrap();
        for _ in 0..BOUNCES - 1 {
            link.came_anew(20);
        }
        assert_eq!(link.mediated_until(20), 0);
        link.came_anew(20);
        assert!(link.mediated_until(20) > clock::now_ns());
        assert_eq!(link.mediated_until(21), 0);
        for w in link.watched.lock().iter_mut() {
            w.until_ns = 1;
        }
        assert_eq!(link.mediated_until(20), 0);
        assert_eq!(link.mediated.load(Ordering::Relaxed), 0);
    }
}
