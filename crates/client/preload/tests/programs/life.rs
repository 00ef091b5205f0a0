//! Programs that end, in all ways, with something left to be written: what is in their files then is what it
//! is on tmpfs, byte for byte.

use crate::mount::Mounted;
use crate::tools::{Run, compile, has, library, output};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Ways to end: `life.cc` says what they are.
const ENDS: [&str; 11] = [
    "return", "exit", "thread", "_exit", "quick", "abort", "term", "kill", "last", "exec", "noexec",
];
/// Whether, and where, it makes a child first.
const FORKS: [&str; 4] = ["none", "before", "handler", "handler-exit"];
/// Calls after which it becomes a client: at once, early, while it ends, never.
const WARM_CALLS: [&str; 5] = ["0", "30", "350", "650", "1000000000"];

/// The program and its two libraries.
fn programs() -> [PathBuf; 3] {
    let [program, kept, closed] = ["life", "kept.so", "closed.so"].map(output);
    compile("c++", "life.cc", &program, &["-O2", "-pthread"]);
    for (library, name) in [(&kept, "kept"), (&closed, "closed")] {
        let name = format!("-DLIBRARY=\"{name}\"");
        let args = ["-O2", "-shared", "-fPIC", &name];
        compile("cc", "life_library.c", library, &args);
    }
    [program, kept, closed]
}

/// What a run leaves: how it ended, what it said, its files.
#[derive(PartialEq)]
struct Left {
    status: i32,
    said: String,
    files: BTreeMap<String, Vec<u8>>,
}

impl Left {
    fn of(run: Run, dir: &Path) -> Self {
        let run = run.stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = run.spawn().wait_with_output().unwrap();
        let mut said = String::from_utf8_lossy(&ended.stdout).into_owned();
        said += &String::from_utf8_lossy(&ended.stderr);
        let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap());
        let content = |path: PathBuf| fs::read(path).unwrap();
        Self {
            status: ended.status.into_raw(),
            said,
            files: entries
                .map(|e| (e.file_name().into_string().unwrap(), content(e.path())))
                .collect(),
        }
    }

    /// Where another one differs.
    fn differs(&self, other: &Self) -> String {
        let mut all = format!(
            "ended {} and {}, said {:?} and {:?}",
            self.status, other.status, self.said, other.said
        );
        let names = self.files.keys().chain(other.files.keys());
        for name in names {
            let [here, there] = [self, other].map(|l| l.files.get(name));
            if here != there {
                let bytes = [here, there].map(|f| f.map(Vec::len));
                all += &format!("; {name}: bytes {bytes:?}");
            }
        }
        all
    }
}

#[test]
fn what_is_written_at_the_end_is_there() {
    let Some(m) = Mounted::new() else { return };
    if !has("c++") {
        eprintln!("SKIPPED: needs c++");
        return;
    }
    let [program, kept, closed] = programs();
    let run = |dir: &Path, how: &str, forks: &str| {
        fs::create_dir(dir).unwrap();
        let run = Run::bare(&m, "timeout").args(["-k", "5", "60"]);
        let run = run.arg(&program).arg(dir).args([how, forks]);
        run.arg(&kept).arg(&closed)
    };
    let mut wrong = Vec::new();
    for how in ENDS {
        for forks in FORKS {
            let name = format!("{how} {forks}");
            let dir = m.beside(&name);
            let right = Left::of(run(&dir, how, forks).without_library(), &dir);
            assert!(
                right.files.len() > 9 && right.said.len() < 40,
                "{name}: {}",
                right.said
            );
            for calls in WARM_CALLS {
                let dir = m.path().join(format!("{name} {calls}"));
                let with = run(&dir, how, forks).env("SHALE_WARM_CALLS", calls);
                let found = Left::of(with, &dir);
                if found != right {
                    wrong.push(format!("{name}, {calls} calls: {}", right.differs(&found)));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} runs differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// A panic in the library, at every place that a call comes by, ends what it does for the process. No call of
/// the program tells of it, and nothing is lost or done twice.
#[cfg(feature = "failpoints")]
#[test]
fn a_panic_of_the_library_is_not_the_programs() {
    let Some(m) = Mounted::new() else { return };
    let program = crate::tools::compiled("panics");
    let places = [
        "call-inside",
        "append-reserved",
        "append-filled",
        "call-appended",
    ];
    for threads in [1, 4] {
        for place in places {
            for number in [1, 2, 7, 40, 90, 301] {
                let name = format!("{place} {number} {threads}");
                let (dir, report) = (m.dir(&name), m.beside(&name));
                let run = Run::of(&m, &program).arg(&dir).arg(threads.to_string());
                let run = run
                    .env("SHALE_WARM_CALLS", "0")
                    .env("SHALE_REPORT", &report)
                    .env("SHALE_FAILPOINT", format!("{place}:{number}:panic"));
                let left = Left::of(run, &dir);
                assert_eq!(left.status, 0, "{name}: {}", left.said);
                let output: Vec<_> = left.said.lines().collect();
                let internal = |l: &&&str| l.contains("internal error at") && l.contains(place);
                // Those who waited for the record of the one that panicked panic as well.
                let lines = output.iter().filter(internal).count();
                assert_eq!(lines, 1, "{name}: {}", left.said);
                assert!(output.len() <= 1 + 2 * threads, "{name}: {}", left.said);
                let report = fs::read_to_string(&report).unwrap();
                assert!(report.contains(&format!("a panic at {place}")), "{report}");
                let shared = String::from_utf8(left.files["shared0"].clone()).unwrap();
                for thread in 0..threads {
                    let lines = shared
                        .lines()
                        .filter(|l| l.starts_with(&format!("thread {thread} ")));
                    let numbers =
                        lines.map(|l| l.split(' ').nth(3).unwrap().parse::<usize>().unwrap());
                    assert!(numbers.eq(0..120), "{name}: thread {thread}");
                }
            }
        }
    }
}

/// What a program throws passes frames of the library, which has an unwinder of its own; and a thread is cancelled in calls that are
/// served, but not in the middle of the library.
#[test]
fn exceptions_and_cancelled_threads_unwind_as_without_the_library() {
    let Some(m) = Mounted::new() else { return };
    let program = output("unwind");
    compile("c++", "unwind.cc", &program, &["-O2", "-pthread"]);
    let run = || Run::of(&m, &program).arg(m.path());
    let expected = "61 caught, 60 cancelled, 180 destroyed\n";
    assert_eq!(run().without_library().output(), expected);
    for calls in WARM_CALLS {
        let said = run().env("SHALE_WARM_CALLS", calls).output();
        assert_eq!(said, expected, "{calls} calls");
    }
}

/// Functions in which libc has a thread end that is cancelled, as far as the standard library or another one may call them.
const CANCELLATION_POINTS: [&str; 24] = [
    "accept",
    "accept4",
    "clock_nanosleep",
    "connect",
    "fcntl64",
    "nanosleep",
    "poll",
    "ppoll",
    "preadv",
    "pselect",
    "pthread_cond_timedwait",
    "pthread_cond_wait",
    "pthread_join",
    "pwritev",
    "readv",
    "recv",
    "recvfrom",
    "recvmsg",
    "select",
    "send",
    "sendmsg",
    "sendto",
    "waitpid",
    "writev",
];

/// The library calls none of libc's functions in which a thread can be cancelled, but those that it has itself.
#[test]
fn the_library_calls_no_cancellation_point_of_libcs() {
    let symbols = Command::new("nm")
        .args(["--dynamic", "--undefined-only"])
        .arg(library())
        .output()
        .unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let names = symbols.lines().filter_map(|line| {
        let name = line.split_whitespace().last()?;
        name.split('@').next()
    });
    let names: Vec<_> = names.collect();
    assert!(names.contains(&"pthread_testcancel"), "{names:?}");
    let wrong = names
        .iter()
        .filter(|name| CANCELLATION_POINTS.contains(name));
    assert_eq!(wrong.collect::<Vec<_>>(), Vec::<&&str>::new());
}

/// Every library is mapped, bound and initialised at the start of every program.
#[test]
fn a_program_gets_no_library_but_ours() {
    let Some(m) = Mounted::new() else { return };
    let cat = || Run::of(&m, "cat").arg("/proc/self/maps");
    let libraries = |maps: String| {
        let files = maps.lines().filter_map(|l| l.split_whitespace().nth(5));
        let libraries = files.filter(|file| file.contains(".so"));
        libraries.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let mut expected = libraries(cat().without_library().output());
    assert!(expected.insert(library().display().to_string()));
    assert_eq!(libraries(cat().output()), expected);
}
