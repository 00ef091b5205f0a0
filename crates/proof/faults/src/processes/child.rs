//! Daemon and client as processes of their own, which faults happen to.
//!
//! They are this program, started with other words. A daemon says `ready` when it listens and
//! goes when its standard input ends. A client notes after each operation in a file how many have
//! returned.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use shale_libfs::Session;
use shale_proto::SocketChannel;
use shale_sys::SystemClock;

use crate::trial::Trial;
use crate::volume::sight::use_it;
use crate::volume::stage::{Checked, Stage, attach, both, config_of, side};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_model::{Act, Memory};

/// Exit status of a child that was refused something and said so.
const REFUSED: i32 = 3;
/// Longest that a child may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a client that stays inside a call is waited for.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(1);

/// A point at which something happens to a child.
#[derive(Debug, Clone)]
pub struct Point {
    /// Its name.
    pub name: &'static str,
    /// Which time it is reached, from 1.
    pub number: u64,
    /// What happens: kill, stop, once, ever.
    pub what: &'static str,
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.name, self.number, self.what)
    }
}

/// A child process. Killed if it is dropped.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    /// What it wrote to standard error.
    errors: PathBuf,
}

/// The socket of a stage's daemon.
pub fn socket(stage: &Stage) -> PathBuf {
    stage.dir().join("socket")
}

/// The file in which a client counts.
pub fn counter(stage: &Stage) -> PathBuf {
    stage.dir().join("returned")
}

fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> BenchError {
    BenchError::file("a child process", what)
}

/// Closes what a caller that started this program left open: it would take numbers from the child, or, where the number is
/// above a limit on them, would not.
const CLOSE_INHERITED: &str = "for n in /proc/$$/fd/*; do n=${n##*/}; \
     [ $n -le 2 ] || [ $n = 255 ] || eval \"exec $n>&-\"; done; exec /bin/sh \"$@\"";

impl Process {
    fn start(
        stage: &Stage,
        point: Option<&Point>,
        limits: &str,
        words: &[String],
    ) -> Result<Process> {
        let program = std::env::current_exe().map_err(failed("find"))?;
        let errors = stage.dir().join("errors");
        let file = std::fs::File::create(&errors).map_err(BenchError::file(&errors, "make"))?;
        let mut command = Command::new("/bin/bash");
        let script = format!("{limits} exec \"$0\" \"$@\"");
        // The limits are those of a smaller shell: this one ends where there is little memory.
        command.args(["-c", CLOSE_INHERITED, "bash", "-c", &script]);
        command.arg(program).args(words);
        if let Some(point) = point {
            command.env("SHALE_FAILPOINT", point.to_string());
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .map_err(failed("start"))?;
        let input = child.stdin.take();
        Ok(Process {
            child,
            input,
            errors,
        })
    }

    /// A daemon of the stage's volume. `limits`: a shell's words, such as `ulimit -n 30;`.
    ///
    /// # Errors
    /// No process can be started.
    pub fn daemon(stage: &Stage, point: Option<&Point>, limits: &str) -> Result<Process> {
        let _ = std::fs::remove_file(socket(stage));
        let words = [
            "faults-daemon".to_owned(),
            stage.nvm().display().to_string(),
            socket(stage).display().to_string(),
        ];
        Process::start(stage, point, limits, &words)
    }

    /// A client that does the trial's workload. `limits`: as of a daemon.
    ///
    /// # Errors
    /// No process can be started.
    pub fn client(
        stage: &Stage,
        point: Option<&Point>,
        limits: &str,
        trial: &Trial<'_>,
    ) -> Result<Process> {
        let mut words = vec![
            "faults-client".to_owned(),
            socket(stage).display().to_string(),
            counter(stage).display().to_string(),
            trial.filled.load.name().to_owned(),
            trial.options.seed.to_string(),
        ];
        words.extend(trial.buffered.then(|| "--unsynced".to_owned()));
        Process::start(stage, point, limits, &words)
    }

    /// A client that makes one file, says that it is ready, and leaves when its standard input
    /// ends.
    ///
    /// # Errors
    /// No process can be started.
    pub fn guest(stage: &Stage) -> Result<Process> {
        let words = [
            "faults-guest".to_owned(),
            socket(stage).display().to_string(),
        ];
        Process::start(stage, None, "", &words)
    }

    /// A daemon that adds a device to the volume in `place`, empties another and takes it out.
    ///
    /// # Errors
    /// No process can be started.
    pub fn changer(stage: &Stage, point: &Point, place: &Path) -> Result<Process> {
        let words = ["faults-devices".to_owned(), place.display().to_string()];
        Process::start(stage, Some(point), "", &words)
    }

    /// Looks at the damaged images `from` to `to` of the whole one in `image`.
    ///
    /// # Errors
    /// No process can be started.
    pub fn images(stage: &Stage, limits: &str, image: &Path, seeds: Range<u64>) -> Result<Process> {
        let words = [
            "faults-images".to_owned(),
            stage.nvm().display().to_string(),
            image.display().to_string(),
            seeds.start.to_string(),
            seeds.end.to_string(),
        ];
        Process::start(stage, None, limits, &words)
    }

    /// Its process number.
    pub fn number(&self) -> u32 {
        self.child.id()
    }

    /// What it writes to standard output from now on, to its end.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn output(&mut self) -> Result<String> {
        let mut text = String::new();
        if let Some(output) = self.child.stdout.as_mut() {
            output
                .read_to_string(&mut text)
                .map_err(failed("read from"))?;
        }
        Ok(text)
    }

    /// Waits until it says that it is ready; `false`: it has ended instead.
    ///
    /// # Errors
    /// Its output cannot be read.
    pub fn ready(&mut self) -> Result<bool> {
        let Some(output) = self.child.stdout.as_mut() else {
            return Ok(true);
        };
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        Ok(read.map_err(failed("read from"))? > 0)
    }

    /// Tells it to end.
    pub fn end(&mut self) {
        self.input = None;
    }

    /// Its exit status, once there is one.
    ///
    /// # Errors
    /// It is still there after a long time.
    pub fn status(&mut self) -> Checked<ExitStatus> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                Err(e) => return Err(format!("waiting for a child: {e}")),
            }
        }
        Err(format!("a child is still there after {PATIENCE:?}"))
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// What it wrote to standard error.
    pub fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            // One that has ended needs none.
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether it is stopped.
    pub fn is_stopped(&self) -> bool {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let state = text.rsplit(')').next().unwrap_or_default();
        state.trim_start().starts_with('T')
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether it was killed, and by nothing but `kill -9`.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

/// Whether it said why it does not go on.
pub fn was_refused(status: ExitStatus) -> bool {
    status.code() == Some(REFUSED)
}

/// How many operations a client has done.
pub fn returned(stage: &Stage) -> usize {
    let bytes = std::fs::read(counter(stage)).unwrap_or_default();
    let bytes = bytes.try_into().unwrap_or([0; 8]);
    u64::from_le_bytes(bytes) as usize
}

/// This process as a client of the stage's daemon.
///
/// # Errors
/// It cannot be reached, or refuses.
pub fn join(stage: &Stage) -> Checked<Arc<Session>> {
    let channel = SocketChannel::connect(&socket(stage)).map_err(|e| format!("connect: {e}"))?;
    attach(Arc::new(channel))
}

/// What a child daemon does. Gives its exit status.
pub fn serve(nvm: &Path, socket: &Path) -> i32 {
    let mut config = config_of(nvm);
    config.client_stall_timeout = STALL_TIMEOUT;
    let daemon = shale_daemon::Daemon::start(config, Arc::new(SystemClock::new()));
    let daemon = daemon.and_then(|daemon| daemon.listen(socket).map(|()| daemon));
    let daemon = match daemon {
        Ok(daemon) => daemon,
        Err(e) => {
            eprintln!("refused: {e}");
            return REFUSED;
        }
    };
    println!("ready");
    // Nobody may be listening any more.
    let _ = std::io::stdout().flush();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    match daemon.shutdown() {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("refused: {e}");
            REFUSED
        }
    }
}

/// What a guest does. Gives its exit status.
pub fn visit(stage_socket: &Path) -> i32 {
    let done = || -> Checked<()> {
        let channel = SocketChannel::connect(stage_socket).map_err(|e| format!("connect: {e}"))?;
        let session = attach(Arc::new(channel))?;
        let mut shale = side(&session);
        use_it(&mut shale, b"fault-guest")?;
        println!("ready");
        // Nobody may be listening any more.
        let _ = std::io::stdout().flush();
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(shale);
        session.detach().map_err(|e| format!("detach: {e}"))
    };
    noted(done())
}

pub(crate) fn noted(done: Checked<()>) -> i32 {
    match done {
        Ok(()) => 0,
        Err(wrong) => {
            eprintln!("refused: {wrong}");
            REFUSED
        }
    }
}

/// What a child client does: operations, until one fails. Gives its exit status.
pub fn work(stage_socket: &Path, counter: &Path, acts: impl Iterator<Item = Act>) -> i32 {
    let done = || -> Checked<()> {
        let channel = SocketChannel::connect(stage_socket).map_err(|e| format!("connect: {e}"))?;
        let session = attach(Arc::new(channel))?;
        let mut shale = side(&session);
        let mut model = Memory::new(0o755);
        let file = std::fs::File::create(counter).map_err(|e| e.to_string())?;
        for (n, act) in (1_u64..).zip(acts) {
            both(&mut model, &mut shale, &act)?;
            file.write_all_at(&n.to_le_bytes(), 0)
                .map_err(|e| e.to_string())?;
        }
        Ok(())
    };
    noted(done())
}
