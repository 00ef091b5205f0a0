//! What the fuzz targets in `fuzz/` run, and what `cargo test` runs with their corpus: bytes that
//! anybody could have written go in; nothing may panic, and what is left has to be whole.
//!
//! | Module | What the bytes are |
//! | --- | --- |
//! | [`decoders`] | one structure of the medium, or one message |
//! | [`messages`] | what a client says to the daemon |
//! | [`logs`] | the log of a client that lied, found at recovery |
//! | [`images`] | changes of a whole volume |
//!
//! Checksums are set after the bytes were taken, where the input wants it: a fuzzer does not
//! guess them, an attacker computes them.

pub mod decoders;
pub mod images;
pub mod logs;
pub mod messages;
mod served;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::Superblock;
use zerocopy::FromBytes;

use shale_bench::Result;
use shale_powercut::base::{Base, More};

/// Whose volume it is: somebody who is not trusted with more than any user is with his own.
pub(crate) const USER: u32 = 1000;

/// Where volumes are: a directory on tmpfs. They stay when the process ends, so a caller that starts it
/// removes them.
pub(crate) fn dir() -> PathBuf {
    std::env::var_os("SHALE_FUZZ_DIR").map_or("/dev/shm".into(), PathBuf::from)
}

/// The small tree on a volume of [`USER`]'s, in a directory in `dir` for the time being.
pub(crate) fn users_volume(dir: &Path) -> Result<Arc<Base>> {
    let mut base = Base::make(dir, More::Nothing)?;
    let made = Arc::get_mut(&mut base).expect("it was just made");
    let (first, _) = Superblock::read_from_prefix(&made.segment).expect("longer than a block");
    let second = first.second_block() as usize * BLOCK_BYTES;
    for at in [0, second] {
        let bytes = &mut made.segment[at..at + Superblock::BYTES];
        let mut superblock = Superblock::read_from_bytes(bytes).expect("as many bytes");
        superblock.owner_uid = USER;
        bytes.copy_from_slice(&superblock.encode());
    }
    Ok(base)
}

/// Takes an input apart.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of it is left.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Input(bytes)
    }

    /// The next `n` bytes; fewer at the end.
    pub(crate) fn take(&mut self, n: usize) -> &'a [u8] {
        let (now, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        now
    }

    /// The next number of so many bytes, lowest first; zeros behind the end.
    pub(crate) fn number(&mut self, bytes: usize) -> u64 {
        let mut word = [0; 8];
        let found = self.take(bytes);
        word[..found.len()].copy_from_slice(found);
        u64::from_le_bytes(word)
    }

    /// Whether nothing is left.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}
