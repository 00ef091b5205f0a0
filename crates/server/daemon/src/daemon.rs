//! The daemon: the trusted process that owns a volume (DESIGN §3).
//!
//! Start: lock, map, open (replays the journal), recover, threads, clients. Stop:
//! refuse new work, let every client go (which digests its log), free all slots. A
//! daemon that is killed instead leaves logs; the next one recovers.

use crate::coherence::barrier::Barrier;
use crate::coherence::gate::OwnReaders;
use crate::coherence::lease_table::LeaseHook;
use crate::connections::attach::Asker;
use crate::connections::client::{Fate, Reach};
use crate::connections::connection::Connection;
use crate::connections::limits::Limits;
use crate::connections::listen::Connections;
use crate::connections::mappings::Mappings;
use crate::connections::rights::Person;
use crate::device_manager::DeviceReport;
use crate::error::{DaemonError, Result};
use crate::recovery::recover::{Recovered, Recovery, RecoveryReport};
use crate::scrub::{ScrubProgress, ScrubReport};
use crate::services::Services;
use crate::stats::Observer;
use crate::stats::Status;
use crate::tiering::{Holding, MigrateProgress, Of, PinReport, STRAIGHT_BYTES, Speed};
use parking_lot::Mutex;
use shale_digest::Digester;
use shale_format::TierId;
use shale_format::log::RING_AT;
use shale_nvm::{Map, MapOptions};
use shale_oplog::Recent;
use shale_pool::PoolError;
use shale_pool::device_assembly::{self, Expected};
use shale_pool::host_space::{self, HostSpace};
use shale_pool::labels;
use shale_pool::nvm_dir::{self, NvmLock, open_nvm};
use shale_pool::volume_file::{DeviceFile, VolumeFile};
use shale_proto::control::state;
use shale_proto::{Handler, SocketPeer};
use shale_sys::{Clock, failpoints};
use shale_volume::{LowerDevices, View, Volume};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How a daemon runs.
#[derive(Clone)]
pub struct DaemonConfig {
    /// The volume.
    pub volume: VolumeFile,
    /// Where its file is, to be written when devices come and go; `None`: they do not.
    pub volume_path: Option<PathBuf>,
    /// Threads that digest; 0: one per processor.
    pub digest_threads: usize,
    /// Percentage of a log at which its digest begins.
    pub digest_at_percent: u32,
    /// Bytes of a run of new data from which on it goes straight below a full NVM.
    pub straight_bytes: u64,
    /// How fast migration is at first.
    pub speed: Speed,
    /// Inodes of which leases are known while nobody needs them: beyond that the ones go that were
    /// asked for least lately.
    pub leases_max: usize,
    /// How long a client may stay inside one call while others wait for it.
    pub gate_timeout: Duration,
    /// Number of the FUSE connection that this daemon serves: logs of the same
    /// connection, left by a daemon that was killed, tell which requests were done.
    /// `None`: a fresh mount, or none.
    pub connection: Option<u64>,
    /// The connection goes on: it was served before by a daemon that was killed.
    /// Then orphans stay, since the kernel may still use them.
    pub connection_continues: bool,
    /// Without devices below NVM that are not there: what they hold cannot be read.
    pub degraded: bool,
    /// Process that starts this one again; only shown.
    pub supervisor_pid: Option<u32>,
    /// How the NVM tier is mapped (recorder, timing model).
    pub map: MapOptions,
    /// The NVM tier, if it is mapped already: for many daemons on one volume, one after the other.
    pub mapped: Option<Arc<Map>>,
    /// The devices of tiers below NVM, if they are open already; their labels are not looked at.
    pub lower: Option<LowerDevices>,
    /// How the log of a slot is mapped (recorder, timing model).
    pub log_map: LogMap,
    /// Logs that a test can make again just so. Never for a volume that is to be kept.
    pub fixed_logs: Option<FixedLogs>,
}

/// What is otherwise random or 0 about a new log.
#[derive(Clone, Copy, Debug)]
pub struct FixedLogs {
    /// Salts are counted from here on.
    pub salt: u64,
    /// Position of the first record, a multiple of 64 that is less than the ring has bytes: a
    /// log that begins near the end of its ring soon meets it.
    pub start: u64,
    /// A file that has a new log's name and length is taken as it is, with what it holds: the
    /// space of logs is made once for many daemons.
    pub there: bool,
}

/// How the log of a slot is mapped.
pub type LogMap = Arc<dyn Fn(u32) -> MapOptions + Send + Sync>;

/// About 100 bytes each.
const LEASES_MAX: usize = 1 << 16;

impl DaemonConfig {
    /// The defaults for a volume: a thread per processor, digest from 30%, 5 s.
    pub fn new(volume: VolumeFile) -> Self {
        Self {
            volume,
            volume_path: None,
            digest_threads: 0,
            digest_at_percent: 30,
            straight_bytes: STRAIGHT_BYTES,
            speed: Speed::default(),
            leases_max: LEASES_MAX,
            gate_timeout: Duration::from_secs(5),
            connection: None,
            connection_continues: false,
            degraded: false,
            supervisor_pid: None,
            map: MapOptions::new(),
            mapped: None,
            lower: None,
            log_map: Arc::new(|_| MapOptions::new()),
            fixed_logs: None,
        }
    }

    fn threads(&self) -> usize {
        // To ask takes a while: files of the control group are read.
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        match self.digest_threads {
            0 => processors(),
            1 => 1,
            n => n.min(processors().max(1)),
        }
    }
}

/// A volume that was opened and recovered, and is served by nobody yet.
pub(crate) struct Opened {
    pub(crate) map: Arc<Map>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) digester: Digester,
    pub(crate) readers: OwnReaders,
    pub(crate) mappings: Mappings,
    pub(crate) recovered: Recovered,
    /// The count on the labels of devices.
    pub(crate) starts: u64,
}

impl Opened {
    fn new(
        config: &DaemonConfig,
        clock: &dyn Clock,
        barrier: Barrier,
    ) -> Result<(NvmLock, Opened)> {
        let dir = config.volume.nvm_dir();
        let map = match &config.mapped {
            Some(map) => map.clone(),
            None => Arc::new(open_nvm(dir, config.volume.nvm_bytes(), &config.map)?),
        };
        let lock = NvmLock::take(dir)?;
        nvm_dir::close_to_others(dir)?;
        let (uuid, segments) = (config.volume.uuid_bytes(), map.pieces().len());
        let starts = labels::check(dir, &uuid, segments)?;
        let superblock = *View::open_head(map.clone())?.0.superblock();
        config.volume.check_superblock(&superblock)?;
        let (volume, starts) = match &config.lower {
            Some(devices) => (Volume::open_with(map.clone(), devices)?, 0),
            None => {
                let expected = Expected {
                    file: &config.volume,
                    path: config.volume_path.as_deref(),
                    degraded: config.degraded,
                };
                device_assembly::start(&expected, &map, &superblock, starts)?
            }
        };
        let volume = Arc::new(volume);
        let mappings = Mappings::reopen(dir, &volume)?;
        let digester = Digester::new(volume.clone());
        let readers = OwnReaders::default();
        let recovered = Recovery {
            volume: &volume,
            digester: &digester,
            readers: &readers,
            nvm_dir: dir,
            clock,
            connection: config.connection.filter(|_| config.connection_continues),
            threads: config.threads(),
            barrier,
        }
        .run()?;
        let opened = Opened {
            map,
            volume,
            digester,
            readers,
            mappings,
            recovered,
            starts,
        };
        Ok((lock, opened))
    }
}

/// What is done now and then, by the first digest thread.
fn housekeeping(services: &Services) {
    if services.leases.table().are_many() {
        services.trimmer.ask();
    }
    services.mappings.look(&services.volume);
    Observer::new(services).note_rates();
    services.kept.forget_old();
}

/// Opens and recovers a volume as [`Daemon::start`] does, and serves nobody.
///
/// # Errors
/// As there.
pub fn recover_only(
    config: &DaemonConfig,
    clock: &dyn Clock,
) -> Result<(Arc<Volume>, RecoveryReport)> {
    let (_lock, opened) = Opened::new(config, clock, Barrier::register()?)?;
    Ok((opened.volume, opened.recovered.report))
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
        let (lock, opened) = Opened::new(&config, &*clock, barrier)?;
        let services = Arc::new(Services::new(config, clock, barrier, opened));
        let daemon = Arc::new(Daemon {
            services,
            connections: Arc::default(),
            threads: Mutex::default(),
            stopped: AtomicBool::new(false),
            lock: Mutex::new(Some(lock)),
        });
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
    pub fn room_for_log(&self) -> (std::path::PathBuf, u64, u64) {
        let dir = self.services.nvm_dir.clone();
        let needed = host_space::log_file_bytes(self.services.volume.superblock().log_bytes);
        let free = HostSpace::of(&dir).map_or(0, |space| space.free_bytes);
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
            Asker::in_process(uid),
        ))
    }

    /// A connection for a client in this process that is trusted no more than one of another
    /// process which runs as `uid` and `groups`: for tests of what such a client can do.
    pub fn attach_as(&self, uid: u32, groups: &[u32]) -> Arc<dyn Handler> {
        let asker = Asker {
            reach: Reach::Socket,
            pid: std::process::id() as i32,
            person: Person {
                uid,
                groups: groups.to_vec(),
            },
        };
        Arc::new(Connection::new(self.services.clone(), asker))
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
        let (connections, services) = (self.connections.clone(), self.services.clone());
        self.spawn("listen".to_owned(), move || {
            connections.accept_loop(&services, &listener);
        })
    }

    /// Who is told before an in-process client loses a lease. To be set before clients
    /// of other processes are accepted.
    pub fn set_lease_hook(&self, hook: Arc<dyn LeaseHook>) {
        self.services.leases.set_hook(hook);
    }

    /// Tells clients how the volume is mounted (bits of [`shale_proto::control::mount_flag`]); they go
    /// by it from their next call on. The kernel sees to it for who comes by way of the mount.
    pub fn set_mount_flags(&self, flags: u64) {
        self.services.clients.tell_mount(flags);
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

    /// What pinning these inodes to a tier would move, and what there is room for.
    ///
    /// # Errors
    /// There is no such tier.
    pub fn look_at_pins(&self, inos: &[u64], tier: Option<TierId>) -> Result<PinReport> {
        self.services.tiering.look_at_pins(inos, tier)
    }

    /// How many files and bytes each device holds: what would be lost with it. All inodes are
    /// looked through.
    ///
    /// # Errors
    /// The structure is damaged.
    pub fn holdings(&self) -> Result<Vec<Holding>> {
        Ok(self.services.tiering.holdings()?)
    }

    /// Moves inodes that nobody uses below NVM, as migration does by itself where data makes no room.
    /// Gives the blocks of 16.
    ///
    /// # Errors
    /// A device fails.
    pub fn sink_inodes(&self) -> Result<u64> {
        Ok(self.services.tiering.sink_all_inodes()?)
    }

    /// The same of leaves of directories. Gives the leaves.
    ///
    /// # Errors
    /// A device fails.
    pub fn sink_directories(&self) -> Result<u64> {
        Ok(self.services.tiering.sink_all_leaves(Of::Directories)?)
    }

    /// The same of leaves of files' extents, as migration does where data makes no room.
    ///
    /// # Errors
    /// A device fails.
    pub fn sink_extents(&self) -> Result<u64> {
        Ok(self.services.tiering.sink_all_leaves(Of::Files)?)
    }

    /// Pins inodes to a tier, durably, and brings what they hold there; `None`: not any more.
    ///
    /// # Errors
    /// There is no such tier, it has not enough room, or an inode is gone: nothing is pinned then.
    pub fn pin(&self, inos: &[u64], tier: Option<TierId>) -> Result<PinReport> {
        self.services.tiering.pin(inos, tier)
    }

    /// The devices of the tiers below NVM.
    pub fn devices(&self) -> Vec<DeviceReport> {
        self.services.devices.reports()
    }

    /// Makes a device part of the volume.
    ///
    /// # Errors
    /// It holds a volume, is in use, or its tables do not fit NVM: nothing has changed then.
    pub fn add_device(&self, tier: TierId, file: &DeviceFile, force: bool) -> Result<DeviceReport> {
        self.services.devices.add(tier, file, force)
    }

    /// Begins to empty a device: nothing new goes to it, and what it holds moves away, also after
    /// a restart. Gives what it holds, in bytes.
    ///
    /// # Errors
    /// There is no such device, or what it holds fits nowhere else.
    pub fn evacuate_device(&self, device: &Path) -> Result<u64> {
        self.services.devices.evacuate(device)
    }

    /// Has a device be used again that was being emptied.
    ///
    /// # Errors
    /// There is no such device.
    pub fn keep_device(&self, device: &Path) -> Result<()> {
        self.services.devices.keep(device)
    }

    /// Takes an empty device out of the volume.
    ///
    /// # Errors
    /// There is no such device, or it holds something.
    pub fn remove_device(&self, device: &Path) -> Result<()> {
        self.services.devices.remove(device)
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

    /// Has every log digested as far as it is committed, and what that freed given out again.
    /// Waits for it, but not for a client that stays inside a call.
    pub fn quiesce(&self) {
        self.services.digests.digest_all();
        self.services.reclaimer.pass();
    }

    /// Has clients of other processes served no more: what their calls returned from is kept, the next call finds
    /// out, and nobody attaches any more.
    pub fn stop_clients(&self) {
        self.services.attach.shut_down();
        let clients = self.services.clients.snapshot();
        let others: Vec<_> = clients
            .into_iter()
            .filter(|c| c.reach == Reach::Socket)
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
            let stuck = matches!(*client.fate.lock(), Fate::Stuck(_));
            match gone {
                Err(halt) => kept.push(format!("client {}: {halt}", client.id)),
                Ok(()) if stuck => kept.push(client.log_path.display().to_string()),
                Ok(()) => {}
            }
        }
        failpoints::reach("unmount-logs");
        self.services.reclaimer.pass();
        self.services.kept.forget();
        self.join();
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
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // The last owner of the daemon may be one of them.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of the daemon panicked");
            }
        }
        // Nobody accepts any more: whoever came in the last moment goes too.
        self.connections.close_all();
        drop(self.lock.lock().take());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.abandon();
    }
}
