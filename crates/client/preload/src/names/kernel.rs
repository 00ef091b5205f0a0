//! Calls for which the kernel needs the file of a placeholder, and calls that end or change the serving of names.

use crate::calls::attributes;
use crate::names::open::{self, placeholder_of};
use crate::names::{paths, place, setting, state, user, xattrs};
use core::sync::atomic::Ordering;
use shale_fd::placeholder;
use shale_interpose::inside::with_signals_blocked;
use shale_interpose::probe;
use shale_interpose::raw::{Args, nr};
use shale_interpose::thread;
use shale_libfs::prepare_thread;

/// Calls with descriptors among their arguments that are not served: which arguments these are.
const WITH_DESCRIPTORS: [(u32, &[usize]); 54] = [
    (nr::MMAP, &[4]),
    (nr::SENDFILE, &[0, 1]),
    (nr::SPLICE, &[0, 2]),
    (nr::COPY_FILE_RANGE, &[0, 2]),
    (nr::FLOCK, &[0]),
    (nr::FCHMOD, &[0]),
    (nr::FCHOWN, &[0]),
    (nr::FSTATFS, &[0]),
    (nr::GETDENTS, &[0]),
    (nr::GETDENTS64, &[0]),
    (nr::FCHDIR, &[0]),
    (nr::READAHEAD, &[0]),
    (nr::FSETXATTR, &[0]),
    (nr::FGETXATTR, &[0]),
    (nr::FLISTXATTR, &[0]),
    (nr::FREMOVEXATTR, &[0]),
    (nr::FADVISE, &[0]),
    (nr::EPOLL_CTL, &[2]),
    (nr::SYNCFS, &[0]),
    (nr::TEE, &[0, 1]),
    (nr::VMSPLICE, &[0]),
    (nr::NAME_TO_HANDLE_AT, &[0]),
    (nr::OPEN_BY_HANDLE_AT, &[0]),
    (nr::FINIT_MODULE, &[0]),
    (nr::EXECVEAT, &[0]),
    (nr::CACHESTAT, &[0]),
    (nr::FANOTIFY_MARK, &[0, 3]),
    (nr::QUOTACTL_FD, &[0]),
    (nr::OPENAT, &[0]),
    (nr::OPENAT2, &[0]),
    (nr::MKDIRAT, &[0]),
    (nr::MKNODAT, &[0]),
    (nr::FCHOWNAT, &[0]),
    (nr::FUTIMESAT, &[0]),
    (nr::NEWFSTATAT, &[0]),
    (nr::STATX, &[0]),
    (nr::UNLINKAT, &[0]),
    (nr::RENAMEAT, &[0, 2]),
    (nr::RENAMEAT2, &[0, 2]),
    (nr::LINKAT, &[0, 2]),
    (nr::SYMLINKAT, &[1]),
    (nr::READLINKAT, &[0]),
    (nr::FCHMODAT, &[0]),
    (nr::FCHMODAT2, &[0]),
    (nr::FACCESSAT, &[0]),
    (nr::FACCESSAT2, &[0]),
    (nr::UTIMENSAT, &[0]),
    (nr::FSPICK, &[0]),
    (nr::SETXATTRAT, &[0]),
    (nr::GETXATTRAT, &[0]),
    (nr::LISTXATTRAT, &[0]),
    (nr::REMOVEXATTRAT, &[0]),
    (nr::FILE_GETATTR, &[0]),
    (nr::FILE_SETATTR, &[0]),
];

/// Calls with lists of descriptors, or with descriptors that are named elsewhere: they are looked through, or all placeholders are materialised.
const WITH_LISTS: [u32; 12] = [
    nr::POLL,
    nr::PPOLL,
    nr::SELECT,
    nr::PSELECT6,
    nr::IO_SUBMIT,
    nr::IO_URING_SETUP,
    nr::IO_URING_ENTER,
    nr::IO_URING_REGISTER,
    nr::PIDFD_GETFD,
    nr::KCMP,
    nr::FSCONFIG,
    nr::LANDLOCK_ADD_RULE,
];

/// Calls after which names are not what they were to this process: users, rights, roots, and what is mounted.
const ENDING: [u32; 24] = [
    nr::SETUID,
    nr::SETGID,
    nr::SETREUID,
    nr::SETREGID,
    nr::SETGROUPS,
    nr::SETRESUID,
    nr::SETRESGID,
    nr::SETFSUID,
    nr::SETFSGID,
    nr::CAPSET,
    nr::CHROOT,
    nr::PIVOT_ROOT,
    nr::MOUNT,
    nr::UMOUNT2,
    nr::MOVE_MOUNT,
    nr::FSMOUNT,
    nr::OPEN_TREE,
    nr::OPEN_TREE_ATTR,
    nr::MOUNT_SETATTR,
    nr::SETNS,
    nr::UNSHARE,
    nr::SECCOMP,
    nr::LANDLOCK_RESTRICT_SELF,
    nr::IO_URING_SETUP,
];

/// Calls that say where the process is, and what it takes away from modes.
const CHANGING: [u32; 3] = [nr::CHDIR, nr::FCHDIR, nr::UMASK];

/// Calls about paths that are not served, but can name a descriptor.
pub const BY_PATH: [u32; 2] = [nr::EXECVE, nr::MKNOD];

/// The same of sockets and watches, whose path is another argument than the first.
pub const BY_OTHER_PATH: [u32; 4] = [
    nr::BIND,
    nr::CONNECT,
    nr::INOTIFY_ADD_WATCH,
    nr::FANOTIFY_MARK,
];

/// Numbers of all calls that are looked at while names are served, besides those that always are.
pub fn calls() -> impl Iterator<Item = u32> {
    let listed = WITH_DESCRIPTORS.iter().map(|&(number, _)| number);
    listed
        .chain(WITH_LISTS)
        .chain(ENDING)
        .chain(CHANGING)
        .chain(BY_PATH)
        .chain(BY_OTHER_PATH)
        .chain(paths::CALLS)
        .chain(xattrs::CALLS)
        .chain(super::descriptor::CALLS)
        .chain([nr::MPROTECT, nr::IOCTL])
}

/// Before the kernel makes a call: opens what it needs. The thread is inside and busy.
pub fn prepare(number: u32, args: &Args) {
    if ENDING.contains(&number) {
        placeholder::materialise_all("user, rights or mounts change");
        state::end("user, rights or mounts change");
        return;
    }
    if makes_code(number, args) {
        placeholder::materialise_all("code is made");
        state::end("code is made while the program runs");
        return;
    }
    if !placeholder::any() {
        return;
    }
    if may_close_files(number, args) {
        placeholder::materialise_all("may be closed to its owner");
        return;
    }
    if asks_about_itself(number, args) && !is_path_only(args[0] as i32) {
        return;
    }
    for &at in descriptors_of(number) {
        needed(args[at] as i32);
    }
    match number {
        // SAFETY: the program's own call.
        nr::POLL | nr::PPOLL => unsafe { each_polled(args) },
        // SAFETY: as above.
        nr::SELECT | nr::PSELECT6 => unsafe { each_selected(args) },
        number if WITH_LISTS.contains(&number) => {
            placeholder::materialise_all("descriptors in a list");
        }
        nr::FCNTL if fcntl_needs_file(args[1] as i32) => needed(args[0] as i32),
        nr::IOCTL => {
            if args[1] as u32 != libc::FIONREAD as u32 {
                needed(args[0] as i32);
            }
            if may_name_descriptors(args[1] as u32) {
                placeholder::materialise_all("descriptors in a request");
            }
        }
        _ => {
            let paths = paths::given_to(number, args);
            if paths
                .iter()
                .flatten()
                .flatten()
                .any(|path| place::is_of_descriptor(path))
            {
                placeholder::materialise_all("descriptors as paths");
            }
        }
    }
}

/// Whether a call of a user other than root may give a file a mode by which its owner cannot open it any more: it may be open by a placeholder.
fn may_close_files(number: u32, args: &Args) -> bool {
    let closes = |mode: u64| !open::keeps_open(libc::O_RDWR, mode as u32);
    let may = match number {
        nr::CHMOD | nr::FCHMOD => closes(args[1]),
        nr::FCHMODAT | nr::FCHMODAT2 => closes(args[2]),
        nr::SETXATTR | nr::LSETXATTR | nr::FSETXATTR => xattrs::sets_list(args),
        _ => false,
    };
    may && !user::is_root()
}

/// Which arguments of a call are descriptors.
fn descriptors_of(number: u32) -> &'static [usize] {
    let with = WITH_DESCRIPTORS.iter().find(|(n, _)| *n == number);
    with.map_or(&[], |(_, at)| at)
}

/// Whether a descriptor that a call gives is a placeholder.
pub fn gives_placeholder(number: u32, args: &Args) -> bool {
    let is_one = |&at: &usize| placeholder_of(args[at] as i32).is_some();
    placeholder::any() && descriptors_of(number).iter().any(is_one)
}

/// Whether a call asks for attributes of an open file, by a path that is empty: that is served ([`attributes::stat`]).
pub fn asks_about_itself(number: u32, args: &Args) -> bool {
    let flags = match number {
        nr::NEWFSTATAT => args[3],
        nr::STATX => args[2],
        _ => return false,
    };
    // SAFETY: the program's own call.
    flags as i32 & libc::AT_EMPTY_PATH != 0 && unsafe { attributes::is_empty_path(args[1]) }
}

fn is_path_only(fd: i32) -> bool {
    let index = placeholder_of(fd);
    index.is_some_and(|index| shale_fd::description::get(index).is_path_only())
}

/// Whether a command of `fcntl` is about more than the descriptor.
fn fcntl_needs_file(command: i32) -> bool {
    let of_descriptor = [
        libc::F_DUPFD,
        libc::F_DUPFD_CLOEXEC,
        libc::F_GETFD,
        libc::F_SETFD,
    ];
    !of_descriptor.contains(&command)
}

/// Whether a request of `ioctl` may be about other descriptors than its own, as that of a loop device about its file is. Those of terminals,
/// sockets, and of inodes about themselves are not (ioctl(2), "Documentation/userspace-api/ioctl/ioctl-number.rst").
fn may_name_descriptors(request: u32) -> bool {
    const SOCKET: u8 = 0x89;
    !matches!((request >> 8) as u8, b'T' | b'f' | b'X' | SOCKET)
}

/// After the kernel has made a call that changes where the process is, or what it takes away from modes.
pub fn made(number: u32, args: &Args, result: i64) {
    match number {
        nr::CHDIR | nr::FCHDIR => place::forget_working(),
        nr::UMASK if result >= 0 => user::set_umask(args[0] as u32),
        _ => {}
    }
}

/// Whether a call changes what names are to this process, or ends their serving.
pub fn ends_or_changes(number: u32) -> bool {
    ENDING.contains(&number) || CHANGING.contains(&number)
}

/// Whether what changes is known only when the kernel has made the call.
pub fn is_changing(number: u32) -> bool {
    CHANGING.contains(&number)
}

/// Whether memory is to be executed that no file has, or that can be written.
pub fn makes_code(number: u32, args: &Args) -> bool {
    matches!(number, nr::MMAP | nr::MPROTECT) && args[2] as i32 & libc::PROT_EXEC != 0
}

fn needed(fd: i32) {
    if let Some(index) = placeholder_of(fd) {
        let d = shale_fd::description::get(index);
        let held = d.lock(thread::tid());
        placeholder::materialise(index, "a call of the kernel's");
        drop(held);
    }
}

/// # Safety
/// The registers are those of a `poll` or `ppoll`.
unsafe fn each_polled(args: &Args) {
    let (at, count) = (args[0], args[1].min(1 << 16) as usize);
    let bytes = (count * size_of::<libc::pollfd>()) as u64;
    if probe::readable(at, bytes) < bytes {
        return;
    }
    for i in 0..count {
        // SAFETY: so many entries are there, as the program says.
        needed(unsafe { (at as *const libc::pollfd).add(i).read_unaligned() }.fd);
    }
}

/// # Safety
/// The registers are those of a `select` or `pselect6`.
unsafe fn each_selected(args: &Args) {
    let count = (args[0] as i32).clamp(0, libc::FD_SETSIZE as i32);
    for &set in &args[1..4] {
        let bytes = (count as u64).div_ceil(64) * 8;
        let is_there = set != 0 && probe::readable(set, bytes) == bytes;
        for fd in (0..count).filter(|_| is_there) {
            // SAFETY: a set of so many descriptors is there, as the program says.
            let word = unsafe { (set as *const u64).add(fd as usize / 64).read_unaligned() };
            if word >> (fd % 64) & 1 != 0 {
                needed(fd);
            }
        }
    }
}

/// Before a library is loaded: its code is not known yet, and runs before the call returns.
pub extern "C" fn before_loading() {
    let thread = shale_interpose::thread::this();
    let inside = thread.inside.load(Ordering::Relaxed) != 0;
    if inside || !setting::are_wanted() {
        return;
    }
    state::look_at_code_again();
    if placeholder::any() {
        if !thread.is_prepared() {
            thread.prepare(prepare_thread);
        }
        with_signals_blocked(thread, || {
            placeholder::materialise_all("a library is loaded");
            0
        });
    }
}
