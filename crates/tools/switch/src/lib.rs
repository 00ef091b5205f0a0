//! Shale: a volume without NVM that gets NVM (`shale device add --nvm`), and one with NVM that goes on without (`shale device remove --nvm`),
//! between mounts.
//!
//! The media change in `pool` ([`shale_pool::staged::to_nvm`], [`shale_pool::staged::from_nvm`]), which takes a volume of which no log has anything left. One
//! that was not unmounted is recovered first, by a daemon that serves nobody.
#![forbid(unsafe_code)]

mod add;
mod recovered;
mod remove;

pub use add::add;
pub use remove::remove;
