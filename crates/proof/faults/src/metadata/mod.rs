//! Metadata that is not what was written: which structures there are, how they are damaged, what follows.

pub mod buffered_logs;
pub mod damage;
pub mod damaged_images;
pub mod misdirected_writes;
pub mod repair_cuts;
pub mod rot;
pub mod structures;
pub mod update_logs;
