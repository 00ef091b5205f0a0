//! Programs under `shale run` read flash by themselves, and disks by way of the daemon.

use crate::volume::{SHALE, Volume, can_mount, library, pattern};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

const BYTES: usize = 8 << 20;
const BLOCK: usize = 4096;

/// Reads of blocks below NVM since the daemon started: by clients themselves, and by asking.
fn reads(v: &Volume) -> (u64, u64) {
    let migration = &v.status()["migration"];
    let of = |field: &str| migration[field].as_u64().unwrap();
    (of("direct_read_bytes"), of("client_reads"))
}

/// A volume with a file on flash and one on disk.
fn made(name: &str) -> Volume {
    let v = Volume::tiered(name, "64M", "128M", "256M");
    v.mount();
    for (n, tier) in ["ssd", "hdd"].into_iter().enumerate() {
        let path = v.mountpoint().join(tier);
        fs::write(&path, pattern(n, BYTES)).unwrap();
        let pinned = ["pin", path.to_str().unwrap(), "--tier", tier];
        v.shale(&pinned).ok();
    }
    // What is on flash was placed there directly or is pinned to it; nothing is left to be digested.
    v.shale(&["migrate", v.place()]).ok();
    v
}

/// What a program of its own reads of a file.
fn read_by_program(v: &Volume, name: &str) -> Vec<u8> {
    let out = v.dir().join("out");
    let (from, to) = (
        format!("if={}", v.mountpoint().join(name).display()),
        format!("of={}", out.display()),
    );
    v.shale(&["run", "--", "dd", &from, &to, "bs=64k", "status=none"])
        .ok();
    fs::read(out).unwrap()
}

#[test]
fn flash_is_read_by_the_program_and_a_disk_by_the_daemon() {
    if !can_mount() {
        return;
    }
    let v = made("direct");
    let before = reads(&v);
    assert!(read_by_program(&v, "ssd") == pattern(0, BYTES));
    let after = reads(&v);
    assert!(after.0 - before.0 >= BYTES as u64, "{before:?} {after:?}");
    assert_eq!(after.1, before.1, "nobody asked the daemon");
    assert!(read_by_program(&v, "hdd") == pattern(1, BYTES));
    let disk = reads(&v);
    assert_eq!(disk.0, after.0, "no disk is read by a program");
    assert!(disk.1 > after.1);
    v.umount();
    v.fsck();
}

/// A model slows the device down through the daemon alone, so nobody goes past it.
#[test]
fn a_device_with_a_model_is_read_by_the_daemon() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("direct-model", "64M", "128M", "256M");
    let text = fs::read_to_string(v.file()).unwrap();
    fs::write(
        v.file(),
        text.replace("[[ssd]]", "[[ssd]]\nmodel = \"flash\""),
    )
    .unwrap();
    v.mount();
    fs::write(v.mountpoint().join("ssd"), pattern(0, BYTES)).unwrap();
    v.shale(&["migrate", v.place()]).ok();
    let before = reads(&v);
    assert!(read_by_program(&v, "ssd") == pattern(0, BYTES));
    let after = reads(&v);
    assert_eq!(after.0, before.0);
    assert!(after.1 > before.1);
    v.umount();
}

/// What a program finds bad it asks the daemon for, which says EIO and names the block.
#[test]
fn a_bad_block_is_named_anyone_reads_it() {
    if !can_mount() {
        return;
    }
    let v = made("direct-bad");
    v.umount();
    let image = v.below().join("ssd.img");
    let at = 37 * BLOCK;
    let block = &pattern(0, BYTES)[at..at + BLOCK];
    let held = fs::read(&image).unwrap();
    let lies = held.windows(BLOCK).step_by(BLOCK).position(|w| w == block);
    let lies = lies.expect("the block is on flash") * BLOCK;
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(b"spoiled", lies as u64 + 100).unwrap();
    drop(file);
    v.mount();
    let path = v.mountpoint().join("ssd");
    let from = format!("if={}", path.display());
    let one = |skip: usize| {
        let skip = format!("skip={skip}");
        let dd = ["dd", &from, "of=/dev/null", "bs=4k", "count=1", &skip];
        v.shale(&[&["run", "--"], &dd[..]].concat())
    };
    let said = one(37).failed(1);
    assert!(said.contains("Input/output error"), "{said}");
    one(36).ok();
    one(38).ok();
    let bad = v.status()["bad_blocks"].clone();
    assert_eq!(bad.as_array().unwrap().len(), 1, "{bad}");
    let written = fs::File::options().write(true).open(&path).unwrap();
    written.write_all_at(block, at as u64).unwrap();
    drop(written);
    assert!(read_by_program(&v, "ssd") == pattern(0, BYTES));
    v.umount();
    v.fsck();
}

/// A program that reads a block of a file whenever it is given a number, and says the block's first byte.
fn reader(v: &Volume, name: &str) -> Child {
    let script = "import os, sys\n\
        f = os.open(sys.argv[1], os.O_RDONLY)\n\
        for line in sys.stdin:\n    \
            print(os.pread(f, 4096, int(line) * 4096)[0], flush=True)\n";
    let path = v.mountpoint().join(name);
    Command::new(SHALE)
        .args(["run", "--", "python3", "-c", script])
        .arg(path)
        .env("SHALE_PRELOAD", library())
        .env("SHALE_WARM_CALLS", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Blocks move, their zones are erased and written with others, and the daemon is killed, while a program reads by itself.
#[test]
fn what_moves_under_a_program_that_reads_is_right() {
    if !can_mount() {
        return;
    }
    let v = made("direct-moves");
    let mut child = reader(&v, "ssd");
    let mut to = child.stdin.take().unwrap();
    let mut from = BufReader::new(child.stdout.take().unwrap()).lines();
    let expected = pattern(0, BYTES);
    let mut read = |n: usize| {
        writeln!(to, "{n}").unwrap();
        let said = from.next().expect("it reads on").unwrap();
        assert_eq!(said, expected[n * BLOCK].to_string(), "block {n}");
    };
    let own = v.mountpoint().join("ssd");
    let pin = |tier: &str| {
        drop(
            v.shale(&["pin", own.to_str().unwrap(), "--tier", tier])
                .ok(),
        )
    };
    let mut direct = 0;
    for turn in 0..12usize {
        let before = reads(&v).0;
        (turn..BYTES / BLOCK).step_by(97).for_each(&mut read);
        direct += u64::from(reads(&v).0 > before);
        pin("nvm");
        // What was on flash is dead, and others come to its zones.
        let other = v.mountpoint().join("other");
        fs::write(&other, pattern(turn + 2, 3 * BYTES)).unwrap();
        v.shale(&["digest", v.place()]).ok();
        pin("ssd");
        v.shale(&["migrate", v.place()]).ok();
        fs::remove_file(&other).unwrap();
        v.shale(&["digest", v.place()]).ok();
        if turn % 5 == 3 {
            v.kill_daemon();
        }
    }
    (0..BYTES / BLOCK).for_each(&mut read);
    assert!(direct > 6, "in {direct} of 12 turns it read by itself");
    let erased = v.status()["tiers"][0]["zones_erased"].as_u64();
    assert!(erased > Some(0), "{}", v.status()["tiers"]);
    drop(to);
    assert!(child.wait().unwrap().success());
    v.umount();
    v.fsck();
}
