//! Metrics for Prometheus and other readers of OpenMetrics.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | `sheet` | what is exported, under which names |
//! | `address` | where it is served |
//! | `http` | the server, a few threads that answer one request each |
//!
//! Called by `cli` if `shale mount --metrics` asks for them: it is served by the daemon's process, which knows the numbers. There is no
//! login: any process that reaches the address may read them. Nothing is kept: counters begin again with each daemon.
#![forbid(unsafe_code)]

mod address;
mod http;
mod sheet;

pub use address::Address;
pub use http::{Listener, serve};
pub use sheet::text;
