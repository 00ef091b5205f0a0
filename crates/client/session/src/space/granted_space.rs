//! Space of the volume that this client was granted: bytes that its records may add, and free blocks that it may write
//! whole blocks of files into.
//!
//! Owns the credit at hand and the granted blocks, and which part of NVM this process may store to: granted blocks, and
//! nothing else. Calls take from what is at hand without asking; what is missing is asked for outside of the read section
//! and locks.

use crate::connection_state::ConnectionState;
use crate::daemon_link::DaemonLink;
use crate::errno::{Errno, Result, final_errno};
use crate::space::grants::{BlockRun, Blocks, Runs, within_segments};
use crate::space::reservation::{Reservation, UNIT, ahead_bytes};
use shale_format::BlockAddr;
use shale_format::limits::BLOCK_BYTES;
use shale_nvm::{Map, MappedRegion};
use shale_oplog::{FreeBlocks, Named};
use shale_proto::message::BlockRun as GrantedRun;
use shale_proto::{Reply, Request};
use shale_sys::mutants;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// See the module.
pub struct GrantedSpace {
    daemon: DaemonLink,
    connection: ConnectionState,
    nvm: Arc<Map>,
    /// Whether calls write into granted blocks at all.
    may_steal: bool,
    /// Whether a buffered client may, in calls that go directly to NVM and when it copies its log.
    may_copy: bool,
    reservation: Reservation,
    blocks: Blocks,
}

impl GrantedSpace {
    pub(crate) fn new(
        daemon: DaemonLink,
        connection: ConnectionState,
        nvm: Arc<Map>,
        (may_steal, may_copy): (bool, bool),
    ) -> Self {
        Self {
            daemon,
            connection,
            nvm,
            may_steal,
            may_copy,
            reservation: Reservation::default(),
            blocks: Blocks::default(),
        }
    }

    /// Takes `bytes` of space (a multiple of [`UNIT`]); `false`: there is less at hand.
    #[inline(always)]
    pub(crate) fn take(&self, bytes: u64) -> bool {
        self.reservation.take(bytes)
    }

    /// Gives space back that was taken.
    #[inline(always)]
    pub(crate) fn put(&self, bytes: u64) {
        self.reservation.add(bytes);
    }

    /// Gets space so that `bytes` are free for the caller.
    pub fn acquire(&self, bytes: u64) -> Result<()> {
        let ask = |wanted| match self.daemon.ask(Request::Reserve {
            wanted,
            least: bytes,
        })? {
            Reply::Credit { bytes } => {
                self.reservation.add(bytes / UNIT * UNIT);
                Ok(true)
            }
            Reply::NoSpace => Ok(false),
            _ => Err(Errno::PROTO),
        };
        if ask(bytes.max(ahead_bytes(self.nvm.bytes() as u64)))? {
            return Ok(());
        }
        self.give_back()?;
        if ask(bytes)? {
            Ok(())
        } else {
            Err(Errno::NOSPC)
        }
    }

    /// Gets space for a page of a mapping, `bytes` bytes, also the last that there is. For the mount.
    pub fn acquire_for_page(&self, bytes: u64) -> Result<()> {
        match self.daemon.ask(Request::ReserveForPage { bytes })? {
            Reply::Credit { bytes } => {
                self.reservation.add(bytes / UNIT * UNIT);
                Ok(())
            }
            Reply::NoSpace => Err(Errno::NOSPC),
            _ => Err(Errno::PROTO),
        }
    }

    /// Gives blocks and space that no record uses back to the daemon.
    pub(crate) fn give_back(&self) -> Result<()> {
        let runs: Vec<_> = self.blocks.drain();
        for some in runs.chunks(1024) {
            let runs: Vec<_> = some
                .iter()
                .map(|r| GrantedRun {
                    addr: r.addr.raw(),
                    blocks: r.blocks as u32,
                })
                .collect();
            self.close_runs(&runs);
            self.daemon.ask(Request::ReturnBlocks { runs })?;
        }
        self.give_space_back()
    }

    /// Gives space that no record uses back to the daemon.
    pub fn give_space_back(&self) -> Result<()> {
        let bytes = self.reservation.drain();
        if bytes > 0 {
            self.daemon.ask(Request::ReturnCredit { bytes })?;
        }
        Ok(())
    }

    /// Blocks of the volume that are this client's and hold nothing, with `spare_bytes` that the daemon keeps for it.
    pub(crate) fn unused_blocks(&self, spare_bytes: u64) -> u64 {
        let bytes = self.reservation.free() + spare_bytes;
        bytes / BLOCK_BYTES as u64 + self.blocks.count()
    }

    /// Whether this client is buffered and may write into granted blocks.
    pub(crate) fn may_copy(&self) -> bool {
        self.may_copy
    }

    /// Whether a call writes into granted blocks: each of a client whose log is in NVM, of a buffered one those that are `eager`.
    #[inline]
    pub fn may_steal(&self, eager: bool) -> bool {
        self.may_steal || eager && self.may_copy
    }

    /// Takes `blocks` granted blocks for a call ([`Self::may_steal`]), asking for more if needed; `false`: there are
    /// none to be had, so the bytes go through the log.
    pub fn take_blocks(&self, blocks: u64, eager: bool, into: &mut Runs) -> Result<bool> {
        match self.may_steal(eager) {
            true => self.take_granted(blocks, into),
            false => Ok(false),
        }
    }

    fn take_granted(&self, blocks: u64, into: &mut Runs) -> Result<bool> {
        if self.blocks.take(blocks, into) {
            return Ok(true);
        }
        // What a large call lacks, so that nothing of it stays behind; for small ones ahead.
        let lacking = blocks.saturating_sub(self.blocks.count());
        let ahead = ahead_bytes(self.nvm.bytes() as u64) / BLOCK_BYTES as u64;
        let ask = Request::GrantBlocks {
            blocks: lacking.max(ahead) as u32,
        };
        let (reply, fds) = self.daemon.call(ask)?;
        let Reply::Blocks { runs, segments } = reply else {
            return Ok(false);
        };
        let (runs, closed) = self.open_runs(runs, &segments, &fds);
        if !closed.is_empty() {
            // No descriptor, or no memory, for their segments: the bytes go through the log.
            self.daemon.ask(Request::ReturnBlocks { runs: closed })?;
        }
        self.blocks.add(runs.iter().map(|r| BlockRun {
            addr: BlockAddr::from_raw(r.addr),
            blocks: r.blocks.into(),
        }));
        Ok(self.blocks.take(blocks, into))
    }

    /// Puts blocks back that no record names, to be used next.
    pub fn put_blocks(&self, unused: &mut Runs) {
        self.blocks.put(unused);
    }

    /// Whether blocks that were just written have a memory error.
    pub(crate) fn is_lost(&self, named: &Named) -> bool {
        let bytes = named.blocks as usize * BLOCK_BYTES;
        self.nvm.lost(named.addr.byte() as usize, bytes).is_some()
    }

    /// Refuses (`EIO`) to store into blocks that another daemon may have given to somebody else.
    #[inline]
    pub fn are_blocks_ours(&self) -> Result<()> {
        self.connection.still_served().map_err(final_errno)
    }

    /// Where blocks that were taken lie, for an append that writes them with its record.
    #[inline(always)]
    pub fn region(&self) -> &MappedRegion {
        &self.nvm
    }

    /// Writes the first bytes of `data` into blocks that were taken, durably. `EIO`: not all of them hold it. They
    /// stay with this client then, and nobody uses them again.
    pub fn write_blocks(&self, data: &[u8], runs: &Runs) -> Result<()> {
        let mut at = 0;
        for run in runs {
            let (to, bytes) = (run.addr.byte() as usize, &data[at..at + run.bytes()]);
            self.nvm.copy_nt(to, bytes);
            if self.nvm.lost(to, bytes.len()).is_some() {
                return Err(Errno::IO);
            }
            at += bytes.len();
        }
        let unfenced = match self.may_copy {
            true => "eager-fence",
            false => "steal-fence",
        };
        if !mutants::is_on(unfenced) {
            self.nvm.fence();
        }
        Ok(())
    }

    /// Makes granted runs writable, as far as there are descriptors for them (the kernel leaves out
    /// those that this process has no numbers for) and memory. Gives those that are and those
    /// that are not. Blocks stay writable when their file gives them up, and are present then: a client that
    /// overwrites in any order is granted the same blocks again and again, one by one, and pays for each once.
    fn open_runs(
        &self,
        runs: Vec<GrantedRun>,
        segments: &[u32],
        fds: &[OwnedFd],
    ) -> (Vec<GrantedRun>, Vec<GrantedRun>) {
        runs.into_iter().partition(|run| {
            within_segments(run).all(|(segment, range)| {
                if self.nvm.is_writable(range.clone()) {
                    return true;
                }
                let fd = segments.iter().position(|&s| s as usize == segment);
                let opened = match fd.and_then(|at| fds.get(at)) {
                    Some(fd) => self.nvm.remap_writable(range.clone(), fd),
                    None => return false,
                };
                match &opened {
                    Ok(()) => self.nvm.expect_stores(range.start, range.len()),
                    Err(e) => tracing::warn!("granted blocks stay read-only: {e}"),
                }
                opened.is_ok()
            })
        })
    }

    /// Makes runs read-only again that go back.
    fn close_runs(&self, runs: &[GrantedRun]) {
        for (_, range) in runs.iter().flat_map(within_segments) {
            // What stays writable is this process's own loss only if it stores astray.
            if let Err(e) = self.nvm.remap_read_only(range) {
                tracing::warn!("returned blocks stay writable: {e}");
            }
        }
    }
}

impl FreeBlocks for GrantedSpace {
    fn take(&self, blocks: u64) -> Option<BlockAddr> {
        let mut runs = Runs::new();
        let taken = self.take_granted(blocks, &mut runs).unwrap_or(false);
        // Another daemon may have given them to somebody else.
        if !taken || self.are_blocks_ours().is_err() {
            return None;
        }
        match &*runs {
            [one] => Some(one.addr),
            _ => {
                self.put_blocks(&mut runs);
                None
            }
        }
    }

    fn region(&self) -> &MappedRegion {
        &self.nvm
    }
}
