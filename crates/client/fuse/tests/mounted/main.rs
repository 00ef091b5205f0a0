//! A real mount served from memory, used through the kernel as programs do.
//! Needs root and `/dev/fuse`; without them the tests say so and pass.

mod memory_fs;
mod slow_device;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memory_fs::MemoryFs;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, StatxFlags, XattrFlags};
use shale_fuse::{
    Ended, FuseError, FuseSession, Inval, MountOptions, Notifier, ServeOptions, unmount,
};
use slow_device::SlowDevice;

/// A mount served by this process, gone when dropped.
struct Mounted {
    dir: Option<tempfile::TempDir>,
    fs: Arc<MemoryFs>,
    session: Arc<FuseSession>,
    server: Option<JoinHandle<Result<Ended, FuseError>>>,
}

impl Mounted {
    fn new() -> Option<Self> {
        Self::with(ServeOptions::default())
    }

    fn with(options: ServeOptions) -> Option<Self> {
        Self::made(MemoryFs::new(None), options)
    }

    /// Answers that promise something wait for `device`.
    fn on(device: Option<SlowDevice>) -> Option<Self> {
        Self::made(MemoryFs::new(device), ServeOptions::default())
    }

    fn made(fs: Arc<MemoryFs>, options: ServeOptions) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs root and /dev/fuse");
            return None;
        }
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let session = Arc::new(FuseSession::mount(dir.path(), &MountOptions::default()).unwrap());
        let (serving, served) = (Arc::clone(&session), Arc::clone(&fs));
        let server = thread::spawn(move || serving.serve(served, &options));
        Some(Self {
            dir: Some(dir),
            fs,
            session,
            server: Some(server),
        })
    }

    /// After it was stopped: another session takes over the mount.
    fn adopt(&mut self) {
        let ended = self.server.take().unwrap().join().unwrap().unwrap();
        assert_eq!(ended, Ended::Stopped);
        let info = self.session.info();
        assert!(info.is_negotiated() && info.can_resend());
        let fd = self.session.fd().try_clone_to_owned().unwrap();
        self.session = Arc::new(FuseSession::adopt(fd, info, true).unwrap());
        let (serving, served) = (Arc::clone(&self.session), Arc::clone(&self.fs));
        let options = ServeOptions::default();
        self.server = Some(thread::spawn(move || serving.serve(served, &options)));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.as_ref().unwrap().path().join(name)
    }

    fn notifier(&self) -> Notifier {
        self.session.notifier()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let dir = self.dir.take().unwrap();
        // A failed assertion may have left files open: let go of the name then.
        unmount(dir.path(), thread::panicking()).unwrap();
        if !thread::panicking() {
            let ended = self.server.take().unwrap().join().unwrap().unwrap();
            assert_eq!(ended, Ended::Unmounted);
            assert_eq!(self.fs.destroyed.load(Ordering::Relaxed), 1);
        }
    }
}

/// Waits up to 2 s: forgetting happens behind the program's back.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(2), "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn files_directories_and_links() {
    let Some(m) = Mounted::new() else { return };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let ours = mounts
        .lines()
        .find(|l| l.contains(m.path("").to_str().unwrap().trim_end_matches('/')));
    let ours = ours.unwrap();
    assert!(
        ours.starts_with("shale ") && ours.contains(" fuse.shale "),
        "{ours}"
    );
    assert!(ours.contains("default_permissions,allow_other"), "{ours}");

    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/f"), b"hello").unwrap();
    assert_eq!(fs::read(m.path("d/f")).unwrap(), b"hello");
    fs::hard_link(m.path("d/f"), m.path("g")).unwrap();
    assert_eq!(fs::metadata(m.path("g")).unwrap().nlink(), 2);
    std::os::unix::fs::symlink("d/f", m.path("s")).unwrap();
    assert_eq!(fs::read_link(m.path("s")).unwrap(), Path::new("d/f"));
    assert_eq!(fs::read(m.path("s")).unwrap(), b"hello");
    fs::rename(m.path("g"), m.path("h")).unwrap();
    assert!(!m.path("g").exists());
    let flags = RenameFlags::NOREPLACE;
    let refused = rustix::fs::renameat_with(CWD, m.path("h"), CWD, m.path("s"), flags);
    assert_eq!(refused, Err(rustix::io::Errno::EXIST));
    rustix::fs::renameat_with(CWD, m.path("h"), CWD, m.path("s"), RenameFlags::EXCHANGE).unwrap();
    assert!(fs::symlink_metadata(m.path("h")).unwrap().is_symlink());
    let refused = fs::remove_dir(m.path("d")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOTEMPTY));
    fs::remove_file(m.path("d/f")).unwrap();
    fs::remove_dir(m.path("d")).unwrap();
    assert_eq!(fs::metadata(m.path("s")).unwrap().nlink(), 1);

    let long = "x".repeat(256);
    let refused = File::create(m.path(&long)).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENAMETOOLONG));
    rustix::fs::mknodat(
        CWD,
        m.path("p"),
        rustix::fs::FileType::Fifo,
        Mode::from(0o600),
        0,
    )
    .unwrap();
    assert!(fs::metadata(m.path("p")).unwrap().file_type().is_fifo());
    let stat = rustix::fs::statvfs(m.path("")).unwrap();
    assert_eq!(
        (stat.f_blocks, stat.f_bavail, stat.f_ffree, stat.f_namemax),
        (1000, 600, 88, 255)
    );
}

#[test]
fn attributes_modes_and_times() {
    let Some(m) = Mounted::new() else { return };
    let file = File::create(m.path("f")).unwrap();
    // The umask arrives with the request and is the file system's to apply.
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o644);
    fs::set_permissions(m.path("f"), PermissionsExt::from_mode(0o4755)).unwrap();
    std::os::unix::fs::chown(m.path("f"), Some(12), Some(34)).unwrap();
    let at = std::time::UNIX_EPOCH + Duration::new(1_000_000_007, 123_456_789);
    file.set_modified(at).unwrap();
    file.set_len(10_000).unwrap();
    file.set_modified(at).unwrap();
    let meta = fs::metadata(m.path("f")).unwrap();
    assert_eq!(
        (meta.uid(), meta.gid(), meta.len(), meta.blocks()),
        (12, 34, 10_000, 20)
    );
    assert_eq!(
        (meta.mtime(), meta.mtime_nsec()),
        (1_000_000_007, 123_456_789)
    );
    // Asking for the time of creation goes by another message.
    let asked = StatxFlags::ALL | StatxFlags::BTIME;
    let statx = rustix::fs::statx(CWD, m.path("f"), AtFlags::empty(), asked).unwrap();
    assert_ne!(statx.stx_mask & StatxFlags::BTIME.bits(), 0);
    assert!(statx.stx_btime.tv_sec > 1_700_000_000);
    assert_eq!((statx.stx_size, statx.stx_uid), (10_000, 12));
}

#[test]
fn data_of_all_sizes_and_truncation_at_open() {
    let Some(m) = Mounted::new() else { return };
    let big: Vec<u8> = (0..3_000_007u32).map(|i| ((i * 31) >> 3) as u8).collect();
    fs::write(m.path("f"), &big).unwrap();
    m.notifier()
        .inval_inode(fs::metadata(m.path("f")).unwrap().ino(), Inval::All)
        .unwrap();
    assert!(fs::read(m.path("f")).unwrap() == big);
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(m.path("f"))
        .unwrap();
    direct.write_all_at(&big[..2 << 20], 5).unwrap();
    let mut back = vec![0; 2 << 20];
    direct.read_exact_at(&mut back, 5).unwrap();
    assert!(back == big[..2 << 20]);
    drop(direct);

    // open(O_TRUNC) of an existing file is no OPEN but a change of size.
    let mut file = OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(m.path("f"))
        .unwrap();
    assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 0);
    file.write_all(b"ab").unwrap();
    let mut append = OpenOptions::new().append(true).open(m.path("f")).unwrap();
    append.write_all(b"cd").unwrap();
    append.sync_all().unwrap();
    append.sync_data().unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"abcd");
    let mut seek = File::open(m.path("f")).unwrap();
    seek.seek(SeekFrom::End(-1)).unwrap();
    let mut last = String::new();
    seek.read_to_string(&mut last).unwrap();
    assert_eq!(last, "d");
    // With copy_file_range(2), which the file system serves.
    fs::copy(m.path("f"), m.path("copy")).unwrap();
    assert_eq!(fs::read(m.path("copy")).unwrap(), b"abcd");
    assert_ne!(m.fs.copies.load(Ordering::Relaxed), 0);
    File::open(m.path("")).unwrap().sync_all().unwrap();
}

#[test]
fn holes_and_space() {
    use rustix::fs::{FallocateFlags, SeekFrom::Data, SeekFrom::Hole, fallocate, seek};
    let Some(m) = Mounted::new() else { return };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(m.path("f"))
        .unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 40_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 40_000);
    assert_eq!(seek(&file, Data(0)), Err(rustix::io::Errno::NXIO));
    file.write_all_at(&[1; 8192], 8192).unwrap();
    assert_eq!(
        (seek(&file, Data(100)), seek(&file, Hole(9000))),
        (Ok(8192), Ok(16_384))
    );
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 8192, 4096).unwrap();
    assert_eq!(seek(&file, Data(0)), Ok(12_288));
    let mut back = [9; 8192];
    file.read_exact_at(&mut back, 8192).unwrap();
    assert!(back[..4096] == [0; 4096] && back[4096..] == [1; 4096]);
}

#[test]
fn file_without_a_name_gets_one() {
    let Some(m) = Mounted::new() else { return };
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let fd = rustix::fs::open(m.path(""), flags, Mode::from(0o600)).unwrap();
    let file = File::from(fd);
    file.write_all_at(b"nameless", 0).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, path, CWD, m.path("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(m.path("named")).unwrap(), b"nameless");
    assert_eq!(file.metadata().unwrap().nlink(), 1);
}

#[test]
fn last_use_of_an_unlinked_file_is_known() {
    let Some(m) = Mounted::new() else { return };
    fs::write(m.path("f"), b"x").unwrap();
    let file = File::open(m.path("f")).unwrap();
    fs::remove_file(m.path("f")).unwrap();
    assert_eq!(m.fs.inodes(), 2);
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    drop(file);
    eventually("forgotten", || m.fs.inodes() == 1);
}

#[test]
fn listing_of_3000_names() {
    let Some(m) = Mounted::new() else { return };
    for i in 0..3000 {
        rustix::fs::mknodat(
            CWD,
            m.path(&format!("name-{i}")),
            rustix::fs::FileType::RegularFile,
            Mode::from(0o600),
            0,
        )
        .unwrap();
    }
    let list = || {
        let mut names: Vec<u32> = fs::read_dir(m.path(""))
            .unwrap()
            .map(|e| {
                e.unwrap().file_name().to_str().unwrap()[5..]
                    .parse()
                    .unwrap()
            })
            .collect();
        names.sort_unstable();
        names
    };
    assert_eq!(list(), (0..3000).collect::<Vec<_>>());
    // Each listing is asked for, lest a name that goes meanwhile stays in one that is kept;
    // attributes come along with it and are kept.
    let (readdirs, lookups) = (
        m.fs.readdirs.load(Ordering::Relaxed),
        m.fs.lookups.load(Ordering::Relaxed),
    );
    assert_eq!(list().len(), 3000);
    assert!(
        fs::read_dir(m.path(""))
            .unwrap()
            .all(|e| e.unwrap().metadata().unwrap().len() == 0)
    );
    assert!(m.fs.readdirs.load(Ordering::Relaxed) >= 3 * readdirs - 3);
    assert_eq!(m.fs.lookups.load(Ordering::Relaxed), lookups);
    m.fs.rename_hidden(b"name-0", b"name-9999");
    m.notifier().inval_inode(1, Inval::All).unwrap();
    // The cached name would keep the inode in use after its removal.
    m.notifier().inval_entry(1, b"name-0").unwrap();
    assert_eq!(list().last(), Some(&9999));

    // Removing while listing: every name is seen though the directory changes under it.
    m.notifier().inval_inode(1, Inval::All).unwrap();
    for entry in fs::read_dir(m.path("")).unwrap() {
        let path = entry.unwrap().path();
        fs::remove_file(path).unwrap();
    }
    assert_eq!(fs::read_dir(m.path("")).unwrap().count(), 0);
    eventually("all forgotten", || m.fs.inodes() == 1);
}

#[test]
fn cached_until_notified() {
    let Some(m) = Mounted::new() else { return };
    fs::write(m.path("f"), b"old").unwrap();
    let file = File::open(m.path("f")).unwrap();
    let ino = file.metadata().unwrap().ino();
    let content = || fs::read(m.path("f")).unwrap();
    assert_eq!(content(), b"old");
    // The read has made the time of last access unknown: asked once more.
    assert_eq!(content(), b"old");
    let (reads, lookups, getattrs) = (
        m.fs.reads.load(Ordering::Relaxed),
        m.fs.lookups.load(Ordering::Relaxed),
        m.fs.getattrs.load(Ordering::Relaxed),
    );
    for _ in 0..50 {
        assert_eq!(content(), b"old");
    }
    assert_eq!(
        m.fs.lookups.load(Ordering::Relaxed),
        lookups,
        "names are cached"
    );
    assert_eq!(
        m.fs.getattrs.load(Ordering::Relaxed),
        getattrs,
        "attributes are cached"
    );
    assert_eq!(m.fs.reads.load(Ordering::Relaxed), reads, "data is cached");
    m.fs.overwrite(ino, b"newer");
    assert_eq!(content(), b"old");
    m.notifier()
        .inval_inode(
            ino,
            Inval::Range {
                offset: 0,
                bytes: 4096,
            },
        )
        .unwrap();
    assert_eq!(content(), b"newer");
    m.notifier().inval_inode(4711, Inval::All).unwrap();

    // Names, and names that are not there.
    assert!(!m.path("g").exists());
    m.fs.rename_hidden(b"f", b"g");
    assert!(
        m.path("f").exists() && !m.path("g").exists(),
        "both answers are cached"
    );
    m.notifier().inval_entry(1, b"f").unwrap();
    m.notifier().inval_entry(1, b"g").unwrap();
    m.notifier().inval_entry(1, b"never seen").unwrap();
    assert!(!m.path("f").exists() && m.path("g").exists());
    if m.session.info().can_inc_epoch() {
        assert!(!m.path("h").exists());
        m.fs.rename_hidden(b"g", b"h");
        assert!(m.path("g").exists() && !m.path("h").exists());
        m.notifier().inc_epoch().unwrap();
        assert!(!m.path("g").exists() && m.path("h").exists());
    }
}

/// The page of a write is dropped on the write's way, and filled again before it is done.
#[test]
fn a_write_that_a_read_overtakes_is_seen_when_it_has_returned() {
    let Some(m) = Mounted::new() else { return };
    fs::write(m.path("f"), [b'a'; 8192]).unwrap();
    let options = || OpenOptions::new().read(true).write(true).clone();
    let (file, other) = (
        options().open(m.path("f")).unwrap(),
        options().open(m.path("f")).unwrap(),
    );
    let ino = file.metadata().unwrap().ino();
    let read = |offset| {
        let mut byte = [0];
        other.read_exact_at(&mut byte, offset).unwrap();
        byte[0]
    };
    let overtaken = |offset, new: &[u8]| {
        let (written, last) = (new[0], offset + new.len() as u64 - 1);
        assert_eq!((read(offset), read(last)), (b'a', b'a'), "in pages now");
        let writes = m.fs.writes.load(Ordering::Relaxed);
        let latch = m.fs.latch.lock();
        thread::scope(|scope| {
            let writer = scope.spawn(|| file.write_all_at(new, offset).unwrap());
            eventually("the write comes", || {
                m.fs.writes.load(Ordering::Relaxed) > writes
            });
            m.notifier().inval_inode(ino, Inval::All).unwrap();
            assert_eq!(read(offset), b'a', "not written yet");
            drop(latch);
            writer.join().unwrap();
        });
        assert_eq!((read(offset), read(last)), (written, written));
    };
    overtaken(1000, &[b'b'; 3000]);
    overtaken(4096, &[b'c'; 4096]);

    // The last page of these is locked until the answer: nobody waits for it before. It was filled after it had been
    // dropped, and dropped again by the kernel.
    m.notifier().inval_inode(ino, Inval::All).unwrap();
    let begun = Instant::now();
    for n in 0..200 {
        read(4096);
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        file.write_all_at(b"d", 100 + n).unwrap();
        file.write_all_at(b"e", 8192 + n).unwrap();
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?} for 400 writes");
    assert_eq!((read(99), read(100), read(299)), (b'a', b'd', b'd'));
    assert_eq!((read(8192), read(8391)), (b'e', b'e'));
}

#[test]
fn nothing_is_cached_with_zero_timeouts() {
    let options = ServeOptions {
        entry_timeout: Duration::ZERO,
        negative_timeout: Duration::ZERO,
        attr_timeout: Duration::ZERO,
        ..ServeOptions::default()
    };
    let Some(m) = Mounted::with(options) else {
        return;
    };
    assert!(!m.path("g").exists());
    fs::write(m.path("f"), b"x").unwrap();
    m.fs.rename_hidden(b"f", b"g");
    assert!(m.path("g").exists() && !m.path("f").exists());
}

#[test]
fn extended_attributes_of_a_file_system_without_acls() {
    let Some(m) = Mounted::new() else { return };
    fs::write(m.path("f"), b"").unwrap();
    let path = m.path("f");
    rustix::fs::setxattr(&path, "user.a", b"value", XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(&path, "user.b", b"", XattrFlags::empty()).unwrap();
    let mut buf = [0u8; 64];
    assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut buf), Ok(5));
    assert_eq!(&buf[..5], b"value");
    assert_eq!(rustix::fs::getxattr_query(&path, "user.a"), Ok(5));
    let short = rustix::fs::getxattr(&path, "user.a", &mut [0u8; 2]);
    assert_eq!(short, Err(rustix::io::Errno::RANGE));
    assert_eq!(rustix::fs::listxattr(&path, &mut buf), Ok(14));
    assert_eq!(&buf[..14], b"user.a\0user.b\0");
    rustix::fs::removexattr(&path, "user.a").unwrap();
    let gone = rustix::fs::getxattr(&path, "user.a", &mut buf);
    assert_eq!(gone, Err(rustix::io::Errno::NODATA));
    let acl = rustix::fs::getxattr(&path, "system.posix_acl_access", &mut buf);
    assert_eq!(acl, Err(rustix::io::Errno::NODATA));
    let mut list = vec![2, 0, 0, 0];
    for tag in [1u8, 4, 32] {
        list.extend([tag, 0, 6, 0, 255, 255, 255, 255]);
    }
    let name = "system.posix_acl_access";
    let set = rustix::fs::setxattr(&path, name, &list, XattrFlags::empty());
    assert_eq!(set, Err(rustix::io::Errno::OPNOTSUPP));
}

#[test]
fn shutdown_brings_its_flags() {
    let Some(m) = Mounted::new() else { return };
    let dir = File::open(m.path("")).unwrap();
    // SAFETY: TCGETS writes a termios, for which there is space; it is refused anyway.
    let refused = unsafe { libc::ioctl(dir.as_raw_fd(), libc::TCGETS, [0u8; 256].as_mut_ptr()) };
    assert_eq!(refused, -1);
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::ENOTTY)
    );
    let flags: u32 = 2;
    // SAFETY: the command takes a pointer to an u32 that it only reads.
    let done = unsafe { libc::ioctl(dir.as_raw_fd(), 0x8004_587d, &raw const flags) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    assert_eq!(m.fs.shutdown_flags.load(Ordering::Relaxed), 2);
    let refused = File::create(m.path("new")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    assert!(m.session.info().is_shut_down());
}

#[test]
fn stopped_session_is_adopted() {
    let Some(mut m) = Mounted::new() else { return };
    fs::write(m.path("f"), b"before").unwrap();
    for round in 0..5 {
        m.session.stopper().stop();
        let name = m.path(&format!("new-{round}"));
        let waiting = thread::spawn(move || fs::write(name, b"during"));
        thread::sleep(Duration::from_millis(5));
        assert!(!waiting.is_finished());
        m.adopt();
        waiting.join().unwrap().unwrap();
        assert_eq!(fs::read(m.path("f")).unwrap(), b"before");
    }
}
