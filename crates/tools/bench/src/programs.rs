//! Other programs that are needed: run, and said what they said if they fail.

use std::process::Command;

use crate::BenchError;
use crate::Result;

/// Runs a program to its end; what it printed, without white space around it.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |found: String| BenchError::Program {
        program: program.clone(),
        found,
    };
    let output = command.output().map_err(|e| failed(e.to_string()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(failed(format!(
            "{}: {}",
            output.status,
            text(&output.stderr)
        ))),
    }
}
