//! Processes by number and time of start: a number alone may be somebody else's by now.

use crate::failure::{Failure, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::fs;
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

    /// Waits until it has ended, at most `limit`. Tells whether it has.
    ///
    /// # Errors
    /// The kernel cannot say.
    pub fn wait(&self, limit: Option<Duration>) -> Result<bool> {
        let failed = |e: rustix::io::Errno| {
            Failure::new(format!(
                "process {}: cannot wait for its end: {e}",
                self.pid
            ))
        };
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return Ok(true);
        };
        let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            Err(rustix::io::Errno::SRCH) => return Ok(true),
            Err(e) => return Err(failed(e)),
        };
        // The number may have gone to another process before the descriptor held it.
        if !self.lives() {
            return Ok(true);
        }
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            let left = left.map(|left| Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            });
            match poll(
                &mut [PollFd::new(&descriptor, PollFlags::IN)],
                left.as_ref(),
            ) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(failed(e)),
            }
        }
    }
}

/// Start of a process that has not ended (a zombie has, once its last thread has: until then it
/// keeps its files and locks).
fn started(pid: u32) -> Option<u64> {
    let (started, ended) = thread(&format!("/proc/{pid}/stat"))?;
    if !ended {
        return Some(started);
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let mut threads = threads.map(|t| t.path().join("stat"));
    let lives = threads.any(|t| t.to_str().and_then(thread).is_some_and(|(_, ended)| !ended));
    lives.then_some(started)
}

/// When a thread started, and whether it has ended.
fn thread(stat: &str) -> Option<(u64, bool)> {
    let stat = fs::read_to_string(stat).ok()?;
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
}
