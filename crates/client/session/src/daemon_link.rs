//! The daemon, as a client reaches it: by messages that are answered, and by the page of words that it publishes.
//!
//! Each service of a client that asks the daemon has a link of its own. A link has no state besides the two, so which one is
//! used makes no difference. No message may be sent inside the read section or with a lock of an inode held.

use crate::errno::{Errno, Result, proto};
use shale_format::LogPos;
use shale_nvm::{Map, SharedWords};
use shale_proto::shared_pages::{daemon_page, mount_flag};
use shale_proto::{Channel, Reply, Request};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// See the module.
pub struct DaemonLink {
    channel: Arc<dyn Channel>,
    page: Arc<Map>,
    words: SharedWords,
}

impl Clone for DaemonLink {
    fn clone(&self) -> Self {
        Self::new(self.channel.clone(), self.page.clone())
    }
}

impl DaemonLink {
    /// `page`: what the daemon publishes for this client.
    pub(crate) fn new(channel: Arc<dyn Channel>, page: Arc<Map>) -> Self {
        Self {
            channel,
            words: SharedWords::new(page.clone()),
            page,
        }
    }

    /// Asks the daemon; a refusal becomes its errno.
    pub fn ask(&self, request: Request) -> Result<Reply> {
        accepted(self.call(request)?.0)
    }

    /// As [`Self::ask`], by a new connection ([`Channel::call_again`]).
    fn ask_again(&self, request: Request) -> Result<()> {
        let reply = self.channel.call_again(request).map_err(|e| proto(&e))?;
        accepted(reply).map(|_| ())
    }

    /// Asks; `None`: the daemon has gone.
    fn ask_while_there(&self, request: Request) -> Option<Result<()>> {
        let (reply, _) = self.channel.call(request).ok()?;
        Some(accepted(reply).map(|_| ()))
    }

    /// Asks the daemon; its answer as it is, and the descriptors that come with it.
    pub fn call(&self, request: Request) -> Result<(Reply, Vec<OwnedFd>)> {
        self.channel.call(request).map_err(|e| proto(&e))
    }

    /// Has this client's log brought into the volume up to this position.
    pub fn digest(&self, upto: LogPos) -> Result<()> {
        self.ask(Request::Digest { upto: upto.0 }).map(|_| ())
    }

    /// Has this client's log survive a power cut up to this position; waits for the device. Only where the log lies in memory.
    /// `None`: the daemon has gone meanwhile.
    pub(crate) fn harden(&self, upto: LogPos) -> Option<Result<()>> {
        match self.is_hardened(upto) {
            true => Some(Ok(())),
            false => self.ask_while_there(Request::Harden { upto: upto.0 }),
        }
    }

    /// Has what every client of the volume has published survive a power cut; waits for the device. Only where logs lie in memory.
    /// One that is started again meanwhile has brought what was published into the volume before it answers.
    pub(crate) fn harden_all(&self) -> Result<()> {
        self.ask_while_there(Request::HardenAll)
            .unwrap_or_else(|| self.ask_again(Request::HardenAll))
    }

    /// Whether the records before this position survive a power cut already, where the log lies in memory.
    #[inline]
    pub(crate) fn is_hardened(&self, upto: LogPos) -> bool {
        self.hardened() >= upto.0
    }

    /// Position up to which this client's log survives a power cut, where it lies in memory.
    #[inline]
    pub(crate) fn hardened(&self) -> u64 {
        self.words.load_u64(daemon_page::HARDENED)
    }

    /// Position up to which the volume has this client's log.
    #[inline]
    pub fn digested(&self) -> LogPos {
        LogPos(self.words.load_u64(daemon_page::DIGESTED))
    }

    /// Position up to which the volume has this buffered client's log from NVM; to be asked after [`Self::digested`].
    #[inline]
    pub(crate) fn linked(&self) -> u64 {
        self.words.load_u64(daemon_page::LINKED)
    }

    /// Position below which the log needs no record any more.
    #[inline]
    pub(crate) fn reclaimable(&self) -> u64 {
        self.words.load_u64(daemon_page::RECLAIM)
    }

    /// Position up to which this client may log without asking for how long it has to wait.
    #[inline]
    pub(crate) fn allowed(&self) -> u64 {
        self.words.load_u64(daemon_page::ALLOWED)
    }

    /// The volume's epoch.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.words.load_u64(daemon_page::EPOCH)
    }

    /// How often a lease that this client alone had was taken for somebody else.
    #[inline]
    pub fn taken(&self) -> u32 {
        self.words.load_u32(daemon_page::TAKEN)
    }

    /// Generation word of the lease on `ino`.
    #[inline]
    pub fn lease_word(&self, ino: u64) -> u32 {
        self.words.load_u32(daemon_page::bucket(ino))
    }

    /// Whether the volume has lower tiers. Inside the read section the answer holds: nothing lies below
    /// before every thread has left the call in which it heard that nothing does.
    #[inline]
    pub fn is_tiered(&self) -> bool {
        self.words.load_u64(daemon_page::TIERS) != 0
    }

    /// Whether the volume is mounted read-only.
    #[inline(always)]
    pub(crate) fn is_read_only(&self) -> bool {
        self.words.load_u64(daemon_page::MOUNT) & mount_flag::READ_ONLY != 0
    }

    /// Whether what is not hardened yet never will be.
    #[inline]
    pub(crate) fn hardening_failed(&self) -> bool {
        self.words.load_u64(daemon_page::MOUNT) & mount_flag::HARDENING_FAILED != 0
    }

    /// Whether calls that change something wait. Inside the read section the answer `false` holds: nobody counts on it before every
    /// thread has left the call in which it heard so.
    #[inline(always)]
    pub(crate) fn is_frozen(&self) -> bool {
        self.words.load_u64(daemon_page::MOUNT) & mount_flag::FROZEN != 0
    }

    /// The generation with which the caller may take a shared lease on `ino` for given; `None`: it has to ask.
    pub(crate) fn frozen_generation(&self, ino: u64) -> Option<u32> {
        // In this order: a generation that was raised for the last time comes without the bit.
        let generation = self.lease_word(ino);
        let flags = self.words.load_u64(daemon_page::MOUNT);
        (flags & mount_flag::READS_FROZEN != 0).then_some(generation)
    }

    /// Whether it is to be noted that a file was read.
    #[inline]
    pub fn notes_access(&self) -> bool {
        const NOT: u64 = mount_flag::READ_ONLY | mount_flag::NO_ATIME | mount_flag::FROZEN;
        self.words.load_u64(daemon_page::MOUNT) & NOT == 0
    }
}

/// An answer; a refusal becomes its errno.
fn accepted(reply: Reply) -> Result<Reply> {
    match reply {
        Reply::Refused { errno, why } => {
            if errno != libc::ENOENT {
                tracing::warn!("daemon refuses: {why}");
            }
            Err(Errno::from_raw_os_error(errno))
        }
        reply => Ok(reply),
    }
}
