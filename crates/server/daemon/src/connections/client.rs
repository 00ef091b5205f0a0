//! One attached client, as the daemon sees it: its log, its two pages, its grants.
//!
//! Lock order: `work` (held while its log is digested), then `grants`, then `client_state`.

mod log_watermark;
pub(crate) mod pace;

use crate::coherence::asked::Asked;
use crate::coherence::page::{ClientPage, DaemonPage};
use crate::connections::bucket::Bucket;
use crate::connections::credentials::Credentials;
use crate::connections::grants::Grants;
use crate::connections::log_reader::word;
use crate::connections::tally::{Tally, Written};
use log_watermark::ValidatedWatermark;
use parking_lot::Mutex;
use shale_format::LogPos;
use shale_format::log::TAIL_AT;
use shale_oplog::LogReader;
use shale_proto::shared_pages::state;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How the client talks to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// In the daemon's own process: the FUSE front end.
    InProcess,
    /// Over the socket.
    Socket,
}

/// What has become of the client.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum ClientState {
    /// It is served.
    #[default]
    Served,
    /// It was cut off. Of its log, what was published then counts.
    Evicted(String),
    /// Its log cannot be digested for now (an error of the medium). It is kept.
    Stuck(String),
}

/// Where the digest of one log stands. Held while it is digested.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// A record was refused at this position, and why: nothing from there on counts.
    pub(crate) refused: Option<(LogPos, String)>,
}

/// An attached client.
pub(crate) struct Client {
    pub(crate) id: u32,
    pub(crate) slot: u32,
    pub(crate) transport: Transport,
    pub(crate) pid: i32,
    pub(crate) person: Credentials,
    pub(crate) may_steal: bool,
    /// How its log is read: through a mapping only if the writer is this process.
    pub(crate) log: Box<dyn LogReader>,
    /// The file, for the client.
    pub(crate) log_fd: OwnedFd,
    pub(crate) log_path: PathBuf,
    pub(crate) salt: u64,
    pub(crate) ring_bytes: u64,
    /// FUSE connection that its requests come from; 0: none.
    pub(crate) connection: u64,
    pub(crate) daemon_page: DaemonPage,
    pub(crate) client_page: ClientPage,
    pub(crate) grants: Mutex<Grants>,
    /// Files of others that its user could write when it got a lease on them, with their
    /// generation: it may have them open since.
    pub(crate) opened: Mutex<HashMap<u64, u32>>,
    pub(crate) work: Mutex<Work>,
    pub(crate) client_state: Mutex<ClientState>,
    pub(crate) queued: AtomicBool,
    pub(crate) leaving: AtomicBool,
    /// It has asked for a lease that it need not get: its calls may go through the mount.
    pub(crate) yields: AtomicBool,
    /// For which files.
    pub(crate) asked: Mutex<Asked>,
    /// Records digested.
    pub(crate) records: AtomicU64,
    /// Records before this are in the volume.
    pub(crate) digested: AtomicU64,
    /// Where logs lie in memory: records before this survive a power cut. Behind a whole transaction.
    pub(crate) hardened: AtomicU64,
    /// A leaf among the locks, as `tally` and `bucket` are.
    pub(crate) reached: Mutex<ValidatedWatermark>,
    /// Its process as people know it.
    pub(crate) name: String,
    pub(crate) tally: Mutex<Tally>,
    pub(crate) bucket: Mutex<Bucket>,
}

/// What a client is made of.
pub(crate) struct Parts {
    pub(crate) id: u32,
    pub(crate) slot: u32,
    pub(crate) transport: Transport,
    pub(crate) pid: i32,
    pub(crate) person: Credentials,
    pub(crate) may_steal: bool,
    /// How its log is read: through a mapping only if the writer is this process.
    pub(crate) log: Box<dyn LogReader>,
    /// The file, for the client.
    pub(crate) log_fd: OwnedFd,
    pub(crate) log_path: PathBuf,
    pub(crate) salt: u64,
    pub(crate) ring_bytes: u64,
    pub(crate) connection: u64,
}

impl Client {
    pub(crate) fn new(parts: Parts) -> crate::error::Result<Self> {
        let daemon_page = DaemonPage::new()?;
        daemon_page.set_state(state::RUNNING);
        daemon_page.set_allowed(u64::MAX);
        let name = match parts.transport {
            Transport::InProcess => "mount".to_owned(),
            Transport::Socket => process_name(parts.pid),
        };
        Ok(Self {
            id: parts.id,
            slot: parts.slot,
            transport: parts.transport,
            pid: parts.pid,
            person: parts.person,
            may_steal: parts.may_steal,
            log: parts.log,
            log_fd: parts.log_fd,
            log_path: parts.log_path,
            salt: parts.salt,
            ring_bytes: parts.ring_bytes,
            connection: parts.connection,
            daemon_page,
            client_page: ClientPage::new()?,
            grants: Mutex::default(),
            opened: Mutex::default(),
            work: Mutex::default(),
            client_state: Mutex::default(),
            queued: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            yields: AtomicBool::new(false),
            asked: Mutex::default(),
            records: AtomicU64::new(0),
            digested: AtomicU64::new(0),
            hardened: AtomicU64::new(0),
            reached: Mutex::default(),
            name,
            tally: Mutex::default(),
            bucket: Mutex::default(),
        })
    }

    /// Whether its records need no check of rights: the daemon's own code wrote them.
    pub(crate) fn trusted(&self) -> bool {
        self.transport == Transport::InProcess
    }

    /// Where logs lie in memory: records before this survive a power cut.
    pub(crate) fn hardened(&self) -> u64 {
        self.hardened.load(Ordering::Acquire)
    }

    /// Records before `pos` survive a power cut now. The position never goes back.
    pub(crate) fn set_hardened(&self, pos: LogPos) {
        let before = self.hardened();
        assert!(pos.0 >= before, "hardened to {}, then to {before}", pos.0);
        self.hardened.store(pos.0, Ordering::Release);
        self.daemon_page.set_hardened(pos.0);
    }

    /// What it says is its oldest record; only for people to read.
    pub(crate) fn tail(&self) -> u64 {
        word(&*self.log, TAIL_AT).min(self.digested())
    }

    /// What it has written so far.
    pub(crate) fn written(&self) -> Written {
        let tally = *self.tally.lock();
        let backlog = match self.leaving.load(Ordering::Acquire) {
            true => 0,
            false => self.backlog(),
        };
        tally.written(backlog)
    }
}

/// Name of a process as the kernel has it, for people to read; nothing if it is gone.
pub(crate) fn process_name(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let shown = |c: char| if c.is_control() { '?' } else { c };
    name.trim_end().chars().map(shown).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::coherence::barrier::Barrier;
    use shale_format::log::{END_AT, end};
    use shale_nvm::{Access, Map, MapOptions, Piece};
    use shale_proto::shared_pages::client_page;

    /// A client with a log in memory and no process behind it.
    pub(crate) fn lone(id: u32, transport: Transport) -> Client {
        let log = MapOptions::new().anonymous(8192).unwrap();
        Client::new(Parts {
            id,
            slot: id,
            transport,
            pid: 1,
            person: Credentials {
                uid: 1000,
                groups: vec![],
            },
            may_steal: true,
            log_fd: rustix::io::dup(log.fds().next().unwrap()).unwrap(),
            log: Box::new(log.on(shale_nvm::Path::Log).clone()),
            log_path: PathBuf::new(),
            salt: 1,
            ring_bytes: 1 << 20,
            connection: 0,
        })
        .unwrap()
    }

    #[test]
    fn a_name_is_safe_to_show() {
        assert!(!process_name(std::process::id() as i32).is_empty());
        assert_eq!(process_name(-1), "");
    }

    #[test]
    fn a_forged_commit_word_is_not_believed() {
        let client = lone(1, Transport::Socket);
        let page = Map::open(
            vec![Piece {
                fd: client.client_page.fd().unwrap(),
                bytes: client_page::BYTES,
            }],
            Access::ReadWrite,
        )
        .unwrap();
        let say = |pos| page.store_u64(client_page::PUBLISHED, pos);
        say(640);
        assert_eq!(client.published().pos().0, 640);
        say(64);
        assert_eq!(client.published().pos().0, 640, "it never goes back");
        say(1000);
        assert_eq!(client.published().pos().0, 960, "whole units");
        say(u64::MAX);
        assert_eq!(client.published().pos().0, 1 << 20, "at most a ring");
        client.cut(Barrier::register().unwrap());
        assert_eq!(word(&*client.log, END_AT), end::at(1 << 20));
        client.set_digested(LogPos(1 << 20));
        assert_eq!(client.published().pos().0, 1 << 20, "nothing after the cut");
        assert_eq!(client.backlog(), 0);
    }
}
