//! What is known of mounts.
//!
//! * `mount_table`: the kernel's table of them; `mount_options`: how they are mounted;
//! * `state`, `settings`: what the processes of a mount keep beside it, below `/run`;
//! * `holders`: who uses one, and keeps it from being unmounted.

pub mod holders;
pub mod known_volumes;
pub mod mount_options;
pub mod mount_table;
pub mod settings;
pub mod state;
