//! A client as the daemon has it.

#[path = "../../../../../server/clients/src/client/log_watermark.rs"]
mod log_watermark;

use super::asked::Asked;
use super::sync::{AtomicBool, AtomicU64, Mutex};
use crate::memory::{self, Words};
use log_watermark::ValidatedWatermark;
use shale_format::LogPos;
use shale_proto::shared_pages::{client_page, daemon_page, state};
use std::collections::BTreeSet;
use std::sync::Arc;

/// So many reader slots are used; the others are never odd.
pub(crate) const READER_SLOTS_USED: usize = 4;
/// Bytes of a record.
pub(crate) const RECORD: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    InProcess,
    Socket,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum ClientState {
    #[default]
    Served,
    Evicted(String),
    #[allow(dead_code, reason = "media do not fail here")]
    Stuck(String),
}

#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) refused: Option<(LogPos, String)>,
}

#[derive(Default)]
pub(crate) struct Grants {
    pub(crate) inos: BTreeSet<u64>,
}

/// One write: this inode has this value now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) ino: u64,
    pub(crate) value: u64,
}

/// The log's file: its records, and the words before them.
#[derive(Clone)]
pub(crate) struct LogFile {
    pub(crate) words: Words,
    pub(crate) records: Arc<std::sync::Mutex<Vec<Record>>>,
    /// Its end was sought: what the client does now is not believed.
    pub(crate) cut: Arc<std::sync::atomic::AtomicBool>,
}

impl LogFile {
    /// Whether its end was sought or found.
    pub(crate) fn is_cut(&self) -> bool {
        memory::step();
        self.cut.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// A system call that stores a word of the file.
pub(crate) fn set_word(log: &LogFile, at: usize, value: u64) {
    log.cut.store(true, std::sync::atomic::Ordering::Relaxed);
    log.words.store_u64(at, value);
    memory::fence();
}

pub(crate) struct DaemonPage(pub(crate) Words);

impl DaemonPage {
    pub(crate) fn set_digested(&self, pos: u64) {
        self.0.store_u64(daemon_page::DIGESTED, pos);
    }

    pub(crate) fn set_state(&self, state: u32) {
        self.0.store_u32(daemon_page::STATE, state);
    }

    pub(crate) fn count_taken(&self) {
        self.0.fetch_add_u32(daemon_page::TAKEN, 1);
    }

    pub(crate) fn generation(&self, ino: u64) -> u32 {
        self.0.load_u32(daemon_page::bucket(ino))
    }

    pub(crate) fn bump_generation(&self, ino: u64) {
        self.0.fetch_add_u32(daemon_page::bucket(ino), 1);
    }
}

pub(crate) struct ClientPage(pub(crate) Words);

impl ClientPage {
    pub(crate) fn published(&self) -> u64 {
        self.0.load_u64(client_page::PUBLISHED)
    }

    pub(crate) fn uses(&self, _ino: u64) -> bool {
        false
    }

    pub(crate) fn reader_slot(&self, n: usize) -> u64 {
        match n < READER_SLOTS_USED {
            true => self.0.load_u64(client_page::reader_slot(n)),
            false => 0,
        }
    }
}

pub(crate) struct Client {
    pub(crate) id: u32,
    pub(crate) pid: i32,
    pub(crate) transport: Transport,
    pub(crate) ring_bytes: u64,
    pub(crate) log_fd: LogFile,
    pub(crate) daemon_page: DaemonPage,
    pub(crate) client_page: ClientPage,
    pub(crate) grants: Mutex<Grants>,
    pub(crate) work: Mutex<Work>,
    pub(crate) client_state: Mutex<ClientState>,
    pub(crate) leaving: AtomicBool,
    /// It has asked for a lease that it need not get: its calls may go through the mount.
    pub(crate) yields: AtomicBool,
    /// For which files.
    pub(crate) asked: Mutex<Asked>,
    pub(crate) digested: AtomicU64,
    pub(crate) reached: Mutex<ValidatedWatermark>,
}

impl Client {
    pub(crate) fn new(id: u32) -> Arc<Self> {
        Self::of(id, Transport::Socket)
    }

    /// The front end of the kernel.
    pub(crate) fn in_process(id: u32) -> Arc<Self> {
        Self::of(id, Transport::InProcess)
    }

    fn of(id: u32, transport: Transport) -> Arc<Self> {
        let daemon_page = DaemonPage(Words::new());
        daemon_page.set_state(state::RUNNING);
        Arc::new(Self {
            id,
            pid: 0,
            transport,
            ring_bytes: 1 << 20,
            log_fd: LogFile {
                words: Words::new(),
                records: Arc::default(),
                cut: Arc::default(),
            },
            daemon_page,
            client_page: ClientPage(Words::new()),
            grants: Mutex::default(),
            work: Mutex::default(),
            client_state: Mutex::default(),
            leaving: AtomicBool::new(false),
            yields: AtomicBool::new(false),
            asked: Mutex::default(),
            digested: AtomicU64::new(0),
            reached: Mutex::default(),
        })
    }
}
