//! What structures with a magic number and a checksum have in common.

use crate::FormatError;
use crate::checksum::{crc32c, crc32c_parts};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A structure that begins with a magic number and holds a CRC-32C over itself
/// (its own field taken as 0) and whatever follows it.
pub(crate) trait Sealed: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// Its name in messages.
    const WHAT: &'static str;
    /// The magic number; of fewer bytes where the field is shorter.
    const MAGIC: u64;
    /// The magic number found.
    fn magic(&self) -> u64;
    /// The checksum field.
    fn crc(&mut self) -> &mut u32;
}

/// Sets the checksum of a structure that nothing follows.
pub(crate) fn seal<T: Sealed>(mut s: T) -> T {
    *s.crc() = 0;
    *s.crc() = crc32c(s.as_bytes());
    s
}

/// Reads a structure found at `at`: length and magic number. Gives what follows it too.
pub(crate) fn read<T: Sealed>(bytes: &[u8], at: u64) -> Result<(T, &[u8]), FormatError> {
    let (s, rest) = T::read_from_prefix(bytes).map_err(|_| FormatError::Short {
        what: T::WHAT,
        expected: size_of::<T>(),
        found: bytes.len(),
    })?;
    if s.magic() != T::MAGIC {
        return Err(FormatError::Magic {
            what: T::WHAT,
            at,
            expected: T::MAGIC,
            found: s.magic(),
        });
    }
    Ok((s, rest))
}

/// Checks the checksum of a structure found at `at` that covers `rest` too.
pub(crate) fn verify<T: Sealed>(s: &T, rest: &[u8], at: u64) -> Result<(), FormatError> {
    let mut zeroed = *s;
    let found = std::mem::take(zeroed.crc());
    let expected = crc32c_parts(&[zeroed.as_bytes(), rest]);
    if expected == found {
        return Ok(());
    }
    Err(FormatError::Checksum {
        what: T::WHAT,
        at,
        expected,
        found,
    })
}

macro_rules! sealed {
    ($name:ident, $what:literal, $magic:expr) => {
        impl crate::checksummed::Sealed for $name {
            const WHAT: &'static str = $what;
            const MAGIC: u64 = $magic as u64;
            fn magic(&self) -> u64 {
                u64::from(self.magic)
            }
            fn crc(&mut self) -> &mut u32 {
                &mut self.crc
            }
        }
    };
}
pub(crate) use sealed;
