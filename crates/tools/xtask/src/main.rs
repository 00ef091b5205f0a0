//! Checks and generators of the project itself: `cargo xtask <task>`.
//!
//! * `ci` runs every check in order and prints one closing summary.
//! * `check` runs those of them that take minutes.
//! * `tidy` compares the source tree with the rules that no compiler knows.
//! * `spec` writes the byte layouts of `shale-format` into `docs/SPEC.md`.
//! * `figures` draws the pictures of the README from data in `docs`.
//! * `bench-diff` compares the counts of two benchmark results.
//!
//! Nothing here is part of the product, and nothing here changes a file but `spec` and `figures`.
#![forbid(unsafe_code)]

mod bench_diff;
mod ci;
mod error;
mod figures;
mod spec;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use error::Error;

const USAGE: &str = "usage: cargo xtask ci
       cargo xtask check
       cargo xtask tidy
       cargo xtask spec [--check]
       cargo xtask figures [--check]
       cargo xtask bench-diff OLD.json NEW.json";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = workspace_root();
    let outcome = match words.as_slice() {
        ["ci"] => ci::run(&root, ci::Tier::Whole),
        ["check"] => ci::run(&root, ci::Tier::Fast),
        ["tidy"] => tidy::run(&root),
        ["spec"] => spec::run(&root, spec::Mode::Write),
        ["spec", "--check"] => spec::run(&root, spec::Mode::Check),
        ["figures"] => figures::run(&root, figures::Mode::Write),
        ["figures", "--check"] => figures::run(&root, figures::Mode::Check),
        ["bench-diff", old, new] => bench_diff::run(Path::new(old), Path::new(new)),
        _ => Err(Error::Usage(USAGE)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The manifest of this crate is `crates/tools/xtask/Cargo.toml` of the workspace to check.
/// Cargo says at run time where that is: a program built in one clone may be run in
/// another when both share a target directory.
fn workspace_root() -> PathBuf {
    let here =
        std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").into());
    let here = Path::new(&here);
    here.ancestors().nth(3).unwrap_or(here).to_path_buf()
}
