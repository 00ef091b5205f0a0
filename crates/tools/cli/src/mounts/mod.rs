//! What is known of mounts.
//!
//! * `mount_table`: the kernel's table of them, which is in the crate `verb`; `mount_options`: how they are mounted;
//! * `known_volumes`: volume files that this machine knows of;
//! * `state`, `settings`: what the processes of a mount keep beside it, below `/run`;
//! * `holders`: who uses one, and keeps it from being unmounted; in the crate `verb`.

pub mod known_volumes;
pub mod mount_options;
pub mod settings;
pub mod state;

pub use shale_verb::holders;
pub use shale_verb::mount_table;
