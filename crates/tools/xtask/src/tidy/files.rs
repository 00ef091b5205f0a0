//! The files of the tree, and the rule that none of them is a built program.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::finding::Finding;
use crate::error::Error;

/// What is built, fetched or recorded, not written.
const NOT_OURS: [&str; 3] = [".git", "target", "artifacts"];

/// First bytes of ELF programs and of archives.
const MAGICS: [&[u8]; 2] = [b"\x7fELF", b"!<arch>\n"];

/// Every file below `root` in a fixed order, links not followed.
pub fn below(root: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(directory) = pending.pop() {
        let failed = |source| Error::File {
            path: directory.clone(),
            source,
        };
        for entry in std::fs::read_dir(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() {
                if !NOT_OURS.iter().any(|name| entry.file_name() == *name) {
                    pending.push(entry.path());
                }
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The path of a file below `root`.
pub fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root)
        .unwrap_or(path)
        .display()
        .to_string()
}

/// A built program in the tree.
pub fn is_program(place: &str, path: &Path) -> Result<Option<Finding>, Error> {
    let mut first = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(8).read_to_end(&mut first));
    read.map_err(|source| Error::File {
        path: path.to_path_buf(),
        source,
    })?;
    let found = MAGICS.iter().any(|magic| first.starts_with(magic));
    Ok(found.then(|| Finding::new(place, "a built program or library; keep sources only")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_and_a_script_is_not() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("program");
        std::fs::write(&program, b"\x7fELF and so on").unwrap();
        assert!(is_program("program", &program).unwrap().is_some());
        let script = place.path().join("script");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        assert!(is_program("script", &script).unwrap().is_none());
    }

    #[test]
    fn what_is_built_is_not_walked() {
        let place = tempfile::tempdir().unwrap();
        for name in ["target/a.rs", "src/b.rs", ".git/c", "d.md"] {
            let path = place.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let found = below(place.path()).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["d.md", "b.rs"]);
    }
}
