//! Unmodified programs with the library loaded, on a real mount.

mod life;
mod mount;
mod names;
mod stays;
mod tools;
mod watched;
mod whole;

use mount::Mounted;
use std::fs;
use std::process::Stdio;
use std::time::Duration;
use tools::{Run, compiled, has};

/// How the library is set: at once a client, after some calls, never.
const WARM_CALLS: [&str; 3] = ["0", "8", "1000000000"];

#[test]
fn descriptors_children_and_signals_are_as_posix_says() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("semantics");
    for calls in WARM_CALLS {
        for protect in ["off", "on"] {
            let dir = m.dir(&format!("{calls}{protect}"));
            let run = Run::of(&m, &program)
                .arg(&dir)
                .env("SHALE_WARM_CALLS", calls)
                .env("SHALE_PROTECT", protect);
            assert_eq!(run.output(), "", "warm calls {calls}, protect {protect}");
        }
    }
}

#[test]
fn signals_that_come_together_all_arrive() {
    let Some(m) = Mounted::new() else { return };
    let run = Run::of(&m, compiled("signals")).env("SHALE_WARM_CALLS", "0");
    assert_eq!(run.arg(m.path().join("file")).arg("300").output(), "");
}

#[test]
fn programs_that_valgrind_runs_are_left_to_the_mount() {
    let Some(m) = Mounted::new() else { return };
    if !has("valgrind") {
        eprintln!("SKIPPED: valgrind is not here");
        return;
    }
    let file = m.path().join("file");
    let run = Run::of(&m, "valgrind").args(["-q", "--tool=none", "--error-exitcode=9"]);
    let run = run.args(["dd", "if=/dev/zero", "bs=1000", "count=300", "status=none"]);
    let run = run.arg(format!("of={}", file.display()));
    assert_eq!(run.env("SHALE_WARM_CALLS", "0").output(), "");
    assert_eq!(fs::metadata(&file).unwrap().len(), 300_000);
}

#[test]
fn a_program_that_restricts_its_system_calls_makes_no_others() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("restricted");
    for how in ["prctl", "seccomp", "strict", "start"] {
        for names in ["off", "0"] {
            for calls in WARM_CALLS {
                let (file, other) = (m.path().join("file"), m.path().join("other"));
                let run = Run::of(&m, &program).arg(how).arg(&file).arg(&other);
                let run = run.env("SHALE_WARM_CALLS", calls).env("SHALE_NAMES", names);
                let run = run.env("SHALE_REPORT", m.beside("restricted"));
                assert_eq!(run.output(), "", "{how}, {calls}, {names}");
                let bytes = |file| fs::read(file).unwrap();
                assert_eq!(bytes(&file), vec![b'x'; 100_000], "{how}, {calls}, {names}");
                if how != "strict" {
                    assert_eq!(bytes(&other), vec![b'x'; 50_000], "{how}, {calls}, {names}");
                }
            }
        }
    }
}

#[test]
fn what_a_spawned_child_does_with_its_descriptors_is_its_own() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("spawn");
    for calls in WARM_CALLS {
        let run = Run::of(&m, &program).arg(m.dir(calls));
        assert_eq!(run.env("SHALE_WARM_CALLS", calls).output(), "", "{calls}");
    }
    // Nor is a file that a child has not got left to the kernel.
    let report = m.beside("report");
    let run = Run::of(&m, &program).arg(m.path()).arg("replaced");
    run.env("SHALE_WARM_CALLS", "0")
        .env("SHALE_REPORT", &report)
        .output();
    let output = fs::read_to_string(&report).unwrap();
    let parent = output.lines().find(|l| l.contains(r#""lseek":100"#));
    assert!(
        parent.is_some_and(|l| l.contains(r#""kernel":{}"#)),
        "{output}"
    );
}

/// A child that makes its first call late does not take a file for one that its parent has closed
/// meanwhile, and goes on at the byte where that one was.
#[test]
fn late_children_have_their_own_files() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("clones");
    for calls in WARM_CALLS {
        let dir = m.dir(calls);
        for how in ["fork", "inline", "clone", "clone3"] {
            let run = Run::of(&m, &program).arg(how).arg(&dir);
            let said = run.env("SHALE_WARM_CALLS", calls).output();
            assert_eq!(said, "", "{how} {calls}");
        }
    }
}

/// Threads that make children of all kinds at once, with other files at the same numbers.
#[test]
fn threads_make_children_at_once() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("clones");
    for calls in WARM_CALLS {
        let run = Run::of(&m, &program).arg("threads").arg(m.dir(calls));
        assert_eq!(run.env("SHALE_WARM_CALLS", calls).output(), "", "{calls}");
    }
}

/// Descriptors without memory, memory without descriptors: all is the kernel's from then on.
#[test]
fn what_shares_in_part_is_left_to_the_kernel() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("clones");
    for calls in WARM_CALLS {
        let dir = m.dir(calls);
        for how in ["unshare", "close_range", "memory", "descriptors"] {
            let report = m.beside(&format!("{how}{calls}"));
            let run = Run::of(&m, &program).arg(how).arg(&dir);
            let run = run.env("SHALE_REPORT", &report);
            let said = run.env("SHALE_WARM_CALLS", calls).output();
            assert_eq!(said, "", "{how} {calls}");
            let output = fs::read_to_string(&report).unwrap();
            assert!(output.contains("not both"), "{how} {calls}: {output}");
        }
    }
}

#[test]
fn the_log_of_a_python_program_goes_on_behind_its_children() {
    let Some(m) = Mounted::new() else { return };
    if !has("python3") {
        eprintln!("SKIPPED: needs python3");
        return;
    }
    let script = "import os, subprocess, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.dup2(f, 1)
for i in range(400): os.write(1, b'line %4d\\n' % i)
said = subprocess.run(['echo', 'hello'], stdout=subprocess.PIPE).stdout
os.write(1, said)
assert os.pread(f, 9999, 4000) == said == b'hello\\n', os.pread(f, 9999, 0)
";
    for calls in WARM_CALLS {
        let run = Run::of(&m, "python3").args(["-c", script]);
        let run = run.arg(m.path().join(calls)).env("SHALE_WARM_CALLS", calls);
        assert_eq!(run.output(), "", "{calls}");
    }
}

#[test]
fn first_calls_of_threads_do_not_wait_for_a_fork() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("first");
    for calls in WARM_CALLS {
        let run = Run::of(&m, &program).arg(m.path().join(calls));
        let run = run.env("SHALE_REPORT", m.beside("report"));
        assert_eq!(run.env("SHALE_WARM_CALLS", calls).output(), "");
    }
}

#[test]
fn data_calls_make_no_system_call() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("loop");
    let file = m.path().join("loop");
    let report = m.beside("report");
    let run = Run::of(&m, &program).arg(&file).args(["1000", "100"]);
    run.env("SHALE_WARM_CALLS", "0")
        .env("SHALE_REPORT", &report)
        .output();
    let output = fs::read_to_string(&report).unwrap();
    for counted in [
        r#""write":1000"#,
        r#""fsync":1000"#,
        r#""pread64":1000"#,
        r#""pwrite64":1000"#,
        r#""read":1001"#,
        r#""lseek":1001"#,
        r#""kernel":{}"#,
    ] {
        assert!(output.contains(counted), "{counted} in {output}");
    }
    // Another process, through the mount, sees the same bytes.
    let expected: Vec<u8> = (0..1000)
        .flat_map(|i| [b'a' + (i % 26) as u8; 100])
        .collect();
    assert!(fs::read(&file).unwrap() == expected);
    if !has("strace") {
        eprintln!("SKIPPED: counting system calls needs strace");
        return;
    }
    // 5,400 calls more, and no system call of whatever kind for them. How many it takes to
    // start depends a little on where the kernel maps things. The file is another one: what this
    // process has read on the mount a moment ago would be left to the kernel.
    let file = m.path().join("traced");
    let [few, many] = ["100", "1000"].map(|count| {
        let trace = m.beside("trace");
        let run = Run::of(&m, "strace").args(["-f", "-o"]).arg(&trace);
        let run = run
            .args(["-E", &m.preload(), "-E", "SHALE_WARM_CALLS=0"])
            .arg(&program);
        let run = run.arg(&file).args([count, "100"]);
        run.without_library().output();
        fs::read_to_string(&trace).unwrap()
    });
    let calls = |trace: &str| trace.lines().filter(|l| !l.contains(" +++ ")).count();
    assert!(calls(&many).abs_diff(calls(&few)) < 50, "{many}");
}

/// Calls of a report: served in the process, left to the kernel.
fn shares(report: &str) -> [u64; 2] {
    let sum = |part: &str| {
        part.split([':', ',', '{', '}'])
            .filter_map(|n| n.parse::<u64>().ok())
            .sum()
    };
    let (_, fast) = report.split_once(r#""fast":"#).unwrap();
    let (fast, rest) = fast.split_once(r#","files_opened""#).unwrap();
    let (_, kernel) = rest.split_once(r#""kernel":"#).unwrap();
    [fast, kernel.split_once(r#","pid""#).unwrap().0].map(sum)
}

/// A client that has a file for itself is not left to the kernel, though it opens the file again
/// and cuts it below what the kernel knows, and though others look at it now and then.
#[test]
fn who_is_alone_with_a_file_that_it_cuts_stays_fast() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("lone");
    let (file, report) = (m.path().join("cut"), m.beside("report"));
    const ROUNDS: u64 = 4000;
    let run = Run::of(&m, &program).arg(&file).arg(ROUNDS.to_string());
    run.env("SHALE_WARM_CALLS", "0")
        .env("SHALE_REPORT", &report)
        .output();
    let output = fs::read_to_string(&report).unwrap();
    let report = output
        .lines()
        .find(|l| l.contains(r#""attached":1"#))
        .unwrap();
    let [fast, kernel] = shares(report);
    assert_eq!(fast + kernel, 4 * ROUNDS, "{output}");
    assert!(
        kernel < ROUNDS / 50,
        "{kernel} left to the kernel: {output}"
    );
}

/// A file that others use through the mount is made longer by the kernel, so that it knows the size;
/// one that nobody else uses is not.
#[test]
fn what_others_use_on_the_mount_grows_there() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("append");
    const LINES: u64 = 300;
    for (name, of_others) in [("shared", true), ("own", false)] {
        let (file, report) = (m.path().join(name), m.beside(name));
        if of_others {
            fs::write(&file, "").unwrap();
        }
        let run = Run::of(&m, &program).arg(&file).args(["a", "300"]);
        run.env("SHALE_WARM_CALLS", "0")
            .env("SHALE_REPORT", &report)
            .output();
        let output = fs::read_to_string(&report).unwrap();
        let report = output.lines().find(|l| l.contains(r#""attached":1"#));
        let [fast, kernel] = shares(report.unwrap());
        let lines = fs::read_to_string(&file).unwrap().lines().count() as u64;
        assert_eq!(lines, LINES);
        let there = if of_others { kernel } else { fast };
        assert!(there >= LINES, "{name}: {output}");
    }
}

/// Where the kernel gives no more memory, calls say so, and none that said it was done is lost.
#[test]
fn without_memory_calls_are_refused_and_the_program_goes_on() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("short");
    let run = Run::of(&m, &program).arg(m.path().join("short"));
    let run = run.env("SHALE_LOG_BYTES", (16 << 20).to_string());
    assert_eq!(run.env("SHALE_WARM_CALLS", "0").output(), "");
}

#[test]
fn stray_stores_do_not_reach_the_log() {
    let Some(m) = Mounted::new() else { return };
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap();
    if !cpu.split_whitespace().any(|word| word == "ospke") {
        eprintln!("SKIPPED: this processor has no protection keys");
        return;
    }
    let program = compiled("protect");
    let file = m.path().join("protected");
    for (setting, killed_by) in [("on", 11), ("off", 0)] {
        let run = Run::of(&m, &program).arg(&file);
        let run = run.env("SHALE_WARM_CALLS", "0");
        let said = run.env("SHALE_PROTECT", setting).output();
        assert_eq!(said, format!("{killed_by} mthc {killed_by}\n"), "{setting}");
    }
}

#[test]
fn two_processes_append_to_one_file() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("append");
    let file = m.path().join("appended");
    for other_has_it in [true, false] {
        let _ = fs::remove_file(&file);
        let start = |who: &str, with: bool| {
            let run = Run::of(&m, &program).arg(&file).args([who, "2000"]);
            let run = if with { run } else { run.without_library() };
            run.stdout(Stdio::null()).spawn()
        };
        let (a, b) = (start("a", true), start("b", other_has_it));
        assert!(a.wait_with_output().unwrap().status.success());
        assert!(b.wait_with_output().unwrap().status.success());
        let text = fs::read_to_string(&file).unwrap();
        for who in ["a", "b"] {
            let lines = text.lines().filter(|l| l.starts_with(who));
            assert!(
                lines.eq((0..2000).map(|i| format!("{who}{i:08}"))),
                "{who} {other_has_it}"
            );
        }
    }
}

/// A program on the mount reads on at the end of a file that a client makes longer: it finds
/// all that was there when it began, and nothing but what was written.
#[test]
fn who_follows_a_growing_file_misses_nothing() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("follow");
    let (file, count) = (m.path().join("growing"), m.beside("count"));
    for pace in ["r", "rs"] {
        fs::write(&file, "").unwrap();
        fs::write(&count, [0; 4096]).unwrap();
        let start = |role: &str| {
            let run = Run::of(&m, &program).arg(role).arg(&file).arg(&count);
            let run = run.arg("1.5").env("SHALE_WARM_CALLS", "0");
            let run = if role == "w" {
                run
            } else {
                run.without_library()
            };
            run.stdout(Stdio::piped()).spawn()
        };
        let followed = ["w", pace, pace].map(start);
        for process in followed {
            let ended = process.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&ended.stdout);
            assert!(ended.status.success(), "{pace}: {:?} {said}", ended.status);
        }
    }
}

/// What is mapped privately lies in NVM, without a page of the kernel's, and stays as it was while the
/// file is rewritten; children have it, too.
#[test]
fn private_mappings_are_direct_and_stay_as_they_were() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("private");
    let run = |name: &str, calls: &str| {
        let report = m.beside(name);
        let run = Run::of(&m, &program).arg(m.path().join(name));
        let run = if calls == "0" { run.arg("direct") } else { run };
        let run = run.env("SHALE_REPORT", &report);
        assert_eq!(run.env("SHALE_WARM_CALLS", calls).output(), "ok\n");
        fs::read_to_string(&report).unwrap()
    };
    let output = run("direct", "0");
    assert!(output.contains(r#""mmap":4"#), "{output}");
    let output = run("mount", "1000000000");
    assert!(!output.contains(r#""mmap":4"#), "{output}");
    let mapped = || m.status().space.mappings;
    let begun = std::time::Instant::now();
    while mapped() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{}", mapped());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(m.status().space.pinned_bytes, 0);
}

/// Where nothing of libc's may be changed, calls that share descriptors are not seen, so nothing
/// is served: offsets are right.
#[test]
fn where_code_may_not_be_changed_programs_run_on_the_mount() {
    let Some(m) = Mounted::new() else { return };
    let (unchanged, program) = (compiled("unchanged"), compiled("semantics"));
    let report = m.beside("report");
    let mut run = Run::bare(&m, &unchanged).arg(&program).arg(m.dir("d"));
    run = run
        .env("SHALE_WARM_CALLS", "0")
        .env("SHALE_REPORT", &report);
    let done = run
        .stdout(Stdio::piped())
        .spawn()
        .wait_with_output()
        .unwrap();
    if done.status.code() == Some(77) {
        eprintln!("SKIPPED: needs PR_SET_MDWE (Linux 6.3)");
        return;
    }
    assert_eq!((done.status.code(), done.stdout), (Some(0), Vec::new()));
    let output = fs::read_to_string(&report).unwrap();
    let of_program = output.lines().filter(|l| l.contains(r#"/semantics"#));
    let mut served = of_program.map(|l| !l.contains(r#""all_sites":false"#));
    assert_eq!(served.next(), Some(false), "{output}");
    assert!(!output.contains(r#""attached":1"#), "{output}");
}

/// Each has what the other needs to fetch a page: nobody may wait for it inside the read section. The
/// daemon would cut both off after five seconds.
#[test]
fn buffers_in_files_that_others_write_hold_nobody_up() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("mapped");
    let [a, b] = ["a", "b"].map(|name| m.path().join(name));
    let start = |own, other| {
        let run = Run::of(&m, &program).arg(own).arg(other).args(["300"]);
        let run = run.env("SHALE_WARM_CALLS", "0").stdout(Stdio::piped());
        run.spawn()
    };
    for process in [start(&a, &b), start(&b, &a)] {
        let done = process.wait_with_output().unwrap();
        let longest = String::from_utf8(done.stdout).unwrap();
        assert!(done.status.success(), "{}", done.status);
        assert!(
            longest.trim().parse::<u64>().unwrap() < 4000,
            "{longest} ms"
        );
    }
}

#[test]
fn nothing_that_returned_is_lost_by_a_kill() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("append");
    for round in 0..5u64 {
        let file = m.path().join(format!("killed{round}"));
        let said = m.beside("said");
        let out = fs::File::create(&said).unwrap();
        let run = Run::bare(&m, &program)
            .arg(&file)
            .arg("k")
            .env("SHALE_WARM_CALLS", "0");
        let mut child = run.stdout(Stdio::from(out)).spawn();
        while fs::metadata(&said).unwrap().len() == 0 {
            assert_eq!(child.try_wait().unwrap(), None, "it ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(23 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let done = fs::read_to_string(&said).unwrap().lines().count();
        let found = fs::read_to_string(&file).unwrap();
        let kept = found.lines().count();
        assert!(done > 0 && kept >= done, "{kept} of {done} lines");
        assert!(
            found
                .lines()
                .eq((0..found.lines().count()).map(|i| format!("k{i:08}")))
        );
    }
}

#[test]
fn shells_redirect() {
    let Some(m) = Mounted::new() else { return };
    let script = "echo a > f; echo b >> f; (echo c; echo d) >> f; cat f
        { echo e; /bin/echo g; echo h; } >> f; exec 5<>f; read x <&5; read y <&5; echo $x$y
        exec 6>>f; echo z >&6; wc -l < f; cat < f > f2; cmp f f2 && echo same";
    for shell in ["bash", "dash"].into_iter().filter(|s| has(s)) {
        for calls in WARM_CALLS {
            let dir = m.dir(&format!("{shell}{calls}"));
            let run = Run::of(&m, shell)
                .args(["-c", script])
                .env("SHALE_WARM_CALLS", calls);
            assert_eq!(
                run.current_dir(&dir).output(),
                "a\nb\nc\nd\nab\n8\nsame\n",
                "{shell} {calls}"
            );
        }
    }
}

#[test]
fn databases_and_repositories_are_whole() {
    let Some(m) = Mounted::new() else { return };
    if has("sqlite3") {
        let made = "create table t(a integer primary key, b text);
            with recursive c(x) as (select 1 union all select x+1 from c where x<500)
            insert into t select x, hex(x) from c; delete from t where a%11=0;
            select count(*) from t; pragma integrity_check;";
        for mode in ["delete", "truncate", "persist", "wal"] {
            let file = m.path().join(format!("{mode}.db"));
            let sql = format!("pragma journal_mode={mode}; {made}");
            let run = Run::of(&m, "sqlite3")
                .arg(&file)
                .arg(&sql)
                .env("SHALE_WARM_CALLS", "0");
            assert_eq!(run.output(), format!("{mode}\n455\nok\n"));
            let seen = Run::of(&m, "sqlite3")
                .arg(&file)
                .arg("select count(*) from t");
            assert_eq!(seen.without_library().output(), "455\n", "{mode}");
        }
    }
    if has("git") {
        let dir = m.dir("repository");
        let script = "git init -q . && for i in 1 2 3; do echo $i >> f; git add f
            git -c user.name=n -c user.email=e commit -q -m $i; done
            git fsck --strict 2>&1; git log --format=%s | wc -l; git status --short";
        let run = Run::of(&m, "sh").args(["-c", script]).current_dir(&dir);
        assert_eq!(run.env("SHALE_WARM_CALLS", "0").output(), "3\n");
    }
}

/// Modes of `fallocate` that the kernel refuses for FUSE: the same answer whether the file is served, mapped, or
/// handed over, and the same bytes by the file, by its mapping, and for a FUSE client.
#[test]
fn ranges_are_collapsed_and_inserted_anyone_has_the_file() {
    let Some(m) = Mounted::new() else { return };
    if !has("python3") {
        eprintln!("SKIPPED: needs python3");
        return;
    }
    let script = "import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
B = 4096
def fallocate(fd, mode, at, n):
    done = libc.fallocate(fd, mode, ctypes.c_long(at), ctypes.c_long(n))
    return os.strerror(ctypes.get_errno()) if done else 'done'
COLLAPSE, INSERT, UNSHARE, KEEP = 8, 32, 64, 1
path, how = sys.argv[1:]
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
blocks = [bytes([65 + n]) * B for n in range(8)]
os.write(fd, b''.join(blocks))
over = None
if how == 'mapped':
    over = mmap.mmap(fd, 8 * B)
    over[:B] = blocks[0] = b'!' * B
elif how == 'private':
    over = mmap.mmap(fd, 8 * B, mmap.MAP_PRIVATE, mmap.PROT_READ)
elif how == 'handed':
    # The child gets it with its offset, and is another program.
    os.set_inheritable(fd, True)
    os.spawnlp(os.P_WAIT, 'sh', 'sh', '-c', f'read -r line <&{fd} && :')
    os.lseek(fd, 0, 0)
def check(what):
    expected = b''.join(blocks)
    n = len(expected)
    assert os.fstat(fd).st_size == n, (what, os.fstat(fd).st_size, n)
    assert os.pread(fd, 2 * n, 0) == expected, what
    assert os.path.getsize(path) == n and open(path, 'rb').read() == expected, what
    if how == 'mapped': assert over[:n] == expected[:8 * B], what + ' by the mapping'
check('before')
assert fallocate(fd, COLLAPSE, 2 * B, 3 * B) == 'done'
del blocks[2:5]
check('collapse')
if how == 'mapped':
    over[B:2 * B] = blocks[1] = b'?' * B
assert fallocate(fd, INSERT, B, 2 * B) == 'done'
blocks[1:1] = [bytes(B)] * 2
check('insert')
assert fallocate(fd, UNSHARE, 0, 5 * B) == 'done'
assert fallocate(fd, UNSHARE | KEEP, 6 * B, 5 * B) == 'done'
check('unshare')
# Refused alike.
assert fallocate(fd, COLLAPSE, 1, B) == os.strerror(22)
assert fallocate(fd, COLLAPSE, 0, 99 * B) == os.strerror(22)
assert fallocate(fd, INSERT, 99 * B, B) == os.strerror(22)
assert fallocate(fd, COLLAPSE | KEEP, 0, B) == os.strerror(95)
assert fallocate(os.open(path, os.O_RDONLY), INSERT, 0, B) == os.strerror(9)
check('refused')
assert os.listxattr(path) == []
";
    for calls in WARM_CALLS {
        for how in ["plain", "mapped", "private", "handed"] {
            let file = m.path().join(format!("{how}-{calls}"));
            let run = Run::of(&m, "python3").args(["-c", script]).arg(&file);
            let run = run.arg(how).env("SHALE_WARM_CALLS", calls);
            assert_eq!(run.output(), "", "{how} {calls}");
            let outside = fs::read(&file).unwrap();
            assert_eq!(outside.len(), 7 * 4096, "{how} {calls}");
        }
    }
}
