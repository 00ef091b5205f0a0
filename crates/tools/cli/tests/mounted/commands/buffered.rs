//! Buffered clients on a volume with NVM: what stays in memory, what fsync makes durable, what kills and power cuts leave.

use crate::commands::watch::{get, value, well_formed};
use crate::volume::{Volume, can_mount, chattr, library, lsattr, pattern, shale};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const SHALE: &str = env!("CARGO_BIN_EXE_shale");

fn path(v: &Volume, name: &str) -> PathBuf {
    v.mountpoint().join(name)
}

/// Bytes that the daemon has stored to blocks of files in NVM.
fn data_bytes(v: &Volume) -> u64 {
    let status = v.status();
    let paths = status["device"].as_array().unwrap();
    let data = paths.iter().find(|path| path["path"] == "data").unwrap();
    data["bytes_stored"].as_u64().unwrap()
}

#[test]
fn what_fsync_returned_from_survives_a_power_cut_and_the_rest_a_kill() {
    if !can_mount() {
        return;
    }
    let v = Volume::buffered("buffered");
    v.mount();
    let dir = v.buffer_dir();
    assert!(dir.join("log-000").exists(), "the log of the mount");
    assert_eq!(v.status()["durability"], "buffered");
    fs::create_dir(path(&v, "d")).unwrap();
    for n in 0..40 {
        let mut file = fs::File::create(path(&v, &format!("d/{n}"))).unwrap();
        file.write_all(&pattern(n, 3_000 * n)).unwrap();
        file.sync_all().unwrap();
    }
    assert_eq!(v.status()["buffer"]["unhardened_bytes"], 0);
    for n in 0..20 {
        fs::write(path(&v, &format!("later-{n:02}")), pattern(n, 5_000)).unwrap();
    }
    let lost = v.status()["buffer"]["unhardened_bytes"].as_u64();
    assert!(lost > Some(20 * 5_000), "{lost:?}");
    // The next daemon finds the log in memory.
    v.kill_daemon();
    for n in 0..20 {
        let found = fs::read(path(&v, &format!("later-{n:02}"))).unwrap();
        assert!(found == pattern(n, 5_000), "later-{n:02}");
    }
    for n in 0..20 {
        fs::write(path(&v, &format!("last-{n:02}")), pattern(n, 5_000)).unwrap();
    }
    v.cut_power();
    let said = shale(&["fsck", v.file()]).ok();
    assert!(said.contains("volume is clean"), "{said}");
    v.mount();
    assert_eq!(v.status()["recovery"]["problems"], serde_json::json!([]));
    for n in 0..40 {
        let found = fs::read(path(&v, &format!("d/{n}"))).unwrap();
        assert!(found == pattern(n, 3_000 * n), "file {n}");
    }
    // The first of what was not synced, each as a whole: a call or two of the last one.
    let mut missing = false;
    for n in 0..20 {
        match fs::read(path(&v, &format!("last-{n:02}"))) {
            Ok(found) => {
                assert!(!missing, "last-{n:02} is there, and one before it is not");
                missing = found != pattern(n, 5_000);
                assert!(!missing || found.is_empty(), "last-{n:02} in part");
            }
            Err(_) => missing = true,
        }
    }
    v.umount();
    assert!(!dir.exists(), "nothing is left in memory");
    v.fsck();
}

/// HiNFS §3.2: a block that each fsync finds written once goes directly to NVM; one that is overwritten in between stays in memory. The key
/// `buffering` leaves no choice.
#[test]
fn blocks_that_an_fsync_follows_go_directly_to_nvm() {
    if !can_mount() {
        return;
    }
    const BLOCK: usize = 4096;
    let v = Volume::buffered("eager");
    for buffering in ["model", "lazy", "eager"] {
        let described = fs::read_to_string(v.file()).unwrap();
        let others = described.lines().filter(|l| !l.starts_with("buffering"));
        let lines = others.collect::<Vec<_>>().join("\n");
        let slow = lines.replace("[[nvm]]", "[[nvm]]\nmodel = \"hinfs-800\"");
        let lines = if lines.contains("hinfs-800") {
            lines
        } else {
            slow
        };
        fs::write(v.file(), format!("buffering = \"{buffering}\"\n{lines}\n")).unwrap();
        v.mount();
        let name = path(&v, buffering);
        let file = fs::File::create(&name).unwrap();
        for n in 0..40 {
            // Once before each fsync.
            file.write_all_at(&pattern(n, BLOCK), 0).unwrap();
            // Eight times.
            for m in 0..8 {
                let page = pattern(n + m, BLOCK);
                file.write_all_at(&page, BLOCK as u64).unwrap();
            }
            file.sync_all().unwrap();
        }
        drop(file);
        let bytes = |key: &str| v.status()["buffer"][key].as_u64().unwrap() / BLOCK as u64;
        let (eager, memory) = (bytes("eager_bytes"), bytes("lazy_bytes"));
        assert_eq!(eager + memory, 40 * 9, "{buffering}");
        match buffering {
            "model" => assert_eq!(eager, 39, "all of the first block but its first write"),
            "lazy" => assert_eq!(eager, 0),
            _ => assert_eq!(memory, 0),
        }
        let wrong = v.status()["buffer"]["decided_wrong"].as_u64();
        assert_eq!(wrong, Some(0), "{buffering}");
        v.umount();
        v.mount();
        let found = fs::read(&name).unwrap();
        assert!(found == [pattern(39, BLOCK), pattern(46, BLOCK)].concat());
        v.umount();
    }
    v.fsck();
}

#[test]
fn what_is_removed_before_it_is_written_back_costs_nvm_no_data() {
    if !can_mount() {
        return;
    }
    let v = Volume::buffered("removed");
    v.mount();
    fs::write(path(&v, "stays"), pattern(1, 16_384)).unwrap();
    shale(&["digest", v.place()]).ok();
    let (before, first) = (data_bytes(&v), Instant::now());
    for n in 0..50 {
        fs::write(path(&v, "gone"), pattern(n, 16_384)).unwrap();
        fs::remove_file(path(&v, "gone")).unwrap();
    }
    let said = shale(&["digest", v.place()]).ok();
    let (after, took) = (data_bytes(&v), first.elapsed());
    assert!(took < Duration::from_secs(20), "too slow to say");
    assert_eq!(after, before, "{said}");
    let client = v.status()["clients"][0]["written"].clone();
    let (logged, nvm) = (&client["log_bytes"], &client["nvm_bytes"]);
    assert!(logged.as_u64() > Some(50 * 16_384), "{client}");
    assert!(nvm.as_u64() < Some(3 * 16_384), "{client}");
    v.umount();
    v.fsck();
}

#[test]
fn a_program_can_be_buffered_and_loses_nothing_when_it_is_killed() {
    if !can_mount() || !library().exists() {
        return;
    }
    for (volume, policy) in [
        (Volume::new("run-buffered"), "buffered"),
        (Volume::buffered("run-strict"), "strict"),
    ] {
        volume.mount();
        let script = "import os, sys\n\
            fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o644)\n\
            for n in range(3000): os.write(fd, b'%07d\\n' % n)\n\
            print('written', flush=True)\n\
            sys.stdin.readline()\n";
        let mut run = Command::new(SHALE);
        run.env("SHALE_WARM_CALLS", "0")
            .args(["run", "--durability", policy]);
        run.args(["--", "python3", "-c", script]);
        run.arg(path(&volume, "f"));
        run.env("SHALE_PRELOAD", library());
        run.stdin(std::process::Stdio::piped());
        run.stdout(std::process::Stdio::piped());
        let mut child = run.spawn().unwrap();
        let mut word = [0; 8];
        let said = child.stdout.as_mut().unwrap();
        std::io::Read::read_exact(said, &mut word).unwrap();
        let status = volume.status();
        let clients = status["clients"].as_array().unwrap();
        let client = clients.iter().find(|c| c["kind"] == "direct");
        let client = client.unwrap_or_else(|| panic!("it is no client: {status}"));
        let position = |key: &str| client[key].as_u64().unwrap();
        let unhardened = position("published") - position("hardened");
        match policy {
            "buffered" => assert!(unhardened > 3000 * 64, "{client}"),
            _ => assert_eq!(unhardened, 0, "{client}"),
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let found = fs::read(path(&volume, "f")).unwrap();
        let expected: String = (0..3000).map(|n| format!("{n:07}\n")).collect();
        assert!(found == expected.as_bytes(), "{} bytes", found.len());
        volume.umount();
        volume.fsck();
    }
}

#[test]
fn sync_makes_durable_what_others_have_buffered() {
    if !can_mount() {
        return;
    }
    let v = Volume::buffered("synced");
    let socket = v.dir().join("metrics");
    let metrics = socket.to_str().unwrap();
    shale(&["mount", v.file(), v.place(), "--metrics", metrics]).ok();
    fs::write(path(&v, "f"), pattern(3, 100_000)).unwrap();
    let unhardened = |v: &Volume| v.status()["buffer"]["unhardened_bytes"].as_u64();
    assert!(unhardened(&v) > Some(100_000));
    let scraped = get(&mut UnixStream::connect(&socket).unwrap());
    well_formed(&scraped);
    assert!(value(&scraped, "shale_unhardened_bytes") > 100_000.0);
    assert_eq!(value(&scraped, "shale_buffered_clients"), 1.0);
    shale(&["sync", v.place()]).ok();
    assert_eq!(unhardened(&v), Some(0));
    let said = shale(&["status", v.place()]).ok();
    assert!(
        said.contains("a power cut would lose nothing now"),
        "{said}"
    );
    let top = shale(&["top", v.place(), "--once"]).ok();
    assert!(top.contains("\nbuffer "), "{top}");
    let status: Value = v.status();
    assert_eq!(status["staged"], Value::Null);
    v.umount();
}

#[test]
fn a_volume_that_is_destroyed_leaves_nothing_in_memory() {
    if !can_mount() {
        return;
    }
    let v = Volume::buffered("destroyed");
    v.mount();
    let dir = v.buffer_dir();
    fs::write(path(&v, "f"), pattern(1, 5_000)).unwrap();
    v.kill_all();
    assert!(dir.join("log-000").exists(), "a kill leaves it");
    let nvm = format!("{}:96M", v.dir().join("nvm").display());
    shale(&["mkfs", v.file(), "--nvm", &nvm, "--force"]).ok();
    assert!(!dir.exists());
}

/// `chattr +S` of a directory: what is in it, made later, is written as with `O_SYNC`, and names too.
#[test]
fn a_tree_can_be_synced() {
    if !can_mount() {
        return;
    }
    let v = Volume::buffered("tree");
    v.mount();
    fs::create_dir(path(&v, "d")).unwrap();
    fs::create_dir(path(&v, "names")).unwrap();
    assert!(chattr("+S", &path(&v, "d")) && chattr("+D", &path(&v, "names")));
    let lost = || v.status()["buffer"]["unhardened_bytes"].as_u64().unwrap();
    fs::create_dir(path(&v, "d/below")).unwrap();
    for n in 0..20 {
        let name = path(&v, &format!("d/below/{n}"));
        fs::write(&name, pattern(n, 5_000)).unwrap();
        assert_eq!(lost(), 0, "file {n}");
    }
    assert_eq!(lsattr(&path(&v, "d/below")), "S");
    assert_eq!(lsattr(&path(&v, "d/below/3")), "S");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(path(&v, "d/below/1"));
    let file = file.unwrap();
    file.set_len(800).unwrap();
    assert_eq!(lost(), 0, "a truncate");
    fs::rename(path(&v, "d/below/2"), path(&v, "d/two")).unwrap();
    assert_eq!(lost(), 0, "a rename");
    // Programs that copy flags, or look at them, do so.
    for command in [
        "cp -a d e",
        "tar -cf /dev/null d",
        "cp -r d/below names/copy",
    ] {
        let mut sh = Command::new("sh");
        sh.args(["-c", command]).current_dir(v.mountpoint());
        assert!(sh.status().unwrap().success(), "{command}");
    }
    assert_eq!(lsattr(&path(&v, "names/copy")), "D");
    assert_eq!(lsattr(&path(&v, "names/copy/3")), "");
    fs::write(path(&v, "names/f"), pattern(7, 5_000)).unwrap();
    assert!(
        lost() >= 5_000,
        "the name is durable, and not what is in it"
    );
    fs::remove_file(path(&v, "names/f")).unwrap();
    // That the kernel has forgotten the inode, which frees it, nobody waits for.
    assert!(lost() <= 64, "a removal");
    for n in 0..20 {
        fs::write(path(&v, &format!("plain-{n}")), pattern(n, 5_000)).unwrap();
    }
    assert!(lost() > 20 * 5_000);
    v.cut_power();
    v.mount();
    assert_eq!(v.status()["recovery"]["problems"], serde_json::json!([]));
    for n in 0..20 {
        let name = match n {
            2 => "d/two".to_owned(),
            n => format!("d/below/{n}"),
        };
        let mut expected = pattern(n, 5_000);
        expected.truncate(if n == 1 { 800 } else { 5_000 });
        assert!(fs::read(path(&v, &name)).unwrap() == expected, "{name}");
        assert_eq!(lsattr(&path(&v, &name)), "S");
    }
    assert!(!path(&v, "d/below/2").exists() && !path(&v, "names/f").exists());
    assert!(!path(&v, "plain-19").exists(), "nobody synced it");
    assert!(chattr("-S", &path(&v, "d/two")));
    fs::write(path(&v, "d/two"), pattern(2, 5_000)).unwrap();
    assert!(lost() > 0, "as any other file");
    v.umount();
    v.fsck();
}
