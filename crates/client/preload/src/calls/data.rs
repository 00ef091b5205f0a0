//! Reading, writing, seeking.

use crate::calls::route::{Call, Route};
use crate::calls::short_way;
use crate::calls::vectors::{Access, Buffer, buffers};
use crate::client::{Client, caller};
use core::sync::atomic::Ordering;
use shale_fd::description::OffsetGuard;
use shale_fd::limits;
use shale_fd::report;
use shale_interpose::outcome::PASS;
use shale_interpose::raw::{self, Args, nr};
use shale_interpose::thread::Thread;
use shale_libfs::{Errno, WriteFlags};

/// Flags of `preadv2` and `pwritev2`.
mod rwf {
    pub const APPEND: u64 = 0x10;
    /// `RWF_DSYNC` and `RWF_SYNC`: as `O_DSYNC` and `O_SYNC`, for this call.
    pub const SYNC: u64 = 0x02 | 0x04;
    /// Those that ask for what happens anyway: high priority, not to wait.
    pub const HARMLESS: u64 = 0x01 | 0x08;
}

/// Bytes that take the way around at a time.
const AROUND_BYTES: usize = 1 << 20;

/// What a data call asks for.
struct Asked {
    write: bool,
    /// `None`: at the description's offset.
    at: Option<u64>,
    append: bool,
    sync: bool,
    /// All its flags are known here.
    known: bool,
}

impl Asked {
    /// Whether the descriptor is open for that.
    fn is_allowed(&self, call: &Call<'_>) -> bool {
        match self.write {
            true => call.writable(),
            false => call.readable(),
        }
    }

    /// What LibFS does with a write by a descriptor that was opened with these flags.
    fn write_flags(&self, opened: i32) -> WriteFlags {
        WriteFlags {
            append: self.append || opened & libc::O_APPEND != 0,
            sync: self.sync || opened & libc::O_DSYNC != 0,
            kill_suidgid: false,
        }
    }

    /// # Errors
    /// What the call returns at once.
    fn of(number: u32, args: &Args) -> Result<Self, i64> {
        let write = matches!(
            number,
            nr::WRITE | nr::PWRITE | nr::WRITEV | nr::PWRITEV | nr::PWRITEV2
        );
        let placed = !matches!(number, nr::WRITE | nr::READV | nr::WRITEV);
        let second = matches!(number, nr::PREADV2 | nr::PWRITEV2);
        let flags = if second { args[5] } else { 0 };
        let known = flags & !(rwf::APPEND | rwf::SYNC | rwf::HARMLESS) == 0;
        let append = flags & rwf::APPEND != 0;
        let sync = flags & rwf::SYNC != 0;
        let offset = args[3] as i64;
        let at = match placed {
            true if second && offset == -1 => None,
            true if !known => return Err(PASS),
            true if offset < 0 => return Err(raw::fail(libc::EINVAL)),
            true => Some(offset as u64),
            false => None,
        };
        Ok(Self {
            write,
            at,
            append,
            sync,
            known,
        })
    }
}

/// Buffers of a call: mostly one.
enum Buffers {
    One(Buffer),
    Many(Vec<Buffer>),
}

impl Buffers {
    fn of(number: u32, args: &Args, access: Access) -> Result<Self, i64> {
        match number {
            nr::WRITE | nr::PWRITE => Ok(Self::One(Buffer::of(args[1], args[2], Access::Read)?)),
            // SAFETY: the registers of the program's own call.
            _ => Ok(Self::Many(unsafe { buffers(args[1], args[2], access) }?)),
        }
    }

    /// A copy of the first `bytes` bytes, in memory that can be touched anywhere.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn gathered(&self, bytes: usize) -> Result<Vec<u8>, Errno> {
        let all = match self {
            Self::One(buffer) => core::slice::from_ref(buffer),
            Self::Many(all) => all,
        };
        let mut together = memory_for(self.bytes())?;
        for buffer in all {
            // SAFETY: the program gave the buffer for this call.
            together.extend_from_slice(unsafe { buffer.data() });
        }
        together.truncate(bytes);
        Ok(together)
    }

    fn bytes(&self) -> usize {
        match self {
            Self::One(b) => b.len(),
            Self::Many(all) => all.iter().map(Buffer::len).sum(),
        }
    }
}

/// `read` and `pread`: into one buffer.
pub fn read_plain(thread: &Thread, fd: i32, index: u32, number: u32, args: &Args) -> i64 {
    let call = Call::new(thread, fd, index, number, args);
    let at = (number == nr::PREAD).then_some(args[3]);
    if at.is_some_and(|at| at > i64::MAX as u64) {
        return raw::fail(libc::EINVAL);
    }
    let (client, held) = match call.route(at.is_none()) {
        Route::Here(client, held) => (client, held),
        other => return call.by_kernel(other),
    };
    if !call.readable() {
        return raw::fail(libc::EBADF);
    }
    let buffer = match Buffer::of(args[1], args[2], Access::Write) {
        Ok(buffer) => buffer,
        Err(result) => return result,
    };
    report::fast(number);
    let d = call.description();
    let offset = at.unwrap_or_else(|| d.offset.load(Ordering::Relaxed));
    if ends_too_far(offset, buffer.len()) {
        return raw::fail(libc::EINVAL);
    }
    let Some(shared) = begun(&held, 0) else {
        drop(held);
        return read_plain(thread, fd, index, number, args);
    };
    match read_into(&call, client, offset, buffer) {
        Ok(n) => match held {
            // Others have gone on meanwhile: from where they are.
            Some(held) if !held.moved(shared, offset, offset + n as u64) => {
                drop(held);
                read_plain(thread, fd, index, number, args)
            }
            _ => n as i64,
        },
        Err(e) => failed(&call, client, held, shared, e),
    }
}

/// Whether bytes behind `offset` are behind the largest offset that there is.
#[inline]
fn ends_too_far(offset: u64, bytes: usize) -> bool {
    let end = offset.checked_add(bytes as u64);
    end.is_none_or(|end| end > i64::MAX as u64)
}

/// `write`, and all forms of `read` and `write` but the plain reads.
pub fn transfer(thread: &Thread, fd: i32, index: u32, number: u32, args: &Args) -> i64 {
    let call = Call::new(thread, fd, index, number, args);
    let asked = match Asked::of(number, args) {
        Ok(asked) => asked,
        Err(result) => return result,
    };
    if !asked.known {
        return call.by_kernel(call.way_of_unknown());
    }
    let (client, held) = match call.route(asked.at.is_none()) {
        Route::Here(client, held) => (client, held),
        other => return call.by_kernel(other),
    };
    if !asked.is_allowed(&call) {
        return raw::fail(libc::EBADF);
    }
    let access = match asked.write {
        true => Access::Read,
        false => Access::Write,
    };
    let buffers = match Buffers::of(number, args, access) {
        Ok(buffers) => buffers,
        Err(result) => return result,
    };
    report::fast(number);
    let d = call.description();
    let offset = asked.at.unwrap_or_else(|| d.offset.load(Ordering::Relaxed));
    if ends_too_far(offset, buffers.bytes()) {
        return raw::fail(libc::EINVAL);
    }
    let goes_to = match asked.write {
        true => offset + buffers.bytes() as u64,
        false => 0,
    };
    let Some(shared) = begun(&held, goes_to) else {
        drop(held);
        return transfer(thread, fd, index, number, args);
    };
    // Each by itself, never as a pair: see `Session::write_handle`.
    let mut at = offset;
    let done = match asked.write {
        false => {
            let done = read(&call, client, offset, &buffers);
            at += *done.as_ref().unwrap_or(&0) as u64;
            done
        }
        true => {
            let flags = asked.write_flags(call.flags());
            match write(&call, client, &mut at, &buffers, flags) {
                Err(Refused::Limit) => {
                    if let Some(held) = held {
                        held.end(shared);
                    }
                    return limits::exceeded();
                }
                Err(Refused::Errno(e)) => Err(e),
                Ok(n) => Ok(n),
            }
        }
    };
    match done {
        Ok(n) => match held {
            Some(held) if !held.moved(shared, offset, at) && !asked.write => {
                drop(held);
                transfer(thread, fd, index, number, args)
            }
            _ => n as i64,
        },
        Err(e) => failed(&call, client, held, shared, e),
    }
}

/// Begins a call that will move the offset to `to`, if it is about the offset.
#[inline]
fn begun(held: &Option<OffsetGuard>, to: u64) -> Option<bool> {
    held.as_ref().map_or(Some(false), |held| held.begin(to))
}

#[cold]
fn failed(
    call: &Call<'_>,
    client: &'static Client,
    held: Option<OffsetGuard>,
    shared: bool,
    e: Errno,
) -> i64 {
    if let Some(held) = &held {
        held.end(shared);
    }
    call.failed(client, held, e)
}

/// Memory for as much as a program asks for.
///
/// # Errors
/// `ENOMEM`.
fn memory_for(bytes: usize) -> Result<Vec<u8>, Errno> {
    let mut memory = Vec::new();
    let had = memory.try_reserve_exact(bytes);
    had.map(|()| memory).map_err(|_| Errno::NOMEM)
}

/// Why a write wrote nothing.
enum Refused {
    /// The limit on file sizes allows none.
    Limit,
    Errno(Errno),
}

/// Reads into one buffer.
#[inline(always)]
fn read_into(call: &Call<'_>, client: &Client, at: u64, buffer: Buffer) -> Result<usize, Errno> {
    if buffer.is_empty() {
        return Ok(0);
    }
    if buffer.may_fault() {
        return read_around(client, call.ino(), at, buffer);
    }
    // SAFETY: the program gave the buffer for this call.
    let into = unsafe { buffer.space() };
    short_way::with(call.thread, client, call.ino(), |found| {
        client.session.read_found(&caller(), found, at, into)
    })
}

fn read(call: &Call<'_>, client: &Client, offset: u64, into: &Buffers) -> Result<usize, Errno> {
    let all = match into {
        Buffers::One(buffer) => core::slice::from_ref(buffer),
        Buffers::Many(all) => all,
    };
    let mut done = 0;
    for buffer in all {
        match read_into(call, client, offset + done as u64, *buffer) {
            Ok(n) if n < buffer.len() => return Ok(done + n),
            Ok(n) => done += n,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Reads into memory that must not be touched inside the read section.
#[cold]
fn read_around(client: &Client, ino: u64, at: u64, into: Buffer) -> Result<usize, Errno> {
    let caller = caller();
    let bytes = into.len().min(AROUND_BYTES);
    let mut between = memory_for(bytes)?;
    between.resize(bytes, 0);
    // SAFETY: the program gave the buffer for this call.
    let into = unsafe { into.space() };
    let mut done = 0;
    for piece in into.chunks_mut(AROUND_BYTES) {
        let between = &mut between[..piece.len()];
        let got = client.session.read(&caller, ino, at + done as u64, between);
        match got {
            Ok(n) => {
                piece[..n].copy_from_slice(&between[..n]);
                done += n;
                if n < piece.len() {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Bytes written; `at` is then where they ended. `flags`: but for what the caller's user decides.
fn write(
    call: &Call<'_>,
    client: &Client,
    at: &mut u64,
    from: &Buffers,
    mut flags: WriteFlags,
) -> Result<usize, Refused> {
    let caller = caller();
    let mut bytes = from.bytes();
    if bytes == 0 {
        return Ok(0);
    }
    let limit = limits::file_bytes();
    if limit != u64::MAX {
        let end = match flags.append {
            true => client.session.getattr(&caller, call.ino()).map(|a| a.size),
            false => Ok(*at),
        };
        let left = limit.saturating_sub(end.map_err(Refused::Errno)?);
        bytes = bytes.min(left.min(usize::MAX as u64) as usize);
        if bytes == 0 {
            return Err(Refused::Limit);
        }
    }
    flags.kill_suidgid = caller.uid != 0;
    let gathered;
    let data = match from {
        // SAFETY: the program gave the buffer for this call.
        Buffers::One(buffer) if !buffer.may_fault() => unsafe { buffer.first(bytes).data() },
        _ => {
            gathered = from.gathered(bytes).map_err(Refused::Errno)?;
            &gathered
        }
    };
    short_way::with(call.thread, client, call.ino(), |found| {
        let session = &client.session;
        session.write_handle(&caller, found, at, data, flags)
    })
    .map_err(Refused::Errno)
}

/// `lseek`.
pub fn seek(thread: &Thread, fd: i32, index: u32, args: &Args) -> i64 {
    let call = Call::new(thread, fd, index, nr::LSEEK, args);
    let (client, held) = match call.route(true) {
        Route::Here(client, held) => (client, held),
        other => return call.by_kernel(other),
    };
    report::fast(nr::LSEEK);
    let Some(shared) = begun(&held, 0) else {
        drop(held);
        return seek(thread, fd, index, args);
    };
    let (by, whence) = (args[1] as i64, args[2] as u32 as i32);
    let now = call.description().offset.load(Ordering::Relaxed);
    let to = match whence {
        libc::SEEK_SET => Ok(Some(by)),
        libc::SEEK_CUR => Ok((now as i64).checked_add(by)),
        libc::SEEK_END => client
            .session
            .getattr(&caller(), call.ino())
            .map(|a| (a.size as i64).checked_add(by)),
        libc::SEEK_DATA | libc::SEEK_HOLE if by < 0 => Err(Errno::NXIO),
        libc::SEEK_DATA | libc::SEEK_HOLE => {
            let found = client
                .session
                .lseek(&caller(), call.ino(), by as u64, whence as u32);
            found.map(|at| Some(at as i64))
        }
        _ => return raw::fail(libc::EINVAL),
    };
    match to {
        Ok(None) => raw::fail(libc::EOVERFLOW),
        Ok(Some(to)) if to < 0 => raw::fail(libc::EINVAL),
        Ok(Some(to)) => match held {
            Some(held) if !held.moved(shared, now, to as u64) => {
                drop(held);
                seek(thread, fd, index, args)
            }
            _ => to,
        },
        Err(e) => call.failed(client, held, e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a file that is open with `O_SYNC` or `O_DSYNC`, and of a call with `RWF_SYNC` or `RWF_DSYNC`.
    #[test]
    fn a_write_that_is_to_be_durable_says_so() {
        let sync = |number, rwf: i32, opened| {
            let args = [3, 0, 0, 0, 0, rwf as u64];
            let asked = Asked::of(number, &args).ok().unwrap();
            asked.write_flags(opened).sync
        };
        let plain = libc::O_WRONLY | libc::O_APPEND;
        assert!(!sync(nr::WRITE, 0, plain) && !sync(nr::PWRITEV2, 0, plain));
        for opened in [libc::O_SYNC, libc::O_DSYNC] {
            assert!(sync(nr::WRITE, 0, plain | opened) && sync(nr::PWRITE, 0, opened));
        }
        for rwf in [libc::RWF_SYNC, libc::RWF_DSYNC] {
            assert!(sync(nr::PWRITEV2, rwf, plain));
        }
    }
}
