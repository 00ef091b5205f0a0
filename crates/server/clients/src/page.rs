//! The two control pages of a client, as the daemon holds them.
//!
//! Both are memory files. The daemon page is sealed against new writable mappings
//! once the daemon has its own, so a client cannot store to it. The client page is
//! sealed against shrinking: a client cannot make the daemon's loads fail.

use crate::error::{ClientError, Result};
use rustix::fs::{MemfdFlags, SealFlags};
use shale_nvm::{Access, Map, MapOptions, Path as CountPath, Piece};
use shale_proto::shared_pages::{client_page, daemon_page};
use std::os::fd::OwnedFd;
use std::path::Path;

fn os(tried: &str, e: rustix::io::Errno) -> ClientError {
    ClientError::file(Path::new("control page"), tried, e)
}

fn memory(name: &str, bytes: usize) -> Result<(Map, OwnedFd)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(name, flags).map_err(|e| os("make it", e))?;
    rustix::fs::ftruncate(&fd, bytes as u64).map_err(|e| os("set its size", e))?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)
        .map_err(|e| os("seal its size", e))?;
    let own = rustix::io::fcntl_dupfd_cloexec(&fd, 0).map_err(|e| os("duplicate it", e))?;
    let map = MapOptions::new()
        .path(CountPath::Control)
        .open(vec![Piece { fd: own, bytes }], Access::ReadWrite)?;
    Ok((map, fd))
}

/// The page that the daemon writes.
pub struct DaemonPage {
    map: Map,
}

impl DaemonPage {
    /// Makes one, zeroed.
    pub fn new() -> Result<Self> {
        let (map, fd) = memory("shale-daemon-page", daemon_page::BYTES)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
            .map_err(|e| os("seal its contents", e))?;
        Ok(Self { map })
    }

    /// Takes back, as far as the client can see, every lease that it holds: it asks again for each.
    pub fn bump_all_generations(&self) {
        for n in 0..daemon_page::BUCKETS {
            self.map.fetch_add_u32(daemon_page::LEASES + n * 4, 1);
        }
    }

    /// A descriptor for the client.
    pub fn read_only_fd(&self) -> Result<OwnedFd> {
        Ok(self.map.read_only_fd(0)?)
    }

    /// Records before `pos` are in the volume.
    pub fn set_digested(&self, pos: u64) {
        self.map.store_u64(daemon_page::DIGESTED, pos);
    }

    /// Records before `pos` were digested from the log in NVM. Before [`Self::set_digested`].
    pub fn set_linked(&self, pos: u64) {
        self.map.store_u64(daemon_page::LINKED, pos);
    }

    /// Records before `pos` survive a power cut.
    pub fn set_hardened(&self, pos: u64) {
        self.map.store_u64(daemon_page::HARDENED, pos);
    }

    /// Everything before `pos` may be overwritten: nobody can be reading it.
    pub fn set_reclaim(&self, pos: u64) {
        self.map.store_u64(daemon_page::RECLAIM, pos);
    }

    /// The client asks before it logs more than this; `u64::MAX`: it need not.
    pub fn set_allowed(&self, pos: u64) {
        self.map.store_u64(daemon_page::ALLOWED, pos);
    }

    /// Whether there are lower tiers.
    pub fn set_tiers(&self, tiers: bool) {
        self.map.store_u64(daemon_page::TIERS, tiers.into());
    }

    /// How the volume is mounted: bits of [`shale_proto::shared_pages::mount_flag`].
    pub fn set_mount(&self, flags: u64) {
        self.map.store_u64(daemon_page::MOUNT, flags);
    }

    /// The structure that the client may read.
    pub fn set_epoch(&self, epoch: u64) {
        self.map.store_u64(daemon_page::EPOCH, epoch);
    }

    /// A lease that the client alone had was taken for somebody else.
    pub fn count_taken(&self) {
        self.map.fetch_add_u32(daemon_page::TAKEN, 1);
    }

    /// What has become of the client ([`shale_proto::shared_pages::state`]).
    pub fn set_state(&self, state: u32) {
        self.map.store_u32(daemon_page::STATE, state);
    }

    /// Lease generation word for `ino`.
    pub fn generation(&self, ino: u64) -> u32 {
        self.map.load_u32(daemon_page::bucket(ino))
    }

    /// Takes back, as far as the client can see, every lease in the bucket of `ino`.
    pub fn bump_generation(&self, ino: u64) {
        self.map.fetch_add_u32(daemon_page::bucket(ino), 1);
    }
}

/// The page that the client writes. Nothing in it is trusted.
pub struct ClientPage {
    map: Map,
    fd: OwnedFd,
}

impl ClientPage {
    /// Makes one, zeroed.
    pub fn new() -> Result<Self> {
        let (map, fd) = memory("shale-client-page", client_page::BYTES)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SEAL).map_err(|e| os("seal it", e))?;
        Ok(Self { map, fd })
    }

    /// A read-write descriptor for the client.
    pub fn fd(&self) -> Result<OwnedFd> {
        rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).map_err(|e| os("duplicate it", e))
    }

    /// Position up to which the client says that it has published.
    pub fn published(&self) -> u64 {
        self.map.load_u64(client_page::PUBLISHED)
    }

    /// Position up to which a buffered client says that it has copied its log to NVM.
    pub fn copied(&self) -> u64 {
        self.map.load_u64(client_page::COPIED)
    }

    /// Bytes of records that it says that it has copied there.
    pub fn copied_bytes(&self) -> u64 {
        self.map.load_u64(client_page::COPIED_BYTES)
    }

    /// What a buffered client says of its writes and of the Buffer Benefit Model: bytes that went directly to NVM, bytes that went to memory,
    /// and blocks of which an fsync found the same as the one before, and the opposite.
    pub fn buffering(&self) -> [u64; 4] {
        [
            client_page::EAGER_BYTES,
            client_page::LAZY_BYTES,
            client_page::DECIDED_RIGHT,
            client_page::DECIDED_WRONG,
        ]
        .map(|word| self.map.load_u64(word))
    }

    /// Whether the client may have inode `ino` open: a word counts for several inodes.
    pub fn uses(&self, ino: u64) -> bool {
        self.map.load_u32(client_page::uses(ino)) > 0
    }

    /// Takes what the client says that it has read.
    pub fn take_reads(&self) -> Vec<client_page::Read> {
        let words = (0..client_page::READS).map(|n| client_page::READ + n * 8);
        let taken = words.filter_map(|at| {
            let read = client_page::Read::of(self.map.load_u64(at))?;
            self.map.store_u64(at, 0);
            Some(read)
        });
        taken.collect()
    }

    /// Takes how many blocks the client has read from devices by itself, and in how many reads.
    pub fn take_direct(&self) -> (u64, u64) {
        let take = |at| self.map.swap_u64(at, 0);
        (
            take(client_page::DIRECT_BLOCKS),
            take(client_page::DIRECT_READS),
        )
    }

    /// Takes how many paths the client knew, and how many it had to walk.
    pub fn take_paths(&self) -> (u64, u64) {
        let take = |at| self.map.swap_u64(at, 0);
        (
            take(client_page::PATHS_KNOWN),
            take(client_page::PATHS_WALKED),
        )
    }

    /// What reader slot `n` says; odd: a thread is inside a call.
    pub fn reader_slot(&self, n: usize) -> u64 {
        self.map.load_u64(client_page::reader_slot(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_cannot_map_the_daemon_page_writable() {
        let page = DaemonPage::new().unwrap();
        page.set_epoch(9);
        let bytes = daemon_page::BYTES;
        let fd = page.read_only_fd().unwrap();
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let reader = Map::open(vec![Piece { fd, bytes }], Access::ReadOnly).unwrap();
        assert_eq!(reader.load_u64(daemon_page::EPOCH), 9);
        // Even a client that opens the file again through /proc gets no writable mapping.
        if let Ok(file) = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(link)
        {
            let piece = Piece {
                fd: file.into(),
                bytes,
            };
            assert!(Map::open(vec![piece], Access::ReadWrite).is_err());
        }
        page.bump_generation(77);
        assert_eq!(page.generation(77), 1);
    }

    #[test]
    fn a_client_cannot_shrink_its_page() {
        let page = ClientPage::new().unwrap();
        assert!(rustix::fs::ftruncate(page.fd().unwrap(), 0).is_err());
        assert_eq!(page.published(), 0);
    }
}
