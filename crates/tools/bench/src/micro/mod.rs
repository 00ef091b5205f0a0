//! Latency of single operations, in one run, side by side (MISSION M2; Strata Fig. 3).
//!
//! The targets take turns in short rounds. Medians of the same run may be compared with
//! each other, and with the budgets of DESIGN §13 ([`MicroReport::budgets`]);
//! times of different runs may not.

mod calls;
mod direct;
mod ext4;
mod floor;
mod options;
mod report;
mod rounds;
mod run;
mod target;

pub use floor::NAME_RECORD_BYTES;
pub use options::MicroOptions;
pub use report::budget::{Budget, Verdict};
pub use report::{Counts, MicroReport, Row, Skipped};
pub use run::{run, run_with_progress};
pub use target::{DeviceCounts, FLOOR, LIBFS, MOUNT, Op, TMPFS, Target, TargetCounts};

#[cfg(test)]
mod tests;
