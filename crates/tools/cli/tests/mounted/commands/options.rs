//! Options of a mount: shown in the table of mounts, kept by the mount, by programs under `shale run` and by clients
//! that no kernel checks, from `shale mount` on, through remounts, and after a daemon has died.

use crate::volume::{SHALE, Volume, can_mount, library, shale, wait_until};
use shale_libfs::{Caller, Errno, OFlags, Session, SessionOptions, Tree};
use shale_proto::SocketChannel;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::sync::Arc;

/// Options of the mount as `/proc/mounts` shows them.
fn shown(v: &Volume) -> Vec<String> {
    let table = fs::read_to_string("/proc/mounts").unwrap();
    let mut lines = table.lines().map(|l| l.split(' ').collect::<Vec<_>>());
    let line = lines.find(|l| l[1] == v.place()).unwrap();
    line[3].split(',').map(str::to_owned).collect()
}

fn mount(v: &Volume, options: &str) {
    shale(&["mount", "-o", options, v.file(), v.place()]).ok();
}

fn remount(v: &Volume, options: &str) {
    shale(&["mount", "-o", &format!("remount,{options}"), v.place()]).ok();
}

/// A client beside the mount, as libshale is one.
fn client(v: &Volume) -> Tree {
    let channel = Arc::new(SocketChannel::connect(&v.socket()).unwrap());
    let clock = Arc::new(shale_sys::SystemClock::new());
    let options = SessionOptions::default();
    let session = Session::attach(channel, clock, Default::default(), options).unwrap();
    session.tree(Caller::default())
}

/// A shell's commands under `shale run`: whether they went well.
fn run(v: &Volume, script: &str) -> bool {
    let done = Command::new("timeout")
        .args(["60", SHALE, "run", "--", "sh", "-c", script])
        .env("SHALE_PRELOAD", library())
        .env("SHALE_WARM_CALLS", "0")
        .current_dir(v.mountpoint())
        .output()
        .unwrap();
    // Shown with what fails.
    let said = String::from_utf8_lossy(&done.stderr);
    eprintln!("{script}: {} {said}", done.status);
    done.status.success()
}

#[test]
fn a_read_only_mount_is_changed_by_nobody() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("readonly");
    v.mount();
    let file = v.mountpoint().join("file");
    fs::write(&file, b"content").unwrap();
    v.umount();
    mount(&v, "ro");
    assert!(shown(&v).contains(&"ro".to_owned()), "{:?}", shown(&v));
    let other = client(&v);
    let is_ro = |what: &str| {
        let error = fs::write(&file, b"new").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{what}");
        assert!(
            fs::remove_file(&file).is_err() && fs::create_dir(v.mountpoint().join("d")).is_err()
        );
        assert!(!run(&v, "echo more >> file"), "{what}");
        assert!(run(&v, "test $(cat file) = content"), "{what}");
        assert_eq!(fs::read(&file).unwrap(), b"content", "{what}");
        let new = OFlags::RDWR.union(OFlags::CREATE);
        assert_eq!(
            other.open(b"/other", new, 0o644).err(),
            Some(Errno::ROFS),
            "{what}"
        );
        assert_eq!(other.unlink(b"/file"), Err(Errno::ROFS), "{what}");
        assert_eq!(other.truncate(b"/file", 0), Err(Errno::ROFS), "{what}");
        let open = other.open(b"/file", OFlags::RDWR, 0).unwrap();
        assert_eq!(open.pwrite(0, b"x"), Err(Errno::ROFS), "{what}");
        let mut back = [0; 7];
        assert_eq!((open.pread(0, &mut back), &back), (Ok(7), b"content"));
    };
    is_ro("mounted so");
    let before = fs::metadata(&file).unwrap();
    remount(&v, "rw");
    wait_until("clients may write again", || {
        other.truncate(b"/file", 7).is_ok()
    });
    assert!(run(&v, "echo more > other && rm other"));
    // As mount(8) does it, with all options.
    let all =
        "ro,relatime,remount,user_id=0,group_id=0,default_permissions,allow_other,max_read=1048576";
    shale(&["shale", v.place(), "-o", all, "-t", "fuse.shale"]).ok();
    wait_until("clients have heard", || {
        other.truncate(b"/file", 7) == Err(Errno::ROFS)
    });
    is_ro("remounted so");
    let open = fs::File::open(&file).unwrap();
    drop(other);
    v.kill_daemon();
    wait_until("another daemon answers", || open.metadata().is_ok());
    let other = client(&v);
    assert_eq!(other.unlink(b"/file"), Err(Errno::ROFS), "after a kill");
    assert_eq!(
        fs::metadata(&file).unwrap().atime_nsec(),
        before.atime_nsec()
    );
    drop((open, other));
    remount(&v, "rw");
    let writing = fs::OpenOptions::new().append(true).open(&file).unwrap();
    let said = shale(&["mount", "-o", "remount,ro", v.place()]).failed(1);
    assert!(said.contains("open for writing"), "{said}");
    drop(writing);
    v.umount();
    v.fsck();
}

#[test]
fn reads_are_noted_unless_the_mount_says_otherwise() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("noatime");
    let path = |name: &str| v.mountpoint().join(name);
    mount(&v, "noatime");
    assert!(shown(&v).contains(&"noatime".to_owned()), "{:?}", shown(&v));
    fs::write(path("mount"), b"content").unwrap();
    // A file of its own: nobody loses a lease to have a read noted.
    let other = client(&v);
    let new = OFlags::RDWR.union(OFlags::CREATE);
    let open = other.open(b"/client", new, 0o644).unwrap();
    open.pwrite(0, b"content").unwrap();
    let read = || {
        // Past the kernel's pages, which do not tell of reads.
        let mut dd = Command::new("dd");
        dd.args(["iflag=direct", "of=/dev/null", "status=none"]);
        let from = format!("if={}", path("mount").display());
        assert!(dd.arg(from).status().unwrap().success());
        open.pread(0, &mut [0; 7]).unwrap();
    };
    let noted = || {
        let m = fs::metadata(path("mount")).unwrap();
        let of_client = open.stat().unwrap();
        let mount = (m.atime(), m.atime_nsec()) > (m.mtime(), m.mtime_nsec());
        (mount, of_client.atime > of_client.mtime)
    };
    read();
    assert_eq!(noted(), (false, false));
    remount(&v, "relatime");
    assert!(
        shown(&v).contains(&"relatime".to_owned()),
        "{:?}",
        shown(&v)
    );
    wait_until("reads are noted again", || {
        read();
        noted() == (true, true)
    });
    drop((open, other));
    v.umount();
}

#[test]
fn the_kernel_keeps_the_other_options() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("options");
    mount(&v, "nosuid,nodev,noexec");
    let program = v.mountpoint().join("true");
    fs::copy("/bin/true", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    for option in ["nosuid", "nodev", "noexec"] {
        assert!(shown(&v).contains(&option.to_owned()), "{:?}", shown(&v));
    }
    assert!(Command::new(&program).status().is_err());
    remount(&v, "exec,dev");
    assert!(Command::new(&program).status().unwrap().success());
    let now = shown(&v);
    assert!(now.contains(&"nosuid".to_owned()) && !now.contains(&"nodev".to_owned()));
    for (option, why) in [("strictatime", "relatime"), ("acl", "no such option")] {
        let said = shale(&["mount", "-o", &format!("remount,{option}"), v.place()]).failed(2);
        assert!(said.contains(why), "{said}");
    }
    v.umount();
    let said = shale(&["mount", "-o", "remount,ro", v.place()]).failed(4);
    assert!(said.contains("no shale volume"), "{said}");
}
