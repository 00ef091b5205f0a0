//! A mistake in this library: a panic while a call was served.
//!
//! The program knows nothing of it. Nothing more is served in this process; every file goes to the kernel
//! with its offset, and the call that panicked is made there, unless it is in the log already. What
//! earlier calls returned is in the log, which the daemon has: the mount shows it. One line says so, on
//! standard error and in the report.
//!
//! A call that is in the log is not made again where that would do it twice: appending, cutting out and inserting. All
//! others have the same effect again. Of an append in several pieces nobody knows which are done: EIO.

use crate::calls::process;
use crate::client;
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::Mutex;
use shale_fd::description;
use shale_fd::report;
use shale_fd::table::{self, Entry};
use shale_fd::warning;
use shale_interpose::inside::{READY, caught};
use shale_interpose::outcome::{PANICKED, PASS};
use shale_interpose::raw::{self, Args, nr};
use shale_interpose::thread::Thread;
use std::panic::{PanicHookInfo, set_hook};

/// What the first panic said. Threads that wait for the one that panicked may do so, too.
static SAID: Mutex<Option<String>> = Mutex::new(None);
static REPORTED: AtomicBool = AtomicBool::new(false);
/// An append of no more bytes is one piece.
const PIECE_BYTES: usize = 512 << 10;

/// Once, at the start of the program.
pub fn configure() {
    warning::configure();
    set_hook(Box::new(note));
}

/// Notes what a panic says: it is printed when standard error is the kernel's. No other thread goes on from what the
/// call that panicked has left: it panics as well, and what it says is no cause, so this is noted first.
fn note(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string);
    let why = panic.payload_as_str().unwrap_or("a panic");
    let place = place.unwrap_or_default();
    SAID.lock()
        .get_or_insert_with(|| format!("{place}: {}", why.replace('\n', " ")));
    shale_libfs::stop_appending();
}

/// After a panic in a call, which the thread is out of: the result of the call.
#[cold]
pub fn go_on_without(thread: &Thread, number: u32, args: &Args) -> i64 {
    let result = of_logged(number, args);
    let retired = caught(|| {
        process::retire(thread);
        client::drop_all(thread);
        0
    });
    if retired == PANICKED {
        thread.inside.store(0, Ordering::Relaxed);
        READY.store(false, Ordering::Release);
    }
    caught(|| {
        tell();
        0
    });
    result
}

/// What a call returns that is in the log, as far as that can be; [`PASS`]: the kernel makes it.
fn of_logged(number: u32, args: &Args) -> i64 {
    let logged = shale_libfs::panicked_after_append();
    let Entry::File(index) = table::get(args[0] as i32) else {
        return PASS;
    };
    match appended_bytes(
        number,
        args,
        description::get(index).flags.load(Ordering::Relaxed),
    ) {
        Some(bytes) if bytes > PIECE_BYTES => raw::fail(libc::EIO),
        Some(bytes) if logged => bytes as i64,
        None if logged && number == nr::FALLOCATE => 0,
        _ => PASS,
    }
}

/// Bytes that a call is to append; `None`: it does not append.
fn appended_bytes(number: u32, args: &Args, flags: u32) -> Option<usize> {
    const RWF_APPEND: u64 = 0x10;
    let appends = match number {
        nr::PWRITEV2 if args[5] & RWF_APPEND != 0 => true,
        nr::WRITE | nr::WRITEV | nr::PWRITE | nr::PWRITEV | nr::PWRITEV2 => {
            flags & libc::O_APPEND as u32 != 0
        }
        _ => false,
    };
    appends.then(|| crate::calls::vectors::bytes(number, args))
}

/// Tells the user, once.
fn tell() {
    if REPORTED.swap(true, Ordering::AcqRel) {
        return;
    }
    let said = SAID.lock().clone().unwrap_or_default();
    report::panicked(&said);
    warning::warn(&format!(
        "internal error at {said}; its files are served by the mount from now on"
    ));
}
