//! A device that makes durable what was promised when a test says so, and answers on a mount that wait for it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use shale_fuse::node::{Errno, Promise, Result};

use crate::{Mounted, eventually};

/// Programs that wait at the same time: many more than threads serve requests.
const PROGRAMS: usize = 12;

/// See the module.
pub struct SlowDevice {
    /// Every change promises to be durable, not only fsync and `O_SYNC`.
    strict: bool,
    /// What was promised, in order.
    promised: Mutex<Vec<Promise>>,
    /// How many of these are durable, or that no more will be.
    durable: Mutex<Result<u64>>,
    changed: Condvar,
    /// Threads that wait.
    waiting: AtomicU64,
}

impl SlowDevice {
    fn new(strict: bool) -> Option<Self> {
        Some(Self {
            strict,
            promised: Mutex::default(),
            durable: Mutex::new(Ok(0)),
            changed: Condvar::new(),
            waiting: AtomicU64::new(0),
        })
    }

    pub fn promise(&self, promise: Promise) -> Option<u64> {
        if promise == Promise::Change && !self.strict {
            return None;
        }
        let mut promised = self.promised.lock();
        promised.push(promise);
        Some(promised.len() as u64)
    }

    pub fn wait(&self, upto: u64) -> Result<()> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut durable = self.durable.lock();
        self.changed
            .wait_while(&mut durable, |durable| durable.is_ok_and(|d| d < upto));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        durable.map(|_| ())
    }

    /// All that was promised so far is durable, or it fails.
    fn ends(&self, how: Result<()>) {
        let all = self.promised.lock().len() as u64;
        *self.durable.lock() = how.map(|()| all);
        self.changed.notify_all();
    }

    fn promises(&self) -> usize {
        self.promised.lock().len()
    }
}

impl Mounted {
    fn device(&self) -> &SlowDevice {
        self.fs.device.as_ref().unwrap()
    }

    /// One for each program.
    fn files(&self) -> Vec<File> {
        let made = |n| File::create(self.path(&format!("f{n}"))).unwrap();
        (0..PROGRAMS).map(made).collect()
    }
}

#[test]
fn however_many_wait_for_fsync_requests_are_served() {
    let Some(m) = Mounted::on(SlowDevice::new(false)) else {
        return;
    };
    let files = m.files();
    let returned = AtomicU64::new(0);
    thread::scope(|scope| {
        let waits = |mut file: &File| {
            file.write_all(b"x").unwrap();
            file.sync_all().unwrap();
            returned.fetch_add(1, Ordering::SeqCst);
        };
        for file in &files {
            scope.spawn(move || waits(file));
        }
        eventually("all wait", || m.device().promises() == PROGRAMS);
        // Nothing of this waits, nor for those who do.
        fs::write(m.path("other"), b"other").unwrap();
        assert_eq!(fs::read(m.path("other")).unwrap(), b"other");
        assert_eq!(fs::read_dir(m.path("")).unwrap().count(), PROGRAMS + 1);
        thread::sleep(Duration::from_millis(50));
        assert_eq!(returned.load(Ordering::SeqCst), 0, "nothing is durable yet");
        let waiting = m.device().waiting.load(Ordering::SeqCst);
        assert!(
            (1..PROGRAMS as u64 / 2).contains(&waiting),
            "{waiting} threads wait"
        );
        m.device().ends(Ok(()));
    });
    assert_eq!(*m.device().promised.lock(), [Promise::Fsync; PROGRAMS]);
}

#[test]
fn an_answer_whose_promise_fails_is_an_error() {
    let Some(m) = Mounted::on(SlowDevice::new(false)) else {
        return;
    };
    let files = m.files();
    thread::scope(|scope| {
        let waits: Vec<_> = files
            .iter()
            .map(|file| scope.spawn(move || file.sync_data().unwrap_err().raw_os_error()))
            .collect();
        eventually("all wait", || m.device().promises() == PROGRAMS);
        m.device().ends(Err(Errno(libc::EIO)));
        for wait in waits {
            assert_eq!(wait.join().unwrap(), Some(libc::EIO));
        }
    });
}

#[test]
fn what_is_made_on_a_strict_volume_is_whole_when_it_was_held_back() {
    let Some(m) = Mounted::on(SlowDevice::new(true)) else {
        return;
    };
    thread::scope(|scope| {
        let makes = |n: usize| {
            fs::create_dir(m.path(&format!("d{n}"))).unwrap();
            fs::write(m.path(&format!("d{n}/f")), vec![n as u8; 5000]).unwrap();
            fs::rename(m.path(&format!("d{n}/f")), m.path(&format!("d{n}/g"))).unwrap();
            fs::read(m.path(&format!("d{n}/g"))).unwrap()
        };
        let made: Vec<_> = (0..PROGRAMS)
            .map(|n| scope.spawn(move || makes(n)))
            .collect();
        while !made.iter().all(|thread| thread.is_finished()) {
            m.device().ends(Ok(()));
            thread::sleep(Duration::from_millis(1));
        }
        for (n, made) in made.into_iter().enumerate() {
            assert_eq!(made.join().unwrap(), vec![n as u8; 5000]);
        }
    });
    let promised = m.device().promised.lock();
    assert!(
        promised.len() >= 4 * PROGRAMS,
        "{} promises",
        promised.len()
    );
    assert!(
        promised.iter().all(|&p| p == Promise::Change),
        "no fsync: {promised:?}"
    );
}

#[test]
fn a_write_with_o_sync_promises_it() {
    let Some(m) = Mounted::on(SlowDevice::new(false)) else {
        return;
    };
    let mut options = File::options();
    options.write(true).create(true).custom_flags(libc::O_DSYNC);
    let mut file = options.open(m.path("f")).unwrap();
    thread::scope(|scope| {
        let write = scope.spawn(|| file.write_all(b"x").unwrap());
        eventually("it waits", || m.device().promises() == 1);
        thread::sleep(Duration::from_millis(20));
        assert!(!write.is_finished());
        while !write.is_finished() {
            m.device().ends(Ok(()));
        }
    });
    assert_eq!(m.device().promised.lock()[0], Promise::SyncWrite);
}

#[test]
fn a_session_that_stops_answers_first_what_it_has_held_back() {
    let Some(mut m) = Mounted::on(SlowDevice::new(false)) else {
        return;
    };
    let files = m.files();
    thread::scope(|scope| {
        let waits: Vec<_> = files
            .iter()
            .map(|file| scope.spawn(move || file.sync_all()))
            .collect();
        eventually("all wait", || m.device().promises() == PROGRAMS);
        let stopping = scope.spawn(|| m.session.stopper().stop());
        thread::sleep(Duration::from_millis(30));
        assert!(!stopping.is_finished(), "answers are held back");
        m.device().ends(Ok(()));
        stopping.join().unwrap();
        for wait in waits {
            wait.join().unwrap().unwrap();
        }
    });
    m.adopt();
}
