//! The file system as a C library: the functions of `include/shale.h` over the path API of
//! libfs (DESIGN §3).
//!
//! The header is the documentation for who calls; here stands how it is done. Every function
//! goes through [`edge`]: pointers become references there, errors become negative numbers, and
//! no panic gets past it. A handle is a pointer to a counted ([`attachment`]) or owned value.
//!
//! Invariant: a handle is used only in the process that made it. A child shares its parent's
//! log and control page, so every function asks first whether there was a fork, and a child
//! never drops what a handle holds.

pub mod attachment;
pub mod attributes;
pub mod directories;
pub mod edge;
pub mod files;
pub mod leases;
pub mod names;
mod protect;
pub mod status;

/// Memory of this library.
#[global_allocator]
static MEMORY: shale_sys::Memory = shale_sys::Memory::new();

#[cfg(test)]
mod tests;
