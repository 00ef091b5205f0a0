//! Supervisor and daemon: killed, alone, ending, given up; nothing is lost, and a mount never hangs.

use crate::volume::{self, Signal, Volume, can_mount, detach, kill, signal, wait_until};
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn what_was_written_is_there_after_the_next_mount() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("again");
    v.mount();
    let file = v.mountpoint().join("file");
    fs::write(&file, b"hello").unwrap();
    fs::create_dir(v.mountpoint().join("dir")).unwrap();
    let big: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7) as u8).collect();
    fs::write(v.mountpoint().join("dir/big"), &big).unwrap();
    let said = v.shale(&["digest", v.place()]).ok();
    assert!(said.contains("records"), "{said}");
    v.umount();
    assert!(fs::read_dir(v.mountpoint()).unwrap().next().is_none());
    let logs = v.shale(&["log", "show", v.file()]).ok();
    assert!(logs.contains("no logs"), "{logs}");
    v.fsck();

    v.mount();
    assert_eq!(fs::read(&file).unwrap(), b"hello");
    assert!(fs::read(v.mountpoint().join("dir/big")).unwrap() == big);
    fs::remove_file(&file).unwrap();
    v.umount();
    v.mount();
    assert!(!file.exists());
    v.umount();
}

#[test]
fn a_killed_daemon_is_not_seen_and_nothing_is_lost() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("kill");
    v.mount();
    let path = v.mountpoint().join("numbers");
    let (stop, mut kills) = (AtomicBool::new(false), 0);
    let written = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut file = fs::File::create(&path).unwrap();
            let mut n = 0u64;
            while !stop.load(Ordering::Relaxed) {
                file.write_all(&n.to_le_bytes())
                    .expect("the write saw the kill");
                n += 1;
                if n.is_multiple_of(64) {
                    let extra = v.mountpoint().join(format!("extra-{n}"));
                    fs::write(&extra, b"x").expect("the create saw the kill");
                    fs::remove_file(&extra).expect("the unlink saw the kill");
                }
            }
            n
        });
        let _stop = volume::StopOnDrop(&stop);
        while kills < 5 {
            let status = v.status();
            let old = status["daemon_pid"].as_u64().unwrap();
            kill(old);
            wait_until("another daemon answers", || v.status()["daemon_pid"] != old);
            thread::sleep(Duration::from_millis(50));
            kills += 1;
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert!(written > 0);
    let check = || {
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, written * 8, "each write once");
        for (n, word) in bytes.chunks(8).enumerate() {
            assert_eq!(word, (n as u64).to_le_bytes());
        }
        let names: Vec<_> = fs::read_dir(v.mountpoint()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    };
    check();
    assert_eq!(v.status()["restarts"], kills);
    v.umount();
    v.fsck();
    v.mount();
    check();
    v.umount();
}

#[test]
fn a_file_open_across_a_kill_stays_open() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("open");
    v.mount();
    let path = v.mountpoint().join("unlinked");
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.write_all_at(b"before", 0).unwrap();
    fs::remove_file(&path).unwrap();
    v.kill_daemon();
    let mut back = [0; 6];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"before");
    file.write_all_at(b"after!", 0).unwrap();
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"after!");
    drop(file);
    v.umount();
}

#[test]
fn status_says_who_serves_and_how() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("status");
    v.mount();
    let status = v.status();
    for key in ["daemon_pid", "supervisor_pid", "uptime_s", "restarts"] {
        assert!(status[key].is_u64(), "{key} in {status:#}");
    }
    let exe = |key: &str| fs::read_link(format!("/proc/{}/exe", status[key])).unwrap();
    assert_eq!(exe("daemon_pid"), Path::new(volume::SHALE));
    assert_eq!(exe("supervisor_pid"), Path::new(volume::SHALE));
    assert_eq!(status["persistence"], "emulated");
    assert_eq!(status["mountpoint"], v.place());
    assert_eq!(status["volume"], v.file());
    assert_eq!(status["supervised"], true);
    assert!(status["space"]["total_bytes"].as_u64().unwrap() > 0);
    assert_eq!(status["clients"].as_array().unwrap().len(), 1);
    assert!(status["digest"]["records"].is_u64());
    assert!(Path::new(status["log"].as_str().unwrap()).is_file());
    let text = v.shale(&["status", v.place()]).ok();
    assert!(
        text.contains("not a power cut") && text.contains("process"),
        "{text}"
    );

    fs::write(v.mountpoint().join("f"), b"12345").unwrap();
    let json = v.shale(&["digest", v.place(), "--json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["records"].as_u64().unwrap() >= 2, "{json}");
    let logs = v.shale(&["log", "show", v.file(), "--json"]).ok();
    let log: serde_json::Value = serde_json::from_str(logs.lines().next().unwrap()).unwrap();
    assert!(log["digested"].as_u64().unwrap() > 0, "{log}");
    v.umount();
}

#[test]
fn a_busy_mount_stays_and_a_lazy_unmount_does_not_wait() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("busy");
    v.mount();
    let path = v.mountpoint().join("open");
    let file = fs::File::create(&path).unwrap();
    let busy = v.shale(&["umount", v.place()]).failed(1);
    let pid = format!("process {}", std::process::id());
    assert!(busy.contains("in use by") && busy.contains(&pid), "{busy}");
    assert!(busy.contains("--lazy"), "{busy}");

    let supervisor = v.status()["supervisor_pid"].as_u64().unwrap();
    let lazy = v.shale(&["umount", "--lazy", v.place()]).ok();
    assert!(
        lazy.contains("still in use by") && lazy.contains(&pid),
        "{lazy}"
    );
    assert!(!v.is_mounted() && !path.exists());
    file.write_all_at(b"late", 0).unwrap();
    drop(file);
    wait_until("the supervisor ends with the last file", || {
        !volume::lives(supervisor)
    });
    v.mount();
    assert_eq!(fs::read(&path).unwrap(), b"late");
    v.umount();
}

#[test]
fn without_supervisor_the_mount_ends_when_nobody_uses_it() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("alone");
    v.mount();
    let path = v.mountpoint().join("used");
    let file = fs::File::create(&path).unwrap();
    let status = v.status();
    kill(status["supervisor_pid"].as_u64().unwrap());
    wait_until("the daemon is alone", || v.status()["supervised"] == false);
    let alone = v.shale(&["status", v.place()]).ok();
    assert!(alone.contains("ends when nobody uses it"), "{alone}");
    thread::sleep(Duration::from_millis(1500));
    file.write_all_at(b"still served", 0).unwrap();
    assert!(v.is_mounted());
    drop(file);
    wait_until("the mount is gone", || !v.is_mounted());
    let daemon = status["daemon_pid"].as_u64().unwrap();
    wait_until("the daemon has ended", || !volume::lives(daemon));
    assert!(
        !Path::new(status["log"].as_str().unwrap()).exists(),
        "its state is gone"
    );
    v.mount();
    assert_eq!(fs::read(&path).unwrap(), b"still served");
    v.umount();
}

#[test]
fn a_mount_whose_processes_are_gone_is_taken_away() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("stale");
    v.mount();
    fs::write(v.mountpoint().join("kept"), b"kept").unwrap();
    let status = v.status();
    kill(status["supervisor_pid"].as_u64().unwrap());
    kill(status["daemon_pid"].as_u64().unwrap());
    wait_until("both are gone", || {
        ["supervisor_pid", "daemon_pid"]
            .iter()
            .all(|key| !volume::lives(status[key].as_u64().unwrap()))
    });
    for verb in [vec!["status", v.place()], vec!["digest", v.place()]] {
        let text = v.shale(&verb).failed(4);
        assert!(
            text.contains("daemon is gone") && text.contains("shale umount"),
            "{text}"
        );
    }
    let text = v.shale(&["mount", v.file(), v.place()]).failed(1);
    assert!(
        text.contains("daemon is gone") && text.contains("shale umount"),
        "{text}"
    );
    let text = v.shale(&["umount", v.place()]).ok();
    assert!(
        text.contains("was gone") && text.contains("recovers"),
        "{text}"
    );
    v.mount();
    assert_eq!(fs::read(v.mountpoint().join("kept")).unwrap(), b"kept");
    v.umount();
    // Unmounted by somebody else in between: what is left of it is no hindrance.
    v.mount();
    let status = v.status();
    kill(status["supervisor_pid"].as_u64().unwrap());
    kill(status["daemon_pid"].as_u64().unwrap());
    volume::detach(v.mountpoint());
    wait_until("the daemon is gone", || {
        !volume::lives(status["daemon_pid"].as_u64().unwrap())
    });
    v.mount();
    v.umount();
}

#[test]
fn the_foreground_ends_with_the_mount() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("front");
    let mut front = std::process::Command::new(volume::SHALE)
        .args(["mount", "--foreground", v.file(), v.place()])
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it is mounted", || v.is_mounted());
    fs::write(v.mountpoint().join("f"), b"1").unwrap();
    assert_eq!(v.status()["supervisor_pid"], front.id());
    // As SIGTERM or the terminal's interrupt would end it.
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&front),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    front.wait().unwrap();
    wait_until("the mount ends after it", || !v.is_mounted());
    wait_until("the volume is free", || {
        v.shale(&["mount", v.file(), v.place()]).code == 0
    });
    assert_eq!(fs::read(v.mountpoint().join("f")).unwrap(), b"1");
    v.umount();
}

#[test]
fn a_daemon_killed_while_it_unmounts_is_followed_by_one_that_digests() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("flush_logs");
    v.mount();
    let path = v.mountpoint().join("big");
    let bytes = vec![7u8; 9 << 20];
    fs::write(&path, &bytes).unwrap();
    let daemon = v.status()["daemon_pid"].as_u64().unwrap();
    // Stopped, it cannot end before it is killed.
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(daemon as i32).unwrap(),
        rustix::process::Signal::STOP,
    )
    .unwrap();
    let umount = thread::scope(|scope| {
        let umount = scope.spawn(|| v.shale(&["umount", v.place()]));
        wait_until("the name is gone", || !v.is_mounted());
        kill(daemon);
        umount.join().unwrap()
    });
    umount.ok();
    let logs = v.shale(&["log", "show", v.file()]).ok();
    assert!(logs.contains("no logs"), "{logs}");
    assert!(v.state().is_none());
    v.mount();
    assert!(fs::read(&path).unwrap() == bytes);
    v.umount();
}

#[test]
fn a_mount_that_cannot_be_served_any_more_is_given_up() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("given-up");
    v.mount();
    fs::write(v.mountpoint().join("kept"), b"kept").unwrap();
    let (nvm, away) = (v.dir().join("nvm"), v.dir().join("away"));
    let daemon = v.status()["daemon_pid"].as_u64().unwrap();
    fs::rename(&nvm, &away).unwrap();
    kill(daemon);
    // Waits, and gets an error in the end.
    fs::write(v.mountpoint().join("lost"), b"").unwrap_err();
    wait_until("the supervisor has given up", || {
        v.state().is_some_and(|state| state["failure"].is_string())
    });
    let text = v.shale(&["status", v.place()]).failed(4);
    assert!(
        text.contains("given up") && text.contains("missing"),
        "{text}"
    );
    fs::rename(&away, &nvm).unwrap();
    let text = v.shale(&["umount", v.place()]).ok();
    assert!(
        text.contains("given up") && text.contains("recovers"),
        "{text}"
    );
    v.mount();
    assert_eq!(fs::read(v.mountpoint().join("kept")).unwrap(), b"kept");
    v.umount();
}

#[test]
fn a_mount_whose_daemon_is_still_ending_is_waited_for() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("ending");
    v.mount();
    for round in 0..5 {
        let name = v.mountpoint().join(round.to_string());
        fs::write(&name, b"kept").unwrap();
        let daemon = v.status()["daemon_pid"].as_u64().unwrap();
        // It has to see that the mount has gone, digest and end, and cannot yet.
        signal(daemon, Signal::STOP);
        detach(v.mountpoint());
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(300));
                signal(daemon, Signal::CONT);
            });
            v.mount();
        });
        assert_eq!(fs::read(&name).unwrap(), b"kept");
    }
    v.umount();
}

#[test]
fn kills_during_the_start_are_survived() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("start");
    for round in 0..6u64 {
        let mount = thread::scope(|scope| {
            let mount = scope.spawn(|| v.shale(&["mount", v.file(), v.place()]));
            let begun = Instant::now();
            // From before the volume is open to after the first request is answered.
            while begun.elapsed() < Duration::from_secs(5) {
                if let Some(pid) = v.recorded_daemon() {
                    thread::sleep(Duration::from_millis(round * 4));
                    kill(pid);
                    break;
                }
            }
            mount.join().unwrap()
        });
        if mount.code == 0 {
            fs::write(v.mountpoint().join(format!("f{round}")), b"1").unwrap();
            v.umount();
        } else {
            // Killed before there was a mount: `mount` says so and leaves nothing.
            assert!(mount.text.contains("the daemon died"), "{}", mount.text);
            assert!(!v.is_mounted());
        }
    }
    v.mount();
    v.umount();
}
