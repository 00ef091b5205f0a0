//! What inotify sees of a program: what it does by way of the mount. `shale run --bypass` has it see all.

use crate::mount::Mounted;
use crate::tools::{Run, compiled};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn inotify_sees_what_goes_by_the_mount() {
    let Some(m) = Mounted::new() else { return };
    // The file behind the name, as `shale run --bypass sh` has it.
    let shell = fs::canonicalize("/bin/sh").unwrap();
    let shell = shell.to_str().unwrap();
    let all = "create modify close modify close from to delete ";
    let names_only = "create close close from to delete ";
    // Each with the settings of `shale run`.
    for (name, settings, seen) in [
        ("mount", &[][..], all),
        (
            "bypass",
            &[("SHALE_WARM_CALLS", "0"), ("SHALE_BYPASS", shell)],
            all,
        ),
        ("run", &[("SHALE_WARM_CALLS", "0")], names_only),
        ("names", &[("SHALE_NAMES", "0")], ""),
    ] {
        let dir = m.dir(name);
        let watch = Run::of(&m, compiled("watch")).without_library();
        let watch = watch.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut watch = watch.arg(&dir).spawn();
        let mut output = BufReader::new(watch.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "watching\n");
        let script = "echo a >f; echo b >>f; mv f g; rm g";
        let mut run = Run::of(&m, "sh").args(["-c", script]).current_dir(&dir);
        for (name, value) in settings {
            run = run.env(name, value);
        }
        let run = match settings {
            [] => run.without_library(),
            _ => run,
        };
        assert_eq!(run.output(), "", "{name}");
        drop(watch.stdin.take());
        line.clear();
        output.read_line(&mut line).unwrap();
        assert!(watch.wait().unwrap().success());
        assert_eq!(line, seen, "{name}");
    }
}
