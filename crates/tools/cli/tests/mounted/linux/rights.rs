//! Rights of programs (set-user-ID, set-group-ID, capabilities) as the kernel has them cached, beside ext4: after
//! every way to change content, owner or mode, by users with and without privilege, through the mount and
//! under `shale run`. `rights.c` says what the ways are, changes the files, and runs them.

use crate::volume::{SHALE, Volume, can_mount, library};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const GROUP: &str = "1234";
const USER: &str = "1000";

/// Who changes the files: a stranger, a member of their group, root, root's user without any capability.
const WHO: [(&str, &[&str]); 4] = [
    (
        "stranger",
        &["--reuid", USER, "--regid", USER, "--clear-groups"],
    ),
    (
        "member",
        &["--reuid", USER, "--regid", USER, "--groups", "4,1234"],
    ),
    ("root", &["--clear-groups"]),
    (
        "powerless",
        &[
            "--clear-groups",
            "--bounding-set",
            "-all",
            "--inh-caps",
            "-all",
        ],
    ),
];

/// Whether the kernel does not have a FUSE file system do this change. (A program under `shale run` has it.)
fn is_refused(case: &str, change: &str) -> bool {
    (case.ends_with("-collapse") || case.ends_with("-insert")) && change.ends_with(" 95")
}

/// Whether it is known why Shale differs from what ext4 says.
fn is_known(ext4: &str, ours: &str) -> bool {
    let case = ext4.split_whitespace().next().unwrap_or_default();
    // EPERM on ext4 for anybody but the owner. A FUSE server cannot tell it from a write: who may write
    // the file takes its rights away, as they could by writing; for others nothing changes.
    let nothing = case.ends_with("-chownnone")
        && (!ours.contains("mode") || !case.starts_with("4755") && !ours.contains("euid 0"));
    // A store through a mapping takes the capability too.
    let stored =
        case.ends_with("-mapped") && case.starts_with('c') && ours.contains("capability -1");
    // With a capability, root's write takes set-user-ID too: the request does not say which is meant.
    let both = case.starts_with("c4777") && ours.contains("mode 777 ");
    nothing || stored || both
}

/// An ext4 file system in a file; unmounted when dropped.
struct Ext4(PathBuf);

impl Ext4 {
    fn new(v: &Volume) -> Option<Self> {
        let (image, dir) = (v.dir().join("ext4.img"), v.dir().join("ext4"));
        fs::File::create(&image)
            .unwrap()
            .set_len(256 << 20)
            .unwrap();
        fs::create_dir(&dir).unwrap();
        let done = |command: &mut Command| command.output().is_ok_and(|o| o.status.success());
        let made = done(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        let mounted = made
            && done(
                Command::new("mount")
                    .args(["-o", "loop"])
                    .arg(&image)
                    .arg(&dir),
            );
        mounted.then_some(Self(dir))
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn output(command: &mut Command) -> String {
    let done = command.output().unwrap();
    let said = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    assert!(done.status.success(), "{command:?}: {said}");
    said
}

/// All that the program says of files below `dir`: the changes, then the files, then the files once more when
/// the kernel has forgotten them. By user and case.
fn cases(v: &Volume, program: &Path, dir: &Path, run: bool) -> BTreeMap<String, Vec<String>> {
    let open = |dir: &Path| fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut note = |who: &str, said: &str| {
        for line in said.lines() {
            let case = line.split_whitespace().next().unwrap();
            let lines = all.entry(format!("{who} {case}")).or_default();
            lines.push(line.to_owned());
        }
    };
    let look = |dir: &Path| output(Command::new(program).arg("look").arg(dir).arg(USER));
    for (who, options) in WHO {
        let dir = dir.join(who);
        fs::create_dir(&dir).unwrap();
        open(&dir);
        output(Command::new(program).arg("make").arg(&dir).arg(GROUP));
        // Now the kernel has their attributes.
        look(&dir);
        let mut change = match run {
            true => Command::new(SHALE),
            false => Command::new("setpriv"),
        };
        if run {
            change
                .args(["run", "--", "setpriv"])
                .env("SHALE_PRELOAD", v.dir().join("preload.so"))
                .env("SHALE_WARM_CALLS", "0");
        }
        change.args(options).arg(program).arg("change").arg(&dir);
        note(who, &output(&mut change));
        note(who, &look(&dir));
    }
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    for (who, _) in WHO {
        note(who, &look(&dir.join(who)));
    }
    all
}

#[test]
fn rights_of_programs_go_as_on_ext4_also_from_what_the_kernel_has_cached() {
    if !can_mount() {
        return;
    }
    let v = Volume::trusting_with("rights", "288M", &[USER]);
    let Some(ext4) = Ext4::new(&v) else {
        eprintln!("SKIPPED: needs mkfs.ext4 and loop devices");
        return;
    };
    let program = v.dir().join("rights");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mounted/linux/rights.c");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-Wall", "-Wextra", "-o"]);
    output(compile.arg(&program).arg(source));
    // The user may not reach what was built.
    fs::copy(library(), v.dir().join("preload.so")).unwrap();
    v.mount();
    let right = cases(&v, &program, &ext4.0, false);
    assert!(right.len() > 1000, "{}", right.len());
    for (name, run) in [("mount", false), ("run", true)] {
        let dir = v.mountpoint().join(name);
        fs::create_dir(&dir).unwrap();
        let found = cases(&v, &program, &dir, run);
        let mut wrong = Vec::new();
        for (case, lines) in &right {
            assert_eq!((lines.len(), found[case].len()), (3, 3), "{case}");
            if !run && is_refused(case, &found[case][0]) {
                continue;
            }
            for (ext4, ours) in lines.iter().zip(&found[case]) {
                if ext4 != ours && !is_known(ext4, ours) {
                    wrong.push(format!("{case}\n  ext4 {ext4}\n  ours {ours}"));
                }
            }
        }
        let count = wrong.len();
        wrong.truncate(20);
        assert!(count == 0, "{name}: {count} differ:\n{}", wrong.join("\n"));
        fs::remove_dir_all(&dir).unwrap();
    }
    v.umount();
    v.fsck();
}
