//! The daemon: the trusted process that owns a volume (DESIGN §3).
//!
//! Start: lock, map, open (replays the journal), recover, threads, clients. Stop:
//! refuse new work, let every client go (which digests its log), free all slots. A
//! daemon that is killed instead leaves logs; the next one recovers.

use crate::config::DaemonConfig;
use crate::connections::attach::Requester;
use crate::connections::connection::Connection;
use crate::connections::limits::Limits;
use crate::connections::listen::Connections;
use crate::device_manager::DeviceReport;
use crate::error::{DaemonError, Result};
use crate::opening::Opened;
use crate::placement::{self, PlacementPart};
use crate::scrub::{ScrubProgress, ScrubReport};
use crate::services::Services;
use crate::stats::Observer;
use crate::stats::Status;
use crate::tiering::{DeviceUsage, MigrateProgress, Of, PinReport, Speed};
use parking_lot::Mutex;
use shale_clients::barrier::Barrier;
use shale_clients::client::{ClientState, Transport};
use shale_clients::credentials::Credentials;
use shale_coherence::lease_table::LeaseHook;
use shale_format::log::RING_AT;
use shale_format::{Durability, Ino, TierId};
use shale_nvm::Map;
use shale_oplog::Recent;
use shale_pool::buffer_dir::{make_private_dir, remove_if_empty};
use shale_pool::host_space::{self, HostSpace};
use shale_pool::nvm_dir::NvmLock;
use shale_pool::staged;
use shale_pool::volume_file::DeviceFile;
use shale_pool::{PoolError, VolumeFile};
use shale_proto::open_name::TokenOwner;
use shale_proto::shared_pages::state;
use shale_proto::{Handler, SocketPeer};
use shale_recovery::recover::RecoveryReport;
use shale_sys::{Clock, failpoints};
use shale_volume::Volume;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// What is done now and then, by the first digest thread.
fn housekeeping(services: &Services) {
    if services.leases.table().are_many() {
        services.trimmer.ask();
    }
    services.mappings.look(&services.volume);
    Observer::new(services).note_rates();
    services.kept.forget_old();
    services.heap.look(services.clock.monotonic_ns());
}

/// A running daemon. Dropping it without [`Daemon::shutdown`] stops its threads and
/// leaves logs as a kill would.
pub struct Daemon {
    services: Arc<Services>,
    connections: Arc<Connections>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stopped: AtomicBool,
    lock: Mutex<Option<NvmLock>>,
}

impl Daemon {
    /// Opens the volume, recovers and starts digest threads. Clients may attach when it returns.
    ///
    /// # Errors
    /// The volume is missing, damaged, another one, too new, or in use; the message
    /// says what to do.
    pub fn start(config: DaemonConfig, clock: Arc<dyn Clock>) -> Result<Arc<Daemon>> {
        let barrier = Barrier::register()?;
        let config = config.resolved()?;
        let (lock, opened) = Opened::new(&config, &*clock, barrier)?;
        let changed = config.is_next_mount && config.volume.next_mount.is_some();
        let config = config.changed_by_mount();
        let services = Arc::new(Services::new(config, clock, barrier, opened));
        let daemon = Arc::new(Daemon {
            services,
            connections: Arc::default(),
            threads: Mutex::default(),
            stopped: AtomicBool::new(false),
            lock: Mutex::new(Some(lock)),
        });
        if daemon.services.is_staged() {
            // From here on what recovery brought into the memory tier survives a power cut, and the memory tier counts.
            daemon.services.digests.checkpoint(false)?;
            staged::finish_restore(&daemon.services.nvm_dir)?;
        }
        if let (true, Some(path)) = (changed, &daemon.services.config.volume_path)
            && let Err(error) = VolumeFile::forget_next_mount(path)
        {
            // What it says for the next mount is how the volume is: the next one writes it.
            tracing::warn!("{error}");
        }
        daemon.start_threads()?;
        Ok(daemon)
    }

    fn start_threads(&self) -> Result<()> {
        for n in 0..self.services.config.threads() {
            let services = self.services.clone();
            self.spawn(format!("digest-{n}"), move || {
                services
                    .digests
                    .run((n == 0).then_some(|| housekeeping(&services)))
            })?;
        }
        if self.services.volume.superblock().can_have_tiers() {
            let services = self.services.clone();
            self.spawn("migrate".to_owned(), move || services.tiering.run())?;
        }
        let services = self.services.clone();
        self.spawn("trim".to_owned(), move || {
            services.trimmer.run(&services.leases)
        })?;
        if self.services.is_staged() {
            let services = self.services.clone();
            let every = services.harden_every();
            self.spawn("staging".to_owned(), move || {
                services.digests.run_staging(every)
            })?;
        }
        if !self.services.is_staged() {
            for policy in [Durability::Buffered, Durability::Ordered] {
                let services = self.services.clone();
                self.spawn(format!("write-back-{}", policy.name()), move || {
                    let (stop, times) = (&services.write_back, services.config.write_back);
                    services.digests.run_write_back(stop, policy, times)
                })?;
            }
        }
        let services = self.services.clone();
        self.spawn("release".to_owned(), move || services.reclaimer.run())
    }

    fn spawn(&self, name: String, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = failpoints::io()
            .map_err(std::io::Error::from)
            .and_then(|()| std::thread::Builder::new().name(name.clone()).spawn(work))
            .map_err(|e| DaemonError::file(Path::new(&name), "start a thread", e))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// What the log of the mount takes, and what there is for it: for a mount that found none.
    pub fn space_for_log(&self) -> (std::path::PathBuf, u64, u64) {
        let needed = host_space::log_file_bytes(self.services.volume.superblock().log_bytes);
        let free = |dir: &Path| HostSpace::of(dir).map_or(0, |space| space.free_bytes);
        let nvm_dir = self.services.nvm_dir.clone();
        let buffered = self.services.volume.superblock().policy().has_buffer();
        let in_memory = self.services.config.volume.buffer_dir();
        // Where there is less: a buffered client has a log in memory and one in NVM.
        let dir = match buffered && free(&in_memory) < free(&nvm_dir) {
            true => in_memory,
            false => nvm_dir,
        };
        let free = free(&dir);
        (dir, needed, free)
    }

    /// How fast clients may write.
    pub fn limits(&self) -> Limits {
        self.services.limits.now()
    }

    /// Changes how fast clients may write, from their next call on. Gives the limits as they are
    /// then.
    pub fn change_limits(&self, change: impl FnOnce(&mut Limits)) -> Limits {
        self.services.limits.change(change)
    }

    /// A connection for a client in this process, e.g. the FUSE front end. Its first
    /// request is `Attach`; its records are trusted. `uid` is written into its log's
    /// header. Dropping it has its log digested, like `Detach`.
    pub fn attach_in_process(&self, uid: u32) -> Arc<dyn Handler> {
        Arc::new(Connection::new(
            self.services.clone(),
            Requester::in_process(uid),
        ))
    }

    /// A connection for a client in this process that is trusted no more than one of another
    /// process which runs as `uid` and `groups`: for tests of what such a client can do.
    pub fn attach_as(&self, uid: u32, groups: &[u32]) -> Arc<dyn Handler> {
        let requester = Requester {
            transport: Transport::Socket,
            pid: std::process::id() as i32,
            person: Credentials {
                uid,
                groups: groups.to_vec(),
            },
        };
        Arc::new(Connection::new(self.services.clone(), requester))
    }

    /// Listens at `socket` for clients of other processes.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn listen(&self, socket: &Path) -> Result<()> {
        self.serve_listener(SocketPeer::listen(socket)?)
    }

    /// Accepts clients from a socket that listens already: the supervisor keeps it
    /// while daemons come and go.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn serve_listener(&self, listener: OwnedFd) -> Result<()> {
        let services = self.services.clone();
        let usual = self.services.attach.client_ring_bytes(0);
        self.services.attach.spare.expect(RING_AT + usual as usize);
        self.spawn("spare-log".to_owned(), move || {
            services.attach.spare.make_loop(&services.nvm_dir);
        })?;
        let policy = self.services.volume.superblock().policy();
        if policy.has_buffer() && !self.services.is_staged() {
            let (services, dir) = (
                self.services.clone(),
                self.services.config.volume.buffer_dir(),
            );
            make_private_dir(&dir)?;
            let spare = &self.services.attach.spare_in_memory;
            spare.expect(RING_AT + usual as usize);
            self.spawn("spare-buffer".to_owned(), move || {
                services.attach.spare_in_memory.make_loop(&dir);
            })?;
        }
        let (connections, services) = (self.connections.clone(), self.services.clone());
        self.spawn("listen".to_owned(), move || {
            connections.accept_loop(&services, &listener);
        })
    }

    /// Called before an in-process client loses a lease. To be set before clients
    /// of other processes are accepted.
    pub fn set_lease_hook(&self, hook: Arc<dyn LeaseHook>) {
        self.services.leases.set_hook(hook);
    }

    /// Tells clients how the volume is mounted (bits of [`shale_proto::shared_pages::mount_flag`]); they go
    /// by it from their next call on. The kernel sees to it for who comes through the mount.
    pub fn set_mount_flags(&self, flags: u64) {
        self.services.clients.tell_mount(flags);
    }

    /// Who may open inode `ino` through the mount by its number with this token ([`shale_proto::open_name`]); `None`: nobody. Any
    /// number may be asked about.
    pub fn open_token_owner(&self, token: u128, ino: u64) -> Option<TokenOwner> {
        let client = self.services.clients.of_token(token)?;
        // As with a lease: nobody has the mount ask for one on what is not there.
        let is_there = Ino(ino).is_user() && self.services.is_there(ino).unwrap_or(false);
        is_there.then_some(TokenOwner {
            uid: client.person.uid,
            pid: client.pid,
        })
    }

    /// Requests of the surviving mount that the last daemon did, with their results.
    /// Empty after a fresh mount.
    pub fn recent_requests(&self) -> Recent {
        self.services.kept.recent()
    }

    /// The requests that the kernel sent again have been answered: what was kept for
    /// them goes. Happens by itself a minute after the start.
    pub fn forget_requests(&self) {
        self.services.kept.forget();
    }

    /// Verifies every checksum of the volume's structure while it is in use. `progress` hears
    /// how far it is, and can end it.
    pub fn scrub(&self, progress: &mut dyn FnMut(ScrubProgress) -> ControlFlow<()>) -> ScrubReport {
        self.services.scrubber.scrub(progress)
    }

    /// Moves what NVM holds to the tiers below, or `bytes` of it, coldest first. Gives the bytes.
    ///
    /// # Errors
    /// A device fails.
    pub fn migrate(&self, bytes: Option<u64>) -> Result<u64> {
        self.migrate_with(bytes, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`Daemon::migrate`]; `progress` hears how far it is, and can end it.
    ///
    /// # Errors
    /// As there.
    pub fn migrate_with(
        &self,
        bytes: Option<u64>,
        progress: &mut dyn FnMut(MigrateProgress) -> ControlFlow<()>,
    ) -> Result<u64> {
        Ok(self.services.tiering.migrate_now(bytes, progress)?)
    }

    /// What pinning these inodes to a tier would move, and what there is space for.
    ///
    /// # Errors
    /// There is no such tier.
    pub fn look_at_pins(&self, inos: &[u64], tier: Option<TierId>) -> Result<PinReport> {
        Ok(self.services.tiering.look_at_pins(inos, tier)?)
    }

    /// Where the blocks of an inode are from byte `from` on, as far as they are in the volume: the
    /// next parts, cut at zones; [`PARTS_MAX`] of them if there are more.
    ///
    /// # Errors
    /// The volume is damaged.
    pub fn where_is(&self, ino: u64, from: u64) -> Result<Vec<PlacementPart>> {
        let services = self.services();
        let is_staged = services.config.volume.staged.is_some();
        placement::where_is(
            &services.volume,
            &services.reclaimer,
            (ino, from),
            is_staged,
        )
    }

    /// How many files and bytes each device holds: what would be lost with it. All inodes are
    /// scanned.
    ///
    /// # Errors
    /// The structure is damaged.
    pub fn holdings(&self) -> Result<Vec<DeviceUsage>> {
        Ok(self.services.tiering.holdings()?)
    }

    /// Moves inodes that nobody uses below NVM, as migration does by itself where data frees no space.
    /// Gives the blocks of 16.
    ///
    /// # Errors
    /// A device fails.
    pub fn demote_inodes(&self) -> Result<u64> {
        Ok(self.services.tiering.demote_all_inodes()?)
    }

    /// The same of leaves of directories. Gives the leaves.
    ///
    /// # Errors
    /// A device fails.
    pub fn demote_directories(&self) -> Result<u64> {
        Ok(self.services.tiering.demote_all_leaves(Of::Directories)?)
    }

    /// The same of leaves of files' extents, as migration does where data frees no space.
    ///
    /// # Errors
    /// A device fails.
    pub fn demote_extents(&self) -> Result<u64> {
        Ok(self.services.tiering.demote_all_leaves(Of::Files)?)
    }

    /// Pins inodes to a tier, durably, and brings what they hold there; `None`: not any more.
    ///
    /// # Errors
    /// There is no such tier, it has not enough space, or an inode is gone: nothing is pinned then.
    pub fn pin(&self, inos: &[u64], tier: Option<TierId>) -> Result<PinReport> {
        let report = self.services.tiering.pin(inos, tier)?;
        self.checkpoint()?;
        Ok(report)
    }

    /// The devices of the lower tiers.
    pub fn devices(&self) -> Vec<DeviceReport> {
        self.services.devices.reports()
    }

    /// Makes a device part of the volume.
    ///
    /// # Errors
    /// It holds a volume, is in use, or its tables do not fit NVM: nothing has changed then.
    pub fn add_device(&self, tier: TierId, file: &DeviceFile, force: bool) -> Result<DeviceReport> {
        let report = self.services.devices.add(tier, file, force)?;
        self.checkpoint()?;
        Ok(report)
    }

    /// Begins to empty a device: nothing new goes to it, and what it holds moves away, also after
    /// a restart. Gives what it holds, in bytes.
    ///
    /// # Errors
    /// There is no such device, or what it holds fits nowhere else.
    pub fn evacuate_device(&self, device: &Path) -> Result<u64> {
        let holds = self.services.devices.evacuate(device)?;
        self.checkpoint()?;
        Ok(holds)
    }

    /// Has a device be used again that was being emptied.
    ///
    /// # Errors
    /// There is no such device.
    pub fn keep_device(&self, device: &Path) -> Result<()> {
        self.services.devices.keep(device)?;
        self.checkpoint()
    }

    /// Moves elsewhere what a device holds in its zones behind the first `blocks` blocks. Nothing new goes there until the next start.
    ///
    /// # Errors
    /// There is no such device, or no space elsewhere.
    pub fn empty_end(&self, device: &Path, blocks: u64) -> Result<()> {
        self.services.devices.empty_end(device, blocks)
    }

    /// Takes an empty device out of the volume.
    ///
    /// # Errors
    /// There is no such device, or it holds something.
    pub fn remove_device(&self, device: &Path) -> Result<()> {
        self.services.devices.remove(device)?;
        self.checkpoint()
    }

    /// Goes on as a volume file says that has changed, as far as a daemon can.
    pub fn use_file(&self, file: &VolumeFile) {
        let services = &self.services;
        services
            .tiering
            .set_migrate_percent(file.migrate_at_percent);
        let percents = services.config.digest_percents(file);
        services.digests.set_digest_percents(percents);
        services.attach.use_file(file);
        services.devices.use_spare(file);
    }

    /// How fast migration may be.
    pub fn speed(&self) -> Speed {
        self.services.tiering.speed()
    }

    /// Pauses, resumes or limits migration.
    pub fn set_speed(&self, speed: Speed) {
        self.services.tiering.set_speed(speed);
    }

    /// The state as JSON.
    pub fn status(&self) -> String {
        Observer::new(&self.services).text()
    }

    /// The state as a structure.
    pub fn status_values(&self) -> Status {
        Observer::new(&self.services).status()
    }

    /// What the start recovered.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.services.recovery
    }

    /// The volume, for readers in this process (tests, checks of a quiet volume).
    pub fn volume(&self) -> &Arc<Volume> {
        &self.services.volume
    }

    /// The mapping of the NVM tier.
    pub fn map(&self) -> &Arc<Map> {
        &self.services.map
    }

    /// Writes a checkpoint of a volume without NVM now; of one with NVM there is nothing to write.
    ///
    /// # Errors
    /// The device of the staging area has failed.
    pub fn checkpoint(&self) -> Result<()> {
        Ok(self.services.digests.checkpoint(false)?)
    }

    /// Has every log digested as far as it is published, and what that freed given out again.
    /// Waits for it, but not for a client that stays inside a call.
    pub fn quiesce(&self) {
        self.services.digests.digest_all();
        self.services.reclaimer.wait_grace_period();
    }

    /// Has clients of other processes served no more: what their calls returned from is kept, the next call finds
    /// out, and nobody attaches any more.
    pub fn stop_clients(&self) {
        self.services.attach.shut_down();
        let clients = self.services.clients.snapshot();
        let others: Vec<_> = clients
            .into_iter()
            .filter(|c| c.transport == Transport::Socket)
            .collect();
        for client in &others {
            self.services
                .fence
                .evict(client, "the volume was shut down".to_owned());
        }
        // Calls that did not see it are over.
        self.services.grace.wait(&others);
    }

    /// Stops cleanly: every client goes, its log digested; no log is left. Clients of
    /// this process should have detached before: what they log from now on is lost.
    ///
    /// # Errors
    /// A log could not be digested: it is kept, and the next start tries again.
    pub fn shutdown(&self) -> Result<()> {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.services.clients.close();
        failpoints::reach("unmount-begin");
        for client in self.services.clients.snapshot() {
            client.daemon_page.set_state(state::CLOSING);
        }
        self.connections.close_all();
        let mut kept = Vec::new();
        for client in self.services.clients.snapshot() {
            self.services.grace.wait(std::slice::from_ref(&client));
            let gone = self.services.attach.detach(&client);
            let stuck = matches!(*client.client_state.lock(), ClientState::Stuck(_));
            match gone {
                Err(halt) => kept.push(format!("client {}: {halt}", client.id)),
                Ok(()) if stuck => kept.push(client.log_path.display().to_string()),
                Ok(()) => {}
            }
        }
        failpoints::reach("unmount-logs");
        self.services.reclaimer.wait_grace_period();
        self.services.kept.forget();
        self.join();
        if self.services.is_staged() {
            self.services.digests.checkpoint(kept.is_empty())?;
            if let (true, Some(lock)) = (kept.is_empty(), self.lock.lock().take()) {
                // All of it lies on the device of the staging area.
                staged::remove_memory(&self.services.nvm_dir, lock)?;
            }
        }
        if !self.services.is_staged() {
            remove_if_empty(&self.services.config.volume.buffer_dir())?;
        }
        drop(self.lock.lock().take());
        failpoints::reach("unmount-end");
        match kept.is_empty() {
            true => Ok(()),
            false => Err(PoolError::NvmDir {
                dir: self.services.nvm_dir.clone(),
                why: format!(
                    "unmounted, but not all is in the volume: {}",
                    kept.join("; ")
                ),
            }
            .into()),
        }
    }

    /// Stops as a kill would: nothing is digested, logs stay for recovery. For tests of crashes.
    pub fn abandon(&self) {
        if !self.stopped.swap(true, Ordering::AcqRel) {
            for client in self.services.clients.snapshot() {
                client.leaving.store(true, Ordering::Release);
            }
            self.services.clients.close();
            self.connections.close_all();
            self.join();
            drop(self.lock.lock().take());
        }
    }

    pub(crate) fn services(&self) -> &Arc<Services> {
        &self.services
    }

    fn join(&self) {
        self.services.tiering.stop();
        self.services.queue.stop();
        self.services.reclaimer.stop();
        self.services.trimmer.stop();
        self.services.attach.spare.stop();
        self.services.attach.spare_in_memory.stop();
        self.services.write_back.stop();
        self.services.digests.stop_staging();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // The last owner of the daemon may be one of them.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of the daemon panicked");
            }
        }
        // Nobody accepts any more: a client that came in the last moment goes too.
        self.connections.close_all();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.abandon();
    }
}
