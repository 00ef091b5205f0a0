//! Names in the process (`SHALE_NAMES`): results are those of the mount, and the kernel is not asked.

use crate::mount::Mounted;
use crate::tools::{Run, compiled, has};
use rustix::io::Errno;
use shale_proto::mounts::USED;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A program with names in the process, from its first call on.
fn named(m: &Mounted, program: &Path) -> Run {
    Run::of(m, program).env("SHALE_NAMES", "0")
}

#[test]
fn every_call_about_names_says_what_the_mount_says() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("names");
    let expected = Run::of(&m, &program).arg(m.dir("mount"));
    let expected = expected.without_library().output();
    let report = m.beside("report");
    let run = named(&m, &program).arg(m.dir("names"));
    let output = run.env("SHALE_REPORT", &report).output();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    for (expected, line) in lines(&expected).into_iter().zip(lines(&output)) {
        assert_eq!(line, expected, "{output}");
    }
    assert_eq!(output.lines().count(), expected.lines().count());
    // It was done here, and the kernel opened what it needed.
    let report = fs::read_to_string(&report).unwrap();
    let all = report.lines().find(|l| l.contains(r#""unlink":"#));
    assert!(all.is_some(), "{report}");
    for why in ["descriptors as paths", "a child is made", "loses its name"] {
        assert!(report.contains(why), "{why}: {report}");
    }
    let fast = &report_of(&m.beside("report"), "names")["fast"];
    for call in [
        "setxattr",
        "getxattr",
        "listxattr",
        "fremovexattr",
        "statfs",
        "fstatfs",
    ] {
        assert!(fast[call].as_u64() > Some(0), "{call}: {report}");
    }
    // And it is in the volume, for everybody.
    let [a, b] = ["mount", "names"].map(|dir| {
        let mut names: Vec<_> = fs::read_dir(m.path().join(dir)).unwrap().collect();
        names.sort_by_key(|entry| entry.as_ref().unwrap().file_name());
        let of = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry.unwrap();
            let status = entry.metadata().unwrap();
            let bytes = if status.is_dir() { 0 } else { status.len() };
            (entry.file_name(), status.permissions(), bytes)
        };
        names.into_iter().map(of).collect::<Vec<_>>()
    });
    // `absolute` leads to a path that is longer by nothing.
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(&b).filter(|(a, _)| a.0 != "absolute") {
        assert_eq!(a, b);
    }
}

/// Locks, working directories without a name, and descriptors that are named by paths of `/proc`, requests and rules.
#[test]
fn what_the_kernel_has_to_know_of_files_it_knows() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("reach");
    let expected = Run::of(&m, &program).arg(m.dir("mount"));
    let expected = expected.without_library().output();
    assert!(expected.lines().count() > 60, "{expected}");
    let report = m.beside("report");
    let run = named(&m, &program).arg(m.dir("names"));
    let output = run.env("SHALE_REPORT", &report).output();
    for (expected, line) in expected.lines().zip(output.lines()) {
        assert_eq!(line, expected, "{output}");
    }
    assert_eq!(output.lines().count(), expected.lines().count());
    let report = fs::read_to_string(&report).unwrap();
    for why in [
        "it may be locked",
        "descriptors as paths",
        "descriptors in a",
    ] {
        assert!(report.contains(why), "{why}: {report}");
    }
}

/// What the last process of a program has reported.
fn report_of(file: &Path, program: &str) -> serde_json::Value {
    let all = fs::read_to_string(file).unwrap();
    let values = all.lines().rev().map(serde_json::from_str);
    let mut values = values.map(|value: Result<serde_json::Value, _>| value.unwrap());
    let of = |value: &serde_json::Value| value["program"].as_str().unwrap().contains(program);
    values.find(of).unwrap_or_else(|| panic!("{all}"))
}

/// With `auto` a directory is served once many names were made there, and the mount keeps all others.
#[test]
fn names_are_served_where_many_are_made() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("maker");
    let (dir, other) = (m.dir("makes"), m.dir("other"));
    fs::write(other.join("there"), "there").unwrap();
    let report = m.beside("report");
    let run = Run::of(&m, &program).env("SHALE_NAMES", "auto");
    let run = run.arg(&dir).arg(&other).arg("3000");
    assert_eq!(run.env("SHALE_REPORT", &report).output(), "");
    let made = report_of(&report, "maker");
    assert!(made["fast"]["rename"].as_u64() > Some(2000), "{made}");
    // The other directory stays with the mount, to which all questions about it go.
    let asked = &made["kernel"]["newfstatat"]["left to the kernel"];
    assert!(asked.as_u64() > Some(2000), "{made}");
    // So is a directory that is known by a descriptor only.
    let (sources, unpacked) = (m.beside("sources"), m.dir("unpacked"));
    fs::create_dir(&sources).unwrap();
    for n in 0..2000 {
        fs::write(sources.join(format!("{n}")), "content").unwrap();
    }
    let (archive, report) = (m.beside("archive"), m.beside("tar"));
    let tar = || Run::of(&m, "tar").env("SHALE_NAMES", "auto");
    let pack = tar().arg("cf").arg(&archive).arg("-C").arg(&sources);
    assert_eq!(pack.arg(".").output(), "");
    let unpack = tar().env("SHALE_REPORT", &report).arg("xf").arg(&archive);
    assert_eq!(unpack.arg("-C").arg(&unpacked).output(), "");
    assert_eq!(fs::read_dir(&unpacked).unwrap().count(), 2000);
    let report = report_of(&report, "tar");
    let made = report["fast"]["openat"].as_u64();
    assert!(made > Some(1000), "{report}");
    // A program that makes few names leaves them to the mount.
    let (report, dir) = (m.beside("few"), m.dir("few"));
    let run = Run::of(&m, &program).env("SHALE_NAMES", "auto");
    let run = run.arg(&dir).arg(&other).arg("40");
    assert_eq!(run.env("SHALE_REPORT", &report).output(), "");
    let report = fs::read_to_string(&report).unwrap();
    assert!(!report.contains("left to the kernel"), "{report}");
}

/// Paths lead to the mount from a working directory above it, too.
#[test]
fn names_are_served_by_relative_paths_from_above() {
    let Some(m) = Mounted::new() else { return };
    let script =
        "i=0; while [ $i -lt 20 ]; do echo $i >\"$0/f$i\"; i=$((i+1)); done; echo x >\"$0none/x\"";
    for (name, from) in [
        ("near", m.path().parent().unwrap()),
        ("far", Path::new("/")),
    ] {
        let dir = m.dir(name);
        let (path, report) = (dir.strip_prefix(from).unwrap(), m.beside("report"));
        let run = named(&m, Path::new("sh")).current_dir(from);
        let run = run.args(["-c", script]).arg(path);
        let run = run.stderr(Stdio::null()).env("SHALE_REPORT", &report);
        // Beside it there is nothing.
        assert_eq!(run.spawn().wait().unwrap().code(), Some(2));
        let served = report_of(&report, "sh");
        assert!(served["fast"]["openat"].as_u64() >= Some(20), "{served}");
        for n in 0..20 {
            let file = dir.join(format!("f{n}"));
            assert_eq!(fs::read_to_string(&file).unwrap(), format!("{n}\n"));
        }
    }
}

/// What is made below a directory in which much was made is served with that directory, by whatever path it is named.
#[test]
fn a_tree_of_small_directories_is_served_from_its_top() {
    let Some(m) = Mounted::new() else { return };
    let (dir, report) = (m.dir("grows"), m.beside("report"));
    let run = Run::of(&m, compiled("grower")).env("SHALE_NAMES", "auto");
    let run = run.arg(&dir).arg("7").env("SHALE_REPORT", &report);
    assert_eq!(run.output(), "");
    // Three times 1 + 3 + 9 and so on, seven times. It becomes a client in the first one.
    let (each, report) = (1093, report_of(&report, "grower"));
    let count = |call: &str| report["fast"][call].as_u64();
    assert!(count("mkdir") > Some(2 * each), "{report}");
    // What it made first, by way of the mount, lies beside them.
    assert!(count("read") > Some(2 * each - 50), "{report}");
}

/// Where others use a directory meanwhile, it goes back to the mount, and comes back when they have gone; each file arrives once, whole.
#[test]
fn a_directory_that_others_use_is_left_to_the_mount() {
    const FILES: usize = 6000;
    let Some(m) = Mounted::new() else { return };
    let (dir, report) = (m.dir("mail"), m.beside("report"));
    for name in ["tmp", "new"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    let files = FILES.to_string();
    let deliver = || {
        let run = Run::of(&m, compiled("deliver")).env("SHALE_NAMES", "auto");
        run.arg(&dir).arg(&files).env("SHALE_REPORT", &report)
    };
    let moves = m.status().leases.moves;
    let mut writer = deliver().spawn();
    let mut arrived = vec![0; FILES];
    while arrived.contains(&0) {
        let ended = writer.try_wait().unwrap();
        for entry in fs::read_dir(dir.join("new")).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let content = fs::read_to_string(entry.path()).unwrap();
            assert_eq!(content, format!("tmp/{name}"));
            fs::remove_file(entry.path()).unwrap();
            arrived[name.parse::<usize>().unwrap()] += 1;
        }
        if let Some(ended) = ended {
            assert!(ended.success());
            break;
        }
    }
    writer.wait().unwrap();
    let missing = (0..FILES).filter(|&n| arrived[n] != 1 && !dir.join(format!("new/{n}")).exists());
    assert_eq!(missing.count(), 0);
    let shared = report_of(&report, "deliver");
    let left =
        &shared["kernel"]["rename"]["others use its directory: left to the mount for a while"];
    assert!(left.as_u64().is_some(), "{shared}");
    // From then on they are made by way of the mount; how many that are depends on how often a busy machine lets the reader come.
    let fast = |report: &serde_json::Value| report["fast"]["rename"].as_u64().unwrap_or(0);
    assert!(fast(&shared) < FILES as u64, "{shared}");
    // Each lease that moves costs a digest. Who lists the directory keeps it, so that few do.
    let moves = m.status().leases.moves - moves;
    assert!(moves < FILES as u64 / 6, "{moves} leases moved: {shared}");

    fs::remove_dir_all(dir.join("new")).unwrap();
    fs::create_dir(dir.join("new")).unwrap();
    assert_eq!(deliver().output(), "");
    let alone = report_of(&report, "deliver");
    assert!(fast(&alone) > FILES as u64 / 2, "{alone}");
    assert_eq!(fs::read_dir(dir.join("new")).unwrap().count(), FILES);
}

/// The mount says whether another living process uses a directory: lists it, or makes names there.
#[test]
fn the_mount_says_who_else_uses_a_directory() {
    let Some(m) = Mounted::new() else { return };
    let dir = m.dir("used");
    let used = |dir: &Path| rustix::fs::getxattr(dir, USED, &mut [0u8; 1][..]);
    for uses in [
        "for name in *; do :; done",
        ": > made",
        "mkdir sub",
        "mv made moved",
        "rm moved",
    ] {
        assert_eq!(used(&dir), Err(Errno::NODATA), "before: {uses}");
        let script = format!("{uses}; echo; read end");
        let mut other = Command::new("sh")
            .args(["-c", &script])
            .current_dir(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 1];
        other.stdout.take().unwrap().read_exact(&mut line).unwrap();
        // What the shell starts for it has ended by now.
        let itself = !uses.starts_with(['m', 'r']);
        let expected = if itself { Ok(0) } else { Err(Errno::NODATA) };
        assert_eq!(used(&dir), expected, "{uses}");
        // A process does not keep itself from a directory.
        fs::read_dir(&dir).unwrap().for_each(drop);
        drop(other.stdin.take());
        other.wait().unwrap();
    }
    let listed = rustix::fs::listxattr(&dir, &mut [0u8; 64][..]);
    assert_eq!(listed, Ok(0));
    let set = rustix::fs::setxattr(&dir, USED, b"", rustix::fs::XattrFlags::empty());
    assert!(set.is_err());
}

/// Bad pointers are `EFAULT`, as the kernel says, with data and names served; faults of the program itself are its own.
#[test]
fn bad_pointers_are_refused_as_the_kernel_does() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("pointers");
    let expected = Run::of(&m, &program).arg(m.dir("mount"));
    let expected = expected.without_library().output();
    assert!(expected.ends_with("the last: 10 \n"), "{expected}");
    let data = Run::of(&m, &program).env("SHALE_WARM_CALLS", "0");
    for (run, dir) in [(data, "data"), (named(&m, &program), "names")] {
        let report = m.beside(dir);
        let run = run.env("SHALE_REPORT", &report).arg(m.dir(dir));
        let output = run.output();
        for (expected, line) in expected.lines().zip(output.lines()) {
            assert_eq!(line, expected, "{dir}: {output}");
        }
        assert_eq!(output, expected, "{dir}");
        let report = fs::read_to_string(&report).unwrap();
        let of = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
        let writes = report
            .lines()
            .map(|line| of(line)["fast"]["write"].as_u64());
        assert!(writes.max().flatten() > Some(100), "{report}");
    }
}

/// What a process under `shale run` and the mount rename in turns, the kernel knows right after each, also while others ask for the same names
/// all the time: an answer to them that is on its way when the directory leaves the mount is not kept.
#[test]
fn the_mount_knows_each_name_right_after_it_was_renamed() {
    const NAMES: u64 = 3;
    let Some(m) = Mounted::new() else { return };
    let dir = m.dir("turns");
    let path = |n: u64| dir.join(format!("{}", n % NAMES));
    fs::write(path(0), "").unwrap();
    let renamer = named(&m, &compiled("renamer")).arg(&dir);
    let mut renamer = renamer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut orders = renamer.stdin.take().unwrap();
    let mut answers = BufReader::new(renamer.stdout.take().unwrap());
    let (step, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let wrong: Vec<String> = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut n = 0;
                while !done.load(Ordering::Relaxed) {
                    n += 1;
                    let _ = fs::metadata(path(step.load(Ordering::Relaxed) + n % NAMES));
                }
            });
        }
        let begun = Instant::now();
        let mut wrong = Vec::new();
        while begun.elapsed() < Duration::from_secs(8) {
            let n = step.load(Ordering::Relaxed);
            if n % 4 == 0 {
                fs::rename(path(n), path(n + 1)).unwrap();
            } else {
                writeln!(orders, "{} {}", n % NAMES, (n + 1) % NAMES).unwrap();
                let mut answer = String::new();
                answers.read_line(&mut answer).unwrap();
                assert_eq!(answer, "0\n", "{n}");
            }
            let there = [n, n + 1].map(|n| path(n).exists());
            if there != [false, true] {
                wrong.push(format!("step {n}: {there:?}"));
            }
            step.store(n + 1, Ordering::Relaxed);
        }
        done.store(true, Ordering::Relaxed);
        wrong
    });
    drop(orders);
    assert!(renamer.wait().unwrap().success());
    let steps = step.load(Ordering::Relaxed);
    assert!(steps > 100, "{steps} steps");
    assert_eq!(wrong, [""; 0], "of {steps} steps");
}

/// The kernel knows a directory in one place. It must not find it in another one while it renames something else there.
#[test]
fn the_mount_renames_onto_a_directory_that_was_moved_in_a_process() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("across");
    let [a, b, c] = ["a", "b", "c"].map(|dir| m.dir(dir));
    for (from, to) in [("dir", "moved"), ("other", "again")] {
        fs::create_dir(a.join(from)).unwrap();
        assert!(fs::metadata(a.join(from)).unwrap().is_dir());
        fs::write(c.join("file"), "content").unwrap();
        std::thread::sleep(Duration::from_millis(600));
        let run = named(&m, &program).arg(a.join(from)).arg(b.join(to));
        assert_eq!(run.output(), "");
        // Nothing has looked the new name up.
        let error = fs::rename(c.join("file"), b.join(to)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ISDIR.raw_os_error()));
        fs::rename(b.join(to), c.join(to)).unwrap();
    }
}

#[test]
fn descriptors_and_children_are_as_posix_says_with_names_in_the_process() {
    let Some(m) = Mounted::new() else { return };
    let semantics = compiled("semantics");
    assert_eq!(named(&m, &semantics).arg(m.dir("s")).output(), "");
    assert_eq!(named(&m, &compiled("spawn")).arg(m.dir("p")).output(), "");
    let clones = compiled("clones");
    let dir = m.dir("c");
    for how in ["fork", "clone", "clone3", "threads", "unshare", "memory"] {
        let run = named(&m, &clones).arg(how).arg(&dir);
        assert_eq!(run.output(), "", "{how}");
    }
}

/// Creating and closing take a system call each; asking, renaming, removing none.
#[test]
fn names_cost_no_system_call() {
    let Some(m) = Mounted::new() else { return };
    if !has("strace") {
        eprintln!("SKIPPED: counting system calls needs strace");
        return;
    }
    let program = compiled("churn");
    let dir = m.dir("churn");
    let [few, many] = ["100", "1100"].map(|rounds| {
        let trace = m.beside("trace");
        let run = Run::of(&m, "strace").args(["-f", "-o"]).arg(&trace);
        let run = run.args(["-E", &m.preload(), "-E", "SHALE_NAMES=0"]);
        let run = run.arg(&program).arg(&dir).arg(rounds);
        run.without_library().output();
        fs::read_to_string(&trace).unwrap()
    });
    let calls = |trace: &str| trace.lines().filter(|l| !l.contains(" +++ ")).count();
    // Each round opens and closes once; and now and then the daemon gives numbers for new inodes.
    let more = calls(&many) - calls(&few);
    assert!(
        (2000..2200).contains(&more),
        "{more} calls for 1,000 rounds"
    );
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

/// Programs that escape the library have right results: code that makes its own system calls, from the start and loaded later.
#[test]
fn what_escapes_gets_the_kernels_file() {
    let Some(m) = Mounted::new() else { return };
    let library = crate::tools::output("escapes.so");
    crate::tools::compile(
        "cc",
        "escapes.c",
        &library,
        &["-O2", "-shared", "-fPIC", "-DLIBRARY"],
    );
    let program = compiled("escapes");
    let file = m.path().join("escapes");
    for how in [library.as_path(), Path::new("inline")] {
        let report = m.beside("report");
        let run = named(&m, &program).arg(&file).arg(how);
        assert_eq!(run.env("SHALE_REPORT", &report).output(), "", "{how:?}");
        assert_eq!(
            fs::read(&file).unwrap(),
            b"by the library, by itself",
            "{how:?}"
        );
    }
}

/// A process with names of its own, and programs on the mount, in one directory.
#[test]
fn a_program_on_the_mount_sees_each_name_at_once() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("turns");
    let dir = m.dir("turns");
    let run = named(&m, &program).arg(&dir).args(["300"]);
    assert_eq!(run.output(), "");
}

/// What was done in the process is there when it is killed: each file with its name and what is in it, and none that was removed.
#[test]
fn no_name_is_lost_by_a_kill() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("kept");
    for round in 0..6u64 {
        let (dir, said) = (m.dir(&format!("kept{round}")), m.beside("said"));
        let run = Run::bare(&m, &program).arg(&dir).env("SHALE_NAMES", "0");
        let mut child = run.stdout(fs::File::create(&said).unwrap().into()).spawn();
        while fs::metadata(&said).unwrap().len() == 0 {
            assert_eq!(child.try_wait().unwrap(), None, "it ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(17 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let said = fs::read_to_string(&said).unwrap();
        let last = said.lines().last().unwrap().parse::<i64>().unwrap();
        let number = |entry: std::io::Result<fs::DirEntry>| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_prefix('f').map(|n| n.parse::<i64>().unwrap())
        };
        // The one that it was making may be there, with either name or not.
        let mut there: Vec<_> = fs::read_dir(&dir).unwrap().filter_map(number).collect();
        there.sort_unstable();
        let first = *there.first().unwrap();
        assert!(first == (last - 19).max(0) || first == last - 20 || first == last - 18);
        let end = *there.last().unwrap();
        assert!(end == last || end == last + 1, "{last} of {there:?}");
        assert!(there.iter().copied().eq(first..=end), "{last} of {there:?}");
        for n in there {
            let text = fs::read_to_string(dir.join(format!("f{n}"))).unwrap();
            assert_eq!(text, n.to_string());
        }
    }
}
