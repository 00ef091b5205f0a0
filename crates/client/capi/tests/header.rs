//! The header and the library: the same functions, for C99 and for C++, linked both ways.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const STRICT: [&str; 5] = ["-pedantic", "-Wall", "-Wextra", "-Werror", "-pthread"];
/// What the static library needs besides: `Libs.private` of `shale.pc.in`.
const PRIVATE: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

/// The directory with the libraries, which cargo has built beside this test.
fn built() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let dir = here.parent().unwrap().to_owned();
    assert!(dir.join("libshale.so").exists(), "{}", dir.display());
    dir
}

fn run(command: &mut Command) -> String {
    let done = command.output().unwrap();
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {printed}{errors}");
    printed
}

/// A command of the compiler with our header in its path.
fn compiler(program: &str, standard: &str, source: &Path, result: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg(standard).args(STRICT).arg("-I");
    command.arg(Path::new(HERE).join("include"));
    command.args(["-o".as_ref(), result.as_os_str(), source.as_os_str()]);
    command
}

fn names(text: &str, is_end: fn(char) -> bool) -> BTreeSet<String> {
    text.match_indices("shale_")
        .filter(|(at, _)| *at == 0 || !is_word(text.as_bytes()[at - 1] as char))
        .filter_map(|(at, _)| {
            let rest = &text[at..];
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let follows = rest[end..].chars().next().unwrap_or('\n');
            is_end(follows).then(|| rest[..end].to_owned())
        })
        .collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The header without its comments.
fn declarations() -> String {
    let header = std::fs::read_to_string(Path::new(HERE).join("include/shale.h")).unwrap();
    let mut parts = header.split("/*");
    let mut code = parts.next().unwrap().to_owned();
    for part in parts {
        code += part.split_once("*/").expect("a comment ends").1;
    }
    code
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    let declared = names(&declarations(), |c| c == '(');
    assert!(declared.len() > 30 && declared.contains("shale_attach"));
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only", "--format=posix"]);
    let printed = run(nm.arg(built().join("libshale.so")));
    let exported = printed.lines().filter_map(|l| l.split(' ').next());
    let exported: BTreeSet<String> = exported.map(str::to_owned).collect();
    assert_eq!(exported, declared);
}

#[test]
fn c_and_cpp_take_the_header_and_link_with_both_libraries() {
    let place = TempDir::new().unwrap();
    let source = Path::new(HERE).join("tests/c/header.c");
    let program = place.path().join("program");
    let built = built();
    // The loader looks for the name that the library says.
    std::os::unix::fs::symlink(
        built.join("libshale.so"),
        place.path().join("libshale.so.0"),
    )
    .unwrap();
    let cpp = place.path().join("header.cpp");
    std::fs::copy(&source, &cpp).unwrap();
    for (program_of, standard, source) in [("cc", "-std=c99", &source), ("c++", "-std=c++11", &cpp)]
    {
        let mut command = compiler(program_of, standard, source, &program);
        run(command.arg("-L").arg(&built).arg("-lshale"));
        run(Command::new(&program).env("LD_LIBRARY_PATH", place.path()));
    }
    let mut command = compiler("cc", "-std=c99", &source, &program);
    run(command.arg(built.join("libshale.a")).args(PRIVATE));
    run(&mut Command::new(&program));
}

#[test]
fn the_example_compiles_and_says_what_is_wrong() {
    let place = TempDir::new().unwrap();
    let source = Path::new(HERE).join("examples/append.c");
    let program = place.path().join("append");
    let mut command = compiler("cc", "-std=c99", &source, &program);
    run(command.arg(built().join("libshale.a")).args(PRIVATE));
    let output = Command::new(&program).args(["/proc", "log", "1"]).output();
    let output = output.unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(words, "append: /proc: No such device\n");
}
