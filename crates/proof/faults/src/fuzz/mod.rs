//! What the fuzz targets in `fuzz/` run, and what `cargo test` runs with their corpus: bytes that
//! anybody could have written go in; nothing may panic, and what is left has to be whole.
//!
//! | Module | What the bytes are |
//! | --- | --- |
//! | [`decoders`] | one structure of the medium, or one message |
//! | [`messages`] | what a client says to the daemon |
//! | [`logs`] | the log of a client that lied, found at recovery |
//! | [`images`] | changes of a whole volume |
//! | [`staged`] | changes of a staged persistence area |
//!
//! Checksums are set after the bytes were taken, where the input wants it: a fuzzer does not
//! guess them, an attacker computes them.

pub mod decoders;
pub mod images;
pub(crate) mod input;
pub mod logs;
pub mod messages;
mod served;
pub mod staged;
mod users_volume;

#[cfg(test)]
mod tests;
