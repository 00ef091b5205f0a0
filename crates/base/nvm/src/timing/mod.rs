//! Models of slow media. Each constant names the paper it is from.
//!
//! | Model | Of what | Source |
//! | --- | --- | --- |
//! | [`Model::strata`] | NVM: latency of a read, bandwidth in a window | Strata §5, Table 1 |
//! | [`Model::hinfs`] | NVM: 200 ns a line, Nw writers | HiNFS §5.1 |
//!
//! [`Timing`] goes with a mapping of NVM. What waits for another medium is said by a [`Pace`]: nothing (a virtual
//! clock is moved), or the thread.

mod model;
mod pace;

pub use model::{Model, Timing};
pub use pace::Pace;
