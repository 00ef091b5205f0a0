//! Watching a mount: `top` and metrics.

use crate::volume::{SHALE, Volume, can_mount, shale, wait_until};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

#[test]
fn top_prints_one_picture_for_scripts() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("top", "64M", "64M", "128M");
    v.mount();
    fs::write(v.mountpoint().join("file"), vec![7; 3 << 20]).unwrap();
    v.shale(&["migrate", v.place()]).ok();
    let text = v
        .shale(&["top", v.place(), "--once", "--interval", "0.2"])
        .ok();
    println!("{text}");
    for part in [
        "nvm",
        "ssd",
        "hdd",
        "3 MiB down",
        "mount",
        "others",
        "LEASES",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!text.contains('\x1b'), "{text:?}");
    let output = v.shale(&["top", v.place()]).failed(2);
    assert!(output.contains("--once"), "{output}");
    v.umount();
    v.shale(&["top", v.place(), "--once"]).failed(4);
}

#[test]
fn top_in_a_terminal_hears_keys_and_leaves_it_as_it_was() {
    let has_script = Command::new("script").arg("--version").output().is_ok();
    if !can_mount() || !has_script {
        eprintln!("SKIPPED: no mount, or no script(1)");
        return;
    }
    let v = Volume::new("pty");
    v.mount();
    let command = format!(
        "stty rows 30 cols 110; {SHALE} top {} --interval 0.1; stty -a | grep -o '[- ]icanon'",
        v.place()
    );
    let mut script = Command::new("timeout")
        .args([
            "--signal=KILL",
            "60",
            "script",
            "-qec",
            &command,
            "/dev/null",
        ])
        .env("TERM", "xterm-256color")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = script.stdin.take().unwrap();
    let mut screen = script.stdout.take().unwrap();
    thread::scope(|scope| {
        let seen = scope.spawn(move || {
            let mut text = Vec::new();
            screen.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        thread::sleep(Duration::from_secs(1));
        for key in [&b"\x1b[C"[..], b"r", b"p"] {
            keys.write_all(key).unwrap();
            keys.flush().unwrap();
            thread::sleep(Duration::from_millis(300));
        }
        keys.write_all(b"q").unwrap();
        keys.flush().unwrap();
        let text = seen.join().unwrap();
        assert!(text.contains("\x1b[?1049h"), "the other screen: {text:?}");
        assert!(text.contains("\x1b[?1049l"), "and back: {text:?}");
        for part in ["strict", "nvm", "RATEv", "paused"] {
            assert!(text.contains(part), "{part} is missing in {text:?}");
        }
        assert!(text.contains(" icanon"), "keys are lines again: {text:?}");
    });
    assert!(script.wait().unwrap().success());
    v.umount();
}

/// What `curl` gets; `None`: there is no curl.
fn curl(args: &[&str]) -> Option<String> {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20", "--include"])
        .args(args)
        .output();
    let output = output.ok()?;
    let said = [output.stdout, output.stderr].concat();
    Some(String::from_utf8(said).unwrap())
}

pub fn get(peer: &mut (impl Read + Write)) -> String {
    peer.write_all(b"GET /metrics HTTP/1.1\r\nHost: shale\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    peer.read_to_string(&mut text).unwrap();
    text
}

/// The value of one line.
pub fn value(text: &str, begins: &str) -> f64 {
    let line = text.lines().find(|l| l.starts_with(begins));
    let line = line.unwrap_or_else(|| panic!("{begins} is missing in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Every sample has a family with type and help, and its labels are closed.
pub fn well_formed(text: &str) {
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(body.ends_with("# EOF\n"), "{body}");
    let mut family = String::new();
    for line in body.lines().filter(|l| *l != "# EOF") {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.split(' ');
            let kind = words.next().unwrap();
            assert!(["HELP", "TYPE", "UNIT"].contains(&kind), "{line}");
            family = words.next().unwrap().to_owned();
            continue;
        }
        assert!(line.starts_with(&family), "{line} is not of {family}");
        let (name, number) = line.rsplit_once(' ').unwrap();
        number.parse::<f64>().unwrap();
        assert_eq!(name.contains('{'), name.ends_with('}'), "{line}");
    }
}

#[test]
fn metrics_are_scraped() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("metrics", "64M", "64M", "128M");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = taken.local_addr().unwrap().to_string();
    let mount = |address: &str| v.shale(&["mount", v.file(), v.place(), "--metrics", address]);
    let output = mount(&busy).failed(1);
    assert!(output.contains(&busy), "{output}");
    mount("nonsense").failed(2);
    mount("127.0.0.1:0").ok();
    let place = v.status()["metrics"].as_str().unwrap().to_owned();
    fs::write(v.mountpoint().join("file"), vec![7; 3 << 20]).unwrap();
    v.shale(&["migrate", v.place()]).ok();
    let text = get(&mut TcpStream::connect(&place).unwrap());
    well_formed(&text);
    println!("{text}");
    assert!(text.contains("# UNIT shale_tier_live_bytes bytes"));
    assert_eq!(
        value(&text, "shale_tier_live_bytes{tier=\"ssd\"}"),
        3145728.0
    );
    let moved = "shale_migration_moved_bytes_total{direction=\"down\"}";
    assert_eq!(value(&text, moved), 3145728.0);
    let wrote = text.lines().find(|l| {
        l.starts_with("shale_client_written_bytes_total")
            && l.contains("kind=\"mount\",tier=\"ssd\"")
    });
    assert!(wrote.is_some_and(|l| l.ends_with(" 3145728")), "{wrote:?}");
    assert_eq!(value(&text, "shale_device_errors_total"), 0.0);
    assert_eq!(value(&text, "shale_device_failing"), 0.0);
    let url = format!("http://{place}/metrics");
    match curl(&[&url]) {
        None => eprintln!("no curl here"),
        Some(said) => {
            assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
            well_formed(&said);
            let head = curl(&["--head", &url]).unwrap();
            assert!(head.ends_with("\r\n\r\n"), "{head}");
            let not = curl(&[&format!("http://{place}/other")]).unwrap();
            assert!(not.starts_with("HTTP/1.1 404 "), "{not}");
        }
    }
    // The next daemon serves them at the same place.
    v.kill_daemon();
    let again = || TcpStream::connect(&place).is_ok();
    wait_until("metrics are there again", again);
    well_formed(&get(&mut TcpStream::connect(&place).unwrap()));
    assert_eq!(v.status()["metrics"], place);
    v.umount();
    assert!(TcpStream::connect(&place).is_err());
    v.fsck();

    let socket = v.dir().join("metrics");
    mount(&format!("unix:{}", socket.display())).ok();
    well_formed(&get(&mut UnixStream::connect(&socket).unwrap()));
    v.kill_daemon();
    wait_until("metrics are there again", || {
        UnixStream::connect(&socket).is_ok()
    });
    well_formed(&get(&mut UnixStream::connect(&socket).unwrap()));
    v.umount();
}

/// Names of metrics in a text.
fn names_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("shale_")).collect()
}

/// The Grafana dashboard and the alerts ask for nothing that is not exported. (`scripts/dashboard-test.py` asks a real Prometheus.)
#[test]
fn dashboard_and_alerts_name_what_is_exported() {
    if !can_mount() {
        return;
    }
    // A volume of each kind has metrics of its own.
    let staged = tempfile::tempdir_in("/var/tmp").unwrap();
    let at = |name: &str| staged.path().join(name).to_str().unwrap().to_owned();
    let (file, place) = (at("V.toml"), at("mount"));
    fs::create_dir(&place).unwrap();
    let tiered = Volume::tiered("dashboard", "64M", "64M", "128M");
    let buffered = Volume::buffered("dashboard");
    shale(&["mkfs", &file, "--ssd", &format!("{}:256M", at("ssd.img"))]).ok();
    let volumes = [
        (tiered.file(), tiered.place()),
        (buffered.file(), buffered.place()),
        (&*file, &*place),
    ];
    let mut exported = String::new();
    for (n, (file, place)) in volumes.into_iter().enumerate() {
        let socket = at(&format!("metrics-{n}"));
        shale(&["mount", file, place, "--metrics", &socket]).ok();
        exported += &get(&mut UnixStream::connect(&socket).unwrap());
        shale(&["umount", place]).ok();
    }
    let exported = names_in(&exported);
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../packaging/watch");
    for file in ["grafana-dashboard.json", "prometheus-rules.yml"] {
        let text = fs::read_to_string(format!("{root}/{file}")).unwrap();
        let asked = names_in(&text);
        assert!(asked.len() > 5, "{file}: {asked:?}");
        let unknown: Vec<_> = asked.difference(&exported).collect();
        assert_eq!(unknown, [&""; 0], "{file}");
    }
}
