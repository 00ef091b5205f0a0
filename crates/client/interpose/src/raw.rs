//! System calls by instruction, not through libc, whose own call sites lead back here.
//!
//! Results are the kernel's: negative error numbers, else values.

use core::arch::asm;

/// Numbers of the calls this library knows.
pub mod nr {
    #![allow(missing_docs)]
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const OPEN: u32 = 2;
    pub const CLOSE: u32 = 3;
    pub const STAT: u32 = 4;
    pub const FSTAT: u32 = 5;
    pub const LSTAT: u32 = 6;
    pub const POLL: u32 = 7;
    pub const LSEEK: u32 = 8;
    pub const MMAP: u32 = 9;
    pub const MPROTECT: u32 = 10;
    pub const MUNMAP: u32 = 11;
    pub const RT_SIGACTION: u32 = 13;
    pub const IOCTL: u32 = 16;
    pub const PREAD: u32 = 17;
    pub const PWRITE: u32 = 18;
    pub const READV: u32 = 19;
    pub const WRITEV: u32 = 20;
    pub const ACCESS: u32 = 21;
    pub const SELECT: u32 = 23;
    pub const SCHED_YIELD: u32 = 24;
    pub const MREMAP: u32 = 25;
    pub const DUP: u32 = 32;
    pub const DUP2: u32 = 33;
    pub const GETPID: u32 = 39;
    pub const SENDFILE: u32 = 40;
    pub const SENDMSG: u32 = 46;
    pub const CLONE: u32 = 56;
    pub const FORK: u32 = 57;
    pub const VFORK: u32 = 58;
    pub const EXECVE: u32 = 59;
    pub const FCNTL: u32 = 72;
    pub const FLOCK: u32 = 73;
    pub const FSYNC: u32 = 74;
    pub const FDATASYNC: u32 = 75;
    pub const TRUNCATE: u32 = 76;
    pub const FTRUNCATE: u32 = 77;
    pub const GETDENTS: u32 = 78;
    pub const GETCWD: u32 = 79;
    pub const CHDIR: u32 = 80;
    pub const FCHDIR: u32 = 81;
    pub const RENAME: u32 = 82;
    pub const MKDIR: u32 = 83;
    pub const RMDIR: u32 = 84;
    pub const CREAT: u32 = 85;
    pub const LINK: u32 = 86;
    pub const UNLINK: u32 = 87;
    pub const SYMLINK: u32 = 88;
    pub const READLINK: u32 = 89;
    pub const CHMOD: u32 = 90;
    pub const FCHMOD: u32 = 91;
    pub const CHOWN: u32 = 92;
    pub const FCHOWN: u32 = 93;
    pub const LCHOWN: u32 = 94;
    pub const UMASK: u32 = 95;
    pub const SETUID: u32 = 105;
    pub const SETGID: u32 = 106;
    pub const SETREUID: u32 = 113;
    pub const SETREGID: u32 = 114;
    pub const SETGROUPS: u32 = 116;
    pub const SETRESUID: u32 = 117;
    pub const SETRESGID: u32 = 119;
    pub const SETFSUID: u32 = 122;
    pub const SETFSGID: u32 = 123;
    pub const CAPSET: u32 = 126;
    pub const MKNOD: u32 = 133;
    pub const STATFS: u32 = 137;
    pub const FSTATFS: u32 = 138;
    pub const PIVOT_ROOT: u32 = 155;
    pub const PRCTL: u32 = 157;
    pub const SETRLIMIT: u32 = 160;
    pub const CHROOT: u32 = 161;
    pub const SYNC: u32 = 162;
    pub const MOUNT: u32 = 165;
    pub const UMOUNT2: u32 = 166;
    pub const GETTID: u32 = 186;
    pub const READAHEAD: u32 = 187;
    pub const SETXATTR: u32 = 188;
    pub const LSETXATTR: u32 = 189;
    pub const FSETXATTR: u32 = 190;
    pub const GETXATTR: u32 = 191;
    pub const LGETXATTR: u32 = 192;
    pub const FGETXATTR: u32 = 193;
    pub const LISTXATTR: u32 = 194;
    pub const LLISTXATTR: u32 = 195;
    pub const KCMP: u32 = 312;
    pub const FLISTXATTR: u32 = 196;
    pub const REMOVEXATTR: u32 = 197;
    pub const LREMOVEXATTR: u32 = 198;
    pub const FREMOVEXATTR: u32 = 199;
    pub const FUTEX: u32 = 202;
    pub const IO_SUBMIT: u32 = 209;
    pub const GETDENTS64: u32 = 217;
    pub const FADVISE: u32 = 221;
    pub const EXIT_GROUP: u32 = 231;
    pub const EPOLL_CTL: u32 = 233;
    pub const OPENAT: u32 = 257;
    pub const MKDIRAT: u32 = 258;
    pub const MKNODAT: u32 = 259;
    pub const FCHOWNAT: u32 = 260;
    pub const FUTIMESAT: u32 = 261;
    pub const NEWFSTATAT: u32 = 262;
    pub const UNLINKAT: u32 = 263;
    pub const RENAMEAT: u32 = 264;
    pub const LINKAT: u32 = 265;
    pub const SYMLINKAT: u32 = 266;
    pub const READLINKAT: u32 = 267;
    pub const FCHMODAT: u32 = 268;
    pub const FACCESSAT: u32 = 269;
    pub const PSELECT6: u32 = 270;
    pub const PPOLL: u32 = 271;
    pub const UNSHARE: u32 = 272;
    pub const SPLICE: u32 = 275;
    pub const TEE: u32 = 276;
    pub const SYNC_FILE_RANGE: u32 = 277;
    pub const VMSPLICE: u32 = 278;
    pub const UTIMENSAT: u32 = 280;
    pub const FALLOCATE: u32 = 285;
    pub const DUP3: u32 = 292;
    pub const PREADV: u32 = 295;
    pub const PWRITEV: u32 = 296;
    pub const RT_TGSIGQUEUEINFO: u32 = 297;
    pub const FANOTIFY_MARK: u32 = 301;
    pub const PRLIMIT64: u32 = 302;
    pub const NAME_TO_HANDLE_AT: u32 = 303;
    pub const OPEN_BY_HANDLE_AT: u32 = 304;
    pub const SYNCFS: u32 = 306;
    pub const SENDMMSG: u32 = 307;
    pub const SETNS: u32 = 308;
    pub const FINIT_MODULE: u32 = 313;
    pub const RENAMEAT2: u32 = 316;
    pub const SECCOMP: u32 = 317;
    pub const EXECVEAT: u32 = 322;
    pub const MEMBARRIER: u32 = 324;
    pub const COPY_FILE_RANGE: u32 = 326;
    pub const PREADV2: u32 = 327;
    pub const PWRITEV2: u32 = 328;
    pub const STATX: u32 = 332;
    pub const IO_URING_SETUP: u32 = 425;
    pub const IO_URING_ENTER: u32 = 426;
    pub const IO_URING_REGISTER: u32 = 427;
    pub const OPEN_TREE: u32 = 428;
    pub const MOVE_MOUNT: u32 = 429;
    pub const FSMOUNT: u32 = 432;
    pub const CLONE3: u32 = 435;
    pub const CLOSE_RANGE: u32 = 436;
    pub const OPENAT2: u32 = 437;
    pub const PIDFD_GETFD: u32 = 438;
    pub const FACCESSAT2: u32 = 439;
    pub const MOUNT_SETATTR: u32 = 442;
    pub const QUOTACTL_FD: u32 = 443;
    pub const LANDLOCK_ADD_RULE: u32 = 445;
    pub const LANDLOCK_RESTRICT_SELF: u32 = 446;
    pub const CACHESTAT: u32 = 451;
    pub const FCHMODAT2: u32 = 452;
    pub const SETXATTRAT: u32 = 463;
    pub const GETXATTRAT: u32 = 464;
    pub const LISTXATTRAT: u32 = 465;
    pub const REMOVEXATTRAT: u32 = 466;
    pub const OPEN_TREE_ATTR: u32 = 467;
    pub const FILE_GETATTR: u32 = 468;
    pub const FILE_SETATTR: u32 = 469;
    pub const FSCONFIG: u32 = 431;
    pub const FSPICK: u32 = 433;
    pub const BIND: u32 = 49;
    pub const CONNECT: u32 = 42;
    pub const INOTIFY_ADD_WATCH: u32 = 254;
}

/// Numbers below this have an entry in tables by number.
pub const NR_END: usize = 512;

/// Arguments of a call as its registers hold them.
pub type Args = [u64; 6];

/// Makes a system call.
///
/// # Safety
/// As the call: pointers must be what the kernel takes them for.
#[inline(always)]
pub unsafe fn syscall(nr: u32, a: &Args) -> i64 {
    let result: i64;
    // SAFETY: the instruction clobbers rax, rcx and r11 only; memory is left to the
    // compiler's default, which is that it may change.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") u64::from(nr) => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// What an exported symbol returns for the kernel's `result`.
pub extern "C" fn set_errno(result: i64) -> i64 {
    // SAFETY: libc gives each thread its errno.
    unsafe { *libc::__errno_location() = -result as i32 };
    -1
}

/// A call without pointers among its arguments.
#[inline]
pub fn plain(nr: u32, a0: u64, a1: u64, a2: u64) -> i64 {
    debug_assert!(matches!(
        nr,
        nr::CLOSE
            | nr::LSEEK
            | nr::DUP
            | nr::GETPID
            | nr::FCNTL
            | nr::GETTID
            | nr::SCHED_YIELD
            | nr::MEMBARRIER
    ));
    // SAFETY: none of these calls reads or writes memory of the caller (of fcntl, only
    // commands with a number are used here).
    unsafe { syscall(nr, &[a0, a1, a2, 0, 0, 0]) }
}

/// This process.
pub fn getpid() -> i32 {
    plain(nr::GETPID, 0, 0, 0) as i32
}

/// This thread.
pub fn gettid() -> i32 {
    plain(nr::GETTID, 0, 0, 0) as i32
}

/// Lets others run.
pub fn yield_now() {
    plain(nr::SCHED_YIELD, 0, 0, 0);
}

/// `lseek`.
pub fn lseek(fd: i32, to: i64, whence: i32) -> i64 {
    plain(nr::LSEEK, fd as u64, to as u64, whence as u64)
}

/// `fcntl` with a number as its argument.
pub fn fcntl(fd: i32, command: i32, argument: u64) -> i64 {
    plain(nr::FCNTL, fd as u64, command as u64, argument)
}

/// `close`.
pub fn close(fd: i32) -> i64 {
    plain(nr::CLOSE, fd as u64, 0, 0)
}

/// `dup3`.
pub fn dup3(fd: i32, to: i32, flags: i32) -> i64 {
    // SAFETY: no pointers.
    unsafe { syscall(nr::DUP3, &[fd as u64, to as u64, flags as u64, 0, 0, 0]) }
}

/// Waits while `*word` is `expected`, at most `limit_ms`.
pub fn futex_wait(word: &core::sync::atomic::AtomicU32, expected: u32, limit_ms: u32) {
    let limit = libc::timespec {
        tv_sec: i64::from(limit_ms / 1000),
        tv_nsec: i64::from(limit_ms % 1000) * 1_000_000,
    };
    let word = core::ptr::from_ref(word) as u64;
    let limit = (&raw const limit) as u64;
    // SAFETY: both pointers are to live values; the kernel only reads them.
    unsafe {
        syscall(
            nr::FUTEX,
            &[word, libc::FUTEX_WAIT as u64, expected.into(), limit, 0, 0],
        )
    };
}

/// Wakes up to `count` of those who wait.
pub fn futex_wake(word: &core::sync::atomic::AtomicU32, count: u32) {
    let word = core::ptr::from_ref(word) as u64;
    // SAFETY: the kernel uses the word as an address only.
    unsafe {
        syscall(
            nr::FUTEX,
            &[word, libc::FUTEX_WAKE as u64, count.into(), 0, 0, 0],
        )
    };
}

/// `close` of a range, with flags.
pub fn close_range(first: u32, last: u32, flags: u32) -> i64 {
    // SAFETY: no pointers.
    unsafe {
        syscall(
            nr::CLOSE_RANGE,
            &[first.into(), last.into(), flags.into(), 0, 0, 0],
        )
    }
}

/// An error number as the kernel returns it.
pub const fn fail(errno: i32) -> i64 {
    -(errno as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_the_kernels() {
        assert_eq!(getpid() as u32, std::process::id());
        assert_eq!(close(-1), fail(libc::EBADF));
        let word = core::sync::atomic::AtomicU32::new(1);
        futex_wait(&word, 0, 1000);
        futex_wake(&word, 1);
    }
}
