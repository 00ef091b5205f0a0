//! The loads of HiNFS's evaluation, each on any directory.
//!
//! | Module | What |
//! | --- | --- |
//! | `load` | names, options, what was found |
//! | `servers` | Filebench's fileserver, webserver, webproxy, varmail |
//! | `postmark` | PostMark |
//! | `tree` | kernel-make, kernel-grep |
//! | `database` | tpcc |
//! | `traces` | usr0, usr1, lasr, facebook: synthetic |
//! | `worker` | what a load is: one thread's calls, choices and counts |
//! | `file_set` | numbered files, of which each thread takes others |
//!
//! All calls go through the C library, as those of other programs do, so that `shale run` serves them.

mod database;
mod file_set;
mod load;
mod postmark;
mod servers;
#[cfg(test)]
mod tests;
mod traces;
mod tree;
mod worker;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

pub use load::{Found, Limit, Load, LoadOptions};

use crate::{BenchError, Result};
use worker::{Counts, Work, Worker};

fn make(load: Load, dir: &Path, options: &LoadOptions) -> Box<dyn Work> {
    match load {
        Load::Fileserver | Load::Webserver | Load::Webproxy | Load::Varmail => {
            Box::new(servers::Server::new(load, dir, options))
        }
        Load::Postmark => Box::new(postmark::Postmark::new(dir, options)),
        Load::KernelMake => Box::new(tree::Tree::new(dir, options, true)),
        Load::KernelGrep => Box::new(tree::Tree::new(dir, options, false)),
        Load::Tpcc => Box::new(database::Database::new(dir, options)),
        Load::Usr0 | Load::Usr1 | Load::Lasr | Load::Facebook => {
            Box::new(traces::Trace::new(load, dir, options))
        }
    }
}

/// Bytes of a call as published, where they can be chosen.
fn io_bytes(load: Load, options: &LoadOptions) -> u64 {
    let published = match load {
        Load::Fileserver | Load::Webserver | Load::Webproxy | Load::Varmail => servers::IO_BYTES,
        Load::Postmark => postmark::IO_BYTES,
        Load::KernelMake | Load::KernelGrep => tree::IO_BYTES,
        Load::Tpcc => database::IO_BYTES,
        Load::Usr0 | Load::Usr1 | Load::Lasr | Load::Facebook => traces::IO_BYTES_MAX,
    };
    let chosen = options.io_bytes.filter(|_| load.has_io_size());
    chosen.unwrap_or(published).max(1)
}

/// Runs a load in `dir`, which is made if it is missing. When its files are made, and synced, it calls `ready`; what it does
/// after that is counted.
///
/// # Errors
/// A call failed; what `ready` says.
pub fn run(
    load: Load,
    dir: &Path,
    options: &LoadOptions,
    ready: impl FnOnce() -> Result<()>,
) -> Result<Found> {
    std::fs::create_dir_all(dir).map_err(BenchError::file(dir, "make"))?;
    let work = make(load, dir, options);
    let bytes = io_bytes(load, options) as usize;
    let threads = u64::from(options.threads.max(1));
    let mut workers: Vec<Worker> = (0..threads)
        .map(|n| Worker::new(load, n, options.seed, bytes))
        .collect();
    work.prepare(&mut workers[0])?;
    let root = std::fs::File::open(dir).map_err(BenchError::file(dir, "open"))?;
    rustix::fs::syncfs(&root).map_err(BenchError::file(dir, "sync"))?;
    drop(root);
    workers[0].counts = Counts::default();
    ready()?;
    let begun = Instant::now();
    let counts = race(&*work, workers, options.limit)?;
    Ok(Found {
        operations: counts.operations,
        seconds: begun.elapsed().as_secs_f64(),
        written_bytes: counts.written,
        read_bytes: counts.read,
        fsyncs: counts.fsyncs,
        synced_bytes: counts.synced,
    })
}

/// Runs all threads to the limit; what they did together.
fn race(work: &dyn Work, workers: Vec<Worker>, limit: Limit) -> Result<Counts> {
    let over = AtomicBool::new(false);
    let each = match limit {
        Limit::Seconds(_) => u64::MAX,
        Limit::Operations(all) => all.div_ceil(workers.len() as u64),
    };
    let (ended, end) = mpsc::channel();
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                let (ended, over) = (ended.clone(), &over);
                scope.spawn(move || {
                    let mut done = Ok(());
                    while done.is_ok()
                        && !over.load(Ordering::Relaxed)
                        && worker.counts.operations < each
                    {
                        done = work.turn(&mut worker);
                    }
                    // One that fails ends all; nobody listens after the limit.
                    let _ = ended.send(done.is_err());
                    done.map(|()| worker.counts)
                })
            })
            .collect();
        drop(ended);
        match limit {
            Limit::Seconds(seconds) => wait_for(&end, seconds),
            Limit::Operations(_) => while end.recv() == Ok(false) {},
        }
        over.store(true, Ordering::Relaxed);
        let mut all = Counts::default();
        for thread in threads {
            let done = thread.join();
            all += done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(all)
    })
}

/// Returns after so many seconds, or when a thread has failed.
fn wait_for(end: &mpsc::Receiver<bool>, seconds: f64) {
    let begun = Instant::now();
    let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
    loop {
        match end.recv_timeout(limit.saturating_sub(begun.elapsed())) {
            Ok(false) => {}
            Ok(true) | Err(_) => return,
        }
    }
}
