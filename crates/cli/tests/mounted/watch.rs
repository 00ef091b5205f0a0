//! Watching a mount: `top`.

use crate::volume::{SHALE, Volume, can_mount};
use std::fs;
use std::io::{Read, Write};
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
    let told = v.shale(&["top", v.place()]).failed(2);
    assert!(told.contains("--once"), "{told}");
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
