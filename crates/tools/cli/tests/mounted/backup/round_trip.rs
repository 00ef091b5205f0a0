//! What is restored is what was: by `shale restore` to another volume and in place, by rsync and by tar.

use super::tree::{assert_same, clear_flags, make, seen, set_flags};
use super::{backup, of_each_kind, restore, states, text};
use crate::volume::{Volume, can_mount, shale};
use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn a_tree_comes_back_on_another_volume_of_each_kind() {
    for v in of_each_kind("backup-trip") {
        let beside = tempfile::tempdir_in("/var/tmp").unwrap();
        let dest = beside.path().join("dest");
        make(v.mountpoint());
        set_flags(v.mountpoint());
        let first = backup(&v, &dest);
        assert_eq!(first["unreadable"], 0);
        assert!(first["new_bytes"].as_u64().unwrap() > 700_000, "{first}");
        let other = Volume::new("backup-other");
        other.mount();
        let done = restore(&dest, other.mountpoint(), &[]);
        assert_eq!(done["failed"], 0);
        assert_same(v.mountpoint(), other.mountpoint());
        let said = shale(&["restore", text(&dest), other.place()]).failed(1);
        assert!(said.contains("it is not empty"), "{said}");
        for v in [&v, &other] {
            v.umount();
            v.fsck();
        }
        // The volume is read without a mount, too.
        let said = shale(&["backup", v.file(), text(&dest), "--json", "--full"]).ok();
        let second: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(
            (&second["base"], &second["bytes"]),
            (&serde_json::Value::Null, &first["bytes"])
        );
        other.mount();
        let done = restore(&dest, other.mountpoint(), &["--in-place"]);
        assert_eq!(
            (&done["written_bytes"], &done["removed"]),
            (&0.into(), &0.into()),
            "{done}"
        );
        other.umount();
        v.fsck();
        assert_eq!(states(&dest), ["complete", "complete"]);
        shale(&["backup", "--verify", text(&dest)]).ok();
    }
}

#[test]
fn in_place_everything_is_as_it_was_and_little_is_written() {
    for v in of_each_kind("backup-place") {
        let beside = tempfile::tempdir_in("/var/tmp").unwrap();
        let dest = beside.path().join("dest");
        let at = |name: &str| v.mountpoint().join(name);
        make(v.mountpoint());
        fs::write(at("large"), vec![7; 4 << 20]).unwrap();
        fs::write(at("untouched"), vec![8; 1 << 20]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let before = seen(v.mountpoint());
        backup(&v, &dest);
        // Everything that can happen to a name.
        fs::remove_file(at("empty")).unwrap();
        fs::create_dir(at("empty")).unwrap();
        fs::write(at("empty/new"), "new").unwrap();
        fs::remove_dir_all(at("dir/deeper")).unwrap();
        std::os::unix::fs::symlink("/etc", at("dir/deeper")).unwrap();
        fs::rename(at("fifo"), at("moved")).unwrap();
        fs::write(at("fifo"), "a file").unwrap();
        fs::remove_file(at("a-link")).unwrap();
        fs::copy(at("holes"), at("a-link")).unwrap();
        fs::hard_link(at("holes"), at("another")).unwrap();
        let mut large = fs::OpenOptions::new()
            .write(true)
            .open(at("large"))
            .unwrap();
        std::io::Write::write_all(&mut large, b"changed").unwrap();
        large.set_len(5 << 20).unwrap();
        drop(large);
        fs::write(at("holes"), vec![1; 10_000_000]).unwrap();
        set_flags_of(&at("large"));
        let second = backup(&v, &dest);
        let done = restore(&dest, v.mountpoint(), &["--in-place", "--at", "0001"]);
        let after = seen(v.mountpoint());
        for (name, was) in &before {
            assert_eq!(Some(was), after.get(name), "{name}");
        }
        assert_eq!(before.len(), after.len(), "{:?}", after.keys());
        assert!(done["unchanged"].as_u64().unwrap() >= 2, "{done}");
        let written = done["written_bytes"].as_u64().unwrap();
        // A chunk of the large file, two of the one with holes, and the one that became another.
        assert!((1..2 << 20).contains(&written), "{done}");
        // The second knows what has changed since the first, and is restored as well.
        assert!(second["read_bytes"].as_u64() < Some(40 << 20), "{second}");
        restore(&dest, v.mountpoint(), &["--in-place"]);
        assert_eq!(fs::read(at("empty/new")).unwrap(), b"new");
        assert_eq!(fs::metadata(at("holes")).unwrap().len(), 10_000_000);
        crate::volume::chattr("-i", &at("large"));
        v.umount();
        v.fsck();
    }
}

fn set_flags_of(path: &Path) {
    assert!(crate::volume::chattr("+i", path));
}

#[test]
fn what_has_not_changed_is_neither_read_nor_written() {
    for v in of_each_kind("backup-incremental") {
        let beside = tempfile::tempdir_in("/var/tmp").unwrap();
        let dest = beside.path().join("dest");
        let at = |name: &str| v.mountpoint().join(name);
        fs::write(at("large"), vec![3; 6 << 20]).unwrap();
        fs::write(at("other"), vec![4; 6 << 20]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        backup(&v, &dest);
        let same = backup(&v, &dest);
        assert_eq!(
            (&same["read_bytes"], &same["new_bytes"]),
            (&0.into(), &0.into()),
            "{same}"
        );
        let mut large = fs::OpenOptions::new()
            .write(true)
            .open(at("large"))
            .unwrap();
        std::io::Write::write_all(&mut large, b"changed").unwrap();
        drop(large);
        std::thread::sleep(std::time::Duration::from_millis(50));
        let third = backup(&v, &dest);
        assert_eq!(third["new_bytes"], 128 << 10, "one chunk: {third}");
        assert_eq!(third["read_bytes"], 6 << 20, "one file: {third}");
        v.umount();
    }
}

#[test]
fn damage_is_found_and_reported_by_name() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("backup-damage");
    v.mount();
    let beside = tempfile::tempdir_in("/var/tmp").unwrap();
    let dest = beside.path().join("dest");
    fs::write(v.mountpoint().join("good"), "good").unwrap();
    fs::write(v.mountpoint().join("bad"), vec![5; 300_000]).unwrap();
    let name = backup(&v, &dest)["backup"].as_str().unwrap().to_owned();
    let content = dest.join(&name).join("content");
    let mut bytes = fs::read(&content).unwrap();
    let at = bytes.windows(9).position(|w| w == [5; 9]).unwrap() + 200_000;
    bytes[at] ^= 1;
    fs::write(&content, &bytes).unwrap();
    let said = shale(&["backup", "--verify", text(&dest)]).failed(3);
    assert!(said.contains("/bad: ") && !said.contains("/good"), "{said}");
    let target = beside.path().join("target");
    let said = shale(&["restore", text(&dest), text(&target)]).failed(1);
    assert!(said.contains("/bad: "), "{said}");
    assert_eq!(fs::read(target.join("good")).unwrap(), b"good");
    fs::write(dest.join(&name).join("manifest"), "nothing").unwrap();
    shale(&["restore", text(&dest), text(&beside.path().join("t2"))]).failed(3);
    assert_eq!(states(&dest), ["damaged"]);
    v.umount();
}

/// Programs that everybody has keep the same, but for flags.
#[test]
fn rsync_and_tar_keep_everything_but_flags() {
    for v in of_each_kind("backup-rsync") {
        let beside = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = |name: &str| text(&beside.path().join(name)).to_owned();
        make(v.mountpoint());
        let other = Volume::new("backup-rsync-2");
        other.mount();
        let run = |command: &str| {
            let status = Command::new("sh").args(["-c", command]).status().unwrap();
            assert!(status.success(), "{command}");
        };
        let (from, to) = (v.place(), other.place());
        // Else rsync takes times of the same second for equal.
        run(&format!(
            "rsync -aHAXS --modify-window=-1 {from}/ {}/",
            at("copy")
        ));
        run(&format!(
            "rsync -aHAXS --modify-window=-1 {}/ {to}/",
            at("copy")
        ));
        super::tree::assert_same_below(v.mountpoint(), other.mountpoint());
        let tar = "tar --acls --xattrs --xattrs-include='*' --sparse --format=posix";
        run(&format!(
            "rm -rf {to}/* && cd {from} && {tar} -cf {} *",
            at("tar")
        ));
        run(&format!("cd {to} && {tar} -xpf {}", at("tar")));
        // tar has no sockets.
        fs::remove_file(v.mountpoint().join("socket")).unwrap();
        super::tree::assert_same_below(v.mountpoint(), other.mountpoint());
        v.umount();
        other.umount();
        other.fsck();
    }
}

/// A restore to a file system that is not Shale.
#[test]
fn a_tree_comes_back_on_another_file_system() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("backup-elsewhere");
    v.mount();
    let beside = tempfile::tempdir_in("/var/tmp").unwrap();
    let (dest, target) = (beside.path().join("dest"), beside.path().join("target"));
    make(v.mountpoint());
    backup(&v, &dest);
    set_flags(v.mountpoint());
    backup(&v, &dest);
    restore(&dest, &target, &[]);
    // Its directories count otherwise, and what it has for flags beside these.
    assert!(crate::volume::lsattr(&target.join("dir/file")).contains('i'));
    restore(&dest, &target, &["--in-place", "--at", "0001"]);
    let strip = |all: std::collections::BTreeMap<String, String>| -> Vec<(String, String)> {
        let cut = |s: String| s.split(", flags").next().unwrap().to_owned();
        all.into_iter().map(|(name, s)| (name, cut(s))).collect()
    };
    clear_flags(v.mountpoint());
    crate::volume::chattr("-S", &v.mountpoint().join("dir"));
    let (mut one, mut two) = (strip(seen(v.mountpoint())), strip(seen(&target)));
    let names = |all: &[(String, String)]| all.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
    assert_eq!(names(&one), names(&two));
    let no_blocks = |all: &mut Vec<(String, String)>| {
        all.retain(|(name, _)| {
            name != "\"holes\"" && name != "\"dir/file\"" && !name.contains("link")
        });
    };
    no_blocks(&mut one);
    no_blocks(&mut two);
    assert_eq!(one, two);
    v.umount();
}
