//! Of which moment a backup is: never has it what was written later without what was written before, by any program,
//! on the mount or under `shale run`, without fsync; and a database is whole.

use super::{backup, of_each_kind, restore};
use crate::volume::{SHALE, Volume, library, with_library};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/mounted/backup/writers.py"
);
const ROUNDS: usize = 12;

/// A program that writes until it is killed, and says how far it is.
struct Writer {
    child: Child,
    said: Arc<AtomicU64>,
}

impl Writer {
    fn start(direct: bool, what: &str, dir: &Path, wait: bool) -> Self {
        let mut command = match direct {
            true => Command::new(SHALE),
            false => Command::new("python3"),
        };
        if direct {
            command.args(["run", "--", "python3"]);
        }
        let mut child = command
            .args([PROGRAM, what])
            .arg(dir)
            .env("SHALE_PRELOAD", library())
            .env("SHALE_WARM_CALLS", "0")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::new(AtomicU64::new(0));
        let (lines, heard) = (BufReader::new(child.stdout.take().unwrap()), said.clone());
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                heard.store(line.trim().parse().unwrap(), Ordering::Release);
            }
        });
        let writer = Self { child, said };
        if wait {
            crate::volume::wait_until("it writes", || writer.said() > 0);
        }
        writer
    }

    fn said(&self) -> u64 {
        self.said.load(Ordering::Acquire)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(path: &Path) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.trim()
        .parse()
        .unwrap_or_else(|e| panic!("{}: {text:?}: {e}", path.display()))
}

/// Files in the order in which each number is written to them: each is as far as the next, or one ahead.
#[track_caller]
fn assert_in_order(files: &[std::path::PathBuf], since: u64, until: u64) {
    let numbers: Vec<u64> = files.iter().map(|file| number(file)).collect();
    for pair in numbers.windows(2) {
        assert!(
            pair[0] == pair[1] || pair[0] == pair[1] + 1,
            "{numbers:?} of {files:?}"
        );
    }
    let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
    assert!(first - last <= 1, "{numbers:?}");
    // What was done before the backup was asked for is in it, and nothing that was done after.
    assert!(
        first >= since && last <= until + 1,
        "{since} <= {numbers:?} <= {until}"
    );
}

fn rounds(v: &Volume, mut check: impl FnMut(&Path, &mut dyn FnMut())) {
    let beside = tempfile::tempdir_in("/var/tmp").unwrap();
    let (dest, target) = (beside.path().join("dest"), beside.path().join("target"));
    for _ in 0..ROUNDS {
        let mut take = || {
            let taken = backup(v, &dest);
            assert_eq!(taken["unreadable"], 0, "{taken}");
            restore(&dest, &target, &["--in-place"]);
        };
        check(&target, &mut take);
    }
}

#[test]
fn nothing_is_there_without_what_was_written_before() {
    of_each_kind("backup-moment").iter().for_each(in_order);
}

/// Their logs lie in memory, and are copied to NVM later.
#[test]
fn nor_where_clients_are_buffered_or_ordered() {
    if with_library("backup-strict").is_none() {
        return;
    }
    for v in [
        Volume::buffered("backup-buffered"),
        Volume::ordered("backup-ordered"),
    ] {
        v.mount();
        in_order(&v);
    }
}

fn in_order(v: &Volume) {
    let writers = [("mount", false), ("run", true)].map(|(name, direct)| {
        let dir = v.mountpoint().join(name);
        fs::create_dir(&dir).unwrap();
        (name, Writer::start(direct, "two-files", &dir, true))
    });
    rounds(v, |target, take| {
        let since: Vec<u64> = writers.iter().map(|(_, w)| w.said()).collect();
        take();
        for ((name, writer), since) in writers.iter().zip(since) {
            let files = ["a", "b", "c"].map(|file| target.join(name).join(file));
            assert_in_order(&files, since, writer.said());
        }
    });
    drop(writers);
    v.umount();
    v.fsck();
}

/// One program writes on the mount and says so to one under `shale run`, which writes then, and the other way round:
/// two clients with logs of their own.
#[test]
fn what_a_program_had_waited_for_is_there_with_what_it_wrote() {
    for v in of_each_kind("backup-cause") {
        let writer = Writer::start(false, "tell-other", v.mountpoint(), true);
        rounds(&v, |target, take| {
            let since = writer.said();
            take();
            let files = ["first", "second", "third"].map(|file| target.join(file));
            assert_in_order(&files, since, writer.said());
        });
        drop(writer);
        // The other program ends with its pipe.
        crate::volume::wait_until("nobody uses it", || {
            crate::volume::shale(&["umount", v.place()]).code == 0
        });
    }
}

/// SQLite's own journals make it whole after a power cut at any moment, and a backup is one: all that had been
/// committed before the backup was asked for is there.
#[test]
fn databases_under_load_are_whole_and_have_what_was_committed() {
    for v in of_each_kind("backup-sqlite") {
        let writers = [("mount", false), ("run", true)].map(|(name, direct)| {
            let dir = v.mountpoint().join(name);
            fs::create_dir(&dir).unwrap();
            (name, Writer::start(direct, "sqlite", &dir, true))
        });
        rounds(&v, |target, take| {
            let since: Vec<u64> = writers.iter().map(|(_, w)| w.said()).collect();
            take();
            for ((name, writer), since) in writers.iter().zip(since) {
                let output = Command::new("python3")
                    .args([PROGRAM, "sqlite-check"])
                    .arg(target.join(name))
                    .output()
                    .unwrap();
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                let count: u64 = said.trim().parse().unwrap_or_else(|_| panic!("{output:?}"));
                let until = writer.said() + 1;
                assert!(
                    (since..=until).contains(&count),
                    "{name}: {since} {count} {until}"
                );
            }
        });
        drop(writers);
        v.umount();
    }
}
