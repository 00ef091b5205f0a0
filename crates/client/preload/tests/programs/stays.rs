//! A file stays with the mount until its use pays for a lease.

use crate::mount::Mounted;
use crate::shares;
use crate::tools::{Run, compiled, has};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

/// Leases that were taken from somebody, and transactions, so far.
fn moved(m: &Mounted) -> [u64; 2] {
    let status = m.status();
    [status.leases.moves, status.digest.stats.commits]
}

/// Runs `stays HOW PATH ARGUMENT` with these settings: its lines of the report.
fn report_of(m: &Mounted, how: &str, path: &Path, arg: &str, settings: &[(&str, &str)]) -> String {
    let report = m.beside(&format!("report-{how}-{arg}"));
    let mut run = Run::of(m, compiled("stays")).args([how]).arg(path).arg(arg);
    for (name, value) in settings {
        run = run.env(name, value);
    }
    assert_eq!(run.env("SHALE_REPORT", &report).output(), "", "{how} {arg}");
    let text = fs::read_to_string(&report).unwrap();
    let _ = fs::remove_file(&report);
    let of_program = text.lines().filter(|l| l.contains("/stays-"));
    of_program.map(|line| format!("{line}\n")).collect()
}

/// 500 small files cost no lease, and so neither a digest nor a session.
#[test]
fn small_files_stay_with_the_mount() {
    let Some(m) = Mounted::new() else { return };
    let before = moved(&m);
    let report = report_of(&m, "files", &m.dir("small"), "500", &[]);
    let [moves, commits] = moved(&m);
    assert_eq!(moves, before[0], "{report}");
    // The log is full enough for some by itself.
    assert!(commits - before[1] <= 5, "{} commits", commits - before[1]);
    assert!(report.contains(r#""attached":0"#), "{report}");
    assert!(report.contains(r#""files_opened":1000"#), "{report}");
    assert_eq!(shares(&report)[0], 0, "{report}");
}

/// Nor does it cost a system call that a file of a mount is opened, hardly used, and closed.
#[test]
fn a_file_that_is_hardly_used_costs_no_system_call() {
    let Some(m) = Mounted::new() else { return };
    if !has("strace") {
        eprintln!("SKIPPED: counting system calls needs strace");
        return;
    }
    let calls = |count: usize, preload: &str| {
        let dir = m.dir(&format!("few-{count}-{}", preload.len()));
        let trace = m.beside("trace");
        let run = Run::of(&m, "strace").args(["-f", "-o"]).arg(&trace);
        let run = run.args(["-E", preload]).arg(compiled("stays"));
        let run = run.arg("files").arg(&dir).arg(count.to_string());
        assert_eq!(run.without_library().output(), "");
        fs::read_to_string(&trace).unwrap().lines().count()
    };
    let of_files = |preload: &str| calls(300, preload) - calls(100, preload);
    let [with, without] = [&*m.preload(), "NONE=1"].map(of_files);
    // Of the 200 files between them each is opened twice. A thread of another program on a busy processor costs
    // some system calls, too: `strace` writes one that was interrupted in two lines.
    assert!(with.abs_diff(without) < 100, "{with} {without}");
}

/// A file that is used much is served after some milliseconds: no system call any more.
#[test]
fn a_file_whose_use_pays_is_served() {
    let Some(m) = Mounted::new() else { return };
    let (file, before) = (m.path().join("much"), moved(&m));
    let report = report_of(&m, "one", &file, "100000", &[]);
    let [fast, kernel] = shares(&report);
    assert_eq!(fast + kernel, 200_000, "{report}");
    assert!(kernel < 30_000, "{report}");
    assert!(report.contains(r#""attached":1"#), "{report}");
    assert!(moved(&m)[0] - before[0] <= 4, "{report}");
    if !has("strace") {
        eprintln!("SKIPPED: counting system calls needs strace");
        return;
    }
    let [few, many] = ["5000", "15000"].map(|count| {
        let trace = m.beside("trace");
        let run = Run::of(&m, "strace").args(["-f", "-o"]).arg(&trace);
        let run = run.args(["-E", &m.preload(), "-E", "SHALE_WARM_US=200"]);
        let run = run.arg(compiled("stays")).args(["one"]).arg(&file);
        run.arg(count).without_library().output();
        fs::read_to_string(&trace).unwrap().lines().count()
    });
    // Each call of the mount takes a microsecond at least.
    assert!(many.abs_diff(few) < 1000, "{few} {many}");
}

/// Files that a process has mapped before it becomes a client, meanwhile or afterwards are the kernel's, which has to
/// know how long they are.
#[test]
fn mapped_files_grow_on_the_mount() {
    let Some(m) = Mounted::new() else { return };
    for us in ["0", "30", "1000", "5000"] {
        let file = m.path().join(format!("mapped-{us}"));
        let report = report_of(&m, "mapped", &file, "20000", &[("SHALE_WARM_US", us)]);
        assert!(report.contains(r#""attached":1"#), "{us}: {report}");
        assert!(
            report.contains("mapped through the mount"),
            "{us}: {report}"
        );
    }
}

/// The first calls on a descriptor, which are the kernel's, see what is served by others meanwhile.
#[test]
fn new_descriptors_of_a_served_file_see_it() {
    let Some(m) = Mounted::new() else { return };
    for us in ["0", "100", "1000000"] {
        let run = Run::of(&m, compiled("stays"));
        let run = run.args(["young"]).arg(m.path().join(us)).arg("8000");
        assert_eq!(run.env("SHALE_WARM_US", us).output(), "", "{us}");
    }
}

/// The file goes over while two threads and a child are writing at one offset, or to one end.
#[test]
fn a_file_goes_over_between_two_calls() {
    let Some(m) = Mounted::new() else { return };
    for us in ["0", "30", "300", "2000"] {
        for how in ["shared", "inline", "appends"] {
            let file = m.path().join(format!("{how}-{us}"));
            let report = report_of(&m, how, &file, "4000", &[("SHALE_WARM_US", us)]);
            assert_eq!(report.lines().count(), 2, "{how} {us}: {report}");
            // Twice, if both went back to the mount and one came again.
            let over = report.lines().any(|l| !l.contains(r#""attached":0"#));
            assert!(over || us == "2000", "{how} {us}: {report}");
        }
    }
}

/// Programs that are about descriptors, children and threads, with files that go over early in them.
#[test]
fn descriptors_and_children_are_as_posix_says_while_files_go_over() {
    let Some(m) = Mounted::new() else { return };
    for us in ["0", "20"] {
        for (program, how) in [
            ("semantics", None),
            ("spawn", None),
            ("clones", Some("fork")),
            ("clones", Some("inline")),
            ("clones", Some("threads")),
        ] {
            let mut run = Run::of(&m, compiled(program));
            if let Some(how) = how {
                run = run.arg(how);
            }
            let dir = m.dir(&format!("{program}{}{us}", how.unwrap_or_default()));
            let said = run.arg(dir).env("SHALE_WARM_US", us).output();
            assert_eq!(said, "", "{program} {how:?} {us}");
        }
    }
}

/// Where somebody asks about a file by its name after every few calls, its lease ping-pongs: the file goes back to
/// the mount, and the process, which serves nothing else, is no client any more.
#[test]
fn a_file_whose_leases_do_not_pay_goes_back() {
    let Some(m) = Mounted::new() else { return };
    let file = m.path().join("asked");
    let before = moved(&m);
    let report = report_of(&m, "asks", &file, "8000", &[("SHALE_WARM_US", "500")]);
    let moves = moved(&m)[0] - before[0];
    let [fast, kernel] = shares(&report);
    assert!(fast > 0, "never served: {report}");
    assert!(kernel > 7_000, "{report}");
    assert!(moves < 100, "{moves} moves: {report}");
    let of_others = m.status().clients.len();
    assert_eq!(of_others, 1, "the front end alone");
}

/// What is locked for every few calls is not even tried.
#[test]
fn a_file_that_is_locked_all_the_time_stays() {
    let Some(m) = Mounted::new() else { return };
    let before = moved(&m);
    let report = report_of(&m, "locks", &m.path().join("locked"), "8000", &[]);
    assert_eq!(moved(&m)[0], before[0], "{report}");
    assert!(report.contains(r#""attached":0"#), "{report}");
}

/// A client counts among the FUSE clients for files that it uses there: others that are served make them longer
/// by way of the kernel, which knows their size.
#[test]
fn what_a_client_uses_on_the_mount_grows_there() {
    let Some(m) = Mounted::new() else { return };
    let append = compiled("append");
    let (own, other) = (m.path().join("own"), m.path().join("other"));
    let run = Run::bare(&m, compiled("stays"))
        .args(["beside"])
        .arg(&own)
        .arg(&other);
    let run = run
        .env("SHALE_WARM_US", "200")
        .env("SHALE_REPORT", m.beside("client"));
    let mut client = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut ready = [0; 6];
    client
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    let report = m.beside("report");
    let run = Run::of(&m, &append).arg(&other).args(["a", "300"]);
    run.env("SHALE_WARM_CALLS", "0")
        .env("SHALE_REPORT", &report)
        .output();
    drop(client.stdin.take());
    assert!(client.wait().unwrap().success());
    let client = fs::read_to_string(m.beside("client")).unwrap();
    assert!(client.contains(r#""attached":1"#), "{client}");
    let output = fs::read_to_string(&report).unwrap();
    let output = output
        .lines()
        .find(|l| l.contains(r#""attached":1"#))
        .unwrap();
    assert!(shares(output)[1] >= 300, "{output}");
    assert_eq!(fs::read_to_string(&other).unwrap().lines().count(), 301);
}
