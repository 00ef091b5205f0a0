//! The strict and the buffered policy of NVM side by side, by the loads of HiNFS's evaluation (MISSION M12–M15; HiNFS §5).
//!
//! | Module | What |
//! | --- | --- |
//! | [`loads`] | the loads: of any directory, for so many seconds or operations |
//! | `systems` | what a load runs on: a new volume by its mount or under `shale run`, tmpfs, ext4 on a device as slow as the model |
//! | `child` | a load in a process of its own, and the counts before and after it |
//! | [`keeper`] | takes everything away when the measuring process has gone, however that ended |
//! | `run` | all combinations of what is varied, in rounds, by turns |
//! | `report` | what was found: table, JSON, plots named after the paper's figures |
//!
//! Counts first: bytes that reached NVM for each byte that a load wrote, and requests. Operations a second are given as ratios within a round.

mod child;
pub mod keeper;
pub mod loads;
mod options;
mod report;
mod run;
mod systems;

pub use loads::{Found, Limit, Load, LoadOptions};
pub use options::{NO_MODEL, PolicyOptions, Way};
pub use report::{Cell, PolicyReport, Row, Spread};
pub use run::run_with_progress;
pub use systems::{Counts, Measured, System, is_policy};
