//! The functions as C calls them, on a volume whose daemon is in this process.

use crate::attachment::{Attachment, shale_detach};
use crate::attributes::{shale_getxattr, shale_listxattr, shale_removexattr, shale_setxattr};
use crate::directories::{Entry, Walk, shale_closedir, shale_opendir, shale_readdir};
use crate::files::{
    OpenFile, shale_close, shale_fallocate, shale_fstat, shale_fsync, shale_ftruncate, shale_lseek,
    shale_open, shale_pread, shale_pwrite, shale_read, shale_write,
};
use crate::leases::{shale_give_back, shale_give_back_file, shale_lease, shale_lease_file};
use crate::names::{
    shale_access, shale_link, shale_lstat, shale_mkdir, shale_readlink, shale_rename, shale_rmdir,
    shale_stat, shale_statfs, shale_symlink, shale_sync, shale_unlink,
};
use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::ptr;
use shale_daemon::{Daemon, DaemonConfig};
use shale_format::Durability;
use shale_libfs::Caller;
use shale_pool::MakeOptions;
use shale_pool::VolumeFile;
use shale_pool::make_volume;
use shale_proto::InProcess;
use shale_sys::SystemClock;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use tempfile::TempDir;

const DEVICE: u64 = 77;

/// A volume in memory with its daemon.
struct Place {
    daemon: Arc<Daemon>,
    _dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = TempDir::with_prefix_in("shale-capi-", "/dev/shm").unwrap();
        let clock = Arc::new(SystemClock::new());
        let options = MakeOptions {
            file: dir.path().join("VOLUME.toml"),
            name: "capi".into(),
            nvm: Some(shale_pool::volume_file::NvmEntry::new(
                dir.path().join("nvm"),
                96 << 20,
            )),
            staged: Default::default(),
            lower: Default::default(),
            log_bytes: 16 << 20,
            durability: Durability::Strict,
            owner_uid: rustix::process::geteuid().as_raw(),
            owner_gid: rustix::process::getegid().as_raw(),
            root_mode: 0o755,
            trusted_uids: Vec::new(),
            force: false,
        };
        make_volume(&options, &*clock).unwrap();
        let file = VolumeFile::load(&options.file).unwrap();
        let daemon = Daemon::start(DaemonConfig::new(file), clock).unwrap();
        Self { daemon, _dir: dir }
    }

    fn attach(&self) -> *const Attachment {
        let uid = rustix::process::geteuid().as_raw();
        let channel = Arc::new(InProcess(self.daemon.attach_in_process(uid)));
        let caller = Caller {
            uid,
            umask: 0o027,
            ..Caller::default()
        };
        Arc::into_raw(Attachment::new(channel, 0, DEVICE, caller).unwrap())
    }
}

fn open(volume: *const Attachment, path: &CStr, flags: c_int) -> *mut OpenFile {
    let mut file = ptr::null_mut();
    // SAFETY: a live handle, a string, and a place for a pointer.
    let opened = unsafe { shale_open(volume, path.as_ptr(), flags, 0o666, &mut file) };
    assert_eq!(opened, 0);
    file
}

#[test]
fn files_are_written_read_and_measured() {
    let place = Place::new();
    let volume = place.attach();
    let file = open(volume, c"/a", libc::O_CREAT | libc::O_RDWR);
    let mut got = [0u8; 16];
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: live handles, and buffers as long as said.
    unsafe {
        assert_eq!(shale_write(file, b"0123456789".as_ptr().cast(), 10), 10);
        assert_eq!(shale_pwrite(file, b"ab".as_ptr().cast(), 2, 3), 2);
        assert_eq!(shale_lseek(file, 0, libc::SEEK_SET), 0);
        assert_eq!(shale_read(file, got.as_mut_ptr().cast(), 16), 10);
        assert_eq!(&got[..10], b"012ab56789");
        assert_eq!(shale_pread(file, got.as_mut_ptr().cast(), 16, 8), 2);
        let negative = shale_pread(file, got.as_mut_ptr().cast(), 1, -1);
        assert_eq!(negative, -libc::EINVAL as isize);
        assert_eq!(shale_fsync(file), 0);
        assert_eq!(shale_ftruncate(file, 5), 0);
        assert_eq!(shale_fallocate(file, 0, 0, 8192), 0);
        assert_eq!(shale_fstat(file, status.as_mut_ptr()), 0);
        let status = status.assume_init();
        assert_eq!((status.st_size, status.st_dev), (8192, DEVICE));
        assert_eq!(status.st_mode, libc::S_IFREG | 0o640, "less the umask");
        assert_eq!(shale_fstat(file, ptr::null_mut()), -libc::EFAULT);
        assert_eq!(shale_detach(volume), -libc::EBUSY);
        assert_eq!(shale_close(file), 0);
        assert_eq!(shale_detach(volume), 0);
    }
}

#[test]
fn names_are_made_moved_listed_and_removed() {
    let place = Place::new();
    let volume = place.attach();
    let path = |p: &'static CStr| p.as_ptr();
    let mut text = [0u8; 4];
    let mut status = MaybeUninit::<libc::stat>::uninit();
    let mut sizes = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: a live handle, strings, and buffers as long as said.
    unsafe {
        assert_eq!(shale_mkdir(volume, path(c"d"), 0o777), 0);
        assert_eq!(shale_mkdir(volume, path(c"/d"), 0o777), -libc::EEXIST);
        let file = open(volume, c"d/a", libc::O_CREAT | libc::O_WRONLY);
        assert_eq!(shale_close(file), 0);
        assert_eq!(shale_link(volume, path(c"d/a"), path(c"d/b")), 0);
        assert_eq!(
            shale_rename(volume, path(c"d/a"), path(c"d/b2"), 1),
            0,
            "no file there"
        );
        assert_eq!(
            shale_rename(volume, path(c"d/b"), path(c"d/b2"), 1),
            -libc::EEXIST
        );
        assert_eq!(shale_symlink(volume, path(c"target"), path(c"d/l")), 0);
        let n = shale_readlink(volume, path(c"d/l"), text.as_mut_ptr().cast(), 4);
        assert_eq!((n, &text), (4, b"targ"));
        assert_eq!(
            shale_stat(volume, path(c"d/l"), status.as_mut_ptr()),
            -libc::ENOENT
        );
        assert_eq!(shale_lstat(volume, path(c"d/l"), status.as_mut_ptr()), 0);
        assert_eq!(status.assume_init().st_size, 6);
        assert_eq!(shale_access(volume, path(c"d"), libc::R_OK), 0);
        assert_eq!(listed(volume, c"d"), ["b", "b2", "l"]);
        assert_eq!(shale_rmdir(volume, path(c"d")), -libc::ENOTEMPTY);
        for name in [c"d/b", c"d/b2", c"d/l"] {
            assert_eq!(shale_unlink(volume, name.as_ptr()), 0);
        }
        assert_eq!(shale_rmdir(volume, path(c"d")), 0);
        assert_eq!(
            shale_stat(volume, ptr::null(), status.as_mut_ptr()),
            -libc::EFAULT
        );
        assert_eq!(shale_sync(volume), 0);
        assert_eq!(shale_sync(ptr::null()), -libc::EBADF);
        assert_eq!(shale_statfs(volume, sizes.as_mut_ptr()), 0);
        assert!(sizes.assume_init().f_bavail > 0);
        assert_eq!(shale_detach(volume), 0);
    }
}

fn listed(volume: *const Attachment, path: &CStr) -> Vec<String> {
    let mut dir: *mut Walk = ptr::null_mut();
    let mut entry = MaybeUninit::<Entry>::uninit();
    let mut names = Vec::new();
    // SAFETY: a live handle, a string, and places for the results, read when they were written.
    unsafe {
        assert_eq!(shale_opendir(volume, path.as_ptr(), &mut dir), 0);
        assert_eq!(shale_detach(volume), -libc::EBUSY);
        while shale_readdir(dir, entry.as_mut_ptr()) == 1 {
            let name = CStr::from_bytes_until_nul(&entry.assume_init_ref().d_name).unwrap();
            names.push(name.to_str().unwrap().to_owned());
        }
        assert_eq!(shale_readdir(dir, entry.as_mut_ptr()), 0, "still the end");
        assert_eq!(shale_closedir(dir), 0);
    }
    names.sort();
    names
}

#[test]
fn attributes_tell_their_length_first() {
    let place = Place::new();
    let volume = place.attach();
    let (path, name) = (c"/".as_ptr(), c"user.colour".as_ptr());
    let mut value = [0u8; 16];
    let at = value.as_mut_ptr();
    // SAFETY: a live handle, strings, and buffers as long as said.
    unsafe {
        assert_eq!(
            shale_setxattr(volume, path, name, c"red".as_ptr().cast(), 3, 0),
            0
        );
        assert_eq!(shale_getxattr(volume, path, name, ptr::null_mut(), 0), 3);
        assert_eq!(
            shale_getxattr(volume, path, name, at.cast(), 2),
            -libc::ERANGE as isize
        );
        assert_eq!(shale_getxattr(volume, path, name, at.cast(), 16), 3);
        assert_eq!(shale_listxattr(volume, path, at.cast(), 16), 12);
        assert_eq!(shale_removexattr(volume, path, name), 0);
        assert_eq!(shale_removexattr(volume, path, name), -libc::ENODATA);
        assert_eq!(&value[..12], b"user.colour\0");
        assert_eq!(shale_detach(volume), 0);
    }
}

#[test]
fn two_clients_see_each_other_and_hand_leases_over() {
    let place = Place::new();
    let (one, two) = (place.attach(), place.attach());
    let mut got = [0u8; 4];
    let write = open(one, c"/f", libc::O_CREAT | libc::O_WRONLY | libc::O_APPEND);
    let read = open(two, c"/f", libc::O_RDONLY);
    // SAFETY: live handles, strings, and buffers as long as said.
    unsafe {
        assert_eq!(shale_lease_file(write, 2), 0);
        assert_eq!(shale_write(write, b"ab".as_ptr().cast(), 2), 2);
        assert_eq!(shale_give_back_file(write), 0);
        assert_eq!(shale_lease(two, c"f".as_ptr(), 1), 0);
        assert_eq!(shale_read(read, got.as_mut_ptr().cast(), 4), 2);
        assert_eq!(&got[..2], b"ab");
        assert_eq!(shale_lease_file(read, 2), -libc::EBADF);
        assert_eq!(shale_lease_file(write, 1), -libc::EBADF);
        assert_eq!(shale_lease(two, c"f".as_ptr(), 3), -libc::EINVAL);
        assert_eq!(shale_give_back(two, c"f".as_ptr()), 0);
        assert_eq!(shale_write(write, b"cd".as_ptr().cast(), 2), 2);
        assert_eq!(
            shale_read(read, got.as_mut_ptr().cast(), 4),
            2,
            "without being notified"
        );
        assert_eq!(shale_close(write), 0);
        assert_eq!(shale_detach(one), 0);
        assert_eq!(shale_unlink(two, c"f".as_ptr()), 0);
        assert_eq!(
            shale_pread(read, got.as_mut_ptr().cast(), 4, 0),
            4,
            "open still"
        );
        assert_eq!(shale_close(read), 0);
        assert_eq!(shale_detach(two), 0);
    }
}

#[test]
fn a_child_is_refused() {
    let place = Place::new();
    let volume = place.attach();
    let file = open(volume, c"/f", libc::O_CREAT | libc::O_RDWR);
    // SAFETY: the child calls nothing but functions that return at once, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: handles that live in this copy of memory, and no buffers.
        let right = unsafe {
            let refused = -libc::ENOTCONN;
            shale_write(file, ptr::null(), 0) == refused as isize
                && shale_close(file) == refused
                && shale_access(volume, c"f".as_ptr(), 0) == refused
                && shale_detach(volume) == refused
        };
        // SAFETY: ends the child without running anything of its parent's.
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    let mut ended = 0;
    // SAFETY: our own child, live handles, and a buffer as long as said.
    unsafe {
        assert_eq!(libc::waitpid(child, &mut ended, 0), child);
        assert_eq!(ended, 0);
        assert_eq!(shale_write(file, b"x".as_ptr().cast(), 1), 1);
        assert_eq!(shale_close(file), 0);
        assert_eq!(shale_detach(volume), 0);
    }
}

/// First byte of each mapping that has a protection key.
fn protected() -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut at, mut found) = (0, Vec::new());
    for line in maps.lines() {
        match line.split_once('-') {
            Some((first, _)) if !line.contains(": ") => {
                at = usize::from_str_radix(first, 16).unwrap_or(0);
            }
            _ => {
                let key = line.strip_prefix("ProtectionKey:").map(str::trim);
                found.extend(key.filter(|&key| key != "0").map(|_| at));
            }
        }
    }
    found
}

#[test]
fn outside_of_calls_what_is_mapped_for_writing_is_closed() {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    if !cpu.split_whitespace().any(|word| word == "ospke") {
        eprintln!("SKIPPED: this processor has no protection keys");
        return;
    }
    let place = Place::new();
    let volume = place.attach();
    let (from, to) = rustix::pipe::pipe().unwrap();
    let mapped = protected();
    assert!(mapped.len() >= 2, "log and control page at least");
    for at in mapped {
        // SAFETY: the kernel reads the page or refuses, by the rights of this thread.
        let done = unsafe { libc::write(to.as_raw_fd(), at as *const core::ffi::c_void, 8) };
        let error = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((done, error), (-1, Some(libc::EFAULT)), "at {at:#x}");
    }
    drop(from);
    let file = open(volume, c"/open-inside", libc::O_CREAT | libc::O_RDWR);
    // SAFETY: live handles, and a buffer as long as said.
    unsafe {
        assert_eq!(shale_write(file, b"inside".as_ptr().cast(), 6), 6);
        assert_eq!(shale_close(file), 0);
        assert_eq!(shale_detach(volume), 0);
    }
}
