//! Volumes that are found by what is on their media, and volume files that are written again from it.

use crate::volume::{can_mount, detach, kill, lives, pattern, shale, wait_until};
use serde_json::Value;
use shale_format::staged::AreaHeader;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A volume of any media, all below one directory. What is left of it goes when it is dropped.
struct Made {
    dir: tempfile::TempDir,
    file: String,
    place: String,
    uuid: String,
}

impl Made {
    /// `args`: of mkfs; `@` is the directory.
    fn new(args: &[&str]) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (file, place) = (at("V.toml"), at("m"));
        fs::create_dir(&place).unwrap();
        let args: Vec<String> = { args.iter() }
            .map(|arg| arg.replace('@', dir.path().to_str().unwrap()))
            .collect();
        let args = args.iter().map(String::as_str);
        let args: Vec<&str> = ["mkfs", &file, "--json"].into_iter().chain(args).collect();
        let made: Value = serde_json::from_str(&shale(&args).ok()).unwrap();
        let uuid = made["uuid"].as_str().unwrap().to_owned();
        Self {
            dir,
            file,
            place,
            uuid,
        }
    }

    fn three_tiers() -> Self {
        Self::new(&[
            "--nvm",
            "@/n:96M",
            "--ssd",
            "@/s.img:64M",
            "--hdd",
            "@/h.img:64M",
        ])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn mount(&self) {
        shale(&["mount", &self.file, &self.place]).ok();
    }

    fn umount(&self) {
        shale(&["umount", &self.place]).ok();
    }

    fn kill(&self) {
        let status = shale(&["status", &self.place, "--json"]).ok();
        let status: Value = serde_json::from_str(&status).unwrap();
        for who in ["supervisor_pid", "daemon_pid"] {
            let pid = status[who].as_u64().unwrap();
            kill(pid);
            wait_until("the process has ended", || !lives(pid));
        }
        detach(Path::new(&self.place));
    }

    /// Renames all members, so that their old names are right no more.
    fn move_members(&self) {
        let old = self.at("moved");
        fs::create_dir(&old).unwrap();
        for name in ["n", "s.img", "s2.img", "h.img"] {
            let _ = fs::rename(self.path(name), self.path("moved").join(name));
        }
    }

    /// What scan says of it.
    fn scanned(&self, places: &[&str]) -> Value {
        let args: Vec<&str> = ["scan", "--json"]
            .into_iter()
            .chain(places.iter().copied())
            .collect();
        let said: Value = serde_json::from_str(&shale(&args).ok()).unwrap();
        let all = said["volumes"].as_array().unwrap().clone();
        let found = all.into_iter().find(|v| v["uuid"] == self.uuid.as_str());
        found.unwrap_or_else(|| panic!("{said}"))
    }

    fn import(&self, args: &[&str]) -> crate::volume::Said {
        let all: Vec<&str> = ["import", &self.file]
            .into_iter()
            .chain(args.iter().copied())
            .collect();
        shale(&all)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if std::thread::panicking() {
            shale(&["umount", &self.place]);
            detach(Path::new(&self.place));
        }
        let _ = fs::remove_dir_all(format!("/dev/shm/shale-{}", self.uuid));
    }
}

/// What of a volume file must be the same again; the rest are names and places.
fn as_made(text: &str) -> String {
    let is_place = |line: &&str| {
        let key = line.split(' ').next().unwrap_or_default();
        !["path", "dir", "device", ""].contains(&key)
    };
    text.lines().filter(is_place).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_volume_file_that_was_lost_is_written_again_and_the_data_is_whole() {
    if !can_mount() {
        return;
    }
    let ssd = "@/s.img:256M";
    for args in [
        &["--nvm", "@/n:64M", "--log-bytes", "16M"][..],
        &[
            "--nvm",
            "@/n:64M",
            "--ssd",
            "@/s.img:64M",
            "--hdd",
            "@/h.img:64M",
        ],
        &[
            "--nvm",
            "@/n:64M",
            "--ssd",
            "@/s.img:64M",
            "--ssd",
            "@/s2.img:96M",
        ],
        &["--ssd", ssd, "--durability", "strict"],
        &[
            "--ssd",
            ssd,
            "--ssd",
            "@/s2.img:64M",
            "--hdd",
            "@/h.img:64M",
            "--staging",
            "32M",
        ],
    ] {
        let v = Made::new(args);
        let before = fs::read_to_string(&v.file).unwrap();
        v.mount();
        fs::write(v.path("m/file"), pattern(3, 9 << 20)).unwrap();
        v.umount();
        fs::remove_file(&v.file).unwrap();
        v.move_members();
        let found = v.scanned(&[&v.at("moved")]);
        assert_eq!(found["complete"], true, "{found}");
        assert_eq!(found["name"], Value::Null);
        v.import(&[&v.at("moved")]).ok();
        let after = fs::read_to_string(&v.file).unwrap();
        // Whether the size of logs was asked for is on no medium.
        let usual = |text: &str| as_made(text).replace("client_log_bytes = 16777216\n", "");
        assert_eq!(usual(&after), usual(&before), "{args:?}");
        assert!(after.contains("/moved/"), "{after}");
        v.mount();
        let read = fs::read(v.path("m/file")).unwrap();
        assert!(read == pattern(3, 9 << 20), "{args:?}");
        v.umount();
        let said = shale(&["fsck", &v.file]).ok();
        assert!(said.contains("volume is clean"), "{said}");
    }
}

#[test]
fn a_volume_file_is_written_again_while_the_volume_is_mounted_and_after_a_kill() {
    if !can_mount() {
        return;
    }
    let v = Made::new(&["--ssd", "@/s.img:256M", "--hdd", "@/h.img:64M"]);
    let before = fs::read_to_string(&v.file).unwrap();
    v.mount();
    let found = v.scanned(&[&v.at("s.img"), &v.at("h.img")]);
    assert_eq!(found["mounted_on"][0], v.place.as_str(), "{found}");
    assert_eq!(found["name"], "V");
    fs::remove_file(&v.file).unwrap();
    v.import(&[&v.at("s.img"), &v.at("h.img")]).ok();
    assert_eq!(fs::read_to_string(&v.file).unwrap(), before);
    // Its next daemon reads it.
    let file = fs::File::create(v.path("m/file")).unwrap();
    file.write_all_at(&pattern(5, 3 << 20), 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    v.kill();
    for memory_is_gone in [false, true] {
        if memory_is_gone {
            fs::remove_dir_all(format!("/dev/shm/shale-{}", v.uuid)).unwrap();
        }
        fs::remove_file(&v.file).unwrap();
        v.import(&[&v.at("s.img"), &v.at("h.img")]).ok();
        v.mount();
        assert!(fs::read(v.path("m/file")).unwrap() == pattern(5, 3 << 20));
        v.kill();
    }
    v.mount();
    v.umount();
}

#[test]
fn settings_that_are_on_no_medium_stay_and_a_right_file_is_left_alone() {
    let v = Made::three_tiers();
    let text = fs::read_to_string(&v.file).unwrap();
    let text = text.replace("name = \"V\"", "name = \"mine\"\ntrusted_uids = [1001]");
    let text = text.replace(
        "/h.img\"",
        "/h.img\"\nmodel = \"disk\"\noverprovision_percent = 7",
    );
    fs::write(&v.file, &text).unwrap();
    let media = [&*v.at("n"), &v.at("s.img"), &v.at("h.img")];
    let said = v.import(&media).failed(1);
    assert!(
        said.contains("V.toml: it is there already (--force"),
        "{said}"
    );
    let said = v.import(&[&["--force"], &media[..]].concat()).ok();
    assert!(said.contains("it is right as it is"), "{said}");
    v.move_members();
    let said = v.import(&["--force", &v.at("moved")]).ok();
    assert!(!said.contains("on no device"), "{said}");
    let after = fs::read_to_string(&v.file).unwrap();
    for part in [
        "\"mine\"",
        "1001",
        "model = \"disk\"",
        "overprovision_percent = 7",
        "/moved/h.img",
    ] {
        assert!(after.contains(part), "{part}: {after}");
    }
    let said = v
        .import(&["--force", "--label", "yours", &v.at("moved")])
        .ok();
    assert!(said.contains("volume 'yours'"), "{said}");
    // Nothing but a volume file is written.
    fs::write(&v.file, "garbage").unwrap();
    v.import(&[&v.at("moved")]).failed(1);
    assert_eq!(fs::read_to_string(&v.file).unwrap(), "garbage");
}

#[test]
fn a_missing_member_is_named() {
    let v = Made::three_tiers();
    fs::remove_file(&v.file).unwrap();
    let (nvm, ssd, hdd) = (&*v.at("n"), &*v.at("s.img"), &*v.at("h.img"));
    let said = v.import(&[nvm, ssd]).failed(1);
    let wanted = format!("of volume {} hdd 0 (device ", v.uuid);
    assert!(
        said.contains(&wanted) && said.contains(") is missing: give its path"),
        "{said}"
    );
    assert!(!Path::new(&v.file).exists());
    let found = v.scanned(&[nvm, ssd]);
    assert_eq!(
        (&found["complete"], &found["members"][2]["state"]),
        (&false.into(), &"missing".into())
    );
    let said = v.import(&[ssd, hdd]).failed(1);
    assert!(
        said.contains("the NVM directory or the SSD with the staging area is missing"),
        "{said}"
    );
    let said = v.import(&["--degraded", nvm, ssd]).ok();
    assert!(said.contains("without hdd 0 (device "), "{said}");
    assert!(!fs::read_to_string(&v.file).unwrap().contains("[[hdd]]"));
    if can_mount() {
        shale(&["mount", &v.file, &v.place]).failed(1);
        let said = shale(&["mount", "--degraded", &v.file, &v.place]).ok();
        assert!(said.contains("the volume file does not name it"), "{said}");
        v.umount();
    }
    fs::remove_file(v.path("n/seg-0000")).unwrap();
    let said = v.import(&["--force", nvm, ssd, hdd]).failed(1);
    assert!(said.contains("seg-0000"), "{said}");
}

#[test]
fn bad_media_are_named_and_never_taken() {
    let v = Made::three_tiers();
    fs::remove_file(&v.file).unwrap();
    let (nvm, ssd, hdd) = (&*v.at("n"), &*v.at("s.img"), &*v.at("h.img"));
    let bad = v.path("bad");
    fs::create_dir(&bad).unwrap();
    fs::write(bad.join("garbage"), pattern(1, 1 << 20)).unwrap();
    fs::write(bad.join("short"), b"SHALEDEV").unwrap();
    fs::write(bad.join("empty"), b"").unwrap();
    fs::create_dir_all(bad.join("nvm")).unwrap();
    fs::write(bad.join("nvm/seg-0000"), pattern(2, 8192)).unwrap();
    // Of a number that no volume can have.
    fs::create_dir_all(bad.join("far")).unwrap();
    fs::write(bad.join(format!("far/seg-{}", u64::MAX)), pattern(3, 8192)).unwrap();
    fs::create_dir_all(bad.join("pipes")).unwrap();
    for pipe in ["pipe", "pipes/seg-0000"] {
        let made = Command::new("mkfifo").arg(bad.join(pipe)).status();
        assert!(made.unwrap().success());
    }
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(bad.join("garbage"), open).unwrap();
    let said = shale(&["scan", bad.to_str().unwrap()]).failed(1);
    assert!(
        said.contains("bad/nvm: ") && said.contains("no volume was found"),
        "{said}"
    );
    let mode = fs::metadata(bad.join("garbage"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o644, "what is looked at is not changed");
    shale(&["scan", "/nowhere/at/all"]).failed(1);
    // Two copies: nobody knows which is newer.
    let copy = &*v.at("copy.img");
    fs::copy(hdd, copy).unwrap();
    let found = v.scanned(&[nvm, ssd, hdd, copy]);
    assert_eq!(found["members"][2]["state"], "copies", "{found}");
    let said = v.import(&[nvm, ssd, hdd, copy]).failed(1);
    assert!(
        said.contains("more than once") && said.contains("copy.img"),
        "{said}"
    );
    // One file by two names is no copy.
    let link = &*v.at("link.img");
    std::os::unix::fs::symlink(hdd, link).unwrap();
    assert_eq!(v.scanned(&[nvm, ssd, hdd, link])["complete"], true);
    // A part of it.
    fs::File::options()
        .write(true)
        .open(copy)
        .unwrap()
        .set_len(8 << 20)
        .unwrap();
    let said = v.import(&[nvm, ssd, copy]).failed(1);
    assert!(
        said.contains("hdd 0 (device ") && said.contains("it has 8388608 bytes"),
        "{said}"
    );
    // One label of two is enough, none is another device.
    let file = fs::File::options().write(true).open(copy).unwrap();
    fs::copy(hdd, copy).unwrap();
    file.write_all_at(&[0; 4096], 0).unwrap();
    assert_eq!(v.scanned(&[nvm, ssd, copy])["complete"], true);
    file.write_all_at(&[0; 4096], 4096).unwrap();
    assert_eq!(v.scanned(&[nvm, ssd, copy])["complete"], false);
    // A member of another volume.
    let other = Made::three_tiers();
    let said = v.import(&[nvm, ssd, &other.at("h.img")]).failed(2);
    assert!(
        said.contains("which volume?") && said.contains(&other.uuid),
        "{said}"
    );
    let said = v
        .import(&["--uuid", &v.uuid, nvm, ssd, &other.at("h.img")])
        .failed(1);
    assert!(
        said.contains("hdd 0 (device ") && said.contains("is missing"),
        "{said}"
    );
    let unknown = "00000000-0000-0000-0000-000000000001";
    let said = v.import(&["--uuid", unknown, nvm]).failed(1);
    assert!(
        said.contains("it was not found") && said.contains(&v.uuid),
        "{said}"
    );
    v.import(&["--uuid", "12", nvm]).failed(2);
    v.import(&["--uuid", &v.uuid, nvm, ssd, hdd, &other.at("n")])
        .ok();
}

#[test]
fn a_staging_area_is_found_once_or_asked_for() {
    let v = Made::new(&["--ssd", "@/s.img:256M"]);
    let text = fs::read_to_string(&v.file).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("at_byte"))
        .unwrap();
    let at_byte: u64 = line.split(' ').next_back().unwrap().parse().unwrap();
    let ssd = &*v.at("s.img");
    let import = |args: &[&str]| {
        fs::remove_file(&v.file).unwrap_or_default();
        v.import(&[args, &[ssd]].concat())
    };
    import(&["--area-at", &at_byte.to_string()]).ok();
    let said = import(&["--area-at", "8388608"]).failed(1);
    assert!(said.contains("no header is there"), "{said}");
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(ssd)
        .unwrap();
    let mut area = vec![0; 8192];
    file.read_exact_at(&mut area, at_byte).unwrap();
    // A copy that lies elsewhere than it says is none; one that says where it lies, as a file could, makes two.
    let elsewhere = at_byte + (4 << 20);
    file.write_all_at(&area, elsewhere).unwrap();
    import(&[]).ok();
    for n in [0, 1] {
        let block = &area[n * 4096..][..4096];
        let mut header = AreaHeader::decode(block, n as u64).unwrap();
        header.at = elsewhere;
        file.write_all_at(&header.encode(), elsewhere + n as u64 * 4096)
            .unwrap();
    }
    let said = import(&[]).failed(1);
    let both = format!("at bytes {at_byte} and {elsewhere}");
    assert!(
        said.contains(&both) && said.contains("--area-at BYTE"),
        "{said}"
    );
    import(&["--area-at", &at_byte.to_string()]).ok();
    file.write_all_at(&[0; 8192], elsewhere).unwrap();
    // One header of two is enough, if it is the newer one; none is none.
    file.write_all_at(&[0; 4096], at_byte).unwrap();
    import(&[]).ok();
    file.write_all_at(&[0; 8192], at_byte).unwrap();
    let said = import(&[]).failed(1);
    assert!(said.contains("the staging area is missing"), "{said}");
}

/// A loop device of an image, until it is dropped.
struct Loop(String);

impl Loop {
    /// None where there are none.
    fn of(image: &Path) -> Option<Self> {
        let made = Command::new("losetup")
            .args(["-f", "--show"])
            .arg(image)
            .output()
            .ok()?;
        let name = String::from_utf8(made.stdout).ok()?;
        made.status.success().then(|| Self(name.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn a_volume_is_mounted_by_its_identity() {
    if !can_mount() {
        return;
    }
    let v = Made::new(&["--ssd", "@/s.img:256M", "--hdd", "@/h.img:64M"]);
    let (Some(ssd), Some(hdd)) = (Loop::of(&v.path("s.img")), Loop::of(&v.path("h.img"))) else {
        eprintln!("SKIPPED: no loop devices");
        return;
    };
    v.mount();
    fs::write(v.path("m/file"), pattern(7, 1 << 20)).unwrap();
    v.umount();
    fs::remove_file(&v.file).unwrap();
    // A device and the file behind it are one.
    assert_eq!(
        v.scanned(&[&ssd.0, &hdd.0, &v.at("s.img")])["complete"],
        true
    );
    let helper = v.at("mount.shale");
    std::os::unix::fs::symlink(crate::volume::SHALE, &helper).unwrap();
    for (spec, options) in [
        (format!("uuid={}", v.uuid), "rw"),
        (format!("UUID={}", v.uuid.replace('-', "")), "x-a=b"),
        (hdd.0.clone(), "noatime"),
    ] {
        let mut mount = Command::new("timeout");
        let mount = mount.args([
            "--signal=KILL",
            "60",
            &helper,
            &spec,
            &v.place,
            "-o",
            options,
        ]);
        let done = mount.output().unwrap();
        assert!(done.status.success(), "{spec}: {done:?}");
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(
            table.contains(&format!("{spec} {} fuse.shale", v.place)),
            "{table}"
        );
        assert!(fs::read(v.path("m/file")).unwrap() == pattern(7, 1 << 20));
        v.umount();
    }
    let spec = format!("uuid={}", v.uuid);
    drop(hdd);
    let said = shale(&["mount", &spec, &v.place]).failed(1);
    assert!(
        said.contains("hdd 0 (device ") && said.contains("is missing"),
        "{said}"
    );
    shale(&["mount", "--degraded", &spec, &v.place]).ok();
    v.umount();
    drop(ssd);
    let said = shale(&["mount", &spec, &v.place]).failed(1);
    assert!(
        said.contains("neither in /etc/shale nor on a block device"),
        "{said}"
    );
    shale(&["mount", "uuid=12-34", &v.place]).failed(2);
    shale(&["mount", "/dev/null", &v.place]).failed(1);
    let _ = fs::remove_file(format!("/run/shale/volumes/{}.toml", v.uuid));
}
