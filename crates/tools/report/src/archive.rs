//! A report as one file: texts in a compressed tar archive, readable by its owner alone.

use crate::redact::LEFT_OUT;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs::OpenOptions;
use std::io::{Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::SystemTime;

/// The texts of a report, in order.
#[derive(Debug)]
pub struct Archive {
    /// Directory in the archive.
    directory: String,
    parts: Vec<(String, String)>,
}

impl Archive {
    /// An empty report; everything in it is below `directory`.
    pub fn new(directory: impl Into<String>) -> Self {
        Self {
            directory: directory.into(),
            parts: Vec::new(),
        }
    }

    /// Adds a text.
    pub fn add(&mut self, name: &str, text: impl Into<String>) {
        self.parts.push((name.to_owned(), text.into()));
    }

    /// Adds what it is and what is left out. `program`: with its version.
    pub fn explain(&mut self, program: &str) {
        let parts: Vec<&str> = self.names().collect();
        let text = format!(
            "A failure report of {program}: {}.\n\nLeft out, as \"{LEFT_OUT}\": names of files and directories on the volume, names of \
             programs, quoted text, and on each line what follows a path that is not known to be of the volume. volume.toml is as it \
             stands there.\n",
            parts.join(", ")
        );
        self.add("README.txt", text);
    }

    /// Names of the texts.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|(name, _)| name.as_str())
    }

    /// Writes it to a new file, durably.
    ///
    /// # Errors
    /// The file is there already, or cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        let written = self.write_to(&file).and_then(|()| file.sync_all());
        if written.is_err() {
            let _ = std::fs::remove_file(path);
        }
        written
    }

    fn write_to(&self, file: impl Write) -> Result<()> {
        let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        for (name, text) in &self.parts {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(now.as_ref().map_or(0, |now| now.as_secs()));
            let path = format!("{}/{name}", self.directory);
            archive.append_data(&mut header, path, text.as_bytes())?;
        }
        archive.into_inner()?.finish()?.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_is_added_is_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.tar.gz");
        let mut report = Archive::new("r");
        report.add("a.txt", "first");
        report.add("b.json", "{}");
        report.write(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut archive = tar::Archive::new(GzDecoder::new(std::fs::File::open(&path).unwrap()));
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            found.push((name, text));
        }
        let wanted = [("r/a.txt", "first"), ("r/b.json", "{}")];
        assert_eq!(found, wanted.map(|(n, t)| (n.to_owned(), t.to_owned())));
        assert!(report.write(&path).is_err(), "nothing is replaced");
    }
}
