//! A volume that is full gets more NVM between two mounts, and has all that it had.

use crate::volume::{SHALE, Volume, can_mount, library, pattern, shale};
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

const MIB: usize = 1 << 20;

/// Writes files of a MiB until the volume is full; gives how many are whole. The last one that is not is removed.
fn fill(place: &Path, first: usize) -> usize {
    let mut n = first;
    loop {
        let path = place.join(format!("f{n}"));
        let mut file = fs::File::create(&path).unwrap();
        match file
            .write_all(&pattern(n, MIB))
            .and_then(|()| file.sync_all())
        {
            Ok(()) => n += 1,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::StorageFull, "{e}");
                drop(file);
                fs::remove_file(&path).unwrap();
                return n;
            }
        }
    }
}

fn is_whole(place: &Path, files: usize) {
    for n in 0..files {
        let found = fs::read(place.join(format!("f{n}"))).unwrap();
        assert!(found == pattern(n, MIB), "file {n}");
    }
}

fn grow(v: &Volume, size: &str) -> String {
    shale(&["device", "grow", v.file(), "--nvm", size]).ok()
}

#[test]
fn a_full_volume_of_nvm_alone_grows() {
    if !can_mount() {
        return;
    }
    let v = Volume::of_nvm("grow-nvm", "64M");
    v.mount();
    let few = fill(v.mountpoint(), 0);
    assert!(few >= 30, "{few} files");
    // Killed while it is full: what waits in the log goes on waiting.
    v.kill_all();
    let said = grow(&v, "200M");
    assert!(
        said.contains("from 64 MiB to 200 MiB, 4 segments"),
        "{said}"
    );
    v.fsck();
    v.mount();
    is_whole(v.mountpoint(), few);
    let more = fill(v.mountpoint(), few);
    assert!(more > few + 110, "{more} files, {few} before");
    v.kill_daemon();
    is_whole(v.mountpoint(), more);
    for n in (0..more).step_by(2) {
        fs::remove_file(v.mountpoint().join(format!("f{n}"))).unwrap();
    }
    shale(&["scrub", v.place()]).ok();
    v.umount();
    v.fsck();
    let said = shale(&["device", "grow", v.file(), "--nvm", "100M"]).failed(1);
    assert!(said.contains("does not shrink"), "{said}");

    // The bitmap is where fsck looks for it, and is mended there.
    let segment = v.dir().join("nvm/seg-0003");
    let bytes = fs::metadata(&segment).unwrap().len();
    let file = fs::File::options().write(true).open(&segment).unwrap();
    // Superblock, two copies of the device table, two blocks of the bitmap.
    file.write_all_at(&[0xa5; 64], bytes - 5 * 4096 + 2000)
        .unwrap();
    drop(file);
    let said = shale(&["fsck", v.file()]).failed(3);
    assert!(said.contains("bitmap"), "{said}");
    shale(&["fsck", v.file(), "--repair"]).ok();
    v.fsck();
    v.mount();
    for n in (1..more).step_by(2) {
        let found = fs::read(v.mountpoint().join(format!("f{n}"))).unwrap();
        assert!(found == pattern(n, MIB), "file {n}");
    }
    v.umount();
    v.fsck();
}

/// The device table moves with the bitmap: devices come and go on a volume that has grown, and its volume file can be made again.
#[test]
fn a_volume_on_three_tiers_grows_and_its_devices_come_and_go() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("grow-tiers", "64M", "64M", "64M");
    v.mount();
    let few = 40;
    for n in 0..few {
        fs::write(v.mountpoint().join(format!("f{n}")), pattern(n, MIB)).unwrap();
    }
    shale(&["migrate", v.place(), "--bytes", "20M"]).ok();
    v.umount();
    for size in ["130M", "140M"] {
        grow(&v, size);
        v.fsck();
    }
    v.mount();
    let other = v.dir().join("other");
    let replace = [
        "device",
        "replace",
        v.file(),
        "--nvm",
        other.to_str().unwrap(),
    ];
    let said = shale(&replace).failed(1);
    assert!(said.contains("in use by another daemon"), "{said}");
    // With what waits in the log.
    fs::write(v.mountpoint().join("late"), pattern(99, MIB)).unwrap();
    v.kill_all();
    shale(&replace).ok();
    assert!(!v.dir().join("nvm").exists());
    v.fsck();
    v.mount();
    assert!(fs::read(v.mountpoint().join("late")).unwrap() == pattern(99, MIB));
    is_whole(v.mountpoint(), few);
    let image = v.below().join("more.img");
    let more = format!("{}:64M", image.display());
    shale(&["device", "add", v.place(), "--ssd", &more]).ok();
    let first = v.below().join("ssd.img");
    let first = first.to_str().unwrap();
    shale(&["device", "evacuate", v.place(), first]).ok();
    shale(&["device", "remove", v.place(), first]).ok();
    v.kill_daemon();
    is_whole(v.mountpoint(), few);
    shale(&["scrub", v.place()]).ok();
    v.umount();
    v.fsck();
    let text = fs::read_to_string(v.file()).unwrap();
    fs::remove_file(v.file()).unwrap();
    let nvm = v.dir().join("other");
    let (nvm, below) = (nvm.to_str().unwrap(), v.below().join("hdd.img"));
    let places = [nvm, image.to_str().unwrap(), below.to_str().unwrap()];
    shale(&[&["import", v.file()], &places[..]].concat()).ok();
    let again = fs::read_to_string(v.file()).unwrap();
    assert!(
        again.contains(&format!("size_bytes = {}", 140 * MIB)),
        "{again} {text}"
    );
    v.mount();
    is_whole(v.mountpoint(), few);
    v.umount();
    v.fsck();
}

/// As growing leaves a directory that is killed before its first superblock is written, and behind it.
#[test]
fn a_mount_and_fsck_resolve_what_was_cut_short() {
    if !can_mount() {
        return;
    }
    let v = Volume::of_nvm("grow-cut", "64M");
    v.mount();
    fs::write(v.mountpoint().join("f0"), pattern(0, MIB)).unwrap();
    v.umount();
    let old = fs::read_to_string(v.file()).unwrap();
    let (nvm, note) = (v.dir().join("nvm"), v.dir().join("nvm/growing"));
    let begin = |bytes: u64| {
        fs::write(&note, format!("{} {bytes}\n", 64 * MIB)).unwrap();
        fs::write(nvm.join("seg-0001"), vec![7; 5 * MIB]).unwrap();
    };
    let is_resolved = || !note.exists() && !nvm.join("seg-0001").exists();
    begin(69 << 20);
    let said = shale(&["fsck", v.file()]).ok();
    assert!(said.contains("cut short") && is_resolved(), "{said}");
    begin(69 << 20);
    v.mount();
    is_whole(v.mountpoint(), 1);
    assert!(is_resolved());
    v.umount();
    for with_fsck in [true, false] {
        grow(&v, if with_fsck { "80M" } else { "90M" });
        let new = fs::read_to_string(v.file()).unwrap();
        let bytes = (if with_fsck { 80 } else { 90 }) << 20;
        fs::write(&note, format!("{} {bytes}\n", 64 * MIB)).unwrap();
        fs::write(v.file(), &old).unwrap();
        if with_fsck {
            v.fsck();
        }
        v.mount();
        assert_eq!(fs::read_to_string(v.file()).unwrap(), new);
        is_whole(v.mountpoint(), 1);
        v.umount();
        v.fsck();
    }
}

/// A program that maps the volume sees all of it.
#[test]
fn a_program_uses_what_has_grown() {
    if !can_mount() || !library().exists() {
        return;
    }
    let v = Volume::of_nvm("grow-run", "64M");
    grow(&v, "260M");
    v.mount();
    let script = format!(
        "cd {} && head -c 80M /dev/urandom >r && cp r c && cmp r c && rm r c",
        v.place()
    );
    shale(&["run", "--", "sh", "-c", &script]).ok();
    v.umount();
    v.fsck();
}

/// While it is mounted, and programs write on the mount and in their own logs, a volume grows three times. Nothing is lost, no call fails,
/// and what is refused ends no daemon.
#[test]
fn a_mounted_volume_grows_while_programs_write() {
    if !can_mount() {
        return;
    }
    let v = Volume::of_nvm("grow-mounted", "64M");
    v.mount();
    let daemon = || v.status()["daemon_pid"].as_u64().unwrap();
    let first = daemon();
    for (size, why) in [("32M", "does not shrink"), ("900T", "are free there")] {
        let said = shale(&["device", "grow", v.file(), "--nvm", size]).failed(1);
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(daemon(), first, "what cannot be ends no daemon");
    let stop = v.dir().join("stop");
    // Each appends numbers to its own file, and says how far it has come.
    let script =
        "n=0; while [ ! -e \"$1\" ]; do n=$((n+1)); echo $n >>\"$2\" || exit 1; done; echo $n";
    let writer = |file: &str, by: &[&str]| {
        let mut words = by.to_vec();
        let file = v.mountpoint().join(file);
        words.extend(["bash", "-c", script, "writer"]);
        let mut command = std::process::Command::new(words[0]);
        command.args(&words[1..]).arg(&stop).arg(&file);
        command.stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        command.env("SHALE_PRELOAD", library());
        (file, command.spawn().unwrap())
    };
    let run = [SHALE, "run", "--names=0", "--"];
    let writers = [writer("on-mount", &[]), writer("by-log", &run)];
    let mut files = 0;
    for (size, most) in [("128M", 20), ("192M", 60), ("300M", 120)] {
        while files < most {
            fs::write(
                v.mountpoint().join(format!("f{files}")),
                pattern(files, MIB),
            )
            .unwrap();
            files += 1;
        }
        let said = grow(&v, size);
        assert!(said.contains("NVM has grown"), "{said}");
        is_whole(v.mountpoint(), files);
    }
    assert_ne!(daemon(), first);
    fs::write(&stop, "").unwrap();
    for (file, child) in writers {
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success(), "{}: {done:?}", file.display());
        let last: u64 = String::from_utf8(done.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let lines = fs::read_to_string(&file).unwrap();
        let numbers: Vec<u64> = lines.lines().map(|n| n.parse().unwrap()).collect();
        assert_eq!(
            numbers,
            (1..=last).collect::<Vec<_>>(),
            "{}",
            file.display()
        );
        assert!(last > 100, "{last}");
    }
    v.umount();
    v.fsck();
}
