//! Which way a call goes: served here, or by the kernel.

use crate::calls::direct;
use crate::client::{self, Client};
use crate::pays;
use crate::short::STAYS;
use core::sync::atomic::Ordering;
use shale_fd::description::{self, Description, OffsetGuard, mode, pages};
use shale_fd::mapped;
use shale_fd::mounts;
use shale_fd::placeholder;
use shale_fd::report;
use shale_fd::table::{self, Entry};
use shale_interpose::clock;
use shale_interpose::outcome::PASS;
use shale_interpose::raw::{self, Args, nr};
use shale_interpose::thread::Thread;
use shale_libfs::Errno;

/// After a failure: how long the kernel is left in charge, ns.
const AFTER_FAILURE_NS: i64 = 1_000_000_000;

/// The way of one call.
pub enum Route {
    /// Served here. The lock is held if the call is about the offset.
    Here(&'static Client, Option<OffsetGuard>),
    /// The kernel's, under the lock, so that the offset stays where it is known to be.
    Kernel(OffsetGuard),
    /// The kernel's, beside other calls on the description: the file is with the mount, and the call is
    /// not about the offset. Leases put it in order with those that are served meanwhile.
    Beside,
    /// The kernel's for good: as if we were not there.
    Pass,
}

/// Whether a description is not to become fast yet.
fn is_early(d: &Description) -> bool {
    let from = d.not_before_ns.load(Ordering::Relaxed);
    from != 0 && clock::now_ns() < from
}

/// After a call: the file that the thread has found not to pay goes back to the mount, with all descriptors
/// of this process. No lock is held.
#[cold]
pub fn leave(thread: &Thread) {
    let ino = thread.leaves.swap(0, Ordering::Relaxed);
    let tid = thread.tid.load(Ordering::Relaxed);
    let mut given_back = None;
    table::for_each_file(|fd, index| {
        let d = description::get(index);
        let mount = d.mount.load(Ordering::Relaxed);
        let client =
            client::current(mount).filter(|c| c.link.leases.place(ino) == pays::Place::Away);
        if d.ino.load(Ordering::Relaxed) != ino || client.is_none() {
            return;
        }
        let held = d.lock(tid);
        if table::get(fd) == Entry::File(index) {
            d.to_mount(fd);
            given_back = client.map(|client| (mount, client));
        }
        drop(held);
    });
    // From now on the daemon takes this process for one that uses the file on the mount. If it does not
    // answer, the session is lost, and with it the lease.
    if let Some((mount, client)) = given_back {
        let _ = client.session.give_back(ino);
        if !client.link.leases.any_here() && !direct::any() {
            client::part(mount, client);
        }
    }
}

/// One call on one descriptor.
pub struct Call<'a> {
    /// The thread that makes it.
    pub thread: &'a Thread,
    /// Its descriptor.
    pub fd: i32,
    /// Number of the description.
    pub index: u32,
    description: &'static Description,
    /// The call.
    pub number: u32,
    /// Its registers.
    pub args: &'a Args,
}

impl<'a> Call<'a> {
    /// A call on descriptor `fd`, which has description `index`.
    #[inline(always)]
    pub fn new(thread: &'a Thread, fd: i32, index: u32, number: u32, args: &'a Args) -> Self {
        Self {
            thread,
            fd,
            index,
            description: description::get(index),
            number,
            args,
        }
    }

    /// The description.
    #[inline]
    pub fn description(&self) -> &'static Description {
        self.description
    }

    /// Inode number.
    #[inline]
    pub fn ino(&self) -> u64 {
        self.description().ino.load(Ordering::Relaxed)
    }

    /// Flags of `open`.
    #[inline]
    pub fn flags(&self) -> i32 {
        self.description().flags.load(Ordering::Relaxed) as i32
    }

    /// Open for reading.
    #[inline]
    pub fn readable(&self) -> bool {
        self.flags() & libc::O_ACCMODE != libc::O_WRONLY
    }

    /// Open for writing.
    #[inline]
    pub fn writable(&self) -> bool {
        self.flags() & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Decides. `offset`: the call uses or moves the description's offset.
    #[inline(always)]
    pub fn route(&self, offset: bool) -> Route {
        let d = self.description();
        if d.mode.load(Ordering::Acquire) == mode::FAST
            && !offset
            && let Some(client) = self.client(d)
        {
            return Route::Here(client, None);
        }
        if !offset && self.stays_with_mount(d) {
            return Route::Beside;
        }
        let held = d.lock(self.thread.tid.load(Ordering::Relaxed));
        if table::get(self.fd) != Entry::File(self.index) {
            return Route::Pass;
        }
        if d.mode.load(Ordering::Relaxed) == mode::FAST
            && let Some(client) = self.client(d)
        {
            return Route::Here(client, offset.then_some(held));
        }
        self.slow_route(d, held, offset)
    }

    /// Whether a call that is not about the offset is the kernel's, and nothing has to be known of the description
    /// for it. An append has to be in one order with those that are served.
    #[cold]
    fn stays_with_mount(&self, d: &Description) -> bool {
        pays::by_time()
            && d.mode.load(Ordering::Relaxed) == mode::KERNEL
            && d.past_pages.load(Ordering::Relaxed) == pages::OWN
            && self.flags() & libc::O_APPEND == 0
            && (is_early(d) || !pays::pays(d))
    }

    /// The way of a call at the description's offset that only the kernel understands.
    #[cold]
    pub fn way_of_unknown(&self) -> Route {
        let d = self.description();
        let held = d.lock(self.thread.tid.load(Ordering::Relaxed));
        if table::get(self.fd) != Entry::File(self.index) {
            return Route::Pass;
        }
        if d.mode.load(Ordering::Relaxed) == mode::FAST {
            d.to_kernel(self.fd, mode::KERNEL);
        }
        report::passed(self.number, "flags that are not known here");
        Route::Kernel(held)
    }

    /// The client, unless the file is mediated.
    #[inline]
    fn client(&self, d: &Description) -> Option<&'static Client> {
        if placeholder::any_lost() && d.is_placeholder() {
            return None;
        }
        let client = client::get(d.mount.load(Ordering::Relaxed))?;
        let mediated = client.link.mediated_until(d.ino.load(Ordering::Relaxed)) != 0;
        (!mediated).then_some(client)
    }

    #[cold]
    fn slow_route(&self, d: &'static Description, held: OffsetGuard, offset: bool) -> Route {
        let mount = d.mount.load(Ordering::Relaxed);
        match d.mode.load(Ordering::Relaxed) {
            mode::HANDED_OVER => {
                drop(held);
                table::remove(self.fd);
                report::passed(self.number, "shared with another program");
                return Route::Pass;
            }
            mode::PATH_ONLY => {
                placeholder::materialise(self.index, "opened with O_PATH");
                return Route::Pass;
            }
            mode::FAST => {
                let client = client::is_attached(mount)
                    .then(|| client::get(mount))
                    .flatten();
                let mediated = client.map_or(0, |c| c.link.mediated_until(self.ino()));
                let stays = client.is_none() && !pays::may_attach();
                let reason = match (mediated, stays) {
                    (0, true) => STAYS,
                    (0, false) => "no session",
                    _ => "mediated",
                };
                report::passed(self.number, reason);
                if mediated != 0 {
                    d.to_mediated(self.fd, mediated);
                } else if stays {
                    d.to_kernel(self.fd, mode::KERNEL);
                } else {
                    let until = clock::now_ns() + AFTER_FAILURE_NS;
                    d.not_before_ns.store(until, Ordering::Relaxed);
                    d.to_kernel(self.fd, mode::KERNEL);
                }
                return Route::Kernel(held);
            }
            _ => {}
        }
        let waits = is_early(d);
        let pays = pays::pays(d);
        if pays
            && !waits
            && let Some(client) = self.client(d)
            && self.may_still_write()
            && !self.is_mapped(client)
            && d.to_fast(self.fd)
        {
            return Route::Here(client, offset.then_some(held));
        }
        if !waits && !pays {
            // It was mediated, and has to pay again.
            d.use_pages(self.fd);
        }
        report::passed(
            self.number,
            if waits || pays {
                "kernel for a while"
            } else {
                STAYS
            },
        );
        Route::Kernel(held)
    }

    /// Whether this process has mapped the file, so that it is the kernel's; for which it need not be a client.
    fn is_mapped(&self, client: &'static Client) -> bool {
        let d = self.description();
        let mount = d.mount.load(Ordering::Relaxed);
        let mapped = mapped::is_mapped(mount, self.ino());
        if mapped {
            d.not_before_ns.store(i64::MAX, Ordering::Relaxed);
            if pays::by_time() && !client.link.leases.any_here() && !direct::any() {
                client::part(mount, client);
            }
        }
        mapped
    }

    /// Whether the daemon will believe this user's records about the file. Who may not write it any more has it open
    /// legally and could have been able to when he opened it, which the mount knows and the daemon does not.
    fn may_still_write(&self) -> bool {
        const FACCESSAT2: u32 = 439;
        if !self.writable() || client::caller().uid == 0 {
            return true;
        }
        let (path, flags) = (c"".as_ptr() as u64, libc::AT_EMPTY_PATH | libc::AT_EACCESS);
        let args = [self.fd as u64, path, libc::W_OK as u64, flags as u64, 0, 0];
        // SAFETY: an empty path, which ends with a zero byte.
        if unsafe { raw::syscall(FACCESSAT2, &args) } == 0 {
            return true;
        }
        let status = mounts::statx(self.fd, libc::AT_STATX_DONT_SYNC, libc::STATX_UID);
        let owns = status.is_some_and(|s| s.stx_uid == client::caller().uid);
        if !owns {
            let never = i64::MAX;
            self.description()
                .not_before_ns
                .store(never, Ordering::Relaxed);
        }
        owns
    }

    /// Lets the kernel do the call past its pages, or through them, where it goes past them for
    /// our sake. The lock is held.
    fn place(&self) {
        let d = self.description();
        if d.past_pages.load(Ordering::Relaxed) == pages::OWN {
            return;
        }
        let at = match self.number {
            nr::WRITE | nr::WRITEV => raw::lseek(self.fd, 0, libc::SEEK_CUR),
            nr::PWRITE | nr::PWRITEV | nr::PWRITEV2 => self.args[3] as i64,
            _ => return d.place_write(self.fd, false),
        };
        // Of two that write behind one end, the second writes within the file, where others
        // must not see it before it is done.
        let alone = || {
            let client = client::get(d.mount.load(Ordering::Relaxed));
            client.is_some_and(|c| c.link.writes_alone(self.ino()))
        };
        let behind =
            || alone() && u64::try_from(at).is_ok_and(|at| at >= mounts::kept_size(self.fd));
        d.place_write(self.fd, self.flags() & libc::O_APPEND != 0 || behind());
    }

    /// Lets the kernel do the call, now.
    pub fn in_kernel(&self) -> i64 {
        // SAFETY: the program's own call, made for it.
        let result = unsafe { raw::syscall(self.number, self.args) };
        let short = matches!(self.number, nr::READ | nr::PREAD)
            && self.description().was_served()
            && (0..self.args[2] as i64).contains(&result);
        match short {
            true => result + self.rest(result as u64),
            false => result,
        }
    }

    /// Has the kernel open a file that was opened here.
    pub fn has_kernel_file(&self) {
        let d = self.description();
        if d.is_placeholder() {
            let held = d.lock(self.thread.tid.load(Ordering::Relaxed));
            placeholder::materialise(self.index, "left to the kernel");
            drop(held);
        }
    }

    /// Whether more has to be done about a call on a file that is with the mount than to let it pass.
    fn needs_care(&self) -> bool {
        let d = self.description();
        d.was_served() || pays::is_measured(self.number, d)
    }

    /// Lets the kernel do the call on a file that is with the mount, and counts what it takes.
    fn on_mount(&self) -> i64 {
        let d = self.description();
        client::tidy();
        if !pays::is_measured(self.number, d) {
            return self.in_kernel();
        }
        let begin = clock::exact_ns();
        let result = self.in_kernel();
        pays::spent(d, clock::exact_ns() - begin);
        result
    }

    /// What a read that ended early gets when it goes on: it came to the end of the file, or
    /// to what the kernel took for it, which may have been overtaken again when it reads on.
    #[cold]
    fn rest(&self, done: u64) -> i64 {
        let (mut rest, mut more) = (*self.args, 0);
        let mut got = done;
        for _ in 0..mounts::SIZE_TRIES {
            rest[1] += got;
            rest[2] -= got;
            rest[3] = rest[3].wrapping_add(got);
            let size = mounts::refresh_size(self.fd);
            let at = match self.number {
                nr::READ => raw::lseek(self.fd, 0, libc::SEEK_CUR),
                _ => rest[3] as i64,
            };
            if rest[2] == 0 || u64::try_from(at).is_ok_and(|at| at >= size) {
                break;
            }
            // SAFETY: the rest of the program's own call, in what is left of its buffer.
            let result = unsafe { raw::syscall(self.number, &rest) };
            if result < 0 {
                break;
            }
            got = result as u64;
            more += result;
        }
        more
    }

    /// The result of a served call that failed with `e`: if the session is lost, the
    /// kernel's. The mount waits until the daemon is there again.
    #[cold]
    pub fn failed(&self, client: &'static Client, held: Option<OffsetGuard>, e: Errno) -> i64 {
        if e == shale_libfs::MEDIATED {
            return self.through_mount(client, held);
        }
        if e == shale_libfs::BY_KERNEL {
            return self.once_by_kernel(held);
        }
        let d = self.description();
        let mount = d.mount.load(Ordering::Relaxed);
        if (e != Errno::IO && !client.link.is_broken()) || !client::set_aside_if_lost(mount, client)
        {
            return raw::fail(e.raw_os_error());
        }
        report::passed(self.number, "session lost");
        let held = held.unwrap_or_else(|| d.lock(self.thread.tid.load(Ordering::Relaxed)));
        d.not_before_ns
            .store(clock::now_ns() + AFTER_FAILURE_NS, Ordering::Relaxed);
        if d.mode.load(Ordering::Relaxed) == mode::FAST {
            d.to_kernel(self.fd, mode::KERNEL);
        }
        let result = self.in_kernel();
        drop(held);
        result
    }

    /// The result of a call for a file that everybody uses through the mount now.
    #[cold]
    fn through_mount(&self, client: &'static Client, held: Option<OffsetGuard>) -> i64 {
        report::passed(self.number, "mediated");
        let d = self.description();
        let held = held.unwrap_or_else(|| d.lock(self.thread.tid.load(Ordering::Relaxed)));
        if table::get(self.fd) != Entry::File(self.index) {
            drop(held);
            return self.in_kernel();
        }
        if d.mode.load(Ordering::Relaxed) == mode::FAST {
            d.to_mediated(self.fd, client.link.mediated_until(self.ino()));
        }
        self.place();
        let result = self.in_kernel();
        drop(held);
        result
    }

    /// The result of a call that the kernel has to do; the next one is served here again.
    #[cold]
    fn once_by_kernel(&self, held: Option<OffsetGuard>) -> i64 {
        report::passed(self.number, "left to the kernel");
        let d = self.description();
        let held = held.unwrap_or_else(|| d.lock(self.thread.tid.load(Ordering::Relaxed)));
        if table::get(self.fd) == Entry::File(self.index)
            && d.mode.load(Ordering::Relaxed) == mode::FAST
        {
            d.to_kernel(self.fd, mode::KERNEL);
        }
        self.place();
        let result = self.in_kernel();
        drop(held);
        result
    }

    /// Finishes a call that went the way of the kernel.
    pub fn by_kernel(&self, route: Route) -> i64 {
        match route {
            Route::Kernel(_held) => {
                self.place();
                self.on_mount()
            }
            Route::Beside if !self.needs_care() => {
                report::passed(self.number, STAYS);
                PASS
            }
            Route::Beside => {
                report::passed(self.number, STAYS);
                self.on_mount()
            }
            Route::Pass | Route::Here(..) => PASS,
        }
    }
}
