//! The lease protocol under a model checker: the very sources of daemon and LibFS that
//! decide and act (the table of leases, taking them, waiting for readers, cutting off, how far a log
//! goes, which entries go that nobody needs; read section, lease words, getting leases, whether a client is still served), with locks,
//! atomics and shared memory that explore interleavings. What stands for the rest is a
//! volume of one number per inode and calls that add one or look.
//!
//! Checked in each schedule: never two writers of an inode inside of calls, nor a reader and a
//! writer, but for clients that were cut off; every write sees the one before it; a call sees what
//! had been returned when it began; in the end the volume has exactly the writes that
//! returned; no record comes to digest without its lease; nobody waits for ever, also when a
//! thread is stopped inside a call until all others are done. A failure prints the
//! schedule; `shuttle::replay` runs it again.
//!
//! `SHALE_SCHEDULES=N`: so many schedules instead of the short set.

mod client_side;
mod daemon_side;
mod kernel;
mod memory;
mod sync;
mod world;

use client_side::errno::MEDIATED;
use client_side::session::Session;
use daemon_side::client::Client;
use daemon_side::lease_table::{Decision, LeaseRequest};
use daemon_side::shared::Shared;
use kernel::Kernel;
use shale_proto::shared_pages::daemon_page::bucket;
use shale_proto::{LeaseMode, LeaseRequestMode};
use shuttle::rand::{Rng, thread_rng};
use std::sync::Arc;
use std::time::Duration;
use world::World;

/// Of each of the two kinds.
const SCHEDULES: usize = 1_000;
/// A mistake that is not found in so many is not found.
const SCHEDULES_MUTANT: usize = 20_000;
/// Threads of each client.
const CLIENTS: [usize; 3] = [2, 1, 1];
const CALLS: usize = 3;
/// How often entries of leases are scanned for some that may go.
const TRIMS: usize = 8;

fn schedules(short: usize) -> usize {
    let asked = std::env::var("SHALE_SCHEDULES").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(short)
}

/// Two inodes; of the same generation word, or not.
fn inodes(together: bool) -> [u64; 2] {
    let first = 100;
    let same = |ino: &u64| (bucket(*ino) == bucket(first)) == together;
    [
        first,
        (101..)
            .find(same)
            .expect("there are more inodes than words"),
    ]
}

fn calls(world: &World, session: &Session, inos: [u64; 2]) {
    for _ in 0..CALLS {
        let ino = inos[thread_rng().gen_range(0..inos.len())];
        let floor = world.floor(ino);
        let done = match thread_rng().gen_range(0..10) {
            0 => session.give_back(ino).map(|()| None),
            1 => session.lease(ino, LeaseMode::Shared).map(|()| None),
            2..=4 => session.read(ino).map(Some),
            _ => session.write(ino).map(|value| {
                world.wrote(ino);
                Some(value)
            }),
        };
        match done {
            Ok(Some(value)) => world.returned(&session.client, ino, value, floor),
            Ok(None) => {}
            // It was cut off: its calls go through the mount now.
            Err(_) => return,
        }
        if thread_rng().gen_range(0..4) == 0 {
            world.shared.queue.push(&session.client);
        }
    }
}

/// A client writes while the daemon cuts it off and while its log is digested.
fn cut_meanwhile() {
    memory::reset();
    let shared = Shared::new(Duration::ZERO, usize::MAX);
    let world = World::new(shared.clone(), 0);
    let client = Client::new(1);
    shared.clients.add(&client);
    let session = Session::new(&world, &client);
    let mut threads = Vec::new();
    for slot in 0..2 {
        let (world, session) = (world.clone(), session.clone());
        threads.push(shuttle::thread::spawn(move || {
            memory::use_reader_slot(slot);
            while session.write(100).is_ok() {
                world.wrote(100);
            }
        }));
    }
    let digester = {
        let (shared, client) = (shared.clone(), client.clone());
        shuttle::thread::spawn(move || {
            while !client.log_fd.is_cut() {
                shared
                    .digest_up_to(&client, u64::MAX)
                    .expect("nothing is refused");
            }
        })
    };
    memory::fence();
    for _ in 0..thread_rng().gen_range(0..60) {
        memory::step();
    }
    shared.fence.evict(&client, "it is told to".to_owned());
    for thread in threads.into_iter().chain([digester]) {
        thread.join().expect("its own words say what is wrong");
    }
    shared
        .digest_up_to(&client, u64::MAX)
        .expect("nothing is refused");
    world.check_end(&[100]);
}

/// An inode is freed while its number is asked for, taken and granted again: a caller that has been granted it
/// holds the lease on it, and nobody else.
fn forget_meanwhile() {
    const INO: u64 = 100;
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Number {
        Used,
        Free,
        Granted,
    }
    memory::reset();
    let shared = Shared::new(Duration::ZERO, usize::MAX);
    let number = Arc::new(sync::Mutex::new(Number::Used));
    let wish = |client| LeaseRequest {
        client,
        ino: INO,
        mode: LeaseMode::Exclusive,
        request_mode: LeaseRequestMode::Revoke,
    };
    assert!(matches!(
        shared.leases.table().ask(&wish(1), || 0),
        Decision::Granted(_)
    ));
    let digest = {
        let (shared, number) = (shared.clone(), number.clone());
        shuttle::thread::spawn(move || {
            *number.lock() = Number::Free;
            let is_free = |_| *number.lock() == Number::Free;
            shared.leases.table().forget([INO].into_iter(), is_free);
        })
    };
    let maker = {
        let (shared, number) = (shared.clone(), number.clone());
        shuttle::thread::spawn(move || {
            while *number.lock() != Number::Free {
                shuttle::thread::yield_now();
            }
            *number.lock() = Number::Granted;
            let noted = shared.leases.table().give_new(2, &[INO]);
            assert!(noted.iter().all(|&(client, _)| client != 2));
        })
    };
    let late = {
        let shared = shared.clone();
        shuttle::thread::spawn(move || {
            let wish = wish(3);
            let Decision::TakeFrom(from) = shared.leases.table().ask(&wish, || 0) else {
                return false;
            };
            match thread_rng().gen_bool(0.5) {
                true => drop(shared.leases.table().taken(&wish, &from, || 0)),
                false => shared.leases.table().give_up(&wish, &from),
            }
            from.iter().any(|holder| holder.client == 2)
        })
    };
    for thread in [digest, maker] {
        thread.join().expect("its own words say what is wrong");
    }
    let taken = late.join().expect("its own words say what is wrong");
    assert_eq!(*number.lock(), Number::Granted);
    let held = [1, 2, 3].map(|client| shared.leases.table().mode(client, INO));
    let maker_has_it = held == [None, Some(LeaseMode::Exclusive), None];
    // Or it was taken from the maker, which had it first.
    assert!(
        maker_has_it || taken,
        "violation: a number that was granted is not its maker's: {held:?}"
    );
}

fn run() {
    memory::reset();
    let limits = [
        Duration::ZERO,
        Duration::from_millis(1),
        Duration::from_millis(40),
    ];
    // Leases of inodes that nobody asks for come and go, or stay.
    let most = [usize::MAX, 1, 0][thread_rng().gen_range(0..3)];
    let shared = Shared::new(limits[thread_rng().gen_range(0..limits.len())], most);
    if thread_rng().gen_bool(0.5) {
        // The kernel's references are older than this daemon.
        shared.leases.table().assume_reader(1);
    }
    let world = World::new(shared.clone(), thread_rng().gen_range(0..3));
    let inos = inodes(thread_rng().gen_bool(0.5));
    let mut threads = Vec::new();
    for (id, count) in (1..).zip(CLIENTS) {
        let client = Client::new(id);
        shared.clients.add(&client);
        let session = Session::new(&world, &client);
        for slot in 0..count {
            world.begin(id);
            let (world, session) = (world.clone(), session.clone());
            threads.push(shuttle::thread::spawn(move || {
                memory::use_reader_slot(slot);
                calls(&world, &session, inos);
                memory::fence();
                world.end(id);
            }));
        }
    }
    memory::fence();
    let digester = {
        let shared = shared.clone();
        shuttle::thread::spawn(move || shared.digest_loop())
    };
    let trimmer = {
        let shared = shared.clone();
        let times = if most == usize::MAX { 0 } else { TRIMS };
        shuttle::thread::spawn(move || {
            for _ in 0..times {
                shared.leases.trim();
                memory::fence();
                for _ in 0..thread_rng().gen_range(0..30) {
                    shuttle::thread::yield_now();
                }
            }
        })
    };
    for thread in threads {
        thread.join().expect("its own words say what is wrong");
    }
    trimmer.join().expect("its own words say what is wrong");
    shared.queue.stop();
    digester.join().expect("its own words say what is wrong");
    for client in shared.clients.snapshot() {
        shared
            .digest_up_to(&client, u64::MAX)
            .expect("nothing is refused");
    }
    world.check_end(&inos);
}

/// A name is made or removed, or looked up, by a client that serves names itself; through the mount while the daemon says so.
fn call_on_names(world: &World, session: &Session, kernel: &Kernel, dir: u64) -> bool {
    let floor = world.floor(dir);
    let changes = thread_rng().gen_bool(0.5);
    let done = match changes {
        true => session.write(dir),
        false => session.read(dir),
    };
    let (done, client) = match done {
        Err(MEDIATED) if changes => (kernel.change(dir), &kernel.session.client),
        Err(MEDIATED) => (kernel.look(dir), &kernel.session.client),
        done => (done, &session.client),
    };
    // Else it was cut off.
    if let Ok(value) = done {
        if changes {
            world.wrote(dir);
        }
        world.returned(client, dir, value, floor);
    }
    done.is_ok()
}

/// Clients change directories that the kernel knows, and programs on the mount do so, too.
fn names() {
    memory::reset();
    // Nobody is stopped, or cut off: the front end never is.
    let shared = Shared::new(Duration::from_secs(1_000), usize::MAX);
    let (front_end, dirs) = (Client::in_process(1), inodes(thread_rng().gen_bool(0.5)));
    shared.clients.add(&front_end);
    let world = World::new(shared.clone(), 0);
    let kernel = Kernel::new(&Session::new(&world, &front_end), dirs);
    shared.leases.set_hook(kernel.clone());
    let mut threads = Vec::new();
    let mut begin = |id: u32, slot: usize, call: Box<dyn Fn(u64) -> bool + Send>| {
        let world = world.clone();
        world.begin(id);
        threads.push(shuttle::thread::spawn(move || {
            memory::use_reader_slot(slot);
            for _ in 0..CALLS {
                if !call(dirs[thread_rng().gen_range(0..dirs.len())]) {
                    break;
                }
            }
            memory::fence();
            world.end(id);
        }));
    };
    for slot in 0..2 {
        let (world, kernel) = (world.clone(), kernel.clone());
        let through_mount = move |dir| {
            let (floor, changes) = (world.floor(dir), thread_rng().gen_range(0..3) == 0);
            let done = if changes {
                kernel.change(dir)
            } else {
                kernel.look(dir)
            };
            if let Ok(value) = done {
                if changes {
                    world.wrote(dir);
                }
                world.returned(&kernel.session.client, dir, value, floor);
            }
            done.is_ok()
        };
        begin(1, slot, Box::new(through_mount));
    }
    for id in [2, 3] {
        let client = Client::new(id);
        shared.clients.add(&client);
        let session = match thread_rng().gen_bool(0.5) {
            true => Session::yielding(&world, &client),
            false => Session::new(&world, &client),
        };
        let (world, kernel) = (world.clone(), kernel.clone());
        let call = move |dir| call_on_names(&world, &session, &kernel, dir);
        begin(id, id as usize, Box::new(call));
    }
    memory::fence();
    let digester = {
        let shared = shared.clone();
        shuttle::thread::spawn(move || shared.digest_loop())
    };
    for thread in threads {
        thread.join().expect("its own words say what is wrong");
    }
    shared.queue.stop();
    digester.join().expect("its own words say what is wrong");
    for client in shared.clients.snapshot() {
        let done = shared.digest_up_to(&client, u64::MAX);
        done.expect("nothing is refused");
    }
    world.check_end(&dirs);
}

fn config() -> shuttle::Config {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 18;
    config.max_steps = shuttle::MaxSteps::FailAfter(200_000);
    config
}

fn explore(schedules: usize, scenario: fn()) {
    let scheduler = shuttle::scheduler::RandomScheduler::new(schedules);
    shuttle::Runner::new(scheduler, config()).run(scenario);
}

#[test]
fn random_schedules() {
    explore(schedules(SCHEDULES), run);
}

#[test]
fn what_the_kernel_keeps_of_directories_is_right() {
    explore(schedules(SCHEDULES), names);
}

#[test]
fn a_cut_is_exact() {
    explore(schedules(SCHEDULES), cut_meanwhile);
}

#[test]
fn a_number_that_is_free_is_forgotten_once() {
    explore(schedules(SCHEDULES), forget_meanwhile);
}

#[test]
fn priority_schedules() {
    let scheduler = shuttle::scheduler::PctScheduler::new(3, schedules(SCHEDULES));
    shuttle::Runner::new(scheduler, config()).run(run);
}

/// Each deliberate mistake, and where it shows.
const MISTAKES: &[(&str, &str, fn())] = &[
    ("lease-generation", "the generation is not raised", run),
    ("lease-grace", "no grace period is waited for", run),
    (
        "lease-barrier",
        "no barrier before the read of the reader slots",
        run,
    ),
    (
        "section-after-look",
        "a call looks at the lease before it is inside",
        run,
    ),
    ("lease-digest", "the holder's log is not digested", run),
    (
        "lease-digest-late",
        "it is digested after the lease has moved",
        run,
    ),
    (
        "lease-digest-early",
        "only what its holder had published before the grace period is digested",
        run,
    ),
    (
        "lease-busy",
        "others get at a lease that is being taken",
        run,
    ),
    ("lease-fresh", "who had lost a lease is not told", run),
    (
        "lease-idle-generation",
        "who loses a lease that it does not use is not told",
        run,
    ),
    (
        "lease-idle-grace",
        "calls go on under a lease that has gone because nobody uses it",
        run,
    ),
    (
        "lease-idle-digest",
        "a lease goes before what was written under it is in the volume",
        run,
    ),
    (
        "lease-idle-asked",
        "a lease goes although its holder has asked for it again",
        run,
    ),
    (
        "lease-forget-granted",
        "a freed inode's lease goes although its number was granted again",
        forget_meanwhile,
    ),
    (
        "kernel-undropped",
        "the kernel keeps what it knows of a directory that a client changes",
        names,
    ),
    (
        "kernel-used-since",
        "what the kernel has asked for since it dropped that stays",
        names,
    ),
    (
        "seal-early",
        "the log's end is found before the client can know",
        run,
    ),
    (
        "seal-barrier",
        "no barrier before the look for the log's end",
        cut_meanwhile,
    ),
    (
        "seal-in-pieces",
        "the log may grow between that look and the cut",
        cut_meanwhile,
    ),
    (
        "append-unasked",
        "a write does not look whether its log goes on",
        run,
    ),
    (
        "read-unasked",
        "a read does not look whether it is still served",
        run,
    ),
];

#[test]
fn each_mistake_is_found() {
    let mut lives = Vec::new();
    for &(mutant, what, scenario) in MISTAKES {
        let found = std::thread::spawn(move || {
            memory::switch_on(mutant);
            explore(SCHEDULES_MUTANT, scenario);
        });
        match found.join() {
            Err(why) => {
                let why = why.downcast_ref::<String>().cloned();
                let why = why.unwrap_or_else(|| "?".to_owned());
                let first = why.lines().next().unwrap_or_default().to_owned();
                println!("{mutant} ({what}): {first}");
            }
            Ok(()) => lives.push(mutant),
        }
    }
    assert!(lives.is_empty(), "not found: {lives:?}");
}
