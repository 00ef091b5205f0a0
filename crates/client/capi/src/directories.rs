//! Walks through directories.

use crate::attachment::Attachment;
use crate::edge::{Out, answer, handle, status, text};
use core::ffi::{c_char, c_int};
use parking_lot::Mutex;
use shale_libfs::{File, ListedEntry, OFlags, ReadDir};
use std::sync::Arc;

/// Bytes of the longest name with its zero byte, as the header says.
const NAME_BYTES: usize = 256;

/// A walk through a directory: `shale_dir_t`.
pub struct Walk {
    entries: Mutex<ReadDir>,
    /// Keeps the directory, with or without name.
    _directory: File,
    volume: Arc<Attachment>,
}

impl AsRef<Attachment> for Walk {
    fn as_ref(&self) -> &Attachment {
        &self.volume
    }
}

/// An entry as the header has it.
#[repr(C)]
pub struct Entry {
    /// Inode number.
    pub d_ino: u64,
    /// Type, `DT_REG` and the like.
    pub d_type: u8,
    /// Name, ended by a zero byte.
    pub d_name: [u8; NAME_BYTES],
}

impl Entry {
    fn of(listed: &ListedEntry) -> Self {
        let mut d_name = [0; NAME_BYTES];
        d_name[..listed.name.len()].copy_from_slice(&listed.name);
        Self {
            d_ino: listed.ino,
            d_type: listed.kind,
            d_name,
        }
    }
}

/// See the header.
///
/// # Safety
/// As the header says: a handle, a string, and a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_opendir(
    volume: *const Attachment,
    path: *const c_char,
    dir: *mut *mut Walk,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, out) =
            unsafe { (Attachment::share(volume)?, text(path)?, Out::at(dir)?) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = volume.tree.open(path, flags, 0)?;
        out.put(Box::into_raw(Box::new(Walk {
            entries: Mutex::new(directory.read_dir()?),
            _directory: directory,
            volume,
        })));
        Ok(())
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle, and a place for the entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_readdir(dir: *const Walk, entry: *mut Entry) -> c_int {
    let found = answer(|| {
        // SAFETY: the caller's promise.
        let (dir, out) = unsafe { (handle(dir)?, Out::at(entry)?) };
        match dir.entries.lock().next() {
            None => Ok(0),
            Some(listed) => {
                out.put(Entry::of(&listed?));
                Ok(1)
            }
        }
    });
    found as c_int
}

/// See the header.
///
/// # Safety
/// As the header says: null or a handle, which nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_closedir(dir: *mut Walk) -> c_int {
    status(|| {
        // SAFETY: the caller's promise. In a child this ends here: see `shale_close`.
        unsafe { handle(dir.cast_const()) }?;
        // SAFETY: the handle came from `Box::into_raw`, and by the caller's promise it ends here.
        drop(unsafe { Box::from_raw(dir) });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_ends_with_a_zero_byte() {
        let listed = ListedEntry {
            name: vec![b'n'; shale_format::limits::NAME_BYTES_MAX],
            ino: 7,
            kind: 8,
            cookie: 1,
        };
        let entry = Entry::of(&listed);
        assert_eq!(entry.d_name.iter().position(|&b| b == 0), Some(255));
        assert_eq!((entry.d_ino, entry.d_type), (7, 8));
    }
}
