//! How a measurement fails.

use crate::failure::Failure;
use shale_bench::BenchError;

/// Nothing was measured; options that make no sense are a mistake of the command line.
pub fn failed(error: BenchError) -> Failure {
    match error {
        BenchError::Option { .. } => Failure::usage(error.to_string()),
        error => Failure::of(error),
    }
}
