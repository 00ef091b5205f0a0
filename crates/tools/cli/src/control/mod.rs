//! How the processes of a mount, and the verbs, talk with each other.
//!
//! * `packet`: what supervisor and daemon say to each other;
//! * `orders`: what only the owner may order, given by `admin` and done by `admin_server`;
//! * `ask`, `fields`: what anybody may ask, and reading what is answered;
//! * `staging`: what is answered of the staging area of a volume without NVM, in words.

pub mod admin;
pub mod admin_server;
pub mod ask;
pub mod fields;
pub mod orders;
pub mod packet;
pub mod staging;
