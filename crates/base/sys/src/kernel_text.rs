//! Files of `/proc`: short texts that the kernel writes when they are read.
//!
//! They say nothing of their length, so that the standard library begins with 32 bytes and reads six times what one call gives.

use rustix::buffer::spare_capacity;
use rustix::io::{read as read_some, retry_on_intr};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// Most of them fit.
const BYTES: usize = 8 << 10;

/// The whole text.
///
/// # Errors
/// What the kernel says.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    rest_of(File::open(path)?)
}

/// What is left to read of an open one.
///
/// # Errors
/// What the kernel says.
pub fn rest_of(file: impl AsFd) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(BYTES);
    loop {
        if text.capacity() - text.len() < BYTES / 2 {
            text.reserve(text.capacity());
        }
        if retry_on_intr(|| read_some(&file, spare_capacity(&mut text)))? == 0 {
            return Ok(text);
        }
    }
}

/// The whole text, which has to be one (`InvalidData`).
///
/// # Errors
/// What the kernel says.
pub fn read_string(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_any_length_is_read_whole() {
        assert_eq!(
            read("/proc/self/uid_map").unwrap(),
            std::fs::read("/proc/self/uid_map").unwrap()
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        for bytes in [0, 1, BYTES - 1, BYTES, BYTES + 1, 5 * BYTES + 7] {
            let text: Vec<u8> = (0..bytes).map(|at| b'a' + (at % 23) as u8).collect();
            std::fs::write(&file, &text).unwrap();
            assert_eq!(read(&file).unwrap(), text);
            assert_eq!(read_string(&file).unwrap().as_bytes(), text);
        }
        std::fs::write(&file, [0xff]).unwrap();
        assert_eq!(
            read_string(&file).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
