//! The connection to a daemon: a socket that the program does not see.
//!
//! As the channel of `proto`, with four additions: every descriptor that comes is moved
//! out of the program's way; a connection that broke is remembered; so are files that
//! the daemon says are to be left to the kernel for a while (until then it is not asked for an exclusive lease
//! on them again); and for those that went back to the mount of our own accord ([`crate::pays`]) no lease is asked for.

use crate::pays::Leases;
use parking_lot::Mutex;
use shale_fd::own;
use shale_interpose::clock;
use shale_proto::{
    Channel, LeaseMode, LeaseRequestMode, ProtoError, Reply, Request, SocketChannel,
};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Files that are remembered to be mediated.
const REMEMBERED: usize = 64;

/// A file that everybody uses through the mount.
#[derive(Clone, Copy, Default)]
struct MediatedFile {
    ino: u64,
    until_ns: i64,
    alone: bool,
}

/// A connection.
pub struct Link {
    channel: SocketChannel,
    broken: AtomicBool,
    mediated: Mutex<[MediatedFile; REMEMBERED]>,
    any: AtomicU32,
    /// Files that leases were asked for.
    pub leases: Leases,
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
            mediated: Mutex::new([MediatedFile::default(); REMEMBERED]),
            any: AtomicU32::new(0),
            leases: Leases::default(),
        })
    }

    /// Whether the daemon is gone.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Until when a file is to be left to the kernel; 0: it is not.
    #[inline]
    pub fn mediated_until(&self, ino: u64) -> i64 {
        if self.any.load(Ordering::Relaxed) == 0 {
            0
        } else {
            self.look_up(ino)
        }
    }

    #[cold]
    fn look_up(&self, ino: u64) -> i64 {
        let now = clock::now_ns();
        let files = self.mediated.lock();
        if files.iter().all(|f| f.until_ns <= now) {
            self.any.store(0, Ordering::Relaxed);
        }
        files
            .iter()
            .find(|f| f.ino == ino && f.until_ns > now)
            .map_or(0, |f| f.until_ns)
    }

    /// What the daemon would say to who wants a file alone of which it has said that it is mediated until a moment to come.
    fn left(&self, ino: u64) -> Option<(u64, bool)> {
        let left = self.mediated_until(ino) - clock::now_ns();
        let ns = u64::try_from(left).ok().filter(|&ns| ns > 0)?;
        Some((ns, self.writes_alone(ino)))
    }

    /// Whether this is the only client that writes a file which is mediated, as far as is known.
    pub fn writes_alone(&self, ino: u64) -> bool {
        let files = self.mediated.lock();
        files.iter().any(|f| f.ino == ino && f.alone)
    }

    /// The daemon has said that a file is mediated. One that is forgotten for another's sake
    /// is asked for again.
    fn leave(&self, ino: u64, ns: u64, alone: bool) {
        let until_ns = clock::now_ns() + ns as i64;
        let at = (ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % REMEMBERED;
        self.mediated.lock()[at] = MediatedFile {
            ino,
            until_ns,
            alone,
        };
        self.any.store(1, Ordering::Relaxed);
    }
}

impl Channel for Link {
    fn call(&self, request: Request) -> Result<(Reply, Vec<OwnedFd>), ProtoError> {
        let lease = match &request {
            Request::Lease {
                ino,
                mode,
                request_mode,
            } => {
                let defers = *request_mode == LeaseRequestMode::RevokeOrDefer;
                let alone = *mode == LeaseMode::Exclusive;
                Some((*ino, request_mode.yields(), defers && alone))
            }
            _ => None,
        };
        if let Some((ino, yields, defers)) = lease {
            // A call that had begun before the file went back.
            if !self.leases.ask(ino) && yields {
                let (ns, alone) = (0, false);
                return Ok((Reply::Mediated { ns, alone }, Vec::new()));
            }
            shale_interpose::thread::this()
                .asked
                .store(ino, Ordering::Relaxed);
            if defers && let Some((ns, alone)) = self.left(ino) {
                return Ok((Reply::Mediated { ns, alone }, Vec::new()));
            }
        }
        let answer = self.channel.call(request);
        match (lease, &answer) {
            (_, Err(_)) => self.broken.store(true, Ordering::Release),
            (Some((ino, ..)), Ok((Reply::Mediated { ns, alone }, _))) => {
                self.leave(ino, *ns, *alone)
            }
            _ => {}
        }
        let (reply, fds) = answer?;
        Ok((reply, fds.into_iter().map(own::hide).collect()))
    }

    fn call_again(&self, request: Request) -> Result<Reply, ProtoError> {
        self.channel.call_again_placed(request, own::hide)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_elsewhere_are_remembered_for_their_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _listener = shale_proto::SocketPeer::listen(&path).unwrap();
        let link = Link::connect(&path).unwrap();
        assert_eq!(link.mediated_until(20), 0);
        link.leave(20, 60_000_000_000, true);
        assert!(link.writes_alone(20) && !link.writes_alone(21));
        assert!(link.mediated_until(20) > clock::now_ns());
        assert_eq!(link.mediated_until(21), 0);
        assert!(
            link.left(20)
                .is_some_and(|(ns, alone)| ns > 1_000_000_000 && alone)
        );
        assert_eq!(link.left(21), None);
        link.leave(20, 0, false);
        assert!(!link.writes_alone(20));
        assert_eq!(link.mediated_until(20), 0);
        assert_eq!(link.any.load(Ordering::Relaxed), 0);
    }
}
