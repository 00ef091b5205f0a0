//! Tells the program which commit it is built from: "0123456789ab", with "+changes" behind
//! it if files differ from the commit; nothing where there is no repository.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let ok = output.status.success();
    ok.then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn commit() -> Option<String> {
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(match changed.is_empty() {
        true => commit,
        false => commit + "+changes",
    })
}

fn main() {
    // Sources, and what a commit changes.
    println!("cargo:rerun-if-changed=..");
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    if let Some(commit) = commit() {
        println!("cargo:rustc-env=SHALE_COMMIT={commit}");
    }
}
