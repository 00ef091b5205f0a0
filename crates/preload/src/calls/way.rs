//! Which way a call goes: served here, or by the kernel.

use crate::client::{self, Client};
use crate::clock;
use crate::description::{self, Description, Held, mode, pages};
use crate::mounts;
use crate::raw::{self, Args, nr};
use crate::report;
use crate::stubs::PASS;
use crate::table::{self, Entry};
use crate::thread::Thread;
use core::sync::atomic::Ordering;
use shale_libfs::Errno;

/// After a failure: how long the kernel is left in charge, ns.
const AFTER_FAILURE_NS: i64 = 1_000_000_000;

/// The way of one call.
pub enum Way {
    /// Served here. The lock is held if the call is about the offset.
    Here(&'static Client, Option<Held>),
    /// The kernel's, under the lock, so that the offset stays where it is known to be.
    Kernel(Held),
    /// The kernel's for good: as if we were not there.
    Pass,
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
    pub fn way(&self, offset: bool) -> Way {
        let d = self.description();
        if d.mode.load(Ordering::Acquire) == mode::FAST
            && !offset
            && let Some(client) = self.client(d)
        {
            return Way::Here(client, None);
        }
        let held = d.lock(self.thread.tid.load(Ordering::Relaxed));
        if table::get(self.fd) != Entry::File(self.index) {
            return Way::Pass;
        }
        if d.mode.load(Ordering::Relaxed) == mode::FAST
            && let Some(client) = self.client(d)
        {
            return Way::Here(client, offset.then_some(held));
        }
        self.slow_way(d, held, offset)
    }

    /// The way of a call at the description's offset that only the kernel understands.
    #[cold]
    pub fn way_of_unknown(&self) -> Way {
        let d = self.description();
        let held = d.lock(self.thread.tid.load(Ordering::Relaxed));
        if table::get(self.fd) != Entry::File(self.index) {
            return Way::Pass;
        }
        if d.mode.load(Ordering::Relaxed) == mode::FAST {
            d.to_kernel(self.fd, mode::KERNEL);
        }
        report::passed(self.number, "flags that are not known here");
        Way::Kernel(held)
    }

    /// The client, unless the file is mediated.
    #[inline]
    fn client(&self, d: &Description) -> Option<&'static Client> {
        let client = client::get(d.mount.load(Ordering::Relaxed))?;
        let mediated = client.link.mediated_until(d.ino.load(Ordering::Relaxed)) != 0;
        (!mediated).then_some(client)
    }

    #[cold]
    fn slow_way(&self, d: &'static Description, held: Held, offset: bool) -> Way {
        let mount = d.mount.load(Ordering::Relaxed);
        match d.mode.load(Ordering::Relaxed) {
            mode::HANDED_OVER => {
                drop(held);
                table::remove(self.fd);
                report::passed(self.number, "shared with another program");
                return Way::Pass;
            }
            mode::FAST => {
                let client = client::is_attached(mount)
                    .then(|| client::get(mount))
                    .flatten();
                let mediated = client.map_or(0, |c| c.link.mediated_until(self.ino()));
                let reason = if mediated != 0 {
                    "mediated"
                } else {
                    "no session"
                };
                report::passed(self.number, reason);
                if mediated != 0 {
                    d.to_mediated(self.fd, mediated);
                } else {
                    let until = clock::now_ns() + AFTER_FAILURE_NS;
                    d.not_before_ns.store(until, Ordering::Relaxed);
                    d.to_kernel(self.fd, mode::KERNEL);
                }
                return Way::Kernel(held);
            }
            _ => {}
        }
        let early = client::is_early(mount);
        let waits = clock::now_ns() < d.not_before_ns.load(Ordering::Relaxed);
        if !early
            && !waits
            && let Some(client) = self.client(d)
            && d.to_fast(self.fd)
        {
            return Way::Here(client, offset.then_some(held));
        }
        report::passed(
            self.number,
            if early {
                "few calls so far"
            } else {
                "kernel for a while"
            },
        );
        Way::Kernel(held)
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
            && (0..self.args[2] as i64).contains(&result);
        match short {
            true => result + self.rest(result as u64),
            false => result,
        }
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
            let size = mounts::settle_size(self.fd);
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
    pub fn failed(&self, client: &'static Client, held: Option<Held>, e: Errno) -> i64 {
        if e == shale_libfs::ELSEWHERE {
            return self.elsewhere(client, held);
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

    /// The result of a call for a file that everybody uses by way of the mount now.
    #[cold]
    fn elsewhere(&self, client: &'static Client, held: Option<Held>) -> i64 {
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
    fn once_by_kernel(&self, held: Option<Held>) -> i64 {
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
    pub fn by_kernel(&self, way: Way) -> i64 {
        match way {
            Way::Kernel(_held) => {
                self.place();
                self.in_kernel()
            }
            Way::Pass | Way::Here(..) => PASS,
        }
    }
}
