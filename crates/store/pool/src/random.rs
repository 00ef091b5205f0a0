//! Random bytes of the operating system.

use crate::error::{PoolError, Result};
use std::io::Read;

/// Random bytes that nobody can guess: identities, salts, hash keys.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let path = std::path::Path::new("/dev/urandom");
    let mut bytes = [0; N];
    std::fs::File::open(path)
        .and_then(|mut f| f.read_exact(&mut bytes))
        .map_err(|e| PoolError::file(path, format!("read {N} random bytes"), e))?;
    Ok(bytes)
}
