//! Ordered clients on a volume with NVM: fsync costs nothing, a power cut leaves the first of the calls, and none that is older than a
//! second or two is lost.

use crate::volume::{Volume, can_mount, library, pattern, shale, wait_until};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

fn path(v: &Volume, name: &str) -> PathBuf {
    v.mountpoint().join(name)
}

fn buffer(v: &Volume, key: &str) -> u64 {
    v.status()["buffer"][key].as_u64().unwrap()
}

#[test]
fn fsync_costs_nothing_and_all_is_durable_soon() {
    if !can_mount() {
        return;
    }
    let v = Volume::ordered("ordered");
    v.mount();
    assert_eq!(v.status()["durability"], "ordered");
    assert_eq!(v.status()["clients"][0]["durability"], "ordered");
    let synced = OpenOptions::new()
        .custom_flags(libc::O_DSYNC)
        .write(true)
        .create_new(true)
        .open(path(&v, "dsync"))
        .unwrap();
    let file = File::create(path(&v, "fsync")).unwrap();
    for n in 0..100 {
        let page = pattern(n, BLOCK);
        file.write_all_at(&page, (n * BLOCK) as u64).unwrap();
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        synced.write_all_at(&page, (n * BLOCK) as u64).unwrap();
    }
    // The kernel has asked once, and answers by itself since.
    assert_eq!(v.status()["mount_requests"]["FSYNC"], 1);
    assert_eq!(buffer(&v, "copied_bytes"), 0);
    assert_eq!(buffer(&v, "eager_bytes"), 0);
    assert_eq!(buffer(&v, "lazy_bytes"), 200 * BLOCK as u64);
    let written = Instant::now();
    wait_until("nothing is left in memory alone", || {
        buffer(&v, "unhardened_bytes") == 0
    });
    let took = written.elapsed();
    assert!(took < Duration::from_secs(10), "after {took:?}");
    assert_eq!(buffer(&v, "copied_bytes"), 0, "by digests");
    drop((file, synced));
    v.cut_power();
    v.mount();
    assert_eq!(v.status()["recovery"]["problems"], serde_json::json!([]));
    let expected: Vec<u8> = (0..100).flat_map(|n| pattern(n, BLOCK)).collect();
    for name in ["fsync", "dsync"] {
        assert!(fs::read(path(&v, name)).unwrap() == expected, "{name}");
    }
    v.umount();
    v.fsck();
}

/// Of each number: a file of its own, a record at the end of a log, and a file that takes the place of another one; fsync behind each.
#[test]
fn a_power_cut_leaves_the_first_calls() {
    if !can_mount() {
        return;
    }
    let v = Volume::ordered("prefix");
    v.mount();
    fs::create_dir(path(&v, "d")).unwrap();
    let mut log = File::create(path(&v, "log")).unwrap();
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < Duration::from_millis(3_300) {
        let mut file = File::create(path(&v, &format!("d/{count}"))).unwrap();
        file.write_all(&pattern(count, 5_000)).unwrap();
        file.sync_all().unwrap();
        log.write_all(&(count as u64).to_le_bytes()).unwrap();
        log.sync_data().unwrap();
        let mut new = File::create(path(&v, "new")).unwrap();
        new.write_all(&pattern(count, 3_000)).unwrap();
        new.sync_all().unwrap();
        fs::rename(path(&v, "new"), path(&v, "current")).unwrap();
        count += 1;
        sleep(Duration::from_millis(2));
    }
    drop(log);
    v.cut_power();
    v.mount();
    assert_eq!(v.status()["recovery"]["problems"], serde_json::json!([]));
    let log = fs::read(path(&v, "log")).unwrap();
    let words = log.as_chunks::<8>().0.iter();
    let numbers: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
    let kept = numbers.len();
    eprintln!("{kept} of {count} are left");
    assert_eq!(log.len(), kept * 8);
    assert!(0 < kept && kept <= count, "{kept} of {count}");
    assert_eq!(numbers, (0..kept as u64).collect::<Vec<_>>());
    for n in 0..kept {
        let found = fs::read(path(&v, &format!("d/{n}"))).unwrap();
        assert!(found == pattern(n, 5_000), "file {n} of {kept}");
    }
    // The next one may be there, as its calls left it, and none behind it.
    let next = fs::read(path(&v, &format!("d/{kept}"))).unwrap_or_default();
    assert!(next.is_empty() || next == pattern(kept, 5_000));
    let files = fs::read_dir(path(&v, "d")).unwrap().count();
    assert!(files == kept || files == kept + 1, "{files} of {kept}");
    let current = fs::read(path(&v, "current")).unwrap();
    let of = |n: usize| current == pattern(n, 3_000);
    assert!(of(kept - 1) || kept > 1 && of(kept - 2), "of {kept}");
    assert!(files == kept || of(kept - 1), "it was renamed before");
    v.umount();
    v.fsck();
}

/// Runs a program under `shale run` with this policy; it has written and called fsync when this returns, and waits.
fn run(v: &Volume, policy: &str) -> (Child, Value) {
    let script = "import os, sys\n\
        fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o644)\n\
        for n in range(3000): os.write(fd, b'%07d\\n' % n)\n\
        os.fsync(fd)\n\
        print('written', flush=True)\n\
        sys.stdin.readline()\n";
    let mut run = Command::new(env!("CARGO_BIN_EXE_shale"));
    run.env("SHALE_WARM_CALLS", "0")
        .env("SHALE_PRELOAD", library())
        .args(["run", "--durability", policy, "--"])
        .args(["python3", "-c", script])
        .arg(path(v, "f"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = run.spawn().unwrap();
    let mut word = [0; 8];
    let said = child.stdout.as_mut().unwrap();
    std::io::Read::read_exact(said, &mut word).unwrap();
    (child, v.status())
}

#[test]
fn a_program_is_ordered_by_itself_and_others_are_not_on_an_ordered_volume() {
    if !can_mount() || !library().exists() {
        return;
    }
    for (volume, policy) in [
        (Volume::new("on-strict"), "ordered"),
        (Volume::buffered("on-buffered"), "ordered"),
        (Volume::ordered("on-ordered"), "buffered"),
        (Volume::ordered("on-ordered"), "strict"),
    ] {
        volume.mount();
        let (mut child, status) = run(&volume, policy);
        let clients = status["clients"].as_array().unwrap();
        let direct = clients.iter().find(|c| c["kind"] == "direct");
        let direct = direct.unwrap_or_else(|| panic!("it is no client: {status}"));
        assert_eq!(direct["durability"], policy);
        let copied = status["buffer"]["copied_bytes"].as_u64().unwrap();
        match policy {
            "ordered" => {
                assert_eq!(copied, 0, "{status}");
                wait_until("all of it is durable", || {
                    let status = volume.status();
                    let clients = status["clients"].as_array().unwrap().iter();
                    let mut direct = clients.filter(|c| c["kind"] == "direct");
                    direct.all(|c| c["published"] == c["hardened"])
                });
            }
            "buffered" => {
                assert!(copied > 3_000 * 64, "{status}");
                assert_eq!(direct["published"], direct["hardened"], "{direct}");
            }
            _ => assert_eq!(direct["published"], direct["hardened"], "{direct}"),
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
fn sync_waits() {
    if !can_mount() {
        return;
    }
    let v = Volume::ordered("sync");
    v.mount();
    // More often than a second ends meanwhile.
    let begun = Instant::now();
    let mut syncs = 0;
    while syncs < 20 {
        fs::write(path(&v, "f"), pattern(syncs, 100_000)).unwrap();
        shale(&["sync", v.place()]).ok();
        assert_eq!(buffer(&v, "unhardened_bytes"), 0);
        syncs += 1;
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(20), "too slow to say: {took:?}");
    let said = shale(&["status", v.place()]).ok();
    let nothing = "a power cut would lose nothing now";
    assert!(said.contains(nothing), "{said}");
    v.cut_power();
    v.mount();
    assert!(fs::read(path(&v, "f")).unwrap() == pattern(19, 100_000));
    v.umount();
    v.fsck();
}
