//! What a mount tells about itself: `df`, `status`; what its clients may write: `limit`.

use crate::volume::{SHALE, Volume, can_mount, library, test_named, wait_until};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn rows(v: &Volume) -> Vec<Value> {
    let text = v.shale(&["df", v.place(), "--files", "--json"]).ok();
    serde_json::from_str(&text).unwrap()
}

fn row<'r>(rows: &'r [Value], tier: &str, device: bool) -> &'r Value {
    let mut of_tier = rows.iter().filter(|r| r["tier"] == tier);
    let found = of_tier.find(|r| r["device"].is_string() == device);
    found.unwrap_or_else(|| panic!("no {tier} in {rows:?}"))
}

/// What reports and changes has the same as JSON.
#[test]
fn mount_and_umount_say_as_json_what_they_did() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("json");
    let json = |args: &[&str]| -> Value { serde_json::from_str(&v.shale(args).ok()).unwrap() };
    let mounted = json(&["mount", v.file(), v.place(), "--json"]);
    assert_eq!(mounted["mountpoint"], v.place());
    assert_eq!(mounted["volume"], v.file());
    assert_eq!(mounted["daemon_pid"], v.status()["daemon_pid"]);
    let none: [&str; 0] = [];
    assert_eq!(mounted["recovery_problems"], serde_json::json!(none));
    let again = json(&["mount", "-o", "remount,noatime", v.place(), "--json"]);
    assert_eq!(again["remounted"], v.place());
    assert_eq!(json(&["limit", v.place(), "--json"])["each"], 0);
    let gone = json(&["umount", v.place(), "--json"]);
    assert_eq!(gone["mountpoint"], v.place());
    assert!(!v.is_mounted());
}

#[test]
fn df_says_what_each_device_holds() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("df", "64M", "64M", "128M");
    v.mount();
    for n in 0..3 {
        let path = v.mountpoint().join(format!("file-{n}"));
        fs::write(path, vec![n; 2 << 20]).unwrap();
    }
    // What is being digested counts neither as logged nor as used for a moment.
    v.shale(&["digest", v.place()]).ok();
    let before = rows(&v);
    let used = row(&before, "nvm", true)["used_bytes"].as_u64().unwrap();
    assert!(used >= 6 * MIB, "{before:?}");
    assert_eq!(row(&before, "ssd", true)["files"], 0);
    v.shale(&["migrate", v.place()]).ok();
    // At once: the rate is that of the last ten seconds.
    let migration = v.status()["migration"].clone();
    assert!(migration["moved_bytes"].as_u64().unwrap() >= 6 * MIB);
    assert!(migration["recent_bytes_per_s"].as_u64().unwrap() > 0);
    let after = rows(&v);
    let ssd = row(&after, "ssd", true);
    assert_eq!(
        (&ssd["files"], &ssd["live_bytes"]),
        (&3.into(), &(6 * MIB).into())
    );
    assert_eq!(row(&after, "ssd", false)["live_bytes"], 6 * MIB);
    assert_eq!(row(&after, "nvm", true)["files"], 0);
    assert_eq!(row(&after, "nvm", true)["dirty_bytes"], 0);
    // A digest may come between the two at any time.
    wait_until("something is logged and not digested", || {
        fs::write(v.mountpoint().join("small"), b"x").unwrap();
        row(&rows(&v), "nvm", true)["dirty_bytes"].as_u64().unwrap() > 0
    });
    fs::remove_file(v.mountpoint().join("small")).unwrap();
    fs::remove_file(v.mountpoint().join("file-1")).unwrap();
    v.shale(&["digest", v.place()]).ok();
    let gone = rows(&v);
    let ssd = row(&gone, "ssd", true);
    assert_eq!(
        (&ssd["files"], &ssd["live_bytes"]),
        (&2.into(), &(4 * MIB).into())
    );
    wait_until("the zone in which nothing lives is erased", || {
        row(&rows(&v), "ssd", true)["used_bytes"] == 4 * MIB
    });
    let text = v.shale(&["df", v.place(), "--files"]).ok();
    assert!(
        text.contains("2 files") && text.contains("ssd.img"),
        "{text}"
    );
    let status = v.shale(&["status", v.place(), "--files"]).ok();
    assert!(status.contains("device 0: 4 MiB of 2 files"), "{status}");
    println!("{text}{status}");
    each_adds_up(&v, ssd["device"].as_str().unwrap());
    v.umount();
    v.fsck();
}

/// Another device comes and the first one goes: what each holds adds up to what the tier holds.
fn each_adds_up(v: &Volume, first: &str) {
    let second = v.dir().join("second.img");
    let add = format!("{}:64M", second.display());
    v.shale(&["device", "add", v.place(), "--ssd", &add]).ok();
    v.shale(&["device", "evacuate", v.place(), first]).ok();
    let all = rows(v);
    let devices: Vec<_> = all
        .iter()
        .filter(|r| r["tier"] == "ssd" && r["device"].is_string())
        .collect();
    assert_eq!(devices.len(), 2, "{all:?}");
    assert_eq!(
        (&devices[0]["files"], &devices[0]["state"]),
        (&0.into(), &"empty".into())
    );
    assert_eq!(
        (&devices[1]["files"], &devices[1]["live_bytes"]),
        (&2.into(), &(4 * MIB).into())
    );
    v.shale(&["device", "remove", v.place(), first]).ok();
    let text = v.shale(&["df", v.place(), "--files"]).ok();
    assert!(
        !text.contains("ssd.img") && text.contains("second.img  2 files"),
        "{text}"
    );
}

/// Bytes of one write of a writer.
const EACH: usize = 16 << 10;
/// Writes after which it begins at the start of its file again.
const ROUND: u64 = 256;

/// Not a test: the program that `two_clients_write_and_one_is_limited` runs under `shale run`.
/// Writes as fast as it can, and notes after each write how many there were.
#[test]
#[ignore = "run by another test"]
fn writer() {
    let Ok(path) = std::env::var("SHALE_TEST_WRITER") else {
        return;
    };
    let file = fs::File::create(&path).unwrap();
    let notes = fs::File::create(std::env::var("SHALE_TEST_NOTES").unwrap()).unwrap();
    let mut bytes = vec![0; EACH];
    for n in 0u64.. {
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&n.to_le_bytes());
        }
        file.write_all_at(&bytes, n % ROUND * EACH as u64).unwrap();
        notes.write_all_at(&(n + 1).to_le_bytes(), 0).unwrap();
    }
}

/// A writer under `shale run`, killed when it is dropped.
struct Writer {
    child: Child,
    file: PathBuf,
    notes: PathBuf,
}

impl Writer {
    fn start(v: &Volume, name: &str) -> Self {
        let (file, notes) = (v.mountpoint().join(name), v.dir().join(name));
        let this = std::env::current_exe().unwrap();
        let child = Command::new(SHALE)
            .args(["run", "--"])
            .arg(this)
            .args([
                "--ignored",
                "--exact",
                &test_named(module_path!(), "writer"),
            ])
            .env("SHALE_PRELOAD", library())
            .env("SHALE_WARM_CALLS", "0")
            .env("SHALE_TEST_WRITER", &file)
            .env("SHALE_TEST_NOTES", &notes)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let writer = Self { child, file, notes };
        wait_until("the writer writes", || writer.writes() > 0);
        writer
    }

    /// Writes that returned.
    fn writes(&self) -> u64 {
        let bytes = fs::read(&self.notes).unwrap_or_default();
        bytes
            .first_chunk()
            .map_or(0, |word| u64::from_le_bytes(*word))
    }

    fn status(&self, v: &Volume) -> Value {
        let status = v.status();
        let clients = status["clients"].as_array().unwrap();
        let mine = |c: &&Value| c["pid"] == self.child.id();
        let found = clients.iter().find(mine);
        found
            .unwrap_or_else(|| panic!("not a client: {clients:?}"))
            .clone()
    }

    /// Everything that returned is there.
    fn verify(&self) {
        let (writes, bytes) = (self.writes(), fs::read(&self.file).unwrap());
        for (slot, block) in (0..).zip(bytes.chunks(EACH)) {
            let word = |n: usize| u64::from_le_bytes(*block[n * 8..].first_chunk().unwrap());
            let found = word(0);
            assert!(
                (0..EACH / 8).all(|n| word(n) == found),
                "slot {slot} is torn"
            );
            assert_eq!(found % ROUND, slot);
            assert!(
                found + ROUND >= writes,
                "slot {slot} is of {found}, not {writes}"
            );
        }
        let all = writes.min(ROUND) as usize * EACH;
        assert!(bytes.len() >= all, "{} bytes, not {all}", bytes.len());
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes a second that each writer writes, over some seconds.
fn rates<const N: usize>(writers: [&Writer; N], seconds: f64) -> [f64; N] {
    let (begun, before) = (Instant::now(), writers.map(Writer::writes));
    thread::sleep(Duration::from_secs_f64(seconds));
    let after = writers.map(Writer::writes);
    let passed = begun.elapsed().as_secs_f64();
    std::array::from_fn(|n| (after[n] - before[n]) as f64 * EACH as f64 / passed)
}

#[test]
fn two_clients_write_and_one_is_limited() {
    if !can_mount() || !library().exists() {
        eprintln!("SKIPPED: no mount, or no library");
        return;
    }
    const RATE: f64 = (4 << 20) as f64;
    let v = Volume::new("limit");
    v.mount();
    let (mut slow, free) = (Writer::start(&v, "slow"), Writer::start(&v, "free"));
    let [_, together] = rates([&slow, &free], 2.0);
    let pid = slow.child.id().to_string();
    let limit = ["limit", v.place(), "--client", &pid, "--rate", "4M"];
    let said = v.shale(&limit).ok();
    assert!(said.contains("4 MiB a second"), "{said}");
    thread::sleep(Duration::from_millis(300));
    // Other tests run beside this one: what the other writer reaches at best in a second, not what they leave it.
    let windows = [(); 4].map(|()| rates([&slow, &free], 1.0));
    let limited = windows.iter().map(|w| w[0]).sum::<f64>() / 4.0;
    let alone = windows.iter().map(|w| w[1]).fold(0.0, f64::max);
    println!("limited {limited:.0} of {RATE}; the other {together:.0}, then {alone:.0}");
    // Never more; less where other tests leave it no processor.
    assert!(
        (0.4..1.2).contains(&(limited / RATE)),
        "{limited} bytes a second"
    );
    assert!(
        alone > 0.6 * together,
        "{together}, then {alone} bytes a second"
    );
    // Blocks that were stolen count when they are digested.
    let writes = slow.writes();
    v.shale(&["digest", v.place()]).ok();
    let status = slow.status(&v);
    assert_eq!(status["limit_bytes_per_s"], 4 << 20);
    assert!(status["limited_ms"].as_u64().unwrap() > 1000, "{status}");
    let written = &status["written"];
    let own = ["log_bytes", "stolen_bytes"].map(|key| written[key].as_u64().unwrap());
    assert!(own[0] + own[1] >= writes * EACH as u64, "{status}");
    assert_eq!(free.status(&v)["limit_bytes_per_s"], 0);

    // The next daemon knows it, too.
    v.kill_daemon();
    wait_until("it is a client again", || {
        let clients = v.status()["clients"].clone();
        let clients = clients.as_array().unwrap().clone();
        clients.iter().any(|c| c["pid"] == slow.child.id())
    });
    let [limited] = rates([&slow], 3.0);
    println!("with the next daemon {limited:.0}");
    // Never more; less where other tests leave it no processor.
    assert!(
        (0.4..1.2).contains(&(limited / RATE)),
        "{limited} bytes a second"
    );

    slow.child.kill().unwrap();
    slow.child.wait().unwrap();
    slow.verify();
    let text = v.shale(&["status", v.place()]).ok();
    println!("{text}");
    drop(free);
    v.umount();
    v.fsck();
}
