//! A worker of `shale-harness coherence drive --names`, which starts it: a program of its own, since names are served only where all
//! system calls are libc's, and those of `shale-harness` are not.
//!
//! `shale-coherence-worker DIR LOG SEED NUMBER UNTIL BEGUN AGES CLIENT`: times are those of CLOCK_MONOTONIC, in nanoseconds; UNTIL 0:
//! look at everything once. CLIENT is 1 for a client.
#![forbid(unsafe_code)]

#[path = "command/coherence/names/dirs.rs"]
#[allow(dead_code, reason = "`drive` makes them")]
mod dirs;
#[path = "command/coherence/log.rs"]
#[allow(dead_code, reason = "it only writes one")]
mod log;
#[path = "command/coherence/names/work.rs"]
mod names;
#[path = "command/coherence/work.rs"]
#[allow(dead_code, reason = "only the content of files is changed")]
mod work;

use std::io;
use std::path::PathBuf;

use log::Log;
use names::Names;
use work::Worker;

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let place = |at: usize| {
        words
            .get(at)
            .map(PathBuf::from)
            .ok_or(io::ErrorKind::InvalidInput)
    };
    let number = |at: usize| {
        let number = words.get(at).and_then(|word| word.parse::<u64>().ok());
        number.ok_or(io::ErrorKind::InvalidInput)
    };
    let (dir, log) = (place(0)?, Log::create(&place(1)?)?);
    let (seed, own, until) = (number(2)?, number(3)?, number(4)?);
    let (begun, ages, client) = (number(5)?, number(6)?, number(7)? != 0);
    let mut worker = Worker::new(dir.clone(), log, seed, own);
    if until == 0 {
        worker.finish()?;
        return names::finish(&dir, &mut worker.log);
    }
    let mut names = Names::new(&dir, own, client, begun, ages)?;
    names.run(&mut worker, until)
}
