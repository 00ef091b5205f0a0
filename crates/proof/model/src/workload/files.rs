//! What the workloads need of whatever keeps files.

use serde::{Deserialize, Serialize};

use shale_bench::Result;

/// An open file, as a number that [`Files`] gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle(pub(crate) usize);

/// What digest did, where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DigestCounts {
    /// Records of the update log that were digested.
    pub records: u64,
    /// Those of which nothing reached the volume, because later ones undid them.
    pub skipped: u64,
    /// Bytes of file data in the records.
    pub payload_bytes: u64,
    /// Those of them that reached the volume.
    pub digested_bytes: u64,
}

impl DigestCounts {
    /// Part of the records that was skipped, 0 to 1; 0 if there were none.
    pub fn skip_ratio(&self) -> f64 {
        match self.records {
            0 => 0.0,
            records => self.skipped as f64 / records as f64,
        }
    }
}

impl std::ops::Sub for DigestCounts {
    type Output = DigestCounts;

    fn sub(self, earlier: DigestCounts) -> DigestCounts {
        DigestCounts {
            records: self.records - earlier.records,
            skipped: self.skipped - earlier.skipped,
            payload_bytes: self.payload_bytes - earlier.payload_bytes,
            digested_bytes: self.digested_bytes - earlier.digested_bytes,
        }
    }
}

/// One directory of files. Errors are what the calls below it say.
pub trait Files {
    /// The name in reports.
    fn name(&self) -> &str;

    /// Makes a file that is not there yet, and opens it.
    ///
    /// # Errors
    /// As the call; likewise below.
    fn create(&mut self, name: &str) -> Result<Handle>;

    /// Opens a file for reading and appending.
    ///
    /// # Errors
    /// As above.
    fn open(&mut self, name: &str) -> Result<Handle>;

    /// Writes `data` at the file's end.
    ///
    /// # Errors
    /// As above.
    fn append(&mut self, file: Handle, data: &[u8]) -> Result<()>;

    /// Makes the file durable.
    ///
    /// # Errors
    /// As above.
    fn sync(&mut self, file: Handle) -> Result<()>;

    /// Reads the whole file in parts of `part`'s length; returns its bytes.
    ///
    /// # Errors
    /// As above.
    fn read_whole(&mut self, file: Handle, part: &mut [u8]) -> Result<u64>;

    /// Closes a file.
    fn close(&mut self, file: Handle);

    /// Looks a name up and reads the attributes.
    ///
    /// # Errors
    /// As above.
    fn stat(&mut self, name: &str) -> Result<()>;

    /// Lists the names; `each` is called after every name. "." and ".." do not count.
    ///
    /// # Errors
    /// As above.
    fn list(&mut self, each: &mut dyn FnMut()) -> Result<()>;

    /// Removes a name.
    ///
    /// # Errors
    /// As above.
    fn unlink(&mut self, name: &str) -> Result<()>;

    /// Returns when all work that was put off is done.
    ///
    /// # Errors
    /// As above.
    fn flush(&mut self) -> Result<()>;

    /// What digest did so far, where there is one.
    fn digest_counts(&self) -> Option<DigestCounts>;
}

/// Open files by handle.
#[derive(Debug)]
pub(crate) struct Open<T> {
    files: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Open<T> {
    pub(crate) fn new() -> Self {
        Open {
            files: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, file: T) -> Handle {
        match self.free.pop() {
            Some(place) => {
                self.files[place] = Some(file);
                Handle(place)
            }
            None => {
                self.files.push(Some(file));
                Handle(self.files.len() - 1)
            }
        }
    }

    pub(crate) fn get(&self, handle: Handle) -> &T {
        let file = self.files[handle.0].as_ref();
        file.expect("a closed handle is not used")
    }

    pub(crate) fn remove(&mut self, handle: Handle) {
        self.files[handle.0] = None;
        self.free.push(handle.0);
    }
}
