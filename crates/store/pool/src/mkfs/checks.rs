//! What is refused before anything is made, and what goes again when making fails.

use super::options::MakeOptions;
use crate::devices::NAMES;
use crate::error::{PoolError, Result};
use crate::host_space::shown;
use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::TierTable;
use shale_volume::{MkfsOptions, Volume, VolumeError};
use std::path::{Path, PathBuf};

/// What was made so far for a volume: taken away again unless it is kept.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    /// In the order in which they were made.
    made: Vec<PathBuf>,
    pub(crate) kept: bool,
}

impl Begun {
    /// Notes a path before it is made, if nothing is there.
    pub(crate) fn expect(&mut self, path: &Path) {
        if path.symlink_metadata().is_err() {
            self.made.push(path.to_path_buf());
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // The first failure is the one to report.
        for path in self.made.iter().rev().filter(|_| !self.kept) {
            match path.is_dir() {
                true => drop(std::fs::remove_dir(path)),
                false => drop(std::fs::remove_file(path)),
            }
        }
    }
}

pub(crate) fn refused(path: &Path, why: impl Into<String>) -> PoolError {
    PoolError::Refused {
        path: path.to_path_buf(),
        why: why.into(),
    }
}

/// Names go to terminals.
pub(crate) fn check_name(options: &MakeOptions) -> Result<()> {
    match options.name.chars().find(|c| c.is_control()) {
        None => Ok(()),
        Some(c) => {
            let why = format!(
                "the volume's name has a control character (U+{:04X}): give it another one with --label",
                u32::from(c)
            );
            Err(refused(&options.file, why))
        }
    }
}

/// Whether the volume file can be written where it is to be.
pub(crate) fn check_file(options: &MakeOptions) -> Result<()> {
    let file = &options.file;
    let parent = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    if !parent.is_dir() {
        let why = format!(
            "there is no directory {} for the volume file",
            parent.display()
        );
        return Err(refused(file, why));
    }
    match file.symlink_metadata() {
        Ok(found) if found.is_dir() => Err(refused(
            file,
            "it is a directory: name the volume file, as in VOLUME.toml",
        )),
        Ok(_) if !options.force => Err(PoolError::Exists {
            path: file.clone(),
            found: "a volume file".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Names the tier whose tables take too much of the memory tier.
pub(crate) fn check_tables(
    bytes: u64,
    tables: [TierTable; 2],
    options: &MakeOptions,
) -> Result<()> {
    let [ssd, hdd] = tables;
    let wanted = MkfsOptions {
        ssd,
        hdd,
        ..MkfsOptions::default()
    };
    let Err(VolumeError::TierSize { expected, .. }) = Volume::check_new(bytes, &wanted) else {
        return Ok(());
    };
    let tiers = NAMES.into_iter().zip(&tables).zip(options.lower.tiers());
    let largest = tiers.max_by_key(|((_, table), _)| table.blocks);
    let Some(((name, table), [first, ..])) = largest.map(|(t, files)| (t, files.as_slice())) else {
        return Ok(());
    };
    let (of, advice) = match options.nvm {
        Some(_) => ("NVM", "give more NVM"),
        None => ("the memory tier", "give it more with --memory"),
    };
    let why = format!(
        "{name}: the tables of {} of {name} need more of {of} than there is: {of} has {}, with these tiers it must have {}; \
         {advice}, or smaller devices",
        shown(table.blocks * BLOCK_BYTES as u64),
        shown(bytes),
        shown(expected)
    );
    Err(refused(&first.path, why))
}
