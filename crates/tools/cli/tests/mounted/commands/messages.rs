//! What is wrong is said before the prompt returns: where, why, what to do.

use crate::volume::{Volume, can_mount, shale};
use std::fs;

fn expect(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "'{part}' is missing in: {text}");
    }
    assert_eq!(text.trim_end().lines().count(), 1, "one line: {text}");
}

#[test]
fn volume_files_that_cannot_be_used() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("files");
    let mount = |file: &str| shale(&["mount", file, v.place()]).failed(1);
    let missing = mount(&format!("{}x", v.file()));
    expect(
        &missing,
        &["shale mount: ", "VOLUME.tomlx", "shale mkfs makes a volume"],
    );

    let text = fs::read_to_string(v.file()).unwrap();
    fs::write(v.file(), "[package]\nname = 'other'\n").unwrap();
    expect(&mount(v.file()), &["VOLUME.toml"]);
    fs::write(v.file(), text.replace("format = 1", "format = 99")).unwrap();
    expect(
        &mount(v.file()),
        &["VOLUME.toml", "99 is newer", "use a newer shale"],
    );
    fs::write(v.file(), &text).unwrap();

    let nvm = v.dir().join("nvm");
    fs::rename(&nvm, v.dir().join("elsewhere")).unwrap();
    expect(&mount(v.file()), &["nvm", "missing"]);
    fs::rename(v.dir().join("elsewhere"), &nvm).unwrap();

    let other = Volume::new("other");
    let foreign = fs::read_to_string(other.file()).unwrap();
    let own_dir = |text: &str| {
        text.lines()
            .find(|l| l.starts_with("dir"))
            .unwrap()
            .to_owned()
    };
    fs::write(
        v.file(),
        foreign.replace(&own_dir(&foreign), &own_dir(&text)),
    )
    .unwrap();
    expect(&mount(v.file()), &["nvm", "correct nvm.dir"]);
    fs::write(v.file(), &text).unwrap();
    assert!(!v.is_mounted() && v.state().is_none());
    v.mount();
    v.umount();
}

#[test]
fn mount_points_that_cannot_be_used() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("points");
    let mount = |place: &str| shale(&["mount", v.file(), place]).failed(1);
    let at = |name: &str| v.dir().join(name).to_str().unwrap().to_owned();
    expect(
        &mount(&at("missing")),
        &["missing", "No such file", "mkdir"],
    );
    fs::write(at("file"), b"").unwrap();
    expect(&mount(&at("file")), &["file", "not a directory"]);

    // A directory with something in it is a mount point like any other.
    fs::write(v.mountpoint().join("hidden"), b"").unwrap();
    v.mount();
    assert!(!v.mountpoint().join("hidden").exists());
    expect(
        &mount(v.place()),
        &[v.place(), "mounted there already", "shale umount"],
    );

    // By other names it is the same place.
    let link = at("link");
    std::os::unix::fs::symlink(v.place(), &link).unwrap();
    shale(&["status", &link]).ok();
    shale(&["status", &format!("{}/", v.place())]).ok();

    fs::create_dir(at("second")).unwrap();
    let pid = v.status()["supervisor_pid"].to_string();
    expect(
        &mount(&at("second")),
        &["mounted on", v.place(), &format!("by process {pid}")],
    );
    // The same NVM by another volume file, as the daemon finds out.
    let copy = at("copy.toml");
    let away = at("away");
    std::os::unix::fs::symlink(at("nvm"), &away).unwrap();
    let text = fs::read_to_string(v.file()).unwrap();
    fs::write(&copy, text.replace(&at("nvm"), &away)).unwrap();
    let daemon = v.status()["daemon_pid"].to_string();
    let twice = shale(&["mount", &copy, &at("second")]).failed(1);
    expect(&twice, &["in use", &format!("process {daemon}")]);
    let fsck = shale(&["fsck", v.file()]).failed(1);
    let process = format!("process {daemon}");
    expect(&fsck, &["shale fsck: ", "in use", &process, "shale umount"]);
    let nvm = format!("{}:96M", at("nvm"));
    let again = shale(&["mkfs", v.file(), "--force", "--nvm", &nvm]).failed(1);
    expect(
        &again,
        &["shale mkfs: ", "in use", &format!("process {daemon}")],
    );
    v.umount();
    assert!(v.mountpoint().join("hidden").exists());
}

#[test]
fn nothing_is_mounted_there() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("nothing");
    for verb in ["status", "digest", "sync", "umount"] {
        let text = shale(&[verb, v.place()]).failed(4);
        expect(&text, &[&format!("shale {verb}: "), v.place()]);
        let text = shale(&[verb, "/proc"]).failed(4);
        expect(&text, &["/proc"]);
        let text = shale(&[verb, &format!("{}/none", v.place())]).failed(4);
        expect(&text, &["none"]);
    }
    let text = shale(&["umount", "/proc"]).failed(4);
    expect(&text, &["a proc is mounted there"]);
}

#[test]
fn mkfs_says_what_it_will_not_do() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (file, nvm) = (at("V.toml"), at("nvm"));
    let mkfs = |args: &[&str]| shale(&[&["mkfs", &file][..], args].concat());
    mkfs(&[]).failed(2);
    let text = mkfs(&["--nvm", &nvm]).failed(2);
    assert!(text.contains("DIR:SIZE"), "{text}");
    let text = mkfs(&["--nvm", &format!("{nvm}:96X")]).failed(2);
    assert!(text.contains("96X"), "{text}");
    let sized = format!("{nvm}:40M");
    let text = mkfs(&["--nvm", &sized, "--durability", "lazy"]).failed(2);
    expect(&text, &["--durability", "'lazy'", "'ordered'"]);
    let text = mkfs(&["--nvm", &sized, "--log-bytes", "1K"]).failed(2);
    expect(&text, &["--log-bytes", "16 MiB"]);
    let text = mkfs(&["--nvm", &format!("{nvm}:1M")]).failed(1);
    expect(&text, &["V.toml", "1048576"]);
    assert!(!dir.path().join("V.toml").exists());

    let text = mkfs(&["--nvm", &sized, "--label", "mine", "--json"]).ok();
    let made: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(made["name"], "mine");
    assert_eq!(made["nvm_bytes"], 40 << 20);
    assert_eq!(made["persistence"], "emulated");
    let text = mkfs(&["--nvm", &sized]).failed(1);
    expect(&text, &["V.toml", "volume already", "--force"]);
    let text = mkfs(&["--nvm", &sized, "--force"]).ok();
    assert!(
        text.contains("'V' made") && text.contains("not a power cut"),
        "{text}"
    );
}

#[test]
fn help_and_completions() {
    let root = shale(&["--help"]).ok();
    for part in ["Exit codes:", "4  no shale volume", "mkfs", "completions"] {
        assert!(root.contains(part), "{part} is missing in:\n{root}");
    }
    assert!(!root.contains("supervise"), "hidden verbs stay hidden");
    for verb in [
        "mkfs",
        "mount",
        "umount",
        "status",
        "digest",
        "fsck",
        "completions",
    ] {
        let text = shale(&[verb, "--help"]).ok();
        assert!(text.contains("Example"), "{text}");
    }
    assert!(shale(&["log", "show", "--help"]).ok().contains("Example"));
    assert!(
        shale(&["bench", "micro", "--help"])
            .ok()
            .contains("Example")
    );
    let text = shale(&["bench", "micro", "--ops", "fly"]).failed(2);
    assert!(text.contains("random-read"), "{text}");
    assert!(shale(&["completions", "bash"]).ok().contains("umount"));
    shale(&["fly"]).failed(2);
}
