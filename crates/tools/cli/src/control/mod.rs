//! How the processes of a mount, and the verbs, talk with each other.
//!
//! * `packet`: what supervisor and daemon say to each other;
//! * `orders`: what only the owner may order, given by `admin` and done by `admin_server`;
//! * `ask`: what anybody may ask.

pub mod admin;
pub mod admin_server;
pub mod ask;
pub mod orders;
pub mod packet;
