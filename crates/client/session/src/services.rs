//! The services of a client, of which each owns its state, and what takes several of them.
//!
//! A run of a call reaches them through [`crate::call_frame::CallFrame`], which is what an operation may touch; only the frame that
//! calls run in sees them as they are.

use crate::caller::Caller;
use crate::connection_state::ConnectionState;
use crate::daemon_link::DaemonLink;
use crate::errno::{Errno, Result, Stop, final_errno};
use crate::kernel_refs::KernelRefs;
use crate::lease::Leases;
use crate::log::client_log::{ClientLog, Need};
use crate::options::SessionOptions;
use crate::retry::RetryPolicy;
use crate::space::granted_space::GrantedSpace;
use crate::space::grants::InodeNumbers;
use crate::volume_reader::VolumeReader;
use shale_format::LogPos;
use shale_nvm::{Map, SharedWords};
use shale_oplog::LogReservation;
use shale_proto::message::Space;
use shale_proto::shared_pages::client_page;
use shale_proto::{Reply, Request};
use shale_sys::Memory;
use shale_sys::clock::Clock;
use std::sync::Arc;

/// See the module. In the order of their dependence.
pub struct Services {
    /// Number that the daemon knows this client by.
    pub client: u32,
    /// See [`shale_proto::message::Attached::open_token`].
    pub open_token: u128,
    /// See [`shale_proto::message::Attached::groups`].
    pub groups: Option<&'static [u32]>,
    /// How the session was opened.
    pub options: SessionOptions,
    /// The time that records get.
    pub clock: Arc<dyn Clock>,
    /// The client page: who is inside of a call, what is open.
    pub sections: SharedWords,
    pub(crate) page: Arc<Map>,
    /// Messages to the daemon, and its words.
    pub daemon: DaemonLink,
    /// Whether the daemon still serves this client.
    pub connection: ConnectionState,
    /// The volume, for reading.
    pub volume: VolumeReader,
    /// Getting leases.
    pub leases: Leases,
    /// What the kernel has of inodes.
    pub kernel: KernelRefs,
    pub(crate) numbers: InodeNumbers,
    /// Granted bytes and blocks.
    pub space: GrantedSpace,
    /// The update log.
    pub log: ClientLog,
}

impl Services {
    /// Refuses a call (`ENOMEM`) while the program's allocator is short, if it is ours.
    #[inline(always)]
    pub fn has_memory(&self) -> Result<()> {
        match self.options.memory.is_some_and(Memory::is_short) {
            true => Err(Errno::NOMEM),
            false => Ok(()),
        }
    }

    /// Space in the log for `bytes`; none is needed for 0. `thread`: the caller's reader slot. Outside of the read section and locks.
    #[inline(always)]
    pub fn admit(&self, thread: usize, bytes: u64) -> Result<Option<LogReservation<'_>>> {
        let Self {
            log, kernel, space, ..
        } = self;
        Ok(match bytes {
            0 => None,
            bytes => Some(log.resume(log.reserve(thread, bytes, kernel, space)?)),
        })
    }

    /// A call that has space in the log, and may append for a request of the kernel, begins.
    #[inline(always)]
    pub fn begin_request(&self, caller: &Caller) {
        if caller.request != 0 {
            let log = &self.log;
            log.requests.begin(caller.request, || log.reserved());
        }
    }

    /// A call has done what it had to, and has appended records up to `appended`: returns when that counts. `synced`: it has changed an inode of
    /// which each change is to be durable at return. Outside of the read section.
    #[inline(always)]
    pub fn end_call(&self, need: Need, appended: LogPos, synced: bool) -> Result<()> {
        match need.log {
            0 => self.connection.still_served().map_err(final_errno),
            _ if self.log.hardens_at_return() => self.log.harden(appended, &self.space),
            _ if need.sync => self.log.harden_sync(appended, &self.space),
            _ if synced => {
                self.log.owe(appended);
                self.log.harden_sync(appended, &self.space)
            }
            _ => Ok(()),
        }
    }

    /// Gets what a run lacked that concerns no inode in memory: numbers, blocks of lower tiers, space. Outside of the read section and locks.
    /// Errors: that of the run; `EIO` for what only the caller can resolve; `ENOSPC`.
    pub fn get_lacking(&self, stop: Stop, search: &mut RetryPolicy) -> Result<()> {
        match stop {
            Stop::Errno(e) => Err(e),
            Stop::Inodes(parent) => self.numbers.get_more(parent),
            Stop::Blocks(missing) => self.volume.get_missing(missing),
            Stop::Frozen => self.log.wait_until_thawed(),
            Stop::NeedSpace(bytes) => match self.space.acquire(bytes) {
                // The daemon has digested everything to find space, which can lessen the
                // need: look once more.
                Err(Errno::NOSPC) if !search.last_try => {
                    search.last_try = true;
                    Ok(())
                }
                other => other,
            },
            Stop::Lease(..) | Stop::Grow(_) | Stop::Log(_) | Stop::Rights(..) | Stop::Again => {
                Err(Errno::IO)
            }
        }
    }

    /// Counts an open file of inode `ino` where the daemon sees it.
    #[inline]
    pub fn count_open(&self, ino: u64, by: i32) {
        let word = client_page::uses(ino);
        self.page.fetch_add_u32(word, by.cast_unsigned());
    }

    /// Counts a path of a directory that was looked up where the daemon sees it. `is_known`: from a walk before.
    #[inline]
    pub fn count_path(&self, is_known: bool) {
        let word = match is_known {
            true => client_page::PATHS_KNOWN,
            false => client_page::PATHS_WALKED,
        };
        self.page.fetch_add_u64(word, 1);
    }

    /// Has the log brought into the volume up to this position, if it is not.
    #[inline]
    pub fn digest_to(&self, upto: LogPos) -> Result<()> {
        match upto > self.daemon.digested() {
            true => self.daemon.digest(upto),
            false => Ok(()),
        }
    }

    /// Space of the volume. What was deleted counts as free at once.
    pub fn volume_space(&self) -> Result<Space> {
        let Self {
            daemon, log, space, ..
        } = self;
        if daemon.digested() < log.published() {
            log.digest()?;
        }
        match daemon.ask(Request::Space)? {
            Reply::Space(mut s) => {
                let own = space.unused_blocks(s.spare_bytes);
                s.free = (s.free + own).min(s.total);
                Ok(s)
            }
            _ => Err(Errno::PROTO),
        }
    }
}
