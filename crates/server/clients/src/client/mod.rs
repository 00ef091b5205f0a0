//! One attached client, as the daemon sees it: its log, its two pages, its grants.
//!
//! Lock order: `work` (held while its log is digested), then `grants`, then `client_state`.

mod buffer_age;
mod log_watermark;
pub mod pace;

use crate::asked::Asked;
use crate::bucket::Bucket;
use crate::credentials::Credentials;
use crate::grants::Grants;
use crate::log_reader::word;
use crate::page::{ClientPage, DaemonPage};
use crate::tally::{Tally, Written};
use buffer_age::BufferAge;
use log_watermark::ValidatedWatermark;
use parking_lot::Mutex;
use shale_format::log::TAIL_AT;
use shale_format::{Durability, LogPos};
use shale_oplog::LogReader;
use shale_proto::shared_pages::state;
use shale_sys::kernel_text;
use std::collections::HashMap;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How the client talks to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In the daemon's own process: the FUSE front end.
    InProcess,
    /// Over the socket.
    Socket,
}

/// What has become of the client.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum ClientState {
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
pub struct Work {
    /// A record was refused at this position, and why: nothing from there on counts.
    pub refused: Option<(LogPos, String)>,
}

/// An attached client: who it is ([`Attached`]), and what changes while it is served.
pub struct Client {
    attached: Attached,
    /// The page that the daemon writes.
    pub daemon_page: DaemonPage,
    /// The page that the client writes.
    pub client_page: ClientPage,
    /// Blocks and inode numbers that it may use.
    pub grants: Mutex<Grants>,
    /// Files of others that its user could write when it got a lease on them, with their
    /// generation: it may have them open since.
    pub opened: Mutex<HashMap<u64, u32>>,
    /// Where the digest of its log stands.
    pub work: Mutex<Work>,
    /// What has become of it.
    pub client_state: Mutex<ClientState>,
    /// Its log waits for a digest thread.
    pub queued: AtomicBool,
    /// It has gone, or is leaving.
    pub leaving: AtomicBool,
    /// It has asked for a lease that it need not get: its calls may go through the mount.
    pub yields: AtomicBool,
    /// For which files.
    pub asked: Mutex<Asked>,
    /// Records digested.
    pub records: AtomicU64,
    /// Records before this are in the volume.
    pub digested: AtomicU64,
    /// Where logs lie in memory: records before this survive a power cut. Behind a whole transaction.
    pub hardened: AtomicU64,
    /// Of a buffered client: how old what it has logged is.
    pub buffer_age: Mutex<BufferAge>,
    /// A leaf among the locks, as `tally` and `bucket` are.
    pub reached: Mutex<ValidatedWatermark>,
    /// Its process as people know it.
    pub name: String,
    /// What it wrote.
    pub tally: Mutex<Tally>,
    /// How fast it may go on.
    pub bucket: Mutex<Bucket>,
}

/// Who a client is and where its log lies: known when it attaches, the same from then on.
pub struct Attached {
    /// Number, from 1; no other client of this daemon has had it.
    pub id: u32,
    /// Slot in the log table.
    pub slot: u32,
    /// How it talks to the daemon.
    pub transport: Transport,
    /// Its process, for people to read.
    pub pid: i32,
    /// Its user.
    pub person: Credentials,
    /// Whether it may write blocks in place.
    pub may_steal: bool,
    /// How its log is read: through a mapping only if the writer is this process.
    pub log: Box<dyn LogReader>,
    /// The file, for the client.
    pub log_fd: OwnedFd,
    /// Name of the log file.
    pub log_path: PathBuf,
    /// Its durability policy.
    pub policy: Durability,
    /// Of a buffered client, whose log lies in memory: its log in NVM, which has what was copied.
    pub nvm_log: Option<NvmLog>,
    /// Salt of the log, which every record carries.
    pub salt: u64,
    /// Bytes of the log's ring.
    pub ring_bytes: u64,
    /// FUSE connection that its requests come from; 0: none.
    pub connection: u64,
    /// See [`shale_proto::message::Attached::open_token`].
    pub open_token: u128,
}

/// The log in NVM of a client whose log lies in memory.
pub struct NvmLog {
    /// The file, for the client.
    pub fd: OwnedFd,
    /// Its name.
    pub path: PathBuf,
    /// How it is read.
    pub read: Box<dyn LogReader>,
}

impl Deref for Client {
    type Target = Attached;

    fn deref(&self) -> &Attached {
        &self.attached
    }
}

impl Client {
    /// Its pages are made; it is in no list yet.
    pub fn new(attached: Attached) -> crate::error::Result<Self> {
        let daemon_page = DaemonPage::new()?;
        daemon_page.set_state(state::RUNNING);
        daemon_page.set_allowed(u64::MAX);
        let name = match attached.transport {
            Transport::InProcess => "mount".to_owned(),
            Transport::Socket => process_name(attached.pid),
        };
        Ok(Self {
            attached,
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
            buffer_age: Mutex::default(),
            reached: Mutex::default(),
            name,
            tally: Mutex::default(),
            bucket: Mutex::default(),
        })
    }

    /// Whether its records need no check of rights: the daemon's own code wrote them.
    pub fn trusted(&self) -> bool {
        self.transport == Transport::InProcess
    }

    /// Where logs lie in memory and are staged: records before this survive a power cut.
    pub fn hardened(&self) -> u64 {
        self.hardened.load(Ordering::Acquire)
    }

    /// Records before this survive a power cut, as a buffered client says that it has copied them, or because the volume has
    /// them; of others whose log lies in NVM all that is published.
    pub fn copied(&self) -> u64 {
        let published = self.published().pos().0;
        match self.nvm_log {
            Some(_) => self
                .client_page
                .copied()
                .max(self.digested())
                .min(published),
            None => published,
        }
    }

    /// Records before `pos` survive a power cut now. The position never goes back.
    pub fn set_hardened(&self, pos: LogPos) {
        let before = self.hardened();
        assert!(pos.0 >= before, "hardened to {}, then to {before}", pos.0);
        self.hardened.store(pos.0, Ordering::Release);
        self.daemon_page.set_hardened(pos.0);
    }

    /// What it says is its oldest record; only for people to read.
    pub fn tail(&self) -> u64 {
        word(&*self.log, TAIL_AT).min(self.digested())
    }

    /// What it has written so far.
    pub fn written(&self) -> Written {
        let backlog = match self.leaving.load(Ordering::Acquire) {
            true => 0,
            false => self.backlog(),
        };
        self.tally(backlog).written(backlog)
    }

    /// Its account, with `backlog` bytes of log that are not digested yet.
    pub fn tally(&self, backlog: u64) -> Tally {
        let mut tally = *self.tally.lock();
        if self.nvm_log.is_some() {
            let logged = tally.logged + backlog;
            tally.in_memory = logged.saturating_sub(self.client_page.copied_bytes());
        }
        tally
    }
}

/// Name of a process as the kernel has it, for people to read; nothing if it is gone.
pub fn process_name(pid: i32) -> String {
    let name = kernel_text::read_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let shown = |c: char| if c.is_control() { '?' } else { c };
    name.trim_end().chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::barrier::Barrier;
    use crate::testing::lone;
    use shale_format::log::{END_AT, end};
    use shale_nvm::{Access, Map, Piece};
    use shale_proto::shared_pages::client_page;

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
