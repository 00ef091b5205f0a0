//! Processes by number and time of start: a number alone may be somebody else's by now.

use crate::failure::{Failure, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

/// One process, whether it lives or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Number.
    pub pid: u32,
    /// Clock ticks from the start of the machine to its own.
    pub started: u64,
}

impl Process {
    /// The process that has number `pid` now; one that is gone lives no more.
    pub fn of(pid: u32) -> Self {
        let started = started(pid).unwrap_or(0);
        Self { pid, started }
    }

    /// This process.
    pub fn this() -> Self {
        Self::of(std::process::id())
    }

    /// Whether it has not ended.
    pub fn lives(&self) -> bool {
        self.started != 0 && started(self.pid) == Some(self.started)
    }

    /// Kills it, if it lives.
    ///
    /// # Errors
    /// This user may not.
    pub fn kill(&self) -> Result<()> {
        let Some(descriptor) = opened(self.pid)?.filter(|_| self.lives()) else {
            return Ok(());
        };
        match pidfd_send_signal(&descriptor, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(e) => Err(Failure::new(format!(
                "process {}: cannot kill it: {e}",
                self.pid
            ))),
        }
    }

    /// Waits until it has ended, at most `limit`. Tells whether it has.
    ///
    /// # Errors
    /// The kernel cannot say.
    pub fn wait(&self, limit: Option<Duration>) -> Result<bool> {
        let Some(descriptor) = opened(self.pid)? else {
            return Ok(true);
        };
        // The number may have gone to another process before the descriptor held it.
        if !self.lives() {
            return Ok(true);
        }
        ends_within(&descriptor, self.pid, limit)
    }
}

/// Waits until no thread of a child is left, at most `limit`. Tells whether none is.
///
/// # Errors
/// The kernel cannot say.
pub fn child_ends_within(child: &Child, limit: Duration) -> Result<bool> {
    match opened(child.id())? {
        Some(descriptor) => ends_within(&descriptor, child.id(), Some(limit)),
        None => Ok(true),
    }
}

fn cannot_wait(pid: u32, e: Errno) -> Failure {
    Failure::new(format!("process {pid}: cannot wait for its end: {e}"))
}

/// A descriptor of a process, if there is one of that number.
fn opened(pid: u32) -> Result<Option<OwnedFd>> {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Ok(None);
    };
    match pidfd_open(number, PidfdFlags::empty()) {
        Ok(descriptor) => Ok(Some(descriptor)),
        Err(Errno::SRCH) => Ok(None),
        Err(e) => Err(cannot_wait(pid, e)),
    }
}

fn ends_within(descriptor: &OwnedFd, pid: u32, limit: Option<Duration>) -> Result<bool> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut [PollFd::new(descriptor, PollFlags::IN)], left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(e) => return Err(cannot_wait(pid, e)),
        }
    }
}

/// Whether there is a process with this number.
pub fn exists(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Start of a process that has not ended (a zombie has, once its last thread has: until then it
/// keeps its files and locks; but see [`Left::Nothing`]).
fn started(pid: u32) -> Option<u64> {
    let (started, _) = thread(&format!("/proc/{pid}"))?;
    (left_of(pid) != Left::Nothing).then_some(started)
}

/// What is left of a process.
#[derive(Debug, PartialEq, Eq)]
pub enum Left {
    /// It runs.
    Process,
    /// It is dead, but this thread of it has not ended: in the kernel, which lets none go in the middle of some calls.
    Thread(String),
    /// Nothing; or only threads with nothing open but `/dev/fuse` (`shale_fuse` has them). They wait there for what only
    /// the next daemon does, and keep neither files nor locks.
    Nothing,
}

/// What is left of process `pid`. One that is dead is one whose first thread has ended: ours end all at once.
pub fn left_of(pid: u32) -> Left {
    match thread(&format!("/proc/{pid}")) {
        None => return Left::Nothing,
        Some((_, false)) => return Left::Process,
        Some((_, true)) => {}
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten().map(|t| t.path());
    for path in threads {
        let lives = thread(&path.to_string_lossy()).is_some_and(|(_, ended)| !ended);
        // Between the two looks it may have ended.
        if lives && !has_device_only(&path) && path.exists() {
            let field = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
            let number = path.file_name().unwrap_or_default().to_string_lossy();
            let (name, place) = (field("comm"), field("wchan"));
            return Left::Thread(format!("{number} ({} in {place})", name.trim()));
        }
    }
    Left::Nothing
}

/// Whether a thread has `/dev/fuse` open and nothing else. One with nothing at all is closing it.
fn has_device_only(thread: &Path) -> bool {
    let Ok(open) = fs::read_dir(thread.join("fd")) else {
        return false;
    };
    let mut open = open.flatten().peekable();
    let is_device = |path: &Path| fs::read_link(path).is_ok_and(|to| to == Path::new("/dev/fuse"));
    open.peek().is_some() && open.all(|file| is_device(&file.path()))
}

/// When a thread started, and whether it has ended.
fn thread(path: &str) -> Option<(u64, bool)> {
    let stat = fs::read_to_string(format!("{path}/stat")).ok()?;
    // The second field is a name in parentheses that may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    // Field 22; `rest` began with field 3.
    let started = fields.nth(18)?.parse().ok()?;
    Some((started, state == "Z" || state == "X"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn life_and_end() {
        assert!(Process::this().lives());
        let other = Process {
            started: 1,
            ..Process::this()
        };
        assert!(!other.lives(), "same number, other start");

        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id());
        assert!(process.lives());
        assert!(!process.wait(Some(Duration::from_millis(5))).unwrap());
        child.kill().unwrap();
        assert!(process.wait(Some(Duration::from_secs(10))).unwrap());
        child.wait().unwrap();
        assert!(!process.lives() && process.wait(None).unwrap());
    }

    /// A process whose first thread has ended and whose other one sleeps, with these statements before it does.
    fn dead_but_for_a_thread(prepare: &str) -> std::process::Child {
        let script = format!(
            "import ctypes, os, threading, time
def sleep():
    {prepare}
    time.sleep(60)
threading.Thread(target=sleep).start()
time.sleep(0.2)
ctypes.CDLL(None).syscall({}, 0)",
            libc::SYS_exit
        );
        let child = Command::new("python3").args(["-c", &script]).spawn();
        let child = child.unwrap();
        let begun = Instant::now();
        while left_of(child.id()) == Left::Process {
            assert!(begun.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    #[test]
    fn a_thread_with_files_keeps_a_dead_process_alive() {
        let mut child = dead_but_for_a_thread("pass");
        let pid = child.id();
        let Left::Thread(which) = left_of(pid) else {
            panic!("{:?}", left_of(pid));
        };
        assert!(which.contains("python3"), "{which}");
        assert!(Process::of(pid).lives());
        assert!(!child_ends_within(&child, Duration::from_millis(5)).unwrap());
        child.kill().unwrap();
        assert!(child_ends_within(&child, Duration::from_secs(10)).unwrap());
        assert_eq!(left_of(pid), Left::Nothing);
        child.wait().unwrap();
    }

    #[test]
    fn a_thread_with_the_device_alone_does_not() {
        if fs::File::open("/dev/fuse").is_err() {
            eprintln!("SKIPPED: needs /dev/fuse");
            return;
        }
        let mut child =
            dead_but_for_a_thread("os.closerange(0, 1000); os.open('/dev/fuse', os.O_RDWR)");
        assert_eq!(left_of(child.id()), Left::Nothing);
        assert!(!Process::of(child.id()).lives());
        assert!(!child_ends_within(&child, Duration::from_millis(5)).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
