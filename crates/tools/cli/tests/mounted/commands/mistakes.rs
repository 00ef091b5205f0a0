//! The operator's mistakes: one table, each row a command, what it says, what it leaves. docs/TESTING.md has the same table, and
//! a test compares them.

use crate::volume::{SHALE, Said, Volume, can_mount, shale, wait_until};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the rows play: a directory of their own, in memory; one on a file system of 300 MiB, which is ext4; one on
/// tmpfs that may grow beyond the machine's memory.
struct Place {
    dir: tempfile::TempDir,
    mounted: Vec<PathBuf>,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::Builder::new()
            .prefix("shale-mistakes-")
            .tempdir_in("/var/tmp")
            .unwrap();
        let mut place = Place {
            dir,
            mounted: Vec::new(),
        };
        let (image, small) = (place.at("ext4.img"), place.at("small"));
        let made = fs::File::create(&image).and_then(|f| f.set_len(300 << 20));
        made.unwrap();
        run("mkfs.ext4", &["-q", "-F", &image]);
        place.mount(&["-o", "loop", &image], &small);
        let large = place.at("memory");
        place.mount(&["-t", "tmpfs", "-o", "size=64T,mode=755", "none"], &large);
        fs::create_dir(place.at("full")).unwrap();
        fs::write(place.at("full/letter"), b"mine").unwrap();
        fs::create_dir(place.at("open")).unwrap();
        fs::set_permissions(place.at("open"), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(place.at("a-file"), b"mine").unwrap();
        symlink(place.at("nowhere"), place.at("dangling.img")).unwrap();
        place
    }

    fn mount(&mut self, args: &[&str], at: &str) {
        fs::create_dir(at).unwrap();
        run("mount", &[args, &[at]].concat());
        self.mounted.push(at.into());
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Every file below, with its size and the space it takes; and of the file system of 300 MiB.
    fn all(&self) -> BTreeMap<PathBuf, (u64, u64)> {
        let mut found = BTreeMap::new();
        let mut todo = vec![self.dir.path().to_owned()];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(dir).unwrap().flatten() {
                let meta = entry.path().symlink_metadata().unwrap();
                if meta.is_dir() {
                    todo.push(entry.path());
                }
                let size = if meta.is_dir() {
                    (0, 0)
                } else {
                    (meta.size(), meta.blocks())
                };
                // The loop image changes with what lies in it.
                if !entry.path().ends_with("ext4.img") {
                    found.insert(entry.path(), size);
                }
            }
        }
        found
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for at in &self.mounted {
            let _ = Command::new("umount").arg("-l").arg(at).status();
        }
    }
}

fn run(program: &str, args: &[&str]) {
    let done = Command::new(program).args(args).output().unwrap();
    assert!(done.status.success(), "{program} {args:?}: {done:?}");
}

/// One mistake in making a volume. D stands for the directory of the rows.
struct Row {
    mistake: &'static str,
    args: &'static str,
    code: i32,
    says: &'static [&'static str],
}

const fn row(
    mistake: &'static str,
    args: &'static str,
    code: i32,
    says: &'static [&'static str],
) -> Row {
    Row {
        mistake,
        args,
        code,
        says,
    }
}

/// All of these are refused and leave nothing.
const REFUSED: &[Row] = &[
    row(
        "a device that is not there",
        "mkfs D/V.toml --nvm D/nvm:32M --ssd /dev/nosuch:64M",
        1,
        &["/dev/nosuch", "no such device", "below /dev"],
    ),
    row(
        "the directory above NVM is missing",
        "mkfs D/V.toml --nvm D/none/nvm:32M",
        1,
        &["D/none/nvm", "D/none is missing"],
    ),
    row(
        "the directory of the volume file is missing",
        "mkfs D/none/V.toml --nvm D/nvm:32M",
        1,
        &["D/none/V.toml", "no directory D/none"],
    ),
    row(
        "the directory of an image is missing",
        "mkfs D/V.toml --nvm D/nvm:32M --hdd D/none/h.img:64M",
        1,
        &["D/none/h.img", "cannot be made in"],
    ),
    row(
        "an image's name is a link that leads nowhere",
        "mkfs D/V.toml --nvm D/nvm:32M --hdd D/dangling.img:64M",
        1,
        &["D/dangling.img", "leads nowhere"],
    ),
    row(
        "NVM in a directory with other files",
        "mkfs D/V.toml --nvm D/full:32M",
        1,
        &["D/full", "other files (letter"],
    ),
    row(
        "the same with --force",
        "mkfs D/V.toml --nvm D/full:32M --force",
        1,
        &["D/full", "other files (letter"],
    ),
    row(
        "NVM in a directory that everybody may write to",
        "mkfs D/V.toml --nvm D/open:32M",
        1,
        &["D/open", "every user may write to it", "chmod 700"],
    ),
    row(
        "NVM is a file",
        "mkfs D/V.toml --nvm D/a-file:32M",
        1,
        &["D/a-file", "not a directory"],
    ),
    row(
        "NVM with its logs is larger than its file system",
        "mkfs D/V.toml --nvm D/small/nvm:256M",
        1,
        &[
            "D/small/nvm",
            "352 MiB in all",
            "64.0 MiB for the log of the mount",
            "are free there (ext4)",
            "--force",
        ],
    ),
    row(
        "NVM on tmpfs is larger than the memory that is free",
        "mkfs D/V.toml --nvm D/memory/nvm:8T",
        1,
        &[
            "D/memory/nvm",
            "8 TiB of NVM",
            "memory there (tmpfs)",
            "of memory are free",
            "--force",
        ],
    ),
    row(
        "an image is larger than its file system",
        "mkfs D/V.toml --nvm D/nvm:32M --hdd D/small/h.img:400M",
        1,
        &[
            "D/small/h.img",
            "hdd: an image of 400 MiB",
            "are free there (ext4)",
            "--force",
        ],
    ),
    row(
        "two images together are",
        "mkfs D/V.toml --nvm D/nvm:32M --ssd D/small/s.img:160M --hdd D/small/h.img:160M",
        1,
        &[
            "D/small/h.img",
            "hdd: an image of 160 MiB",
            "are free there",
        ],
    ),
    row(
        "a tier is too large for the NVM above it",
        "mkfs D/V.toml --nvm D/nvm:64M --hdd D/h.img:10T --force",
        1,
        &[
            "D/h.img",
            "hdd: the tables of 10.0 TiB of hdd",
            "NVM has 64 MiB",
            "must have 20.6 GiB",
        ],
    ),
    row(
        "a device is too small to be cleaned",
        "mkfs D/V.toml --nvm D/nvm:32M --ssd D/s.img:2M",
        1,
        &["D/s.img", "ssd has 1 zones, and needs 4"],
    ),
    row(
        "NVM is too small",
        "mkfs D/V.toml --nvm D/nvm:1M",
        1,
        &["D/V.toml", "below the least of 33554432"],
    ),
    row(
        "a name with control characters",
        "mkfs D/V.toml --nvm D/nvm:32M --label evil\u{1b}[31m",
        1,
        &["control character (U+001B)", "--label"],
    ),
    row(
        "a durability that there is not",
        "mkfs D/V.toml --nvm D/nvm:32M --durability lazy",
        2,
        &["--durability", "'lazy'", "'ordered'"],
    ),
    row(
        "the volume file is a directory",
        "mkfs D/full --nvm D/nvm:32M",
        1,
        &["D/full", "it is a directory"],
    ),
    row(
        "a log that is too small",
        "mkfs D/V.toml --nvm D/nvm:32M --log-bytes 1K",
        2,
        &["--log-bytes", "16 MiB"],
    ),
];

/// A row of the table in docs/TESTING.md.
fn documented(mistake: &str, args: &str, says: &[&str], leaves: &str) -> String {
    let args = args.replace('\u{1b}', "\\x1b");
    format!("| {mistake} | `{args}` | {} | {leaves} |", says.join(" … "))
}

#[track_caller]
fn expect(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
    assert!(!said.contains('\u{1b}'), "a control character: {said:?}");
}

#[test]
fn what_is_refused_leaves_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let dir = place.at("");
    let dir = dir.trim_end_matches('/');
    let before = place.all();
    for row in REFUSED {
        let args: Vec<String> = row
            .args
            .split(' ')
            .map(|word| word.replace("D/", &format!("{dir}/")))
            .collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let said = shale(&args)
            .failed(row.code)
            .replace(&format!("{dir}/"), "D/");
        expect(&said, row.says);
        assert!(said.starts_with("shale mkfs: ") || row.code == 2, "{said}");
        assert_eq!(place.all(), before, "{}", row.args);
        assert!(!Path::new("/dev/nosuch").exists());
    }
    let table = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../docs/TESTING.md"
    ))
    .unwrap();
    for row in REFUSED {
        let line = documented(row.mistake, row.args, row.says, "nothing");
        assert!(table.contains(&line), "docs/TESTING.md has no line\n{line}");
    }
}

#[test]
fn what_is_forced_is_made_and_says_what_it_is() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    // A mount point of a file system of its own is no directory with other files.
    let nvm = format!("{}:100M", place.at("small"));
    let (file, image) = (place.at("V.toml"), format!("{}:64M", place.at("h.img")));
    let mkfs = |more: &[&str]| shale(&[&["mkfs", &file, "--nvm", &nvm], more].concat());
    let said = mkfs(&["--hdd", &image]).ok();
    expect(
        &said,
        &[
            "which is no NVM",
            "on ext4",
            "LOSES the volume",
            "in all (100 MiB of NVM",
        ],
    );
    // A volume that is there is not destroyed, and its place counts as free for the next one.
    expect(
        &mkfs(&[]).failed(1),
        &["V.toml", "volume already", "--force"],
    );
    let larger = format!("{}:200M", place.at("small"));
    fs::rename(&file, place.at("old.toml")).unwrap();
    expect(
        &shale(&["mkfs", &file, "--nvm", &larger]).failed(1),
        &["volume already (seg-0000"],
    );
    let huge = format!("{}:400M", place.at("small/huge.img"));
    let said = mkfs(&["--force", "--hdd", &huge, "--json"]).ok();
    let json = said.lines().find(|line| line.starts_with('{')).unwrap();
    let made: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(made["nvm_host"]["kind"], "ext4");
    assert_eq!(
        made["needs_bytes"].as_u64().unwrap() >> 20,
        100 + 3 * 16 + 16
    );
}

#[test]
fn a_mount_whose_log_finds_no_space_says_how_much() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (file, nvm, mount) = (place.at("V.toml"), place.at("small/nvm"), place.at("mount"));
    fs::create_dir(&mount).unwrap();
    let forced = ["mkfs", &file, "--nvm", &format!("{nvm}:256M"), "--force"];
    shale(&forced).ok();
    let said = shale(&["mount", &file, &mount]).failed(1);
    expect(
        &said,
        &[
            &nvm,
            "the log of the mount takes 64.0 MiB",
            "are free there",
            "--log-bytes",
        ],
    );
    // It can be mounted when there is space, and status tells that the rest has none.
    let small = format!("{nvm}:64M");
    shale(&["mkfs", &file, "--nvm", &small, "--force"]).ok();
    shale(&["mount", &file, &mount]).ok();
    let mut fill = fs::File::create(place.at("small/fill")).unwrap();
    let block = vec![1u8; 1 << 20];
    while std::io::Write::write_all(&mut fill, &block).is_ok() {}
    let status = shale(&["status", &mount]).ok();
    expect(
        &status,
        &[
            "NOT NVM",
            "ext4",
            "NO SPACE",
            "a program's log are not allocated",
        ],
    );
    shale(&["umount", &mount]).ok();
}

#[test]
fn a_medium_that_fills_up_below_an_image_is_a_full_tier() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let image = place.at("small/h.img");
    let below = tempfile::tempdir_in("/var/tmp").unwrap();
    let v = Volume::with_devices(
        "below-full",
        "64M",
        below,
        &[("--force --hdd", Path::new(&image), "512M")],
    );
    v.mount();
    let before = statfs_free(&v);
    let mut fill = fs::File::create(place.at("small/fill")).unwrap();
    let block = vec![1u8; 1 << 20];
    while std::io::Write::write_all(&mut fill, &block).is_ok() {}
    drop(fill);
    let file = v.mountpoint().join("file");
    let data: Vec<u8> = (0..24u32 << 20).map(|n| (n >> 9) as u8).collect();
    fs::write(&file, &data).unwrap();
    let said = v.shale(&["migrate", v.place()]).ok();
    expect(
        &said,
        &[
            &image,
            "nothing is moved to it",
            "the file system below it is full",
        ],
    );
    wait_until("status names it", || {
        v.shale(&["status", v.place()])
            .ok()
            .contains("the file system below it is full")
    });
    // Nobody is promised what cannot be had, and nothing is lost.
    assert!(
        statfs_free(&v) + (300 << 20) < before,
        "{before} {}",
        statfs_free(&v)
    );
    assert!(fs::read(&file).unwrap() == data);
    // With space it goes on by itself.
    fs::remove_file(place.at("small/fill")).unwrap();
    wait_until("the device is in use again", || {
        !v.shale(&["status", v.place()])
            .ok()
            .contains("the file system below it is full")
    });
    let moved = v.shale(&["migrate", "--json", v.place()]).ok();
    let moved: serde_json::Value = serde_json::from_str(&moved).unwrap();
    assert!(moved["moved_bytes"].as_u64().unwrap() > 0, "{moved}");
    assert!(statfs_free(&v) + (100 << 20) > before);
    assert!(fs::read(&file).unwrap() == data);
    v.umount();
    v.fsck();
}

fn statfs_free(v: &Volume) -> u64 {
    let space = rustix::fs::statvfs(v.mountpoint()).unwrap();
    space.f_bavail * space.f_frsize
}

#[test]
fn a_bind_mount_and_another_users_mount_are_called_so() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("names");
    v.mount();
    fs::write(v.mountpoint().join("f"), b"kept").unwrap();
    let other = tempfile::tempdir().unwrap();
    let bind = other.path().to_str().unwrap();
    run("mount", &["--bind", v.place(), bind]);
    for args in [vec!["status", bind], vec!["df", bind], vec!["umount", bind]] {
        let said = shale(&args).failed(4);
        expect(&said, &[bind, "another name (a bind mount)", v.place()]);
        assert!(!said.contains("(shale umount"), "{said}");
    }
    expect(
        &shale(&["mount", v.file(), bind]).failed(1),
        &["another name (a bind mount)"],
    );
    run("umount", &[bind]);
    v.umount();
    // As root sees what a user has mounted: the state of its mount is elsewhere.
    let run_dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let theirs = Volume::new("theirs");
    let hidden = HiddenMount::new(&theirs, run_dir.path());
    let said = theirs.shale(&["status", theirs.place()]).failed(4);
    expect(
        &said,
        &[theirs.place(), "a daemon serves it", "XDG_RUNTIME_DIR"],
    );
    assert!(!said.contains("(shale umount"), "{said}");
    drop(hidden);
    theirs.umount();
}

/// What root sees of a mount that a user has made, where users may mount: in a mount namespace of its own.
#[test]
fn root_is_notified_whose_mount_it_is() {
    if !can_mount() {
        return;
    }
    let own = tempfile::tempdir_in("/dev/shm").unwrap();
    let d = own.path().display();
    let script = format!(
        "set -e
        mkdir {d}/dev {d}/m {d}/run
        mount -t tmpfs -o mode=755 none {d}/dev
        mknod -m 666 {d}/dev/fuse c 10 229
        echo user_allow_other > {d}/dev/fuse.conf
        mount --bind {d}/dev/fuse /dev/fuse
        mount --bind {d}/dev/fuse.conf /etc/fuse.conf
        cp {SHALE} {d}/shale
        chmod 755 {d}; chmod 700 {d}/run; chown -R 65534:65534 {d}/m {d}/run {d}
        user='setpriv --reuid=65534 --regid=65534 --clear-groups env XDG_RUNTIME_DIR={d}/run {d}/shale'
        $user mkfs {d}/V.toml --nvm {d}/nvm:32M
        $user mount -o allow_other {d}/V.toml {d}/m
        for verb in status df; do {SHALE} $verb {d}/m && exit 1 || echo code $?; done
        {SHALE} mount {d}/V.toml {d}/m && exit 1
        $user status {d}/m
        $user umount {d}/m"
    );
    if !Path::new("/etc/fuse.conf").exists() {
        eprintln!("SKIPPED: there is no /etc/fuse.conf");
        return;
    }
    let mut ns = Command::new("unshare");
    ns.args([
        "-m",
        "--propagation",
        "private",
        "timeout",
        "60",
        "bash",
        "-c",
    ]);
    let done = ns.arg(format!("({script}) 2>&1")).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let _ = fs::remove_dir_all(own.path());
    assert!(done.status.success(), "{said}");
    let output = said.matches("user 65534 has mounted it").count();
    assert_eq!(output, 3, "{said}");
    expect(&said, &["code 4", "setpriv --reuid=65534", "unmounted"]);
    assert!(!said.contains("(shale umount"), "{said}");
}

/// A mount whose state is where this user does not look for it.
struct HiddenMount(PathBuf, PathBuf);

impl HiddenMount {
    fn new(v: &Volume, to: &Path) -> HiddenMount {
        v.mount();
        let state = v.socket().parent().unwrap().join("state.json");
        let away = to.join("state.json");
        fs::copy(&state, &away).unwrap();
        fs::remove_file(&state).unwrap();
        HiddenMount(state, away)
    }
}

impl Drop for HiddenMount {
    fn drop(&mut self) {
        fs::copy(&self.1, &self.0).unwrap();
    }
}

#[test]
fn mount_and_fsck_say_the_same_of_a_backup_put_back_in_part() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("backup", "64M", "64M", "64M");
    let write = |name: &str| {
        v.mount();
        fs::write(v.mountpoint().join(name), name).unwrap();
        v.umount();
    };
    write("first");
    let backup = tempfile::tempdir_in("/var/tmp").unwrap();
    let copy = |from: &Path, to: &Path| run("cp", &[from.to_str().unwrap(), to.to_str().unwrap()]);
    let segment = v.dir().join("nvm/seg-0000");
    let images = ["ssd.img", "hdd.img"];
    copy(&segment, &backup.path().join("seg-0000"));
    for image in images {
        copy(&v.below().join(image), &backup.path().join(image));
    }
    for name in ["second", "third", "fourth"] {
        write(name);
    }
    // One device alone: neither mounts nor is called clean, and both say why and what to do.
    let newer = backup.path().join("newer");
    copy(&v.below().join("hdd.img"), &newer);
    copy(&backup.path().join("hdd.img"), &v.below().join("hdd.img"));
    let parts = [
        "hdd.img",
        "older than the rest of the volume",
        "from one backup",
        "--repair --restored",
    ];
    expect(&shale(&["mount", v.file(), v.place()]).failed(1), &parts);
    expect(&shale(&["fsck", v.file()]).failed(3), &parts);
    copy(&newer, &v.below().join("hdd.img"));
    v.fsck();
    // NVM alone, in place: its content is older than the device's, and its label is not.
    let newer = backup.path().join("newer-seg");
    copy(&segment, &newer);
    copy(&backup.path().join("seg-0000"), &segment);
    let parts = [
        "seg-0000: its content is older than the rest of the volume",
        "--repair --restored",
    ];
    expect(&shale(&["mount", v.file(), v.place()]).failed(1), &parts);
    expect(&shale(&["fsck", v.file()]).failed(3), &parts);
    copy(&newer, &segment);
    v.fsck();
    // All of it, in place: contents are old, and the labels of segments, which cp leaves alone, are not.
    copy(&backup.path().join("seg-0000"), &segment);
    for image in images {
        copy(&backup.path().join(image), &v.below().join(image));
    }
    let parts = ["older than the rest of the volume", "--repair --restored"];
    expect(&shale(&["mount", v.file(), v.place()]).failed(1), &parts);
    expect(&shale(&["fsck", v.file()]).failed(3), &parts);
    expect(&shale(&["fsck", v.file(), "--repair"]).failed(3), &parts);
    shale(&["fsck", v.file(), "--repair", "--restored"]).ok();
    v.fsck();
    v.mount();
    let names: Vec<_> = fs::read_dir(v.mountpoint())
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert_eq!(names, ["first"]);
    v.umount();
    v.fsck();
}

#[test]
fn damage_names_fsck_and_a_policy_that_is_not_there_is_an_error() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("damage");
    let text = fs::read_to_string(v.file()).unwrap();
    fs::write(v.file(), text.replace("\"strict\"", "\"lazy\"")).unwrap();
    let parts = ["VOLUME.toml", "durability", "'lazy'", "'strict'"];
    expect(&shale(&["mount", v.file(), v.place()]).failed(1), &parts);
    fs::write(v.file(), text.replace("\"strict\"", "\"buffered\"")).unwrap();
    let parts = ["has durability 'strict'", "'buffered'", "volume file"];
    expect(&shale(&["mount", v.file(), v.place()]).failed(1), &parts);
    let renamed = text.replace("name = \"VOLUME\"", "name = \"\\u001b[31mred\"");
    assert_ne!(renamed, text);
    fs::write(v.file(), renamed).unwrap();
    expect(
        &shale(&["mount", v.file(), v.place()]).failed(1),
        &["name", "control character"],
    );
    fs::write(v.file(), &text).unwrap();
    // The first bitmap block.
    let segment = v.dir().join("nvm/seg-0000");
    let mut bytes = fs::read(&segment).unwrap();
    let place = bytes.chunks(4096).position(|b| b.starts_with(b"SHALEBMP"));
    bytes[place.expect("a bitmap block") * 4096 + 100] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let said = shale(&["mount", v.file(), v.place()]).failed(1);
    expect(
        &said,
        &["damaged volume: bitmap", "shale fsck", v.file(), "--repair"],
    );
    shale(&["fsck", v.file(), "--repair"]).ok();
    v.mount();
    v.umount();
}

#[test]
fn names_of_files_reach_no_terminal_as_they_are() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("escapes", "64M", "64M", "64M");
    v.mount();
    let evil = "\u{1b}]0;owned\u{7}\nclean\u{9b}31m";
    let path = v.mountpoint().join(evil);
    fs::write(&path, vec![7; 3 << 20]).unwrap();
    v.shale(&["migrate", v.place()]).ok();
    let device = v.status()["tiers"][0]["devices"][0]["path"]
        .as_str()
        .unwrap()
        .to_owned();
    let by_device = v.shale(&["where", v.place(), "--device", &device]);
    let all = [
        by_device,
        v.shale(&["where", path.to_str().unwrap()]),
        v.shale(&["status", path.to_str().unwrap()]),
        v.shale(&["scrub", v.place()]),
    ];
    for Said { text, .. } in all {
        let bad = |c: char| c.is_control() && c != '\n' && c != '\t';
        assert!(!text.contains(bad), "{text:?}");
        assert!(
            !text.lines().any(|line| line.starts_with("clean")),
            "{text:?}"
        );
    }
    v.umount();
    v.fsck();
    assert!(Path::new(SHALE).exists());
}
