//! What a file holds: chunks that differ are written, what is a hole in the backup becomes one.

use super::{Step, tried};
use crate::manifest::Piece;
use crate::store::{ContentReader, hash_of};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

/// Blocks of file systems are no larger.
const LARGEST_BLOCK_BYTES: u64 = 64 << 10;

/// Opens a file, a new one if `is_new`.
pub(super) fn open(dir: BorrowedFd<'_>, name: &[u8], is_new: bool) -> Step<OwnedFd> {
    let base = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = match is_new {
        true => base | OFlags::CREATE | OFlags::EXCL,
        false => base,
    };
    rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR).map_err(tried("open it"))
}

/// Makes a file of `size` bytes hold `pieces` and nothing else. Gives the bytes that were written.
pub(super) fn fill(
    file: &OwnedFd,
    size: u64,
    pieces: &[Piece],
    content: &ContentReader,
    buffer: &mut Vec<u8>,
) -> Step<u64> {
    let old_size = rustix::fs::fstat(file)
        .map_err(tried("look at it"))?
        .st_size as u64;
    if old_size != size {
        rustix::fs::ftruncate(file, size).map_err(tried("set its size"))?;
    }
    let mut written = 0;
    let mut end = 0;
    let mut old = Vec::new();
    for piece in pieces {
        if old_size > end {
            punch(file, end, piece.offset)?;
        }
        end = piece.offset + u64::from(piece.bytes);
        if old_size > piece.offset && is_there(file, piece, &mut old)? {
            continue;
        }
        content.read(piece, buffer).map_err(|e| e.to_string())?;
        write_all(file, buffer, piece.offset)?;
        written += u64::from(piece.bytes);
    }
    if old_size > end {
        // A part of a block stays: beyond the end all of it goes.
        punch(file, end, size.next_multiple_of(LARGEST_BLOCK_BYTES))?;
    }
    Ok(written)
}

/// Makes a range a hole, if there is data in it.
fn punch(file: &OwnedFd, from: u64, to: u64) -> Step<()> {
    if from >= to {
        return Ok(());
    }
    match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(data) if data < to => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(file, flags, from, to - from).map_err(tried("punch a hole"))
        }
        Ok(_) | Err(Errno::NXIO) => Ok(()),
        Err(e) => Err(tried("look for data")(e)),
    }
}

/// Whether the file has the bytes of a piece already, as data.
fn is_there(file: &OwnedFd, piece: &Piece, old: &mut Vec<u8>) -> Step<bool> {
    old.resize(piece.bytes as usize, 0);
    match rustix::fs::seek(file, SeekFrom::Hole(piece.offset)) {
        Ok(hole) if hole >= piece.offset + u64::from(piece.bytes) => {}
        Ok(_) | Err(Errno::NXIO) => return Ok(false),
        Err(e) => return Err(tried("look for holes")(e)),
    }
    let mut done = 0;
    while done < old.len() {
        match rustix::io::pread(file, &mut old[done..], piece.offset + done as u64) {
            Ok(0) => return Ok(false),
            Ok(read) => done += read,
            // What cannot be read is written.
            Err(_) => return Ok(false),
        }
    }
    Ok(hash_of(old) == piece.hash)
}

fn write_all(file: &OwnedFd, bytes: &[u8], at: u64) -> Step<()> {
    let mut done = 0;
    while done < bytes.len() {
        let wrote = rustix::io::pwrite(file, &bytes[done..], at + done as u64);
        match wrote.map_err(tried("write to it"))? {
            0 => return Err("write to it: no space".to_owned()),
            wrote => done += wrote,
        }
    }
    Ok(())
}
