//! Names in the process: files and directories are opened, listed, made, asked about, renamed and removed without the kernel.
//!
//! With `SHALE_NAMES=auto` a process that makes many names in a directory of a Shale mount becomes a client of it, and from then
//! on does in its own log what is asked for there; with `SHALE_NAMES=N` it does so with all names, after N calls about
//! paths. A client that holds the exclusive lease on a directory is the only
//! one who knows its entries: the kernel caches none of them. So what is served here and what goes through the mount
//! (a capability, a program that is started) never disagree; each way takes the leases that it needs.
//!
//! * [`worth`]: for which directories that is worth while.
//! * [`setting`], [`state`]: whether names are served now, of which mount, and for whom; [`spawn`]: not while a child is made.
//! * [`user`]: for whom names are served, and who calls.
//! * [`executable`]: whether all system calls of the program come by here. Only then may descriptors be
//!   [placeholders](shale_fd::placeholder).
//! * [`place`]: where the path of a call leads to in the volume.
//! * [`open`]: `open` and its like; [`paths`]: all other calls about paths.
//! * [`xattrs`]: extended attributes, by path and of placeholders.
//! * [`descriptor`]: calls about a placeholder that no other file has.
//! * [`mapping`]: private mappings of placeholders.
//! * [`kernel`]: calls that need the kernel's file, or end the serving of names.
//!
//! What is not served goes to the kernel: `O_TMPFILE` and `O_DIRECT`, extended attributes of the system,
//! paths that lead over the borders of the mount, users with some capabilities and not all; of users other than root also directories
//! and files of others that are opened, and files that their mode would keep from being opened again.

pub mod descriptor;
pub mod kernel;
pub mod mapping;
pub mod open;
pub mod paths;
pub mod place;
pub mod setting;
pub mod spawn;
pub mod state;
pub mod user;
pub mod worth;
pub mod xattrs;

pub use setting::are_wanted;

use crate::calls::direct;
use crate::names::state::Named;
use crate::names::worth::Use;
use core::sync::atomic::{AtomicU8, Ordering};
use shale_fd::placeholder;
use shale_fd::report;
use shale_fd::table::{self, Entry};
use shale_interpose::clock;
use shale_interpose::inside::with_signals_blocked;
use shale_interpose::outcome::{CLASS, PANICKED, PASS, class};
use shale_interpose::raw::{self, Args, NR_END, nr};
use shale_interpose::thread::Thread;
use shale_libfs::prepare_thread;

/// What to do here with a call, by number.
static LOOKED_AT: [AtomicU8; NR_END] = [const { AtomicU8::new(NOT) }; NR_END];
/// Nothing.
const NOT: u8 = 0;
/// It is looked at here, and then as without names.
const FIRST: u8 = 1;
/// It is looked at here, and then the kernel's.
const ONLY: u8 = 2;

/// Has the calls looked at that matter to names, behind those that always do.
pub fn set_classes() {
    if !are_wanted() {
        return;
    }
    for number in kernel::calls().chain(open::CALLS) {
        let class = &CLASS[number as usize];
        let at_times = direct::CALLS.contains(&number);
        let looked = match class.load(Ordering::Relaxed) {
            class::PASS if !at_times => ONLY,
            _ => FIRST,
        };
        let place = &LOOKED_AT[number as usize];
        if place.load(Ordering::Relaxed) == NOT {
            place.store(looked, Ordering::Relaxed);
        }
        class.store(class::ALWAYS, Ordering::Relaxed);
    }
    // It is looked at for files of ours only.
    LOOKED_AT[nr::FCNTL as usize].store(FIRST, Ordering::Relaxed);
}

/// Serves a call, where names are served. `None`: what was needed before is done, and the call goes on as without names.
#[inline]
pub fn call(thread: &Thread, number: u32, args: &Args) -> Option<i64> {
    match LOOKED_AT.get(number as usize)?.load(Ordering::Relaxed) {
        NOT => None,
        looked => look(thread, number, args, looked),
    }
}

/// As [`call`], of a call that is looked at. Apart from it, so that calls about content pay nothing for this.
#[inline(never)]
fn look(thread: &Thread, number: u32, args: &Args, looked: u8) -> Option<i64> {
    // A request to a descriptor of the kernel's may name one of ours, and is the kernel's.
    let of_kernel = number == nr::IOCTL && table::get(args[0] as i32) == Entry::Kernel;
    let others = (looked == ONLY || of_kernel).then_some(PASS);
    if is_quiet() {
        // Its paths are looked at when the kernel has found nothing wrong with them.
        let measured = looked == ONLY && is_measured(number, args);
        return match measured {
            true => Some(by_kernel(thread, number, args)),
            false => others,
        };
    }
    if !concerns(number, args) {
        return others;
    }
    if !thread.is_prepared() {
        thread.prepare(prepare_thread);
    }
    let mut served = None;
    let done = with_signals_blocked(thread, || {
        served = serve(thread, number, args).or_else(|| descriptor::serve(number, args));
        if served.is_none() {
            kernel::prepare(number, args);
        }
        if kernel::is_changing(number) {
            // SAFETY: the program's own call, made for it.
            let result = unsafe { raw::syscall(number, args) };
            kernel::made(number, args, result);
            served = Some(result);
        }
        0
    });
    match done {
        PANICKED => Some(PANICKED),
        _ if served.is_none() && looked == ONLY && is_measured(number, args) => {
            Some(by_kernel(thread, number, args))
        }
        _ => served.or(others),
    }
}

/// Whether this process has no names, and has not made enough to look for a mount, or will never have any: nothing has to be done
/// for any call.
fn is_quiet() -> bool {
    let waits = || !worth::is_worth_looking() || state::are_over();
    setting::is_by_time() && state::known().is_none() && waits()
}

/// Whether the time of a call that the kernel makes says what it is worth to serve names.
fn is_measured(number: u32, args: &Args) -> bool {
    setting::is_by_time() && Use::of(number, args).makes() && !state::are_over()
}

/// Has the kernel make a call, and takes note of how long that takes.
pub fn by_kernel(thread: &Thread, number: u32, args: &Args) -> i64 {
    if !is_measured(number, args) {
        // SAFETY: the program's own call, made for it.
        return unsafe { raw::syscall(number, args) };
    }
    let begun = clock::exact_ns();
    // SAFETY: as above.
    let result = unsafe { raw::syscall(number, args) };
    let ns = clock::exact_ns() - begun;
    if result >= 0 && may_be_on_mount(number, args) {
        if !thread.is_prepared() {
            thread.prepare(prepare_thread);
        }
        with_signals_blocked(thread, || {
            note_spent(number, args, ns);
            0
        });
    }
    result
}

/// Counts what a call that makes a name has taken for the directory in which that is.
fn note_spent(number: u32, args: &Args, ns: u64) {
    worth::spent(ns);
    if let Some(named) = state::known()
        && let Some((dir, path)) = paths::target(number, args)
        && let Some(place) = place::place(named, dir, path, Use::Ask)
    {
        worth::spent_at(place.known_as, place.path, ns);
        if paths::have_two(number) {
            leave_used(named, number, args);
        }
    }
}

/// Leaves both directories of a call, which the mount has made, to it for longer, if others list one of them: before that one is seen the
/// other may have been taken.
fn leave_used(named: &Named, number: u32, args: &Args) {
    let places = paths::places(named, number, args);
    let places = || {
        let places = places.iter().flatten();
        places.map(|place| (place.known_as, place.path))
    };
    if worth::is_to_ask(places()) {
        let mut asked = paths::asked(number, args).into_iter().flatten();
        if asked.any(|(dir, path)| place::is_used_by_others(dir, path)) {
            worth::stay_left(places());
            report::passed(number, worth::LEFT);
        }
    }
}

fn may_be_on_mount(number: u32, args: &Args) -> bool {
    let paths = paths::given_to(number, args);
    let by_path = |&path: &&[u8]| state::may_be_on_mount(path);
    paths.is_some_and(|paths| paths.iter().flatten().any(by_path))
}

/// Whether something may have to be done about a call here. Of what `malloc` calls under its locks (memory, files of the kernel's) nothing
/// ever has: a thread that is not prepared would wait for these locks.
fn concerns(number: u32, args: &Args) -> bool {
    match number {
        nr::MMAP | nr::MPROTECT if kernel::makes_code(number, args) => true,
        nr::MMAP => open::placeholder_of(args[4] as i32).is_some(),
        nr::MPROTECT => false,
        _ if kernel::ends_or_changes(number) => true,
        _ => match paths::given_to(number, args) {
            Some(paths) => {
                let descriptor = |path: &[u8]| placeholder::any() && place::is_of_descriptor(path);
                let by_path = |&path: &&[u8]| state::may_be_on_mount(path) || descriptor(path);
                paths.iter().flatten().any(by_path) || kernel::gives_placeholder(number, args)
            }
            None => placeholder::any(),
        },
    }
}

/// Serves a call about a path, if it can be. The thread is inside and busy.
fn serve(thread: &Thread, number: u32, args: &Args) -> Option<i64> {
    let (dir, path) = paths::target(number, args)?;
    // The mount is looked for where names are made; what is read may lie elsewhere.
    let is_unknown = setting::is_by_time() && state::known().is_none();
    if is_unknown && !Use::of(number, args).makes() {
        return None;
    }
    let named = state::named(dir, path)?;
    if !worth::is_open(named.mount, number, args) || place::is_left(named, dir, path) {
        return None;
    }
    let begun = state::begin_call(thread);
    let result = match open::Asked::of(number, args) {
        Some(asked) => open::open(named, &asked),
        None => paths::serve(named, number, args),
    };
    let (asked, took) = state::end_call(thread, begun);
    let is_served = result.is_some();
    if setting::is_by_time() && (asked != 0 || !is_served && paths::have_two(number)) {
        let cost = Cost {
            asked,
            took,
            is_served,
        };
        note_cost(named, number, args, &cost);
    }
    result
}

/// What a call has cost that was served, or was tried to be.
struct Cost {
    /// Inode that it asked for a lease on last; 0: none.
    asked: u64,
    /// How long it took, ns, if it asked for one.
    took: u64,
    is_served: bool,
}

/// Counts what leases have cost that a call has asked for, and leaves directories to the mount that others use.
#[cold]
fn note_cost(named: &Named, number: u32, args: &Args, cost: &Cost) {
    let places = paths::places(named, number, args);
    let places = || {
        places
            .iter()
            .flatten()
            .map(|place| (place.known_as, place.path))
    };
    let mut leaves = false;
    if cost.asked != 0 {
        for (start, path) in places() {
            leaves |= worth::has_cost(start, path, cost.took);
        }
        // To ask about what is in a directory shares it, as the kernel does.
        if !cost.is_served
            && Use::of(number, args).makes()
            && state::is_mediated_directory(named, cost.asked)
        {
            worth::leave(places());
            leaves = true;
        }
    }
    if leaves {
        report::passed(number, worth::LEFT);
    }
    if !cost.is_served {
        worth::leave_together(places);
    }
}
