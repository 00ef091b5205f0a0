//! What commands say and do, and what they refuse.

mod bench;
mod buffered;
mod found;
mod helpers;
mod messages;
mod mistakes;
mod observe;
mod options;
mod ordered;
mod reported;
mod run;
mod tune;
mod watch;
mod without_nvm;
