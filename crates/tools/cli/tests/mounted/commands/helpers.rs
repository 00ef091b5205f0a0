//! What mount(8), umount(8) and a service manager call: helpers by their names, called as these do (scripts/package-test.sh
//! has mount(8) itself call them), and readiness.

use crate::volume::{SHALE, Said, Volume, can_mount, wait_until};
use rustix::mount::UnmountFlags;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Calls a helper by its name.
fn helper(v: &Volume, name: &str, args: &[&str]) -> Said {
    let path = v.dir().join(name);
    if !path.exists() {
        symlink(SHALE, &path).unwrap();
    }
    let mut command = Command::new("timeout");
    let output = command.args(["--signal=KILL", "60"]).arg(path).args(args);
    let output = output.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    Said {
        code: output.status.code().unwrap_or(-1),
        text: String::from_utf8_lossy(&text).into_owned(),
    }
}

/// The line of the mount in the table.
fn line(v: &Volume) -> String {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table
        .lines()
        .find(|l| l.contains(&format!(" {} ", v.place())));
    line.unwrap_or_default().to_owned()
}

#[test]
fn mount_and_umount_call_their_helpers() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("helpers");
    let options = "rw,noatime,nosuid,degraded,x-systemd.after=a.service,nofail,_netdev,user";
    let said = helper(&v, "mount.shale", &[v.file(), v.place(), "-o", options]).ok();
    assert_eq!(said, "", "a helper says nothing when all went well");
    assert!(
        line(&v).starts_with(&format!("{} ", v.file())),
        "{}",
        line(&v)
    );
    assert!(
        line(&v).contains(" fuse.shale rw,nosuid,noatime,"),
        "{}",
        line(&v)
    );
    fs::write(v.mountpoint().join("file"), b"content").unwrap();

    // mount -o remount, which knows the type of the table.
    let shown =
        "ro,relatime,remount,user_id=0,group_id=0,default_permissions,allow_other,max_read=1048576";
    let args = [v.file(), v.place(), "-o", shown, "-t", "fuse.shale"];
    helper(&v, "mount.fuse.shale", &args).ok();
    assert!(
        line(&v).contains(" fuse.shale ro,relatime,"),
        "{}",
        line(&v)
    );

    let again = helper(&v, "mount.shale", &[v.file(), v.place()]).failed(32);
    assert!(again.contains("is mounted there already"), "{again}");
    let open = fs::File::open(v.mountpoint().join("file")).unwrap();
    let busy = helper(&v, "umount.fuse.shale", &[v.place()]).failed(32);
    assert!(
        busy.starts_with("umount.shale: ") && busy.contains("in use by"),
        "{busy}"
    );
    drop(open);
    let said = helper(&v, "umount.fuse.shale", &[v.place(), "-v"]).ok();
    assert_eq!(said, format!("{} unmounted\n", v.place()));
    assert!(v.state().is_none(), "its processes have ended");
    v.fsck();
}

#[test]
fn what_cannot_be_mounted_is_named_and_nothing_is_mounted() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("refused");
    let refused = |args: &[&str], code, named: &str| {
        let said = helper(&v, "mount.shale", args).failed(code);
        assert!(
            said.starts_with("mount.shale: ") && said.contains(named),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    };
    let (file, place) = (v.file(), v.place());
    refused(&[file, place, "-o", "ro,nonsense"], 1, "-o nonsense: ");
    refused(
        &[file, place, "-o", "durability=strict"],
        1,
        "shale mkfs --durability",
    );
    refused(
        &[file, place, "-o", "metrics=somewhere"],
        1,
        "-o metrics=somewhere: ",
    );
    refused(&[file], 1, "1 of 2 arguments");
    refused(&["UUID=12", place], 1, "UUID=12: ");
    refused(
        &["no-such-volume", place],
        32,
        "/etc/shale/no-such-volume.toml",
    );
    refused(&["/nowhere/a.toml", place], 32, "/nowhere/a.toml");
    refused(&[file, "/nowhere/at/all"], 32, "/nowhere/at/all");
    let said = helper(&v, "umount.shale", &[place]).failed(32);
    assert!(said.contains("nothing is mounted there"), "{said}");
    // Checks everything, mounts nothing.
    helper(&v, "mount.shale", &[file, place, "-f"]).ok();
    assert!(!v.is_mounted() && v.state().is_none());
}

/// `umount -i`, a program that calls umount(2): nobody tells the supervisor but the kernel.
#[test]
fn an_unmount_without_the_helper_ends_the_processes_too() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("bare");
    helper(&v, "mount.shale", &[v.file(), v.place(), "-o", "rw"]).ok();
    fs::write(v.mountpoint().join("file"), b"content").unwrap();
    rustix::mount::unmount(v.mountpoint(), UnmountFlags::empty()).unwrap();
    wait_until("every log is in the volume", || v.state().is_none());
    v.fsck();
    v.mount();
    assert_eq!(fs::read(v.mountpoint().join("file")).unwrap(), b"content");
    v.umount();
}

#[test]
fn a_service_manager_hears_that_the_mount_is_there() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("ready");
    let socket = v.dir().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut command = Command::new(SHALE);
    command.args([
        "mount",
        "--foreground",
        "-o",
        "defaults",
        v.file(),
        v.place(),
    ]);
    command.env("NOTIFY_SOCKET", &socket).stderr(Stdio::piped());
    let service = command.spawn().unwrap();
    let mut text = [0; 64];
    let bytes = manager.recv(&mut text).unwrap();
    assert!(text[..bytes].starts_with(b"READY=1"));
    assert!(v.is_mounted());
    fs::write(v.mountpoint().join("file"), b"content").unwrap();
    v.umount();
    let ended = service.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let log = String::from_utf8_lossy(&ended.stderr);
    assert!(
        log.contains("mounted") && log.contains("every log is in the volume"),
        "{log}"
    );
}
