//! A volume that is frozen: calls that were inside before are in it as a whole, none comes after, and who read it then goes by
//! leases again afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shale_libfs::{Caller, Session, WriteFlags};

use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::stage::{Checked, attach_to};
use shale_bench::Result;
use shale_hostile::served::Hand;
use shale_oplog::encode;

const LONGEST: Duration = Duration::from_secs(30);
/// How long it is looked whether something happens that must not.
const LOOK: Duration = Duration::from_millis(15);
const ROUNDS: usize = 6;
/// The reader slot of the call that is inside.
const READER_SLOT: usize = 3;
const ROOT: u64 = 1;
const LOGGED: &[u8] = b"from inside";

/// Tries it.
///
/// # Errors
/// There is no space for a volume.
pub fn frozen(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    while trial.next_case() {
        let stage = trial.stage()?;
        let daemon = kept!(stage.start());
        let reader = kept!(attach_to(&daemon));
        let mut hand = Hand::in_process(&daemon);
        kept!(waits_for_calls(&reader, &mut hand));
        drop(hand);
        let writer = kept!(attach_to(&daemon));
        kept!(holds_back(&reader, &writer));
        drop((reader, writer));
        kept!(daemon.shutdown().map_err(|e| format!("shutdown: {e}")));
        let report = kept!(stage.fsck());
        if !report.clean() {
            return Ok(Err(format!("fsck:\n{report}")));
        }
    }
    trial.seen = "nothing moves, and all of before is there".to_owned();
    Ok(Ok(()))
}

fn read(session: &Session, ino: u64, bytes: usize) -> Checked<Vec<u8>> {
    let mut into = vec![0; bytes];
    let read = session.read(&Caller::default(), ino, 0, &mut into);
    into.truncate(read.map_err(|e| format!("read: {e}"))?);
    Ok(into)
}

/// A call is inside: the freeze begins when it has ended, and has what it logged.
fn waits_for_calls(reader: &Arc<Session>, hand: &mut Hand) -> Checked<()> {
    let ino = hand.make_file("inside", b"from before");
    hand.digest();
    hand.set_reader_slot(READER_SLOT, 1);
    let freezer = reader.clone();
    let freezing = std::thread::spawn(move || freezer.freeze(LONGEST));
    std::thread::sleep(LOOK);
    let early = freezing.is_finished();
    hand.append(encode::write(ino, 0, LOGGED));
    hand.set_reader_slot(READER_SLOT, 2);
    let frozen = freezing.join().map_err(|_| "the freezer panicked")?;
    frozen.map_err(|e| format!("freeze: {e}"))?;
    let seen = read(reader, ino.0, LOGGED.len());
    reader.thaw().map_err(|e| format!("thaw: {e}"))?;
    if early {
        return Err("frozen while a call was inside".to_owned());
    }
    match seen? {
        seen if seen == LOGGED => Ok(()),
        seen => Err(format!("what the call had logged is not there: {seen:?}")),
    }
}

/// A client counts in a file: nothing of it moves while the volume is frozen, all of it is there, and goes on.
fn holds_back(reader: &Arc<Session>, writer: &Arc<Session>) -> Checked<()> {
    let caller = Caller::default();
    let made = writer.create(&caller, ROOT, b"counter", 0o600, 0);
    let ino = made.map_err(|e| format!("create: {e}"))?.ino;
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let flags = WriteFlags {
        kill_suidgid: false,
        append: false,
        sync: false,
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1u64.. {
                let written = writer.write(&caller, ino, 0, &n.to_le_bytes(), flags);
                if written.is_err() || stop.load(Ordering::Relaxed) {
                    break;
                }
                done.store(n, Ordering::Release);
            }
        });
        let checked = rounds(reader, ino, &done);
        stop.store(true, Ordering::Relaxed);
        checked
    })
}

fn rounds(reader: &Session, ino: u64, done: &AtomicU64) -> Checked<()> {
    let count = || -> Checked<u64> {
        let bytes = read(reader, ino, 8)?;
        let bytes = <[u8; 8]>::try_from(bytes).map_err(|b| format!("{} bytes", b.len()))?;
        Ok(u64::from_le_bytes(bytes))
    };
    goes_on(done, 0)?;
    for _ in 0..ROUNDS {
        reader.freeze(LONGEST).map_err(|e| format!("freeze: {e}"))?;
        let returned = done.load(Ordering::Acquire);
        let first = count();
        std::thread::sleep(LOOK);
        let (second, later) = (count(), done.load(Ordering::Acquire));
        reader.thaw().map_err(|e| format!("thaw: {e}"))?;
        let (first, second) = (first?, second?);
        // The last call may be on its way back.
        if first != second || later > returned + 1 {
            return Err(format!(
                "it moves: {first}, {second}; {returned}, {later} returned"
            ));
        }
        if first < later {
            return Err(format!("{later} had returned, {first} is there"));
        }
        goes_on(done, first + 1)?;
        let now = count()?;
        if now <= first {
            return Err(format!("{now} is read after more than {first} was written"));
        }
    }
    Ok(())
}

/// Waits until more than `past` calls have returned.
fn goes_on(done: &AtomicU64, past: u64) -> Checked<()> {
    let begun = Instant::now();
    while done.load(Ordering::Acquire) <= past {
        if begun.elapsed() > LONGEST {
            return Err(format!("who waits does not go on after {past}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
