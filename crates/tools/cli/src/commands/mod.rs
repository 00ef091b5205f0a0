//! One file per verb: its arguments, what it does, what it prints.

pub mod bench;
pub mod completions;
pub mod device;
pub mod df;
pub mod digest;
pub mod fsck;
pub mod limit;
pub mod log;
pub mod migrate;
pub mod mkfs;
pub mod mount;
pub mod pin;
pub mod placement;
pub mod rescue;
pub mod run;
pub mod scrub;
pub mod status;
pub mod sync;
pub mod top;
pub mod tune;
pub mod umount;
