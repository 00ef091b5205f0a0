//! Clients that are killed, stopped, or short of something, while others are there; and process
//! numbers that are used again.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::processes::child::{
    Point, Process, STALL_TIMEOUT, counter, returned, was_killed, was_refused,
};
use crate::processes::killed::May;
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::sight::{Sight, use_it};
use crate::volume::stage::{Checked, Stage, attach_to, close_all, side, tree};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_model::{Act, FileAct, Fill, Memory, Shale, Side, Snapshot};

/// Points of a client.
const CLIENT_POINTS: [&str; 4] = [
    "lease-given",
    "call-inside",
    "append-reserved",
    "append-filled",
];

/// A client that dies or stops while another one is there.
struct Meeting {
    stage: Stage,
    client: Process,
    daemon: std::sync::Arc<shale_daemon::Daemon>,
}

impl Meeting {
    /// `limits`: a shell's words about the client.
    fn new(trial: &Trial<'_>, point: Option<&Point>, limits: &str) -> Result<Checked<Meeting>> {
        let stage = trial.stage()?;
        let mut config = stage.config();
        config.client_stall_timeout = STALL_TIMEOUT;
        let daemon = kept!(stage.start_with(config));
        let listening = daemon.listen(&crate::processes::child::socket(&stage));
        kept!(listening.map_err(|e| format!("listen: {e}")));
        let _ = std::fs::remove_file(counter(&stage));
        let client = Process::client(&stage, point, limits, trial)?;
        Ok(Ok(Meeting {
            stage,
            client,
            daemon,
        }))
    }

    /// Waits until something is so.
    fn wait(&mut self, mut so: impl FnMut(&mut Meeting) -> bool) -> Checked<()> {
        let begun = Instant::now();
        while !so(self) {
            if begun.elapsed() > Duration::from_secs(30) {
                return Err("the point was not reached".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// What the client had done: the model after what returned, and with one more.
    fn may(&self, trial: &Trial<'_>) -> May {
        let mut model = Memory::new(0o755);
        let mut acts = trial.acts();
        for act in acts.by_ref().take(returned(&self.stage)) {
            // What it answered was compared by the client itself.
            let _ = model.act(&act);
        }
        let before = model.clone();
        if let Some(act) = acts.next() {
            let _ = model.act(&act);
        }
        May {
            before,
            after: model,
        }
    }

    /// Another client looks at everything and writes; within a time that is bounded.
    fn look(&self, may: May) -> Checked<(Shale, Memory)> {
        let begun = Instant::now();
        let session = attach_to(&self.daemon)?;
        let mut shale = side(&session);
        let mut model = may.be(&mut shale)?;
        use_it(&mut shale, b"fault-new")?;
        as_used(&mut model, b"fault-new");
        let took = begun.elapsed();
        match took < STALL_TIMEOUT * 4 + Duration::from_secs(2) {
            true => Ok((shale, model)),
            false => Err(format!("the others waited {took:?}")),
        }
    }

    fn end(self, shale: Shale, mut model: Memory) -> Checked<()> {
        close_all(&mut model);
        let expected: Snapshot = tree(&mut model)?;
        drop(shale);
        drop(self.client);
        self.daemon
            .shutdown()
            .map_err(|e| format!("shutdown: {e}"))?;
        let report = self.stage.fsck()?;
        if !report.clean() {
            return Err(format!("fsck:\n{report}"));
        }
        let daemon = self.stage.start()?;
        let session = attach_to(&daemon)?;
        let mut shale = side(&session);
        let sight = Sight::of(&mut shale, &expected);
        drop(shale);
        session.detach().map_err(|e| format!("detach: {e}"))?;
        daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
        sight.within(&[])
    }
}

/// A client is killed at a point of a call.
pub fn killed(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    clients(trial, "kill")
}

/// A client is stopped at a point of a call, and goes on when others have gone past it.
pub fn stopped(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    clients(trial, "stop")
}

fn clients(trial: &mut Trial<'_>, what: &'static str) -> Result<Checked<()>> {
    if !trial.armed() {
        return Ok(Ok(()));
    }
    let mut cases = 0;
    loop {
        for name in CLIENT_POINTS {
            // What it makes is its own: it asks for the root directory only.
            let most = if name == "lease-given" { 1 } else { 300 };
            let number = 1 + trial.chance.below(most);
            if what == "stop" && name == "lease-given" {
                // It is in no call there, and goes on rightly.
                continue;
            }
            if !trial.next_case() {
                trial.seen = format!("{cases} clients");
                return Ok(Ok(()));
            }
            let point = Point { name, number, what };
            let done = meet(trial, &point)?;
            kept!(done.map_err(|wrong| format!("{point}: {wrong}")));
            cases += 1;
        }
    }
}

fn meet(trial: &Trial<'_>, point: &Point) -> Result<Checked<()>> {
    let mut meeting = kept!(Meeting::new(trial, Some(point), "")?);
    kept!(meeting.wait(|m| m.client.is_stopped() || m.client.has_ended()));
    let may = meeting.may(trial);
    let (shale, model) = kept!(meeting.look(may));
    if point.what == "stop" {
        // It goes on with what it was doing: nothing of that may count.
        meeting.client.signal(Signal::CONT);
        let status = kept!(meeting.client.status());
        if !was_refused(status) {
            let errors = meeting.client.errors();
            return Ok(Err(format!("the client ended with {status}: {errors}")));
        }
    }
    Ok(meeting.end(shale, model))
}

/// Operations of a buffered client before it is killed, at most.
const BUFFERED_ACTS: u64 = 1_500;

/// A buffered client that never calls fsync is killed at some moment: what it had written is in memory, and a part of it nowhere else.
pub fn buffered_killed(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    trial.buffered = true;
    let mut in_memory = 0;
    while trial.next_case() {
        let mut meeting = kept!(Meeting::new(trial, None, "")?);
        let first = 1 + trial.chance.below(BUFFERED_ACTS) as usize;
        kept!(meeting.wait(|m| returned(&m.stage) >= first || m.client.has_ended()));
        let Some(buffer) = meeting.daemon.status_values().buffer else {
            return Ok(Err(format!(
                "no buffered client: {}",
                meeting.client.errors()
            )));
        };
        meeting.client.signal(Signal::KILL);
        let status = kept!(meeting.client.status());
        if !was_killed(status) {
            let errors = meeting.client.errors();
            return Ok(Err(format!("the client ended with {status}: {errors}")));
        }
        if buffer.copied_bytes > 0 {
            let copied = buffer.copied_bytes;
            return Ok(Err(format!("{copied} bytes were copied without fsync")));
        }
        in_memory += buffer.used_bytes;
        let may = meeting.may(trial);
        let (shale, model) = kept!(meeting.look(may));
        kept!(meeting.end(shale, model));
    }
    trial.seen = format!(
        "{} kills, {} KiB of log in memory alone each",
        trial.cases,
        (in_memory >> 10) / trial.cases.max(1)
    );
    match in_memory {
        0 => Ok(Err("nothing was in memory alone".to_owned())),
        _ => Ok(Ok(())),
    }
}

/// What [`use_it`] has made, in the model.
fn as_used(model: &mut Memory, path: &[u8]) {
    let fill = Fill {
        seed: 77,
        len: 6_000,
    };
    let create = shale_libfs::OFlags::RDWR | shale_libfs::OFlags::CREATE;
    for act in [
        Act::Open(0, path.to_vec(), create, 0o600),
        Act::File(0, FileAct::WriteNext(fill)),
        Act::File(0, FileAct::Close),
    ] {
        let _ = model.act(&act);
    }
}

/// Has the next process get this number. `false`: not allowed, or somebody else was faster.
fn next_number(number: u32) -> bool {
    let last = Path::new("/proc/sys/kernel/ns_last_pid");
    std::fs::write(last, format!("{}", number - 1)).is_ok()
}

/// A guest with the number of a process that has gone; `None`: the system does not give it.
fn guest(stage: &Stage, number: u32) -> Result<Option<Process>> {
    for _ in 0..200 {
        if !next_number(number) {
            return Ok(None);
        }
        let mut guest = Process::guest(stage)?;
        if guest.number() == number {
            return match guest.ready()? {
                true => Ok(Some(guest)),
                false => Err(BenchError::Program {
                    program: "a client".to_owned(),
                    found: guest.errors(),
                }),
            };
        }
    }
    Ok(None)
}

/// Process numbers that are used again: a client is killed, in the middle of what it does or while
/// it is stopped, and the next process with its number becomes a client.
pub fn numbers(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let mut reused = 0;
    while trial.next_case() {
        let stopped = trial.cases.is_multiple_of(2);
        let mut meeting = kept!(Meeting::new(trial, None, "")?);
        let first = 1 + trial.chance.below(300) as usize;
        kept!(meeting.wait(|m| returned(&m.stage) >= first || m.client.has_ended()));
        let number = meeting.client.number();
        if stopped {
            meeting.client.signal(Signal::STOP);
            kept!(meeting.wait(|m| m.client.is_stopped()));
        }
        meeting.client.signal(Signal::KILL);
        let status = kept!(meeting.client.status());
        if !was_killed(status) {
            let errors = meeting.client.errors();
            return Ok(Err(format!("the client ended with {status}: {errors}")));
        }
        let mut may = meeting.may(trial);
        // Another process may have got the number, or nobody may say which comes next.
        let Some(mut guest) = guest(&meeting.stage, number)? else {
            continue;
        };
        reused += 1;
        for model in [&mut may.before, &mut may.after] {
            as_used(model, b"fault-guest");
        }
        let (shale, model) = kept!(meeting.look(may));
        // It is who it is, and the one before it is gone.
        let clients = meeting.daemon.status_values().clients;
        let same = clients.iter().filter(|c| c.pid as u32 == number).count();
        if same != 1 {
            return Ok(Err(format!("{same} clients have number {number}")));
        }
        guest.end();
        let status = kept!(guest.status());
        if !status.success() {
            return Ok(Err(format!("the guest: {status}: {}", guest.errors())));
        }
        kept!(meeting.end(shale, model));
    }
    trial.untried = reused == 0;
    trial.seen = format!("{reused} numbers used again");
    Ok(Ok(()))
}

/// Few descriptors, little memory for a client.
pub fn limits(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    const ENOUGH: usize = 150;
    let descriptors = (4..30).step_by(2).map(|n| format!("ulimit -n {n};"));
    let memory = [30_000, 60_000, 80_000, 90_000, 100_000, 120_000, 200_000];
    let memory = memory.map(|kib| format!("ulimit -v {kib};"));
    let data = [2_000, 3_000, 4_000, 5_000, 6_000, 8_000, 16_000];
    let data = data.map(|kib| format!("ulimit -d {kib};"));
    let (mut served, mut aborted) = (0, 0);
    for limit in descriptors.chain(memory).chain(data) {
        if !trial.next_case() {
            break;
        }
        let mut meeting = kept!(Meeting::new(trial, None, &limit)?);
        let done = meeting.wait(|m| returned(&m.stage) >= ENOUGH || m.client.has_ended());
        kept!(done.map_err(|wrong| format!("{limit} {wrong}")));
        let ended = meeting.client.has_ended();
        if ended {
            let status = kept!(meeting.client.status());
            let errors = meeting.client.errors();
            // Allocations that cannot fail in Rust end the program; the shell and the loader
            // have ways of their own to say no.
            let no_memory = errors.contains("memory allocation") || errors.contains("memory");
            let loader = status.code() == Some(127) || errors.contains("shared libraries");
            aborted += u64::from(!was_refused(status));
            if errors.contains("panicked") || !(was_refused(status) || no_memory || loader) {
                return Ok(Err(format!("{limit} {status}: {errors}")));
            }
        } else {
            served += 1;
            meeting.client.signal(Signal::KILL);
            kept!(meeting.client.status());
        }
        let may = meeting.may(trial);
        let looked = meeting
            .look(may)
            .map_err(|wrong| format!("{limit} {wrong}"));
        let (shale, model) = kept!(looked);
        kept!(meeting.end(shale, model));
    }
    trial.seen = format!(
        "{served} of {} limits were enough; {aborted} ended without memory",
        trial.cases
    );
    Ok(Ok(()))
}
