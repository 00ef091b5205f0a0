//! A load in a process of its own: `shale bench load`, by itself or under `shale run`.
//!
//! It says "ready" when its files are made and synced, and waits for a line; so what is counted begins there.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::loads::{Found, Limit, Load, LoadOptions};
use super::options::Way;
use crate::{BenchError, Result};

/// What a load says when it is about to begin.
pub(crate) const READY: &str = "ready";

/// Runs a load in `dir`; `between` is called when its files are made, before what counts.
pub(crate) fn load(
    program: &Path,
    way: Way,
    load: Load,
    dir: &Path,
    options: &LoadOptions,
    between: impl FnOnce() -> Result<()>,
) -> Result<Found> {
    let mut command = Command::new(program);
    if way == Way::Run {
        command.args(["run", "--"]).arg(program);
    }
    command.args(["bench", "load", load.name()]).arg(dir);
    command.args(["--threads", &options.threads.to_string()]);
    command.args(["--seed", &options.seed.to_string()]);
    match options.limit {
        Limit::Seconds(seconds) => command.args(["--seconds", &seconds.to_string()]),
        Limit::Operations(operations) => command.args(["--operations", &operations.to_string()]),
    };
    if let Some(files) = options.files {
        command.args(["--files", &files.to_string()]);
    }
    if let Some(bytes) = options.io_bytes {
        command.args(["--io", &bytes.to_string()]);
    }
    if let Some(percent) = options.sync_percent {
        command.args(["--sync-percent", &percent.to_string()]);
    }
    command.arg("--wait");
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(BenchError::file(program, "start"))?;
    Running(child).finish(load, between)
}

/// Killed if it has not ended when this is dropped.
struct Running(Child);

impl Running {
    fn finish(mut self, load: Load, between: impl FnOnce() -> Result<()>) -> Result<Found> {
        let failed = |found: String| BenchError::Program {
            program: format!("load {load}"),
            found,
        };
        let (Some(mut input), Some(output)) = (self.0.stdin.take(), self.0.stdout.take()) else {
            return Err(failed("no pipe".to_owned()));
        };
        let mut output = BufReader::new(output);
        let mut said = String::new();
        let read = output.read_line(&mut said);
        let ready = read.is_ok() && said.trim() == READY;
        let mut report = String::new();
        if ready {
            between()?;
            // One that has died says why below.
            let _ = input.write_all(b"\n");
            let _ = output.read_to_string(&mut report);
        }
        drop(input);
        let mut errors = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            let _ = stderr.read_to_string(&mut errors);
        }
        let status = self.0.wait().map_err(|e| failed(e.to_string()))?;
        let found = serde_json::from_str(&report);
        match (status.success(), found) {
            (true, Ok(found)) => Ok(found),
            (true, Err(error)) => Err(failed(format!("'{}': {error}", report.trim()))),
            (false, _) => Err(failed(format!("{status}: {}", errors.trim()))),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
