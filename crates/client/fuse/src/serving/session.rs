//! One mount: made, or adopted from a process that is gone, and served.
//!
//! The life of a mount and its processes:
//!
//! 1. The supervisor calls [`FuseSession::mount`] and keeps [`FuseSession::fd`] open for
//!    as long as the mount is to live. It serves nothing.
//! 2. A daemon gets the descriptor and the [`MountInfo`] from it, calls
//!    [`FuseSession::adopt`], then [`FuseSession::serve`]. The first one answers the
//!    kernel's first request; `on_init` tells the supervisor what was agreed.
//! 3. If the daemon dies, the supervisor waits for its end, then starts the
//!    next one, which does the same. Two processes must never serve at once:
//!    adopting takes over the requests of the other. What may be left of the dead one is threads in
//!    a notification that waits for a request which only the next one answers: they have nothing
//!    open but the device, and end then.
//!
//! A daemon may also do it all by itself: mount, then serve.
//!
//! A panic while serving aborts the process: after it nobody knows what state
//! the file system is in, and a restart is not seen by programs.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::adapter::{Adapter, Answer, CacheEffect, IOC_SHUTDOWN, Validity, ioctl_of, is_forget};
use crate::backend::inode_flags;
use crate::backend::node::{Errno, NodeFs, ROOT_INO};
use crate::error::FuseError;
use crate::kernel_cache::cache::KernelCache;
use crate::kernel_cache::deferred_writes::{DEFERRED_THREADS, DeferredWrites, Queue};
use crate::kernel_cache::delayed_replies::DelayedReplies;
use crate::kernel_cache::page_dropper::{DROP_THREADS, Done, Dropper};
use crate::kernel_cache::peek::Peeks;
use crate::serving::durable_replies::{DURABLE_THREADS, DurableQueue, DurableReplies};
use crate::serving::mount::{MountOptions, mount};
use crate::serving::negotiate::{MountInfo, Negotiated, negotiate};
use crate::serving::notify::{self, Inval, Notifier};
use crate::serving::placement::{Place, Placement};
use crate::serving::requests::RequestCounts;
use crate::serving::senders::Senders;
use crate::serving::transport::{BUFFER_BYTES, Device, LockedBuf, Received, Wakeable};
use crate::serving::wire::{InHeader, OutHeader, UNIQUE_RESENT, WriteIn, opcode};
use crate::serving::workers::{Enlisted, StopState, Stopper};

/// Called with what kernel and server agreed on, before the kernel gets it; and again when the file system is shut
/// down, before the caller gets its answer. Must
/// return only when the supervisor has it.
pub type OnInit = dyn Fn(&MountInfo) + Send + Sync;

/// How to serve.
pub struct ServeOptions {
    /// Number of threads that take requests, at least 1. Default: [`ServeOptions::readers`].
    pub threads: usize,
    /// How long a name stays cached in the kernel. Default 1 hour: a process that changes
    /// names by another way has to tell, with [`Notifier::inval_entry`].
    pub entry_timeout: Duration,
    /// How long it stays cached that a name does not exist. Default 1 hour.
    pub negative_timeout: Duration,
    /// How long attributes stay cached. Default 1 hour.
    pub attr_timeout: Duration,
    /// See [`OnInit`].
    pub on_init: Option<Box<OnInit>>,
}

/// Threads that take requests, where some of them may wait for a device.
pub const READERS_MAX: usize = 4;

impl ServeOptions {
    /// As many threads as there are processors, 2 to [`READERS_MAX`]: with more the one that is woken is more often on
    /// another processor than the program that waits (DESIGN §21).
    pub fn readers() -> usize {
        let processors = thread::available_parallelism().map_or(2, |n| n.get());
        processors.clamp(2, READERS_MAX)
    }
}

impl Default for ServeOptions {
    fn default() -> Self {
        const HOUR: Duration = Duration::from_secs(3600);
        Self {
            threads: Self::readers(),
            entry_timeout: HOUR,
            negative_timeout: HOUR,
            attr_timeout: HOUR,
            on_init: None,
        }
    }
}

impl fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeOptions")
            .field("threads", &self.threads)
            .field("entry_timeout", &self.entry_timeout)
            .field("negative_timeout", &self.negative_timeout)
            .field("attr_timeout", &self.attr_timeout)
            .finish_non_exhaustive()
    }
}

/// Why serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The file system is unmounted.
    Unmounted,
    /// [`Stopper::stop`] was called; the mount is there and can be adopted.
    Stopped,
}

/// What a thread came to; if it panicked, so does this one.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    let panicked = |panic| std::panic::resume_unwind(panic);
    thread.join().unwrap_or_else(panicked)
}

/// Where requests go that a worker cannot answer by itself.
#[derive(Clone)]
struct Aside {
    delayed_replies: DelayedReplies,
    deferred: DeferredWrites,
    durable: DurableReplies,
    dropper: Dropper,
}

/// Threads that take no requests from the kernel.
const HELPERS: usize = DEFERRED_THREADS + DURABLE_THREADS;

/// What a thread does.
enum Task<'a> {
    /// Takes requests from the kernel.
    Requests(Aside, Place<'a>),
    /// Changes files whose pages have to go first, until nobody takes requests.
    Writes(Queue, DurableReplies),
    /// Sends answers once what they promise is durable, until nobody holds any back.
    Answers(DurableQueue),
}

/// A mount, and the right to serve it.
pub struct FuseSession {
    device: Arc<Device>,
    senders: Arc<Senders>,
    info: Mutex<MountInfo>,
    /// Nothing is served any more: [`NodeFs::shutdown`].
    is_down: AtomicBool,
    stop: Arc<StopState>,
    requests: Arc<RequestCounts>,
    cache: Arc<KernelCache>,
    peeks: Peeks,
}

impl fmt::Debug for FuseSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("device", &self.device)
            .field("info", &*self.info.lock())
            .finish_non_exhaustive()
    }
}

impl FuseSession {
    fn new(device: OwnedFd, info: MountInfo, continues: bool) -> Self {
        let device = Arc::new(Device::new(device));
        Self {
            senders: Arc::new(Senders::new(Arc::clone(&device))),
            device,
            is_down: AtomicBool::new(info.is_shut_down()),
            info: Mutex::new(info),
            stop: Arc::default(),
            requests: Arc::default(),
            cache: Arc::new(KernelCache::new(continues)),
            peeks: Peeks::default(),
        }
    }

    /// Mounts on a directory, for users other than root through `fusermount3`. Programs
    /// that go there wait until somebody serves.
    ///
    /// # Errors
    /// [`FuseError::OpenDevice`], [`FuseError::Mount`], [`FuseError::Option`].
    pub fn mount(mountpoint: &Path, options: &MountOptions) -> Result<Self, FuseError> {
        let device = mount(mountpoint, options)?;
        Ok(Self::new(device, MountInfo::new(), false))
    }

    /// Takes over a mount whose server is gone: asks at once for all unanswered
    /// requests. `info` is what the supervisor got last, or
    /// [`MountInfo::new`] if it never got anything. `continues`: a process before this one
    /// answered requests.
    ///
    /// # Errors
    /// [`FuseError::Resend`] if the kernel cannot, or the mount is gone.
    pub fn adopt(device: OwnedFd, info: MountInfo, continues: bool) -> Result<Self, FuseError> {
        let session = Self::new(device, info, continues);
        session.notifier().resend().map_err(FuseError::Resend)?;
        Ok(session)
    }

    /// The descriptor that keeps the mount alive, for the supervisor to hold and
    /// to hand on.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// What has to be handed on with the descriptor.
    #[must_use]
    pub fn info(&self) -> MountInfo {
        *self.info.lock()
    }

    /// For telling the kernel what changed.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(&self.senders), self.kernel_cache())
    }

    /// What the kernel has cached of the mount.
    pub(crate) fn kernel_cache(&self) -> Arc<KernelCache> {
        Arc::clone(&self.cache)
    }

    /// Requests of the kernel since this process began to serve.
    #[must_use]
    pub fn requests(&self) -> Arc<RequestCounts> {
        Arc::clone(&self.requests)
    }

    /// For ending [`serve`](Self::serve).
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// Serves requests until the file system is unmounted or the session is
    /// stopped. [`NodeFs::destroy`] is called at the end if it is unmounted.
    ///
    /// # Errors
    /// [`FuseError::Buffer`], [`FuseError::Spawn`] and [`FuseError::Wake`] before anything
    /// is served, [`FuseError::Receive`] and [`FuseError::Message`] later; the mount can
    /// then be adopted again.
    pub fn serve<F: NodeFs + ?Sized>(
        &self,
        fs: Arc<F>,
        options: &ServeOptions,
    ) -> Result<Ended, FuseError> {
        Wakeable::prepare().map_err(FuseError::Wake)?;
        let validity = Validity {
            entry: options.entry_timeout,
            negative: options.negative_timeout,
            attr: options.attr_timeout,
        };
        let adapter = Adapter::new(fs, validity);
        adapter.agree(&self.info());
        let mut buffers = Vec::new();
        for _ in 0..HELPERS + options.threads.max(1) {
            buffers.push(LockedBuf::new(BUFFER_BYTES)?);
        }
        let (delayed_replies, queue) = DelayedReplies::new();
        let (deferred, writes) = DeferredWrites::new();
        let (durable, answers) = DurableReplies::new();
        let (dropper, wishes) = Dropper::new();
        let aside = Aside {
            delayed_replies,
            deferred,
            durable,
            dropper,
        };
        let placement = &Placement::new(options.threads.max(1));
        let ended = thread::scope(|scope| {
            let notifier = self.notifier();
            let (fs, cache, device) = (adapter.fs(), &*self.cache, &*self.device);
            let settling = thread::Builder::new()
                .name("delayed".to_owned())
                .spawn_scoped(scope, move || {
                    queue.run(fs, cache, device, &notifier, |unique| {
                        unique & !UNIQUE_RESENT
                    })
                })
                .map_err(FuseError::Spawn)?;
            for _ in 0..DROP_THREADS {
                let (notifier, wishes) = (self.notifier(), wishes.clone());
                thread::Builder::new()
                    .name("drop-pages".to_owned())
                    .spawn_scoped(scope, move || wishes.run(&notifier))
                    .map_err(FuseError::Spawn)?;
            }
            let mut workers = Vec::new();
            let mut first_error = None;
            for (number, buf) in buffers.into_iter().enumerate() {
                let (adapter, on_init) = (&adapter, options.on_init.as_deref());
                let task = match number {
                    0..DEFERRED_THREADS => Task::Writes(writes.clone(), aside.durable.clone()),
                    DEFERRED_THREADS..HELPERS => Task::Answers(answers.clone()),
                    _ => Task::Requests(aside.clone(), placement.place(number - HELPERS)),
                };
                let started = thread::Builder::new()
                    .name(format!("shale-fuse-{number}"))
                    .spawn_scoped(scope, move || self.work(adapter, on_init, task, buf));
                match started {
                    Ok(worker) => workers.push(worker),
                    Err(error) => {
                        first_error = Some(FuseError::Spawn(error));
                        break;
                    }
                }
            }
            // Those that change files end when nobody can hand them any.
            drop(aside);
            if first_error.is_some() {
                self.stopper().stop();
            }
            let mut ended = Ended::Stopped;
            for worker in workers {
                match joined(worker) {
                    Ok(Ended::Unmounted) => ended = Ended::Unmounted,
                    Ok(Ended::Stopped) => {}
                    Err(error) => first_error = first_error.or(Some(error)),
                }
            }
            first_error = first_error.or(joined(settling).err());
            first_error.map_or(Ok(ended), Err)
        })?;
        if ended == Ended::Unmounted {
            adapter.fs().destroy();
        }
        Ok(ended)
    }

    /// One thread. If it fails the others are stopped: a mount is served or it is not.
    fn work<F: NodeFs + ?Sized>(
        &self,
        adapter: &Adapter<F>,
        on_init: Option<&OnInit>,
        task: Task<'_>,
        mut buf: LockedBuf,
    ) -> Result<Ended, FuseError> {
        let enlisted = Enlisted::new(&self.stop);
        let result = match task {
            Task::Requests(aside, place) => {
                notify::mark_serving();
                let reader = (&enlisted, place);
                self.serve_until_end(adapter, on_init, &aside, reader, &mut buf)
            }
            Task::Writes(writes, durable) => {
                self.write_late(adapter, on_init, &writes, &durable, &mut buf);
                Ok(Ended::Stopped)
            }
            Task::Answers(answers) => {
                self.answer_durable(adapter, &answers, &mut buf);
                Ok(Ended::Stopped)
            }
        };
        drop(enlisted);
        if let Err(error) = &result {
            tracing::error!(%error, "serving ends");
            self.stopper().stop();
        }
        result
    }

    /// Before a request about `ino` is served that changes a file in the kernel when it is answered.
    fn note_change(&self, ino: u64, pages: &CacheEffect) {
        let changed = match pages {
            CacheEffect::Stored { .. } => Some(ino),
            CacheEffect::Passes { ino, .. } => Some(*ino),
            CacheEffect::Fills { .. } | CacheEffect::Leaves => None,
        };
        // While no other client is there, no file is away.
        if let Some(ino) = changed.filter(|_| !self.cache.is_alone()) {
            self.cache.changes(ino);
        }
    }

    fn serve_until_end<F: NodeFs + ?Sized>(
        &self,
        adapter: &Adapter<F>,
        on_init: Option<&OnInit>,
        aside: &Aside,
        (enlisted, mut place): (&Enlisted<'_>, Place<'_>),
        buf: &mut LockedBuf,
    ) -> Result<Ended, FuseError> {
        while !self.stop.stopping.load(Ordering::SeqCst) {
            let header = match enlisted.receive(&self.device, buf)? {
                Received::Request(header) => header,
                Received::Nothing => continue,
                Received::Gone => return Ok(Ended::Unmounted),
            };
            // Left unanswered it is sent again to the process that adopts the mount; only what
            // would not be is served.
            if self.stop.stopping.load(Ordering::SeqCst) && !is_forget(header.opcode) {
                break;
            }
            self.requests.note(header.opcode);
            let served = place.serves(&header);
            let old_size =
                header.opcode == opcode::GETATTR && self.cache.holds_answer(header.nodeid);
            let (message, reply) = buf.split(header.len as usize);
            if header.opcode == opcode::NOTIFY_REPLY {
                self.peeks.answered(&header, message);
                continue;
            }
            if let Some(errno) = self.refuses(&header, message) {
                self.reply(reply, &header, Err(errno));
                continue;
            }
            let mut held = None;
            let pages = adapter.pages(&header, message);
            self.note_change(header.nodeid, &pages);
            match pages {
                CacheEffect::Fills { offset, bytes } => {
                    self.cache.fills(header.nodeid, (offset, bytes));
                }
                CacheEffect::Passes {
                    ino,
                    offset,
                    bytes,
                    tells,
                } => {
                    if !tells {
                        let dropped = self.cache.bypass_if_dropped(ino);
                        held = dropped.map(|last| (ino, last));
                    }
                    let what = Inval::Range { offset, bytes };
                    if held.is_none() && aside.deferred.write(&header, message, ino, what) {
                        continue;
                    }
                }
                CacheEffect::Leaves | CacheEffect::Stored { .. } => {}
            }
            let payload = &mut reply[size_of::<OutHeader>()..];
            let answer = if header.opcode == opcode::INIT {
                self.answer_init(adapter, on_init, message, payload)
            } else {
                adapter.handle(&header, message, payload)
            };
            if let Some((ino, last)) = held {
                // A page that was filled all the same is dropped by the kernel after the answer.
                self.cache.end_bypass(ino, last);
            }
            if let Answer::Reply(mut result) = answer {
                if let (CacheEffect::Stored { offset, bytes }, Ok(_)) = (pages, result) {
                    self.resolve(&aside.dropper, &header, (offset, bytes), message);
                }
                if let Ok(bytes) = result {
                    let promise = adapter.to_be_durable(&header, message);
                    let (fs, waits) = (adapter.fs(), self.stop.is_received());
                    let reply = (&header, &payload[..bytes]);
                    match aside.durable.keep(fs, promise, reply, waits) {
                        Some(kept) => result = kept,
                        None => continue,
                    }
                }
                // Shut down meanwhile: what the kernel is given now is not dropped again.
                if let Some(errno) = self.refuses(&header, message) {
                    result = Err(Errno(errno));
                }
                if old_size {
                    match result {
                        Ok(bytes) if aside.delayed_replies.hold(&header, &payload[..bytes]) => {
                            continue;
                        }
                        _ => self.cache.size_not_answered(header.nodeid),
                    }
                }
                drop(served);
                place.replies(result.unwrap_or(0), || {
                    self.reply(reply, &header, result.map_err(|errno| errno.0))
                });
                adapter.fs().answered(header.unique & !UNIQUE_RESENT);
            }
        }
        Ok(Ended::Stopped)
    }

    /// See [`Dropper::resolve`]; `offset` and `bytes` are those of a write.
    fn resolve(
        &self,
        dropper: &Dropper,
        header: &InHeader,
        (offset, bytes): (u64, u64),
        message: &[u8],
    ) {
        if !self.cache.overtakes(header.nodeid, offset, bytes) {
            return;
        }
        let from = size_of::<InHeader>() + size_of::<WriteIn>();
        let done = Done {
            ino: header.nodeid,
            offset,
            data: &message[from..from + bytes as usize],
        };
        dropper.resolve(&self.peeks, &self.notifier(), &done);
    }

    /// What a request gets that is not served: after a shutdown all but what unmounting needs; and changes of the
    /// flags of inodes, if nobody has asked who may.
    fn refuses(&self, header: &InHeader, message: &[u8]) -> Option<i32> {
        if self.is_down.load(Ordering::Acquire) {
            let served = match header.opcode {
                opcode::STATFS | opcode::DESTROY => true,
                opcode::GETATTR => header.nodeid == ROOT_INO,
                opcode::IOCTL => ioctl_of(header, message) == Some(IOC_SHUTDOWN),
                kind => is_forget(kind),
            };
            return (!served).then_some(libc::EIO);
        }
        let changes = ioctl_of(header, message).is_some_and(inode_flags::changes);
        (changes && !self.info.lock().checks_inode_flags()).then_some(libc::ENOTTY)
    }

    /// From now on nothing is served, by this process or the next one.
    fn go_down<F: NodeFs + ?Sized>(&self, fs: &F, on_init: Option<&OnInit>) {
        tracing::error!("the file system was shut down: unmount it");
        let info = {
            let mut info = self.info.lock();
            *info = info.shut_down();
            *info
        };
        if let Some(tell) = on_init {
            tell(&info);
        }
        self.is_down.store(true, Ordering::Release);
        fs.drop_all_cached();
    }

    /// See [`Task::Writes`].
    fn write_late<F: NodeFs + ?Sized>(
        &self,
        adapter: &Adapter<F>,
        on_init: Option<&OnInit>,
        writes: &Queue,
        durable: &DurableReplies,
        buf: &mut LockedBuf,
    ) {
        let notifier = self.notifier();
        while let Some(write) = writes.next() {
            let payload = &mut buf[size_of::<OutHeader>()..];
            if let Answer::Reply(mut result) = write.serve(adapter, &self.cache, &notifier, payload)
            {
                if let Ok(bytes) = result {
                    let promise = write.to_be_durable(adapter);
                    let reply = (&write.header, &payload[..bytes]);
                    match durable.keep(adapter.fs(), promise, reply, false) {
                        Some(kept) => result = kept,
                        None => continue,
                    }
                }
                if write.is_shutdown() && result.is_ok() {
                    self.go_down(adapter.fs(), on_init);
                }
                self.reply(buf, &write.header, result.map_err(|errno| errno.0));
                adapter.fs().answered(write.header.unique & !UNIQUE_RESENT);
            }
        }
    }

    /// See [`Task::Answers`].
    fn answer_durable<F: NodeFs + ?Sized>(
        &self,
        adapter: &Adapter<F>,
        answers: &DurableQueue,
        buf: &mut LockedBuf,
    ) {
        while let Some(held) = answers.next() {
            let durable = adapter.fs().wait_durable(held.upto);
            let result = match self.is_down.load(Ordering::Acquire) {
                true => Err(libc::EIO),
                false => durable.map(|()| held.fill(buf)).map_err(|errno| errno.0),
            };
            self.reply(buf, &held.header, result);
            adapter.fs().answered(held.header.unique & !UNIQUE_RESENT);
        }
    }

    fn answer_init<F: NodeFs + ?Sized>(
        &self,
        adapter: &Adapter<F>,
        on_init: Option<&OnInit>,
        message: &[u8],
        out: &mut [u8],
    ) -> Answer {
        let answer = negotiate(&message[size_of::<InHeader>()..]).map(|negotiated| {
            let answer = match negotiated {
                Negotiated::AskAgain(answer) => answer,
                Negotiated::Agreed(answer, info) => {
                    tracing::debug!(?info, "mount negotiated");
                    *self.info.lock() = info;
                    adapter.agree(&info);
                    if let Some(tell) = on_init {
                        tell(&info);
                    }
                    answer
                }
            };
            let bytes = answer.as_bytes();
            out[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        });
        Answer::Reply(answer)
    }

    /// Sends a reply. One the kernel does not take becomes `EIO`: a request without
    /// any answer would hang its program.
    fn reply(&self, buf: &mut [u8], header: &InHeader, result: Result<usize, i32>) {
        let Err(error) = self.device.reply(buf, header.unique, result) else {
            return;
        };
        if error.raw_os_error() == Some(libc::ENODEV) {
            return;
        }
        tracing::error!(%error, opcode = header.opcode, ?result, "reply refused by the kernel");
        if let Err(error) = self.device.reply(buf, header.unique, Err(libc::EIO)) {
            tracing::error!(%error, opcode = header.opcode, "error reply refused by the kernel");
        }
    }
}
