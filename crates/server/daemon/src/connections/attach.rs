//! Making a client, and what is done when it goes: a slot of the log table, a log file, two pages.
//!
//! Order, and what a crash after each step leaves: the log file with all its space
//! (removed at the next start, since no slot names it); the slot, durably (an empty log,
//! digested at the next start); the client in memory.

use crate::config::{BUFFER_BYTES, FixedLogs, LogMap};
use crate::connections::limits::RateLimits;
use crate::connections::log_pool::{LeftLog, LogPool};
use crate::connections::write_accounting::WriteAccounting;
use crate::digest_scheduler::DigestScheduler;
use crate::error::{DaemonError, Result};
use crate::tiering::Tiering;
use crate::tiering_host::Attached;
use parking_lot::{Mutex, RwLock};
use shale_clients::client::{self, Client, Transport};
use shale_clients::clients::Clients;
use shale_clients::credentials::Credentials;
use shale_clients::log_reader::FdLogReader;
use shale_clients::space_credits::SpaceCredits;
use shale_coherence::digest_stop::DigestStop;
use shale_coherence::lease_manager::LeaseManager;
use shale_format::limits::{BLOCK_BYTES, LOG_BYTES_MAX, LOG_BYTES_MIN, LOG_SLOTS};
use shale_format::log::{LOG_MAGIC, LogHeader, LogSlot, RING_AT, file_name, slot_state};
use shale_format::{Buffering, Durability, LogPos};
use shale_nvm::{Access, Map, MapOptions, Path as CountPath, Piece};
use shale_oplog::{Log, LogReader};
use shale_pool::VolumeFile;
use shale_pool::buffer_dir::make_private_dir;
use shale_pool::nvm_dir::remove;
use shale_pool::random::random;
use shale_proto::PeerIdentity;
use shale_proto::message::PROTO_VERSION;
use shale_sys::{Clock, failpoints, mutants};
use shale_volume::Volume;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Slots of the log table that clients of other processes leave to the front end and to root.
const SLOTS_KEPT: usize = 16;

/// No program's log has more than this part of the memory for logs of buffered clients, or the least log.
const BUFFER_PARTS: u64 = 8;

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    pub(crate) transport: Transport,
    pub(crate) pid: i32,
    pub(crate) person: Credentials,
}

impl Requester {
    /// The front end in this process, on behalf of `uid`.
    pub(crate) fn in_process(uid: u32) -> Self {
        Self {
            transport: Transport::InProcess,
            pid: std::process::id() as i32,
            person: Credentials {
                uid,
                groups: Vec::new(),
            },
        }
    }

    /// The process at the other end of a socket, as the kernel noted it when it connected. Its
    /// number is shown to people and decides nothing: it may be another's by now.
    pub(crate) fn peer(who: PeerIdentity, mut groups: Vec<u32>) -> Self {
        groups.push(who.gid);
        Self {
            transport: Transport::Socket,
            pid: who.pid,
            person: Credentials {
                uid: who.uid,
                groups,
            },
        }
    }
}

/// Why a process may not become a client: errno and sentence.
pub(crate) type Refusal = (i32, String);

/// What the volume file says of clients that come from now on.
#[derive(Clone, Debug)]
pub(crate) struct OfNewClients {
    /// Users who may map the volume besides its owner and root.
    pub(crate) trusted_uids: Vec<u32>,
    /// Bytes of the logs of other processes, if the volume file says.
    pub(crate) client_log_bytes: Option<u64>,
    /// Which whole blocks buffered clients write to memory first.
    pub(crate) buffering: Buffering,
    /// Most bytes of memory that the logs of all buffered clients take together.
    pub(crate) buffer_bytes: u64,
}

impl From<&VolumeFile> for OfNewClients {
    fn from(file: &VolumeFile) -> Self {
        Self {
            trusted_uids: file.trusted_uids.clone(),
            client_log_bytes: file.client_log_bytes,
            buffering: file.buffering(),
            buffer_bytes: file.buffer_bytes.unwrap_or(BUFFER_BYTES),
        }
    }
}

/// What the volume file and the daemon's configuration say of clients and their logs.
pub(crate) struct Settings {
    /// What may change while the volume is served.
    pub(crate) of_new_clients: OfNewClients,
    /// Directory in memory of the logs of buffered clients; `None`: logs lie in memory in any case, and are staged.
    pub(crate) buffer_dir: Option<PathBuf>,
    /// Where logs lie in memory and are staged: most bytes of a ring, of which a batch takes any transaction.
    pub(crate) staged_ring_bytes_max: Option<u64>,
    /// See [`crate::DaemonConfig::log_map`].
    pub(crate) log_map: LogMap,
    /// See [`crate::DaemonConfig::fixed_logs`].
    pub(crate) fixed_logs: Option<FixedLogs>,
    /// See [`crate::DaemonConfig::connection`].
    pub(crate) connection: Option<u64>,
    /// See [`crate::DaemonConfig::connection_continues`].
    pub(crate) connection_continues: bool,
}

/// What [`AttachService`] is made of.
pub(crate) struct Parts {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) nvm_dir: PathBuf,
    pub(crate) clients: Arc<Clients>,
    pub(crate) digests: Arc<DigestScheduler>,
    pub(crate) leases: Arc<LeaseManager>,
    pub(crate) tiering: Arc<Tiering>,
    pub(crate) credits: Arc<SpaceCredits>,
    pub(crate) accounts: Arc<WriteAccounting>,
    pub(crate) limits: Arc<RateLimits>,
}

/// Clients come and go: slots of the log table, and the files of their logs.
pub(crate) struct AttachService {
    parts: Parts,
    settings: Settings,
    of_new_clients: RwLock<OfNewClients>,
    /// Clients that were to be buffered, for whose logs no memory was left.
    unbuffered: AtomicU64,
    /// A log file that is there for the next client, in the directory of the memory tier.
    pub(crate) spare: LogPool,
    /// The same in memory, for buffered clients.
    pub(crate) spare_in_memory: LogPool,
    /// Serialises what is done with log slots and their files.
    table: Mutex<()>,
    /// No client but the front end is served, for good.
    down: AtomicBool,
}

impl AttachService {
    pub(crate) fn new(parts: Parts, settings: Settings) -> Self {
        Self {
            parts,
            of_new_clients: RwLock::new(settings.of_new_clients.clone()),
            settings,
            unbuffered: AtomicU64::new(0),
            spare: LogPool::default(),
            spare_in_memory: LogPool::default(),
            table: Mutex::default(),
            down: AtomicBool::new(false),
        }
    }

    /// Treats clients that come from now on as the volume file says now.
    pub(crate) fn use_file(&self, file: &VolumeFile) {
        *self.of_new_clients.write() = file.into();
    }

    /// Which whole blocks a buffered client that comes now writes to memory first.
    pub(crate) fn buffering(&self) -> Buffering {
        self.of_new_clients.read().buffering
    }

    /// Most bytes of memory that the logs of all buffered clients may take together, and how many clients found no space in it.
    pub(crate) fn buffer_bound(&self) -> (u64, u64) {
        let bytes = self.of_new_clients.read().buffer_bytes;
        (bytes, self.unbuffered.load(Ordering::Relaxed))
    }

    /// Policy and ring of a client that wants these, by what is left of the memory for buffers: no program has more than a part of
    /// it, so that many can have some, and one for which there is none is strict, which promises more. The mount has its log in any case:
    /// the kernel asks it once for good whether fsync is needed. Called while nobody else attaches.
    fn share_of_buffer(
        &self,
        requester: &Requester,
        (policy, ring_bytes): (Durability, u64),
    ) -> (Durability, u64) {
        let has_buffer = self.settings.buffer_dir.is_some() && policy.has_buffer();
        if !has_buffer || requester.transport == Transport::InProcess {
            return (policy, ring_bytes);
        }
        let bound = self.of_new_clients.read().buffer_bytes;
        let clients = self.parts.clients.snapshot();
        let buffered = clients.iter().filter(|client| client.nvm_log.is_some());
        let used: u64 = buffered.map(|client| client.ring_bytes).sum();
        let share = ring(bound / BUFFER_PARTS).min(ring_bytes);
        if used.saturating_add(share) <= bound {
            return (policy, share);
        }
        self.unbuffered.fetch_add(1, Ordering::Relaxed);
        (Durability::Strict, ring_bytes)
    }

    /// Refuses clients of other processes from now on, for good: one that is attaching is a client when this returns, or
    /// will be refused.
    pub(crate) fn shut_down(&self) {
        let _nobody_attaches = self.table.lock();
        self.down.store(true, Ordering::Release);
    }

    /// Whether it does.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.down.load(Ordering::Acquire)
    }

    /// Whether a process may map the volume: its owner, root, and users that the volume file trusts.
    pub(crate) fn may_attach(&self, requester: &Requester) -> std::result::Result<(), Refusal> {
        let owner = self.parts.volume.superblock().owner_uid;
        let uid = requester.person.uid;
        let trusted = || self.of_new_clients.read().trusted_uids.contains(&uid);
        if requester.transport == Transport::InProcess
            || requester.person.is_root()
            || uid == owner
            || trusted()
        {
            return Ok(());
        }
        Err((
            libc::EACCES,
            format!(
                "user {uid} may not map this volume, only its owner {owner}, root and users in its trusted_uids: use the mount point"
            ),
        ))
    }

    /// Attaches a client.
    pub(crate) fn attach(
        &self,
        requester: &Requester,
        version: u32,
        (log_bytes, durability): (u64, u8),
    ) -> std::result::Result<Arc<Client>, Refusal> {
        self.may_attach(requester)?;
        if version != PROTO_VERSION {
            return Err((
                libc::EPROTO,
                format!(
                    "the client speaks protocol {version}, this daemon {PROTO_VERSION}: use the same shale"
                ),
            ));
        }
        let policy = self.policy(durability)?;
        self.make_client(requester, log_bytes, policy).map_err(|e| {
            let errno = match &e {
                DaemonError::NoSlot { .. } => libc::EUSERS,
                DaemonError::Closing => libc::ESHUTDOWN,
                DaemonError::Nvm(d) => d.raw_os_error().unwrap_or(libc::EIO),
                _ => libc::EIO,
            };
            (errno, e.to_string())
        })
    }

    /// The policy of a client that asks for the one with this number; 0: for the volume's.
    fn policy(&self, asked: u8) -> std::result::Result<Durability, Refusal> {
        let policy = match asked {
            0 => Some(self.parts.volume.superblock().policy()),
            n => Durability::from_number(n),
        };
        match policy {
            Some(policy) => Ok(policy),
            None => Err((
                libc::EINVAL,
                format!("{asked} is the number of no durability policy"),
            )),
        }
    }

    /// Makes the log of a client, and of a buffered one the log in NVM beside it. The header of each is durable when it returns.
    fn make_logs(&self, new: &NewLog, policy: Durability) -> Result<(Made, Option<Made>)> {
        let in_nvm = (self.settings.log_map)(new.slot).path(CountPath::Log);
        let nvm = (&*self.parts.nvm_dir, &self.spare, in_nvm);
        match (&self.settings.buffer_dir, policy) {
            (Some(dir), policy) if policy.has_buffer() => {
                make_private_dir(dir)?;
                let in_memory = MapOptions::new().path(CountPath::Log).volatile();
                // The log that counts after a kill is there before the one that counts after a power cut.
                let log = self.make_log(new, (dir, &self.spare_in_memory, in_memory))?;
                Ok((log, Some(self.make_log(new, nvm)?)))
            }
            _ => Ok((self.make_log(new, nvm)?, None)),
        }
    }

    /// Makes one log file of a slot in `dir`, with all its space.
    fn make_log(
        &self,
        new: &NewLog,
        (dir, spare, options): (&Path, &LogPool, MapOptions),
    ) -> Result<Made> {
        let &NewLog {
            transport,
            slot,
            uid,
            salt,
            start,
            ring_bytes,
        } = new;
        let path = dir.join(file_name(slot));
        let bytes = RING_AT + ring_bytes as usize;
        let ready = match transport {
            Transport::InProcess => None,
            Transport::Socket => spare.take(&path, bytes, uid)?,
        };
        let map = Arc::new(match ready {
            Some(fd) => options.open(vec![Piece { fd, bytes }], Access::ReadWrite)?,
            None if self.is_there(&path, bytes) => {
                options.open_files(&[&path], Access::ReadWrite)?
            }
            None => {
                remove(&path)?;
                options.create_file(&path, bytes)?
            }
        });
        if transport == Transport::InProcess && self.settings.fixed_logs.is_none() {
            // For a mount that stays; a program's start must not wait for it, nor a test's.
            map.prepare()?;
        }
        let header = LogHeader {
            magic: LOG_MAGIC,
            uuid: self.parts.volume.superblock().uuid,
            salt,
            ring_bytes,
            uid,
            slot,
            created_ns: self.parts.clock.realtime_ns(),
            ..zerocopy::FromZeros::new_zeroed()
        };
        Log::create_at(map.clone(), header, start)?;
        failpoints::reach("attach-log");
        Ok(Made { map, path })
    }

    /// Whether a test has put a log's file in its place.
    fn is_there(&self, path: &Path, bytes: usize) -> bool {
        let may = self.settings.fixed_logs.is_some_and(|fixed| fixed.there);
        may && std::fs::metadata(path).is_ok_and(|found| found.len() == bytes as u64)
    }

    /// A free slot of the log table for `requester`.
    fn free_slot(&self, requester: &Requester) -> Result<u32> {
        let slots = self.parts.volume.log_slots();
        let root = requester.transport == Transport::InProcess || requester.person.is_root();
        let open = if root { 0 } else { SLOTS_KEPT };
        slots[..slots.len() - open]
            .iter()
            .position(|s| s.state == slot_state::FREE)
            .map(|n| n as u32)
            .ok_or(DaemonError::NoSlot { slots: LOG_SLOTS })
    }

    /// Bytes of the ring that `requester` gets who wants a log of `log_bytes` bytes; 0: the usual.
    fn ring_bytes(&self, requester: &Requester, log_bytes: u64) -> u64 {
        match requester.transport {
            Transport::Socket => self.client_ring_bytes(log_bytes),
            Transport::InProcess if log_bytes == 0 => {
                self.ring(self.parts.volume.superblock().log_bytes)
            }
            Transport::InProcess => self.ring(log_bytes),
        }
    }

    /// Bytes of a ring that is to have about `bytes`.
    fn ring(&self, bytes: u64) -> u64 {
        let staged = self.settings.staged_ring_bytes_max.unwrap_or(u64::MAX);
        ring(bytes.min(staged))
    }

    /// As [`Self::ring_bytes`], for another process. Its log takes memory of the machine, whatever it
    /// writes into it: so there is a limit.
    pub(crate) fn client_ring_bytes(&self, log_bytes: u64) -> u64 {
        let mount = self.parts.volume.superblock().log_bytes;
        let usual = self.of_new_clients.read().client_log_bytes.unwrap_or(mount);
        match log_bytes {
            0 => self.ring(usual),
            n => self.ring(n.min(mount.max(usual))),
        }
    }

    fn make_client(
        &self,
        requester: &Requester,
        log_bytes: u64,
        policy: Durability,
    ) -> Result<Arc<Client>> {
        let _one_at_a_time = self.table.lock();
        if self.parts.clients.is_closing() {
            return Err(DaemonError::Closing);
        }
        if requester.transport == Transport::Socket && self.down.load(Ordering::Acquire) {
            return Err(DaemonError::Down);
        }
        let slot = self.free_slot(requester)?;
        let wanted = (policy, self.ring_bytes(requester, log_bytes));
        let (policy, ring_bytes) = self.share_of_buffer(requester, wanted);
        let (salt, start) = match self.settings.fixed_logs {
            None if mutants::is_on("record-salt") => (0, LogPos(0)),
            None => (u64::from_le_bytes(random()?), LogPos(0)),
            Some(fixed) => {
                let number = self.parts.clients.next_number();
                (fixed.salt.wrapping_add(number.into()), LogPos(fixed.start))
            }
        };
        let uid = requester.person.uid;
        let connection = match requester.transport {
            Transport::InProcess => self.settings.connection.unwrap_or(0),
            Transport::Socket => 0,
        };
        let live = LogSlot {
            state: slot_state::LIVE,
            uid,
            salt,
            ring_bytes,
            digested: start.0,
            connection,
            ..zerocopy::FromZeros::new_zeroed()
        };
        if mutants::is_on("slot-before-log") {
            self.set_slot(slot, &live)?;
        }
        let new = NewLog {
            transport: requester.transport,
            slot,
            uid,
            salt,
            start,
            ring_bytes,
        };
        let (log, nvm_log) = self.make_logs(&new, policy).inspect_err(|_| {
            // The one that could be made is of no use. What cannot be removed goes at the next start.
            let _ = self.remove_logs(slot);
        })?;
        let (log_fd, read) = ends_of(&log, requester.transport)?;
        let nvm_log = nvm_log
            .map(|made| made.into_nvm_log(requester.transport))
            .transpose()?;
        let own_uid = rustix::process::geteuid().as_raw();
        let client = Arc::new(Client::new(client::Attached {
            id: self.parts.clients.take_number(),
            slot,
            transport: requester.transport,
            pid: requester.pid,
            person: requester.person.clone(),
            // Blocks that a client writes itself are in no log, so that they could not be hardened.
            may_steal: (self.settings.staged_ring_bytes_max.is_none()
                || mutants::is_on("staged-steal"))
                && (requester.transport == Transport::InProcess || uid == own_uid),
            log: read,
            log_fd,
            log_path: log.path,
            policy,
            nvm_log,
            salt,
            ring_bytes,
            connection,
            open_token: u128::from_le_bytes(random()?),
        })?);
        client.set_digested(start);
        client.set_hardened(start);
        self.set_slot(slot, &live)?;
        failpoints::reach("attach-slot");
        self.parts
            .clients
            .add(&client, || self.parts.volume.is_tiered());
        self.parts.limits.begin(&client);
        if requester.transport == Transport::InProcess && self.settings.connection_continues {
            self.parts.leases.table().assume_reader(client.id);
        }
        self.parts.leases.tell_others();
        tracing::debug!(
            client = client.id,
            pid = client.pid,
            slot,
            ring_bytes,
            "client attached"
        );
        Ok(client)
    }

    /// The client has gone, or asks to leave: its log is digested up to what it
    /// published, everything it held is free, its slot and log are no more.
    ///
    /// A log that cannot be digested now is kept, with its slot; the next start tries again.
    pub(crate) fn detach(&self, client: &Arc<Client>) -> std::result::Result<(), DigestStop> {
        if client.leaving.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let digested = self.parts.digests.digest_to(client, u64::MAX);
        if let Err(halt @ (DigestStop::MediaError(_) | DigestStop::NoSpace(_))) = &digested {
            // Its records may name granted blocks and numbers, their space is spoken for, and
            // nobody may change what they change before they are digested: so it keeps
            // everything, leases too, until the next start.
            self.parts.clients.note_detached(client, halt.to_string());
            return digested;
        }
        self.parts.tiering.take_report(&Attached(client.clone()));
        self.parts.accounts.remove(client);
        self.parts.leases.table().release_all(client.id);
        self.parts.leases.tell_others();
        client.grants.lock().give_back(&self.parts.volume);
        self.parts.credits.close(client.id);
        if client.transport == Transport::Socket {
            tracing::debug!(client = client.id, pid = client.pid, "client left");
        }
        if let Err(e) = self.free_logs_of(client) {
            // Everything is in the volume; the next start frees the slot.
            tracing::error!(client = client.id, "cannot free its log: {e}");
        }
        digested
    }

    /// Frees the slot of a client that has left; its logs are kept for the next one, or removed.
    fn free_logs_of(&self, client: &Arc<Client>) -> Result<()> {
        if client.transport == Transport::InProcess {
            return self.free_log(client.slot);
        }
        let _nobody_attaches = self.table.lock();
        self.free_slot_of_log(client.slot)?;
        let leave = |pool: &LogPool, fd: &OwnedFd, path: &Path| {
            let Ok(file) = rustix::io::fcntl_dupfd_cloexec(fd, 0) else {
                return Ok(remove(path)?);
            };
            pool.leave(LeftLog {
                file,
                path: path.to_owned(),
                bytes: RING_AT + client.ring_bytes as usize,
                uid: client.person.uid,
                client: Arc::downgrade(client),
            })
        };
        match &client.nvm_log {
            Some(nvm) => {
                leave(&self.spare_in_memory, &client.log_fd, &client.log_path)?;
                leave(&self.spare, &nvm.fd, &nvm.path)
            }
            None => leave(&self.spare, &client.log_fd, &client.log_path),
        }
    }

    /// Frees a slot of the log table, then removes its files. Nobody may attach in
    /// between: the files of a new client in that slot have the same names.
    pub(crate) fn free_log(&self, slot: u32) -> Result<()> {
        let _nobody_attaches = self.table.lock();
        self.free_slot_of_log(slot)?;
        self.remove_logs(slot)
    }

    fn free_slot_of_log(&self, slot: u32) -> Result<()> {
        self.set_slot(slot, &zerocopy::FromZeros::new_zeroed())?;
        failpoints::reach("log-freed");
        Ok(())
    }

    /// Removes the files of a slot that is free, if there are any.
    fn remove_logs(&self, slot: u32) -> Result<()> {
        if let Some(dir) = &self.settings.buffer_dir {
            remove(&dir.join(file_name(slot)))?;
        }
        Ok(remove(&self.parts.nvm_dir.join(file_name(slot)))?)
    }

    /// Sets a slot of the log table, durably.
    fn set_slot(&self, slot: u32, to: &LogSlot) -> Result<()> {
        let mut txn = self.parts.volume.begin();
        txn.set_log_slot(slot, to)?;
        txn.commit()?;
        Ok(())
    }
}

/// Bytes of a ring within the limits.
fn ring(bytes: u64) -> u64 {
    bytes.clamp(LOG_BYTES_MIN, LOG_BYTES_MAX) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64
}

/// What a new log is to be.
struct NewLog {
    transport: Transport,
    slot: u32,
    uid: u32,
    salt: u64,
    start: LogPos,
    ring_bytes: u64,
}

/// The file of a log that was just made.
struct Made {
    map: Arc<Map>,
    path: PathBuf,
}

impl Made {
    fn into_nvm_log(self, transport: Transport) -> Result<client::NvmLog> {
        let (fd, read) = ends_of(&self, transport)?;
        let path = self.path;
        Ok(client::NvmLog { fd, path, read })
    }

    fn descriptor(&self) -> Result<OwnedFd> {
        let first = self.map.fds().next().ok_or(rustix::io::Errno::BADF);
        let fd = failpoints::io()
            .and(first)
            .and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0));
        fd.map_err(|e| DaemonError::file(&self.path, "duplicate its descriptor", e))
    }
}

/// The file of a log, for its client, and how the daemon reads it.
fn ends_of(log: &Made, transport: Transport) -> Result<(OwnedFd, Box<dyn LogReader>)> {
    let map = &log.map;
    let read: Box<dyn LogReader> = match transport {
        Transport::InProcess => Box::new(map.on(CountPath::Log).clone()),
        // Nothing of this process may be mapped from a file that somebody can cut short.
        Transport::Socket => Box::new(FdLogReader::of(log.descriptor()?, map.bytes())),
    };
    Ok((log.descriptor()?, read))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::connection::Connection;
    use crate::{Daemon, DaemonConfig};
    use shale_pool::MakeOptions;
    use shale_pool::make_volume;
    use shale_proto::{Handler, Reply, Request};
    use shale_sys::SystemClock;

    const TRUSTED: u32 = 1002;
    /// A group that no user is in.
    const UNKNOWN: u32 = 4_000_000_000;

    #[test]
    fn only_owner_root_and_trusted_users_map_the_volume() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let clock = Arc::new(SystemClock::new());
        let options = MakeOptions {
            file: dir.path().join("V.toml"),
            name: "v".to_owned(),
            nvm: Some(shale_pool::volume_file::NvmEntry::new(
                dir.path().join("nvm"),
                33 << 20,
            )),
            staged: Default::default(),
            lower: Default::default(),
            log_bytes: LOG_BYTES_MIN,
            durability: shale_format::Durability::Strict,
            owner_uid: 1000,
            owner_gid: 1000,
            root_mode: 0o755,
            trusted_uids: vec![TRUSTED],
            force: false,
        };
        let made = make_volume(&options, &*clock).unwrap();
        let daemon = Daemon::start(DaemonConfig::new(made.file), clock).unwrap();
        let ask = |uid, version| {
            let gid = uid;
            let requester = Requester::peer(PeerIdentity { pid: 1, uid, gid }, vec![UNKNOWN]);
            let connection = Connection::new(daemon.services().clone(), requester);
            let attach = Request::Attach {
                version,
                log_bytes: 0,
                durability: 0,
            };
            let status = connection.handle(Request::Status).0;
            (connection.handle(attach).0, status)
        };
        for uid in [0, 1000, TRUSTED] {
            let (attached, status) = ask(uid, PROTO_VERSION);
            let Reply::Attached(attached) = attached else {
                panic!("{attached:?}");
            };
            let own = rustix::process::geteuid().as_raw() == uid;
            assert_eq!(
                attached.may_steal, own,
                "in place only where it is one user"
            );
            assert!(matches!(status, Reply::Status(_)));
            assert_eq!(attached.groups.is_none(), uid == 0, "root needs none");
            let groups = attached.groups.unwrap_or_default();
            assert!(
                groups.iter().all(|&gid| gid == uid),
                "those of the database"
            );
        }
        let (attached, status) = ask(1001, PROTO_VERSION);
        assert!(matches!(
            attached,
            Reply::Refused {
                errno: libc::EACCES,
                ..
            }
        ));
        assert!(matches!(
            status,
            Reply::Refused {
                errno: libc::EACCES,
                ..
            }
        ));
        let mut file = daemon.services().config.volume.clone();
        file.trusted_uids = vec![1001];
        daemon.use_file(&file);
        assert!(matches!(ask(1001, PROTO_VERSION).0, Reply::Attached(_)));
        assert!(matches!(
            ask(TRUSTED, PROTO_VERSION).0,
            Reply::Refused { .. }
        ));
        let (attached, _) = ask(0, PROTO_VERSION + 1);
        assert!(matches!(
            attached,
            Reply::Refused {
                errno: libc::EPROTO,
                ..
            }
        ));
        daemon.shutdown().unwrap();
    }
}
