//! Answering requests of one client (or of one that may become a client).

use crate::connections::attach::{Refusal, Requester};
use crate::connections::direct_mappings::note_segments;
use crate::error::DaemonError;
use crate::services::Services;
use crate::stats::Observer;
use crate::tiering::Unsent;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use shale_clients::client::{Client, Transport};
use shale_clients::space_credits::FreeSpace;
use shale_coherence::digest_stop::DigestStop;
use shale_coherence::lease_manager::NoLease;
use shale_coherence::lease_table::{LeaseRequest, Mediated};
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, Ino};
use shale_hardening::NotHardened;
use shale_proto::message::{
    Attached, BlockRun, DESCRIPTORS_MAX, GRANT_AHEAD_BLOCKS, GRANT_BLOCKS_MAX,
};
use shale_proto::{Handler, LeaseMode, LeaseRequestMode, Reply, Request};
use shale_volume::{Run, VolumeError};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Most runs of inode numbers in one grant.
const INODE_RUNS_MAX: u32 = 64;
/// Numbers that one client of another process may hold without having used them.
const INODES_HELD_MAX: usize = 128 << 10;
/// Part of the tier's blocks that one client of another process may hold likewise.
const GRANTED_PART: u64 = 4;
/// A grant below this many blocks is not worth its message.
const GRANT_BLOCKS_MIN: u64 = 16;
/// Most runs in one grant: what fits a message.
const GRANT_RUNS_MAX: usize = 2000;

/// Most blocks below NVM that are read at once.
const LOWER_BLOCKS_MAX: u64 = 256;
/// The same for one message over a socket.
const LOWER_BLOCKS_SENT_MAX: u64 = 15;

type Answer = (Reply, Vec<OwnedFd>);

/// One connection. When it is dropped its client has gone.
pub(crate) struct Connection {
    services: Arc<Services>,
    requester: Requester,
    client: Mutex<Option<Arc<Client>>>,
    unsent: Unsent,
}

impl Connection {
    pub(crate) fn new(services: Arc<Services>, requester: Requester) -> Self {
        Self {
            services,
            requester,
            client: Mutex::new(None),
            unsent: Unsent::default(),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let client = self.client.get_mut().take();
        let Some(client) = client else { return };
        self.services.freeze.end_of(&client);
        if let Err(halt) = self.services.attach.detach(&client) {
            tracing::error!(client = client.id, "client gone: {halt}");
        }
    }
}

impl Handler for Connection {
    fn handle(&self, request: Request) -> Answer {
        self.answer(request).unwrap_or_else(|(errno, why)| {
            tracing::debug!(pid = self.requester.pid, errno, "refused: {why}");
            (Reply::Refused { errno, why }, Vec::new())
        })
    }
}

fn failed(error: &DaemonError) -> Refusal {
    (libc::EIO, error.to_string())
}

fn not_hardened(why: NotHardened) -> Refusal {
    match why {
        NotHardened::Full => (
            libc::ENOSPC,
            "the staging area is full, and logs cannot be digested to empty it".to_owned(),
        ),
        NotHardened::NoRecord => (
            libc::EIO,
            "there is no record where the log goes on".to_owned(),
        ),
        NotHardened::Failed(why) => (libc::EIO, why),
    }
}

fn halted(halt: &DigestStop) -> Refusal {
    let errno = match halt {
        DigestStop::NoSpace(_) => libc::ENOSPC,
        DigestStop::Rejected(_) | DigestStop::MediaError(_) => libc::EIO,
    };
    (errno, halt.to_string())
}

impl Connection {
    fn answer(&self, request: Request) -> Result<Answer, Refusal> {
        let plain = |reply| Ok((reply, Vec::new()));
        match request {
            Request::Attach {
                version,
                log_bytes,
                durability,
            } => return self.attach(version, (log_bytes, durability)),
            Request::Space => {
                self.services.attach.may_attach(&self.requester)?;
                return plain(Reply::Space(self.services.space.statfs()));
            }
            Request::Status => {
                self.services.attach.may_attach(&self.requester)?;
                return plain(Reply::Status(Observer::new(&self.services).text()));
            }
            Request::Detach => {
                let client = self.client.lock().take();
                if let Some(client) = client {
                    self.services.freeze.end_of(&client);
                    self.services
                        .attach
                        .detach(&client)
                        .map_err(|h| halted(&h))?;
                }
                return plain(Reply::Done);
            }
            // As sync(2), everybody may, and needs to be nothing for it.
            Request::HardenAll => return plain(self.harden_all()?),
            _ => {}
        }
        let client = self.served()?;
        match request {
            Request::Segments { first } => self.segments(first),
            Request::GrantInodes { parent, runs } => {
                plain(self.grant_inodes(&client, parent, runs)?)
            }
            Request::GrantBlocks { blocks } => self.grant_blocks(&client, blocks.into()),
            Request::ReturnBlocks { runs } => plain(self.return_blocks(&client, &runs)?),
            Request::Reserve { wanted, least } => plain(self.services.space.reserve(
                &client,
                wanted.max(least),
                least,
            )),
            Request::ReserveForPage { bytes } => plain(self.lend(&client, bytes)?),
            Request::ReturnCredit { bytes } => {
                self.services.credits.release_credit(client.id, bytes);
                plain(Reply::Done)
            }
            Request::Pace => plain(self.services.limits.pace(&client)),
            Request::Freeze { max_ns } => {
                self.may_freeze()?;
                self.services.freeze.freeze(&client, max_ns)?;
                plain(Reply::Frozen)
            }
            Request::Thaw => {
                let ns = self.services.freeze.thaw(&client)?;
                plain(Reply::Thawed { ns })
            }
            Request::Notify => {
                self.services.queue.push(&client);
                plain(Reply::Done)
            }
            Request::Digest { upto } => plain(self.digest(&client, upto)?),
            Request::Harden { upto } => plain(self.harden(&client, upto)?),
            Request::Lease {
                ino,
                mode,
                request_mode,
            } => {
                let client = &client;
                let wish = LeaseRequest {
                    client: client.id,
                    ino,
                    mode,
                    request_mode,
                };
                plain(self.lease(client, &wish)?)
            }
            Request::Map { ino, first, blocks } => self.map(&client, ino, first, blocks),
            Request::ReadLower { addr, blocks } => plain(self.read_lower(addr, blocks)?),
            Request::OpenLower { addr } => self.open_lower(addr),
            Request::Unlease { ino } => {
                self.services
                    .leases
                    .give_back(&client, ino)
                    .map_err(|h| halted(&h))?;
                plain(Reply::Done)
            }
            Request::Attach { .. }
            | Request::Space
            | Request::Status
            | Request::Detach
            | Request::HardenAll => {
                Err((libc::EPROTO, "the request was answered before".to_owned()))
            }
        }
    }

    fn served(&self) -> Result<Arc<Client>, Refusal> {
        let client = self.client.lock().clone().ok_or_else(|| {
            (
                libc::ENOTCONN,
                "attach first: this connection has no client".to_owned(),
            )
        })?;
        if let shale_clients::client::ClientState::Evicted(why) = &*client.client_state.lock() {
            return Err((libc::EIO, format!("the client was cut off: {why}")));
        }
        Ok(client)
    }

    /// Others than the mount hear of it when there is no space, and can say so.
    fn lend(&self, client: &Client, bytes: u64) -> Result<Reply, Refusal> {
        match client.transport {
            Transport::InProcess => Ok(self.services.space.lend(client, bytes)),
            Transport::Socket => {
                let why = "space for pages is lent to the mount only";
                Err((libc::EPERM, why.to_owned()))
            }
        }
    }

    /// Programs of all users wait for it.
    fn may_freeze(&self) -> Result<(), Refusal> {
        let Requester {
            transport, person, ..
        } = &self.requester;
        let owner = self.services.volume.superblock().owner_uid;
        if *transport == Transport::InProcess || person.is_root() || person.uid == owner {
            return Ok(());
        }
        let why = format!(
            "user {} may not freeze this volume, only its owner {owner} and root",
            person.uid
        );
        Err((libc::EPERM, why))
    }

    fn attach(&self, version: u32, wanted: (u64, u8)) -> Result<Answer, Refusal> {
        let mut slot = self.client.lock();
        if slot.is_some() {
            return Err((
                libc::EISCONN,
                "this connection has a client already".to_owned(),
            ));
        }
        let client = self
            .services
            .attach
            .attach(&self.requester, version, wanted)?;
        // On an error below it is in place, and goes with the connection.
        let client = slot.insert(client);
        let handed_out = || {
            let mut fds = self.descriptors(client)?;
            let (bytes, first) = self.some_segments(0, DESCRIPTORS_MAX - fds.len())?;
            fds.extend(first);
            Ok((bytes, fds))
        };
        let (first_segments, fds) = handed_out().map_err(|e: DaemonError| failed(&e))?;
        let judged = !client.trusted() && !client.person.is_root();
        let attached = Attached {
            client: client.id,
            slot: client.slot,
            ring_bytes: client.ring_bytes,
            segments: self.services.map.pieces().len() as u32,
            first_segments,
            nvm_bytes: self.services.map.bytes() as u64,
            may_steal: client.may_steal,
            durability: client.policy as u8,
            buffered: client.nvm_log.is_some(),
            buffering: self.services.attach.buffering() as u8,
            staged: self.services.is_staged(),
            nvm_model: self
                .services
                .config
                .volume
                .nvm_model()
                .map(|(name, _)| name.to_owned()),
            resumed: false,
            open_token: client.open_token,
            groups: judged.then(|| client.person.groups_at_recovery()),
        };
        Ok((Reply::Attached(attached), fds))
    }

    fn descriptors(&self, client: &Client) -> Result<Vec<OwnedFd>, DaemonError> {
        // An opening of its own: when that is gone, the client cannot write to its log any more.
        let open = |fd: &OwnedFd, path: &Path| {
            let own = format!("/proc/self/fd/{}", fd.as_raw_fd());
            rustix::fs::open(own, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
                .map_err(|e| DaemonError::file(path, "open it once more", e))
        };
        let mut fds = vec![
            open(&client.log_fd, &client.log_path)?,
            client.daemon_page.read_only_fd()?,
            client.client_page.fd()?,
        ];
        if let Some(log) = &client.nvm_log {
            fds.push(open(&log.fd, &log.path)?);
        }
        Ok(fds)
    }

    fn segments(&self, first: u32) -> Result<Answer, Refusal> {
        let some = self.some_segments(first as usize, DESCRIPTORS_MAX);
        let (bytes, fds) = some.map_err(|e| failed(&e))?;
        Ok((Reply::Segments { first, bytes }, fds))
    }

    /// Bytes and descriptors of at most `most` segments from `first` on.
    fn some_segments(
        &self,
        first: usize,
        most: usize,
    ) -> Result<(Vec<u64>, Vec<OwnedFd>), DaemonError> {
        let map = &self.services.map;
        let wanted = map.pieces().enumerate().skip(first).take(most);
        let given = wanted.map(|(n, (_, length))| Ok((length as u64, map.read_only_fd(n)?)));
        given.collect()
    }

    fn grant_inodes(&self, client: &Arc<Client>, parent: u64, runs: u32) -> Result<Reply, Refusal> {
        let mut inos = Vec::new();
        let many = || client.grants.lock().inos.len() >= INODES_HELD_MAX;
        if !client.trusted() && many() {
            // Those of inodes that wait in its log are used as soon as it is digested.
            let end = client.published().pos().0;
            let done = self.services.digests.digest_to(client, end);
            done.map_err(|h| halted(&h))?;
            if many() {
                return Ok(Reply::Inodes { inos });
            }
        }
        for _ in 0..runs.clamp(1, INODE_RUNS_MAX) {
            let granted = self.services.volume.grant_inodes(Ino(parent));
            if granted.is_empty() {
                break;
            }
            inos.extend(granted.into_iter().map(|ino| ino.0));
        }
        client.grants.lock().inos.extend(&inos);
        self.services.leases.give_new(client.id, &inos);
        Ok(Reply::Inodes { inos })
    }

    fn grant_blocks(&self, client: &Client, blocks: u64) -> Result<Answer, Refusal> {
        let none = (
            Reply::Blocks {
                runs: Vec::new(),
                segments: Vec::new(),
            },
            Vec::new(),
        );
        let volume = &self.services.volume;
        let supply = || FreeSpace::of(volume);
        let held = client.grants.lock().blocks.blocks();
        let most = match client.trusted() {
            true => u64::MAX,
            false => (volume.space().total / GRANTED_PART).saturating_sub(held),
        };
        let granted = self.services.credits.with_available(supply, |bytes| {
            let wanted = blocks.min(GRANT_BLOCKS_MAX.into());
            let blocks = wanted
                .min(bytes / BLOCK / 4)
                .min(client.grant_max())
                .min(most);
            let worth_it = client.may_steal && blocks >= least_blocks(wanted);
            worth_it.then(|| volume.grant(blocks).ok()).flatten()
        });
        let Some(mut runs) = granted else {
            return Ok(none);
        };
        for surplus in runs.drain(runs.len().min(GRANT_RUNS_MAX)..) {
            self.services.volume.give_back(surplus);
        }
        let mut segments = Vec::new();
        runs.retain(|run| {
            let fits = note_segments(*run, &mut segments);
            if !fits {
                self.services.volume.give_back(*run);
            }
            fits
        });
        let mut grants = client.grants.lock();
        for run in &runs {
            grants.blocks.insert(*run);
        }
        drop(grants);
        client.charge_blocks(runs.iter().map(|run| run.len).sum(), 0);
        let mut fds = Vec::new();
        let all: Vec<_> = self.services.map.fds().collect();
        for &segment in &segments {
            let fd = all
                .get(segment as usize)
                .copied()
                .map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0));
            let fd = fd.unwrap_or(Err(rustix::io::Errno::BADF));
            fds.push(fd.map_err(|e| {
                (
                    libc::EMFILE,
                    format!("descriptor of segment {segment}: {e}"),
                )
            })?);
        }
        let runs = runs
            .iter()
            .map(|run| BlockRun {
                addr: run.addr.raw(),
                blocks: run.len as u32,
            })
            .collect();
        Ok((Reply::Blocks { runs, segments }, fds))
    }

    fn return_blocks(&self, client: &Client, runs: &[BlockRun]) -> Result<Reply, Refusal> {
        let mut grants = client.grants.lock();
        for run in runs {
            let run = Run {
                addr: BlockAddr::from_raw(run.addr),
                len: run.blocks.into(),
            };
            if !grants.blocks.remove(run) {
                return Err((
                    libc::EINVAL,
                    format!(
                        "{} blocks at {:?} are not granted to this client",
                        run.len, run.addr
                    ),
                ));
            }
            self.services.volume.give_back(run);
            client.charge_blocks(0, run.len);
        }
        Ok(Reply::Done)
    }

    fn map(&self, client: &Client, ino: u64, first: u64, blocks: u64) -> Result<Answer, Refusal> {
        let mapped = self.services.direct.map_blocks(client, ino, first, blocks);
        mapped.map_err(|e| failed(&e))
    }

    fn digest(&self, client: &Arc<Client>, upto: u64) -> Result<Reply, Refusal> {
        let done = self.services.digests.digest_to(client, upto);
        done.map_err(|h| halted(&h))?;
        let pos = client.digested();
        Ok(Reply::Digested { pos })
    }

    fn harden(&self, client: &Arc<Client>, upto: u64) -> Result<Reply, Refusal> {
        let done = self.services.digests.harden(client, upto);
        done.map(|()| Reply::Done).map_err(not_hardened)
    }

    fn harden_all(&self) -> Result<Reply, Refusal> {
        let is_client = self.client.lock().is_some();
        let client = is_client.then(|| self.served()).transpose()?;
        let done = self.services.digests.harden_all(client.as_ref());
        done.map(|()| Reply::Done).map_err(not_hardened)
    }

    fn open_lower(&self, addr: u64) -> Result<Answer, Refusal> {
        let addr = BlockAddr::from_raw(addr);
        let by_another_process = self.requester.transport == Transport::Socket;
        let opened = self.services.tiering.open_lower(by_another_process, addr);
        let fd = opened.map_err(|e| failed(&e.into()))?;
        Ok((Reply::Device, fd.into_iter().collect()))
    }

    fn read_lower(&self, addr: u64, blocks: u32) -> Result<Reply, Refusal> {
        let addr = BlockAddr::from_raw(addr);
        let blocks = u64::from(blocks).clamp(1, LOWER_BLOCKS_MAX);
        // One message has a limit, a call within the process has none.
        let read = match self.requester.transport {
            Transport::InProcess => self.services.tiering.read_lower(addr, blocks),
            Transport::Socket => {
                let sent = blocks.min(LOWER_BLOCKS_SENT_MAX);
                self.unsent.read(&self.services.tiering, addr, blocks, sent)
            }
        };
        let (generation, data) = read.map_err(|e| failed(&e.into()))?;
        Ok(Reply::Lower { generation, data })
    }

    fn lease(&self, client: &Client, wish: &LeaseRequest) -> Result<Reply, Refusal> {
        if !Ino(wish.ino).is_user() {
            return Err((libc::EINVAL, format!("inode {} cannot be leased", wish.ino)));
        }
        self.check_there(client, wish.ino)?;
        // What may change has to be in NVM.
        let insists = wish.request_mode != LeaseRequestMode::Try;
        let rises = || {
            self.services
                .tiering
                .promoted_at_once(wish.ino)
                .unwrap_or(false)
        };
        let stays = match wish.mode {
            LeaseMode::Exclusive if !insists && !rises() => return Ok(Reply::NotLeased),
            LeaseMode::Exclusive => self.services.tiering.promote_inode(wish.ino),
            LeaseMode::Shared => Ok(None),
        };
        let stays = match stays {
            Ok(stays) => stays,
            // Who does not insist has something to do that can be left undone.
            Err(_) if !insists => return Ok(Reply::NotLeased),
            Err(e @ VolumeError::NoSpace { .. }) => return Err((libc::ENOSPC, e.to_string())),
            Err(other) => return Err(failed(&other.into())),
        };
        let leased = self.services.leases.acquire(client, wish);
        drop(stays);
        match leased {
            Ok(Some(given)) => {
                if let Err((_, why)) = self.note_opened(client, wish.ino) {
                    // The lease is the client's: an answer that hid it would hide, too, that
                    // what the client knows is old.
                    tracing::error!(client = client.id, "what it may write is not known: {why}");
                }
                Ok(Reply::Leased {
                    generation: given.grant.generation,
                    fresh: given.grant.fresh,
                    mode: given.grant.mode,
                    used: given.used,
                    watched: given.watched,
                    shared: given.shared,
                    others: given.grant.others,
                })
            }
            Ok(None) => Ok(Reply::NotLeased),
            Err(NoLease::Mediated(Mediated { ns, alone })) => Ok(Reply::Mediated { ns, alone }),
            Err(NoLease::DigestStop(halt)) => Err(halted(&halt)),
            Err(NoLease::NotMade) => Err((libc::ENOENT, format!("there is no inode {}", wish.ino))),
        }
    }
}

impl Connection {
    /// Nobody gets a lease on what is not there: the table would grow without end.
    fn check_there(&self, client: &Client, ino: u64) -> Result<(), Refusal> {
        if client.trusted() || self.services.is_there(ino).map_err(|e| failed(&e))? {
            return Ok(());
        }
        Err((libc::ENOENT, format!("there is no inode {ino}")))
    }

    /// Notes that the client's user may write a file of another user, now.
    fn note_opened(&self, client: &Client, ino: u64) -> Result<(), Refusal> {
        if client.trusted() || client.person.is_root() {
            return Ok(());
        }
        // The list that decides is read with the inode that leads to it.
        let _reader = self.services.reclaimer.read();
        let view = self.services.volume.view();
        let found = view.inode(Ino(ino)).map_err(|e| failed(&e.into()))?;
        let (person, Some(inode)) = (&client.person, found) else {
            return Ok(());
        };
        if inode.is_file() && !person.owns(&inode) && person.may_write(&view, &inode) {
            client.opened.lock().insert(ino, inode.generation);
        }
        Ok(())
    }
}

/// Fewest blocks to grant to who asks for `wanted`: all that one call needs, else what is worth a message.
fn least_blocks(wanted: u64) -> u64 {
    match wanted > GRANT_AHEAD_BLOCKS.into() {
        true => wanted,
        false => GRANT_BLOCKS_MIN,
    }
}
