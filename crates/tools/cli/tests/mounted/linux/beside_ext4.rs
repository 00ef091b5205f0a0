//! A program whose answers are compared with those that it got on ext4: on the mount, and under `shale run`.

use crate::volume::{SHALE, Volume, library};
use std::fs;
use std::process::{Command, Output};

/// What a command says; it has to succeed.
pub fn done(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let error = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {error}");
    String::from_utf8(stdout).unwrap()
}

/// As `program`, by a client of its own if `served`.
pub fn program(program: &str, served: bool) -> Command {
    if !served {
        return Command::new(program);
    }
    let mut command = Command::new(SHALE);
    command.args(["run", "--", program]);
    command.env("SHALE_PRELOAD", library());
    command.env("SHALE_WARM_CALLS", "0");
    command
}

/// Runs the Python program at `script` in a directory of its own, on the mount and under `shale run`: it says what it said on
/// ext4, but for `others`, each as ext4 has it and as it is here. Under `shale run` it may say either of the two: once the names of
/// a directory are served in the process, what the kernel does not ask about is asked there.
pub fn compare(v: &Volume, script: &str, ext4: &str, others: &[(&str, &str)]) {
    let mut expected = ext4.to_owned();
    for (ext4, here) in others {
        assert!(expected.contains(ext4), "{ext4}");
        expected = expected.replace(ext4, here);
    }
    for served in [false, true] {
        let top = v.mountpoint().join(format!("top-{served}"));
        fs::create_dir(&top).unwrap();
        let said = done(program("python3", served).arg(script).arg(&top));
        let lines = expected.lines().zip(ext4.lines()).zip(said.lines());
        let differs = |&((here, ext4), said): &((&str, &str), &str)| {
            said != here && !(served && said == ext4)
        };
        let differ: Vec<_> = lines.filter(differs).collect();
        assert!(differ.is_empty(), "served {served}: {differ:#?}");
        assert_eq!(said.lines().count(), expected.lines().count());
    }
}
