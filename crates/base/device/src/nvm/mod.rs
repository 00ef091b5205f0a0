//! NVM as mapped memory: one file, or several side by side in one address range.
//!
//! [`Map`] owns the mapping; it dereferences to the [`View`] of its default path, and
//! `map.on(Path::Structure)` is the view that counts for another path. All access
//! goes through views. [`Span`] is the optional layer on top in which the order
//! "stored, flushed, fenced" is checked by the compiler.
//!
//! Invariants: a range outside the mapping, a store to a read-only piece and a
//! misaligned word are mistakes of ours and panic; no reference into mapped memory is
//! ever lent out; views keep the mapping alive.

mod gather;
mod guard;
mod map;
mod mapping;
mod recorded;
mod shared;
mod span;
mod unnamed;
mod view;
mod words;

pub use crate::isa::{LINE_BYTES, LINE_WORDS};
pub use map::{Map, MapOptions};
pub use mapping::{Access, Persistence, Piece};
pub use shared::SharedWords;
pub use span::{Clean, Dirty, InFlight, Joined, Span};
pub use unnamed::{create_unnamed, name_unnamed};
pub use view::View;

#[cfg(test)]
mod gather_tests;
#[cfg(test)]
mod tests;
