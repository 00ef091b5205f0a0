//! Reading all of a backup: whether everything is as it was written.

use crate::error::{BackupError, Result};
use crate::manifest::Content;
use crate::store::Store;
use crate::take::path_of;
use std::collections::HashSet;

/// What was verified of one backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Bytes that were read and fit; what backups have in common is read once.
    pub bytes: u64,
    /// Path and reason of what is damaged; without a path: the backup itself.
    pub damage: Vec<(Vec<u8>, String)>,
}

/// What was read for backups before, so that it is not read again.
#[derive(Debug, Default)]
pub struct Seen(HashSet<(String, u64)>);

/// Verifies one complete backup.
///
/// # Errors
/// Those of files but damage, which is in the answer.
pub fn verify(store: &Store, name: &str, seen: &mut Seen) -> Result<Verified> {
    let mut verified = Verified::default();
    let opened = store.manifest(name).and_then(|manifest| {
        let content = store.content(&manifest.header)?;
        Ok((manifest, content))
    });
    let (manifest, content) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            verified.damage.push((Vec::new(), e.to_string()));
            return Ok(verified);
        }
    };
    let mut buffer = Vec::new();
    for (n, entry) in manifest.entries.iter().enumerate() {
        let Content::File(pieces) = &entry.content else {
            continue;
        };
        for piece in pieces {
            let pack = &manifest.header.packs[piece.pack as usize];
            if seen.0.contains(&(pack.clone(), piece.at)) {
                continue;
            }
            match content.read(piece, &mut buffer) {
                Ok(()) => {
                    verified.bytes += u64::from(piece.bytes);
                    seen.0.insert((pack.clone(), piece.at));
                }
                Err(e @ (BackupError::Damaged { .. } | BackupError::File { .. })) => {
                    verified
                        .damage
                        .push((path_of(&manifest.entries, n), e.to_string()));
                    break;
                }
                Err(e) => return Err(e),
            }
        }
    }
    Ok(verified)
}
