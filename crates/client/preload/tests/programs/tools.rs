//! Programs: compiled from C beside this file, or found; run with the library.

use crate::mount::Mounted;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The library under test, which cargo has built beside this test.
pub fn library() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let library = here.parent().unwrap().join("libshale_preload.so");
    assert!(library.exists(), "{}: build it first", library.display());
    library
}

/// Whether there is a program of this name.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// A program, compiled from C.
pub fn compiled(name: &str) -> PathBuf {
    let program = output(name);
    let args = ["-O2", "-pthread", "-rdynamic"];
    compile("cc", &format!("{name}.c"), &program, &args);
    program
}

/// A file of this name for the test that runs.
pub fn output(name: &str) -> PathBuf {
    let place = std::thread::current()
        .name()
        .unwrap_or("main")
        .replace(':', "_");
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{place}"))
}

/// Compiles a source beside this file.
pub fn compile(compiler: &str, source: &str, output: &Path, args: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs/c")
        .join(source);
    let done = Command::new(compiler)
        .args(["-Wall", "-Wextra"])
        .args(args)
        .arg("-o")
        .args([output.as_os_str(), source.as_os_str()])
        .status()
        .unwrap();
    assert!(done.success(), "{} does not compile", source.display());
}

/// A program to run.
pub struct Run(Command);

impl Run {
    /// With the library, on this mount. A deadlock fails after a minute.
    pub fn of(mount: &Mounted, program: impl AsRef<OsStr>) -> Self {
        Self::bare(mount, "timeout")
            .args(["-k", "5", "60"])
            .arg(program)
    }

    /// As [`Self::of`], but the child is the program itself.
    pub fn bare(mount: &Mounted, program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", library());
        command.env("SHALE_RUN_DIR", mount.states());
        command.env("SHALE_LOG_BYTES", "16M");
        Self(command)
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.0.arg(arg);
        self
    }

    pub fn args<const N: usize>(mut self, args: [&str; N]) -> Self {
        self.0.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    pub fn current_dir(mut self, dir: &Path) -> Self {
        self.0.current_dir(dir);
        self
    }

    pub fn stdin(mut self, from: Stdio) -> Self {
        self.0.stdin(from);
        self
    }

    pub fn stdout(mut self, to: Stdio) -> Self {
        self.0.stdout(to);
        self
    }

    pub fn stderr(mut self, to: Stdio) -> Self {
        self.0.stderr(to);
        self
    }

    /// By way of the mount only.
    pub fn without_library(mut self) -> Self {
        self.0.env_remove("LD_PRELOAD");
        self
    }

    pub fn spawn(mut self) -> Child {
        self.0.spawn().unwrap()
    }

    /// Runs it to its end; what it printed. It has to succeed.
    pub fn output(mut self) -> String {
        let done = self.0.output().unwrap();
        let printed = String::from_utf8(done.stdout).unwrap();
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success(),
            "{:?}: {}\n{printed}{errors}",
            self.0,
            done.status
        );
        printed
    }
}
